import os
from typing import final


@final
class CopyError(OSError):
    """The bytes of an element could not be copied.

    Attributes:
        source: The name that was given to the source.
        element: Index of the element in its source; -1 if the destination's memory could not be had.
        errno: The system's error; None if the file ended early.
        expected_nbytes: Size of the element, with the gaps of a strided one.
        found_nbytes: The part of it that the file still has.
    """

    def __init__(self, source: object, element: int, errno: int, expected_nbytes: int, found_nbytes: int) -> None:
        self.source = source
        self.element = element
        self.expected_nbytes = expected_nbytes
        self.found_nbytes = found_nbytes
        if element < 0:
            text = f"the system has no memory for a batch of {source}: {os.strerror(errno)}"
        elif errno:
            text = f"element {element} of {source} cannot be read: {os.strerror(errno)}"
        else:
            text = (
                f"element {element} of {source} is incomplete: {found_nbytes} of its {expected_nbytes} bytes are "
                "there. The file became shorter after it was opened, or its header promises too much"
            )
        super().__init__(text)
        self.errno = errno or None
