"""Data behind URLs for the commands: what an object is, and how fast its server answers."""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, final

import penstock
from penstock.base._units import size_text
from penstock.commands._recognise import FORMATS, Found, made
from penstock.sources._advice import cure, requests_of
from penstock.sources._fetch import CONNECTIONS, PART_NBYTES
from penstock.sources._listing import below
from penstock.sources._openfile import File, find
from penstock.sources._remote import RemoteFile

_HEAD_NBYTES: Final = 4096
_TRIES: Final = 7
_MANY: Final = 32
_AHEAD: Final = 16 * 32
"""The elements that a loader announces at a time, in batches of 32."""
_BY_NAME: Final = {".tfrecord": "from_tfrecord", ".tfrecords": "from_tfrecord"}


def files_of(url: str) -> tuple[str, tuple[File, ...]]:
    """Returns the files of a URL, a pattern, or a folder that ends in a slash, and what to pass to a constructor.

    Raises:
        SourceError: There is no such object, or the connection fails.
    """
    if url.endswith("/"):
        names = [name for name in below(url, None) if "/" not in name]
        if not names:
            raise penstock.SourceError(f"There is no object directly in {url}. Name a file, or a pattern: {url}*.tar")
        ends = [name.rpartition(".")[2] for name in names]
        url = f"{url}*.{statistics.mode(ends)}"
    return url, find("inspect", url)


def recognise_url(url: str) -> tuple[Found, int]:
    """Recognises a file, or files that a pattern or a folder names, from the first bytes of one. Returns their bytes.

    Raises:
        SourceError: There is no such object, or the connection fails.
    """
    target, files = files_of(url)
    nbytes, head = sum(file.nbytes for file in files), files[0].head(_HEAD_NBYTES)
    known = next(((what, name) for at, magic, what, name in FORMATS if head.startswith(magic, at)), None)
    suffix = next((end for end in _BY_NAME if files[0].name.endswith(end)), None)
    if known is None and suffix is None:
        return Found("of an unknown kind", problem=f"{files[0].url} begins with {head[:16]!r}."), nbytes
    what, constructor = known or ("TFRecord", _BY_NAME[suffix or ""])
    if constructor == "from_image_files":
        found = made(what, constructor, [file.url for file in files[:1]])
    else:
        found = made(what if len(files) == 1 else f"{len(files):,} files: {what}", constructor, target)
    found.facts["version"] = [f"{files[0].version or 'none'}{' of the first' * (len(files) > 1)}"]
    if found.dataset is not None:
        found.facts.update(_epoch(found.dataset))
    return found, nbytes


def _epoch(dataset: penstock.Dataset) -> dict[str, list[str]]:
    source: Any = dataset._node.opens
    in_order = requests_of(source, _AHEAD)
    anyhow = requests_of(source, _AHEAD, is_scattered=True)
    if in_order is None or anyhow is None:
        return {}
    facts = {"an epoch": [f"in order {in_order}", f"shuffled {anyhow}"]}
    return facts | ({"advice": [advice]} if (advice := cure(source, anyhow)) else {})


@final
@dataclass(frozen=True)
class Network:
    """The way to a server, as measured."""

    url: str
    latency_s: float
    """Of a request for a byte; the median."""
    one_nbytes_s: float
    """Bytes a second of one connection."""
    many_nbytes_s: float
    """Bytes a second of `_MANY` connections."""

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yields titles and texts."""
        speeds = [f"{size_text(int(speed))}/s" for speed in (self.one_nbytes_s, self.many_nbytes_s)]
        yield "Object", self.url
        yield "Latency", f"{self.latency_s * 1e3:.1f} ms for a byte"
        yield "Bandwidth", f"{speeds[0]} by one connection, {speeds[1]} by {_MANY}"

    def problems(self) -> Iterator[str]:
        """Yields nothing: what fails is an error."""
        return iter(())

    def advice(self) -> Iterator[str]:
        """Yields what follows."""
        rate = CONNECTIONS / self.latency_s
        bound = int(self.many_nbytes_s / rate)
        yield (
            f"A loader makes at most {CONNECTIONS} requests at once, {rate:,.0f} a second here. Elements below "
            f"{size_text(bound)} are limited by their number in a global shuffle: shuffle(window=), or repack()."
        )
        yield (
            f"{size_text(int(self.many_nbytes_s * self.latency_s))} have to be under way to fill this connection; a "
            "loader asks for up to 128 MiB ahead."
        )
        yield (
            f"The first batch takes about {3e3 * self.latency_s:.0f} ms and the time of its bytes, once indexes are "
            "kept."
        )


def measure(url: str) -> Network:
    """Measures latency and bandwidth, by requests for at most 40 parts of 8 MiB.

    Raises:
        SourceError: There is no such object, or the connection fails.
    """
    _, files = files_of(url)
    file = max(files, key=lambda file: file.nbytes)
    opened = RemoteFile(file.url, (file.nbytes, file.version))
    part = min(PART_NBYTES, file.nbytes)
    if not part:
        raise penstock.SourceError(f"{file.url} is empty. Name an object of some MiB.")

    def read(nbytes: int) -> float:
        began_s = time.perf_counter()
        opened.read_into(0, memoryview(bytearray(nbytes)))
        return time.perf_counter() - began_s

    read(1)  # connects
    latency_s = statistics.median(read(1) for _ in range(_TRIES))
    one_s = min(read(part) for _ in range(2))
    with ThreadPoolExecutor(_MANY) as pool:
        list(pool.map(read, [1] * _MANY))
        began_s = time.perf_counter()
        list(pool.map(read, [part] * _MANY))
        many_s = time.perf_counter() - began_s
    return Network(file.url, latency_s, part / one_s, _MANY * part / many_s)
