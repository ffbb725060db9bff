"""The one door from a plan to what runs it: `arrange`.

Its order:

1. `lower` rewrites the plan, and a stream is divided.
2. Workers are chosen, by arithmetic. They find what functions return: the only place where one runs before the first
   batch. With what that told they are chosen again.
3. Programs are made. They get their limits of memory, and what travels is packed.
4. Memory is added up. If sources must keep less, step 3 gives them other limits.
5. Sources are opened, so that what is gone is an error now.

What comes out is a value, and so is what it is made from: a step returns another one. Another plan, such as the rest of
an epoch with other batches, is another arrangement. Two things live already: the rights to workers that found specs
(`PoolRight`), and open sources. `Arrangement.close` frees both, and after `start` the delivery does. If `arrange`
fails, it gives back the rights itself, and sources close when they are dropped.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeVar, final

from penstock import native
from penstock.lower._analysis import Analysis, analyse, lower
from penstock.lower._batches import ParallelProgram, require_shares
from penstock.lower._copies import CopyPlan
from penstock.lower._parts import PartProgram
from penstock.lower._rewrite import with_own_rows
from penstock.lower._share import Share
from penstock.lower._stages import Stage, StreamStages, divide
from penstock.lower._streams import FeedProgram
from penstock.memory._budget import Budget, overhead_nbytes
from penstock.memory._slot import SlotLayout
from penstock.memory._spans import BatchLayout, SpanLayout
from penstock.plan._batch import are_side_by_side
from penstock.plan._batch_axis import BatchFirst
from penstock.plan._node import Node, walk
from penstock.plan._own_batches import OwnBatches
from penstock.plan._own_rows import OwnRows
from penstock.plan._source import key_of
from penstock.plan._text import largest_element
from penstock.run._choose import Choice, Machine, asked_reach, choose, choose_reader
from penstock.run._crew import Crew, leave
from penstock.run._learn import learn, learn_held
from penstock.run._options import LoaderOptions
from penstock.run._quarantine import Quarantine
from penstock.run.executors._registry import EXECUTORS
from penstock.run.parts._order import PartOrder

LEAST_ROOM_NBYTES: Final = 64 << 20
"""What a worker may take to decode one element whatever the limit: a photograph of 22 million pixels."""


@final
@dataclass(frozen=True)
class StreamFiller:
    """The one worker, or the caller, that reads the steps of a stream in order, ahead of the workers above."""

    facts: Analysis
    """These steps."""
    program: FeedProgram
    crew: Crew
    stages: "Mapping[Stage, Filler]"
    """What it takes from other workers."""
    gives_cursor: bool
    """See `StreamStages`."""

    @property
    def slot_count(self) -> int:
        """The number of spans."""
        return self.program.layout.slot_count

    def limited(self, share: float) -> "StreamFiller":
        """See `Filler.limited`."""
        stages = {stage: each.limited(share) for stage, each in self.stages.items()}
        return replace(_limited(self, share), stages=stages)


@final
@dataclass(frozen=True)
class PartFiller:
    """Workers that decode the parts of sources, ahead of the workers that fill batches."""

    program: PartProgram
    crew: Crew

    @property
    def slot_count(self) -> int:
        """One slot for each part that is being decoded, and one more."""
        return self.crew.worker_count + 1


@final
@dataclass(frozen=True)
class Filler:
    """Workers that fill a ring ahead of its reader. A plan with random access has one."""

    facts: Analysis
    """The steps that the workers run."""
    program: ParallelProgram
    crew: Crew
    slot_count: int
    """Slots in the ring."""
    stream: StreamFiller | None = None
    """What reads the stream below in order, if there is one. The workers take elements from its spans."""
    parts: PartFiller | None = None
    """What decodes parts of sources for the workers."""
    copies: CopyPlan | None = None
    """The copies that fill batches, if the plan only moves bytes and threads do it."""

    @property
    def is_filled_by_reader(self) -> bool:
        """Whether the reader of the stream fills the ring itself, and there are no other workers."""
        return self.stream is not None and isinstance(self.stream.program.layout, BatchLayout)

    def all(self) -> Iterator["Filler | StreamFiller | PartFiller"]:
        """Yields this, and those that it reads from."""
        yield self
        if self.stream is not None:
            yield self.stream
            for each in self.stream.stages.values():
                yield from each.all()
        if self.parts is not None:
            yield self.parts

    def limited(self, share: float) -> "Filler":
        """The same with limits of memory, and ready to travel. Sources keep this share of their memory."""
        stream, parts = self.stream, self.parts
        if stream is not None:
            stream = stream.limited(share)
            if self.is_filled_by_reader:
                return replace(self, program=replace(self.program, source_share=share), crew=stream.crew, stream=stream)
        return replace(_limited(self, share), stream=stream, parts=parts and _limited(parts, share))

    def batch_programs(self) -> list[ParallelProgram]:
        """The programs that fill batches, here and in stages. Those that fill spans open their own sources."""
        return [each.program for each in self.all() if isinstance(each, Filler)]

    @property
    def process_count(self) -> int:
        """Worker processes. Those of the pool count once, however many fillers use them."""
        crews = {each.crew for each in self.all()}
        pooled = max((each.process_count for each in crews if not each.choice.is_alone), default=0)
        return pooled + sum(each.choice.is_alone for each in crews)

    @property
    def busiest(self) -> Crew:
        """The workers that run functions: the first that are processes, here or in a stage; else these."""
        inner = [stage.busiest for stage in self.stream.stages.values()] if self.stream is not None else []
        return next((each for each in (self.crew, *inner) if each.reach == "process"), self.crew)

    def source_share(self, limit: int) -> tuple[bool, float]:
        """Whether a limit is enough, and the part of their memory that it leaves to sources."""
        share = 1.0
        for turn in range(3):  # parts for which there is no room take some, where they are decoded alone
            left = self.budget(share).source_share(limit, self.process_count)
            if left == 1 or turn == 2:
                break
            share *= left
        return left == 1, share

    def budget(self, share: float) -> Budget:
        """Adds up the memory, known before the first read, if sources keep this share of theirs."""
        facts, node, crew, stream, spec = self.facts, self.facts.plan, self.crew, self.stream, self.program.spec
        waiting_nbytes = kept_nbytes = source_nbytes = 0
        if stream is not None:
            inner = [(id(stage.node), each.budget(share)) for stage, each in stream.stages.items()]
            staged = {key: each.projected_nbytes - each.source_nbytes for key, each in inner}
            waiting_nbytes = self._waiting_nbytes(stream) + stream.facts.sequence_nbytes(staged)
            kept_nbytes = stream.facts.kept_nbytes(staged)
            source_nbytes = stream.facts.source_nbytes(staged, share=share)
            source_nbytes += sum(each.source_nbytes for _, each in inner)
        shared, parts_nbytes = set(), 0
        if self.parts is not None:
            parts = self.parts.program
            shared = {key_of(each.source) for each in parts.sources}
            source_nbytes += parts.room(share)
            parts_nbytes = parts.own_nbytes(share, crew.process_count)
        scratch_nbytes, slot_nbytes = facts.scratch_nbytes, SlotLayout(spec).nbytes
        if spec is not node.spec and node.row_count(0, 0) is None:
            scratch_nbytes += node.spec.nbytes  # an element without parts is made whole, and a shard takes its part
        return Budget(
            slot_count=self.slot_count,
            slot_nbytes=slot_nbytes,
            scratch_nbytes=scratch_nbytes * max(1, crew.worker_count, crew.process_count),
            order_nbytes=max(each.memory.order_nbytes for each in facts.steps),
            shared_nbytes=crew.payload.shared_nbytes,
            kept_nbytes=facts.kept_nbytes() + kept_nbytes,
            source_nbytes=max(1, crew.process_count) * facts.source_nbytes(share=share, shared=shared) + source_nbytes,
            spans_nbytes=waiting_nbytes,
            last_step=node.label,
            spec=str(spec),
            # As many batches as there are slots may be on their way from other machines.
            store_nbytes=self.slot_count * slot_nbytes if crew.reach == "machine" else 0,
            batch_size=node.batch_size or 1,
            parts_nbytes=parts_nbytes,
            largest_source=facts.largest_source,
            largest_element=largest_element(node),
        )

    def _waiting_nbytes(self, stream: StreamFiller) -> int:
        """Elements that wait in spans. Those of any size are known if they must fit what they are padded to.

        These are Python objects of the process that reads the stream, and of this one. Each worker process makes them
        again from a file in shared memory.
        """
        layout, process_count = stream.program.layout, self.crew.process_count
        if isinstance(layout, BatchLayout):
            return 0  # spans are batches
        if not layout.has_objects:
            return layout.nbytes
        copies = 1 + stream.crew.choice.is_alone + (1 + process_count if process_count else 0)
        return layout.nbytes + copies * layout.slot_count * layout.size * self.facts.padded_nbytes


@final
@dataclass(frozen=True)
class Arrangement:
    """What runs where, and in which memory. Loader and report read it; `start` starts it."""

    facts: Analysis
    """The plan that runs."""
    top: Filler
    """What fills the ring that the user reads."""
    options: LoaderOptions
    share: Share
    """The rows of each batch that are delivered."""
    quarantine: Quarantine | None
    """Takes elements that are set aside, if the plan has guards."""
    probes: Sequence[Crew]
    """Workers that found specs, and run nothing else. They stay until the others have started."""

    @property
    def plan(self) -> Node:
        """The plan that runs."""
        return self.facts.plan

    @property
    def gives_cursor(self) -> bool:
        """Whether states hold how far a filter got in an input that it reads by index."""
        return self.top.stream is not None and self.top.stream.gives_cursor

    @cached_property
    def turns(self) -> OwnBatches | None:
        """The step that takes whole batches in turn with other ranks, if ranks do not share rows."""
        return self.plan if isinstance(self.plan, OwnBatches) else None

    @cached_property
    def batch_first(self) -> BatchFirst | None:
        """The step that moved the axis of elements to the front of batches, whose batches move back when delivered."""
        return self.plan if isinstance(self.plan, BatchFirst) else None

    @property
    def batch_count(self) -> int | None:
        """Batches of all ranks in an epoch; None if that is unknown or infinite."""
        length = self.plan.length if self.turns is None else self.turns.source.length
        return length if isinstance(length, int) else None

    @cached_property
    def budget(self) -> Budget:
        """The memory."""
        return self.top.budget(self.top.program.source_share)

    @cached_property
    def overhead_nbytes(self) -> int:
        """What worker processes take beside it."""
        return overhead_nbytes(self.top.process_count)

    @property
    def notes(self) -> str:
        """Remarks about the choices, and events of worker processes so far; a line each."""
        found = [each.crew.notes for each in self.top.all()]
        return "\n".join(dict.fromkeys(text for text in found if text))

    def close(self) -> None:
        """Frees what was opened, if nothing was started."""
        leave([*self.probes, *(each.crew for each in self.top.all())])
        for program in self.top.batch_programs():
            program.sources.close()


def arrange(
    plan: Node,
    options: LoaderOptions,
    share: Share,
    *,
    first: int = 0,
    same_epoch: bool = False,
    quarantine: Quarantine | None = None,
) -> Arrangement:
    """Arranges a plan. Nothing stays behind if that fails.

    Args:
        plan: The plan of the user.
        options: How it runs.
        share: The rows of each batch that are delivered.
        first: Where ranks take whole batches: the batch at which the first step begins.
        same_epoch: Every epoch is epoch 0 again.
        quarantine: Takes elements that are set aside, if the options ask for it.

    Raises:
        ArgumentError: The options do not fit the plan.
        MemoryLimitError: It cannot stay below the limit.
        PenstockError: A function fails on its first element, or cannot travel.
    """
    if options.whole_batches:
        plan = OwnBatches(plan, first, *options.shard, options.micro_batches, fills=options.uneven == "pad")
    facts = lower(plan, options.on_error, prunes=options.executor == "auto")
    rest = share
    if share.divides and options.batch_axis is not None:
        facts = analyse(BatchFirst(facts.plan, options.batch_axis))
    if are_side_by_side(facts.plan) and share.uneven == "refuse" and share.divides:
        own = with_own_rows(facts.plan, share.index, share.count, share.micro_count)
        facts, rest = analyse(own), Share()
    if quarantine is None and options.on_error != "raise":
        quarantine = options.make_quarantine(plan, facts)
    arranger = _Arranger(options, same_epoch=same_epoch)
    try:
        top = arranger.filler(facts, rest, options)
        for each in walk(facts.plan):
            if isinstance(each, OwnRows):
                require_shares(each.source, share, stands_alone=False)
        top = top.limited(1.0)
        if (limit := options.memory_limit) is not None:
            fits, source_share = top.source_share(limit)
            if not fits and top.parts is not None:  # to decode ahead takes more room
                without = replace(top, parts=None)
                fits, own_share = without.source_share(limit)
                if fits:  # or else the error names the sum with parts
                    top, source_share = without, own_share
            if source_share < 1:
                top = top.limited(source_share)
        made = Arrangement(facts, top, options, share, quarantine, tuple(arranger.probes))
        made.budget.require(limit, top.process_count)
        top.crew.require(made.budget.store_nbytes)
        for program in top.batch_programs():
            program.sources  # noqa: B018  # opened here, and not by the first of several threads
    except BaseException:
        leave(arranger.crews)
        raise
    return made


_Each = TypeVar("_Each", Filler, StreamFiller, PartFiller)


def _limited(filler: _Each, share: float) -> _Each:
    """See `Filler.limited`. A worker may take its part of all memory but the ring to decode one element."""
    program, crew, room_nbytes = filler.program, filler.crew, math.inf
    if crew.memory_limit is not None:
        ring_nbytes = filler.slot_count * SlotLayout(program.spec).nbytes
        left_nbytes = crew.memory_limit - ring_nbytes - overhead_nbytes(crew.process_count)
        room_nbytes = max(LEAST_ROOM_NBYTES, left_nbytes // max(1, crew.worker_count))
    program = replace(program, room_nbytes=room_nbytes, source_share=share)
    while learn_held((packed := crew.packed(program)).payload.unseen, crew):
        pass  # now with the specs of caches in datasets that functions hold
    return replace(filler, program=program, crew=packed)


@final
class _Arranger:
    """Makes the fillers of one arrangement."""

    def __init__(self, options: LoaderOptions, *, same_epoch: bool) -> None:
        self._same_epoch = same_epoch
        self._machine = Machine.here()
        self.crews: list[Crew] = []
        """All that may have begun."""
        self.probes: list[Crew] = []

    def filler(self, facts: Analysis, share: Share, options: LoaderOptions, *, is_inner: bool = False) -> Filler:
        """What fills a ring with the elements of a plan.

        Args:
            facts: The plan.
            share: The rows of each batch that are delivered.
            options: How it runs.
            is_inner: The plan is a part of the user's.
        """
        slot_count = options.prefetch + 2
        divided = layout = stream = copies = decoding = None
        if facts.plan.access == "stream":
            self._learn(facts, options)
            if share.uneven != "refuse" and are_side_by_side(facts.plan):
                require_shares(facts.plan, share)  # the steps above do not know what is side by side
            divided = divide(facts.plan)
            facts = replace(analyse(divided.above), functions=divided.functions)
            if divided.batch_size is not None and not share.divides and options.executor != "inline":
                stream = self._stream(divided, BatchLayout(facts.plan.spec, divided.batch_size, slot_count), options)
                program = ParallelProgram(facts.plan, same_epoch=self._same_epoch)
                return Filler(facts, program, stream.crew, slot_count, stream)
        crew = self._crew(facts, options)
        if divided is not None:
            # Without workers, the caller reads as many elements as it needs.
            own = None if crew.reach else crew
            size, count = (2 * divided.batch_count, 1) if own else (divided.span_size, divided.span_count)
            layout = SpanLayout(divided.below.spec, size, count)
            stream = self._stream(divided, layout, options, own)
        program = ParallelProgram(facts.plan, share, same_epoch=self._same_epoch, spans=layout, is_inner=is_inner)
        if not facts.functions and divided is None and not is_inner and crew.reach == "thread" and native.has_engine():
            copies = CopyPlan.of(facts.plan, share)
        if facts.parted and divided is None and crew.reach in ("thread", "process"):
            decode = PartProgram(facts.parted[0].node, facts.parted, len(facts.steps))
            if copies is not None and not PartOrder(program, decode.sources, 1).is_local(decode.room(1.0)):
                copies = None  # units decode side by side what there is no room for
            if copies is None:
                decoding = PartFiller(decode, self._made(crew.choice, options))
        return Filler(facts, program, crew, slot_count, stream, decoding, copies)

    def _stream(
        self,
        divided: StreamStages,
        layout: SpanLayout | BatchLayout,
        options: LoaderOptions,
        crew: Crew | None = None,
    ) -> StreamFiller:
        """One worker writes the elements of a stream into spans, or the crew that is given does."""
        are_many = len(divided.stages) > self._machine.cpu_count
        stages = {}
        for each in divided.stages:
            # A process for each shard of a generator would be too many.
            is_apart = not (are_many and each.is_generator and options.executor == "auto")
            inner = replace(options, executor=options.executor if is_apart else "threads", prefetch=each.prefetch)
            stages[each] = self.filler(analyse(each.plan), Share(), inner, is_inner=True)
        below = analyse(divided.below)
        crew = crew or self._one(below, options, has_stages=bool(stages))
        return StreamFiller(below, FeedProgram(divided.below, layout), crew, stages, divided.gives_cursor)

    def _learn(self, facts: Analysis, options: LoaderOptions) -> None:
        """Finds the specs of a stream where its workers are, for functions and generators may crash."""
        if facts.is_learnt:
            return
        _connect(options)
        choice = choose(facts, options, self._machine)
        if options.executor == "auto" and not facts.functions:
            choice = choose_reader(facts, options, self._machine, has_stages=False)
        crew = self._made(choice, options)
        self.probes.append(crew)
        if crew.reach in (None, "thread"):
            facts.learn()
        else:
            learn(facts, crew, may_stay=options.executor == "auto")

    def _crew(self, facts: Analysis, options: LoaderOptions) -> Crew:
        """Chooses the workers of a filler, and finds what its functions return."""
        _connect(options)
        crew = self._made(choose(facts, options, self._machine), options)
        if facts.functions:
            stays = learn(facts, crew, may_stay=options.executor == "auto")
            crew = replace(crew, choice=choose(facts, options, self._machine, stays))
        crew.choice.tell()
        if crew.reach == "machine":
            leave([crew])
        return crew

    def _one(self, facts: Analysis, options: LoaderOptions, *, has_stages: bool) -> Crew:
        """Chooses the one worker that reads a stream."""
        choice = choose_reader(facts, options, self._machine, has_stages=has_stages)
        crew = next((each for each in self.probes if each.choice == choice), None)
        if crew is None:
            crew = self._made(choice, options)
        else:
            self.probes.remove(crew)  # the worker that found the specs reads the stream
        if crew.reach == "process" and asked_reach(options) != "process":
            stays = learn(facts, crew, may_stay=True)
            choice = choose_reader(facts, options, self._machine, stays, has_stages=has_stages)
            crew = replace(crew, choice=choice)
            choice.tell()
        return crew

    def _made(self, choice: Choice, options: LoaderOptions) -> Crew:
        crew = Crew(choice, options.timeout_s, options.memory_limit, options.ray_options or {})
        self.crews.append(crew)
        return crew


def _connect(options: LoaderOptions) -> None:
    if asked_reach(options) == "machine":
        EXECUTORS[options.executor].connect()
