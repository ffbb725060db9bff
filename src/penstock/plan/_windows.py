"""Windows of neighbouring elements, as an index view: for time series, video and other ordered data."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Leaves, copied, within
from penstock.plan._batch import Stacking, require_one_shape, stacked
from penstock.plan._chunks import Chunks
from penstock.plan._filter import CheckedGroup
from penstock.plan._index import mark_of
from penstock.plan._node import (
    ClearAfter,
    Elements,
    Length,
    Memory,
    Node,
    OneInput,
    Overlap,
    finite_length,
    working_memory,
)
from penstock.plan._reader import Reader


class Groups(NamedTuple):
    """Where windows lie: for each group that has some."""

    firsts: Indices
    """Its first element."""
    before: Indices
    """The number of windows before it."""
    lasts: Indices
    """The last element at which a window may start."""
    has_tails: bool
    """A group's last window starts there, where the shift leaves elements over."""

    def starts(self, indices: Indices, shift: int) -> tuple[Indices, Indices]:
        """The first element of each window, and its group."""
        group = np.searchsorted(self.before, indices, side="right") - 1
        starts = self.firsts[group] + (indices - self.before[group]) * shift
        return np.minimum(starts, self.lasts[group]) if self.has_tails else starts, group


@dataclass(frozen=True, eq=False)
class Windows(Stacking):
    """Element `i` is `size` elements of the input, `stride` apart, from the start of window `i`.

    Windows lie within groups: neighbours that belong together. Without groups, all elements are one group.
    """

    size: int
    shift: int
    stride: int
    groups: Groups | None
    count: Length
    tail: bool = False
    """Elements that the shift leaves over at the end of a group are in a last window, which ends there."""

    verb = "windows"

    @property
    def label(self) -> str:
        """As the user wrote it, without defaults."""
        given = {"shift": self.shift, "stride": self.stride}
        changed = [f"{name}={value}" for name, value in given.items() if value != 1]
        changed += ["groups=..."] * (self.groups is not None) + ["tail=True"] * self.tail
        return f"windows({', '.join([str(self.size), *changed])})"

    def settings(self) -> dict[str, Any]:
        """The arguments, and the places of the groups."""
        groups = None if self.groups is None else mark_of(self.groups.firsts, self.groups.before)
        tail = {"tail": True} if self.tail else {}
        return {"length": self.size, "shift": self.shift, "stride": self.stride, "groups": groups, **tail}

    def over_pairs(self, pairs: Node) -> CheckedGroup:
        """A window is there if all of its elements are."""
        return CheckedGroup(self.over(pairs), self, (True,))

    @property
    def length(self) -> Length:
        """The count."""
        return self.count

    @property
    def span(self) -> int:
        """The number of neighbouring elements from a window's first to its last."""
        return (self.size - 1) * self.stride + 1

    @cached_property
    def spec(self) -> Spec:
        """The input's, stacked."""
        require_one_shape(self.label, self.source.spec)
        return self.source.spec.stacked(self.size)

    batch_size = 1

    @cached_property
    def chunks(self) -> Chunks | None:
        """Those in which windows begin."""
        below = self.source.chunks
        if below is None:
            return None
        if self.groups is None and not self.tail:
            return below.sliced(0, self.shift, finite_length(self))
        return below.chosen(self.starts(np.arange(finite_length(self))))

    def starts(self, indices: Indices) -> Indices:
        """The first input element of each window."""
        if self.groups is not None:
            return self.groups.starts(indices, self.shift)[0]
        starts, total = indices * self.shift, self.source.length
        return np.minimum(starts, total - self.span) if self.tail and isinstance(total, int) else starts

    @property
    def width(self) -> int:
        """The number of elements."""
        return self.size

    def members(self, indices: Indices) -> tuple[Indices, None]:
        """Neighbours, or those `stride` apart."""
        return (self.starts(indices)[:, None] + np.arange(self.size, dtype=np.int64) * self.stride).ravel(), None

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Keeps as many elements as a window spans."""
        kept: deque[Leaves] = deque(maxlen=self.span)
        left = -self.span
        for leaves in reader.inputs[0].sequence(epoch):
            kept.append([copied(leaf) for leaf in leaves])
            left += 1  # elements after the last window, once there is one
            if left == 0:
                yield self._stacked(kept)
                left = -self.shift
        if self.tail and len(kept) == self.span and left != -self.shift:
            yield self._stacked(kept)

    def _stacked(self, kept: deque[Leaves]) -> Leaves:
        members = [kept[place] for place in range(0, self.span, self.stride)]
        return stacked(self.source.spec, list(zip(*members, strict=True)))

    @property
    def memory(self) -> Memory:
        """For a stream, the span of a window and the window; positions need none."""
        return working_memory((self.span + self.size) * self.source.spec.nbytes if self.access == "stream" else 0)

    @cached_property
    def overlap(self) -> Overlap:
        """Windows share data if one begins before the last has ended."""
        is_near = self.shift < self.span or self.tail
        return "near" if self.source.overlap == "none" and is_near else self.source.overlap

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """The first window that starts after everything up to the end of this one."""
        return first_clear(self, index, ask, self._reach)

    def _reach(self, index: int) -> tuple[int, int]:
        start = int(self.starts(np.array([index], np.int64))[0])
        return start, start + self.span - 1


def first_clear(node: OneInput, index: int, ask: ClearAfter, reach: Callable[[int], tuple[int, int]]) -> int:
    """The first window that starts after everything up to the end of one.

    Args:
        node: The windows.
        index: That window.
        ask: Answers for the nodes before.
        reach: Returns the first and the last element of the input that a window has.
    """
    end, later = ask(node.source, reach(index)[1]), index + 1
    while (node.length is None or later < node.length) and reach(later)[0] < end:
        later += 1
    return later


def grouped(labels: npt.NDArray[Any]) -> tuple[Indices | None, Indices]:
    """Finds the groups in a label an element: all elements with one label are a group.

    Returns:
        The order in which the elements of a group are neighbours, groups by their first element, or None if they are
        already; and the sizes of the groups in that order.
    """
    changes = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    firsts = np.concatenate(([0], changes))[: len(labels)]  # of runs of one label
    sizes = np.diff(np.append(firsts, len(labels)))
    numbers: dict[Any, int] = {}
    group_of = np.array([numbers.setdefault(label, len(numbers)) for label in labels[firsts].tolist()], np.int64)
    if len(numbers) == len(firsts):
        return None, sizes
    runs = np.argsort(group_of, kind="stable")
    order = np.repeat(firsts[runs], sizes[runs]) + within(sizes[runs])
    return order, np.bincount(group_of, weights=sizes).astype(np.int64)


def group_bounds(sizes: Indices, span: int, shift: int, tail: bool = False) -> tuple[Groups, int]:
    """Counts the windows of groups of some sizes, which lie one after the other.

    Returns:
        `Windows.groups`, and the number of all windows.
    """
    firsts = (np.cumsum(sizes) - sizes).astype(np.int64)
    counts = np.array(window_count(sizes, span, shift, tail), np.int64)
    some = counts > 0
    firsts, counts, lasts = firsts[some], counts[some], (firsts + sizes - span)[some]
    ends = np.cumsum(counts)
    return Groups(firsts, ends - counts, lasts, tail), int(ends[-1]) if len(ends) else 0


def window_count(size: Any, span: int, shift: int, tail: bool) -> Any:
    """The number of windows over a number of elements, or over several."""
    room = size - span
    return ((room + (shift - 1 if tail else 0)) // shift + 1) * (room >= 0)
