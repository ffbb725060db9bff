"""A grid of elements drawn by Matplotlib, which is imported in this folder alone, when it is needed.

Never by pyplot: that would choose a window system, keep every figure alive, and let settings of one picture leak into
the next. Places are computed here rather than by a layout engine: texts are measured and broken to fit their cells, so
none can run into another.
"""

import io
import math
import os
from pathlib import Path
from typing import Any, final

import numpy as np

from penstock._show._panels import Grid, Lines, Panel
from penstock._show._writing import SIZE_PT, Writer

# All in inches.
_WIDEST = 11.0
_HEIGHTS = (1.1, 3.5)
"""Of an image: the least, where there are many, and the most."""
_LEAST_WIDTH = 0.95
_TEXT_WIDTH = 1.8
"""Of an element that has no images."""
_GAP = 0.18
_INNER_GAP = 0.05
_MARGIN = 0.15
_LINES_ASPECT = 1.6
_DPI = 110

_LINE_IN = SIZE_PT / 72 * 1.35
_MOST_CAPTION_LINES = 3
_MOST_HEADING_LINES = 4


@final
class Picture:
    """A grid of elements, as a PNG; a notebook shows it.

    `figure` is Matplotlib's, to be changed or saved in another format by `figure.savefig`.
    """

    def __init__(self, figure: Any, element_count: int) -> None:
        self.figure = figure
        self._element_count = element_count

    def _repr_png_(self) -> bytes:
        """The picture as a notebook asks for it."""
        png = io.BytesIO()
        self.figure.savefig(png, format="png", dpi=_DPI)
        return png.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the PNG, at once when all of it is drawn."""
        Path(path).write_bytes(self._repr_png_())

    def __repr__(self) -> str:
        plural = "" if self._element_count == 1 else "s"
        return f"<Picture of {self._element_count} element{plural}; a notebook shows it, save('out.png') writes it>"


def draw(grid: Grid) -> Picture:
    """Draws a grid.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("show() draws with Matplotlib: pip install 'penstock[show]'.") from error

    captions, notes = [cell.caption for cell in grid.cells], ". ".join(grid.notes)
    writer = Writer([*captions, *grid.titles, grid.heading, notes])
    height, widths = _panel_sizes(grid)
    drawn = sum(widths) + _INNER_GAP * max(0, len(widths) - 1)
    group = max(drawn, _LEAST_WIDTH if widths else _TEXT_WIDTH)
    said = [writer.broken(caption, group + _GAP / 2, _MOST_CAPTION_LINES) for caption in captions]
    caption_height = max(len(lines) for lines, _ in said) * _LINE_IN
    row_height = height + caption_height + _GAP

    count = len(grid.cells)
    across = round(math.sqrt(count * 1.6 * row_height / (group + _GAP)))
    across = max(1, min(across, count, int((_WIDEST - 2 * _MARGIN + _GAP) / (group + _GAP))))
    rows = -(-count // across)
    across = -(-count // rows)
    width = max(across * (group + _GAP) - _GAP, 4.0) + 2 * _MARGIN
    left = (width - across * (group + _GAP) + _GAP) / 2
    above, above_font = writer.broken(grid.heading, width - 2 * _MARGIN, _MOST_HEADING_LINES)
    below, below_font = writer.broken(notes, width - 2 * _MARGIN, _MOST_HEADING_LINES)
    titles = [writer.broken(title, size, 1) for title, size in zip(grid.titles, widths, strict=True)]
    top = _MARGIN + len(above) * _LINE_IN + (_LINE_IN if any(grid.titles) else 0) + _GAP / 2
    whole = top + rows * row_height + len(below) * _LINE_IN + _MARGIN

    figure = Figure(figsize=(width, whole), dpi=_DPI, facecolor="white")
    figure.set_layout_engine("none")  # whatever the user's own settings say
    sheet = _Sheet(figure, width, whole)
    sheet.write(width / 2, _MARGIN, above, above_font, colour="0.35")
    for number, cell in enumerate(grid.cells):
        row, column = divmod(number, across)
        x, y = left + column * (group + _GAP), top + row * row_height
        place = x + (group - drawn) / 2
        for panel, size, (title, font) in zip(cell.panels, widths, titles, strict=True):
            if row == 0:
                sheet.write(place + size / 2, top - _LINE_IN, title, font, colour="0.35")
            sheet.draw(panel, place, y, size, height)
            place += size + _INNER_GAP
        lines, font = said[number]
        sheet.write(x + group / 2, y + height + 0.03, lines, font)
    sheet.write(width / 2, top + rows * row_height, below, below_font, colour="0.35")
    return Picture(figure, count)


def _panel_sizes(grid: Grid) -> tuple[float, list[float]]:
    """The height of all panels, and the width of each panel of a cell, so that a cell fits on the page."""
    shapes = [[_aspect(cell.panels[number]) for cell in grid.cells] for number in range(len(grid.titles))]
    if not shapes:
        return 0.0, []
    # Where sizes differ, a single wide image is made smaller rather than every cell wider.
    widths = [float(np.clip(min(max(aspects), 1.5 * np.median(aspects)), 0.35, 12)) for aspects in shapes]
    room = _WIDEST - 2 * _MARGIN - _INNER_GAP * (len(widths) - 1)
    height = min(float(np.clip(6 / math.sqrt(len(grid.cells)), *_HEIGHTS)), room / sum(widths))
    return height, [width * height for width in widths]


def _aspect(panel: Panel) -> float:
    """Width over height."""
    return _LINES_ASPECT if isinstance(panel, Lines) else panel.shape[1] / panel.shape[0]


class _Sheet:
    """A figure on which places are inches from the left and from the top."""

    def __init__(self, figure: Any, width: float, height: float) -> None:
        self._figure, self._width, self._height = figure, width, height

    def write(self, x: float, y: float, lines: list[str], font: Any, *, colour: str = "0.0") -> None:
        """Writes lines, centred at `x`, from `y` down."""
        for number, line in enumerate(lines):
            self._figure.text(
                x / self._width,
                1 - (y + number * _LINE_IN) / self._height,
                line,
                fontproperties=font,
                color=colour,
                ha="center",
                va="top",
                parse_math=False,  # a `$` in a label is a dollar
            )

    def draw(self, panel: Panel, x: float, y: float, width: float, height: float) -> None:
        """Draws a panel into a box whose upper left corner is at `x` and `y`."""
        box = (x / self._width, 1 - (y + height) / self._height, width / self._width, height / self._height)
        axes = self._figure.add_axes(box, xticks=[], yticks=[])
        axes.spines[:].set(color="0.8", linewidth=0.6)
        if not isinstance(panel, Lines):
            axes.imshow(panel)
            return
        axes.plot(panel.values, linewidth=0.8)
        margin = 0.05 * (panel.high - panel.low) or 1.0
        axes.set_ylim(panel.low - margin, panel.high + margin)
        axes.margins(x=0.02)
