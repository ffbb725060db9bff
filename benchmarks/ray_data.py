"""Is a loader on Ray as fast as Ray Data on the same CPUs, and as even?

Question: two nodes of one CPU each do the work, and the consumer is on a third node without CPUs. `gil` is a function
of pure Python that holds the GIL for about 1 ms an element, in batches of 32. `large` is batches of 64 pictures of
150 kB, 9.6 MB, with next to no work. Of each the speed, the time to the first batch, and the evenness of gaps.

Method: `python benchmarks/ray_data.py`. Each contender has a fresh process and a fresh cluster of three nodes on this
machine (`ray.cluster_utils.Cluster`), in turn. The consumer sums every byte. The rate is that of 3 s of batches after a
second that warms up. `ray_data` is `map_batches` and `iter_torch_batches`, in the order of the data
(`preserve_order`), as its documentation advises. `processes` is this library's executor with two workers, without Ray:
what Ray costs. After each, the indices in the batches are checked. `split` has two consumers:
`streaming_split(2, equal=True)` beside two loaders with `shard=(0, 2)` and `(1, 2)`; it counts rows that no consumer
got.

Result: measured on a machine with other work so far, so no numbers stand here.

Not shown: a network; more nodes than cores.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, ratio, run, time_steady
from _jobs import hold_gil, plain_picture

import penstock as ps

JOBS: dict[str, tuple[Callable[[Any], Array], int, int]] = {
    "gil": (hold_gil, 32, 1 << 14),
    "large": (plain_picture, 64, 1 << 15),
}
"""The function, the elements in a batch, and all of them: enough for the seconds that are measured."""
BLOCK_ROWS = 64
SPLIT_ROWS, SPLIT_SIZE = 4000, 32


def cluster() -> Any:
    """Starts three nodes on this machine, and connects to the one without CPUs."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 500 << 20}
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    for _ in range(2):
        found.add_node(num_cpus=1, **store)
    ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
    return found


def _penstock(job: str, executor: Any) -> Iterator[Sequence[Array]]:
    function, size, count = JOBS[job]
    dataset = ps.range(count).repeat().map(lambda index: (index, function(index))).batch(size)
    with dataset.loader(executor, workers=2 if executor == "processes" else 1) as loader:
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


def _case(job: str, contender: str) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        found = None if contender == "processes" else cluster()
        seen: list[Array] = []

        def noted() -> Iterator[Sequence[Array]]:
            for batch in _ray_data(job) if contender == "ray_data" else _penstock(job, contender):
                seen.append(batch[0].copy())
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


_CASES = {f"{job} {each}": _case(job, each) for job in JOBS for each in ("ray", "ray_data", "processes")}
_CASES |= {"split ray": _split("ray"), "split ray_data": _split("ray_data")}


def _targets(options: Options) -> list[Target]:
    def evenness(numbers: Any) -> float:
        return float(numbers["gil ray"]["p99/median"])

    def first(numbers: Any) -> float:
        return float(numbers["gil ray_data"]["first batch ms"] / numbers["gil ray"]["first batch ms"])

    return [
        Target("gil: ray / Ray Data", ratio("gil ray", ["gil ray_data"]), at_least=1.0),
        Target("gil: ray / processes", ratio("gil ray", ["gil processes"]), at_least=0.9),
        Target("large: ray / Ray Data", ratio("large ray", ["large ray_data"]), at_least=3.0),
        Target("gil: Ray Data's time to a first batch / ray's", first, at_least=3.0),
        Target("gil: p99 of the gaps / median", evenness, at_most=2.0),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3, case_timeout_s=180)
