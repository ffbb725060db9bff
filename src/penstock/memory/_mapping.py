"""Memory without a name, for this process alone or for others to map.

Nothing can be left behind in `/dev/shm`, and its size does not matter. The system frees the memory when the last
process that maps it is gone, however it ended. On Linux the memory is a memory file (`memfd_create`). Elsewhere, and in
a sandbox that refuses memory files, it is a temporary file that is unlinked at once. Another process can map either if
it receives the descriptor.
"""

import contextlib
import errno
import mmap
import os
import sys
from typing import Final, final

from penstock.base._descriptors import keep_standard_numbers

PAGE_NBYTES: Final = mmap.PAGESIZE


@final
class MemoryFile:
    """A file of zeros. In memory its pages are taken when they are written; on disk, at once.

    `close` closes the descriptor, and so does dropping this object. Mappings live on without it.

    Args:
        nbytes: The size; at least a page.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(nbytes, PAGE_NBYTES)
        self.descriptor = -1
        self.descriptor, is_on_disk = _unnamed_file()
        os.ftruncate(self.descriptor, self.nbytes)
        if is_on_disk and hasattr(
            os, "posix_fallocate"
        ):  # on a full disk, a write to the mapping would kill the process
            os.posix_fallocate(self.descriptor, 0, self.nbytes)

    def map(self) -> mmap.mmap:
        """Maps the whole file. The mapping ends with the last array that views it."""
        return map_shared(self.descriptor, self.nbytes)

    def close(self) -> None:
        """Closes the descriptor. Closing again does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def private(nbytes: int) -> mmap.mmap:
    """Returns memory of this process alone. A child of fork() gets its own copy.

    The memory is freed with the last array that views it.
    """
    nbytes = max(nbytes, PAGE_NBYTES)
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    return _advised(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def map_shared(descriptor: int, nbytes: int) -> mmap.mmap:
    """Maps a memory file. Each process sees what the others write."""
    if sys.version_info >= (3, 13):
        return _advised(mmap.mmap(descriptor, nbytes, trackfd=False))
    return _advised(mmap.mmap(descriptor, nbytes))  # which keeps a descriptor of its own


def _advised(memory: mmap.mmap) -> mmap.mmap:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Fewer page faults while the ring is written for the first time, and fewer TLB misses after. A kernel without
        # huge pages for shared memory ignores or refuses this.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _unnamed_file() -> tuple[int, bool]:
    """Opens a file without a name. Returns its descriptor, and whether it is on disk."""
    keep_standard_numbers()
    try:
        return os.memfd_create("penstock", os.MFD_CLOEXEC), False
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):  # the errors of system call filters
            raise
    import tempfile  # takes 3 ms

    descriptor, path = tempfile.mkstemp(prefix="penstock")
    os.unlink(path)
    return descriptor, True
