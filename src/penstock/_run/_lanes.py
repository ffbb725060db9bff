"""From what workers noted of their time to what a report says of it."""

import numpy as np
import numpy.typing as npt

from penstock._plan._node import Node, walk
from penstock._plan._reader import STEP_WORD
from penstock.diagnostics._lanes import Lane, StepTime


def lane_of(
    node: Node,
    times: npt.NDArray[np.int64],
    workers: int,
    delivered: float = 0,
    *,
    rows_per_batch: int = 0,
    is_serial: bool = False,
) -> Lane:
    """What some workers did so far.

    Args:
        node: What they run.
        times: See `Ring.total_times`.
        workers: How many they are.
        delivered: Batches that it was for, if these workers do not fill them.
        rows_per_batch: Rows in a batch, if they do.
        is_serial: Whether one worker does it, whatever the number that was asked for.
    """
    steps = []
    for number, each in enumerate(walk(node)):
        count, step_ns = times[STEP_WORD + 2 * number : STEP_WORD + 2 * number + 2].tolist()
        if count:
            steps.append(StepTime(each.label, number, count, step_ns / 1e9))
    rows, wall_ns, cpu_ns = times[:STEP_WORD].tolist()
    return Lane(
        label=node.label,
        workers=workers,
        is_serial=is_serial,
        batches=rows / rows_per_batch if rows_per_batch else delivered,
        wall_s=wall_ns / 1e9,
        cpu_s=cpu_ns / 1e9,
        steps=tuple(steps),
    )
