"""Variables of xarray, by position along a dimension. Those in memory are arrays like others."""

import os
from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import xarray

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, SpecError, type_of
from penstock.base._fingerprint import NoFingerprintError
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.sources.arrays import ArraySource, NamedSource
from penstock.sources.boxes import BoxSource, box_text
from penstock.sources.files import from_memmap


def selected(data: Any, dim: Hashable, coords: Sequence[Hashable]) -> Tree:
    """The sources of variables: a dict by their names, or that of a `DataArray` without coordinates.

    Raises:
        ArgumentError: No variable has the dimension, or a coordinate has not.
        ArgumentTypeError: It is no object of xarray.
        SpecError: Values are Python objects.
    """
    if not isinstance(data, (xarray.Dataset, xarray.DataArray)):
        cure = " Arrays: from_arrays(array)." if hasattr(data, "shape") else ""
        if isinstance(data, (str, os.PathLike)):
            cure = " Open the file: xarray.open_dataset(path), or xarray.open_zarr(path)."
        raise ArgumentTypeError(f"from_xarray() takes a Dataset or a DataArray of xarray, got {type_of(data)}.{cure}")
    if dim not in data.dims:
        raise ArgumentError(f"from_xarray(dim={dim!r}): the data have the dimensions {[*data.dims]}.")
    if isinstance(data, xarray.DataArray):
        name = "data" if data.name is None or data.name in coords else str(data.name)
        variables = {name: data.variable}
    else:
        variables = {str(key): each.variable for key, each in data.data_vars.items() if dim in each.dims}
    if not variables:
        raise ArgumentError(f"from_xarray(dim={dim!r}): no variable has it. They are {list(data.data_vars)}.")
    for key in coords:
        if key not in data.coords:
            raise ArgumentError(f"from_xarray(coords=): {key!r} is none of the coordinates {list(data.coords)}.")
        if dim not in data.coords[key].dims:
            raise ArgumentError(
                f"from_xarray(coords=): {key!r} has no dimension {dim!r}, so it is the same for all elements. Read it "
                f"once: data[{key!r}].values."
            )
        variables[str(key)] = data.coords[key].variable
    file = data.encoding.get("source")
    start = "" if file is None else f"{file}/"
    sources = {name: _source(start, name, each, dim) for name, each in variables.items()}
    return sources if isinstance(data, xarray.Dataset) or coords else next(iter(sources.values()))


def _source(start: str, name: str, variable: Any, dim: Hashable) -> Source:
    dtype = variable.dtype
    if not isinstance(dtype, np.dtype) or dtype.hasobject or dtype.kind == "T":
        raise SpecError(
            f"from_xarray(): {name!r} has values of dtype {dtype}, which have no fixed size in a batch. "
            f"Text: data[{name!r}].astype('U'). Times that NumPy has not: open with decode_times=False. Numbers: "
            f"data[{name!r}].astype('float64'). Or leave it out: data.drop_vars({name!r})."
        )
    if getattr(variable, "_in_memory", False):  # else it is read through xarray, which gives the same
        values = np.moveaxis(variable.values, variable.dims.index(dim), 0)
        return from_memmap(values) or ArraySource(values)
    return XarraySource(start + name, variable, dim)


@final
class XarraySource(NamedSource):
    """The rows of a variable that is not in memory: of a file, or of dask. It travels as xarray pickles it."""

    def __init__(self, name: str, variable: Any, dim: Hashable) -> None:
        self.name, self.variable, self.dim = name, variable.copy(deep=False), dim
        self.variable.attrs = {}  # which can hold anything
        self.dims = (dim, *(each for each in variable.dims if each != dim))
        self.count = int(variable.sizes[dim])
        self.element_spec: Tree = ArraySpec(tuple(variable.sizes[each] for each in self.dims[1:]), variable.dtype)
        # Of dask, or those that the file has; of different sizes, the first tells where most begin.
        sizes = variable.chunksizes if variable.chunks else variable.encoding.get("preferred_chunks") or {}
        whole = {each: sizes.get(each) or variable.sizes[each] for each in self.dims}
        shape = tuple(int(size[0] if isinstance(size, tuple) else size) for size in whole.values())
        self.chunk_shape = shape if sizes and all(shape) else None

    def __str__(self) -> str:
        return self.name

    def fingerprint_parts(self) -> dict[str, Any]:
        """The name that dask gives an array, by what it is made of."""
        if not self.variable.chunks:
            raise NoFingerprintError(f"the variable {self.name} of a file, of which xarray does not tell the selection")
        return {"the array of dask": self.variable.data.name, "the rows": (self.dims, self.element_spec)}

    @property
    def kept_nbytes(self) -> int:
        """The memory of a chunk, which is decoded as a whole."""
        return int(np.prod(self.chunk_shape or (0,), dtype=np.int64)) * int(self.variable.dtype.itemsize)

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> BoxSource:
        return BoxSource(self, sizes, keeps_first=keeps_first)

    def part(self, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Reads a box of the variable, the dimension first.

        Raises:
            SourceError: It cannot be read.
        """
        try:
            found = self.variable.isel(dict(zip(self.dims, box, strict=True)))
            # The workers of a loader are the threads; dask would start others.
            values = found.compute(scheduler="synchronous").values if found.chunks else found.values
            if values.dtype.hasobject:
                raise ValueError("its values are arrays of any size, which have no place in a batch")
            return np.moveaxis(values, self.variable.dims.index(self.dim), 0)
        except Exception as error:  # backends raise exceptions of any type
            raise SourceError(
                f"{box_text(self, box)} cannot be read: {str(error).rstrip('.') or type(error).__name__}."
            ) from error

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        """Reads each run of neighbouring rows in one call, in their order, so that a chunk is decoded once."""
        order = np.argsort(indices, kind="stable")
        rest = tuple(slice(0, self.variable.sizes[each]) for each in self.dims[1:])
        for run in np.split(order, np.flatnonzero(np.diff(indices[order]) > 1) + 1):
            if len(run):
                first = int(indices[run[0]])
                rows = self.part((slice(first, int(indices[run[-1]]) + 1), *rest))
                out[run] = rows[indices[run] - first]
