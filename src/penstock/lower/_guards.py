"""Adds the guards of `on_error` to a plan. The guards themselves are in `plan/_tolerate.py`."""

import itertools
from typing import Literal, final

from penstock.base._errors import ArgumentError
from penstock.plan._batch import Batching, are_side_by_side
from penstock.plan._filter import CheckedGroup, Filter, FlatMap
from penstock.plan._fold import Fold
from penstock.plan._map import Apart, Map
from penstock.plan._node import Grouping, Node, walk
from penstock.plan._tolerate import (
    CheckedElement,
    LeftOut,
    Remaining,
    Replace,
    RowsThere,
)

OnError = Literal["raise", "skip", "replace"]


def with_guards(plan: Node, on_error: OnError, *, is_placed: bool = False) -> Node:
    """A plan that goes on after elements that fail.

    Args:
        plan: The plan.
        on_error: How it goes on.
        is_placed: Whether elements keep their positions, and random access, as if a step after them went by position.

    Raises:
        ArgumentError: The plan cannot leave out or replace elements at a place where that would be needed.
    """
    return _Guarding(on_error).guarded(plan, 0, is_placed=is_placed)


@final
class _Guarding:
    """Adds guards along the one path from the end of a plan to where it branches, or begins.

    `size` is the size of the batches that elements go into; 0 if they go to the consumer; and None if other elements
    may stand between. Then no other element of the same batch is at hand, and an element that fails is left out.

    With random access one guard covers all steps below it. In a stream a guard covers the steps that workers run side
    by side, from a batch or from a step that must see elements in order, down to the next such step.

    Positions stay. With random access, an element that cannot be read keeps its position for each step above it. In a
    stream, a step that moves or changes elements does so with pairs of an element and whether it is there, and the
    filter stands behind it. Under "skip" a batch takes elements that move up, unless a step above it goes by position.

    Two facts about the steps above are known on the way down. `is_placed`: one goes by position. `is_stacked`: one
    stacks elements, so that groups below it need one shape, and fail as a whole.
    """

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._numbers = itertools.count()
        self._placed: dict[int, Node] = {}

    def guarded(self, node: Node, size: int | None, *, is_placed: bool = False, is_stacked: bool = False) -> Node:
        """A step with a guard over it; in a stream, over the steps that workers run."""
        node = self._within(node, is_placed, is_stacked)
        if isinstance(node, Fold):  # another state in its place would count other elements twice, and lose its own
            return node
        return self._guard(node, size) if node.access == "random" else self._over_functions(node, size)

    def _guard(self, node: Node, size: int | None) -> Node:
        if not _can_fail(node):
            return node
        if node.checked_pairs is not None:
            return LeftOut(self._checked(node.checked_pairs, is_over_pairs=True))
        if self._on_error == "skip" or size is None:
            return LeftOut(self._checked(node))
        if size == 0 and node.access == "stream":
            raise ArgumentError(
                f"on_error='replace' puts another element of the same batch in the place of one that fails, but "
                f"{node.label} gives single elements of a stream. Put batch() last, or use on_error='skip'."
            )
        return Replace(node, next(self._numbers), size)

    def _checked(self, node: Node, *, is_over_pairs: bool = False) -> CheckedElement:
        return CheckedElement(node, next(self._numbers), is_over_pairs)

    def _lifted(self, node: Node, source: Node) -> Node:
        """The same step of a stream, over an input with guards.

        Unless later elements may move up at it, it takes pairs of an element and whether it is there.
        """
        if source.checked_pairs is not None:
            if (made := node.over_pairs(source.checked_pairs)) is not None:
                return LeftOut(made)
            source = self._guard(source, None)  # whose last functions may have none
        return node.over(source)

    def _over_functions(self, node: Node, size: int | None) -> Node:
        """A stream with a guard over the steps at its end that workers run, if a function is among them."""
        if node.traits.is_cached and any(each.fails_alone for each in walk(node)):
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
        # The step may make a stream of elements with random access, as pack() does.
        below = self._over_functions(source, None) if source.access == "stream" else self._guard(source, None)
        return self._lifted(node, below)

    def _below(self, node: Node) -> Node:
        """The same steps that workers run, over guarded inputs of a step that must see elements in order."""
        if _is_border(node):
            return node
        if not node.traits.is_parallel:
            return self._over_functions(node, None)
        return self._lifted(node, self._below(node.inputs[0]))

    def _combined(self, node: Node) -> Node:
        """A step of a stream with several inputs. Elements that it puts together are left out together."""
        guarded = [self.guarded(each, None, is_placed=True) for each in node.inputs]
        are_pairs = tuple(each.checked_pairs is not None for each in guarded)
        if not any(are_pairs):
            return node.over(*guarded)
        if node.gives_inputs:
            return LeftOut(node.over(*map(self._pairs, guarded)))
        return LeftOut(CheckedGroup(node.over(*(each.checked_pairs or each for each in guarded)), node, are_pairs))

    def _pairs(self, guarded: Node) -> Node:
        """Pairs of an element and whether it is there, in its position."""
        return guarded.checked_pairs or self._checked(guarded)

    def _in_groups(self, node: Grouping, is_placed: bool, is_stacked: bool) -> Node:
        """A step that makes groups, such as batches, of elements that did not fail."""
        replaces, in_stream = self._on_error == "replace", node.access == "stream"
        if not node.goes_by_position and (replaces or not is_placed or (in_stream and is_stacked)):
            below = self.guarded(node.source, node.batch_size, is_stacked=True)
            if not (replaces and below.checked_pairs):
                return node.over(below)
            return Remaining(below.checked_pairs, node, replaces)
        if not _can_fail(node.source) or (is_stacked and not replaces):
            return node
        below = self.guarded(node.checked(node.source), None, is_placed=True, is_stacked=True)
        made = Remaining(self._pairs(below), node, replaces, has_verdict=in_stream)
        return LeftOut(made) if in_stream else made

    def _apart(self, node: Apart, is_placed: bool) -> Node:
        """A step that takes apart what functions make of batches.

        A function of the user's own batches gets short ones only where a step above goes by position.
        """
        functions, (batch,) = [], node.inputs
        while isinstance(batch, Map) and batch.verdict is None:
            functions.append(batch)
            (batch,) = batch.inputs
        if not (functions and isinstance(batch, Batching)):  # a batch fails as a whole
            return node if node.access == "random" else node.over(self._within(node.inputs[0], is_placed, False))
        if not (is_placed or functions[-1].batched):
            return node.over(self._within(node.inputs[0], False, False))
        guarded = self.guarded(batch.source, None, is_placed=True, is_stacked=True)
        made: Node = Remaining(self._pairs(guarded), batch, self._on_error == "replace", has_mask=True)
        for step in reversed(functions):
            made = step.over(made, has_mask=True)
        parts = RowsThere(self._checked(made, is_over_pairs=True), node, is_placed and node.access == "random")
        return parts if parts.is_placed else LeftOut(parts)

    def _within(self, node: Node, is_placed: bool, is_stacked: bool) -> Node:
        """The same step, over steps with their guards."""
        if node.traits.is_cached:
            return node  # a replacement must not be kept, so elements fail below the cache
        if isinstance(node, Grouping) and (node.access == "random" or node.traits.is_parallel):
            return self._in_groups(node, is_placed, is_stacked)
        if isinstance(node, Apart) and (self._on_error == "skip" or node.access == "stream"):
            return self._apart(node, is_placed)
        if isinstance(node, FlatMap):
            made = node.source.over(self.guarded(node.maker.source, None))
            return node.over(made, is_tolerated=True)
        verdicts = node.inputs[0] if node.inputs else node
        if verdicts.verdict is not None:
            (source,) = verdicts.inputs
            checked = self._checked(self._lifted(verdicts, self._below(self._within(source, False, False))))
            return node.over(checked if verdicts.verdict == "bool" else Filter(checked))
        if node.is_beside and are_side_by_side(node):
            return node.over(*(self.guarded(each, 0, is_placed=is_placed) for each in node.inputs))
        if node.access == "stream" and (node.is_beside or (node.gives_inputs and len(node.inputs) > 1)):
            return self._combined(node)
        if len(node.inputs) == 1:
            facts = is_placed or node.goes_by_position, is_stacked or node.stacks > 0
            return node.over(self._within(node.inputs[0], *facts))
        # Elements that groups are combined with stay at their sides, so such a group fails as a whole.
        return node.over(*(each if each.gives_groups else self._within_placed(each) for each in node.inputs))

    def _within_placed(self, node: Node) -> Node:
        """The same step, as often as others read it: what fails below it is noted once."""
        if id(node) not in self._placed:
            self._placed[id(node)] = self._within(node, is_placed=True, is_stacked=False)
        return self._placed[id(node)]


def _is_border(node: Node) -> bool:
    """Whether the steps below have their guards; or the node is not a step of a stream with one input."""
    return node.ends_guards or node.access == "random" or len(node.inputs) != 1


def _runs_function(node: Node) -> bool:
    """Whether a function is among the steps at the end of a stream that workers run side by side."""
    while node.traits.is_parallel and not _is_border(node):
        if node.fails_alone:
            return True
        (node,) = node.inputs
    return False


def _can_fail(node: Node) -> bool:
    """Whether a source or a computation is not covered by a guard."""
    unguarded = walk(node, lambda each: () if each.is_guard else each.inputs)
    return any((each.traits.is_cpu_bound or not each.inputs) and not each.is_guard for each in unguarded)
