"""HDF5 datasets (`h5py`) as a source: reopened in each process by file name and path in the file.

HDF5 runs one call at a time in a process, and an open object must not cross to another process. So a source is two
names. `open` gives an object that opens the file read-only and reads under h5py's own lock.
"""

import importlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import h5py
import numpy as np
import numpy.typing as npt

from penstock.base._errors import (
    ArgumentError,
    ArgumentTypeError,
    PenstockError,
    SourceError,
    SpecError,
    home_cure,
)
from penstock.base._files import lasting_stamp, require_file
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices
from penstock.sources.arrays import NamedSource
from penstock.sources.boxes import BoxSource, box_text
from penstock.sources.npy import StridedFile
from penstock.volumes._hdf5files import OtherFiles, arrays_in, require_inside
from penstock.volumes._packed import log_packed

T = TypeVar("T")

_TRIES: Final = 3
"""How often rows are read whose other files change meanwhile."""


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """Opens a file for a look.

    Raises:
        SourceError: It is missing, or no HDF5 file, or damaged.
    """
    name = os.fspath(path)
    try:
        require_file(name)
        file = h5py.File(name, "r")
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{name} cannot be opened: {error.strerror or error}.{home_cure(name)}") from error
    with file:
        try:
            yield file
        except PenstockError:
            raise
        except Exception as error:  # what h5py raises for damage has many types
            raise SourceError(
                f"{name} is damaged, or has something that h5py does not read: {type(error).__name__}: {error}. Write "
                "it again, or name the arrays that are wanted with names=[...]."
            ) from error


def selected(
    file: h5py.File, path: str, names: str | Iterable[str] | None, files_in: str | None = None
) -> "dict[str, Hdf5Source]":
    """Describes arrays of an open file, for `penstock.from_hdf5`. Their values may be in other files of a folder.

    Raises:
        ArgumentError: There is no such array.
        ArgumentTypeError: Names are no text.
        SpecError: An array has no rows of a fixed size.
        SourceError: The file has no arrays, or values are in a file outside of the folder.
    """
    wanted = _arrays_in(file, path) if names is None else [names] if isinstance(names, str) else list(names)
    if not wanted and names is None:
        raise SourceError(f"{path} has no arrays.")
    sources = {}
    for name in wanted:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"from_hdf5(names=) has the paths of arrays in the file, as text, got {name!r}.")
        require_inside(file, name, files_in)
        if not isinstance(file.get(name), h5py.Dataset):
            raise ArgumentError(f"from_hdf5(): {path} has no array {name!r}; it has {_arrays_in(file, path)}.")
        cure = f" Leave it out: names={[each for each in wanted if each != name]}." if names is None else ""
        sources[name] = _described(file[name], path, cure)
    log_packed("from_hdf5()", {f"{name} in {path}": file[name].attrs for name in sources})
    return sources


def _arrays_in(file: h5py.File, path: str) -> list[str]:
    """The paths of all arrays.

    Raises:
        SourceError: One is no text.
    """
    found = arrays_in(file)
    if strange := [name for name in found if not isinstance(name, str)]:
        raise SourceError(
            f"{path} has an array with the name {strange[0]!r:.80}, which is no text in UTF-8. It is damaged, or was "
            "written in another encoding: write it again."
        )
    return found


def _described(data: Any, path: str, cure: str) -> "Hdf5Source":
    name = data.name
    if not data.shape:
        raise SpecError(f"{name} in {path} has no axes, and elements are counted by a first one.{cure}")
    try:
        dtype = data.dtype
    except TypeError as error:
        raise SpecError(f"{name} in {path} has a type that h5py does not read: {error}.{cure}") from None
    if dtype.hasobject and not is_text(data):
        raise SpecError(
            f"{name} in {path} has values that are arrays of any size, references, or records with these or text, "
            f"{dtype}, which have no place of a fixed size in a batch.{cure} A function can make arrays of them: "
            f"penstock.range({len(data)}).map(fn), where fn takes a row of h5py.File({path!r})[{name!r}]."
        )
    return from_dataset(data, is_checked=True)


def is_text(data: Any) -> bool:
    """Whether the values of a dataset are text of any size."""
    text = h5py.check_string_dtype(data.dtype)
    return text is not None and text.length is None


def spec_of(data: Any) -> ArraySpec:
    """Returns the spec of a row."""
    return ArraySpec(data.shape[1:], np.dtype("U") if is_text(data) else data.dtype)


@final
@dataclass(frozen=True)
class Hdf5Source(NamedSource):
    """The rows of an HDF5 dataset."""

    path: str
    """The file."""
    name: str
    """The dataset's path in the file."""
    element_spec: ArraySpec
    count: int
    chunk_nbytes: int = 0
    """The memory of a chunk, which is decoded as a whole, as the file says; 0 for an array in one piece."""
    chunk_shape: tuple[int, ...] | None = None
    is_packed: bool = False
    suits_one_thread = True  # HDF5 has one lock

    @property
    def kept_nbytes(self) -> int:
        return self.chunk_nbytes

    def __str__(self) -> str:
        return f"{self.path}{self.name}"

    def fingerprint_parts(self) -> dict[str, Any]:
        """A local file by path, size, time of the last change and a mark of its content, and the dataset in it."""
        state = lasting_stamp(self.path) if os.path.exists(self.path) else ()
        return {"the file": (self.path, *state), "the rows": (self.name, self.element_spec, self.count)}

    def open(self) -> "OpenHdf5Source":
        return OpenHdf5Source(self)

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> BoxSource | None:
        return BoxSource(self, sizes, keeps_first=keeps_first) if self.element_spec.dtype.itemsize else None

    def pieces(self) -> tuple[StridedFile, npt.NDArray[np.int64], int] | None:
        """Where the numbers of one axis lie: the file, the first byte of each piece, and the length of a piece.

        None where HDF5 has to read them: they are compressed, partly missing, in other files, behind a user block, or
        of a type that NumPy has not.

        Raises:
            SourceError: The file is gone, or has changed.
        """
        opened = OpenHdf5Source(self)
        try:
            data = opened.data()
            if data.ndim != 1 or data.dtype.hasobject or data.id.get_type() != h5py.h5t.py_create(data.dtype):
                return None  # numbers that are not kept as NumPy keeps them, such as 24 bits of 32
            places, count = _places_in(data), len(data)
            if places is None or (places < 0).any():
                return None
            status, item = os.stat(self.path), data.dtype.itemsize
            state = status.st_dev, status.st_ino, status.st_size
            described = StridedFile(self.path, 0, (count,), data.dtype, (item,), *state)
            return described, places, (data.chunks or (max(1, count),))[0]
        except PenstockError:
            raise
        except Exception as error:  # what h5py raises for damage has many types
            raise SourceError(f"{self} cannot be read: {error}. The file is damaged; write it again.") from error
        finally:
            opened.close()


@final
class OpenHdf5Source:
    """Reads rows; the file is opened at the first read."""

    def __init__(self, source: Hdf5Source) -> None:
        self._source = source
        self._file: h5py.File | None = None
        self._others: OtherFiles | None = None
        self._data: Any = None
        self._descriptor, self._nbytes = -1, 0

    def read_into(self, indices: Indices, out: npt.NDArray[Any]) -> None:
        """Reads each run of neighbouring rows in one call, in file order, so that a chunk is decoded once."""
        self._steadily(indices, lambda data: self._read_into(data, indices, out))

    def _read_into(self, data: Any, indices: Indices, out: npt.NDArray[Any]) -> None:
        if not len(indices):
            return
        order = np.argsort(indices, kind="stable")
        breaks = np.flatnonzero(np.diff(indices[order]) > 1) + 1
        values = data.asstr("utf-8") if is_text(data) else data  # whatever the file says
        for run in np.split(order, breaks):
            first, last = int(indices[run[0]]), int(indices[run[-1]])
            out[run] = self._rows(values, first, last)[indices[run] - first]

    def decode(self, part: int) -> npt.NDArray[Any]:
        """Reads a row of chunks.

        Raises:
            SourceError: It cannot be read.
        """
        rows = np.arange(*self._source.rows_of(part))
        return self._steadily(rows, lambda data: self._rows(data, rows[0], rows[-1]))

    def _rows(self, data: Any, first: int, last: int) -> Any:
        """Reads rows that are neighbours."""
        try:
            return data[first : last + 1]
        except Exception as error:  # what h5py raises for damage has many types
            raise SourceError(f"{self._source.describe(first)} to row {last} cannot be read: {error}") from error

    def part(self, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Reads a box of the array.

        Raises:
            SourceError: It cannot be read.
        """
        return self._steadily(np.arange(box[0].start, box[0].stop), lambda data: self._part(data, box))

    def _part(self, data: Any, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        try:
            return data[box]  # type: ignore[no-any-return]
        except Exception as error:  # what h5py raises for damage has many types
            raise SourceError(f"{box_text(self._source, box)} cannot be read: {error}") from error

    def _steadily(self, rows: Indices, read: Callable[[Any], T]) -> T:
        """Reads rows, and again if other files that have values changed meanwhile: HDF5 may not have found them.

        Raises:
            SourceError: One is missing now, or changes again and again; or the file became shorter, and HDF5 gives
                zeros for the rest.
        """
        data = self.data()
        if not self._others:
            found = read(data)
            self._require_size()
            return found
        with h5py._hl.base.phil:
            for _ in range(_TRIES):
                found = read(self.data())
                if not self._others.have_changed(rows):
                    self._require_size()
                    return found
                self.close()
        raise SourceError(f"{self._source} cannot be read: the files that have its values change all the time.")

    def _require_size(self) -> None:
        if self._descriptor >= 0 and (nbytes := os.fstat(self._descriptor).st_size) < self._nbytes:
            raise SourceError(
                f"{self._source.path} has {nbytes:,} bytes now; it had {self._nbytes:,} when it was opened. Put it "
                "back, and make the dataset again."
            )

    def data(self) -> Any:
        """The open dataset."""
        source = self._source
        with h5py._hl.base.phil:  # h5py's own lock, so that one thread opens the file
            if self._data is None:
                try:
                    if os.path.exists(source.path):
                        require_file(source.path)
                    self._file = h5py.File(source.path, "r")
                    if self._file.driver == "sec2":
                        self._descriptor = self._file.id.get_vfd_handle()
                        self._nbytes = os.fstat(self._descriptor).st_size
                    self._others = OtherFiles(self._file, source.name)
                    data = self._file[source.name]
                except SourceError:
                    self.close()
                    raise
                except Exception as error:
                    raise SourceError(
                        f"{source} cannot be opened again: {error}. It has to be in a file on a disk that is not open "
                        "for writing, neither in another process nor, with worker processes, in this one."
                    ) from error
                if not isinstance(data, h5py.Dataset) or not data.shape:
                    raise SourceError(f"{source} has no rows now. Make the dataset again.")
                source.require_same(data, spec_of(data))
                _require_filters(data)
                self._data = data
        return self._data

    def close(self) -> None:
        for each in (self._others, self._file):
            if each is not None:
                each.close()
        self._data = self._file = None  # the others stay: whether there are any


def _places_in(data: Any) -> npt.NDArray[np.int64] | None:
    """The first byte of each chunk of an array of one axis, -1 where it is missing; that of one in one piece.

    None where HDF5 has to find them: they are compressed, in other files, or behind a user block.
    """
    if data.id.get_create_plist().get_nfilters() or data.is_virtual or data.external or data.file.userblock_size:
        return None
    if not hasattr(data.id, "chunk_iter"):  # HDF5 before 1.12.3; asking for each takes as long as all together
        return None
    count = len(data)
    if data.chunks is None:
        return np.array([-1 if data.id.get_offset() is None else data.id.get_offset()])
    places = np.full(-(-count // data.chunks[0]), -1, np.int64)

    def found(chunk: Any) -> None:
        at = chunk.chunk_offset[0] // data.chunks[0]
        if at < len(places) and chunk.byte_offset is not None:
            places[at] = chunk.byte_offset

    data.id.chunk_iter(found)
    return places


def from_dataset(data: Any, *, is_checked: bool = False) -> Hdf5Source:
    """Describes an open `h5py.Dataset` by names.

    Raises:
        ArgumentTypeError: It has no name.
        SourceError: Its values are in a file outside of the folder of its file, or compressed in an unknown way.
    """
    if data.name is None:
        raise ArgumentTypeError(
            f"from_arrays() got {data!r}, which has no name, so it cannot be found again in its file. Make it with "
            "one: file.create_dataset('x', ...)."
        )
    name = data.file.filename
    if not is_checked:
        require_inside(data.file, data.name, None)
    _require_filters(data)
    # Another process may have another current directory. A name that is no path, such as a URL, stays as it is.
    path = os.path.abspath(name) if os.path.exists(name) else name
    chunk_nbytes = math.prod(data.chunks or (0,)) * data.dtype.itemsize
    is_packed = data.id.get_create_plist().get_nfilters() > 0
    return Hdf5Source(path, data.name, spec_of(data), len(data), chunk_nbytes, data.chunks, is_packed)


def _require_filters(data: Any) -> None:
    """Has the package hdf5plugin, if it is installed, bring filters that HDF5 lacks, in each process.

    Raises:
        SourceError: Chunks are compressed by a filter that is not there.
    """
    if _missing_filters(data) or data.is_virtual:  # whose values may have filters of their own
        with suppress(ImportError):
            importlib.import_module("hdf5plugin")
    if missing := _missing_filters(data):
        raise SourceError(
            f"{data.name} in {data.file.filename} is compressed by {', '.join(missing)}, which HDF5 has not. Install "
            "hdf5plugin, which has many such filters: pip install hdf5plugin. Or write the array again with "
            "compression='gzip'."
        )


def _missing_filters(data: Any) -> list[str]:
    plan = data.id.get_create_plist()
    filters = [plan.get_filter(number) for number in range(plan.get_nfilters())]
    missing = [(code, name) for code, _, _, name in filters if not h5py.h5z.filter_avail(code)]
    return [f"filter {code} ({name.partition(b';')[0].decode(errors='replace'):.40})" for code, name in missing]


def is_dataset(leaf: object) -> bool:
    """Whether a leaf is an `h5py.Dataset`.

    Raises:
        ArgumentTypeError: Its file is closed.
    """
    if isinstance(leaf, h5py.Dataset) and not leaf:
        raise ArgumentTypeError(
            "from_arrays() got a dataset of an HDF5 file that is closed. Call from_arrays() while it is open; "
            "afterwards it may be closed."
        )
    return isinstance(leaf, h5py.Dataset)
