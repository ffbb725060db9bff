"""Installations: a wheel in an environment of its own, one made without a compiler, and the demo from one."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import penstock
from tests.waits import PROGRAM_S

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
SCRIPT = """
import numpy as np, penstock
from penstock import native
batches = list(penstock.from_arrays(np.arange(100)).shuffle().batch(10).loader(executor="threads"))
assert sorted(np.concatenate(batches)) == list(range(100))
print(native.implementation(), penstock.__file__)
"""


def run(*command, cwd="/", **env):
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(wheel, folder):
    """Installs a wheel into an environment of its own; returns the folder of its programs."""
    venv.create(folder, symlinks=True)
    programs = folder / "bin"
    run(*PIP, "--python", programs / "python", "install", "--no-deps", "--no-index", wheel)
    # The packages that penstock needs; a file of paths there is not read, so penstock itself is the wheel's.
    site = run(programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "needed.pth").write_text(str(Path(pytest.__file__).parents[1]))
    return programs


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the name of the wheel's platform")
def test_wheel_of_a_machine_without_a_compiler_works(tmp_path):
    config = f"--config-settings=build-dir={tmp_path / 'build'}"
    run(*PIP, "wheel", "--no-deps", config, "-w", tmp_path, ROOT, CC="false", CXX="false")
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    implementation, path = run(installed(wheel, tmp_path / "venv") / "python", "-c", SCRIPT).strip().split(maxsplit=1)
    assert implementation == "numpy"
    assert path.startswith(str(tmp_path))


@pytest.mark.framework
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the name of the wheel's platform")
def test_demo_runs_from_what_make_dist_builds(tmp_path):
    pytest.importorskip("build")
    if not sysconfig.get_config_var("CXX"):
        pytest.skip("no compiler")
    run(sys.executable, "-m", "build", "--outdir", tmp_path, ROOT)  # the wheel from the sdist
    [_], [wheel] = tmp_path.glob("penstock_data-*.tar.gz"), tmp_path.glob("penstock_data-*.whl")
    assert wheel.name.endswith("-cp311-abi3-linux_x86_64.whl")
    programs = installed(wheel, tmp_path / "venv")
    implementation, path = run(programs / "python", "-c", SCRIPT).strip().split(maxsplit=1)
    assert implementation == "native"
    assert path.startswith(str(tmp_path))
    said = run(programs / "penstock", "demo", "--quick", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert f"penstock {penstock.__version__}, Keras on " in said
    assert (tmp_path / "penstock-demo.png").exists()
