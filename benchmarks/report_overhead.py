"""What does it cost that every loader measures itself?

Question: workers note how long units, reads and functions take, and the loader counts what its consumer waits, always,
so that `report()` can be asked for at any time. Is that less than 1 % of the time?

Method: `python benchmarks/report_overhead.py`. A plan runs in a fresh process, and is measured and not measured by
chance. "overhead %" is what measuring adds to the time of the CPU, and "+-" how far off that can be (twice its standard
error). The consumer does nothing with its batches, so that nothing hides what the workers do.

On two workers the coin is tossed for every unit, in worker processes too: this file takes the place for its times from
a worker and gives it back, and notes how long the CPU was at the unit. So what is compared had the same machine, where
turns of some milliseconds, with and without, differ by more than is looked for.

Inline, where no batch is filled ahead, the coin is tossed for every batch, and what the loader counts and looks at is
switched too: that is all of it, by the clock. Two batches that follow each other are a pair.

- `pairs`: 60 kB rows (3, 50, 50) float64, shuffled, each with the next one, batches of 32, threads.
- `map`: a function of 20 us over rows of 1 kB, batches of 32, threads.
- `map on processes`: the same on worker processes.
- `cheap map`: a function of less than a microsecond, batches of 256, threads: most calls a second.
- `tiny rows`: rows of 1 kB, shuffled, batches of 256, threads: shortest units.
- Both of these inline too.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6.

Result of three rounds, 2026-11-23, in percent: medians, their spread, and how far off one can be:

    pairs               0.9 (0.7 to 1.1) +- 0.5    tiny rows           0.7 (0.5 to 0.9) +- 0.7
    map                 1.5 (1.2 to 1.8) +- 0.5    pairs inline        1.2 (1.0 to 1.2) +- 0.5
    map on processes    1.2 (1.0 to 1.4) +- 0.3    tiny rows inline    1.1 (1.1 to 1.2) +- 1.1
    cheap map           1.4 (1.0 to 1.7) +- 0.6    cheap map inline    0.9 (0.8 to 1.0) +- 0.3

Wanted: less than 1. A unit pays about 3 us, and one that calls functions up to 7: below 1 % where it takes 0.3 to 0.7
ms, and 0.05 % of a training step of 10 ms. Two hours before, with one unit looked at every 5 ms and more calls in the
others, the same run gave 1.4, 1.4, 1.7, 1.9, 1.2, 2.0, 1.5 and 1.2, in the order of the columns; see design/0012.

Not shown: the line at an epoch's end, which is made only if somebody listens.
"""

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, npy_file, run, value
from _memory import warm_pages
from _pairs import BATCH_SIZE, frames_file

_RUN_S = 20.0
_PAIR_COUNT = 8000
_WARM_UP_S = 1.0
_WARM_UP_COUNT = 256
_BLOCK_COUNT = 20
_ROW_COUNT = 100_000
_LOOP_COUNT = 800


class _Units:
    """Has units run with or without measuring, in every process that it comes to, and notes the time of each.

    Args:
        folder: Where each process leaves its times: a file of pairs, whether it measured and seconds of the CPU.
    """

    def __init__(self, folder: str) -> None:
        self.__setstate__(folder)

    def __getstate__(self) -> str:
        return self.folder

    def __setstate__(self, folder: str) -> None:
        from penstock.run._unit_runner import UnitRunner

        self.folder = folder
        run_unit = UnitRunner.run
        self._coin = random.Random(0)
        self._times: list[tuple[bool, float]] = []
        UnitRunner.run = lambda runner, unit: self._run(run_unit, runner, unit)  # type: ignore[method-assign]

    def _run(self, run_unit: Any, runner: Any, unit: Any) -> Any:
        """Replaces `UnitRunner.run`."""
        is_on = self._coin.random() < 0.5
        times, runner.times = runner.times, runner.times if is_on else None
        began_s = time.thread_time()
        try:
            result = run_unit(runner, unit)
        finally:
            took_s = time.thread_time() - began_s
            runner.times = times
        self._times.append((is_on, took_s))
        if len(self._times) == 256:  # threads may both come here: then some are noted twice, which does no harm
            with open(Path(self.folder) / str(os.getpid()), "ab") as file:
                file.write(np.array(self._times).tobytes())
            self._times.clear()
        return result

    def times(self) -> Iterator[Array]:
        """Of each process: of each unit, whether it was measured, and seconds."""
        for path in Path(self.folder).iterdir():
            yield np.fromfile(path).reshape(-1, 2)[_WARM_UP_COUNT:]


def _added(times: Array) -> Array:
    """What measuring adds, as a ratio, in each of some blocks of units that ran after one another."""

    def typical(block: Array) -> float:
        ordered = np.sort(block[:, 1])
        return float(ordered[len(ordered) // 20 : -len(ordered) // 20].mean())

    blocks = np.array_split(times, _BLOCK_COUNT)
    return np.array([typical(block[block[:, 0] == 1]) / typical(block[block[:, 0] == 0]) for block in blocks])


def _percent(ratios: Array) -> Numbers:
    """The median of some ratios beyond 1, and twice its standard error."""
    return {
        "overhead %": float(100 * np.median(ratios) - 100),
        "+-": float(2 * 1.25 * 100 * np.std(np.clip(ratios, *np.percentile(ratios, [2, 98]))) / len(ratios) ** 0.5),
    }


class _Silent:
    """In the place of a loader's counters, and of what looks at its memory: does nothing."""

    due_s = 0.0

    def entered(self) -> float:
        return 0.0

    def left(self, entered_at: float, started_at: float) -> float:
        return -1.0

    def ended(self) -> None:
        pass

    def paused(self) -> None:
        pass


def _by_batch(loader: Any, runners: list[Any], pair_count: int) -> Array:
    """Returns by what ratio measuring makes a batch longer, for pairs of batches of an inline loader."""
    batches = chain.from_iterable(loader for _ in iter(int, 1))
    counters, peak, silent = loader._counters, loader._peak, _Silent()

    def batch_s(*, is_on: bool) -> float:
        for runner, times in runners:
            runner.times = times if is_on else None
        loader._counters, loader._peak = (counters, peak) if is_on else (silent, silent)
        began_s = time.perf_counter()
        next(batches)
        return time.perf_counter() - began_s

    began_s = time.perf_counter()
    while time.perf_counter() < began_s + _WARM_UP_S:
        batch_s(is_on=True)
    ratios = []
    # In an order without a period: a loader announces its reads every so many batches.
    for is_first in np.random.default_rng(0).integers(0, 2, pair_count).astype(bool).tolist():
        first_s, second_s = batch_s(is_on=is_first), batch_s(is_on=not is_first)
        ratios.append(first_s / second_s if is_first else second_s / first_s)
    batch_s(is_on=True)
    return np.array(ratios)


def _by_unit(loader: Any, units: _Units, seconds: float) -> Array:
    """Returns by what ratio measuring makes a unit longer, for the blocks of each process."""
    batches = chain.from_iterable(loader for _ in iter(int, 1))
    began_s = time.perf_counter()
    while time.perf_counter() < began_s + seconds:
        next(batches)
    return np.concatenate([_added(each) for each in units.times()])


def _rows() -> Any:
    import penstock as ps

    path = npy_file("kilobytes.npy", (_ROW_COUNT, 256), "float32")
    warm_pages(path)
    return ps.from_npy(path)


def _pairs(_: _Units | None) -> Any:
    import penstock as ps

    path = frames_file()
    warm_pages(path)
    frames = ps.from_npy(path)
    return ps.zip((frames[:-1], frames[1:])).shuffle(seed=1).batch(BATCH_SIZE)


def _mapped(units: _Units | None) -> Any:
    def busy(row: Array) -> Array:
        units  # noqa: B018  # which so comes to the workers
        for _ in range(_LOOP_COUNT):
            pass
        return row

    return _rows().map(busy).batch(32)


def _cheap(_: _Units | None) -> Any:
    return _rows().map(lambda row: row).batch(256)


def _tiny(_: _Units | None) -> Any:
    return _rows().shuffle(seed=1).batch(256)


def _case(plan: Callable[[_Units | None], Any], executor: str) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        part = 6 if options.quick else 1
        with tempfile.TemporaryDirectory() as folder:
            if executor == "inline":
                with plan(None).loader(executor) as loader:
                    next(iter(loader))
                    runners = [(runner, runner.times) for runner in loader._pipeline._runners.all()]
                    ratios = _by_batch(loader, runners, _PAIR_COUNT // part)
                    report = loader.report()
            else:
                units = _Units(folder)
                with plan(units).loader(executor, workers=2) as loader:
                    ratios = _by_unit(loader, units, _RUN_S / part)
                    report = loader.report()
        assert report.lanes, "what was measured is there"
        steps = [1e6 * step.element_s for step in report.lanes[0].steps if "map" in step.step]
        return _percent(ratios) | {
            "batch us": 1e6 * report.elapsed_s / report.batches,
            "function us": max(steps, default=0),
        }

    return measure


_CASES = {
    "pairs": _case(_pairs, "threads"),
    "map": _case(_mapped, "threads"),
    "map on processes": _case(_mapped, "processes"),
    "cheap map": _case(_cheap, "threads"),
    "tiny rows": _case(_tiny, "threads"),
    "pairs inline": _case(_pairs, "inline"),
    "cheap map inline": _case(_cheap, "inline"),
    "tiny rows inline": _case(_tiny, "inline"),
}


def _targets(options: Options) -> list[Target]:
    return [Target(f"{name}: overhead %", value(name, "overhead %"), at_most=1) for name in _CASES]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
