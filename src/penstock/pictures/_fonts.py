"""Pictures and the text in them, by Matplotlib, which is imported when a picture is drawn.

A monospaced font makes the widths of texts known without drawing. Never pyplot, which would choose a window system and
keep figures.
"""

import contextlib
import io
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from penstock.base._arguments import needs

SIZE_PT: Final = 7.5
LINE_IN: Final = SIZE_PT / 72 * 1.35
"""From one line to the next, in inches."""
_DPI: Final = 110
_CELL_IN: Final = SIZE_PT / 72 * 0.61
"""The width of a character, in inches. A character of another font takes at most two cells."""
_FAMILY: Final = "DejaVu Sans Mono"  # comes with Matplotlib
_OTHERS: Final = ("IPAexGothic", "Noto Sans CJK JP", "Malgun Gothic", "Apple SD Gothic Neo", "Arial Unicode MS")


@contextlib.contextmanager
def drawing(verb: str) -> Iterator[Any]:
    """Gives Matplotlib's class of figures, in a block in which the user's settings move nothing and a `$` is a dollar.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    with needs(verb, "matplotlib"):
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager
    with mpl.rc_context():
        mpl.rcdefaults()
        known = fontManager.get_font_names()
        mpl.rcParams["font.family"] = [_FAMILY, *(each for each in _OTHERS if each in known)]
        mpl.rcParams["text.parse_math"] = False
        mpl.rcParams["figure.dpi"] = _DPI
        for name in ("font.size", "axes.titlesize", "figure.titlesize", "figure.labelsize"):
            mpl.rcParams[name] = SIZE_PT
        yield Figure


def encoded(figure: Any, kind: str = "png") -> bytes:
    """Returns the bytes of a figure's PNG or SVG file."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def wrapped(text: str, width_in: float, most: int, *, indent: int = 0) -> list[str]:
    """Breaks a text into at most `most` lines. Shortens it with an ellipsis if they are too few.

    All lines but the first begin with `indent` spaces.
    """
    width = max(1, int(width_in / _CELL_IN / (1 if text.isascii() else 2)))
    return textwrap.wrap(
        text, width, max_lines=most, placeholder="…", break_on_hyphens=False, subsequent_indent=" " * indent
    )
