"""What a pipeline notes of the batches that are under way, and of the reads that were announced."""

from collections import deque
from dataclasses import dataclass, field
from typing import final

from penstock.lower._program import Position, Program, Unit
from penstock.run._feed import Run


@final
@dataclass(slots=True, eq=False)
class PendingBatch:
    """A slot that is being filled with a batch."""

    epoch: int
    index: int
    slot: int
    generation: int
    remaining: int
    """Units not finished."""
    errors: list[tuple[int, BaseException]] = field(default_factory=list)
    """What units raised, with the row at which they start."""
    consumed: int = -1
    """Of a stream: how far its input was read when all of this batch was there; see `Feed.consumed_before`."""
    needs: tuple[Run, int] | None = None
    """Of a stream: the first element that it reads, and in which epoch's reading."""
    is_end: bool = False
    """It is no batch: the epoch, whose length nobody knew, has ended before it."""

    def failed_before(self, unit: Unit) -> bool:
        """Whether an earlier row failed, so that this unit's outcome is of no interest any more."""
        return bool(self.errors) and self.first_row < unit.start

    @property
    def first_row(self) -> int:
        """The first row that failed."""
        return min(start for start, _ in self.errors)

    def first_error(self) -> BaseException:
        """That of the first row that fails, whichever unit was done first."""
        return min(self.errors, key=lambda pair: pair[0])[1]


@final
class Announcer:
    """Which batches the sources were told of, and which they are to be told of next.

    Args:
        program: What the batches are of.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._told: deque[Position] = deque()

    def forget(self) -> None:
        """Says that other batches come than those that were told."""
        self._told.clear()

    def after(self, position: Position) -> tuple[int, int, int]:
        """Batches after a position that the sources are to be told of now: many at once, every few batches."""
        told, count = self._told, self._program.announced_count
        if told and told[0] == position:
            told.popleft()
        if len(told) > count // 2:
            return 0, 0, 0
        known_count = len(told)
        while len(told) < min(count, self._program.batch_count or count):
            told.append(self._program.next_position(*(told[-1] if told else position)))
        return (*told[known_count], len(told) - known_count) if len(told) > known_count else (0, 0, 0)
