"""Starts an arrangement: rings, workers, and what reads a stream in order."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from penstock.lower._parts import cache_of
from penstock.memory._shared import SharedFile
from penstock.run._arrange import Arrangement, Filler, StreamFiller
from penstock.run._consumer import DeliveryBase
from penstock.run._copy_delivery import CopyDelivery
from penstock.run._crew import leave
from penstock.run._delivery import Delivery
from penstock.run._feed import Feed
from penstock.run._inline import InlineDelivery
from penstock.run._quarantine import Quarantine
from penstock.run._stage_reader import StageReader
from penstock.run.parts._feed import PartFeed
from penstock.run.parts._order import PartOrder


def start(arrangement: Arrangement) -> DeliveryBase:
    """Starts the delivery of batches. The workers that found specs may go then."""
    delivery = _started(arrangement.top, arrangement.quarantine, gives_rest=False)
    leave(arrangement.probes)
    return delivery


def _started(filler: Filler, quarantine: Quarantine | None, *, gives_rest: bool) -> DeliveryBase:
    """Starts what fills a ring: copies if the plan only moves bytes, else workers; inline neither."""
    program, stream, slot_count, timeout_s = filler.program, filler.stream, filler.slot_count, filler.crew.timeout_s
    if filler.copies is not None:
        return CopyDelivery(program, filler.copies, slot_count=slot_count, thread_count=filler.crew.worker_count)
    if filler.crew.reach is None:
        with _stages(stream, quarantine) as stages:
            return InlineDelivery(
                program,
                None if stream is None else stream.program,
                stages,
                slot_count=slot_count,
                timeout_s=timeout_s,
                gives_rest=gives_rest,
                quarantine=quarantine,
            )

    def make_feed(wake: Callable[[], None], shared: SharedFile | None, lock: threading.Lock) -> Feed:
        assert stream is not None
        with _stages(stream, quarantine) as stages:
            return Feed(stream.program, stages, stream.crew.make_executor, wake, shared, lock, quarantine, timeout_s)

    def make_parts(wake: Callable[[], None], lock: threading.Lock) -> PartFeed:
        parts = filler.parts
        assert parts is not None
        decoding, crew = parts.program, parts.crew
        if crew.reach == "thread":
            opened = [cache_of(program.sources[each.source]) for each in decoding.sources]
            decoding = replace(decoding, opened=opened)
        order = PartOrder(program, decoding.sources, filler.crew.worker_count)
        return PartFeed(decoding, order, decoding.room(program.source_share), crew.make_executor, wake, lock, timeout_s)

    return Delivery(
        program,
        slot_count=slot_count,
        make_executor=None if filler.is_filled_by_reader else filler.crew.make_executor,
        make_feed=None if stream is None else make_feed,
        make_parts=None if filler.parts is None else make_parts,
        timeout_s=timeout_s,
        gives_rest=gives_rest,
        quarantine=quarantine,
    )


@contextlib.contextmanager
def _stages(stream: StreamFiller | None, quarantine: Quarantine | None) -> Iterator[dict[int, StageReader]]:
    """Starts the workers of the stages of a stream, which wait for the first seek. An error in the block stops them."""
    started: dict[int, StageReader] = {}
    try:
        for stage, filler in stream.stages.items() if stream is not None else ():
            delivery = _started(filler, quarantine, gives_rest=stage.is_stacked)
            started[stage.place] = StageReader(stage, filler.program, delivery, filler.crew.timeout_s)
        yield started
    except BaseException:
        for each in started.values():
            each.delivery.request_stop()  # not closed: a second start uses the same programs, with their open sources
        raise
