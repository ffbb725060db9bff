"""A stream as the parts that run: steps on workers, above; steps on one worker, below; and stages in it.

The steps from the end of a stream down to the last that must see elements in order run on workers, over an `Inlet`. The
steps below run on one worker, the feed. If such a step reads what functions make, as `filter` does, that input is a
stage: workers make its elements ahead. So functions always run on all workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from penstock.lower._analysis import functions_of
from penstock.lower._rewrite import cut, needed, uses
from penstock.plan._batch import Batch, Bundle, is_object
from penstock.plan._map import Learner, OnWorkers
from penstock.plan._node import Node, walk

SPAN_NBYTES: Final = 4 << 20
"""The size of a span, unless a batch needs more; limited to `SPAN_COUNT` elements."""
SPAN_COUNT: Final = 1024
STAGE_NBYTES: Final = 1 << 20
"""The size of a batch of a stage; limited to `STAGE_COUNT` elements."""
STAGE_COUNT: Final = 32
OBJECT_COUNT: Final = 16
"""The number of elements in a batch of a stage if their size is unknown. Then fewer batches wait, too."""


@final
@dataclass(frozen=True)
class Stage:
    """A part of a feed whose elements workers make ahead, some at a time."""

    place: int
    """Its place in the order of `uses`."""
    number: int
    """The number of its last step in the feed's plan."""
    node: Node
    is_generator: bool
    """It is one of the shards of a generator."""
    plan: Node
    """What runs: batches of its elements, or its elements."""
    size: int
    """Elements in a batch; 1 if they are not stacked."""
    prefetch: int

    @property
    def is_stacked(self) -> bool:
        """Whether it runs as batches."""
        return self.plan is not self.node


@final
@dataclass(frozen=True)
class StreamStages:
    """The parts of a stream."""

    above: Node
    """The steps that workers run, over an `Inlet`."""
    functions: tuple[OnWorkers, ...]
    """The functions of these steps, in the whole plan, where they can read their first element."""
    below: Node
    """The steps that one worker runs."""
    stages: tuple[Stage, ...]
    batch_size: int | None
    """The size of the batches that the one worker fills itself; 0 if elements are delivered without batches; None if
    workers run steps above."""
    gives_cursor: bool
    """States hold how far a filter got in an input that it reads by index."""
    batch_count: int
    """Elements that a batch needs."""
    span_size: int
    """Elements in a span."""
    span_count: int
    """Spans. Together they hold what two batches need, and two spans more."""


def divide(plan: Node) -> StreamStages:
    """Divides a stream into the parts that run. Specs must be known."""
    above, below = cut(plan)
    functions = functions_of(plan)
    stages = tuple(_stages(below))
    # Small spans cost time, because each is at least one unit, and large spans cost memory.
    first, stop = needed(above, 0)
    count = size = max(1, stop - first)
    if below.spec.is_bounded:  # else the size of an element is unknown, and no more elements wait than needed
        fitting = min(SPAN_COUNT, SPAN_NBYTES // max(1, below.spec.nbytes))
        size = fitting - fitting % count if count <= fitting else -(-count // 4)
    return StreamStages(
        above=above,
        functions=functions[: len(functions) - len(functions_of(below))],
        below=below,
        stages=stages,
        batch_size=_batch_size(above),
        gives_cursor=below.gives_cursor,
        batch_count=count,
        span_size=size,
        span_count=-(-2 * count // size) + 2,
    )


def _batch_size(above: Node) -> int | None:
    if not above.inputs:
        return 0
    return above.batch_size if above.stacks > 0 and not above.inputs[0].inputs else None


def _stages(below: Node) -> Iterator[Stage]:
    """The parts of a feed that take time.

    Elements that are only read, with a guard, are such a part if the feed runs no other code of the user's: then they
    are read side by side, as without `on_error`. Otherwise they are read with the rest.

    A feed with stages cannot run in its own process, where code of the user may end the process. So a generator or an
    object of the user beside a stage is a stage, too.
    """
    steps = list(walk(below))
    reads_apart = not any(each.traits.runs_code for each in steps)
    runs_apart = any(_made_apart(below, reads_apart=reads_apart, runs_apart=False))
    for place, node in _made_apart(below, reads_apart=reads_apart, runs_apart=runs_apart):
        leaves = node.spec.leaves
        has_objects = any(map(is_object, leaves))
        size = max(1, min(OBJECT_COUNT if has_objects else STAGE_COUNT, STAGE_NBYTES // max(1, node.spec.nbytes)))
        number, is_generator = steps.index(node), not node.inputs and node.access == "stream"
        if size > 1 and all(is_object(leaf) or None not in leaf.shape for leaf in leaves):
            # Where a stream breaks off, a batch is short, whatever length the stream has.
            exact = None if node.access == "random" else False
            batches = (Bundle if has_objects else Batch)(node, size, drop_remainder=False, exact=exact)
            yield Stage(place, number, node, is_generator, batches, size, 2 if has_objects else 4)
        else:
            yield Stage(place, number, node, is_generator, node, 1, max(4, size))


def _made_apart(node: Node, *, reads_apart: bool, runs_apart: bool) -> Iterator[tuple[int, Node]]:
    place = 1
    for each in node.inputs:
        is_shard = node.is_sharded and each.access == "stream"
        is_work = any(
            inner.traits.is_cpu_bound
            or (reads_apart and inner.is_guard)
            or (runs_apart and (inner.traits.runs_code or inner.traits.may_hold_gil))
            for inner in walk(each)
        )
        if is_shard or (is_work and _is_topmost(each)):
            yield place, each
        elif each.access == "stream":
            for inner_place, inner in _made_apart(each, reads_apart=reads_apart, runs_apart=runs_apart):
                yield place + inner_place, inner
        place += sum(1 for _ in uses(each))


def _is_topmost(node: Node) -> bool:
    """Whether the user's code runs here, and not only below a step that must see elements in order."""
    if node.access == "random":
        return True
    while node.traits.is_parallel and not isinstance(node, Learner):
        (node,) = node.inputs
    return isinstance(node, Learner)
