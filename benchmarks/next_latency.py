"""How long does `next()` take when the batch is ready?

Question: a training step that is slower than the data finds a batch ready each time. How much of the step does the
hand-over take: the median, and the 99th percentile?

Method: `python benchmarks/next_latency.py`. Fresh processes in turn. The consumer spins for 10 ms as a step on a device
does, takes the next batch, and drops the one before; only `next()` is timed, 300 times after 50. In 10 ms every
contender has its next batch ready. `CPU` is the median of the processor time of that thread, which another program
disturbs less. That is SPDL's own method (`benchmark_thread_output_queue.py`), whose items are integers; here all have
rows of a table in memory, 100,000 rows of 84 bytes, shuffled, 256 a batch.

`penstock_threads` is a plan that only moves bytes, which native threads copy; `penstock_map` has a function of an
element on threads, 32 a batch, `penstock_processes` on two worker processes; `penstock_inline` runs the first plan on
the consumer's thread. `torch` is a DataLoader that gets whole batches of indices, with two persistent workers. `spdl`
is a pipeline of two threads whose function takes such a batch out of the table, and whose sink is its queue for
threads, with 8 places, as its script advises. `queue` is a thread that puts one and the same batch into a
`queue.Queue`: the least hand-over in Python. `bare` is the least native engine (`_bare_engine.py`), and `loop` indexes
the table by NumPy.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, PyTorch 2.13, SPDL
0.8, 2026-11-29, quiet.

Result, two rounds, medians and range, us:

                          p50                     p99                     CPU
    queue                 16.4 (15.1 to 17.7)     46.9 (39 to 54.9)       19 (17.4 to 20.5)
    spdl                  23.2 (22 to 24.5)        155 (58.1 to 251)      26.4 (25.4 to 27.4)
    loop                  36.2 (33.4 to 38.9)     83.3 (71.1 to 95.5)     38.7 (35.8 to 41.6)
    bare                  43.2 (38.7 to 47.7)      122 (98.8 to 146)      45.3 (40.7 to 49.8)
    penstock_map          45.1 (39.4 to 50.9)      439 (435 to 443)       47.6 (41.8 to 53.4)
    penstock_threads      58.1 (54.5 to 61.7)      475 (468 to 481)       60.5 (57.3 to 63.8)
    penstock_processes    60.8 (49.5 to 72.1)      929 (848 to 1,009)     64 (52.2 to 75.7)
    penstock_inline        236 (187 to 286)        596 (544 to 649)        239 (189 to 289)
    torch                1,149 (1,080 to 1,218)  1,845 (1,799 to 1,891)    756 (722 to 789)

Where we lose: SPDL's queue, by the median 2 times on threads with a function, 2.5 where native threads copy and 2.7 on
processes; by the 99th percentile 3 to 6 times. On a busy machine (load 3 to 5) all took two to three times as long.
Wanted: 15 and 100 us; SPDL publishes 12 and 27 to 70 on its own machine. No contender has 15 here, nor has the least
queue. The bare engine, a prototype of 60 lines, is not below 39. Without a pause the same `next()` takes 13 us (p50,
less busy); after a step, each Python function costs microseconds of cache misses. A plan that only moves bytes took 18
of them a batch, and takes 14 now. To fill two slots at once changed nothing. One `next()` in 16 computes the indices of
16 batches: 94 us without a pause, 300 after one. So the 99th percentile of such plans stays above 100, unless another
Python thread does that.

Not shown: a step that leaves more of the caches to the loader than one that spins, or less; a step that releases the
GIL; batches of megabytes, of which `next()` touches no byte.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _bare_engine import bare_batches
from _harness import Array, Numbers, Options, Round, Target, run, value

_ROW_COUNT, _BATCH_SIZE, _MAPPED_SIZE = 100_000, 256, 32
_STEP_S = 10e-3
_WARM_UP_COUNT = 50

Batches = Iterator[Any]
Contender = Callable[[Array], Batches]


def _orders() -> Iterator[Array]:
    """The rows of each batch, for contenders that are told them."""
    rng = np.random.default_rng(1)
    while True:
        order = rng.permutation(_ROW_COUNT)
        for start in range(0, _ROW_COUNT - _BATCH_SIZE + 1, _BATCH_SIZE):
            yield order[start : start + _BATCH_SIZE]


def itself(element: Array) -> Array:
    return element


def penstock(executor: Any, *, is_mapped: bool = False) -> Contender:
    def batches(table: Array) -> Batches:
        import penstock as ps

        dataset = ps.from_arrays((table[:, :-1], table[:, -1]))
        if is_mapped:
            dataset = ps.from_arrays(table).map(itself)
        size = _MAPPED_SIZE if is_mapped else _BATCH_SIZE
        shuffled = dataset.shuffle(seed=1).batch(size, drop_remainder=True).repeat()
        return iter(shuffled.loader(executor, workers="auto" if executor == "inline" else 2))

    return batches


def torch(table: Array) -> Batches:
    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    rows = torch.from_numpy(table)
    dataset = TensorDataset(rows[:, :-1], rows[:, -1])
    sampler = BatchSampler(RandomSampler(dataset, num_samples=1000 * len(rows)), _BATCH_SIZE, drop_last=True)
    return iter(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2, persistent_workers=True))


def spdl(table: Array) -> Batches:
    from spdl.pipeline import PipelineBuilder

    def take(rows: Array) -> tuple[Array, Array]:
        batch = table[rows]
        return batch[:, :-1], batch[:, -1]

    pipeline = (
        PipelineBuilder()
        .add_source(_orders())
        .pipe(take, concurrency=2)
        .add_sink(buffer_size=8)
        .build(num_threads=2, use_thread_output_queue=True)
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=60)


def queue_(table: Array) -> Batches:
    batches: queue.Queue[Array] = queue.Queue(4)

    def fill() -> None:
        while True:
            batches.put(table[:_BATCH_SIZE])

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield batches.get()


def bare(table: Array) -> Batches:
    return (
        (rows[:, :-1], rows[:, -1]) for (rows,) in bare_batches([table], _BATCH_SIZE, ([rows] for rows in _orders()))
    )


def loop(table: Array) -> Batches:
    for rows in _orders():
        batch = table[rows]
        yield batch[:, :-1], batch[:, -1]


def _measure(contender: Contender) -> Callable[[Options], Numbers]:
    def numbers(options: Options) -> Numbers:
        count = 100 if options.quick else 300
        table = np.random.default_rng(0).standard_normal((_ROW_COUNT, 21), "float32")
        batches = contender(table)
        clock, cpu_clock = time.perf_counter_ns, time.thread_time_ns
        taken_ns, cpu_ns = [], []
        for _ in range(_WARM_UP_COUNT + count):
            ends_at = time.perf_counter() + _STEP_S
            while time.perf_counter() < ends_at:
                pass
            began_cpu_ns = cpu_clock()
            began_ns = clock()
            following = next(batches)
            taken_ns.append(clock() - began_ns)
            cpu_ns.append(cpu_clock() - began_cpu_ns)
            batch = following  # the one before is dropped
        del batch
        taken_us = np.array(taken_ns[_WARM_UP_COUNT:]) / 1e3
        p50, p90, p99 = np.percentile(taken_us, [50, 90, 99]).tolist()
        cpu_us = float(np.median(cpu_ns[_WARM_UP_COUNT:])) / 1e3
        return {"p50 us": p50, "p90 us": p90, "p99 us": p99, "CPU us": cpu_us}

    return numbers


_CONTENDERS: dict[str, Contender] = {
    "queue": queue_,
    "bare": bare,
    "loop": loop,
    "penstock_threads": penstock("threads"),
    "penstock_map": penstock("threads", is_mapped=True),
    "penstock_processes": penstock("processes", is_mapped=True),
    "penstock_inline": penstock("inline"),
    "spdl": spdl,
    "torch": torch,
}


def _of(case: str, other: str, column: str) -> Callable[[Round], float]:
    return lambda round_: round_[case][column] / round_[other][column]


def _targets(options: Options) -> list[Target]:
    ours = [name for name in _CONTENDERS if name.startswith("penstock_") and name != "penstock_inline"]
    return [
        *(
            Target(f"{name}, {column}", value(name, column), at_most=most)
            for name in ours
            for column, most in (("p50 us", 15), ("p99 us", 100))
        ),
        *(
            Target(f"{name} / {other}, {column}", _of(name, other, column))
            for name in ours
            for other in ("spdl", "torch", "bare")
            for column in ("p50 us", "p99 us")
        ),
    ]


if __name__ == "__main__":
    run(__file__, {name: _measure(each) for name, each in _CONTENDERS.items()}, _targets, round_count=2)
