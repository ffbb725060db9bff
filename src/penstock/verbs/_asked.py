"""What verbs ask of their arguments, and of the plan below them."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.base._arguments import as_int, items_of
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.plan._map import Map, function_name
from penstock.plan._node import POSITION_LIMIT, Node
from penstock.plan._text import length_words, uncounted


def caller() -> str:
    """The user's line that called into penstock: `train.py:41`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "penstock":
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def require_function(verb: str, fn: object) -> None:
    """Refuses what is no function of an element."""
    if not callable(fn):
        cure = " A mask or positions choose elements: ds[mask]." if hasattr(fn, "__array__") else ""
        raise ArgumentTypeError(f"{verb}() needs a function, got {fn!r:.80}, {type_of(fn)}.{cure}")
    annotations = getattr(fn, "__annotations__", None)  # an object may answer to any name
    makes = annotations.get("return") if isinstance(annotations, dict) else None
    if getattr(makes, "__name__", None) == "Distortion":  # by name, for penstock.image brings OpenCV
        name = function_name(fn)
        raise ArgumentTypeError(
            f"{verb}() got {name}, which makes a function of an element and is none itself. Call it first: "
            f"{verb}({name}(...)), as in random_map(rotate(15))."
        )


def integer(
    verb: str, name: str, value: Any, least: int | None = None, *, most: int | None = POSITION_LIMIT - 1
) -> int:
    """Checks a count; `least` defaults to 0, and to no bound for seeds.

    A count above `most` becomes `most`, unless it is a seed. No dataset has as many elements, and NumPy could not add
    to a size such as `sys.maxsize`.
    """
    number = as_int(value)
    if number is None:
        raise ArgumentTypeError(f"{verb}({name}={value!r:.80}): an integer is needed, not {type_of(value)}.")
    if name == "seed":
        return number
    if number < (least or 0):
        raise ArgumentError(f"{verb}({name}={number}): it must be at least {least or 0}.")
    return number if most is None else min(number, most)


def integers(verb: str, name: str, values: Any, least: int | None = None) -> tuple[int, ...]:
    """Checks a list of counts, each as `integer` does."""
    items = items_of(values)
    if items is None:
        raise ArgumentTypeError(f"{verb}({name}={values!r:.80}): a list of integers is needed.")
    return tuple(integer(verb, name, each, least) for each in items)


def require_random(node: Node, what: str, cure: str) -> None:
    """Refuses what needs elements by their index, where a stream gives one after the other."""
    top = node
    if node.access == "random":
        return
    while (below := next((each for each in node.inputs if each.access == "stream"), None)) is not None:
        node = below
    raise ArgumentTypeError(
        f"{what} needs random access, but {node.label} gives elements one after the other: this dataset is a "
        f"stream. {cure}."
        + ("" if top.length == math.inf else " Or keep its elements: materialize(path) has random access.")
    )


def require_finite(node: Node, verb: str, cure: str) -> None:
    """Refuses what needs a known number of elements."""
    if not isinstance(node.length, int):
        raise ArgumentError(
            f"{verb}() needs a known number of elements, but this is {length_words(node.length)}. "
            f"{uncounted(node) if node.length is None else cure}"
        )


def mapped(
    node: Node,
    verb: str,
    fn: Callable[..., Any],
    element_spec: Tree = None,
    seed: int | None = None,
    verdict: str | None = None,
) -> Map:
    """Makes the step of a function of an element."""
    require_function(verb, fn)
    declared = None if element_spec is None else Spec.of(element_spec)
    return Map(node, fn, declared, caller(), seed, verdict)
