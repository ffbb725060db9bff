"""How much code each room has, in tokens: names, numbers, text and operators, without comments and docstrings.

Raising a budget is a line in a commit, with its reason. Lines would do worse: joining two changes nothing.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "penstock"

# A room is a folder or file directly under `penstock`. What is not named here belongs to the core.
PACKS = {
    "files": ("files",),
    "images": ("image", "distort"),
    "tables": ("tables",),
    "records": ("records",),
    "films": ("films",),
    "sparse": ("sparse",),
    "volumes": ("volumes",),
    "sound": ("audio",),
    "pictures": ("pictures",),
    "adapters": ("adapters",),
    "ray": ("ray",),
    "command line": ("commands", "demos", "__main__.py"),
    "testing": ("testing",),
}
BUDGETS = {
    "core": 270_790,
    "files": 32_900,
    "images": 19_700,
    "tables": 26_300,
    "records": 17_500,
    "films": 11_100,
    "sparse": 8_000,
    "volumes": 12_800,
    "sound": 3_400,
    "pictures": 7_100,
    "adapters": 13_050,
    "ray": 8_100,
    "command line": 8_600,
    "testing": 12_800,
}
_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_NATIVE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\w+|[^\s\w]', re.DOTALL)


def tokens_of(path: Path) -> int:
    """The tokens of a file of Python or C++; 0 of any other."""
    if path.suffix in (".cpp", ".hpp"):
        return sum(not each.startswith(("//", "/*")) for each in _NATIVE.findall(path.read_text()))
    if path.suffix != ".py":
        return 0
    text = path.read_text()
    docstrings = {
        (each.lineno, each.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(body := getattr(node, "body", None), list)
        for each in body
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(each.type not in _LAYOUT and each.start not in docstrings for each in tokens)


def room_of(path: Path) -> str:
    top = path.relative_to(SRC).parts[0]
    return next((name for name, rooms in PACKS.items() if top in rooms), "core")


@pytest.fixture(scope="module")
def found() -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in sorted(SRC.rglob("*")):
        if path.is_file():
            counts[room_of(path)] += tokens_of(path)
    return counts


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_has_no_more_code_than_its_budget(room: str, found: Counter[str]) -> None:
    assert found[room] <= BUDGETS[room], (
        f"{room} has {found[room]:,} tokens. Make it smaller, or say why it is worth more."
    )


def test_every_room_of_a_pack_is_there() -> None:
    assert not [room for rooms in PACKS.values() for room in rooms if not (SRC / room).exists()]


def test_docstrings_and_comments_are_free(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        '"""Says\nmuch."""\n\nx = f(1)  # and more\n"""Of x."""\n\n\ndef f(a):\n    """More."""\n    return "text"\n'
    )
    assert tokens_of(path) == len(["x", "=", "f", "(", "1", ")", "def", "f", "(", "a", ")", ":", "return", '"text"'])
