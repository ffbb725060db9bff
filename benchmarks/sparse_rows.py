"""How fast do dense batches come from a sparse matrix of cells, and how mixed are they?

Question: 50,000 cells of 62,710 genes with 1,460 values each, as AnnData writes them (`.h5ad`, 584 MB, not compressed).
A batch is 64 cells, dense float32, (64, 62710). Cells stand in the file by plate, 14 plates; the entropy of the plates
of a batch says how mixed it is. 64 cells drawn at random have 3.66 bits on average.

Method: `python benchmarks/sparse_rows.py [--cold]`, in an environment with anndata, scDataset, annbatch, zarrs and
torch. Each contender runs in a fresh process, in turn, with the same consumer, which sums every byte. An epoch is timed
from its `iter` to its last batch, or until 20 s have passed; the library and the file are open before. Warm, all bytes
are in the page cache. Cold, none is.

Contenders, as their documentation advises: `annloader` is AnnData's own loader over the backed file, shuffled;
`scdataset` reads blocks of 16 neighbours, 256 batches at a time, and shuffles those; `scdataset_full` reads single
cells; `annbatch` reads its own collection, which `DatasetCollection.add_adatas` shuffled once into compressed shards of
Zarr (`conversion s`, its time), in runs of 32 neighbours, 256 at a time, by zarrs; `annbatch_full` reads single cells
of that. They yield sparse rows, which `toarray` makes dense. `cells/s with conversion` is that of one epoch with the
conversion before it. `penstock` reads the `.h5ad` in place, shuffled fully.

RESULT

Not shown: a device that makes rows dense, for which sparse batches travel; compressed files; data larger than memory;
several files.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _harness import Array, Numbers, Options, Target, bench_dir, ratio, read_every_byte, run
from _memory import PeakMemory, drop_pages, warm_pages

_CELLS, _GENES, _VALUES, _PLATES = 50_000, 62_710, 1_460, 14
_BATCH_SIZE = 64
_MOST_S = 20.0

Batches = Iterator[tuple[Array, Array]]
"""Dense rows, and the plate of each."""


def _h5ad() -> Path:
    path = bench_dir() / "cells.h5ad"
    if path.exists():
        return path
    import anndata
    import pandas as pd
    import scipy.sparse

    pd.set_option("future.infer_string", False)  # AnnData refuses to write the new text of pandas 3
    rng = np.random.default_rng(0)
    width = _GENES // _VALUES  # each value is in a part of its own of this width
    columns = rng.integers(0, width, (_CELLS, _VALUES), dtype=np.int32) + np.arange(_VALUES, dtype=np.int32) * width
    values = rng.geometric(0.3, _CELLS * _VALUES).astype(np.float32)
    starts = np.arange(_CELLS + 1, dtype=np.int32) * _VALUES
    matrix = scipy.sparse.csr_matrix((values, columns.ravel(), starts), shape=(_CELLS, _GENES))
    plates = pd.Categorical.from_codes(np.arange(_CELLS) * _PLATES // _CELLS, [f"plate {i}" for i in range(_PLATES)])
    obs = pd.DataFrame({"plate": plates}, index=[f"cell {i}" for i in range(_CELLS)])
    part = path.with_suffix(".part")
    anndata.AnnData(matrix, obs=obs).write_h5ad(part)
    part.rename(path)
    return path


def _collection() -> tuple[Path, float]:
    """The collection of annbatch of the same cells, and the seconds that it took to make it."""
    path, note = bench_dir() / "cells.annbatch.zarr", bench_dir() / "cells.annbatch.json"
    if not note.exists():
        source = _h5ad()
        warm_pages(source)
        shutil.rmtree(path, ignore_errors=True)
        import zarr
        from annbatch import DatasetCollection

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        began_s = time.perf_counter()
        DatasetCollection(path).add_adatas([source], shuffle=True, rng=np.random.default_rng(0))
        note.write_text(json.dumps(time.perf_counter() - began_s))
    return path, float(json.loads(note.read_text()))


def penstock() -> Callable[[], Batches]:
    import penstock as ps

    loader = ps.from_h5ad(_h5ad(), ["plate"]).shuffle(seed=1).batch(_BATCH_SIZE).loader(executor="threads", workers=2)
    return lambda: ((batch["X"], batch["plate"]) for batch in loader)


def annloader() -> Callable[[], Batches]:
    import anndata
    from anndata.experimental import AnnLoader

    loader = AnnLoader(anndata.read_h5ad(_h5ad(), backed="r"), batch_size=_BATCH_SIZE, shuffle=True)
    return lambda: ((batch.X.numpy(), np.asarray(batch.obs["plate"])) for batch in loader)


def scdataset(block_size: int, fetch_factor: int) -> Callable[[], Callable[[], Batches]]:
    def contender() -> Callable[[], Batches]:
        import anndata
        from scdataset import BlockShuffling, scDataset
        from torch.utils.data import DataLoader

        cells = anndata.read_h5ad(_h5ad(), backed="r")
        strategy = BlockShuffling(block_size=block_size)
        dataset = scDataset(
            cells,
            strategy,
            batch_size=_BATCH_SIZE,
            fetch_factor=fetch_factor,
            fetch_transform=lambda part: part.to_memory(),
            batch_transform=lambda part: (part.X.toarray(), part.obs["plate"].cat.codes.to_numpy()),
        )
        return lambda: iter(DataLoader(dataset, batch_size=None))

    return contender


def annbatch(chunk_size: int, chunk_count: int) -> Callable[[], Callable[[], Batches]]:
    def contender() -> Callable[[], Batches]:
        import anndata
        import zarr
        from annbatch import DatasetCollection, Loader

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        collection = DatasetCollection(_collection()[0], mode="r")

        def load(group: zarr.Group) -> anndata.AnnData:
            obs = anndata.io.read_elem(group["obs"])[["plate"]]
            return anndata.AnnData(X=anndata.io.sparse_dataset(group["X"]), obs=obs)

        loader = Loader(
            batch_size=_BATCH_SIZE,
            chunk_size=chunk_size,
            preload_nchunks=chunk_count,
            shuffle=True,
            preload_to_gpu=False,
        ).use_collection(collection, load_adata=load)
        return lambda: ((batch["X"].toarray(), batch["obs"]["plate"].cat.codes.to_numpy()) for batch in loader)

    return contender


def _entropy(labels: Array) -> float:
    _, counts = np.unique(labels, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _case(contender: Callable[[], Callable[[], Batches]], *, converts: bool = False) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        files = [_h5ad()]
        conversion_s = 0.0
        if converts:
            folder, conversion_s = _collection()
            files = [path for path in folder.rglob("*") if path.is_file()]
        epoch = contender()
        for path in files:
            (drop_pages if options.cold or not path.stat().st_size else warm_pages)(path)
        with PeakMemory() as memory:
            entropies, count, first_s, began_s = [], 0, 0.0, time.perf_counter()
            for rows, plates in epoch():
                first_s = first_s or time.perf_counter() - began_s
                assert rows.shape[1] == _GENES
                assert rows.dtype == np.float32
                read_every_byte([rows])
                entropies.append(_entropy(plates))
                count += len(rows)
                if time.perf_counter() - began_s > (_MOST_S / 5 if options.quick else _MOST_S):
                    break
            elapsed_s = time.perf_counter() - began_s
        numbers = {
            "cells/s": count / elapsed_s,
            "entropy bits": float(np.mean(entropies)),
            "first batch ms": 1e3 * first_s,
        }
        numbers["cells/s with conversion"] = _CELLS / (conversion_s + _CELLS * elapsed_s / count)
        if converts:
            numbers["conversion s"] = conversion_s
        return numbers | memory.peaks_mib()

    return measure


_CASES = {
    "penstock": _case(penstock),
    "annloader": _case(annloader),
    "scdataset": _case(scdataset(16, 256)),
    "scdataset_full": _case(scdataset(1, 256)),
    "annbatch": _case(annbatch(32, 256), converts=True),
    "annbatch_full": _case(annbatch(1, 8192), converts=True),
}


def _targets(options: Options) -> list[Target]:
    full = ["annloader", "scdataset_full", "annbatch_full"]
    return [
        Target("penstock / best at full shuffle", ratio("penstock", full, "cells/s"), at_least=1.0),
        Target("penstock / best of all", ratio("penstock", [*full, "scdataset", "annbatch"], "cells/s"), at_least=2.0),
        Target(
            "the same, with conversion",
            ratio("penstock", [*full, "scdataset", "annbatch"], "cells/s with conversion"),
            at_least=2.0,
        ),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3)
