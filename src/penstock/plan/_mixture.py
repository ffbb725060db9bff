"""Other weights of a mix while a run goes on: which held in which epoch, and from which element on.

A plan never changes, and neither does a mix in it. A run whose weights changed runs the plan as it is now; in an epoch
that began with others, a plan whose mix has one more stage; and in epochs before that, a plan with the former mix. So
what runs is a function of the plan, its seeds and the eras, which a state holds.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.base._errors import StateError
from penstock.plan._filter import Filter
from penstock.plan._mix import BLOCK_LENGTH, Mix, Shares
from penstock.plan._node import Node, walk
from penstock.plan._rewritten import rewritten

Eras = tuple[tuple[int, ...], ...]
"""For each an epoch, an element of the mix in it, and the shares from there on, as elements of each dataset in a block;
in later epochs from the beginning on. The first era begins with the run. Empty for a plan without a mix, and for one
whose weights are by element."""
MIX_NBYTES = 160
"""The most that eras take in a state: a few changes of a few datasets."""


class Way(NamedTuple):
    """The steps from the end of a plan down to its mix, if they use the elements of the mix in their order."""

    mix: Mix | None
    steps: Sequence[Node]
    """Those before the mix, from the end."""
    why: str = ""
    """The reason if there is no such mix."""

    @property
    def shares(self) -> Shares:
        """Those of the mix."""
        return self.mix.shares if self.mix else ()


def way_to_mix(plan: Node) -> Way:
    """Finds the mix of a plan whose shares may change."""
    steps: list[Node] = []
    while not isinstance(plan, Mix):
        below = [each for each in plan.inputs if any(isinstance(one, Mix) for one in walk(each))]
        by_cursor = isinstance(plan, Filter) and plan.inputs[0].access == "random"
        if not below:
            return Way(None, steps, "it has no mix()")
        if len(below) > 1 or not (plan.traits.is_parallel or plan.is_pointwise or by_cursor):
            return Way(None, steps, f"{plan.label} after mix() does not use its elements in their order")
        steps.append(plan)
        (plan,) = below
    return Way(plan, steps)


def reached(way: Way, position: int, consumed: int) -> int:
    """The elements of a mix that elements before a position are made of.

    Args:
        way: The way to the mix.
        position: The position in the plan.
        consumed: The cursor of a filter there; -1 without one.
    """
    for node in way.steps:
        if isinstance(node, Filter):
            position = max(0, consumed)
        elif node.traits.is_parallel:
            position = node.needs(position - 1, position)[1] if position else node.needs(0, 1)[0]
    return position


def eras_of(now: Shares, value: Any = None) -> Eras:
    """Reads the eras of a state. Without a value, those of a run that begins with these shares.

    Raises:
        StateError: The value is something else.
    """
    if value is None:
        begun = tuple((0, 0, *counts) for _, counts in now if len(now) == 1)
        return begun if len(str(begun)) <= MIX_NBYTES else ()
    try:
        eras = tuple(tuple(map(operator.index, each)) for each in value)
        totals = {sum(each[2:]) if min(each) >= 0 else 0 for each in eras}
    except (TypeError, ValueError):
        totals = set()
    if totals != {BLOCK_LENGTH} or eras[0][:2] != (0, 0) or sorted(eras) != [*eras]:
        raise StateError(f"mix={value!r:.200} is nothing that get_state() returned.")
    return eras


def shares_in(eras: Eras, epoch: int) -> Shares:
    """The shares of the mix in an epoch."""
    found: Shares = ()
    for first, element, *counts in eras:
        if first <= epoch:
            start = element if first == epoch else 0
            found = (*(each for each in found if each[0] < start), (start, tuple(counts)))
    return found


def with_shares(plan: Node, shares: Shares) -> Node:
    """The same plan with other shares of its mix. Shares of fewer datasets are those of the first."""
    mix = way_to_mix(plan).mix
    if mix is None or shares in ((), mix.shares):
        return plan
    width = max(len(counts) for _, counts in shares)
    stages = tuple((start, (*counts, *[0] * (width - len(counts)))) for start, counts in shares)
    return rewritten(plan, made={id(mix): mix.over(*mix.sources[:width], stages=stages)})
