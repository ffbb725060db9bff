"""Frames to train on: those of a user's file, or of a film, in which a camera pans over real photographs.

The photographs ship inside scikit-image.

The camera pans to the right at about two pixels a frame, faster and slower, drifting up and down. It reaches an edge
after some hundred frames, and cuts to another part of the photograph, in another size. So one frame is enough to
predict the next frame, yet the two differ.

The film moves from one photograph to the next. Split 60/20/20 by range, training sees six photographs, validation a
seventh, and the test an eighth.
"""

import importlib.resources
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.base._arguments import install
from penstock.base._atomic import complete
from penstock.base._errors import PenstockError

MIN_FRAMES = 20
RANGE_FRAMES = 64
"""Frames read to find the range of values, spread evenly over the file."""

FRAME_COUNT = 20_000
SIDE = 50
FRAME_NBYTES = 3 * SIDE * SIDE * 8
CHUNK = 100
"""Frames written at a time: 6 MB. Memory holds one chunk and one photograph."""
RECIPE = 1
"""Part of the file's name, so that a film of another recipe is another file."""

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
"""The widths, in pixels, at which a photograph is shown."""


class DemoError(PenstockError):
    """The demo cannot run here. The message names what is missing, and the remedy."""


@dataclass(frozen=True)
class Frames:
    """A file of frames."""

    path: Path
    dataset: ps.Dataset
    """Single frames, as stored in the file."""
    shape: tuple[int, ...]
    """The shape of one frame."""
    channels_axis: int | None
    """The axis of a frame that holds channels: 0, 2, or None without channels."""
    low: float
    """The darkest value."""
    high: float
    """The brightest value."""

    @property
    def pixels(self) -> int:
        """Height times width of one frame."""
        return math.prod(size for axis, size in enumerate(self.shape) if axis != self.channels_axis)

    def images(self, frames: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Converts `(n, *shape)` in the file's units to `(n, height, width, 1 or 3)` in 0 to 1."""
        unit = (np.asarray(frames, np.float64) - self.low) / (self.high - self.low)
        if self.channels_axis is None:
            return unit[..., None]
        last: npt.NDArray[np.float64] = np.moveaxis(unit, self.channels_axis + 1, -1)
        return last[..., :3] if last.shape[-1] >= 3 else last[..., :1]


def open_frames(path: str | os.PathLike[str]) -> Frames:
    """Opens a `.npy` of frames: (n, height, width), (n, channels, height, width) or channels last.

    Reads the header, and some frames to find the range of their values.

    Raises:
        SourceError: Not a `.npy` file, truncated, or of Python objects.
        DemoError: The rows are not frames, or too few.
    """
    dataset = ps.from_npy(path)
    shape, dtype = dataset.element_spec.shape, dataset.element_spec.dtype
    found = f"{Path(path).name} is {(len(dataset), *shape)} {dtype}"
    if dtype.kind not in "uif" or len(shape) not in (2, 3) or 0 in shape:
        raise DemoError(
            f"{found}, which is no film. The demo trains on numbers (float or integer) of shape "
            "(frames, height, width), (frames, channels, height, width) or (frames, height, width, channels)."
        )
    if len(dataset) < MIN_FRAMES:
        raise DemoError(
            f"{found}: {len(dataset)} frames are too few to train, validate and test on. The demo needs at least "
            f"{MIN_FRAMES}. Without --data it makes a film of its own."
        )
    low, high = np.inf, -np.inf
    for index in np.linspace(0, len(dataset) - 1, min(RANGE_FRAMES, len(dataset))).astype(int):
        frame = dataset[int(index)]
        if not np.isfinite(frame).all():
            raise DemoError(f"{found}, and frame {index} holds NaN or infinite values. A model cannot train on them.")
        low, high = min(low, float(frame.min())), max(high, float(frame.max()))
    if low == high:
        raise DemoError(f"{found}, and every value of the frames read is {low:g}: there is no motion to learn.")
    if dtype == np.uint8:
        low, high = 0.0, 255.0
    elif low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    # A film has fewer channels than rows or columns.
    channels_axis = None if len(shape) == 2 else 0 if shape[0] <= shape[2] else 2
    return Frames(Path(path), dataset, shape, channels_axis, low, high)


@dataclass(frozen=True)
class Shot:
    """A stretch of film without a cut."""

    width: int
    """Width of the shown photograph, in pixels."""
    x: npt.NDArray[np.float64]
    """Left edge of each frame, shape `(frames,)`, in pixels of the shown photograph."""
    y: npt.NDArray[np.float64]
    """Top edge of each frame."""


def film_path(data_dir: str | os.PathLike[str] | None = None, frame_count: int = FRAME_COUNT) -> Path:
    """Returns the film's path: in `data_dir`, or else in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    size = "" if frame_count == FRAME_COUNT else f"-{frame_count}"
    return (cache if data_dir is None else Path(data_dir)) / f"film-{RECIPE}{size}.npy"


def make_film(
    path: Path, frame_count: int = FRAME_COUNT, *, on_progress: Callable[[int, int], object] = lambda *_: None
) -> None:
    """Writes the film, `(frame_count, 3, 50, 50)` float64 in [0, 1], to a `.npy` file.

    Every run writes the same frames. The file appears under its name only when it is complete.

    Memory: one photograph and `CHUNK` frames.

    Args:
        path: The file to make. Its folder is made, too.
        frame_count: At least 100.
        on_progress: Called with the bytes written so far and the bytes of the whole film.

    Raises:
        DemoError: scikit-image or one of the photographs is missing, or the disk is too small.
    """
    photographs = _find_photographs()
    header = {"descr": "<f8", "fortran_order": False, "shape": (frame_count, 3, SIDE, SIDE)}
    frames, nbytes = _frames(photographs, frame_count), frame_count * FRAME_NBYTES
    path.parent.mkdir(parents=True, exist_ok=True)
    if (free_nbytes := shutil.disk_usage(path.parent).free) < nbytes:
        raise DemoError(
            f"The film needs {nbytes / 1e9:.2f} GB, but the disk of {path.parent} has {free_nbytes / 1e9:.2f} GB "
            "free. Choose a folder on another disk: penstock demo --data-dir FOLDER"
        )
    with complete(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, frame_count, CHUNK):
            on_progress(start * FRAME_NBYTES, nbytes)
            file.write(np.stack(list(itertools.islice(frames, CHUNK))).astype("<f8").data)
        on_progress(nbytes, nbytes)


def _find_photographs() -> dict[str, Path]:
    """Finds all photographs before the first is needed, so that a missing one is reported early."""
    remedy = "Or bring frames of your own: penstock demo --data my.npy"
    try:
        folder = Path(str(importlib.resources.files("skimage"))) / "data"
    except ModuleNotFoundError:
        raise DemoError(
            "The demo's film is made from photographs in the package scikit-image, which is not installed. "
            f"Install it: {install('scikit-image')}. {remedy}"
        ) from None
    if missing := [name for name in SHARES if not (folder / name).exists()]:
        raise DemoError(f"This installation of scikit-image has no {', '.join(missing)} in {folder}. {remedy}")
    return {name: folder / name for name in SHARES}


def _frames(photographs: dict[str, Path], frame_count: int) -> Iterator[npt.NDArray[np.float64]]:
    """Yields every frame, (3, 50, 50) float64. Memory holds one photograph, in both sizes."""
    done, share_done = 0, 0.0
    for number, (name, share) in enumerate(SHARES.items()):
        share_done += share
        end = round(frame_count * share_done)
        shown = {width: _load(photographs[name], width) for width in WIDTHS}
        for shot in shots({width: image.shape[1] for width, image in shown.items()}, end - done, seed=number):
            yield from _play(shot, shown[shot.width])
        done = end


def _load(path: Path, width: int) -> npt.NDArray[np.float64]:
    """Loads the photograph `width` pixels across: (3, height, width) float64 in [0, 1]."""
    from skimage.io import imread
    from skimage.transform import resize

    image: Any = imread(path)[..., :3]
    small = resize(image, (round(image.shape[0] * width / image.shape[1]), width), anti_aliasing=True)
    return np.ascontiguousarray(np.clip(small, 0.0, 1.0).transpose(2, 0, 1), dtype=np.float64)


def shots(heights: dict[int, int], frame_count: int, *, seed: int) -> Iterator[Shot]:
    """Yields shots of `frame_count` frames in all. Each pans to the right until the photograph's edge.

    Args:
        heights: The photograph's height for each width at which it may be shown, in pixels.
        frame_count: The last shot is cut off at this number of frames.
        seed: The same seed gives the same shots.
    """
    rng = np.random.default_rng((RECIPE, seed))
    while frame_count:
        width = int(rng.choice(list(heights)))
        time = np.arange(min(width, frame_count))
        x = rng.uniform(0, width / 10) + np.cumsum(2.0 + _swing(rng, time, 0.8))
        time = time[x < width - SIDE - 1]
        y = np.cumsum(_swing(rng, time, 0.6))
        y += rng.uniform(-y.min(), heights[width] - SIDE - 1 - y.max())
        yield Shot(width, x[: len(time)], y)
        frame_count -= len(time)


def _swing(rng: np.random.Generator, time: npt.NDArray[np.int64], amplitude: float) -> npt.NDArray[np.float64]:
    """Returns a slow sine of random period (60 to 140 frames) and phase."""
    return amplitude * np.sin(2 * np.pi * (time / rng.uniform(60, 140) + rng.uniform()))


def _play(shot: Shot, image: npt.NDArray[np.float64]) -> Iterator[npt.NDArray[np.float64]]:
    """Yields the camera's view, by linear interpolation, so that motion is smooth and not in whole pixels."""
    for x, y in zip(shot.x, shot.y, strict=True):
        left, top = int(x), int(y)
        part = image[:, top : top + SIDE + 1, left : left + SIDE + 1]
        part = part[:, :-1] + (y - top) * (part[:, 1:] - part[:, :-1])
        yield part[:, :, :-1] + (x - left) * (part[:, :, 1:] - part[:, :, :-1])
