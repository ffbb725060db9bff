"""Delivery of plans that only move bytes: native threads fill the slots.

No other Python thread runs, but those that decode parts of tables (`run/parts/_tables.py`).

The consumer's thread does the rest, within `take`. It computes the indices of a block of batches (`lower/_copies.py`),
submits a job for each free slot, waits for the job of its batch in native code, and hands the slot out.

Which thread writes what. The consumer alone writes the fields here. A finalizer appends to `Ring.free`, on any thread.
`request_stop` and `close` may be called by any thread: they set `_closed`, and end the engine.

Guarantees.
- Batches come in the order of positions. A job writes into its slot alone, and a slot belongs to one job.
- Ctrl-C costs nothing. It can strike `take` between any two bytecodes. Slots and jobs that it cut off are in neither
  `_pending` nor `Ring.free`. If the next batch is not the one that is asked for, or no job is pending, `_start` begins
  again.
- A slot is free, pending, or leased. `Ring.hand_out` leaves two slots unleased, so a job for the next batch can always
  be submitted.

Each wait, and what ends it. `Engine.wait`: the end of the job, an error, `close`, Ctrl-C (within 50 ms), or the
deadline. `Engine.cancel` and `Engine.close`: the end of the parts that are being copied, or their timeout. `_listen`:
the end of a decoding, `close`, Ctrl-C, or the deadline. `_join`: the end of all threads, or its timeout.
"""

import contextlib
import functools
import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar, final

import numpy as np

from penstock.base._errors import DeadlineError, PenstockError, SourceError
from penstock.base._threads import starting_threads
from penstock.base._tree import Tree
from penstock.lower._batches import ParallelProgram
from penstock.lower._copies import Copy, CopyPlan, Joined
from penstock.lower._program import Position
from penstock.memory._ring import Ring
from penstock.memory._rows import Indices
from penstock.native import CopyError, Engine, Source, conversion
from penstock.plan._node import walk
from penstock.plan._source_node import SourceNode
from penstock.report._lanes import Lane, StepTime
from penstock.run._consumer import DeliveryBase
from penstock.run._lanes import unit_of
from penstock.run.parts._tables import Parts, Tables
from penstock.sources.files import file_source, read_error
from penstock.sources.npy import EngineRows, StridedFile, require_same
from penstock.sources.parted import PartedArray

BLOCK_ROWS: Final = 1 << 12
"""Rows of small batches whose indices are computed at once. That spreads the cost of NumPy's calls. More take longer
than the batches that are ready last."""
BLOCK_COUNT: Final = 16
"""Batches whose indices are computed at once, at least, if that are no more rows than are announced at once. Of batches
of 1,024 rows in a window, four took 1.25 times the CPU time."""
ANNOUNCED_ROWS: Final = 1 << 14
"""Rows of files that are announced at once, at most. It takes 20 us, to look for the file first included."""
ANNOUNCED_NBYTES: Final = 32 << 20
"""Bytes of them, at most; and of a block."""
FIRST_ROWS: Final = 1 << 10
"""Rows whose reads are announced after a seek. Then twice as many as were delivered, until the numbers above are
reached: a cold disk reads what was announced first."""
AHEAD_ROWS: Final = 1 << 15
"""Rows of files whose reads are computed ahead, at most."""
AHEAD_NBYTES: Final = 48 << 20
"""Bytes of them, at most: more than are announced at once. From a cold disk, 16 to 128 MiB gave the same speed."""

E = TypeVar("E", bound=Exception)


@final
class CopyDelivery(DeliveryBase):
    """Fills the slots of a ring by a copy engine, and delivers batches in order.

    Args:
        program: Tells the number and the size of batches.
        copies: The copies that fill them.
        slot_count: Slots in the ring.
        thread_count: Threads that copy.
    """

    def __init__(self, program: ParallelProgram, copies: CopyPlan, *, slot_count: int, thread_count: int) -> None:
        super().__init__()
        self._program = program
        self._copies = copies
        self._pending: deque[tuple[Position, int, int, Parts]] = deque()
        """Position, slot, job and parts of the batches that were submitted, in order."""
        self._ahead: deque[tuple[Position, tuple[int, ...], list[Copy], Parts]] = deque()
        """Position, extents, copies and parts of the batches that follow."""
        rows = max(1, program.rows_per_batch)
        nbytes = max(1, program.spec.nbytes)
        self._announced_count = max(1, min(ANNOUNCED_ROWS // rows, ANNOUNCED_NBYTES // nbytes))
        """The batches whose reads are announced at once."""
        self._block_count = min(max(BLOCK_ROWS // rows, BLOCK_COUNT), self._announced_count)
        """The batches of a block."""
        self._unannounced: list[list[Copy]] = []
        """The copies of those that will be announced."""
        self._in_files = {number for number, array in enumerate(copies.arrays) if _paths(array)}
        """The numbers of arrays that lie in files."""
        self._reserve = max(1, min(AHEAD_ROWS // rows, AHEAD_NBYTES // nbytes)) if self._in_files else 0
        """The next block is computed when so few batches are left: of files, so that it is announced in time."""
        self._extents: list[tuple[int, ...] | None] = [None] * slot_count
        """The extents that each slot holds; None before the first batch."""
        self._first_count = max(1, FIRST_ROWS // rows)
        """The batches of the first block after a seek."""
        self._begun_count = 0
        """The batches that were submitted since the last seek."""
        self._job = 0
        """The last job."""
        self._views: dict[tuple[int, int, int], Any] = {}
        """The leaves of slots as rows of an array: by slot, array and leaf."""
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        """A token for each decoding that ended."""
        self._tables: Tables | None = None
        self.ring = Ring(program.spec, slot_count, None)  # `take` looks for slots that came back
        with starting_threads():
            self._engine = Engine(thread_count)
        try:
            self._sources: list[Any] = [_opened(*numbered) for numbered in enumerate(copies.arrays)]
            if None in self._sources:
                self._tables = Tables(program, copies.arrays, thread_count, self._tokens)
                self._reserve = max(self._reserve, self._tables.ahead_rows // rows)
        except BaseException:
            self._engine.close(0.0)
            raise

    @property
    def stop_workers(self) -> Callable[[], object]:
        """For a finalizer: ends the threads."""
        return functools.partial(_stop, self._engine, self._tables and self._tables.feed.stop_workers, self._tokens)

    # The consumer's side.

    def seek(self, position: Position, consumed: int = -1) -> None:
        """Makes this the next batch. Work under way is kept if it leads there."""
        self.require_open()
        if self._next_position != position:
            try:
                self._start(position)
            except Exception:  # as in `take`
                self.require_open()
                raise

    @property
    def _next_position(self) -> Position | None:
        """The batch that work under way leads to."""
        following = self._pending or self._ahead
        return following[0][0] if following else None

    def take(self, position: Position, timeout_s: float) -> Tree:
        """Waits for a batch and hands it out; see `DeliveryBase.take`."""
        if self.ring.interrupts:
            self.pass_on_interrupt()
        try:
            return self._take(position, timeout_s)
        except DeadlineError:  # which closes it, too
            raise
        except Exception:  # if another thread closed the loader meanwhile, what is used here went away: say that
            self.require_open()
            raise

    def _take(self, position: Position, timeout_s: float) -> Tree:
        pending = self._pending
        following = pending or self._ahead
        if following and following[0][0] == position:
            self._issue()
        else:
            self._start(position)
        while not pending:
            self.wait_for(self._listen, timeout_s, functools.partial(self._deadline_error, position))
            self.require_open()
            self._issue()
        _, slot, job, parts = pending[0]
        is_cut_off = False
        try:
            if not self._engine.wait(job, min(timeout_s / 4, threading.TIMEOUT_MAX)):
                wait, error = (
                    functools.partial(self._engine.wait, job),
                    functools.partial(self._deadline_error, position),
                )
                self.wait_for(wait, timeout_s, error)
        except LookupError:  # Ctrl-C cut off an earlier `take` behind this line, or the loader was closed
            is_cut_off = True
        except CopyError as error:
            pending.popleft()
            if parts:
                self._tables.end(job)  # type: ignore[union-attr]
            self.ring.give_back(slot)
            raise self._error(error, position) from error
        if is_cut_off:
            self.require_open()
            self._abandon()
            return self._take(position, timeout_s)
        pending.popleft()
        if parts:
            self._tables.end(job)  # type: ignore[union-attr]
            try:
                self._tables.require_same(parts)  # type: ignore[union-attr]
            except SourceError as error:
                self.ring.give_back(slot)
                raise _in_batch(error, self._program, position) from None
        return self.ring.hand_out(slot)

    def _start(self, position: Position) -> None:
        """Begins again at a position."""
        self._abandon()
        self._begun_count = 0
        self._compute(position)
        self._issue()

    def _abandon(self) -> None:
        """Cancels all jobs, waits until no thread writes any more, and collects the slots that are not leased."""
        while not self._engine.cancel(self._job, 1.0):
            self.require_open()
        self._pending.clear()
        self._ahead.clear()
        self._unannounced.clear()
        if self._tables is not None:
            self._tables.forget()
        self.ring.reclaim(set())

    def _issue(self) -> None:
        """Submits a job for each slot that is free."""
        free, views = self.ring.free, self._views
        while free:
            if len(self._ahead) <= (self._reserve if self._tables else min(self._reserve, 2 * self._begun_count)):
                last, *_ = self._ahead[-1] if self._ahead else self._pending[-1]
                try:
                    self._compute(self._program.next_position(*last))
                except PenstockError:  # the batches before it come first; `_start` raises the error in its place
                    if not self._ahead:
                        return
            position, extents, copies, parts = self._ahead[0]
            is_alone = False
            if self._tables is not None and parts:
                if not self._tables.is_ready():
                    return
                is_alone = not self._tables.are_there(parts)
                if is_alone and self._pending:
                    return  # the batches before it come first: this may fail
            slot = free.pop()
            self._ahead.popleft()
            if extents != self._extents[slot]:
                varying = (extent for extent in self.ring.rows(slot).extents if extent is not None)
                for extent, size in zip(varying, extents, strict=True):
                    extent[0] = size
                self._extents[slot] = extents
            self._job += 1
            if self._tables is not None and parts:
                self._tables.begin(self._job)
                if is_alone:
                    copies = self._copy_alone(copies, slot, position)
            made = []
            for array, leaf, rows, places, first in copies:
                memory, view, code = views.get((slot, array, leaf)) or self._view(slot, array, leaf)
                source = self._sources[array] or self._tables.column(array)  # type: ignore[union-attr]
                made.append((source, rows, view[first:] if first else memory, places, code))
            self._engine.submit(self._job, made)
            self._pending.append((position, slot, self._job, parts))
            self._begun_count += 1

    def _copy_alone(self, copies: list[Copy], slot: int, position: Position) -> list[Copy]:
        """Copies from tables some of whose parts are not there. Returns the other copies."""
        assert self._tables is not None
        theirs = [copy for copy in copies if self._sources[copy[0]] is None]
        views = [(self._views.get((slot, *copy[:2])) or self._view(slot, *copy[:2]))[1:] for copy in theirs]
        try:
            self._tables.copy_alone(theirs, views)
        except PenstockError as error:
            self._tables.end(self._job)
            self.ring.give_back(slot)
            raise _in_batch(error, self._program, position) from None
        return [copy for copy in copies if self._sources[copy[0]] is not None]

    def _compute(self, position: Position) -> None:
        """Computes the copies of the next batches of an epoch, and announces their reads.

        Raises:
            SourceError: A file is gone, or was replaced since the dataset was made. The engine goes on with the file
                that it opened, so batches computed before are right.
        """
        epoch, index = position
        count, batch_count = min(self._block_count, self._ramp), self._program.batch_count
        if batch_count is not None:
            count = min(count, batch_count - index)
        batches, extents = self._copies.block(epoch, index, count)
        if self._in_files:
            self._unannounced = self._announce([*self._unannounced, *batches], position)
        positions = [(epoch, index + number) for number in range(count)]
        parts = itertools.repeat((), count) if self._tables is None else map(self._tables.want, batches)
        self._ahead.extend(zip(positions, extents, batches, parts, strict=True))

    @property
    def _ramp(self) -> int:
        """How many batches may be computed and announced at once, so soon after a seek."""
        return max(self._first_count, 2 * self._begun_count)

    def _announce(self, batches: list[list[Copy]], position: Position) -> list[list[Copy]]:
        """Announces the reads of batches, if they are enough or an epoch begins. Returns what is left for later."""
        if position[1] and len(batches) < min(self._announced_count, self._ramp):
            return batches
        rows_of: dict[int, list[Indices]] = {}
        for array, _, rows, _, _ in itertools.chain.from_iterable(batches):
            if array in self._in_files:
                rows_of.setdefault(array, []).append(rows)
        tables: dict[tuple[int, ...], list[int]] = {}
        for array, theirs in rows_of.items():
            tables.setdefault(tuple(map(id, theirs)), []).append(array)
        is_start = not position[1] or self._next_position is None
        for arrays in tables.values():  # columns of a table have the same rows
            rows = np.concatenate(rows_of[arrays[0]])
            try:
                for array in arrays if is_start else ():  # later, the engine goes on with the files that it opened
                    _require_same(self._copies.arrays[array], rows)
            except PenstockError as error:
                raise _in_batch(error, self._program, position) from None
            self._engine.advise([self._sources[array] for array in arrays], rows)
        return []

    def _view(self, slot: int, array: int, leaf: int) -> Any:
        """Returns a leaf of a slot as rows of an array, and the code of the conversion to its dtype."""
        source, place = self._copies.arrays[array], self.ring.rows(slot).arrays[leaf]
        shape = source.shape[1:]
        # Not -1 for the number of rows: rows without bytes do not tell it.
        view = place.reshape(math.prod(place.shape[: place.ndim - len(shape)]), *shape)
        code = None if source.dtype == view.dtype else conversion(source.dtype, view.dtype)
        found = self._views[slot, array, leaf] = Engine.memory(view), view, code
        return found

    def _listen(self, seconds: float) -> bool:
        """Waits for the end of a decoding. Returns False after the timeout."""
        with contextlib.suppress(queue.Empty):
            self._tokens.get(timeout=seconds)
            return True
        return False

    # Errors.

    def _error(self, error: CopyError, position: Position) -> PenstockError:
        """The error of an element, as users read it."""
        file = self._copies.arrays[error.source] if isinstance(error.source, int) else None
        if isinstance(file, Joined):
            ((file, error.element),) = file.at(np.array([error.element]))
        found = read_error(file, error) if isinstance(file, StridedFile) else SourceError(str(error))
        if isinstance(file, PartedArray):
            found = self._tables.read_error(error.source, error)  # type: ignore[union-attr, arg-type]
        if isinstance(file, EngineRows):
            found = file.error_of(error)
        return _in_batch(found, self._program, position)

    def _deadline_error(self, position: Position, timeout_s: float) -> DeadlineError:
        paths = {path for array in self._copies.arrays for path in _paths(array)}
        paths.update(str(array.source) for array in self._copies.arrays if isinstance(array, PartedArray))
        return DeadlineError(
            f"No byte was copied for timeout_s={timeout_s:g} s, while the loader waited for batch {position[1]} of "
            f"epoch {position[0]}. It is read from {', '.join(sorted(paths)) or 'memory'}. If the disk is that slow, "
            "raise timeout_s. The loader is closed; a thread that never returns from a read stays behind."
        )

    # The loader's questions.

    def progress(self) -> object:
        """The bytes that were copied."""
        return self._engine.stats()["nbytes"], self._tables and self._tables.feed.progress()

    def lanes(self, delivered: float = 0, first: int = 0) -> list[Lane]:
        """What the threads did so far: one step for each source, which share the time by their bytes."""
        stats, node, program = self._engine.stats(), self._program.node, self._program
        batches, wall_s = stats["jobs"], stats["busy_ns"] / 1e9 + (self._tables.busy_s if self._tables else 0)
        sources = [(number, each) for number, each in enumerate(walk(node)) if isinstance(each, SourceNode)]
        total_nbytes = sum(each.spec.nbytes for _, each in sources) or 1
        steps = [
            StepTime(each.label, number, batches * program.rows_per_batch, wall_s * each.spec.nbytes / total_nbytes)
            for number, each in sources
        ]
        return [
            Lane(
                label=node.label,
                workers=self._engine.thread_count,
                is_serial=False,
                batches=batches,
                wall_s=wall_s,
                cpu_s=min(wall_s, stats["cpu_ns"] / 1e9),
                steps=tuple(step for step in steps if step.elements),
                unit=unit_of(node),
            )
        ]

    # The end.

    def _join(self, timeout_s: float) -> bool:
        ends_at = time.monotonic() + timeout_s
        ended = self._engine.close(timeout_s)
        if self._tables is not None:
            ended &= self._tables.feed.close(max(0.0, ends_at - time.monotonic()))
        if ended:
            self._program.sources.close()
            self._views.clear()
            self._sources.clear()
            self.ring.release()
        return ended


def _in_batch(error: E, program: ParallelProgram, position: Position) -> E:
    error.add_note(f"This was in {program.name(*position)}.")
    return error


def _stop(engine: Engine, stop_decoding: Callable[[], None] | None, tokens: "queue.SimpleQueue[None]") -> None:
    engine.close(0.0)
    if stop_decoding is not None:
        stop_decoding()
    tokens.put(None)


def _opened(number: int, array: Any) -> Source | None:
    """The engine's source of an array, named by its number; None for one in parts, which changes."""
    if isinstance(array, PartedArray):
        return None
    if isinstance(array, Joined):
        return Engine.parts(array.bounds, [_opened(number, part) for part in array.parts], name=number)
    if isinstance(array, np.ndarray):
        return Engine.memory(array, name=number)
    if isinstance(array, EngineRows):
        return array.opened(number)
    return file_source(array, 0, may_map=True, name=number)


def _paths(array: Any) -> list[str]:
    """The files that an array lies in."""
    if isinstance(array, Joined):
        return [path for part in array.parts for path in _paths(part)]
    files = array.files if isinstance(array, EngineRows) else [array] if isinstance(array, StridedFile) else []
    return [file.path for file in files]


def _require_same(array: Any, rows: Indices) -> None:
    """Refuses an array if files that have some of its rows are gone, or were replaced."""
    for part, row in array.at(rows) if isinstance(array, Joined) else [(array, int(rows[0]))]:
        if isinstance(part, EngineRows):
            part.require_same(row)
        elif isinstance(part, StridedFile):
            require_same(part, row)
