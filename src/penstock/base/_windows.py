"""Windows of equal width over one memory."""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


def spacing(starts: Integers) -> int:
    """Returns the distance of evenly spaced, rising numbers; 0 for others."""
    if len(starts) < 2:
        return 0
    step = int(starts[1] - starts[0])
    # The first comparison is cheap, and fails if records differ in size.
    if step <= 0 or int(starts[-1] - starts[0]) != step * (len(starts) - 1):
        return 0
    return step if bool((starts[1:] - starts[:-1] == step).all()) else 0


def windows(data: Bytes, starts: Integers, width: int, step: int | None = None) -> Bytes:
    """Returns `data[start : start + width]` for each start, shape `(n, width)`; a view if starts are evenly spaced.

    Args:
        data: Memory, shape `(any,)`.
        starts: int64, shape `(n,)`.
        width: Bytes of each window.
        step: The result of `spacing(starts)`, if known.
    """
    count = len(starts)
    step = spacing(starts) if step is None else step
    if step:
        return np.ndarray((count, width), np.uint8, data, int(starts[0]), (step, 1))
    if not count or not width:
        return np.empty((count, width), np.uint8)
    # One window for each byte. Only the requested windows are read.
    every: Bytes = np.ndarray((len(data) - width + 1, width), np.uint8, data, 0, (1, 1))
    return every[starts]
