"""Files behind URLs, by `fsspec`: looked at, and read in ranges, many of them under way at once.

A server that fails for a moment is asked again, after pauses that grow. What is of a moment: that it is busy or being
started (HTTP's 408, 425, 429 and 5xx), that a connection broke or was not to be had, that an answer did not come or was
cut off. All else is told at once: what is not there, is not allowed, or is not what was asked for. `gcsfs` does the
same, `s3fs` of less, and fsspec's own HTTP not at all (2026.9).

Each wait, and what ends it. For an answer: the file system's own timeout (that of HTTP is 5 minutes, by default). The
pauses: see `_patience.py`.
"""

import errno
import glob
import hashlib
import logging
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np
import numpy.typing as npt

from penstock.base._code import is_own
from penstock.base._errors import PenstockError, SourceError
from penstock.base._retries import RetryBudget, patience

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]

PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Between the first time that something is asked for and the second, and so on."""
_WARN_AT: Final = 3
"""The failures of one request before this one are hardly felt; this one is a warning in the log."""
_PASSING_STATUS: Final = frozenset({408, 425, 429})
_LASTING_STATUS: Final = frozenset({501, 505})
# EBUSY, EREMOTEIO: what s3fs makes of "slow down" and of an internal error.
_PASSING_ERRNO: Final = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "EREMOTEIO", "ENETDOWN", "ENETRESET", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH")
    if hasattr(errno, name)
)
_PASSING_TYPES: Final = (ConnectionError, TimeoutError)
# Of libraries that file systems are made of; what they raise is here only if they are, and penstock's import is short.
_PASSING_NAMES: Final = (
    ("aiohttp", ("ClientConnectionError", "ClientPayloadError")),
    ("azure.core.exceptions", ("ServiceRequestError", "ServiceResponseError")),
    ("botocore.exceptions", ("HTTPClientError",)),
    ("ftplib", ("error_temp",)),
    ("http.client", ("BadStatusLine", "IncompleteRead")),
    ("httpx", ("TransportError",)),
    ("requests.exceptions", ("ConnectionError", "Timeout", "ChunkedEncodingError")),
    ("ssl", ("SSLError",)),
    ("urllib3.exceptions", ("ProtocolError", "TimeoutError")),
)
# Many clients that fail at once shall not come again at once. Not the user's generator, which is seeded.
_spread = random.Random()

_log = logging.getLogger("penstock")


def is_remote(url: str) -> bool:
    """Whether it is an URL that `fsspec` reads, and no path of this machine."""
    return "://" in url and not url.startswith(("file://", "local://"))


class Facts(NamedTuple):
    """What a file system says of a file."""

    nbytes: int
    version: str
    """What tells whether it is still the same."""


def facts_of(url: str, fact: str, cure: str = "") -> Facts:
    """Asks for size and version of a file. For `fact` and `cure` see `insist`.

    Raises:
        SourceError: It is not there, or the connection fails.
        ImportError: `fsspec` is missing.
    """

    def ask() -> Facts:
        system, inner = _file_system(url)
        info = system.info(inner)
        if info["size"] is None:
            raise ValueError("its size is not known, and without it there is no random access")
        return Facts(int(info["size"]), _version(system, inner, info))

    return insist(ask, lambda: fact, cure)


def matches(pattern: str) -> list[str]:
    """The URLs that fit a pattern, in the order of their names.

    Raises:
        SourceError: The connection fails.
        ImportError: `fsspec` is missing.
    """

    def ask() -> list[str]:
        system, inner = _file_system(pattern)
        links = pattern.split("::")  # a cache, or an archive, before the file that it is of
        at = next(number for number, link in enumerate(links) if glob.has_magic(link))
        found = (str(system.unstrip_protocol(each)) for each in sorted(system.glob(inner)))
        return ["::".join([*links[:at], each, *links[at + 1 :]]) for each in found]

    return insist(ask, lambda: f"{pattern} cannot be looked for")


@final
class RemoteFile:
    """A file system of fsspec, and a path in it. Nothing stays open.

    Raises:
        SourceError: The URL means nothing to fsspec, or the connection fails.
    """

    def __init__(self, url: str) -> None:
        self.path = url
        self.system, self.inner = insist(lambda: _file_system(url), lambda: f"{url} cannot be opened")

    def read_into(self, offset: int, place: memoryview, asker: RetryBudget | None = None) -> int:
        """Fills memory with the bytes from `offset` on; returns how many.

        Args:
            offset: Where the bytes begin.
            place: Where they go.
            asker: Whose patience it takes; None for the calling thread's.
        """
        data = insist(
            lambda: self.system.cat_file(self.inner, start=offset, end=offset + len(place)),
            lambda: f"{self.path} cannot be read at byte {offset:,}",
            asker=asker,
        )
        self.require_part(data, len(place))
        place[: len(data)] = data
        return len(data)

    def require_part(self, data: bytes, nbytes: int) -> None:
        """Refuses what is more than the part that was asked for.

        Raises:
            SourceError: It is.
        """
        if len(data) > nbytes:
            raise SourceError(
                f"{self.path} does not come in parts: {nbytes:,} bytes of it were asked for, and {len(data):,} came, "
                "as from a server of HTTP that knows no ranges. Fetch it to this machine first; fsspec does for "
                f"'simplecache::{self.path}'."
            )


Wanted = tuple[RemoteFile, int, Bytes]
"""A file, an offset, and the memory that the bytes from there on go to."""


def read_ranges(wanted: Sequence[Wanted]) -> None:
    """Reads ranges, all of a file system under way at once where it can.

    Raises:
        SourceError: A file ends before a range does, or the connection fails.
    """
    spans = [(offset, offset + len(place)) for _, offset, place in wanted]
    for (file, offset, place), part in zip(wanted, _parts([file for file, _, _ in wanted], spans), strict=True):
        file.require_part(part, len(place))
        if len(part) < len(place):
            raise SourceError(f"{file.path} ends at byte {offset + len(part):,} now. Make the dataset again.")
        place[:] = np.frombuffer(part, np.uint8)


def fetched(urls: Sequence[str]) -> list[bytes]:
    """All bytes of each of some files, all of a file system under way at once where it can.

    Raises:
        SourceError: One is not there, or the connection fails.
        ImportError: `fsspec` is missing.
    """
    return [bytes(part) for part in _parts(list(map(RemoteFile, urls)), [(None, None)] * len(urls))]


def _parts(files: Sequence[RemoteFile], spans: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
    """The bytes of each file from the first number to before the second, or all."""
    parts: dict[int, bytes] = {}
    systems: dict[int, list[int]] = {}
    for number, file in enumerate(files):
        systems.setdefault(id(file.system), []).append(number)
    for left in systems.values():
        _take_parts(files, spans, left, parts)
    return [parts[number] for number in range(len(files))]


def _take_parts(
    files: Sequence[RemoteFile],
    spans: Sequence[tuple[int | None, int | None]],
    left: list[int],
    parts: dict[int, bytes],
) -> None:
    """The same for those of one file system that are left. Of those that fail for a moment, only these come again."""

    def ask() -> None:
        paths = [files[number].inner for number in left]
        starts, ends = [spans[number][0] for number in left], [spans[number][1] for number in left]
        found = files[left[0]].system.cat_ranges(paths, starts, ends, on_error="return")
        failed: list[tuple[int, BaseException]] = []
        for number, part in zip(left, found, strict=True):
            if isinstance(part, BaseException):
                failed.append((number, part))
            else:
                parts[number] = part
        failed.sort(key=lambda pair: is_passing(pair[1]))  # what would come again in vain is told first
        left[:] = [number for number, _ in failed]
        for _, error in failed:
            raise error

    def fact() -> str:
        start = spans[left[0]][0]
        return f"{files[left[0]].path} cannot be read{'' if start is None else f' at byte {start:,}'}"

    insist(ask, fact)


class Settings(NamedTuple):
    """What another process has to know of fsspec to read from a file system as this one does."""

    protocol: str
    kind: type
    """The class behind it, which the program may have registered."""
    options: dict[str, dict[str, Any] | None]
    """What `fsspec.config.conf` holds for the class, by protocol."""

    @classmethod
    def of(cls, protocol: str) -> "Settings":
        """Those of this process.

        Raises:
            TypeError: What this file system holds is in this process alone.
        """
        import fsspec
        from fsspec.implementations.memory import MemoryFileSystem

        kind = fsspec.get_filesystem_class(protocol)
        if issubclass(kind, MemoryFileSystem):
            raise TypeError(f"what {protocol}:// holds is in the memory of this process alone")
        if (module := sys.modules.get(kind.__module__)) is not None and is_own(module):
            raise TypeError(f"{kind.__name__}, which this program registered for {protocol}://, is no installed code")
        names = (kind.protocol,) if isinstance(kind.protocol, str) else kind.protocol
        return cls(protocol, kind, {name: fsspec.config.conf.get(name) for name in (protocol, *names)})

    def adopt(self) -> None:
        """Makes them those of this process."""
        import fsspec

        fsspec.register_implementation(self.protocol, self.kind, clobber=True)
        for name, options in self.options.items():
            if options is None:
                fsspec.config.conf.pop(name, None)
            else:
                fsspec.config.conf[name] = options


def protocols_of(url: str) -> Iterator[str]:
    """Those of the file systems that an URL leads through: `zip` and `file` of `zip://a::file:///b.zip`."""
    import fsspec

    for part in url.split("::"):
        yield part.partition("://")[0] if "://" in part or part in fsspec.available_protocols() else "file"


def arrive(settings: Sequence[Settings], kind: Callable[..., T], values: tuple[Any, ...]) -> T:
    """Makes what names files behind URLs in another process, which is to read them as this one does."""
    for each in settings:
        each.adopt()
    return kind(*values)


def insist(ask: Callable[[], T], fact: Callable[[], str], cure: str = "", asker: RetryBudget | None = None) -> T:
    """Asks a server for something, and again where it fails for a moment.

    Args:
        ask: Asks once. It may go on where it failed.
        fact: What to say where it fails for good: `s3://a/b cannot be read`.
        cure: What to do then, a sentence after a space.
        asker: Whose patience it takes; None for the calling thread's.

    Raises:
        SourceError: It fails for good; names the reason, and how often it was asked.
        UnwantedError: Nobody wants to know any more.
    """
    asker = asker or patience()
    began, count = time.monotonic(), 0
    while True:
        count += 1
        try:
            found = ask()
            asker.waited_s += time.monotonic() - began
            return found
        except (PenstockError, ImportError):
            raise
        except Exception as error:  # of any type: those of aiohttp, for one, are no `OSError`
            taken_s = time.monotonic() - began
            pause_s = _pause_s(count, error)
            # Half of what a loader waits for a worker: it shall say what failed, and not that nobody got on.
            if pause_s is None or taken_s + pause_s > asker.limit_s / 2:
                how = f" after {count} tries in {taken_s:.0f} s" if count > 1 else ""
                raise SourceError(f"{fact()}{how}: {reason_of(error)}.{cure}") from error
            level = logging.WARNING if count == _WARN_AT else logging.INFO
            _log.log(level, "%s: %s. It is tried again in %.1f s.", fact(), reason_of(error), pause_s)
        asker.pause(pause_s)
        asker.repeat_count += 1


def _pause_s(count: int, error: Exception) -> float | None:
    """How long to wait after so many tries; None where it is of no use, or enough."""
    if count > len(PAUSES_S) or not is_passing(error):
        return None
    return max(PAUSES_S[count - 1] * _spread.uniform(0.8, 1.2), _asked_pause_s(error))


def _asked_pause_s(error: Exception) -> float:
    """How long the server asks to be left alone; 0 if it does not say."""
    for each in _with_causes(error):
        for holder in (each, getattr(each, "response", None)):
            headers = getattr(holder, "headers", None)
            said = None if headers is None else headers.get("Retry-After")
            if isinstance(said, str) and said.isdecimal():
                return float(said)
    return 0.0


def is_passing(error: BaseException) -> bool:
    """Whether a server failed for a moment, so that to ask again is of use.

    File systems raise what their libraries do, or hide it in something of their own: so the first one of an exception
    and its causes that says anything is believed. To fsspec a file is not found for whatever reason.
    """
    return next((verdict for each in _with_causes(error) if (verdict := _verdict(each)) is not None), False)


def _verdict(error: BaseException) -> bool | None:
    status = _status(error)
    if status is not None:
        return status in _PASSING_STATUS or (status >= 500 and status not in _LASTING_STATUS)
    if _is_one_of(error, "ssl", ("SSLCertVerificationError",)):
        return False
    if isinstance(error, OSError) and error.errno in (socket.EAI_AGAIN, socket.EAI_NONAME):
        return error.errno == socket.EAI_AGAIN
    if isinstance(error, _PASSING_TYPES) or (isinstance(error, OSError) and error.errno in _PASSING_ERRNO):
        return True
    return True if any(_is_one_of(error, module, names) for module, names in _PASSING_NAMES) else None


def _is_one_of(error: BaseException, module: str, names: tuple[str, ...]) -> bool:
    """Whether it is of one of these types of a module that may not be there."""
    return any(isinstance(error, getattr(sys.modules.get(module), name, ())) for name in names)


def _status(error: BaseException) -> int | None:
    """HTTP's status in an exception, wherever its library has it; None if there is none."""
    response = getattr(error, "response", None)
    found = [getattr(holder, name, None) for holder in (error, response) for name in ("status", "status_code", "code")]
    if isinstance(response, dict):  # botocore's
        found.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    numbers = [int(str(each)) for each in found if str(each).isdecimal()]
    return next((number for number in numbers if 400 <= number < 600), None)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:  # `raise e from e` is its own cause
        seen.add(id(one))
        yield one
        one = one.__cause__


def _version(system: Any, inner: str, info: dict[str, Any]) -> str:
    from fsspec.archive import AbstractArchiveFileSystem  # not above: it is an extra, and is there by now
    from fsspec.implementations.cached import CachingFileSystem

    # The key of a file in an archive is that of the object that reads the archive: another one each time.
    behind = system.fs if isinstance(system, CachingFileSystem) else system
    if isinstance(behind, AbstractArchiveFileSystem):
        return hashlib.sha256(repr(sorted(info.items())).encode()).hexdigest()
    # That of a file behind HTTP is its URL's alone, whatever is there; what the server says of the content tells more.
    mark = next((info[name] for name in ("ETag", "Content-MD5", "Digest", "Last-Modified") if info.get(name)), "")
    return f"{system.ukey(inner)}{mark}"


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise ImportError(
            f"{url} is no local path, and reading it needs fsspec: pip install 'penstock[remote]'."
        ) from None
    system, inner = fsspec.core.url_to_fs(url)
    return system, str(inner)


def reason_of(error: Exception) -> str:
    """What went wrong, in the words of who raised it."""
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    # To fsspec a file that HTTP refuses is not found, for whatever reason. What the server said is the cause.
    is_hidden = isinstance(error, FileNotFoundError) and error.__cause__ is not None
    return f"{reason} ({type(error.__cause__).__name__}: {error.__cause__})" if is_hidden else reason
