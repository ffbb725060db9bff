"""The way to a server for `penstock doctor`: how fast it answers, and what follows."""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, final

import penstock
from penstock.base._units import size_text
from penstock.commands._recognise import pattern_of
from penstock.sources._fetch import CONNECTIONS, PART_NBYTES
from penstock.sources._openfile import find

_TRIES: Final = 7
_MANY: Final = 32


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
            "loader asks for up to 64 MiB ahead."
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
    file = max(find("doctor", pattern_of(url)), key=lambda file: file.nbytes)
    opened = file.open()
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
