"""Files whose bytes are in memory: in the page cache, or files without another place.

A file in memory, on tmpfs or without a name, accepts seals, and a file on a disk does not. A file that is sealed
against shrinking can be read through a mapping without the risk of SIGBUS (`design/0006-limits-of-python-threads.md`).
"""

import errno
import mmap
import os
import sys
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.sources.npy import StridedFile

if sys.platform == "linux":
    from fcntl import F_ADD_SEALS, F_GET_SEALS, F_SEAL_SHRINK, fcntl

_RWF_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


def is_in_memory(descriptor: int, offset: int) -> bool:
    """Whether a byte of a file can be read without a disk; False if the system does not say."""
    try:
        return bool(_RWF_NOWAIT) and os.preadv(descriptor, [bytearray(1)], offset, _RWF_NOWAIT) == 1
    except OSError as error:  # EAGAIN: it is not. EOPNOTSUPP: this file system does not say.
        return error.errno == errno.EOPNOTSUPP and _seals(descriptor) is not None


def seal_size(descriptor: int) -> None:
    """Seals a file against shrinking, if it accepts seals.

    Args:
        descriptor: The file, open for writing.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK)


def mapped(file: StridedFile) -> npt.NDArray[Any] | None:
    """Returns the rows of a file that cannot shrink, as an array over a mapping; None for other files.

    The mapping is read-only, and ends with the last view of the array.
    """
    with suppress(OSError), open(file.path, "rb", buffering=0) as opened:
        nbytes = os.fstat(opened.fileno()).st_size
        if nbytes >= file.extent[1] > file.offset and (_seals(opened.fileno()) or 0) & F_SEAL_SHRINK:
            memory = mmap.mmap(opened.fileno(), nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
            return np.ndarray(file.shape, file.dtype, memory, file.offset, file.strides)
    return None


def _seals(descriptor: int) -> int | None:
    """Returns the seals of a file; None if it accepts none."""
    with suppress(OSError):
        return fcntl(descriptor, F_GET_SEALS) if sys.platform == "linux" else None
    return None
