"""The picture of elements: a grid of panels with captions, drawn by Matplotlib, which is imported when it is needed."""

import math
import os
from typing import Any, Final, final

import numpy as np

from penstock.base import _atomic
from penstock.pictures._fonts import LINE_IN, drawing, encoded, wrapped
from penstock.pictures._panels import Lines, Panel, PanelGrid

# Inches.
_WIDEST: Final = 11.0
_LEAST_PAGE: Final = 4.0
_HEIGHTS: Final = (1.1, 3.5)
"""The heights of an image, where there are many, and where there are few."""
_LEAST_WIDTH: Final = 1.2
"""Of an element."""
_GAP: Final = 0.2


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


def draw(grid: PanelGrid) -> Picture:
    """Draws a grid.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    count, aspects = len(grid.cells), np.array([[_aspect(panel) for panel in cell.panels] for cell in grid.cells])
    ratios = np.median(aspects, axis=0).clip(0.35, 12)
    height = float(min(np.clip(6 / math.sqrt(count), *_HEIGHTS), _WIDEST / ratios.sum())) if ratios.size else _GAP
    width = max(float(ratios.sum()) * height, _LEAST_WIDTH)
    captions = [wrapped(cell.caption, width, 3) for cell in grid.cells]
    below = max(map(len, captions)) * LINE_IN + _GAP
    across = max(1, min(count, round(math.sqrt(1.6 * count * (height + below) / width)), int(_WIDEST / width)))
    rows = -(-count // across)
    across = -(-count // rows)
    page = max(across * (width + _GAP), _LEAST_PAGE)
    heading, notes = (wrapped(text, page - _GAP, 4) for text in (grid.heading, ". ".join(grid.notes)))
    above = (len(heading) + any(grid.titles)) * LINE_IN + _GAP
    whole = above + rows * (height + below) + len(notes) * LINE_IN
    margin = (page - across * width - (across - 1) * _GAP) / 2 / page
    with drawing("show") as figure_of:
        figure = figure_of(figsize=(page, whole), facecolor="white")
        figure.text(0.5, 1 - _GAP / 4 / whole, "\n".join(heading), color="0.35", ha="center", va="top")
        figure.text(0.5, _GAP / 4 / whole, "\n".join(notes), color="0.35", ha="center", va="bottom")
        edges = {"left": margin, "right": 1 - margin, "top": 1 - above / whole}
        edges["bottom"] = (below + len(notes) * LINE_IN) / whole
        places = figure.add_gridspec(rows, across, wspace=_GAP / width, hspace=below / height, **edges)
        for number, (cell, caption) in enumerate(zip(grid.cells, captions, strict=True)):
            place = places[divmod(number, across)]
            box = place.get_position(figure)
            figure.text((box.x0 + box.x1) / 2, box.y0 - 0.03 / whole, "\n".join(caption), ha="center", va="top")
            if cell.panels:
                axes = place.subgridspec(1, len(ratios), width_ratios=ratios, wspace=0.05).subplots(squeeze=False)[0]
                for each, panel, title in zip(axes, cell.panels, grid.titles, strict=True):
                    _draw_panel(each, panel)
                    if number < across:
                        each.set_title("\n".join(wrapped(title, width / len(ratios), 1)), color="0.35", pad=2)
    return Picture(figure, count)


def _aspect(panel: Panel) -> float:
    return 1.6 if isinstance(panel, Lines) else panel.shape[1] / panel.shape[0]


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color="0.8", linewidth=0.6)
    if not isinstance(panel, Lines):
        axes.imshow(panel)
        return
    axes.plot(panel.values, linewidth=0.8)
    margin = 0.05 * (panel.high - panel.low) or 1.0
    axes.set_ylim(panel.low - margin, panel.high + margin)
    axes.margins(x=0.02)
