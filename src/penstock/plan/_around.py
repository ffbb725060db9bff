"""Windows whose values each have offsets of their own: a few frames, and many actions, around one element.

Every element of the input is an anchor, or every `shift`-th of its group. A place outside of the group is that of the
element at the group's edge, and a mask says so. This is what LeRobot calls delta timestamps, by position.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base._arguments import as_int, items_of
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Rows
from penstock.plan._batch import Stacking, require_one_shape
from penstock.plan._chunks import Chunks
from penstock.plan._combine import Merged
from penstock.plan._fields import named
from penstock.plan._index import mark_of
from penstock.plan._node import (
    POSITION_LIMIT,
    ClearAfter,
    Demand,
    Length,
    Node,
    OneInput,
    Overlap,
    Reorder,
    finite_length,
)
from penstock.plan._reader import Gather, Reader
from penstock.plan._windows import Groups, first_clear

Offsets = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Anchors:
    """The elements around which windows lie."""

    groups: Groups
    shift: int
    count: Length
    low: int
    """The least offset of any value from the anchor."""
    high: int
    """The largest."""

    def at(self, indices: Indices) -> tuple[Indices, Indices, Indices]:
        """The anchor of each window, and the first and the last element of its group."""
        anchors, group = self.groups.starts(indices, self.shift)
        return anchors, self.groups.firsts[group], self.groups.lasts[group]

    def reach(self, index: int) -> tuple[int, int]:
        """The first and the last element of one window, whichever value is asked for."""
        ((anchor,), (first,), (last,)) = self.at(np.array([index], np.int64))
        least, most = (int(np.clip(anchor + offset, first, last)) for offset in (self.low, self.high))
        return least, most

    @property
    def are_apart(self) -> bool:
        """Whether no two windows share an element."""
        return self.low <= 0 <= self.high and self.shift > self.high - self.low and not self.groups.has_tails


@dataclass(frozen=True, eq=False)
class _OfAnchors(OneInput):
    anchors: Anchors

    verb = "windows"
    moves = True
    batch_size = 1

    def settings(self) -> dict[str, Any]:
        """Which elements are anchors."""
        groups = self.anchors.groups
        return {"shift": self.anchors.shift, "groups": mark_of(*groups[:3])}

    @property
    def length(self) -> Length:
        """The number of anchors."""
        return self.anchors.count

    first_offset = 0
    """Of the first value, from the anchor."""

    @cached_property
    def chunks(self) -> Chunks | None:
        """Those of the first values."""
        if self.source.chunks is None:
            return None
        anchors, firsts, lasts = self.anchors.at(np.arange(finite_length(self)))
        return self.source.chunks.chosen(np.clip(anchors + self.first_offset, firsts, lasts))

    @cached_property
    def overlap(self) -> Overlap:
        """Windows share data with their neighbours, unless the shift is larger than they are."""
        return "near" if self.source.overlap == "none" and not self.anchors.are_apart else self.source.overlap

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """The first window all of whose values lie after all of those of this one."""
        return first_clear(self, index, ask, self.anchors.reach)


@dataclass(frozen=True, eq=False)
class AtAnchors(_OfAnchors, Reorder):
    """The values that have no offsets: those of the anchors."""

    label = "windows()"

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The anchors."""
        return [Demand(0, epoch, self.anchors.at(indices)[0])]


@dataclass(frozen=True, eq=False)
class Around(_OfAnchors, Stacking):
    """Values at some offsets from the anchors, stacked; at the edges of groups they repeat."""

    offsets: Offsets

    @property
    def label(self) -> str:
        """The offsets."""
        return f"windows({offsets_text(self.offsets)})"

    def settings(self) -> dict[str, Any]:
        """Which elements are anchors, and the offsets."""
        return {**super().settings(), "offsets": self.offsets}

    @cached_property
    def spec(self) -> Spec:
        """The input's, stacked."""
        require_one_shape(self.label, self.source.spec)
        return self.source.spec.stacked(len(self.offsets))

    @property
    def first_offset(self) -> int:  # type: ignore[override]
        """The first."""
        return self.offsets[0]

    @property
    def width(self) -> int:
        """The number of offsets."""
        return len(self.offsets)

    def members(self, indices: Indices) -> tuple[Indices, None]:
        """Those at the offsets, or at the edges of their group."""
        anchors, firsts, lasts = (each[:, None] for each in self.anchors.at(indices))
        return np.clip(anchors + np.array(self.offsets, np.int64), firsts, lasts).ravel(), None


@dataclass(frozen=True, eq=False)
class IsPad(_OfAnchors):
    """Whether values at some offsets from the anchors lie outside of the group. The input is False and True."""

    offsets: tuple[Offsets, ...]
    """Those of each leaf."""
    names: tuple[str, ...]

    label = "windows(is_pad)"
    stacks = 1

    def settings(self) -> dict[str, Any]:
        """Which elements are anchors, and the offsets."""
        return {**super().settings(), "offsets": self.offsets}

    @cached_property
    def spec(self) -> Spec:
        """A mask for each name."""
        (leaf,) = self.source.spec.leaves
        masks = (leaf.stacked(len(offsets)) for offsets in self.offsets)
        return Spec.of({"is_pad": dict(zip(self.names, masks, strict=True))})

    def _masks(self, indices: Indices) -> Iterable[Indices]:
        anchors, firsts, lasts = (each[:, None] for each in self.anchors.at(indices))
        for offsets in self.offsets:
            places = anchors + np.array(offsets, np.int64)
            yield ((places < firsts) | (places > lasts)).astype(np.int64).ravel()

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Nothing: messages name the elements that a window is made of, and the two values are none of these."""
        return ()

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """The masks are gathered as elements are, so that the copy engine can do so."""
        for number, mask in enumerate(self._masks(indices)):
            places = out.leaves(number, number + 1).unstacked(len(self.offsets[number]))
            reader.inputs[0].fill(epoch, mask, places, gather)


def offsets_of(node: Node, given: Mapping[Any, Any]) -> dict[str, Offsets]:
    """Checks offsets by name.

    Raises:
        ArgumentTypeError: Offsets of a name are no list of integers.
        ArgumentError: Elements are no dicts, lack a name, or have `is_pad`; or there are no offsets.
    """
    tree = node.spec.tree
    if not isinstance(tree, dict):
        raise ArgumentError(
            f"windows({{name: offsets}}) finds values by their names, but elements are {node.spec}. Make dicts of "
            'them: map(lambda element: {"x": element}), or zip({"x": ...}).'
        )
    if "is_pad" in tree:
        raise ArgumentError(
            "windows({name: offsets}) makes the value 'is_pad', and elements have one already. Rename it: "
            "rename({'is_pad': 'was_pad'})."
        )
    if not given:
        raise ArgumentError('windows({}) has no offsets. Give some names theirs: windows({"image": [-1, 0]}).')
    found: dict[str, Offsets] = {}
    for name, offsets in given.items():
        if name not in tree:
            raise ArgumentError(f"windows({{{name!r:.80}: ...}}): elements have no such value; they have {list(tree)}.")
        items = items_of(offsets)
        if items is None:
            raise ArgumentTypeError(
                f"windows({{{name!r}: {offsets!r:.80}}}): a list of integers is needed, such as [-1, 0], and this is "
                f"{type_of(offsets)}."
            )
        numbers = [(each, as_int(each)) for each in items]
        wrong = [each for each, number in numbers if number is None or abs(number) >= POSITION_LIMIT]
        if wrong or not numbers:
            fault = f"{wrong[0]!r:.80} is no offset" if wrong else "there are none"
            hint = " Offsets count steps: multiply seconds by the steps in a second." if wrong else ""
            raise ArgumentTypeError(
                f"windows({{{name!r}: ...}}): offsets are integers, such as [-1, 0], and {fault}.{hint}"
            )
        found[name] = tuple(number for _, number in numbers if number is not None)
    return found


def around(source: Node, offsets: dict[str, Offsets], anchors: Anchors, pads: Node) -> Merged:
    """Builds windows with offsets by name over elements that are dicts.

    Args:
        source: Elements, those of one group side by side.
        offsets: For some of the names.
        anchors: The elements around which windows lie.
        pads: A dataset of False and True.
    """
    others = [name for name in source.spec.tree if name not in offsets]
    alike: dict[Offsets, list[str]] = {}  # a function before it runs once for all names of the same offsets
    for name, each in offsets.items():
        alike.setdefault(each, []).append(name)
    parts: list[Node] = [AtAnchors(named(source, others), anchors)] if others else []
    for each, names in alike.items():
        values = named(source, names)  # None has nothing to stack, and stays None
        parts.append(Around(values, anchors, each) if values.spec.leaves else AtAnchors(values, anchors))
    parts.append(IsPad(pads, anchors, tuple(offsets.values()), tuple(offsets)))
    text = ", ".join(f"{name!r}: {offsets_text(each)}" for name, each in offsets.items())
    return Merged(tuple(parts), "windows", f"{{{text}}}")


def offsets_text(offsets: Offsets) -> str:
    """A list, or a range."""
    first, last, count = offsets[0], offsets[-1], len(offsets)
    is_range = count > 4 and offsets == tuple(range(first, last + 1))
    return f"range({first}, {last + 1})" if is_range else f"{list(offsets)!r:.60}"
