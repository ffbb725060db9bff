"""Memory without a name, for this process alone or for others to map.

Nothing can be left in `/dev/shm`, whose size does not matter either, and when the last process that maps it is
gone, however it went, the system frees it. On Linux it is a memory file (`memfd_create`), elsewhere, and in a sandbox
that refuses these, a temporary file that is unlinked at once; another process can map it if it is handed the
descriptor.
"""

import contextlib
import errno
import mmap
import os
import sys
import tempfile
from typing import Final, final

from penstock.base._descriptors import keep_standard_numbers

PAGE_NBYTES: Final = mmap.PAGESIZE


@final
class MemoryFile:
    """A file of zeros in memory, taken page by page as it is written; on disk, at once.

    The descriptor is closed by `close`, or when this is dropped; mappings live on without it.

    Args:
        nbytes: Its size; at least a page is taken.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(nbytes, PAGE_NBYTES)
        self.descriptor = -1
        self.descriptor, is_on_disk = _unnamed_file()
        os.ftruncate(self.descriptor, self.nbytes)
        if is_on_disk and hasattr(os, "posix_fallocate"):  # where a disk is full, who writes to a mapping is killed
            os.posix_fallocate(self.descriptor, 0, self.nbytes)

    def map(self) -> mmap.mmap:
        """Maps all of it. The mapping goes when the last array that views it is gone; there is nothing to close."""
        return map_shared(self.descriptor, self.nbytes)

    def close(self) -> None:
        """Closes the descriptor. Closing again does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def private(nbytes: int) -> mmap.mmap:
    """Returns memory of this process alone: a child of fork() gets its own copy of what it holds.

    It goes when the last array that views it is gone.
    """
    nbytes = max(nbytes, PAGE_NBYTES)
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    return _advised(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def map_shared(descriptor: int, nbytes: int) -> mmap.mmap:
    """Maps a memory file, so that what one process writes the others see."""
    if sys.version_info >= (3, 13):
        return _advised(mmap.mmap(descriptor, nbytes, trackfd=False))
    return _advised(mmap.mmap(descriptor, nbytes))  # which keeps a descriptor of its own


def _advised(memory: mmap.mmap) -> mmap.mmap:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Fewer faults while the ring is written for the first time, and fewer misses of the TLB after. Where the
        # kernel has no huge pages for shared memory this asks for nothing, or is refused.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _unnamed_file() -> tuple[int, bool]:
    """Opens a file without a name; returns its descriptor, and whether it is on disk."""
    keep_standard_numbers()
    try:
        return os.memfd_create("penstock", os.MFD_CLOEXEC), False
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):  # what filters of system calls answer
            raise
    descriptor, path = tempfile.mkstemp(prefix="penstock")
    os.unlink(path)
    return descriptor, True
