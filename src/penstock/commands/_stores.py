"""HDF5 files and Zarr stores: what arrays are in them, and which of them belong side by side.

The libraries are imported when such a file is looked at.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import penstock
from penstock import Dataset

MOST_LINES: Final = 30
"""Of so many arrays each is told; an HDF5 file may hold an array an element."""
_LIBRARY_ERRORS: Final = (OSError, ValueError, KeyError, RuntimeError, TypeError)
"""What they raise of files that are damaged."""


@final
@dataclass(frozen=True)
class Store:
    """The arrays of a file."""

    lines: list[str]
    """A line each."""
    code: str = ""
    """Python that opens what belongs together."""
    open: Callable[[], Dataset] | None = None
    problem: str = ""


def hdf5(path: Path) -> Store:
    """Looks into an HDF5 file."""
    try:
        import h5py
    except ImportError:
        return Store([], problem="Reading it needs h5py: pip install 'penstock[hdf5]'.")
    name = json.dumps(str(path), ensure_ascii=False)
    arrays: dict[str, Any] = {}

    def visit(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            arrays[f"/{name}"] = found

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
            lines, chosen = list(_lines(arrays)), _together(arrays)
    except _LIBRARY_ERRORS as error:
        return _damaged(path, error)

    def open_them() -> Dataset:
        with h5py.File(path, "r") as file:  # sources open it again by its name
            return penstock.from_arrays(_tree({each: file[each] for each in chosen}))

    return _store(lines, chosen, f"import h5py\nfile = h5py.File({name})", "file", open_them)


def zarr(path: Path) -> Store:
    """Looks into a Zarr array or group."""
    try:
        import zarr as library
    except ImportError:
        return Store([], problem="Reading it needs zarr: pip install 'penstock[zarr]'.")
    name = json.dumps(str(path), ensure_ascii=False)
    try:
        root = library.open(path, mode="r")
    except _LIBRARY_ERRORS as error:
        return _damaged(path, error)
    if isinstance(root, library.Array):
        code = f'import zarr\nds = ps.from_arrays(zarr.open({name}, mode="r"))'
        return Store(list(_lines({"/": root})), code, lambda: penstock.from_arrays(root))
    members = sorted(root.members(max_depth=None), key=lambda member: str(member[0]))  # which come in any order
    arrays = {f"/{each}": found for each, found in members if isinstance(found, library.Array)}
    chosen = _together(arrays)
    code = f'import zarr\nstore = zarr.open({name}, mode="r")'
    return _store(
        list(_lines(arrays)),
        chosen,
        code,
        "store",
        lambda: penstock.from_arrays(_tree({each: arrays[each] for each in chosen})),
    )


def _damaged(path: Path, error: Exception) -> Store:
    return Store([], problem=f"{path} cannot be opened, it is damaged or not complete: {error}")


def _store(lines: list[str], chosen: list[str], code: str, variable: str, opener: Callable[[], Dataset]) -> Store:
    if not chosen:
        return Store(lines, problem="There is no array of numbers with rows in it, so there are no elements.")
    parts = {each: f"{variable}[{json.dumps(each, ensure_ascii=False)}]" for each in chosen}
    tree = _tree(parts)
    text = (
        tree
        if isinstance(tree, str)
        else f"{{{', '.join(f'{json.dumps(key)}: {part}' for key, part in tree.items())}}}"
    )
    return Store(lines, f"{code}\nds = ps.from_arrays({text})", opener)


def _lines(arrays: Mapping[str, Any]) -> Iterator[str]:
    width = max(map(len, arrays), default=0)
    for number, (name, array) in enumerate(arrays.items()):
        if number == MOST_LINES:
            yield f"and {len(arrays) - MOST_LINES:,} more"
            return
        chunks = f", chunks of {array.chunks}" if array.chunks else ""
        yield f"{name:<{width}}  {array.shape} {array.dtype}{chunks}"


def _together(arrays: Mapping[str, Any]) -> list[str]:
    """The largest array, and those beside it that have as many rows."""
    rows = {
        name: array
        for name, array in arrays.items()
        if array.shape and array.shape[0] and array.dtype.itemsize and not array.dtype.hasobject
    }
    if not rows:
        return []
    largest = max(rows, key=lambda name: math.prod(rows[name].shape) * rows[name].dtype.itemsize)
    folder, count = largest.rpartition("/")[0], rows[largest].shape[0]
    return [name for name, array in rows.items() if name.rpartition("/")[0] == folder and array.shape[0] == count]


def _tree(parts: dict[str, Any]) -> Any:
    """One by itself, several by the last part of their names."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    return {name.rpartition("/")[2]: part for name, part in parts.items()}
