"""From a plan and the measurements of its workers to the boxes of a picture."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from penstock.report._lanes import Lane, PlanStep, StepTime
from penstock.report._picture import Box
from penstock.report._units import an, ms, plural_of, share, size

MOST_INPUTS: Final = 4
"""A step with more inputs is drawn with this number of boxes. The last stands for the rest."""


@final
@dataclass(frozen=True)
class Boxes:
    """Makes boxes of the steps of a run."""

    lanes: tuple[Lane, ...]
    limit: tuple[Lane, StepTime | None] | None
    """The slowest workers, and their slowest step."""
    batch_s: float
    """The average time of a batch."""
    given: Callable[[Lane], tuple[float, str]]
    """Returns the number and the kind of a lane's elements."""

    def of(self, step: PlanStep) -> Box:
        """Makes the box of a step, and below it a box of the workers whose last step it is."""
        inputs = [self.of(each) for each in step.inputs[:MOST_INPUTS]]
        if len(step.inputs) > MOST_INPUTS:
            inputs[-1] = Box([f"and {len(step.inputs) - MOST_INPUTS + 1} more inputs"], [])
        box = Box([step.label], inputs)
        if step.alike > 1:
            box.texts.append(f"{step.alike} of these, side by side")
        if done := [(lane, time) for lane in self.lanes for time in lane.steps if time.number in step.numbers]:
            elements, seconds = sum(time.elements for _, time in done), sum(time.seconds for _, time in done)
            nbytes = [time.nbytes for _, time in done]
            unit, wall_s = done[0][1].unit, sum(lane.wall_s for lane, _ in done)
            in_all = "" if None in nbytes else f", {size(sum(each or 0 for each in nbytes))} in all"
            box.texts.append(f"{elements:,} {plural_of(unit)}{in_all}")
            box.texts.append(f"{ms(seconds / elements)} {an(unit)}, {share(seconds, wall_s)} of the work")
            box.share = sum(time.seconds / lane.wall_s * self._busy(lane) for lane, time in done) / len(done)
            box.is_limit = bool(self.limit and self.limit[1] and self.limit[1].number in step.numbers)
        else:
            each = "" if step.element_nbytes is None else f", {size(step.element_nbytes)} each"
            box.texts.append(f"{step.length}{each}")
        lanes = [lane for lane in self.lanes if lane.first in step.numbers and lane.wall_s]
        return self._workers(lanes, box) if lanes else box

    def _workers(self, lanes: list[Lane], above: Box) -> Box:
        """Makes the box of one lane, or of alike shards' lanes."""
        one, wall_s, rest_s = lanes[0], sum(lane.wall_s for lane in lanes), sum(lane.rest_s for lane in lanes)
        count, unit = self.given(one)
        rest = f"{'reads in one place' if one.is_serial else 'into batches'}: {ms(rest_s / count)} {an(unit)}"
        if any(lane.steps for lane in lanes):
            rest += f", {share(rest_s, wall_s)} of the work"
        texts = [one.who if len(lanes) == 1 else f"{len(lanes)} times {one.who}", rest]
        if len(lanes) == 1 and (shares := one.shares(self.batch_s)) is not None:
            texts.append(str(shares))
        part = sum(lane.rest_s / lane.wall_s * self._busy(lane) for lane in lanes) / len(lanes)
        is_limit = self.limit is not None and self.limit[1] is None and self.limit[0] in lanes
        return Box(texts, [above], part, is_limit, is_dashed=True)

    def _busy(self, lane: Lane) -> float:
        """Returns the share of time in which its workers had work. 1 where unknown."""
        shares = lane.shares(self.batch_s)
        return 1.0 if shares is None else 1 - shares.idle
