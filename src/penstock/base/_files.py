"""Opens files that the user names. A pipe would keep its reader waiting for a writer, perhaps for ever."""

import errno
import hashlib
import io
import os
import stat
from typing import BinaryIO, Final, NamedTuple

from penstock.base._errors import ArgumentError, SourceError

# Not on Windows. O_NONBLOCK changes nothing for a regular file.
_FLAGS: Final[int] = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_MARK_NBYTES: Final = 64 << 10
"""Bytes of each of the three blocks that a mark of the content takes."""


class Stamp(NamedTuple):
    """What tells a state of a local file from others without reading it. Unpacked archives share size and time."""

    nbytes: int
    modified_ns: int
    """The time that `os.utime` sets."""
    inode: int
    """The number of the file; 0 for any. A new file may get that of a deleted one."""
    changed_ns: int
    """The time of the last change of anything, also of the mode, the links and the name. No program sets it."""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> "Stamp":
        """The stamp of a file now.

        Raises:
            OSError: It is missing.
        """
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)

    def is_same(self, other: "Stamp") -> bool:
        """Whether a run may take another, later state for the same.

        `chmod` changes only the time, and mounts of FUSE give a file another inode while it is in use. Neither may end
        a run. A file in the place of another has both anew.
        """
        return self[:2] == other[:2] and (self.inode in (0, other.inode) or self.changed_ns == other.changed_ns)


def lasting_stamp(path: str) -> tuple[int, int, str]:
    """Returns what identifies a file to a cache: size, time of the last change, and a mark of the content.

    `cache()` may have taken hours, and is of use beside copies of the files too. So neither the inode counts nor a
    `chmod`. A change of the content at the same size and time is noticed within the blocks of `content_mark`.

    Raises:
        OSError: It cannot be read.
    """
    return (*Stamp.of(path)[:2], content_mark(path))


def content_mark(path: str) -> str:
    """Returns the size of a file and a hash of three blocks of it, which tell files apart on several machines.

    Inodes and times differ between copies of a file. A change elsewhere that keeps the size goes unnoticed.

    Raises:
        OSError: The file cannot be read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        places = (0, max(0, size // 2 - _MARK_NBYTES // 2), max(0, size - _MARK_NBYTES))
        blocks = b"".join(os.pread(file.fileno(), _MARK_NBYTES, place) for place in places)
    return f"{size}-{hashlib.blake2b(blocks, digest_size=8).hexdigest()}"


def open_descriptor(path: str | bytes | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Opens anything, and never waits for a process at the other end.

    Raises:
        OSError: It cannot be opened.
    """
    return os.open(path, flags | _FLAGS)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for reading, without a buffer.

    Raises:
        SourceError: It is a pipe, a socket or a device.
        OSError: It is missing, cannot be read, or is a directory.
    """
    require_file(path)  # before it is opened: that can rewind a tape
    descriptor = open_descriptor(path)
    try:
        _require_regular(os.fstat(descriptor).st_mode, path)
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def require_file(path: str | os.PathLike[str]) -> None:
    """Refuses what is no regular file. For libraries that open files by their names.

    Raises:
        SourceError: It is a pipe, a socket or a device.
        OSError: It is missing, or a directory.
    """
    _require_regular(os.stat(path).st_mode, path)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether it is a folder, or a link to one.

    Raises:
        OSError: The system cannot say, as when the disk fails. For `os.path.isdir` it is none then.
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def _require_regular(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise SourceError(
            f"{os.fspath(path)} is a pipe, a socket or a device, of which nothing can be read twice, nor by its place. "
            "Write what it gives to a file first."
        )


def require_path(path: str) -> None:
    """Refuses text that no path can have.

    Raises:
        ArgumentError: It has a zero byte, or half of a character.
    """
    try:
        if b"\0" not in os.fsencode(path):
            return
    except UnicodeEncodeError:
        pass
    raise ArgumentError(f"{path!r} is no path of a file.")


class Readable(io.RawIOBase):
    """Bytes that can be read anywhere, as a file object of Python for other libraries. A subclass has `readinto`.

    Args:
        nbytes: The size of the file.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self._nbytes, self._at = nbytes, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Goes to a place."""
        self._at = offset + (0, self._at, self._nbytes)[whence]
        return self._at
