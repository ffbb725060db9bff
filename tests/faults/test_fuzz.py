"""Damaged small files of every format give right rows, or an error with the file's name; they end no more than that.

`make fuzz` runs longer.
"""

import contextlib
import faulthandler
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.formats import FORMATS

pytestmark = pytest.mark.faults

# Five minutes: two programs share the formats, side by side, on processors that other tests leave.
SECONDS = 150
NAMES = [name for name, each in FORMATS.items() if not each.missing]


@pytest.mark.slow
@pytest.mark.long
def test_damaged_files_give_right_rows_or_an_error_with_their_name(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # where others have the processors, it takes longer than a test may
    programs = []
    with contextlib.ExitStack() as at_end:
        for part in (0, 1):
            options = ["--formats", ";".join(NAMES[part::2]), "--seed", "tests", "--seconds", str(SECONDS)]
            out = at_end.enter_context((tmp_path / f"{part}.txt").open("w+"))
            command = ["nice", "-n19", sys.executable, "-m", "tests.fuzz", *options, "--keep", str(tmp_path / "failed")]
            programs.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT))
            at_end.callback(programs[-1].wait)
            at_end.callback(programs[-1].kill)
        statuses = [program.wait(1200) for program in programs]
    assert statuses == [0, 0], "\n".join((tmp_path / f"{part}.txt").read_text() for part in (0, 1))


FAULTY = """
    import os, signal, sys, time
    from pathlib import Path
    import numpy as np
    import penstock as ps
    from tests.fuzz import runner
    from tests.fuzz.formats import FORMATS, Format

    def read(fault):
        def run(folder):
            if (folder / "file").read_bytes() != b"sound":
                return fault(folder)
            return [np.int64(1)]
        return run

    def format_of(fault, **options):
        make = lambda folder: (folder / "file").write_bytes(b"sound")
        return Format({"seed": make}, read=read(fault), **options)

    def ends(folder):
        os.kill(os.getpid(), signal.SIGSEGV)

    def hangs(folder):
        time.sleep(1000)

    def spins(folder):
        while True:
            pass

    def raises(folder):
        raise ZeroDivisionError("division")

    def has_no_name(folder):
        raise ps.SourceError("something is damaged")

    def has_name(folder):
        raise ps.SourceError("file is damaged")

    def grows_without_end(folder):
        return [np.ones(4 << 30, np.uint8)]

    runner.HANG_S, runner.MOST_ENDED = 1.0, 1
    FORMATS.clear()
    FORMATS.update({
        "ends": format_of(ends),
        "hangs": format_of(hangs),
        "spins": format_of(spins),
        "raises": format_of(raises),
        "has no name": format_of(has_no_name),
        "has a name": format_of(has_name),
        "grows without end": format_of(grows_without_end),
        "invents": format_of(lambda folder: [np.int64(2)], is_exact=True),
        "differs": format_of(lambda folder: [np.int64(2)], model=lambda folder: [np.int64(3)]),
        "fails": format_of(lambda folder: [np.int64(2)], model=lambda folder: 1 / 0),
        "is right": format_of(lambda folder: [np.int64(1)], is_exact=True),
    })
    ran = runner.fuzz(list(FORMATS), 6.0, "seed", Path(sys.argv[1], "kept"), Path(sys.argv[1], "work"))
    for name, each in ran.items():
        assert each.cases, name
        ended = ["ended"] if each.ended else []
        print(name, *ended, *sorted({failure.kind for failure in each.failures.values()}), sep=": ")
"""


@pytest.mark.slow
def test_the_fuzzer_finds_each_kind_of_fault(
    fresh_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = fresh_python(textwrap.dedent(FAULTY), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ends: ended",
        "hangs: ended",
        "spins: ended",
        "raises: another exception",
        "has no name: an error without the file's name",
        "has a name",
        "grows without end",
        "invents: rows that nobody wrote",
        "differs: other rows than the model's",
        "fails: rows where the model fails",
        "is right",
    ]
    kept = {each.name for each in (tmp_path / "kept").iterdir()}
    assert {name.rstrip("0123456789") for name in kept} >= {"raises-", "invents-"}
    text = next((tmp_path / "kept").glob("raises-*/what.txt")).read_text()
    assert "python -m tests.fuzz --formats 'raises' --seed seed --case" in text
