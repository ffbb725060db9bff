"""Files by name, on this machine or behind an URL, and many ranges of them at once.

A `File` is a name and what the file looked like when the dataset was made; it travels. `OpenFiles` reads. Ranges
that lie close together are one read; what is read lies in memory of the thread's own, which is used again.

Threads. `OpenFiles` serves any number at once: reads name their own offset, each thread has its own memory, and a
descriptor is closed when nobody reads from it any more, so that no read goes to another file with its number.
"""

import glob
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, home_cure, no_path
from penstock.base._retries import NOTHING_WANTED, RetryBudget, patience, reading_with
from penstock.plan._source import Source
from penstock.sources._inmemory import is_in_memory
from penstock.sources._remote import RemoteFile, Wanted, facts_of, is_remote, matches, read_ranges, reason_of
from penstock.sources.npy import require_places

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
F = TypeVar("F")
T = TypeVar("T")

# What is read in one go, and stays in the core's cache until it is decoded; over a network, where a request takes long
# and many can be under way, more.
_CHUNK_NBYTES: Final = 1 << 21
_REMOTE_CHUNK_NBYTES: Final = 32 << 20
# Bytes between two ranges that are read with them: fewer reads are worth them.
_GAP_NBYTES: Final = 4 << 10
_REMOTE_GAP_NBYTES: Final = 256 << 10
# Memory beyond this is given back at once: one large record should not cost it for the rest of the run.
_KEPT_NBYTES: Final = 8 << 20
# Files that are looked at, or indexed, at one time.
_THREADS: Final = 8
# A process may have 1,024 files open by default, and others need some.
_MAX_OPEN: Final = 128
_ADVICE_NBYTES: Final = 128 << 10


@final
@dataclass(frozen=True)
class File:
    """A file by name, and what tells whether it is still the same."""

    url: str
    """Its absolute path, or an URL that `fsspec` knows."""
    nbytes: int
    version: str
    """The time of its last change in ns, or what the remote file system has in its place."""

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine."""
        return not is_remote(self.url)

    @property
    def name(self) -> str:
        """Without folders."""
        return os.path.basename(self.url)

    def open(self) -> "_LocalFile | RemoteFile":
        """Opens it for reading.

        Raises:
            SourceError: It is gone, or another than it was.
        """
        cure = " It was there when the dataset was made; put it back, or make the dataset again."
        if not self.is_local:
            cure += (
                " A worker process knows of fsspec what the environment says, and what this program had set in "
                "fsspec.config.conf when the loader was made. For all else use executor='threads'."
            )
        now = _described(self.url, f"{self.url} cannot be opened", cure)
        opened = _opened(self.url, cure) if self.is_local else RemoteFile(self.url)
        if now != self:
            raise SourceError(
                f"{self.url} has changed since the dataset was made: {self.nbytes:,} bytes then, {now.nbytes:,} now"
                f"{', and written to' * (now.nbytes == self.nbytes)}. A run must not mix two; make the dataset again."
            )
        return opened

    def head(self, nbytes: int) -> bytes:
        """Its first bytes, or all where there are fewer; no more are asked for."""
        place = bytearray(min(nbytes, self.nbytes))
        count = self.open().read_into(0, memoryview(place)) if place else 0
        return bytes(place[:count])

    def stream(
        self, buffer_nbytes: int = 1 << 20, opened: "_LocalFile | RemoteFile | None" = None
    ) -> io.BufferedReader:
        """Opens it to be read from its start to its end, or with seeks; over a network the buffer is larger.

        Args:
            buffer_nbytes: Of a file of this machine.
            opened: What `open` gave before, if it need not be looked at again.
        """
        stream = _Stream(opened or self.open(), self.nbytes)
        return io.BufferedReader(stream, buffer_nbytes if self.is_local else 8 << 20)


def find(verb: str, paths: Any) -> tuple[File, ...]:
    """Returns the files that are meant by a path, a glob pattern, an URL, or several of these.

    Files of a pattern are in the order of their names; everything else is in the order given. Looks into directories,
    and reads nothing.

    Raises:
        ArgumentTypeError: Something is not a path.
        ArgumentError: There are none.
        SourceError: A file is not there, or a pattern fits none.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(several, Iterable) or isinstance(several, bytes):
        raise ArgumentTypeError(f"{verb}() needs a path, a pattern or a list of paths, got {no_path(paths)}")
    urls: list[str] = []
    for each in several:
        if not isinstance(each, (str, os.PathLike)):
            raise ArgumentTypeError(f"{verb}() needs paths, got {no_path(each)}")
        urls += _matches(os.fspath(each))
    if not urls:
        raise ArgumentError(f"{verb}() got no files.")
    return tuple(for_each(urls, described) if any(map(is_remote, urls)) else map(described, urls))


def for_each(files: Sequence[F], function: Callable[[F], T]) -> list[T]:
    """What a function says of each file, in their order; some are looked at at one time.

    Where one fails, or at Ctrl-C, the others end as soon as what they are at: nothing is tried again any more.

    Args:
        files: The files.
        function: Called on threads of its own.
    """
    if len(files) == 1:
        return [function(files[0])]
    words = memoryview(bytearray(8)).cast("q")

    def call(file: F) -> T:
        with reading_with(RetryBudget(words, generation=1)):
            return function(file)

    with ThreadPoolExecutor(max(1, min(_THREADS, len(files))), "penstock-index") as pool:
        try:
            return list(pool.map(call, files))
        except BaseException:
            words[0] = NOTHING_WANTED
            raise


class FilesSource(Source):
    """A source whose elements lie in files, one after the other; in messages it is called `a.tar and 3 more`."""

    files: tuple[File, ...]

    @property
    def is_remote(self) -> bool:  # type: ignore[override]  # found out by its files
        """Whether any of its files is behind an URL."""
        return any(not file.is_local for file in self.files)

    def __str__(self) -> str:
        more = len(self.files) - 1
        return self.files[0].name + f" and {more} more" * (more > 0)


def placed(bounds: Integers, index: int) -> tuple[int, int]:
    """Which part an element is in, and its number there; part `n` holds the elements from `bounds[n]` on."""
    number = int(np.searchsorted(bounds, index, "right")) - 1
    return number, index - int(bounds[number])


def stamp(path: str) -> tuple[int, int]:
    """The size of a file of this machine and the time of its last change, by which it is known again.

    Raises:
        OSError: It is not there.
    """
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def described(url: str) -> File:
    """Returns a file as it is now.

    Raises:
        SourceError: It cannot be looked at.
    """
    return _described(url, f"{url} cannot be read", home_cure(url))


class Chunk(NamedTuple):
    """Some of the ranges that were asked for, read."""

    members: Integers
    """Which, shape `(n,)`."""
    data: Bytes
    """Memory that they lie in; it holds something else when the next chunk is asked for."""
    starts: Integers
    """Where in it each range starts, shape `(n,)`."""


@final
class OpenFiles:
    """Files that are read, at most `_MAX_OPEN` open at a time.

    Memory: for each thread that reads, 2 MiB (over a network 32 MiB) and the largest range.
    """

    def __init__(self, files: Sequence[File]) -> None:
        self.files = files
        self._opened: dict[int, _LocalFile | RemoteFile] = {}
        self._lock = threading.Lock()
        self._own = threading.local()
        self._is_remote = any(not file.is_local for file in files)

    def chunks(self, numbers: Integers, offsets: Integers, sizes: Integers) -> Iterator[Chunk]:
        """Reads ranges, in the order of the files; ranges that are neighbours come in one read.

        Args:
            numbers: The file of each range, shape `(n,)`.
            offsets: The byte at which each starts.
            sizes: Its bytes.

        Raises:
            SourceError: A file ends before a range does, was changed, or its device fails.
        """
        order = _sorted(numbers, offsets)
        if order is not None:
            numbers, offsets, sizes = numbers[order], offsets[order], sizes[order]
        for first, last, heads, starts, total in self._cut(numbers, offsets, sizes):
            data = self._memory(total)
            ends = [*heads[1:], last]
            wanted = []
            for head, end in zip(heads, ends, strict=True):
                at = int(starts[head - first])
                nbytes = int(starts[end - 1 - first] + sizes[end - 1]) - at
                wanted.append((int(numbers[head]), int(offsets[head]), data[at : at + nbytes]))
            self._read(wanted)
            members = np.arange(first, last) if order is None else order[first:last]
            yield Chunk(members, data[:total], starts)

    def _cut(
        self, numbers: Integers, offsets: Integers, sizes: Integers
    ) -> Iterator[tuple[int, int, list[int], Integers, int]]:
        """Cuts sorted ranges into chunks; yields bounds, the first range of each read, places, and bytes in all."""
        count, gap = len(offsets), _REMOTE_GAP_NBYTES if self._is_remote else _GAP_NBYTES
        limit = _REMOTE_CHUNK_NBYTES if self._is_remote else _CHUNK_NBYTES
        steps = offsets[1:] - offsets[:-1]
        # Ranges are equal or do not overlap. One that comes twice is read twice, for its place is its own.
        joined = (numbers[1:] == numbers[:-1]) & (steps >= sizes[:-1]) & (steps <= sizes[:-1] + gap)
        ends = np.cumsum(np.where(joined, steps, sizes[:-1]), dtype=np.int64)
        places = np.concatenate(([0], ends)).astype(np.int64)
        first = 0
        while first < count:
            last = min(count, max(first + 1, int(np.searchsorted(places, places[first] + limit))))
            starts = places[first:last] - places[first]
            heads = [first, *(np.flatnonzero(~joined[first : last - 1]) + first + 1).tolist()]
            yield first, last, heads, starts, int(starts[-1] + sizes[last - 1])
            first = last

    def _memory(self, nbytes: int) -> Bytes:
        memory: Bytes | None = getattr(self._own, "memory", None)
        if memory is None or len(memory) < nbytes:
            memory = np.empty(max(nbytes, _CHUNK_NBYTES), np.uint8)
            self._own.memory = memory if nbytes <= _KEPT_NBYTES else None
        return memory

    def _read(self, wanted: list[tuple[int, int, Bytes]]) -> None:
        remote: list[Wanted] = []
        for number, offset, place in wanted:
            file = self._file(number)
            if isinstance(file, RemoteFile):
                remote.append((file, offset, place))
                continue
            try:
                got = file.read_into(offset, place.data)
            except OSError as error:
                raise SourceError(
                    f"{file.path} cannot be read at byte {offset:,}: {reason_of(error)}. The disk or the connection to "
                    "it fails; see the system's log."
                ) from error
            if got < len(place):
                raise SourceError(
                    f"{file.path} ends at byte {offset + got:,} now, in the middle of what is wanted; it had "
                    f"{self.files[number].nbytes:,} bytes when the dataset was made. Restore it, or make the dataset "
                    "again."
                )
        if remote:
            read_ranges(remote)

    def _file(self, number: int) -> "_LocalFile | RemoteFile":
        file = self._opened.get(number)
        if file is None:
            with self._lock:
                file = self._opened.get(number)
                if file is None:
                    if len(self._opened) >= _MAX_OPEN:
                        self._opened.pop(next(iter(self._opened)))
                    file = self._opened[number] = self.files[number].open()
        return file

    def advise(self, numbers: Integers, offsets: Integers, sizes: Integers) -> None:
        """Has the kernel fetch ranges that are not in memory yet; over a network it does nothing. Never fails."""
        if self._is_remote or not len(offsets) or not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError, SourceError):
            if all(is_in_memory(self._local(int(numbers[k])).descriptor, int(offsets[k])) for k in (0, -1)):
                return
            order = _sorted(numbers, offsets)
            if order is not None:
                numbers, offsets, sizes = numbers[order], offsets[order], sizes[order]
            apart = (numbers[1:] != numbers[:-1]) | (offsets[1:] > offsets[:-1] + sizes[:-1] + _GAP_NBYTES)
            firsts = np.concatenate(([True], apart))
            ends = (offsets + sizes)[np.concatenate((apart, [True]))]
            for number, offset, end in zip(
                numbers[firsts].tolist(), offsets[firsts].tolist(), ends.tolist(), strict=True
            ):
                file = self._local(number)
                # The kernel cuts an announcement to the device's readahead, and forgets the rest.
                for at in range(offset, end, _ADVICE_NBYTES):
                    length = min(_ADVICE_NBYTES, end - at)
                    os.posix_fadvise(file.descriptor, at, length, os.POSIX_FADV_WILLNEED)

    def _local(self, number: int) -> "_LocalFile":
        file = self._file(number)
        assert isinstance(file, _LocalFile)
        return file

    def close(self) -> None:
        """Closes the files, each when the reads of it that are under way have ended."""
        with self._lock:
            self._opened.clear()


class _LocalFile:
    """A descriptor that is closed when nobody holds this object any more."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        self._seek_lock = threading.Lock()

    def read_into(self, offset: int, place: memoryview, asker: RetryBudget | None = None) -> int:
        """Fills memory with the bytes from `offset` on; returns how many, fewer only at the file's end."""
        total = 0
        while total < len(place):
            count = self._read_some(offset + total, place[total:])
            if not count:
                break
            total += count
        return total

    def _read_some(self, offset: int, place: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.descriptor, [place], offset)
        # Windows has no positioned read in `os`: the position is shared, so one thread at a time.
        with self._seek_lock, open(self.descriptor, "rb", buffering=0, closefd=False) as file:
            file.seek(offset)
            return file.readinto(place) or 0

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0 and os is not None:
            os.close(self.descriptor)


class _Stream(io.RawIOBase):
    """An open file as Python's file object, for libraries that want one."""

    def __init__(self, file: "_LocalFile | RemoteFile", nbytes: int) -> None:
        self._file, self._nbytes, self._at = file, nbytes, 0
        self._asker = patience()  # libraries read on threads of their own

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._nbytes)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        place = memoryview(buffer).cast("B")[: max(0, self._nbytes - self._at)]
        count = self._file.read_into(self._at, place, self._asker) if len(place) else 0
        self._at += count
        return count


def _matches(path: str) -> list[str]:
    if is_remote(path):
        if not glob.has_magic(path):
            return [path]
        found = matches(path)
    else:
        path = path.removeprefix("file://").removeprefix("local://")
        if os.path.isdir(path):
            pattern = os.path.join(glob.escape(path), "*")
            raise SourceError(f"{path} is a directory. Name the files in it, as by the pattern {pattern!r}.")
        if not glob.has_magic(path) or os.path.exists(path):
            return [os.path.abspath(path)]
        found = [os.path.abspath(each) for each in sorted(glob.glob(path, recursive=True)) if os.path.isfile(each)]
    if not found:
        raise SourceError(f"No file fits the pattern {path}.{home_cure(path)}")
    return found


def _described(url: str, fact: str, cure: str) -> File:
    if is_remote(url):
        return File(url, *facts_of(url, fact, cure))
    with _told(fact, cure):
        nbytes, changed = stamp(url)
    require_places(url)
    return File(url, nbytes, str(changed))


def _opened(path: str, cure: str) -> "_LocalFile":
    with _told(f"{path} cannot be opened", cure):
        return _LocalFile(path)


def _sorted(numbers: Integers, offsets: Integers) -> Integers | None:
    """The order of ranges by file and offset; None where they are in it."""
    files, steps = numbers[1:] - numbers[:-1], offsets[1:] - offsets[:-1]
    if bool(np.all((files > 0) | ((files == 0) & (steps >= 0)))):
        return None
    return np.lexsort((offsets, numbers)).astype(np.int64)


@contextmanager
def _told(fact: str, cure: str) -> Iterator[None]:
    """Has what fails told as a fact, with its reason and a cure, a sentence after a space."""
    try:
        yield
    except Exception as error:
        raise SourceError(f"{fact}: {reason_of(error)}.{cure}") from error
