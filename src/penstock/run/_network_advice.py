"""What a plan asks of servers in an epoch, computed from indexes alone before the first one, and what to do about it.

`penstock inspect` asks here too. `penstock doctor` measures the way to a server (`commands/_network.py`).
"""

import logging
import math
from typing import Any, Final, NamedTuple, final

import numpy as np

from penstock.base._errors import PenstockError
from penstock.base._units import size_text
from penstock.lower._analysis import Analysis
from penstock.lower._batches import ANNOUNCED_BATCHES
from penstock.sources._fetch import AHEAD_NBYTES, CONNECTIONS, PART_NBYTES, is_joined
from penstock.sources._openfile import FilesSource, RecordReader, sorted_ranges

_log = logging.getLogger("penstock")

_SAMPLE: Final = 1 << 16
"""The most elements that stand for all."""
_USUAL_LATENCY_S: Final = 0.03
_SMALL_NBYTES: Final = 256 << 10
"""Smaller requests do not fill 10 Gb/s: `CONNECTIONS` of them in `_USUAL_LATENCY_S`."""
_FEW: Final = 10 * CONNECTIONS
"""Fewer requests take no time worth a word."""


@final
class Requests(NamedTuple):
    """What an epoch asks of a server."""

    request_count: int
    nbytes: int
    """With the gaps between joined records."""
    record_nbytes: int
    """The average size of an element."""

    def __str__(self) -> str:
        each = size_text(self.nbytes // max(1, self.request_count))
        return f"about {self.request_count:,} requests of {each}, {size_text(self.nbytes)} in all"


def requests_of(source: Any, ahead: int, *, is_scattered: bool = False) -> Requests | None:
    """Estimates the requests of an epoch over a source behind URLs; None if its reads are not known ahead.

    Reads the source's index. Takes milliseconds.

    Args:
        source: The source.
        ahead: The elements that are announced together. Requests of neighbours among them are joined.
        is_scattered: Whether these are any elements, and not neighbours.
    """
    if not isinstance(source, FilesSource) or not source.is_remote or not len(source):
        return None
    reader: Any = source.open()
    try:
        if not isinstance(reader, RecordReader):
            return None
        count = len(source)
        taken = min(count, ahead, _SAMPLE)
        start = (count - taken) // 2
        rng = np.random.default_rng(0)
        elements = rng.choice(count, taken, replace=False) if is_scattered else np.arange(start, start + taken)
        numbers, offsets, sizes, _ = sorted_ranges(*reader.ranges(elements.astype(np.int64)))
    finally:
        reader.close()
    if not sizes.sum():
        return None
    firsts = np.flatnonzero(np.concatenate(([True], ~is_joined(numbers, offsets, sizes))))
    nbytes = np.maximum.reduceat(offsets + sizes, firsts) - offsets[firsts]
    scale = count / taken
    requests = max(round(-(-nbytes // PART_NBYTES).sum() * scale), -(-round(nbytes.sum() * scale) // PART_NBYTES))
    return Requests(requests, round(nbytes.sum() * scale), max(1, int(sizes.sum()) // taken))


def cure(source: FilesSource, asked: Requests) -> str:
    """Returns what to do about a global shuffle that the number of its requests limits; empty if it does not."""
    if asked.request_count < _FEW or asked.nbytes / asked.request_count >= _SMALL_NBYTES:
        return ""
    most = AHEAD_NBYTES // 2 // asked.record_nbytes  # two windows are under way
    window = 1 << max(0, most.bit_length() - 1)
    windowed = requests_of(source, window) if window < len(source) else None
    seconds = asked.request_count * _USUAL_LATENCY_S / CONNECTIONS
    cures = "Write larger shards in a shuffled order once: penstock.repack(ds.shuffle(seed=0), folder_or_url)."
    if windowed is not None and 2 * windowed.request_count < asked.request_count:
        cures = f"shuffle(window={window}) asks for neighbours together, {windowed.request_count:,} requests. {cures}"
    return (
        f"The number of requests limits this shuffle: an epoch makes {asked}. That takes {seconds:,.0f} s at 30 ms and "
        f"{CONNECTIONS} at once. {cures}"
    )


def network_advice(analysis: Analysis) -> list[str]:
    """Logs the requests of an epoch for each source behind URLs. Returns advice, which is logged as a warning."""
    is_scattered = math.inf in analysis.spreads
    windows = (int(spread) for spread in analysis.spreads if spread < math.inf)
    ahead = max([analysis.batch_size * ANNOUNCED_BATCHES, *windows])
    found = []
    for node in analysis.user_steps if analysis.plan.access == "random" else ():
        source: Any = node.opens
        try:
            asked = requests_of(source, ahead, is_scattered=is_scattered)
        except PenstockError:  # the first read reports it
            continue
        if asked is None:
            continue
        _log.info("An epoch of %s makes %s.", node.label, asked)
        if is_scattered and (advice := cure(source, asked)):
            found.append(f"{node.label}: {advice}")
            _log.warning("%s", found[-1])
    return found
