"""Cells of a sparse matrix in batches of 64: how many a second, and how mixed are they?

Question: 50,000 cells of 62,710 genes, 1,460 counts each, lie in a `.h5ad` as AnnData writes it, sorted by a label. How
fast do batches come, cold and warm, and what is the entropy of the labels within one?

Method: `python benchmarks/sparse_rows.py`; with `--cold` the files are dropped from the page cache before a case. The
consumer reads every byte. The rate is that of the batches after the first second (cold: of all batches of the first
epoch, at most eight seconds), without the start of workers.

- `dense_*`: batches `(64, 62710)` float32; `csr_*`: the three vectors of a matrix in compressed rows.
- `*_penstock`: `from_h5ad`, shuffled over all cells.
- `dense_annloader`: `anndata.experimental.AnnLoader` over the backed file.
- `*_scdataset`: `BlockShuffling(16)`, `fetch_factor=16`, two workers, `prefetch_factor=17`, as its documentation has
  it. Rows get their zeros once they are a batch; with `dense_scdataset_mindex`, by its own transform `adata_to_mindex`,
  when their block was read. `*_scdataset_full`: blocks of one cell, which is a shuffle of all.
- `*_annbatch`: its collection by `zarrs`, `chunk_size=32`, `preload_nchunks=256`, as its documentation has it. The
  collection was shuffled when it was written; `conversion s` is how long that took.

`entropy` is that of the labels in a batch, in bits, mean over batches. There are 50 labels; batches drawn of all cells
have 5.

The contenders need Python 3.12: `pip install anndata scdataset "annbatch[zarrs]" h5py torch`, in an environment apart.

Machine: two cores of an AMD EPYC, Linux 6.18, Python 3.12.1, NumPy 2.5.5, AnnData 0.13.4, scDataset 0.3, annbatch
0.3.1, 2026-11-26, three rounds. The machine was busy with other work throughout, so compare cases of one column, and
mind the ranges.

Result, cells a second, median and range:

    case                    warm                       cold                       entropy
    dense_penstock          31,811 (24,495 to 52,155)  22,179 (9,271 to 26,607)   5
    dense_annbatch          13,146 (8,460 to 13,904)   14,062 (9,185 to 18,324)   5     after 24 s of conversion
    dense_annloader         2,298 (1,386 to 3,399)     2,078 (1,782 to 2,961)     5
    dense_scdataset         1,252 (1,053 to 2,129)     2,182 (1,389 to 2,196)     4.6
    dense_scdataset_full    2,036 (1,765 to 2,712)     1,684 (1,124 to 1,933)     5
    dense_scdataset_mindex  2,639 (1,861 to 2,644)     1,315 (1,303 to 2,955)     4.6
    csr_penstock            49,182 (18,012 to 67,527)  21,613 (13,930 to 29,338)  5
    csr_annbatch            29,376 (19,962 to 34,183)  32,663 (27,905 to 39,245)  5     after 24 s of conversion
    csr_scdataset           12,621 (10,215 to 16,127)  9,994 (9,389 to 12,065)    4.6
    csr_scdataset_full      10,946 (9,115 to 13,155)   9,763 (8,449 to 11,910)    5

    ratio to                           warm                 cold
    dense: best other full shuffle     9.4 (9.0 to 26)      9.0 (5.2 to 11)
    dense: best of all others          3.8 (1.8 to 4.0)     1.5 (1.0 to 1.6)
    csr: best other full shuffle       3.7 (1.7 to 7.4)     1.8 (1.7 to 3.0)
    csr: best of all others            2.3 (0.53 to 2.5)    0.55 (0.43 to 1.1)

So this one is first in three of the four, and of those that read the file as it is, in all. From a cold disk, CSR
batches of annbatch come faster: it writes the cells anew, in shuffled order and compressed, and reads neighbours, where
a shuffle of all rows of the file as it is makes two reads for each cell.
"""

import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Numbers, Options, Target, bench_dir, ratio, read_every_byte, run, value

CELLS, GENES, COUNTS, LABELS, BATCH = 50_000, 62_710, 1_460, 50, 64
_Batch = tuple[list[Any], Any]
"""The arrays of a batch, and its labels."""


@functools.cache
def h5ad() -> Path:
    """The file of AnnData, written once."""
    path = bench_dir() / "cells.h5ad"
    if path.exists():
        return path
    import anndata
    import pandas as pd
    import scipy.sparse

    rng = np.random.default_rng(0)
    steps = rng.integers(1, 2 * GENES // COUNTS - 1, (CELLS, COUNTS), np.int32)
    columns = np.minimum(np.cumsum(steps, 1, np.int32), GENES - COUNTS + np.arange(COUNTS, dtype=np.int32))
    values = rng.integers(1, 50, CELLS * COUNTS).astype(np.float32)
    starts = np.arange(0, CELLS * COUNTS + 1, COUNTS)
    matrix = scipy.sparse.csr_matrix((values, columns.ravel(), starts), shape=(CELLS, GENES))
    labels = pd.Categorical.from_codes(np.arange(CELLS) * LABELS // CELLS, [f"type {n}" for n in range(LABELS)])
    names = [f"cell {n}" for n in range(CELLS)]
    obs = pd.DataFrame({"label": labels}, index=names)
    unfinished = path.with_suffix(".part.h5ad")
    anndata.AnnData(matrix, obs, pd.DataFrame(index=[f"gene {n}" for n in range(GENES)])).write_h5ad(unfinished)
    unfinished.rename(path)
    return path


@functools.cache
def collection() -> tuple[Path, float]:
    """The collection of annbatch, and how long it took to write; written once."""
    path, took = bench_dir() / "cells.annbatch.zarr", bench_dir() / "cells.annbatch.json"
    if not took.exists():
        import annbatch

        began_s = time.perf_counter()
        annbatch.DatasetCollection(str(path)).add_adatas([str(h5ad())], shuffle=True, rng=np.random.default_rng(0))
        took.write_text(json.dumps(time.perf_counter() - began_s))
    return path, json.loads(took.read_text())


def _files() -> list[Path]:
    folder = bench_dir() / "cells.annbatch.zarr"
    return [h5ad(), *(path for path in folder.rglob("*") if path.is_file())]


def _prepare(options: Options) -> None:
    """Drops the files from the page cache, or reads them into it."""
    for path in _files():
        with open(path, "rb", buffering=0) as file:
            if options.cold:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 24):
                    pass


def _measured(epoch: Callable[[], Iterator[_Batch]], options: Options) -> Numbers:
    """The rate and the mean entropy; see the module."""
    warm_up_s, most_s = (0.0, 8.0) if options.cold else (1.0, 4.0)
    most_s = most_s / 4 if options.quick else most_s
    _prepare(options)
    batches = epoch() if options.cold else itertools.chain.from_iterable(epoch() for _ in itertools.count())
    began_s, since_s, cells, entropies, first_s = time.perf_counter(), 0.0, 0, [], 0.0
    for arrays, labels in batches:
        now_s = time.perf_counter()
        first_s = first_s or now_s - began_s
        read_every_byte(np.ascontiguousarray(each[: len(each) // 2 * 2]) for each in arrays)
        shares = np.unique(np.asarray(labels), return_counts=True)[1] / len(labels)
        entropies.append(float(-(shares * np.log2(shares)).sum()))
        if not since_s:
            if now_s - began_s - first_s >= warm_up_s:
                since_s = time.perf_counter()
            continue
        cells += len(labels)
        if now_s - since_s > most_s:
            break
    return {
        "samples/s": cells / (time.perf_counter() - since_s),
        "entropy": float(np.mean(entropies)),
        "first batch ms": 1e3 * first_s,
    }


def _parts(matrix: Any, is_dense: bool) -> list[Any]:
    """The arrays of a matrix of SciPy."""
    return [matrix.toarray()] if is_dense else [matrix.data, matrix.indices, matrix.indptr]


def by_penstock(is_dense: bool, options: Options) -> Numbers:
    """`from_h5ad`."""
    import penstock as ps

    cells = ps.from_h5ad(h5ad(), ["label"], dense=is_dense).shuffle(1)
    batches = cells.batch(BATCH) if is_dense else cells.csr_batch(BATCH)
    with batches.loader("threads", workers=2) as loader:

        def epoch() -> Iterator[_Batch]:
            for batch in loader:
                x = batch["X"]
                yield [x] if is_dense else list(x.values()), batch["label"]

        return _measured(epoch, options)


def by_annloader(options: Options) -> Numbers:
    """AnnData's loader over the backed file. Its documentation has no workers for it."""
    import anndata
    from anndata.experimental import AnnLoader

    loader = AnnLoader(anndata.read_h5ad(h5ad(), backed="r"), batch_size=BATCH, shuffle=True)

    def epoch() -> Iterator[_Batch]:
        for batch in loader:
            yield [batch.X.numpy()], np.asarray(batch.obs["label"])

    return _measured(epoch, options)


def by_scdataset(is_dense: bool, block: int, options: Options) -> Numbers:
    """`scDataset` over the backed file, in a DataLoader."""
    import anndata

    adata = anndata.read_h5ad(h5ad(), backed="r")
    codes = adata.obs["label"].cat.codes.to_numpy()

    def fetch(adata: Any, indices: Any) -> Any:
        return adata[indices].X, codes[indices]

    def pick(fetched: Any, rows: Any) -> _Batch:
        return _parts(fetched[0][rows], is_dense), fetched[1][rows]

    loader = _scdataset(adata, block, fetch_callback=fetch, batch_callback=pick)
    return _measured(lambda: (([np.asarray(each) for each in parts], labels) for parts, labels in loader), options)


def by_mindex(options: Options) -> Numbers:
    """`scDataset` with its own transform, which gives rows their zeros when a block is read."""
    import anndata
    from scdataset.transforms import adata_to_mindex

    transform = functools.partial(adata_to_mindex, columns=["label"])
    loader = _scdataset(anndata.read_h5ad(h5ad(), backed="r"), 16, fetch_transform=transform)
    return _measured(lambda: (([np.asarray(batch["X"])], batch["label"]) for batch in loader), options)


def _scdataset(adata: Any, block: int, **functions: Any) -> Any:
    from scdataset import BlockShuffling, scDataset
    from torch.utils.data import DataLoader

    shuffling = BlockShuffling(block_size=block)
    dataset = scDataset(adata, shuffling, batch_size=BATCH, fetch_factor=16, **functions)
    return DataLoader(dataset, batch_size=None, num_workers=2, prefetch_factor=17, persistent_workers=True)


def by_annbatch(is_dense: bool, options: Options) -> Numbers:
    """Annbatch over its collection."""
    import annbatch
    import anndata
    import zarr

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    path, took_s = collection()
    with anndata.settings.override(remove_unused_categories=False):
        loader = annbatch.Loader(batch_size=BATCH, chunk_size=32, preload_nchunks=256, shuffle=True, to=None)
        loader.use_collection(annbatch.DatasetCollection(str(path)))

        def epoch() -> Iterator[_Batch]:
            for batch in loader:
                yield _parts(batch["X"], is_dense), batch["obs"]["label"].cat.codes.to_numpy()

        return _measured(epoch, options) | {"conversion s": took_s}


_CASES: dict[str, Callable[[Options], Numbers]] = {}
for _kind, _is_dense in (("dense", True), ("csr", False)):
    _CASES[f"{_kind}_penstock"] = functools.partial(by_penstock, _is_dense)
    _CASES[f"{_kind}_scdataset"] = functools.partial(by_scdataset, _is_dense, 16)
    _CASES[f"{_kind}_scdataset_full"] = functools.partial(by_scdataset, _is_dense, 1)
    _CASES[f"{_kind}_annbatch"] = functools.partial(by_annbatch, _is_dense)
_CASES["dense_scdataset_mindex"] = by_mindex
_CASES["dense_annloader"] = by_annloader


def _targets(options: Options) -> list[Target]:
    found = []
    for kind in ("dense", "csr"):
        others = [f"{kind}_scdataset_full", f"{kind}_annloader"]
        mixed = [name for name in _CASES if name.startswith(kind) and name != f"{kind}_penstock"]
        found += [
            Target(f"{kind}: cells a second, of the best full shuffle", ratio(f"{kind}_penstock", others), at_least=2),
            Target(f"{kind}: cells a second, of the best of all", ratio(f"{kind}_penstock", mixed), at_least=1),
            Target(f"{kind}: entropy", value(f"{kind}_penstock", "entropy")),
        ]
    return found


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3)
