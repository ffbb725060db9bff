"""The least type that holds the values of two Arrow types."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from penstock.tables._columns import arrow_of, dtype_of, is_binary, is_list, is_text

_UNITS: Final = ("s", "ms", "us", "ns")


def least(first: Any, other: Any, otherwise: Callable[[Any, Any], Any]) -> Any:
    """Returns the least type that holds the values of both.

    Args:
        first: A type.
        other: Another one.
        otherwise: Returns the type where none holds both, or raises an error.
    """
    first, other = plain(first), plain(other)
    if first == other or kinds.is_null(other):
        return first
    if kinds.is_null(first):
        return other
    if kinds.is_struct(first) and kinds.is_struct(other):
        fields = {part.name: part.type for part in first}
        for part in other:
            fields[part.name] = least(fields.get(part.name, pa.null()), part.type, otherwise)
        return pa.struct(list(fields.items()))
    if is_list(first) and is_list(other):
        inner = least(first.value_type, other.value_type, otherwise)
        sizes = {kind.list_size if kinds.is_fixed_size_list(kind) else -1 for kind in (first, other)}
        return pa.list_(inner, sizes.pop() if len(sizes) == 1 else -1)
    if is_text(first) and is_text(other):
        return pa.large_string()
    if _is_bytes(first) and _is_bytes(other):
        return pa.large_binary()
    if kinds.is_time(first) and kinds.is_time(other):
        finer = max(first.unit, other.unit, key=_UNITS.index)
        return pa.time64(finer) if finer in ("us", "ns") else pa.time32(finer)
    held, others = dtype_of(first), dtype_of(other)
    if held is not None and others is not None:
        wider = _wider(held, others)
        zones = {getattr(kind, "tz", None) is not None for kind in (first, other)}
        if wider is not None and len(zones) == 1:
            return pa.timestamp(np.datetime_data(wider)[0], first.tz) if True in zones else arrow_of(wider)
    return otherwise(first, other)


def _wider(first: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """The least dtype that holds both; None if there is none. A truth value is no number."""
    both = {first.kind, other.kind}
    if len(both) == 1 or both <= set("iuf"):
        wider = np.promote_types(first, other)
        return wider if wider.kind != "f" or "f" in both else None
    return None


def plain(kind: Any) -> Any:
    """A type without what says how it is stored: dictionaries, extensions."""
    if kinds.is_dictionary(kind):
        return plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return plain(kind.storage_type)
    return kind


def _is_bytes(kind: Any) -> bool:
    return is_binary(kind) or kinds.is_fixed_size_binary(kind)
