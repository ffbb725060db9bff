"""Recognises what a store of arrays holds: HDF5, Zarr, netCDF and `.npz`, and the cells of AnnData in them."""

import zipfile
from contextlib import suppress
from typing import Any, Final

import numpy as np

import penstock
from penstock.base._arguments import install
from penstock.commands._found import Found, made, quoted
from penstock.formats import h5ad

_MOST_LINES: Final = 30
_SPARSE: Final = {"data", "indices", "indptr"}
_DAMAGE: Final = (OSError, ValueError, KeyError, RuntimeError, TypeError)
"""The libraries' errors for damaged files."""


def of_hdf5(path: str) -> Found:
    """Opens an HDF5 file: cells of AnnData, variables of netCDF, or arrays that belong together."""
    try:
        import h5py

        store = h5py.File(path, "r")
        if {"X", "obs"} <= set(store):
            return _cells(path)
        if "_NCProperties" in store.attrs and (found := of_netcdf(path)).dataset is not None:
            return found
        names: list[str] = []
        store.visit(names.append)
        arrays = {f"/{name}": store[name] for name in names if isinstance(store[name], h5py.Dataset)}
        return _arrays("an HDF5 file", arrays, f"import h5py\nstore = h5py.File({quoted(path)})")
    except (ImportError, *_DAMAGE) as error:
        return _unreadable("an HDF5 file", path, "h5py", error)


def of_zarr(path: str) -> Found:
    """Opens a Zarr store: cells of AnnData, or arrays that belong together."""
    try:
        import zarr

        store = zarr.open(path, mode="r")
        members = {"": store} if isinstance(store, zarr.Array) else dict(sorted(store.members(max_depth=None)))
        if {"X", "obs"} <= set(members):
            return _cells(path)
        arrays = {f"/{name}" * bool(name): each for name, each in members.items() if isinstance(each, zarr.Array)}
        return _arrays("a Zarr store", arrays, f'import zarr\nstore = zarr.open({quoted(path)}, mode="r")')
    except (ImportError, *_DAMAGE) as error:
        return _unreadable("a Zarr store", path, "zarr", error)


def _unreadable(what: str, path: str, library: str, error: Exception) -> Found:
    if isinstance(error, ImportError):
        return Found(what, problem=f"Reading it needs {library}: {install(library)}.")
    return Found(what, problem=f"{path} cannot be opened. It is damaged or not complete: {error}")


def of_netcdf(path: str) -> Found:
    """Opens a netCDF file by xarray: its variables along the first dimension of the largest."""
    what = "a netCDF file"
    try:
        import xarray

        data = xarray.open_dataset(path)
    except (ImportError, *_DAMAGE) as error:
        return _unreadable(what, path, "xarray", error)
    lines = [f"{name}  {dict(each.sizes)} {each.dtype}" for name, each in data.data_vars.items()]
    facts = {"variables": lines[:_MOST_LINES]}
    largest = max(data.data_vars.values(), key=lambda each: each.nbytes if each.ndim else -1, default=None)
    if largest is None or not largest.ndim:
        return Found(what, problem="It holds no variable with a dimension, so it has no elements.", facts=facts)
    dim = str(largest.dims[0])
    code = f"import xarray\nds = ps.from_xarray(xarray.open_dataset({quoted(path)}), {quoted(dim)})"
    try:
        return Found(what, code, penstock.from_xarray(data, dim), facts=facts)
    except penstock.PenstockError as error:
        return Found(what, code, problem=str(error), facts=facts)


def _cells(path: str) -> Found:
    """Opens a file of AnnData, with the columns of `obs` that can be read."""
    what = "cells of AnnData"
    try:
        with h5ad.opened(path) as store:
            every, kept = h5ad.columns(store), []
            for name in every:
                with suppress(penstock.PenstockError):
                    h5ad.column(store, name)
                    kept.append(name)
            layers = list(store.get("layers") or ())
    except penstock.PenstockError as error:
        return Found(what, problem=str(error))
    found = made(what, "from_h5ad", path, obs=kept) if kept else made(what, "from_h5ad", path)
    found.facts["obs"] = [", ".join(every) or "no columns"]
    if left := [name for name in every if name not in kept]:
        found.facts["left out"] = [f"{', '.join(left)}, which have missing values, or a kind of their own"]
    if layers:
        found.facts["layers"] = [", ".join(layers)]
    return found


def of_npz(path: str) -> Found | None:
    """Opens a sparse matrix of SciPy, or describes the arrays of an `.npz`. Returns None for another archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            if not names or len(names) < len(archive.namelist()):
                return None
            if {*names} >= _SPARSE:
                return made("a sparse matrix of SciPy (.npz)", "from_csr", path)
            facts = {"arrays": [_described(archive, name) for name in names[:_MOST_LINES]]}
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        return Found("an .npz of NumPy", problem=f"{path} cannot be read. It is damaged or not complete: {error}")
    return Found(
        "an .npz of NumPy",
        problem=f"The arrays of {path} cannot be read by rows. If they fit into memory: "
        f"ps.from_arrays(dict(np.load({quoted(path)}))). Else save each by itself, once: "
        f"np.save({quoted(names[0] + '.npy')}, np.load({quoted(path)})[{quoted(names[0])}]). Then: "
        f"ps.from_npy({quoted({name: f'{name}.npy' for name in names[:3]})}).",
        facts=facts,
    )


def _described(archive: zipfile.ZipFile, name: str) -> str:
    """The shape and dtype of an array, of which the header is read."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return f"{name}  {shape} {dtype}"


def _arrays(what: str, arrays: dict[str, Any], code: str) -> Found:
    """Opens the largest array of a store, with the arrays beside it that have as many rows."""
    width = max(map(len, arrays), default=0)
    lines = [f"{name:<{width}}  {array.shape} {array.dtype}" for name, array in arrays.items()]
    facts = {"arrays": lines[:_MOST_LINES] + ["..."] * (len(lines) > _MOST_LINES)}
    rows = {name: each for name, each in arrays.items() if each.shape and each.size and _is_read(each.dtype)}
    if not rows:
        return Found(
            what, problem="It holds no array of numbers or text with rows, so it has no elements.", facts=facts
        )
    largest = max(rows, key=lambda name: rows[name].size * rows[name].dtype.itemsize)
    folder, count = largest.rpartition("/")[0], rows[largest].shape[0]
    chosen = [name for name, each in rows.items() if name.rpartition("/")[0] == folder and each.shape[0] == count]
    parts = {name.rpartition("/")[2]: f"store[{quoted(name)}]" if name else "store" for name in chosen}
    text = "{" + ", ".join(f"{quoted(name)}: {part}" for name, part in parts.items()) + "}"
    tree = {name.rpartition("/")[2]: rows[name] for name in chosen}
    if len(chosen) == 1:
        (text,), (tree,) = parts.values(), tree.values()
    return Found(what, f"{code}\nds = ps.from_arrays({text})", penstock.from_arrays(tree), facts=facts)


def _is_read(dtype: np.dtype[Any]) -> bool:
    """Whether values are numbers or text, and no other objects: in HDF5, text is marked as objects of Python."""
    metadata: Any = dtype.metadata or {}
    return dtype.kind == "T" or metadata.get("vlen") in (str, bytes) or not dtype.hasobject
