"""Parts of arrays of several shapes, at random places: `RandomPatch`."""

import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np

from penstock import native
from penstock.base import _tree
from penstock.base._errors import ArgumentError
from penstock.base._tree import Tree
from penstock.sources import npy
from penstock.sources.files import file_source, read_error


@final
@dataclass(frozen=True)
class RandomPatch:
    """Cuts a part of one size at a random place. A function for `random_map`, and an immutable, hashable value.

    An array `(depth, height, width, ...)` of any sizes becomes `(*shape, ...)`: axes behind those of `shape` stay
    whole, and the dtype stays. In place of an array there may be the path of a `.npy` file, or an open array of HDF5 or
    Zarr, of which no more than the part is read: `lambda path, rng: patch(zarr.open_array(str(path)), rng)`. Of a tuple
    or dict of these, such as a scan and its labels, all are cut at one place. It depends on the generator alone, which
    belongs to the seed, the epoch and the element. So each epoch has other places, and a resumed run has the same. For
    patches of one array, see `Dataset.patches`.

    Raises:
        ArgumentError: When called: there is no generator, arrays of one element differ along the axes of `shape`, or an
            array is smaller than `shape` and there is no `fill`.
        SourceError: When called: a path is no `.npy` file, or it cannot be read.

    Example:
        >>> np.save("a.npy", np.zeros((9, 7))); np.save("b.npy", np.ones((5, 8)))
        >>> scans = penstock.from_arrays(np.array(["a.npy", "b.npy"]))
        >>> patches = scans.random_map(penstock.RandomPatch((4, 4)), seed=1)
        >>> [patch.shape for patch in patches]
        [(4, 4), (4, 4)]
    """

    shape: tuple[int, ...]
    """The sizes along the first axes."""
    _: KW_ONLY
    fill: float | None = None
    """What stands behind the end of an array that is smaller than the part. None: that is an error."""

    releases_gil = True

    def __post_init__(self) -> None:
        sizes = self.shape if isinstance(self.shape, tuple) else ()
        if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
            raise ArgumentError(f"RandomPatch({self.shape!r:.80}): a tuple of sizes from 1 on is needed: (64, 64).")

    def __call__(self, arrays: Tree, rng: np.random.Generator | None = None) -> Tree:
        """Returns the parts, in new arrays."""
        if rng is None:
            raise ArgumentError(f"{self!r} draws random numbers, and was called without a generator. Use random_map().")
        leaves, structure = _tree.flatten(arrays)
        opened, count = [_opened(leaf) for leaf in leaves], len(self.shape)
        sizes = opened[0].shape[:count]
        if any(each.shape[:count] != sizes for each in opened) or len(sizes) < count:
            raise ArgumentError(
                f"{self!r} cuts all arrays of an element at one place, so they have the same {count} first sizes, but "
                f"they are {[tuple(each.shape) for each in opened]}."
            )
        if self.fill is None and any(size < want for size, want in zip(sizes, self.shape, strict=True)):
            raise ArgumentError(
                f"{self!r} of an array of {tuple(sizes)}, which is smaller. Give a value to fill it up: fill=0."
            )
        room = [max(0, size - want) for size, want in zip(sizes, self.shape, strict=True)]
        starts = rng.integers(0, room, endpoint=True).tolist()
        box = tuple(slice(start, start + want) for start, want in zip(starts, self.shape, strict=True))
        return structure.unflatten([self._cut(each, box) for each in opened])

    def _cut(self, array: Any, box: tuple[slice, ...]) -> Any:
        part = np.array(array[box])
        missing = [want - have for want, have in zip(self.shape, part.shape, strict=False)]
        if self.fill is None or not any(missing):
            return part
        behind = [(0, n) for n in missing] + [(0, 0)] * (part.ndim - len(missing))
        return np.pad(part, behind, constant_values=self.fill)


@final
class _NpyFile:
    """The array in a `.npy` file, of which parts are read. No mapping: the file may be shortened meanwhile."""

    def __init__(self, path: str) -> None:
        self._file = npy.describe(path)
        self.shape = self._file.shape

    def __getitem__(self, box: tuple[slice, ...]) -> Any:
        whole = tuple(slice(0, size) for size in self.shape[len(box) :])
        ends = [range(size)[each] for size, each in zip(self.shape, (*box, *whole), strict=True)]
        sizes = tuple(map(len, ends))
        parts = self._file.patched(sizes, keeps_first=True)
        if parts is None:  # in Fortran order, or without elements
            return np.load(self._file.path)[box]
        row = np.ravel_multi_index([each.start for each in ends], self.shape)
        out = np.empty((1, *sizes), self._file.dtype)
        try:
            native.copy([(file_source(parts, 0, may_map=False), np.array([row], np.int64), out, None, None)])
        except native.CopyError as error:
            raise read_error(parts, error) from error
        return out[0]


def _opened(leaf: Any) -> Any:
    """An array that reads what is taken of it."""
    return _NpyFile(os.fspath(leaf)) if isinstance(leaf, (str, os.PathLike)) else leaf
