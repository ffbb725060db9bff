"""Files that the kernel holds in memory: which part of one, or one that has no other place.

A file that lies in memory, on tmpfs or without a name, takes seals, and one on a disk does not. So whether it takes
them tells the one from the other. And one that is sealed against becoming shorter can be read through a mapping without
the risk that the process dies of it (`design/0001-reading-rows.md`).
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
    """Whether a byte of a file can be read without a disk; False where that cannot be asked."""
    try:
        return bool(_RWF_NOWAIT) and os.preadv(descriptor, [bytearray(1)], offset, _RWF_NOWAIT) == 1
    except OSError as error:  # EAGAIN: it is not there. EOPNOTSUPP: this file system does not say.
        return error.errno == errno.EOPNOTSUPP and _takes_seals(descriptor)


def seal_size(descriptor: int) -> None:
    """Sees to it that nobody can make a file shorter any more; does nothing for one that takes no seals.

    Args:
        descriptor: The file, open for writing.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK)


def mapped(file: StridedFile) -> npt.NDArray[Any] | None:
    """The rows of a file that nobody can make shorter, as an array over a mapping; None for any other.

    The mapping can be read only, and goes when the last view of the array does.
    """
    with suppress(OSError), open(file.path, "rb", buffering=0) as opened:
        nbytes = os.fstat(opened.fileno()).st_size
        if nbytes >= file.extent[1] > file.offset and _is_sealed(opened.fileno()):
            memory = mmap.mmap(opened.fileno(), nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
            return np.ndarray(file.shape, file.dtype, memory, file.offset, file.strides)
    return None


def _takes_seals(descriptor: int) -> bool:
    with suppress(OSError):
        return sys.platform == "linux" and fcntl(descriptor, F_GET_SEALS) >= 0
    return False


def _is_sealed(descriptor: int) -> bool:
    """Whether nobody can make it shorter."""
    return _takes_seals(descriptor) and bool(fcntl(descriptor, F_GET_SEALS) & F_SEAL_SHRINK)
