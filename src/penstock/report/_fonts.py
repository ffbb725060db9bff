"""Text in pictures: a monospaced font, so that widths are known without drawing, and a font for other characters."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

SIZE_PT: Final = 7.5
LINE_IN: Final = SIZE_PT / 72 * 1.35
"""From one line to the next, in inches."""
_FAMILY: Final = "DejaVu Sans Mono"  # comes with Matplotlib
_CELL_IN: Final = SIZE_PT / 72 * 0.61
"""The width of a character, in inches. A character of another font takes two cells."""


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
        characters = set("".join(texts))
        usual = FT2Font(findfont(_FAMILY)).get_charmap()
        self._missing = {each for each in characters if ord(each) not in usual}
        self._unknown = set(self._missing)
        if not self._missing:
            return
        # A font for Japanese in a package of its own. Importing it would change Matplotlib's settings.
        if package := importlib.util.find_spec("matplotlib_fontja"):
            fontManager.addfont(Path((package.submodule_search_locations or [""])[0], "fonts", "ipaexg.ttf"))
        likely = ("IPA", "CJK", "Gothic", "Unicode", "Noto", "Hei", "Ming", "Malgun", "Droid")
        ranked = sorted(fontManager.ttflist, key=lambda font: not any(word in font.name for word in likely))
        for font in [each for each in ranked if "Last Resort" not in each.name][:40]:
            if known := {each for each in self._unknown if ord(each) in FT2Font(font.fname).get_charmap()}:
                self.families.append(font.name)
                self._unknown -= known

    def lines(self, text: str, width_in: float, most: int) -> list[str]:
        """Breaks a text into at most `most` lines. Shortens it with an ellipsis if they are too few.

        A character without a glyph becomes its code point, such as U+3042.
        """
        text = "".join(f"U+{ord(each):04X}" if each in self._unknown else each for each in text)
        lines: list[str] = []
        while text:
            end = self._fitting(text, width_in)
            if end < len(text) and len(lines) == most - 1:
                return [*lines, text[: max(1, end - 1)].rstrip() + "…"]
            space = text.rfind(" ", 0, end + 1) if end < len(text) else end
            end = space if space > 0 else end  # a name without spaces is broken anywhere
            lines.append(text[:end])
            text = text[end:].lstrip()
        return lines

    def _fitting(self, text: str, width_in: float) -> int:
        """Returns how many characters fit, at least 1."""
        cells = width_in / _CELL_IN
        for number, character in enumerate(text):
            cells -= 2 if character in self._missing else 1
            if cells < 0:
                return max(1, number)
        return len(text)
