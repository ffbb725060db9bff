"""Distortions made of distortions."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.image._distortion import Distortion, warp
from penstock.image._frame import Border, DataFormat, Interpolation, Key, Settings, Work
from penstock.image._values import Draws, chance, numbers
from penstock.image._warp import Path


def compose(
    *distortions: Distortion,
    on: Key | tuple[Key, ...] | None = None,
    masks: Key | tuple[Key, ...] | None = None,
    interpolation: Interpolation = "bilinear",
    border: Border = "constant",
    value: float | Sequence[float] = 0.0,
    data_format: DataFormat = "channels_last",
) -> Distortion:
    """Applies distortions one after the other, with settings. Also for a single one with settings.

    Neighbouring distortions that move pixels (rotate, shear, scale, translate, flip, crop, resized_crop, sine_warp,
    elastic) are one warp: pixels are interpolated once. So a step may bring back pixels that an earlier one moved or
    cropped away: a rotation after a crop has the image in its corners, and not the border.

    Args:
        distortions: The distortions in their order.
        on: The leaf of an element that is the image: an index of a tuple, a key of a dict; or a tuple of them, which
            get the same numbers, but each its own noise. None: the element if it is an array, the first leaf of a
            tuple, `"image"` of a dict.
        masks: Leaves that only move with the image. They have its height and width. They are interpolated by the
            nearest pixel, and 0 outside the image.
        interpolation: Between pixels: `"nearest"`, `"bilinear"` or `"bicubic"`.
        border: The pixels beyond the image, as in NumPy's `pad`: `"constant"` (`value`), `"edge"` (aaa|abc|ccc),
            `"reflect"` (cb|abc|ba), `"symmetric"` (ba|abc|cb) or `"wrap"` (bc|abc|ab).
        value: For `border="constant"`, in the units of the pixels; one number, or one for each channel.
        data_format: `"channels_last"`, or `"channels_first"`: `(channels, height, width)`.

    Example:
        >>> from penstock.image import blur, compose, one_of, rotate, sharpen, shear
        >>> distort = compose(rotate(15), shear(0.2), one_of(blur(1.5), sharpen(1)), border="edge")
        >>> distort
        compose(rotate(±15), shear(x=±0.2, y=0), one_of(blur(0 to 1.5), sharpen(0 to 1)), border='edge')
        >>> pairs = penstock.from_arrays((np.zeros((100, 32, 32, 3), "uint8"), np.arange(100)))
        >>> image, label = pairs.random_map(distort, seed=1)[5]
        >>> image.shape, label
        ((32, 32, 3), np.int64(5))
    """
    values = numbers("compose(): value", value)
    settings = Settings(
        on=on,
        masks=masks,
        interpolation=interpolation,
        border=border,
        value=values if len(values) > 1 else values[0],
        data_format=data_format,
    )
    return _Compose(_checked("compose()", distortions), settings)


def one_of(*distortions: Distortion) -> Distortion:
    """Applies one of several distortions, with equal probabilities."""
    return _OneOf(_checked("one_of()", distortions))


def sometimes(probability: float, *distortions: Distortion) -> Distortion:
    """Applies distortions with a probability.

    Args:
        probability: 0 to 1.
        distortions: All or none are applied.
    """
    return _Sometimes(chance("sometimes(): probability", probability), _checked("sometimes()", distortions))


def frozen(distortion: Distortion, seed: int = 0) -> Distortion:
    """Draws the numbers of a distortion once. It is then the same for every element, and works in `map`.

    Args:
        distortion: Any distortion.
        seed: The seed of the numbers.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ArgumentError(f"frozen(): seed={seed!r} has to be an integer, and not negative.")
    return _Frozen(_checked("frozen()", (distortion,)), int(seed))


def _checked(what: str, distortions: Sequence[object]) -> tuple[Distortion, ...]:
    if not distortions:
        raise ArgumentError(f"{what} got no distortion.")
    steps = []
    for each in distortions:
        if not isinstance(each, Distortion):
            hint = ""
            if isinstance(each, (list, tuple)):
                hint = " Give them one by one, or with a star: *distortions."
            elif callable(each):
                hint = " A function of your own is a step of its own: random_map(fn) before or after."
            raise ArgumentTypeError(f"{what} takes distortions of penstock.image, but got {type_of(each)}.{hint}")
        if each.settings != Settings():
            raise ArgumentError(f"{what} holds {each!r}, whose settings it cannot follow: give them to the outermost.")
        steps.append(each)
    return tuple(steps)


class _Several(Distortion):
    """A distortion made of others, one after the other. It is geometric if all of them are."""

    steps: tuple[Distortion, ...]

    @property
    def title(self) -> str:
        return f"{self.name}({', '.join(step.title for step in self.steps)})"

    @cached_property
    def is_geometric(self) -> bool:
        return all(step.is_geometric for step in self.steps)

    @property
    def keeps_shapes(self) -> bool:
        return all(step.keeps_shapes for step in self.steps)

    @cached_property
    def _groups(self) -> tuple[tuple[Distortion, ...], ...]:
        """The steps; neighbouring geometric steps are one group."""
        groups: list[tuple[Distortion, ...]] = []
        for step in self.steps:
            if groups and step.is_geometric and groups[-1][0].is_geometric:
                groups[-1] += (step,)
            else:
                groups.append((step,))
        return tuple(groups)

    def apply(self, work: Work, draws: Draws) -> None:
        for group in self._groups:
            if group[0].is_geometric:
                warp(group, work, draws)
            else:
                group[0].apply(work, draws)

    def add_to(self, path: Path, draws: Draws) -> None:
        for step in self.steps:
            step.add_to(path, draws)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.steps))})"


@final
@dataclass(frozen=True, repr=False)
class _Compose(_Several):
    name: ClassVar[str] = "compose"
    steps: tuple[Distortion, ...]
    given: Settings

    @property
    def settings(self) -> Settings:
        return self.given

    def __repr__(self) -> str:
        default = Settings()
        values = {field.name: getattr(self.given, field.name) for field in fields(Settings)}
        said = [f"{name}={value!r}" for name, value in values.items() if value != getattr(default, name)]
        return f"compose({', '.join([*map(repr, self.steps), *said])})"


@final
@dataclass(frozen=True, repr=False)
class _OneOf(_Several):
    name: ClassVar[str] = "one_of"
    steps: tuple[Distortion, ...]

    def apply(self, work: Work, draws: Draws) -> None:
        self._chosen(draws).apply(work, draws)

    def add_to(self, path: Path, draws: Draws) -> None:
        self._chosen(draws).add_to(path, draws)

    def _chosen(self, draws: Draws) -> Distortion:
        return self.steps[int(draws.unit() * len(self.steps))]


@final
@dataclass(frozen=True, repr=False)
class _Sometimes(_Several):
    name: ClassVar[str] = "sometimes"
    probability: float
    steps: tuple[Distortion, ...]

    def apply(self, work: Work, draws: Draws) -> None:
        if draws.happens(self.probability):
            super().apply(work, draws)

    def add_to(self, path: Path, draws: Draws) -> None:
        if draws.happens(self.probability):
            super().add_to(path, draws)

    def __repr__(self) -> str:
        return f"sometimes({self.probability:g}, {', '.join(map(repr, self.steps))})"


@final
@dataclass(frozen=True, repr=False)
class _Frozen(_Several):
    name: ClassVar[str] = "frozen"
    steps: tuple[Distortion, ...]
    seed: int

    def apply(self, work: Work, draws: Draws) -> None:
        super().apply(work, self._own_draws())

    def add_to(self, path: Path, draws: Draws) -> None:
        super().add_to(path, self._own_draws())

    def _own_draws(self) -> Draws:
        return Draws(np.random.default_rng(self.seed), self)

    def __repr__(self) -> str:
        return f"frozen({self.steps[0]!r}, seed={self.seed})"
