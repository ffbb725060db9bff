"""Contenders of `resize.py` with files of their own: Energon, LanceDB, LitData, MosaicML Streaming."""

import contextlib
import copy
import io
import math
import multiprocessing
import os
import subprocess
import sys
import tarfile
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, bench_dir
from _resize_compare import Unit
from _resize_contenders import recorded
from _resize_jobs import ELEMENT_COUNT, SEED, Phase
from _resize_runs import Contender, NotOfferedError, Ranks
from _resize_torch import RankGenerators, as_arrays, divided, ranks_of

_LANCE_SPLITS = 48


def _numbers(batch: Any) -> list[int]:
    found: list[int] = batch.column("number").to_pylist()
    return found


def _lancedb(job: str, phase: Phase, state: Any) -> Ranks:
    """Its guide on resuming: StreamingDataset with many splits, StreamingDataLoader, and `merge_state_dicts`.

    A state is taken where every worker has given as many rows of its splits, so a step is a batch of each worker.
    """
    import lancedb
    import pyarrow as pa
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    db = lancedb.connect(str(bench_dir() / "resize-lance"))
    if "numbers" not in db.list_tables().tables:
        db.create_table("numbers", pa.table({"number": np.arange(ELEMENT_COUNT)}))
    table = db.open_table("numbers")
    multiprocessing.set_forkserver_preload(["lancedb.streaming", "_resize_formats"])  # its workers may not be forked
    datasets, loaders = [], []
    parts = math.lcm(phase.micro, max(phase.workers, 1))
    merged = StreamingDataset.merge_state_dicts(state) if state is not None else None
    for rank in range(phase.ranks):
        dataset = StreamingDataset(
            table,
            num_splits=_LANCE_SPLITS,
            shuffle_seed=SEED,
            rank=rank,
            world_size=phase.ranks,
            transform=_numbers,
            read_batch_size=32,
            io_queue_depth=1,
        )
        if merged is not None:
            dataset.load_state_dict(merged)
        datasets.append(dataset)
        options: dict[str, Any] = {"multiprocessing_context": "forkserver"} if phase.workers else {}
        loader = StreamingDataLoader(
            dataset,
            batch_size=phase.batch // (phase.ranks * parts),
            num_workers=phase.workers,
            collate_fn=_drawn,
            **options,
        )
        loaders.append(loader)
    return ranks_of(
        phase,
        RankGenerators(phase.ranks),
        loaders,
        lambda: [each.state_dict() for each in datasets],
        recorded(job),
        parts,
    )


@contextlib.contextmanager
def _environment(**values: object) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _same(number: int) -> int:
    return number


def _drawn(numbers: list[int]) -> tuple[Array, Array]:
    import torch

    return as_arrays([(int(number), float(torch.rand((), dtype=torch.float64))) for number in numbers])


def _litdata(job: str, phase: Phase, state: Any) -> Ranks:
    """Its guide on elastic resume: StreamingDataset, and a state of StreamingDataLoader for all ranks."""
    import litdata

    folder = bench_dir() / "resize-litdata"
    if not (folder / "index.json").exists():
        litdata.optimize(_same, list(range(ELEMENT_COUNT)), str(folder), chunk_size=1024, num_workers=1)
    generators = RankGenerators(phase.ranks)
    loaders = []
    for rank in range(phase.ranks):
        with _environment(WORLD_SIZE=phase.ranks, GLOBAL_RANK=rank, NNODES=1):
            dataset = litdata.StreamingDataset(str(folder), shuffle=True, drop_last=True, seed=SEED)
            loader = litdata.StreamingDataLoader(
                dataset,
                batch_size=divided(phase),
                num_workers=phase.workers,
                collate_fn=_drawn,
                drop_last=True,
            )
            if state is not None:
                loader.load_state_dict(copy.deepcopy(state))
            loaders.append(loader)

    def started(rank: int) -> Iterator[Any]:
        with _environment(WORLD_SIZE=phase.ranks, GLOBAL_RANK=rank, NNODES=1):
            batches = iter(loaders[rank])
        while True:
            with _environment(WORLD_SIZE=phase.ranks, GLOBAL_RANK=rank, NNODES=1):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    streams = [started(rank) for rank in range(phase.ranks)]
    return ranks_of(phase, generators, streams, loaders[0].state_dict, recorded(job), phase.micro)


_rank = threading.local()


def _numbers_of(elements: list[dict[str, Any]]) -> tuple[Array]:
    return (np.array([int(each["number"]) for each in elements]),)


def _drawn_of(elements: list[dict[str, Any]]) -> tuple[Array, Array]:
    return _drawn(_numbers_of(elements)[0].tolist())


def _streaming(job: str, phase: Phase, state: Any) -> Ranks:
    """Its guide on fast resumption: StreamingDataset and StreamingDataLoader, the state of rank 0 on all ranks.

    The ranks are those of one node. They wait for each other when an epoch begins, so each has a thread.
    """
    import streaming.base.dataset
    import streaming.base.shared.prefix
    import torch
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
    from streaming.base import distributed
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    generators = RankGenerators(phase.ranks)
    folder = bench_dir() / "resize-mds"
    if not (folder / "index.json").exists():
        with MDSWriter(out=str(folder), columns={"number": "int64"}) as out:
            for number in range(ELEMENT_COUNT):
                out.write({"number": np.int64(number)})
    distributed.get_rank = lambda: _rank.value
    distributed.get_world_size = distributed.get_local_world_size = lambda: phase.ranks
    together = threading.Barrier(phase.ranks)
    group = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        barrier=together.wait,
        get_world_size=lambda: phase.ranks,
    )
    streaming.base.dataset.dist = streaming.base.shared.prefix.dist = group
    streaming.base.dataset.maybe_init_dist = lambda: False
    threads = [
        ThreadPoolExecutor(1, initializer=lambda rank=rank: setattr(_rank, "value", rank))
        for rank in range(phase.ranks)
    ]

    def opened() -> Any:
        dataset = StreamingDataset(
            local=str(folder), batch_size=divided(phase), shuffle=True, shuffle_seed=SEED, num_canonical_nodes=1
        )
        loader = StreamingDataLoader(
            dataset,
            batch_size=divided(phase),
            num_workers=phase.workers,
            collate_fn=_drawn_of if phase.workers else _numbers_of,
            generator=torch.Generator().manual_seed(SEED + _rank.value),
            drop_last=True,
        )
        if state is not None:
            loader.load_state_dict(state)
        return loader

    opening = [thread.submit(opened) for thread in threads]
    loaders = [each.result() for each in opening]
    waiting = [
        thread.submit(lambda each=each: _first(iter(each))) for thread, each in zip(threads, loaders, strict=True)
    ]
    firsts = [each.result() for each in waiting]

    def part(rank: int) -> list[Any]:
        first, batches = firsts[rank]
        found = []
        for _ in range(phase.micro):
            if first is not None:
                found.append(first)
                first = None
                firsts[rank] = None, batches
            else:
                found.append(threads[rank].submit(next, batches).result())
        # Threads share torch's generator, so that ranks without workers draw here, in turn.
        return (
            found
            if phase.workers
            else [generators.within(rank, lambda each=each: _drawn(each[0].tolist())) for each in found]
        )

    return Ranks(
        [lambda rank=rank: part(rank) for rank in range(phase.ranks)],
        recorded(job),
        lambda: threads[0].submit(loaders[0].state_dict).result(),
    )


def _first(batches: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    return next(batches), batches


def _energon_folder() -> str:
    """Returns a folder of tar files with the numbers as texts, made and prepared once."""
    folder = bench_dir() / "resize-energon"
    if not (folder / ".nv-meta" / "split.yaml").exists():
        folder.mkdir(exist_ok=True)
        for first in range(0, ELEMENT_COUNT, 4096):
            with tarfile.open(folder / f"{first:06}.tar", "w") as tar:
                for number in range(first, min(first + 4096, ELEMENT_COUNT)):
                    content = str(number).encode()
                    member = tarfile.TarInfo(f"{number:06}.txt")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        tool = Path(sys.executable).with_name("energon")
        options = ["--non-interactive", "--split-ratio=1,0,0", "--sample-type=TextSample", "--num-workers=1"]
        subprocess.run([tool, "prepare", folder, *options, '--field-map={"text": "txt"}'], check=True)
    return str(folder)


def _energon(job: str, phase: Phase, state: Any) -> Ranks:
    """Its guide on saving and restoring: a savable loader, a state of each rank, random numbers in a stateless step."""
    import torch
    from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc]
        @stateless(restore_seeds=True)
        def encode_sample(self, sample: Any) -> Any:
            sample.text = f"{sample.text} {float(torch.rand((), dtype=torch.float64))!r}"
            return sample

    if state is not None and (len(state["states"]), state["workers"]) != (phase.ranks, phase.workers):
        raise NotOfferedError("the product of ranks and workers, and the batch, have to stay")
    loaders = []
    for rank in range(phase.ranks):
        dataset = get_train_dataset(
            _energon_folder(),
            batch_size=divided(phase),
            shuffle_buffer_size=1000,
            max_samples_per_sequence=100,
            worker_config=WorkerConfig(rank=rank, world_size=phase.ranks, num_workers=phase.workers),
            task_encoder=Encoder(),
        )
        loader = get_savable_loader(dataset)
        if state is not None:
            loader.restore_state_rank(state["states"][rank])
        loaders.append(loader)

    def record(batch: Any) -> list[Unit]:
        pairs = [text.split() for text in batch.text]
        return recorded(job)(as_arrays([(int(number), float(draw)) for number, draw in pairs]))

    def saved() -> Any:
        return {"workers": phase.workers, "states": [each.save_state_rank() for each in loaders]}

    return ranks_of(phase, RankGenerators(phase.ranks), loaders, saved, record, phase.micro)


FORMAT_CONTENDERS = (
    Contender(
        "Energon",
        "megatron-energon",
        ("torch", "megatron.energon"),
        _energon,
        ("shuffled",),
        "packs and blends, in the same way: the product of ranks and workers has to stay; no buckets",
    ),
    Contender(
        "LanceDB",
        "lancedb",
        ("torch", "lancedb.streaming"),
        _lancedb,
        ("shuffled",),
        "packs end to end, without a mixture; no buckets",
    ),
    Contender("LitData", "litdata", ("torch", "litdata"), _litdata, ("shuffled",), "no packing, no buckets"),
    Contender(
        "MosaicML Streaming",
        "mosaicml-streaming",
        ("torch", "streaming"),
        _streaming,
        ("shuffled",),
        "no packing, no buckets",
    ),
)
