"""What every distortion is: an immutable value that can be called, for `map` and `random_map`."""

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

    What comes out depends on the element and on what `rng` gives, and on nothing else. An element is never written to;
    a crop or flip alone may be a view of it. Distortions are equal if they do the same, can be hashed and pickled, and
    hold nothing: any number of threads may call one.

    An element is an image, `(height, width)` or `(height, width, channels)`; or a tuple, whose first leaf is the image;
    or a dict, whose `"image"` is. All else in it passes. `compose(..., on=, masks=, data_format=)` says otherwise.
    """

    releases_gil: ClassVar[bool] = True
    """Threads can run it side by side: `executor="auto"` runs it on them."""

    name: ClassVar[str]
    """What the function that makes it is called."""

    def __post_init__(self) -> None:
        # What a step that runs it is labelled with. Without its numbers: who mends one keeps the run.
        object.__setattr__(self, "__qualname__", self.title)

    def __call__(self, element: Any, rng: np.random.Generator | None = None) -> Any:
        """Distorts an element.

        Args:
            element: An image, or a tuple or dict with one.
            rng: Where numbers are drawn from; not needed if all are exact.

        Returns:
            The element with another image, of the same dtype unless the distortion is a conversion.

        Raises:
            ArgumentError: Numbers are to be drawn, and there is no `rng`.
            ValueError: There is no image, or it is too small for what is to be cut out.
        """
        draws = Draws(rng, self)
        return distorted(element, self.settings, lambda work: self.apply(work, draws))

    @property
    def settings(self) -> Settings:
        """Which leaves of an element, and how."""
        return _DEFAULTS

    @property
    def title(self) -> str:
        """Its name, and those of what it is made of."""
        return self.name

    @property
    def is_geometric(self) -> bool:
        """Whether it moves pixels and does not change them; then it has `add_to`."""
        return False

    @property
    def keeps_shapes(self) -> bool:
        """Whether what comes out is as large as what goes in: then images of all sizes may be mixed."""
        return True

    @abstractmethod
    def apply(self, work: Work, draws: Draws) -> None:
        """Replaces the images of the frames."""

    def add_to(self, path: Path, draws: Draws) -> None:
        """Adds itself to a warp; only where `is_geometric`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        if len(values) == 1:
            return f"{self.name}({next(iter(values.values()))})"
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in values.items())})"


class Geometry(Distortion):
    """A distortion that moves pixels: masks go with the images, and several in a row are one warp."""

    @property
    def is_geometric(self) -> bool:
        """It is."""
        return True

    def apply(self, work: Work, draws: Draws) -> None:
        """Warps the frames by this alone."""
        warp((self,), work, draws)

    @abstractmethod
    def add_to(self, path: Path, draws: Draws) -> None:
        """Adds itself to a warp."""


def warp(steps: Sequence[Distortion], work: Work, draws: Draws) -> None:
    """Warps frames once by several geometric distortions."""
    path = Path(*work.size)
    for step in steps:
        step.add_to(path, draws)
    path.apply(work)
