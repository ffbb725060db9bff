"""What leaves look like: images in any layout, dtype and range as pixels; strips of frames; lines; captions.

One scale of brightness holds for a leaf of all elements that are shown, so that they can be compared.
"""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._show._captions import SPOKEN, are_integers, is_one_hot, label_column, label_text, text_of
from penstock._show._elements import CHANNELS, Elements
from penstock.base._errors import SpecError

Pixels = npt.NDArray[np.uint8]
"""(height, width, 3 or 4)."""
Array = npt.NDArray[Any]

MOST_FRAMES = 8
MOST_PANELS = 6
MOST_CLASSES = 32
_SIDE = 512
"""Images are thinned out to about so many pixels a side before anything is computed: a cell has fewer."""
_POINTS = 2000
_FULL_SCALES = (255, 1023, 4095, 16383, 65535)
"""What 8, 10, 12, 14 and 16 bits of a camera can hold."""
_BROKEN = (255, 0, 255)
"""Magenta, for what is NaN or infinite."""
_BETWEEN = 255
"""White, between the frames of a strip."""


@dataclass(frozen=True)
class Lines:
    """Numbers along an axis, drawn as lines."""

    values: npt.NDArray[np.float64]
    """(points, lines)."""
    low: float
    """The lowest of all elements, so that axes are alike."""
    high: float


Panel = Pixels | Lines


@dataclass
class Cell:
    """One element: what is drawn of it, side by side, and what is said below."""

    panels: list[Panel] = field(default_factory=list)
    caption: str = ""


@dataclass(frozen=True)
class Grid:
    """All that a picture shows."""

    cells: list[Cell]
    titles: list[str]
    """Of the panels of each cell; empty texts where there is but one."""
    heading: str
    notes: list[str]
    """What a reader must know to trust it: ranges that are no usual ones, NaN, what was left out."""


def arrange(elements: Elements, class_names: Sequence[str] | None) -> Grid:
    """Decides for each leaf how it is shown, and makes its panels and captions.

    Raises:
        SpecError: No leaf can be drawn or said.
    """
    columns: list[tuple[Array, ...]] = list(zip(*elements.rows, strict=True))
    names, cells = elements.names, [Cell() for _ in elements.rows]
    titles: list[str] = []
    notes: list[tuple[str, str]] = []
    labels = label_column(columns, names, len(class_names or ()))
    spoken: list[tuple[str, list[str]]] = []
    left_out: list[str] = []
    for number, (name, arrays) in enumerate(zip(names, columns, strict=True)):
        if number == labels and class_names is not None:
            spoken.append((name, [label_text(array, class_names) for array in arrays]))
        elif _is_spoken(arrays):
            one_hot = is_one_hot(arrays)
            spoken.append((name, [text_of(array, are_one_hot=one_hot) for array in arrays]))
        elif arrays[0].dtype.kind not in "biufc" or len(titles) == MOST_PANELS:
            left_out.append(name or "the leaf")
        else:
            panels, note = _panels(arrays, are_windows=elements.are_windows)
            titles.append(name)
            notes += [(name, text) for text in note]
            for cell, panel in zip(cells, panels, strict=True):
                cell.panels.append(panel)
    if not titles and not spoken:
        raise SpecError(
            "show() draws images, vectors and strips of images, and says numbers and text, but found "
            f"{elements.heading}. Show a part of it: ds.map(lambda element: ...).show()."
        )
    _caption(cells, spoken)
    if class_names and labels is None and any(are_integers(arrays) for arrays in columns):
        # None is named, not only those without a name: labels from 1 on would all have the name of another.
        notes.append(("", f"labels as numbers: {len(class_names)} class names are for 0 to {len(class_names) - 1}"))
    several = len(titles) > 1
    said = [f"{name}: {text}" if several and name else text for name, text in notes]
    said += [f"not shown: {', '.join(left_out)}"] * bool(left_out)
    return Grid(cells, titles if several else [""] * len(titles), elements.heading, said)


def _is_spoken(arrays: Sequence[Array]) -> bool:
    kind = arrays[0].dtype.kind
    if kind == "O":  # a batch of texts of any length
        return all(isinstance(value, (str, bytes)) for array in arrays for value in array.ravel()[:SPOKEN])
    if kind in "UTSMm":  # text, dates
        return all(array.size <= SPOKEN for array in arrays)
    if kind not in "biufc":
        return False
    are_short = all(array.size <= 1 or (array.ndim == 1 and array.size <= SPOKEN) for array in arrays)
    return are_short or is_one_hot(arrays)


def _caption(cells: list[Cell], spoken: list[tuple[str, list[str]]]) -> None:
    """Values alone, or after their names where there are several with names."""
    for number, cell in enumerate(cells):
        with_names = len(spoken) > 1
        cell.caption = ", ".join(
            f"{name} {texts[number]}" if with_names and name and not name.startswith("[") else texts[number]
            for name, texts in spoken
        )


def _panels(arrays: Sequence[Array], *, are_windows: bool) -> tuple[list[Panel], list[str]]:
    if arrays[0].dtype.kind == "c":
        panels, notes = _panels([np.abs(array) for array in arrays], are_windows=are_windows)
        return panels, ["absolute values of complex numbers", *notes]
    if all(_is_drawn_as_lines(array) for array in arrays):
        return _lines(arrays)
    strips = [_frames(np.atleast_2d(array), is_window=are_windows) for array in arrays]
    notes = []
    longest = max(map(len, strips))
    if longest > MOST_FRAMES:
        strips = [[strip[i] for i in _spread(len(strip), MOST_FRAMES)] for strip in strips]
        notes.append(f"{MOST_FRAMES} of {longest:,} frames, spread evenly")
    strips = [[_thinned(frame, _SIDE // (1 if len(strip) == 1 else 2)) for frame in strip] for strip in strips]
    frames = [frame for strip in strips for frame in strip]
    # Elements of a list may differ in dtype.
    scales: dict[Any, _Classes | _Scale] = {}
    for dtype in dict.fromkeys(frame.dtype for frame in frames):
        alike = [frame for frame in frames if frame.dtype == dtype]
        scales[dtype] = _Classes.of(alike) or _Scale(alike)
        notes += scales[dtype].notes
    return [_side_by_side([scales[frame.dtype].pixels(frame) for frame in strip]) for strip in strips], notes


def _is_drawn_as_lines(array: Array) -> bool:
    """Whether this is numbers along an axis: a vector, or up to four beside each other."""
    if array.ndim == 1:
        return True
    if array.ndim != 2:
        return False
    short, long = sorted(array.shape)
    return bool(short <= SPOKEN and long >= 2 * short)


def _lines(arrays: Sequence[Array]) -> tuple[list[Panel], list[str]]:
    sides = []
    for array in arrays:
        side = np.asarray(array, np.float64).reshape(len(array), -1)
        sides.append(side if side.shape[0] >= side.shape[1] else side.T)
    finite = np.concatenate([side[np.isfinite(side)] for side in sides])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    broken = sum(side.size for side in sides) - finite.size
    notes = [f"lines from {low:.4g} to {high:.4g}"]
    if broken:
        notes.append(f"{broken:,} values are NaN or infinite: gaps")
    return [Lines(side[:: -(-len(side) // _POINTS)], low, high) for side in sides], notes


def _frames(array: Array, *, is_window: bool) -> list[Array]:
    """The images in an array, each (height, width) or (height, width, channels).

    The last axis holds channels if it has 1, 3 or 4; or else the first of the last three. An image of another number of
    channels is a strip of grey ones.
    """
    if array.ndim == 2:
        return [array]
    if array.ndim > 3 or is_window:
        return [frame for part in array for frame in _frames(part, is_window=False)]
    if array.shape[-1] in CHANNELS:
        return [array]
    if array.shape[0] in CHANNELS:
        return [np.moveaxis(array, 0, -1)]
    return list(np.moveaxis(array, -1, 0) if array.shape[-1] < min(array.shape[:2]) else array)


def _spread(length: int, count: int) -> list[int]:
    return [int(i) for i in np.linspace(0, length - 1, min(length, count)).round()]


def _thinned(frame: Array, side: int) -> Array:
    step = max(1, max(frame.shape[:2]) // side)
    return frame[::step, ::step]


class _Classes:
    """From the numbers of classes in a mask to colours, where brightness could not tell them apart."""

    def __init__(self, values: Array) -> None:
        self._values = values
        colours = [colorsys.hsv_to_rgb(number * 0.618 % 1, 0.75, 0.95) for number in range(len(values))]
        self._colours = (np.array(colours) * 255).astype(np.uint8)
        self._colours[values == 0] = 0
        self.notes = [f"{len(values)} classes, {values[0]} to {values[-1]}: a colour each, and black for 0"]

    @classmethod
    def of(cls, frames: Sequence[Array]) -> "_Classes | None":
        """Scale for frames that are masks: integers of one channel, a few of them, mostly equal to their neighbours."""
        if any(frame.dtype.kind not in "iu" or (frame.ndim == 3 and frame.shape[-1] > 1) for frame in frames):
            return None
        if np.mean([np.mean(frame[:, 1:] == frame[:, :-1]) for frame in frames if frame.shape[1] > 1] or 0) < 0.7:
            return None
        values = np.unique(np.concatenate([np.unique(frame) for frame in frames]))
        return cls(values) if 2 < len(values) <= MOST_CLASSES else None

    def pixels(self, frame: Array) -> Pixels:
        """(height, width) or (height, width, 1) to (height, width, 3) uint8."""
        colours: Pixels = self._colours[np.searchsorted(self._values, frame.reshape(frame.shape[:2]))]
        return colours


class _Scale:
    """From values to brightness: one for all images of a leaf."""

    def __init__(self, frames: Sequence[Array]) -> None:
        kind = frames[0].dtype.kind
        finite = [frame[np.isfinite(frame)] for frame in frames]
        values = [(float(part.min()), float(part.max())) for part in finite if part.size]
        low, high = (min(low for low, _ in values), max(high for _, high in values)) if values else (0.0, 0.0)
        self.low, self.high = _range(kind, low, high)
        self.notes = []
        if (self.low, self.high) not in ((0, 1), (0, 255), (-1, 1)):
            self.notes.append(f"black is {self.low:.4g}, white is {self.high:.4g}")
        elif low < self.low or high > self.high:
            self.notes.append(f"clipped to {self.low:.0f} to {self.high:.0f}: values are {low:.4g} to {high:.4g}")
        broken = sum(frame.size for frame in frames) - sum(part.size for part in finite)
        if broken:
            self.notes.append(f"{broken:,} values are NaN or infinite: magenta")
        alphas = [frame[..., 3] for frame in frames if frame.ndim == 3 and frame.shape[-1] == 4]
        # A fourth channel of zeros alone would make the whole invisible, and is no opacity.
        self._has_alpha = any(alpha.any() for alpha in alphas)

    def pixels(self, frame: Array) -> Pixels:
        """(height, width) or (height, width, 1, 3 or 4) to (height, width, 3 or 4) uint8."""
        values = frame.astype(np.float64) if frame.ndim == 3 else frame.astype(np.float64)[..., None]
        finite = np.isfinite(values)
        span = self.high - self.low
        unit = (np.where(finite, values, self.low) - self.low) / (span or 1.0)
        shown = (unit.clip(0, 1) * 255 + 0.5).astype(np.uint8)
        if shown.shape[-1] == 1:
            shown = np.repeat(shown, 3, axis=-1)
        elif shown.shape[-1] == 4 and not self._has_alpha:
            shown = shown[..., :3]
        shown[..., :3][~finite.all(-1)] = _BROKEN
        if shown.shape[-1] == 4:
            shown[..., 3][~finite.all(-1)] = 255
        return shown


def _range(kind: str, low: float, high: float) -> tuple[float, float]:
    """The values of black and white: those of the usual range that the data are in, or else the data's own."""
    if kind == "b":
        return 0.0, 1.0
    if kind in "iu":
        if low >= 0 and 32 <= high <= _FULL_SCALES[-1]:
            return 0.0, float(next(full for full in _FULL_SCALES if high <= full))
        return low, high  # masks of a few classes, differences, depths
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    if low >= -1 and high <= 1:
        return -1.0, 1.0
    if low >= -32 and 64 < high <= 288:  # cubic resizing overshoots
        return 0.0, 255.0
    return low, high


def _side_by_side(frames: list[Pixels]) -> Pixels:
    """Frames of one size as one image, with white between them."""
    height, width = frames[0].shape[:2]
    gap = np.full((height, max(1, width // 24), frames[0].shape[2]), _BETWEEN, np.uint8)
    parts = [part for frame in frames for part in (gap, frame)]
    return np.concatenate(parts[1:], axis=1)
