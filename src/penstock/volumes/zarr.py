"""The arrays of a Zarr store, by their paths in it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import zarr
from zarr.storage import LocalStore, ZipStore

from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, SourceError, home_cure, no_path
from penstock.base._files import is_folder, require_file
from penstock.base._tree import Tree
from penstock.files._remote import is_remote
from penstock.sources.arrays import require_rows
from penstock.volumes._packed import log_packed
from penstock.volumes._zarr import ZarrSource, attributes_of, is_array, is_text


def selected(path: Any, names: str | Iterable[str] | None, storage_options: dict[str, Any] | None) -> Tree:
    """The sources of arrays, as a dict by their paths; of one name, or of a store that is an array, its source.

    Raises:
        ArgumentError: There is no such array, or numbers of rows differ.
        ArgumentTypeError: The path or names are no text.
        SourceError: There is no store, or it is damaged.
    """
    store, name = opened(path, storage_options)
    if isinstance(store, zarr.Array):
        if names is not None:
            raise ArgumentError(f"from_zarr(names=...) chooses arrays of a group, and {name} is one array.")
        log_packed("from_zarr()", {name: attributes_of(store)})
        return source_of(store, name)
    wanted = list(_arrays(store, name)) if names is None else [names] if isinstance(names, str) else list(names)
    if not wanted and names is None:
        raise SourceError(f"{name} has no arrays.")
    sources, attributes = {}, {}
    for each in wanted:
        if not isinstance(each, str):
            raise ArgumentTypeError(f"from_zarr(names=) has the paths of arrays in the store, as text, got {each!r}.")
        key = each.strip("/")
        try:
            array = store.get(key) if key else store
        except Exception as error:  # stores and codecs raise exceptions of any type
            raise SourceError(f"{name}/{key} cannot be opened: {str(error).rstrip('.')}.") from error
        if not isinstance(array, zarr.Array):
            raise ArgumentError(f"from_zarr(): {name} has no array {each!r}; it has {_arrays(store, name)}.")
        sources[each] = source_of(array, f"{name}/{key}")
        attributes[f"{key} in {name}"] = attributes_of(array)
    log_packed("from_zarr()", attributes)
    return sources[names] if isinstance(names, str) else sources


def _arrays(store: Any, name: str) -> list[str]:
    """The paths of all arrays.

    Raises:
        SourceError: One cannot be opened.
    """
    try:
        return sorted(key for key, each in store.members(max_depth=None) if isinstance(each, zarr.Array))
    except Exception as error:  # stores and codecs raise exceptions of any type
        raise SourceError(
            f"The arrays of {name} cannot be listed: {str(error).rstrip('.')}. One is damaged: write it again, or name "
            "the arrays that are wanted with names=[...]."
        ) from error


def opened(path: Any, storage_options: dict[str, Any] | None) -> tuple[Any, str]:
    """The open group or array, and its name in messages.

    Raises:
        ArgumentTypeError: The path is no text.
        SourceError: There is no store, or it is damaged.
    """
    if isinstance(path, (zarr.Group, zarr.Array)):
        return path, f"{path.store}/{path.path}".rstrip("/")
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"from_zarr() needs a path, or an open group, got {no_path(path)}")
    name = os.fspath(path)
    try:
        if is_remote(name):
            return zarr.open(name, mode="r", storage_options=storage_options), name
        name = os.path.abspath(name)
        if is_folder(name):
            return zarr.open(LocalStore(name, read_only=True), mode="r"), name
        require_file(name)
        return zarr.open(ZipStore(name, mode="r"), mode="r"), name
    except PenstockError:
        raise
    except Exception as error:  # stores raise exceptions of any type
        raise SourceError(
            f"{name} cannot be opened as a Zarr store: {str(error).rstrip('.') or type(error).__name__}."
            f"{home_cure(os.fspath(path))}"
        ) from error


def source_of(array: Any, name: str) -> ZarrSource:
    """The rows of an array.

    Raises:
        ArgumentTypeError: It has no first axis.
        SourceError: It is damaged, or its chunks are pickles.
        SpecError: Values have no fixed size, and are no text.
    """
    try:
        require_rows(array, array, "", is_text=is_text(array))
        return ZarrSource(array)
    except PenstockError as error:
        error.add_note(f"The array is {name}.")
        raise
    except Exception as error:  # metadata that zarr accepts, and no array can have
        raise SourceError(f"{name} cannot be read: {error}. It is damaged; write it again.") from error


@final
class ZarrStore:
    """An open group as `h5ad.Store`."""

    def __init__(self, group: Any, path: str) -> None:
        self.path, self._group = path, group

    @classmethod
    @contextmanager
    def opened(cls, path: str) -> Iterator["ZarrStore"]:
        """Opens a store for a look.

        Raises:
            SourceError: It is missing, or none, or damaged.
        """
        group, name = opened(path, None)
        try:
            if isinstance(group, zarr.Array):
                raise SourceError(f"{name} is an array, and AnnData writes a group.")
            yield cls(group, name)
        except PenstockError:
            raise
        except Exception as error:  # stores and codecs raise exceptions of any type
            raise SourceError(f"{name} cannot be read: {error}. It is damaged; write it again.") from error

    def get(self, name: str) -> Any:
        """A group or an array; None if there is none."""
        return self._group.get(name)

    def is_array(self, item: Any) -> bool:
        """Whether it is an array."""
        return is_array(item)

    def source(self, name: str) -> ZarrSource:
        """The rows of an array."""
        return source_of(self._group[name], f"{self.path}/{name}")
