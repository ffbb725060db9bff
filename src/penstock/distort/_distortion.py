"""The base class of distortions, an immutable value that can be called; single and combined ones."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, final

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.distort._frame import DEFAULT, Border, DataFormat, Interpolation, Keys, Settings, Work, distorted, unmoved
from penstock.distort._places import BoxFormat
from penstock.distort._values import Draws, chance, numbers
from penstock.distort._warp import Path


class Distortion(ABC):
    """A distortion of images: `fn(element, rng)` for `random_map`; if its numbers are exact, `fn(element)` for `map`.

    The result depends only on the element and on the numbers of `rng`. An element is never written to; a crop or flip
    may return a view of it. Equal distortions are equal values. They can be hashed and pickled, and have no state, so
    any number of threads may call one.

    An element is an image, `(height, width)` or `(height, width, channels)`; or a tuple, whose first leaf is the image;
    or a dict with the image as `"image"`. Other leaves pass unchanged. `compose(..., on=, masks=, boxes=, points=,
    data_format=)` selects other leaves.
    """

    releases_gil: ClassVar[bool] = True
    """Threads run it in parallel, so `executor="auto"` chooses threads."""

    name: str
    """The name of the function that makes it."""

    settings: Settings = DEFAULT
    """The leaves that it distorts, and how."""

    is_geometric: bool
    """Whether it only moves pixels. Then it has `add_to`."""

    keeps_shapes: bool
    """Whether the result has the shape of the image. If not, all results have one size."""

    def __post_init__(self) -> None:
        # The label of its step. Without numbers, so that a run may go on after one was changed.
        object.__setattr__(self, "__qualname__", self.title)

    def __call__(self, element: Any, rng: np.random.Generator | None = None) -> Any:
        """Distorts an element.

        Args:
            element: An image, or a tuple or dict with one.
            rng: The generator of the numbers; not needed if all are exact.

        Returns:
            The element with another image, of the same dtype unless the distortion is a conversion.

        Raises:
            ArgumentError: It draws numbers, and there is no `rng`.
            ValueError: There is no image, or it is too small for a crop.
        """
        draws = Draws(rng, self)
        return distorted(element, self.settings, lambda work: self.apply(work, draws))

    @property
    def title(self) -> str:
        """Its name, and the names of its parts."""
        return self.name

    @property
    def moves_pixels(self) -> bool:
        """Whether some of it moves pixels."""
        return self.is_geometric

    def caution_of_elements(self, tree: Any) -> str | None:
        """What the log says of a plan whose elements, of this spec, are most likely not distorted as intended."""
        image, others = unmoved(tree, self.settings) if self.moves_pixels else (None, [])
        if not others:
            return None
        names, masks = ", ".join(map(repr, others)), tuple(others) if others[1:] else others[0]
        return (
            f"{self.title} moves the pixels of {image!r}, and not those of {names}, of the same height and width. "
            f"Masks move with the image by compose(..., masks={masks!r}), and other images by on={(image, *others)}."
        )

    @abstractmethod
    def apply(self, work: Work, draws: Draws) -> None:
        """Replaces the images of the frames."""

    @abstractmethod
    def add_to(self, path: Path, draws: Draws) -> None:
        """Adds itself to a warp, if `is_geometric`."""


@final
@dataclass(frozen=True, repr=False)
class DrawnStep(Distortion):
    """A distortion that is a function of the module: of frames, or, if it is geometric, of a warp."""

    name: str
    function: Callable[..., None]
    """Takes the frames or the warp, the random numbers, and the values of the arguments."""
    names: tuple[str, ...]
    values: tuple[Any, ...]
    is_geometric: bool
    keeps_shapes: bool

    def apply(self, work: Work, draws: Draws) -> None:
        if self.is_geometric:
            warp((self,), work, draws)
        else:
            self.function(work, draws, *self.values)

    def add_to(self, path: Path, draws: Draws) -> None:
        self.function(path, draws, *self.values)

    def __repr__(self) -> str:
        if len(self.values) == 1:
            return f"{self.name}({self.values[0]})"
        return f"{self.name}({', '.join(map('{}={}'.format, self.names, self.values))})"


def changes(name: str, function: Callable[..., None], **values: Any) -> DrawnStep:
    """Makes a distortion of pixel values, `function(work, draws, *values)`.

    Args:
        name: The name of the public function.
        function: A function of this package, so that the distortion can be pickled.
        values: The arguments, checked.
    """
    return DrawnStep(name, function, tuple(values), tuple(values.values()), is_geometric=False, keeps_shapes=True)


def moves(name: str, function: Callable[..., None], keeps_shapes: bool = True, **values: Any) -> DrawnStep:
    """Makes a distortion that moves pixels, `function(path, draws, *values)`; see `changes`.

    Masks move with the images, and several of them in a row are one warp.
    """
    return DrawnStep(
        name, function, tuple(values), tuple(values.values()), is_geometric=True, keeps_shapes=keeps_shapes
    )


def warp(steps: Sequence[Distortion], work: Work, draws: Draws) -> None:
    """Warps frames once, by several geometric distortions."""
    path = Path(*work.size)
    for step in steps:
        step.add_to(path, draws)
    path.apply(work)


def compose(
    *distortions: Distortion,
    on: Keys = None,
    masks: Keys = None,
    boxes: Keys = None,
    points: Keys = None,
    box_format: BoxFormat = "xyxy",
    interpolation: Interpolation = "bilinear",
    border: Border = "constant",
    value: float | Sequence[float] = 0.0,
    data_format: DataFormat = "channels_last",
) -> Distortion:
    """Applies distortions one after the other, with settings. Also for a single one with settings.

    Neighbouring distortions that move pixels (rotate, shear, scale, translate, flip, crop, resized_crop, sine_warp,
    elastic) are one warp: pixels are interpolated once. So a step may bring back pixels that an earlier one moved or
    cropped away: a rotation after a crop has the image in its corners, and not the border. A step that changes pixel
    values, such as `brightness`, ends a warp. Pixels outside of the image are then gone, also for boxes and points.

    Args:
        distortions: The distortions in their order.
        on: The leaf of an element that is the image: an index of a tuple, a key of a dict; or a tuple of them, which
            get the same numbers, but each its own noise. None: the element if it is an array, the first leaf of a
            tuple, `"image"` of a dict.
        masks: Leaves that only move with the image. They have its height and width. They are interpolated by the
            nearest pixel, and 0 outside the image.
        boxes: Leaves `(..., 4)` that move with the image: each becomes the upright box around that part of the moved
            one that is in the image. The upper left corner of the image is (0, 0). A box outside has no area, and
            stays in its row.
        points: Leaves `(..., 2)`, x and y, that move with the image. The centre of the first pixel is (0, 0). They may
            lie outside. A point that was outside at the end of an earlier warp stays outside: (-1, -1), if it would
            come back.
        box_format: `"xyxy"`: left, top, right and bottom; or `"xywh"`: left, top, width and height, as in COCO.
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
        boxes=boxes,
        points=points,
        box_format=box_format,
        interpolation=interpolation,
        border=border,
        value=values if len(values) > 1 else values[0],
        data_format=data_format,
    )
    return _Several("compose", _checked("compose()", distortions), settings=settings)


def one_of(*distortions: Distortion) -> Distortion:
    """Applies one of several distortions, with equal probabilities."""
    return _Several("one_of", _checked("one_of()", distortions), is_choice=True)


def sometimes(probability: float, *distortions: Distortion) -> Distortion:
    """Applies distortions with a probability.

    Args:
        probability: 0 to 1.
        distortions: All or none are applied.
    """
    likely = chance("sometimes(): probability", probability)
    return _Several("sometimes", _checked("sometimes()", distortions), likely)


def _checked(what: str, distortions: Sequence[object]) -> tuple[Distortion, ...]:
    if not distortions:
        raise ArgumentError(f"{what} got no distortion.")
    steps = []
    for each in distortions:
        if not isinstance(each, Distortion):
            raise ArgumentTypeError(
                f"{what} takes distortions of penstock.image one by one, but got {type_of(each)}. A function of your "
                "own is a step of its own: random_map(fn) before or after."
            )
        if each.settings != DEFAULT:
            raise ArgumentError(f"{what} holds {each!r}, whose settings it cannot follow: give them to the outermost.")
        steps.append(each)
    return tuple(steps)


_Groups = tuple[tuple[Distortion, ...], ...]
"""Steps; neighbours that move pixels are one group, and so are neighbours that do not."""


@final
@dataclass(frozen=True, repr=False)
class _Several(Distortion):
    """Distortions one after the other, or one of them."""

    name: str
    steps: tuple[Distortion, ...]
    probability: float | None = None
    """None: always."""
    is_choice: bool = False
    settings: Settings = DEFAULT

    @property
    def title(self) -> str:
        return f"{self.name}({', '.join(step.title for step in self.steps)})"

    @cached_property
    def is_geometric(self) -> bool:  # type: ignore[override]  # depends on the steps
        return all(step.is_geometric for step in self.steps)

    @property
    def moves_pixels(self) -> bool:
        return any(step.moves_pixels for step in self.steps)

    @property
    def keeps_shapes(self) -> bool:  # type: ignore[override]  # the same
        return all(step.keeps_shapes for step in self.steps)

    @cached_property
    def _groups(self) -> _Groups:
        return tuple(tuple(group) for _, group in itertools.groupby(self.steps, attrgetter("is_geometric")))

    def _drawn(self, draws: Draws) -> _Groups:
        """Returns the steps to apply."""
        if self.is_choice:
            return ((self.steps[int(draws.rng.random() * len(self.steps))],),)
        return self._groups if self.probability is None or draws.happens(self.probability) else ()

    def apply(self, work: Work, draws: Draws) -> None:
        for group in self._drawn(draws):
            if group[0].is_geometric:
                warp(group, work, draws)
            else:
                for step in group:
                    step.apply(work, draws)

    def add_to(self, path: Path, draws: Draws) -> None:
        for step in itertools.chain(*self._drawn(draws)):
            step.add_to(path, draws)

    def __repr__(self) -> str:
        values = {field.name: getattr(self.settings, field.name) for field in fields(Settings)}
        others = [f"{name}={value!r}" for name, value in values.items() if value != getattr(DEFAULT, name)]
        chances = [] if self.probability is None else [f"{self.probability:g}"]
        return f"{self.name}({', '.join([*chances, *map(repr, self.steps), *others])})"
