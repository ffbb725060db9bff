"""`penstock inspect PATH`: describes a file, a folder or a URL, and the line of Python that opens it."""

import argparse
import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

import penstock
from penstock.base import _tree
from penstock.base._spec import leaf_of, spec_of_leaf
from penstock.base._units import size_text
from penstock.commands._paths import recognise
from penstock.commands._target import count, say
from penstock.files._remote import is_remote

_WIDTH: Final = 110
_FEW: Final = 4
"""A leaf of at most this number of values is printed in full."""
_HEAD_NBYTES: Final = 12
_TEXT_LENGTH: Final = 40

_DESCRIPTION = """\
Describes a file, a folder or a URL: its elements, their number, their size, the values of the first of them, and the
line of Python that opens it. Reads these elements and no others. A format without an index is read once to make one,
which is kept.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = commands.add_parser("inspect", help="describe a file or folder", description=_DESCRIPTION)
    parser.add_argument("path", metavar="PATH", help="a file or folder of data, a pattern in quotes, or a URL")
    parser.add_argument("--elements", type=count, default=3, metavar="N", help="how many to look at (default: 3)")
    parser.add_argument("--picture", metavar="FILE.png", help="draw the first elements; needs Matplotlib")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns 1 if the path cannot be opened, or an element cannot be read.

    Raises:
        PenstockError: There is no such path, it cannot be read, or no picture can be made.
    """
    found = recognise(options.path)
    about: dict[str, Any] = {"path": options.path, "what": found.what, "nbytes": found.nbytes, "facts": found.facts}
    about |= {"code": found.code, "problem": found.problem}
    try:
        if (dataset := found.dataset) is not None:
            length, spec = len(dataset), str(dataset._node.spec)
            about |= {"length": length, "element_spec": spec, "access": dataset.access, "elements": []}
            for number in range(min(options.elements, length)):
                about["elements"].append(_leaves(dataset[number]))
            if dataset._node.remark:
                about["facts"] |= {"note": [dataset._node.remark]}
    except (penstock.PenstockError, ImportError, OSError) as error:
        about["problem"] = str(error)
    say(json.dumps(about, indent=2) if options.json else "\n".join(_lines(about)))
    if options.picture is not None and found.dataset is not None:
        penstock.show(found.dataset, options.picture)
    return 1 if about["problem"] else 0


def _lines(about: dict[str, Any]) -> Iterator[str]:
    yield f"{about['path']} is {about['what']}\n"
    size = f"{about['nbytes']:,} bytes"
    facts = {
        "size" if is_remote(about["path"]) else "on disk": [
            size if about["nbytes"] < 1024 else f"{size_text(about['nbytes'])} ({size})"
        ]
    }
    if "length" in about:
        facts |= {"elements": [f"{about['length']:,}"], "an element": [about["element_spec"]]}
    for title, lines in (facts | about["facts"]).items():
        for number, line in enumerate(lines):
            yield f"  {'' if number else title:<12}{line}"
    for number, leaves in enumerate(about.get("elements", ())):
        yield from ([""] if number == 0 else [])
        width, spec_width = (max(len(leaf[name]) for leaf in leaves) for name in ("place", "spec"))
        for leaf in leaves:
            yield f"  ds[{number}]{leaf['place']:<{width}}  {leaf['spec']:<{spec_width}}  {leaf['values']}"
    if about["code"]:
        yield "\n" + textwrap.indent(f"import penstock as ps\n{about['code']}", "  ")
    if about["problem"]:
        yield "\n" + textwrap.fill(about["problem"], _WIDTH, break_on_hyphens=False, break_long_words=False)


def _leaves(element: Any) -> list[dict[str, str]]:
    """Describes each leaf of an element: its place as code, its shape and dtype, and its values."""
    leaves, structure = _tree.flatten(element)
    return [
        {"place": place, "spec": str(spec_of_leaf(leaf_of(leaf))), "values": _values(leaf_of(leaf))}
        for place, leaf in zip(_tree.paths(structure), leaves, strict=True)
    ]


def _values(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray) and leaf.ndim == 1 and leaf.dtype == np.uint8:  # an encoded file
        return f"{leaf[:_HEAD_NBYTES].tobytes()!r}{'...' * (leaf.size > _HEAD_NBYTES)}"
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" and leaf.size > _FEW:
        finite = leaf[np.isfinite(leaf)]
        if not finite.size:
            return "no finite value"
        missing = f", {leaf.size - finite.size:,} not finite" * (leaf.size > finite.size)
        return f"{finite.min():.4g} to {finite.max():.4g}, mean {finite.mean(dtype=np.float64):.4g}{missing}"
    text = np.array2string(leaf, precision=4, separator=", ") if isinstance(leaf, np.ndarray) else repr(leaf)
    return text if len(text) <= _TEXT_LENGTH else f"{text[: _TEXT_LENGTH - 3]}..."
