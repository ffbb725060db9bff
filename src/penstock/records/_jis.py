"""The character codes of the ETL Character Database, and the groups of characters.

Python has JIS X 0208, and nearly JIS X 0201. No library has CO-59, which six Japanese newspapers agreed upon in 1959.
Its table is read from a file that comes with the database.
"""

import unicodedata
from typing import Final, Literal

from penstock.base._errors import SourceError
from penstock.files._openfile import File

Code = Literal["M katakana", "M hiragana", "C katakana", "C hiragana", "JIS X 0208", "CO-59"]
Group = Literal["kanji", "hiragana", "katakana", "digits", "latin", "symbols"]
GROUPS: Final[tuple[Group, ...]] = ("kanji", "hiragana", "katakana", "digits", "latin", "symbols")

# T56, the six-bit characters of the Tosbac 5600, which are those of Honeywell's series 6000.
_T56: Final = "0123456789[#@:>? ABCDEFGHI&.](<\\^JKLMNOPQR-$*);'+/STUVWXYZ_,%=\"!"
# The first letter of a name in C-type records: numeral, alphabet, special character, katakana, hiragana.
_T56_KINDS: Final = "NASKH"

# JIS X 0201 as the database uses it. It has no place for the old kana WI and WE. The small I and E, which the database
# does not have, stand for them. The sound marks are separate characters.
_JIS_X_0201: Final = {0x5C: "¥", 0x7E: "‾", 0xA8: "ヰ", 0xAA: "ヱ", 0xDE: "゛", 0xDF: "゜"}
_TO_HIRAGANA: Final = ord("ぁ") - ord("ァ")
_WIDE: Final = range(0xFF01, 0xFF5F)
"""Unicode's wide forms of ASCII, in its order."""


def group_of(character: str) -> Group:
    """Returns the group of a character, or of the name of a character without a code."""
    if len(character) == 1:
        if "一" <= character <= "\u9fff" or character in "々〇":
            return "kanji"
        if "ぁ" <= character <= "ゖ":
            return "hiragana"
        if "ァ" <= character <= "ヺ":
            return "katakana"
        if character.isascii() and character.isalnum():
            return "digits" if character.isdigit() else "latin"
    return "symbols"


def character_of(code: int, kind: Code, co59: dict[int, str]) -> str | None:
    """Returns the character of a code, letters and digits in their narrow form; None if there is none.

    A character that JIS X 0201 lacks has the name that the database writes beside the code, such as `/X` in ETL6.

    Args:
        code: One of `_etlfiles.read_codes`.
        kind: The code's kind.
        co59: The result of `co59_table`, for CO-59.
    """
    if kind == "JIS X 0208":
        return _jis_x_0208(code)
    if kind == "CO-59":
        return co59.get(code >> 4)  # 12 bits of the 16
    is_c = kind.startswith("C")
    character = _jis_x_0201(code >> (24 if is_c else 16), is_hiragana=kind.endswith("hiragana"))
    return character or (_name_of_c(code & 0xFFFFFF) if is_c else _name_of_m(code & 0xFFFF))


def co59_table(file: File) -> dict[int, str]:
    """Reads `euc_co59.dat`: `character:high,low` in EUC-JP, separated by white space.

    Raises:
        SourceError: The file has another content.
    """
    with file.stream() as stream:
        content = stream.read()
    table: dict[int, str] = {}
    try:
        for entry in content.decode("euc_jp").split():
            character, _, code = entry.rpartition(":")
            high, low = map(int, code.split(","))
            table[high << 6 | low] = _narrow(character)
    except (ValueError, TypeError) as error:  # TypeError: not one character
        raise SourceError(
            f"{file.url} is no table of CO-59 ({error}). Take euc_co59.dat as it is in unpack.zip, on the page "
            '"File formats and sample unpacking code" of the ETL Character Database.'
        ) from error
    return table


def _jis_x_0201(code: int, is_hiragana: bool) -> str | None:
    if not (0x21 <= code <= 0x7E or 0xA1 <= code <= 0xDF):
        return None
    # The codec gives Unicode's narrow katakana, of which wide ones are made.
    character = _JIS_X_0201.get(code) or unicodedata.normalize("NFKC", bytes((code,)).decode("shift_jis"))
    return chr(ord(character) + _TO_HIRAGANA) if is_hiragana and "ァ" <= character <= "ヶ" else character


def _jis_x_0208(code: int) -> str | None:
    high, low = code >> 8, code & 0xFF
    if not (0x21 <= high <= 0x7E and 0x21 <= low <= 0x7E):
        return None
    try:
        return _narrow(bytes((high | 0x80, low | 0x80)).decode("euc_jp"))
    except UnicodeDecodeError:
        return None


def _narrow(character: str) -> str:
    return chr(0x21 + ord(character) - _WIDE.start) if ord(character) in _WIDE else character


def _name_of_m(code: int) -> str | None:
    name = bytes((code >> 8, code & 0xFF))
    return name.decode().strip() or None if all(0x20 <= byte <= 0x7E for byte in name) else None


def _name_of_c(code: int) -> str | None:
    name = "".join(_T56[code >> shift & 63] for shift in (18, 12, 6, 0))
    return name.rstrip() if name[0] in _T56_KINDS else None
