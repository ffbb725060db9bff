"""Files behind URLs, by `fsspec`: their state, and reads of many ranges at once.

A request that fails for a moment is repeated after growing pauses. Such failures are: a server that is busy or starts
(HTTP 408, 425, 429 and 5xx), a connection that breaks or cannot be made, an answer that is late or cut off. Other
failures are raised at once: a missing file, a refused one, an unexpected answer. `gcsfs` repeats the same requests,
`s3fs` fewer, and fsspec's own HTTP none (2026.9).

Waits. The wait for an answer ends by the file system's own timeout (5 minutes for HTTP by default). For the pauses see
`RetryBudget`.
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
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt

from penstock.base._code import is_own
from penstock.base._errors import PenstockError, SourceError
from penstock.base._retries import RetryBudget, retry_budget

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]


class ByteSource(Protocol):
    """One object in one version, whose bytes are read by place: a local file, a URL, or an object in a store.

    `File` names the object and its version, and `File.open` returns it. `read_ranges` reads many ranges at once.
    """

    path: str

    def read_into(self, offset: int, place: memoryview, asker: RetryBudget | None = None) -> int:
        """Fills memory with the bytes from `offset` on. Returns their number, smaller only at the end.

        Args:
            offset: The first byte.
            place: The memory.
            asker: The retry budget; None for the calling thread's.
        """


PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""The pauses between the tries of a request."""
_WARN_AT: Final = 3
"""The failure of a request that the log reports as a warning. Earlier ones cost little time."""
_PASSING_STATUS: Final = frozenset({408, 425, 429})
_LASTING_STATUS: Final = frozenset({501, 505})
# EBUSY, EREMOTEIO: s3fs raises them for "slow down" and for an internal error.
_PASSING_ERRNO: Final = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "EREMOTEIO", "ENETDOWN", "ENETRESET", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH")
    if hasattr(errno, name)
)
_PASSING_TYPES: Final = (ConnectionError, TimeoutError)
# Exceptions of the libraries below file systems. Not imported here, to keep penstock's import short.
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
# Clients that fail together must not return together. Not the user's generator, which is seeded.
_spread = random.Random()

_log = logging.getLogger("penstock")


def is_remote(url: str) -> bool:
    """Whether it is a URL for `fsspec`, and not a local path."""
    return "://" in url and not url.startswith(("file://", "local://"))


def facts_of(url: str, fact: str, cure: str = "") -> tuple[int, str]:
    """Returns the size of a file, and a text that changes with its content. For `fact` and `cure` see `insist`.

    Raises:
        SourceError: The file is missing, or the connection fails.
        ImportError: `fsspec` is missing.
    """

    def ask() -> tuple[int, str]:
        system, inner = _file_system(url)
        info = system.info(inner)
        if info["size"] is None:
            raise ValueError("its size is not known, and without it there is no random access")
        return int(info["size"]), _version(system, inner, info)

    return insist(ask, lambda: fact, cure)


def matches(pattern: str) -> list[str]:
    """Returns the URLs that match a pattern, sorted by name.

    Raises:
        SourceError: The connection fails.
        ImportError: `fsspec` is missing.
    """

    def ask() -> list[str]:
        system, inner = _file_system(pattern)
        links = pattern.split("::")  # a cache, or a file in an archive, before the file itself
        at = next(number for number, link in enumerate(links) if glob.has_magic(link))
        found = (str(system.unstrip_protocol(each)) for each in sorted(system.glob(inner)))
        return ["::".join([*links[:at], each, *links[at + 1 :]]) for each in found]

    return insist(ask, lambda: f"{pattern} cannot be looked for")


@final
class RemoteFile:
    """A file system of fsspec, and a path in it. Nothing stays open.

    Raises:
        SourceError: fsspec does not know the URL, or the connection fails.
    """

    def __init__(self, url: str) -> None:
        self.path = url
        self.system, self.inner = insist(lambda: _file_system(url), lambda: f"{url} cannot be opened")

    def read_into(self, offset: int, place: memoryview, asker: RetryBudget | None = None) -> int:
        data = insist(
            lambda: self.system.cat_file(self.inner, start=offset, end=offset + len(place)),
            lambda: f"{self.path} cannot be read at byte {offset:,}",
            asker=asker,
        )
        self.require_part(data, len(place))
        place[: len(data)] = data
        return len(data)

    def require_part(self, data: bytes, nbytes: int) -> None:
        """Refuses an answer that is longer than the requested part.

        Raises:
            SourceError: The server does not know ranges.
        """
        if len(data) > nbytes:
            raise SourceError(
                f"{self.path} does not come in parts: {nbytes:,} bytes of it were asked for, and {len(data):,} came, "
                "as from a server of HTTP that knows no ranges. Fetch it to this machine first; fsspec does for "
                f"'simplecache::{self.path}'."
            )


def read_ranges(wanted: Sequence[tuple[RemoteFile, int, Bytes]]) -> None:
    """Reads ranges: of each file, from an offset on, into memory. A file system answers all of its requests at once.

    Raises:
        SourceError: A file is too short, or the connection fails.
    """
    spans = [(offset, offset + len(place)) for _, offset, place in wanted]
    for (file, offset, place), part in zip(wanted, _parts([file for file, _, _ in wanted], spans), strict=True):
        file.require_part(part, len(place))
        if len(part) < len(place):
            raise SourceError(f"{file.path} ends at byte {offset + len(part):,} now. Make the dataset again.")
        place[:] = np.frombuffer(part, np.uint8)


def fetched(urls: Sequence[str]) -> list[bytes]:
    """Returns all bytes of each file. A file system answers all of its requests at once if it can.

    Raises:
        SourceError: A file is missing, or the connection fails.
        ImportError: `fsspec` is missing.
    """
    return [bytes(part) for part in _parts(list(map(RemoteFile, urls)), [(None, None)] * len(urls))]


def _parts(files: Sequence[RemoteFile], spans: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
    """Returns a span of each file, from the first number to before the second; None for all bytes."""
    parts: dict[int, bytes] = {}
    left: list[int] = []

    def ask() -> None:
        # Of one file system. A retry requests only the spans that failed.
        found = files[left[0]].system.cat_ranges(
            [files[number].inner for number in left],
            [spans[number][0] for number in left],
            [spans[number][1] for number in left],
            on_error="return",
        )
        answers = dict(zip(left, found, strict=True))
        failed = {number: part for number, part in answers.items() if isinstance(part, BaseException)}
        parts.update((number, part) for number, part in answers.items() if number not in failed)
        left[:] = sorted(failed, key=lambda number: is_passing(failed[number]))  # a lasting failure is raised first
        if left:
            raise failed[left[0]]

    def fact() -> str:
        start = spans[left[0]][0]
        return f"{files[left[0]].path} cannot be read{'' if start is None else f' at byte {start:,}'}"

    while len(parts) < len(files):
        first = next(number for number in range(len(files)) if number not in parts)
        left[:] = [number for number, file in enumerate(files) if file.system is files[first].system]
        insist(ask, fact)
    return [parts[number] for number in range(len(files))]


class Settings(NamedTuple):
    """The settings of fsspec that another process needs to read from a file system."""

    protocol: str
    kind: type
    """The class of the file system, which the program may have registered."""
    options: dict[str, dict[str, Any] | None]
    """Entries of `fsspec.config.conf` for the class, by protocol."""

    @classmethod
    def of(cls, protocol: str) -> "Settings":
        """Returns the settings of this process.

        Raises:
            TypeError: The content of the file system exists only in this process.
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
        """Makes them the settings of this process."""
        import fsspec

        fsspec.register_implementation(self.protocol, self.kind, clobber=True)
        for name, options in self.options.items():
            if options is None:
                fsspec.config.conf.pop(name, None)
            else:
                fsspec.config.conf[name] = options


def protocols_of(url: str) -> Iterator[str]:
    """Yields the protocols in a URL: `zip` and `file` for `zip://a::file:///b.zip`."""
    import fsspec

    for part in url.split("::"):
        yield part.partition("://")[0] if "://" in part or part in fsspec.available_protocols() else "file"


def arrive(settings: Sequence[Settings], kind: Callable[..., T], values: tuple[Any, ...]) -> T:
    """Makes an object that names URLs in another process, after adopting the settings of the sender."""
    for each in settings:
        each.adopt()
    return kind(*values)


def insist(ask: Callable[[], T], fact: Callable[[], str], cure: str = "", asker: RetryBudget | None = None) -> T:
    """Makes a request, and repeats it if it fails for a moment.

    Args:
        ask: Makes the request once. It may continue after a failure.
        fact: Returns the beginning of the error's message: `s3://a/b cannot be read`.
        cure: Its end: a sentence after a space.
        asker: The retry budget; None for the calling thread's.

    Raises:
        SourceError: The failure lasts. The message has the reason and the number of tries.
        UnwantedError: The result is no longer wanted.
    """
    asker = asker or retry_budget()
    began, count = time.monotonic(), 0
    while True:
        count += 1
        try:
            found = ask()
            asker.waited_s += time.monotonic() - began
            return found
        except (PenstockError, ImportError):
            raise
        except Exception as error:  # of any type: those of aiohttp are no `OSError`
            taken_s = time.monotonic() - began
            pause_s = _pause_s(count, error)
            # Half of a loader's deadline for a worker, so that this failure is reported, and not the deadline.
            if pause_s is None or taken_s + pause_s > asker.limit_s / 2:
                how = f" after {count} tries in {taken_s:.0f} s" if count > 1 else ""
                raise SourceError(f"{fact()}{how}: {reason_of(error)}.{cure}") from error
            level = logging.WARNING if count == _WARN_AT else logging.INFO
            _log.log(level, "%s: %s. It is tried again in %.1f s.", fact(), reason_of(error), pause_s)
        asker.pause(pause_s)
        asker.repeat_count += 1


def _pause_s(count: int, error: Exception) -> float | None:
    """Returns the pause after `count` tries; None to give up."""
    if count > len(PAUSES_S) or not is_passing(error):
        return None
    return max(PAUSES_S[count - 1] * _spread.uniform(0.8, 1.2), _asked_pause_s(error))


def _asked_pause_s(error: Exception) -> float:
    """Returns the pause that the server asks for, or 0."""
    for each in _with_causes(error):
        for holder in (each, getattr(each, "response", None)):
            headers = getattr(holder, "headers", None)
            said = None if headers is None else headers.get("Retry-After")
            if isinstance(said, str) and said.isdecimal():
                return float(said)
    return 0.0


def is_passing(error: BaseException) -> bool:
    """Whether a request failed for a moment, so that a retry may help.

    File systems raise exceptions of their libraries, or wrap them. So the first verdict on an exception and its causes
    counts. fsspec raises `FileNotFoundError` for any reason.
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
    """Whether it has one of these types of a module that may not be imported."""
    return any(isinstance(error, getattr(sys.modules.get(module), name, ())) for name in names)


def _status(error: BaseException) -> int | None:
    """Returns the HTTP status in an exception; None if there is none."""
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
    from fsspec.archive import AbstractArchiveFileSystem  # not above: fsspec is an extra
    from fsspec.implementations.cached import CachingFileSystem

    # The key of a file in an archive contains the object that reads the archive, which is new each time.
    behind = system.fs if isinstance(system, CachingFileSystem) else system
    if isinstance(behind, AbstractArchiveFileSystem):
        return hashlib.sha256(repr(sorted(info.items())).encode()).hexdigest()
    # The key of a file behind HTTP is that of its URL alone. The headers tell more about the content.
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
    """Returns the reason of a failure in the words of its exception."""
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    # fsspec reports a refused file as not found. The server's answer is the cause.
    is_hidden = isinstance(error, FileNotFoundError) and error.__cause__ is not None
    return f"{reason} ({type(error.__cause__).__name__}: {error.__cause__})" if is_hidden else reason
