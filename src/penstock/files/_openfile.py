"""Files by name, on this machine or behind a URL, and reads of many byte ranges at once.

A `File` holds a name and the state of the file when the dataset was made. It travels to workers. `OpenFiles` reads.
It joins neighbouring ranges to one read, into memory of the calling thread that is used again.

Threads. Any number of threads may use one `OpenFiles`. Reads are positioned, each thread has its own memory, and a
descriptor is closed when the last reader drops it, so no read reaches another file with the same number.
"""

import copy
import glob
import io
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base._errors import (
    ArgumentError,
    ArgumentTypeError,
    SourceError,
    gone_cure,
    home_cure,
    no_path,
)
from penstock.base._files import (
    Readable,
    Stamp,
    content_mark,
    lasting_stamp,
    require_file,
    require_path,
)
from penstock.base._positions import require_order
from penstock.base._printable import printable
from penstock.base._retries import NOTHING_WANTED, RetryBudget, reading_with, retry_budget
from penstock.base._threads import starting_threads
from penstock.base._travel import leaves_machine
from penstock.base._units import size_text
from penstock.files._blocks import BlockReader, Spans
from penstock.files._diskcache import DiskCache
from penstock.files._fetch import AHEAD_NBYTES, MEMORY_COUNT, Fetcher, is_joined
from penstock.files._listing import matching
from penstock.files._remote import ByteSource, RemoteFile, facts_of, is_remote, matches, reason_of, sent
from penstock.files._store import StorageOptions, is_native
from penstock.memory._rows import Indices
from penstock.plan._source import Read, Source
from penstock.sources._localfile import LocalFile, unreadable
from penstock.sources.npy import is_in_memory

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
F = TypeVar("F")
T = TypeVar("T")

# The bytes of one chunk. They stay in the core's cache until they are decoded. Over a network a request takes long and
# many can be under way, so a chunk is larger.
_CHUNK_NBYTES: Final = 1 << 21
_REMOTE_CHUNK_NBYTES: Final = 16 << 20
# A gap up to this size between two ranges is read too, because a read costs more.
_GAP_NBYTES: Final = 4 << 10
_KEPT_NBYTES: Final = 8 << 20
# Begins the version of a local file that travels to other machines.
_CONTENT: Final = "content "
# Files that are examined or indexed at once. A server can answer more.
_THREADS: Final = 8
_REMOTE_THREADS: Final = 64
# The bytes of a remote file that are requested for one head, and at most. A member from the third size on is jumped
# over: a request for its end takes longer than its bytes, but many files are scanned at once.
_LOCAL_SCAN_NBYTES: Final = 16 << 10
_SCAN_NBYTES: Final = 2 << 10
_SCAN_MOST_NBYTES: Final = 4 << 20
_JUMP_NBYTES: Final = 32 << 10
# A process may have 1,024 files open by default, and other code needs some.
_MAX_OPEN: Final = 128
_BRACES: Final = re.compile(r"\{([0-9]{1,18}\.\.[0-9]{1,18}|[^{},]*(?:,[^{},]*)+)\}")
# The kernel cuts an announcement to the device's readahead, and drops the rest.
_ADVICE_NBYTES: Final = 128 << 10


@final
@dataclass(frozen=True)
class File:
    """A file by name, with the facts that identify its content."""

    url: str
    """An absolute path, or a URL that `fsspec` knows."""
    nbytes: int
    version: str
    """The last numbers of its `Stamp`, or a mark of the content; for a remote file the ETag or its equivalent."""
    options: StorageOptions | None = field(default=None, repr=False, compare=False)
    """Those of the client of a remote file."""
    cache: DiskCache | None = field(default=None, repr=False, compare=False)
    """Where parts of a remote file are kept."""

    @property
    def is_local(self) -> bool:
        return not is_remote(self.url)

    @property
    def name(self) -> str:
        """For titles of plans and the names of what is kept: the last part of the URL."""
        return os.path.basename(printable(self.url))

    def __str__(self) -> str:
        """The whole path, for messages: files in other folders may have the same name."""
        return printable(self.url)

    def __repr__(self) -> str:
        return f"File({printable(self.url)!r}, nbytes={self.nbytes}, version={self.version!r})"

    def open(self) -> ByteSource:
        """Opens the file for reading.

        Raises:
            SourceError: It is missing or has changed. For a remote file the first read raises it.
        """
        cure = " It was there when the dataset was made; put it back, or make the dataset again."
        if not self.is_local:
            if not is_native(self.url):
                cure += (
                    " A worker process knows of fsspec what the environment says, and what this program had set in "
                    "fsspec.config.conf when the loader was made. For other settings use executor='threads'."
                )
            return RemoteFile(self.url, (self.nbytes, self.version), self.options, cure)
        fact = f"{self.url} cannot be opened"
        now = described(self.url, fact, cure)
        if now.by_content() != self if self._has_mark else not self._stamp.is_same(now._stamp):
            raise SourceError(
                f"{self.url} has changed since the dataset was made: {self.nbytes:,} bytes then, {now.nbytes:,} now"
                f"{', and written to' * (now.nbytes == self.nbytes)}. A run must not mix two; make the dataset again."
            )
        try:
            return LocalFile(self.url)
        except OSError as error:
            raise SourceError(f"{fact}: {reason_of(error)}. {gone_cure(error)}") from error

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.is_local:
            return super(File, self.by_content() if leaves_machine() else self).__reduce_ex__(protocol)
        values = self.url, self.nbytes, self.version, self.options, self.cache
        return sent([self.url], File, values) or super().__reduce_ex__(protocol)

    def by_content(self) -> "File":
        """Returns the same file, if it is local, by its content in place of the time, which copies do not share."""
        if not self.is_local or self._has_mark:
            return self
        try:
            return replace(self, version=_CONTENT + content_mark(self.url))
        except OSError as error:
            raise SourceError(f"{self.url} cannot be read: {reason_of(error)}.") from error

    @property
    def _has_mark(self) -> bool:
        """Whether a mark of the content stands for the state: another machine made the dataset, or the file is ours."""
        return self.version.startswith(_CONTENT)

    @property
    def _stamp(self) -> Stamp:
        return Stamp(self.nbytes, *map(int, self.version.split()))

    def is_unchanged(self) -> bool:
        """Whether a local file is as it was, as far as can be seen without reading it.

        Raises:
            OSError: It is missing.
        """
        now = Stamp.of(self.url)
        return now.nbytes == self.nbytes if self._has_mark else self._stamp.is_same(now)

    @property
    def state(self) -> str:
        """What the file must have for what is kept of it to hold. It is made again sooner than wrong.

        The inode does not count, because mounts of FUSE give other ones each time.
        """
        if self.is_local and not self._has_mark:
            return f"{self.nbytes} {self._stamp.modified_ns} {self._stamp.changed_ns}"
        return f"{self.nbytes} {self.version}"

    def fingerprint_parts(self) -> dict[str, Any]:
        """The name and the state, without options."""
        if self.is_local and not self._has_mark:
            with suppress(OSError):
                return {"the file": (self.url, *lasting_stamp(self.url))}
        return {"the file": (self.url, self.nbytes, self.version)}

    def by_time(self) -> "File":
        """Returns the same local file by size and time alone: a copy of ours, which processes replace by its equal."""
        return replace(self, version=f"{self._stamp.modified_ns} 0 0")

    def head(self, nbytes: int) -> bytes:
        """Returns the first bytes, or all bytes of a shorter file, and requests no more."""
        place = bytearray(min(nbytes, self.nbytes))
        count = self.open().read_into(0, memoryview(place)) if place else 0
        return bytes(place[:count])

    def stream(self, buffer_nbytes: int = 1 << 20, opened: ByteSource | None = None) -> io.BufferedReader:
        """Opens the file for sequential reads and seeks. A remote file has a larger buffer.

        Args:
            buffer_nbytes: Size of the buffer of a local file.
            opened: An earlier result of `open`, to skip its check.
        """
        stream = _FileStream(opened or self.open(), self.nbytes)
        return io.BufferedReader(stream, buffer_nbytes if self.is_local else 8 << 20)

    def scan(self) -> io.BufferedIOBase:
        """Opens the file for reading heads with large parts between them, which a remote file does not send."""
        if self.is_local:
            return self.stream(buffer_nbytes=_LOCAL_SCAN_NBYTES)
        return io.BufferedReader(_Scan(self.open(), self.nbytes), _SCAN_NBYTES)

    @property
    def scan_nbytes(self) -> int:
        """The memory that a `scan` keeps, at most."""
        return _LOCAL_SCAN_NBYTES if self.is_local else _SCAN_MOST_NBYTES


def find(verb: str, paths: Any, storage_options: Any = None, cache: Any = None) -> tuple[File, ...]:
    """Returns the files of a path, a glob pattern, a URL, or a list of these.

    The files of a pattern are sorted by name. Otherwise the given order holds. Braces are several paths, as `expanded`
    says. Lists directories, but reads no file.

    Raises:
        ArgumentTypeError: An item is not a path.
        ArgumentError: There is no file.
        SourceError: A file is missing, or a pattern matches none.
    """
    several = asked(verb, paths)
    options, cache = StorageOptions.of(verb, storage_options), DiskCache.of(verb, cache)
    found: list[File | str] = []
    for each in several:
        for path in expanded(each):
            found += _matches(path, options)
    if not found:
        raise ArgumentError(f"{verb}() got no files.")

    return known(found, options, cache)


def asked(verb: str, paths: Any) -> list[str]:
    """Returns a path or a list of paths as a list of text.

    Raises:
        ArgumentTypeError: An item is not a path.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(several, Iterable) or isinstance(several, bytes):
        raise ArgumentTypeError(f"{verb}() needs a path, a pattern or a list of paths, got {no_path(paths)}")
    require_order(f"{verb}()", several, "Give a list, such as sorted(paths).")
    found: list[str] = []
    for each in several:
        if not isinstance(each, (str, os.PathLike)):
            raise ArgumentTypeError(f"{verb}() needs paths, got {no_path(each)}")
        found.append(os.fspath(each))
    return found


def known(
    found: Sequence[File | str],
    options: StorageOptions | None = None,
    cache: DiskCache | None = None,
    cure: str | None = None,
) -> tuple[File, ...]:
    """Returns paths and URLs as files, in order: those that a listing did not describe are looked at. See `described`.

    Raises:
        SourceError: One is missing.
    """

    def file_of(each: File | str) -> File:
        return each if isinstance(each, File) else described(each, cure=cure, options=options)

    is_slow = any(isinstance(each, str) and is_remote(each) for each in found)
    files = tuple(for_each(found, file_of) if is_slow else map(file_of, found))
    if cache is None:
        return files
    cache.require_room(sum(file.nbytes for file in files if not file.is_local))
    return tuple(file if file.is_local else replace(file, cache=cache) for file in files)


def for_each(
    files: Sequence[F], function: Callable[[F], T], known: Callable[[F], T | None] = lambda _: None
) -> list[T]:
    """Returns a function's result for each file, in order. Runs several at once, on threads of its own.

    If one fails, or at Ctrl-C, the others end without further retries.

    Args:
        files: The files.
        function: Called for each file that `known` does not know.
        known: Returns a result that needs no request, or None. Threads would take longer for it.
    """
    found = [known(file) for file in files]
    missing = [file for file, result in zip(files, found, strict=True) if result is None]
    made = iter(_on_threads(missing, function) if len(missing) > 1 else map(function, missing))
    return [next(made) if result is None else result for result in found]


def _on_threads(files: Sequence[F], function: Callable[[F], T]) -> list[T]:
    words = memoryview(bytearray(8)).cast("q")

    def call(file: F) -> T:
        with reading_with(RetryBudget(words, generation=1)):
            return function(file)

    is_local = all(isinstance(file, File) and file.is_local for file in files)
    thread_count = _THREADS if is_local else _REMOTE_THREADS
    with ThreadPoolExecutor(max(1, min(thread_count, len(files))), "penstock-index") as pool:
        try:
            with starting_threads():
                results = pool.map(call, files)
            return list(results)
        except BaseException:
            words[0] = NOTHING_WANTED
            raise


class FilesSource(Source):
    """A source whose elements lie in files, one file after the other. Messages call it `a.tar and 3 more`."""

    files: tuple[File, ...]
    suits_one_thread = True
    reads_ahead = True

    @property
    def bounds(self) -> Integers:
        """The first element of each part of the data, and the number of all elements; see `bounds_of`."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def describe(self, index: int) -> str:
        number, record = placed(self.bounds, index)
        return f"{self.files[number]} record {record}"

    @property
    def local_files(self) -> Sequence[str]:
        return [file.url for file in self.files if file.is_local]

    @property
    def is_remote(self) -> bool:  # type: ignore[override]  # depends on the files
        return any(not file.is_local for file in self.files)

    @property
    def kept_nbytes(self) -> int:
        return MEMORY_COUNT * self.ahead_nbytes if self.is_remote else 0

    @cached_property
    def ahead_nbytes(self) -> int:
        """The bytes that are requested ahead. No field, because elements do not depend on it."""
        return min(AHEAD_NBYTES, sum(file.nbytes for file in self.files))

    def with_cache_limit(self, nbytes: int) -> "FilesSource":
        if nbytes >= self.kept_nbytes:
            return self
        made = copy.copy(self)
        made.__dict__["ahead_nbytes"] = nbytes // MEMORY_COUNT
        return made

    def __str__(self) -> str:
        more = len(self.files) - 1
        return self.files[0].name + f" and {more} more" * (more > 0)

    def __getstate__(self) -> dict[str, Any]:
        # What is known of many files may be large. The receiving process reads or makes it again.
        return {name: value for name, value in self.__dict__.items() if name not in ("index", "folders")}


def bounds_of(counts: Iterable[int]) -> Integers:
    """Returns the first element of each part and the number of all elements, shape `(parts + 1,)`."""
    return np.cumsum([0, *counts], dtype=np.int64)


def placed(bounds: Integers, index: int) -> tuple[int, int]:
    """Returns the part that holds an element, and the element's number in it."""
    number = int(np.searchsorted(bounds, index, "right")) - 1
    return number, index - int(bounds[number])


def described(
    url: str, fact: str | None = None, cure: str | None = None, options: StorageOptions | None = None
) -> File:
    """Returns the current state of a file. `fact` and `cure` begin and end the message of an error.

    Raises:
        SourceError: It cannot be examined.
    """
    fact = fact or f"{url} cannot be read"
    cure = home_cure(url) if cure is None else cure
    if is_remote(url):
        return File(url, *facts_of(url, options, fact, cure), options)
    try:
        nbytes, *numbers = Stamp.of(url)
        require_file(url)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{fact}: {reason_of(error)}.{cure}") from error
    return File(url, nbytes, " ".join(map(str, numbers)))


class Chunk(NamedTuple):
    """Some of the requested ranges, after the read."""

    members: Integers
    """The numbers of the ranges, shape `(n,)`."""
    data: Bytes
    """Their memory. It is used again for the next chunk."""
    starts: Integers
    """The start of each range in `data`, shape `(n,)`."""


@final
class ThreadMemory:
    """Memory of each thread for what it reads, used again.

    Larger memory is freed after use, so that one large element does not cost it for the rest of the run.

    Args:
        least_nbytes: The bytes that a thread takes at first.
    """

    def __init__(self, least_nbytes: int) -> None:
        self._least_nbytes, self._own = least_nbytes, threading.local()

    def take(self, nbytes: int) -> Bytes:
        """Returns memory, whose content the next call may replace."""
        memory: Bytes | None = getattr(self._own, "memory", None)
        if memory is None or len(memory) < nbytes:
            memory = np.empty(max(nbytes, self._least_nbytes), np.uint8)
            self._own.memory = memory if nbytes <= _KEPT_NBYTES else None
        return memory[:nbytes]


def require_room(what: str, nbytes: int) -> None:
    """Refuses to take more memory than `memory_limit` leaves; `what` begins the message.

    Raises:
        SourceError: It is more.
    """
    if nbytes > (room_nbytes := retry_budget().room_nbytes):
        raise SourceError(
            f"{what} {size_text(nbytes)}, above the {size_text(int(room_nbytes))} that memory_limit leaves to each "
            "worker. Raise memory_limit, take fewer workers=, or leave it out."
        )


class OpenFiles:
    """Reads files, with at most `_MAX_OPEN` open at once. Remote files are read by a `Fetcher`.

    Memory: for each thread that reads, 2 MiB (over a network 16 MiB) or the largest range.
    """

    def __init__(self, files: Sequence[File], ahead_nbytes: int = AHEAD_NBYTES) -> None:
        self.files = files
        self._opened: dict[int, ByteSource] = {}
        self._lock = threading.Lock()
        self._memory = ThreadMemory(_CHUNK_NBYTES)
        self._is_far = np.array([not file.is_local for file in files], np.bool_)
        """Of each file, whether it is remote."""
        self._is_remote = bool(self._is_far.any())
        self._blocks = block_reader(files, self._remote_file, ahead_nbytes)
        self._far: BlockReader | Fetcher | None = self._blocks
        if self._is_remote and self._blocks is None:
            self._far = Fetcher(self._remote_file, ahead_nbytes)

    def chunks(self, numbers: Integers, offsets: Integers, sizes: Integers, width: int = 1) -> Iterator[Chunk]:
        """Reads ranges in the order of the files. Neighbouring ranges are one read.

        Args:
            numbers: The file of each range, shape `(n,)`.
            offsets: The first byte of each range.
            sizes: The bytes of each range.
            width: The ranges of an element, which follow each other.

        Raises:
            SourceError: A file is too short, has changed, or its device fails.
        """
        spans = None if self._blocks is None else self._blocks.spans(numbers, offsets, sizes, width)
        numbers, offsets, sizes, order = sorted_ranges(numbers, offsets, sizes)
        if self._is_remote:
            retry_budget().needed_nbytes += int(sizes.sum())
        if spans is not None and order is not None:
            spans = spans.of(order)
        for first, last, heads, starts, total in self._cut(numbers, offsets, sizes):
            data = self._memory.take(total)
            ends = np.append(heads[1:], last) - 1
            at = starts[heads - first]
            nbytes = starts[ends - first] + sizes[ends] - at
            self._read(numbers[heads], offsets[heads], data, at, nbytes, None if spans is None else spans.of(heads))
            members = np.arange(first, last) if order is None else order[first:last]
            yield Chunk(members, data, starts)

    def _cut(
        self, numbers: Integers, offsets: Integers, sizes: Integers
    ) -> Iterator[tuple[int, int, Integers, Integers, int]]:
        """Cuts sorted ranges into chunks. Yields bounds, the first range of each read, starts, and the total bytes."""
        count, limit = len(offsets), _CHUNK_NBYTES if not self._is_remote else _REMOTE_CHUNK_NBYTES
        steps = offsets[1:] - offsets[:-1]
        # Ranges are equal or disjoint. A repeated range is read twice, because each has its own place.
        if self._blocks is not None:
            joined = np.zeros(len(steps), np.bool_)  # each range has its blocks, which are read once
        elif self._is_remote:
            joined = is_joined(numbers, offsets, sizes) & (steps >= sizes[:-1])
        else:
            joined = (numbers[1:] == numbers[:-1]) & (steps >= sizes[:-1]) & (steps <= sizes[:-1] + _GAP_NBYTES)
        places = bounds_of(np.where(joined, steps, sizes[:-1]))
        first = 0
        while first < count:
            last = min(count, max(first + 1, int(np.searchsorted(places, places[first] + limit))))
            starts = places[first:last] - places[first]
            heads = np.append(first, np.flatnonzero(~joined[first : last - 1]) + first + 1)
            yield first, last, heads, starts, int(starts[-1] + sizes[last - 1])
            first = last

    def _read(
        self, numbers: Integers, offsets: Integers, data: Bytes, starts: Integers, sizes: Integers, spans: Spans | None
    ) -> None:
        if self._far is not None:
            far = np.flatnonzero(self._is_far[numbers])
            facts = (each[far].tolist() for each in (numbers, offsets, starts, starts + sizes))
            wanted = [(number, offset, data[start:stop]) for number, offset, start, stop in zip(*facts, strict=True)]
            self._far.read(wanted, retry_budget(), None if spans is None else spans.of(far))
        bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for first, last in itertools.pairwise(bounds):
            number = int(numbers[first])
            if self._is_far[number]:
                continue
            file = self._local_file(number)
            parts = slice(first, last)
            count, got, error = native.read_parts(file.descriptor, offsets[parts], data, starts[parts], sizes[parts])
            if count == last - first:
                continue
            at = int(offsets[first + count])
            if error:
                raise unreadable(file.path, at, error)
            raise SourceError(
                f"{file.path} ends at byte {at + got:,} now, in the middle of what is wanted; it had "
                f"{self.files[number].nbytes:,} bytes when the dataset was made. Restore it, or make the dataset "
                "again."
            )

    def _file(self, number: int) -> ByteSource:
        if (file := self._opened.get(number)) is None:
            with self._lock:
                if (file := self._opened.get(number)) is None:
                    if len(self._opened) >= _MAX_OPEN:
                        self._opened.pop(next(iter(self._opened)))
                    file = self._opened[number] = self.files[number].open()
        return file

    def _remote_file(self, number: int) -> RemoteFile:
        """Returns a remote file, which holds nothing open, so any number may be known."""
        file = self._opened.get(number) or self._opened.setdefault(number, self.files[number].open())
        assert isinstance(file, RemoteFile)
        return file

    def announce(self, numbers: Integers, offsets: Integers, sizes: Integers, width: int = 1) -> None:
        """Announces ranges to the kernel, unless they are in memory, or requests them. Never fails."""
        if self._far is not None:
            far = self._is_far[numbers]
            self._far.announce(numbers[far], offsets[far], sizes[far], retry_budget().limit_s, width)
            return
        if not len(offsets):
            return
        with suppress(OSError, SourceError):
            if all(is_in_memory(self._local_file(int(numbers[k])).descriptor, int(offsets[k])) for k in (0, -1)):
                return
            numbers, offsets, sizes, _ = sorted_ranges(numbers, offsets, sizes)
            apart = (numbers[1:] != numbers[:-1]) | (offsets[1:] > offsets[:-1] + sizes[:-1] + _GAP_NBYTES)
            firsts = np.concatenate(([True], apart))
            ends = (offsets + sizes)[np.concatenate((apart, [True]))]
            for number, offset, end in zip(
                numbers[firsts].tolist(), offsets[firsts].tolist(), ends.tolist(), strict=True
            ):
                announce(self._local_file(number).descriptor, offset, end)

    def _local_file(self, number: int) -> "LocalFile":
        file = self._file(number)
        assert isinstance(file, LocalFile)
        return file

    def close(self) -> None:
        """Closes each file as soon as no read of it is under way."""
        if self._far is not None:
            self._far.close()
        with self._lock:
            self._opened.clear()


class RecordReader(OpenFiles):
    """The open form of a source whose elements are byte ranges of files."""

    _source: Any
    """The source, which names elements."""

    def ranges(self, elements: Indices) -> tuple[Integers, Integers, Integers]:
        """Returns the file, the first byte and the bytes of each range of each element.

        Raises:
            SourceError: An element is incomplete.
        """
        raise NotImplementedError

    def requests(self, reads: Sequence[Read]) -> Iterator[tuple[Read, Chunk, Integers]]:
        """Reads the ranges of all requests together, so that neighbours in a file are one read.

        Yields:
            A request, some of its ranges, by their numbers in it, and their bytes.

        Raises:
            SourceError: A file is too short, has changed, its device fails, or an element is larger than the limit of
                memory allows.
        """
        elements = np.concatenate([np.empty(0, np.int64), *(read.indices for read in reads)])
        if not len(elements):
            return
        numbers, offsets, sizes = self.ranges(elements)
        width = len(sizes) // len(elements)
        if len(sizes):
            largest = int(np.argmax(sizes))
            require_room(f"{self._source.describe(int(elements[largest // width]))} has", int(sizes[largest]))
        firsts = bounds_of(len(read.indices) * width for read in reads)
        for members, data, starts in self.chunks(numbers, offsets, sizes, width):
            for number, read in enumerate(reads):
                mine = np.flatnonzero((members >= firsts[number]) & (members < firsts[number + 1]))
                if len(mine):
                    found = members[mine]
                    yield read, Chunk(found - firsts[number], data, starts[mine]), sizes[found]

    def advise(self, indices: Indices) -> None:
        with suppress(SourceError):  # the read reports it
            numbers, offsets, sizes = self.ranges(indices)
            self.announce(numbers, offsets, sizes, len(sizes) // max(1, len(indices)))


def block_reader(
    files: Sequence[File], open_file: Callable[[int], RemoteFile], ahead_nbytes: int
) -> BlockReader | None:
    """Returns what reads remote files through their cache; None if there is none."""
    cache = next((file.cache for file in files if file.cache is not None), None)
    folder = None if cache is None else cache.open()
    if cache is None or folder is None:
        return None
    sizes = np.array([file.nbytes for file in files], np.int64)
    return BlockReader(cache, folder, files.__getitem__, sizes, open_file, ahead_nbytes)


def announce(descriptor: int, start: int, end: int) -> None:
    """Asks the kernel to fetch bytes of a file, as far as it goes.

    Raises:
        OSError: The file cannot be read ahead.
    """
    end = min(end, os.fstat(descriptor).st_size)
    for at in range(start, end, _ADVICE_NBYTES) if hasattr(os, "posix_fadvise") else ():
        os.posix_fadvise(descriptor, at, min(_ADVICE_NBYTES, end - at), os.POSIX_FADV_WILLNEED)


class _FileStream(Readable):
    """An open file as a Python file object, for other libraries."""

    def __init__(self, file: ByteSource, nbytes: int) -> None:
        super().__init__(nbytes)
        self._file = file
        self._asker = retry_budget()  # libraries read on threads of their own

    def readinto(self, buffer: Any) -> int:
        place = memoryview(buffer).cast("B")[: max(0, self._nbytes - self._at)]
        count = self._file.read_into(self._at, place, self._asker) if len(place) else 0
        self._at += count
        return count


class _Scan(_FileStream):
    """A remote file whose reads are requests of growing size as long as they are near each other.

    Heads of small members come many in a request. After a jump the next head is requested alone.
    """

    def __init__(self, file: ByteSource, nbytes: int) -> None:
        super().__init__(file, nbytes)
        self._block, self._block_at = memoryview(b""), 0

    def readinto(self, buffer: Any) -> int:
        end = self._block_at + len(self._block)
        if not self._block_at <= self._at < end:
            is_near = end <= self._at < end + _JUMP_NBYTES
            wanted = max(len(buffer), min(2 * len(self._block), _SCAN_MOST_NBYTES) if is_near else 0)
            block = bytearray(max(0, min(wanted, self._nbytes - self._at)))
            count = self._file.read_into(self._at, memoryview(block), self._asker) if block else 0
            self._block, self._block_at = memoryview(block)[:count], self._at
        some = self._block[self._at - self._block_at :][: len(buffer)]
        memoryview(buffer).cast("B")[: len(some)] = some
        self._at += len(some)
        return len(some)


def expanded(path: str) -> Iterator[str]:
    """Yields the paths that braces stand for, as in a shell: `{000..127}` and `{train,val}`, the last ones fastest.

    Numbers have the digits of the longer of the two, if one of these begins with a 0 before others. A file of this very
    name is meant alone.
    """
    parts = _BRACES.split(path)
    if len(parts) == 1 or (not is_remote(path) and os.path.exists(path)):
        yield path
        return
    choices = []
    for each in parts[1::2]:
        if "," in each:
            choices.append(each.split(","))
            continue
        first, _, last = each.partition("..")
        is_padded = any(len(number) > 1 and number[0] == "0" for number in (first, last))
        width = max(len(first), len(last)) if is_padded else 0
        step = 1 if int(first) <= int(last) else -1
        choices.append([f"{number:0{width}}" for number in range(int(first), int(last) + step, step)])
    for chosen in itertools.product(*choices):
        yield "".join(itertools.chain(*zip(parts[::2], [*chosen, ""], strict=True)))


def _matches(path: str, options: StorageOptions | None) -> Sequence[File | str]:
    """Returns the paths that fit a pattern, as files where the listing describes them."""
    found: list[File | str]
    if is_remote(path):
        if not glob.has_magic(path):
            return [path]
        found = [each if isinstance(each, str) else File(*each, options) for each in matches(path, options)]
        if not found:
            with suppress(SourceError):  # the name of a file may have brackets
                found = [described(path, options=options)]
    else:
        path = path.removeprefix("file://").removeprefix("local://")
        require_path(path)
        if os.path.isdir(path):
            pattern = os.path.join(glob.escape(path), "*")
            raise SourceError(f"{path} is a directory. Name the files in it, as by the pattern {pattern!r}.")
        if not glob.has_magic(path) or os.path.exists(path):
            return [os.path.abspath(path)]
        found = [os.path.abspath(each) for each in matching(path) if not os.path.isdir(each)]
    if not found:
        raise SourceError(f"No file fits the pattern {path}.{home_cure(path)}")
    return found


def sorted_ranges(
    numbers: Integers, offsets: Integers, sizes: Integers
) -> tuple[Integers, Integers, Integers, Integers | None]:
    """Sorts ranges by file and offset. Also returns their order, None if they were sorted."""
    files, steps = numbers[1:] - numbers[:-1], offsets[1:] - offsets[:-1]
    if bool(np.all((files > 0) | ((files == 0) & (steps >= 0)))):
        return numbers, offsets, sizes, None
    order = np.lexsort((offsets, numbers)).astype(np.int64)
    return numbers[order], offsets[order], sizes[order], order
