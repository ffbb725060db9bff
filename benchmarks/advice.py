"""Is the number of workers that a report advises as fast as the best number?

Question: the sentence of a report says how many more workers would help, or that none would. How fast is a run with
that number, beside the fastest of all numbers?

Method: `python benchmarks/advice.py`, or `--only "sleep quiet,sleep busy"`. A case is a job and a machine: quiet, or
with two processes beside it that compute in endless loops. One process runs the job with 1, 2 and 8 workers, and reads
their reports. Then it runs the job with 1, 2, 4, 8 and 16 workers (processes: up to 8) and with each number that was
advised, in turns of 0.8 s that follow the start of the workers. The speed of a number is the median of its turns.
"from 1" is the speed of the number that the run with one worker advises, divided by the speed of the fastest number.
"1 advises" is that number.

Jobs, in batches of 16:

- `sleep`: a function that sleeps 4 ms, on threads.
- `python`: a function of 1 ms that holds the GIL, on worker processes.
- `numpy`: a function that normalises a picture with NumPy, on worker processes.
- `decode`: photographs of 500x375, decoded and resized, on threads.
- `source`: an object that waits 2 ms for each element, as for a server, on threads.
- `consumer`: 1 ms of Python an element on worker processes, for a consumer that computes 10 ms a batch.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, OpenCV 5.0, 2026-11-24.

Result, from 1 / from 2 / from 8 (and the numbers that were advised); quiet python, numpy, decode and consumer of
2026-11-25, the others of the day before:

                quiet                           busy
    sleep       0.94 / 0.94 / 1.00 (15, 15, 16)   0.95 / 0.95 / 1.00 (15, 15, 16)
    source      1.00 / 1.00 / 1.00 (15, 15, 15)   0.99 / 0.99 / 1.00 (16, 16, 15)
    decode      1.00 / 1.00 / 0.61 (2, 2, 13)     1.00 / 0.87 / 0.83 (11, 12, 15)
    python      0.96 / 0.96 / 0.96 (2, 2, 2)      1.00 / 1.00 / 1.00 (14, 14, 14)
    numpy       1.00 / 1.00 / 1.00 (2, 2, 2)      0.90 / 1.00 / 1.00 (15, 14, 14)
    consumer    0.82 / 0.82 / 0.74 (2, 2, 8)      1.00 / 0.76 / 0.69 (13, 7, 8)

Wanted: at least 0.9. `decode` from 8 threads on two quiet CPUs is the one clear miss: they wait for each other's locks,
and the model takes that for waiting which more threads would hide. In another run `consumer` had 0.94 and 1.00 from 1
and 2; its numbers from 2 to 8 lie within 20 % and change places. From 8 it names the program as the limit, or 2. The
busy cases beside `sleep` and `source` ran beside more than two programs, whose load changed.

Mended because of this: beside other programs the sentence blamed the GIL for threads that sleep, and named no number.
That had 0.07 (`sleep` from 2) and 0.42 (`source` from 2) of the best speed. A run with more workers than CPUs was told
to keep them: `python` and `numpy` from 8 had 0.85 and 0.81, and are now told that 2 would do.
"""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from _harness import Numbers, Options, Target, read_every_byte, run, value
from _jobs import adjusted_picture, hold_gil

_BATCH_SIZE = 16
_ELEMENT_COUNT = 1 << 30
_STARTS = (1, 2, 8)
_COUNTS = {"threads": (1, 2, 4, 8, 16), "processes": (1, 2, 4, 8)}
_TURN_COUNT = 3
_RUN_S = 0.8
_REPORT_S = 1.5
_START_S = {"threads": 0.1, "processes": 0.2}
"""For each worker, before a turn counts: processes take a while to start."""
_CLEARLY_SLOWER = 0.7
"""A number whose first turn has a smaller part of the best speed gets no other turn, unless it was advised."""


class _Server:
    """An object that waits for each element, as for a server."""

    def __len__(self) -> int:
        return _ELEMENT_COUNT

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return index


def _sleep(index: Any) -> Any:
    time.sleep(0.004)
    return index


def _mapped(element: Callable[[Any], Any]) -> Any:
    import penstock as ps

    return ps.range(_ELEMENT_COUNT).map(element).batch(_BATCH_SIZE)


def _source() -> Any:
    import penstock as ps

    return ps.from_source(_Server()).batch(_BATCH_SIZE)


def _decode() -> Any:
    from image_folder import photographs

    import penstock as ps

    paths = sorted(map(str, photographs(300).rglob("*.jpg")))
    return ps.from_image_files(paths, image_size=(180, 180)).repeat().batch(_BATCH_SIZE)


_JOBS: dict[str, tuple[Callable[[], Any], Literal["threads", "processes"], float]] = {
    "sleep": (lambda: _mapped(_sleep), "threads", 0),
    "python": (lambda: _mapped(hold_gil), "processes", 0),
    "numpy": (lambda: _mapped(adjusted_picture), "processes", 0),
    "decode": (_decode, "threads", 0),
    "source": (_source, "threads", 0),
    "consumer": (lambda: _mapped(hold_gil), "processes", 0.010),
}
"""A job's dataset, its executor, and the seconds that its consumer computes with each batch."""


@contextmanager
def _two_busy_processes() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def _advised(report: Any) -> int:
    more = re.search(r"; (\d+) more workers? would", report.limit)
    enough = re.search(r", and (\d+) would do", report.limit)
    return int(enough[1]) if enough else report.workers + (int(more[1]) if more else 0)


def _turn(job: str, workers: int, seconds: float) -> tuple[float, Any]:
    """Runs a job. Returns its elements a second after the start of its workers, and its report."""
    make, executor, consumer_s = _JOBS[job]
    with make().loader(executor, workers=workers) as loader:
        batches = iter(loader)
        next(batches)
        counted, began_s = 0, time.perf_counter() + _START_S[executor] * workers
        while (now_s := time.perf_counter()) < began_s + seconds:
            batch = next(batches)
            read_every_byte((batch,))
            computed_s = time.thread_time() + consumer_s
            while time.thread_time() < computed_s:
                pass
            counted += now_s >= began_s
        return counted * _BATCH_SIZE / (time.perf_counter() - began_s), loader.report()


def _measure(job: str, options: Options) -> Numbers:
    turn_count, advised = (1 if options.quick else _TURN_COUNT), {}
    for start in _STARTS:
        _, report = _turn(job, start, _REPORT_S)
        advised[start] = _advised(report)
        print(f"{job}: {report.limit}", file=sys.stderr)
    counts = sorted({*_COUNTS[_JOBS[job][1]], *advised.values()})
    turns = {count: [_turn(job, count, _RUN_S)[0]] for count in counts}
    least = _CLEARLY_SLOWER * max(speed for (speed,) in turns.values())
    for _ in range(turn_count - 1):
        for count in counts:
            if count in advised.values() or turns[count][0] >= least:
                turns[count].append(_turn(job, count, _RUN_S)[0])
    speeds = {count: statistics.median(found) for count, found in turns.items()}
    best = max(speeds, key=lambda count: speeds[count])
    print(f"{job}: { ({count: round(speed) for count, speed in speeds.items()}) }", file=sys.stderr)
    numbers = {f"from {start}": speeds[advised[start]] / speeds[best] for start in _STARTS}
    return numbers | {f"{start} advises": float(advised[start]) for start in _STARTS} | {"best": float(best)}


def _busy(job: str) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        with _two_busy_processes():
            return _measure(job, options)

    return measure


def _quiet(job: str) -> Callable[[Options], Numbers]:
    return lambda options: _measure(job, options)


_CASES = {f"{job} {name}": make(job) for name, make in (("quiet", _quiet), ("busy", _busy)) for job in _JOBS}


def _targets(options: Options) -> list[Target]:
    return [
        Target(f"{case}: from {start}", value(case, f"from {start}"), at_least=0.9)
        for case in _CASES
        for start in _STARTS
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=1)
