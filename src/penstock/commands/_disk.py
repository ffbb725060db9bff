"""How fast a disk reads, at random and in order, when nothing of it is in memory."""

import contextlib
import mmap
import os
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, final

FILE_NBYTES: Final = 256 << 20
"""The file that is written and read, if there is time and room for it."""
LEAST_NBYTES: Final = 16 << 20
BLOCK_NBYTES: Final = 64 << 10
"""What is read at random."""
DEPTH: Final = 8
"""So many reads at one time."""
WRITE_S: Final = 0.8
READ_S: Final = 0.4
"""For each of the three ways to read; with writing, 2 s in all."""

_CHUNK_NBYTES: Final = 4 << 20
_SAMPLE_COUNT: Final = 16
_OF_MEMORY: Final = ("tmpfs", "ramfs")


@final
@dataclass(frozen=True)
class DiskSpeed:
    """What was measured in a folder. Speeds are in bytes a second."""

    folder: str
    file_system: str
    """Its type, such as `ext4`; empty where nobody says."""
    file_nbytes: int
    """Written for it, and removed."""
    random_per_s: float
    """Blocks of 64 KiB at random places, one after the other."""
    random_at_once_per_s: float
    """The same, eight at a time."""
    in_order_per_s: float
    is_cached: bool
    """Whether the file could not be dropped from memory, so that this is the speed of memory."""


def measure(folder: Path) -> DiskSpeed:
    """Writes a file without a name into a folder, drops it from the page cache, and reads it; 2 s.

    The file vanishes with this process, however that ends. What a device or the host of a virtual machine keeps in
    memory of its own cannot be dropped.

    Raises:
        OSError: It cannot be written there, or there is too little room.
    """
    file_system = _file_system(folder)
    with tempfile.TemporaryFile(dir=folder, prefix=".penstock-") as file:
        nbytes = _write(file, folder)
        at_once, one_by_one = _shuffled_halves(nbytes)
        _drop(file)
        is_cached = file_system in _OF_MEMORY or _is_cached(file, nbytes)
        single = _speed(file, one_by_one, BLOCK_NBYTES, 1)
        many = _speed(file, at_once, BLOCK_NBYTES, DEPTH)
        _drop(file)
        _advise(file, "POSIX_FADV_SEQUENTIAL")
        in_order = _speed(file, range(0, nbytes, _CHUNK_NBYTES), _CHUNK_NBYTES, 1)
    return DiskSpeed(str(folder), file_system, nbytes, single, many, in_order, is_cached)


def _write(file: BinaryIO, folder: Path) -> int:
    room = os.statvfs(folder)
    most = min(FILE_NBYTES, room.f_bavail * room.f_frsize // 4) // _CHUNK_NBYTES * _CHUNK_NBYTES
    if most < LEAST_NBYTES:
        free = room.f_bavail * room.f_frsize
        raise OSError(f"{free >> 20} MiB are free there, and {4 * LEAST_NBYTES >> 20} are needed")
    content = os.urandom(_CHUNK_NBYTES)  # which no file system makes smaller
    end_s, nbytes = time.perf_counter() + WRITE_S, 0
    while nbytes < most and (nbytes < LEAST_NBYTES or time.perf_counter() < end_s):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # pages that are not on the disk cannot be dropped
        nbytes += _CHUNK_NBYTES
    return nbytes


def _shuffled_halves(nbytes: int) -> tuple[Sequence[int], Sequence[int]]:
    """All blocks of a file in random order, in two halves: a block that was read once is in memory."""
    offsets = list(range(0, nbytes, BLOCK_NBYTES))
    random.Random(0).shuffle(offsets)
    return offsets[: len(offsets) // 2], offsets[len(offsets) // 2 :]


def _drop(file: BinaryIO) -> None:
    _advise(file, "POSIX_FADV_DONTNEED")
    _advise(file, "POSIX_FADV_RANDOM")  # what was not asked for is not read


def _advise(file: BinaryIO, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, getattr(os, advice))


def _is_cached(file: BinaryIO, nbytes: int) -> bool:
    """Whether most reads of the file would not wait for a device."""
    if not hasattr(os, "posix_fadvise"):
        return True
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    page, cached = bytearray(mmap.PAGESIZE), 0
    for number in range(_SAMPLE_COUNT):
        offset = nbytes // _SAMPLE_COUNT * number
        try:
            cached += os.preadv(file.fileno(), [page], offset, os.RWF_NOWAIT) > 0
        except BlockingIOError:
            pass
        except OSError:  # a file system that cannot say so
            return False
    return cached > _SAMPLE_COUNT // 2


def _speed(file: BinaryIO, offsets: Sequence[int], nbytes: int, depth: int) -> float:
    """Bytes a second of reads at these places, so many at a time."""
    end_s = time.perf_counter() + READ_S

    def read(places: Sequence[int]) -> int:
        buffer, done = bytearray(nbytes), 0
        for place in places:
            done += os.preadv(file.fileno(), [buffer], place)
            if time.perf_counter() > end_s:
                break
        return done

    started_s = time.perf_counter()
    if depth == 1:
        done = read(offsets)
    else:
        with ThreadPoolExecutor(depth) as threads:
            done = sum(threads.map(read, [offsets[number::depth] for number in range(depth)]))
    return done / (time.perf_counter() - started_s)


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder is on: that of the innermost mount around it."""
    innermost, kind = "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            place = before.split()[4]
            # Of two mounts on one place the later hides the former.
            if len(place) >= len(innermost) and folder.resolve().is_relative_to(place):
                innermost, kind = place, after.split()[0]
    return kind
