"""What a benchmark knows about memory and the page cache: Linux's own counters, read from /proc.

Private + shared memory is anonymous pages plus shared-memory pages (`RssAnon + RssShmem`); pages of files
are counted apart, since the kernel takes them back whenever it likes. With child processes the proportional
counters of `smaps_rollup` are used instead, so that a page shared by three processes counts once.
"""

import ctypes
import mmap
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _harness import MIB

_SAMPLE_INTERVAL_S = 0.02
_SAMPLING_SHARE = 0.02
_CHILD_SCAN_INTERVAL_S = 0.25
_CHUNK_NBYTES = 1 << 20


class Usage(NamedTuple):
    """Memory of a process and its descendants at one moment, in bytes."""

    private_shared: int
    """Anonymous and shared-memory pages."""
    file: int
    """Pages of files that are mapped and resident: libraries, and data read through a mapping."""


class PeakMemory:
    """Context manager that samples this process and its descendants until it ends.

    Entered after the imports, so that `peaks_mib` is growth over the bare imports. A thread samples every
    20 ms, or as rarely as it takes to spend at most 2 % of one core on sampling: the proportional counters
    of many large processes cost milliseconds.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True)
        self._children: list[int] = []
        self._scanned_s = 0.0
        self.base = Usage(0, 0)
        self.peak_private_shared = 0
        self.peak_file = 0

    def __enter__(self) -> "PeakMemory":
        self.base = self._usage()
        self._keep_peak(self.base)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._keep_peak(self._usage())

    def peaks_mib(self) -> dict[str, float]:
        """Returns peak growth over the base, and the growth of resident file pages, in MiB."""
        return {
            "private+shared MiB": (self.peak_private_shared - self.base.private_shared) / MIB,
            "file MiB": (self.peak_file - self.base.file) / MIB,
        }

    def now_mib(self) -> float:
        """Returns the growth of private + shared memory over the base at this moment, in MiB."""
        return (self._usage().private_shared - self.base.private_shared) / MIB

    def _sample_until_stopped(self) -> None:
        pause_s = _SAMPLE_INTERVAL_S
        while not self._stop.wait(pause_s):
            began_s = time.perf_counter()
            self._keep_peak(self._usage())
            cost_s = time.perf_counter() - began_s
            pause_s = max(_SAMPLE_INTERVAL_S, cost_s / _SAMPLING_SHARE)

    def _keep_peak(self, usage: Usage) -> None:
        self.peak_private_shared = max(self.peak_private_shared, usage.private_shared)
        self.peak_file = max(self.peak_file, usage.file)

    def _usage(self) -> Usage:
        now_s = time.perf_counter()
        if not self._scanned_s or now_s - self._scanned_s > _CHILD_SCAN_INTERVAL_S:
            self._children, self._scanned_s = descendants(os.getpid()), now_s
        if not self._children:
            return own_usage()
        private_shared = file = 0
        for pid in [os.getpid(), *self._children]:
            try:
                rollup = _counters(f"/proc/{pid}/smaps_rollup")
            except OSError:
                continue  # the child ended between the scan and now
            private_shared += rollup.get("Pss_Anon", 0) + rollup.get("Pss_Shmem", 0)
            file += rollup.get("Pss_File", 0)
        return Usage(private_shared, file)


def warm_pages(path: Path) -> None:
    """Reads the file once from the disk, so that all of it is in the page cache, as it is in a second epoch.

    What is there before is dropped: the pages of a file that was just written lie there one by one, and those of one
    that was read in large pieces, which matters to everybody who reads them.
    """
    drop_pages(path)
    buffer = bytearray(_CHUNK_NBYTES)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    if (part := resident_part(path)) < 0.99:
        raise RuntimeError(f"Only {part:.0%} of {path.name} stayed in the page cache; free memory is short.")


def drop_pages(path: Path) -> None:
    """Removes the file's pages from the page cache, and makes sure that they are gone."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if (part := resident_part(path)) > 0.01:
        raise RuntimeError(f"{part:.0%} of {path.name} stayed in the page cache; another process maps it.")


def resident_part(path: Path) -> float:
    """Returns the part of the file's pages that are in the page cache, 0.0 to 1.0, without touching one."""
    libc = ctypes.CDLL(None, use_errno=True)
    nbytes = path.stat().st_size
    pages = np.empty(-(-nbytes // mmap.PAGESIZE), np.uint8)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_READ) as mapping:
        address = ctypes.c_void_p(np.frombuffer(mapping, np.uint8).ctypes.data)
        if libc.mincore(address, ctypes.c_size_t(nbytes), ctypes.c_void_p(pages.ctypes.data)):
            error = ctypes.get_errno()
            raise OSError(error, f"mincore of {path}: {os.strerror(error)}")
    return float(np.mean(pages & 1))


def own_usage() -> Usage:
    """Returns what this process alone has, in bytes; shared memory in full, whoever else maps it."""
    own = _counters("/proc/self/status")
    return Usage(own["RssAnon"] + own["RssShmem"], own["RssFile"])


def private_nbytes(pid: int) -> int:
    """Returns the bytes that a process has for itself: what would be free if it alone ended."""
    rollup = _counters(f"/proc/{pid}/smaps_rollup")
    return sum(nbytes for name, nbytes in rollup.items() if name.startswith("Private_"))


def _counters(path: str) -> dict[str, int]:
    """Reads the lines `Name: 123 kB` of a /proc file; values in bytes."""
    with open(path) as file:
        lines = [line.split() for line in file]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}


def descendants(root: int) -> list[int]:
    """Returns the processes that a process started, and those that they started, as far as their parents live."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_text()
        except OSError:
            continue  # it ended between the listing and now
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += born
    return found
