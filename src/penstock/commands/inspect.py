"""`penstock inspect PATH`: what a file or folder is, and the line of Python that opens it."""

import argparse
import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import penstock
from penstock import Dataset
from penstock.commands import _folders
from penstock.commands._files import Found
from penstock.commands._samples import LeafSummary, summaries
from penstock.memory._budget import mib

_WIDTH: Final = 110
_INDENT: Final = 14

_DESCRIPTION = """\
Says what a file or folder is: its elements, how many, their size on disk, what the first of them hold, and the line of
Python that opens it. Reads these elements and no others; formats without an index are read once to make one, which is
kept beside them.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = commands.add_parser("inspect", help="say what a file or folder is", description=_DESCRIPTION)
    parser.add_argument("path", metavar="PATH", help="a file or folder of data")
    parser.add_argument("--elements", type=int, default=3, metavar="N", help="how many to look at (default: 3)")
    parser.add_argument("--picture", metavar="FILE.png", help="draw the first elements; needs penstock[show]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; 0 if it can be opened, or is nothing to be opened, else 1.

    Raises:
        PenstockError: There is no such path, it cannot be read, or no picture can be made.
    """
    inspected = look(Path(options.path), options.elements)
    print(json.dumps(inspected.as_json(), indent=2) if options.json else inspected)
    if options.picture is not None and inspected.dataset is not None:
        _draw(inspected.dataset, options.picture)
    return 1 if inspected.problem else 0


@final
@dataclass(frozen=True)
class Inspected:
    """What was found out about a path."""

    path: str
    found: Found
    nbytes: int
    dataset: Dataset | None
    problem: str
    """Why it cannot be opened, or an element of it not be read, and the cure."""
    elements: list[list[LeafSummary]]

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        found: dict[str, Any] = {
            "path": self.path,
            "what": self.found.what,
            "nbytes": self.nbytes,
            "facts": {title: list(lines) for title, lines in self.found.facts},
            "code": self.found.code,
            "problem": self.problem,
        }
        if self.dataset is not None:
            found |= {
                "length": self.dataset.length,
                "element_spec": str(self.dataset._node.spec),
                "access": self.dataset.access,
                "elements": [[asdict(leaf) for leaf in element] for element in self.elements],
            }
        return found

    def __str__(self) -> str:
        lines = [f"{self.path} is {self.found.what}", "", *self._facts()]
        for number, element in enumerate(self.elements):
            width = max(len(leaf.place) for leaf in element)
            spec_width = max(len(leaf.spec) for leaf in element)
            lines += ["", f"  ds[{number}]"] if width else []
            for leaf in element:
                place = f"    {leaf.place:<{width}}" if width else f"{'' if number else chr(10)}  ds[{number}]"
                lines.append(f"{place}  {leaf.spec:<{spec_width}}  {leaf.values}")
        if self.found.code:
            lines += ["", *textwrap.indent(f"import penstock as ps\n{self.found.code}", "  ").splitlines()]
        if self.problem:
            lines += ["", textwrap.fill(self.problem, _WIDTH, break_on_hyphens=False, break_long_words=False)]
        return "\n".join(lines)

    def _facts(self) -> Iterator[str]:
        facts: list[tuple[str, tuple[str, ...]]] = [("on disk", (_size(self.nbytes),))]
        if self.dataset is not None:
            facts += [
                ("elements", (f"{self.dataset.length:,}",)),
                ("an element", (str(self.dataset._node.spec),)),
            ]
        for title, lines in [*facts, *self.found.facts]:
            for number, line in enumerate(lines):
                yield f"  {'' if number else title:<{_INDENT - 2}}{line}"


def look(path: Path, count: int) -> Inspected:
    """Finds out what a path is, and looks at its first elements.

    Raises:
        SourceError: There is no such path, or it cannot be read.
    """
    found, nbytes = _folders.recognise(path)
    dataset, problem, elements = None, found.problem, []
    if found.open is not None:
        try:
            opened = found.open()
            opened.length, opened.element_spec  # noqa: B018  # found out now, and kept
            dataset = opened
            elements = [summaries(dataset[number]) for number in range(min(count, len(dataset)))]
        except (penstock.PenstockError, ImportError, OSError) as error:
            problem = str(error)
    return Inspected(str(path), found, nbytes, dataset, problem, elements)


def _size(nbytes: int) -> str:
    return f"{nbytes:,} bytes" if nbytes < 1024 else f"{mib(nbytes)} ({nbytes:,} bytes)"


def _draw(dataset: Dataset, file: str) -> None:
    try:
        penstock.show(dataset, file)
    except ImportError as error:
        raise penstock.ArgumentError(f"--picture {file}: {error}") from None
