"""Shuffling as arithmetic: a position is mapped to an index by a keyed bijection. Nothing is stored."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from penstock.base._random import local_permute, permute
from penstock.memory._rows import Indices, copied
from penstock.plan._node import (
    Demand,
    Elements,
    Length,
    Memory,
    Node,
    Overlap,
    Randomness,
    Reorder,
    finite_length,
    history,
    walk,
)
from penstock.plan._reader import Reader


@final
@dataclass(frozen=True, eq=False)
class Shuffle(Reorder):
    """Each element once, in an order that (seed, epoch) define; with a window, only within windows."""

    source: Node
    seed: int
    window: int | None
    reshuffle: bool

    verb = "shuffle"

    @property
    def label(self) -> str:
        """As the user wrote it, without defaults."""
        window = "" if self.window is None else f", window={self.window}"
        return f"shuffle(seed={self.seed}{window}{'' if self.reshuffle else ', reshuffle=False'})"

    @cached_property
    def randomness(self) -> Randomness:
        """The order differs from epoch to epoch, unless it is not reshuffled."""
        below = self.source.randomness
        return Randomness(below.depth, self.reshuffle or below.reorders)

    @cached_property
    def overlap(self) -> Overlap:
        """Elements that share data may end up anywhere."""
        return "none" if self.source.overlap == "none" else "anywhere"

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
        nbytes = self.window * self.spec.nbytes if self.window and self.access == "stream" else 0
        return Memory(nbytes, nbytes)

    def clear_after(self, index: int) -> int:
        """The next index; the end if elements share data, because those that do may be anywhere."""
        return index + 1 if self.source.overlap == "none" else finite_length(self.source)


ENDLESS_ROUND_COUNT = 1 << 32
"""The rounds of one epoch of an endless repeat: in a plan that ends, such a repeat has epochs too."""


@final
@dataclass(frozen=True, eq=False)
class Repeat(Reorder):
    """The input several times. Each round is an epoch of the input: reshuffled and augmented anew."""

    source: Node
    count: int | None

    verb = "repeat"

    @cached_property
    def length(self) -> Length:
        """The input's times the count."""
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
        """`demand` of one element, without arrays: each unit of a batch calls this."""
        number, index = divmod(index, finite_length(self.source))
        return 0, epoch * (self.count or ENDLESS_ROUND_COUNT) + number, index

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """One round after the other."""
        first = epoch * (self.count or ENDLESS_ROUND_COUNT)
        for number in itertools.count() if self.count is None else range(self.count):
            is_empty = True
            for leaves in reader.inputs[0].sequence(first + number):
                is_empty = False
                yield leaves
            if is_empty and self.count is None:
                return  # or it would search for an element forever

    def clear_after(self, index: int) -> int:
        """That of the input, within a round. That rounds share data is ignored."""
        count = finite_length(self.source)
        number, here = divmod(index, count)
        return number * count + min(self.source.clear_after(here), count)


def repeats(node: Node) -> bool:
    """Whether a `repeat` gives the same element several times in an epoch."""
    return any(isinstance(each, Repeat) and each.count != 1 for each in walk(node, history))


def scatters_overlaps(node: Node) -> Node | None:
    """The step that moves elements that share data anywhere, so no cut can separate them; None if there is none."""
    scattered = (each for each in walk(node, history) if each.overlap == "anywhere")
    return next((each for each in scattered if all(one.overlap != "anywhere" for one in history(each))), None)
