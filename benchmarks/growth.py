"""Does anything grow faster than its work?

Question: how does the cost of a batch, of a plan, or of learning what functions return grow with the number of files,
columns, elements, inputs and steps?

Method: `python benchmarks/growth.py`. Each case has a fresh process. "us a batch" is the processor time of all threads
of the process, for batches of 256 shuffled rows on threads, after some batches that warm up; each batch is read whole.
"most ms" is the longest that one `next` takes by the clock, which a busy machine prolongs.

- `files`, `interleaved`: 2,000,000 rows of 64 bytes in so many `.npy` files, by `concatenate` and `interleave`.
- `columns`: a dict of so many `.npy` files of 8 bytes a row.
- `mix`: a mix of three ranges that has about so many elements, shuffled; `range` is one of 100,000,000, shuffled; and
  `in_order` is a mix that is not shuffled. No batch of these is computed twice.
- `length`, `block`: what a mix of so many inputs takes to know its length, and to deal 1,024 elements.
- `lengths`: what an interleave of so many inputs, each of another length, takes to deal 256 shuffled elements, the
  first time and later; and the memory that stays.
- `learn`: how often the functions of so many maps are called until their specs are known.
- `wide`: a CSV file of 200 rows and so many columns, converted before: made again, printed, a loader made, its first
  batch of 32, and its report; and the `repr` of batches of an Arrow file compressed by LZ4.
- `footers`: 30 Parquet files of 100 columns and 10 row groups, made a dataset of a first and a second time.
- `slices`, `maps`: so many steps in a row: built, learnt, printed, pickled, and one batch of them; the processor time,
  or "fails" where it is an error.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-28,
while others used the machine. CPU us a batch; `files` and `interleaved` of three rounds, the others of one with
`--quick`:

    files          1: 59 (54 to 67)   100: 151 (123 to 155)   1,000: 516 (511 to 518)   3,000: 749 (724 to 770)
    interleaved                                               1,000: 551 (546 to 592)
    longest next   7, 6, 14 and 44 ms, of which most is the wait for a core: 1.1, 1.7, 8.7, 16.6 at a quieter time
    columns        1: 45     100: 865     1,000: 8,834
    mix, shuffled  10,000: 844   1,000,000: 2,025   100,000,000: 2,138   a shuffled range: 188   in order: 468

    length of a mix       0.012 ms of 3 inputs, 0.010 of 300; a block of 1,000 inputs 0.44 ms
    interleave            0.24 ms of 30 lengths at first and 0.06 later; of 3,000: 2.0 and 0.13
    calls of functions    4 maps: 4; 40 maps: 40

CPU ms, three rounds, medians:

    slices                10: 5.5   100: 16   300: 58    1,000: 369
    maps                  10: 7.6   100: 36   300: 127   1,000: 567
    wide, columns         made again     repr           loader         first batch    report         repr of Arrow
        100               3.1            1.1            4.5            12             1.3            8
        1,000             21             7.4            18             79             2.1            49
        times (spread)    6.9 (6 to 7.5) 7 (6.7 to 7.1) 3.8 (3.6 to 4) 6.9 (6.7 to 7) 1.7 (1.5 to 2) 6.2 (3.9 to 6.7)
    footers, a file       2.3 the first time, 0.8 the second: 0.42 (0.20 to 0.47)

On 2026-11-29, quiet, one round: files 48, 137, 436 and 522 us a batch, the longest next 0.7, 5.7, 4.2 and 4.3 ms;
columns 39, 641 and 7,776; a shuffled mix 551, 1,685 and 1,926, a shuffled range 147, in order 477; the rest as above.
So 9.2 times one file, 12.1 times 100 columns, and 13 times the shuffled range at 100 million elements.

Missed: 1,000 files cost 8.8 times one file (7.6 to 9.6), and three times was wanted. A batch of 256 rows needs some 226
of them. One `stat` each, after the copy, tells whether a file was shortened, because then the kernel gives zeros for
the rest of its last page. One `stat` takes 1.35 us by name, and 0.43 of an open file, of which there are 128 at most:
some 270 us of the 516. Less often, zeros would reach a batch; and by this estimate 1,000 files would still cost four
times one file. A loop over NumPy memmaps, which asks nothing, took 673 us in an earlier run. A shuffled mix was to cost
twice a shuffled range. Each of its rows lies in another block, and the order of a block needs 1,024 draws of Philox,
2.5 us.
"""

import functools
import itertools
import pickle
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Numbers, Options, Round, Target, npy_file, read_every_byte, run

_ROW_COUNT = 2_000_000
_COLUMN_ROW_COUNT = 100_000
_BATCH_SIZE = 256
_WARM_UP_COUNT = 70
"""Batches before the measurement: at least one announcement of reads."""


def _per_batch(dataset: Any, options: Options) -> Numbers:
    count = 200 if options.quick else 2000
    with dataset.batch(_BATCH_SIZE).loader(executor="threads") as loader:
        batches, done, most_s = itertools.chain.from_iterable(itertools.repeat(loader)), 0, 0.0
        for _ in range(_WARM_UP_COUNT):
            next(batches)
        cpu_s, began_s = time.process_time(), time.perf_counter()
        while done < count and time.perf_counter() < began_s + 20:
            asked_s = time.perf_counter()
            batch = next(batches)
            most_s = max(most_s, time.perf_counter() - asked_s)
            read_every_byte(batch.values() if isinstance(batch, dict) else [batch])
            done += 1
        return {"us a batch": 1e6 * (time.process_time() - cpu_s) / done, "most ms": 1e3 * most_s}


def files(count: int, combine: str, options: Options) -> Numbers:
    import penstock as ps

    rows = _ROW_COUNT // count
    paths = [npy_file(f"growth_{rows}_{number}.npy", (rows, 8), "float64") for number in range(count)]
    return _per_batch(getattr(ps, combine)([ps.from_npy(path) for path in paths]).shuffle(seed=1), options)


def columns(count: int, options: Options) -> Numbers:
    import penstock as ps

    names = [f"growth_column_{number}" for number in range(count)]
    paths = {name: npy_file(f"{name}.npy", (_COLUMN_ROW_COUNT,), "float64") for name in names}
    return _per_batch(ps.from_npy(paths).shuffle(seed=1), options)


def mix(count: int, options: Options, *, shuffles: bool = True) -> Numbers:
    import penstock as ps

    ds = ps.mix([ps.range(count // 2), ps.range(count // 3), ps.range(count // 5)], [5, 3, 2], seed=1)
    return _per_batch(ds.shuffle(seed=1) if shuffles else ds, options)


def shuffled_range(options: Options) -> Numbers:
    import penstock as ps

    return _per_batch(ps.range(100_000_000).shuffle(seed=1), options)


def mix_of_many(count: int, options: Options) -> Numbers:
    import penstock as ps

    ds = ps.mix([ps.range(10_000 + number) for number in range(count)], [1] * count, seed=1)
    began_s = time.process_time()
    assert len(ds) > 0
    length_s, began_s = time.process_time() - began_s, time.process_time()
    ds._node.deal(np.arange(1024, 2048))
    return {"length ms": 1e3 * length_s, "block ms": 1e3 * (time.process_time() - began_s)}


def interleave_of_many(count: int, options: Options) -> Numbers:
    import penstock as ps

    node = ps.interleave([ps.range(number + 1) for number in range(count)])._node
    places = np.random.default_rng(0).integers(0, node.length, _BATCH_SIZE)
    tracemalloc.start()
    node.deal(places)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    again = ps.interleave([ps.range(number + 1) for number in range(count)])._node
    again.length  # noqa: B018
    began_s = time.process_time()
    again.deal(places)
    first_s, began_s = time.process_time() - began_s, time.process_time()
    for _ in range(20):
        again.deal(places)
    return {"first ms": 1e3 * first_s, "later ms": 1e3 * (time.process_time() - began_s) / 20, "MiB": kept / (1 << 20)}


def learn(count: int, options: Options) -> Numbers:
    import penstock as ps

    calls, dataset = [0], ps.range(10)

    def more(x: Any) -> Any:
        calls[0] += 1
        return x + 1

    for _ in range(count):
        dataset = dataset.map(more)
    assert dataset.element_spec
    return {"calls": calls[0]}


def steps(count: int, verb: str, options: Options) -> Numbers:
    import penstock as ps

    began_s = time.process_time()
    try:
        dataset = ps.range(10 * count)
        for _ in range(count):
            dataset = dataset[1:] if verb == "slices" else dataset.map(_next)
        assert dataset.element_spec
        assert str(dataset)
        pickle.dumps(dataset)
        with dataset.batch(4).loader(executor="threads", workers=1) as loader:
            assert next(iter(loader)).tolist() == [count, count + 1, count + 2, count + 3]
    except RecursionError:
        return {"fails": 1}
    return {"ms": 1e3 * (time.process_time() - began_s)}


def wide(count: int, options: Options) -> Numbers:
    import pyarrow as pa
    import pyarrow.feather

    import penstock as ps

    numbers: Numbers = {}

    def timed(title: str, call: Callable[[], Any]) -> Any:
        began_s = time.process_time()
        made = call()
        numbers[title] = 1e3 * (time.process_time() - began_s)
        return made

    with tempfile.TemporaryDirectory() as folder:
        lines = [",".join(f"c{column}" for column in range(count))]
        lines += [",".join(str(row + column) for column in range(count)) for row in range(200)]
        path = Path(folder, "wide.csv")
        path.write_text("\n".join(lines) + "\n")
        assert ps.from_csv(path, cache_dir=folder).element_spec  # converts it
        ds = timed("make ms", lambda: ps.from_csv(path, cache_dir=folder)).shuffle(seed=1).batch(32)
        timed("repr ms", lambda: repr(ds))
        with timed("loader ms", lambda: ds.loader(executor="threads")) as loader:
            timed("batch ms", lambda: next(iter(loader)))
            timed("report ms", lambda: str(loader.report()))
        table = pa.table({f"c{column}": np.arange(200.0) for column in range(count)})
        pyarrow.feather.write_feather(table, f"{folder}/wide.arrow", compression="lz4")
        timed("arrow ms", lambda: repr(ps.from_arrow(f"{folder}/wide.arrow").batch(32)))
    return numbers


def footers(options: Options) -> Numbers:
    import pyarrow as pa
    import pyarrow.parquet as pq

    import penstock as ps

    numbers: Numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({f"c{column}": np.arange(100.0) for column in range(100)})
        paths = [f"{folder}/{number}.parquet" for number in range(30)]
        for path in paths:
            pq.write_table(table, path, row_group_size=10)
        ps.from_parquet(paths[0], columns=["c0"])  # imports
        for title in ("first", "second"):
            began_s = time.process_time()
            ds = ps.from_parquet(paths, columns=["c0"])
            numbers[f"{title} ms a file"] = 1e3 * (time.process_time() - began_s) / len(paths)
            began_s = time.process_time()
            for start in range(0, len(ds), 10):
                assert ds[start]["c0"] == start % 100
            numbers[f"{title} ms a group"] = 1e3 * (time.process_time() - began_s) / (len(ds) // 10)
    return numbers


def _next(x: Any) -> Any:
    return x + 1


def _cases() -> dict[str, Callable[[Options], Numbers]]:
    made: dict[str, Callable[[Options], Numbers]] = {}
    for count in (1, 100, 1000, 3000):
        made[f"files_{count}"] = functools.partial(files, count, "concatenate")
    made["interleaved_1000"] = functools.partial(files, 1000, "interleave")
    for count in (1, 100, 1000):
        made[f"columns_{count}"] = functools.partial(columns, count)
    made["range"] = shuffled_range
    for count in (10_000, 1_000_000, 100_000_000):
        made[f"mix_{count}"] = functools.partial(mix, count)
    made["in_order"] = functools.partial(mix, 1_000_000, shuffles=False)
    for count in (3, 30, 300, 1000):
        made[f"inputs_{count}"] = functools.partial(mix_of_many, count)
    for count in (30, 300, 3000):
        made[f"lengths_{count}"] = functools.partial(interleave_of_many, count)
    for count in (4, 40):
        made[f"learn_{count}"] = functools.partial(learn, count)
    for count in (100, 1000):
        made[f"wide_{count}"] = functools.partial(wide, count)
    made["footers"] = footers
    for verb in ("slices", "maps"):
        for count in (10, 100, 300, 1000):
            made[f"{verb}_{count}"] = functools.partial(steps, count, verb)
    return made


def _growth(case: str, least: str, column: str) -> Callable[[Round], float]:
    return lambda round_: round_[case][column] / round_[least][column]


def _second(round_: Round) -> float:
    return round_["footers"]["second ms a file"] / round_["footers"]["first ms a file"]


def _targets(options: Options) -> list[Target]:
    batch = "us a batch"
    return [
        Target("100 files / 1", _growth("files_100", "files_1", batch), at_most=3),
        Target("1,000 files / 1", _growth("files_1000", "files_1", batch), at_most=3),
        Target("3,000 files / 1", _growth("files_3000", "files_1", batch)),
        Target("1,000 files interleaved / 1", _growth("interleaved_1000", "files_1", batch), at_most=3),
        Target("1,000 files: most ms", lambda round_: round_["files_1000"]["most ms"], at_most=20),
        Target("100 columns / 1", _growth("columns_100", "columns_1", batch), at_most=100),
        Target("1,000 columns / 100", _growth("columns_1000", "columns_100", batch), at_most=12),
        Target("mix of 10,000 / range", _growth("mix_10000", "range", batch), at_most=2),
        Target("mix of 1,000,000 / range", _growth("mix_1000000", "range", batch), at_most=2),
        Target("mix of 100,000,000 / range", _growth("mix_100000000", "range", batch), at_most=2),
        Target("mix in order / range", _growth("in_order", "range", batch)),
        Target("length of a mix of 300 / 3", _growth("inputs_300", "inputs_3", "length ms"), at_most=100),
        Target("block of a mix of 1,000 / 3", _growth("inputs_1000", "inputs_3", "block ms"), at_most=10),
        Target("3,000 lengths / 30, first", _growth("lengths_3000", "lengths_30", "first ms"), at_most=100),
        Target("3,000 lengths / 30, later", _growth("lengths_3000", "lengths_30", "later ms"), at_most=3),
        Target("calls of 40 maps / 4", _growth("learn_40", "learn_4", "calls"), at_most=10),
        *(
            Target(f"{title} of 1,000 columns / 100", _growth("wide_1000", "wide_100", title), at_most=15)
            for title in ("make ms", "repr ms", "loader ms", "batch ms", "report ms", "arrow ms")
        ),
        Target("footers of files, second / first", _second, at_most=0.7),
        Target("300 slices / 10", _growth("slices_300", "slices_10", "ms"), at_most=30),
        Target("1,000 slices / 10", _growth("slices_1000", "slices_10", "ms"), at_most=100),
        Target("300 maps / 10", _growth("maps_300", "maps_10", "ms"), at_most=30),
        Target("1,000 maps / 10", _growth("maps_1000", "maps_10", "ms"), at_most=100),
    ]


if __name__ == "__main__":
    run(__file__, _cases(), _targets)
