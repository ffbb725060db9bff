"""What `penstock inspect` finds in HDF5, Zarr and netCDF."""

from collections import defaultdict
from typing import Any

import penstock
from penstock.base._arguments import needs
from penstock.base._extensions import INSPECT, needed
from penstock.files._found import MOST_LINES, Found, made, quoted


def hdf5(what: str, path: str) -> Found:
    """Opens a file or store of this kind."""
    with needs("Reading it", "h5py"):
        import h5py

    arrays: dict[str, Any] = {}
    with h5py.File(path, "r") as store:
        store.visititems(lambda name, item: arrays.update({name: item} if isinstance(item, h5py.Dataset) else {}))
        return _arrays(what, "from_hdf5", path, arrays)


def zarr(what: str, path: str) -> Found:
    """Opens a file or store of this kind."""
    with needs("Reading it", "zarr"):
        import zarr

    store = zarr.open(path, mode="r")
    if isinstance(store, zarr.Array):
        return made(what, "from_zarr", path)
    members = dict(sorted(store.members(max_depth=None)))
    if {"X", "obs"} <= set(members):
        return needed(INSPECT, ".h5ad")(what, path)  # type: ignore[no-any-return]
    arrays = {name: each for name, each in members.items() if isinstance(each, zarr.Array)}
    return _arrays(what, "from_zarr", path, arrays)


def _arrays(what: str, constructor: str, path: str, arrays: dict[str, Any]) -> Found:
    """Opens the arrays of one group with as many rows that have the most values."""
    width = max(map(len, arrays), default=0)
    lines = [f"{name:<{width}}  {array.shape} {array.dtype}" for name, array in arrays.items()]
    facts = {"arrays": lines[:MOST_LINES] + ["..."] * (len(lines) > MOST_LINES)}
    together: dict[Any, list[str]] = defaultdict(list)
    for name, array in arrays.items():
        if array.shape and array.size:
            together[name.rpartition("/")[0], array.shape[0]].append(name)
    if not together:
        return Found(what, problem="It holds no array with rows, so it has no elements.", facts=facts)
    names = max(together.values(), key=lambda each: sum(arrays[name].size for name in each))
    found = made(what, constructor, path, names=names if len(names) > 1 else names[0])
    found.facts.update(facts)
    return found


def netcdf(what: str, path: str) -> Found:
    """Opens a netCDF file by xarray: its variables along the first dimension of the largest."""
    with needs("Reading it", "xarray"):
        import xarray

    data = xarray.open_dataset(path)
    lines = [f"{name}  {dict(each.sizes)} {each.dtype}" for name, each in data.data_vars.items()]
    facts = {"variables": lines[:MOST_LINES]}
    largest = max(data.data_vars.values(), key=lambda each: each.nbytes if each.ndim else -1, default=None)
    if largest is None or not largest.ndim:
        return Found(what, problem="It holds no variable with a dimension, so it has no elements.", facts=facts)
    dim = str(largest.dims[0])
    code = f"import xarray\nds = ps.from_xarray(xarray.open_dataset({quoted(path)}), {quoted(dim)})"
    return Found(what, code, penstock.from_xarray(data, dim), facts=facts)
