"""Numbers of open files, of which three have a meaning to every library in the process."""

import os


def keep_standard_numbers() -> None:
    """Has 0, 1 and 2 taken, before a file is opened that is written to.

    Where a standard stream was closed, as by `>&- 2>&-`, the system gives its number to the next file. What a library
    in C then says, here or in a process that inherits the number, would land in a batch, or in a file of elements.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
