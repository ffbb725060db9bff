"""What `penstock inspect` finds in files of AnnData and of SciPy."""

import zipfile
from contextlib import suppress

import penstock
from penstock.files._found import MOST_LINES, Found, made, quoted
from penstock.sparse import h5ad


def cells(_: str, path: str) -> Found:
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


def npz(what: str, path: str) -> Found:
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
    return Found(what, problem=problem, facts={"arrays": names[:MOST_LINES]})
