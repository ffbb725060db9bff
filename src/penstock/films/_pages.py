"""Bytes of remote films, requested before the decoder asks for them, in pages of equal size.

A decoder reads 32 KiB at a time, and decides itself what it reads next. So what it will need is announced by pages of
the file, and read by whole pages. A request has neighbouring pages: of those announced up to 8 MiB, and else more and
more, as long as a film is read on. With a disk cache, pages are its blocks. The pages that were read last stay in
memory, because neighbouring groups of pictures, which are in one, are wanted at other times.
"""

import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, final

import numpy as np

from penstock.base._files import Readable
from penstock.base._retries import retry_budget
from penstock.files._fetch import KEPT_ANNOUNCEMENTS
from penstock.files._openfile import File, OpenFiles
from penstock.memory._rows import Indices

PAGE_NBYTES: Final = 256 << 10
"""About what eight frames of 480x640 take. Pages of 1 MiB would bring three times the bytes."""
_LOCKS: Final = 256
_MOST_COUNT: Final = 16
"""Pages that are read at once, at most, and kept, at least."""


@final
class Pages:
    """Reads films. Any number of threads may use it.

    Args:
        files: The films.
        nbytes: The bytes that are kept. Half as many may be requested ahead.
    """

    def __init__(self, files: Sequence[File], nbytes: int) -> None:
        self.files = OpenFiles(files, nbytes // 2)
        self._lock = threading.Lock()
        self._reading = [threading.Lock() for _ in range(_LOCKS)]
        """By page, so that two threads do not read one. What is announced with it would be given up."""
        self._kept: dict[tuple[int, int], bytes] = {}
        """By file and number; the latest last. So heads of films stay, which a decoder that is opened again reads."""
        self._most = max(_MOST_COUNT, -(-nbytes // PAGE_NBYTES))
        self._announced: dict[tuple[int, int], int] = {}
        """The pages that are requested and not read, with the serial number of their announcement."""
        self._serial = 0

    def announce(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Requests the bytes from a first to a last one of files, in this order. Never waits."""
        if not retry_budget().may_announce:
            return
        keys = (
            (number, page)
            for number, first, last in ranges
            for page in range(first // PAGE_NBYTES, last // PAGE_NBYTES + 1)
        )
        with self._lock:  # once, because each announcement holds memory until a read
            missing = [key for key in dict.fromkeys(keys) if not (key in self._kept or key in self._announced)]
            if not missing:
                return
            self._serial += 1
            oldest = self._serial - KEPT_ANNOUNCEMENTS
            still = {key: serial for key, serial in self._announced.items() if serial >= oldest}
            self._announced = still | dict.fromkeys(missing, self._serial)
        self.files.announce(*self._places(missing))

    def _places(self, keys: list[tuple[int, int]]) -> tuple[Indices, Indices, Indices]:
        """The file, first byte and bytes of each page."""
        each = ((number, at := page * PAGE_NBYTES, self.files.files[number].nbytes - at) for number, page in keys)
        numbers, offsets, sizes = np.array([*each]).T
        return numbers, offsets, np.minimum(sizes, PAGE_NBYTES)

    def read(self, number: int, page: int, count: int = 1) -> bytes:
        """Returns a page of a file; waits for its request. If it is not announced, `count` pages are read with it."""
        key = number, page
        with self._reading[hash(key) % len(self._reading)]:
            if (data := self._kept.get(key)) is None:
                found = self._fetched(key, 1 if key in self._announced else min(count, self._most // 4))
            else:
                found = {key: data}
            with self._lock:
                for each in found:
                    self._kept.pop(each, None)
                    self._announced.pop(each, None)
                self._kept |= found
                while len(self._kept) > self._most:
                    del self._kept[next(iter(self._kept))]
        return found[key]

    def _fetched(self, key: tuple[int, int], count: int) -> dict[tuple[int, int], bytes]:
        """Requests a page, and those behind it that are not kept."""
        number, page = key
        end = min(page + count, -(-self.files.files[number].nbytes // PAGE_NBYTES))
        after = ((number, each) for each in range(page + 1, end))
        keys = [key, *itertools.takewhile(lambda each: each not in self._kept, after)]
        (chunk,) = self.files.chunks(*self._places(keys))
        several = np.split(chunk.data, chunk.starts[1:])
        return {each: some.tobytes() for each, some in zip(keys, several, strict=True)}


@final
class FilmStream(Readable):
    """A film for FFmpeg, read by pages.

    PyAV would print what is no `Exception`, such as Ctrl-C, and go on. So it gets an `OSError`.

    Args:
        pages: The films.
        number: Which of them.
        errors: Gets what reads raise. The caller of PyAV raises it.
    """

    def __init__(self, pages: Pages, number: int, errors: list[BaseException]) -> None:
        super().__init__(pages.files.files[number].nbytes)
        self._pages, self._number, self._errors = pages, number, errors
        self._page, self._count = -1, 1

    def readinto(self, buffer: Any) -> int:
        """Reads up to the end of a page."""
        if self._at >= self._nbytes:
            return 0
        page, at = divmod(self._at, PAGE_NBYTES)
        if page != self._page:
            self._count = min(2 * self._count, _MOST_COUNT) if page == self._page + 1 else 1
            self._page = page
        try:
            some = self._pages.read(self._number, page, self._count)[at : at + len(buffer)]
        except BaseException as error:
            self._errors.append(error)
            self._nbytes = 0  # FFmpeg asks again
            raise OSError("The film cannot be read.") from None
        buffer[: len(some)] = some
        self._at += len(some)
        return len(some)
