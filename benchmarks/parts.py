"""What does a row of a table with a heavy codec cost, as worker processes are added?

Question: a Parquet file of 400,000 rows, gzip, four columns of bytes (40 to 160 each; 160 MB decoded, more than the
128 MiB that are kept), row groups of 20,000. Row groups come in a random order, and the rows of each are shuffled. A
function is called for each row; batches of 128.

Method: `python benchmarks/parts.py`. Fresh processes in turn; one epoch, of which the first batch is not counted.
"CPU us a row" is the processor time of the process and of all workers. `loop` reads one row group after the other with
pyarrow in the process itself, permutes its rows, and calls the function. `torch_2` is a DataLoader over an
`IterableDataset` of that loop, whose two workers share the row groups, as its documentation advises.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-28, three
rounds, while others used the machine:

    case         rows/s                        CPU us a row
    processes_1   75,175 (51,396 to 81,199)    15.3 (13.6 to 20.0)
    processes_2   80,514 (41,483 to 136,339)   16.7 (14.3 to 19.1)
    processes_4   73,307 (73,143 to 94,686)    20.0 (19.2 to 20.7)
    inline        78,207 (69,995 to 80,459)    12.6 (12.4 to 13.6)
    threads_2     55,555 (51,371 to 68,108)    17.4 (14.1 to 22.7)
    loop         256,317 (153,355 to 300,060)   3.9 (3.7 to 3.9)
    torch_2       82,325 (56,920 to 118,251)   12.6 (11.8 to 13.5)

So four workers take 1.31 (1.03 to 1.42) times the CPU of one a row; two runs on a quiet machine gave 1.21 and 1.26,
where it was 2.6 when each worker decoded each row group for itself. The loop in one process is three times as fast as
ours: its rows are Python values already, where we make arrays of each and look at what the function returned.
`map(fn, batched=)` is for such functions.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Numbers, Options, Target, bench_dir, run

_ROW_COUNT = 400_000
_GROUP_COUNT = 20_000
_BATCH_SIZE = 128
_NAMES = ("c0", "c1", "c2", "c3")


def _file() -> Path:
    path = bench_dir() / f"parts_{_ROW_COUNT}.parquet"
    if not path.exists():
        import pyarrow as pa
        import pyarrow.parquet as pq

        rng = np.random.default_rng(0)
        columns = {}
        for name in _NAMES:
            words = [rng.integers(97, 105, size, np.uint8).tobytes() for size in rng.integers(40, 160, _ROW_COUNT // 8)]
            columns[name] = pa.array([words[word] for word in rng.integers(0, len(words), _ROW_COUNT)], pa.binary())
        unfinished = path.with_suffix(".part")
        pq.write_table(
            pa.table(columns), unfinished, row_group_size=_GROUP_COUNT, compression="gzip", use_dictionary=False
        )
        unfinished.rename(path)
    return path


def sizes(row: dict[str, bytes]) -> np.int64:
    """The function: the bytes of a row."""
    return np.int64(sum(map(len, row.values())))


def penstock(executor: str, workers: int) -> Callable[[], Iterator[Any]]:
    def batches() -> Iterator[Any]:
        import penstock as ps

        dataset = ps.from_parquet(_file()).shuffle(seed=1, window="chunks").map(sizes).batch(_BATCH_SIZE)
        with dataset.loader(executor=executor, workers=workers) as loader:  # type: ignore[arg-type]
            yield from loader

    return batches


def _rows(groups: Any, rng: np.random.Generator) -> Iterator[np.int64]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(_file()) as file:
        for group in groups:
            columns = file.read_row_group(group).to_pydict()
            for row in rng.permutation(_GROUP_COUNT).tolist():
                yield sizes({name: columns[name][row] for name in _NAMES})


def loop() -> Iterator[Any]:
    rng = np.random.default_rng(1)
    batch = []
    for each in _rows(rng.permutation(_ROW_COUNT // _GROUP_COUNT).tolist(), rng):
        batch.append(each)
        if len(batch) == _BATCH_SIZE:
            yield np.array(batch)
            batch = []
    if batch:
        yield np.array(batch)


def torch() -> Iterator[Any]:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Rows(IterableDataset[np.int64]):
        def __iter__(self) -> Iterator[np.int64]:
            worker = get_worker_info()
            assert worker is not None
            rng = np.random.default_rng(1)
            groups = rng.permutation(_ROW_COUNT // _GROUP_COUNT)[worker.id :: worker.num_workers]
            return _rows(groups.tolist(), rng)

    yield from (batch.numpy() for batch in DataLoader(Rows(), _BATCH_SIZE, num_workers=2))


def _cpu_s() -> float:
    """The processor time of this process and of those below it, which have not ended."""
    ticks, parents = {}, {}
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", each, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(each)], ticks[int(each)] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {os.getpid()}
    while grown := {each for each, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(ticks.get(each, 0) for each in family) / os.sysconf("SC_CLK_TCK")


def _measure(contender: Callable[[], Iterator[Any]]) -> Callable[[Options], Numbers]:
    def numbers(options: Options) -> Numbers:
        batches, row_count = contender(), 0
        next(batches)
        began_s, cpu_s, last_s = time.perf_counter(), _cpu_s(), 0.0
        for batch in batches:
            batch.sum()
            row_count += len(batch)
            if row_count >= _ROW_COUNT - 4 * _GROUP_COUNT:  # workers that have ended are not counted
                last_s = _cpu_s()
                break
        seconds = time.perf_counter() - began_s
        return {"rows/s": row_count / seconds, "CPU us a row": 1e6 * (last_s - cpu_s) / row_count}

    return numbers


_CASES = {
    "processes_1": _measure(penstock("processes", 1)),
    "processes_2": _measure(penstock("processes", 2)),
    "processes_4": _measure(penstock("processes", 4)),
    "inline": _measure(penstock("inline", 1)),
    "threads_2": _measure(penstock("threads", 2)),
    "loop": _measure(loop),
    "torch_2": _measure(torch),
}


def _targets(options: Options) -> list[Target]:
    cost = "CPU us a row"
    return [
        Target(
            "4 processes / 1, CPU",
            lambda round_: round_["processes_4"][cost] / round_["processes_1"][cost],
            at_most=1.3,
        ),
        Target("2 processes / loop, rows/s", lambda round_: round_["processes_2"]["rows/s"] / round_["loop"]["rows/s"]),
        Target(
            "2 processes / torch_2, rows/s",
            lambda round_: round_["processes_2"]["rows/s"] / round_["torch_2"]["rows/s"],
        ),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3)
