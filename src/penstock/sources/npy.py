"""Descriptions of arrays in files, made without reading the data.

A `StridedFile` describes an array on disk as a NumPy array describes memory: by start, shape, dtype and strides. So C
order, Fortran order, and any slice, step or transpose of a memmap are one case. It has a few hundred bytes and travels
to workers in place of the data.

A file in memory, on tmpfs or without a name, accepts seals, and a file on a disk does not. A file that is sealed
against shrinking can be read through a mapping without the risk of SIGBUS.
"""

import errno
import io
import math
import mmap
import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, BinaryIO, Final, Self, final

import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base._errors import PenstockError, SourceError, gone_cure, home_cure
from penstock.base._files import content_mark, open_file
from penstock.base._travel import leaves_machine

_READERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# A header is evaluated as a Python literal. A thousand named fields take about 30 kB; a longer one is damage.
_MAX_HEADER_NBYTES: Final = 1 << 20
SEVERAL_FILES = (
    'For several files side by side: penstock.from_npy({"x": path, "y": other}). One after the other: a list of paths.'
)


class EngineRows(ABC):
    """Rows that the copy engine reads by a source of its own. They stand for an array in `Source.arrays`."""

    files: "Sequence[StridedFile]"
    """The files that they lie in."""

    @abstractmethod
    def opened(self, name: object, row: int = 0) -> native.Source:
        """Opens them for the copy engine.

        Raises:
            SourceError: A file is gone, or too short; it names `row`.
        """

    @abstractmethod
    def require_same(self, row: int) -> None:
        """Refuses files that are gone, or were replaced.

        Raises:
            SourceError: Names the row.
        """

    @abstractmethod
    def error_of(self, error: native.CopyError) -> SourceError:
        """Returns the error of a row that could not be read, as users read it.

        Raises:
            SourceError: It is that a file is gone, or was replaced.
        """


@final
@dataclass(frozen=True)
class StridedFile:
    """A description of an array in a file. Descriptions of equal rows of one file are equal, and have equal hashes."""

    path: str
    """Absolute path of the file."""
    offset: int
    """First byte of element `[0, ..., 0]` in the file."""
    shape: tuple[int, ...]
    """Shape of the whole array; its first axis counts the rows."""
    dtype: np.dtype[Any]
    """Any dtype of fixed size, in the file's byte order; never object."""
    strides: tuple[int, ...]
    """Bytes from one element to the next along each axis; may be negative or zero."""
    st_dev: int
    """Device of the file when it was described."""
    st_ino: int
    """Inode of the file when it was described."""
    st_size: int
    """Size of the file in bytes when it was described."""
    outer: tuple[int, ...] = ()
    """The axes that were joined to the axis of rows; empty if none were."""
    mapped: bool | None = field(default=None, compare=False)
    """Whether rows are copied from a mapping; None for the faster of what fits."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not leaves_machine():
            return super().__reduce_ex__(protocol)
        require_same(self, 0)
        return _arrived, (*[getattr(self, each.name) for each in fields(self)], content_mark(self.path))

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @cached_property
    def row_nbytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    @cached_property
    def has_whole_rows(self) -> bool:
        """Whether the bytes of a row lie next to each other, in C order."""
        expected = _contiguous_strides(self.row_shape, self.dtype.itemsize, False)
        axes = zip(self.row_shape, self.strides[1:], expected, strict=True)
        return 0 in self.row_shape or all(size == 1 or stride == whole for size, stride, whole in axes)

    @property
    def extent(self) -> tuple[int, int]:
        """`(first, end)`: the range of bytes of the file that holds all elements."""
        if 0 in self.shape:
            return self.offset, self.offset
        reach = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        first = self.offset + sum(r for r in reach if r < 0)
        return first, self.offset + sum(r for r in reach if r > 0) + self.dtype.itemsize

    def describe(self, index: int) -> str:
        """Names a row for messages: `/data/ds.npy[777]`, or `/data/ds.npy[77, 7]` if two axes were joined."""
        place = np.unravel_index(index, self.outer) if self.outer else (index,)
        return f"{self.path}[{', '.join(map(str, place))}]"

    def unstacked(self) -> "StridedFile | None":
        """Returns the parts of all rows along their first axis as rows; None if they are not evenly spaced."""
        if len(self.shape) < 2 or 0 in self.shape[:2] or self.strides[0] != self.shape[1] * self.strides[1]:
            return None
        outer = (*(self.outer or self.shape[:1]), self.shape[1])
        shape = (self.shape[0] * self.shape[1], *self.shape[2:])
        return replace(self, shape=shape, strides=self.strides[1:], outer=outer)

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> "StridedFile | None":
        """Returns the patches that begin at each item as rows, see `Source.patched`; None if it is not in C order."""
        if self.strides != _contiguous_strides(self.shape, self.dtype.itemsize, False) or 0 in self.shape:
            return None
        last = np.ravel_multi_index([n - size for n, size in zip(self.shape, sizes, strict=True)], self.shape)
        first = 0 if keeps_first else 1
        shape, strides = (int(last) + 1, *sizes[first:]), (self.dtype.itemsize, *self.strides[first:])
        outer = (*(self.outer or self.shape[:1]), *self.shape[1:])
        return replace(self, shape=shape, strides=strides, outer=outer)

    def fault(self, element: int, text: str) -> SourceError:
        """The error of an element that cannot be read."""
        return SourceError(f"{self.describe(element)} cannot be read: {text}")

    def is_gone(self, element: int, error: OSError) -> SourceError:
        """The error if the file cannot be found or opened any more."""
        return self.fault(element, f"{self.path}: {error.strerror or error}. {gone_cure(error)}")

    def is_shorter(self, element: int, size: int) -> SourceError:
        """The error if the file has `size` bytes, and the element needs more."""
        return self.fault(
            element,
            f"{self.path} was shortened since the dataset was made, from {self.st_size:,} to {size:,} bytes; its array "
            f"ends at byte {self.extent[1]:,}. Restore the file, or make the dataset again from what is there.",
        )

    def windowed(self, size: int, stride: int) -> "StridedFile":
        """The windows of `size` rows, `stride` apart, as rows of an array in the same file: one for each start."""
        shape = (max(0, self.shape[0] - (size - 1) * stride), size, *self.row_shape)
        return replace(self, shape=shape, strides=(self.strides[0], self.strides[0] * stride, *self.strides[1:]))

    @classmethod
    def of_memmap(cls, array: np.ndarray[Any, Any]) -> Self | None:
        """Describes an `np.memmap`, or any view of one, by its file. Reads no data.

        Slices, steps, transposes and plain-ndarray views keep their meaning, because the address of the first element
        gives its place in the file.

        Args:
            array: Any array.

        Returns:
            The description; None if the values are not those of a file that can be opened again. Examples are copies,
            mode `"c"` with its private changes, memmaps without a name, and files that were deleted or replaced.
        """
        if array.dtype.hasobject or array.ndim == 0:
            return None
        owner: Any = array
        while not isinstance(owner, np.memmap):
            owner = getattr(owner, "base", None)
            if owner is None:
                return None
        # A view of a memmap keeps the mapping and the name; a copy does not.
        buffer: Any = getattr(owner, "_mmap", None)
        filename: Any = owner.filename
        if buffer is None or filename is None or owner.mode == "c":
            return None
        try:
            path = os.path.abspath(filename)
            status = os.stat(path)
            # A file of another size has replaced the mapped one. The inode of the mapped file is unknown, so an earlier
            # replacement of equal size goes unnoticed.
            if status.st_size != buffer.size():
                return None
        except (OSError, TypeError, ValueError):
            return None
        base = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        address = array.__array_interface__["data"][0]
        # NumPy maps from the last page boundary before the requested offset.
        mapped_from = owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY
        described = cls(
            path=path,
            offset=mapped_from + address - base,
            shape=array.shape,
            dtype=array.dtype,
            strides=array.strides,
            st_dev=status.st_dev,
            st_ino=status.st_ino,
            st_size=status.st_size,
        )
        first, end = described.extent
        return described if mapped_from <= first and end <= status.st_size else None


def require_same(file: StridedFile, element: int) -> os.stat_result:
    """Refuses a file that is gone, or was replaced by another of the same name; else returns its status.

    Raises:
        SourceError: Names the element.
    """
    try:
        status = os.stat(file.path)
    except OSError as error:
        raise file.is_gone(element, error) from error
    if status.st_ino != file.st_ino or status.st_dev != file.st_dev:
        raise file.fault(
            element,
            f"{file.path} was replaced by another file since the dataset was made (inode {file.st_ino} then, "
            f"{status.st_ino} now), and a run must not mix two. Make the dataset again, and continue by set_state(). "
            "Data that are written in place instead reach batches that are not made yet; the first of the next epoch "
            "may be made already.",
        )
    return status


def arrived(file: StridedFile, mark: str) -> StridedFile:
    """Returns the description of a file that came from another machine, with the inode of this one.

    Args:
        file: The description.
        mark: The `content_mark` there.

    Raises:
        SourceError: This machine has no such file, or another one.
    """
    machine = f"this machine, {platform.node()}"
    cure = "Put the same file under this path on all machines, or in a folder that they share."
    try:
        found, status = content_mark(file.path), os.stat(file.path)
    except OSError as error:
        raise SourceError(f"{file.path} cannot be read on {machine}: {error.strerror or error}. {cure}") from error
    if found != mark:
        raise SourceError(
            f"{file.path} on {machine}, differs from the file of which the dataset was made, in size or content. {cure}"
        )
    return replace(file, st_dev=status.st_dev, st_ino=status.st_ino)


def _arrived(*values: Any) -> StridedFile:
    return arrived(StridedFile(*values[:-1]), values[-1])


def describe(path: str | os.PathLike[str]) -> StridedFile:
    """Describes the array in a `.npy` file. Reads only its header.

    Versions 1, 2 and 3 of the format, C and Fortran order, every dtype of fixed size.

    Raises:
        SourceError: The file cannot be opened, is no `.npy` file, is empty or truncated, or holds Python objects or a
            single value.
    """
    absolute = os.path.abspath(path)
    try:
        with open_file(absolute) as file:
            status = os.fstat(file.fileno())
            return described(file, absolute, absolute, (status.st_dev, status.st_ino, status.st_size))
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{absolute} cannot be read: {error.strerror or error}.{_cure(os.fspath(path))}") from error


def described(file: BinaryIO | Any, name: str, path: str, state: tuple[int, int, int]) -> StridedFile:
    """Describes the array in an open `.npy` file; see `describe`.

    Args:
        file: The file, at its start.
        name: Its name in messages.
        path: Its path.
        state: Its device, inode and size.
    """
    try:
        shape, fortran_order, dtype = _read_header(file)
    except (OSError, PenstockError):
        raise
    except Exception as error:  # whatever Python says of a literal that is none
        raise SourceError(
            f"{name} is not a .npy file that can be read: {error}. Give a file that np.save wrote to its end; of an "
            "archive by np.savez, save each array alone."
        ) from error
    if dtype.hasobject:
        raise SourceError(
            f"{name} holds Python objects (dtype {dtype}). They could only be unpickled, which runs whatever "
            f"code the file contains, and their places in the file are not known. Save elements of one fixed "
            f"size: np.save({name!r}, np.stack(list(objects))), or strings as dtype 'U' or 'S'."
        )
    if not dtype.itemsize:
        raise SourceError(
            f"{name} holds values of no bytes at all (dtype {dtype}), so there is nothing to read. Save them with a "
            "dtype that has a size, such as 'U1' for empty text."
        )
    if not shape:
        raise SourceError(
            f"{name} holds a single value (shape ()), so it has no elements to count. Save it with a first "
            f"axis: np.save({name!r}, value[None])."
        )
    strides = _contiguous_strides(shape, dtype.itemsize, fortran_order)
    found = StridedFile(path, file.tell(), shape, dtype, strides, *state)
    _check_complete(found, fortran_order, name)
    return found


def _cure(path: str) -> str:
    if os.path.isdir(path) or any(each in path for each in "*?["):
        return f" from_npy() reads one file. {SEVERAL_FILES}"
    return home_cure(path)


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the shape, whether it is in Fortran order, and the dtype; the data of the file come next."""
    version = np.lib.format.read_magic(file)
    if version == (3, 0):  # in UTF-8, which no public function of NumPy reads: with escapes it is of version 2
        nbytes = int.from_bytes(file.read(4), "little")
        text = file.read(nbytes).decode().encode("ascii", "backslashreplace")
        version, file = (2, 0), io.BytesIO(len(text).to_bytes(4, "little") + text)
    if version not in _READERS:
        raise ValueError("it is of version {}.{}, and 1.0, 2.0 and 3.0 are known".format(*version))
    shape, fortran_order, dtype = _READERS[version](file, max_header_size=_MAX_HEADER_NBYTES)
    is_shape = all(0 <= n < 1 << 62 for n in shape) and is_possible(shape, dtype)
    if not is_shape or dtype.subdtype is not None:  # np.save writes the axes of such a dtype into the shape
        raise ValueError(f"its shape is {shape} and its dtype {dtype}")
    return shape, fortran_order, dtype


def is_possible(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether NumPy can make such an array: it counts the bytes in 63 bits, as if axes of size 0 were not there."""
    return math.prod(size or 1 for size in shape) * dtype.itemsize < 1 << 63


def _contiguous_strides(shape: tuple[int, ...], itemsize: int, fortran_order: bool) -> tuple[int, ...]:
    axes = range(len(shape))
    if fortran_order:
        return tuple(itemsize * math.prod(shape[:axis]) for axis in axes)
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in axes)


def _check_complete(described: StridedFile, fortran_order: bool, name: str) -> None:
    expected = math.prod(described.shape) * described.dtype.itemsize
    present = max(0, described.st_size - described.offset)
    if present >= expected:
        return
    if fortran_order and len(described.shape) > 1:
        whole = "no row is whole, because it is in Fortran order"
    else:
        whole = f"{present // described.row_nbytes:,} of {described.shape[0]:,} rows are whole"
    raise SourceError(
        f"{name} is truncated: shape {described.shape} of {described.dtype} takes {expected:,} bytes after "
        f"the header and {present:,} are there, so {whole}. Whatever wrote it had not finished or failed; "
        f"write it again."
    )


if sys.platform == "linux":
    from fcntl import F_ADD_SEALS, F_GET_SEALS, F_SEAL_SHRINK, fcntl

_RWF_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


def is_in_memory(descriptor: int, offset: int) -> bool:
    """Whether a byte of a file can be read without a disk; False if the system does not say."""
    try:
        return bool(_RWF_NOWAIT) and os.preadv(descriptor, [bytearray(1)], offset, _RWF_NOWAIT) == 1
    except OSError as error:  # EAGAIN: it is not. EOPNOTSUPP: this file system does not say.
        return error.errno == errno.EOPNOTSUPP and _seals(descriptor) is not None


def seal_size(descriptor: int) -> None:
    """Seals a file against shrinking, if it accepts seals.

    Args:
        descriptor: The file, open for writing.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK)


def mapped(file: StridedFile) -> npt.NDArray[Any] | None:
    """Returns the rows of a file that cannot shrink, as an array over a mapping; None for other files.

    The mapping is read-only, and ends with the last view of the array.
    """
    with suppress(OSError), open_file(file.path) as opened:
        nbytes = os.fstat(opened.fileno()).st_size
        if nbytes >= file.extent[1] > file.offset and (_seals(opened.fileno()) or 0) & F_SEAL_SHRINK:
            memory = mmap.mmap(opened.fileno(), nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
            return np.ndarray(file.shape, file.dtype, memory, file.offset, file.strides)
    return None


def _seals(descriptor: int) -> int | None:
    """Returns the seals of a file; None if it accepts none."""
    with suppress(OSError):
        return fcntl(descriptor, F_GET_SEALS) if sys.platform == "linux" else None
    return None
