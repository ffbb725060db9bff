"""Zarr arrays as a source: a store, which is a name for local files, and the array's path in it.

Zarr returns the fill value for a missing chunk. So an array that was deleted, or is looked for in another directory,
would be read as zeros. Each opening therefore checks the array under its absolute path, and a read checks it again if
its metadata have changed or are missing. In other stores it is checked after a row of fill values.
"""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, final

import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import FsspecStore, LocalStore, ZipStore

from penstock.base._errors import SourceError
from penstock.base._files import Stamp, lasting_stamp
from penstock.base._spec import ArraySpec
from penstock.files._remote import insist
from penstock.memory._rows import Indices
from penstock.sources.arrays import NamedSource
from penstock.sources.boxes import BoxSource, box_text, fill_box

_CODECS: Final = ("blosc", "gzip", "zstd")
"""Compressions that numcodecs decodes without settings."""


@final
class ZarrSource(NamedSource):
    """The rows of a Zarr array, by its store and its path in it."""

    def __init__(self, array: Any) -> None:
        _require_no_code(array)
        store = array.store
        self._store: Any = store
        """The store; for a Zip file its absolute path, because a store would open it wherever it is unpickled."""
        if isinstance(store, LocalStore) and not store.root.is_absolute():
            self._store = LocalStore(store.root.absolute(), read_only=True)
        elif isinstance(store, ZipStore) and store.read_only:
            self._store = os.path.abspath(store.path)
        self._path = array.path
        self._metadata_name = "zarr.json" if array.metadata.zarr_format == 3 else ".zarray"
        self.count = int(array.shape[0])
        dtype = np.dtype("U") if is_text(array) else array.dtype
        if array.metadata.zarr_format == 3 and not dtype.names:
            # The byte order belongs to the chunks. Only the object that made the array has it in its dtype.
            dtype = dtype.newbyteorder("<")
        self.element_spec = ArraySpec(array.shape[1:], dtype)
        self.chunk_shape = tuple(array.chunks)  # in a shard too, each can be read alone
        self.chunk_nbytes: int = math.prod(array.chunks) * array.dtype.itemsize
        # Of a server, zarr requests many chunks at once.
        self.is_packed = bool(array.compressors or array.filters) and not self.is_remote

    @property
    def kept_nbytes(self) -> int:
        """The memory of a chunk, which is decoded as a whole, as the metadata say."""
        return self.chunk_nbytes

    def __str__(self) -> str:
        return str(self._store) + f"/{self._path}" * bool(self._path)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The array; in a directory, its files by path, size, time of the last change and inode."""
        if isinstance(self._store, str):
            return {"the array": str(self), "its file": lasting_stamp(self._store)}
        if not isinstance(self._store, LocalStore):
            return {"the store": self._store, "the array": self._path}
        folder = os.path.join(self._store.root, self._path)
        files: list[tuple[str, int, int, int]] = []
        for where, _, names in os.walk(folder):
            paths = [os.path.join(where, name) for name in names]
            files.extend((os.path.relpath(path, folder), *Stamp.of(path)[:3]) for path in paths)
        return {"the array": str(self), "its files": sorted(files)}

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> BoxSource | None:
        assert isinstance(self.element_spec, ArraySpec)
        return BoxSource(self, sizes, keeps_first=keeps_first) if self.element_spec.dtype.itemsize else None

    def open(self) -> "OpenZarrSource":
        return OpenZarrSource(self)

    def find(self) -> Any:
        """Opens the array.

        Raises:
            SourceError: It is missing, shorter, or has other rows.
        """
        try:
            store = ZipStore(self._store, mode="r") if isinstance(self._store, str) else self._store
            # Not every writable store can be opened read-only.
            now = zarr.open_array(store, path=self._path, mode="r" if store.read_only else "r+")
        except Exception as error:  # stores raise exceptions of any type
            raise SourceError(f"{self} cannot be opened again: {str(error).rstrip('.')}. Put it back.") from error
        _require_no_code(now)
        self.require_same(now, ArraySpec(now.shape[1:], np.dtype("U") if is_text(now) else now.dtype))
        return now

    def version(self) -> Stamp | None:
        """Returns the stamp of a local metadata file, which changes if the array is made again or resized."""
        if isinstance(self._store, LocalStore):
            with suppress(OSError):
                return Stamp.of(os.path.join(self._store.root, self._path, self._metadata_name))
        return None

    @property
    def is_remote(self) -> bool:  # type: ignore[override]  # depends on the store
        return isinstance(self._store, FsspecStore)

    @property
    def may_vanish(self) -> bool:
        """Whether the store is not local, so that `version` does not show that the array is missing."""
        return not isinstance(self._store, (str, LocalStore))


@final
class OpenZarrSource:
    """Reads rows. Each read checks whether the metadata of the array are unchanged."""

    def __init__(self, source: ZarrSource) -> None:
        self._source = source
        self._open(source.version())

    def _open(self, version: Stamp | None) -> Any:
        array = self._source.find()
        self._known = version, array
        self._read_chunk = _chunk_reader(array)
        return array

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        """Reads the rows in one call, so that each chunk is decoded once."""
        array = self._array()
        rows, places = np.unique(indices, return_inverse=True)
        # Codecs and stores raise exceptions of any type.
        found = insist(
            lambda: array.oindex[rows],
            lambda: self._source.describe(int(rows[0])) + f" and {len(rows) - 1} more rows" * (len(rows) > 1),
        )
        out[...] = found[places].astype(object) if found.dtype.kind == "T" else found[places]
        if self._source.may_vanish and _has_empty_row(found, array.fill_value):
            self._source.find()

    def part(self, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Reads a box of the array."""
        array = self._array()
        found: npt.NDArray[Any] = insist(lambda: self._read(array, box), lambda: box_text(self._source, box))
        if self._source.may_vanish and _has_empty_row(found, array.fill_value):
            self._source.find()
        return found

    def decode(self, part: int) -> npt.NDArray[Any]:
        """Reads a row of chunks."""
        spec = self._source.element_spec
        assert isinstance(spec, ArraySpec)
        box = slice(*self._source.rows_of(part)), *(slice(0, size) for size in spec.shape)
        return self.part(box).astype(spec.dtype, copy=False)

    def _read(self, array: Any, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        if self._read_chunk is None:
            return array[box]  # type: ignore[no-any-return]
        start, shape = [each.start for each in box], [each.stop - each.start for each in box]
        if all(at % n == 0 and size <= n for at, size, n in zip(start, shape, array.chunks, strict=True)):
            chunk = self._read_chunk(tuple(at // n for at, n in zip(start, array.chunks, strict=True)))
            return chunk[tuple(map(slice, shape))]
        out = np.empty(shape, array.dtype)
        fill_box(out, start, array.chunks, self._read_chunk)
        return out

    def _array(self) -> Any:
        """The array, opened again if its metadata have changed."""
        version, array = self._known
        if (now := self._source.version()) != version:
            array = self._open(now)
        return array

    def close(self) -> None:
        """Closes a Zip file that was opened here. A file that the user writes to belongs to the user."""
        store = self._known[1].store
        if isinstance(store, ZipStore) and store.read_only:
            store.close()


def _chunk_reader(array: Any) -> Callable[[tuple[int, ...]], npt.NDArray[Any]] | None:
    """Returns what reads the chunk with these numbers along the axes, on the calling thread; None if only zarr does.

    Zarr hands each chunk from thread to thread several times, which takes as long as to decode it.
    """
    about, store = array.metadata, array.store
    dtype, shape = array.dtype, array.chunks
    if not isinstance(store, LocalStore):
        return None
    if about.zarr_format == 2:
        if about.filters or about.compressor is None or about.order != "C":
            return None
        decode = about.compressor.decode
    else:
        first, *others = (each.to_dict() for each in about.codecs)
        if first["name"] != "bytes" or [each["name"] in _CODECS for each in others] != [True]:
            return None
        dtype = dtype.newbyteorder(first.get("configuration", {}).get("endian", "="))
        decode = numcodecs.get_codec({"id": others[0]["name"]}).decode
    folder = os.path.join(store.root, array.path)
    fill = about.fill_value

    def read(place: tuple[int, ...]) -> npt.NDArray[Any]:
        try:
            with open(os.path.join(folder, about.encode_chunk_key(place)), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return np.full(shape, 0 if fill is None else fill, dtype)
        return np.frombuffer(decode(content), dtype).reshape(shape)

    return read


def _require_no_code(array: Any) -> None:
    """Refuses chunks that are pickles: to read one runs whatever code it has. Old versions of numcodecs do so.

    Raises:
        SourceError: They are.
    """
    codecs = getattr(array.metadata, "compressor", None), *(getattr(array.metadata, "filters", None) or ())
    if any(getattr(each, "codec_id", "") == "pickle" for each in codecs):
        raise SourceError(
            f"{array.store}/{array.path} has chunks that are pickles, which run whatever code they contain when they "
            "are read. If you trust it, read it once by zarr alone, array[...], and write it again as numbers, or as "
            "text of dtype str."
        )


def _has_empty_row(rows: npt.NDArray[Any], fill: Any) -> bool:
    """Whether a row, of rows `(n, ...)`, is what Zarr returns for missing chunks."""
    if fill is None:
        fill = np.zeros((), rows.dtype)[()]
    is_fill = rows != rows if fill != fill else rows == fill  # NaN is not itself
    return bool(is_fill.all(axis=tuple(range(1, rows.ndim))).any())


def attributes_of(array: Any) -> dict[str, Any]:
    """The attributes of an array. In version 2 xarray writes `_FillValue` as the fill value of the array."""
    found = dict(array.attrs)
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in found and array.fill_value is not None:
        found["_FillValue"] = array.fill_value
    return found


def is_text(array: Any) -> bool:
    """Whether the values of an array are text of any size."""
    return bool(array.dtype.kind == "T")


def is_array(leaf: object) -> bool:
    """Whether a leaf is a `zarr.Array`."""
    return isinstance(leaf, zarr.Array)
