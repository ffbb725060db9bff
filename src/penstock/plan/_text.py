"""A plan as text: a tree for people, a line for checkpoints, and the origin of an element."""

import hashlib
import itertools
import math
import re
from collections.abc import Iterator

import numpy as np

from penstock.base import _tree
from penstock.base._errors import SpecError
from penstock.base._printable import printable
from penstock.base._spec import Spec
from penstock.plan._node import Length, Node, OneToOne, history, located, walk

_MAX_LEAVES = 12
"""The number of leaves of an element that are printed; `element_spec` has them all."""
_ALL = slice(None)
_MAX_INPUTS = 16
"""The number of inputs of one step that are printed."""
_FOLDED_LENGTH = 1 << 20
IDENTITY_NBYTES = 320
"""The limit of a plan's line in a checkpoint; a longer line is folded."""


def describe(node: Node) -> str:
    """Returns the plan as a tree, one step a line: length, spec, access. Reads nothing and runs nothing."""
    return printable("\n".join(_lines(node, "", "", set())), has_lines=True)


def _lines(node: Node, first: str, rest: str, seen: set[int]) -> Iterator[str]:
    below = node.inputs
    if node.traits.is_hidden:
        yield from _lines(below[0], first, rest, seen)
        return
    try:
        spec = node.known_spec
        length = length_text(None if _waits_for_function(node) else node.length)
        known = "spec is known when element 0 has run" if spec is None else _spec_text(spec)
        facts = ", ".join(filter(None, (length, known, node.access, node.remark)))
    except SpecError as error:
        facts = f"is wrong: {error}"
    is_repeated = id(node) in seen and bool(below)
    yield f"{first}{node.label}: {facts}{' (as above)' if is_repeated else ''}"
    if is_repeated or getattr(node, "reads_ahead", False):
        return  # the inputs were printed; or they are alike
    seen.add(id(node))
    hidden = range(_MAX_INPUTS - 1, len(below) - 1) if len(below) > _MAX_INPUTS else range(0)
    for number, source in enumerate(below):
        last = number == len(below) - 1
        if number in hidden:
            if number == hidden[0]:
                yield f"{rest}├─ ... {len(hidden):,} more"
        elif len(below) == 1:
            yield from _lines(source, rest, rest, seen)
        else:
            yield from _lines(source, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}", seen)


def _spec_text(spec: Spec) -> str:
    """A spec in words; for many columns, the first ones."""
    if len(spec.leaves) <= _MAX_LEAVES:
        return str(spec)
    places = _tree.paths(spec.structure)[:_MAX_LEAVES]
    first = ", ".join(f"{place}: {leaf}" for place, leaf in zip(places, spec.leaves, strict=False))
    return f"{first} and {len(spec.leaves) - _MAX_LEAVES:,} more leaves"


def _waits_for_function(node: Node) -> bool:
    """Whether finding the length would run a user's function: `unbatch` needs the size of its elements."""
    return any(each.verb == "unbatch" and each.known_spec is None for each in walk(node, history))


def length_text(length: Length) -> str:
    """A length in words."""
    if length is None:
        return "unknown length"
    return "endless" if length == math.inf else f"{length:,} element{'' if length == 1 else 's'}"


def length_words(length: Length) -> str:
    """A length, for a sentence about a dataset."""
    return "of unknown length" if length is None else length_text(length)


def largest_element(node: Node) -> tuple[int, str]:
    """The bytes of the largest element of a source, and the step that reads it. Specs must be known."""
    return max((each.spec.nbytes, each.label) for each in walk(node) if not each.inputs)


def uncounted(node: Node) -> str:
    """Returns the step that makes the length of a dataset unknown, and the remedy, as sentences."""
    while (below := next((each for each in node.inputs if each.length is None), None)) is not None:
        node = below
    cure = "materialize(path) after it counts them; or put what needs a number before it"
    if not node.inputs:
        cure = "If you know, say it there, as from_generator(length=) does"
    return f"How many elements {node.label} gives shows when it has run to its end. {cure}."


def identity(node: Node) -> str:
    """Returns the line that a checkpoint keeps: a step and six hex digits each, from the data to the end."""
    text = _identity(node, {})
    if len(text.encode()) <= IDENTITY_NBYTES:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    steps = text.split(" > ")
    ends: tuple[list[str], list[str]] = [], []  # from the first step on, and from the last one back
    budget = IDENTITY_NBYTES - 40
    while steps:
        from_end = len(ends[0]) > len(ends[1])
        step = steps.pop(-1 if from_end else 0)
        budget -= len(step.encode()) + 3
        if budget <= 0:
            break
        ends[from_end].append(step)
    return " > ".join([*ends[0], f"...#{digest}", *reversed(ends[1])])


def _identity(node: Node, known: dict[int, str]) -> str:
    if id(node) not in known:
        below = history(node)
        if node.traits.is_hidden:
            text = _identity(below[0], known)
        else:
            settings = node.settings()
            for each in below:
                if each.traits.is_hidden:
                    settings |= each.settings()
            digest = hashlib.blake2b(repr(sorted(settings.items())).encode(), digest_size=3).hexdigest()
            text = f"{node.verb}#{digest}"
            if len(below) == 1:
                text = f"{_identity(below[0], known)} > {text}"
            elif below:
                text = f"[{' | '.join(_identity(each, known) for each in below)}] > {text}"
        # A step that is used twice at each of many levels would double the text at each of them.
        if len(text) > _FOLDED_LENGTH:
            text = f"...#{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
        known[id(node)] = text
    return known[id(node)]


def difference(saved: str, ours: str, plan: Node) -> str:
    """Describes the first difference of two plans' lines, of which the second is that of `plan`."""
    then, now = saved.split(" > "), ours.split(" > ")
    for number, (before, after) in enumerate(zip(then, now, strict=False), 1):
        if before != after:
            if before.startswith("...#") and after.startswith("...#"):
                steps = _identity(plan, {}).split(" > ")
                folded = " > ".join(steps[number - 1 : len(steps) - len(now) + number])
                verbs = ", ".join(dict.fromkeys(re.findall(r"(\w+)#", folded)))
                return f"the arguments of one of these steps changed: {verbs} (saved {before}, here {after})"
            verb, other = before.lstrip("[").partition("#")[0], after.lstrip("[").partition("#")[0]
            what = "the length or spec of" if number == 1 else "the arguments of"
            change = f"it was {verb} and is {other}" if verb != other else f"{what} {verb} changed"
            return f"step {number} differs: {change} (saved {before}, here {after})"
    return f"it had {len(then)} steps, this one has {len(now)} (saved {saved}, here {ours})"


def origins(node: Node, epoch: int, index: int, parts: slice = _ALL) -> str:
    """Names the elements of sources that an element, or some parts of it, is made of: `, made of /data/ds.npy[777]`."""
    if not node.inputs and node.access == "stream":
        return ""  # the message names the step
    itself = f"element {index} of {node.label}"
    found = [text for _, _, text in sources_of(node, epoch, index, parts) if text != itself]
    return f", made of {', '.join(found)}" if found else ""


def place_of(words: tuple[int, int, int], plan: Node) -> str:
    """The meaning of a status: `map(decode) at train.py:41 on element 7 of epoch 0, made of row 96 of ds.npy`."""
    step, epoch, index = words
    if not step:
        return "nothing yet"
    node = next(itertools.islice(walk(plan), step - 1, None))
    read = node.inputs[0] if node.notes_inputs else node
    return f"{located(node)} on {node.elements_at(index)} of epoch {epoch}{origins(read, epoch, index)}"


def sources_of(node: Node, epoch: int, index: int, parts: slice = _ALL) -> list[tuple[str, int, str]]:
    """The elements of sources that an element is made of; the first few.

    The search ends at a complete cache, and at a step of a stream whose elements have no known positions in its input.

    Returns:
        For each the constructor, the element's index there, and its description: `/data/ds.npy[777]`.
    """
    found: list[tuple[str, int, str]] = []
    stack = [(node, epoch, index, parts)]
    while stack and len(found) < 4:
        here, era, place, some = stack.pop()
        data = getattr(here, "data", None)
        if data is not None:
            found.append((here.verb, place, printable(data.describe(place))))
            continue
        if not here.inputs or (here.access == "stream" and not (here.traits.is_parallel or isinstance(here, OneToOne))):
            found.append((here.verb, place, f"element {place} of {here.label}"))
            continue
        needs = list(here.demand(era, np.array([place], np.int64)))
        for need in reversed(needs):
            wanted, left = (need.indices, some) if len(need.indices) == 1 else (need.indices[some], _ALL)
            stack.extend((here.inputs[need.input], need.epoch, int(one), left) for one in wanted[:2][::-1])
    return found
