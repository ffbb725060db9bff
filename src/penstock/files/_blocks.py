"""Reads remote files through a `DiskCache`: blocks that are there from the disk, the others by a `Fetcher`.

A block is what a plan reads at once: the neighbouring ranges of one element, if they have 32 KiB or more, cut into
parts of 8 MiB; of smaller ones a cell of 64 KiB of the file. So a block is the same in each epoch, whatever is read
beside it, and a miss fetches no more than was wanted. Joined requests are cut into blocks when they arrive.

A full cache. Blocks of data that no run reads go first, the least recently used before the others. Then what is there
stays: a block of one element is wanted once an epoch, so another in its place is of no more use. But a cell has several
elements, and neighbours in a window want it soon. So new cells replace those that came last, which take 1/32 of the
limit.

Threads. Any number may read. `_lock` protects the tables. Blocks are written by the threads of the fetcher when their
request arrives, or by the reader if a block came in several requests.

One download a block and host. `announce` and `read` claim a block before they request it, and leave what others have
claimed. Each wait, and what ends it: a reader waits until such a block is there, or its claim is free, as after the
death of the other process (the kernel frees it) or an error there. A process may also stand still, or two may wait for
each other's queue; after `PATIENCE_S` the reader downloads the block for itself. It looks every `LOOK_S` whether its
unit is still wanted. `close` waits for blocks that are being written, at most `CLOSE_S`. Claims of announcements that
were never read are left `_KEPT` announcements later.
"""

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError
from penstock.base._retries import LOOK_S, RetryBudget, retry_budget
from penstock.files._diskcache import BlockName, CacheFolder, DiskCache, disk_nbytes, object_names
from penstock.files._fetch import KEPT_ANNOUNCEMENTS, PART_NBYTES, Fetcher, RangeFile, copy_parts, is_joined
from penstock.files._store import StorageOptions

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T", int, Integers)

CELL_NBYTES: Final = 64 << 10
OWN_NBYTES: Final = 32 << 10
"""Smaller ranges are read in cells."""
PATIENCE_S: Final = 2.0
CLOSE_S: Final = 5.0
"""The time that `close` waits for blocks that are being written."""
STREAM_NBYTES: Final = 1 << 20
"""The cells of files that a library reads by itself."""
_CELL_SHARE: Final = 32
"""Of the limit, for cells that replace each other in a full cache."""
_KEPT: Final = KEPT_ANNOUNCEMENTS + 2
_NEVER: Final = 1 << 62
_MOST_SEEN: Final = 1 << 24
_MOST_NAMES: Final = 1 << 14


class RemoteState(Protocol):
    """What identifies the content of a remote file; see `File`."""

    @property
    def url(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def version(self) -> str: ...
    @property
    def options(self) -> StorageOptions | None: ...


class Block(NamedTuple):
    """Bytes `[start, stop)` of a file with a number."""

    number: int
    start: int
    stop: int


class Spans(NamedTuple):
    """For ranges, where the blocks lie that hold them; arrays of shape `(n,)`."""

    starts: Integers
    """The first byte of the first block."""
    steps: Integers
    """The size of each block but the last."""
    stops: Integers
    """The end of the last."""

    def blocks(self, number: int, at: int, first: int, last: int) -> Iterator[Block]:
        """Yields the blocks that hold bytes `[first, last)` of the range with the number `at`."""
        start, step, stop = int(self.starts[at]), int(self.steps[at]), int(self.stops[at])
        for place in range(start + (first - start) // step * step, last, step):
            yield Block(number, place, min(place + step, stop))

    def of(self, members: Integers | list[int]) -> "Spans":
        """Returns those of some of the ranges."""
        return Spans(self.starts[members], self.steps[members], self.stops[members])


def spans_of(numbers: Integers, offsets: Integers, sizes: Integers, file_nbytes: Integers, width: int = 1) -> Spans:
    """Returns where the blocks of ranges lie. Depends on one element alone.

    Args:
        numbers: The file of each range, shape `(elements * width,)`.
        offsets: The first byte of each.
        sizes: The bytes of each.
        file_nbytes: The bytes of each of these files.
        width: The ranges of an element.
    """
    starts, stops = offsets, offsets + sizes
    if width > 1 and len(offsets):
        element = np.arange(len(offsets)) // width
        order = np.lexsort((offsets, element))
        heads = np.concatenate(([True], ~is_joined(element[order], offsets[order], sizes[order])))
        firsts, run = np.flatnonzero(heads), np.empty(len(offsets), np.int64)
        run[order] = np.cumsum(heads) - 1
        starts, stops = starts[order][firsts][run], np.maximum.reduceat(stops[order], firsts)[run]
    is_small = stops - starts < OWN_NBYTES
    cells = starts // CELL_NBYTES * CELL_NBYTES
    ends = np.minimum(-(-stops // CELL_NBYTES) * CELL_NBYTES, np.maximum(file_nbytes, stops))
    return Spans(
        np.where(is_small, cells, starts),
        np.where(is_small, CELL_NBYTES, PART_NBYTES).astype(np.int64),
        np.where(is_small, ends, stops),
    )


@final
class BlockReader:
    """Reads ranges of remote files, with the interface of a `Fetcher`.

    Args:
        cache: The cache.
        folder: It, opened.
        state_of: Returns the state of the file with a number.
        sizes: The bytes of each file, shape `(files,)`.
        open_file: See `Fetcher`.
        ahead_nbytes: See `Fetcher`.
    """

    def __init__(
        self,
        cache: DiskCache,
        folder: CacheFolder,
        state_of: Callable[[int], RemoteState],
        sizes: Integers,
        open_file: Callable[[int], RangeFile],
        ahead_nbytes: int,
    ) -> None:
        self._cache, self._state_of = cache, state_of
        self._opened: CacheFolder | None = folder
        me = weakref.ref(self)

        def arrived(number: int, start: int, data: memoryview) -> None:
            if (reader := me()) is not None:
                reader._arrived(number, start, data)

        self._fetcher = Fetcher(open_file, ahead_nbytes, arrived)
        self._file_nbytes = sizes
        self._bases = np.concatenate(([0], np.cumsum(np.maximum(sizes, 1) + CELL_NBYTES)))
        """The number of each file's first byte among the bytes of all. It identifies a block."""
        self._seen = np.zeros(min(_MOST_SEEN, int(self._bases[-1]) // OWN_NBYTES + 1), np.bool_)
        """Whether blocks were on the disk when they were last read; see `_mark`. Announcements pass over them."""
        self._lock = threading.Lock()
        self._stored = threading.Condition(self._lock)
        self._storing_count = 0
        """Threads that write a block; `close` waits for them, or the end of the process would lose what they have."""
        self._names: dict[int, tuple[str, str] | None] = {}
        self._pending: dict[int, set[Block]] = {}
        """Claimed blocks of each file that were requested."""
        self._requested: dict[Block, int] = {}
        """Blocks that the fetcher holds or requests, with the serial number of their announcement."""
        self._held: set[str] = set()
        self._serial = 0
        self._evicting = threading.Lock()
        self._unused: deque[BlockName] | None = None
        """Blocks of data that no run reads; None before they were looked for."""
        self._cells: deque[Block] = deque(maxlen=max(1, cache.nbytes // (_CELL_SHARE * CELL_NBYTES)))
        """The last cells that were stored."""
        self._fetched_nbytes = 0
        self.hit_count = 0

    # Reading.

    def spans(self, numbers: Integers, offsets: Integers, sizes: Integers, width: int) -> Spans:
        """See `spans_of`."""
        return spans_of(numbers, offsets, sizes, self._file_nbytes[numbers], width)

    def announce(self, numbers: Integers, offsets: Integers, sizes: Integers, limit_s: float, width: int = 1) -> None:
        """Requests blocks that are neither on the disk nor under way. Never waits. For arguments see `spans_of`."""
        if not retry_budget().may_announce or not len(numbers):
            return
        with self._lock:
            self._serial += 1
            old = [block for block, serial in self._requested.items() if serial < self._serial - _KEPT]
        for block in old:
            self._forget(block)
        spans = self.spans(numbers, offsets, sizes, width)
        ids = self._bases[numbers] + spans.starts
        unseen = np.flatnonzero(~self._seen[self._mark(ids)])
        if not len(unseen):
            return
        keys = np.stack([ids, spans.stops], axis=1)[unseen]
        firsts = unseen[np.sort(np.unique(keys, axis=0, return_index=True)[1])]
        blocks = (
            spans.blocks(int(numbers[at]), at, int(offsets[at]), int(offsets[at] + sizes[at])) for at in firsts.tolist()
        )
        wanted = [
            block
            for block in dict.fromkeys(itertools.chain.from_iterable(blocks))
            if self._request(block, self._serial)
        ]
        if wanted:
            number, start, stop = np.array(wanted, np.int64).T
            self._fetcher.announce(number, start, stop - start, limit_s)

    def _request(self, block: Block, serial: int = _NEVER) -> bool:
        """Claims a block, unless it is on the disk, or claimed by another thread or process.

        Args:
            block: The block.
            serial: The number of the announcement; `_NEVER` for a reader, which may take over an announced block.
        """
        name = self._name(block)
        with self._lock:
            if block in self._requested:
                is_mine = self._requested[block] < serial == _NEVER  # announced, and no other thread reads it
                if is_mine:
                    self._requested[block] = _NEVER
                return is_mine
        if name is not None:
            if self._folder.has(name) or not self._folder.claim(name):
                return False
            if self._folder.has(name):  # another process has just stored it
                self._folder.leave(name)
                return False
        with self._lock:
            self._requested[block] = serial
            if name is not None:
                self._pending.setdefault(block.number, set()).add(block)
        return True

    def read(self, wanted: Sequence[tuple[int, int, Bytes]], asker: RetryBudget, spans: Spans | None) -> None:
        """Reads ranges into memory: of a file, from an offset on. Their blocks lie in `spans`.

        Raises:
            SourceError: A file is too short, has changed, or the connection fails.
            UnwantedError: The result is no longer wanted.
        """
        assert spans is not None
        pieces = []
        for at, (number, offset, place) in enumerate(wanted):
            stop = offset + len(place)
            for block in spans.blocks(number, at, offset, stop):
                first, last = max(offset, block.start), min(stop, block.stop)
                pieces.append((block, first - block.start, place[first - offset : last - offset]))
        self.read_blocks(pieces, asker)

    def read_into(self, number: int, offset: int, place: memoryview, asker: RetryBudget) -> int:
        """Reads bytes for a library that chooses them itself; see `ByteSource`."""
        size = min(len(place), int(self._file_nbytes[number]) - offset)
        if size <= 0:
            return 0
        start = offset // STREAM_NBYTES * STREAM_NBYTES
        spans = Spans(np.array([start]), np.array([STREAM_NBYTES]), self._file_nbytes[[number]])
        self.read([(number, offset, np.frombuffer(place, np.uint8)[:size])], asker, spans)
        return size

    def read_blocks(self, pieces: Sequence[tuple[Block, int, Bytes]], asker: RetryBudget) -> None:
        """Reads parts of blocks into memory: of a block, from an offset in it on. Raises as `read`."""
        wanted: dict[Block, list[tuple[int, Bytes]]] = {}
        for block, offset, place in pieces:
            wanted.setdefault(block, []).append((offset, place))
        missing = {block: parts for block, parts in wanted.items() if not self._hit(block, parts)}
        if not missing:
            return
        others = [block for block in missing if not self._request(block)]
        self._download([block for block in missing if block not in set(others)], missing, asker)
        ends_s = time.monotonic() + PATIENCE_S
        for block in others:
            while not self._hit(block, missing[block]):
                if self._request(block) or time.monotonic() > ends_s:
                    self._download([block], missing, asker)
                    break
                asker.pause(LOOK_S)

    def _hit(self, block: Block, parts: list[tuple[int, Bytes]]) -> bool:
        """Reads parts of a block from the disk, unless the fetcher has it."""
        name = None if block in self._requested else self._name(block)
        is_hit = name is not None and self._folder.read(name, [(offset, place.data) for offset, place in parts])
        self._seen[self._mark(self._id(block))] = is_hit
        self.hit_count += len(parts) if is_hit else 0
        return is_hit

    def _mark(self, ids: T) -> T:
        """Returns the places of blocks in `_seen`. Two that share one cost an announcement."""
        return ids // OWN_NBYTES % len(self._seen)

    def _download(
        self, blocks: Sequence[Block], wanted: dict[Block, list[tuple[int, Bytes]]], asker: RetryBudget
    ) -> None:
        """Copies blocks from the answers of a server, and stores those that did not come in one."""
        left = list(reversed(blocks))
        try:
            for block, parts in zip(blocks, self._fetcher.fetched(blocks, asker), strict=True):
                for offset, place in wanted[block]:
                    copy_parts(parts, block.start + offset, place)
                    asker.needed_nbytes += len(place)
                self._keep(block, parts)
                left.pop()
                with self._lock:
                    self._requested.pop(block, None)
        finally:
            for block in left:
                self._forget(block)

    def _keep(self, block: Block, parts: Sequence[tuple[int, memoryview]]) -> None:
        """Stores a block that the thread of the fetcher did not, because it came in parts, or with an older request."""
        if block not in self._pending.get(block.number, ()):
            return
        start, data = parts[0]
        if len(parts) > 1:
            start, whole = block.start, np.empty(block.stop - block.start, np.uint8)
            copy_parts(parts, start, whole)
            data = whole.data
        self._store(block, data[block.start - start : block.stop - start])

    def _forget(self, block: Block) -> None:
        """Gives a block up that was requested."""
        with self._lock:
            self._requested.pop(block, None)
        name = self._name(block)
        if self._take(block) and name is not None:
            self._folder.leave(name)

    def _take(self, block: Block) -> bool:
        """Takes a block out of those that are to be stored. Whether it was there."""
        with self._lock:
            blocks = self._pending.get(block.number, set())
            is_pending = block in blocks
            blocks.discard(block)
            if is_pending and not blocks:
                del self._pending[block.number]
            return is_pending

    def close(self) -> None:
        """Drops all requests and claims."""
        self._fetcher.close()
        if self._opened is None:
            return
        with self._lock:
            self._stored.wait_for(lambda: not self._storing_count, CLOSE_S)
            pending = [block for blocks in self._pending.values() for block in blocks]
            held, self._held = self._held, set()
        for block in pending:
            self._forget(block)
        for folder in held:
            self._folder.hold(folder, -1)
        self._opened = None  # its last user closes it

    @property
    def _folder(self) -> CacheFolder:
        if self._opened is None:
            raise SourceError("This source is closed, and cannot be read.")
        return self._opened

    # Storing.

    def _name(self, block: Block) -> BlockName | None:
        """Returns the name of a block; None for a file without a version, which is not kept."""
        number, start, stop = block
        if number in self._names:
            names = self._names[number]
        else:
            names, state = None, self._state_of(number)
            if state.version:
                names = object_names(state.url, state.version, state.nbytes, state.options)
                with self._lock:
                    is_new = names[0] not in self._held
                    self._held.add(names[0])
                if is_new:
                    self._folder.hold(names[0])
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[number] = names
        return None if names is None else BlockName(*names, start, stop)

    def _arrived(self, number: int, start: int, data: memoryview) -> None:
        """Stores the blocks in an answer. Called by the threads of the fetcher."""
        with self._lock:
            blocks = list(self._pending.get(number, ()))
        with suppress(SourceError):  # closed meanwhile
            for block in blocks:
                if start <= block.start and block.stop <= start + len(data):
                    self._store(block, data[block.start - start : block.stop - start])

    def _store(self, block: Block, data: memoryview) -> None:
        """Writes a claimed block, if there is room or can be made, and gives the claim back."""
        folder, name = self._folder, self._name(block)
        with self._lock:
            self._storing_count += 1
        try:
            if self._take(block) and name is not None:
                self._write(folder, name, block, data)
        finally:
            with self._lock:
                self._storing_count -= 1
                self._stored.notify_all()

    def _write(self, folder: CacheFolder, name: BlockName, block: Block, data: memoryview) -> None:
        try:
            size = disk_nbytes(name)
            self._fetched_nbytes += size
            if self._has_room(block, size) and folder.store(name, data) and _is_cell(block):
                self._cells.append(block)
        finally:
            folder.leave(name)

    # Room.

    def _id(self, block: Block) -> int:
        return int(self._bases[block.number]) + block.start

    def _has_room(self, block: Block, size: int) -> bool:
        """Reserves room for a block. Deletes others if that is right."""
        limit = self._cache.nbytes
        if self._folder.reserve(size, limit):
            return True
        if size > limit or self._folder.is_failing or not self._evicting.acquire(blocking=False):
            return False  # or another thread makes room now
        try:
            if self._unused is None or self._fetched_nbytes > limit:
                self._look()  # what other processes did meanwhile
            assert self._unused is not None
            freed = 0
            while self._unused and freed < max(size, limit // 64):
                name = self._unused.popleft()
                freed += disk_nbytes(name)
                self._folder.delete(name)
            if not freed and _is_cell(block) and self._cells:
                victim = self._cells.popleft()
                self._seen[self._mark(self._id(victim))] = False
                if (gone := self._name(victim)) is not None:
                    self._folder.delete(gone)
            return self._folder.reserve(size, limit)
        finally:
            self._evicting.release()

    def _look(self) -> None:
        """Lists the blocks that may be evicted."""
        self._fetched_nbytes = 0
        named = ((number, self._name(Block(number, 0, 0))) for number in range(len(self._file_nbytes)))
        numbers = {name.object: number for number, name in named if name is not None}
        mine, unused = self._folder.blocks(self._held)
        mine = [name for name in mine if name.object in numbers]
        self._cells.extend(filter(_is_cell, (Block(numbers[name.object], name.start, name.stop) for name in mine)))
        self._unused = deque(unused)


def _is_cell(block: Block) -> bool:
    return block.start % CELL_NBYTES == 0 and block.stop - block.start <= CELL_NBYTES


@final
class CachedFile:
    """A remote file for a library that reads it by itself; see `ByteSource`."""

    def __init__(self, blocks: BlockReader, number: int, path: str) -> None:
        self.path = path
        self._blocks, self._number = blocks, number

    def read_into(self, offset: int, place: memoryview, asker: RetryBudget | None = None) -> int:
        return self._blocks.read_into(self._number, offset, place, asker or retry_budget())
