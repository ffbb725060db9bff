"""Memory of a thread that is used again for each image.

An image of 500 x 375 pixels in fresh memory costs some 140 page faults. Each thread has its own arrays, so there is no
lock. An array is valid until the thread requests the same name again.
"""

import math
import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

KEPT_NBYTES: Final = 2**22
"""The largest array that is kept, 1,300 x 1,000 pixels of RGB. A larger one is fresh memory, which goes back to the
system. A thread keeps at most six: the image, and for kernels other than bilinear five of floats."""


_kept = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Returns a C-contiguous array of undefined content, valid until this thread requests `name` again."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes > KEPT_NBYTES:
        return np.empty(shape, dtype)
    memory = getattr(_kept, name, None)
    if memory is None or memory.nbytes < nbytes:
        memory = np.empty(nbytes, np.uint8)
        setattr(_kept, name, memory)
    return np.ndarray(shape, dtype, buffer=memory.data)
