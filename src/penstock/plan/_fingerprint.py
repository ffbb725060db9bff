"""A plan as a table of fingerprints. A cache belongs to it; a comparison says why a cache does not fit."""

import hashlib
import json
from typing import NamedTuple

from penstock.base._errors import ArgumentTypeError
from penstock.base._fingerprint import NoFingerprintError, fingerprints
from penstock.plan._node import Node, arguments, located

_NAMES = {"data": "the data", "declared": "the argument `element_spec`", "function": "the function"}


class Step(NamedTuple):
    """A step of a plan, with the parts that distinguish it."""

    label: str
    """As the user wrote it; for messages only."""
    input_count: int
    parts: dict[str, str]
    """The fingerprint of each part, by the user's name for it."""


def table(plan: Node, skipped: list[str] | None = None, verb: str = "cache") -> list[Step]:
    """Returns the steps of a plan, from the data to the end, without caches.

    Args:
        plan: The plan.
        skipped: If given, contents of large arrays are left out, and a description of each is added to it.
        verb: The user's verb, for messages.

    Raises:
        ArgumentTypeError: Something has none; names the step, the variable and the cure.
    """
    places: dict[int, int] = {}
    steps: list[Step] = []

    def visit(node: Node) -> None:
        while node.verb == "cache" and node.inputs:
            (node,) = node.inputs
        if id(node) in places and node.inputs:  # its inputs are in the table
            parts = {"the step that is used again": str(places[id(node)])}
            steps.append(Step(node.label, 0, parts))
            return
        places[id(node)] = len(steps)
        steps.append(_step(node, skipped, verb))
        for each in node.inputs:
            visit(each)

    visit(plan)
    return steps[::-1]


def _step(node: Node, skipped: list[str] | None, verb: str) -> Step:
    parts = {"the kind of step": type(node).__name__}
    for field, value in arguments(node).items():
        name = _NAMES.get(field, f"the argument `{field}`")
        try:
            parts |= fingerprints(value, name, skipped)
        except NoFingerprintError as error:
            raise ArgumentTypeError(
                f"{verb}() cannot tell this dataset from another, for {located(node)} holds {error}. Make it inside "
                "the function, or give the function a path or arrays; or say yourself what this dataset is: "
                f"{'cache(path, ' if verb == 'cache' else f'{verb}(..., '}key='v1'), with another key whenever it "
                f"changes.{' materialize() into a new folder needs no key.' if verb == 'cache' else ''}"
            ) from None
    return Step(node.label, len(node.inputs), parts)


def fingerprint_of(steps: list[Step]) -> str:
    """The fingerprint of a plan: 32 hexadecimal digits."""
    text = json.dumps([[step.input_count, sorted(step.parts.items())] for step in steps])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def change(before: list[Step], now: list[Step]) -> str:
    """Describes the first difference of two plans."""
    for number, (old, new) in enumerate(zip(before, now, strict=False), 1):
        for name in [*old.parts, *new.parts]:
            if old.parts.get(name) == new.parts.get(name):
                continue
            if old.label != new.label:
                return f"step {number} was {old.label} and is {new.label}"
            if name not in new.parts:
                return f"{name} is not used any more in step {number}, {new.label}"
            if name not in old.parts:
                return f"{name} is new in step {number}, {new.label}"
            return f"{name} changed in step {number}, {new.label}"
    more, fewer = now[len(before) :], before[len(now) :]
    return f"{more[0].label} is a new step" if more else f"{fewer[0].label} is no step of it any more"
