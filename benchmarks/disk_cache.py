"""What does the cache on disk of remote files give: speed of a cached epoch, and hits where it is too small?

Questions, for 100 kB images in tar files behind 30 ms of latency:

- Speed: an epoch that is in the cache, beside the same epoch from tar files on the same disk; shuffled in a window of
  2,048, and as a whole. Both are in the page cache, so the disk does not count.
- Filling: the first epoch with the cache, beside one without.
- Hits: three epochs, shuffled as a whole, with room for half of the data. Hits of the run itself, beside the optimum
  (Belady's rule, with the choice not to keep) and LRU for the same order.

Method: `python benchmarks/disk_cache.py`. The server (`_object_server.py`) is a process of its own. Each case runs in a
fresh process, cases in turn, `--rounds` times. Of eight epochs the first does not
count, and the best does. Results are images a second, and ratios with their spread.

Machine and result (two cores of a virtual machine, 2026-11-25, 100 shards, 3 rounds):

    cached beside local, window: 0.65 (0.53 to 0.91); global: 1.04 (0.80 to 1.06); wanted 0.9
    filling beside no cache: 0.50 (0.46 to 0.65)
    hits in three epochs of 5,000, room for 2,500: 4,944; optimum 5,000; LRU 1,560

A cached image costs an `open` and a `close` more than one in a local tar file, and some 15 us of Python for its block.
With eight threads, as before, both orders had 0.6. Filling writes a file of 100 kB for each image, which takes 150 us
of a core that the server shares here.

Not shown: a disk that is slower than the page cache; several processes.
"""

import argparse
import gc
import heapq
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from _object_server import Behaviour, Store, serving
from object_store import BATCH, BUCKET, IMAGES_A_SHARD, NBYTES, fill

WINDOWS = {"window": 2048, "global": None}
FAR = 1 << 60


def _length(element: Any) -> int:
    return len(element["jpg"])


def dataset(kind: str, order: str, folder: str, limit: int) -> Any:
    import penstock as ps

    if kind == "local":
        ds = ps.from_tar(f"{folder}/local/*.tar", fields=["jpg"])
    else:
        cache = None if kind == "plain" else ps.DiskCache(f"{folder}/cache", limit)
        ds = ps.from_tar(f"s3://{BUCKET}/tar/*.tar", fields=["jpg"], cache=cache)
    return ds.shuffle(seed=1, window=WINDOWS[order]).map(_length).batch(BATCH)


def run(kind: str, order: str, folder: str, limit: int, epochs: int) -> None:
    """Prints the images a second of each epoch, and the reads that the cache answered."""
    from penstock.files._blocks import BlockReader

    speeds = []
    # Threads read a part of the epoch after the last too.
    executor = "threads" if limit == FAR else "inline"
    with dataset(kind, order, folder, limit).loader(executor) as loader:
        for _ in range(epochs):
            began_s, count = time.perf_counter(), 0
            for batch in loader:
                assert int(batch.sum()) == NBYTES * len(batch)
                count += len(batch)
            speeds.append(count / (time.perf_counter() - began_s))
        speeds.append(sum(each.hit_count for each in gc.get_objects() if isinstance(each, BlockReader)))
    print(json.dumps(speeds), flush=True)


def write_shard(path: Path) -> None:
    image = random.Random(0).randbytes(NBYTES)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(IMAGES_A_SHARD):
            member = tarfile.TarInfo(f"{number:06}.jpg")
            member.size = NBYTES
            tar.addfile(member, io.BytesIO(image))


def speeds(*case: Any) -> list[float]:
    command = [sys.executable, __file__, "--run", *map(str, case)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found  # the speed of each epoch, then the hits


def optimum(trace: list[int], room: int) -> int:
    """Hits of Belady's rule."""
    next_of, last = [FAR] * len(trace), dict[int, int]()
    for at in range(len(trace) - 1, -1, -1):
        next_of[at] = last.get(trace[at], FAR)
        last[trace[at]] = at
    held, heap, hits = dict[int, int](), list[tuple[int, int]](), 0
    for block, after in zip(trace, next_of, strict=True):
        hits += block in held
        held[block] = after
        heapq.heappush(heap, (-after, block))
        while len(held) > room:
            after, victim = heapq.heappop(heap)
            if held.get(victim) == -after:
                del held[victim]
    return hits


def recent(trace: list[int], room: int) -> int:
    """Hits of LRU."""
    held, hits = OrderedDict[int, None](), 0
    for block in trace:
        hits += block in held
        held[block] = None
        held.move_to_end(block)
        if len(held) > room:
            held.popitem(last=False)
    return hits


def hits(store: Store, folder: str, count: int) -> None:
    import penstock as ps

    limit = count // 2 * 102_400  # what an image takes on the disk
    store.set(Behaviour(latency_s=0.002))
    found = speeds("cached", "global", folder, limit, 3)[-1]
    trace = [int(i) for ds in [ps.range(count).shuffle(seed=1).repeat(3)] for i in ds]
    room = count // 2
    best, least = optimum(trace, room), recent(trace, room)
    print(f"hits in three epochs of {count:,}, room for {room:,}: {found:,.0f}; optimum {best:,}; LRU {least:,}")
    print(f"beside the optimum {found / best:.3f}, beside LRU {found / least:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["speed", "hits"])
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        kind, order, folder, limit, epochs = given.run
        run(kind, order, folder, int(limit), int(epochs))
        return
    with serving(Behaviour(latency_s=0.0)) as store, tempfile.TemporaryDirectory() as folder:
        os.environ.update({**store.environment, "XDG_CACHE_HOME": f"{folder}/index"})
        local = Path(folder, "local")
        local.mkdir()
        fill(store, given.shards, [], Path(folder), {})
        for number in range(given.shards):
            write_shard(local / f"{number:05}.tar")
        count = given.shards * IMAGES_A_SHARD
        speeds("plain", "global", folder, FAR, 1)  # makes the index
        speeds("local", "global", folder, FAR, 1)
        if given.only != "hits":
            ratios: dict[str, list[float]] = {}
            for round_ in range(given.rounds):
                store.set(Behaviour())
                case = f"{folder}/{round_}"
                os.makedirs(case)
                (Path(case) / "local").symlink_to(local)
                plain = speeds("plain", "window", case, FAR, 1)[0]
                filled, *_ = speeds("cached", "window", case, FAR, 1)
                ratios.setdefault("filling beside no cache", []).append(filled / plain)
                os.sync()  # the disk is written in the background otherwise
                for order in WINDOWS:
                    kept, near = (max(speeds(kind, order, case, FAR, 8)[1:-1]) for kind in ("cached", "local"))
                    print(f"{order}: cached {kept:,.0f}/s, local {near:,.0f}/s", flush=True)
                    ratios.setdefault(f"{order}: cached beside local", []).append(kept / near)
                print(f"first epoch: {filled:,.0f}/s with the cache, {plain:,.0f}/s without", flush=True)
            for name, values in ratios.items():
                print(f"{name}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        if given.only != "speed":
            hits(store, folder, count)


if __name__ == "__main__":
    main()
