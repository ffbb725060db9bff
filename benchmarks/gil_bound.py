"""What part of two cores is left for a function that holds the GIL?

Question: a function of pure Python takes about 1 ms an element and never lets go of the GIL; batches of 8, two
worker processes on two cores. The speed, as a part of twice that of a plain loop.

Method: `python benchmarks/gil_bound.py`. Each contender has a fresh process, in turn, and the same consumer, which
sums every byte; the rate is that of 3 s of batches, after a second that warms up. `serial` is the function in a plain
loop in such a process, in the same round; twice its speed is 1. `bare_pair` is two processes that run the function
and deliver nothing: the machine's limit. `bare_ring` is the least that delivers batches in order, see
`_bare_ring.py`; the library's crash attribution, redo and deadlines may cost 3 % beside it. After each, the indices
in the batches are checked.

Contenders, as their documentations advise: `torch` is a DataLoader with two persistent workers and default
collation; `grain` batches in its two workers (`mp_prefetch`), each with one thread that is
two batches ahead; `keras` is a `PyDataset` with
`workers=2, use_multiprocessing=True`, read through its adapter, as `fit` does; `tf_data` is a `py_function` with
`num_parallel_calls=AUTOTUNE`, which runs in threads; `ray` is Ray Data on a local cluster of two CPUs, in no order;
`spdl` is a region of two processes in an SPDL pipeline, which gets a batch of indices a message, in no order.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20. Its
speed varies by a tenth and more from run to run; ratios are of the same round.

Result, three rounds, medians and spread, as parts of twice serial (670 elements/s, 548 to 747):

    penstock   0.90 (0.81 to 1.11)    1,214 elements/s (1,202 to 1,222)
    bare_pair  0.94 (0.80 to 1.03)    1,191 (1,124 to 1,255)
    keras      0.88 (0.87 to 0.91)    1,173 (994 to 1,297)
    grain      0.76 (0.72 to 1.05)    1,129 (962 to 1,149)
    torch      0.59 (0.59 to 0.81)      878 (789 to 890)
    tf_data    0.37 (0.37 to 0.50)      543 (491 to 553)
    ray        0.36 (0.36 to 0.56)      541 (475 to 614)

Wanted: 0.95 of twice serial. The machine itself gave 0.94 to two processes that deliver nothing; penstock reaches
1.02 of these. It is ahead of the others in the median, 1.02 times the best (0.94 to 1.06), not in every round.
On 2026-11-22, six rounds of these two: 0.88 (0.73 to 0.90) of twice serial, bare_pair 0.90 (0.85 to 0.97).
On 2026-11-23, on another such machine, four rounds: 0.87 (0.82 to 0.98), bare_pair 0.96 (0.94 to 1.06). Of 14,300 to
16,500 us of CPU that a batch takes, the parent has 560 to 610, two thirds of it on the pool's thread, awake once a
batch.
On 2026-11-23, another run, five rounds beside SPDL 0.8, as parts of twice serial (793 elements/s, 766 to 847):

    penstock   0.84 (0.74 to 0.88)
    bare_pair  0.94 (0.82 to 0.96)
    keras      0.79 (0.71 to 0.87)
    spdl       0.68 (0.57 to 0.70)

1.03 times the best of the two (0.97 to 1.16).
At noon, five rounds: penstock 0.91 (0.74 to 1.07), bare_pair 1.01 (0.94 to 1.12), keras 0.85 (0.76 to 0.95): 1.11
times Keras (0.84 to 1.20). Of 11,000 us of CPU that a batch takes, the parent has 230 to 320, and workers 290 to 340
beside the functions, which is three times what they take where functions are short: it is Python in cold caches.

On 2026-11-25, AMD EPYC, three rounds, as parts of twice serial (596 elements/s): penstock 0.81 (0.64 to 0.90),
bare_ring 0.88 (0.62 to 1.05), bare_pair 0.95 (0.90 to 1.04), keras 0.84 (0.83 to 0.86). Of the bare ring penstock has
0.86 (0.73 to 1.30; wanted 0.97), and of Keras 0.98 (0.75 to 1.07).

On 2026-11-26, a faster AMD EPYC, quiet, one round, elements/s: serial 1,112, bare_ring 2,287, bare_pair 2,143, penstock
2,066, grain 2,010, keras 1,920, torch 1,642, spdl 1,636, ray 971, tf_data 970: 0.93 of twice serial, 1.03 times the
best.

On 2026-11-29, AMD EPYC, quiet, two rounds, as parts of twice serial (809 elements/s): penstock 0.90 (0.84 to 0.96),
bare_ring 0.98 (0.93 to 1.02), keras 0.81 (0.76 to 0.87), grain 0.80, torch 0.69. Of the bare ring penstock has 0.93
(0.83 to 1.03; wanted 0.97).

Not shown: the start of workers (see `worker_start`), and that Keras starts its own anew each epoch; a function that
lets go of the GIL; batches of many bytes (see `transport`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from _bare_ring import bare_ring
from _contenders import Contender, bare_pair, grain, keras, penstock, ray, serial, spdl, tf_data, torch
from _harness import Array, Numbers, Options, Target, part_of_twice, ratio, run, time_steady
from _jobs import hold_gil

_BATCH_SIZE = 8

_OTHERS: dict[str, Contender] = {
    "torch": torch,
    "grain": grain,
    "keras": keras,
    "tf_data": tf_data,
    "ray": ray,
    "spdl": spdl,
}
_UNORDERED = {"ray", "spdl"}


def _case(name: str, contender: Contender) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        seen: list[Array] = []
        numbers = time_steady(_noting_indices(contender(hold_gil, _BATCH_SIZE)(), seen), options)
        indices = np.concatenate(seen)
        if name in _UNORDERED:
            right = len(np.unique(indices)) == len(indices)
        else:
            right = np.array_equal(indices, np.arange(len(indices)))
        if not right:
            raise RuntimeError(f"{name} did not deliver every element once: {indices[:32].tolist()} ...")
        return numbers

    return measure


def _noting_indices(batches: Iterable[Sequence[Array]], seen: list[Array]) -> Iterator[Sequence[Array]]:
    for leaves in batches:
        seen.append(leaves[0][:, 0].copy())
        yield leaves


def _bare_pair(options: Options) -> Numbers:
    return bare_pair(hold_gil, 0.5 if options.quick else 3.0)


_CASES = {name: _case(name, run_) for name, run_ in {"serial": serial, "penstock": penstock, **_OTHERS}.items()}
_CASES |= {"bare_ring": _case("bare_ring", bare_ring), "bare_pair": _bare_pair}


def _targets(options: Options) -> list[Target]:
    return [
        Target("penstock / bare ring", ratio("penstock", ["bare_ring"]), at_least=0.97),
        Target("penstock / twice serial", part_of_twice("penstock"), at_least=0.95),
        Target("penstock / best of the others", ratio("penstock", list(_OTHERS)), at_least=1.0),
        *(Target(f"{name} / twice serial", part_of_twice(name)) for name in (*_OTHERS, "bare_ring", "bare_pair")),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3, case_timeout_s=90)
