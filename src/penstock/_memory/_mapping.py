"""One anonymous mapping for a loader's whole life.

It has no name: nothing can be left in `/dev/shm`, whose size does not matter either, and when the last
process that maps it is gone, however it went, the system frees it. On Linux it is a memory file
(`memfd_create`), which another process can map if it is handed the descriptor; elsewhere it is an anonymous
`mmap`.
"""

import contextlib
import mmap
import os
from typing import Final

PAGE_NBYTES: Final = mmap.PAGESIZE


def anonymous(nbytes: int) -> mmap.mmap:
    """Returns new memory of at least one page, zero, taken page by page as it is written.

    It is freed when the last array that views it is gone; there is nothing to close.
    """
    nbytes = max(nbytes, PAGE_NBYTES)
    if not hasattr(os, "memfd_create"):
        return mmap.mmap(-1, nbytes)
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
        memory = mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Fewer faults while the ring is written for the first time, and fewer misses of the TLB after. Where the
        # kernel has no huge pages for shared memory this asks for nothing, or is refused.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
