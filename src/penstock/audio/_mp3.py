"""MP3 files that libsndfile takes for shorter than they are."""

import re
from collections.abc import Callable
from typing import Any, Final, final

from penstock.base._files import Readable

Read = Callable[[int, int], bytes]
"""Reads bytes of a file: from a place on, so many."""

_COUNT: Final = re.compile(rb"(?:Xing|Info)...[\1\3\5\7\x09\x0b\x0d\x0f](?!\0{4})|VBRI.{10}(?!\0{4})", re.DOTALL)
"""The number of frames of an MP3, near its beginning. That of bytes stands behind it, if the flags before have a 2."""
_HEAD_NBYTES: Final = 1 << 12
_MOST_BEFORE_COUNT: Final = 38
"""Bytes between the beginning of a frame and its count."""
_MOST_FRAME_NBYTES: Final = 1441
_TAG_NBYTES: Final = 128
_FACTOR: Final = 64
"""The highest bit rate of a frame is 56 times the lowest."""


def says_count(read: Read) -> bool:
    """Whether an MP3 says how many frames it has."""
    return _COUNT.search(read(_start(read), _HEAD_NBYTES)) is not None


def goes_on(read: Read, nbytes: int) -> bool:
    """Whether frames follow those that an MP3 says it has, as when several files were put behind each other.

    Args:
        read: Reads the file.
        nbytes: The size of the file.
    """
    start = _start(read)
    head = read(start, _HEAD_NBYTES)
    count = _COUNT.search(head)
    if count is None or count[0][:4] == b"VBRI" or not count[0][7] & 2:
        return False
    first = head.rfind(b"\xff", max(0, count.start() - _MOST_BEFORE_COUNT), count.start())
    end = start + first + int.from_bytes(head[count.start() + 12 : count.start() + 16], "big")
    # Some writers do not count the first frame, so its size may be left over.
    return first >= 0 and nbytes - end > 2 * _MOST_FRAME_NBYTES and read(end, 2) == head[first : first + 2]


def _start(read: Read) -> int:
    """Where the frames begin: behind a tag."""
    head = read(0, 10)
    if head[:3] != b"ID3":
        return 0
    a, b, c, d = head[6:]
    return 10 + (a << 21 | b << 14 | c << 7 | d)


@final
class Stretched(Readable):
    """A file that seems many times as large as it is.

    libsndfile computes the length of an MP3 that does not say it from the size of the file and the bit rate of the
    first frame, and reads no frame beyond. With this it reads all.
    """

    def __init__(self, content: Any, nbytes: int) -> None:
        super().__init__(_FACTOR * nbytes)
        self._content, self._end = content, nbytes

    @property
    def is_at_end(self) -> bool:
        """Whether all bytes were read."""
        return self._at >= self._end

    def readinto(self, buffer: Any, /) -> int:
        """Reads what is there; behind it, nothing but the place of a tag, of zeros, which libmpg123 looks for."""
        view = memoryview(buffer).cast("B")
        if not self.is_at_end:
            self._content.seek(self._at)
            count = int(self._content.readinto(view))
        else:
            count = min(len(view), max(0, self._nbytes - self._at))
            count *= self._at >= self._nbytes - _TAG_NBYTES
            view[:count] = bytes(count)
        self._at += count
        return count
