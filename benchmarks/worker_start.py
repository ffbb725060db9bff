"""How soon is the first batch there, and what do workers cost?

Question: the time from making a loader to its first batch, with two new workers and beside a loader that lives; and
the memory of the parent and of each worker, with 2 and with 16 workers.

Method: `python benchmarks/worker_start.py`. Each case has a fresh process; the library is imported, and the dataset
made, before. Times are of a function of 1 ms that holds the GIL, in batches of 8, with two workers: from making the
loader until it has given a batch, `new` for the first of a process, `second` for another one of the same dataset
while the first is alive, in the middle of its epoch, and has prefetched what it may. Memory is taken in the middle
of an epoch of 9.6 MB batches, (64, 224, 224, 3) uint8: of the parent, private and shared memory over what it had
before the loader; of the workers, the largest that one of them has private (`Private_*` of its smaps_rollup).

Contenders, as their documentations advise, are those of `transport` and Keras's `PyDataset` with
`use_multiprocessing=True`; their workers belong to one iterator, so that a second loader starts its own.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-20. Its
speed varies by a tenth and more from run to run; ratios are of the same round.

Result, three rounds, medians and spread, ms to the first batch:

              new                 second
    penstock  203 (203 to 210)      8.7 (8.4 to 10.3)      wanted: 300, 20
    torch      54 (53 to 58)       50 (49 to 53)           forks
    keras      36 (35 to 51)       40 (37 to 44)           forks
    grain     669 (645 to 703)    655 (645 to 690)

16 workers on two cores take 1.00 times the parent's memory of 2 (wanted: 1.15). The largest worker has 22 MiB
private, with 2 and with 16 workers (wanted: 45).

On 2026-11-27, a faster AMD EPYC, quiet, two rounds, `--quick`: penstock 205 (203 to 207) and 10.7 (9.5 to 11.8), torch
46.7 and 42, keras 42.7 and 54.6; the parent's memory of 16 workers 1.00 of 2, the largest worker 27.5 MiB.

On 2026-11-28, a busy machine (load 11), six rounds in turn with imports, two workers, milliseconds of processor time:
this process 300 (287 to 485), its workers together 528 (465 to 569), and 751 (700 to 1,053) before workers stopped
importing the verbs; a pool of `multiprocessing` that spawns two workers, each with NumPy, 132 (114 to 151) and 310 (272
to 350). By the clock, the first batch came after 1.0 to 1.9 s, 1.2 to 2.8 s before, and 0.8 to 1.3 s of the pool: 1.2
times the pool (1.0 to 1.9). Wanted: 0.5 s where the pool takes 0.34 to 0.40, which is 1.25 to 1.5 times. What is left
are two imports in a row, of 250 ms here and 190 ms in a worker; 18 ms are not imports.

The same when the machine was quiet, five rounds in turn: from the start of the program to the first batch of a `map` on
two worker processes, imports included, 0.48 s (0.41 to 0.49); the pool 0.25 s (0.24 to 0.28). `--quick`: penstock 230
and 13.5, torch 621 (its first fork) and 68, keras 46 and 45.

Not shown: functions whose modules take long to import; memory of the contenders.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence

from _contenders import ELEMENT_COUNT, Contender, grain, keras, penstock, torch
from _harness import MIB, Array, Epoch, Numbers, Options, Target, read_every_byte, run, value
from _jobs import hold_gil, plain_picture
from _memory import descendants, own_usage, private_nbytes

_BATCH_SIZE = 8
_PICTURE_COUNT = 64
_PAUSE_S = 0.5
"""In which the first loader's workers finish what they do ahead, and stand still."""


def _start(contender: Contender) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        epoch = contender(hold_gil, _BATCH_SIZE)
        # Both are kept, so that the first one's workers are alive when the second starts.
        first, new_s = _first_batch(epoch)
        time.sleep(_PAUSE_S)
        second, second_s = _first_batch(epoch)
        numbers = {"new ms": 1e3 * new_s, "second ms": 1e3 * second_s}
        del first, second
        return numbers

    return measure


def _first_batch(epoch: Epoch) -> tuple[Iterator[Sequence[Array]], float]:
    began_s = time.perf_counter()
    batches = iter(epoch())
    (batch,) = next(batches)
    elapsed_s = time.perf_counter() - began_s
    if batch[:, 0].tolist() != list(range(_BATCH_SIZE)):
        raise RuntimeError(f"The first batch is not what it should be: {batch[:, 0].tolist()}")
    return batches, elapsed_s


def _memory(worker_count: int) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        import penstock as ps

        dataset = ps.range(ELEMENT_COUNT).map(plain_picture).batch(_PICTURE_COUNT)
        base = own_usage()
        with dataset.loader(executor="processes", workers=worker_count) as loader:
            for batch in itertools.islice(loader, 20 if options.quick else 100):
                read_every_byte([batch])
            parent = own_usage().private_shared - base.private_shared
            private = [private_nbytes(pid) for pid in descendants(os.getpid())]
            projected = loader.projected_nbytes
        return {
            "processes": len(private),
            "parent MiB": parent / MIB,
            "projected MiB": projected / MIB,
            "worker MiB": max(private) / MIB,
        }

    return measure


_CONTENDERS: dict[str, Contender] = {"penstock": penstock, "torch": torch, "grain": grain, "keras": keras}
_CASES = {
    **{name: _start(contender) for name, contender in _CONTENDERS.items()},
    **{f"memory_{count}": _memory(count) for count in (2, 16)},
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("new workers, ms to the first batch", value("penstock", "new ms"), at_most=300),
        Target("living workers, ms to the first batch", value("penstock", "second ms"), at_most=20),
        Target(
            "parent's memory, 16 workers / 2",
            lambda round_: round_["memory_16"]["parent MiB"] / round_["memory_2"]["parent MiB"],
            at_most=1.15,
        ),
        *(
            Target(f"largest of {count} workers, private MiB", value(f"memory_{count}", "worker MiB"), at_most=45)
            for count in (2, 16)
        ),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, case_timeout_s=60)
