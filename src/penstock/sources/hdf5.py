"""HDF5 datasets (`h5py`) as a source: reopened in each process by file name and path in the file.

HDF5 runs one call at a time in a process, and an open object must not cross to another process. So a source is two
names. `open` gives an object that opens the file read-only and reads under h5py's own lock.
"""

import importlib
import math
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import h5py
import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base._errors import (
    ArgumentError,
    ArgumentTypeError,
    PenstockError,
    SourceError,
    SpecError,
    home_cure,
)
from penstock.base._files import lasting_stamp, open_file, require_file
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices
from penstock.sources._hdf5files import OtherFiles, arrays_in, require_inside
from penstock.sources._packed import log_packed
from penstock.sources.arrays import NamedSource
from penstock.sources.boxes import BoxSource, box_text
from penstock.sources.npy import StridedFile

T = TypeVar("T")

_TRIES: Final = 3
"""How often rows are read whose other files change meanwhile."""
_CHECKSUM_NBYTES: Final = 4
"""Of the filter fletcher32, at the end of a stored chunk."""
_REFERENCE_NBYTES: Final = 16
"""A row of text: its length, its place, and its number there."""
_TEXT_HEAD: Final = struct.Struct("<H6xQ")
_HEAP_MARK: Final = b"GCOL"
"""How a place for texts begins."""


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
        if "signature not found" in str(error):
            raise SourceError(_no_hdf5(name)) from error
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


def _no_hdf5(path: str) -> str:
    """The message about a file of another kind."""
    with open(path, "rb") as file:
        head = file.read(8)
    cure = " netCDF 3 is read by xarray: from_xarray(xarray.open_dataset(path), 'time')." if head[:3] == b"CDF" else ""
    return f"{path} is no HDF5 file: it begins with {head!r}.{cure}"


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
        link = file.get(name, getlink=True)
        is_loose = isinstance(link, h5py.SoftLink) and file.get(name) is None
        if is_loose or name not in file or not isinstance(file[name], h5py.Dataset):
            found = _arrays_in(file, path)
            inner = [each for each in found if each.startswith(f"{name.strip('/')}/")]
            fact = f"is a group, with {inner}" if inner else f"is no array in it; it has {found}"
            if is_loose:
                fact = f"is a link to {link.path!r}, and nothing is there; it has {found}"
            raise ArgumentError(f"from_hdf5(): {path} was asked for {name!r}, which {fact}.")
        cure = f" Leave it out: names={[each for each in wanted if each != name]}." if names is None else ""
        sources[name] = _described(file[name], path, cure)
    if len({len(each) for each in sources.values()}) > 1:
        counts = ", ".join(f"{name!r}: {len(each):,}" for name, each in sources.items())
        raise ArgumentError(
            f"from_hdf5() puts rows side by side, and the arrays of {path} have different numbers of them: {counts}. "
            "Name those of one length with names=[...]."
        )
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
        what = "is empty, without a shape" if data.shape is None else "is a single value"
        raise SpecError(f"{name} in {path} {what}, and elements are counted by a first axis.{cure}")
    try:
        dtype = data.dtype
    except TypeError as error:
        raise SpecError(f"{name} in {path} has a type that h5py does not read: {error}.{cure}") from None
    if dtype.hasobject and not _is_text(dtype):
        kind = "arrays of any size" if h5py.check_vlen_dtype(dtype) else "references" if _is_reference(dtype) else ""
        kind = kind or f"records with text, arrays or references in them, {dtype}"
        read = f"h5py.File({path!r})[{name!r}]"
        raise SpecError(
            f"{name} in {path} has values that are {kind}, which have no place of a fixed size in a batch.{cure} A "
            f"function can make arrays of them: penstock.range({len(data)}).map(fn), where fn takes a row of {read}."
        )
    return from_dataset(data, is_checked=True)


def _is_text(dtype: np.dtype[Any]) -> bool:
    """Whether values are text of any size."""
    text = h5py.check_string_dtype(dtype)
    return text is not None and text.length is None


def _is_reference(dtype: np.dtype[Any]) -> bool:
    return h5py.check_ref_dtype(dtype) is not None


def spec_of(data: Any) -> ArraySpec:
    """Returns the spec of a row."""
    return ArraySpec(data.shape[1:], np.dtype("U") if _is_text(data.dtype) else data.dtype)


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
        self._references: _References | None = None
        self._short: list[tuple[tuple[int, ...], int]] = []
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
        if self._references is not None:
            self._references.require(indices, self._source)
        for run in np.split(order, breaks):
            first, last = int(indices[run[0]]), int(indices[run[-1]])
            try:
                self._require_checksums(first, last)
                rows = data[first : last + 1]
            except Exception as error:  # what h5py raises for damage has many types
                raise SourceError(f"{self._source.describe(first)} to row {last} cannot be read: {error}") from error
            if rows.dtype.hasobject:
                rows = self._texts(rows, first)
            out[run] = rows[indices[run] - first]

    def part(self, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Reads a box of the array.

        Raises:
            SourceError: It cannot be read.
        """
        return self._steadily(np.arange(box[0].start, box[0].stop), lambda data: self._part(data, box))

    def _part(self, data: Any, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        try:
            self._require_checksums(box[0].start, box[0].stop - 1)
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

    def _require_checksums(self, first: int, last: int) -> None:
        """Refuses rows in a chunk that is too short for its checksum.

        Raises:
            ValueError: One is.
        """
        for place, nbytes in self._short:
            if first - self._data.chunks[0] < place[0] <= last:
                raise ValueError(f"its chunk at {place} has {nbytes} bytes, too few for its checksum (fletcher32)")

    def _texts(self, rows: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
        """Decodes text, which is UTF-8 in files, whatever they say."""
        found = np.empty(rows.size, object)
        for number, value in enumerate(rows.ravel().tolist()):
            try:
                found[number] = value.decode()
            except UnicodeDecodeError as error:
                row = first + number // (rows.size // len(rows))
                raise SourceError(
                    f"{self._source.describe(row)} cannot be read: {error}. It is in another encoding: write it again "
                    "as UTF-8."
                ) from None
        return found.reshape(rows.shape)

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
                if data.dtype.hasobject and data.ndim == 1 and (places := _places_in(data)) is not None:
                    self._references = _References(places, data)
                try:
                    self._short = _short_chunks(data)
                except Exception as error:  # what h5py raises for damage has many types
                    raise SourceError(f"{source} cannot be read: {error}. Write the file again.") from error
                self._data = data
        return self._data

    def close(self) -> None:
        for each in (self._others, self._file, self._references and self._references.file):
            if each is not None:
                each.close()
        self._data = self._file = self._references = None  # the others stay: whether there are any


def _places_in(data: Any) -> npt.NDArray[np.int64] | None:
    """The first byte of each chunk of an array of one axis, -1 where it is missing; that of one in one piece.

    None where HDF5 has to find them: they are compressed, in other files, behind a user block, or not to be listed.
    """
    if data.id.get_create_plist().get_nfilters() or data.is_virtual or data.external or data.file.userblock_size:
        return None
    count = len(data)
    places = np.full(-(-count // (data.chunks or (count or 1,))[0]), -1, np.int64)
    if data.chunks is None:
        places[:] = -1 if data.id.get_offset() is None else data.id.get_offset()
    else:

        def found(chunk: Any) -> None:
            at = chunk.chunk_offset[0] // data.chunks[0]
            if at < len(places) and chunk.byte_offset is not None:
                places[at] = chunk.byte_offset

        _each_chunk(data, found)
    return places


@final
class _References:
    """Text of any size lies elsewhere in the file; in a row are its length, in 4 bytes, and its place, in 8.

    Of a length that a damaged row claims, HDF5 takes the memory before it looks for the text; and at some places where
    there is none, it looks for it without an end.
    """

    def __init__(self, places: npt.NDArray[np.int64], data: Any) -> None:
        self.file = open_file(data.file.filename)
        has_usual_sizes = data.file.id.get_create_plist().get_sizes() == (8, 8)  # or rows have another size
        self._places = places if has_usual_sizes else np.full_like(places, -1)
        self._length = (data.chunks or (max(1, len(data)),))[0]
        self._sound: set[int] = set()
        """Places for texts that were looked at."""

    def require(self, rows: Indices, source: Hdf5Source) -> None:
        """Refuses rows whose text would be longer than the file, or lies where no text is kept.

        Raises:
            SourceError: One is. Names the row.
        """
        rows = rows[self._places[rows // self._length] >= 0]
        offsets = self._places[rows // self._length] + rows % self._length * _REFERENCE_NBYTES
        found = self._read(offsets, _REFERENCE_NBYTES)
        lengths = found[:, :4].copy().view("<u4")[:, 0].astype(np.int64)
        places = found[:, 4:12].copy().view("<u8")[:, 0].astype(np.int64)
        most = os.fstat(self.file.fileno()).st_size
        wrong = (lengths > most) | (places < 0) | (places > most)
        if not wrong.any():
            several, which = np.unique(places, return_inverse=True)
            wrong = np.array([place > 0 and not self._is_sound(place, most) for place in several.tolist()])[which]
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SourceError(
                f"{source.describe(int(rows[row]))} cannot be read: it is a text of {lengths[row]:,} bytes at byte "
                f"{places[row]:,}, where there is none; the file has {most:,} bytes. It is damaged; write it again."
            )

    def _is_sound(self, place: int, most: int) -> bool:
        """Whether texts lie at a place, one after the other: for each its number, its size, and its bytes."""
        if place not in self._sound:
            head = self._read(np.array([place]), _TEXT_HEAD.size).tobytes()
            size = int.from_bytes(head[8:], "little")
            if not head.startswith(_HEAP_MARK) or size > most - place:
                return False
            content, at = self._read(np.array([place]), size).tobytes(), _TEXT_HEAD.size
            while at + _TEXT_HEAD.size <= size:
                number, nbytes = _TEXT_HEAD.unpack_from(content, at)
                step = nbytes if number == 0 else _TEXT_HEAD.size + -(-nbytes // 8) * 8  # 0: what is free
                if not _TEXT_HEAD.size <= step <= size - at:
                    return False
                at += step
            self._sound.add(place)
        return True

    def _read(self, offsets: npt.NDArray[np.int64], nbytes: int) -> npt.NDArray[np.uint8]:
        """The bytes at some places, shape `(n, nbytes)`; zeros behind the end of the file."""
        found = np.zeros((len(offsets), nbytes), np.uint8)
        sizes = np.full(len(offsets), nbytes)
        native.read_parts(self.file.fileno(), offsets, found.reshape(-1), np.cumsum(sizes) - sizes, sizes)
        return found


def _short_chunks(data: Any) -> list[tuple[tuple[int, ...], int]]:
    """The chunks that are too short for their checksums, with their bytes.

    HDF5 ends the process there, for it reads before their first byte. Where a checksum is inside of compressed data,
    that data has a checksum of its own.

    Raises:
        ValueError: Two chunks lie at one place, so it is not known which one HDF5 takes.
    """
    plan = data.id.get_create_plist()
    if not data.fletcher32 or plan.get_filter(plan.get_nfilters() - 1)[0] != h5py.h5z.FILTER_FLETCHER32:
        return []
    places, short = array("q"), []

    def found(chunk: Any) -> None:
        places.extend(chunk.chunk_offset)
        if chunk.byte_offset is not None and chunk.size < _CHECKSUM_NBYTES:
            short.append((chunk.chunk_offset, chunk.size))

    _each_chunk(data, found)
    every = np.frombuffer(places, np.int64).reshape(-1, data.ndim)
    unlike, counts = np.unique(every, axis=0, return_counts=True)
    if len(unlike) < len(every):
        raise ValueError(f"it has {counts.max()} chunks at {tuple(unlike[counts.argmax()].tolist())}. It is damaged")
    return short


def _each_chunk(data: Any, found: Callable[[Any], None]) -> None:
    if hasattr(data.id, "chunk_iter"):  # since HDF5 1.12.3; asking for each takes as long as all together
        data.id.chunk_iter(found)
    else:
        for number in range(data.id.get_num_chunks()):
            found(data.id.get_chunk_info(number))


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
    return Hdf5Source(path, data.name, spec_of(data), len(data), chunk_nbytes, data.chunks)


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


def is_text(data: Any) -> bool:
    """Whether the values of a dataset are text of any size."""
    return _is_text(data.dtype)


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
