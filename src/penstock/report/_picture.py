"""The picture of a plan with its times: a tree of boxes, sources above, drawn by Matplotlib.

Matplotlib is imported when a picture is drawn, and never as pyplot, which would choose a window system and
keep figures.
"""

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from penstock.report._fonts import LINE_IN, SIZE_PT, Writer

# Inches.
WIDTH: Final = 3.2
GAP: Final = 0.26
MARGIN: Final = 0.2
PADDING: Final = 0.08
_LEAST_WIDTH: Final = 6.4
_DPI: Final = 110


@final
@dataclass(eq=False)
class Box:
    """A step, its workers, or the consumer."""

    texts: list[str]
    """The first is a title."""
    inputs: "list[Box]"
    """The boxes above, whose elements it takes."""
    share: float | None = None
    """The share of its workers' time, 0 to 1, as a colour. None if it was not measured."""
    is_limit: bool = False
    is_dashed: bool = False
    lines: list[str] = field(default_factory=list)
    title_count: int = 0
    """The number of lines of the title."""
    x: float = 0.0
    y: float = 0.0
    height: float = 0.0

    def walk(self) -> "Iterator[Box]":
        """Yields each box after those above it."""
        for each in self.inputs:
            yield from each.walk()
        yield self

    def write(self, writer: Writer) -> None:
        """Breaks the texts into lines, and sets the height."""
        title, *facts = self.texts + ["this is the limit"] * self.is_limit
        self.lines = writer.lines(title, WIDTH - 2 * PADDING, 2)
        self.title_count = len(self.lines)
        for fact in facts:
            self.lines += writer.lines(fact, WIDTH - 2 * PADDING, 3)
        self.height = len(self.lines) * LINE_IN + 2 * PADDING

    @property
    def span(self) -> float:
        """The width of this box and all above it."""
        return max(WIDTH, sum(each.span for each in self.inputs) + GAP * (len(self.inputs) - 1))

    def place(self, left: float, bottom: float) -> None:
        """Places the box above `bottom`, and its inputs above it, from `left` on."""
        self.y, at = bottom - self.height, left
        for each in self.inputs:
            each.place(at, self.y - GAP)
            at += each.span + GAP
        self.x = (self.inputs[0].x + self.inputs[-1].x) / 2 if self.inputs else left


def lay_out(title: str, root: Box) -> tuple[Writer, list[str], float, float]:
    """Places all boxes. Returns the writer, the lines of the title, and the width and height of the page."""
    writer = Writer([title, *(text for box in root.walk() for text in box.texts)])
    width = max(_LEAST_WIDTH, root.span + 2 * MARGIN)
    lines = writer.lines(title, width - 2 * MARGIN, 12)
    for box in root.walk():
        box.write(writer)
    root.place((width - root.span) / 2, 0.0)
    down = MARGIN + len(lines) * LINE_IN + GAP - min(box.y for box in root.walk())
    for box in root.walk():
        box.y += down
    return writer, lines, width, root.y + root.height + MARGIN


def draw(title: str, root: Box) -> Any:
    """Draws the boxes. Returns Matplotlib's figure.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    except ImportError as error:
        raise ImportError("report().save() draws with Matplotlib: pip install 'penstock[show]'.") from error

    writer, lines, width, height = lay_out(title, root)
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    figure.set_layout_engine("none")  # the user's own settings do not move anything
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()

    def write(x: float, y: float, text: str, *, is_bold: bool, colour: str = "black") -> None:
        font: dict[str, Any] = {"family": writer.families, "size": SIZE_PT, "weight": "bold" if is_bold else "normal"}
        axes.text(x, y, text, color=colour, va="top", parse_math=False, **font)  # a `$` in a name is a dollar

    for number, line in enumerate(lines):
        write(MARGIN, MARGIN + number * LINE_IN, line, is_bold=False)
    for box in root.walk():
        face = (1.0, 1.0, 1.0, 1.0) if box.share is None else colormaps["YlOrBr"](0.85 * box.share)
        edge = {"edgecolor": "#AA3377", "linewidth": 2.2} if box.is_limit else {"edgecolor": "0.4", "linewidth": 0.8}
        style = "--" if box.is_dashed and not box.is_limit else "-"
        shape = FancyBboxPatch((box.x, box.y), WIDTH, box.height, "round,pad=0,rounding_size=0.06", facecolor=face)
        shape.set(linestyle=style, **edge)
        axes.add_patch(shape)
        is_dark = 0.2126 * face[0] + 0.7152 * face[1] + 0.0722 * face[2] < 0.5  # luminance, as the eye sees it
        for number, line in enumerate(box.lines):
            y = box.y + PADDING + number * LINE_IN
            colour = "white" if is_dark else "black"
            write(box.x + PADDING, y, line, is_bold=number < box.title_count, colour=colour)
        for each in box.inputs:
            ends = (each.x + WIDTH / 2, each.y + each.height), (box.x + WIDTH / 2, box.y)
            axes.add_patch(
                FancyArrowPatch(
                    *ends, arrowstyle="-|>,head_length=3,head_width=1.8", color="0.35", shrinkA=0, shrinkB=0
                )
            )
    return figure


def save(title: str, root: Box, path: str | os.PathLike[str]) -> None:
    """Draws the boxes, and writes a PNG or an SVG when the whole picture is drawn."""
    file, kind = io.BytesIO(), Path(path).suffix.lower()[1:]
    draw(title, root).savefig(file, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
    Path(path).write_bytes(file.getvalue())
