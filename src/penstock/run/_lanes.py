"""Turns the times that workers noted into parts of a report."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.base._reach import Reach
from penstock.memory._times import Noted
from penstock.plan._node import Node, walk
from penstock.plan._text import length_text
from penstock.report._lanes import Lane, PlanStep, StepTime


def lane_of(
    node: Node,
    times: npt.NDArray[np.int64],
    workers: int,
    delivered: float,
    *,
    rows_per_batch: int = 0,
    reach: Reach | None,
    first: int,
) -> Lane:
    """The work of some workers so far.

    Args:
        node: The plan that they run.
        times: See `Ring.total_times`.
        workers: How many they are.
        delivered: Batches delivered, if these workers do not fill them; else 0.
        rows_per_batch: Rows in a batch, if they do; else 0.
        reach: See `Lane`.
        first: The place of `node` in the whole plan.
    """
    noted = Noted.of(times)
    steps = tuple(
        StepTime(
            each.label, first + number, count, seconds, _element_nbytes(each), unit_of(each), each.traits.may_hold_gil
        )
        for number, (each, (count, seconds)) in enumerate(zip(walk(node), noted.steps, strict=True))
        if count
    )
    return Lane(
        label=node.label,
        workers=workers,
        is_serial=node.access == "stream",  # which one worker reads, whatever the number that was asked for
        batches=noted.rows / rows_per_batch if rows_per_batch else delivered,
        wall_s=noted.wall_s,
        cpu_s=noted.cpu_s,
        steps=steps,
        reach=reach,
        first=first,
        given=None if rows_per_batch else noted.rows,
        unit=unit_of(node),
        traffic=noted.traffic,
    )


def unit_of(node: Node) -> str:
    """The word for one result of a step."""
    return "element" if node.batch_size == 1 else "batch"


def steps_of(plan: Node) -> PlanStep:
    """The plan for a report, from its last step; reads nothing and runs nothing."""
    numbers = {id(node): number for number, node in enumerate(walk(plan))}
    seen: set[int] = set()

    def step(node: Node, places: list[int]) -> PlanStep:
        is_repeated = id(node) in seen
        seen.add(id(node))
        parts, inputs = [], []
        for each in () if is_repeated else node.inputs:
            hidden, below, shown = _shown(each, numbers)
            parts += hidden
            inputs.append(step(shown, below))
        if getattr(node, "is_sharded", False):
            inputs = [_as_one(tuple(inputs))]
        return PlanStep(
            label=_label(node),
            numbers=(*places, *parts),
            inputs=tuple(inputs),
            length=length_text(None if node.known_spec is None else node.length),
            element_nbytes=_element_nbytes(node),
        )

    _, places, node = _shown(plan, numbers)
    return step(node, places)


def _shown(node: Node, numbers: Mapping[int, int]) -> tuple[list[int], list[int], Node]:
    """Goes down to a step that the user wrote.

    Returns:
        The numbers of functions that are parts of the step above, and of their guards; the numbers of the guards of the
        step itself, and its own; and the step.
    """
    parts: list[int] = []
    places = [numbers[id(node)]]
    while node.traits.is_hidden:
        if node.traits.is_cpu_bound:
            parts, places = [*parts, *places], []
        (node,) = node.inputs
        places.append(numbers[id(node)])
    return parts, places, node


def _label(node: Node) -> str:
    if node.verb == "filter" and node.inputs[0].verb != "filter":
        return "(leaves out what failed)"  # added by `on_error`
    return node.label


def _as_one(steps: tuple[PlanStep, ...]) -> PlanStep:
    """Steps that are alike, and so are those before them."""
    return replace(
        steps[0],
        numbers=tuple(number for step in steps for number in step.numbers),
        inputs=tuple(map(_as_one, zip(*(step.inputs for step in steps), strict=True))),
        alike=len(steps),
    )


def _element_nbytes(node: Node) -> int | None:
    """Bytes of each element, where all are of one size."""
    spec = None if node.traits.is_hidden else node.known_spec
    if spec is None or not spec.is_bounded or any(leaf.varies for leaf in spec.leaves):
        return None
    return spec.nbytes
