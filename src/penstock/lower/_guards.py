"""Adds the guards of `on_error` to a plan. The guards themselves are in `plan/_tolerate.py`."""

import itertools
from typing import Literal, final

from penstock.base._errors import ArgumentError
from penstock.lower._rewrite import over
from penstock.plan._batch import Batching, are_side_by_side
from penstock.plan._cache import Cache, CacheStep
from penstock.plan._combine import Zip
from penstock.plan._filter import Filter, FlatMap
from penstock.plan._fold import Fold
from penstock.plan._map import Map
from penstock.plan._node import Node, Reorder, walk
from penstock.plan._tolerate import CheckedElement, CheckedGroup, FailureFilter, Replace
from penstock.plan._windows import Windows

OnError = Literal["raise", "skip", "replace"]


def with_guards(plan: Node, on_error: OnError) -> Node:
    """A plan that goes on after elements that fail.

    Raises:
        ArgumentError: The plan cannot leave out or replace elements at a place where that would be needed.
    """
    return _Guarding(on_error).guarded(plan, 0)


@final
class _Guarding:
    """Adds guards along the one path from the end of a plan to where it branches, or begins.

    `size` is the size of the batches that elements go into; 0 if they go to the consumer; and None if other elements
    may stand between. Then no other element of the same batch is at hand, and an element that fails is left out.

    With random access one guard covers all steps below it. In a stream a guard covers the steps that workers run side
    by side, from a batch or from a step that must see elements in order, down to the next such step.
    """

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._numbers = itertools.count()

    def guarded(self, node: Node, size: int | None) -> Node:
        """A step with a guard over it; in a stream, over the steps that workers run."""
        node = self._within(node)
        if isinstance(node, Fold):  # another state in its place would count other elements twice, and lose its own
            return node
        return self._guard(node, size) if node.access == "random" else self._over_functions(node, size)

    def _guard(self, node: Node, size: int | None) -> Node:
        if not _can_fail(node):
            return node
        if self._on_error == "skip" or size is None:
            return Filter(self._checked(node))
        if size == 0 and node.access == "stream":
            raise ArgumentError(
                f"on_error='replace' puts another element of the same batch in the place of one that fails, but "
                f"{node.label} gives single elements of a stream. Put batch() last, or use on_error='skip'."
            )
        return Replace(node, next(self._numbers), size)

    def _checked(self, node: Node) -> CheckedElement:
        return CheckedElement(node, next(self._numbers))

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
        if node.traits.is_parallel:
            below = self._below(node)
            return self._guard(below, size) if _runs_function(node) else below
        (source,) = node.inputs
        if isinstance(node, Windows) and _runs_function(source):
            whole = _onto(node, self._below(source))
            return Filter(CheckedGroup(over(whole, (self._checked(whole.inputs[0]),)), whole))
        # The step may make a stream of elements with random access, as pack() does.
        below = self._over_functions(source, None) if source.access == "stream" else self._guard(source, None)
        return _onto(node, below)

    def _below(self, node: Node) -> Node:
        """The same steps that workers run, over guarded inputs of a step that must see elements in order."""
        if _is_border(node):
            return node
        if not node.traits.is_parallel:
            return self._over_functions(node, None)
        return _onto(node, self._below(node.inputs[0]))

    def _zipped(self, node: Zip) -> Node:
        """Inputs that are combined are left out together."""
        can_fail = [_can_fail(each) if each.access == "random" else _runs_function(each) for each in node.sources]
        if not any(can_fail):
            return node
        pairs = zip(node.sources, can_fail, strict=True)
        return Filter(
            CheckedGroup(over(node, tuple(self._checked(each) if may else each for each, may in pairs)), node)
        )

    def _within(self, node: Node) -> Node:
        """The same step, over steps with their guards."""
        if isinstance(node, CacheStep):
            return node  # a replacement must not be kept, so elements fail below the cache
        if isinstance(node, Batching):
            return _onto(node, self.guarded(node.source, node.size))
        if isinstance(node, FlatMap):
            made = over(node.source, (self.guarded(node.maker.source, None),))
            return over(node, (made,), is_tolerated=True)
        verdicts = node.inputs[0] if node.inputs else node
        if isinstance(verdicts, Map) and verdicts.verdict is not None:
            (source,) = verdicts.inputs
            checked = self._checked(_onto(verdicts, self._below(self._within(source))))
            return _onto(node, checked if isinstance(node, Filter) else Filter(checked))
        if isinstance(node, Zip) and are_side_by_side(node):
            return over(node, tuple(self.guarded(each, 0) for each in node.sources))
        if isinstance(node, Zip) and node.access == "stream":
            return self._zipped(node)
        if isinstance(node, Reorder) and len(node.inputs) > 1 and node.access == "stream":
            return over(node, tuple(self.guarded(each, None) for each in node.inputs))
        return _onto(node, self._within(node.inputs[0])) if len(node.inputs) == 1 else node


def _is_border(node: Node) -> bool:
    """Whether the steps below have their guards; or the node is not a step of a stream with one input."""
    return node.ends_guards or node.access == "random" or len(node.inputs) != 1


def _runs_function(node: Node) -> bool:
    """Whether a function is among the steps at the end of a stream that workers run side by side."""
    while node.traits.is_parallel and not _is_border(node):
        if isinstance(node, Map):
            return True
        (node,) = node.inputs
    return False


def _can_fail(node: Node) -> bool:
    """Whether a source or a computation is not covered by a guard."""
    unguarded = walk(node, lambda each: () if isinstance(each, FailureFilter) else each.inputs)
    return any(
        (each.traits.is_cpu_bound or not each.inputs) and not isinstance(each, FailureFilter) for each in unguarded
    )


def _onto(node: Node, source: Node) -> Node:
    """The same step over another input, which may have become a stream.

    Raises:
        ArgumentError: The input became a stream, and the step needs random access.
    """
    (before,) = node.inputs
    if before.access == "random" and source.access == "stream" and node.needs_index:
        raise ArgumentError(
            f"on_error='skip' leaves out elements before {before.label}, after which positions are unknown, "
            f"but {node.label} needs random access. Put it before {before.verb}(), or use on_error='replace'."
        )
    return over(node, (source,))
