"""Shuffling as arithmetic: a position is mapped to an index by a keyed bijection. Nothing is stored."""

import itertools
import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from penstock.base._random import local_permute, permute
from penstock.memory._rows import Indices, Leaves, copied
from penstock.plan._node import Demand, Length, Node, Reorder, finite_length, makers

if TYPE_CHECKING:
    from penstock.plan._reader import Reader


@final
@dataclass(frozen=True, eq=False)
class Shuffle(Reorder):
    """Each element once, in an order made of (seed, epoch); within windows only, if a window is given."""

    source: Node
    seed: int
    window: int | None
    reshuffle: bool

    @property
    def verb(self) -> str:
        """`shuffle`."""
        return "shuffle"

    @property
    def label(self) -> str:
        """As the user wrote it, without what was left at its default."""
        window = "" if self.window is None else f", window={self.window}"
        return f"shuffle(seed={self.seed}{window}{'' if self.reshuffle else ', reshuffle=False'})"

    def _find_length(self) -> Length:
        return self.source.length

    @property
    def changes_order(self) -> bool:
        """Unless it was told to keep one order."""
        return self.reshuffle or self.source.changes_order

    @property
    def scatters(self) -> bool:
        """That is what it is for."""
        return True

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The image of the positions under the epoch's bijection."""
        count = finite_length(self.source)
        order = epoch if self.reshuffle else 0
        if self.window is None:
            return [Demand(0, epoch, permute(indices, count, seed=self.seed, epoch=order))]
        images = local_permute(indices, count, seed=self.seed, epoch=order, window=self.window)
        return [Demand(0, epoch, images)]

    def sequence(self, reader: "Reader", epoch: int) -> Generator[Leaves, None, None]:
        """Keeps a window of a stream, gives it in an order of its own, and goes on to the next.

        The first window is shorter by chance, so that its ends are elsewhere in another epoch.
        """
        assert self.window is not None
        source, order = reader.inputs[0].sequence(epoch), epoch if self.reshuffle else 0
        shift = int(permute(np.zeros(1, np.int64), self.window, seed=self.seed, epoch=order)[0])
        for number in itertools.count():
            size = self.window if number else self.window - shift
            window = [[copied(leaf) for leaf in leaves] for leaves in itertools.islice(source, size)]
            if window:
                # A window's order has a seed of its own, far from those that a user gives.
                seed = self.seed + ((number + 1) << 64)
                places = permute(np.arange(len(window), dtype=np.int64), len(window), seed=seed, epoch=order)
                yield from (window[place] for place in places.tolist())
            if len(window) < size:
                return
            del window  # before the next one is there too

    @property
    def scratch_nbytes(self) -> int:
        """The window of a stream; positions alone need none."""
        return self.window * self.spec.nbytes if self.window and self.access == "stream" else 0

    def clear_after(self, index: int) -> int:
        """The next, or none where elements share data: those that do may be anywhere."""
        return finite_length(self.source) if self.source.overlaps else index + 1


ENDLESS_ROUND_COUNT = 1 << 32
"""An endless repeat in a plan that ends has epochs too; each is given so many rounds of its own."""


@final
@dataclass(frozen=True, eq=False)
class Repeat(Reorder):
    """The input several times, each round an epoch of its own: reshuffled and augmented afresh."""

    source: Node
    count: int | None

    @property
    def verb(self) -> str:
        """`repeat`."""
        return "repeat"

    def _find_length(self) -> Length:
        if self.count is None:
            return math.inf if self.source.length != 0 else 0
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
        """The same of one, which is asked for with each unit of a batch."""
        number, index = divmod(index, finite_length(self.source))
        return 0, epoch * (self.count or ENDLESS_ROUND_COUNT) + number, index

    def sequence(self, reader: "Reader", epoch: int) -> Generator[Leaves, None, None]:
        """One round after the other."""
        first = epoch * (self.count or ENDLESS_ROUND_COUNT)
        for number in itertools.count() if self.count is None else range(self.count):
            is_empty = True
            for leaves in reader.inputs[0].sequence(first + number):
                is_empty = False
                yield leaves
            if is_empty and self.count is None:
                return  # or it would look for an element for ever

    def clear_after(self, index: int) -> int:
        """As the input, within a round; that the next round is of the same data is not looked at."""
        count = finite_length(self.source)
        number, here = divmod(index, count)
        return number * count + min(self.source.clear_after(here), count)


def repeats(node: Node) -> bool:
    """Whether the same element comes several times in an epoch, by a repeat."""
    return any(isinstance(each, Repeat) and each.count != 1 for each in makers(node))


def scatters_overlaps(node: Node) -> Node | None:
    """The step after which elements that share data may be anywhere, so that no cut comes between them; if any."""
    return next((each for each in makers(node) if each.scatters and any(one.overlaps for one in each.made_by)), None)
