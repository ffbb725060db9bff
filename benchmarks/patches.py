"""Patches of volumes in Zarr: how fast do batches come, at random places and from each chunk once?

Question: 16 volumes of 192^3 float32 lie in one Zarr array, in compressed chunks of 64^3. A network trains on batches
of 8 patches of 64^3. How many patches a second come from two workers?

Method: `python benchmarks/patches.py`. The consumer reads every byte. Three ways to choose patches:

- `random_*`: patches at any place of any volume. `penstock` is `patches(stride=1).shuffle(1)`, where each patch is
  drawn by itself. `penstock_chunks` is `shuffle(1, window="chunks")`, which takes patches of some chunks together.
  `monai` is `PatchDataset` with `RandSpatialCropSamples` of 8 patches a volume, so those of a batch are of one volume.
- `tiles_*`: each tile once an epoch. `penstock` is `shuffle(1, window="chunks")`; `xbatcher` a `MapDataset` of a
  `BatchGenerator` in a DataLoader with `shuffle=True`; `monai` a `GridPatchDataset` with `PatchIter`, in order.
- `halves_*`: as tiles, and each begins half its size after the one before, so that most lie in eight chunks. MONAI's
  iterator has no such option.

MONAI reads whole volumes, by zarr in a transform; xbatcher reads by xarray, each patch by itself; both in PyTorch's
DataLoader with two workers, as their documentation has it. xbatcher has no patches at random places.

The contenders need `pip install xbatcher monai torch`, in an environment apart.

Machine: two cores of an AMD EPYC, Linux 6.18, Python 3.11.7, NumPy 2.4.6, zarr 3.1.6, xbatcher 0.4, MONAI 1.6.1,
2026-11-26, three rounds. The machine was busy with other work throughout.

Result, patches a second, median and range:

    case                     random                tiles          halves
    penstock, in chunks      3,821 (3,087-3,833)   420 (346-484)  436 (311-440)
    penstock, each by itself 89.5 (67.9-90.9)
    xbatcher                                       380 (332-394)  177 (156-220)
    monai                    125 (60.8-130)        224 (223-336)
    ratio to the best        31 (29-51)            1.1 (1.0-1.2)  2.0 (2.0-2.5)

So where patches share chunks, it is reading each chunk once that counts. Patches drawn each by itself read up to eight
chunks for one: 0.7 of MONAI, which takes eight patches of one volume. Of tiles nothing is shared, and what takes the
time is zarr. Not shown: how mixed batches are; patches of `window="chunks"` in a batch come from few chunks.
"""

import functools
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Numbers, Options, Target, bench_dir, ratio, run, time_steady

COUNT, SIDE, PATCH, BATCH = 16, 192, 64, 8
_SHAPE = (1, PATCH, PATCH, PATCH)
_AXES = ("volume", "z", "y", "x")


@functools.cache
def volumes() -> Path:
    """The array, written once."""
    path = bench_dir() / "volumes.zarr"
    if (path / "zarr.json").exists():
        return path
    import zarr

    unfinished, shape = path.with_suffix(".part"), (COUNT, SIDE, SIDE, SIDE)
    group = zarr.open_group(unfinished, mode="w")
    array = group.create_array("scan", shape=shape, dtype="float32", chunks=_SHAPE, dimension_names=_AXES)
    for number in range(COUNT):
        rng = np.random.default_rng(number)
        rough = rng.integers(0, 900, (SIDE // 8,) * 3).repeat(8, 0).repeat(8, 1).repeat(8, 2)
        array[number] = rough + rng.integers(0, 30, (SIDE,) * 3)
    unfinished.rename(path)
    return path


def _endless(epoch: Callable[[], Iterable[Any]], options: Options) -> Numbers:
    batches = itertools.chain.from_iterable(epoch() for _ in itertools.count())
    return time_steady(([np.asarray(each)] for each in batches), options)


def by_penstock(stride: int, window: str | None, options: Options) -> Numbers:
    """`from_zarr` and `patches`."""
    import penstock as ps

    patches = ps.from_zarr(volumes(), "scan").patches(_SHAPE, stride=(1, stride, stride, stride))
    shuffled = patches.shuffle(1) if window is None else patches.shuffle(1, window=window)
    with shuffled.batch(BATCH, drop_remainder=True).loader("threads", workers=2) as loader:
        return _endless(lambda: loader, options)


def by_xbatcher(stride: int, options: Options) -> Numbers:
    """`xbatcher` in a DataLoader."""
    import xarray
    import xbatcher
    from torch.utils.data import DataLoader
    from xbatcher.loaders.torch import MapDataset

    scans = xarray.open_zarr(volumes(), chunks=None, consolidated=False)["scan"]
    sizes = dict(zip(_AXES, _SHAPE, strict=True))
    overlap = dict.fromkeys(_AXES[1:], PATCH - stride) if stride < PATCH else {}
    generator = xbatcher.BatchGenerator(scans, sizes, overlap, preload_batch=False)
    loader = DataLoader(MapDataset(generator), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    return _endless(lambda: loader, options)


def _monai_volumes() -> Any:
    import zarr
    from monai.data import Dataset

    array = zarr.open_array(volumes() / "scan", mode="r")
    order = np.random.default_rng(0).permutation(COUNT)
    return Dataset(order.tolist(), lambda number: np.asarray(array[number])[None])


def by_monai_random(options: Options) -> Numbers:
    """MONAI's `PatchDataset`."""
    from monai.data import DataLoader, PatchDataset
    from monai.transforms import RandSpatialCropSamples

    sampler = RandSpatialCropSamples(_SHAPE[1:], num_samples=BATCH, random_size=False)
    dataset = PatchDataset(_monai_volumes(), sampler, samples_per_image=BATCH)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=True)
    return _endless(lambda: loader, options)


def by_monai_grid(options: Options) -> Numbers:
    """MONAI's `GridPatchDataset`."""
    from monai.data import DataLoader, GridPatchDataset, PatchIter

    dataset = GridPatchDataset(_monai_volumes(), PatchIter(_SHAPE[1:], mode=None), with_coordinates=False)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=True)
    return _endless(lambda: loader, options)


_CASES: dict[str, Callable[[Options], Numbers]] = {
    "random_penstock": functools.partial(by_penstock, 1, None),
    "random_penstock_chunks": functools.partial(by_penstock, 1, "chunks"),
    "random_monai": by_monai_random,
}
for _kind, _stride in (("tiles", PATCH), ("halves", PATCH // 2)):
    _CASES[f"{_kind}_penstock"] = functools.partial(by_penstock, _stride, "chunks")
    _CASES[f"{_kind}_xbatcher"] = functools.partial(by_xbatcher, _stride)
_CASES["tiles_monai"] = by_monai_grid


def _targets(options: Options) -> list[Target]:
    return [
        Target(
            f"{kind}: patches a second, of the best other",
            ratio(
                f"{kind}_penstock_chunks" if kind == "random" else f"{kind}_penstock",
                [name for name in _CASES if name.startswith(kind) and "penstock" not in name],
            ),
            at_least=1,
        )
        for kind in ("random", "tiles", "halves")
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3)
