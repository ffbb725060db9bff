"""Do 20 ms of training and 20 ms of loading take 20 ms a step together?

Question: a consumer that takes 20 ms a step and a pipeline that needs 20 ms a batch on its one thread: how
long is a step? Done in turn it is 40 ms.

Method: `python benchmarks/overlap.py`. Batches of 32 elements of (3, 50, 50) float32; each element is mapped
by a function of 20/32 ms. *busy* is a fixed amount of NumPy arithmetic that lets go of the GIL, as much as
fits in the time when it runs alone, calibrated in the process just before: contention shows. *sleep* is
`time.sleep`, which takes no core. `busy_sleep` is a busy consumer and a pipeline that sleeps, and so on;
`in_turn` is `busy_busy` without a loader. Steps are counted from the eleventh.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20.

Result, of two rounds, ms a step: sleep_sleep 22.0, busy_sleep 22.7, sleep_busy 21.8, busy_busy 24.0 (22.8 to 25.2),
in turn 41.8. So 5 to 10 % are lost to what the machine does not do at once, 20 % where both compute.

Not shown: functions that hold the GIL, which need processes; steps of uneven length.
"""

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from _harness import Array, Numbers, Options, Target, run, value
from _pairs import BATCH_SIZE, FRAME_SHAPE

_STEP_S = 0.02
_WARM_UP_COUNT = 10
_SCRATCH_LENGTH = 32_768

Spend = Callable[[], None]
"""Takes a fixed time."""


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

    def duration_of(count: int) -> float:
        began_s = time.perf_counter()
        work(count)
        return time.perf_counter() - began_s

    duration_of(1000)
    one_s = min(duration_of(100) for _ in range(10)) / 100
    return lambda: work(max(1, round(duration_s / one_s)))


def _mapped(spend: Spend) -> Callable[[Array], Array]:
    frame = np.zeros(FRAME_SHAPE, np.float32)

    def element(index: Array) -> Array:
        spend()
        return frame

    return element


def _loaded(spend: Spend, step_count: int) -> Iterable[Array]:
    import penstock as ps

    dataset = ps.range(step_count * BATCH_SIZE).map(_mapped(spend)).batch(BATCH_SIZE)
    batches: Iterable[Array] = dataset.loader(executor="threads", workers=1)
    return batches


def _in_turn(spend: Spend, step_count: int) -> Iterator[Array]:
    element = _mapped(spend)
    for step in range(step_count):
        yield np.stack([element(np.asarray(step)) for _ in range(BATCH_SIZE)])


def _case(
    consumer: Callable[[float], Spend],
    pipeline: Callable[[float], Spend],
    batches: Callable[[Spend, int], Iterable[Array]] = _loaded,
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


_CASES = {
    "sleep_sleep": _case(_sleep, _sleep),
    "busy_sleep": _case(_busy, _sleep),
    "sleep_busy": _case(_sleep, _busy),
    "busy_busy": _case(_busy, _busy),
    "in_turn": _case(_busy, _busy, _in_turn),
}


def _targets(options: Options) -> list[Target]:
    # The tenth above 20 ms is what waking threads, late sleeps and a shared second core cost.
    return [
        Target(f"{name}, ms a step", value(name, "ms a step"), at_most=1.1e3 * _STEP_S)
        for name in _CASES
        if name != "in_turn"
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
