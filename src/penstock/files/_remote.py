"""Files behind URLs: their state, and requests that are repeated.

`obstore` reads those of object stores and HTTP (`_store.py`), `fsspec` those of all other protocols. `_fetch.py` makes
many requests at once.

A request that fails for a moment is repeated after growing pauses. Such failures are: a server that is busy or starts
(HTTP 408, 425, 429 and 5xx), a connection that breaks or cannot be made, an answer that is late or cut off. Other
failures are raised at once: a missing file, a refused one, an unexpected answer. `gcsfs` repeats the same requests,
`s3fs` fewer, and fsspec's own HTTP none (2026.9).

Waits. The wait for an answer ends by the client's timeout: for obstore 30 s without a byte, or 15 minutes; for HTTP by
fsspec 5 minutes. For the pauses see `RetryBudget`.
"""

import errno
import glob
import logging
import math
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar, final

from penstock.base._arguments import install
from penstock.base._code import is_own
from penstock.base._errors import PenstockError, SourceError, words_of
from penstock.base._printable import printable
from penstock.base._retries import RetryBudget, retry_budget
from penstock.base._travel import journey
from penstock.files import _store
from penstock.files._store import ObjectFile, StorageOptions, StoreError

T = TypeVar("T")


class ByteSource(Protocol):
    """One object in one version, whose bytes are read by place: a local file, a URL, or an object in a store.

    `File` names the object and its version, and `File.open` returns it. `Fetcher` reads many ranges at once.
    """

    path: str

    def read_into(self, offset: int, place: memoryview, asker: RetryBudget | None = None) -> int:
        """Fills memory with the bytes from `offset` on. Returns their number, smaller only at the end.

        Args:
            offset: The first byte.
            place: The memory.
            asker: The retry budget; None for the calling thread's.
        """


PAUSES_S: Final = (0.1, 0.4, 1.5, 4.0, 8.0, 16.0)
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
    ("httpx2", ("TransportError",)),
    ("requests.exceptions", ("ConnectionError", "Timeout", "ChunkedEncodingError")),
    ("ssl", ("SSLError",)),
    ("urllib3.exceptions", ("ProtocolError", "TimeoutError")),
)
# The first of these that a file system reports is the version.
_MARKS: Final = (
    "ETag", "etag", "generation", "blob_id", "md5Hash", "content_md5", "Content-MD5", "Digest", "CRC", "LastModified",
    "last_modified", "Last-Modified", "updated", "modified", "mtime", "date_time", "created",
)  # fmt: skip
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_COMMIT: Final = re.compile(r"hf://[^@]+@[0-9a-f]{40}(/|$)")
"""An address on the Hugging Face Hub whose content never changes."""
_LOOKING: Final = ("find", "_find", "glob", "_glob")
MOST_ASKED_PAUSE_S: Final = 300.0
"""The longest pause that a server may ask for where no loader has a `timeout_s`."""
# Clients that fail together must not return together. Not the user's generator, which is seeded.
_spread = random.Random()

_log = logging.getLogger("penstock")


def is_remote(url: str) -> bool:
    """Whether it is a URL for `fsspec`, and not a local path."""
    return "://" in url and not url.startswith(("file://", "local://"))


def is_pinned(url: str) -> bool:
    """Whether a URL names a commit on the Hugging Face Hub, of which each listing holds."""
    return _COMMIT.match(url) is not None


def facts_of(url: str, options: StorageOptions | None, fact: str, cure: str = "") -> tuple[int, str]:
    """Returns the size of a file, and a text that changes with its content. For `fact` and `cure` see `insist`.

    Raises:
        SourceError: The file is missing, or the connection fails.
        ImportError: `fsspec` is missing.
    """
    if _store.is_native(url):
        return insist(lambda: _store.facts_of(url, options), lambda: fact, cure)

    def ask() -> tuple[int, str]:
        system, inner = file_system(url, options)
        if not is_pinned(url):  # not from a listing of the past: the file may be another one now
            system.invalidate_cache(system._parent(inner))
        info = system.info(inner)
        if info["size"] is None:
            raise ValueError("its size is not known, and without it there is no random access")
        return int(info["size"]), _version(info)

    return insist(ask, lambda: fact, cure)


def matches(pattern: str, options: StorageOptions | None) -> Sequence[tuple[str, int, str] | str]:
    """Returns the URLs that match a pattern, sorted by name, with size and version where the listing has them.

    Raises:
        SourceError: The connection fails.
        ImportError: `fsspec` is missing.
    """
    fact = f"{pattern} cannot be looked for"
    if _store.is_native(pattern):
        natively = insist(lambda: _store.matches(pattern, options), lambda: fact)
        if natively is not None:
            return list(natively)

    def ask() -> Sequence[tuple[str, int, str] | str]:
        system, inner = file_system(pattern, options)
        links = pattern.split("::")  # a cache, or a file in an archive, before the file itself
        at = next(number for number, link in enumerate(links) if glob.has_magic(link))
        names = _walked(system, inner) if _walks(system) else system.glob(inner)
        found = (str(system.unstrip_protocol(each)) for each in sorted(names))
        return ["::".join([*links[:at], each, *links[at + 1 :]]) for each in found]

    return insist(ask, lambda: fact)


def _walks(system: Any) -> bool:
    """Whether `glob` of a file system lists folder by folder, by code of fsspec that leaves out those that fail."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    own = [getattr(getattr(system, name, None), "__func__", None) for name in _LOOKING]
    generic = [getattr(kind, name, None) for kind in (AbstractFileSystem, AsyncFileSystem) for name in _LOOKING]
    return all(each is None or each in generic for each in own)


def _walked(system: Any, pattern: str) -> Iterator[str]:
    """Yields the files that match a pattern, of listings that all succeed.

    Raises:
        Exception: One does not, of any type.
    """
    is_match, depth = _store.regex(pattern).fullmatch, math.inf if "**" in pattern else pattern.count("/")
    waiting = [_store.fixed_folder(pattern)]
    while waiting:
        folder = waiting.pop()
        try:
            entries = system.ls(folder, detail=True)
        except FileNotFoundError as error:
            if is_passing(error):
                raise
            continue
        for entry in entries:
            name = entry["name"].rstrip("/")
            if entry["type"] != "directory":
                if is_match(name):
                    yield name
            elif name != folder and name.count("/") < depth:
                waiting.append(name)


@final
class RemoteFile:
    """A file behind a URL. Any number of threads may read it. Nothing stays open.

    Args:
        url: Its name.
        state: Its size and version; a read of another version fails. None for whatever is there.
        options: Those of the client.
        cure: The end of the messages of errors.

    Raises:
        SourceError: fsspec does not know the URL.
    """

    def __init__(
        self,
        url: str,
        state: tuple[int, str] | None = None,
        options: StorageOptions | None = None,
        cure: str = "",
    ) -> None:
        self.path = url
        client: ObjectFile | _SystemFile
        if _store.is_native(url):
            version = None if state is None else state[1]
            client = insist(lambda: ObjectFile(url, version, options), lambda: f"{url} cannot be opened")
        else:
            client = insist(lambda: _SystemFile(url, state, options, cure), lambda: f"{url} cannot be opened")
        self.fetch = client.fetch
        """Returns a range, or all bytes if the second argument is None, by one request."""

    def read_into(self, offset: int, place: memoryview, asker: RetryBudget | None = None) -> int:
        stop = offset + len(place)
        asker, began_s = asker or retry_budget(), time.monotonic()
        fact = f"{self.path} cannot be read at byte {offset:,}"
        data = memoryview(insist(lambda: self.fetch(offset, stop), lambda: fact, asker=asker))
        place[: len(data)] = data
        asker.request_count += 1
        asker.request_s += time.monotonic() - began_s
        asker.fetched_nbytes += len(data)
        asker.needed_nbytes += len(data)
        return len(data)


class _SystemFile:
    """A path in a file system of fsspec. Its state is compared before the first read; requests have no condition."""

    def __init__(self, url: str, state: tuple[int, str] | None, options: StorageOptions | None, cure: str) -> None:
        self._url, self._options, self._cure = url, options, cure
        self._state = None if is_pinned(url) else state
        self._nbytes = None if state is None else state[0]
        self._system, self._inner = file_system(url, options)
        self._lock = threading.Lock()

    def fetch(self, start: int, stop: int | None) -> Any:
        """Returns a range, or all bytes."""
        with self._lock:  # of several threads one asks
            if self._state is not None:
                self._require_same(self._state)
                self._state = None
        if stop is None:
            return self._system.cat_file(self._inner)
        stop = stop if self._nbytes is None else min(stop, self._nbytes)
        checks = self._checks(start, stop)
        data = self._system.cat_file(self._inner, start=start, end=stop, **checks)
        if len(data) > stop - start:
            raise SourceError(
                f"{self._url} does not come in parts: {stop - start:,} bytes of it were asked for, and {len(data):,} "
                "came, as from a server of HTTP that knows no ranges. Fetch it to this machine first."
            )
        if checks and self._nbytes is not None and len(data) < stop - start:  # of others, the file is shorter now
            raise ConnectionError(f"{len(data):,} bytes came of {stop - start:,}")
        return data

    def _checks(self, start: int, stop: int) -> dict[str, Any]:
        """Returns the options by which fsspec's client of HTTP checks what an answer is, which it does not itself.

        The Hub's opens a file for each range, and would read 5 MB ahead in it.
        """
        if self._url.startswith("hf://"):
            return {"cache_type": "none"}
        http = sys.modules.get("fsspec.implementations.http")
        if http is None or not isinstance(self._system, http.HTTPFileSystem):
            return {}

        async def check(answer: Any) -> None:
            place = answer.headers.get("Content-Range", "")
            found = _CONTENT_RANGE.fullmatch(place)
            is_right = found is not None and int(found[1]) == start and str(int(found[2]) + 1) in (str(stop), found[3])
            is_right |= answer.status == 200 and start == 0 and stop == self._nbytes
            if answer.status in (200, 206) and not is_right:
                raise SourceError(
                    f"{self._url} does not come in parts: bytes {start}-{stop - 1} were asked for, and its server gave "
                    f"{place or 'others'} with status {answer.status}. Fetch it to this machine first."
                )

        # A compressed answer would have the range of other bytes.
        headers = {**self._system.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
        return {"raise_for_status": check, "headers": headers}

    def _require_same(self, state: tuple[int, str]) -> None:
        now = facts_of(self._url, self._options, f"{self._url} cannot be opened", self._cure)
        if now != state:
            raise SourceError(
                f"{self._url} has changed since the dataset was made: {state[0]:,} bytes then, {now[0]:,} now"
                f"{', and written to' * (now[0] == state[0])}. A run must not mix two; make the dataset again."
            )


Settings = tuple[str, type, dict[str, dict[str, Any] | None]]
"""A protocol, the class of its file system, which the program may have registered, and entries of `fsspec.config.conf`
for the class, by protocol."""


def _settings_of(protocol: str) -> Settings:
    """Returns the settings of fsspec in this process that another one needs to read from a file system.

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
    return protocol, kind, {name: fsspec.config.conf.get(name) for name in (protocol, *names)}


def protocols_of(url: str) -> Iterator[str]:
    """Yields the protocols in a URL: `zip` and `file` for `zip://a::file:///b.zip`."""
    import fsspec

    for part in url.split("::"):
        yield part.partition("://")[0] if "://" in part or part in fsspec.available_protocols() else "file"


def sent(urls: Sequence[str], kind: Callable[..., T], values: tuple[Any, ...]) -> Any:
    """How an object travels to workers that names URLs: with the settings of fsspec for them; None if it needs none."""
    trip = journey()
    if trip is None or not (urls := [url for url in urls if not _store.is_native(url)]):
        return None
    settings = []
    for protocol in sorted({protocol for url in urls for protocol in protocols_of(url)}):
        if (sent, protocol) not in trip.found:
            trip.found[sent, protocol] = _settings_of(protocol)
        settings.append(trip.found[sent, protocol])
    return arrive, (settings, kind, values)


def arrive(settings: Sequence[Settings], kind: Callable[..., T], values: tuple[Any, ...]) -> T:
    """Makes an object that names URLs in another process, after adopting the settings of the sender."""
    import fsspec

    for protocol, system, entries in settings:
        fsspec.register_implementation(protocol, system, clobber=True)
        for name, options in entries.items():
            fsspec.config.conf.pop(name, None)
            if options is not None:
                fsspec.config.conf[name] = options
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
        except Exception as caught:  # of any type: those of aiohttp are no `OSError`
            error = caught
        taken_s = time.monotonic() - began
        pause_s, asked_s = _pause_s(count, error), _asked_pause_s(error)
        # Half of a loader's deadline for a worker, so that this failure is reported, and not the deadline.
        most_s = asker.limit_s / 2
        is_too_long = taken_s + (pause_s or 0) > most_s or (most_s == math.inf and asked_s > MOST_ASKED_PAUSE_S)
        if pause_s is None or is_too_long:
            how = f" after {count} tries in {taken_s:.0f} s" if count > 1 else ""
            if pause_s is not None and asked_s == pause_s:
                cure = f" The server asks for a pause of {asked_s:,.0f} s, which is not waited for.{cure}"
            raise SourceError(f"{fact()}{how}: {reason_of(error)}.{cure}") from _printable_cause(error)
        level = logging.WARNING if count == _WARN_AT else logging.INFO
        _log.log(level, "%s: %s. It is tried again in %.1f s.", fact(), reason_of(error), pause_s)
        del error  # it would hold this frame
        asker.pause(pause_s)
        asker.repeat_count += 1


def _printable_cause(error: Exception) -> Exception:
    """Returns an exception of a client, or one in its place if it or what led to it has a secret in its text."""
    led: BaseException | None = error
    seen: list[BaseException] = []
    while led is not None and led not in seen:
        seen.append(led)
        if any(printable(text, has_lines=True) != text for text in (words_of(led), repr(led))):
            return StoreError(_status(error), printable(words_of(error)))
        led = led.__cause__ or led.__context__
    return error


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
    if isinstance(error, StoreError) and error.status is None:
        return True  # no answer came
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
    found = [getattr(holder, name, None) for holder in (error, response) for name in ("status", "status_code")]
    if found.count(None) == len(found):  # aiohttp warns of its `code`
        found += [getattr(holder, "code", None) for holder in (error, response)]
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


def _version(info: dict[str, Any]) -> str:
    """Returns what identifies the content, of all that a file system reports.

    Not the whole report: a listing has other facts than a look at one file, and an archive's has the object that reads
    it. The size is compared in any case.
    """
    return next((f"{name} {info[name]}" for name in _MARKS if info.get(name)), "")


def file_system(url: str, options: StorageOptions | None) -> tuple[Any, str]:
    """Returns the file system of fsspec for a URL, and its path there."""
    try:
        import fsspec
    except ImportError:
        raise ImportError(
            f"{url} is no local path, and reading it needs obstore or fsspec: {install('obstore', 'fsspec')}."
        ) from None
    system, inner = fsspec.core.url_to_fs(url, **({} if options is None else options.values))
    return system, str(inner)


def reason_of(error: Exception) -> str:
    """Returns the reason of a failure in the words of its exception."""
    if isinstance(error, StoreError):
        return str(error)
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    # fsspec reports a refused file as not found. The server's answer is the cause.
    is_hidden = isinstance(error, FileNotFoundError) and error.__cause__ is not None
    return f"{reason} ({type(error.__cause__).__name__}: {error.__cause__})" if is_hidden else reason
