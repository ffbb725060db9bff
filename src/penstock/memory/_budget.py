"""The memory of a loader, known before the first read."""

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from penstock.base._errors import MemoryLimitError
from penstock.base._units import size_text

MIB = 1 << 20
LYING_HEADER: Final = "If the data have no such elements, the file that says so is damaged: write it again"
PARENT_NBYTES = 48 * MIB
"""An allowance for this process beside the projection: code, threads, memory of libraries."""
WORKER_NBYTES = 45 * MIB
"""The same for each worker process: an interpreter, NumPy, this package."""
LEAST_SLOTS: Final = 3
"""Those of `prefetch=1`."""
ALIGNMENT_NBYTES: Final = 4096
"""An allowance for alignment in a slot."""
_LIMITS: Final = {
    errno.ENOMEM: "",
    errno.ENOSPC: "",
    errno.EFBIG: "; a limit for files, `ulimit -f`, is one for memory that processes share, too",
}
"""The error numbers of a lack of memory, and a text to add to each."""


@final
@dataclass(frozen=True)
class Budget:
    """The items of a loader's memory, in bytes. Their sum is `projected_nbytes`."""

    slot_count: int
    slot_nbytes: int
    scratch_nbytes: int
    """For all workers together."""
    order_nbytes: int
    """Blocks of shuffled positions; all loaders of a process share them."""
    shared_nbytes: int
    """Arrays in memory that worker processes share."""
    kept_nbytes: int
    """Caches in memory."""
    source_nbytes: int
    """Data that sources keep, in all processes that read."""
    spans_nbytes: int
    """For a stream: elements that wait for the workers, and memory of the steps that one worker runs."""
    last_step: str
    spec: str
    store_nbytes: int = 0
    """Rows from other machines, between their arrival and the copy into a slot."""
    batch_size: int = 1
    """Elements in a slot; 1 where that is unknown."""
    parts_nbytes: int = 0
    """What workers take to decode parts of sources, such as row groups, each for itself."""
    largest_source: str = ""
    """The source that keeps most."""
    largest_element: tuple[int, str] = (0, "")
    """The bytes of the largest element of a source, and the step that reads it."""

    @property
    def ring_nbytes(self) -> int:
        """All slots."""
        return self.slot_count * self.slot_nbytes

    @property
    def projected_nbytes(self) -> int:
        """The sum."""
        rest = self.scratch_nbytes + self.order_nbytes + self.shared_nbytes + self.kept_nbytes + self.spans_nbytes
        return self.ring_nbytes + rest + self.source_nbytes + self.parts_nbytes + self.store_nbytes

    def caution(self, free_nbytes: int | None) -> str:
        """The warning about slots and scratch memory above the memory that is free; empty if they fit.

        Other items may be in memory already, such as a cache.
        """
        taken = self.ring_nbytes + self.scratch_nbytes
        if free_nbytes is None or taken <= free_nbytes:
            return ""
        return (
            f"The loader may take {size_text(taken)}, and {size_text(free_nbytes)} are free, so the system "
            f"may kill it: {self.slot_count} slots of {size_text(self.slot_nbytes)}, {self.spec}, and "
            f"{size_text(self.scratch_nbytes)} of scratch memory of the workers. Make elements or batches smaller, or "
            "use a smaller prefetch or fewer workers. memory_limit= makes this an error."
        )

    def source_share(self, limit: int, process_count: int = 0) -> float:
        """The part of `source_nbytes` that a limit leaves to the sources; 1 for all of it, or without sources."""
        if not self.source_nbytes:
            return 1.0
        excess = self.projected_nbytes + overhead_nbytes(process_count) - limit
        return min(1.0, max(0.0, 1 - excess / self.source_nbytes))

    def require(self, limit: int | None, process_count: int = 0) -> None:
        """Refuses a loader that cannot stay under its limit.

        Args:
            limit: Bytes.
            process_count: Worker processes. Their memory counts too, and their cost in this process.

        Raises:
            MemoryLimitError: Names the sum, the largest item, and two remedies.
        """
        overhead = overhead_nbytes(process_count)
        if limit is None or self.projected_nbytes + overhead <= limit:
            return
        processes = f"{process_count} worker process{'' if process_count == 1 else 'es'}"
        ring = f"the ring after {self.last_step}: {self.slot_count} slots of {size_text(self.slot_nbytes)}, {self.spec}"
        decoded = "what sources keep in memory, such as decoded row groups of Parquet"
        waiting = "elements of a stream that wait, and what steps hold that see them in order"
        blocks = "blocks of shuffled positions"
        items = {
            ring: self.ring_nbytes,
            "scratch memory of the workers": self.scratch_nbytes,
            "arrays that worker processes share": self.shared_nbytes,
            waiting: self.spans_nbytes,
            "a cache in memory": self.kept_nbytes,
            decoded: self.source_nbytes + self.parts_nbytes,
            "rows from other machines on their way into the ring": self.store_nbytes,
            f"what {processes} take{'s' if process_count == 1 else ''}": overhead,
        }
        largest = max(items, key=lambda name: items[name])
        if not items[largest]:  # of all others something can be said to make them smaller
            largest, items[blocks] = blocks, self.order_nbytes
        prefetch, batch = "", "Use a smaller batch"
        if self.slot_nbytes:  # elements of any size are in no slot
            each = self.slot_nbytes * (2 if self.store_nbytes else 1)
            room = limit - overhead - self.projected_nbytes + self.ring_nbytes + self.store_nbytes
            fitting, batch = room // each - 2, self._batch_that_fits(room, each)
            prefetch = f", or a smaller prefetch (prefetch={fitting} fits)" if fitting >= 1 else ""
        cures = {
            blocks: "They are as large for any number of elements: raise the limit",
            "scratch memory of the workers": f"Use fewer workers{prefetch}",
            "arrays that worker processes share": "Put large arrays into files (from_npy), or use executor='threads'",
            waiting: f"Use a smaller window or batch{prefetch}",
            "a cache in memory": "Say how much it may take, cache(limit=...), or keep it on disk, cache(path)",
            decoded: "Write the file with smaller row groups (row_group_size=...) or chunks (chunks=...), or "
            "read fewer of its columns (columns=[...])"
            + (", or use fewer worker processes: each keeps its own" if process_count > 1 else "")
            + (f". The source that keeps most is {self.largest_source}" if self.largest_source else ""),
        }
        cure = cures.get(largest, f"{batch}{prefetch}")
        if items[largest] == overhead:
            fewer = ", or fewer workers" if process_count > 1 else ""
            fits = f"{batch}{prefetch}; or use" if batch.startswith("Use a batch of") else "Use"
            cure = (
                f"{fits} executor='threads'{fewer}: each process takes {size_text(WORKER_NBYTES)}, and their pool "
                f"{size_text(PARENT_NBYTES)} here"
            )
        nbytes, step = self.largest_element
        if max(1, self.slot_count) * nbytes > limit and largest in (ring, "scratch memory of the workers"):
            cure += f". One element of {step} alone takes {size_text(nbytes)}. {LYING_HEADER}"
        and_overhead = f" and {size_text(overhead)} for {processes}" if overhead else ""
        raise MemoryLimitError(
            f"Projected memory is {size_text(self.projected_nbytes)}{and_overhead}, above "
            f"memory_limit={size_text(limit)}. {size_text(items[largest])} of it is {largest}. {cure}."
        )

    def _batch_that_fits(self, room: int, each: int) -> str:
        """The size of a batch that fits into the room that is left for slots, at this prefetch or at the least."""
        for slot_count, text in ((self.slot_count, ""), (LEAST_SLOTS, " with prefetch=1")):
            size = self.batch_size * (room // slot_count - ALIGNMENT_NBYTES) // each
            if 1 <= size < self.batch_size or (1 <= size == self.batch_size and text):
                return f"Use a batch of {size}{text}"
        return "Use a smaller batch"


def overhead_nbytes(process_count: int) -> int:
    """The memory of worker processes beside the projection, and their cost in this process; 0 without any."""
    return PARENT_NBYTES + process_count * WORKER_NBYTES if process_count else 0


@contextlib.contextmanager
def granted(nbytes: int, what: str, cure: str) -> Iterator[None]:
    """Turns the system's error for a lack of memory into one that names its purpose.

    Raises:
        MemoryLimitError: The system's error is the cause.
    """
    try:
        yield
    except (OSError, OverflowError) as error:
        reason = "that is more than it can count"
        if isinstance(error, OSError):
            if error.errno not in _LIMITS:
                raise
            reason = f"{error.strerror}{_LIMITS[error.errno]}"
        raise not_given(nbytes, what, reason, cure) from error


def not_given(nbytes: int, what: str, reason: str, cure: str) -> MemoryLimitError:
    """The error for memory that the system does not give."""
    return MemoryLimitError(f"The system gives no {size_text(nbytes)} for {what}: {reason}. {cure}.")
