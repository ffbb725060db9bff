"""How much memory a loader takes, known before the first read."""

from dataclasses import dataclass
from typing import final

from penstock._errors import MemoryLimitError
from penstock._memory._slot import SlotLayout
from penstock._plan._node import Node, walk
from penstock._plan._shuffle import Shuffle
from penstock._random import BLOCK_CACHE_NBYTES
from penstock._spec import Spec

MIB = 1 << 20


@final
@dataclass(frozen=True)
class Budget:
    """The items of a loader's memory, in bytes. Their sum is `projected_nbytes`."""

    slot_count: int
    slot_nbytes: int
    scratch_nbytes: int
    """For all workers together."""
    order_nbytes: int
    """Blocks of shuffled positions that are kept; the same memory for all loaders of a process."""
    shared_nbytes: int
    """Arrays in memory that worker processes get a share of."""
    kept_nbytes: int
    """Caches in memory."""
    spans_nbytes: int
    """Of a stream: elements that wait for the workers, and what the steps hold that see them in order."""
    last_step: str
    spec: str

    @property
    def ring_nbytes(self) -> int:
        """All slots."""
        return self.slot_count * self.slot_nbytes

    @property
    def projected_nbytes(self) -> int:
        """The sum."""
        rest = self.scratch_nbytes + self.order_nbytes + self.shared_nbytes + self.kept_nbytes + self.spans_nbytes
        return self.ring_nbytes + rest

    def require(self, limit: int | None) -> None:
        """Refuses a loader that cannot stay under its limit.

        Raises:
            MemoryLimitError: Says the sum, the largest item, and two cures.
        """
        if limit is None or self.projected_nbytes <= limit:
            return
        items = {
            "the ring": self.ring_nbytes,
            "scratch memory of the workers": self.scratch_nbytes,
            "elements of a stream that wait for the workers": self.spans_nbytes,
            "a cache in memory": self.kept_nbytes,
        }
        largest = max(items, key=lambda name: items[name])
        if largest == "a cache in memory":
            raise MemoryLimitError(
                f"Projected memory is {mib(self.projected_nbytes)}, above memory_limit={mib(limit)}. "
                f"{mib(self.kept_nbytes)} of it is a cache in memory. Say how much it may take, cache(limit=...), or "
                "keep it on disk, cache(path)."
            )
        rest = self.projected_nbytes - self.ring_nbytes
        fitting = (limit - rest) // self.slot_nbytes - 2
        cure = f"prefetch={fitting} fits" if fitting >= 1 else "no prefetch fits"
        raise MemoryLimitError(
            f"Projected memory is {mib(self.projected_nbytes)}, above memory_limit={mib(limit)}. "
            f"{mib(items[largest])} of it is {largest} after {self.last_step}: {self.slot_count} slots of "
            f"{mib(self.slot_nbytes)}, {self.spec}. Use a smaller batch, or a smaller prefetch ({cure})."
        )


def budget(
    node: Node, spec: Spec, slot_count: int, worker_count: int, shared_nbytes: int = 0, spans_nbytes: int = 0
) -> Budget:
    """Adds up what a loader of this plan will take, whose slots hold elements of `spec`."""
    nodes = list(walk(node))
    scratch = sum(each.scratch_nbytes for each in nodes)
    shuffles = any(isinstance(each, Shuffle) for each in nodes)
    return Budget(
        slot_count=slot_count,
        slot_nbytes=SlotLayout(spec).nbytes,
        scratch_nbytes=scratch * max(1, worker_count),
        order_nbytes=BLOCK_CACHE_NBYTES if shuffles else 0,
        shared_nbytes=shared_nbytes,
        kept_nbytes=sum({each.opens: each.kept_nbytes for each in nodes}.values()),
        spans_nbytes=spans_nbytes,
        last_step=node.label,
        spec=str(spec),
    )


def mib(nbytes: int) -> str:
    """Bytes for people: `1.2 GiB`, `147 MiB`, `3.2 KiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if nbytes >= size:
            value = nbytes / size
            return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"
    return f"{nbytes} bytes"
