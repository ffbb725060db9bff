"""What a plan is made of, as a table of fingerprints: what a cache is bound to, and what says why it is another."""

import hashlib
import json
from typing import NamedTuple

from penstock.base._errors import ArgumentTypeError
from penstock.base._fingerprint import NoFingerprintError, fingerprints
from penstock.plan._node import Node, walk

_NAMES = {"data": "the data", "declared": "the argument `element_spec`", "function": "the function"}


class Step(NamedTuple):
    """A step of a plan, by what tells it from another."""

    label: str
    """As the user wrote it; for messages alone."""
    input_count: int
    parts: dict[str, str]
    """The fingerprint of each part, by what the user calls it."""


def table(plan: Node, skipped: list[str] | None = None) -> list[Step]:
    """Returns the steps of a plan, from the data to the end; but those that keep what others give, and change nothing.

    Args:
        plan: The plan.
        skipped: Where it is given, contents of large arrays are left out, and what was left out is added to it.

    Raises:
        ArgumentTypeError: Something has none; names the step, the variable and the cure.
    """
    nodes = list(walk(plan))
    known: dict[int, Step] = {}
    for node in nodes:
        if id(node) not in known:
            known[id(node)] = _step(node, skipped)
    return [known[id(node)] for node in reversed(nodes) if not (node.verb == "cache" and node.inputs)]


def _step(node: Node, skipped: list[str] | None) -> Step:
    parts = {"the kind of step": type(node).__name__}
    for field, value in node.fingerprint_parts().items():
        if field in ("source", "sources"):
            continue  # steps of their own
        name = _NAMES.get(field, f"the argument `{field}`")
        try:
            parts |= fingerprints(value, name, skipped)
        except NoFingerprintError as error:
            where = f" at {node.where}" if hasattr(node, "where") else ""
            raise ArgumentTypeError(
                f"cache() cannot tell this dataset from another, for {node.label}{where} holds {error}. Make it inside "
                "the function, or give the function a path or arrays; or say yourself what this dataset is: "
                "cache(path, key='v1'), with another key whenever it changes."
            ) from error
    return Step(node.label, len(node.inputs), parts)


def fingerprint_of(steps: list[Step]) -> str:
    """The fingerprint of a plan: 32 hexadecimal digits."""
    text = json.dumps([[step.input_count, sorted(step.parts.items())] for step in steps])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def change(before: list[Step], now: list[Step]) -> str:
    """Says in words where two plans part."""
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
