"""Pictures and the text in them, by Matplotlib, which is imported when a picture is drawn.

A monospaced font makes the widths of texts known without drawing. Never pyplot, which would choose a window system and
keep figures.
"""

import importlib.util
import io
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

from penstock.base._arguments import install

SIZE_PT: Final = 7.5
LINE_IN: Final = SIZE_PT / 72 * 1.35
"""From one line to the next, in inches."""
_DPI: Final = 110
_CELL_IN: Final = SIZE_PT / 72 * 0.61
"""The width of a character, in inches. A character of another font takes at most two cells."""
_FAMILY: Final = "DejaVu Sans Mono"  # comes with Matplotlib
_JAPANESE: Final = "IPAexGothic"  # comes with matplotlib-fontja, whose import would change Matplotlib's settings
_OTHERS: Final = (_JAPANESE, "Noto Sans CJK JP", "Malgun Gothic", "Apple SD Gothic Neo", "Arial Unicode MS")


def encoded(figure: Any, kind: str = "png") -> bytes:
    """Returns the bytes of a figure's PNG or SVG file."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


@final
class Writer:
    """Makes figures, breaks texts into lines, without missing glyphs, and writes them.

    Args:
        verb: The function that draws, for the message.
        texts: All texts of a picture.

    Raises:
        ImportError: Matplotlib is not installed.
    """

    def __init__(self, verb: str, texts: Iterable[str]) -> None:
        try:
            from matplotlib.figure import Figure
            from matplotlib.font_manager import findfont, fontManager
            from matplotlib.ft2font import FT2Font
        except ImportError as error:
            raise ImportError(f"{verb} draws with Matplotlib: {install('matplotlib')}.") from error

        self._figure = Figure
        self.families = [_FAMILY]
        """The fonts to draw with, in the order of their use."""
        self._known = self._usual = set(FT2Font(findfont(_FAMILY)).get_charmap())
        if self._usual.issuperset(map(ord, "".join(texts))):
            return
        package = importlib.util.find_spec("matplotlib_fontja")
        if package is not None and _JAPANESE not in fontManager.get_font_names():
            fontManager.addfont(Path((package.submodule_search_locations or [""])[0], "fonts", "ipaexg.ttf"))
        self.families += [each for each in _OTHERS if each in fontManager.get_font_names()]
        self._known = self._usual.union(*(FT2Font(findfont(each)).get_charmap() for each in self.families[1:]))

    def figure(self, width_in: float, height_in: float) -> Any:
        """Returns an empty figure, white, in which the user's own settings move nothing."""
        figure = self._figure(figsize=(width_in, height_in), dpi=_DPI, facecolor="white")
        figure.set_layout_engine("none")
        return figure

    def lines(self, text: str, width_in: float, most: int, *, indent: int = 0) -> list[str]:
        """Breaks a text into at most `most` lines. Shortens it with an ellipsis if they are too few.

        All lines but the first begin with `indent` spaces.

        A character without a glyph becomes its code point, such as U+3042.
        """
        text = "".join(each if ord(each) in self._known else f"U+{ord(each):04X}" for each in text)
        cells = 1 if self._usual.issuperset(map(ord, text)) else 2
        width = max(1, int(width_in / _CELL_IN / cells))
        lines = textwrap.wrap(text, width, break_on_hyphens=False, subsequent_indent=" " * indent)
        return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: max(1, width - 1)] + "…"]

    def write(self, onto: Any, x: float, y: float, line: str, **font: Any) -> None:
        """Writes a line on a figure or axes, below a place. A `$` in it is a dollar."""
        onto.text(x, y, line, va="top", parse_math=False, family=self.families, size=SIZE_PT, **font)
