"""Numbers that netCDF and xarray pack, and that h5py and zarr give raw: `value = raw * scale_factor + add_offset`."""

import base64
import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

_log = logging.getLogger("penstock")

_PACKING: Final[Mapping[str, Any]] = {
    "scale_factor": 1,
    "add_offset": 0,
    "_FillValue": np.nan,
    "missing_value": np.nan,
    "_Unsigned": None,
}
"""Attributes of the CF conventions and netCDF by which xarray changes numbers, with the value that changes none."""


def log_packed(call: str, arrays: Mapping[str, Mapping[str, Any]]) -> None:
    """Says in one line which arrays come as raw numbers.

    Args:
        call: The function that reads them.
        arrays: The attributes of each array, by its name.
    """
    found = {name: [key for key in _PACKING if _changes(attributes, key)] for name, attributes in arrays.items()}
    if text := "; ".join(f"{name}, with {', '.join(keys)}" for name, keys in found.items() if keys):
        _log.warning(
            "%s gives numbers as the file has them, of %s. from_xarray(xarray.open_dataset(path), dim) decodes these "
            "attributes.",
            call,
            text,
        )


def _changes(attributes: Mapping[str, Any], key: str) -> bool:
    if key not in attributes:
        return False
    try:
        value = attributes[key]
        if isinstance(value, str) and key != "_Unsigned":  # of Zarr 3
            value = np.frombuffer(base64.b64decode(value), "<f8")
        return not np.array_equal(np.unique(value), [_PACKING[key]], equal_nan=True)
    except (OSError, TypeError, ValueError):  # of another type, or nothing that h5py reads
        return True
