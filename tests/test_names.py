"""Names under which others find this package: no line installs somebody else's project."""

import ast
import importlib
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from penstock.base._arguments import needs

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A command of an installer with what follows it, also in the next line; and the same in words.
COMMAND = re.compile(r"\b(?:pip3?|pipx|uvx?|poetry|conda) (?:tool |pip )?(?:install|add|run)\b(?:\\\n|[^\n;&|#])*")
OTHERS = re.compile(r"(?<![\w./*-])penstock(?:[-_]data)?(?![\w-]|\.whl)", re.IGNORECASE)
IN_WORDS = re.compile(r"\bpenstock\[[a-z]|\b(?:re)?install (?:the package )?`?penstock\b", re.IGNORECASE)


def complaints_about(text: str) -> list[str]:
    """Commands that install a package of PyPI by the name of this one, or of this one before it is there."""
    commands = [each[0] for each in COMMAND.finditer(text) if OTHERS.search(each[0])]
    return commands + [each[0] for each in IN_WORDS.finditer(text)]


@pytest.mark.parametrize(
    "text",
    [
        "pip install penstock",
        "    $ python -m pip install -U penstock  # or 3.12",
        "pip install 'penstock[keras]'",
        'pip install numpy "penstock>=0.2"',
        "pip install penstock-data",
        "pip install numpy \\\n    penstock",
        "uv pip install penstock",
        "`uv add penstock`",
        "!pip install -q penstock\\n",
        "needs penstock[remote]",
        "Install a compiler and reinstall penstock.",
    ],
)
def test_a_line_that_installs_another_project_is_found(text):
    assert complaints_about(text)


@pytest.mark.parametrize(
    "text",
    [
        'pip install ".[keras]"  # extras',
        'pip install "dist/penstock_data-0.2.0-cp311-abi3-linux_x86_64.whl[keras]"',
        'pip install "$(echo dist/penstock_data-*.whl)[keras]"',
        "pip install dist/*.tar.gz && python -c 'import penstock; print(penstock.__version__)'",
        "pip install pyarrow",
        "The copy engine was not compiled when penstock was installed",
    ],
)
def test_other_lines_are_not(text):
    assert not complaints_about(text)


def test_no_line_of_the_tree_installs_another_project():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name and ROOT / name != Path(__file__)]
    texts = {path: path.read_bytes().decode(errors="ignore") for path in paths if path.is_file()}
    assert len(texts) > 100
    assert {path: found for path, text in texts.items() if (found := complaints_about(text))} == {}


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    text = r"^Reading a\.zst needs no_such_package: pip install 'a\[b\]' c\.$"
    with pytest.raises(ModuleNotFoundError, match=text), needs("Reading a.zst", "a[b]", "c"):
        importlib.import_module("no_such_package")


def test_messages_name_packages_that_the_extras_install():
    required = [each for extra in PROJECT["optional-dependencies"].values() for each in extra]
    names = {re.split(r"[<>=!~;]", each)[0] for each in required}
    told = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("install", "needs"):
                packages = node.args[node.func.id == "needs" :]
                told |= {each.value: path.name for each in packages if isinstance(each, ast.Constant)}
    assert len(told) > 15
    assert {name: where for name, where in told.items() if name not in names} == {}
