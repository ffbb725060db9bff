"""What is left of two cores when one element in twenty takes fifty times as long?

Question: an element takes 1 ms, but one in twenty, at random, takes 50 ms; batches of 32 in order, two worker
processes on two cores. `computes`: the 50 ms are Python that holds the GIL. `waits`: they are a sleep, as of a request.
How fast are batches, and how even are they?

Method: `python benchmarks/slow_elements.py`. Each contender has a fresh process, in turn, and the same consumer, which
sums every byte. The rate is that of at least 100 batches, after a second that warms up; the gap is the 99th percentile
of the time between batches over its median. `serial` is a plain loop; twice its speed is what two workers reach if
neither ever waits. In 32 elements 1.6 are slow, so a batch takes 32 to 400 ms of one worker: gaps of a loader that
gives each worker a whole batch are those of the batches; one whose workers share a batch can halve them.

Contenders, as their documentations advise, are those of `gil_bound`; `torch_any_order` has `in_order=False`. They and
`spdl` deliver in no certain order.

Machine: two cores of an AMD EPYC, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-26, quiet, two rounds:

                       samples/s, p99/median of gaps
                       computes             waits
    serial             302   3.2            279   3.3
    penstock           562   2.6            542   2.3
    torch              540   4.1            517   4.3
    torch_any_order    585   2.4            547   3.0
    grain              578   5.1            536   4.7
    keras              571   4.4            549   4.8
    spdl               553   2.4            538   3.0

penstock has 0.93 and 0.97 of twice serial (wanted 0.9), and 0.65 and 0.54 of the least gap of those that keep the
order. It has 0.97 (0.96 to 0.97) and 0.98 (0.97 to 1.00) of the speed of the best in order (wanted 1): why is not
settled.
"""

from collections.abc import Callable, Sequence
from functools import partial

from _contenders import Contender, grain, keras, penstock, serial, spdl, torch
from _harness import Numbers, Options, Round, Target, ratio, run, time_steady
from _jobs import seldom_slow, seldom_waits

_BATCH_SIZE = 32
_JOBS = {"computes": seldom_slow, "waits": seldom_waits}
_CONTENDERS: dict[str, Contender] = {
    "serial": serial,
    "penstock": penstock,
    "torch": torch,
    "torch_any_order": partial(torch, in_order=False),
    "grain": grain,
    "keras": keras,
    "spdl": spdl,
}
_ORDERED, _OTHERS = ["torch", "grain", "keras"], ["torch_any_order", "spdl"]


def _case(job: str, contender: Contender) -> Callable[[Options], Numbers]:
    return lambda options: time_steady(contender(_JOBS[job], _BATCH_SIZE)(), options, gap_count=100)


_CASES = {f"{name}, {job}": _case(job, each) for job in _JOBS for name, each in _CONTENDERS.items()}


def _twice_serial(job: str) -> Callable[[Round], float]:
    return lambda round_: round_[f"penstock, {job}"]["samples/s"] / 2 / round_[f"serial, {job}"]["samples/s"]


def _evener(job: str, names: Sequence[str]) -> Callable[[Round], float]:
    def number(round_: Round) -> float:
        gaps = [round_[f"{name}, {job}"]["p99/median"] for name in names if f"{name}, {job}" in round_]
        return round_[f"penstock, {job}"]["p99/median"] / min(gaps)

    return number


def _targets(options: Options) -> list[Target]:
    targets = []
    for job in _JOBS:
        ordered, others = ([f"{name}, {job}" for name in names] for names in (_ORDERED, _OTHERS))
        targets += [
            Target(f"{job}: penstock / twice serial", _twice_serial(job), at_least=0.9),
            Target(f"{job}: penstock / best in order", ratio(f"penstock, {job}", ordered), at_least=1.0),
            Target(f"{job}: penstock / best in any order", ratio(f"penstock, {job}", others), at_least=1.0),
            Target(f"{job}: gap / least gap of the others in order", _evener(job, _ORDERED), at_most=1.0),
        ]
    return targets


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3, case_timeout_s=90)
