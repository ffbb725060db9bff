"""Is a loader on Ray as fast as Ray Data on the same CPUs, and as even?

Question: two CPUs do the work, either those of the consumer's own node (`here`, as after `ray.init()` on one machine),
or those of two more nodes (`far`), whose rows go through object stores and a socket. `gil` is a function of pure Python
that holds the GIL for about 1 ms an element, in batches of 32. `large` is batches of 64 pictures of 150 kB, 9.6 MB,
with next to no work. Of each the speed, the time to the first batch, and the evenness of gaps.

Method: `python benchmarks/ray_data.py`. Each contender has a fresh process and a fresh cluster on this machine
(`ray.cluster_utils.Cluster`), in turn. The consumer sums every byte, and checks a byte of each row. The rate is that of
3 s of batches after a second that warms up. `ray_data` is `map_batches` and `iter_torch_batches`, in the order of the
data (`preserve_order`), as its documentation advises. `processes` is this library's executor with two workers, without
Ray: what Ray costs. After each, the indices in the batches are checked. `split` has two consumers:
`streaming_split(2, equal=True)` beside two loaders with `shard=(0, 2)` and `(1, 2)`; it counts rows that no consumer
got.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, Ray 2.60, 2026-11-25.

Result of three rounds, elements/s, ms to the first batch, and the 99th percentile of the gaps over their median:

    gil here ray             867   2,666  1.5        large here ray        25,897   2,564  3.2
    gil here ray_data        374   7,326  3.8        large here ray_data    1,117   7,425  1.4
    gil far ray              852   3,470  2.0        large far ray          2,399   3,833  6.5
    gil far ray_data         358   9,012  3.6        large far ray_data     1,027   8,132  1.6
    gil processes          1,053     609  1.3        large processes       29,397     710  3.4

Beside Ray Data, `here` and `far`: work that holds the GIL 2.36 (1.67 to 2.5) and 2.48 (2.38 to 2.61), wanted 1; large
batches 24 (23 to 25) and 2.29 (2.19 to 2.84), wanted 3; the first batch 2.93 (2.29 to 3.04) and 2.96 (2.26 to 3.4)
times sooner, wanted 3. Beside `processes`: 0.88 (0.59 to 0.98) and 0.86 (0.66 to 0.96), wanted 0.9. Neither library
lost a row in `split`, or gave one consumer more batches.

So two are missed by less than their spread, and two clearly: large batches from other nodes, and the evenness of large
batches. The first is what Ray carries: an actor a node that returns a copy of 9.6 MB, with four results under way and
no library, brings 2,240 to 2,430 elements/s here. The second is a few ms of gaps beside a median of 2 ms, and those of
`processes` vary as much.

Not shown: a network; more nodes than cores.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Round, Target, ratio, run, time_steady, value
from _jobs import hold_gil, plain_picture

import penstock as ps

JOBS: dict[str, tuple[Callable[[Any], Array], int, int]] = {
    "gil": (hold_gil, 32, 1 << 14),
    "large": (plain_picture, 64, 1 << 15),
}
"""The function, the elements in a batch, and all of them: enough for the seconds that are measured."""
BLOCK_ROWS = 64
SPLIT_ROWS, SPLIT_SIZE = 4000, 32


def cluster(place: str = "far") -> Any:
    """Starts one node with two CPUs (`here`), or two more with one each (`far`), and connects to the first."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # By default 15: Ray's workers would give way to the consumer, and the contender `processes` would not.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # the name is Ray's
    import ray
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 500 << 20}
    head = {"num_cpus": 2 if place == "here" else 0, "include_dashboard": False, **store}
    found = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2 if place == "far" else 0):
        found.add_node(num_cpus=1, **store)
    ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
    return found


def _penstock(job: str, executor: Any, workers: int) -> Iterator[Sequence[Array]]:
    function, size, count = JOBS[job]
    dataset = ps.range(count).repeat().map(lambda index: (index, function(index))).batch(size)
    with dataset.loader(executor, workers=workers) as loader:
        yield from loader


def _ray_data(job: str) -> Iterator[Sequence[Array]]:
    import ray.data

    function, size, count = JOBS[job]
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True

    def work(batch: dict[str, Array]) -> dict[str, Array]:
        return {"index": batch["id"], "value": np.stack([function(index) for index in batch["id"]])}

    dataset = ray.data.range(count, override_num_blocks=count // BLOCK_ROWS).map_batches(work, batch_size=size)
    for batch in dataset.iter_torch_batches(batch_size=size):
        yield batch["index"].numpy(), batch["value"].numpy()


def _case(job: str, contender: str, place: str = "") -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        found = None if contender == "processes" else cluster(place)
        seen: list[Array] = []

        def noted() -> Iterator[Sequence[Array]]:
            workers = 1 if place == "far" else 2
            for batch in _ray_data(job) if contender == "ray_data" else _penstock(job, contender, workers):
                seen.append(batch[0].copy())
                if job == "large" and not np.array_equal(batch[1][:, -1, -1, -1], batch[0] & 0xFF):
                    raise RuntimeError(f"{contender} delivered other pictures.")
                yield batch

        try:
            numbers = time_steady(noted(), options, gap_count=100)
        finally:
            _end(found)
        indices = np.concatenate(seen)
        if not np.array_equal(indices, np.arange(len(indices)) % JOBS[job][2]):
            raise RuntimeError(f"{contender} did not deliver every element in order: {indices[:32].tolist()} ...")
        return numbers

    return measure


def _split(contender: str) -> Callable[[Options], Numbers]:
    """Two consumers take turns, so that both must get as many batches."""

    def measure(options: Options) -> Numbers:
        found = cluster()
        try:
            if contender == "ray":
                dataset = ps.range(SPLIT_ROWS).map(lambda index: index + 0).batch(2 * SPLIT_SIZE, drop_remainder=True)
                loaders = [dataset.loader("ray", workers=1, shard=(index, 2)) for index in range(2)]
                parts = [[batch.tolist() for batch in loader] for loader in loaders]
                for loader in loaders:
                    loader.close()
            else:
                parts = _split_by_ray()
        finally:
            _end(found)
        rows = [row for part in parts for batch in part for row in batch]
        return {
            "lost rows": SPLIT_ROWS - SPLIT_ROWS % (2 * SPLIT_SIZE) - len(set(rows)),
            "uneven steps": abs(len(parts[0]) - len(parts[1])),
        }

    return measure


def _split_by_ray() -> list[list[list[int]]]:
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    count = SPLIT_ROWS - SPLIT_ROWS % (2 * SPLIT_SIZE)
    dataset = ray.data.range(count).map_batches(lambda batch: batch)

    @ray.remote(num_cpus=0)
    def consume(split: Any) -> list[list[int]]:
        return [batch["id"].tolist() for batch in split.iter_batches(batch_size=SPLIT_SIZE)]

    found: list[list[list[int]]] = ray.get([consume.remote(split) for split in dataset.streaming_split(2, equal=True)])
    return found


def _end(found: Any) -> None:
    if found is not None:
        import ray

        ray.shutdown()
        found.shutdown()


_CASES = {
    f"{job} {place} {each}": _case(job, each, place)
    for job in JOBS
    for place in ("here", "far")
    for each in ("ray", "ray_data")
}
_CASES |= {f"{job} processes": _case(job, "processes") for job in JOBS}
_CASES |= {"split ray": _split("ray"), "split ray_data": _split("ray_data")}


def _targets(options: Options) -> list[Target]:
    def first(place: str) -> Callable[[Round], float]:
        ours, theirs = f"gil {place} ray", f"gil {place} ray_data"
        return lambda numbers: numbers[theirs]["first batch ms"] / numbers[ours]["first batch ms"]

    found = []
    for place in ("here", "far"):
        for job, least in (("gil", 1.0), ("large", 3.0)):
            ours, theirs = f"{job} {place} ray", f"{job} {place} ray_data"
            found.append(Target(f"{job} {place}: ray / Ray Data", ratio(ours, [theirs]), at_least=least))
            least = 0.9 if job == "gil" else 0
            found.append(Target(f"{job} {place}: ray / processes", ratio(ours, [f"{job} processes"]), at_least=least))
        found += [
            Target(f"gil {place}: Ray Data's time to a first batch / ray's", first(place), at_least=3.0),
            Target(f"gil {place}: p99 of the gaps / median", value(f"gil {place} ray", "p99/median"), at_most=2.0),
        ]
    return found


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3, case_timeout_s=180)
