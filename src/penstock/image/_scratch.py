"""Memory of a thread that is used again for each image.

An image of 500 x 375 pixels in fresh memory costs some 140 page faults. A thread's arrays are its own, so there is
nothing to lock; each lives until the thread asks for the same one again.
"""

import math
import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

KEPT_NBYTES: Final = 2**22
"""The most that is kept of one array, 1,300 x 1,000 pixels of RGB. A larger one is fresh memory, which the system takes
back. A thread that decodes and resizes has at most six: the image, and for kernels but bilinear five of floats."""


class _Kept(threading.local):
    def __init__(self) -> None:
        self.memory: dict[str, npt.NDArray[np.uint8]] = {}
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        """What was last made of it, which is most often what is asked for next."""


_kept = _Kept()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Returns an array, C-contiguous, its content undefined, that is this thread's until it asks for `name` again."""
    last = _kept.arrays.get(name)
    if last is not None and last.shape == shape and last.dtype == dtype:
        return last
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes > KEPT_NBYTES:
        return np.empty(shape, dtype)
    memory = _kept.memory.get(name)
    if memory is None or memory.nbytes < nbytes:
        memory = _kept.memory[name] = np.empty(nbytes, np.uint8)
    array = _kept.arrays[name] = np.ndarray(shape, dtype, buffer=memory.data)
    return array
