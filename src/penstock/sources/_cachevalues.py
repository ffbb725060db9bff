"""Leaves of unknown size as bytes in a cache.

A leaf is its shape (int64 an axis), then its bytes in C order. For text, the size of each item in bytes (int64) and
then the items in UTF-8.
"""

from typing import Any

import numpy as np

from penstock.base._spec import ArraySpec


def encode(leaf: ArraySpec, value: Any) -> bytes:
    """Returns a value of a leaf as bytes."""
    if leaf.dtype.itemsize:
        array = np.ascontiguousarray(value, leaf.dtype)
        return np.array(np.shape(value), "<i8").tobytes() + array.tobytes()
    # A single text is not converted to an array, which would drop zeros at its end.
    items = np.asarray(value, object).ravel().tolist() if isinstance(value, np.ndarray) else [value]
    raw = [item.encode("utf-8", "surrogatepass") if isinstance(item, str) else bytes(item) for item in items]
    sizes = np.array([*np.shape(value), *map(len, raw)], "<i8")
    return sizes.tobytes() + b"".join(raw)


def decode(leaf: ArraySpec, data: memoryview) -> tuple[Any, int]:
    """Returns a value that `encode` wrote, in memory of its own, and its bytes there."""
    shape = tuple(np.frombuffer(data, "<i8", len(leaf.shape)).tolist())
    at, count = 8 * len(shape), int(np.prod(shape, dtype=np.int64))
    if leaf.dtype.itemsize:
        stop = at + count * leaf.dtype.itemsize
        return np.frombuffer(bytearray(data[at:stop]), leaf.dtype).reshape(shape), stop
    sizes = np.frombuffer(data, "<i8", count, at).tolist()
    at += 8 * count
    items: list[Any] = []
    for size in sizes:
        raw = bytes(data[at : at + size])
        items.append(raw.decode("utf-8", "surrogatepass") if leaf.dtype.kind == "U" else raw)
        at += size
    if not shape:
        return items[0], at
    return np.array(items, leaf.dtype.kind).reshape(shape), at
