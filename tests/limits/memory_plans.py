"""Plans whose memory is measured, and a program that runs one of them and prints its memory.

`python memory_plans.py FOLDER` reads lines of NAME and EXECUTOR, JSON, and prints JSON, which `test_memory_table.py`
checks. Each plan runs in a process that begins where this one has imported penstock. Batches of these plans have 4 to
15 MiB, so one batch too many exceeds the usual variation of an interpreter's memory.
"""

import faulthandler
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.memory._budget import overhead_nbytes
from penstock.report._memory import worker_pids

MIB = 1 << 20
FRAME = (3, 50, 50)
FRAME_COUNT = 800
WORKER_COUNT = 2
LOOK_S = 0.01
"""From one look at the memory to the next."""
WAITING = "elements of a stream that wait, and what steps hold that see them in order"


@dataclass(frozen=True)
class Plan:
    """A plan, and its memory as known before it runs."""

    make: Callable[[Path], ps.Dataset]
    limit_mib: float
    """The limit of the run, at most a tenth above the need. Worker processes come on top."""
    largest: str = "the ring after"
    """The largest item, which the refusal names."""
    cure: str = "a smaller prefetch"
    own_mib: float = 0
    """Temporary memory of the user's function, or of the image decoder."""
    more_mib: float = 0
    """More memory on worker processes, which threads share."""
    process_count: int = WORKER_COUNT
    """Worker processes: the requested ones and one that reads a stream, or that one alone."""
    gives_way: bool = False
    """Whether the plan keeps less under a lower limit, and is refused only far below the projection."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the loader."""


def frames(folder: Path) -> ps.Dataset:
    """60 kB each, 48 MB in all."""
    return ps.from_npy(folder / "frames.npy")


def pairs(folder: Path) -> ps.Dataset:
    return ps.zip((frames(folder)[:-1], frames(folder)[1:]))


def doubled(array: Any) -> Any:
    return array * 2


def squandered(frame: Any) -> Any:
    """Takes 8 MiB on its way."""
    waste = np.empty(8 * MIB, np.uint8)
    waste[:: os.sysconf("SC_PAGE_SIZE")] = 1
    return frame


def generated(count: int) -> Iterator[Any]:
    for number in range(count):
        yield np.full(FRAME, number, np.float64)


def stream() -> ps.Dataset:
    return ps.from_generator(generated, FRAME_COUNT, element_spec=ps.ArraySpec(FRAME, "float64"))


def ragged(index: Any) -> Any:
    """From 8 bytes to 64 KiB."""
    return np.full((1 + int(index) * 7919 % 8192,), index, np.float64)


def ragged_rows() -> ps.Dataset:
    return ps.range(FRAME_COUNT).map(ragged, element_spec=ps.ArraySpec((None,), "float64"))


def ragged_stream() -> ps.Dataset:
    rows = lambda: (ragged(number) for number in range(FRAME_COUNT))  # noqa: E731
    return ps.from_generator(rows, element_spec=ps.ArraySpec((None,), "float64"))


def table(folder: Path, name: str) -> ps.Dataset:
    """A number and a list of 2 to 20 in each row, 32 MiB decoded: in one row group, or in 8."""
    return ps.from_parquet(folder / f"{name}.parquet")


def padded(rows: ps.Dataset, size: int) -> ps.Dataset:
    return rows.padded_batch(size, padded_shapes={"x": (), "l": (20,)})


def from_table() -> ps.Dataset:
    table = np.ones((64, MIB // 8), np.float64)  # 64 MiB, in the function's closure
    return ps.range(FRAME_COUNT).map(lambda index: table[index % 64, :30_000]).batch(32)


def pictures(folder: Path) -> ps.Dataset:
    return ps.image_dataset_from_directory(folder / "pictures", image_size=(200, 200), seed=1, verbose=False)


PLANS = {
    "shuffled frames": Plan(lambda folder: frames(folder).shuffle(seed=1).batch(128), 49),
    "pairs": Plan(lambda folder: pairs(folder).shuffle(seed=1).batch(64), 49),
    "windows": Plan(lambda folder: frames(folder).windows(8).shuffle(seed=1).batch(16), 49),
    "cast": Plan(lambda folder: frames(folder).shuffle(seed=1).cast(np.float32).batch(256), 50),
    "cast of batches": Plan(lambda folder: frames(folder).batch(128).cast(np.float32), 38),
    "map of elements": Plan(lambda folder: frames(folder)[:512].map(squandered).batch(128), 47, own_mib=8.1),
    "map of batches": Plan(lambda folder: frames(folder).batch(128).map(doubled), 60, own_mib=7.4),
    "unbatch and batch": Plan(
        lambda folder: frames(folder).batch(128).map(doubled).unbatch().batch(100), 65, own_mib=7.4
    ),
    "random_map, replacing": Plan(
        lambda folder: pairs(folder).random_map(lambda pair, rng: (pair[0] + rng.random(), pair[1])).batch(64),
        48,
        options={"on_error": "replace"},
    ),
    "map, skipping": Plan(
        lambda folder: pairs(folder).map(lambda pair: (pair[0], pair[1] + 1)).batch(64),
        55,
        options={"on_error": "skip"},
    ),
    "shard of mapped batches": Plan(
        lambda folder: frames(folder).batch(128).map(doubled),
        53,
        "scratch memory of the workers",
        "Use fewer workers",
        own_mib=7.4,
        options={"shard": (0, 2)},
    ),
    "interleave": Plan(lambda folder: ps.interleave([frames(folder), frames(folder).map(doubled)]).batch(128), 47),
    "unlike batches, mapped": Plan(
        lambda folder: ps.concatenate([frames(folder).batch(128), frames(folder).batch(96)]).map(doubled),
        71,
        own_mib=7.4,
    ),
    "cache in memory": Plan(
        lambda folder: frames(folder).map(doubled).cache().shuffle(seed=1).batch(64),
        76,
        "a cache in memory",
        "cache(path)",
    ),
    "cache in memory with a limit": Plan(
        lambda folder: frames(folder).map(doubled).cache(limit=30 * MIB).shuffle(seed=1).batch(64),
        60,
        "a cache in memory",
        "cache(path)",
    ),
    "cache on disk": Plan(
        lambda folder: frames(folder).map(doubled).cache(folder / f"cache {os.getpid()}").shuffle(seed=1).batch(128), 51
    ),
    "padded_batch": Plan(lambda folder: ragged_rows().padded_batch(64, padded_shapes=(8192,)), 42),
    "padded_batch of a stream": Plan(
        lambda folder: ragged_stream().padded_batch(64, padded_shapes=(8192,)), 58, more_mib=64, process_count=3
    ),
    "generator": Plan(lambda folder: stream().batch(128), 46, process_count=1),
    "generator and map": Plan(lambda folder: stream().map(doubled).batch(128), 67, process_count=3),
    "generator and filter": Plan(
        lambda folder: stream().filter(lambda frame: frame[0, 0, 0] % 3 == 0).batch(128), 66, process_count=3
    ),
    "generator and a window": Plan(
        lambda folder: stream().shuffle(window=500).map(doubled).batch(32),
        54,
        WAITING,
        "a smaller window",
        process_count=3,
    ),
    "generator of batches": Plan(
        lambda folder: stream().batch(64).shuffle(window=4).unbatch().batch(100), 66, process_count=1
    ),
    "images": Plan(pictures, 92, own_mib=2.2),
    "a row group": Plan(
        lambda folder: padded(table(folder, "one").shuffle(seed=1), 8000),
        76,
        "what sources keep in memory",
        "smaller row groups",
        more_mib=33,
    ),
    "row groups": Plan(
        lambda folder: padded(table(folder, "many").shuffle(seed=1, window=50_000), 8000),
        48,
        "what sources keep in memory",
        "smaller row groups",
        more_mib=24,
        gives_way=True,
    ),
    "a large array": Plan(lambda folder: from_table(), 47, more_mib=64),
}


class Watch:
    """The most that this process and its workers ever had more than this process had at first.

    Private memory, and penstock's memory files that they have open, mapped or not, each once. No pages of other files.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._first_nbytes = taken_nbytes()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on_looking, daemon=True)
        self._thread.start()

    def look(self) -> None:
        self.nbytes = max(self.nbytes, taken_nbytes() - self._first_nbytes)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _go_on_looking(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.look()


def taken_nbytes() -> int:
    private, files = 0, {}
    for process in [os.getpid(), *worker_pids()]:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            private += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
            for entry in os.scandir(f"/proc/{process}/fd"):
                if os.readlink(entry.path).startswith("/memfd:penstock"):
                    status = os.stat(entry.path)
                    files[status.st_ino] = status.st_blocks * 512
        except OSError:
            continue  # the process has ended, or the file was closed
    return private + sum(files.values())


def measure(name: str, executor: str, folder: Path) -> dict[str, Any]:
    plan, workers = PLANS[name], "auto" if executor == "inline" else WORKER_COUNT
    options = {"executor": executor, "workers": workers, "quarantine": folder / "quarantine.jsonl", **plan.options}
    dataset = plan.make(folder)
    watch = Watch()
    limit = round((plan.limit_mib + (plan.more_mib if executor == "processes" else 0)) * MIB)
    limit += overhead_nbytes(plan.process_count if executor == "processes" else 0)
    with dataset.loader(**options, memory_limit=limit) as loader:
        for _ in range(2 if "cache" in name else 1):
            kept: list[Any] = []  # some at first, or the slot that is warm would be used again and again
            for batch in loader:
                kept = [*kept, batch] if len(kept) < 3 else []
            watch.look()
            del batch, kept
        report = loader.report()
        projected = loader.projected_nbytes
    watch.close()
    refusal = ""
    try:
        refused = MIB if plan.gives_way else projected - 1
        dataset.loader(**options, memory_limit=refused + report.overhead_nbytes)
    except ps.MemoryLimitError as error:
        refusal = str(error)
    return {
        "peak": watch.nbytes,
        "reported": report.peak_nbytes,
        "projected": projected,
        "overhead": report.overhead_nbytes,
        "limit": limit,
        "copied": report.copied,
        "refusal": refusal,
    }


def main(folder: str) -> None:
    for line in sys.stdin:
        name, executor = json.loads(line)
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(120, exit=True)
            if name == "images":
                import penstock.image  # noqa: F401, an import is nothing of the loader's
            print(json.dumps(measure(name, executor, Path(folder))), flush=True)
            return
        print(json.dumps({"status": os.waitpid(child, 0)[1]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
