"""Where the steps that `on_error` puts into a plan stand; what they do is in `_tolerate.py`."""

import itertools
from dataclasses import replace
from typing import Final, Literal, final

from penstock.base._errors import ArgumentError
from penstock.plan._batch import Batch, Unbatch
from penstock.plan._cache import Cache
from penstock.plan._cast import Cast
from penstock.plan._combine import Concatenate, Interleave, Zip
from penstock.plan._filter import Filter, FlatMap
from penstock.plan._index import Slice
from penstock.plan._map import Map
from penstock.plan._mix import Mix
from penstock.plan._node import Node, walk
from penstock.plan._pad import BucketByLength, PaddedBatch
from penstock.plan._shuffle import Repeat, Shuffle
from penstock.plan._tolerate import CheckedElement, CheckedGroup, FailureFilter, Replace
from penstock.plan._windows import Windows

OnError = Literal["raise", "skip", "replace"]


def tolerant(plan: Node, on_error: OnError) -> Node:
    """Puts guarding steps into a plan.

    Raises:
        ArgumentError: Elements cannot be left out, or replaced, where that would have to be.
    """
    if on_error == "raise":
        return plan
    for node in walk(plan):
        if isinstance(node, Map):
            node.traits.tolerates = True
    return _Rewriting(on_error).guarded(plan, 0)


@final
class _Rewriting:
    """Where the guards go: along the one way from the end of a plan to where it branches, or begins.

    `size` is the size of the batches that elements go into, 0 if they go to the consumer, and None where others may
    stand between: there, another element of the same batch is not at hand, and an element that fails is left out.

    With random access one guard sees to all below it. In a stream a guard stands over the steps that workers run side
    by side, from a batch, or a step that has to see elements in order, down to the next; there over those below it,
    again.
    """

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._numbers = itertools.count()

    def guarded(self, node: Node, size: int | None) -> Node:
        """A step with a guard over it; in a stream, over what workers run side by side."""
        node = self._within(node)
        return self._guard(node, size) if node.access == "random" else self._over_functions(node, size)

    def _guard(self, node: Node, size: int | None) -> Node:
        if not _can_fail(node):
            return node
        if self._on_error == "skip" or size is None:
            return Filter(CheckedElement(node, next(self._numbers)))
        if size == 0 and node.access == "stream":
            raise ArgumentError(
                f"on_error='replace' puts another element of the same batch in the place of one that fails, but "
                f"{node.label} gives single elements of a stream. Put batch() last, or use on_error='skip'."
            )
        return Replace(node, next(self._numbers), size)

    def _over_functions(self, node: Node, size: int | None) -> Node:
        """A stream with a guard over the steps at its end that workers run, if a function is among them."""
        if isinstance(node, Cache) and any(isinstance(each, Map) for each in walk(node)):
            raise ArgumentError(
                f"on_error={self._on_error!r} would leave out elements before {node.label}, which keeps an epoch of a "
                "stream for all epochs and runs to come. Put what may fail after cache(), or leave it out yourself: "
                "flat_map() with a function that gives [element], or [] where it fails."
            )
        if _is_border(node):
            return node
        if node.is_parallel:
            below = self._below(node)
            return self._guard(below, size) if _runs_function(node) else below
        (source,) = node.inputs
        if isinstance(node, Windows) and _runs_function(source):
            whole = _over(node, self._below(source))
            pairs = replace(whole, source=CheckedElement(whole.inputs[0], next(self._numbers)))  # type: ignore[type-var]
            return Filter(CheckedGroup(pairs, whole, (len(pairs.spec.leaves) - 1,)))
        return _over(node, self._over_functions(source, None))

    def _below(self, node: Node) -> Node:
        """The same steps that workers run, over what is before a step that has to see elements in order."""
        if _is_border(node):
            return node
        if not node.is_parallel:
            return self._over_functions(node, None)
        return _over(node, self._below(node.inputs[0]))

    def _zipped(self, node: Zip) -> Node:
        """What is put together, and left out together."""
        sources, verdicts, place = [], [], 0
        for each in node.sources:
            can_fail = _can_fail(each) if each.access == "random" else _runs_function(each)
            sources.append(CheckedElement(each, next(self._numbers)) if can_fail else each)
            place += len(sources[-1].spec.leaves)
            if can_fail:
                verdicts.append(place - 1)
        return Filter(CheckedGroup(replace(node, sources=tuple(sources)), node, tuple(verdicts))) if verdicts else node

    def _within(self, node: Node) -> Node:
        """The same step, over steps that have the guards which they need."""
        if isinstance(node, Cache):
            return node  # what stands in for another is not to be kept: what fails has failed before it
        if isinstance(node, (Batch, PaddedBatch)):
            return _over(node, self.guarded(node.source, node.size))
        if isinstance(node, FlatMap):
            return _over(replace(node, is_tolerated=True), self.guarded(node.source, None))
        if isinstance(node, (Filter, BucketByLength)):
            (verdicts,) = node.inputs
            (source,) = verdicts.inputs
            judge = CheckedElement(_over(verdicts, self._below(self._within(source))), next(self._numbers))
            return _over(node, judge if isinstance(node, Filter) else Filter(judge))
        if isinstance(node, Zip) and node.access == "stream":
            return self._zipped(node)
        if isinstance(node, (Concatenate, Interleave, Mix)) and node.access == "stream":
            return replace(node, sources=tuple(self.guarded(each, None) for each in node.sources))
        return _over(node, self._within(node.inputs[0])) if len(node.inputs) == 1 else node


_BORDERS: Final = (Cache, Batch, PaddedBatch, Filter, FlatMap, BucketByLength)
_NEED_NO_INDEX: Final = (Map, Cast, Unbatch, Slice, Repeat, *_BORDERS)


def _is_border(node: Node) -> bool:
    """Whether guards below a step have been seen to, or it is no step of a stream that has one input."""
    return isinstance(node, _BORDERS) or node.access == "random" or len(node.inputs) != 1


def _runs_function(node: Node) -> bool:
    """Whether a function is among the steps at the end of a stream that workers run side by side."""
    while node.is_parallel and not _is_border(node):
        if isinstance(node, Map):
            return True
        (node,) = node.inputs
    return False


def _can_fail(node: Node) -> bool:
    """Whether there is anything without a guard, down to where there is one."""
    if isinstance(node, (FailureFilter, Filter)):
        return False
    return node.computes or not node.inputs or any(map(_can_fail, node.inputs))


def _over(node: Node, source: Node) -> Node:
    """The same step over another input."""
    (before,) = node.inputs
    if source is before:
        return node
    if before.access == "random" and source.access == "stream":
        windowed = isinstance(node, Shuffle) and node.window is not None
        backwards = isinstance(node, Slice) and node.step < 0
        if backwards or not (windowed or isinstance(node, _NEED_NO_INDEX)):
            raise ArgumentError(
                f"on_error='skip' leaves out elements before {before.label}, after which nobody knows where one is, "
                f"but {node.label} needs random access. Put it before {before.verb}(), or use on_error='replace'."
            )
    clone: Node = replace(node, source=source)  # type: ignore[type-var]  # every concrete node is a dataclass
    return clone
