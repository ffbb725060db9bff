"""The names that a user's function reads from its surroundings, and which code is the user's."""

import contextlib
import dis
import functools
import importlib.machinery
import os
import site
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

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


def is_own(module: types.ModuleType) -> bool:
    """Whether a module is the user's: neither installed nor of Python, nor ours, nor compiled."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if name == "__main__":
        return True
    if isinstance(file, str):
        return not file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)) and not _is_installed(file)
    folders = getattr(module, "__path__", None)
    if folders is not None:  # a namespace package
        return not any(map(_is_installed, folders))
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
def _is_installed(path: str) -> bool:
    # The standard library (`sysconfig` would say the same, after 15 ms), what is installed, and we ourselves.
    folders = [os.path.dirname(os.__file__), *site.getsitepackages(), site.getusersitepackages()]
    folders.append(os.path.dirname(os.path.dirname(__file__)))
    path = os.path.realpath(path)
    if path.startswith(tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)):
        return True
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
