"""An exception crosses from a worker process to the parent, and looks there as if it had been raised there.

Promises. `dump_error` and `load_error` raise nothing, whatever the exception does. The type's name, the message, the
notes, the chain and the traceback always arrive, up to a limit for each. The exception arrives as its own type where
that can be made again, and else as a `RemoteError` that says why.

Each exception of the chain travels by itself, and refers to the others by number. It travels as its class, its `args`
and its attributes. Neither its constructor nor its own `__reduce__` is called: many constructors want other arguments
than those that they pass on. A part that cannot be pickled stays behind, and a note names it.

A class of the user's `__main__` came to the worker by value. cloudpickle remembers its name, and finds the user's own
class when it returns, so `except MyError` works.

The traceback has real frames, of code that does nothing, with the worker's file, function and line. `tblib` (3.2) was
rejected: its frames hold those of the calling thread by `f_back`, and a deep traceback is a RecursionError.
"""

import copyreg
import io
import pickle
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

import cloudpickle
import numpy as np

from penstock.base._errors import PenstockError, RemoteError, type_of
from penstock.memory._pickles import Sink

PAYLOAD_NBYTES: Final = 1 << 20
"""Limit of each pickled part of an exception."""
_ERROR_LIMIT: Final = 64
"""The most exceptions of a chain."""
_FRAME_LIMIT: Final = 1000
"""The most frames of a traceback: half of them the outermost, half the innermost."""
_TEXT_LENGTH: Final = 20_000
"""The most characters of a message or a note."""
_OUR_ROOTS: Final = {"penstock", "numpy", "optree"}
"""Frames of these lead from a worker's loop to the user's function."""
_IS_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by Python code


class _Line(NamedTuple):
    """A frame of a traceback."""

    filename: str
    name: str
    module: str
    line: int


@dataclass(slots=True)
class _Sent:
    """An exception on its way; others of its chain are numbers."""

    type_name: str
    message: str
    notes: list[str] = field(default_factory=list)
    lines: list[_Line] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    """Its class, its arguments and its attributes, pickled, by the words for each."""
    lost: list[str] = field(default_factory=list)
    """The parts that stayed, each with the reason."""
    links: tuple[int | None, int | None, bool] = None, None, False
    """Its cause, its context, and whether the context is suppressed."""
    members: list[int] = field(default_factory=list)
    """The exceptions of a group."""


# In the worker.


def dump_error(error: BaseException, worker: str) -> bytes:
    """Pickles an exception with its chain and tracebacks. Raises nothing, whatever the exception does.

    Args:
        error: The exception.
        worker: The sender: `worker 2 (pid 41207)`.
    """
    try:
        chain = [error]
        sent = [_describe(each, chain) for each in chain]  # the chain grows meanwhile
    except BaseException as failure:
        sent = [_Sent(_type_name(error), _text(error), lost=[f"the exception ({_text_of(failure)})"])]
    return pickle.dumps((worker, sent), protocol=5)


def _describe(error: BaseException, chain: list[BaseException]) -> _Sent:
    sent = _Sent(_type_name(error), _text(error))
    with suppress(BaseException):
        sent.lines = _lines(error)
    with suppress(BaseException):
        sent.notes = [_text(note) for note in error.__notes__[:_ERROR_LIMIT]]
    with suppress(BaseException):
        _pack(error, sent, chain)
    cause, context = _number(_slot(error, "__cause__"), chain), _number(_slot(error, "__context__"), chain)
    sent.links = cause, context, _slot(error, "__suppress_context__")
    return sent


def _number(error: BaseException | None, chain: list[BaseException]) -> int | None:
    for number, each in enumerate(chain):
        if each is error:
            return number
    if error is None or len(chain) >= _ERROR_LIMIT:
        return None
    chain.append(error)
    return len(chain) - 1


def _pack(error: BaseException, sent: _Sent, chain: list[BaseException]) -> None:
    # As Python's own types reduce: with the file names of an OSError, the `name` of an ImportError.
    base: Any = _static_base(type(error))
    reduced = base.__reduce__(error)
    arguments, attributes = reduced[1], dict((reduced[2] if len(reduced) > 2 else None) or {})
    for name in copyreg._slotnames(type(error)):  # type: ignore[attr-defined]  # as pickle does for other objects
        with suppress(AttributeError):  # one that was not set
            attributes[name] = object.__getattribute__(error, name)
    if isinstance(error, BaseExceptionGroup):
        members = BaseExceptionGroup.__dict__["exceptions"].__get__(error)
        sent.members = [number for each in members if (number := _number(each, chain)) is not None]
        arguments = arguments[:1]
    attributes.pop("__notes__", None)
    parts = {"its class": type(error), "its arguments": arguments}
    parts |= {f"its attribute {name!r}": (name, value) for name, value in attributes.items()}
    for words, part in parts.items():
        sink = Sink(PAYLOAD_NBYTES)
        try:
            _ErrorPickler(sink, protocol=5).dump(part)
            sent.parts[words] = b"".join(sink.pieces)
        except BaseException as failure:
            sent.lost.append(f"{words} ({_text_of(failure)})")


class _ErrorPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # of an untyped library
    """Refuses a large array before pickle copies it, because the worker may lack memory for the copy."""

    def reducer_override(self, obj: Any) -> Any:
        """As cloudpickle's."""
        if isinstance(obj, np.ndarray) and obj.nbytes > PAYLOAD_NBYTES:
            raise ValueError(f"an array of {obj.nbytes:,} bytes, above {PAYLOAD_NBYTES >> 20} MiB")
        return super().reducer_override(obj)


def _lines(error: BaseException) -> list[_Line]:
    """The frames from the user's first one on."""
    lines: list[_Line] = []
    link: types.TracebackType | None = _slot(error, "__traceback__")
    while link is not None:
        frame, code = link.tb_frame, link.tb_frame.f_code
        line = link.tb_lineno or code.co_firstlineno
        lines.append(_Line(code.co_filename, code.co_name, str(frame.f_globals.get("__name__", "")), line))
        link = link.tb_next
    first = next((n for n, line in enumerate(lines) if line.module.partition(".")[0] not in _OUR_ROOTS), None)
    if first is not None:
        lines = lines[first:]
    elif isinstance(error, PenstockError):  # raised on purpose, and its message says all
        lines = lines[-1:]
    half = _FRAME_LIMIT // 2
    return lines if len(lines) <= _FRAME_LIMIT else lines[:half] + lines[-half:]


def _slot(error: BaseException, name: str) -> Any:
    """An attribute by the base class's descriptor: a subclass may have anything under its name."""
    return BaseException.__dict__[name].__get__(error)


def _static_base(cls: type) -> type:
    """The base class whose layout in memory it has, which Python itself, or another library in C, has made."""
    while cls.__flags__ & _IS_HEAP_TYPE:  # along its layout: MemoryError, too, comes after Exception in the `__mro__`
        assert cls.__base__ is not None
        cls = cls.__base__
    return cls


def _type_name(error: BaseException) -> str:
    return str(type.__dict__["__name__"].__get__(type(error)))


def _text_of(failure: BaseException) -> str:
    return f"{_type_name(failure)}: {_text(failure)}"


def _text(value: object) -> str:
    try:
        text = str(value)
        if len(text) > _TEXT_LENGTH:
            text = f"{text[:_TEXT_LENGTH]}... ({len(text):,} characters)"
        return str.__str__(text)  # of a subclass of str, the text alone
    except BaseException as failure:
        return f"<its text is not known: str() raised {_type_name(failure)}>"


# In the parent.


def load_error(data: bytes) -> BaseException:
    """Makes the exception again from the bytes of `dump_error`. Raises nothing but KeyboardInterrupt."""
    try:
        worker, sent = pickle.loads(data)
        return _linked(worker, sent)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return RemoteError(f"A worker sent an exception that cannot be read here ({_text_of(failure)}).")


def _linked(worker: str, sent: list[_Sent]) -> BaseException:
    errors: dict[int, BaseException] = {}

    def make(number: int) -> BaseException:
        if number not in errors:
            each = sent[number]
            members = [make(member) for member in each.members]
            try:
                errors[number] = _made(each, members, worker)
            except KeyboardInterrupt:
                raise
            except BaseException as failure:
                why = "; ".join([_text_of(failure)] * ("its class" in each.parts) + each.lost)
                each.notes.append(f"The {each.type_name} itself could not come from {worker}: {why}.")
                errors[number] = RemoteError(f"{each.type_name}: {each.message}")
        return errors[number]

    for number, each in enumerate(sent):
        error = make(number)
        notes = [*each.notes, f"It was raised in {worker}."] if number == 0 else each.notes
        if notes:
            _set(error, "__notes__", notes)
        cause, context, is_suppressed = each.links
        _set(error, "__cause__", None if cause is None else make(cause))
        _set(error, "__context__", None if context is None else make(context))
        _set(error, "__suppress_context__", is_suppressed)
        _set(error, "__traceback__", _traceback(each.lines))
    return errors[0]


def _made(sent: _Sent, members: list[BaseException], worker: str) -> BaseException:
    """Makes an exception from its parts."""
    attributes = dict(sent.parts)
    cls = unpickled(attributes.pop("its class"))
    packed = attributes.pop("its arguments", None)
    arguments = (sent.message,) if packed is None else unpickled(packed)
    if members:
        arguments = (*arguments, members)
    base: Any = _static_base(cls)
    error = base.__new__(cls, *arguments)
    if not isinstance(error, BaseException):
        raise TypeError(f"it is no exception, but {type_of(error)}")
    with suppress(Exception):  # of a class that passes on other arguments than Python's own type takes
        base.__init__(error, *arguments)
    for words, part in attributes.items():
        try:
            _set(error, *unpickled(part))
        except Exception as failure:
            sent.lost.append(f"{words} ({_text_of(failure)})")
    if sent.lost:
        str(error)  # which may need what was lost
        sent.notes.append(f"What stayed in {worker}: {'; '.join(sent.lost)}.")
    return error


@final
class _ErrorUnpickler(pickle.Unpickler):
    """Finds the user's own classes. cloudpickle would write the worker's copies of their attributes into them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        # Private of cloudpickle (3.0 to 3.1). Without it, classes arrive all the same, and are written to.
        self._known = list(getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {}).values())

    def find_class(self, module: str, name: str) -> Any:
        """Looks up a global, and wraps cloudpickle's function for a class that travels by value."""
        found = super().find_class(module, name)
        if module == "cloudpickle.cloudpickle" and name == "_class_setstate":
            return lambda cls, state: cls if cls in self._known else found(cls, state)
        return found


def unpickled(data: bytes) -> Any:
    """Unpickles bytes from a worker, and leaves the user's own classes as they are."""
    return _ErrorUnpickler(data).load()


def _set(error: BaseException, name: str, value: object) -> None:
    BaseException.__setattr__(error, name, value)  # not its own: it may be a frozen dataclass


def _traceback(lines: list[_Line]) -> types.TracebackType | None:
    link: types.TracebackType | None = None
    for line in reversed(lines):
        with suppress(Exception):  # numbers that no compiler accepts, of generated code
            # All instructions are on the line, in unknown columns: an entry is for up to 8 code units; see
            # `locations.md` in the sources of CPython.
            code = _generator.__code__.replace(
                co_name=line.name, co_qualname=line.name, co_filename=line.filename, co_firstlineno=line.line,
                co_linetable=b"\xef\0" * 16,
            )  # fmt: skip
            # The frame of a generator that never began: it is on that line, and no frame is behind it. One that
            # waits at its `yield` is closed when it is dropped, and 3.12 puts the frame that does so behind it.
            generator = types.FunctionType(code, {"__name__": line.module, "__file__": line.filename})()
            link = types.TracebackType(link, generator.gi_frame, 0, line.line)
    return link


def _generator() -> Iterator[None]:
    yield
