"""What `from_arrays` makes of open arrays of h5py and Zarr. A leaf is of one only where that library is imported."""

from typing import Any

from penstock.plan._source import Source
from penstock.sources import arrays


def hdf5_source(leaf: Any, place: str) -> Source | None:
    """Returns the source of a dataset of h5py, and None of anything else of it.

    Raises:
        ArgumentTypeError: It has no first axis; names the place.
    """
    from penstock.volumes import hdf5
    from penstock.volumes._packed import log_packed

    if not hdf5.is_dataset(leaf):
        return None
    arrays.require_rows(leaf, leaf, place, is_text=hdf5.is_text(leaf))
    log_packed("from_arrays()", {f"{leaf.name} in {leaf.file.filename}": leaf.attrs})
    return hdf5.from_dataset(leaf)


def zarr_source(leaf: Any, place: str) -> Source | None:
    """The same of an array of Zarr."""
    from penstock.volumes import _zarr
    from penstock.volumes._packed import log_packed

    if not _zarr.is_array(leaf):
        return None
    arrays.require_rows(leaf, leaf, place, is_text=_zarr.is_text(leaf))
    log_packed("from_arrays()", {f"{leaf.path} in {leaf.store}": _zarr.attributes_of(leaf)})
    return _zarr.ZarrSource(leaf)
