"""Better errors for wrong calls, and checks of arguments.

Covers unknown and missing arguments, several arguments in place of one tuple, and data in place of an array. Names from
tf.data, torch and Keras are answered with the name used here, as in docs/coming-from/.
"""

import contextlib
import copy
import functools
import inspect
import itertools
import math
import operator
import os
import shlex
from collections.abc import Callable, Collection, Iterator
from numbers import Real
from typing import Any, ClassVar, Final, NoReturn, TypeVar, get_args

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, type_of
from penstock.base._foreign_words import words
from penstock.base._tracebacks import shorten

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


class NoArray:
    """A mixin for lazy objects: they cannot become arrays, and have no shape.

    NumPy would wrap the object. Keras reads the shape of any object with an `__array__`, and rejects others without
    naming a remedy.
    """

    __slots__ = ()

    _called: ClassVar[str]
    """Its name in messages, with the article."""
    _no_array: ClassVar[str]
    """Why it is no array, and the cure."""

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuses to become an array: that would be all of the data, loaded one element at a time."""
        raise ArgumentTypeError(f"{self._called} is no array: {self._no_array}")

    @property
    def shape(self) -> NoReturn:
        """No attribute of this, and an AttributeError; Keras asks for it when it is given one as it is."""
        raise AttributeError(f"{self._called} has no shape: {self._no_array}", name="shape", obj=self)


DATA: Final = frozenset({"args", "data", "elements", "initial", "loader", "source", "targets", "tree"})
"""The arguments of public functions that are data, and so handles: they stay the caller's. All others are copied."""


def own(value: Any) -> Any:
    """Copies what a caller may write to later: arrays, lists, dicts and sets, also within each other."""
    if isinstance(value, (np.ndarray, set, bytearray)):
        return value.copy()
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({name: own(each) for name, each in value.items()})
        return made
    if not isinstance(value, (list, tuple)):
        return value
    is_plain = all(issubclass(kind, (str, int, float, np.number, np.bool_)) for kind in set(map(type, value)))
    items = list(value) if is_plain else [own(each) for each in value]
    if isinstance(value, list):
        return items
    if is_plain or all(mine is theirs for mine, theirs in zip(items, value, strict=True)):
        return value
    return value._make(items) if hasattr(value, "_make") else tuple(items)


def as_int(value: Any) -> int | None:
    """Converts an integer of any library to `int`. Returns None for a bool and for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_float(value: Any) -> float | None:
    """Converts a real number to `float`, infinite above the largest. Returns None for bools, time spans or others."""
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def items_of(value: Any) -> list[Any] | None:
    """The items of a list, an array of one axis or whatever else has some; None for text, and for what has none."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        items = iter(value)
    except TypeError:  # also of an array without an axis, which only seems to have some
        return None
    return list(items)


def check_choice(what: str, value: object, literal: Any) -> None:
    """Refuses a value that is not in a `Literal`."""
    if value not in get_args(literal):
        raise ArgumentError(f"{what} is {value!r}. It is one of {', '.join(map(repr, get_args(literal)))}.")


def checked_size(size: object, what: str = "size") -> tuple[int, int]:
    """Returns a height and width as plain ints, or raises an error."""
    sides = [as_int(each) for each in size] if isinstance(size, (tuple, list)) else [None]
    numbers = [number for number in sides if number is not None]
    if len(numbers) < len(sides):
        raise ArgumentTypeError(
            f"{what} is {size!r}, {type_of(size)}. It is two integers, (height, width): (180, 180)."
        )
    if len(numbers) != 2 or min(numbers) < 1:
        raise ArgumentError(f"{what} is {size!r}. It is two integers of at least 1, (height, width): (180, 180).")
    return numbers[0], numbers[1]


def bytes_of(data: Any, what: str, cure_of_path: str = "") -> memoryview:
    """Returns the bytes of a file that are in any buffer.

    Args:
        data: What the user gave.
        what: The beginning of the message: "A sound is the path or the bytes of a file".
        cure_of_path: What to do with a path.

    Raises:
        ArgumentTypeError: It is something else, such as an element or what is decoded already.
    """
    found, cure = type_of(data), ""
    if isinstance(data, dict):
        found, cure = f"a dict of {list(data)}", " Choose from it: map(lambda e: decoding(e['bytes']))."
    elif isinstance(data, (str, os.PathLike)):
        found, cure = f"the path {os.fspath(data)!r:.80}", cure_of_path
    elif isinstance(data, (np.ndarray, np.generic)) and data.dtype.kind not in "SV" and data.dtype.itemsize > 1:
        found, cure = f"an array of {data.dtype}, {data.shape}", " If it is decoded already, use it as it is."
    else:
        with contextlib.suppress(TypeError):
            return memoryview(data).cast("B")
    raise ArgumentTypeError(f"{what}, and this is {found}.{cure}")


def install(*packages: str) -> str:
    """The command that installs packages of PyPI."""
    return f"pip install {shlex.join(packages)}"


@contextlib.contextmanager
def needs(verb: str, *packages: str, more: str = "") -> Iterator[None]:
    """Adds the command that installs what a failed import inside needs: `packages`, by their names on PyPI.

    Not an extra of ours: where this package came from a clone or a wheel, a name on PyPI would not be it. `verb` is a
    function, or says in words what was done.
    """
    try:
        yield
    except ModuleNotFoundError as error:  # a module that exists but fails to load says why itself
        what = verb if " " in verb else f"{verb}()"
        raise ModuleNotFoundError(f"{what} needs {error.name}: {install(*packages)}.{more}", name=error.name) from error


def explained(fn: _Function, options: Collection[str] = ()) -> _Function:
    """Returns the function with better errors for a call that cannot work; its signature stays.

    Here arguments enter, so the function gets its own copies of arrays, lists and dicts, but for those of `DATA`.

    Args:
        fn: A public function.
        options: The names that it takes as `**loader_options`.
    """
    flags = frozenset(name for name, kind in fn.__annotations__.items() if kind in (bool, "bool"))
    names = [name for name, each in inspect.signature(fn).parameters.items() if each.kind in _BY_PLACE]

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            for name in flags.intersection(kwargs):
                _require_flag(fn, name, kwargs[name])
            places = itertools.chain(names, itertools.repeat(names[-1] if names else ""))
            args = tuple(each if name in DATA else own(each) for each, name in zip(args, places, strict=False))
            kwargs = {name: each if name in DATA else own(each) for name, each in kwargs.items()}
            return fn(*args, **kwargs)
        except TypeError as error:
            # An error from inside the function passes, unless the call itself was wrong.
            if not isinstance(error, PenstockError) and (text := _misuse(fn, args, kwargs, options)):
                raise ArgumentTypeError(text) from None
            shorten(error)
            raise
        except PenstockError as error:
            shorten(error)
            raise

    return call  # type: ignore[return-value]


_BY_PLACE: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def _require_flag(fn: Callable[..., Any], name: str, value: Any) -> None:
    """Refuses what Python would only take for true, such as the text "False"; 0 and 1 are no mistakes."""
    if not isinstance(value, (bool, np.bool_)) and as_int(value) not in (0, 1):
        raise ArgumentTypeError(f"{_called(fn)}({name}={value!r:.80}): True or False is needed, not {type_of(value)}.")


def _called(fn: Callable[..., Any]) -> str:
    """The name that the user called: of a class, not of what begins its objects."""
    return fn.__qualname__.partition(".")[0] if fn.__name__ == "__init__" else fn.__name__


def explained_methods(options: Collection[str]) -> Callable[[_Class], _Class]:
    """Makes a class decorator that does so with all public methods."""

    def decorated(cls: _Class) -> _Class:
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and not name.startswith("_"):
                setattr(cls, name, explained(value, options))
        return cls

    return decorated


def _misuse(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Collection[str]) -> str:
    """The message about a call that does not fit the signature of a function; empty if it fits, or if Python's is."""
    name = _called(fn)
    signature = inspect.signature(fn)
    kinds = {each.name: each.kind for each in signature.parameters.values() if each.name != "self"}
    places = [each for each, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    by_name = [each for each, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    known = [*places, *by_name, *(options if inspect.Parameter.VAR_KEYWORD in kinds.values() else ())]
    unknown = next((each for each in kwargs if each not in known), None)
    if unknown is not None:
        takes = f"It takes {', '.join(known)}." if known else "It takes none."
        return " ".join(filter(None, (f"{name}() has no argument {unknown}=.", _cure(unknown, known), takes)))
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given_count = len(args) - ("self" in signature.parameters)
        cures = words("too_few" if "missing" in str(error) else "too_many")
        if name in cures:
            return f"{name}() {cures[name]}"
        # Python's `zip` and torch's `TensorDataset` take one by one what these take in one.
        if places in (["tree"], ["path_or_tree"], ["datasets"], ["paths"]) and given_count > 1:
            return f"{name}() takes one tuple of them, not {given_count} arguments: {name}((a, b))."
        if by_name and given_count > len(places):
            return f"{name}() takes {', '.join(places) or 'nothing'} by position, and by name: {', '.join(by_name)}."
    return ""


def refuse_attribute(owner: object, name: str, who: str, *tables: str, cure: str = "") -> NoReturn:
    """Raises the error about a name that the package, or an object of a public class, does not have.

    Args:
        owner: The object that was asked.
        name: The attribute.
        who: The object in the user's words, such as `A dataset`.
        tables: Of `foreign_words.toml`, which may have the name; by default that of functions and methods.
        cure: What stands in for it, where the caller knows.

    Raises:
        AttributeError: Always; that of a property of this name, where one failed.
    """
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)  # a property, which said why it has no value: let it say so again
    cure = cure or words(*(tables or ("names",))).get(name, "")
    raise AttributeError(f"{who} has no {name!r}{f': {cure}' if cure else ''}.", name=name, obj=None if cure else owner)


def _cure(name: str, known: list[str]) -> str:
    import difflib  # only here, for an error

    if (same := words("same").get(name)) in known:
        return f"Here it is {same}=."
    if cure := words("arguments").get(name):
        return cure
    alike = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {alike[0]}=?" if alike else ""
