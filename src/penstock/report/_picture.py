"""The picture of a report: which boxes, with which texts, where.

Pure arithmetic, in inches from the left and from the top; `_show/_report.py` draws it. The plan stands as in print(ds)
upside down: sources above, each step below what it reads, the consumer last. How wide a text is, is not known here:
it is broken by a width of a character that few texts exceed, and who draws shortens what is wider all the same.
"""

import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, final

from penstock.report._lanes import Lane, PlanStep
from penstock.report._units import an, many, ms, share, size

if TYPE_CHECKING:
    from penstock.report._report import Report

SUFFIXES: Final = (".png", ".svg")

BOX_WIDTH: Final = 3.2
GAP: Final = 0.26
"""Between boxes: across, and down, where the arrows are."""
MARGIN: Final = 0.2
PADDING: Final = 0.08
"""Between the edge of a box and its texts."""
LEAST_WIDTH: Final = 6.4
"""Of the picture, for its title."""
MOST_BAR_WIDTH: Final = 7.0
MOST_INPUTS: Final = 4
"""A step that reads more is drawn with so many boxes above it, the last of which stands for the rest."""
BAR_HEIGHT: Final = 0.11
SWATCH_COUNT: Final = 20

Style = Literal["title", "label", "who", "fact", "mark"]

SIZE_PT: Final[dict[Style, float]] = {"title": 9.0, "label": 8.0, "who": 8.0, "fact": 7.5, "mark": 7.5}
_CHARACTER_EM: Final[dict[Style, float]] = {"title": 0.53, "label": 0.63, "who": 0.66, "fact": 0.54, "mark": 0.66}
_MOST_LINES: Final[dict[Style, int]] = {"title": 12, "label": 2, "who": 2, "fact": 3, "mark": 1}


@final
@dataclass(frozen=True)
class Label:
    """A line of text."""

    text: str
    style: Style
    x: float
    y: float
    """Of its upper edge."""
    width: float
    """The room that it has."""


@final
@dataclass(frozen=True)
class Box:
    """A step, the workers of the steps above, the consumer, or the inputs for which there is no room."""

    kind: Literal["step", "workers", "consumer", "more"]
    labels: tuple[Label, ...]
    x: float
    y: float
    height: float
    share: float | None
    """Of all the time that its workers had, 0 to 1: its colour. None where that was not measured."""
    is_limit: bool
    width: float = BOX_WIDTH

    @property
    def text(self) -> str:
        """All of it, a line each."""
        return "\n".join(label.text for label in self.labels)


@final
@dataclass(frozen=True)
class Edge:
    """Elements go from one box to the next: an arrow through these points."""

    source: int
    """Among the boxes."""
    target: int
    points: tuple[tuple[float, float], ...]


@final
@dataclass(frozen=True)
class Bar:
    """A filled rectangle: some memory, a limit, or a colour of the scale."""

    kind: Literal["projected", "overhead", "measured", "limit", "share"]
    x: float
    y: float
    width: float
    height: float = BAR_HEIGHT
    share: float = 0.0


@final
@dataclass(frozen=True)
class Drawing:
    """All that stands in the picture."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    """The consumer last; every other box before the one that reads it."""
    edges: tuple[Edge, ...]
    bars: tuple[Bar, ...]
    labels: tuple[Label, ...]
    """Texts outside of boxes; the title first."""


def lay_out(report: "Report") -> Drawing:
    """Places all that a report says in a picture."""
    end = _consumer(report)
    width = max(LEAST_WIDTH, end.width + 2 * MARGIN)
    room = width - 2 * MARGIN
    boxes: list[Box] = []
    edges: list[Edge] = []
    end.place(MARGIN + (room - end.width) / 2, 0.0, boxes, edges)
    title = [*_lines("title", f"{report.sentence}." if report.batches else str(report), MARGIN, MARGIN, room)]
    down = _below(title) + GAP - min(box.y for box in boxes)
    boxes = [_moved(box, down) for box in boxes]
    edges = [replace(edge, points=tuple((x, y + down) for x, y in edge.points)) for edge in edges]
    bars, labels = _footer(report, boxes[-1].y + boxes[-1].height + GAP, min(room, MOST_BAR_WIDTH))
    height = max(_below(labels), *(bar.y + bar.height for bar in bars)) + MARGIN
    return Drawing(width, height, tuple(boxes), tuple(edges), tuple(bars), (*title, *labels))


@dataclass
class _Item:
    """A box that has no place yet, and those that it reads."""

    kind: Literal["step", "workers", "consumer", "more"]
    texts: list[tuple[Style, str]]
    inputs: "list[_Item]"
    share: float | None = None
    is_limit: bool = False

    @property
    def width(self) -> float:
        """Of this box and all above it."""
        return max(BOX_WIDTH, sum(each.width for each in self.inputs) + GAP * (len(self.inputs) - 1))

    def place(self, x: float, bottom: float, boxes: list[Box], edges: list[Edge]) -> int:
        """Places the box and those above it from `x` on, each above the one that reads it; returns its number."""
        if self.is_limit:
            self.texts.append(("mark", "this is the limit"))
        labels: list[Label] = []
        y = PADDING
        for style, text in self.texts:
            labels += _lines(style, text, PADDING, y, BOX_WIDTH - 2 * PADDING)
            y = _below(labels)
        height = y + PADDING
        top = bottom - height
        sources = []
        left = x
        for each in self.inputs:
            sources.append(each.place(left, top - GAP, boxes, edges))
            left += each.width + GAP
        centres = [boxes[number].x + BOX_WIDTH / 2 for number in sources] or [x + BOX_WIDTH / 2]
        centre = (centres[0] + centres[-1]) / 2
        for number, above in zip(sources, centres, strict=False):
            points = ((above, top - GAP), (above, top - GAP / 2), (centre, top - GAP / 2), (centre, top))
            edges.append(Edge(number, len(boxes), points))
        box = Box(self.kind, tuple(labels), centre - BOX_WIDTH / 2, 0.0, height, self.share, self.is_limit)
        labels = [replace(label, x=label.x + box.x) for label in labels]
        boxes.append(_moved(replace(box, labels=tuple(labels)), top))
        return len(boxes) - 1


def _consumer(report: "Report") -> _Item:
    texts: list[tuple[Style, str]] = [("who", "your program")]
    if report.batches and report.elapsed_s:
        texts.append(("fact", f"{ms(report.use_s)} a batch, {report.elements_per_s:,.0f} {many(report.unit)}/s"))
        texts.append(("fact", f"waits {report.wait_share:.0%} of the time for data"))
    else:
        texts.append(("fact", report.limit if report.batches else "no batch was handed out yet"))
    inputs = [] if report.plan is None else [_item(report, report.plan)]
    return _Item(
        "consumer",
        texts,
        inputs,
        is_limit=bool(report.batches and report.elapsed_s) and report.slowest is None and not report.is_idle,
    )


def _item(report: "Report", step: PlanStep) -> _Item:
    """A step, and below it the workers whose last step it is."""
    inputs = [_item(report, each) for each in step.inputs[:MOST_INPUTS]]
    if len(step.inputs) > MOST_INPUTS:
        inputs[-1] = _Item("more", [("fact", f"and {len(step.inputs) - MOST_INPUTS + 1} more inputs")], [])
    limit = report.slowest if report.batches else None
    done = [(lane, time) for lane in report.lanes for time in lane.steps if time.number in step.numbers]
    item = _Item("step", [("label", step.label)], inputs)
    if step.alike > 1:
        item.texts.append(("fact", f"{step.alike} of these, side by side"))
    if done:
        elements, seconds = sum(time.elements for _, time in done), sum(time.seconds for _, time in done)
        nbytes = [time.nbytes for _, time in done if time.nbytes is not None]
        wall_s = sum(lane.wall_s for lane, _ in done)
        in_all = f", {size(sum(nbytes))} in all" if len(nbytes) == len(done) else ""
        item.share = sum(time.seconds / lane.wall_s * _busy(report, lane) for lane, time in done) / len(done)
        item.is_limit = limit is not None and limit[1] is not None and limit[1].number in step.numbers
        unit = done[0][1].unit
        item.texts.append(("fact", f"{elements:,} {many(unit)}{in_all}"))
        item.texts.append(("fact", f"{ms(seconds / elements)} {an(unit)}, {share(seconds, wall_s)} of the work"))
    else:
        each = "" if step.element_nbytes is None else f", {size(step.element_nbytes)} each"
        item.texts.append(("fact", f"{step.length}{each}"))
    lanes = [lane for lane in report.lanes if lane.first in step.numbers and lane.wall_s]
    return _workers(report, lanes, item) if lanes else item


def _workers(report: "Report", lanes: list[Lane], above: _Item) -> _Item:
    """What runs the steps above: one lane, or those of shards that are alike."""
    limit = report.slowest if report.batches else None
    wall_s, rest_s = sum(lane.wall_s for lane in lanes), sum(lane.rest_s for lane in lanes)
    one = lanes[0]
    who = one.who if len(lanes) == 1 else f"{len(lanes)} times {one.who}"
    does = "reads in one place" if one.is_serial else "into batches"
    rest = f"{does}: {ms(rest_s / report.elements_of(one))} {an(report.unit_of(one))}"
    if any(lane.steps for lane in lanes):
        rest += f", {share(rest_s, wall_s)} of the work"
    texts: list[tuple[Style, str]] = [("who", who), ("fact", rest)]
    if len(lanes) == 1 and (shares := report.shares(one)) is not None:
        texts.append(("fact", str(shares)))
    is_limit = limit is not None and limit[1] is None and limit[0] in lanes
    part = sum(lane.rest_s / lane.wall_s * _busy(report, lane) for lane in lanes) / len(lanes)
    return _Item("workers", texts, [above], part, is_limit)


def _busy(report: "Report", lane: Lane) -> float:
    """The share of the time that its workers had work; 1 where nobody knows."""
    shares = report.shares(lane)
    return 1.0 if shares is None else 1 - shares.idle


def _footer(report: "Report", y: float, room: float) -> tuple[list[Bar], list[Label]]:
    """Memory, measured beside projected, and what the colours mean."""
    most = max(report.projected_nbytes + report.overhead_nbytes, report.peak_nbytes, report.memory_limit or 0, 1)

    def wide(nbytes: int) -> float:
        return room * nbytes / most

    overhead = report.overhead_nbytes
    text = f"memory projected: {size(report.projected_nbytes)}"
    text += f", and up to {size(overhead)} for worker processes" if overhead else ""
    text += f"; the limit is {size(report.memory_limit)}" if report.memory_limit else ""
    rows: list[tuple[str, list[tuple[Literal["projected", "overhead", "measured"], int]]]] = [
        (text, [("projected", report.projected_nbytes), ("overhead", overhead)])
    ]
    if report.peak_nbytes:
        grew = f"memory measured: your program grew by {size(report.peak_nbytes)}"
        rows.append((grew, [("measured", report.peak_nbytes)]))
    bars: list[Bar] = []
    labels: list[Label] = []
    top = y
    for said, parts in rows:
        labels += _lines("fact", said, MARGIN, y, room)
        y, x = _below(labels) + 0.02, MARGIN
        for kind, nbytes in parts:
            if nbytes:
                bars.append(Bar(kind, x, y, wide(nbytes)))
                x += wide(nbytes)
        y += BAR_HEIGHT + 0.06
    if report.memory_limit:
        bars.append(Bar("limit", MARGIN + wide(report.memory_limit) - 0.015, top, 0.03, y - top - 0.06))
    y += 0.08
    for said in (
        "dashed: who runs the steps above; white: not measured by itself",
        "colour: share of all the time that its workers had, working or idle, from 0% to 100%",
    ):
        labels += _lines("fact", said, MARGIN, y, room)
        y = _below(labels)
    y = _below(labels) + 0.02
    step = room / SWATCH_COUNT
    for number in range(SWATCH_COUNT):
        swatch = Bar("share", MARGIN + number * step, y, step, share=number / (SWATCH_COUNT - 1))
        bars.append(swatch)
    return bars, labels


def _lines(style: Style, text: str, x: float, y: float, width: float) -> Iterator[Label]:
    """Breaks a text into lines that are likely to be no wider than this."""
    cells = sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)
    fitting = width / (_CHARACTER_EM[style] * SIZE_PT[style] / 72) * len(text) / max(1, cells)
    broken = textwrap.wrap(
        text, max(1, int(fitting)), max_lines=_MOST_LINES[style], placeholder=" …", break_on_hyphens=False
    )
    for number, line in enumerate(broken):
        yield Label(line, style, x, y + number * line_height(style), width)


def line_height(style: Style) -> float:
    """From one line of text to the next."""
    return SIZE_PT[style] / 72 * 1.35


def _below(labels: list[Label]) -> float:
    """The lower edge of the last of some lines."""
    return labels[-1].y + line_height(labels[-1].style)


def _moved(box: Box, down: float) -> Box:
    labels = tuple(replace(label, y=label.y + down) for label in box.labels)
    return replace(box, y=box.y + down, labels=labels)
