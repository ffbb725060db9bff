"""Steps that choose and reorder elements by position: slices, lists of positions, shuffles and repeats.

An order is arithmetic. A keyed bijection maps a position to an index, and nothing is stored.
"""

import hashlib
import itertools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SpecError
from penstock.base._random import BLOCK_CACHE_NBYTES, local_permute, permute
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, copied
from penstock.plan._chunks import Chunks
from penstock.plan._node import (
    POSITION_LIMIT,
    Called,
    ClearAfter,
    Demand,
    Elements,
    Length,
    ManyInputs,
    Memory,
    Node,
    OneInput,
    Randomness,
    Reorder,
    Traits,
    finite_length,
    history,
    located,
    randomness_below,
    walk,
    working_memory,
)
from penstock.plan._reader import Reader


@dataclass(frozen=True, eq=False)
class Slice(Called, Reorder, OneInput):
    """Elements `start, start + step, ...` of the input: `take`, `skip`, `shard`, `split` and `ds[a:b:c]`."""

    start: int
    step: int
    count: Length

    def settings(self) -> dict[str, Any]:
        """Start, step and count, whichever verb made them."""
        return {"start": self.start, "step": self.step, "count": self.count}

    @cached_property
    def length(self) -> Length:
        """At most the count: the input may be a stream that ends earlier."""
        available = self.source.length
        if available is None or self.step < 0:
            return None if available is None else self.count
        most = math.inf if available == math.inf else _count(self.start, int(available), self.step)
        return most if self.count is None or self.count > most else self.count

    @cached_property
    def chunks(self) -> Chunks | None:
        """Those of the elements that are left."""
        below = self.source.chunks
        return None if below is None else below.sliced(self.start, self.step, finite_length(self))

    @property
    def traits(self) -> Traits:
        """Positions are enough, if elements are neighbours."""
        return Traits(is_parallel=self.step == 1)

    @property
    def keeps_neighbours(self) -> bool:  # type: ignore[override]
        """Without gaps."""
        return self.step == 1

    @property
    def takes_each_once(self) -> bool:  # type: ignore[override]
        """If it leaves none out."""
        return self.length is not None and self.length == self.source.length

    @cached_property
    def randomness(self) -> Randomness:
        """Steps after `shard` draw by the numbers that elements have among those of all shards."""
        below = self.source.randomness
        if self.verb != "shard":
            return below
        return below._replace(first=below.number_of(self.start), stride=below.stride * self.step)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """An affine map of positions."""
        return [Demand(0, epoch, indices * self.step + self.start)]

    def needs(self, start: int, stop: int) -> tuple[int, int]:
        """Those as far from the start."""
        return start + self.start, stop + self.start

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The chosen elements of a stream, which is read from its start."""
        if self.count == 0:
            return
        last = None if self.count in (None, math.inf) else self.start + (int(self.count or 0) - 1) * self.step
        for number, leaves in enumerate(reader.inputs[0].sequence(epoch)):
            if number >= self.start and (number - self.start) % self.step == 0:
                yield leaves
            if number == last:
                return

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """That of the input, in positions of the slice. A backward slice is searched from its other end."""
        here = self.start + index * self.step
        if self.step > 0:
            return max(index + 1, -((self.start - ask(self.source, here)) // self.step))
        later = index + 1
        while ask(self.source, self.start + later * self.step) > here and later < finite_length(self):
            later += 1
        return later


@dataclass(frozen=True, eq=False)
class Select(Called, Reorder, OneInput):
    """The elements at a list of positions, each once. The list takes 8 bytes an element."""

    positions: Indices
    is_hidden: bool = field(default=False, repr=False)
    """Whether it is a part of the step after it."""

    def settings(self) -> dict[str, Any]:
        """The number of positions, and which."""
        return {"count": len(self.positions), "positions": mark_of(self.positions)}

    @cached_property
    def length(self) -> int:
        """The number of positions."""
        return len(self.positions)

    @cached_property
    def chunks(self) -> Chunks | None:
        """Those of the elements in the list, if it ascends."""
        return None if self.source.chunks is None else self.source.chunks.chosen(self.positions)

    @property
    def traits(self) -> Traits:
        """Whether it is shown."""
        return Traits(is_hidden=self.is_hidden)

    @property
    def takes_each_once(self) -> bool:  # type: ignore[override]
        """If it leaves none out."""
        return self.length == self.source.length

    @cached_property
    def _scatters(self) -> bool:  # type: ignore[override]
        return bool((np.diff(self.positions) < 0).any())

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """A look-up in the list."""
        return [Demand(0, epoch, self.positions[indices])]

    def clear_after(self, index: int, ask: ClearAfter) -> int:
        """The first chosen position where the input is clear. The list ascends, or elements share data anywhere."""
        clear = ask(self.source, int(self.positions[index]))
        return max(index + 1, int(np.searchsorted(self.positions, clear)))


def mark_of(*lists: npt.NDArray[Any]) -> str:
    """Eight hexadecimal digits that lists of integers of one size are told apart by."""
    digest = hashlib.blake2b(digest_size=4)
    for each in lists:
        digest.update(np.ascontiguousarray(each, each.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def sliced(source: Node, name: str, text: str, start: int | None, stop: int | None, step: int | None) -> Slice:
    """Builds a slice of a dataset of any length as Python slices a sequence.

    Raises:
        ValueError: `step` is zero, or an infinite dataset was sliced from its end.
    """
    length = source.length
    if step is not None:
        step = max(-POSITION_LIMIT, min(operator.index(step), POSITION_LIMIT))  # a larger step gives one element, too
    if source.access == "stream" and step is not None and step < 0:
        raise ValueError("a stream cannot be read backwards")
    if isinstance(length, int):
        first, last, stride = slice(start, stop, step).indices(length)
        return Slice(source, name, text, first, stride, _count(first, last, stride))
    first, stride = operator.index(start or 0), 1 if step is None else step
    if first < 0 or stride < 1 or (stop is not None and stop < 0):
        what = "without an end" if length == math.inf else "of unknown length"
        raise ValueError(f"a dataset {what} cannot be counted from its end")
    count: Length = length if stop is None else _count(first, operator.index(stop), stride)
    return Slice(source, name, text, first, stride, count)


def _count(first: int, stop: int, step: int) -> int:
    """The length of a range. `len` fails above 2**63."""
    return max(0, -((first - stop) // step))


@dataclass(frozen=True, eq=False)
class Shuffle(Reorder, OneInput):
    """Each element once, in an order that (seed, epoch) define; with a window, only within windows."""

    seed: int
    window: int | None
    reshuffle: bool

    verb = "shuffle"
    takes_each_once = True

    @property
    def label(self) -> str:
        """As the user wrote it, without defaults."""
        window = "" if self.window is None else f", window={self.window}"
        return f"shuffle(seed={self.seed}{window}{'' if self.reshuffle else ', reshuffle=False'})"

    _scatters = True

    @property
    def spread(self) -> float:  # type: ignore[override]
        """The window."""
        return self.window or math.inf

    @property
    def redraws(self) -> bool:  # type: ignore[override]
        """Unless the order stays."""
        return self.reshuffle

    def unshuffled(self) -> tuple[Node, int, bool] | None:
        """The input, or what its order is of."""
        below = self.source.unshuffled() if self.source.randomness.reorders else (self.source, 0, True)
        return None if below is None else (below[0], self.seed, below[2] and self.window is not None)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The image of the positions under the epoch's bijection."""
        count = finite_length(self.source)
        order = epoch if self.reshuffle else 0
        if self.window is None:
            return [Demand(0, epoch, permute(indices, count, seed=self.seed, epoch=order))]
        images = local_permute(indices, count, seed=self.seed, epoch=order, window=self.window)
        return [Demand(0, epoch, images)]

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Collects a window of a stream, yields it in a new order, and goes on to the next.

        The first window is shorter, by a number that (seed, epoch) define, so windows end elsewhere in each epoch.
        """
        assert self.window is not None
        source, order = reader.inputs[0].sequence(epoch), epoch if self.reshuffle else 0
        shift = int(permute(np.zeros(1, np.int64), self.window, seed=self.seed, epoch=order)[0])
        for number in itertools.count():
            size = self.window if number else self.window - shift
            window = [[copied(leaf) for leaf in leaves] for leaves in itertools.islice(source, size)]
            if window:
                # Each window's order has its own seed, far from seeds that a user gives.
                seed = self.seed + ((number + 1) << 64)
                places = permute(np.arange(len(window), dtype=np.int64), len(window), seed=seed, epoch=order)
                yield from (window[place] for place in places.tolist())
            if len(window) < size:
                return
            del window  # before the next one is there too

    @property
    def memory(self) -> Memory:
        """The window of a stream; positions need none."""
        held = working_memory(self.window * self.spec.nbytes if self.window and self.access == "stream" else 0)
        return held._replace(order_nbytes=BLOCK_CACHE_NBYTES)


ENDLESS_ROUND_COUNT = 1 << 32
"""The rounds of one epoch of an endless repeat: in a plan that ends, such a repeat has epochs too."""
EMPTY_ROUND_COUNT = 10
"""An endless repeat gives up after so many rounds in a row without an element. A filter over random data
may leave nothing by chance: if it leaves one element a round on average, ten empty rounds have a chance of 1 in 22,000.
"""


@dataclass(frozen=True, eq=False)
class Repeat(Reorder, OneInput):
    """The input several times. Each round is an epoch of the input: reshuffled and augmented anew."""

    count: int | None

    verb = "repeat"
    goes_by_position = False

    @property
    def takes_each_once(self) -> bool:  # type: ignore[override]
        """If there is one round."""
        return self.count == 1

    @cached_property
    def length(self) -> Length:
        """The input's times the count. Endless also for an input of unknown length, which `sequence` holds to it."""
        if self.count is None and self.source.length == 0:
            raise SpecError(
                f"{self.label} gives elements without end, but {located(self.source)} has none. Let it keep some "
                "elements, or say how often: repeat(count) may be empty."
            )
        if self.count is None:
            return math.inf
        return None if self.source.length is None else self.source.length * self.count

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Round `r` of epoch `e` is epoch `e * count + r` of the input."""
        count = finite_length(self.source)
        first = epoch * (self.count or ENDLESS_ROUND_COUNT)
        rounds = indices // count
        low, high = int(rounds.min(initial=1 << 62)), int(rounds.max(initial=0))
        if low >= high:
            return [Demand(0, first + high, indices - high * count)]
        needs = []
        for number in sorted(set(rounds.tolist())):
            rows = (rounds == number).nonzero()[0]
            needs.append(Demand(0, first + number, indices[rows] - number * count, rows))
        return needs

    def demand_one(self, epoch: int, index: int) -> tuple[int, int, int]:
        """`demand` of one element, without arrays: each unit of a batch calls this."""
        number, index = divmod(index, finite_length(self.source))
        return 0, epoch * (self.count or ENDLESS_ROUND_COUNT) + number, index

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """One round after the other. Without end, empty rounds are left out, but not for ever."""
        if self.length == 0:
            return
        first, empty_count = epoch * (self.count or ENDLESS_ROUND_COUNT), 0
        for number in itertools.count() if self.count is None else range(self.count):
            empty_count += 1
            for leaves in reader.inputs[0].sequence(first + number):
                empty_count = 0
                yield leaves
            if empty_count == EMPTY_ROUND_COUNT and self.count is None:
                raise SpecError(
                    f"{self.label} found no element in {EMPTY_ROUND_COUNT} rounds in a row, up to round {number} "
                    f"of epoch {epoch}: {located(self.source)} gave nothing, and repeat() would read it for ever. "
                    "Let it keep some elements, or say how often: repeat(count) ends with its last round."
                )


@dataclass(frozen=True, eq=False)
class StandIn(Node):
    """An input of a step that is asked for positions alone. It has no data."""

    count: Length
    row: Spec

    verb = "input"

    @property
    def length(self) -> Length:
        """As many elements as the input has."""
        return self.count

    @property
    def spec(self) -> Spec:
        """That of a row, of which the step may say how much memory it takes."""
        return self.row


@dataclass(frozen=True, eq=False)
class MovedRows(Reorder, ManyInputs):
    """The rows of the elements that a step moves, one after the other. The inputs have the rows of its inputs."""

    step: Node
    """The step over stand-ins for its inputs. So data travel to workers once, as rows."""
    size: int
    """The rows of an element."""

    @property
    def verb(self) -> str:
        """That of the step."""
        return self.step.verb

    @property
    def label(self) -> str:
        """As if the user had taken the elements apart directly after the step."""
        return f"{self.step.label}.unbatch()"

    @cached_property
    def length(self) -> Length:
        """The rows of all elements."""
        return self.step.length and self.step.length * self.size

    @property
    def keeps_neighbours(self) -> bool:  # type: ignore[override]
        """If the elements do."""
        return self.step.keeps_neighbours

    @property
    def redraws(self) -> bool:  # type: ignore[override]
        """If the step does."""
        return self.step.redraws

    @cached_property
    def randomness(self) -> Randomness:
        """Rows draw by the numbers that they have without this step, which `shard` changes; see `Slice`."""
        below, step = randomness_below(self), self.step.randomness
        return below._replace(first=below.number_of(step.first), stride=below.stride * step.stride)

    @property
    def spread(self) -> float:  # type: ignore[override]
        """The rows of the elements among which the step takes some; 1 if it takes them in order."""
        return self.step.spread if self.step.spread == 1 else self.step.spread * self.size

    @property
    def memory(self) -> Memory:
        """That of the step."""
        return self.step.memory

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The same rows of the elements that the step asks for."""
        owners, rows = np.divmod(indices, self.size)
        for need in self.step.demand(epoch, owners):
            mine = rows if need.rows is None else rows[need.rows]
            yield need._replace(indices=need.indices * self.size + mine)


def repeats(node: Node) -> bool:
    """Whether a `repeat` gives the same element several times in an epoch."""
    return any(isinstance(each, Repeat) and each.count != 1 for each in walk(node, history))


def scatters_overlaps(node: Node) -> Node | None:
    """The step that moves elements that share data anywhere, so no cut can separate them; None if there is none."""
    scattered = (each for each in walk(node, history) if each.overlap == "anywhere")
    return next((each for each in scattered if all(one.overlap != "anywhere" for one in history(each))), None)
