"""What does it cost that every loader measures itself?

Question: workers note how long units, reads and functions take, and the loader counts what its consumer waits, always,
so that `report()` can be asked for at any time. Is that less than 1 % of the time?

Method: `python benchmarks/report_overhead.py`. A plan runs in a fresh process, on two workers, for hundreds of short
turns. In some, drawn by chance, the measuring is switched off: this file takes the places for their times from workers,
also in worker processes, and the counters from the loader. A turn is some 25 ms of batches, or one batch inline, where
none is filled ahead; two that follow each other are a pair, with and without in an order that is drawn as well, so that
both see the same machine. "overhead %" is the median over the pairs of what measuring adds to the time, and to the time
of the CPUs, of which other programs take none (worker processes' is not in it). "no change %" is the same of pairs that
both measure: what is noise. The consumer does nothing with its batches, so that nothing hides what the workers do.

- `pairs`: 60 kB rows (3, 50, 50) float64, shuffled, each with the next one, batches of 32, threads.
- `map`: a function of 20 us over rows of 1 kB, batches of 32, threads.
- `map on processes`: the same on worker processes.
- `cheap map`: a function of less than a microsecond, batches of 256, threads: most calls a second.
- `tiny rows`: rows of 1 kB, shuffled, batches of 256, threads: shortest units.
- Both of these inline too: where two threads share a GIL, as much as is looked for here is lost and won by chance.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-21.

Result of one round, 2026-11-21, in percent of the time (and "no change", which is how far off a result can be):

    pairs               0.6 (0.9)     tiny rows           0.5 (-1.8)
    map                 1.3 (-1.1)    tiny rows, inline   1.4 (0.2)
    map on processes    1.5 (0.4)     cheap map           1.7 (0.8)
                                      cheap map, inline   1.2 (0.5)

Wanted: less than 1. Plain reads on threads are below; where a batch takes half a millisecond on one thread, or a
function 2 to 20 us, it is more by up to 0.7, about as much as the machine varies.
Added up from its parts, each timed in the middle of a run: 4 us for a unit and its batch, which take 420 to 600 us.

Not shown: the line at an epoch's end, which is made only if somebody listens.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from itertools import chain, islice
from types import MemberDescriptorType
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, npy_file, run, value
from _memory import warm_pages
from _pairs import BATCH_SIZE, frames_file

_TURN_S = 0.025
_PAIR_COUNT = 400
_INLINE_PAIR_COUNT = 3000
_WARM_UP_S = 1.0
_ROW_COUNT = 100_000
_LOOP_COUNT = 800


class _Switch:
    """Whether to measure, as a byte that all processes see. Whatever process it comes to obeys it from then on."""

    def __init__(self) -> None:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(bytes([1]))
        self.__setstate__(file.name)

    def __getstate__(self) -> str:
        return self.path

    def __setstate__(self, path: str) -> None:
        from penstock._plan._reader import Trace

        self.path = path
        with open(path, "r+b") as file:
            self.memory = memory = mmap.mmap(file.fileno(), 1)
        place: Any = Trace.times  # of a worker, for its times; where there is None, nothing is measured
        if isinstance(place, MemberDescriptorType):
            Trace.times = property(  # type: ignore[assignment, misc, unused-ignore]
                lambda trace: place.__get__(trace) if memory[0] else None, place.__set__
            )


class _Silent:
    """In the place of a loader's counters, and of what looks at its memory: does nothing."""

    def entered(self) -> float:
        return 0.0

    def left(self, entered_at: float, started_at: float) -> None:
        pass

    def ended(self) -> None:
        pass

    def paused(self) -> None:
        pass

    def look(self, workers: object) -> None:
        pass


def _overheads(loader: Any, switch: _Switch, pair_count: int, turn_count: int = 0) -> Numbers:
    """Returns what measuring adds to the time and to that of the CPUs, and what nothing adds, in percent.

    Args:
        loader: What is measured.
        switch: Whether it measures itself.
        pair_count: How many pairs of turns.
        turn_count: Batches in a turn; 0 for as many as take its time.
    """
    batches = chain.from_iterable(loader for _ in iter(int, 1))
    counters, peak, silent = loader._counters, loader._peak, _Silent()

    def turn_s(count: int, *, is_on: bool) -> Array:
        switch.memory[0] = is_on
        loader._counters, loader._peak = (counters, peak) if is_on else (silent, silent)
        began_s = np.array([time.perf_counter(), time.process_time()])
        for _ in islice(batches, count):
            pass
        return np.array([time.perf_counter(), time.process_time()]) - began_s

    began_s, count = time.perf_counter(), 0
    while time.perf_counter() < began_s + _WARM_UP_S:
        turn_s(16, is_on=True)
        count += 16
    # So many that those which were filled in the turn before are few.
    count = turn_count or max(32, round(count * _TURN_S / (time.perf_counter() - began_s)))
    ratios: dict[bool, list[Array]] = {True: [], False: []}
    # In an order without a period: a loader announces its reads every so many batches.
    for is_change, is_later in np.random.default_rng(0).integers(0, 2, (2 * pair_count, 2)).astype(bool).tolist():
        first_s = turn_s(count, is_on=not (is_change and is_later))
        second_s = turn_s(count, is_on=not (is_change and not is_later))
        ratios[is_change].append(second_s / first_s if is_later else first_s / second_s)
    turn_s(1, is_on=True)
    changed, same = (100 * np.median(ratios[is_change], axis=0) - 100 for is_change in (True, False))
    return {
        "overhead %": float(changed[0]),
        "no change %": float(same[0]),
        "overhead, CPU %": float(changed[1]),
        "no change, CPU %": float(same[1]),
    }


def _rows() -> Any:
    import penstock as ps

    path = npy_file("kilobytes.npy", (_ROW_COUNT, 256), "float32")
    warm_pages(path)
    return ps.from_npy(path)


def _pairs(_: _Switch) -> Any:
    import penstock as ps

    path = frames_file()
    warm_pages(path)
    frames = ps.from_npy(path)
    return ps.zip((frames[:-1], frames[1:])).shuffle(seed=1).batch(BATCH_SIZE)


def _mapped(switch: _Switch) -> Any:
    def busy(row: Array) -> Array:
        switch.memory  # noqa: B018  # which so comes to the workers
        for _ in range(_LOOP_COUNT):
            pass
        return row

    return _rows().map(busy).batch(32)


def _cheap(_: _Switch) -> Any:
    return _rows().map(lambda row: row).batch(256)


def _tiny(_: _Switch) -> Any:
    return _rows().shuffle(seed=1).batch(256)


def _case(plan: Callable[[_Switch], Any], executor: str) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        switch = _Switch()
        is_inline = executor == "inline"
        with plan(switch).loader(executor, workers="auto" if is_inline else 2) as loader:
            pair_count = (_INLINE_PAIR_COUNT if is_inline else _PAIR_COUNT) // (6 if options.quick else 1)
            numbers = _overheads(loader, switch, pair_count, 1 if is_inline else 0)
            report = loader.report()
        os.unlink(switch.path)
        assert report.lanes, "what was measured is there"
        return numbers | {
            "batch us": 1e6 * report.elapsed_s / report.batches,
            "function us": max(
                (1e6 * step.element_s for step in report.lanes[0].steps if "map" in step.step), default=0
            ),
        }

    return measure


_CASES = {
    "pairs": _case(_pairs, "threads"),
    "map": _case(_mapped, "threads"),
    "map on processes": _case(_mapped, "processes"),
    "cheap map": _case(_cheap, "threads"),
    "tiny rows": _case(_tiny, "threads"),
    "cheap map inline": _case(_cheap, "inline"),
    "tiny rows inline": _case(_tiny, "inline"),
}


def _targets(options: Options) -> list[Target]:
    return [Target(f"{name}: overhead %", value(name, "overhead %"), at_most=1) for name in _CASES]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
