"""Runs cases in worker processes with a limit of memory, and takes what comes of them.

A case is a number. From it and a seed follow the files that are damaged, the damage, and the way of reading. Cases are
the elements of a dataset, which one pool of workers runs for all formats. What ends, hangs or fills a worker is an
error in the place of its element: that is no failure, because it ends no more than that. The files of a case that fails
are kept with the command that repeats it.
"""

import faulthandler
import itertools
import json
import logging
import os
import random
import re
import resource
import shutil
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.base import _tree
from penstock.base._errors import lacks_memory
from tests.fuzz.formats import FORMATS, Format, OtherLibraryError, Rows
from tests.fuzz.mutations import mutated

MEMORY_LIMIT = 500 << 20
WORKERS = 2
# The rows of a case that are read: rows without bytes may be as many as a head says.
MOST_ROWS = 10_000
HANG_S = 20.0
# Each takes some seconds, so a format has no more at a time.
MOST_ENDED = 10
KEPT = 3
# NumPy's, of text of a fixed size with a number that is no character.
_NO_CHARACTER = "invalid maximum character"


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
    """Cases that gave an error of penstock's, or got no memory."""
    ended: int = 0
    """Cases that ended their worker, or made it hang."""
    failures: dict[str, Failure] = field(default_factory=dict)


class CaseError(Exception):
    """A case that failed: what is wrong, and where, in a form that is equal for the same cause."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind, text


# ---------------------------------------------------------------------------------------------- a case


class Bench:
    """The sound files of a format in a folder, and cases on them."""

    def __init__(self, name: str, form: Format, folder: Path, seed: str) -> None:
        self.name, self.format, self.seed = name, form, seed
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
        try:
            rows, error = read(self.format, place, way), None
        except ps.PenstockError as caught:
            rows, error = None, caught
        except OtherLibraryError:
            return "error"
        except Exception as caught:
            if lacks_memory(caught) or _NO_CHARACTER in str(caught):
                return "error"
            raise CaseError("another exception", _place_of(caught)) from caught
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


# ---------------------------------------------------------------------------------------------- the workers


def case_of(name: str, form: Format, seed: str, folder: Path) -> Callable[[Any], str]:
    """Makes the function that runs a case in a worker. It returns the number, the result, and what is wrong."""
    benches: list[Bench] = []

    def run(number: Any) -> str:
        if not benches:
            _quiet(folder)
            benches.append(Bench(name, form, folder / str(os.getpid()), seed))
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
        result, text = result_of(benches[0], int(number))
        return json.dumps([int(number), result, text])

    return run


def result_of(bench: Bench, number: int) -> tuple[str, str]:
    """Runs a case. Returns its result, and what is wrong."""
    try:
        return bench.run(number), ""
    except CaseError as error:
        return error.kind, error.text


def is_sanitized() -> bool:
    """Whether the engine is a build with sanitizers."""
    return "PENSTOCK_ENGINE" in os.environ


def _quiet(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    faulthandler.enable(file=2)
    warnings.simplefilter("ignore")


# ---------------------------------------------------------------------------------------------- the trainer


def _results(name: str, seed: str, first: int, until_s: float, folder: Path) -> Iterator[tuple[int, str, str]]:
    """Yields the number, the result, and what is wrong, of cases until a time."""
    if is_sanitized():  # workers would have another engine
        bench = Bench(name, FORMATS[name], folder / "here", seed)
        for number in itertools.count(first):
            yield number, *result_of(bench, number)
            if time.monotonic() >= until_s:
                return
    cases = ps.range(1 << 40).map(case_of(name, FORMATS[name], seed, folder), element_spec=ps.ArraySpec((), "U"))
    number, left = first, MOST_ENDED
    with cases.batch(1).loader("processes", WORKERS, memory_limit=MEMORY_LIMIT, timeout_s=HANG_S) as loader:
        while left and (number == first or time.monotonic() < until_s):
            loader.set_state(loader.get_state() | {"epoch": 0, "position": number})
            try:
                for texts in loader:
                    yield json.loads(texts[0])
                    number += 1
                    if time.monotonic() >= until_s:
                        return
            except (ps.WorkerError, ps.DeadlineError, ps.ElementError) as error:
                yield number, "ended", str(error)
                number, left = number + 1, left - 1


def _slice(name: str, seed: str, first: int, slice_s: float, folder: Path, ran: Ran, kept: Path) -> int:
    """Runs cases of a format for some seconds. Returns the number of the next case."""
    folder.mkdir(parents=True)
    following = first
    for number, result, text in _results(name, seed, first, time.monotonic() + slice_s, folder):
        following = max(following, number + 1)
        ran.cases += 1
        if result == "rows":
            ran.rows += 1
        elif result == "error":
            ran.errors += 1
        elif result == "ended":
            ran.ended += 1
        else:
            _note(ran, name, result, text, number, seed, folder, kept)
    shutil.rmtree(folder, ignore_errors=True)
    return following


def _note(ran: Ran, name: str, kind: str, text: str, number: int, seed: str, folder: Path, kept: Path) -> None:
    """Notes a failure, and keeps the files, which are damaged again."""
    failure = ran.failures.setdefault(f"{kind}: {text}", Failure(name, kind, text))
    failure.count += 1
    target = kept / f"{re.sub('[^a-z0-9]+', '-', name)}-{number}"
    if len(failure.cases) >= KEPT or target.exists():
        return
    failure.cases.append(number)
    target.mkdir(parents=True)
    place, damaged, *_ = Bench(name, FORMATS[name], folder / f"again-{number}", seed).damage(number)
    for file in damaged:
        shutil.copy(file, target / file.name)
    (target / "what.txt").write_text(f"{name}, {place.name}\n{kind}: {text}\nRepeat: {command(name, seed, number)}\n")


def command(name: str, seed: str, number: int) -> str:
    """The command that repeats a case."""
    return f"python -m tests.fuzz --formats '{name}' --seed {seed} --case {number}"


def fuzz(names: list[str], seconds: float, seed: str, kept: Path, folder: Path, first: int = 0) -> dict[str, Ran]:
    """Fuzzes formats in turn for a time, which they share equally."""
    result = {name: Ran() for name in names}
    following = dict.fromkeys(names, first)
    os.environ["XDG_CACHE_HOME"] = str(folder / "home")
    logging.disable()  # also in the workers
    began_s, number = time.monotonic(), 0
    slice_s = min(10.0, seconds / len(names))
    with ps.range(1).map(lambda x: x).loader("processes", WORKERS):  # keeps the workers from one format to the next
        while True:
            for name in names:
                place = folder / f"{number}"
                following[name] = _slice(name, seed, following[name], slice_s, place, result[name], kept)
                number += 1
            if time.monotonic() - began_s + slice_s > seconds:
                return result


def table(ran: dict[str, Ran]) -> Iterator[str]:
    """Yields lines for people."""
    yield f"{'format':16}{'cases':>9}{'rows':>9}{'errors':>9}{'ended':>9}{'failures':>10}"
    for name, each in ran.items():
        count = sum(failure.count for failure in each.failures.values())
        yield f"{name:16}{each.cases:>9}{each.rows:>9}{each.errors:>9}{each.ended:>9}{count:>10}"
    total = Counter[str]()
    for each in ran.values():
        total["cases"] += each.cases
    yield f"{total['cases']} cases"
