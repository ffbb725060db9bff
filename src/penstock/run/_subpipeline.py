"""What runs a plan: one pipeline, or a chain of them if the plan is a stream (`lower/_stages.py`).

Each wait, and what ends it. The worker of a feed waits for a batch of a stage (`Delivery.take`). The batch ends the
wait, an error, the deadline, or `request_stop`, which stages get with the feed.
"""

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, Final, final

from penstock.lower._analysis import Analysis, analyse
from penstock.lower._batches import BatchProgram, ParallelProgram
from penstock.lower._budget import budget
from penstock.lower._copies import CopyPlan
from penstock.lower._program import Position, Program
from penstock.lower._share import Share
from penstock.lower._stages import Stage, StreamParts, divide, random_parts
from penstock.lower._streams import FeedProgram, SerialProgram
from penstock.memory._budget import Budget, overhead_nbytes
from penstock.memory._rows import Leaves
from penstock.memory._shared import SharedFile
from penstock.memory._slot import SlotLayout
from penstock.report._lanes import Lane
from penstock.run._consumer import END_OF_EPOCH, DeliveryBase
from penstock.run._copy_delivery import CopyDelivery
from penstock.run._cpus import usable_cpu_count
from penstock.run._delivery import Delivery
from penstock.run._executor_spec import ExecutorSpec, choose, choose_feed
from penstock.run._feed import Feed
from penstock.run._inline import InlineDelivery
from penstock.run._lanes import unit_of
from penstock.run._network_advice import network_advice
from penstock.run._options import LoaderOptions
from penstock.run._quarantine import Quarantine
from penstock.run._shutdown import watch

LEAST_ROOM_NBYTES: Final = 64 << 20
"""What a worker may take to decode one element whatever the limit: a photograph of 22 million pixels."""


@final
class SubPipeline:
    """A plan and the executors that were chosen for it. Nothing runs before `start`.

    Args:
        analysis: The plan.
        options: How it runs. Those of memory and errors are the caller's to apply.
        share: The rows of each batch that are delivered.
        same_epoch: Every epoch is epoch 0 again.
        is_inner: It is a stage of a feed.
        quarantine: Takes elements that were set aside, if the plan has guards.
    """

    def __init__(
        self,
        analysis: Analysis,
        options: LoaderOptions,
        share: Share,
        *,
        same_epoch: bool = False,
        is_inner: bool = False,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._options = options
        self._share = share
        self._same_epoch = same_epoch
        self._is_inner = is_inner
        self._quarantine = quarantine
        self._stages: dict[int, _Stage] = {}
        self._feed: FeedProgram | None = None
        self.gives_cursor = False
        """States hold how far a filter got in an input that it reads by index."""
        self.program: BatchProgram
        self.executor: ExecutorSpec
        """What runs the batches."""
        self.budget: Budget
        self._executors: list[ExecutorSpec] = []
        self._probes: list[ExecutorSpec] = []
        """Made to find specs. They keep worker processes until the executors have started."""
        try:
            if analysis.plan.access == "random":
                self._set_up(analysis, None)
            else:
                for each in random_parts(analysis.plan):  # functions may crash, so worker processes run them
                    self._probes.append(choose(each, options))
                analysis.learn()
                parts = divide(analysis.plan)
                self.gives_cursor = parts.gives_cursor
                if parts.is_serial and share.is_whole and share.piece_count == 1 and options.executor != "inline":
                    self._set_up_serial(analysis, parts.below)
                else:
                    self._set_up(parts.above, parts)
        except BaseException:
            self.leave()
            raise

    def _room_nbytes(self, program: Program, worker_count: int = 1, process_count: int = 0) -> float:
        """Returns what the limit of memory leaves each worker to decode one element: a share of all but the ring."""
        limit = self._options.memory_limit
        if limit is None:
            return math.inf
        ring_nbytes = (self._options.prefetch + 2) * SlotLayout(program.spec).nbytes
        left_nbytes = limit - ring_nbytes - overhead_nbytes(process_count)
        return max(LEAST_ROOM_NBYTES, left_nbytes // max(1, worker_count))

    def _set_up_serial(self, analysis: Analysis, feed: Analysis) -> None:
        options = self._options
        self.program = SerialProgram(analysis.plan, same_epoch=self._same_epoch)
        self.program.room_nbytes = self._room_nbytes(self.program)
        self.executor = choose_feed(self.program, feed, options.executor, options.timeout_s, has_stages=False)
        self._executors.append(self.executor)
        self.budget = budget(
            analysis,
            self.program.spec,
            slot_count=options.prefetch + 2,
            worker_count=1,
            scratch_nbytes=feed.sequence_nbytes(),
            source_nbytes=analysis.source_nbytes(),
        )

    def _set_up(self, analysis: Analysis, parts: StreamParts | None) -> None:
        options = self._options
        self.executor = choose(analysis, options)
        self._executors.append(self.executor)
        if parts is not None:
            self._set_up_feed(parts)
        program = ParallelProgram(
            analysis.plan,
            self._share,
            same_epoch=self._same_epoch,
            spans=self._feed.layout if self._feed else None,
            is_inner=self._is_inner,
        )
        self.program = program
        program.room_nbytes = self._room_nbytes(program, self.executor.worker_count, self.executor.process_count)
        self.executor.pack(program)
        if analysis.is_remote and not self._is_inner:
            self.executor.events += network_advice(analysis)
        process_count = self.executor.process_count
        feed_nbytes = source_nbytes = 0
        if parts is not None and self._feed is not None:
            inner = [(id(each.part.node), each.pipeline.budget) for each in self._stages.values()]
            staged = {key: each.projected_nbytes - each.source_nbytes for key, each in inner}
            waiting_nbytes = self._feed.layout.nbytes + self._waiting_objects_nbytes(analysis, process_count)
            feed_nbytes = waiting_nbytes + parts.below.sequence_nbytes(staged) + parts.below.kept_nbytes(staged)
            source_nbytes = parts.below.source_nbytes(staged) + sum(each.source_nbytes for _, each in inner)
        self.budget = budget(
            analysis,
            program.spec,
            slot_count=options.prefetch + 2,
            worker_count=max(self.executor.worker_count, process_count),
            shared_nbytes=self.executor.shared_nbytes,
            spans_nbytes=feed_nbytes,
            is_sent=self.executor.reach == "machine",
            source_nbytes=max(1, process_count) * analysis.source_nbytes() + source_nbytes,
        )
        self.executor.require(self.budget.store_nbytes)

    def _set_up_feed(self, parts: StreamParts) -> None:
        options = self._options
        are_many = len(parts.stages) > usable_cpu_count()
        for part in parts.stages:
            executor = options.executor
            if are_many and part.is_generator and executor == "auto":
                executor = "threads"  # a process for each shard would be too many
            inner = SubPipeline(
                analyse(part.plan),
                replace(options, executor=executor, prefetch=part.prefetch),
                Share(),
                same_epoch=self._same_epoch,
                is_inner=True,
                quarantine=self._quarantine,
            )
            self._stages[part.place] = _Stage(part, inner, options.timeout_s)
        if self.executor.reach is None:
            self._feed = FeedProgram(parts.below.plan, 2 * parts.batch_count, 1, self._stages)
            return
        self._feed = FeedProgram(parts.below.plan, parts.span_size, parts.span_count, self._stages)
        self._feed.room_nbytes = self._room_nbytes(self._feed)
        self._feed_executor = choose_feed(
            self._feed, parts.below, options.executor, options.timeout_s, has_stages=bool(self._stages)
        )
        self._executors.append(self._feed_executor)

    def _waiting_objects_nbytes(self, above: Analysis, process_count: int) -> int:
        """Elements of any size that wait; known if they must fit what they are padded to.

        They are Python objects of the process that reads the stream, and of this one. Each worker process makes them
        again from a file in shared memory.
        """
        assert self._feed is not None
        layout = self._feed.layout
        if not layout.has_objects:
            return 0
        is_apart = any(each.is_alone for each in self._executors)
        copies = 1 + is_apart + (1 + process_count if process_count else 0)
        return copies * layout.slot_count * layout.size * above.padded_nbytes

    @property
    def notes(self) -> str:
        """Remarks about the executors, and events of worker processes so far; a line each."""
        found = [each.notes for each in self.executors]
        return "\n".join(dict.fromkeys(text for text in found if text))

    @property
    def process_count(self) -> int:
        """Worker processes. Those of the pool count once, however many parts of a plan use them."""
        found = list(self.executors)
        pooled = max((each.process_count for each in found if not each.is_alone), default=0)
        return pooled + sum(each.is_alone for each in found)

    @property
    def executors(self) -> Iterator[ExecutorSpec]:
        """Those of all parts, and of the stages."""
        yield from self._executors
        for stage in self._stages.values():
            yield from stage.pipeline.executors

    @property
    def busiest(self) -> ExecutorSpec:
        """What runs the functions; if the plan is a stream, it may be that of a stage."""
        inner = [stage.pipeline.busiest for stage in self._stages.values()]
        return next((each for each in (self.executor, *inner) if each.reach == "process"), self.executor)

    def start(self) -> DeliveryBase:
        """Starts the delivery of a whole plan: by copies if it only moves bytes, else as that of a part."""
        program = self.program
        if self._feed is None and self.executor.reach == "thread" and isinstance(program, ParallelProgram):
            copies = CopyPlan.of(program.node, program.shard)
            if copies is not None:
                return CopyDelivery(
                    program,
                    copies,
                    slot_count=self.budget.slot_count,
                    spare_count=self._spare_count,
                    thread_count=self.executor.worker_count,
                )
        return self.start_part()

    @property
    def _spare_count(self) -> int:
        """Slots that a hand-out leaves.

        The consumer holds one slot and requests another; `prefetch` are ready or being filled. With fewer than two of
        these left, workers would stand still while the consumer works.
        """
        return min(2, self._options.prefetch)

    def start_part(self, *, gives_rest: bool = False) -> DeliveryBase:
        """Starts the workers; see `Delivery`. Inline there are none."""
        if isinstance(self.program, ParallelProgram) and self.executor.reach is None:
            for stage in self._stages.values():
                stage.start()
            delivery: DeliveryBase = InlineDelivery(
                self.program,
                self._feed,
                self._stages,
                slot_count=self.budget.slot_count,
                spare_count=self._spare_count,
                timeout_s=self._options.timeout_s,
                gives_rest=gives_rest,
                quarantine=self._quarantine,
            )
        else:
            delivery = Delivery(
                self.program,
                slot_count=self.budget.slot_count,
                spare_count=self._spare_count,
                make_executor=self.executor.make_executor,
                make_feed=self._make_feed if self._feed else None,
                timeout_s=self._options.timeout_s,
                gives_rest=gives_rest,
                quarantine=self._quarantine,
            )
        for probe in self._probes:
            probe.leave()
        return delivery

    def _make_feed(self, wake: Callable[[], None], shared: SharedFile | None, lock: threading.Lock) -> Feed:
        assert self._feed is not None
        for stage in self._stages.values():
            stage.start()
        return Feed(
            self._feed,
            dict(self._stages),
            self._feed_executor.make_executor,
            wake,
            shared,
            lock,
            self._quarantine,
            self._options.timeout_s,
        )

    def leave(self) -> None:
        """Releases workers that were started to find specs, if nothing was started."""
        for each in (*self._probes, *self._executors):
            each.leave()
        for stage in self._stages.values():
            stage.leave()
            stage.pipeline.leave()

    def close(self) -> None:
        """Frees what was opened, if nothing was started."""
        self.leave()
        self.program.sources.close()


@final
class _Stage:
    """An input of a feed that workers make ahead, some elements at a time, and that is read one by one."""

    def __init__(self, part: Stage, pipeline: SubPipeline, timeout_s: float) -> None:
        self.part = part
        self.pipeline = pipeline
        self._structure = part.node.spec.structure
        self._timeout_s = timeout_s
        self._delivery: DeliveryBase | None = None
        self.waited_s = 0.0
        """The time that the feed has waited for elements."""

    @property
    def delivery(self) -> DeliveryBase:
        """The workers, which were started."""
        assert self._delivery is not None
        return self._delivery

    def start(self) -> None:
        """Starts its workers, which wait for the first seek."""
        self.leave()
        self._delivery = self.pipeline.start_part(gives_rest=self.part.is_stacked)
        watch(self, self._delivery)

    def leave(self) -> None:
        """Stops the workers of a start that failed as a whole."""
        if self._delivery is not None:
            self._delivery.request_stop()

    def sequence(self, epoch: int, start: int) -> Generator[Leaves, None, None]:
        """Yields the elements of an epoch from one on. Each is valid until the next one is requested."""
        number, skipped = divmod(start, self.part.size)
        if number < (self.pipeline.program.batch_count or math.inf):
            self.delivery.seek((epoch, number))  # now, and not when the first element is requested
        return self._elements((epoch, number), skipped)

    def _elements(self, position: Position, skipped: int) -> Generator[Leaves, None, None]:
        delivery, batch_count = self.delivery, self.pipeline.program.batch_count
        while position[1] < (math.inf if batch_count is None else batch_count):
            asked_at = time.perf_counter()
            batch: Any = delivery.take(position, self._timeout_s)
            self.waited_s += time.perf_counter() - asked_at
            if batch is END_OF_EPOCH:
                return
            leaves = self._structure.flatten_up_to(batch)
            del batch
            rest, delivery.rest = delivery.rest, None
            if self.part.is_stacked:
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
        first += self.part.number
        is_stacked = self.part.is_stacked  # its batches are no step of the plan
        own, *others = self.delivery.lanes(delivered, first - is_stacked)
        rows_each = 1 if is_stacked else self.pipeline.program.rows_per_batch
        given = None if own.given is None else own.given // rows_each
        node = self.part.node
        return [replace(own, first=first, label=node.label, unit=unit_of(node), given=given), *others]
