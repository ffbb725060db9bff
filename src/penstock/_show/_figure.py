"""A grid of elements drawn by Matplotlib, which is imported here alone, when it is needed.

Never by pyplot: that would choose a window system, keep every figure alive, and let settings of one picture leak into
the next. Places are computed here rather than by a layout engine: texts are measured and broken to fit their cells, so
none can run into another.
"""

import importlib.util
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from penstock._show._panels import Grid, Lines, Panel

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

_SIZE_PT = 8.0
_LINE_IN = _SIZE_PT / 72 * 1.35
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


class _Face:
    """A font's file: what it can write, and how wide that is."""

    def __init__(self, path: str) -> None:
        from matplotlib.font_manager import FontProperties
        from matplotlib.ft2font import FT2Font

        self._font = FT2Font(path)
        self._font.set_size(_SIZE_PT, 72)
        self.properties = FontProperties(fname=path, size=_SIZE_PT)

    def has(self, character: str) -> bool:
        return bool(self._font.get_char_index(ord(character)))

    def width_in(self, text: str) -> float:
        self._font.set_text(text)
        return float(self._font.get_width_height()[0]) / 64 / 72


class _Writer:
    """Writes any text without a missing glyph: in the default font, or in one that has its characters."""

    def __init__(self, texts: list[str]) -> None:
        from matplotlib.font_manager import FontProperties, findfont

        self._usual = _Face(findfont(FontProperties()))
        missing = {character for text in texts for character in text if not self._usual.has(character)}
        self._other = self._usual
        if missing:
            faces = (_Face(path) for path in _font_paths())
            # The first that has all, or else the one that has most.
            self._other = max(faces, key=lambda face: sum(map(face.has, missing)), default=self._usual)

    def broken(self, text: str, width: float, most_lines: int) -> tuple[list[str], Any]:
        """Breaks a text into lines of at most `width` inches; returns them and the font to write them in.

        What is too long ends in an ellipsis; a character that no font has becomes its code point, U+3042.
        """
        face = self._usual if all(map(self._usual.has, text)) else self._other
        text = "".join(each if face.has(each) else f"U+{ord(each):04X}" for each in text)
        lines: list[str] = []
        while text:
            end = _fitting(text, width, face)
            if end < len(text) and len(lines) == most_lines - 1:
                lines.append(text[: max(1, _fitting(text, width - face.width_in("…"), face))].rstrip() + "…")
                break
            # Between words if there are any, else anywhere: a name without spaces is still to be read.
            at = text.rfind(" ", 0, end + 1) if end < len(text) else end
            at = at if at > 0 else end
            lines.append(text[:at])
            text = text[at:].lstrip()
        return lines, face.properties


def _fitting(text: str, width: float, face: _Face) -> int:
    """How many characters of a text are at most `width` inches wide; at least 1."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if face.width_in(text[:middle]) <= width else (low, middle - 1)
    return low


def _font_paths() -> Iterator[str]:
    """Fonts that may have what the default font lacks, likely ones first; each is opened only when it is reached."""
    japanese = japanese_font()
    if japanese is not None:
        yield str(japanese)
    from matplotlib.font_manager import fontManager

    likely = ("CJK", "Gothic", "IPA", "Unicode", "Noto", "Hei", "Ming", "Malgun", "Droid")
    ranked = sorted(fontManager.ttflist, key=lambda font: not any(word in font.name for word in likely))
    yield from dict.fromkeys(font.fname for font in ranked[:40] if "Last Resort" not in font.name)


def japanese_font() -> Path | None:
    """The file of the font in the package matplotlib-fontja, IPAexGothic, or None where that is not installed."""
    found = importlib.util.find_spec("matplotlib_fontja")  # the package is not run: it would set up Matplotlib
    path = Path((found.submodule_search_locations or [""])[0] if found else "", "fonts", "ipaexg.ttf")
    return path if found is not None and path.exists() else None


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
    writer = _Writer([*captions, *grid.titles, grid.heading, notes])
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
