"""Elements by the part of a source in which they begin, such as a row group: what a shuffle by chunks takes together.

Arithmetic on the borders of parts, so no element has an entry of its own. Most parts are ranges of elements. Where an
array is cut into patches, they are boxes of a grid.
"""

import functools
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import numpy as np

from penstock.base._random import permute
from penstock.memory._rows import Indices


class Grid(NamedTuple):
    """Places `[start, stop)` of a grid, the last axis fastest. Its chunks are boxes."""

    firsts: tuple[Indices, ...]
    """For each axis, the first place of each group of neighbours, and the end."""
    start: int
    stop: int

    @property
    def chunk_count(self) -> int:
        """The number of chunks, also of those without a place from start to stop."""
        return math.prod(len(each) - 1 for each in self.firsts)

    def before(self, place: int) -> Indices:
        """The number of places of each chunk that come before a place of the grid."""
        rows, *others = (int(each[-1]) for each in self.firsts)
        widths = [np.diff(each) for each in self.firsts]
        count, alike = np.zeros(self.chunk_count, np.int64), _ONE
        for axis, at in enumerate(np.unravel_index(place, (rows + 1, *others))):
            begins, ends = self.firsts[axis][:-1], self.firsts[axis][1:]
            # Places that are alike on the axes before, and come earlier on this one.
            count += _outer(alike, np.clip(at - begins, 0, widths[axis]), *widths[axis + 1 :])
            alike = _outer(alike, ((begins <= at) & (at < ends)).astype(np.int64))
        return count

    @property
    def sizes(self) -> Indices:
        """The number of places of each chunk, from start to stop."""
        return self.before(self.stop) - self.before(self.start)

    def places(self, chunk: int, numbers: Indices) -> Indices:
        """Places of a chunk by their numbers in it."""
        groups = np.unravel_index(chunk, [len(each) - 1 for each in self.firsts])
        begins = [int(each[group]) for each, group in zip(self.firsts, groups, strict=True)]
        sizes = [int(each[group + 1] - each[group]) for each, group in zip(self.firsts, groups, strict=True)]
        axes = [place + begin for place, begin in zip(np.unravel_index(numbers, sizes), begins, strict=True)]
        return np.ravel_multi_index(axes, [int(each[-1]) for each in self.firsts]).astype(np.int64)


_ONE: Final = np.ones(1, np.int64)


def _outer(*factors: Indices) -> Indices:
    """The products of a factor of each, the last fastest."""
    return functools.reduce(lambda found, each: np.multiply.outer(found, each).ravel(), factors)


@final
class Chunks:
    """Elements by chunk, and the order of the chunks in the last two epochs that were asked for.

    Threads: any may ask. Two that miss the same order both compute it.

    Args:
        grids: Elements are the places of these grids, one grid after the other.
    """

    def __init__(self, grids: Iterable[Grid]) -> None:
        self.grids = tuple(grids)

    def __reduce__(self) -> Any:
        return Chunks, (self.grids,)

    @classmethod
    def of_grid(cls, *firsts: Indices) -> "Chunks":
        """All places of one grid; for each axis, the first place of each group of neighbours, and the end."""
        return cls([Grid(firsts, 0, math.prod(int(each[-1]) for each in firsts))])

    @classmethod
    def of_bounds(cls, bounds: Indices) -> "Chunks":
        """Ranges of elements: the first element of each, and the end. Empty ranges are left out."""
        # `np.unique` takes 3 s for a million bounds.
        return cls.of_grid(bounds[np.append(True, bounds[1:] > bounds[:-1])])

    @classmethod
    def joined(cls, several: Iterable["Chunks"]) -> "Chunks":
        """The elements of the first, then those of the second, and so on."""
        return cls(grid for each in several for grid in each.grids)

    @cached_property
    def sizes(self) -> Indices:
        """The number of elements of each chunk."""
        return np.concatenate([each.sizes for each in self.grids])

    @cached_property
    def _skipped(self) -> Indices:
        """The places of each chunk that are left out because they come before the start of their grid."""
        return np.concatenate([each.before(each.start) for each in self.grids])

    @cached_property
    def _before(self) -> Indices:
        """The number of chunks, and of elements, before each grid, shape `(grids, 2)`."""
        counts = np.array([(each.chunk_count, each.stop - each.start) for each in self.grids], np.int64)
        return np.cumsum(counts, axis=0) - counts

    def elements(self, chunk: int, numbers: Indices) -> Indices:
        """Elements of a chunk by their numbers in it. They ascend as the numbers do."""
        found = int(np.searchsorted(self._before[:, 0], chunk, side="right")) - 1
        grid, (chunks, elements) = self.grids[found], map(int, self._before[found])
        return grid.places(chunk - chunks, numbers + self._skipped[chunk]) - grid.start + elements

    @cached_property
    def order(self) -> Callable[[int, int], tuple[Indices, Indices]]:
        """For a seed and an epoch: the chunks in its order, and the elements up to the end of each."""
        return functools.lru_cache(2)(self._ordered)

    def _ordered(self, seed: int, epoch: int) -> tuple[Indices, Indices]:
        count = len(self.sizes)
        chunks = permute(np.arange(count), count, seed=seed, epoch=epoch)
        return chunks, np.cumsum(self.sizes[chunks])

    # The chunks of the elements of a step. None where it has no arithmetic for them.

    @property
    def bounds(self) -> Indices | None:
        """The first element of each chunk, and the end; None if some chunk is no range of elements."""
        if any(len(each) > 2 for grid in self.grids for each in grid.firsts[1:]):
            return None
        return np.append(0, np.cumsum(np.concatenate([each.sizes for each in self.grids])))

    def sliced(self, start: int, step: int, count: int) -> "Chunks | None":
        """Those of `count` elements, each of which begins with one of `start, start + step, ...`."""
        bounds = self.bounds
        if bounds is not None:
            first, distance = (start, step) if step > 0 else (start + (count - 1) * step, -step)
            bounds = np.clip(-((first - bounds) // distance), 0, count)
            return Chunks.of_bounds(bounds if step > 0 else count - bounds[::-1])
        if step != 1:
            return None
        ends = [np.clip(at - self._before[:, 1], 0, None).tolist() for at in (start, start + count)]
        return Chunks(
            grid._replace(start=min(grid.start + skipped, grid.stop), stop=min(grid.start + end, grid.stop))
            for grid, skipped, end in zip(self.grids, *ends, strict=True)
        )

    def chosen(self, places: Indices) -> "Chunks | None":
        """Those of elements that begin with the ones at a list of places."""
        bounds = self.bounds
        if bounds is None or (np.diff(places) < 0).any():
            return None
        return Chunks.of_bounds(np.searchsorted(places, bounds))

    def apart(self, size: int, count: int) -> "Chunks | None":
        """Those of `count` elements, of which each element here has `size`, and the last one perhaps fewer."""
        bounds = self.bounds
        return None if bounds is None else Chunks.of_bounds(np.minimum(bounds * size, count))
