"""Descriptors 0, 1 and 2, which every library takes for the standard streams."""

import os


def keep_standard_numbers() -> None:
    """Occupies descriptors 0, 1 and 2. Call it before opening a file for writing.

    If a standard stream was closed (`>&- 2>&-`), the system gives its number to the next file. Text that a C library
    prints to that number would then land in a batch, or in a file of elements.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
