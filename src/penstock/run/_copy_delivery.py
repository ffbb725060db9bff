"""Delivery of plans that only move bytes: native threads fill the slots, and no other Python thread runs.

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
deadline. `Engine.cancel` and `Engine.close`: the end of the parts that are being copied, or their timeout.
"""

import functools
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from penstock.base._errors import DeadlineError, PenstockError, SourceError
from penstock.base._threads import starting_threads
from penstock.base._tree import Tree
from penstock.lower._batches import ParallelProgram
from penstock.lower._copies import Copy, CopyPlan
from penstock.lower._program import Position
from penstock.memory._ring import Ring
from penstock.native import CopyError, Engine, Source, conversion
from penstock.plan._node import walk
from penstock.plan._source_node import SourceNode
from penstock.report._lanes import Lane, StepTime
from penstock.run._consumer import DeliveryBase
from penstock.run._lanes import unit_of
from penstock.sources.files import file_source, read_error
from penstock.sources.npy import StridedFile, require_same
from penstock.sources.sparse import SparseRows

BLOCK_ROWS: Final = 1 << 14
"""Rows whose indices are computed at once. That spreads the cost of NumPy's calls, and still fits into the cache."""
BLOCK_NBYTES: Final = 32 << 20
"""Bytes of the batches of a block, at most, because the reads of a whole block are announced at once.

From a cold disk, 16 to 128 MiB gave the same speed, and the first batch came after 24 to 135 ms."""


@final
class CopyDelivery(DeliveryBase):
    """Fills the slots of a ring by a copy engine, and delivers batches in order.

    Args:
        program: Tells the number and the size of batches.
        copies: The copies that fill them.
        slot_count: Slots in the ring.
        spare_count: Slots that a hand-out must leave unleased.
        thread_count: Threads that copy.
    """

    def __init__(
        self, program: ParallelProgram, copies: CopyPlan, *, slot_count: int, spare_count: int, thread_count: int
    ) -> None:
        super().__init__()
        self._program = program
        self._copies = copies
        self._pending: deque[tuple[Position, int, int]] = deque()
        """Position, slot and job of the batches that were submitted, in order."""
        self._ahead: deque[tuple[Position, tuple[int, ...], list[Copy]]] = deque()
        """Position, extents and copies of the batches that follow."""
        rows = max(1, program.rows_per_batch)
        self._block_count = max(1, min(BLOCK_ROWS // rows, BLOCK_NBYTES // max(1, program.spec.nbytes)))
        """The batches of a block."""
        self._reserve = 0
        """The next block is computed when so few are left: of files, to announce it while this one is read."""
        self._extents: list[tuple[int, ...] | None] = [None] * slot_count
        """The extents that each slot holds; None before the first batch."""
        self._job = 0
        self._views: dict[tuple[int, int, int], Any] = {}
        """The leaves of slots as rows of an array: by slot, array and leaf."""
        self.ring = Ring(program.spec, slot_count, spare_count, None)  # `take` looks for slots that came back
        with starting_threads():
            self._engine = Engine(thread_count)
        try:
            self._has_files = any(map(_paths, copies.arrays))
            self._sources = [_opened(*numbered) for numbered in enumerate(copies.arrays)]
        except BaseException:
            self._engine.close(0.0)
            raise

    @property
    def stop_workers(self) -> Callable[[], object]:
        """For a finalizer: ends the threads."""
        return functools.partial(self._engine.close, 0.0)

    # The consumer's side.

    def seek(self, position: Position, consumed: int = -1) -> None:
        """Makes this the next batch. Work under way is kept if it leads there."""
        self.require_open()
        if not self._pending or self._pending[0][0] != position:
            self._start(position)

    def take(self, position: Position, timeout_s: float) -> Tree:
        """Waits for a batch and hands it out; see `Delivery.take`. The caller has called `require_open`."""
        if self.ring.interrupts:
            self.pass_on_interrupt()
        pending = self._pending
        if pending and pending[0][0] == position:
            self._issue()
        else:
            self._start(position)
        _, slot, job = pending[0]
        try:
            if not self._engine.wait(job, min(timeout_s / 4, threading.TIMEOUT_MAX)):
                wait, error = (
                    functools.partial(self._engine.wait, job),
                    functools.partial(self._deadline_error, position),
                )
                self.wait_for(wait, timeout_s, error)
        except LookupError:  # Ctrl-C cut off an earlier `take` behind this line, or the loader was closed
            self.require_open()
            self._abandon()
            return self.take(position, timeout_s)
        except CopyError as error:
            pending.popleft()
            self.ring.give_back(slot)
            raise self._error(error, position) from error
        pending.popleft()
        return self.ring.hand_out(slot)

    def _start(self, position: Position) -> None:
        """Begins again at a position."""
        self._abandon()
        self._compute(position)
        self._issue()

    def _abandon(self) -> None:
        """Cancels all jobs, waits until no thread writes any more, and collects the slots that are not leased."""
        while not self._engine.cancel(self._job, 1.0):
            self.require_open()
        self._pending.clear()
        self._ahead.clear()
        self.ring.reclaim(set())

    def _issue(self) -> None:
        """Submits a job for each slot that is free."""
        free, views = self.ring.free, self._views
        while free:
            if len(self._ahead) <= self._reserve:
                last, *_ = self._ahead[-1] if self._ahead else self._pending[-1]
                try:
                    self._compute(self._program.next_position(*last))
                except PenstockError:  # the batches before it come first; `_start` raises the error in its place
                    if not self._ahead:
                        return
            position, extents, copies = self._ahead.popleft()
            slot = free.pop()
            parts = []
            for array, leaf, rows, places, first in copies:
                view, code = views.get((slot, array, leaf)) or self._view(slot, array, leaf)
                parts.append((self._sources[array], rows, view[first:] if first else view, places, code))
            if extents != self._extents[slot]:
                varying = (extent for extent in self.ring.rows(slot).extents if extent is not None)
                for extent, size in zip(varying, extents, strict=True):
                    extent[0] = size
                self._extents[slot] = extents
            self._job += 1
            self._engine.submit(self._job, parts)
            self._pending.append((position, slot, self._job))

    def _compute(self, position: Position) -> None:
        """Computes the copies of the next batches of an epoch, and announces their reads.

        Raises:
            SourceError: A file is gone, or was replaced since the dataset was made. The engine goes on with the file
                that it opened, so batches computed before are right.
        """
        epoch, index = position
        count, batch_count = self._block_count, self._program.batch_count
        if batch_count is not None:
            count = min(count, batch_count - index)
        batches, extents = self._copies.block(epoch, index, count)
        positions = [(epoch, index + number) for number in range(count)]
        for number, array in enumerate(self._copies.arrays if self._has_files else ()):
            if _paths(array):
                rows_of = [copy[2] for copies in batches for copy in copies if copy[0] == number]
                if rows_of:
                    try:
                        _require_same(array, int(rows_of[0][0]))
                    except PenstockError as error:
                        raise _in_batch(error, position) from None
                    self._engine.advise(self._sources[number], np.concatenate(rows_of))
        self._ahead.extend(zip(positions, extents, batches, strict=True))
        self._reserve = count // 2 if self._has_files else 0

    def _view(self, slot: int, array: int, leaf: int) -> Any:
        """Returns a leaf of a slot as rows of an array, and the code of the conversion to its dtype."""
        source, place = self._copies.arrays[array], self.ring.rows(slot).arrays[leaf]
        shape = source.shape[1:]
        # Not -1 for the number of rows: rows without bytes do not tell it.
        view = place.reshape(math.prod(place.shape[: place.ndim - len(shape)]), *shape)
        code = None if source.dtype == view.dtype else conversion(source.dtype, view.dtype)
        self._views[slot, array, leaf] = view, code
        return view, code

    # Errors.

    def _error(self, error: CopyError, position: Position) -> PenstockError:
        """The error of an element, as users read it."""
        file = self._copies.arrays[error.source] if isinstance(error.source, int) else None
        found = read_error(file, error) if isinstance(file, StridedFile) else SourceError(str(error))
        if isinstance(file, SparseRows):
            found = file.error_of(error)
        return _in_batch(found, position)

    def _deadline_error(self, position: Position, timeout_s: float) -> DeadlineError:
        paths = {path for array in self._copies.arrays for path in _paths(array)}
        return DeadlineError(
            f"No byte was copied for timeout_s={timeout_s:g} s, while the loader waited for batch {position[1]} of "
            f"epoch {position[0]}. It is read from {', '.join(sorted(paths)) or 'memory'}. If the disk is that slow, "
            "raise timeout_s. The loader is closed; a thread that never returns from a read stays behind."
        )

    # The loader's questions.

    def progress(self) -> object:
        """The bytes that were copied."""
        return self._engine.stats()["nbytes"]

    def lanes(self, delivered: float = 0, first: int = 0) -> list[Lane]:
        """What the threads did so far: one step for each source, which share the time by their bytes."""
        stats, node, program = self._engine.stats(), self._program.node, self._program
        batches, wall_s = stats["jobs"], stats["busy_ns"] / 1e9
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
        if ended := self._engine.close(timeout_s):
            self._program.sources.close()
            self._views.clear()
            self._sources.clear()
            self.ring.release()
        return ended


def _in_batch(error: PenstockError, position: Position) -> PenstockError:
    error.add_note(f"This was in batch {position[1]} of epoch {position[0]}.")
    return error


def _opened(number: int, array: Any) -> Source:
    """The engine's source of an array, named by its number."""
    if isinstance(array, np.ndarray):
        return Engine.memory(array, name=number)
    if isinstance(array, SparseRows):
        return array.opened(number)
    return file_source(array, 0, may_map=True, name=number)


def _paths(array: Any) -> list[str]:
    """The files that an array lies in."""
    files = array.files if isinstance(array, SparseRows) else [array] if isinstance(array, StridedFile) else []
    return [file.path for file in files]


def _require_same(array: Any, row: int) -> None:
    """Refuses an array whose files are gone, or were replaced."""
    if isinstance(array, SparseRows):
        array.require_same(row)
    else:
        require_same(array, row)
