"""Batches of images mixed with themselves: MixUp and CutMix, for `random_map` after `batch`."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.distort._frame import Array
from penstock.image._opencv import cv2


@final
@dataclass(frozen=True)
class Mixing:
    """A function of a batch `(images, labels)` and random numbers, which mixes each image with another one."""

    alpha: float
    is_cut: bool

    releases_gil: ClassVar[bool] = True

    def __post_init__(self) -> None:
        name = "cut_mix" if self.is_cut else "mix_up"
        object.__setattr__(self, "__qualname__", name)
        if not self.alpha > 0:
            raise ArgumentError(f"{name}(alpha={self.alpha!r}): it is above 0.")

    def __call__(self, batch: Any, rng: np.random.Generator) -> Any:
        """Mixes a batch.

        Raises:
            ValueError: It is no pair of images and labels of floats, a row an image.
        """
        images, labels = batch if isinstance(batch, tuple) and len(batch) == 2 else (None, None)
        if (
            images is None
            or labels is None
            or labels.dtype.kind != "f"
            or images.ndim < 3
            or len(labels) != len(images)
        ):
            raise ValueError(
                "Mixing takes a batch (images, labels), with labels of floats that can be mixed. Put batch() before, "
                "and one_hot() before that."
            )
        others, share = rng.permutation(len(images)), float(rng.beta(self.alpha, self.alpha))
        if self.is_cut:
            height, width = images.shape[1:3]
            high, wide = round(height * (1 - share) ** 0.5), round(width * (1 - share) ** 0.5)
            top, left = int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1))
            part = (slice(None), slice(top, top + high), slice(left, left + wide))
            mixed = images.copy()
            mixed[part] = images[others][part]
            share = 1 - high * wide / (height * width)
        else:
            mixed = _weighted(images, images[others], share)
        return mixed, _weighted(labels, labels[others], share)


def _weighted(one: Array, other: Array, share: float) -> Array:
    flat = cv2.addWeighted(one.reshape(len(one), -1), share, other.reshape(len(one), -1), 1 - share, 0.0)
    return np.asarray(flat, one.dtype).reshape(one.shape)


def mix_up(alpha: float = 0.2) -> Mixing:
    """Mixes each image of a batch, and its label, with another one of the batch. For `random_map` after `batch`.

    After H. Zhang and others, "mixup: Beyond Empirical Risk Minimization", 2018. Shapes and dtypes stay; integers are
    rounded. Images are uint8, uint16, int16 or floats. Labels are floats, such as those of `one_hot`.

    Args:
        alpha: Of the Beta distribution of the share of the first image, drawn once a batch.

    Example:
        >>> from penstock.image import mix_up
        >>> pairs = penstock.from_arrays((np.zeros((8, 4, 4, 3), "uint8"), np.eye(8, dtype="float32")))
        >>> images, labels = pairs.batch(8).random_map(mix_up(), seed=1)[0]
        >>> images.shape, bool(np.allclose(labels.sum(1), 1))
        ((8, 4, 4, 3), True)
    """
    return Mixing(alpha, is_cut=False)


def cut_mix(alpha: float = 1.0) -> Mixing:
    """Puts a rectangle of another image of the batch into each image; labels are mixed by the areas.

    After S. Yun and others, "CutMix", 2019. Otherwise as `mix_up`; images of any dtype.

    Args:
        alpha: Of the Beta distribution of the area that stays, drawn once a batch.
    """
    return Mixing(alpha, is_cut=True)
