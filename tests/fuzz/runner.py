"""Runs cases in child processes, and watches these.

A case is a number. From it and a seed follow the files that are damaged, the damage, and the way of reading. A child is
forked for each format and some seconds; it writes the number of its case into shared memory before it begins, so that
the parent knows which case ended the process or hangs. The files of a case that fails are kept with the command that
repeats it.
"""

import contextlib
import faulthandler
import gc
import itertools
import json
import logging
import mmap
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.base import _tree
from tests.fuzz.formats import FORMATS, Format, OtherLibraryError, Rows
from tests.fuzz.mutations import mutated

MEMORY_LIMIT = 64 << 20
# What a case may add to the resident memory: the limit, and the overhead that the documentation promises with it.
GROWTH_NBYTES = MEMORY_LIMIT + (64 << 20)
# A case that wants more gets no memory.
HARD_NBYTES = 1 << 30
PROCESSOR_S = 5.0
# The rows of a case that are read: rows without bytes may be as many as a head says.
MOST_ROWS = 10_000
# A child is ended if its case takes so much of a processor, or this time. The time is counted in looks and not clocked:
# where other programs have the processors, the process that looks waits for them, too.
SPIN_S, HANG_S, LOOK_S = 20.0, 120.0, 0.02
KEPT = 3
# The exit status of a child that failed by itself, not in a case.
NOT_A_CASE = 70


@dataclass
class Failure:
    """A kind of failure: those with one cause are one."""

    format: str
    kind: str
    text: str
    cases: list[int] = field(default_factory=list)
    count: int = 0


@dataclass
class Ran:
    """What ran of a format."""

    cases: int = 0
    rows: int = 0
    """Cases that gave rows, all of them right."""
    errors: int = 0
    """Cases that gave an error of penstock's."""
    failures: dict[str, Failure] = field(default_factory=dict)


class CaseError(Exception):
    """A case that failed: what is wrong, and where, in a form that is equal for the same cause."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind, text


# ---------------------------------------------------------------------------------------------- a case


class Bench:
    """The sound files of a format in a folder, and cases on them."""

    def __init__(self, name: str, folder: Path, seed: str) -> None:
        self.name, self.format, self.seed = name, FORMATS[name], seed
        self.folders, self.sound, self.rows = [], {}, {}
        for variant, make in self.format.seeds.items():
            place = folder / variant
            place.mkdir(parents=True)
            make(place)
            self.folders.append(place)
            self.sound[place] = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
            self.rows[place] = read(self.format, place, 0)
            self.restore(place)

    def targets(self, place: Path) -> list[Path]:
        """The files that are damaged."""
        found = {file for pattern in self.format.files for file in place.glob(pattern)}
        return sorted(found & self.sound[place].keys())

    def restore(self, place: Path) -> None:
        """Makes the files sound again. Files that are not damaged keep their times."""
        for file in list(place.rglob("*")):
            if file.is_file() and file not in self.sound[place]:
                file.unlink()
        for file, data in self.sound[place].items():
            if not file.exists() or file.read_bytes() != data:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)

    def run(self, number: int) -> str:
        """Runs a case. Returns "rows" or "error".

        Raises:
            CaseError: It failed.
        """
        place, damaged, is_mended, way = self.damage(number)
        began_s, began_nbytes = time.process_time(), _resident_nbytes(reset=True)
        try:
            rows, error = read(self.format, place, way), None
        except ps.PenstockError as caught:
            rows, error = None, caught
        except OtherLibraryError:
            return "error"
        except Exception as caught:
            raise CaseError("another exception", _place_of(caught)) from caught
        spent_s, grown = time.process_time() - began_s, _resident_nbytes() - began_nbytes
        if grown > GROWTH_NBYTES:
            raise CaseError("memory", _place_of(error) if error else "rows")
        if spent_s > PROCESSOR_S:
            raise CaseError("slow", f"{spent_s:.0f} s")
        if error is not None:
            self.require_name(error, place, damaged)
            return "error"
        assert rows is not None
        self.compare(rows, place, is_mended)
        return "rows"

    def damage(self, number: int) -> tuple[Path, list[Path], bool, int]:
        """Damages the files of a case. Returns their folder, the files, whether checksums fit, and how to read."""
        rng = random.Random(f"{self.name} {self.seed} {number}")
        place = rng.choice(self.folders)
        self.restore(place)
        targets = self.targets(place)
        other = rng.choice(targets if len(targets) > 1 else self.targets(rng.choice(self.folders)))
        splice = next(files[other] for files in self.sound.values() if other in files)
        chosen = rng.sample(targets, min(len(targets), rng.choice((1, 1, 1, 2))))
        is_mended = self.format.mend is not None and rng.random() < 0.5
        for file in chosen:
            data = mutated(self.sound[place][file], rng, splice, is_text=self.format.is_text)
            if is_mended and self.format.mend is not None:
                data = self.format.mend(data)
            file.write_bytes(data)
            os.utime(file, ns=(number, 10**18 + number))
        return place, chosen, is_mended, rng.randrange(4)

    def require_name(self, error: BaseException, place: Path, damaged: list[Path]) -> None:
        if not self.format.has_names:
            return
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        names = {part for file in damaged for part in (file.name, *file.relative_to(place).parts[:-1])}
        # Files that differ are told by the name of either; hidden files belong to one that is not.
        names |= {file.name for file in place.rglob("[!.]*") if file.is_file()}
        if not any(name in text for name in names):
            raise CaseError("an error without the file's name", _place_of(error)) from error

    def compare(self, rows: Rows, place: Path, is_mended: bool) -> None:
        if self.format.is_exact and not is_mended:
            expected = self.rows[place]
            if self.format.open is not None and len(rows) != len(expected):
                raise CaseError("another number of rows", f"{len(rows)} rows of {len(expected)}")
            if not all(any(_same(row, each) for each in expected) for row in rows):
                raise CaseError("rows that nobody wrote", "")
        if self.format.model is not None:
            try:
                expected = self.format.model(place)
            except Exception as caught:
                raise CaseError("rows where the model fails", f"{type(caught).__name__}") from caught
            if len(rows) != len(expected) or not all(map(_same, rows, expected)):
                raise CaseError("other rows than the model's", "")


def read(form: Format, folder: Path, way: int) -> Rows:
    """Reads rows as users do, in one of several ways: all, unless a damaged head claims more than `MOST_ROWS`."""
    if form.read is not None:
        return form.read(folder)
    assert form.open is not None
    dataset = form.open(folder)
    if way == 0:
        return [_own(row) for row in itertools.islice(dataset, MOST_ROWS)]
    if way == 1 and dataset.access == "random":
        return [_own(dataset[index]) for index in range(min(len(dataset), MOST_ROWS))]
    if dataset.length == 0:
        return []
    with dataset.loader("inline" if way == 2 else "threads", 1, memory_limit=MEMORY_LIMIT, timeout_s=HANG_S) as loader:
        return [_own(row) for row in itertools.islice(loader, MOST_ROWS)]


def _own(row: Any) -> Any:
    leaves, structure = _tree.flatten(row)
    return structure.unflatten([np.copy(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (str, int)) or isinstance(other, (str, int)):
        return bool(one == other)
    ones, others = _tree.flatten(one)[0], _tree.flatten(other)[0]
    return len(ones) == len(others) and all(map(_same_leaf, ones, others))


def _same_leaf(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.names:  # bytes between fields mean nothing
        return one.dtype == other.dtype and repr(one.tolist()) == repr(other.tolist())
    if one.dtype.itemsize == 0 or one.dtype.kind in "US":
        return one.shape == other.shape and bool((one == other).all())
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _place_of(error: BaseException) -> str:
    """Names an exception and where it was raised, without what differs from case to case."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/penstock/" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    text = re.sub(r"0x[0-9a-f]+|[0-9]+|'[^']*'|\"[^\"]*\"", "#", str(error))[:100]
    return f"{type(error).__name__} at {where}: {text}"


def _resident_nbytes(*, reset: bool = False) -> int:
    """Returns the resident memory, after a `reset` of its peak; or that peak."""
    if reset:
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:" if reset else "VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


# ---------------------------------------------------------------------------------------------- the child


def _child(name: str, seed: str, first: int, until_s: float, folder: Path, shared: mmap.mmap, results: Path) -> None:
    """Runs cases until a time, or `first` alone if that has passed."""
    _quiet(folder)
    bench = Bench(name, folder / "files", seed)
    if not is_sanitized():
        with contextlib.suppress(ImportError):  # its pool reserves a gigabyte when it is first used, in whichever case
            import pyarrow as pa

            pa.allocate_buffer(1 << 20)
        used = int(re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
        resource.setrlimit(resource.RLIMIT_DATA, (used + HARD_NBYTES, used + HARD_NBYTES))
    number = first
    with results.open("w") as out:
        while True:
            shared[:8] = number.to_bytes(8, "little")
            try:
                result, text = bench.run(number), ""
            except CaseError as error:
                result, text = error.kind, error.text
                _keep(bench, number, folder / "failed", "".join(traceback.format_exception(error)))
            shared[8:16] = (int.from_bytes(shared[8:16], "little") + 1).to_bytes(8, "little")
            out.write(json.dumps([number, result, text]) + "\n")
            out.flush()
            number += 1
            if time.monotonic() >= until_s:
                return


def is_sanitized() -> bool:
    """Whether the engine is a build with sanitizers."""
    return "PENSTOCK_ENGINE" in os.environ


def _quiet(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    faulthandler.enable(file=2)
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "home")


def _keep(bench: Bench, number: int, folder: Path, text: str) -> None:
    """Copies the files of a case, which are damaged again: reading may have mended them."""
    place, damaged, *_ = bench.damage(number)
    target = folder / str(number)
    if target.exists() or len(list(folder.glob("*"))) > 30:
        return
    target.mkdir(parents=True)
    for file in damaged:
        shutil.copy(file, target / file.name)
    (target / "what.txt").write_text(f"{bench.name}, {place.name}\n{text}")


# ---------------------------------------------------------------------------------------------- the parent


def _slice(name: str, seed: str, first: int, slice_s: float, folder: Path, ran: Ran, kept: Path) -> int:
    """Runs cases of a format in a child for some seconds. Returns the number of the next case."""
    folder.mkdir(parents=True)
    shared, results = mmap.mmap(-1, 16), folder / "results"  # a pipe would be full after some thousand cases
    shared[:8] = first.to_bytes(8, "little")
    until_s = time.monotonic() + slice_s
    pid = os.fork()
    if pid == 0:
        status = NOT_A_CASE
        try:
            os.setsid()
            _child(name, seed, first, until_s, folder, shared, results)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status, is_hanging = _watch(pid, shared)
    for line in results.read_text().splitlines(keepends=True) if results.exists() else ():
        if line.endswith("\n"):  # else the child was killed while it wrote
            number, result, text = json.loads(line)
            ran.cases += 1
            if result == "rows":
                ran.rows += 1
            elif result == "error":
                ran.errors += 1
            else:
                _note(ran, name, result, text, number, seed, folder / "failed" / str(number), kept)
    now, done = int.from_bytes(shared[:8], "little"), int.from_bytes(shared[8:], "little")
    trace = (folder / "stderr").read_text(errors="replace") if (folder / "stderr").exists() else ""
    if status == NOT_A_CASE:
        raise RuntimeError(f"{name}: {trace}")
    if status == -signal.SIGABRT and not is_hanging and FORMATS[name].has_runtime:
        ran.cases, ran.errors = ran.cases + 1, ran.errors + 1
        shutil.rmtree(folder, ignore_errors=True)
        return now + 1
    if status != 0:
        kind = "hangs" if is_hanging else f"the process ended with {status}"
        place = next((line.strip() for line in trace.splitlines() if "penstock" in line or "#1 " in line), "?")
        failed = folder / "crash"
        failed.mkdir()
        for file in (folder / "files").rglob("*"):
            if file.is_file() and file.stat().st_mtime_ns == 10**18 + now:
                shutil.copy(file, failed / file.name)
        (failed / "what.txt").write_text(f"{name}\n{kind}\n{trace[-20_000:]}")
        _note(ran, name, kind, place, now, seed, failed, kept)
        ran.cases += 1
        shutil.rmtree(folder, ignore_errors=True)
        return now + 1
    shutil.rmtree(folder, ignore_errors=True)
    return first + done


def _watch(pid: int, shared: mmap.mmap) -> tuple[int, bool]:
    """Waits for a child, and kills one whose case takes too long. Returns its status, and whether it was killed."""
    before, looks, spent_s = b"", 0, 0.0
    patience = 4 if is_sanitized() else 1
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status), False
        looks += 1
        if shared[:] != before:
            before, looks, spent_s = shared[:], 0, _processor_s(pid)
        elif looks * LOOK_S > HANG_S * patience or _processor_s(pid) - spent_s > SPIN_S * patience:
            os.kill(pid, signal.SIGABRT)  # which prints the stacks
            time.sleep(1)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), True
        time.sleep(LOOK_S)


def _processor_s(pid: int) -> float:
    """The time that a process has had on processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _note(ran: Ran, name: str, kind: str, text: str, number: int, seed: str, files: Path, kept: Path) -> None:
    failure = ran.failures.setdefault(f"{kind}: {text}", Failure(name, kind, text))
    failure.count += 1
    if len(failure.cases) < KEPT:
        failure.cases.append(number)
        target = kept / f"{re.sub('[^a-z0-9]+', '-', name)}-{number}"
        if files.exists() and not target.exists():
            shutil.copytree(files, target)
            with open(target / "what.txt", "a") as out:
                out.write(f"\nRepeat: {command(name, seed, number)}\n")


def command(name: str, seed: str, number: int) -> str:
    """The command that repeats a case."""
    return f"python -m tests.fuzz --formats '{name}' --seed {seed} --case {number}"


def fuzz(names: list[str], seconds: float, seed: str, kept: Path, folder: Path, first: int = 0) -> dict[str, Ran]:
    """Fuzzes formats in turn for a time, which they share equally."""
    result = {name: Ran() for name in names}
    following = dict.fromkeys(names, first)
    _import(names)
    gc.freeze()
    began_s, number = time.monotonic(), 0
    slice_s = min(10.0, seconds / len(names))
    while True:
        for name in names:
            place = folder / f"{number}"
            following[name] = _slice(name, seed, following[name], slice_s, place, result[name], kept)
            number += 1
        if time.monotonic() - began_s + slice_s > seconds:
            return result


def _import(names: list[str]) -> None:
    """Imports what the formats need, so that no child does."""
    names = [name for name in names if not FORMATS[name].has_runtime]
    for module in sorted({module for name in names for module in FORMATS[name].needs}):
        __import__(module)
    if "pyarrow" in sys.modules:
        import pyarrow.parquet  # noqa: F401
    for name in names:  # penstock's own modules, without running anything
        with contextlib.suppress(Exception):
            FORMATS[name].open(Path("/nonexistent"))  # type: ignore[misc]


def table(ran: dict[str, Ran]) -> Iterator[str]:
    """Yields lines for people."""
    yield f"{'format':16}{'cases':>9}{'rows':>9}{'errors':>9}{'failures':>10}"
    for name, each in ran.items():
        count = sum(failure.count for failure in each.failures.values())
        yield f"{name:16}{each.cases:>9}{each.rows:>9}{each.errors:>9}{count:>10}"
    total = Counter[str]()
    for each in ran.values():
        total["cases"] += each.cases
    yield f"{total['cases']} cases"
