"""Installations: a wheel in an environment of its own, and one made without a compiler."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import numpy as np, penstock
from penstock import native
batches = list(penstock.from_arrays(np.arange(100)).shuffle().batch(10).loader(executor="threads"))
assert sorted(np.concatenate(batches)) == list(range(100))
print(native.implementation(), penstock.__file__)
"""


def run(*command, **env):
    done = subprocess.run(
        [str(part) for part in command], env=os.environ | env, capture_output=True, text=True, timeout=600, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the name of the wheel's platform")
@pytest.mark.parametrize("has_compiler", [True, False])
def test_a_wheel_works_in_an_environment_of_its_own(has_compiler, tmp_path):
    if has_compiler and not sysconfig.get_config_var("CXX"):
        pytest.skip("no compiler")
    compilers = {} if has_compiler else {"CC": "false", "CXX": "false"}
    config = f"--config-settings=build-dir={tmp_path / 'build'}"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", "--no-deps", config, "-w", tmp_path, ROOT, **compilers)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-cp311-abi3-linux_x86_64.whl" if has_compiler else "-py3-none-any.whl")
    venv.create(tmp_path / "venv", symlinks=True)
    site = run(tmp_path / "venv/bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    run(*pip, "install", "--no-deps", "--target", site, wheel)
    # The packages that penstock needs; a file of paths there is not read, so penstock itself is the wheel's.
    Path(site, "needed.pth").write_text(str(Path(pytest.__file__).parents[1]))
    implementation, path = run(tmp_path / "venv/bin/python", "-c", SCRIPT).split()
    assert implementation == ("native" if has_compiler else "numpy")
    assert path.startswith(site)
