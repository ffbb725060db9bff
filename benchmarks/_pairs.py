"""Pairs of a frame and its successor, on disk, and what two libraries need to read them."""

from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, npy_file

FRAME_COUNT = 20_000
PAIR_COUNT = FRAME_COUNT - 1
FRAME_SHAPE = (3, 50, 50)
BATCH_SIZE = 32


def frames_file() -> Path:
    """Returns the path of (20000, 3, 50, 50) float64 frames, 1.2 GB."""
    return npy_file("frames.npy", (FRAME_COUNT, *FRAME_SHAPE), "float64")


class PairsByIndex:
    """Random access to pairs of a file, as PyTorch and Grain ask for it: `len` and `[i]`.

    The mapping is opened on first use and never pickled: what their documentations advise for a dataset that
    goes to worker processes. Elements are views of the mapping, cast to `dtype`, a copy, where one is given.
    """

    def __init__(self, path: Path, dtype: str | None = None, count: int = PAIR_COUNT) -> None:
        self.path = path
        self.dtype = dtype
        self.count = count
        self._frames: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_frames": None}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> tuple[Array, Array]:
        """Returns `(frame[index], frame[index + 1])`; an array of indices gives a batch, two new arrays."""
        if self._frames is None:
            self._frames = np.load(self.path, mmap_mode="r")
        x, y = np.asarray(self._frames[index]), np.asarray(self._frames[index + 1])
        return (x, y) if self.dtype is None else (x.astype(self.dtype), y.astype(self.dtype))


def torch_loader(pairs: PairsByIndex, workers: int, *, getitems: bool) -> Any:
    """Returns a shuffling DataLoader: an element a call and default collation, or a batch a call."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Pairs(Dataset):  # type: ignore[misc, unused-ignore]
        def __len__(self) -> int:
            return len(pairs)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            return tuple(map(torch.from_numpy, pairs[index]))

    class PairsByBatch(Pairs):
        def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
            return tuple(map(torch.from_numpy, pairs[np.array(indices)]))

    return DataLoader(
        PairsByBatch() if getitems else Pairs(),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=(lambda batch: batch) if getitems else None,  # None: default_collate
    )


def grain_batches(pairs: PairsByIndex) -> Any:
    """Returns a Grain `MapDataset` of shuffled batches."""
    import grain  # type: ignore[import-untyped, unused-ignore]

    return grain.MapDataset.source(pairs).seed(1).shuffle().batch(BATCH_SIZE)
