"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add

_CONSTRUCTORS = ("from_hdf5", "from_nifti", "from_xarray", "from_zarr")
_INSPECTED = {".h5": "hdf5", ".hdf5": "hdf5", ".mat": "hdf5", ".zarr": "zarr", ".nc": "netcdf"}


def register(add: Add) -> None:
    """Arrays in chunks, and volumes."""
    add("penstock.inspect", {ending: f"penstock.volumes._inspect:{name}" for ending, name in _INSPECTED.items()})
    add("penstock.sources", {name: f"penstock.volumes._constructors:{name}" for name in _CONSTRUCTORS})
    add(
        "penstock.arrays",
        {"h5py": "penstock.volumes._arrays:hdf5_source", "zarr": "penstock.volumes._arrays:zarr_source"},
    )
    add("penstock.files", {".nii": "from_nifti"})
    add("penstock.words", {"volumes": "penstock.volumes:words.toml"})
