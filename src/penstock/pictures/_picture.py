"""The picture of a plan with its times: a tree of boxes, sources above."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from penstock.base import _atomic
from penstock.base._units import size_text
from penstock.pictures._fonts import LINE_IN, drawing, encoded, wrapped
from penstock.report._lanes import Lane, PlanStep
from penstock.report._report import Drawn
from penstock.report._units import an, ms, plural_of, share

MOST_INPUTS: Final = 4
"""A step with more inputs is drawn with this number of boxes. The last stands for the rest."""
# Inches.
WIDTH: Final = 3.2
GAP: Final = 0.26
MARGIN: Final = 0.2
PADDING: Final = 0.08
_LEAST_WIDTH: Final = 6.4


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
    x: float = 0.0
    """The left edge, once it is placed."""
    y: float = 0.0
    """The upper edge, from the top down."""

    @property
    def lines(self) -> list[str]:
        """The texts, broken into lines."""
        texts = self.texts + ["this is the limit"] * self.is_limit
        return [line for each in texts for line in wrapped(each, WIDTH - 2 * PADDING, 2)]

    @property
    def height(self) -> float:
        """The height of the lines, with what is around them."""
        return len(self.lines) * LINE_IN + 2 * PADDING

    @property
    def span(self) -> float:
        """The width of this box and all above it."""
        return max(WIDTH, sum(each.span for each in self.inputs) + GAP * (len(self.inputs) - 1))

    def walk(self) -> "Iterator[Box]":
        """Yields each box after those above it."""
        for each in self.inputs:
            yield from each.walk()
        yield self

    def place(self, left: float, bottom: float) -> None:
        """Places the box above `bottom`, and its inputs above it, from `left` on."""
        self.y, at = bottom - self.height, left
        for each in self.inputs:
            each.place(at, self.y - GAP)
            at += each.span + GAP
        self.x = (self.inputs[0].x + self.inputs[-1].x) / 2 if self.inputs else left


@final
@dataclass(frozen=True)
class Boxes:
    """Makes boxes of the steps of a run."""

    drawn: Drawn

    def of(self, step: PlanStep) -> Box:
        """Makes the box of a step, and below it a box of the workers whose last step it is."""
        inputs = [self.of(each) for each in step.inputs]
        if len(inputs) > MOST_INPUTS:
            rest = inputs[MOST_INPUTS - 1 :]
            is_limit = any(box.is_limit for each in rest for box in each.walk())
            inputs[MOST_INPUTS - 1 :] = [Box([f"and {len(rest)} more inputs"], [], is_limit=is_limit)]
        box = Box([step.label], inputs)
        if step.alike > 1:
            box.texts.append(f"{step.alike} of these, side by side")
        measured = ((lane, [time for time in lane.steps if time.number in step.numbers]) for lane in self.drawn.lanes)
        if found := next((each for each in measured if each[1]), None):
            lane, done = found
            elements, seconds = sum(time.elements for time in done), sum(time.seconds for time in done)
            nbytes = [time.nbytes for time in done]
            in_all = "" if None in nbytes else f", {size_text(sum(each or 0 for each in nbytes))}"
            # Workers are ahead of the program.
            box.texts.append(f"{elements:,} {plural_of(done[0].unit)} begun{in_all}")
            box.texts.append(f"{ms(seconds / elements)} {an(done[0].unit)}, {share(seconds, lane.wall_s)} of the work")
            box.share = seconds / lane.wall_s * self._busy(lane)
            box.is_limit = bool(self.drawn.limit and self.drawn.limit[1] and self.drawn.limit[1].number in step.numbers)
        else:
            each = "" if step.element_nbytes is None else f", {size_text(step.element_nbytes)} each"
            box.texts.append(f"{step.length}{each}")
        last = next((lane for lane in self.drawn.lanes if lane.first in step.numbers and lane.wall_s), None)
        return box if last is None else self._workers(last, box)

    def _workers(self, lane: Lane, above: Box) -> Box:
        count, unit = self.drawn.given(lane)
        rest = f"{'reads in one place' if lane.is_serial else 'into batches'}: {ms(lane.rest_s / count)} {an(unit)}"
        if lane.steps:
            rest += f", {share(lane.rest_s, lane.wall_s)} of the work"
        shares = lane.shares(self.drawn.batch_s)
        texts = [lane.who, rest] if shares is None else [lane.who, rest, str(shares)]
        is_limit = bool(self.drawn.limit and self.drawn.limit[1] is None and self.drawn.limit[0].place == lane.place)
        return Box(texts, [above], lane.rest_s / lane.wall_s * self._busy(lane), is_limit, is_dashed=True)

    def _busy(self, lane: Lane) -> float:
        """Returns the share of time in which its workers had work. 1 where unknown."""
        shares = lane.shares(self.drawn.batch_s)
        return 1.0 if shares is None else 1 - shares.idle


def lay_out(title: str, root: Box) -> tuple[list[str], float, float]:
    """Places all boxes. Returns the lines of the title, and the width and height of the page."""
    width = max(_LEAST_WIDTH, root.span + 2 * MARGIN)
    lines = [line for each in title.splitlines() for line in wrapped(each, width - 2 * MARGIN, 6, indent=8)]
    root.place((width - root.span) / 2, 0.0)
    down = MARGIN + len(lines) * LINE_IN + GAP - min(box.y for box in root.walk())
    for box in root.walk():
        box.y += down
    return lines, width, root.y + root.height + MARGIN


def draw(title: str, root: Box) -> Any:
    """Draws the boxes. Returns Matplotlib's figure.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    with drawing("report().save") as figure_of:
        from matplotlib import colormaps
        from matplotlib.patches import Rectangle

        lines, width, height = lay_out(title, root)
        figure = figure_of(figsize=(width, height), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        text = {"va": "top", "linespacing": 1.35 / 1.2}  # of fonts whose lines are 1.2 times their size apart
        axes.text(MARGIN, MARGIN, "\n".join(lines), **text)
        for box in root.walk():
            face = "white" if box.share is None else colormaps["YlOrBr"](0.6 * box.share)  # no darker than text is read
            edge = {"edgecolor": "#AA3377", "linewidth": 2.2} if box.is_limit else {"edgecolor": "0.4"}
            line = "--" if box.is_dashed and not box.is_limit else "-"
            axes.add_patch(Rectangle((box.x, box.y), WIDTH, box.height, facecolor=face, linestyle=line, **edge))
            axes.text(box.x + PADDING, box.y + PADDING, "\n".join(box.lines), **text)
            for each in box.inputs:
                ends = (box.x + WIDTH / 2, box.y), (each.x + WIDTH / 2, each.y + each.height)
                axes.annotate("", *ends, arrowprops={"arrowstyle": "-|>", "color": "0.35", "shrinkA": 0, "shrinkB": 0})
    return figure


def root_of(drawn: Drawn) -> Box:
    """Makes the box of the consumer, with those of the steps above it."""
    boxes = Boxes(drawn)
    inputs = [] if drawn.plan is None else [boxes.of(drawn.plan)]
    return Box(drawn.texts, inputs, is_limit=drawn.is_limit)


def draw_report(path: str | os.PathLike[str], title: str, drawn: Drawn) -> None:
    """Draws a plan with its times, and writes a PNG or an SVG when the whole picture is drawn."""
    _atomic.write(path, encoded(draw(title, root_of(drawn)), Path(path).suffix.lower()[1:]))
