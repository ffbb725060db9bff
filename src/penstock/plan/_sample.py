"""Elements drawn at random, by weights or by class: an order that is computed from (seed, epoch, position)."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._random import permute, permute_each
from penstock.memory._rows import Indices, within
from penstock.plan._index import mark_of
from penstock.plan._node import POSITION_LIMIT, Demand, Memory, Node, OneInput, Overlap, Reorder

_log = logging.getLogger("penstock")
_RANGE: Final = POSITION_LIMIT - 1
_MOST_IN_A_GROUP: Final = 1 << 31


def _uniform(positions: Indices, seed: int, epoch: int) -> npt.NDArray[np.float64]:
    """A number in (0, 1) for each position: its image under a bijection of a range far larger than any dataset."""
    return (permute(positions, _RANGE, seed=seed, epoch=epoch) + 0.5) / _RANGE


def as_weights(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Weights as 64-bit floats.

    Raises:
        ArgumentTypeError: They are no real numbers.
        ArgumentError: One is too large.
    """
    try:
        if values.dtype.kind in "biufO":  # objects are large integers, fractions, decimals
            return np.ascontiguousarray(values, np.float64)
        fault = f"these are {values.dtype}"
    except OverflowError as error:
        raise ArgumentError(f"sample(weights=...): {error}.") from None
    except (TypeError, ValueError) as error:
        fault = str(error)
    raise ArgumentTypeError(f"sample(weights=...): weights are numbers, a float each, and {fault}.")


@final
class Weights:
    """Weights of elements, and what is computed from them once.

    Threads: any may ask. Two that miss the same order both compute it.
    """

    def __init__(self, values: npt.NDArray[np.float64]) -> None:
        self.values = values

    def __reduce__(self) -> Any:
        return Weights, (self.values,)

    @property
    def _scaled(self) -> npt.NDArray[np.float64]:
        """The weights times a power of two that makes the largest about 1, so no sum or quotient leaves the floats."""
        scaled: npt.NDArray[np.float64] = np.ldexp(self.values, -np.frexp(self.values.max())[1])
        return scaled

    @cached_property
    def _ends(self) -> npt.NDArray[np.float64]:
        return np.cumsum(self._scaled)

    @cached_property
    def _last(self) -> int:
        """The last element with a weight: rounding may reach the end."""
        return int(np.flatnonzero(self.values)[-1])

    def drawn(self, positions: Indices, seed: int, epoch: int) -> Indices:
        """The elements at some positions, each drawn alone."""
        ends = self._ends
        found: Indices = np.searchsorted(ends, _uniform(positions, seed, epoch) * ends[-1], "right")
        return np.minimum(found, self._last, out=found)

    @cached_property
    def order(self) -> Callable[[int, int], Indices]:
        """For a seed and an epoch: all elements with a weight, each once, those that are drawn first, first.

        It is the order of `log(u) / weight` (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
        2006). The last one is kept.
        """
        return lru_cache(1)(self._ordered)

    def _ordered(self, seed: int, epoch: int) -> Indices:
        some = np.flatnonzero(self.values)
        keys = np.log(_uniform(some, seed, epoch)) / self._scaled[some]
        return some[np.argsort(-keys, kind="stable")]


@dataclass(frozen=True, eq=False)
class _Drawn(Reorder, OneInput):
    """So many elements of the input, from anywhere in it, others in each epoch."""

    seed: int
    count: int

    verb = "sample"
    spread = math.inf
    redraws = True

    @cached_property
    def length(self) -> int:
        """The count."""
        return self.count

    @cached_property
    def overlap(self) -> Overlap:
        """An element may come twice, anywhere."""
        return "anywhere"


@dataclass(frozen=True, eq=False)
class Sample(_Drawn):
    """Elements of the input, drawn by their weights, anew in each epoch."""

    weights: Weights
    replacement: bool

    @property
    def label(self) -> str:
        """As the user wrote it, without the weights."""
        return f"sample(..., seed={self.seed}{'' if self.replacement else ', replacement=False'})"

    def settings(self) -> dict[str, Any]:
        """The arguments, and the weights."""
        facts = {"seed": self.seed, "replacement": self.replacement, "count": self.count}
        return {**facts, "weights": mark_of(self.weights.values.view(np.int64))}

    @property
    def memory(self) -> Memory:
        """The sums of the weights, or the order of an epoch; and the weights."""
        return Memory(kept_nbytes=16 * len(self.weights.values))

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements drawn."""
        if self.replacement:
            return [Demand(0, epoch, self.weights.drawn(indices, self.seed, epoch))]
        return [Demand(0, epoch, self.weights.order(self.seed, epoch)[indices])]


_CLASSES_SEED: Final = 1 << 64
"""Added to the seed where classes are dealt, far from seeds that a user gives."""


@dataclass(frozen=True, eq=False)
class PerClass(_Drawn):
    """Groups with an exact number of elements of each class, anew in each epoch.

    The elements of a class come in passes, each in an order of its own. A pass ends where too few are left for a group,
    so no element comes twice in a group, unless its class has too few. The classes of a group are all, or some, which
    are dealt in rounds: in a round none comes twice.
    """

    members: Indices
    """The elements, class by class."""
    ends: Indices
    """The end of each class among them."""
    classes: Indices
    """The classes of a group; of all groups, or where some are dealt, numbers of places."""
    counts: Indices
    """The number of elements of each of them."""
    is_dealt: bool
    text: str
    """The argument, for `repr`."""

    @property
    def label(self) -> str:
        """As the user wrote it, without labels."""
        return f"sample(balance=..., {self.text}, seed={self.seed})"

    def settings(self) -> dict[str, Any]:
        """The counts, and which element has which class."""
        marks = mark_of(self.members, self.ends, self.classes, self.counts)
        return {"seed": self.seed, "count": self.count, "dealt": self.is_dealt, "classes": marks}

    @property
    def memory(self) -> Memory:
        """The elements by class, and the ends of classes."""
        return Memory(kept_nbytes=self.members.nbytes + self.ends.nbytes)

    @cached_property
    def _places(self) -> tuple[Indices, Indices]:
        """For each place of a group: its class, by the place of that in a group, and its number in the class."""
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        return owners, within(self.counts)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The elements of the class that is due, from the pass that it is in."""
        owners, numbers = self._places
        turn, place = np.divmod(indices, len(owners))
        owner, number, total = owners[place], numbers[place], len(self.ends)
        chosen = self.classes[owner]
        if self.is_dealt:
            turn, part = np.divmod(turn, total // len(self.classes))
            chosen, every = part * len(self.classes) + owner, np.full(len(turn), total)
            chosen = permute_each(chosen, every, turn, seed=self.seed + _CLASSES_SEED, epoch=epoch)
        firsts = np.append(0, self.ends[:-1])[chosen]
        sizes, due = self.ends[chosen] - firsts, self.counts[owner]
        passes, part = np.divmod(turn, np.maximum(1, sizes // due))
        wanted = (part * due + number) % sizes
        taken = permute_each(wanted, sizes, passes * total + chosen, seed=self.seed, epoch=epoch)
        return [Demand(0, epoch, self.members[firsts + taken])]


def by_class(
    source: Node,
    labels: npt.NDArray[Any],
    per_class: int | Mapping[Any, int],
    class_count: int | None,
    seed: int,
    count: int | None,
) -> PerClass:
    """Builds groups with an exact number of elements of each class.

    Raises:
        ArgumentTypeError: A number is no integer.
        ArgumentError: A number is below 1, there is no such class, or there are fewer than `class_count`.
    """
    names, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    total = len(names)
    if not total:
        raise ArgumentError("sample(per_class=): the dataset is empty, so it has no classes.")
    if isinstance(per_class, Mapping):
        if class_count is not None:
            raise ArgumentError("sample(per_class={label: count}, class_count=): the labels say which classes.")
        numbers = {name: number for number, name in enumerate(names.tolist())}
        if strangers := [name for name in per_class if name not in numbers]:
            known, hint = f"{list(numbers)!r:.200}", ""
            if isinstance(strangers[0], str) and labels.dtype.kind in "iu":
                hint = " Labels are numbers here. If the dataset has names for them: class_names.index(name)."
            raise ArgumentError(
                f"sample(per_class=...): no element has the label {strangers[0]!r:.80}; there are {known}.{hint}"
            )
        if not per_class:
            raise ArgumentError("sample(per_class={}) names no class.")
        classes = np.array([numbers[name] for name in per_class], np.int64)
        counts = np.array([_number(each) for each in per_class.values()], np.int64)
    else:
        some = total if class_count is None else _number(class_count, "class_count")
        if some > total:
            raise ArgumentError(f"sample(class_count={some}): there are {total} classes.")
        classes, counts = np.arange(some), np.full(some, _number(per_class), np.int64)
    if (few := sizes[classes] < counts).any():
        first = int(np.argmax(few))
        _log.warning(
            "sample(per_class=%d): %d classes have fewer elements, and so repeat some within a group; %r has %d.",
            counts[first], np.count_nonzero(few), names[classes[first]].item(), sizes[classes[first]],
        )  # fmt: skip
    order, group = np.argsort(inverse.ravel(), kind="stable").astype(np.int64), int(counts.sum())
    number = max(1, len(labels) // group) * group if count is None else count
    is_dealt = not isinstance(per_class, Mapping) and len(classes) < total
    text = f"per_class={per_class!r:.80}" + (f", class_count={class_count}" if class_count is not None else "")
    return PerClass(source, seed, number, order, np.cumsum(sizes, dtype=np.int64), classes, counts, is_dealt, text)


def _number(value: Any, name: str = "per_class") -> int:
    number = as_int(value)
    if number is None:
        raise ArgumentTypeError(f"sample({name}={value!r:.80}): an integer is needed, not {type_of(value)}.")
    if number < 1:
        raise ArgumentError(f"sample({name}={number}): it must be at least 1.")
    if number > _MOST_IN_A_GROUP:
        raise ArgumentError(f"sample({name}={number}): it must be at most {_MOST_IN_A_GROUP:,}.")
    return number
