"""The names that a user's function reads from its surroundings, and which code is the user's."""

import contextlib
import dis
import functools
import importlib.machinery
import importlib.util
import os
import site
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

from penstock.base._files import Stamp

# The last three are of the bodies of classes: up to 3.11, and from 3.12 on.
_LOADS: Final = {
    "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS",
}  # fmt: skip


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """The variables that a function closes over; those not assigned yet are left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def globals_of(function: types.FunctionType, names: set[str]) -> dict[str, Any]:
    """Those of some names that are globals of a function's module."""
    return {name: function.__globals__[name] for name in names & function.__globals__.keys()}


def mentioned_in(code: types.CodeType) -> Iterator[str]:
    """The names in code, and texts that may be names: `getattr(mylib, "f")`."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from mentioned_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def uses(code: types.CodeType) -> list[tuple[str, list[str]]]:
    """Each use of a name from outside, with the attributes taken of it: `pkg.sub.f(x)` is `pkg`, `[sub, f]`."""
    found: list[tuple[str, list[str]]] = []
    follows = False
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS:
            # The body of a class begins with its module's name, which is no use of it.
            follows = (instruction.opname, instruction.argval) != ("LOAD_NAME", "__name__")
            if follows:
                found.append((instruction.argval, []))
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and follows:
            found[-1][1].append(instruction.argval)
        else:
            follows = follows and instruction.opname == "EXTENDED_ARG"
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return found + [use for constant in inner for use in uses(constant)]


def imports(code: types.CodeType) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Each import in code: its level, the name, and what is taken: `from ..a import b` is `(2, "a", ("b",))`."""
    constants: list[Any] = [0, ()]
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants.append(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            yield constants[-2], instruction.argval, constants[-1] or ()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imports(constant)
        elif isinstance(constant, str) and {"import_module", "__import__"} & set(code.co_names):
            yield 0, constant, ()


def imported(code: types.CodeType, package: str) -> dict[str, str]:
    """The modules that code imports when it runs, and that those import in turn, by name. Imports none of them.

    Args:
        code: Of a function, or of a module.
        package: That of its module, for relative imports.

    Returns:
        For a module of the user's, its file; for an installed one, whose own imports are left out, nothing.
    """
    found: dict[str, str] = {}
    rest = [(code, package)]
    while rest:
        code, package = rest.pop()
        for level, name, taken in imports(code):
            base = ".".join(filter(None, (package.rsplit(".", level - 1)[0] if level else "", name)))
            for full in (base, *(f"{base}.{each}" for each in taken)):
                for known, file in _files_of(full):
                    if known in found:
                        continue
                    found[known] = file
                    if file.endswith(".py"):
                        inside = known if os.path.basename(file) == "__init__.py" else known.rpartition(".")[0]
                        with contextlib.suppress(OSError, SyntaxError, ValueError):
                            rest.append((_compiled(file, Stamp.of(file)), inside))
    return found


def _files_of(name: str) -> Iterator[tuple[str, str]]:
    """A module and the packages around it, each with its file; an installed one without."""
    parts, path = name.split("."), None
    for count in range(1, len(parts) + 1):
        full = ".".join(parts[:count])
        spec = None
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            find = importlib.machinery.PathFinder.find_spec
            spec = importlib.util.find_spec(full) if count == 1 else find(full, path)
        if spec is None:
            return
        path = spec.submodule_search_locations
        if spec.has_location and spec.origin is not None and not is_installed(spec.origin):
            yield full, spec.origin
        elif path is None or all(map(is_installed, path)):
            yield parts[0], ""
            return
        if path is None:
            return


@functools.lru_cache(4096)
def _compiled(file: str, state: Stamp) -> types.CodeType:
    with open(file, "rb") as opened:
        return compile(opened.read(), file, "exec", dont_inherit=True)


def is_own(module: types.ModuleType) -> bool:
    """Whether a module is the user's: neither installed nor of Python, nor ours, nor compiled."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if name == "__main__":
        return True
    if isinstance(file, str):
        return not file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)) and not is_installed(file)
    folders = getattr(module, "__path__", None)
    if folders is not None:  # a namespace package
        return not any(map(is_installed, folders))
    if "." in name:
        parent = sys.modules.get(name.rpartition(".")[0])
        return parent is not None and is_own(parent)
    # Built into Python, frozen; or made by hand, which no import could make again.
    return getattr(module, "__spec__", None) is None


def is_own_code(obj: Any) -> bool:
    """Whether a function or class is known by its code, and not by its name."""
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    return not isinstance(module, types.ModuleType) or is_own(module) or "<locals>" in obj.__qualname__


@functools.lru_cache(4096)
def is_installed(path: str) -> bool:
    """Whether a file is of Python, of a package, or of this one."""
    # The standard library (`sysconfig` would say the same, after 15 ms), what is installed, and we ourselves.
    folders = [os.path.dirname(os.__file__), *site.getsitepackages(), site.getusersitepackages()]
    folders.append(os.path.dirname(os.path.dirname(__file__)))
    path = os.path.realpath(path)
    if path.startswith(tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)):
        return True
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
