"""The picture of elements: a grid of panels with captions, drawn by Matplotlib, which is imported when it is needed."""

import math
import os
from typing import Any, Final, final

import numpy as np

from penstock.base import _atomic
from penstock.report._fonts import LINE_IN, Writer, encoded
from penstock.report._panels import Grid, Lines, Panel

# Inches.
_WIDEST: Final = 11.0
_LEAST_PAGE: Final = 4.0
_HEIGHTS: Final = (1.1, 3.5)
"""The heights of an image, where there are many, and where there are few."""
_CELL_WIDTHS: Final = (0.95, 1.8)
"""The least width of an element with images, and the width of one without."""
_GAP: Final = 0.18
_INNER_GAP: Final = 0.05
_MARGIN: Final = 0.15


@final
class Picture:
    """A grid of elements, as a PNG, which a notebook shows.

    `figure` is Matplotlib's. Change it, or save it in another format with `figure.savefig`.
    """

    def __init__(self, figure: Any, element_count: int) -> None:
        self.figure = figure
        self._element_count = element_count

    def _repr_png_(self) -> bytes:
        return encoded(self.figure)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the PNG when all of it is drawn."""
        _atomic.write(path, self._repr_png_())

    def __repr__(self) -> str:
        plural = "" if self._element_count == 1 else "s"
        return f"<Picture of {self._element_count} element{plural}; a notebook shows it, save('out.png') writes it>"


def draw(grid: Grid) -> Picture:
    """Draws a grid.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    count, notes = len(grid.cells), ". ".join(grid.notes)
    writer = Writer("show()", [*(cell.caption for cell in grid.cells), *grid.titles, grid.heading, notes])
    height, widths = _panel_sizes(grid)
    drawn = sum(widths) + _INNER_GAP * max(0, len(widths) - 1)
    cell_width = max(drawn, _CELL_WIDTHS[not widths])
    captions = [writer.lines(cell.caption, cell_width, 3) for cell in grid.cells]
    row_height = height + max(map(len, captions)) * LINE_IN + _GAP
    across = round(math.sqrt(count * 1.6 * row_height / (cell_width + _GAP)))
    across = max(1, min(across, count, int((_WIDEST - 2 * _MARGIN + _GAP) / (cell_width + _GAP))))
    rows = -(-count // across)
    across = -(-count // rows)
    width = max(across * (cell_width + _GAP) - _GAP, _LEAST_PAGE) + 2 * _MARGIN
    left = (width - across * (cell_width + _GAP) + _GAP) / 2
    above, below = (writer.lines(text, width - 2 * _MARGIN, 4) for text in (grid.heading, notes))
    top = _MARGIN + len(above) * LINE_IN + (LINE_IN if any(grid.titles) else 0) + _GAP / 2
    whole = top + rows * row_height + len(below) * LINE_IN + _MARGIN

    figure = writer.figure(width, whole)

    def write(x: float, y: float, lines: list[str], colour: str = "0.35") -> None:
        for number, line in enumerate(lines):
            writer.write(figure, x / width, 1 - (y + number * LINE_IN) / whole, line, color=colour, ha="center")

    write(width / 2, _MARGIN, above)
    for number, cell in enumerate(grid.cells):
        row, column = divmod(number, across)
        x, y = left + column * (cell_width + _GAP), top + row * row_height
        at = x + (cell_width - drawn) / 2
        for panel, size, title in zip(cell.panels, widths, grid.titles, strict=True):
            if row == 0:
                write(at + size / 2, top - LINE_IN, writer.lines(title, size, 1))
            box = (at / width, 1 - (y + height) / whole, size / width, height / whole)
            _draw_panel(figure.add_axes(box, xticks=[], yticks=[]), panel)
            at += size + _INNER_GAP
        write(x + cell_width / 2, y + height + 0.03, captions[number], "black")
    write(width / 2, top + rows * row_height, below)
    return Picture(figure, count)


def _panel_sizes(grid: Grid) -> tuple[float, list[float]]:
    """Returns the height of all panels, and the width of each panel of a cell, so that a cell fits on the page."""
    if not grid.titles:
        return 0.0, []
    aspects = np.array([[_aspect(panel) for panel in cell.panels] for cell in grid.cells])
    # A single wide image is made smaller rather than every cell wider.
    widths = np.minimum(aspects.max(0), 1.5 * np.median(aspects, axis=0)).clip(0.35, 12)
    room = _WIDEST - 2 * _MARGIN - _INNER_GAP * (len(widths) - 1)
    height = float(min(np.clip(6 / math.sqrt(len(grid.cells)), *_HEIGHTS), room / widths.sum()))
    return height, (widths * height).tolist()


def _aspect(panel: Panel) -> float:
    return 1.6 if isinstance(panel, Lines) else panel.shape[1] / panel.shape[0]


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.spines[:].set(color="0.8", linewidth=0.6)
    if not isinstance(panel, Lines):
        axes.imshow(panel)
        return
    axes.plot(panel.values, linewidth=0.8)
    margin = 0.05 * (panel.high - panel.low) or 1.0
    axes.set_ylim(panel.low - margin, panel.high + margin)
    axes.margins(x=0.02)
