"""A report's picture, drawn by Matplotlib. What stands where is computed by `report/_picture.py`."""

import io
import os
from pathlib import Path
from typing import Any, Final

from penstock._show._writing import Writer
from penstock.report._picture import SIZE_PT, Bar, Box, Drawing, Edge, Label, Style

_DPI: Final = 110
_COLOURS: Final = "YlOrBr"
"""From light to dark, so that the order is seen by everybody, and in print."""
_DARKEST: Final = 0.85
"""How far along it goes."""
_FONTS: Final[dict[Style, dict[str, str]]] = {
    "title": {"family": "DejaVu Sans"},
    "label": {"family": "DejaVu Sans Mono", "weight": "bold"},
    "who": {"family": "DejaVu Sans", "weight": "bold"},
    "fact": {"family": "DejaVu Sans"},
    "mark": {"family": "DejaVu Sans", "weight": "bold"},
}
_BARS: Final = {"projected": "#4477AA", "overhead": "#BBCCEE", "measured": "#228833", "limit": "#000000"}
"""Paul Tol's, which everybody can tell apart."""
_LIMIT: Final = "#AA3377"


def write(drawing: Drawing, path: str | os.PathLike[str]) -> None:
    """Draws it, and writes a PNG or an SVG, at once when all of it is drawn.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    file = io.BytesIO()
    kind = Path(path).suffix.lower()[1:]
    draw(drawing).savefig(file, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
    Path(path).write_bytes(file.getvalue())


def draw(drawing: Drawing) -> Any:
    """Draws it.

    Returns:
        Matplotlib's figure; boxes and texts have their numbers in `drawing` as `gid`.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("report().save() draws with Matplotlib: pip install 'penstock[show]'.") from error
    from matplotlib import colormaps

    figure = Figure(figsize=(drawing.width, drawing.height), dpi=_DPI, facecolor="white")
    figure.set_layout_engine("none")  # whatever the user's own settings say
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, drawing.width), ylim=(drawing.height, 0))
    axes.set_axis_off()
    sheet = _Sheet(axes, colormaps[_COLOURS], drawing)
    for edge in drawing.edges:
        sheet.arrow(edge)
    for number, box in enumerate(drawing.boxes):
        sheet.box(box, f"box {number}")
    for bar in drawing.bars:
        sheet.bar(bar)
    for label in drawing.labels:
        sheet.text(label, "black")
    return figure


class _Sheet:
    """Axes on which places are inches from the left and from the top."""

    def __init__(self, axes: Any, colours: Any, drawing: Drawing) -> None:
        self._axes, self._colours = axes, colours
        labels = [*drawing.labels, *(label for box in drawing.boxes for label in box.labels)]
        self._writers = {
            style: Writer([label.text for label in labels if label.style == style], SIZE_PT[style], **font)
            for style, font in _FONTS.items()
        }

    def _colour(self, share: float) -> tuple[float, float, float, float]:
        red, green, blue, alpha = self._colours(_DARKEST * share)
        return red, green, blue, alpha

    def box(self, box: Box, name: str) -> None:
        from matplotlib.patches import FancyBboxPatch

        face = (1.0, 1.0, 1.0, 1.0) if box.share is None else self._colour(box.share)
        rounding = 0.0 if box.kind == "step" else 0.1
        self._axes.add_patch(
            FancyBboxPatch(
                (box.x, box.y),
                box.width,
                box.height,
                boxstyle=f"round,pad=0,rounding_size={rounding}",
                facecolor=face,
                edgecolor=_LIMIT if box.is_limit else "0.4",
                linewidth=2.2 if box.is_limit else 0.8,
                linestyle="--" if box.kind == "workers" and not box.is_limit else "-",
                gid=name,
            )
        )
        # Whichever of the two stands out more, by the luminance that the eye sees.
        is_dark = 0.2126 * face[0] + 0.7152 * face[1] + 0.0722 * face[2] < 0.5
        for label in box.labels:
            self.text(label, "white" if is_dark else "black")

    def text(self, label: Label, colour: str) -> None:
        """Writes a line, shortened if there is no room for it."""
        (line, *_), font = self._writers[label.style].broken(label.text, label.width, 1)
        self._axes.text(
            label.x,
            label.y,
            line,
            fontproperties=font,
            color=colour,
            ha="left",
            va="top",
            parse_math=False,  # a `$` in a name is a dollar
        )

    def bar(self, bar: Bar) -> None:
        from matplotlib.patches import Rectangle

        colour = self._colour(bar.share) if bar.kind == "share" else _BARS[bar.kind]
        # With an edge, for between two areas that touch the page would shine through.
        self._axes.add_patch(Rectangle((bar.x, bar.y), bar.width, bar.height, color=colour, linewidth=0.3))

    def arrow(self, edge: Edge) -> None:
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path as Line

        self._axes.add_patch(
            FancyArrowPatch(
                path=Line(edge.points), arrowstyle="-|>,head_length=3,head_width=1.8", color="0.35", linewidth=0.9
            )
        )
