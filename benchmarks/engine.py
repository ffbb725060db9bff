"""How fast is the copy engine, beside one thread of NumPy?

Question: batches of shuffled rows from a file in the page cache and from an array in memory, for row sizes from a table
of 84 bytes to pairs of frames of 60 kB.

Method: `python benchmarks/engine.py`. Each row size has a process of its own, because a mapping shows as memory. The
floor and the engine take turns of 50 ms within it, 40 times, and the median turn counts. The consumer copies every byte
of a batch into its own array. Three batches are submitted ahead.

Contenders: `floor` is `np.take` of a `np.memmap` into four buffers that are made once, in the consumer's thread;
`floor_memory` the same from an array. `mapped` and `read` are the engine through a mapping and with `pread`, `auto` is
the one that a loader chooses, and `memory` is the engine over an array, each on two threads. A column `..., part` is
the speed over that of its floor. `CPU, part` is the processor time of all threads over that of the floor.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _harness import Array, Numbers, Options, Target, bench_dir, run, value

from penstock.native import Engine, Source
from penstock.sources._mapped import mapping_options

_SIZES = {"pairs of 60 kB": (60_000, 32, 6_000), "8 kB": (8192, 256, 40_000), "2 kB": (2048, 256, 150_000)}
_SIZES |= {"784 B": (784, 256, 300_000), "84 B": (84, 256, 1_000_000)}
_TURNS = 40
_TURN_S = 0.05
_AHEAD = 3

Batches = Callable[[], None]
"""Copies one batch to the consumer."""


def _file(nbytes: int, count: int) -> Path:
    path = bench_dir() / f"engine-{nbytes}.bin"
    if not path.exists():
        part = path.with_suffix(".part")
        np.random.default_rng(0).integers(0, 255, (count, nbytes), np.uint8).tofile(part)
        part.rename(path)
    return path


class _Case:
    """One row size: row numbers of many batches, buffers, and the consumer's array."""

    def __init__(self, name: str) -> None:
        self.nbytes, self.batch_size, self.count = _SIZES[name]
        self.leaf_count = 2 if "pairs" in name else 1
        rng = np.random.default_rng(1)
        self.rows = [rng.integers(0, self.count - 1, self.batch_size) for _ in range(500)]
        shape = (self.leaf_count, self.batch_size, self.nbytes)
        self.buffers = [np.zeros(shape, np.uint8) for _ in range(_AHEAD + 1)]
        self.sink = np.zeros(shape, np.uint8)

    def floor(self, array: Array) -> Batches:
        step = 0

        def batch() -> None:
            nonlocal step
            buffer, rows = self.buffers[step % len(self.buffers)], self.rows[step % len(self.rows)]
            for leaf, out in enumerate(buffer):
                np.take(array, rows + leaf, axis=0, out=out, mode="clip")
            np.copyto(self.sink, buffer)
            step += 1

        return batch

    def engine(self, engine: Engine, source: Source) -> Batches:
        step = 0

        def submit(number: int) -> None:
            buffer, rows = self.buffers[number % len(self.buffers)], self.rows[number % len(self.rows)]
            engine.submit(number, [(source, rows + leaf, out, None, None) for leaf, out in enumerate(buffer)])

        for number in range(_AHEAD):
            submit(number)

        def batch() -> None:
            nonlocal step
            submit(step + _AHEAD)
            engine.wait(step)
            np.copyto(self.sink, self.buffers[step % len(self.buffers)])
            step += 1

        return batch


def _turn(batch: Batches) -> tuple[float, float]:
    """Seconds and processor seconds of one batch."""
    count, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < _TURN_S:
        batch()
        count += 1
    return (time.perf_counter() - start) / count, (time.process_time() - cpu) / count


def _measure(name: str) -> Numbers:
    case = _Case(name)
    path = _file(case.nbytes, case.count)
    mapped = np.memmap(path, np.uint8, "r", shape=(case.count, case.nbytes))
    array = np.fromfile(path, np.uint8).reshape(case.count, case.nbytes)
    engines = {mode: Engine(2) for mode in ("memory", "auto", "mapped", "read")}
    modes = {"auto": mapping_options(case.nbytes, True, path.stat().st_size), "mapped": (True, 0), "read": (False, 0)}
    contenders: dict[str, Batches] = {"floor": case.floor(mapped), "floor_memory": case.floor(array)}
    for mode, engine in engines.items():
        source = engine.memory(array)
        if mode != "memory":
            mapped, give_back_nbytes = modes[mode]
            options = {"mapped": mapped, "give_back_nbytes": give_back_nbytes}
            source = engine.file(path, 0, case.count, case.nbytes, **options)
        contenders[mode] = case.engine(engine, source)
    turns: dict[str, list[tuple[float, float]]] = {each: [] for each in contenders}
    for _ in range(_TURNS):
        for each, batch in contenders.items():
            turns[each].append(_turn(batch))
    for engine in engines.values():
        engine.close()
    medians = {each: np.median(turns[each][1:], axis=0) for each in contenders}
    numbers = {"floor us": 1e6 * medians["floor"][0]}
    for mode in engines:
        floor = medians["floor_memory" if mode == "memory" else "floor"]
        numbers[f"{mode}, part"] = floor[0] / medians[mode][0]
    numbers["CPU, part"] = medians["auto"][1] / medians["floor"][1]
    return numbers


def _case(name: str) -> Callable[[Options], Numbers]:
    return lambda options: _measure(name)


_LEAST = {"pairs of 60 kB": 1.0, "8 kB": 1.3, "2 kB": 1.2, "784 B": 0.9}


def _targets(options: Options) -> list[Target]:
    files = [Target(f"{name}, file", value(name, "auto, part"), at_least=least) for name, least in _LEAST.items()]
    return [*files, Target("84 B, memory", value("84 B", "memory, part"), at_least=0.5)]


if __name__ == "__main__":
    run(__file__, {name: _case(name) for name in _SIZES}, _targets)
