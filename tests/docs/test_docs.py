"""Runs what the documentation shows: each page's Python blocks, and the examples in docstrings.

A page's ```python blocks run in order, as one script, in an empty directory, with the page's own line numbers
in tracebacks. A ```text block right after one is what it prints, with ... for what varies. Comments steer that:

    <!-- numbers vary -->               before a ```text block: numbers and their units are not compared
    <!-- first words are compared -->   before one: nothing else is, for a report that another machine words otherwise;
                                        further lines may follow
    <!-- needs: keras tensorflow -->    extras of ours; the page runs in another process than the tests,
                                        marked `framework` unless the extras are formats alone
    <!-- not run: why -->               before a block that cannot run here; the reason is required
    <!-- ranks: 2 -->                   the page runs in that number of processes at once, as under torchrun
    <!-- packages: lightning -->        packages besides our extras, in the group `test` or else of the target
                                        `test-trainers`; the page is skipped without them

A notebook runs in the same way, as one script: see `text_of`.
"""

import ast
import contextlib
import doctest
import importlib
import importlib.util
import io
import json
import re
import runpy
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest

import penstock
from tests.adapters.ranks import run_ranks
from tests.conftest import WARNINGS
from tests.turns import needs_an_interpreter

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS]
OTHER_PAGES = [*sorted((ROOT / "design").glob("*.md")), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = CONFIGURATION["project"]["optional-dependencies"].keys()
TESTED = {re.split(r"\W", requirement)[0] for requirement in CONFIGURATION["dependency-groups"]["test"]}
# Extras that the fast set has installed.
FORMATS = {"arrayrecord", "audio", "hdf5", "image", "nifti", "parquet", "remote", "tfrecord", "xarray", "zarr"}

VARYING = r"\d[\d,.]*( ?(?:us|ms|s|B|KiB|MiB|GiB)\b)?"
BETWEEN = "---- what the page shows ----"
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)[^`]*$")
NOT_RUN = re.compile(r"^ *<!-- *not run(?:: *(?P<reason>.*?))? *-->\s*$")
NEEDS = re.compile(r"^<!-- *needs: *(?P<extras>.*?) *-->\s*$", re.MULTILINE)

RANKS = re.compile(r"^<!-- *ranks: *(\d+) *-->\s*$", re.MULTILINE)
PACKAGES = re.compile(r"^<!-- *packages: *(?P<names>.*?) *-->\s*$", re.MULTILINE)

# Words in a docstring's example that mean it needs a framework, or what is installed together with them.
FRAMEWORK_WORDS = re.compile(r"\b(?:keras|tensorflow|torch|jax|lance|(?:to|from)_(?:keras|tf|torch|jax|lance))\b")
FRAMEWORK_ROOMS = {"adapters", "demos"}


def text_of(path: Path) -> str:
    """A page as it stands, and a notebook as a page: what a cell shows below it, as Jupyter wrote it, is its ```text.

    Of a cell with the tag `first words`, which shows a report, that is the first four lines, and their first words.
    """
    if path.suffix != ".ipynb":
        return path.read_text()
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        lines, last = source.splitlines(), ast.parse(source).body[-1]
        if isinstance(last, ast.Expr):  # Jupyter shows its value
            lines[last.lineno - 1 :] = [
                "_ = (",
                *lines[last.lineno - 1 :],
                ")",
                "if _ is not None:",
                "    print(repr(_))",
            ]
        parts += ["```python", *lines, "```"]
        shown = "".join(
            "".join(each.get("text") or each["data"]["text/plain"]).rstrip("\n") for each in cell["outputs"]
        )
        if shown and "first words" in cell["metadata"].get("tags", ()):
            shown = "\n".join(shown.splitlines()[:4])
            parts.append("<!-- first words are compared -->")
        parts += ["```text", shown, "```"] if shown else []
    return "\n".join(parts) + "\n"


def script_of(page: str) -> str:
    """The page with all but its Python blocks blanked, so that line numbers stay what they are."""
    kept: list[str] = []
    block: list[str] | None = None  # the lines of the block that is open
    fence, runs, skip_next = "", False, False
    shown = outputs_of(page)
    for number, line in enumerate(page.splitlines(), start=1):
        kept.append("")
        if block is not None and line.strip() == "```":
            if runs:
                kept[-1 - len(block) : -1] = textwrap.dedent("\n".join(block)).split("\n") if block else []
            if runs and number in shown:  # marks around what it prints, on the lines of its fences
                kept[-2 - len(block)] = kept[-1] = f"print({BETWEEN!r})"
            block = None
        elif block is not None:
            block.append(line)
        elif found := NOT_RUN.match(line):
            if not found["reason"]:
                raise ValueError(f"line {number}: say why the block is not run: <!-- not run: reason -->")
            skip_next = True
        elif found := FENCE.match(line):
            fence = f"line {number}: ```{found['language']}"
            if found["language"] in {"py", "python3", "pycon"}:
                raise ValueError(f"{fence}: write ```python, which is what is run")
            block, runs, skip_next = [], found["language"] == "python" and not skip_next, False
        elif line.strip() and skip_next:
            raise ValueError(f"line {number}: <!-- not run --> stands right before the block it is about")
    if block is not None:
        raise ValueError(f"{fence} is never closed")
    return "\n".join(kept) + "\n"


def outputs_of(page: str) -> dict[int, tuple[str, str]]:
    """What the page shows as printed by a block, by the line of the block's last fence, and what varies there."""
    found = re.finditer(
        r"^(?P<indent> *)```python\n.*?^ *```\n(?P<gap>\n*)"
        r"((?P=indent)<!-- (?P<vary>numbers vary|first words are compared) -->\n+)?"
        r"(?P=indent)```text\n(?P<text>.*?)^ *```$",
        page,
        re.MULTILINE | re.DOTALL,
    )
    outputs = {
        page.count("\n", 0, each.start("gap")): (textwrap.dedent(each["text"]), each["vary"] or "") for each in found
    }
    if unlike := [number for number in outputs if page.splitlines()[number - 1].strip() != "```"]:
        raise ValueError(f"line {unlike[0]}: the fence before ```text does not close a block")
    return outputs


def check_outputs(page: str, printed: str) -> None:
    """Compares what a page shows with what its script printed."""
    parts = printed.split(f"{BETWEEN}\n")[1::2]
    wanted = list(outputs_of(page).items())
    assert len(parts) == len(wanted)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for (number, (text, vary)), part in zip(wanted, parts, strict=True):
        if vary == "numbers vary":
            text, part = (re.sub(VARYING, "0", each) for each in (text, part))
        elif vary:
            text, part = ("".join(f"{line.split()[0]}\n" for line in each.splitlines()) for each in (text, part))
            part = part[: len(text)]
        assert doctest.OutputChecker().check_output(text, part, flags), (
            f"the block that ends in line {number} prints:\n{part}\nand the page shows:\n{text}"
        )


def needs_of(page: str) -> set[str]:
    """The extras that a page says it needs."""
    extras = {extra for found in NEEDS.finditer(page) for extra in found["extras"].split()}
    if unknown := extras - EXTRAS:
        raise ValueError(f"<!-- needs: --> takes names of extras in pyproject.toml, not {sorted(unknown)}")
    return extras


def packages_of(page: str) -> list[str]:
    """The packages that a page needs besides our extras."""
    return [name for found in PACKAGES.finditer(page) for name in found["names"].split()]


def _marks(page: str) -> list:
    framework = [pytest.mark.framework] * bool(needs_of(page) - FORMATS)
    return framework + [pytest.mark.trainers] * (not TESTED.issuperset(packages_of(page)))


def _pages() -> list:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix(), marks=_marks(text_of(path))) for path in PAGES]


def _docstring_examples() -> list:
    """A case for each docstring of `src/penstock` that has examples, found without importing anything."""
    package = ROOT / "src" / "penstock"
    cases = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).with_suffix("")
        module = ".".join(("penstock", *inside.parts)).removesuffix(".__init__")
        source = path.read_text()
        if ">>>" not in source:  # every process that collects tests comes by here
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node, clean=False) or ""
            if ">>>" not in text:
                continue
            framework = bool(FRAMEWORK_WORDS.search(text)) or inside.parts[0] in FRAMEWORK_ROOMS
            name = f"{module}.{node.name}:{node.lineno}" if not isinstance(node, ast.Module) else module
            first_line = node.body[0].lineno - 1
            marks = [pytest.mark.framework] * framework
            cases.append(pytest.param(path, module, text, first_line, id=name, marks=marks))
    return cases


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("path", _pages())
def test_page_runs_and_prints_what_it_shows(path, fresh_python, turns, tmp_path, monkeypatch, capsys):
    page = text_of(path)
    script = tmp_path / f"page_{path.stem}.py"
    script.write_text(text := script_of(page))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    if missing := [name for name in packages_of(page) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    if found := RANKS.search(page):
        # Warnings of these packages are theirs to mend.
        warnings = ("-W", "ignore") if packages_of(page) else WARNINGS
        for rank in run_ranks(script, int(found[1]), warnings=warnings):
            assert rank.status == 0, f"{path.relative_to(ROOT)}, same lines:\n{rank.out}\n{rank.err}"
            printed = rank.out
    elif needs_of(page):
        if needs_an_interpreter(text):
            done = fresh_python(script)
        else:
            done = turns.run(script, cwd=work)
        assert done.returncode == 0, f"{path.relative_to(ROOT)}, same lines:\n{done.stdout}\n{done.stderr}"
        printed = done.stdout
    else:
        runpy.run_path(str(script), run_name="__main__")
        printed = capsys.readouterr().out
    check_outputs(page, printed)


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize(("path", "module", "text", "first_line"), _docstring_examples())
def test_docstring_example_runs(path, module, text, first_line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    penstock = importlib.import_module("penstock")
    names = {**vars(importlib.import_module(module)), "penstock": penstock, "ps": penstock, "np": np}
    if module.startswith("penstock.image"):
        names["photo"], names["photos"] = np.zeros((375, 500, 3), np.uint8), np.zeros((3, 375, 500, 3), np.uint8)
        importlib.import_module("cv2").imwrite("cat.jpg", names["photo"])
    example = doctest.DocTestParser().get_doctest(text, names, module, str(path), first_line)
    complaints: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed = doctest.DocTestRunner(optionflags=flags, verbose=False).run(example, out=complaints.append).failed
    assert not failed, "".join(complaints)


def test_only_python_blocks_are_kept_and_on_their_lines():
    page = "# Title\n```python\na = 1\n```\ntext\n```sh\nls\n```\n- item\n\n  ```python\n  b = a\n  ```\n"
    assert script_of(page) == "\n\na = 1\n\n\n\n\n\n\n\n\nb = a\n\n"


def test_what_a_block_prints_is_compared_with_what_stands_below_it():
    page = "# Title\n```python\nprint(1)\n```\n\n```text\n1\n```\n```python\nprint(2, 3)\n```\n```text\n2 ...\n```\n"
    assert outputs_of(page) == {4: ("1\n", ""), 11: ("2 ...\n", "")}
    script = script_of(page)
    assert script.split("\n")[2] == "print(1)"
    check_outputs(page, f"{BETWEEN}\n1\n{BETWEEN}\nother\n{BETWEEN}\n2 3\n{BETWEEN}\n")
    with pytest.raises(AssertionError, match=r"ends in line 4 prints:\n *4\n"):
        check_outputs(page, f"{BETWEEN}\n4\n{BETWEEN}\n{BETWEEN}\n2 3\n{BETWEEN}\n")


def test_numbers_that_vary_are_not_compared_but_words_are():
    page = "```python\nprint(1)\n```\n\n<!-- numbers vary -->\n```text\n1,5 us of 3 GiB\n```\n"
    check_outputs(page, f"{BETWEEN}\n22.5 ms of 100 MiB\n{BETWEEN}\n")
    with pytest.raises(AssertionError, match="prints"):
        check_outputs(page, f"{BETWEEN}\n22.5 ms in 100 MiB\n{BETWEEN}\n")


def test_the_first_words_of_a_report_are_compared():
    page = "```python\nprint(1)\n```\n\n<!-- first words are compared -->\n```text\nlimit: x\nspeed: 3\n```\n"
    check_outputs(page, f"{BETWEEN}\nlimit: y\nspeed: 4\nmemory: 5\n{BETWEEN}\n")
    with pytest.raises(AssertionError, match="prints"):
        check_outputs(page, f"{BETWEEN}\nlimits: y\nspeed: 4\n{BETWEEN}\n")


def test_a_notebook_runs_as_a_page_and_prints_what_its_cells_show(tmp_path):
    def code(source, shown, *tags):
        return {"cell_type": "code", "source": [source], "outputs": shown, "metadata": {"tags": list(tags)}}

    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        code("a = 1", []),
        code("print(a)\na +\\\n 1", [{"text": ["1\n"]}]),
        code("a", [{"data": {"text/plain": ["1"], "image/png": ""}}], "first words"),
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    page = text_of(tmp_path / "a.ipynb")
    assert page.startswith("# Title\ntext\n```python\na = 1\n```\n")
    assert list(outputs_of(page).values()) == [("1\n", ""), ("1\n", "first words are compared")]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(script_of(page), {})
    assert printed.getvalue() == f"{BETWEEN}\n1\n2\n{BETWEEN}\n{BETWEEN}\n1\n{BETWEEN}\n"


def test_block_with_a_reason_is_not_run():
    assert script_of("<!-- not run: needs a network -->\n\n```python\n1 / 0\n```\n").strip() == ""


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("<!-- not run -->\n```python\n```\n", "line 1: say why"),
        ("<!-- not run: -->\n```python\n```\n", "line 1: say why"),
        ("<!-- not run: slow -->\ntext\n```python\n```\n", "line 2: .* right before"),
        ("```py\n```\n", "line 1: .* write ```python"),
        ("text\n```python\na = 1\n", "line 2: ```python is never closed"),
    ],
)
def test_page_that_would_silently_not_run_is_refused(page, complaint):
    with pytest.raises(ValueError, match=complaint):
        script_of(page)


def test_needs_are_extras_of_ours():
    assert needs_of("text\n<!-- needs: keras tensorflow -->\n") == {"keras", "tensorflow"}
    assert needs_of("text\n") == set()
    with pytest.raises(ValueError, match="not \\['pandas'\\]"):
        needs_of("<!-- needs: pandas -->\n")


def test_reference_has_every_public_name():
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    listed = [name for page in pages for name in re.findall(r"^::: penstock\.([\w.]+)$", page, re.MULTILINE)]
    rooms = [f"{room}.{name}" for room in ("image", "audio") for name in getattr(penstock, room).__all__]
    assert sorted(name for name in listed if not name.startswith("testing")) == sorted([*penstock.__all__, *rooms])


def test_navigation_lists_every_page():
    listed = re.findall(r"^ *- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [*(ROOT / "docs").rglob("*.md"), *(path.with_suffix(".md") for path in NOTEBOOKS)]
    docs = [path.relative_to(ROOT / "docs").as_posix() for path in pages]
    design = [path.relative_to(ROOT).as_posix() for path in (ROOT / "design").glob("*.md")]
    assert sorted(listed) == sorted([*docs, *design, "CHANGELOG.md", "CONTRIBUTING.md"])


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "coming-from").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_about_another_library_says_its_version_and_the_date(path):
    last = path.read_text().rstrip().rpartition("\n\n")[2]
    assert re.match(r"As of 20\d\d-\d\d-\d\d: [\w -]+ \d+\.\d+", " ".join(last.split()))


def test_numbers_of_the_readme_are_those_of_the_page_about_speed():
    table = (ROOT / "README.md").read_text().partition("## How fast")[2].partition("Where we lose")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    numbers = {number for row in rows for cell in row.split("|")[2:] for number in re.findall(r"\d[\d,.]*\d", cell)}
    assert len(numbers) > 10
    speed = set(re.findall(r"\d[\d,.]*\d", (ROOT / "docs" / "explanation" / "speed.md").read_text()))
    assert numbers <= speed


def _anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [*PAGES, *OTHER_PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page_has_a_title_and_its_links_resolve(path):
    assert text_of(path).startswith("# ")  # the title on the site
    text = re.sub(r"^```.*?^```$", "", text_of(path), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)", text):
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file.read_text()), f"{target}#{anchor}"
