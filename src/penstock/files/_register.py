"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add


def register(add: Add) -> None:
    """Files as they are, `.npy` files, and what is kept of files."""
    add(
        "penstock.sources",
        {
            "from_npy": "penstock.files._npy:from_npy",
            "DiskCache": "penstock.files._diskcache:DiskCache",
            "timeseries_dataset_from_array": "penstock.files._timeseries:timeseries_dataset_from_array",
        },
    )
    add("penstock.calls", {name: f"penstock.files._keptvalues:{name}" for name in ("kept_keys", "kept_with_files")})
    add("penstock.files", {".npy": "from_npy"})
