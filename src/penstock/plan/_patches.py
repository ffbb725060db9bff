"""Patches of arrays: windows over several axes at once."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices
from penstock.plan._chunks import Chunks
from penstock.plan._combine import Zip
from penstock.plan._node import Demand, Length, Node, OneInput, Overlap, Reorder, Traits
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
    chunk_shape: tuple[int, ...] | None = field(default=None, repr=False)
    """The chunks in which the array is stored, along all axes; None without."""

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
    def chunks(self) -> Chunks | None:
        """The chunks of the array in which patches begin."""
        if self.chunk_shape is None:
            return None
        return Chunks.of_grid(*map(_starts, self.grid, self.strides, self.chunk_shape))

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
    whole = shape_of(node.data, spec)
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
    return Patches(SourceNode(data, node.name), all_sizes, strides, whole, text, node.data.chunk_shape)


def shape_of(data: Source, spec: ArraySpec) -> tuple[int, ...]:
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


def _starts(count: int, stride: int, chunk: int) -> Indices:
    """The first of `count` places of each group whose starts, `stride` apart, are in one chunk; and the end."""
    chunks = np.arange(count, dtype=np.int64) * stride // chunk
    return np.concatenate(([0], np.flatnonzero(np.diff(chunks)) + 1, [count])).astype(np.int64)
