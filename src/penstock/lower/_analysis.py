"""One walk over a plan answers all questions about it: `Analysis`."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, final

from penstock.lower._guards import OnError, with_guards
from penstock.lower._rewrite import prune_cached, with_rows
from penstock.plan._map import OnWorkers, learn
from penstock.plan._node import Node, upwards, walk
from penstock.plan._parted import PartSizes
from penstock.plan._reader import WorkerStatus
from penstock.plan._source import Source, key_of, limited_nbytes
from penstock.plan._stream import Generate
from penstock.plan._tolerate import FailureFilter
from penstock.plan._traits import Traits


class PartedSource(NamedTuple):
    """A source of a plan whose parts may be decoded ahead."""

    step: int
    """The number of its step in the order of `walk`."""
    node: Node
    source: Source
    sizes: PartSizes
    first: int
    """The number of its first part, among those of all sources."""


def parted_in(plan: Node) -> list[PartedSource]:
    """The sources of a plan whose parts are decoded ahead, equal ones once."""
    found: dict[Any, PartedSource] = {}
    first = 0
    for step, node in enumerate(walk(plan)):
        source = node.opens
        if isinstance(source, Source) and (sizes := source.parts) is not None and key_of(source) not in found:
            found[key_of(source)] = PartedSource(step, node, source, sizes, first)
            first += len(sizes.nbytes)
    return list(found.values())


@final
@dataclass(frozen=True)
class Analysis:
    """Facts about a plan. The choice of the executor, the budget, messages and the report read them."""

    plan: Node
    steps: tuple[Node, ...]
    """Each node once, in the order of `walk`. The place of a node is its number in `WorkerStatus` and in reports."""
    reader_counts: Mapping[int, int]
    """The number of readers that one worker has of a node, by the node's id; see `Reader`."""
    functions: tuple[OnWorkers, ...]
    """The steps whose functions workers run: `map`, `random_map`, those that ask for verdicts, and so on. Each stands
    before its inputs."""
    generators: tuple[Generate, ...]
    guards: tuple[FailureFilter, ...]
    traits: Traits
    """What holds for one of the steps at least."""
    waits: bool
    """A step waits for a server, and nothing requests its reads ahead."""

    @property
    def batch_size(self) -> int:
        """Elements in a full batch, or in the only batch if that is short. 1 if unknown."""
        short = [each.remainder for each in self.steps if each.stacks > 0 and each.remainder and each.length == 1]
        return min([self.plan.batch_size or 1, *short])

    @property
    def spreads(self) -> list[float]:
        """How far apart in their inputs steps take neighbours, see `Node.spread`. Empty if all read in order."""
        return [each.spread for each in self.steps if each.spread > 1]

    @property
    def suits_one_thread(self) -> bool:
        """Whether several threads would take the GIL from each other, and fill batches no sooner than one."""
        return self.traits.suits_one_thread and not self.traits.is_cpu_bound and not self.traits.is_remote

    @property
    def wants_processes(self) -> bool:
        """Whether a function of the user may hold the GIL; `traits.may_hold_gil` also asks sources."""
        return any(not each.releases_gil for each in self.functions)

    @property
    def travels(self) -> bool:
        """Whether every generator can be read in a worker process."""
        return all(each.data.travels for each in self.generators)

    @property
    def is_learnt(self) -> bool:
        """Whether all specs are known."""
        return all(each.known_spec for each in (*self.functions, *self.generators))

    def learn(self) -> None:
        """Runs functions here, on this thread, to find their specs."""
        learn(self.plan, WorkerStatus(), takes_any=bool(self.guards))

    @cached_property
    def parted(self) -> list[PartedSource]:
        """The sources whose parts may be decoded ahead."""
        return parted_in(self.plan)

    # Memory. Specs must be known.

    @property
    def scratch_nbytes(self) -> int:
        """Scratch memory of a worker that reads the plan by index."""
        return sum(each.memory.scratch_nbytes for each in self.steps)

    def kept_nbytes(self, staged: Collection[int] = ()) -> int:
        """Caches in memory, without those of stages; equal ones count once."""
        outside = (each for each in self._outside(staged) if id(each) not in staged)
        return sum({key_of(each.opens): each.memory.kept_nbytes for each in outside}.values())

    @property
    def padded_nbytes(self) -> int:
        """The largest size of an element that is padded; 0 if there is none or it is unknown."""
        return max(each.padded_nbytes for each in self.steps)

    def sequence_nbytes(self, staged: Mapping[int, int] = MappingProxyType({})) -> int:
        """The memory of the worker that reads the plan as a stream, and of its stages, without caches.

        Args:
            staged: The memory of parts that other workers make, by the ids of their last steps.
        """
        return sum(
            self.reader_counts[id(each)] * staged.get(id(each), each.memory.sequence_nbytes)
            for each in self._outside(staged)
        )

    def source_nbytes(
        self, staged: Collection[int] = (), *, share: float = 1.0, shared: Collection[Hashable] = ()
    ) -> int:
        """The memory of sources in one process, without those of stages; equal sources are opened once.

        Args:
            staged: Steps that other workers run, by their ids.
            share: See `limited`.
            shared: The keys of sources whose parts all workers share, which do not count.
        """
        opened = [each.opens for each in self._outside(staged) if id(each) not in staged]
        found = {key_of(source): source for source in opened if isinstance(source, Source)}
        return sum(limited_nbytes(source, share) for key, source in found.items() if key not in shared)

    @property
    def largest_source(self) -> str:
        """The source that keeps most in memory; empty if none keeps anything."""
        sources = [each.opens for each in self.steps if isinstance(each.opens, Source) and each.opens.kept_nbytes]
        return str(max(sources, key=lambda source: source.kept_nbytes)) if sources else ""

    def _outside(self, staged: Collection[int]) -> list[Node]:
        """The steps down to the stages, these included."""
        return (
            list(walk(self.plan, lambda each: () if id(each) in staged else each.inputs)) if staged else [*self.steps]
        )


def functions_of(plan: Node) -> tuple[OnWorkers, ...]:
    """The functions of a plan; see `Analysis`."""
    return tuple(each for each in reversed(list(upwards(plan))) if isinstance(each, OnWorkers))


def guards_of(plan: Node) -> tuple[FailureFilter, ...]:
    """The steps where failed elements leave a plan."""
    return tuple(each for each in walk(plan) if isinstance(each, FailureFilter))


def held_in(plan: Node) -> list[tuple[Node, Any]]:
    """The objects of the user, with the steps that hold them; functions first."""
    steps = (each for each in walk(plan) if each.held is not None)
    return sorted(((each, each.held) for each in steps), key=lambda pair: not pair[0].inputs)


def analyse(plan: Node) -> Analysis:
    """Asks the steps of a plan for all facts at once, for `lower`, for parts of it, and for a program in a worker."""
    steps = tuple(walk(plan))
    traits = [each.traits for each in steps]
    return Analysis(
        plan=plan,
        steps=steps,
        reader_counts=_reader_counts(plan),
        functions=functions_of(plan),
        generators=tuple(each for each in steps if isinstance(each, Generate)),
        guards=guards_of(plan),
        traits=Traits.any_of(traits),
        waits=any(each.is_remote and not each.reads_ahead for each in traits),
    )


def _reader_counts(plan: Node) -> dict[int, int]:
    """Each use of a stream has its own readers; a part with random access has one for each node."""
    streams: Counter[int] = Counter({id(plan): 1})
    shared: Counter[int] = Counter()
    for node in reversed(list(upwards(plan))):
        count = streams[id(node)] + shared[id(node)]
        for each in node.inputs:
            if node.access == "stream":
                streams[id(each)] += count
            else:
                shared[id(each)] = max(shared[id(each)], count)
    return streams + shared


def lower(plan: Node, on_error: OnError, *, prunes: bool) -> Analysis:
    """Rewrites the plan of a user into the plan that runs, and analyses it.

    Args:
        plan: The plan.
        on_error: How a loader goes on after elements that fail.
        prunes: Whether inputs of complete caches are dropped, so their functions need no worker processes.

    Raises:
        ArgumentError: The plan cannot go on after elements that fail.
    """
    plan = with_rows(plan if on_error == "raise" else with_guards(plan, on_error))
    return analyse(prune_cached(plan) if prunes else plan)
