"""Text in pictures: a monospaced font, so that widths are known without drawing, and fonts for other characters."""

import importlib.util
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

SIZE_PT: Final = 7.5
LINE_IN: Final = SIZE_PT / 72 * 1.35
"""From one line to the next, in inches."""
_CELL_IN: Final = SIZE_PT / 72 * 0.61
"""The width of a character, in inches. A character of another font takes at most two cells."""
_FAMILY: Final = "DejaVu Sans Mono"  # comes with Matplotlib
_JAPANESE: Final = "IPAexGothic"  # comes with matplotlib-fontja, whose import would change Matplotlib's settings
_OTHERS: Final = (_JAPANESE, "Noto Sans CJK JP", "Malgun Gothic", "Apple SD Gothic Neo", "Arial Unicode MS")


@final
class Writer:
    """Breaks texts into lines, without missing glyphs.

    Args:
        texts: All texts of a picture.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        from matplotlib.font_manager import findfont, fontManager
        from matplotlib.ft2font import FT2Font

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

    def lines(self, text: str, width_in: float, most: int) -> list[str]:
        """Breaks a text into at most `most` lines. Shortens it with an ellipsis if they are too few.

        A character without a glyph becomes its code point, such as U+3042.
        """
        text = "".join(each if ord(each) in self._known else f"U+{ord(each):04X}" for each in text)
        cells = 1 if self._usual.issuperset(map(ord, text)) else 2
        width = max(1, int(width_in / _CELL_IN / cells))
        lines = textwrap.wrap(text, width, break_on_hyphens=False)
        return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: max(1, width - 1)] + "…"]
