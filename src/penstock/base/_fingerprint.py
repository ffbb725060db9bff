"""Fingerprints of functions and values: 16 bytes that are the same in every process.

- The user's functions and classes: instructions with their constants and names, defaults, closures, and the globals
  that they mention, and attributes of functions. File, line, name, docstring and annotations do not count.
- Installed functions and classes: module, name and version.
- Values: their contents. Objects: the class, and the state that pickle would write.

A value may refer to itself. Functions, classes and objects are therefore numbered in the order of the walk, which does
not depend on hashes or addresses. Plain values are compared by value alone: whether two equal constants are one object
differs between a compiled file and a fresh compilation.

- Modules that the user's functions import when they run: the files, and those of the user's modules that these import.

Not seen: what a function reads by itself (a file whose path it holds, an environment variable, the time), globals
that it reaches by a computed name (`globals()[name]`, `eval`), and attributes that a program sets in a module that a
function imports when it runs.

Speed: arrays at that of BLAKE2b, 0.8 GB/s on one core of the machine we measure on; a function takes some 0.1 ms.
"""

import contextlib
import copyreg
import dis
import functools
import hashlib
import inspect
import mmap
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._code import closure_of, imported, is_installed, is_own, is_own_code, uses
from penstock.base._errors import PenstockError, type_of
from penstock.base._files import lasting_stamp
from penstock.base._tree import text_of_structure

OWN_VERSION: Final = "0.1.0"
"""Of the meaning of this package's own names. A release that changes none keeps it, and so caches and states stay."""
LARGE_NBYTES: Final = 1 << 20
"""Arrays from this size on are left out of a quick look."""
_PIECE_COUNT: Final = 1 << 16
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
# Attributes of a class that do not change its behaviour. `__static_attributes__` has the order of a set.
_SILENT: Final = {
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__module__",
    "__orig_bases__", "__parameters__", "__qualname__", "__static_attributes__", "__type_params__", "__weakref__",
    "_abc_impl",
}  # fmt: skip
_WRAPPERS: Final[dict[type, tuple[str, ...]]] = {
    types.MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
}
"""The attributes that distinguish an object of these classes."""
_NAMED_KINDS: Final = (types.BuiltinFunctionType, np.ufunc, type(np.mean))
_MISSING: Final = object()


class NoFingerprintError(PenstockError, TypeError):
    """A value has nothing that would tell it from others in another process."""


def fingerprint(value: Any, skipped: list[str] | None = None) -> str:
    """Returns the fingerprint of a value: 32 hexadecimal digits.

    Args:
        value: Anything.
        skipped: Where it is given, contents of large arrays are left out, and what was left out is added to it. Then
            this says no more than that there is a fingerprint.

    Raises:
        NoFingerprintError: Something in it has none; says by which variables it is reached.
    """
    walk = _Walk(skipped)
    walk.add(value)
    return walk.hash.hexdigest()


def fingerprints(value: Any, name: str, skipped: list[str] | None = None) -> dict[str, str]:
    """Returns the fingerprint of a value as those of its parts, by which a change can be named.

    Args:
        value: Anything; of functions of the user, the parts are the code and each variable, of what says itself what
            its parts are (`fingerprint_parts`), those.
        name: The name of a value that has one part.
        skipped: As for `fingerprint`.

    Raises:
        NoFingerprintError: As `fingerprint`.
    """
    found: dict[str, str] = {}
    if callable(parts := getattr(type(value), "fingerprint_parts", None)):
        for part, each in parts(value).items():
            found |= fingerprints(each, part, skipped)
        return found
    if not isinstance(value, types.FunctionType) or not is_own_code(value):
        return {name: fingerprint(value, skipped)}
    for part, each in _parts_of_function(value):
        walk = _Walk(skipped)
        walk.number(value)  # by which it may be called in there
        walk.words.append(part)
        walk.add(each)
        found[part] = walk.hash.hexdigest()
    return found


@final
class _Walk:
    """One way through a value. All is written to the hash with its kind and length, so that nothing runs together."""

    def __init__(self, skipped: list[str] | None) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self.words: list[str] = []
        """Where in the value it is, for messages."""
        self._skipped = skipped
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that an address belongs to one object as long as this lives
        self._open: dict[int, int] = {}

    def number(self, value: Any) -> bool:
        """Gives a value its number; or, if it has one, writes that and returns False."""
        known = self._numbers.get(id(value))
        if known is not None:
            self._put("again", str(known))
            return False
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        return True

    def add(self, value: Any) -> None:
        """Writes a value."""
        kind = type(value)
        if kind in _PLAIN:
            self._put(kind.__name__, repr(value))
        elif kind in (tuple, list, dict, set, frozenset):
            self._add_container(value)
        elif isinstance(value, np.ndarray):
            self._add_array(value)
        elif isinstance(value, np.generic) and not isinstance(value, (np.object_, np.void)):
            self._put("scalar", value.dtype.str)
            self._put("bytes", value.tobytes())
        elif isinstance(value, (types.FunctionType, type)):
            self._add_named(value, _parts_of_function if isinstance(value, types.FunctionType) else _parts_of_class)
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, types.ModuleType):
            self._add_module(value)
        elif callable(parts := getattr(kind, "fingerprint_parts", None)):
            self._add_members(kind.__name__, parts(value).items())
        elif kind in _WRAPPERS:
            self._add_members(kind.__name__, [("", getattr(value, name)) for name in _WRAPPERS[kind]])
        elif isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            self._put("slot", value.__name__)
        elif isinstance(value, functools._lru_cache_wrapper) and is_own_code(value):
            self._add_members("cached", [("", value.__wrapped__)])
        elif isinstance(function := getattr(value, "py_func", None), types.FunctionType):
            self._add_members("compiled", [("", function)])  # by Numba, which would number it afresh in each process
        else:
            self._add_object(value)

    def _put(self, kind: str, data: str | bytes) -> None:
        raw = data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace")
        self.hash.update(f"{kind}:{len(raw)}:".encode())
        self.hash.update(raw)

    def _add_at(self, words: str, value: Any) -> None:
        self.words.append(words)
        self.add(value)
        self.words.pop()

    def _add_members(self, kind: str, parts: Any) -> None:
        parts = list(parts)
        self._put(kind, str(len(parts)))
        for words, value in parts:
            self._put("part", words)
            self._add_at(words, value)

    def _digest_of(self, value: Any) -> bytes:
        """That of a value by itself, by which it has a place among others that have no order."""
        alone = _Walk(self._skipped)
        alone.words, alone._open = self.words, self._open
        alone.add(value)
        return alone.hash.digest()

    def _add_container(self, value: Any) -> None:
        kind = type(value).__name__
        if id(value) in self._open:
            self._put("within", str(len(self._open) - self._open[id(value)]))
            return
        self._open[id(value)] = len(self._open)
        self._put(kind, str(len(value)))
        if isinstance(value, dict):
            for key, each in value.items():  # in order, which a function may go by
                self._add_at("a key", key)
                self._add_at(f"the item {key!r:.40}", each)
        elif isinstance(value, (set, frozenset)):
            for digest in sorted(map(self._digest_of, value)):
                self._put("member", digest)
        else:
            for number, each in enumerate(value):
                self._add_at(f"the item {number}", each)
        del self._open[id(value)]

    def _add_array(self, array: npt.NDArray[Any]) -> None:
        self._put("array", f"{np.lib.format.dtype_to_descr(array.dtype)!r} {array.shape} {type(array).__name__}")
        if isinstance(file := _file_of(array), tuple):
            self._put("file", repr(file))
        elif array.dtype.hasobject:
            self.add(array.tolist())
        elif self._skipped is not None and array.nbytes >= LARGE_NBYTES:
            self._skipped.append(", in it ".join(self.words))
        else:
            # In C order; buffered, because an array need not be one piece of memory.
            flags: Any = ["external_loop", "buffered", "zerosize_ok"]
            for piece in np.nditer(np.asarray(array), flags=flags, order="C", buffersize=_PIECE_COUNT):
                self.hash.update(np.ascontiguousarray(piece).view(np.uint8).data)  # releases the GIL
        if isinstance(array, np.ma.MaskedArray):
            self._add_members("masked", [("", np.asarray(array.mask)), ("", np.asarray(array.fill_value))])
        kind = type(array)
        if not kind.__module__.startswith("numpy") and self.number(array):
            mapped = {"_mmap", "filename", "mode", "offset"} if isinstance(array, np.memmap) else set()
            names = sorted(set(vars(array)) - mapped)
            self._add_members("kind", [("", kind), *((f"the attribute `{name}`", vars(array)[name]) for name in names)])

    def _add_named(self, value: Any, parts_of: Callable[[Any], Iterator[tuple[str, Any]]]) -> None:
        if not is_own_code(value):
            module = _as_before(value.__module__)
            self._put("installed", f"{module} {value.__qualname__} {_version(module)}")
        elif self.number(value):
            self._add_members("own", parts_of(value))

    def _add_code(self, code: types.CodeType) -> None:
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR)
        self._put("code", f"{counts} {names} {flags}")
        for step in dis.get_instructions(code):
            self._put("step", step.opname)
            if step.opname == "KW_NAMES":  # a constant, which `dis` of Python 3.11 does not look up
                self.add(code.co_consts[step.arg or 0])
            elif step.opcode in dis.hasconst:
                self.add(step.argval)
            elif step.opcode in dis.haslocal or step.arg is None:
                self._put("", str(step.arg))  # a variable by its number: its name changes nothing
            else:
                self._put("", repr(step.argval))
        self._put("handlers", code.co_exceptiontable)

    def _add_module(self, module: types.ModuleType) -> None:
        file = getattr(module, "__file__", None)
        if is_own(module) and isinstance(file, str):  # used as a value, so all of it counts
            code = compile(f"import {module.__name__}", "", "exec")
            self._add_members("module", [("", _content(file)), *_parts_of_imports(code, "")])
        else:
            self._put("module", f"{module.__name__} {_version(module.__name__)}")

    def _add_object(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, _NAMED_KINDS) and any(
            getattr(value, "__self__", None) is each for each in (None, sys.modules["builtins"])
        ):
            if "(vectorized)" in value.__name__:
                raise self._refusal(value, "it hides its function; write the function itself")
            self._put("installed", f"{value.__module__} {value.__name__} {_version(value.__module__ or 'numpy')}")
            return
        if kind.__name__ == "PyTreeSpec":
            self._put("structure", text_of_structure(value))
            return
        if not self.number(value):
            return
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception as error:
            raise self._refusal(value, str(error)) from error
        if isinstance(reduced, str):
            self._put("named", f"{getattr(value, '__module__', None)} {reduced}")
            return
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        if isinstance(state, dict):
            # A cached property counts as absent, computed or not.
            names = sorted((name for name in state if not _is_cached_property(kind, name)), key=str)
            attributes = [(f"the attribute `{name}`", state[name]) for name in names]
        else:
            attributes = [("", state)]
        if is_own_code(kind):
            attributes += self._left_out(value, state)
        self._add_members(
            "object", [("", function), ("", arguments), *attributes, ("", list(items or ())), ("", list(pairs or ()))]
        )

    def _left_out(self, value: Any, state: Any) -> Iterator[tuple[str, Any]]:
        """The attributes that a class of the user's does not pickle, without those that have no fingerprint."""
        kind = type(value)
        if all(
            getattr(kind, name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__", "__getstate__")
        ):
            return
        known = state if isinstance(state, dict) else {}
        for name in sorted(getattr(value, "__dict__", {}).keys() - known.keys()):
            if not _is_cached_property(kind, name):
                alone = _Walk(self._skipped)
                alone._numbers, alone._kept, alone.words = dict(self._numbers), [*self._kept], [*self.words]
                with contextlib.suppress(NoFingerprintError):  # such as an open file, which it leaves out for that
                    alone.add(value.__dict__[name])
                    yield f"the attribute `{name}`", alone.hash.digest()

    def _refusal(self, value: Any, why: str) -> NoFingerprintError:
        path = [word for word in self.words if word]
        return NoFingerprintError(f"{', in it '.join([*path, type_of(value)])}, which has no fingerprint ({why})")


def _is_cached_property(kind: type, name: Any) -> bool:
    return isinstance(getattr(kind, str(name), None), functools.cached_property)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield "the code", function.__code__
    code = function.__code__
    if function.__defaults__:
        names = code.co_varnames[: code.co_argcount][-len(function.__defaults__) :]
        for name, value in zip(names, function.__defaults__, strict=True):
            yield f"the default of `{name}`", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"the default of `{name}`", value
    closure = closure_of(function)
    for name, value in sorted(closure.items()):
        if not (isinstance(value, types.ModuleType) and is_own(value)):
            yield f"the variable `{name}`", value
    for path in sorted({(name, *attributes) for name, attributes in uses(code)}):
        if path[0] not in code.co_freevars:
            yield from _taken(path, function.__globals__.get(path[0], _MISSING))
        elif isinstance(module := closure.get(path[0]), types.ModuleType) and is_own(module):
            yield from _taken(path, module)

    for name, value in sorted(vars(function).items()):
        yield f"the attribute `{function.__name__}.{name}`", value
    yield from _parts_of_imports(code, function.__globals__.get("__package__") or "")


def _parts_of_imports(code: types.CodeType, package: str) -> Iterator[tuple[str, Any]]:
    for name, file in sorted(imported(code, package).items()):
        # The version of the package, and not of the module, which may not be there yet.
        yield f"the module `{name}`", _content(file) if file else _version_of_package(name)


def _content(file: str) -> bytes:
    with open(file, "rb") as opened:
        return hashlib.blake2b(opened.read(), digest_size=16).digest()


def _taken(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    """Resolves a name from outside. For the user's own modules: the attribute that is read from the module."""
    if value is _MISSING:
        return  # one of Python's own, or missing, or a variable of a function inside: its name is in the code
    taken = 1
    while isinstance(value, types.ModuleType) and is_own(value) and taken < len(path):
        value = vars(value).get(path[taken], _MISSING)
        taken += 1
        if value is _MISSING:
            return
    yield f"the global `{'.'.join(path[:taken])}`", value


def _parts_of_class(value: type) -> Iterator[tuple[str, Any]]:
    for number, base in enumerate(value.__bases__):
        yield f"the base {number}", base
    if type(value) is not type:
        yield "the metaclass", type(value)
    for name in sorted(set(vars(value)) - _SILENT):
        yield f"`{value.__name__}.{name}`", vars(value)[name]


def _file_of(array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
    """For an array that maps a file: the file, and where in it the array lies."""
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    buffer: Any = getattr(base, "_mmap", None)
    if buffer is None or base.filename is None or base.mode == "c":
        return None
    path = os.path.abspath(base.filename)
    try:
        state = lasting_stamp(path)
    except OSError:
        return None
    shift = array.__array_interface__["data"][0] - np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    # NumPy maps from the last page boundary before the offset that it was asked for.
    offset = base.offset - base.offset % mmap.ALLOCATIONGRANULARITY + shift
    return path, *state, offset, array.strides


_FOLDERS_BEFORE: Final = {"tables": "formats", "records": "formats", "films": "formats", "files": "sources"}
_MODULES_BEFORE: Final = {"files._recordindex": "formats._recordindex", "image._files": "sources.images"}


def _as_before(module: str) -> str:
    """The name of a module of ours in fingerprints: the one that it had when the first caches were written."""
    root, _, rest = module.partition(".")
    folder, _, name = rest.partition(".")
    if root != "penstock" or not name:
        return module
    return f"{root}.{_MODULES_BEFORE.get(rest) or f'{_FOLDERS_BEFORE.get(folder, folder)}.{name}'}"


@functools.lru_cache(256)
def _version(module: str | None) -> str:
    """The version of what a module belongs to; Python's for its own."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    if top == "penstock":
        return OWN_VERSION
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if isinstance(file, str) and not is_installed(file):
        return _content(file).hex()  # compiled by the user
    version = getattr(sys.modules.get(top), "__version__", None)
    return version if isinstance(version, str) else _version_of_package(top)


@functools.lru_cache(256)
def _version_of_package(top: str) -> str:
    import importlib.metadata  # takes 10 ms

    if top in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        found = importlib.metadata.packages_distributions().get(top)  # all that is installed is looked through: 0.1 s
        return importlib.metadata.version(found[0]) if found else ""
