"""How fast do large batches come from worker processes?

Question: pictures of (224, 224, 3) uint8 in batches of 64, 9.6 MB, made by a function that does next to nothing;
two worker processes on two cores. What is left when the work is only to bring the bytes over?

Method: `python benchmarks/transport.py`. Each contender has a fresh process, in turn, and the same consumer, which
sums every byte; the rate is that of 3 s of batches, after a second that warms up. Each picture has one colour, which
follows from its index; after each batch, the first and the last byte of every picture are checked. `serial` is a
plain loop with `np.stack` in such a process. `bare_ring` is the least that delivers batches from two processes in
order, see `_bare_ring.py`.

Contenders, as their documentations advise: `torch` is a DataLoader with two persistent workers and default collation,
which stacks in shared memory; `grain` batches in its two workers (`mp_prefetch`), each with one thread that is two
batches ahead, and they copy into shared memory. (Its batch after `to_iter_dataset`, which stacks in shared memory at
once, was no faster; none or 16 threads were slower.) `spdl` is a region of two processes in an SPDL pipeline, which
pickles batches; they come in no order. `spdl_arena` is what its documentation advises for large batches: a pipeline of
two threads in one process, and a pool of segments of shared memory, whose arrays are not copied again.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20. Its
speed varies by a tenth and more from run to run; ratios are of the same round.

Result, five rounds, medians and spread, pictures/s:

    penstock   59,000 (47,300 to 64,000)    8.9 GB/s
    serial     49,500 (41,100 to 54,100)
    grain       8,500 (8,000 to 9,000)
    torch       8,200 (7,800 to 9,300)

6.6 times the best of the others in each round (5.8 to 7.7); wanted: 7. Both cores are busy: making a picture and
copying it into the slot, 10 us each, and the consumer's sum, 9 us. Slots lie in shared memory, for which this
kernel has no huge pages.

On 2026-11-23, four rounds, pictures/s: penstock 49,800 (43,100 to 55,200), serial 45,100 (35,000 to 46,400), grain
8,300 (7,500 to 8,900), torch 7,300 (6,700 to 7,500), spdl 1,460 (1,270 to 1,680): 6.1 times the best of the others
(4.8 to 7.1).
At noon, four rounds: penstock 58,700 (55,700 to 63,800), serial 52,800 (45,400 to 59,700), grain 9,000 (8,100 to
9,300), torch 8,900 (8,100 to 9,400), spdl 1,650 (1,580 to 1,730): 6.5 times the best of the others (5.9 to 7.1).

On 2026-11-25, AMD EPYC, three rounds, pictures/s: bare_ring 38,700 (37,700 to 41,700), penstock 29,000 (25,500 to
30,900), serial 19,000 (16,700 to 21,000), grain 5,660 (5,190 to 5,850), torch 5,480 (5,310 to 6,050): 0.70 of the bare
ring (0.66 to 0.82; wanted 0.95), and 5.1 times the best of the others (4.5 to 5.3; wanted 7). A worker makes a picture
in 10 us, so 3 us around each function and the report's clocks count in full.

On 2026-11-26, a faster AMD EPYC, quiet, two rounds, pictures/s: bare_ring 115,170, penstock 90,586 (82,723 to 98,450),
serial 87,747, grain 10,052, torch 8,906, spdl_arena 5,820: 9.0 times the best of the others (8.6 to 9.4; wanted 7), and
0.79 (0.72 to 0.85) of the bare ring.

Not shown: real work, which hides the transport as far as it takes longer; how evenly the batches come.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from _bare_ring import bare_ring
from _contenders import Contender, grain, penstock, serial, spdl, spdl_arena, torch
from _harness import Array, Numbers, Options, Target, ratio, run, time_steady
from _jobs import plain_picture

_BATCH_SIZE = 64

_OTHERS: dict[str, Contender] = {"torch": torch, "grain": grain, "spdl": spdl, "spdl_arena": spdl_arena}
_UNORDERED = {spdl, spdl_arena}


def _case(contender: Contender) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        numbers = time_steady(
            _checked(contender(plain_picture, _BATCH_SIZE)(), in_order=contender not in _UNORDERED), options
        )
        return numbers | {"MB/s": numbers["samples/s"] * plain_picture(0).nbytes / 1e6}

    return measure


def _checked(batches: Iterable[Sequence[Array]], *, in_order: bool) -> Iterator[Sequence[Array]]:
    for number, (batch,) in enumerate(batches):
        first = number * _BATCH_SIZE if in_order else int(batch[0, 0, 0, 0])
        colours = (first + np.arange(_BATCH_SIZE)) & 0xFF
        if not (np.array_equal(batch[:, 0, 0, 0], colours) and np.array_equal(batch[:, -1, -1, -1], colours)):
            raise RuntimeError(f"Batch {number} is not what it should be: {batch[:8, 0, 0, 0].tolist()} ...")
        yield (batch,)


_ALL = {"serial": serial, "penstock": penstock, "bare_ring": bare_ring, **_OTHERS}
_CASES = {name: _case(run_) for name, run_ in _ALL.items()}


def _targets(options: Options) -> list[Target]:
    return [
        Target("penstock / bare ring", ratio("penstock", ["bare_ring"]), at_least=0.95),
        Target("penstock / best of the others", ratio("penstock", list(_OTHERS)), at_least=7.0),
        *(Target(f"penstock / {name}", ratio("penstock", [name])) for name in _OTHERS),
        Target("penstock / serial", ratio("penstock", ["serial"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, case_timeout_s=60)
