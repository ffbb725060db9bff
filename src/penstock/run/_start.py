"""Starts an arrangement: rings, workers, and what reads a stream in order.

Each wait, and what ends it. The worker that reads a stream waits for a batch of a stage (`Delivery.take`). The batch
ends the wait, an error, the deadline, or `request_stop`, which stages get with their reader.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, final

from penstock.lower._batches import BatchProgram, ParallelProgram
from penstock.lower._parts import PartProgram
from penstock.lower._program import Position
from penstock.lower._streams import FeedProgram
from penstock.memory._rows import Leaves
from penstock.memory._shared import SharedFile
from penstock.report._lanes import Lane
from penstock.run._consumer import END_OF_EPOCH, DeliveryBase
from penstock.run._copy_delivery import CopyDelivery
from penstock.run._delivery import Delivery
from penstock.run._feed import Feed
from penstock.run._inline import InlineDelivery
from penstock.run._lanes import unit_of
from penstock.run._quarantine import Quarantine
from penstock.run._shutdown import watch
from penstock.run.arrange import Arrangement, Part
from penstock.run.parts._feed import PartFeed


def start(arrangement: Arrangement) -> DeliveryBase:
    """Starts the delivery of batches: by copies if the plan only moves bytes, else by workers; inline by neither."""
    top, program = arrangement.top, arrangement.program
    delivery: DeliveryBase
    if top.copies is not None and isinstance(program, ParallelProgram):
        delivery = CopyDelivery(
            program,
            top.copies,
            slot_count=top.slot_count,
            spare_count=_spare_count(top),
            thread_count=top.crew.worker_count,
        )
    else:
        delivery = _started(top, arrangement.quarantine, gives_rest=False)
    arrangement.leave()
    return delivery


def _started(part: Part, quarantine: Quarantine | None, *, gives_rest: bool) -> DeliveryBase:
    """Starts the workers of a part; see `Delivery`."""
    program, stream = part.program, part.stream
    assert isinstance(program, BatchProgram)
    if isinstance(program, ParallelProgram) and part.crew.reach is None:
        with _stages(stream, quarantine) as stages:
            return InlineDelivery(
                program,
                None if stream is None else _reading(stream),
                stages,
                slot_count=part.slot_count,
                spare_count=_spare_count(part),
                timeout_s=part.crew.timeout_s,
                gives_rest=gives_rest,
                quarantine=quarantine,
            )

    def make_feed(wake: Callable[[], None], shared: SharedFile | None, lock: threading.Lock) -> Feed:
        assert stream is not None
        with _stages(stream, quarantine) as stages:
            return Feed(
                _reading(stream),
                stages,
                stream.crew.make_executor,
                wake,
                shared,
                lock,
                quarantine,
                stream.crew.timeout_s,
            )

    def make_parts(wake: Callable[[], None], lock: threading.Lock) -> PartFeed:
        parts = part.parts
        assert parts is not None
        assert isinstance(parts.program, PartProgram)
        assert isinstance(program, ParallelProgram)
        room = parts.program.room(program.source_share)
        return PartFeed(parts.program, program, room, parts.crew.make_executor, wake, lock, parts.crew.timeout_s)

    return Delivery(
        program,
        slot_count=part.slot_count,
        spare_count=_spare_count(part),
        make_executor=part.crew.make_executor,
        make_feed=None if stream is None else make_feed,
        make_parts=None if part.parts is None else make_parts,
        timeout_s=part.crew.timeout_s,
        gives_rest=gives_rest,
        quarantine=quarantine,
    )


def _reading(stream: Part) -> FeedProgram:
    assert isinstance(stream.program, FeedProgram)
    return stream.program


def _spare_count(part: Part) -> int:
    """Slots that a hand-out leaves.

    The consumer holds one slot and requests another; the others are ready or being filled. With fewer than two of these
    left, workers would stand still while the consumer works.
    """
    return min(2, part.slot_count - 2)


@contextlib.contextmanager
def _stages(stream: Part | None, quarantine: Quarantine | None) -> Iterator["dict[int, StageReader]"]:
    """Starts the workers of the stages of a stream, which wait for the first seek. An error in the block stops them."""
    started: dict[int, StageReader] = {}
    try:
        for place, part in stream.stages.items() if stream is not None else ():
            started[place] = StageReader(part, quarantine)
        yield started
    except BaseException:
        for each in started.values():
            each.delivery.request_stop()  # not closed: a second start uses the same programs, with their open sources
        raise


@final
class StageReader:
    """A part of a stream that workers make ahead, some elements at a time, and that is read one by one.

    Args:
        part: The part.
        quarantine: Takes elements that were set aside, if the plan has guards.
    """

    def __init__(self, part: Part, quarantine: Quarantine | None) -> None:
        assert part.stage is not None
        assert isinstance(part.program, BatchProgram)
        self._stage = part.stage
        self._program: BatchProgram = part.program
        self._structure = part.stage.node.spec.structure
        self._timeout_s = part.crew.timeout_s
        self.waited_s = 0.0
        """The time that the reader of the stream has waited for elements."""
        self.delivery = _started(part, quarantine, gives_rest=part.stage.is_stacked)
        """The workers."""
        watch(self, self.delivery)

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
