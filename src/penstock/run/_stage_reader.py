"""A stage of a stream as its reader sees it: elements one by one, which workers make ahead.

Each wait, and what ends it. The worker that reads a stream waits for a batch of a stage (`Delivery.take`). The batch
ends the wait, an error, the deadline, or `request_stop`, which stages get with their reader.
"""

import math
import time
from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Any, final

from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Position
from penstock.lower._stages import Stage
from penstock.memory._rows import Leaves
from penstock.report._lanes import Lane
from penstock.run._consumer import END_OF_EPOCH, DeliveryBase
from penstock.run._lanes import unit_of
from penstock.run._shutdown import watch


@final
class StageReader:
    """A part of a stream that workers make ahead, some elements at a time, and that is read one by one.

    Args:
        stage: The part.
        program: Its program.
        delivery: Its workers.
        timeout_s: How long they may stand still.
    """

    def __init__(self, stage: Stage, program: ParallelProgram, delivery: DeliveryBase, timeout_s: float) -> None:
        self._stage = stage
        self._program = program
        self._structure = stage.node.spec.structure
        self._timeout_s = timeout_s
        self.waited_s = 0.0
        """The time that the reader of the stream has waited for elements."""
        self.delivery = delivery
        watch(self, delivery)

    def sequence(self, epoch: int, start: int) -> Generator[Leaves, None, None]:
        """Yields the elements of an epoch from one on. Each is valid until the next one is requested."""
        number, skipped = divmod(start, self._stage.size)
        if number < (self._program.batch_count or math.inf):
            self.delivery.seek((epoch, number))  # now, and not when the first element is requested
        return self._elements((epoch, number), skipped)

    def _elements(self, position: Position, skipped: int) -> Generator[Leaves, None, None]:
        delivery, batch_count = self.delivery, self._program.batch_count
        while position[1] < (math.inf if batch_count is None else batch_count):
            asked_at = time.perf_counter()
            batch: Any = delivery.take(position, self._timeout_s)
            self.waited_s += time.perf_counter() - asked_at
            if batch is END_OF_EPOCH:
                return
            leaves = self._structure.flatten_up_to(batch)
            del batch
            rest, delivery.rest = delivery.rest, None
            if self._stage.is_stacked:
                for row in range(skipped, len(leaves[0]) if rest is None else rest[0]):
                    yield [leaf[row] for leaf in leaves]
            else:
                yield leaves
            if rest is not None:
                raise rest[1]
            del leaves
            skipped = 0
            position = (position[0], position[1] + 1)

    def lanes(self, delivered: float, first: int) -> list[Lane]:
        """See `DeliveryBase.lanes`."""
        first += self._stage.number
        is_stacked = self._stage.is_stacked  # its batches are no step of the plan
        own, *others = self.delivery.lanes(delivered, first - is_stacked)
        rows_each = 1 if is_stacked else self._program.rows_per_batch
        given = None if own.given is None else own.given // rows_each
        node = self._stage.node
        return [replace(own, first=first, label=node.label, unit=unit_of(node), given=given), *others]


def close_stages(stages: Iterable[StageReader], timeout_s: float) -> bool:
    """Stops the workers of stages, and waits for them. Returns whether all ended."""
    ends_at = time.monotonic() + timeout_s
    for stage in stages:
        stage.delivery.request_stop()
    ended = [stage.delivery.close(max(0.0, ends_at - time.monotonic())) for stage in stages]
    return all(ended)
