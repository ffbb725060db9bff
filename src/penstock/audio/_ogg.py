"""Pages of Ogg: what libsndfile does not say of the last ones.

A page has a mark, a version, flags, the last sample that ends in it (8 bytes, -1 for none), the number of its stream
(4), its own number and checksum, and the number of its segments; then the size of each segment, and their bytes.
"""

import re
import struct
from typing import Final

MOST_PAGE_NBYTES: Final = 65_307

_HEAD: Final = struct.Struct("<4sBBqIIIB")
_STARTS: Final = re.compile(rb"OggS\0")


def page_at(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Returns the end of a page, its last sample, and the number of its stream; None if its header is not whole."""
    table = at + _HEAD.size
    if len(data) < table:
        return None
    _, _, _, sample, stream, _, _, segment_count = _HEAD.unpack_from(data, at)
    if len(data) < table + segment_count:
        return None
    return table + segment_count + sum(data[table : table + segment_count]), sample, stream


def last_start(data: bytes) -> int | None:
    """Returns where the last page begins; None if there is none."""
    return max((found.start() for found in _STARTS.finditer(data)), default=None)


def sample_before_last_page(data: bytes, stream: int) -> int:
    """Returns the sample at which the last page of a stream begins; 0 if the page before it is not in the data.

    Args:
        data: The end of a file.
        stream: The number of the stream.
    """
    has_last, next_start = False, None
    for found in reversed(list(_STARTS.finditer(data))):
        page = page_at(data, found.start())
        if page is None or (next_start is not None and page[0] != next_start):
            continue  # no page, but bytes that look like one
        next_start = found.start()
        if page[2] != stream or page[1] < 0:
            continue
        if has_last:
            return page[1]
        has_last = True
    return 0
