"""Distortions that move pixels along curves."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.image._distortion import Distortion, Geometry
from penstock.image._frame import MAX_SIDE
from penstock.image._opencv import cv2
from penstock.image._values import Amount, Draws, Range, spread
from penstock.image._warp import Grid, Path


def sine_warp(
    amplitude: Amount, period: Amount, *, phase: Amount = (0.0, 1.0), along: Literal["columns", "rows"] = "columns"
) -> Distortion:
    """Shifts each column up or down along a sine, like a waving flag. The size stays.

    In `compose(..., border="wrap")` columns are rolled: pixels that leave at the top enter at the bottom.

    Args:
        amplitude: The largest shift of a column in pixels, also a fraction. 4 is 0 to 4.
        period: Pixels from crest to crest; a number is that number.
        phase: The start of the sine, 0 to 1.
        along: `"columns"` shifts columns up and down; `"rows"` shifts rows to left and right.
    """
    if along not in ("columns", "rows"):
        raise ArgumentError(f"sine_warp(): along={along!r} is neither 'columns' nor 'rows'.")
    return _SineWarp(
        spread("sine_warp(): amplitude", amplitude, above=0, least=-MAX_SIDE, most=MAX_SIDE),
        spread("sine_warp(): period", period, least=1),
        spread("sine_warp(): phase", phase),
        along,
    )


@final
@dataclass(frozen=True, repr=False)
class _SineWarp(Geometry):
    name: ClassVar[str] = "sine_warp"
    amplitude: Range
    period: Range
    phase: Range
    along: str

    def add_to(self, path: Path, draws: Draws) -> None:
        amplitude = draws.between(self.amplitude)
        frequency = 2 * math.pi / draws.between(self.period)
        phase = 2 * math.pi * draws.between(self.phase)

        def waves(places: Any) -> Any:
            # Negative, because a pixel of a column that was shifted down comes from above.
            waves = frequency * places
            waves += phase
            np.sin(waves, waves)
            waves *= -amplitude
            return waves

        def roll_columns(grid: Grid) -> None:
            grid.add_y(waves(grid.x_alone()))

        def roll_rows(grid: Grid) -> None:
            grid.add_x(waves(grid.y_alone()))

        path.bend(roll_columns if self.along == "columns" else roll_rows)


def elastic(displacement: Amount, spacing: Amount) -> Distortion:
    """Pulls parts of the image in random directions, as if it were drawn on rubber. Its size stays.

    P. Simard, D. Steinkraus, J. Platt, "Best Practices for Convolutional Neural Networks Applied to Visual Document
    Analysis", ICDAR 2003. They smooth a random number for each pixel. This draws one for every `spacing` pixels and
    interpolates by cubics, which is as smooth, and cheaper. Their alpha=34, sigma=4 pulls pixels by about 1.4 over
    distances of about 8.

    Args:
        displacement: The standard deviation of the pull in x, and in y, in pixels. 2 is 0 to 2. `exactly(2)` draws
            only the pulls.
        spacing: The distance in pixels over which the pull changes; a number is that number.
    """
    return _Elastic(
        spread("elastic(): displacement", displacement, above=0, least=0, most=MAX_SIDE),
        spread("elastic(): spacing", spacing, least=1),
    )


@final
@dataclass(frozen=True, repr=False)
class _Elastic(Geometry):
    name: ClassVar[str] = "elastic"
    displacement: Range
    spacing: Range

    def add_to(self, path: Path, draws: Draws) -> None:
        height, width = path.height, path.width
        displacement = draws.between(self.displacement)
        # Two extra knots, so that the borders are not smoother than the middle.
        spacing = draws.between(self.spacing)
        knots = (round(height / spacing) + 2, round(width / spacing) + 2, 2)
        pulls = draws.rng.standard_normal(knots, dtype=np.float32)
        pulls *= displacement

        def pull(grid: Grid) -> None:
            field = cv2.resize(pulls, (width, height), interpolation=cv2.INTER_CUBIC)
            if not grid.is_unmoved or grid.shape != (height, width):
                field = cv2.remap(field, grid.x(), grid.y(), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            grid.add_x(field[:, :, 0])
            grid.add_y(field[:, :, 1])

        path.bend(pull)
