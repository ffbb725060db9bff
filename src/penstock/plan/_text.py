"""A plan as text: a tree for people, a line for checkpoints, and the origin of an element."""

import base64
import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Sequence

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
_Steps = Sequence[tuple[str, str, str]]
_STEP = re.compile(r"((?:^|[\[|] ?)?)([\w.]+)#(\w+)")
"""A step of a line: what shows that it is a source, its verb, and its digits."""


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
    if is_repeated or getattr(node, "is_sharded", False):
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


def identity(node: Node, limit: int = IDENTITY_NBYTES) -> str:
    """Returns the line that a checkpoint keeps: a step and six hex digits each, from the data to the end.

    In a line that is too long, steps in the middle have one letter each: `...#digest of the whole:letters`. Of very
    many steps, two have one together, and so on; there are as many colons.
    """
    text = _identity(node, {})
    if len(text.encode()) <= limit:
        return text
    steps = text.split(" > ")
    ends: tuple[list[str], list[str]] = [], []  # from the first step on, and from the last one back
    budget = limit - 40 - limit // 3
    while steps:
        from_end = len(ends[0]) > len(ends[1])
        step = steps.pop(-1 if from_end else 0)
        budget -= len(step.encode()) + 3
        if budget <= 0:
            steps.insert(len(steps) if from_end else 0, step)
            break
        ends[from_end].append(step)
    hidden = _STEP.findall(" > ".join(steps))
    size = -(-len(hidden) // (limit // 3))
    return " > ".join([*ends[0], f"{_fold(text)}{':' * size}{_letters(hidden, size)}", *reversed(ends[1])])


def _fold(text: str) -> str:
    return f"...#{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _letters(steps: _Steps, size: int) -> str:
    """One letter for each `size` steps."""
    groups = (repr([step[1:] for step in steps[start : start + size]]) for start in range(0, len(steps), size))
    return "".join(
        base64.urlsafe_b64encode(hashlib.blake2b(group.encode(), digest_size=3).digest())[:1].decode()
        for group in groups
    )


def is_line_of(saved: str, node: Node) -> bool:
    """Whether a saved line is that of a plan, folded at whichever limit."""
    text = _identity(node, {})
    return saved == text or _fold(text) in saved


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
            text = _fold(text)
        known[id(node)] = text
    return known[id(node)]


def difference(saved: str, plan: Node) -> str:
    """Describes the first step in which the plan of a saved line differs from a plan."""
    ours = _STEP.findall(_identity(plan, {}))
    head, is_folded, rest = saved.partition("...#")
    folded, _, tail = rest.partition(" > ")
    before, letters, after = _STEP.findall(head), folded.lstrip("0123456789abcdef"), _STEP.findall(tail)
    is_pinned = any(getattr(node, "revision", "") for node in walk(plan))
    facts = "length, spec or commit" if is_pinned else "length or spec"
    if found := _changed(before, ours, 0, facts):
        return found
    if not is_folded:
        return f"it had {len(before)} steps, this one has {len(ours)} (saved {saved}, here {identity(plan)})"
    last = len(ours) - len(after)
    middle = ours[len(before) : last]
    size = letters.count(":")
    now = ":" * size + _letters(middle, size) if size else ""
    for place, (old, new) in enumerate(itertools.zip_longest(letters, now), -size):
        if old != new:
            first = len(before) + place * size
            verbs = ", ".join(dict.fromkeys(verb for _, verb, _ in ours[first : first + size]))
            which = f"step {first + 1}" if size == 1 else f"one of the steps from {first + 1} to {first + size}"
            same = len(letters) == len(now)
            return f"{which} differs: {f'the arguments of {verbs} changed' if same else f'here it is {verbs}'}"
    if found := _changed(after, ours[max(0, last) :], last, facts):
        return found
    verbs = ", ".join(dict.fromkeys(verb for _, verb, _ in middle))
    return f"the arguments of one of these steps changed: {verbs} (saved {saved}, here {identity(plan)})"


def _changed(before: _Steps, now: _Steps, start: int, facts: str) -> str:
    """Describes the first step that differs; empty if none does. `start` steps stand before; `facts` tell sources."""
    for number, ((_, verb, old), (is_source, other, new)) in enumerate(zip(before, now, strict=False), start + 1):
        if (verb, old) != (other, new):
            what = f"the {facts} of" if is_source or number == 1 else "the arguments of"
            change = f"it was {verb} and is {other}" if verb != other else f"{what} {verb} changed"
            return f"step {number} differs: {change} (saved {verb}#{old}, here {other}#{new})"
    return ""


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
