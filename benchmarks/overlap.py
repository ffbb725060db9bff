"""Do 20 ms of training and 20 ms of loading take 20 ms a step together?

Question: a consumer that takes 20 ms a step and a pipeline that needs 20 ms a batch on its one worker: how
long is a step? Done in turn it is 40 ms.

Method: `python benchmarks/overlap.py`. Batches of 32 elements of (3, 50, 50) float32; each element is mapped
by a function of 20/32 ms. *busy* is a fixed amount of NumPy arithmetic that lets go of the GIL, *python* a fixed
number of rounds of a loop in pure Python, which holds it: as much as fits in the time when it runs alone,
calibrated in the process just before, so that contention shows. *sleep* is `time.sleep`, which takes no core.
`busy_sleep` is a busy consumer and a pipeline that sleeps, on a thread, and so on; in those that end in
`processes` the pipeline is *python* on a worker process. `in_turn` is `busy_busy` without a loader,
`in_turn_python` a loop in Python in both, and `threads_python` what becomes of that on a thread. Steps are
counted from the eleventh.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20.

Result, of two rounds, ms a step: sleep_sleep 22.0, busy_sleep 22.7, sleep_busy 21.8, busy_busy 24.0 (22.8 to 25.2),
in turn 41.8. So 5 to 10 % are lost to what the machine does not do at once, 20 % where both compute.
On 2026-11-23, of two rounds and of three: sleep_sleep 21.1, busy_sleep 21.3, sleep_busy 21.0, busy_busy 22.2 and 21.5
(21.3 to 21.7), sleep_processes 21.4 and 22.9 (20.1 to 23.7), busy_processes 25.8 (23.4 to 28.2) and 22.6 (20.8 to
22.8), python_processes 21.1; wanted: 22. In turn 40.2.

Not shown: steps of uneven length.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import numpy as np
from _harness import Array, Numbers, Options, Target, run, value
from _pairs import BATCH_SIZE, FRAME_SHAPE

_STEP_S = 0.02
_WARM_UP_COUNT = 10
_SCRATCH_LENGTH = 32_768

Spend = Callable[[], None]
"""Takes a fixed time."""

Batches = Callable[[Spend, int], Iterable[Array]]
"""Makes an epoch of so many batches, whose elements each spend a time."""


def _sleep(duration_s: float) -> Spend:
    """Returns a sleep that takes so long in all: the system wakes a sleeper a little late, as measured here."""
    began_s = time.perf_counter()
    for _ in range(50):
        time.sleep(duration_s)
    late_s = (time.perf_counter() - began_s) / 50 - duration_s
    return lambda: time.sleep(max(0.0, duration_s - late_s))


def _busy(duration_s: float) -> Spend:
    """Returns a function that does as much arithmetic as takes `duration_s` while nothing else runs."""
    values, roots = np.ones((2, _SCRATCH_LENGTH))

    def work(count: int) -> None:
        for _ in range(count):
            np.sqrt(values, out=roots)

    return _calibrated(work, 100, duration_s)


def _python(duration_s: float) -> Spend:
    """Returns a function that does as many steps in pure Python as take `duration_s` while nothing else runs."""

    def work(count: int) -> None:
        state = 1
        for _ in range(count):
            state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF

    return _calibrated(work, 20_000, duration_s)


def _calibrated(work: Callable[[int], None], trial_count: int, duration_s: float) -> Spend:
    def duration_of(count: int) -> float:
        began_s = time.perf_counter()
        work(count)
        return time.perf_counter() - began_s

    duration_of(10 * trial_count)
    one_s = min(duration_of(trial_count) for _ in range(10)) / trial_count
    count = max(1, round(duration_s / one_s))
    return lambda: work(count)


def _mapped(spend: Spend) -> Callable[[Array], Array]:
    frame = np.zeros(FRAME_SHAPE, np.float32)

    def element(index: Array) -> Array:
        spend()
        return frame

    return element


def _loaded(executor: Literal["threads", "processes"]) -> Batches:
    def batches(spend: Spend, step_count: int) -> Iterable[Array]:
        import penstock as ps

        dataset = ps.range(step_count * BATCH_SIZE).map(_mapped(spend)).batch(BATCH_SIZE)
        loader: Iterable[Array] = dataset.loader(executor=executor, workers=1)
        return loader

    return batches


def _in_turn(spend: Spend, step_count: int) -> Iterator[Array]:
    element = _mapped(spend)
    for step in range(step_count):
        yield np.stack([element(np.asarray(step)) for _ in range(BATCH_SIZE)])


def _case(
    consumer: Callable[[float], Spend],
    pipeline: Callable[[float], Spend],
    batches: Batches,
) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        step_count = _WARM_UP_COUNT + (50 if options.quick else 200)
        consume, produce = consumer(_STEP_S), pipeline(_STEP_S / BATCH_SIZE)
        ends_s = []
        for _ in batches(produce, step_count):
            consume()
            ends_s.append(time.perf_counter())
        steps_s = np.diff(ends_s[_WARM_UP_COUNT - 1 :])
        return {
            "ms a step": 1e3 * float(steps_s.mean()),
            "99th percentile": 1e3 * float(np.quantile(steps_s, 0.99)),
        }

    return measure


_LOADED = {
    "sleep_sleep": _case(_sleep, _sleep, _loaded("threads")),
    "busy_sleep": _case(_busy, _sleep, _loaded("threads")),
    "sleep_busy": _case(_sleep, _busy, _loaded("threads")),
    "busy_busy": _case(_busy, _busy, _loaded("threads")),
    "sleep_processes": _case(_sleep, _python, _loaded("processes")),
    "busy_processes": _case(_busy, _python, _loaded("processes")),
    "python_processes": _case(_python, _python, _loaded("processes")),
}
_CASES = {
    **_LOADED,
    "threads_python": _case(_python, _python, _loaded("threads")),
    "in_turn": _case(_busy, _busy, _in_turn),
    "in_turn_python": _case(_python, _python, _in_turn),
}


def _targets(options: Options) -> list[Target]:
    # The tenth above 20 ms is what waking workers, late sleeps and a shared second core cost.
    return [Target(f"{name}, ms a step", value(name, "ms a step"), at_most=1.1e3 * _STEP_S) for name in _LOADED]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
