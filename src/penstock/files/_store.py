"""Objects in S3, Google Cloud Storage, Azure and behind HTTP, by `obstore`: their versions, and reads of ranges.

A version is the ETag, or the time of the last change where a server has none. Listings, HEAD and each answer report
the same one. So a read sends it as a condition (`If-Match`), compares it with that of the answer, and needs no HEAD.
obstore releases the GIL while it waits. Its own retries are off: `_remote.insist` repeats requests, by one rule for all
clients. Its messages hold addresses with keys in their queries, so none of them is passed on unchanged.
"""

import fnmatch
import glob
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, Final, final
from urllib.parse import unquote, urlsplit

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._printable import keep_secret
from penstock.base._travel import journey

_SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "https", "http")
_HTTP: Final = ("http", "https")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_QUERY: Final = re.compile(r"\?\S+")
_OTHER_ESCAPES: Final = re.compile(r"%(?!20|2[235]|3[cef]|5c|60|7[bd]|[89a-f])[0-9a-f]{2}", re.IGNORECASE)
"""Escapes of characters that the client sends as they are, such as `%2F` and `%2B`: a server may tell them apart."""
READ_TIMEOUT: Final = "30s"
"""The longest time without a byte of an answer. Its whole may take longer: many share a slow line."""
TIMEOUT: Final = "15m"
_VARIABLES: Final = ("AWS_", "GOOGLE_", "AZURE_")
_LOOKS: Final = 64
"""Objects that are looked at in one moment."""
_METADATA: Final = ("169.254.169.254", "metadata.google.internal", "Account must be specified")
"""Where clients look for credentials if there are none; and what Azure's says."""


@final
class StorageOptions:
    """Options of a client, such as keys. They are in no repr or fingerprint. Pickle refuses them, except for workers.

    Args:
        values: The names and values; see `penstock.from_tar`.
    """

    __slots__ = ("values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    @classmethod
    def of(cls, verb: str, given: Any) -> "StorageOptions | None":
        """Returns the options that a user gave; None for none.

        Raises:
            ArgumentTypeError: They are no dict with text as keys.
        """
        if given is None:
            return None
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise ArgumentTypeError(f"{verb}(storage_options=) is a dict of names and values, got {type_of(given)}.")
        keep_secret(given)
        return cls(dict(given))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self.values == other.values

    def __hash__(self) -> int:
        return hash(frozenset(self.values))

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(self.values)})"

    def fingerprint_parts(self) -> dict[str, Any]:
        """Nothing: elements do not depend on keys."""
        return {}

    def __reduce__(self) -> Any:
        if journey() is not None:
            return StorageOptions, (self.values,)
        raise TypeError(
            "storage_options= may hold keys, which do not belong into a pickle. Give them by environment variables, or "
            "make the dataset again where it is used."
        )


class StoreError(OSError):
    """A request failed: its status, or None if no answer came; and a message without addresses and keys."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


def is_native(url: str) -> bool:
    """Whether `obstore` reads a URL, and not `fsspec`.

    Not chained ones, those with a query, and protocols for which the program configured fsspec. Nor those for which
    obstore would ask for another name: it drops empty parts of a path, and escapes what is escaped.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme not in _SCHEMES or "::" in url or "//" in rest:
        return False
    if scheme in _HTTP and ("?" in rest or "#" in rest or _OTHER_ESCAPES.search(rest) or not _is_text(rest)):
        return False
    config = sys.modules.get("fsspec.config")
    if config is not None and config.conf.get(scheme):
        return False
    return _has_obstore()


def _is_text(escaped: str) -> bool:
    try:
        unquote(escaped, errors="strict")
    except UnicodeDecodeError:
        return False
    return True


@lru_cache
def _has_obstore() -> bool:
    return find_spec("obstore") is not None


def facts_of(url: str, options: StorageOptions | None) -> tuple[int, str]:
    """Returns the size and version of an object, by HEAD."""
    import obstore

    store, key = _place(url, options)
    meta = _asked(lambda: obstore.head(store, key))
    return int(meta["size"]), _version(meta)


def put(url: str, file: Any, options: StorageOptions | None) -> None:
    """Writes an object, which appears when all of it has arrived."""
    import obstore

    store, key = _place(url, options, TIMEOUT)  # no byte of an answer comes before all have gone up a slow line
    _asked(lambda: obstore.put(store, key, file))


def matches(pattern: str, options: StorageOptions | None) -> list[tuple[str, int, str]] | None:
    """Returns the URLs that match a pattern, with sizes and versions, by one listing; None if the server has none.

    `*` and `?` match within a part of the path, `**` over several.
    """
    import obstore

    if pattern.startswith(("http://", "https://")):
        return None
    store, key = _place(pattern, options)
    root = pattern[: len(pattern) - len(key)]
    fixed = fixed_folder(key)  # a prefix of a listing ends at a separator
    is_match = regex(key).fullmatch

    def found() -> Iterator[tuple[str, int, str]]:
        for some in obstore.list(store, prefix=fixed or None):
            for meta in some:
                if is_match(meta["path"]):
                    yield root + meta["path"], int(meta["size"]), _version(meta)

    listed: list[tuple[str, int, str]] = _asked(lambda: sorted(found()))
    empty = [url for url, nbytes, _ in listed if not nbytes]
    with ThreadPoolExecutor(max(1, min(_LOOKS, len(empty))), "penstock-list") as pool:
        is_there = dict(zip(empty, pool.map(lambda url: _is_there(store, url[len(root) :]), empty), strict=True))
    return [each for each in listed if is_there.get(each[0], True)]


def _is_there(store: Any, key: str) -> bool:
    """Whether a listed object without bytes is no mark of a folder: `a/`, which the client lists as `a`."""
    import obstore

    try:
        _asked(lambda: obstore.head(store, key))
    except StoreError as error:
        if error.status != 404:
            raise
        return False
    return True


def fixed_folder(pattern: str) -> str:
    """Returns the folder that all names have which match a pattern; empty for none."""
    return pattern[: next(at for at in range(len(pattern)) if glob.has_magic(pattern[at]))].rpartition("/")[0]


def regex(pattern: str) -> "re.Pattern[str]":
    """Returns what names that match a pattern fit; see `matches`."""
    parts = []
    for part in re.split(r"(\*\*/?|[*?])", pattern):
        if part.startswith("**"):
            parts.append("(?:.*/)?" if part.endswith("/") else ".*")
        elif part in ("*", "?"):
            parts.append(f"[^/]{'*' * (part == '*')}")
        else:
            parts.append(fnmatch.translate(part).removesuffix(r"\Z").removesuffix(r"\z"))
    return re.compile("".join(parts))


@final
class ObjectFile:
    """An object in one version. Any number of threads may read.

    Args:
        url: Its name.
        version: See `facts_of`; None for whatever is there.
        options: Those of the client.
    """

    def __init__(self, url: str, version: str | None, options: StorageOptions | None) -> None:
        self.path = url
        self._version = version
        self._store, self._key = _place(url, options)
        # A weak ETag never fits the condition, so it is only compared.
        is_tag = version is not None and version.startswith('"')
        self._condition = {"if_match": version} if is_tag else {}

    def fetch(self, start: int, stop: int | None) -> Any:
        """Returns a range, or all bytes if `stop` is None, as an object with a buffer. One request.

        Raises:
            SourceError: The object is another version, or the server does not know ranges.
            StoreError: The request failed.
        """
        import obstore

        options: dict[str, Any] = dict(self._condition)
        if stop is not None:
            options["range"] = (start, stop)

        def ask() -> Any:
            answer = obstore.get(self._store, self._key, options=options)
            if self._version is not None and _version(answer.meta) != self._version:
                raise self.has_changed()
            return answer.bytes(), answer.range

        try:
            data, (first, end) = _asked(ask)
        except StoreError as error:
            if error.status == 412:
                raise self.has_changed() from None
            if any(words in str(error).lower() for words in ("partial", "range request not supported")):
                raise SourceError(
                    f"{self.path} does not come in parts: its server knows no ranges. Fetch it to this machine first."
                ) from None
            raise
        if len(data) != end - first:  # the client compares ranges, and not what comes
            raise StoreError(None, f"{len(data):,} bytes came of {end - first:,}")
        return data

    def has_changed(self) -> SourceError:
        """The error of an object that is another one now."""
        return SourceError(
            f"{self.path} has changed since the dataset was made. A run must not mix two versions; make the dataset "
            "again."
        )


def _version(meta: Any) -> str:
    tag = meta.get("e_tag")
    if tag:
        return tag if tag.startswith(('"', "W/")) else f'"{tag}"'  # Azure's listing has no quotes
    return f"{meta['size']} {meta['last_modified'].isoformat()}"


def _place(url: str, options: StorageOptions | None, read_timeout: str = READ_TIMEOUT) -> tuple[Any, str]:
    """Returns the client of a bucket, one for all threads, and the key.

    Raises:
        StoreError: There is no key, or the bucket has no name.
    """
    parts = urlsplit(url.replace("#", "%23").replace("?", "%3F"))
    root = f"{parts.scheme}://{parts.netloc}"
    key = url[len(root) + 1 :]
    if not key and parts.scheme not in _HTTP:  # asked about a bucket, servers answer as of an object without bytes
        raise StoreError(404, "it names no object in a bucket")
    client = _client(root, options, os.getpid(), _environment(), read_timeout)
    return client, unquote(key) if parts.scheme in _HTTP else key


def _environment() -> frozenset[tuple[str, str]]:
    """What clients read in the environment, once: after a change, such as of an endpoint, another one is made."""
    return frozenset(each for each in os.environ.items() if each[0].upper().startswith(_VARIABLES))


@lru_cache(64)
def _client(
    root: str, options: StorageOptions | None, pid: int, environment: frozenset[tuple[str, str]], read_timeout: str
) -> Any:
    import obstore.exceptions
    from obstore.store import from_url

    given = {} if options is None else dict(options.values)
    # Plain HTTP happens only where the URL or the endpoint says so.
    limits = {"read_timeout": read_timeout, "timeout": TIMEOUT}
    client_options = {"allow_http": True, **limits, **given.pop("client_options", {})}
    if root.startswith("s3") and "credential_provider" not in given and _needs_boto3(given):
        from obstore.auth.boto3 import Boto3CredentialProvider

        given["credential_provider"] = Boto3CredentialProvider()
    try:
        return from_url(root, client_options=client_options, retry_config={"max_retries": 0}, **given)
    except obstore.exceptions.UnknownConfigurationKeyError as error:
        raise ArgumentError(
            f"storage_options= of {root}: {_words(error)} They are those of obstore, such as 'region', 'endpoint', "
            "'access_key_id', 'secret_access_key' and 'skip_signature'."
        ) from None
    except obstore.exceptions.BaseError as error:
        raise StoreError(400, _words(error)) from None
    except TypeError as error:
        raise ArgumentTypeError(f"storage_options= of {root}: {_words(error)}.") from None


def _needs_boto3(given: dict[str, Any]) -> bool:
    """Whether keys come from the files in `~/.aws`, which boto3 reads and obstore does not."""
    if {name.removeprefix("aws_") for name in given} & {"access_key_id", "skip_signature", "token"}:
        return False
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_SKIP_SIGNATURE"):
        return False
    try:
        import boto3
    except ImportError:
        return False
    return boto3.Session().get_credentials() is not None


@cache
def _asking_process() -> int:
    """The process that has the threads of obstore: the first one that asks. Its children of fork() have them not."""
    return os.getpid()


def _asked(ask: Any) -> Any:
    """Calls obstore, and raises its errors as `StoreError`s."""
    import obstore.exceptions

    if _asking_process() != os.getpid():  # obstore would wait for its threads without an end
        raise StoreError(
            400,
            "this process is a child of fork(), and the threads of obstore, which had asked servers before, stayed in "
            "its parent. Start processes by 'spawn' or 'forkserver', as with "
            "DataLoader(multiprocessing_context='forkserver'), or read no URL before fork()",
        )
    try:
        return ask()
    except FileNotFoundError as error:
        if "status code: 405" in str(error):
            raise StoreError(405, _words(error)) from None
        raise StoreError(404, f"it is not there ({_words(error)})") from None
    except obstore.exceptions.BaseError as error:
        status = _STATUS.search(str(error))
        words = _words(error)
        if any(place in str(error) for place in _METADATA):
            _client.cache_clear()  # as below
            raise StoreError(
                401,
                "no credentials were found. Give them by the usual environment variables (AWS_ACCESS_KEY_ID, "
                "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME) or storage_options=; for public data "
                "storage_options={'skip_signature': True}",
            ) from None
        is_connection = "HTTP error" in words
        if isinstance(error, (obstore.exceptions.UnauthenticatedError, obstore.exceptions.PermissionDeniedError)):
            _client.cache_clear()  # the user may set other keys in the environment, which clients read once
        raise StoreError(int(status[1]) if status else None if is_connection else 400, words) from None


def _words(error: BaseException) -> str:
    text, _, details = str(error).partition("\n\nDebug source")
    said = _QUERY.sub("?...", " ".join(text.split())).rstrip(": ")
    return said + ": it timed out" * ("kind: Timeout" in details)
