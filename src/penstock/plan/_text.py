"""A plan in words: as a tree for people, as a line for checkpoints, and where an element came from."""

import hashlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from penstock.base import _tree
from penstock.base._errors import SpecError
from penstock.plan._node import OneToOne

if TYPE_CHECKING:
    from penstock.base._spec import Spec
    from penstock.plan._node import Length, Node

_MAX_LEAVES = 12
"""So many leaves of an element are printed; `element_spec` has them all."""
_ALL = slice(None)
_MAX_INPUTS = 16
"""So many datasets that one step puts together are printed."""
IDENTITY_NBYTES = 320
"""A plan's line in a checkpoint is at most this long; what is longer is folded."""


def describe(node: "Node") -> str:
    """Returns the plan as a tree, one step a line: length, spec, access. Reads nothing and runs nothing."""
    return "\n".join(_lines(node, "", ""))


def _lines(node: "Node", first: str, rest: str) -> Iterator[str]:
    if node.is_hidden:
        (source,) = node.shown
        yield from _lines(source, first, rest)
        return
    try:
        spec = node.known_spec
        length = length_text(None if _waits_for_function(node) else node.length)
        facts = (
            f"{length}, {'spec is known when element 0 has run' if spec is None else _spec_text(spec)}, {node.access}"
        )
    except SpecError as error:
        facts = f"is wrong: {error}"
    yield f"{first}{node.label}: {facts}"
    if getattr(node, "reads_ahead", False):
        return  # its inputs are alike
    hidden = range(_MAX_INPUTS - 1, len(node.shown) - 1) if len(node.shown) > _MAX_INPUTS else range(0)
    for number, source in enumerate(node.shown):
        last = number == len(node.shown) - 1
        if number in hidden:
            if number == hidden[0]:
                yield f"{rest}├─ ... {len(hidden):,} more"
        elif len(node.shown) == 1:
            yield from _lines(source, rest, rest)
        else:
            yield from _lines(source, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")


def _spec_text(spec: "Spec") -> str:
    """A spec in words; of a table with many columns the first ones."""
    if len(spec.leaves) <= _MAX_LEAVES:
        return str(spec)
    places = _tree.paths(spec.structure)[:_MAX_LEAVES]
    first = ", ".join(f"{place}: {leaf}" for place, leaf in zip(places, spec.leaves, strict=False))
    return f"{first} and {len(spec.leaves) - _MAX_LEAVES:,} more leaves"


def _waits_for_function(node: "Node") -> bool:
    """Whether finding the length would run a user's function: `unbatch` asks it for the size of its elements."""
    return (node.verb == "unbatch" and node.known_spec is None) or any(map(_waits_for_function, node.shown))


def length_text(length: "Length") -> str:
    """A length in words."""
    if length is None:
        return "unknown length"
    return "endless" if length == math.inf else f"{length:,} element{'' if length == 1 else 's'}"


def length_words(length: "Length") -> str:
    """A length as what a dataset is."""
    return "of unknown length" if length is None else length_text(length)


def uncounted(node: "Node") -> str:
    """Returns which step makes the length of a dataset unknown, and what to do, as sentences."""
    while (below := next((each for each in node.inputs if each.length is None), None)) is not None:
        node = below
    cure = "materialize(path) after it counts them; or put what needs a number before it"
    if not node.inputs:
        cure = "If you know, say it there, as from_generator(length=) does"
    return f"How many elements {node.label} gives shows when it has run to its end. {cure}."


def identity(node: "Node") -> str:
    """Returns the line that a checkpoint keeps: a step and six hex digits each, from the data to the end."""
    text = _identity(node)
    if len(text.encode()) <= IDENTITY_NBYTES:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    steps = text.split(" > ")
    head: list[str] = []
    tail: list[str] = []
    budget = IDENTITY_NBYTES - 40
    while steps and budget > 0:
        step = steps.pop(0 if len(head) <= len(tail) else -1)
        budget -= len(step.encode()) + 3
        if budget > 0:
            (head if len(head) <= len(tail) else tail).append(step)
    return " > ".join([*head, f"...#{digest}", *reversed(tail)])


def _identity(node: "Node") -> str:
    if node.is_hidden:
        (source,) = node.made_by
        return _identity(source)
    settings = node.settings()
    for each in node.made_by:
        if each.is_hidden:
            settings |= each.settings()
    digest = hashlib.blake2b(repr(sorted(settings.items())).encode(), digest_size=3).hexdigest()
    step = f"{node.verb}#{digest}"
    if not node.made_by:
        return step
    if len(node.made_by) == 1:
        return f"{_identity(node.made_by[0])} > {step}"
    return f"[{' | '.join(map(_identity, node.made_by))}] > {step}"


def difference(saved: str, ours: str) -> str:
    """Says in words where two plans' lines part."""
    then, now = saved.split(" > "), ours.split(" > ")
    for number, (before, after) in enumerate(zip(then, now, strict=False), 1):
        if before != after:
            verb, other = before.lstrip("[").partition("#")[0], after.lstrip("[").partition("#")[0]
            what = "the length or spec of" if number == 1 else "the arguments of"
            change = f"it was {verb} and is {other}" if verb != other else f"{what} {verb} changed"
            return f"step {number} differs: {change} (saved {before}, here {after})"
    return f"it had {len(then)} steps, this one has {len(now)} (saved {saved}, here {ours})"


def origins(node: "Node", epoch: int, index: int, parts: slice = _ALL) -> str:
    """Says from which elements of which sources an element is made, or some parts of it: `, made of ds.npy[777]`."""
    if not node.inputs and node.access == "stream":
        return ""  # that has been said
    itself = f"element {index} of {node.label}"
    found = [text for _, _, text in sources_of(node, epoch, index, parts) if text != itself]
    return f", made of {', '.join(found)}" if found else ""


def sources_of(node: "Node", epoch: int, index: int, parts: slice = _ALL) -> list[tuple[str, int, str]]:
    """From which elements of which sources an element is made, the first few.

    What nobody can look behind stands for a source: a cache that is read in place of what is before it, and a step of
    a stream of which only reading it shows what an element is made of.

    Returns:
        For each the constructor, the element's index there, and that in the user's terms: `ds.npy[777]`.
    """
    found: list[tuple[str, int, str]] = []
    stack = [(node, epoch, index, parts)]
    while stack and len(found) < 4:
        here, era, place, some = stack.pop()
        data = getattr(here, "data", None)
        if data is not None:
            found.append((here.verb, place, data.describe(place)))
            continue
        if not here.inputs or (here.access == "stream" and not (here.is_parallel or isinstance(here, OneToOne))):
            found.append((here.verb, place, f"element {place} of {here.label}"))
            continue
        needs = list(here.demand(era, np.array([place], np.int64)))
        for need in reversed(needs):
            wanted, left = (need.indices, some) if len(need.indices) == 1 else (need.indices[some], _ALL)
            stack.extend((here.inputs[need.input], need.epoch, int(one), left) for one in wanted[:2][::-1])
    return found
