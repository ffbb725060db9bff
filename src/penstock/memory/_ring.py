"""The ring: a few slots that are filled, handed out as leases, and come back when their last view is gone.

Which thread writes what. A slot belongs to one of three at any time: to the queue `free`, to the delivery that has it
filled and hands it out, or to a lease. It goes from a lease to `free` in a finalizer, on any thread, and from a batch
that failed or was given up to `free` by the delivery.

Guarantees.
- A batch that the user holds never changes. Its slot comes back when the last view of it is gone, also views that other
  libraries hold. NumPy makes the *owner* of the memory the base of a view of a view. So a lease begins with an array of
  its own (`np.frombuffer`), which the views keep alive. A weak reference to that array reports its end.
- That weak reference calls `native.return_slot` on any thread, at any bytecode, perhaps while this thread holds a lock.
  So it takes no lock. It appends to a deque, deletes from a dict, and calls `on_free`. The first two are operations of
  C code. A Ctrl-C that strikes in the third is kept in `interrupts`; Python would drop it, and training would go on.
- Nothing waits for the user to release a batch. If a lease would leave too few slots, the batch is copied out. Before
  that, the ring runs the collector on young objects: Keras on torch leaves every batch to a closure that calls itself.
- A child that the user forks holds what this process holds at that moment. Where the memory is shared with workers,
  those leases last as long as the ring, because nothing reports the end of the child. Both processes see what either
  writes into such a batch.

Decided elsewhere: which batch fills a slot (`run/_scheduler.py`).
"""

import functools
import gc
import itertools
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base._errors import LoaderError
from penstock.base._retries import NOTHING_WANTED
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.base._units import size_text
from penstock.memory._budget import granted
from penstock.memory._mapping import MemoryFile, private
from penstock.memory._rows import Rows, text_array
from penstock.memory._slot import RingLayout, marks_of, own_header, ring_header

SPARE_COUNT: Final = 2
"""The consumer holds one slot and requests another; the others are ready or being filled. With fewer than two of these
left, workers would stand still while the consumer works."""
_ARRAY: Final[Callable[..., Any]] = np.ndarray
CLOSED_MEANWHILE: Final = "This loader was closed while a batch was being taken from it."


class RingView:
    """The slots of a ring, for a worker.

    Args:
        memory: The memory of the ring.
        layout: Its layout.
    """

    def __init__(self, memory: mmap.mmap, layout: RingLayout) -> None:
        self.slot_count = layout.slot_count
        self.header: memoryview[int] = ring_header(memory, layout.slot_count)
        """See `ring_header`."""
        self.times: list[memoryview[int]] = layout.times(memory)
        """The words in which workers note their time; see `Times`."""
        self._rows = layout.slots(memory)

    def rows(self, slot: int) -> Rows:
        """Returns a slot as the place that workers write to.

        Raises:
            LoaderError: The ring was released.
        """
        try:
            return self._rows[slot]
        except IndexError:  # another thread closed the loader
            raise LoaderError(CLOSED_MEANWHILE) from None

    def marks(self, slot: int) -> "memoryview[int]":
        """Returns what the reader of a stream noted of a slot; see `marks_of`."""
        return marks_of(self.header, slot)


@final
class Ring(RingView):
    """Slots for a spec in one mapping, and the leases on them.

    Args:
        spec: The contents of a slot.
        slot_count: How many slots; at least two, if any are handed out. A hand-out leaves `SPARE_COUNT` slots, or all
            but two if those are fewer. Else the batch is copied.
        on_free: Called after a slot came back, from a finalizer: it takes no lock and does not fail. None for nothing.
        is_shared: Whether other processes write to it.
        step_count: Steps whose time is measured.
    """

    def __init__(
        self,
        spec: Spec,
        slot_count: int,
        on_free: Callable[[], None] | None,
        *,
        is_shared: bool = False,
        step_count: int = 0,
    ) -> None:
        self._layout = RingLayout(spec, slot_count, step_count)
        self._spec = spec
        self._structure = spec.structure
        self._most_leases = slot_count - min(SPARE_COUNT, slot_count - 2)
        self._on_free = on_free
        self.file: MemoryFile | None = None
        """The memory, for workers in other processes to map; None if it is not shared."""
        self.memory: mmap.mmap | None
        """The mapping; None after `release`."""
        self.before_release: Callable[[], object] | None = None
        """Called before the mapping goes, for what was made of its address."""
        what = f"{slot_count:,} slots of {size_text(self._layout.slot.nbytes)}, {spec}"
        with granted(self._layout.nbytes, what, "Use a smaller prefetch or batch"):
            self.file = MemoryFile(self._layout.nbytes) if is_shared else None
            self.memory = self.file.map() if self.file else private(self._layout.nbytes)
        super().__init__(self.memory, self._layout)
        self._places = self._layout.places()
        self._leases: dict[int, tuple[int, weakref.ref[npt.NDArray[Any]]]] = {}
        self._lease_count = 0
        self.copied_count = 0
        """How many batches were handed out as private copies, because the user holds many."""
        self.free: deque[int] = deque(reversed(range(slot_count)))
        """Slots that may be filled. The one that came back last is taken first."""
        self.interrupts: list[BaseException] = []
        """Ctrl-C that struck while a slot came back, where Python drops it. The next `take` raises it."""
        self._is_over = False
        self._inherited: list[object] = []
        """What forked children may hold; see `inherit`."""
        if is_shared:
            _shared_rings[id(self)] = self

    def hand_out(self, slot: int) -> Tree:
        """Hands a filled slot to the user: as a lease, or as a copy if too few slots would remain."""
        leases = self._leases
        is_lease = len(leases) < self._most_leases
        if not is_lease and gc.isenabled():
            gc.collect(0)  # some 50 us; copying some megabytes into fresh memory takes milliseconds
            is_lease = len(leases) < self._most_leases
        rows = self._rows  # before the root: `release`, on another thread, drops them in the other order
        memory = self.memory
        if memory is None:
            raise LoaderError(CLOSED_MEANWHILE)
        root = np.frombuffer(memory, np.uint8, *self._places[slot])  # an array of its own
        layout = self._layout.slot
        if layout.views is None:
            leaves = layout.leaves(root, rows[slot])
        else:
            shapes, dtypes, places = layout.views
            leaves = [*map(_ARRAY, shapes, dtypes, itertools.repeat(root), places)]
        if not (is_lease and layout.has_arrays_alone):
            for number, (leaf, spec) in enumerate(zip(leaves, self._spec.leaves, strict=True)):
                if not spec.is_bounded:
                    leaves[number] = _own(leaf, spec.dtype.kind)
                elif not is_lease or leaf.ndim == 0:
                    leaves[number] = leaf.copy()[()]
        batch = self._structure.unflatten(leaves)
        if is_lease:
            # Last of all. An interrupt before it leaves a slot for `reclaim`; one after it leaves a lease that ends.
            self._lease_count += 1
            # The callback holds the queues and not the ring: a batch that outlives its loader keeps the mapping only.
            queues = leases, self.free, self._on_free, self.interrupts
            back = functools.partial(native.return_slot, *queues, slot, self._lease_count)
            leases[self._lease_count] = slot, weakref.ref(root, back)
        else:
            self.copied_count += 1
            self.give_back(slot)
        return batch

    def reclaim(self, busy: set[int]) -> None:
        """Frees each slot that is neither free nor leased nor busy. No other thread fills or hands out slots meanwhile.

        Args:
            busy: Slots that workers may be writing to.
        """
        # A lease may end at any bytecode. So leases are read first, and as a copy, which is one operation.
        leased = {slot for slot, _ in self._leases.copy().values()}
        self.free.extend(set(range(self.slot_count)) - busy - leased - set(self.free.copy()))

    def give_back(self, slot: int) -> None:
        """Returns a slot that is neither written nor leased."""
        self.free.append(slot)
        if self._on_free is not None:
            self._on_free()

    def inherit(self) -> None:
        """Makes the present leases last as long as the ring, for a child that is about to be forked. Takes no lock."""
        self._inherited += [root() for _, root in self._leases.copy().values()]

    def give_up(self, generation: int = NOTHING_WANTED) -> None:
        """Tells workers that units up to a generation are not wanted, which ends waits within units. Takes no lock.

        Without a generation that holds for all units, for good, whatever another thread writes at the same moment.
        """
        self._is_over |= generation == NOTHING_WANTED
        self.header[0] = generation
        if self._is_over:
            self.header[0] = NOTHING_WANTED

    def release(self) -> None:
        """Drops the mapping. Batches that the user holds keep it alive."""
        if self.before_release is not None:
            self.before_release()
        self.memory = None
        self._rows = []
        self._inherited.clear()
        self.times = [memoryview(self.total_times().tobytes()).cast("q")]  # for reports
        # A consumer that runs units itself may still read the header.
        words = own_header(self.slot_count)
        words[0] = NOTHING_WANTED
        self.header = words
        if self.file is not None:
            self.file.close()

    def total_times(self) -> npt.NDArray[np.int64]:
        """Returns the sums of the time words of all workers; see `Noted.of`."""
        total: npt.NDArray[np.int64] = np.sum([np.frombuffer(words, np.int64) for words in self.times], axis=0)
        return total

    @property
    def leased_count(self) -> int:
        """How many slots the user holds."""
        return len(self._leases)


_shared_rings: "weakref.WeakValueDictionary[int, Ring]" = weakref.WeakValueDictionary()


def _before_fork() -> None:
    for ring in [each() for each in _shared_rings.valuerefs()]:  # a list, made by one operation
        if ring is not None:
            ring.inherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


def _own(leaf: Any, kind: str) -> Any:
    """Returns a leaf that has no place in the slot as an object of the user's own; text as an array of text."""
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        return text_array(leaf, kind) if kind in "US" else leaf.copy()
    return leaf
