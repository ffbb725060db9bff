"""Opens stores of arrays: HDF5, Zarr, netCDF and `.npz`, and the cells of AnnData in them."""

import zipfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import penstock
from penstock.base._arguments import needs
from penstock.commands._found import Found, made, quoted
from penstock.formats import h5ad

ZARR: Final = ("zarr.json", ".zgroup", ".zarray")
"""One of these is in the folder of a store of Zarr."""
_MOST_LINES: Final = 30


def opened(what: str, ending: str, path: str) -> Found:
    """Opens a store by the ending of its name."""
    try:
        return READERS[ending](what, path)
    except (ImportError, penstock.PenstockError) as error:
        return Found(what, problem=str(error))
    except Exception as error:  # of any type, for a damaged file
        return Found(what, problem=f"{path} cannot be opened. It is damaged or not complete: {error}")


def _hdf5(what: str, path: str) -> Found:
    with needs("Reading it", "h5py"):
        import h5py

    arrays: dict[str, Any] = {}
    with h5py.File(path, "r") as store:
        store.visititems(lambda name, item: arrays.update({name: item} if isinstance(item, h5py.Dataset) else {}))
        return _arrays(what, "from_hdf5", path, arrays)


def _zarr(what: str, path: str) -> Found:
    with needs("Reading it", "zarr"):
        import zarr

    store = zarr.open(path, mode="r")
    if isinstance(store, zarr.Array):
        return made(what, "from_zarr", path)
    members = dict(sorted(store.members(max_depth=None)))
    if {"X", "obs"} <= set(members):
        return _cells(what, path)
    arrays = {name: each for name, each in members.items() if isinstance(each, zarr.Array)}
    return _arrays(what, "from_zarr", path, arrays)


def _arrays(what: str, constructor: str, path: str, arrays: dict[str, Any]) -> Found:
    """Opens the arrays of one group with as many rows that have the most values."""
    width = max(map(len, arrays), default=0)
    lines = [f"{name:<{width}}  {array.shape} {array.dtype}" for name, array in arrays.items()]
    facts = {"arrays": lines[:_MOST_LINES] + ["..."] * (len(lines) > _MOST_LINES)}
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


def _cells(_: str, path: str) -> Found:
    """Opens a file of AnnData, with the columns of `obs` that can be read."""
    with h5ad.opened(path) as store:
        every, kept = h5ad.columns(store), []
        for name in every:
            with suppress(penstock.PenstockError):
                h5ad.column(store, name)
                kept.append(name)
        layers = list(store.get("layers") or ())
    found = made("cells of AnnData", "from_h5ad", path, obs=kept or None)
    found.facts["obs"] = [", ".join(every) or "no columns"]
    if left := [name for name in every if name not in kept]:
        found.facts["left out"] = [f"{', '.join(left)}, which have missing values, or a kind of their own"]
    if layers:
        found.facts["layers"] = [", ".join(layers)]
    return found


def _netcdf(what: str, path: str) -> Found:
    """Opens a netCDF file by xarray: its variables along the first dimension of the largest."""
    with needs("Reading it", "xarray"):
        import xarray

    data = xarray.open_dataset(path)
    lines = [f"{name}  {dict(each.sizes)} {each.dtype}" for name, each in data.data_vars.items()]
    facts = {"variables": lines[:_MOST_LINES]}
    largest = max(data.data_vars.values(), key=lambda each: each.nbytes if each.ndim else -1, default=None)
    if largest is None or not largest.ndim:
        return Found(what, problem="It holds no variable with a dimension, so it has no elements.", facts=facts)
    dim = str(largest.dims[0])
    code = f"import xarray\nds = ps.from_xarray(xarray.open_dataset({quoted(path)}), {quoted(dim)})"
    return Found(what, code, penstock.from_xarray(data, dim), facts=facts)


def _npz(what: str, path: str) -> Found:
    """Opens a sparse matrix of SciPy, or names the arrays of an `.npz`."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
    if {"data", "indices", "indptr"} <= set(names):
        return made("a sparse matrix of SciPy (.npz)", "from_csr", path)
    problem = (
        f"The arrays of {path} cannot be read by rows. If they fit into memory: "
        f"ps.from_arrays(dict(np.load({quoted(path)}))). Else save each by itself, once: "
        f"np.save({quoted(names[0] + '.npy')}, np.load({quoted(path)})[{quoted(names[0])}]). Then: "
        f"ps.from_npy({quoted({name: f'{name}.npy' for name in names[:3]})})."
    )
    return Found(what, problem=problem, facts={"arrays": names[:_MOST_LINES]})


READERS: Final[dict[str, Callable[[str, str], Found]]] = {
    ".h5": _hdf5,
    ".hdf5": _hdf5,
    ".mat": _hdf5,
    ".h5ad": _cells,
    ".zarr": _zarr,
    ".nc": _netcdf,
    ".npz": _npz,
}
"""By the ending of a name, what opens one with it."""
