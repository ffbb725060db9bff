"""The base class of distortions: an immutable value that can be called, for `map` and `random_map`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, Final

import numpy as np

from penstock.image._frame import Settings, Work, distorted
from penstock.image._values import Draws
from penstock.image._warp import Path

_DEFAULTS: Final = Settings()


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

    name: ClassVar[str]
    """The name of the function that makes it."""

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
    def settings(self) -> Settings:
        """The leaves that it distorts, and how."""
        return _DEFAULTS

    @property
    def title(self) -> str:
        """Its name, and the names of its parts."""
        return self.name

    @property
    def is_geometric(self) -> bool:
        """Whether it only moves pixels. Then it has `add_to`."""
        return False

    @property
    def keeps_shapes(self) -> bool:
        """Whether the result has the shape of the image."""
        return True

    @abstractmethod
    def apply(self, work: Work, draws: Draws) -> None:
        """Replaces the images of the frames."""

    def add_to(self, path: Path, draws: Draws) -> None:
        """Adds itself to a warp, if `is_geometric`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        if len(values) == 1:
            return f"{self.name}({next(iter(values.values()))})"
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in values.items())})"


class Geometry(Distortion):
    """A distortion that moves pixels. Masks move with the images, and several in a row are one warp."""

    @property
    def is_geometric(self) -> bool:
        return True

    def apply(self, work: Work, draws: Draws) -> None:
        """Warps the frames."""
        warp((self,), work, draws)

    @abstractmethod
    def add_to(self, path: Path, draws: Draws) -> None:
        """Adds itself to a warp."""


def warp(steps: Sequence[Distortion], work: Work, draws: Draws) -> None:
    """Warps frames once, by several geometric distortions."""
    path = Path(*work.size)
    for step in steps:
        step.add_to(path, draws)
    path.apply(work)
