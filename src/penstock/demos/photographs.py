"""Real photographs, which ship inside scikit-image; and a folder of JPEGs cut out of them, as a user has one.

Each photograph is a class: which one is a cut-out from? Cut-outs for training come from the left of it and those for
validation from the right, with no pixel in common. So to be right is to know a cat's other ear, not a file again.

Photographs have about 512 pixels a side, and cut-outs a part of that. They are enlarged to `SIZE`, which is what it
takes to make decoding as much work as it is elsewhere; they are softer than what a camera gives.
"""

import concurrent.futures
import importlib.resources
import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.demos.cache import cache_folder, making_folder
from penstock.demos.errors import DemoError

RECIPE = 1
"""Part of the folder's name. Another recipe is another set of images, which must not be taken for this one."""
CLASSES = {
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "galaxies": "hubble_deep_field.jpg",
    "grass": "grass.png",
    "gravel": "gravel.png",
    "moon": "moon.png",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
    "tissue": "ihc.png",
}
TRAINING_COUNT = 200
"""Cut-outs of each photograph for training."""
VALIDATION_COUNT = 50
SIZE = (500, 375)
"""Width and height of a file, in pixels."""
_TRAINING_SHARE = 0.6
"""Of the width of a photograph, from the left."""
_ZOOM = (0.45, 0.9)
"""Height of a cut-out as a part of the largest that fits."""
_FILE_NBYTES = 30_000
"""Of a JPEG, about."""


@dataclass(frozen=True)
class Cut:
    """One file to make."""

    path: Path
    photograph: Any
    """A Pillow image."""
    box: tuple[int, int, int, int]
    """Left, top, right and bottom, in pixels of the photograph."""

    def make(self) -> int:
        """Writes the JPEG; returns its size in bytes."""
        from PIL.Image import Resampling

        self.photograph.resize(SIZE, Resampling.BICUBIC, box=self.box).save(self.path, quality=90)
        return self.path.stat().st_size


def find_photographs(names: Iterable[str], *, what: str, otherwise: str = "") -> dict[str, Path]:
    """Paths by name; of all that are needed, so that a missing one is known before anything is begun.

    Args:
        names: File names, in scikit-image's folder.
        what: What is made of them, for messages: "film".
        otherwise: What to do without them, a sentence.

    Raises:
        DemoError: scikit-image or one of the photographs is missing.
    """
    names = list(names)
    try:
        folder = Path(str(importlib.resources.files("skimage"))) / "data"
    except ModuleNotFoundError:
        raise DemoError(
            f"The demo's {what} is made from photographs in the package scikit-image, which is not installed. "
            f'Install it: pip install "penstock[demo]". {otherwise}'.rstrip()
        ) from None
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise DemoError(
            f"This installation of scikit-image has no {', '.join(missing)} in {folder}. {otherwise}".rstrip()
        )
    return {name: folder / name for name in names}


def folder_path(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where the folder is kept: in `data_dir`, or else in the user's cache."""
    return cache_folder(data_dir) / f"photographs-{RECIPE}"


def make_folder(
    path: Path,
    *,
    counts: tuple[int, int] = (TRAINING_COUNT, VALIDATION_COUNT),
    on_progress: Callable[[int, int], object] = lambda *_: None,
) -> None:
    """Makes `training/CLASS/0001.jpg` and so on, and `validation/CLASS/...`, below `path`.

    The same pixels with the same versions of scikit-image and Pillow. The folder is there when it is whole, and not
    before.

    Memory: the photographs, 15 MB, and a cut-out for each thread.

    Args:
        path: The folder to make.
        counts: Files of a class, for training and validation.
        on_progress: Called with the files written, and those of the whole.

    Raises:
        DemoError: scikit-image or one of the photographs is missing, or the disk is too small.
    """
    from PIL import Image

    photographs = find_photographs(CLASSES.values(), what="folder of images")
    file_count = sum(counts) * len(CLASSES)
    with making_folder(path, file_count * _FILE_NBYTES, "folder of images") as folder:
        cuts = []
        for number, (name, file) in enumerate(CLASSES.items()):
            photograph = Image.open(photographs[file]).convert("RGB")
            for part, count in zip(("training", "validation"), counts, strict=True):
                (folder / part / name).mkdir(parents=True)
                rng = np.random.default_rng((RECIPE, number, len(part)))
                cuts += [
                    Cut(folder / part / name / f"{each:04}.jpg", photograph, box(photograph.size, part, rng))
                    for each in range(count)
                ]
        # Pillow lets go of the GIL for most of this.
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                for done, _ in zip(itertools.count(1), pool.map(Cut.make, cuts), strict=False):
                    on_progress(done, file_count)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def box(size: tuple[int, int], part: str, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Draws a cut-out of a photograph, of the proportions of `SIZE`, inside the part that is for training or not.

    Args:
        size: Width and height of the photograph.
        part: "training", on the left, or "validation", on the right.
        rng: Where from.
    """
    border = round(size[0] * _TRAINING_SHARE)
    left, right = (0, border) if part == "training" else (border, size[0])
    largest = min(size[1], (right - left) * SIZE[1] / SIZE[0])
    height = int(largest * rng.uniform(*_ZOOM))
    width = height * SIZE[0] // SIZE[1]
    x, y = rng.integers(left, right - width, endpoint=True), rng.integers(0, size[1] - height, endpoint=True)
    return int(x), int(y), int(x) + width, int(y) + height
