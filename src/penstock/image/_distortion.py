"""The base class of distortions, an immutable value that can be called, and the steps that all others consist of."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from penstock.image._frame import Settings, Work, distorted
from penstock.image._values import Check, Draws
from penstock.image._warp import Path


class Distortion(ABC):
    """A distortion of images: `fn(element, rng)` for `random_map`; if its numbers are exact, `fn(element)` for `map`.

    The result depends only on the element and on the numbers of `rng`. An element is never written to; a crop or flip
    may return a view of it. Equal distortions are equal values. They can be hashed and pickled, and have no state, so
    any number of threads may call one.

    An element is an image, `(height, width)` or `(height, width, channels)`; or a tuple, whose first leaf is the image;
    or a dict with the image as `"image"`. Other leaves pass unchanged. `compose(..., on=, masks=, data_format=)`
    selects other leaves.
    """

    releases_gil: ClassVar[bool] = True
    """Threads run it in parallel, so `executor="auto"` chooses threads."""

    name: str
    """The name of the function that makes it."""

    settings: Settings = Settings()
    """The leaves that it distorts, and how."""

    is_geometric: bool = False
    """Whether it only moves pixels. Then it has `add_to`."""

    keeps_shapes: bool = True
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

    @abstractmethod
    def apply(self, work: Work, draws: Draws) -> None:
        """Replaces the images of the frames."""

    @abstractmethod
    def add_to(self, path: Path, draws: Draws) -> None:
        """Adds itself to a warp, if `is_geometric`."""


@final
@dataclass(frozen=True, repr=False)
class Step(Distortion):
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


def changes(name: str, function: Callable[..., None], **arguments: Check) -> Step:
    """Makes a distortion of pixel values, `function(work, draws, *values)`.

    Args:
        name: The name of the public function.
        function: A function of this package, so that the distortion can be pickled.
        arguments: A check for each argument, which returns its value.
    """
    values = tuple(check(f"{name}(): {argument}") for argument, check in arguments.items())
    return Step(name, function, tuple(arguments), values, is_geometric=False, keeps_shapes=True)


def moves(name: str, function: Callable[..., None], keeps_shapes: bool = True, **arguments: Check) -> Step:
    """Makes a distortion that moves pixels, `function(path, draws, *values)`; see `changes`.

    Masks move with the images, and several of them in a row are one warp.
    """
    made = changes(name, function, **arguments)
    return Step(name, function, made.names, made.values, is_geometric=True, keeps_shapes=keeps_shapes)


def warp(steps: Sequence[Distortion], work: Work, draws: Draws) -> None:
    """Warps frames once, by several geometric distortions."""
    path = Path(*work.size)
    for step in steps:
        step.add_to(path, draws)
    path.apply(work)
