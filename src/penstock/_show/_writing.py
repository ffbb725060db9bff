"""Texts in a picture: which font has their characters, how wide they are, and where they are broken."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, final

SIZE_PT: Final = 8.0


@final
class Face:
    """A font's file: what it can write, and how wide that is."""

    def __init__(self, path: str, size_pt: float = SIZE_PT) -> None:
        from matplotlib.font_manager import FontProperties
        from matplotlib.ft2font import FT2Font

        self._font = FT2Font(path)
        self._font.set_size(size_pt, 72)
        self.properties = FontProperties(fname=path, size=size_pt)

    def has(self, character: str) -> bool:
        """Whether it can write a character."""
        return bool(self._font.get_char_index(ord(character)))

    def width_in(self, text: str) -> float:
        """The width of a text, in inches."""
        self._font.set_text(text)
        return float(self._font.get_width_height()[0]) / 64 / 72


@final
class Writer:
    """Writes any text without a missing glyph: in the usual font, or in one that has its characters.

    Args:
        texts: All that there is to write.
        size_pt: Its size.
        family: The usual font; None for Matplotlib's default.
        weight: Its weight.
    """

    def __init__(
        self, texts: list[str], size_pt: float = SIZE_PT, family: str | None = None, weight: str = "normal"
    ) -> None:
        from matplotlib.font_manager import FontProperties, findfont

        self._usual = Face(findfont(FontProperties(family=family, weight=weight)), size_pt)
        missing = {character for text in texts for character in text if not self._usual.has(character)}
        self._other = self._usual
        if missing:
            faces = (Face(path, size_pt) for path in _font_paths())
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


def _fitting(text: str, width: float, face: Face) -> int:
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
