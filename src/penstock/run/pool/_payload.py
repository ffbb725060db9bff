"""How a plan travels to worker processes, with the user's functions in it.

A payload is a pickle and some arrays. The pickle holds functions and classes by value if they belong to the main module
or to modules that are not installed (one beside the script, a test module), with the globals that they mention.
Installed modules go by reference, and a worker imports them. Not in the pickle: large arrays, of which a worker gets a
copy on write of shared memory; memmaps, which it maps again by path; open files, which are refused.

A module of the user's that is used as an object (`import mylib`, then `mylib.f`) travels as a module with the names
that travelling functions take from it. Its other imports stay behind: no worker imports a framework that only the
training uses.

Packing imports nothing of the user's, and runs only the methods by which objects are pickled. An object that cannot
travel is refused by the name of its variable. That name is found afterwards, by packing parts.
"""

import contextlib
import functools
import inspect
import io
import itertools
import os
import pickle
import random
import sys
import threading
import types
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import cloudpickle
import numpy as np
import numpy.typing as npt

from penstock.base._code import closure_of, globals_of, is_own, is_own_code, mentioned_in, uses
from penstock.base._errors import SourceError, TravelError, type_of
from penstock.base._travel import Journey, packing_for
from penstock.lower._analysis import held_in
from penstock.memory._pickles import Sink, TooLargeError, reduced
from penstock.memory._shared import View, lay_out
from penstock.plan._cache import Cache
from penstock.plan._node import Node, allow_depth, located, walk
from penstock.plan._source import Source
from penstock.plan._stream import StreamSource
from penstock.run.pool._foreign import reduced_foreign, seeded_layers
from penstock.sources.npy import StridedFile

SHARED_ARRAY_NBYTES: Final = 1 << 20
"""Arrays from this size on go into shared memory."""
PAYLOAD_LIMIT_NBYTES: Final = 32 << 20
"""Limit of the pickle: each worker has a copy, and takes time to make it."""

Array = npt.NDArray[Any]


@final
@dataclass(frozen=True)
class PlanPayload:
    """Something packed."""

    data: bytes
    """The input of `unpack`, with the memory of the arrays."""
    arrays: tuple[Array, ...]
    """Arrays for shared memory: each is one piece of memory, C or Fortran, without Python objects."""

    generators: tuple[str, ...] = ()
    """The types of random generators in it. Each worker gets a copy."""
    unseen: tuple[Cache, ...] = ()
    """Caches of datasets that functions hold, whose specs are unknown. In a worker they keep nothing."""
    makes_itself: bool = False
    """Whether an object of another library says itself how it is made again, which may fail in a worker."""

    @property
    def shared_nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)


class _Mapped(NamedTuple):
    """An array, as the file that it maps."""

    file: StridedFile
    is_memmap: bool
    """Or else a plain view of one."""

    def load(self, _: object) -> Array:
        """Maps it again, copy on write."""
        file = self.file
        first, end = file.extent
        with contextlib.suppress(FileNotFoundError), open(file.path, "rb") as opened:
            status = os.fstat(opened.fileno())
            if (status.st_dev, status.st_ino) == (file.st_dev, file.st_ino) and status.st_size >= end:
                return self._of(np.memmap(opened, np.uint8, "c", first, (end - first,)), file.offset - first)
        raise SourceError(
            f"{file.path} was deleted, replaced or shortened since it was mapped and given to a dataset. Map it again "
            "and make the dataset again."
        )

    def _of(self, whole: Array, offset: int) -> Array:
        kind: type[Array] = np.memmap if self.is_memmap else np.ndarray
        array: Array = np.ndarray.__new__(kind, self.file.shape, self.file.dtype, whole, offset, self.file.strides)
        if self.is_memmap:
            array.__dict__.update(whole.__dict__)  # the mapping, its name and offset
        return array


def pack(plan: Node, value: Any, *, leaves_machine: bool = False) -> PlanPayload:
    """Packs a value for worker processes. Takes the memory that `lay_out` copies, and no more.

    Args:
        plan: The plan in it, to name what does not travel, and to know which nodes are its own.
        value: The plan, and what goes with it; `unpack` returns it.
        leaves_machine: Whether it goes to other machines, which know files by their content.

    Raises:
        SourceError: A file is gone, or was replaced.
        TravelError: An object cannot travel. Names the step and the variable.
    """
    try:
        allow_depth(plan)
        own = {id(node) for node in walk(plan)}
        pickler, sink = _pickled(value, PAYLOAD_LIMIT_NBYTES, own=own, leaves_machine=leaves_machine)
    except SourceError:
        raise
    except Exception as error:  # whatever it is: methods of the user's objects are called to pickle them
        raise _diagnosis(held_in(plan), error) from (None if isinstance(error, TooLargeError) else error)
    views, roots = lay_out([array for array, file in pickler.arrays if file is None])
    rest = iter(views)
    places = [next(rest) if file is None else _Mapped(file, type(array) is np.memmap) for array, file in pickler.arrays]
    with packing_for(Journey(leaves_machine)):
        data = pickle.dumps(places, protocol=5) + b"".join(sink.pieces)
    return PlanPayload(data, roots, tuple(sorted(pickler.generators)), tuple(pickler.unseen), pickler.makes_itself)


def unpack(data: bytes, arrays: Sequence[npt.NDArray[np.uint8]]) -> Any:
    """Makes again, in a worker, the value that `pack` was given.

    Args:
        data: That of the payload.
        arrays: The memory of each of its arrays, writable, shape `(nbytes,)`. The value holds views of them.

    Raises:
        SourceError: The file of a memmap is gone or another.
        Exception: Raised by the user's objects when they are made; ImportError for a missing module.
    """
    file = io.BytesIO(data)
    places = pickle.load(file)
    return _Unpickler(file, places, arrays).load()


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, file: io.BytesIO, places: Sequence["View | _Mapped"], roots: Sequence[npt.NDArray[np.uint8]]
    ) -> None:
        super().__init__(file)
        self._places = places
        self._roots = roots
        self._loaded: dict[int, Array] = {}

    def persistent_load(self, number: int) -> Array:
        if number not in self._loaded:
            self._loaded[number] = self._places[number].load(self._roots)
        return self._loaded[number]


# cloudpickle's list of modules to take by value belongs to the process, so one thread at a time changes it. It may come
# again, from a method of the user's by which an object is pickled.
@final
class _Turn:
    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """After fork(): the thread that held the lock does not exist in the child."""
        self.lock = threading.RLock()


_turn = _Turn()


def _pickled(
    value: Any,
    limit_nbytes: int,
    *,
    is_kept: bool = True,
    own: Collection[int] = (),
    leaves_machine: bool = False,
) -> tuple["_Pickler", Sink]:
    names = _Names()
    while True:
        sink = Sink(limit_nbytes, is_kept=is_kept)
        with _turn.lock, packing_for(Journey(leaves_machine)):
            pickler = _Pickler(sink, names, own)
            try:
                pickler.dump(value)
            finally:
                pickler.forget()
        if not pickler.lacks_names():
            return pickler, sink


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """One dump of cloudpickle's pickler, under the lock, with our own ways for arrays, modules and files.

    Args:
        sink: Where it writes.
        names: The names that functions take from modules, from earlier dumps of the same value. This one adds to it.
        own: The ids of the plan's nodes. Others are of datasets that functions hold.
    """

    def __init__(self, sink: Sink, names: "_Names", own: Collection[int]) -> None:
        super().__init__(sink, protocol=5)
        self.arrays: list[tuple[Array, StridedFile | None]] = []
        """Arrays that are not in the pickle, by number, with the files of those that are mapped."""
        self.generators: set[str] = set()
        self.makes_itself = False
        """See `PlanPayload`."""
        self.unseen: list[Cache] = []
        """See `PlanPayload`."""
        self._numbers: dict[int, int] = {}
        self._names = names
        self._own = own
        self._sent: list[tuple[types.ModuleType, set[str]]] = []
        self._looked_at: set[str] = set()
        self._registered: list[types.ModuleType] = []
        self._aliases: set[int] = set()

    def forget(self) -> None:
        """Undoes the registration of modules in cloudpickle, except the user's own."""
        for module in self._registered:
            with contextlib.suppress(ValueError):  # a thread of the user's has done it
                cloudpickle.unregister_pickle_by_value(module)

    def lacks_names(self) -> bool:
        """Whether a module went without a name that a function pickled later takes from it: then once more."""
        return any(self._names.of(module) - sent for module, sent in self._sent)

    def persistent_id(self, obj: Any) -> int | None:
        """The number of an array that is not in the pickle; the same array, the same number."""
        if type(obj) is not np.ndarray and type(obj) is not np.memmap:
            return None
        number = self._numbers.get(id(obj))
        if number is None and obj.size:
            file = StridedFile.of_memmap(obj)
            if file is not None or (obj.nbytes >= SHARED_ARRAY_NBYTES and not obj.dtype.hasobject):
                self._numbers[id(obj)] = number = len(self.arrays)
                self.arrays.append((obj, file))  # which keeps the id its own
        return number

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for all but plain values."""
        if isinstance(obj, np.ndarray):
            return _reduce_array(obj)
        if isinstance(obj, types.FunctionType):
            self._look_at(obj.__module__)
            reduced = super().reducer_override(obj)
            if reduced is not NotImplemented:
                self._names.add(obj)
            return reduced
        if isinstance(obj, types.CodeType):
            # From 3.1.3 on, cloudpickle drops the file's name, and tracebacks would not show the user's lines.
            return _code, (obj.co_filename, *self.dispatch_table[types.CodeType](obj))
        if isinstance(obj, type):
            self._look_at(obj.__module__)
        elif isinstance(obj, types.ModuleType):
            if is_own(obj):
                return self._reduce_module(obj)
        elif isinstance(obj, Cache):
            if id(obj) not in self._own and obj.known_spec is None:
                self.unseen.append(obj)
        elif isinstance(obj, _HINTS):
            if not _is_of_installed(obj):  # or else by name
                return self._reduce_hint(obj)
        elif isinstance(obj, functools._lru_cache_wrapper):
            if is_own_code(obj):  # or else it would go as a name in its module, which a worker would import
                return _cached, (obj.__wrapped__, obj.cache_parameters())
        elif isinstance(obj, _OPEN_FILES) and obj is not sys.stdout and obj is not sys.stderr:
            raise TypeError("an open file belongs to its process")  # cloudpickle would send its text
        elif isinstance(obj, (np.random.Generator, np.random.RandomState, random.Random)):
            for module, name in ((np.random.mtrand, "_rand"), (random, "_inst")):
                if obj is getattr(module, name, None):
                    return getattr, (module, name)  # that of the worker, which is seeded for each element
            if not isinstance(obj, random.SystemRandom):
                self.generators.add(type(obj).__name__)
        elif (foreign := reduced_foreign(obj)) is not NotImplemented:
            return foreign
        else:
            self.generators.update(seeded_layers(obj))
        self.makes_itself = self.makes_itself or _makes_itself(type(obj))
        return super().reducer_override(obj)

    def _look_at(self, name: str | None) -> None:
        """Registers a module of the user's, once, when the first of its functions or classes comes."""
        if name is None or name in self._looked_at:
            return
        self._looked_at.add(name)
        module, known = sys.modules.get(name), cloudpickle.list_registry_pickle_by_value()
        if isinstance(module, types.ModuleType) and is_own(module) and module.__name__ not in known:
            with contextlib.suppress(ValueError):  # it is there under another name
                cloudpickle.register_pickle_by_value(module)
                self._registered.append(module)

    def _reduce_module(self, module: types.ModuleType) -> Any:
        content = {name: vars(module)[name] for name in self._names.of(module)}
        self._sent.append((module, set(content)))
        # The content is set when the module exists, for it may refer to the module.
        return types.ModuleType, (module.__name__,), content, None, None, _fill_module

    def _reduce_hint(self, hint: Any) -> Any:
        """Types of annotations; pickle and cloudpickle would make a worker look them up in the user's module."""
        if isinstance(hint, typing.NewType):
            return typing.NewType, (hint.__name__, hint.__supertype__)
        if isinstance(hint, (typing.ParamSpec, typing.TypeVarTuple)):
            return type(hint), (hint.__name__,)
        # One that comes again comes in its own value, `type Tree = list[Tree]`, which pickle cannot say.
        value = typing.Any if id(hint) in self._aliases else hint.__value__
        self._aliases.add(id(hint))
        return _alias, (hint.__name__, value, hint.__type_params__)


class _Names:
    """The names that travelling functions take from the user's modules."""

    def __init__(self) -> None:
        self._taken: dict[str, set[str]] = {}
        self._mentioned: set[str] = set()

    def of(self, module: types.ModuleType) -> set[str]:
        """The names of one module; if it is known by no function, all names that are mentioned anywhere."""
        # A module that makes its names when they are asked for (PEP 562) goes on doing so.
        names = self._taken.get(module.__name__, self._mentioned) | {"__getattr__"}
        return (names - {"__builtins__", "__loader__", "__spec__"}) & vars(module).keys()

    def add(self, function: types.FunctionType) -> None:
        """Adds what a function takes: `mylib.f` takes `f`, and if `mylib` is used otherwise, all that it mentions."""
        mentioned = set(mentioned_in(function.__code__))
        self._mentioned |= mentioned
        scope = {**globals_of(function, mentioned), **closure_of(function)}
        if not any(isinstance(value, types.ModuleType) and is_own(value) for value in scope.values()):
            return
        for name, attributes in uses(function.__code__):
            value = scope.get(name)
            while isinstance(value, types.ModuleType) and is_own(value):
                taken = self._taken.setdefault(value.__name__, set())
                if not attributes:
                    taken |= mentioned
                    break
                name, *attributes = attributes
                taken.add(name)
                value = vars(value).get(name)


_OPEN_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


# `type X = ...` is of Python 3.12.
_HINTS = (typing.NewType, typing.ParamSpec, typing.TypeVarTuple, getattr(typing, "TypeAliasType", typing.NewType))


def _is_of_installed(hint: Any) -> bool:
    module = sys.modules.get(hint.__module__ or "")
    return module is not None and not is_own(module) and getattr(module, hint.__name__, None) is hint


def _alias(name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    return typing.TypeAliasType(name, value, type_params=parameters)  # type: ignore[attr-defined]  # of 3.12


def _code(filename: str, make: Callable[..., types.CodeType], arguments: tuple[Any, ...]) -> types.CodeType:
    return make(*arguments).replace(co_filename=filename)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _fill_module(module: types.ModuleType, content: dict[str, Any]) -> None:
    vars(module).update(content)
    vars(module).setdefault("__getattr__", functools.partial(_absent, module.__name__))


def _absent(module: str, name: str) -> Any:
    raise AttributeError(
        f"module {module!r} came to this worker process with the names that the dataset's functions take from it, and "
        f"{name!r} is not one. Write `import {module}` inside the function to have all of it."
    )


def _makes_itself(kind: type) -> bool:
    """Whether a class, neither of ours nor of Python's nor of NumPy's, has a way of its own to be made again."""
    root = kind.__module__.partition(".")[0]
    if root in ("penstock", "numpy", "optree", "cloudpickle") or root in sys.stdlib_module_names - {"__main__"}:
        return False
    ways = (getattr(kind, name, None) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__"))
    return any(ways) or hasattr(kind, "__setstate__")


def _reduce_array(array: Any) -> Any:
    """Large arrays of subclasses: as a plain array, which is shared, and their type; others as they are."""
    kind: Any = type(array)
    if array.nbytes < SHARED_ARRAY_NBYTES or array.dtype.hasobject:
        return reduced(array)
    if kind is np.ma.MaskedArray:
        return kind, (array.data, array.mask, None, False, True, 0, array.fill_value)
    if kind.__reduce__ is np.ndarray.__reduce__ and kind.__reduce_ex__ is np.ndarray.__reduce_ex__:
        return np.ndarray.view, (array.view(np.ndarray), kind)
    return NotImplemented


# What follows runs after a failure, to find its cause.


def stay_behind(plan: Node) -> list[TravelError]:
    """Returns an error for each function and source of a plan that cannot travel. Copies no arrays."""
    found = []
    for step in held_in(plan):
        try:
            _pickled(step[1], PAYLOAD_LIMIT_NBYTES, is_kept=False)
        except Exception as error:
            found.append(_diagnosis([step], error))
    return found


def _diagnosis(held: Sequence[tuple[Node, Any]], error: Exception) -> TravelError:
    """Names the step and the variable that cannot travel."""
    node, value = next((step for step in held if _why_not(step[1])), (None, None))
    if node is None:
        why = f"{type(error).__name__}: {error}"
        return TravelError(f'This dataset cannot travel to a worker process ({why}). Use executor="threads".')
    words, culprit = _narrowed(value, set())
    cure = "Give files or arrays (from_npy, from_arrays)"
    if node.opens is None:  # a generator or a function
        cure = "Make it inside the generator"
        if node.inputs:
            cure = "Make it inside the function, give it as NumPy arrays, which workers share"
    what = [*words, type_of(culprit)]
    what[-2:] = [", ".join(what[-2:])]
    return TravelError(
        f"{located(node)} {'is' if culprit is value else 'holds'} {', in it '.join(what)}, which cannot travel to a "
        f'worker process ({_why_not(culprit)}). {cure}, or use executor="threads".'
    )


def _why_not(value: Any) -> str:
    """Why a value cannot travel; empty if it can."""
    try:
        _pickled(value, PAYLOAD_LIMIT_NBYTES, is_kept=False)
    except TooLargeError as error:
        return f"it is {error} pickled; besides arrays, no more travels"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def _narrowed(value: Any, above: set[int]) -> tuple[list[str], Any]:
    """The part of a value that cannot travel: the words that lead to it, and itself."""
    above = {*above, id(value)}
    for words, part in _parts(value):
        if id(part) not in above and len(above) < 10 and _why_not(part):
            inner, culprit = _narrowed(part, above)
            return [words, *inner] if words else inner, culprit
    return [], value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts that are pickled with a value, each with words for it; empty words where they would say nothing."""
    kind = type(value)
    if isinstance(value, types.MethodType):
        yield from (("", value.__func__), ("", value.__self__))
    elif isinstance(value, functools.partial):
        yield "", value.func
        arguments: dict[Any, Any] = {**dict(enumerate(value.args)), **value.keywords}
        yield from ((f"the argument `{name}`", each) for name, each in arguments.items())
    elif isinstance(value, functools._lru_cache_wrapper):
        yield "", value.__wrapped__
    elif isinstance(value, types.FunctionType) and is_own_code(value):
        names = {name for name, _ in uses(value.__code__)}
        yield from ((f"the variable `{name}`", each) for name, each in closure_of(value).items())
        yield from ((f"the global `{name}`", each) for name, each in globals_of(value, names).items())
        for parameter in inspect.signature(value, follow_wrapped=False).parameters.values():
            yield f"the default of `{parameter.name}`", parameter.default
    elif isinstance(value, type) and is_own_code(value):
        # Methods last: one that says `super()` holds the class, with all that is wrong with it.
        members = {name: each for name, each in vars(value).items() if name not in ("__dict__", "__weakref__")}
        for name in sorted(members, key=lambda name: isinstance(members[name], types.FunctionType)):
            yield f"`{value.__name__}.{name}`", members[name]
    elif kind in (list, tuple, set, dict):
        items = value.items() if kind is dict else enumerate(value)
        yield from ((f"the item {key!r:.40}", each) for key, each in itertools.islice(items, 1000))
    else:
        ways = ("__reduce__", "__reduce_ex__", "__getstate__")
        is_plain = all(getattr(kind, name) is getattr(object, name) for name in ways)
        ours = kind.__module__.partition(".")[0] == "penstock"  # whose attributes say nothing to the user
        if isinstance(value, StreamSource) or (is_plain and (isinstance(value, Source) or not ours)):
            for name, each in getattr(value, "__dict__", {}).items():
                yield "" if ours else f"the attribute `{name}`", each
        yield "", kind
