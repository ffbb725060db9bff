"""All exceptions of penstock, in one tree.

Each class is also the builtin that a user would catch, so `except IndexError` and `except
penstock.PenstockError` both work. A message has the fact with its numbers, the cause in the user's
terms, and the remedy.
"""

import errno
import re
import signal
import traceback
from typing import ClassVar, Final

from penstock.base._printable import printable


class PenstockError(Exception):
    """The root of penstock's errors; catch it to catch them all.

    Its text and notes have no secrets of URLs, and no characters that steer a terminal.
    """

    names_element: ClassVar[bool] = True
    """Whether it says which element it concerns. If not, it becomes an `ElementError` where a function raised it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.args = tuple(printable(each, has_lines=True) if isinstance(each, str) else each for each in args)

    def add_note(self, note: str, /) -> None:
        """Adds a sentence below the message."""
        super().add_note(printable(note, has_lines=True))


class ArgumentError(PenstockError, ValueError):
    """An argument has a value that cannot be meant: a negative size, unequal lengths, fractions above 1."""


class ArgumentTypeError(PenstockError, TypeError):
    """An argument is of another type than the call takes: a float for a size, a list for a dataset."""


class ElementIndexError(PenstockError, IndexError):
    """An element was asked for outside `[-len, len)`."""


class UnknownLengthError(PenstockError, TypeError):
    """`len()` was asked of a dataset that is infinite or whose length is not known.

    It is a `TypeError` because `list()` and `len()` treat that one, and no other, as "there is no length".
    """


class SpecError(PenstockError, ValueError):
    """Shapes, dtypes or structures do not agree, or an element differs from its `element_spec`."""


class SourceError(PenstockError, OSError):
    """Data on disk are not what they should be: not that format, truncated, replaced, shortened."""


class ElementError(PenstockError, RuntimeError):
    """A function raised while it worked on an element; its own exception is the `__cause__`."""


class DeadlineError(PenstockError, TimeoutError):
    """A batch did not arrive within `timeout_s`; the elements that were being worked on are named."""


class WorkerError(PenstockError, RuntimeError):
    """A worker process died again and again on one element, or could not be started."""


class RemoteError(PenstockError, RuntimeError):
    """An exception from a worker process whose own type could not be made again here; it holds name and message."""


class MemoryLimitError(PenstockError, MemoryError):
    """Memory above a `memory_limit`, or more than the system gives: projected for a loader, or for one element."""


class StateError(PenstockError, ValueError):
    """A state cannot be restored here: another plan, another version, or not a state at all."""


class TravelError(PenstockError, TypeError):
    """Something of a plan, such as an open file that a function holds, cannot be handed to a worker process."""


class LoaderError(PenstockError, RuntimeError):
    """A loader cannot be used this way: it is closed, a newer iterator has taken over, or ranks deliver other data."""


_LACK: Final = re.compile("memory|alloc|OOM|can't start new thread", re.IGNORECASE)
"""Python does not say that it got no memory for the stack of a thread."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception, or a cause of it, is about memory, as each library says it."""
    found: BaseException | None = error
    for _ in range(10):
        if found is None:
            break
        is_place = isinstance(found, ElementError) and found.__cause__ is not None  # names the file of a function
        if isinstance(found, MemoryError) or (not is_place and _LACK.search(words_of(found))):
            return True
        found = found.__cause__ or found.__context__
    return False


def is_untouched(error: BaseException) -> bool:
    """Whether an exception from a user's function passes unchanged. All others become errors that name the element.

    `sys.exit()` in a function would end the training without a message. A panic of a Rust library is no `Exception`
    either, and concerns one element. Both become errors of the element.

    An exception that a signal handler raised to end the program passes, such as `sys.exit()` on SIGTERM: no element
    failed. An `Exception` from a handler is the element's, because functions limit their own time by SIGALRM.
    """
    if isinstance(error, PenstockError):
        return error.names_element
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return True
    if isinstance(error, Exception):
        return False
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: object) -> object:
    handler = getattr(handler, "func", handler)  # a partial
    handler = getattr(handler, "__func__", handler)
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


DISK_FAILS: Final = "The disk or the connection to it fails; see the system's log."


def gone_cure(error: OSError) -> str:
    """What helps if a file cannot be opened that was there before."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "The system allows no more open files: raise the limit, as by ulimit -n, or join small files."
    return "It was there when the dataset was made; put it back, or make the dataset again."


def home_cure(path: str) -> str:
    """The remedy for a `~` in a missing path: a sentence after a space, or an empty text."""
    if "~" not in path.split("/") or "://" in path:
        return ""
    return " A ~ is not replaced by your home here: give os.path.expanduser(path)."


def type_of(value: object) -> str:
    """The type of a value with its article, for messages: `an int`, `a str`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def no_path(value: object) -> str:
    """Describes a value given instead of a path, for the end of a message."""
    cure = " os.fsdecode(path) makes text of it." if isinstance(value, bytes) else ""
    return f"{type_of(value)}.{cure}"


def words_of(error: BaseException) -> str:
    """An exception of the user's for messages: `ValueError: 3 is odd`. Its own text may fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failure:
        return f"{type(error).__name__}: <its text is not known: it raised {type(failure).__name__}>"
