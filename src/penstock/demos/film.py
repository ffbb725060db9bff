"""A film to train on: a camera pans over real photographs, which ship inside scikit-image.

The camera pans to the right at about two pixels a frame, faster and slower, drifting up and down. It reaches an
edge after some hundred frames, and cuts to another part of the photograph, in another size. So the next frame
can be predicted from one frame, yet is not equal to it.

The film moves from one photograph to the next. Where it is split 60/20/20 by range, training sees six
photographs, validation a seventh, and the test an eighth.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.demos.cache import cache_folder, making
from penstock.demos.errors import DemoError
from penstock.demos.photographs import find_photographs

FRAME_COUNT = 20_000
SIDE = 50
FRAME_NBYTES = 3 * SIDE * SIDE * 8
CHUNK = 100
"""Frames written at a time: 6 MB, which with one photograph is all that is in memory."""
RECIPE = 1
"""Part of the file's name. Another recipe is another film, which must not be taken for this one."""

SHARES = {
    "motorcycle_left.png": 0.1,
    "coffee.png": 0.1,
    "rocket.jpg": 0.1,
    "hubble_deep_field.jpg": 0.1,
    "ihc.png": 0.1,
    "retina.jpg": 0.1,
    "chelsea.png": 0.2,
    "astronaut.png": 0.2,
}
"""Each photograph's share of the film, in order."""
WIDTHS = (320, 450)
"""Sizes in which a photograph is shown, in pixels across."""


@dataclass(frozen=True)
class Shot:
    """A stretch of film without a cut."""

    photograph: str
    width: int
    """The photograph is shown so many pixels wide."""
    x: npt.NDArray[np.float64]
    """Left edge of each frame, shape `(frames,)`, in pixels of the shown photograph."""
    y: npt.NDArray[np.float64]
    """Top edge of each frame."""


def film_path(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where the film is kept: in `data_dir`, or else in the user's cache."""
    return cache_folder(data_dir) / f"film-{RECIPE}.npy"


def make_film(
    path: Path, frame_count: int = FRAME_COUNT, *, on_progress: Callable[[int, int], object] = lambda *_: None
) -> None:
    """Writes the film, `(frame_count, 3, 50, 50)` float64 in [0, 1], to a `.npy` file.

    The same frames on every run. The file is there when it is whole, and not before.

    Memory: one photograph and `CHUNK` frames.

    Args:
        path: The file to make; its folder is made, too.
        frame_count: At least 100.
        on_progress: Called with the bytes written, and those of the whole film.

    Raises:
        DemoError: scikit-image or one of the photographs is missing, or the disk is too small.
    """
    photographs = find_photographs(
        SHARES, what="film", otherwise="Or bring frames of your own: penstock demo --data my.npy"
    )
    with making(path, frame_count * FRAME_NBYTES, "film") as file:
        _write(file, _frames(photographs, frame_count), frame_count, on_progress)


def _write(
    file: BinaryIO,
    frames: Iterator[npt.NDArray[np.float64]],
    frame_count: int,
    on_progress: Callable[[int, int], object],
) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (frame_count, 3, SIDE, SIDE)}
    np.lib.format.write_array_header_1_0(file, header)
    chunk = np.empty((CHUNK, 3, SIDE, SIDE), "<f8")
    for start in range(0, frame_count, CHUNK):
        on_progress(start * FRAME_NBYTES, frame_count * FRAME_NBYTES)
        count = min(CHUNK, frame_count - start)
        for row in range(count):
            chunk[row] = next(frames)
        try:
            file.write(chunk[:count].data)
        except OSError as error:
            raise DemoError(f"Writing the film failed after {start:,} frames: {error}.") from error
    on_progress(frame_count * FRAME_NBYTES, frame_count * FRAME_NBYTES)


def _frames(photographs: dict[str, Path], frame_count: int) -> Iterator[npt.NDArray[np.float64]]:
    """Yields every frame, (3, 50, 50) float64; one photograph is in memory at a time, in both sizes."""
    done, share_done = 0, 0.0
    for number, (name, share) in enumerate(SHARES.items()):
        share_done += share
        end = round(frame_count * share_done)
        shown = {width: _load(photographs[name], width) for width in WIDTHS}
        heights = {width: image.shape[1] for width, image in shown.items()}
        for shot in shots(name, heights, end - done, seed=number):
            yield from _play(shot, shown[shot.width])
        done = end


def _load(path: Path, width: int) -> npt.NDArray[np.float64]:
    """The photograph `width` pixels across: (3, height, width) float64 in [0, 1]."""
    # Here, because only who makes the film has to have it.
    from skimage.io import imread
    from skimage.transform import resize

    image: Any = imread(path)[..., :3]
    height = round(image.shape[0] * width / image.shape[1])
    small = resize(image, (height, width), anti_aliasing=True)
    return np.ascontiguousarray(np.clip(small, 0.0, 1.0).transpose(2, 0, 1), dtype=np.float64)


def shots(photograph: str, heights: dict[int, int], frame_count: int, *, seed: int) -> Iterator[Shot]:
    """Yields shots of `frame_count` frames in all: pans to the right, each until the photograph's edge.

    Args:
        photograph: Its name.
        heights: The height of the photograph for each width in which it may be shown, in pixels.
        frame_count: The last shot is cut off at this many.
        seed: The same shots for the same seed.
    """
    rng = np.random.default_rng((RECIPE, seed))
    while frame_count:
        width = int(rng.choice(list(heights)))
        time = np.arange(min(width, frame_count))
        x = rng.uniform(0, width / 10) + np.cumsum(2.0 + _swing(rng, time, 0.8))
        time = time[x < width - SIDE - 1]
        y = np.cumsum(_swing(rng, time, 0.6))
        y += rng.uniform(-y.min(), heights[width] - SIDE - 1 - y.max())
        yield Shot(photograph, width, x[: len(time)], y)
        frame_count -= len(time)


def _swing(rng: np.random.Generator, time: npt.NDArray[np.int64], amplitude: float) -> npt.NDArray[np.float64]:
    """A slow sine of random period (60 to 140 frames) and phase."""
    return amplitude * np.sin(2 * np.pi * (time / rng.uniform(60, 140) + rng.uniform()))


def _play(shot: Shot, image: npt.NDArray[np.float64]) -> Iterator[npt.NDArray[np.float64]]:
    """Yields what the camera sees, by linear interpolation: motion is smooth, and not in whole pixels."""
    for x, y in zip(shot.x, shot.y, strict=True):
        left, top = int(x), int(y)
        part = image[:, top : top + SIDE + 1, left : left + SIDE + 1]
        part = part[:, :-1] + (y - top) * (part[:, 1:] - part[:, :-1])
        yield part[:, :, :-1] + (x - left) * (part[:, :, 1:] - part[:, :, :-1])
