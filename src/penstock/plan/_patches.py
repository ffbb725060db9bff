"""Patches of arrays: windows over several axes at once, and a shuffle that takes the patches of a chunk together."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError
from penstock.base._random import BLOCK_CACHE_NBYTES, permute
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices, distinct
from penstock.plan._combine import Zip
from penstock.plan._index import mark_of
from penstock.plan._node import (
    Demand,
    Length,
    ManyInputs,
    Memory,
    Node,
    OneInput,
    OneToOne,
    Overlap,
    Reorder,
    Traits,
    finite_length,
)
from penstock.plan._source import Source
from penstock.plan._source_node import SourceNode


@dataclass(frozen=True, eq=False)
class Patches(Reorder, OneInput):
    """Element `i` is patch `i` of the grid. The input has a patch for each item of the array, at which it begins."""

    sizes: tuple[int, ...]
    """Of a patch, along each axis of the array."""
    strides: tuple[int, ...]
    """From a patch to the next."""
    shape: tuple[int, ...]
    """Of the array."""
    text: str
    """The arguments, for `repr`; empty for the rows of an array, as `shuffle` by chunks reads them."""

    verb = "patches"
    spread = math.inf

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"patches({self.text})"

    def settings(self) -> dict[str, Any]:
        """Sizes and strides along all axes."""
        return {"sizes": self.sizes, "strides": self.strides, "shape": self.shape}

    @property
    def traits(self) -> Traits:
        """Whether it is shown."""
        return Traits(is_hidden=not self.text)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """The number of patches along each axis."""
        axes = zip(self.shape, self.sizes, self.strides, strict=True)
        return tuple((n - size) // stride + 1 for n, size, stride in axes)

    @cached_property
    def length(self) -> Length:
        """The number of patches."""
        return math.prod(self.grid)

    @cached_property
    def overlap(self) -> Overlap:
        """Patches share data if one begins before the last has ended."""
        is_apart = all(s >= size or n == 1 for s, size, n in zip(self.strides, self.sizes, self.grid, strict=True))
        return "none" if is_apart else "anywhere"

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The item at which each patch begins."""
        places = np.zeros(len(indices), np.int64)
        for place, stride, n in zip(np.unravel_index(indices, self.grid), self.strides, self.shape, strict=True):
            places = places * n + place * stride
        return [Demand(0, epoch, places)]


def patched(node: Node, shape: Any, stride: Any, axes: Any) -> Node:
    """The patches of arrays: of one, or of arrays side by side.

    Raises:
        ArgumentError: A step is before it, or numbers do not fit the array.
        ArgumentTypeError: An argument is no integer, and no tuple of them.
    """
    if isinstance(node, Zip):
        made = [patched(each, shape, stride, axes) for each in node.sources]
        if len({each.length for each in made}) > 1:
            counts = ", ".join(f"{each.label}: {each.length}" for each in made)
            raise ArgumentError(f"patches() of arrays side by side gives different numbers of them: {counts}.")
        return Zip(tuple(made), node.structure)
    spec = node.data.element_spec if isinstance(node, SourceNode) else None
    if not isinstance(node, SourceNode) or not isinstance(spec, ArraySpec) or None in spec.shape:
        raise ArgumentError(
            f"patches() reads parts of arrays, so it comes directly after from_npy(), from_arrays(), from_hdf5() and "
            f"the like, and not after {node.label}. Put other steps behind it.{_cure(node)}"
        )
    whole = _shape_of(node.data, spec)
    sizes = _integers("shape", shape)
    where = tuple(range(len(sizes))) if axes is None else tuple(_integers("axes", axes, least=-len(whole)))
    steps = sizes if stride is None else _integers("stride", stride)
    steps = steps * len(sizes) if len(steps) == 1 else steps
    text = f"{tuple(sizes)}{'' if stride is None else f', stride={stride}'}{'' if axes is None else f', axes={axes}'}"
    if not len(sizes) == len(where) == len(steps) or not sizes:
        raise ArgumentError(
            f"patches({text}) has {len(sizes)} sizes, {len(steps)} strides and {len(where)} axes; there is one of each "
            "for an axis."
        )
    where = tuple(axis + len(whole) * (axis < 0) for axis in where)
    if len(set(where)) < len(where) or any(axis >= len(whole) for axis in where):
        raise ArgumentError(f"patches({text}): the array has {len(whole)} axes, {whole}, and each is named once.")
    size_of, step_of = dict(zip(where, sizes, strict=True)), dict(zip(where, steps, strict=True))
    all_sizes = tuple(size_of.get(axis, 1 if axis == 0 else n) for axis, n in enumerate(whole))
    if any(size > n for size, n in zip(all_sizes, whole, strict=True)):
        raise ArgumentError(f"patches({text}): a patch of {all_sizes} is larger than the array, {whole}.")
    if not math.prod(all_sizes):
        raise ArgumentError(f"patches({text}): the array has the shape {whole}, and no value.")
    data = node.data.patched(all_sizes, keeps_first=0 in where)
    if data is None:
        raise ArgumentError(
            f"patches({text}): parts of {node.label} cannot be read alone. It takes arrays in memory, .npy files in C "
            "order, arrays of HDF5, Zarr and xarray, and volumes of NIfTI."
        )
    strides = tuple(step_of.get(axis, 1) for axis in range(len(whole)))
    return Patches(SourceNode(data, node.name), all_sizes, strides, whole, text)


def _shape_of(data: Source, spec: ArraySpec) -> tuple[int, ...]:
    """The shape of the whole array."""
    return (len(data), *(size for size in spec.shape if size is not None))


def _cure(node: Node) -> str:
    """The remedy for elements of different shapes, or with several leaves."""
    if not isinstance(node, SourceNode):
        return ""
    spec = node.data.element_spec
    if not isinstance(spec, ArraySpec):
        return " Its elements are no single arrays."
    return (
        f" Its elements have different shapes, {spec}: concatenate() the patches of data of one shape each. Or cut "
        "several of each in a function, stacked: random_map(fn).unbatch()."
    )


def _integers(name: str, value: Any, least: int = 1) -> tuple[int, ...]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    found = [as_int(each) for each in values]
    if None in found:
        raise ArgumentTypeError(f"patches({name}=) is an integer or a tuple of them, got {value!r:.80}.")
    if any(each < least for each in found if each is not None):
        raise ArgumentError(f"patches({name}={value!r:.80}): at least {least} is possible.")
    return tuple(each for each in found if each is not None)


# ---------------------------------------------------------------------------------------------- chunks


@final
class Chunks:
    """Groups of places in a grid, by chunk, and their order in the last two epochs that were asked for.

    Threads: any may ask. Two that miss the same order both compute it.

    Args:
        firsts: For each axis of the grid, the first place of each group of neighbours, and the end.
    """

    def __init__(self, firsts: tuple[Indices, ...]) -> None:
        self.firsts = firsts

    def __reduce__(self) -> Any:
        return Chunks, (self.firsts,)

    @cached_property
    def sizes(self) -> Indices:
        """The places of each chunk, the last axis fastest."""
        return functools.reduce(lambda sizes, each: np.multiply.outer(sizes, np.diff(each)).ravel(), self.firsts, _ONE)

    @cached_property
    def order(self) -> Callable[[int, int], tuple[Indices, Indices]]:
        """For a seed and an epoch: the chunks in its order, and the places up to the end of each."""
        return functools.lru_cache(2)(self._ordered)

    def _ordered(self, seed: int, epoch: int) -> tuple[Indices, Indices]:
        count = len(self.sizes)
        chunks = permute(np.arange(count), count, seed=seed, epoch=epoch)
        return chunks, np.cumsum(self.sizes[chunks])

    def places(self, chunk: int, inner: Indices) -> Indices:
        """Places of a chunk, counted within it, as places of the grid."""
        numbers = np.unravel_index(chunk, [len(each) - 1 for each in self.firsts])
        starts = [int(each[number]) for each, number in zip(self.firsts, numbers, strict=True)]
        sizes = [int(each[number + 1] - each[number]) for each, number in zip(self.firsts, numbers, strict=True)]
        axes = [place + start for place, start in zip(np.unravel_index(inner, sizes), starts, strict=True)]
        return np.ravel_multi_index(axes, [int(each[-1]) for each in self.firsts]).astype(np.int64)


_ONE: Final = np.ones(1, np.int64)


@dataclass(frozen=True, eq=False)
class ShuffleChunks(Reorder, OneInput):
    """Each element once: chunk after chunk in a random order, and those of a chunk in a random order."""

    seed: int
    reshuffle: bool
    chunks: Chunks

    verb = "shuffle"
    takes_each_once = True
    _scatters = True
    spread = math.inf

    @property
    def label(self) -> str:
        """As the user wrote it, without defaults."""
        return f"shuffle(seed={self.seed}, window='chunks'{'' if self.reshuffle else ', reshuffle=False'})"

    def settings(self) -> dict[str, Any]:
        """The seed, and the chunks."""
        return {"seed": self.seed, "reshuffle": self.reshuffle, "chunks": mark_of(*self.chunks.firsts)}

    @property
    def redraws(self) -> bool:  # type: ignore[override]
        """Unless the order stays."""
        return self.reshuffle

    @property
    def memory(self) -> Memory:
        """Tables of the chunks for two epochs, and what other shuffles take."""
        return Memory(kept_nbytes=5 * self.chunks.sizes.nbytes, order_nbytes=BLOCK_CACHE_NBYTES)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The image of the positions: the chunk that is at this place now, and an element in it."""
        order = epoch if self.reshuffle else 0
        chunks, ends = self.chunks.order(self.seed, order)
        ranks = np.searchsorted(ends, indices, side="right")
        found = np.empty(len(indices), np.int64)
        for rank in distinct(ranks).tolist():
            here, chunk = ranks == rank, int(chunks[rank])
            size = int(self.chunks.sizes[chunk])
            # Each chunk's order has its own seed, far from seeds that a user gives.
            seed = self.seed + ((chunk + 1) << 64)
            inner = permute(indices[here] - (int(ends[rank]) - size), size, seed=seed, epoch=order)
            found[here] = self.chunks.places(chunk, inner)
        return [Demand(0, epoch, found)]


def shuffled_by_chunks(node: Node, seed: int, reshuffle: bool) -> Node:
    """A shuffle that takes the elements of a chunk together, over a plan that reads by chunks.

    Raises:
        ArgumentError: The data have no chunks, or a step between them and the shuffle changes the number of elements.
    """
    node = _by_chunks(node)
    groups = _groups(node)
    if groups is None:
        raise ArgumentError(
            "shuffle(window='chunks') takes elements that are stored in chunks, as in HDF5, Zarr, Parquet and Arrow, "
            f"directly after from_...(), patches(), zip() or cast(); {node.label} has none. Give a number: "
            "shuffle(window=4096)."
        )
    return ShuffleChunks(node, seed, reshuffle, Chunks(groups)) if finite_length(node) else node


def _by_chunks(node: Node) -> Node:
    """The same plan, in which rows of arrays in chunks are patches, so that a chunk serves all of its rows."""
    if isinstance(node, SourceNode) and node.data.chunk_shape is not None:
        assert isinstance(node.data.element_spec, ArraySpec)
        whole = _shape_of(node.data, node.data.element_spec)
        sizes = (1, *whole[1:])
        data = node.data.patched(sizes, keeps_first=False)
        return node if data is None else Patches(SourceNode(data, node.name), sizes, (1,) * len(whole), whole, "")
    if _is_alike(node) and isinstance(node, OneInput):
        return replace(node, source=_by_chunks(node.source))
    if _is_alike(node) and isinstance(node, ManyInputs):
        return replace(node, sources=tuple(map(_by_chunks, node.sources)))
    return node


def _groups(node: Node) -> tuple[Indices, ...] | None:
    """The elements that begin in one chunk; of data side by side, in the chunks of the first that has some."""
    if isinstance(node, Patches):
        assert isinstance(node.source, SourceNode)
        chunks = node.source.data.chunk_shape
        return None if chunks is None else tuple(map(_starts, node.grid, node.strides, chunks))
    if isinstance(node, SourceNode) and node.data.chunk_shape is not None:  # text, which is read by rows
        return (_starts(finite_length(node), 1, node.data.chunk_shape[0]),)
    if isinstance(node, SourceNode) and (bounds := node.data.part_bounds) is not None:
        return (np.unique(bounds),)  # without parts that are empty
    below: Sequence[Node] = node.inputs if _is_alike(node) else ()
    return next((found for each in below if (found := _groups(each)) is not None), None)


def _is_alike(node: Node) -> bool:
    """Whether a step only puts elements side by side, or casts them."""
    return node.moves and isinstance(node, OneToOne)


def _starts(count: int, stride: int, chunk: int) -> Indices:
    """The first of `count` places of each group whose starts, `stride` apart, are in one chunk; and the end."""
    chunks = np.arange(count, dtype=np.int64) * stride // chunk
    return np.concatenate(([0], np.flatnonzero(np.diff(chunks)) + 1, [count])).astype(np.int64)
