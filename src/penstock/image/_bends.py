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
    """Shifts each column up or down along a sine, as a flag waves; the size stays.

    In `compose(..., border="wrap")` columns are rolled: what leaves at the top comes in at the bottom.

    Args:
        amplitude: The most that a column is shifted, in pixels, parts of pixels too. 4 is 0 to 4.
        period: Pixels from crest to crest; a number is that number.
        phase: Where the sine begins, 0 to 1.
        along: Shifts columns up and down, or `"rows"` to left and right.
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
            # A result pixel comes from above where its column was shifted down: less, not more.
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
    """Pulls the image here and there, as if it were drawn on rubber; its size stays.

    P. Simard, D. Steinkraus, J. Platt, "Best Practices for Convolutional Neural Networks Applied to Visual Document
    Analysis", ICDAR 2003. In place of a random number for each pixel, smoothed, this draws one for every `spacing`
    pixels and interpolates between them by cubics, which is as smooth, and cheaper. Their alpha=34, sigma=4 pulls
    pixels by some 1.4 over distances of some 8.

    Args:
        displacement: How far pixels are pulled: the standard deviation of x, and of y, in pixels. 2 is 0 to 2;
            `exactly(2)` draws the pulls alone.
        spacing: Over how many pixels the pull changes; a number is that number.
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
        # Two more than fit, so that the borders are not smoother than the middle.
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
