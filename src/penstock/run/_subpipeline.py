"""A plan as what runs it: one pipeline, or a chain of them where the plan is a stream.

A plan with random access is one pipeline. Of a stream, the steps from the end down to the last that has to see elements
one after the other are a pipeline over a feed (`_feed.py`). If a step of the feed reads what functions made, as
`filter` does, that input is a stage again: a pipeline of its own on the same kind of executor, whose batches the feed
takes. So functions always run on all workers, and order is kept in one place each.

Each wait, and what ends it. A feed's worker waits for a stage's batch (`Pipeline.take`): ended by the batch, by an
error, by the deadline, or by `request_stop`, which the stages get with the feed.
"""

import functools
import math
import threading
import time
from collections.abc import Callable, Container, Generator, Iterator
from dataclasses import replace
from typing import Any, Literal, final

from penstock.lower._batches import BatchProgram, ParallelProgram
from penstock.lower._budget import budget
from penstock.lower._copies import CopyPlan
from penstock.lower._program import Position
from penstock.lower._rewrite import cut, needed, uses
from penstock.lower._streams import FeedProgram, SerialProgram
from penstock.memory._budget import Budget
from penstock.memory._rows import Leaves
from penstock.memory._shared import SharedFile
from penstock.plan._batch import Batch, Bundle, is_object
from penstock.plan._combine import Interleave
from penstock.plan._filter import Filter, FlatMap
from penstock.plan._map import Map, learn
from penstock.plan._node import Node, walk
from penstock.plan._pad import PaddedBatch
from penstock.plan._reader import WorkerStatus
from penstock.plan._source import Source, key_of
from penstock.plan._stream import Generate, Inlet
from penstock.plan._tolerate import FailureFilter
from penstock.report._lanes import Lane
from penstock.run._consumer import END_OF_EPOCH, DeliveryBase
from penstock.run._copy_delivery import CopyDelivery
from penstock.run._cpus import usable_cpu_count
from penstock.run._delivery import Delivery
from penstock.run._driving import MOST_NBYTES
from penstock.run._executor_spec import ExecutorSpec, choose, choose_feed
from penstock.run._feed import Feed
from penstock.run._lanes import unit_of
from penstock.run._quarantine import Quarantine
from penstock.run._shutdown import watch

SPAN_NBYTES = 4 << 20
"""A span that holds what a batch needs is about so large, and no more than `SPAN_COUNT` elements."""
SPAN_COUNT = 1024
STAGE_NBYTES = 1 << 20
"""A batch of a stage is about so large, and no more than `STAGE_COUNT` elements."""
STAGE_COUNT = 32
OBJECT_COUNT = 16
"""So many elements are a batch of a stage if nobody knows how large one is; and fewer batches wait."""


@final
class SubPipeline:
    """What it takes to run a plan; nothing runs before `start`.

    Args:
        node: The plan.
        executor: `"auto"`, or the executor's name.
        workers: How many, or `"auto"`.
        prefetch: Batches ready or being filled while the consumer has one.
        timeout_s: How long a worker may stand still.
        shard: `(index, count)` of the rows of each batch.
        same_epoch: Every epoch is epoch 0 again.
        is_inner: It is a part of a plan, see `_Parallel`.
        quarantine: Takes what was set aside, if the plan has guards.
    """

    def __init__(
        self,
        node: Node,
        executor: str,
        workers: int | Literal["auto"],
        prefetch: int,
        timeout_s: float,
        shard: tuple[int, int] = (0, 1),
        *,
        same_epoch: bool = False,
        is_inner: bool = False,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._prefetch = prefetch
        self._timeout_s = timeout_s
        self._quarantine = quarantine
        self._stages: dict[int, _Parallel] = {}
        self._below: FeedProgram | None = None
        self._may_drive = False
        self.gives_cursor = False
        """Whether states say how far a filter got in what it reads by index."""
        self.program: BatchProgram[Any]
        self.choice: ExecutorSpec
        self.budget: Budget
        self._choices: list[ExecutorSpec] = []
        self._probes: list[ExecutorSpec] = []
        """Made to find specs; they keep worker processes until those are needed."""
        try:
            above, below, functions = node, None, None
            if node.access == "stream":
                for each in _random_parts(node):  # their functions may crash, so that a worker is asked for the specs
                    self._probes.append(choose(each, executor, workers, timeout_s))
                learn(node, WorkerStatus(), takes_any=_has_guards(node))
                above, below = cut(node)
                self.gives_cursor = isinstance(below, Filter) and below.source.access == "random"
                functions = [each for each in _until(node, below) if isinstance(each, Map)]
            inner = [] if below is None else list(_inner(below))
            if below is not None and not inner and shard[1] == 1 and _is_serial(above):
                self.program = SerialProgram(node, same_epoch=same_epoch)
                self.choice = choose_feed(self.program, executor, timeout_s)
                self._choices.append(self.choice)
                self.budget = budget(
                    node,
                    self.program.spec,
                    slot_count=prefetch + 2,
                    worker_count=1,
                    source_nbytes=_source_nbytes(node),
                    sequence=below,
                )
                return
            self.choice = choose(above, executor, workers, timeout_s, functions)
            self._choices.append(self.choice)
            if below is not None:
                for number, each in inner:
                    apart = executor
                    if len(inner) > usable_cpu_count() and isinstance(each, Generate) and executor != "inline":
                        apart = "threads"  # shards, for which so many processes would be too many
                    self._stages[number] = _Parallel(
                        each,
                        next(number for number, one in enumerate(walk(below)) if one is each),
                        apart,
                        workers,
                        timeout_s,
                        same_epoch=same_epoch,
                        quarantine=quarantine,
                    )
                self._below = _feed_program(above, below, self._stages)
                self._feed_choice = choose_feed(
                    self._below, "inline" if self.choice.executor == "inline" else executor, timeout_s
                )
                self._choices.append(self._feed_choice)
            layout = self._below.layout if self._below else None
            program = ParallelProgram(above, shard, same_epoch=same_epoch, spans=layout, is_inner=is_inner)
            self.program = program
            self.choice.pack(self.program)
            is_ours = executor == "auto" and self.choice.executor == "threads" and below is None and not is_inner
            self._may_drive = is_ours and program.is_in_memory and program.spec.nbytes <= MOST_NBYTES
            self.budget = budget(
                above,
                self.program.spec,
                slot_count=prefetch + 2,
                worker_count=self.choice.worker_count + self._may_drive,
                shared_nbytes=self.choice.shared_nbytes,
                spans_nbytes=0 if below is None else self._spans_nbytes(above, below),
                source_nbytes=self._all_source_nbytes(above, below),
            )
        except BaseException:
            self.leave()
            raise

    @property
    def remarks(self) -> str:
        """What there is to say about the choice of executors, and what happened to worker processes so far."""
        found = [choice.remarks for choice in self._choices]
        found += [stage.remarks for stage in self._stages.values()]
        return "\n".join(dict.fromkeys(text for text in found if text))

    @property
    def process_count(self) -> int:
        """Worker processes. Those of the pool are there once, however many parts of a plan use them."""
        choices = [each for each in self.choices if each.executor == "processes"]
        pooled = max((each.worker_count for each in choices if not each.is_alone), default=0)
        return pooled + sum(each.is_alone for each in choices)

    @property
    def choices(self) -> Iterator[ExecutorSpec]:
        """What runs its parts, and those of its stages."""
        yield from self._choices
        for stage in self._stages.values():
            yield from stage.choices

    @property
    def busiest(self) -> ExecutorSpec:
        """What runs the functions: of a stream, it may be a stage's."""
        inner = [stage.busiest for stage in self._stages.values()]
        return next((each for each in (self.choice, *inner) if each.executor == "processes"), self.choice)

    def _spans_nbytes(self, above: Node, below: Node) -> int:
        """What the part that runs in one place takes, and the stages in it."""
        assert self._below is not None
        staged = {id(stage.node): stage.nbytes for stage in self._stages.values()}
        return self._below.layout.nbytes + self._ragged_nbytes(above) + _held_nbytes(below, staged)

    def _all_source_nbytes(self, above: Node, below: Node | None) -> int:
        """What sources keep in each process that reads: workers read what is above, and one process what is below."""
        processes = self.choice.worker_count if self.choice.executor == "processes" else 1
        inner = sum(stage.source_nbytes for stage in self._stages.values())
        staged = {id(stage.node) for stage in self._stages.values()}
        return processes * _source_nbytes(above) + inner + (0 if below is None else _source_nbytes(below, staged))

    def _ragged_nbytes(self, above: Node) -> int:
        """Elements of any size that wait: known where they must fit what they are padded to.

        They are Python objects of the process that reads the stream, and of this one; worker processes make them again
        from what lies in a file of shared memory.
        """
        assert self._below is not None
        layout = self._below.layout
        if not layout.has_objects:
            return 0
        copies = 1 + (self._feed_choice.executor == "processes")
        if self.choice.executor == "processes":
            copies += 1 + self.choice.worker_count
        element_nbytes = max((each.element_nbytes for each in walk(above) if isinstance(each, PaddedBatch)), default=0)
        return copies * layout.slot_count * layout.size * element_nbytes

    def start(self) -> DeliveryBase:
        """Starts the delivery of a whole plan: by copies if it only moves bytes, else by units on workers."""
        if self._below is None and self.choice.executor == "threads" and isinstance(self.program, ParallelProgram):
            copies = CopyPlan.of(self.program.node, self.program.shard)
            if copies is not None:
                return CopyDelivery(
                    self.program,
                    copies,
                    slot_count=self.budget.slot_count,
                    spare_count=min(2, self._prefetch),
                    thread_count=self.choice.worker_count,
                )
        return self.start_units()

    def start_units(self, *, gives_rest: bool = False) -> Delivery:
        """Starts the workers; see `Delivery`."""
        # A slot in the consumer's hand, one asked for meanwhile, and `prefetch` ready or being filled. With
        # fewer than two left the workers would stand still while the consumer works.
        make_executor = self.choice.make_executor
        if self._may_drive:
            spec, slot_count = self.program.spec, self.budget.slot_count
            batch_nbytes = spec.nbytes if spec.is_bounded else None
            make_executor = functools.partial(make_executor, consumer_slots=(slot_count, batch_nbytes))
        pipeline = Delivery(
            self.program,
            slot_count=self.budget.slot_count,
            spare_count=min(2, self._prefetch),
            make_executor=make_executor,
            make_feed=self._make_feed if self._below else None,
            timeout_s=self._timeout_s,
            gives_rest=gives_rest,
            quarantine=self._quarantine,
        )
        for probe in self._probes:
            probe.leave()
        return pipeline

    def _make_feed(self, wake: Callable[[], None], shared: SharedFile | None, lock: threading.Lock) -> Feed:
        assert self._below is not None
        for stage in self._stages.values():
            stage.reopen()
        return Feed(
            self._below,
            dict(self._stages),
            self._feed_choice.make_executor,
            wake,
            shared,
            lock,
            self._quarantine,
            self._timeout_s,
        )

    def leave(self) -> None:
        """Lets go of workers that were started to find specs, if nothing was started."""
        for choice in (*self._probes, *self._choices):
            choice.leave()
        for stage in self._stages.values():
            stage.leave()

    def close(self) -> None:
        """Frees what was opened, if nothing was started."""
        self.leave()
        self.program.sources.close()


def _has_guards(node: Node) -> bool:
    return any(isinstance(each, FailureFilter) for each in walk(node))


def _is_serial(above: Node) -> bool:
    """Whether nothing is above a feed that workers could do side by side."""
    return isinstance(above, Inlet) or (isinstance(above, Batch) and isinstance(above.source, Inlet))


def _until(node: Node, below: Node) -> Iterator[Node]:
    """The steps from the end of a stream's plan to where it was cut."""
    while node is not below:
        yield node
        (node,) = node.inputs


def _random_parts(node: Node) -> Iterator[Node]:
    """The parts of a stream's plan that have random access, and functions."""
    for each in node.inputs:
        if each.access == "stream":
            yield from _random_parts(each)
        elif any(isinstance(inner, Map) for inner in walk(each)):
            yield each


def _feed_program(above: Node, below: Node, stages: "dict[int, _Parallel]") -> FeedProgram:
    """Chooses how large spans are, and how many: together they hold what two batches need, and two spans more.

    Small spans cost time, each a unit of its own at least, and large ones memory.
    """
    first, stop = needed(above, 0)
    count = size = max(1, stop - first)
    if below.spec.is_bounded:  # else nobody knows how large an element is, and no more are taken than is needed
        fitting = min(SPAN_COUNT, SPAN_NBYTES // max(1, below.spec.nbytes))
        size = fitting - fitting % count if count <= fitting else -(-count // 4)
    return FeedProgram(below, size, -(-2 * count // size) + 2, stages)


def _held_nbytes(node: Node, staged: dict[int, int]) -> int:
    if id(node) in staged:
        return staged[id(node)]
    memory = node.memory
    return memory.sequence_nbytes + memory.kept_nbytes + sum(_held_nbytes(each, staged) for each in node.inputs)


def _source_nbytes(node: Node, staged: Container[int] = ()) -> int:
    """What the sources of a plan keep in one process, but for those of its stages; equal ones are opened once."""
    reached = walk(node, lambda each: () if id(each) in staged else each.inputs)
    opened = [each.opens for each in reached if id(each) not in staged]
    return sum({key_of(source): source.kept_nbytes for source in opened if isinstance(source, Source)}.values())


def _inner(below: Node) -> Iterator[tuple[int, Node]]:
    """The parts of a feed that workers make, for they take time; by their places in the order of `uses`.

    Rows that are merely read, and guarded, are such a part where nothing else is in the feed that the user wrote: so
    they are read side by side as they are without `on_error`. Else they are read with the rest, as without it, too:
    what takes batches of its stages cannot be in a process of its own, where a function may end its process.
    """
    runs_code = any(isinstance(each, (Generate, FlatMap)) for each in walk(below))
    return _made_apart(below, reads_apart=not runs_code)


def _made_apart(node: Node, *, reads_apart: bool) -> Iterator[tuple[int, Node]]:
    number = 1
    for each in node.inputs:
        count = sum(1 for _ in uses(each))
        is_shard = isinstance(node, Interleave) and node.reads_ahead and each.access == "stream"
        is_work = any(
            inner.traits.is_cpu_bound or (reads_apart and isinstance(inner, FailureFilter)) for inner in walk(each)
        )
        if is_shard or (is_work and _is_topmost(each)):
            yield number, each
        else:
            for inner_number, inner in _made_apart(each, reads_apart=reads_apart):
                yield number + inner_number, inner
        number += count


def _is_topmost(node: Node) -> bool:
    """Whether a function is to be run here, and not only somewhere below a step that has to see elements in order."""
    if node.access == "random":
        return True
    while node.traits.is_parallel and not isinstance(node, Map):
        (node,) = node.inputs
    return isinstance(node, Map)


@final
class _Parallel:
    """An input of a feed that is made in parallel, some elements at a time, and given one after the other."""

    def __init__(
        self,
        node: Node,
        number: int,
        executor: str,
        workers: int | Literal["auto"],
        timeout_s: float,
        *,
        same_epoch: bool,
        quarantine: Quarantine | None,
    ) -> None:
        self.node = node
        self._number = number
        leaves = node.spec.leaves
        has_objects = any(map(is_object, leaves))
        most = OBJECT_COUNT if has_objects else STAGE_COUNT
        self._size = size = max(1, min(most, STAGE_NBYTES // max(1, node.spec.nbytes)))
        self._is_stacked = size > 1 and all(is_object(leaf) or None not in leaf.shape for leaf in leaves)
        self._structure = node.spec.structure
        self._timeout_s = timeout_s
        kind = Bundle if has_objects else Batch
        plan = kind(node, size, drop_remainder=False) if self._is_stacked else node
        prefetch = 2 if has_objects else 4
        if not self._is_stacked:
            prefetch = max(4, size)  # elements, of which as many are made ahead
        self._stage = SubPipeline(
            plan,
            executor,
            workers,
            prefetch,
            timeout_s,
            same_epoch=same_epoch,
            is_inner=True,
            quarantine=quarantine,
        )
        self._pipeline: Delivery | None = None
        self._is_closed = False
        self.waited_s = 0.0
        """How long the feed waited for its elements, so far."""

    @property
    def nbytes(self) -> int:
        """Its projected memory, but for what sources keep."""
        return self._stage.budget.projected_nbytes - self.source_nbytes

    @property
    def source_nbytes(self) -> int:
        """What its sources keep."""
        return self._stage.budget.source_nbytes

    def sequence(self, epoch: int, start: int) -> Generator[Leaves, None, None]:
        """Gives the elements of an epoch from one on; each is good until the next one is asked for."""
        if self._pipeline is None:
            self._pipeline = self._stage.start_units(gives_rest=self._is_stacked)
            watch(self, self._pipeline)
            if self._is_closed:
                self.request_stop()
        pipeline = self._pipeline
        number, skipped = divmod(start, self._size if self._is_stacked else 1)
        if number >= (self._stage.program.batch_count or math.inf):
            return self._elements(pipeline, (epoch, number), 0)  # nothing
        pipeline.seek((epoch, number))  # now, and not when the first element is asked for
        return self._elements(pipeline, (epoch, number), skipped)

    def _elements(self, pipeline: Delivery, position: Position, skipped: int) -> Generator[Leaves, None, None]:
        program = self._stage.program
        while position[1] < (math.inf if program.batch_count is None else program.batch_count):
            asked_at = time.perf_counter()
            batch: Any = pipeline.take(position, self._timeout_s)
            self.waited_s += time.perf_counter() - asked_at
            if batch is END_OF_EPOCH:
                return
            leaves = self._structure.flatten_up_to(batch)
            del batch
            rest, pipeline.rest = pipeline.rest, None
            if self._is_stacked:
                for row in range(skipped, len(leaves[0]) if rest is None else rest[0]):
                    yield [leaf[row] for leaf in leaves]
            else:
                yield leaves
            if rest is not None:
                raise rest[1]
            del leaves
            skipped = 0
            position = (position[0], position[1] + 1)

    @property
    def remarks(self) -> str:
        """See `SubPipeline.remarks`."""
        return self._stage.remarks

    @property
    def busiest(self) -> ExecutorSpec:
        """See `SubPipeline.busiest`."""
        return self._stage.busiest

    @property
    def choices(self) -> Iterator[ExecutorSpec]:
        """See `SubPipeline.choices`."""
        return self._stage.choices

    def deadline_s(self, timeout_s: float) -> float:
        """How long it waits for its workers before it gives up."""
        return self._pipeline.deadline_s(timeout_s) if self._pipeline else timeout_s

    def lanes(self, delivered: float, first: int) -> list[Lane]:
        """See `Pipeline.lanes`."""
        if self._pipeline is None:
            return []
        first += self._number
        # The batches that it makes of its elements are no step of the plan.
        own, *others = self._pipeline.lanes(delivered, first - self._is_stacked)
        rows_each = 1 if self._is_stacked else self._stage.program.rows_per_batch
        given = None if own.given is None else own.given // rows_each
        return [replace(own, first=first, label=self.node.label, unit=unit_of(self.node), given=given), *others]

    def tasks(self) -> list[str]:
        """Its workers; see `Executor.tasks`."""
        return [] if self._pipeline is None else self._pipeline.tasks()

    def request_stop(self) -> None:
        """Has its workers stop soon, and whoever waits for them. Takes no lock."""
        self._is_closed = True
        if self._pipeline is not None:
            self._pipeline.request_stop()

    def reopen(self) -> None:
        """Takes back a stop from before it began: Ctrl-C may have struck the start of its reader, which is repeated."""
        if self._pipeline is None:
            self._is_closed = False

    def progress(self) -> object:
        """A value that changes whenever its workers get on."""
        return self._pipeline and self._pipeline.progress()

    def close(self, timeout_s: float) -> bool:
        """Stops, and waits for its workers."""
        self.request_stop()
        if self._pipeline is None:
            self._stage.close()
            return True
        return self._pipeline.close(timeout_s)

    def leave(self) -> None:
        """Lets go of workers that were started to find specs."""
        self._stage.leave()
