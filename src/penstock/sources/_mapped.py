"""How a file is read: through a mapping, or with `pread`."""

import functools
import os
from typing import Final

from penstock.report._cgroups import memory_limits

RESIDENT_SHARE: Final = 0.25
"""A file whose size is at most this part of the memory that the process may use stays mapped with all its pages. They
show as memory of the process, and the kernel takes them back when it needs them. `pread` copies, too, and took 1.6 to
1.8 times the processor time for rows of 60 kB."""
READ_ROW_NBYTES: Final = 2 << 10
"""From this row size on, larger files are read with `pread`: such a row seldom finds its pages still mapped, and to map
and unmap them took up to five times as long. It took less only where the kernel keeps a file in pages of 2 MB, for rows
below 8 kB, and then nearly all of the file was resident."""
GIVE_BACK_NBYTES: Final = 64 << 20
"""The mapping of a larger file with small rows gives its pages back whenever this number of bytes was copied. More may
be resident until then, because the kernel maps up to 2 MB around each row."""


def mapping_options(row_nbytes: int, is_contiguous: bool, file_nbytes: int) -> tuple[bool, int]:
    """Chooses between a mapping and `pread` for a file whose rows are copied into batches.

    Args:
        row_nbytes: Bytes of an element.
        is_contiguous: Whether an element is one piece of the file. If not, a mapping is faster for any size.
        file_nbytes: Size of the file.

    Returns:
        `(mapped, give_back_nbytes)`, see `Engine.file`.
    """
    may_stay = file_nbytes <= RESIDENT_SHARE * usable_nbytes()
    if not may_stay and is_contiguous and row_nbytes >= READ_ROW_NBYTES:
        return False, 0
    return True, 0 if may_stay else GIVE_BACK_NBYTES


@functools.cache
def usable_nbytes() -> int:
    """Returns the memory that this process may use: the machine's, or less in a container or a service."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in memory_limits())])
