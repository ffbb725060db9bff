"""An exception crosses from a worker process to the parent, and looks there as if it had been raised there.

Promises. `dump_error` and `load_error` raise nothing, whatever the exception does: a `__reduce__`, `__str__` or
constructor of the user that fails costs that part alone. The type's name, the message, the notes, the chain and the
traceback always arrive, up to a limit for each. The exception arrives as its own type where that can be made again,
and else as a `RemoteError` that says why.

How. Each exception of the chain travels by itself, and refers to the others by number. Its constructor is not called
again: many want other arguments than those that they pass on (`TypeError: missing 1 required argument`), or change
them once more. Only a class that defines how it is pickled is trusted.

A class of the user's `__main__` came to the worker by value. cloudpickle remembers under which name, and finds the
user's own class when it returns, so `except MyError` works. But it would also write the worker's copies of attributes
and methods into that class; `_Unpickler` prevents that.

The traceback has real frames, of code that does nothing: file, function, line and columns are the worker's, and
linecache finds the source. `tblib` (3.2) was rejected: its code objects have columns of their own, so Python underlines
the wrong part of the user's line; its frames hold the calling thread's by `f_back`; a deep traceback is a
RecursionError.
"""

import copyreg
import io
import itertools
import pickle
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

import cloudpickle
import numpy as np

from penstock.base._errors import PenstockError, RemoteError, type_of

PAYLOAD_NBYTES: Final = 1 << 20
"""Limit of the pickled arguments and attributes of a chain of exceptions, in all."""
_ERROR_LIMIT: Final = 64
"""The most exceptions of a chain."""
_FRAME_LIMIT: Final = 1000
"""The most frames of a traceback: half of them the outermost, half the innermost."""
_TEXT_LENGTH: Final = 20_000
"""The most characters of a message or a note."""
_FAR: Final = 1 << 24
"""A limit for lines and columns, above those of any file."""

# Frames of these lead from a worker's loop to the user's function.
_OUR_ROOTS: Final = {"penstock", "numpy", "optree"}
_IS_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by Python code


class _Line(NamedTuple):
    """A frame of a traceback."""

    filename: str
    name: str
    qualname: str
    module: str
    first_line: int
    line: int
    positions: tuple[int | None, int | None, int | None, int | None]
    """First and last line, first and last column, as `code.co_positions()` has them."""


@dataclass(slots=True)
class _Sent:
    """An exception on its way; others of its chain are numbers."""

    type_name: str
    message: str
    notes: list[str] = field(default_factory=list)
    lines: list[_Line] = field(default_factory=list)
    whole: bytes | None = None
    """The exception as its class defines, where it does."""
    why_not_whole: list[str] = field(default_factory=list)
    type_: bytes | None = None
    arguments: bytes | None = None
    attributes: dict[str, bytes] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """The parts that stayed, each with the reason."""
    cause: int | None = None
    context: int | None = None
    suppresses_context: bool = False
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
        sent = _Dump(error).sent
    except BaseException as failure:
        lost = [f"the exception ({_text_of(failure)})"]
        sent = [_Sent(_type_name(error), _text(error), lost=lost)]
    return pickle.dumps((worker, sent), protocol=5)


@final
class _Dump:
    """The exceptions of a chain, described one after the other."""

    def __init__(self, error: BaseException) -> None:
        self._budget_nbytes = PAYLOAD_NBYTES
        self._errors = [error]
        self.sent = [self._describe(each) for each in self._errors]  # which grows meanwhile

    def _describe(self, error: BaseException) -> _Sent:
        sent = _Sent(_type_name(error), _text(error))
        with suppress(BaseException):
            sent.lines = _lines(error)
        with suppress(BaseException):
            sent.notes = [_text(note) for note in error.__notes__[:_ERROR_LIMIT]]
        with suppress(BaseException):
            self._pack(error, sent)
        sent.cause, sent.context = self._number(_slot(error, "__cause__")), self._number(_slot(error, "__context__"))
        sent.suppresses_context = _slot(error, "__suppress_context__")
        return sent

    def _number(self, error: BaseException | None) -> int | None:
        if error is None:
            return None
        for number, each in enumerate(self._errors):
            if each is error:
                return number
        if len(self._errors) >= _ERROR_LIMIT:
            return None
        self._errors.append(error)
        return len(self._errors) - 1

    def _pack(self, error: BaseException, sent: _Sent) -> None:
        is_group = isinstance(error, BaseExceptionGroup)
        if _defines_pickle(type(error)) and not is_group:
            sent.whole = self._pickled(error, "the exception", sent.why_not_whole)
        # As Python's own types reduce: with the file names of an OSError, the `name` of an ImportError.
        base: Any = _static_base(type(error))
        reduced = base.__reduce__(error)
        arguments, attributes = reduced[1], dict((reduced[2] if len(reduced) > 2 else None) or {})
        for name in copyreg._slotnames(type(error)):  # type: ignore[attr-defined]  # as pickle does for other objects
            with suppress(AttributeError):  # one that was not set
                attributes[name] = object.__getattribute__(error, name)
        if is_group:
            members = BaseExceptionGroup.__dict__["exceptions"].__get__(error)
            sent.members = [number for each in members if (number := self._number(each)) is not None]
            arguments = arguments[:1]
        sent.type_ = self._pickled(type(error), "its class", sent.lost)
        sent.arguments = self._pickled(arguments, "its arguments", sent.lost)
        for name, value in attributes.items():
            if name != "__notes__":
                packed = self._pickled(value, f"its attribute {name!r}", sent.lost)
                if packed is not None:
                    sent.attributes[str(name)] = packed

    def _pickled(self, value: object, what: str, lost: list[str]) -> bytes | None:
        file = _Bounded(self._budget_nbytes)
        try:
            _Pickler(file, protocol=5).dump(value)
        except BaseException as failure:
            why = f"more than {PAYLOAD_NBYTES >> 20} MiB" if file.is_full else _text_of(failure)
            lost.append(f"{what} ({why})")
            return None
        self._budget_nbytes -= len(file.getvalue())
        return file.getvalue()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # of an untyped library
    """Refuses a large array before pickle copies it, because the worker may lack memory for the copy."""

    def reducer_override(self, obj: Any) -> Any:
        """As cloudpickle's."""
        if isinstance(obj, np.ndarray) and obj.nbytes > PAYLOAD_NBYTES:
            raise ValueError(f"an array of {obj.nbytes:,} bytes, above {PAYLOAD_NBYTES >> 20} MiB")
        return super().reducer_override(obj)


@final
class _Bounded(io.BytesIO):
    """A file that refuses to grow beyond a size, so that a pickle ends before it takes memory."""

    def __init__(self, limit_nbytes: int) -> None:
        super().__init__()
        self._limit_nbytes = limit_nbytes
        self.is_full = False

    def write(self, data: Any) -> int:
        """Appends, or raises."""
        if self.tell() + memoryview(data).nbytes > self._limit_nbytes:
            self.is_full = True
            raise OverflowError
        return super().write(data)


def _lines(error: BaseException) -> list[_Line]:
    """The frames from the user's first one on."""
    lines: list[_Line] = []
    link: types.TracebackType | None = _slot(error, "__traceback__")
    while link is not None:
        frame = link.tb_frame
        code, line = frame.f_code, link.tb_lineno or frame.f_code.co_firstlineno
        positions = next(itertools.islice(code.co_positions(), max(link.tb_lasti, 0) // 2, None), (None,) * 4)
        module = str(frame.f_globals.get("__name__", ""))
        names = code.co_filename, code.co_name, code.co_qualname, module
        lines.append(_Line(*names, code.co_firstlineno, line, positions))
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
    """The nearest base class that Python itself, or another library in C, has made."""
    return next(each for each in cls.__mro__ if not each.__flags__ & _IS_HEAP_TYPE)


def _defines_pickle(cls: type) -> bool:
    names = {"__reduce__", "__reduce_ex__", "__setstate__"}
    bases = itertools.takewhile(lambda each: each is not BaseException, cls.__mro__)
    return cls in copyreg.dispatch_table or any(
        names & vars(each).keys() for each in bases if each.__flags__ & _IS_HEAP_TYPE
    )


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
        return _Load(worker, sent).error
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return RemoteError(f"A worker sent an exception that cannot be read here ({_text_of(failure)}).")


@final
class _Load:
    """The exceptions of a chain, each made, then linked."""

    def __init__(self, worker: str, sent: list[_Sent]) -> None:
        self._worker = worker
        self._sent = sent
        self._errors: dict[int, BaseException] = {}
        for number in range(len(sent)):
            self._make(number)
        sent[0].notes.append(f"It was raised in {worker}.")
        for number, each in enumerate(sent):
            error = self._errors[number]
            if each.notes:
                _set(error, "__notes__", each.notes)
            _set(error, "__cause__", None if each.cause is None else self._errors[each.cause])
            _set(error, "__context__", None if each.context is None else self._errors[each.context])
            _set(error, "__suppress_context__", each.suppresses_context)
            _set(error, "__traceback__", _traceback(each.lines))
        self.error = self._errors[0]

    def _make(self, number: int) -> BaseException:
        if number not in self._errors:
            self._errors[number] = self._new(self._sent[number])
        return self._errors[number]

    def _new(self, sent: _Sent) -> BaseException:
        """The exception as its class defines, or from its parts, or a stand-in that says why."""
        reasons = sent.why_not_whole
        for data, make in ((sent.whole, self._from_whole), (sent.type_, self._from_parts)):
            if data is not None:
                try:
                    return make(sent)
                except KeyboardInterrupt:
                    raise
                except BaseException as failure:
                    reasons.append(_text_of(failure))
        why = "; ".join(reasons + sent.lost)
        sent.notes.append(f"The {sent.type_name} itself could not come from {self._worker}: {why}.")
        return RemoteError(f"{sent.type_name}: {sent.message}")

    def _from_whole(self, sent: _Sent) -> BaseException:
        assert sent.whole is not None
        return _checked(unpickled(sent.whole))

    def _from_parts(self, sent: _Sent) -> BaseException:
        assert sent.type_ is not None
        cls = unpickled(sent.type_)
        arguments = (sent.message,) if sent.arguments is None else unpickled(sent.arguments)
        if sent.members:
            arguments = (*arguments, [self._make(member) for member in sent.members])
        base: Any = _static_base(cls)
        error = _checked(base.__new__(cls, *arguments))
        with suppress(Exception):  # of a class that passes on other arguments than Python's own type takes
            base.__init__(error, *arguments)
        for name, value in sent.attributes.items():
            try:
                _set(error, name, unpickled(value))
            except Exception as failure:
                sent.lost.append(f"its attribute {name!r} ({_text_of(failure)})")
        if sent.lost:
            str(error)  # which may need what was lost
            sent.notes.append(f"What stayed in {self._worker}: {'; '.join(sent.lost)}.")
        return error


def _checked(error: object) -> BaseException:
    if not isinstance(error, BaseException):
        raise TypeError(f"its pickle is no exception, but {type_of(error)}")
    return error


@final
class _Unpickler(pickle.Unpickler):
    """Finds the user's own classes, and leaves them as they are."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._known: list[type] = []
        """Classes that were here before."""

    def find_class(self, module: str, name: str) -> Any:
        """Looks up a global, and wraps cloudpickle's functions for a class that travels by value."""
        found = super().find_class(module, name)
        if module == "cloudpickle.cloudpickle" and name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return lambda *arguments: self._class(found, arguments)
        if module == "cloudpickle.cloudpickle" and name == "_class_setstate":
            return lambda cls, state: cls if cls in self._known else found(cls, state)
        return found

    def _class(self, make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
        # Private of cloudpickle (3.0 to 3.1). Without it, classes arrive all the same, and are written to.
        is_known = arguments[-2] in getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
        cls = make(*arguments)
        if is_known:
            self._known.append(cls)
        return cls


def unpickled(data: bytes) -> Any:
    """Unpickles bytes from a worker, and leaves the user's own classes as they are."""
    return _Unpickler(data).load()


def _set(error: BaseException, name: str, value: object) -> None:
    BaseException.__setattr__(error, name, value)  # not its own: it may be a frozen dataclass


def _traceback(lines: list[_Line]) -> types.TracebackType | None:
    codes: dict[_Line, types.CodeType] = {}
    link: types.TracebackType | None = None
    for line in reversed(lines):
        with suppress(Exception):  # numbers that no compiler accepts, of generated code
            if line not in codes:
                codes[line] = _code(line)
            # The frame of a generator that never began: it is on that line, and no frame is behind it. One that
            # waits at its `yield` is closed when it is dropped, and 3.12 puts the frame that does so behind it.
            generator = types.FunctionType(codes[line], {"__name__": line.module, "__file__": line.filename})()
            link = types.TracebackType(link, generator.gi_frame, 0, line.line)
    return link


def _generator() -> Iterator[None]:
    yield


def _code(line: _Line) -> types.CodeType:
    """Code whose instructions are all where the worker's was."""
    code = _generator.__code__
    first, last, start, stop = line.positions
    table, count, distance = b"", len(code.co_code) // 2, line.line - line.first_line
    if not -_FAR < distance < _FAR:
        raise ValueError(distance)
    while count > 0:  # an entry is of up to 8: see `locations.md` in the sources of CPython
        size = min(8, count)
        line_step = _varint(abs(distance) << 1 | (distance < 0))
        if first != line.line or last is None or start is None or stop is None:  # columns unknown
            table += bytes([0x80 | 13 << 3 | size - 1]) + line_step
        else:
            places = b"".join(map(_varint, (last - first, start + 1, stop + 1)))
            table += bytes([0x80 | 14 << 3 | size - 1]) + line_step + places
        count, distance = count - size, 0
    return code.replace(
        co_name=line.name, co_qualname=line.qualname, co_filename=line.filename, co_firstlineno=line.first_line,
        co_linetable=table,
    )  # fmt: skip


def _varint(number: int) -> bytes:
    """Six bits a byte, the lowest first, and one that says that more follow."""
    if not 0 <= number < 2 * _FAR:
        raise ValueError(number)
    head = b""
    while number >= 64:
        head += bytes([number & 63 | 64])
        number >>= 6
    return head + bytes([number])
