"""Image files for tests, written by OpenCV, which is imported when they are."""

from pathlib import Path
from typing import Any

import numpy as np


def picture(number: int, height: int = 12, width: int = 16) -> np.ndarray[Any, Any]:
    """A picture that no other number has, uint8 `(height, width, 3)`; its first pixel is `(number, 200, 7)`."""
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[0, 0] = number, 200, 7
    return pixels


def write(path: Path, pixels: np.ndarray[Any, Any], *options: int) -> None:
    """Writes a picture in the format of the name; channels are red, green, blue (and alpha)."""
    import cv2

    path.parent.mkdir(parents=True, exist_ok=True)
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(pixels.shape[-1]) if pixels.ndim == 3 else None
    assert cv2.imwrite(str(path), pixels if order is None else pixels[..., order], list(options))


def make_pets(folder: Path) -> list[str]:
    """Writes 14 PNGs, number `k` being `picture(k)`: 6 dogs, 5 cats, and 3 in places of their own.

    Returns their paths below the folder, in the order of their numbers, which is not that of a listing.
    """
    names = [f"dogs/{name}.png" for name in "fedcba"] + [f"cats/{name}.png" for name in "edcba"]
    names += ["cats/old/z.png", ".hidden/h.png", "beside.png"]
    for number, name in enumerate(names):
        write(folder / name, picture(number))
    return names
