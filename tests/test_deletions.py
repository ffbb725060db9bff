"""Every call that deletes or replaces a file is in a list, with what makes sure that the file is the library's."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "penstock"

KNOWN = {
    ("base/_atomic.py", "complete", "replace"): "the name that the user gave, and nothing but a file",
    ("base/_atomic.py", "complete", "unlink"): "a name of 64 random bits, made by this call",
    ("base/_atomic.py", "_delete_if_abandoned", "unlink"): "a name of ours, of this user, that no writer has locked",
    ("memory/_mapping.py", "_unnamed_file", "unlink"): "made by mkstemp in the line before",
    ("memory/_mapping.py", "__init__", "ftruncate"): "the library's memory",
    ("memory/_shared.py", "_write", "ftruncate"): "the library's memory",
    ("sources/_cachefiles.py", "_fill_files", "truncate"): "a file that this call made",
    ("sources/_cachefiles.py", "_set_aside", "rename"): "nothing is deleted: the new name is free",
    ("sources/_cachefiles.py", "_make", "rename"): "a folder that this call made; one that has files is not replaced",
    ("sources/_cachefiles.py", "_make", "unlink"): "a file in a folder that this call made",
    ("sources/_cachefiles.py", "_make", "rmdir"): "a folder that this call made",
    ("sources/_cachefiles.py", "__init__", "rmtree"): "made by mkdtemp in the line before",
    ("sources/_cacheopen.py", "write", "truncate"): "an incomplete stream, by the owner of its lock",
    ("files/_diskcache.py", "delete", "unlink"): "a block by its hash, in a folder of this user alone",
    ("files/_diskcache.py", "_sweep", "unlink"): "an unfinished block by its number, in a folder of this user alone",
    ("files/_kept.py", "_spare", "rename"): "nothing is deleted: the new name is free",
}
DELETING = {
    "rmtree", "unlink", "remove", "rename", "renames", "replace", "rmdir", "removedirs", "truncate", "ftruncate",
    "move", "write_bytes", "write_text",
}  # fmt: skip
# `replace` of texts and of dataclasses, and `remove` of lists, are no calls of these.
HOLDERS = {"os", "shutil", "path", "unfinished", "out", "file", "Path", "folder", "old", "each"}


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    files = [(file, file.read_text()) for file in sorted(SRC.rglob("*.py"))]
    wanted = re.compile(rf"\.({'|'.join(DELETING)})\b|\bopen\(")
    return [(str(file.relative_to(SRC)), ast.parse(text)) for file, text in files if wanted.search(text)]


def calls() -> Iterator[tuple[str, str, str]]:
    for file, tree in trees():
        for function in ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr in DELETING and _holder(node.value) in HOLDERS:
                    yield file, function.name, node.attr


def _holder(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def test_every_deletion_is_known_and_has_its_reason() -> None:
    assert set(calls()) == set(KNOWN)


def test_files_are_written_by_one_function() -> None:
    written = set()
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                modes = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "mode")]
                if any(isinstance(each, ast.Constant) and set(str(each.value)) & set("wax") for each in modes):
                    written.add(file)
    assert written == {"base/_atomic.py", "commands/cli.py", "sources/_cachefiles.py"}  # cli: /dev/null
