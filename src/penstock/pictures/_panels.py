"""Elements as panels of a picture: images in any layout, dtype and range as pixels, strips of frames, lines, captions.

One scale of brightness holds for a leaf of all shown elements, so that they can be compared.
"""

import colorsys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SpecError

Pixels = npt.NDArray[np.uint8]
"""(height, width, 3 or 4)."""
Array = npt.NDArray[Any]
Painter = Callable[[Array], Pixels]
"""Converts (height, width) or (height, width, 1, 3 or 4) to (height, width, 3 or 4) uint8."""

CHANNELS: Final = (1, 3, 4)
MOST_FRAMES: Final = 8
MOST_PANELS: Final = 6
MOST_CLASSES: Final = 32
FEW: Final = 4
"""A vector of at most this number of values is written, and a longer one is drawn."""
_SIDE: Final = 512
"""Larger images are thinned out to about this number of pixels a side, because a cell of the picture has fewer."""
_POINTS: Final = 2000
_USUAL_RANGES: Final = ((0, 1), (-1, 1), (0, 255), (0, 1023), (0, 4095), (0, 16383), (0, 65535))
"""Black and white, also of cameras with 10, 12, 14 and 16 bits."""
_BROKEN: Final = (255, 0, 255)
"""Magenta, for NaN and infinity."""
_LABEL_NAMES: Final = ("label", "class", "target", "y", "category")
_LONGEST_TEXT: Final = 60


@dataclass(frozen=True)
class Elements:
    """Elements without their structure."""

    rows: list[list[Array]]
    """The leaves of each element, of any dtype."""
    names: list[str]
    """Of each leaf: its key or field, its place such as `[0]` without one, or nothing for a lone leaf."""
    heading: str
    are_windows: bool = False
    """Whether the first axis of a leaf is known to be time."""


@dataclass(frozen=True)
class Lines:
    """Numbers along an axis, drawn as lines."""

    values: npt.NDArray[np.float64]
    """(points, lines)."""
    low: float
    """The lowest value of all elements, so that all axes are the same."""
    high: float


Panel = Pixels | Lines


@dataclass
class Cell:
    """One element: its panels side by side, and the text below."""

    panels: list[Panel] = field(default_factory=list)
    caption: str = ""


@dataclass(frozen=True)
class PanelGrid:
    """The contents of a picture."""

    cells: list[Cell]
    titles: list[str]
    """A title for each panel of a cell. Empty texts for a single one."""
    heading: str
    notes: list[str]
    """Facts needed to read it: unusual ranges, NaN, leaves that are not shown."""


def arrange(elements: Elements, class_names: Sequence[str] | None) -> PanelGrid:
    """Makes panels and captions of each leaf.

    Raises:
        SpecError: No leaf can be drawn or written.
    """
    columns: list[tuple[Array, ...]] = list(zip(*elements.rows, strict=True))
    cells = [Cell() for _ in elements.rows]
    labels = _label_column(columns, elements.names, len(class_names or ()))
    titles: list[str] = []
    notes: list[tuple[str, str]] = []
    written: list[tuple[str, list[str]]] = []
    left_out: list[str] = []
    for number, (name, arrays) in enumerate(zip(elements.names, columns, strict=True)):
        if number == labels and class_names is not None:
            written.append((name, [_label(array, class_names) for array in arrays]))
        elif _are_one_hot(arrays):
            written.append((name, [str(int(each.argmax())) for each in arrays]))
        elif _are_written(arrays):
            written.append((name, [_text(each) for each in arrays]))
        elif arrays[0].dtype.kind not in "biuf" or len(titles) == MOST_PANELS:
            left_out.append(name or "the leaf")
        else:
            panels, found = _panels(arrays, are_windows=elements.are_windows)
            titles.append(name)
            notes += [(name, text) for text in found]
            for cell, panel in zip(cells, panels, strict=True):
                cell.panels.append(panel)
    if not titles and not written:
        raise SpecError(
            "show() draws images, vectors and strips of images, and writes numbers and text, but found "
            f"{elements.heading}. Show a part of it: ds.map(lambda element: ...).show()."
        )
    for number, cell in enumerate(cells):
        names = [f"{name} " if len(written) > 1 and name and name[0] != "[" else "" for name, _ in written]
        cell.caption = ", ".join(name + texts[number] for name, (_, texts) in zip(names, written, strict=True))
    if class_names and labels is None and any(each.size == 1 and each.dtype.kind in "iu" for (each, *_) in columns):
        # All labels are numbers then. Labels from 1 on, named as far as possible, would have each other's names.
        notes.append(("", f"labels as numbers: {len(class_names)} class names are for 0 to {len(class_names) - 1}"))
    several = len(titles) > 1
    texts = [f"{name}: {text}" if several and name else text for name, text in notes]
    texts += [f"not shown: {', '.join(left_out)}"] * bool(left_out)
    return PanelGrid(cells, titles if several else [""] * len(titles), elements.heading, texts)


# Captions.


def _are_one_hot(arrays: Sequence[Array]) -> bool:
    """Whether all are vectors of zeros with a single one."""
    are_vectors = all(array.ndim == 1 and array.size > 1 and array.dtype.kind in "biuf" for array in arrays)
    return are_vectors and all(array.sum() == 1 and np.isin(array, (0, 1)).all() for array in arrays)


def _are_written(arrays: Sequence[Array]) -> bool:
    kind = arrays[0].dtype.kind
    if kind == "O":  # texts of any length
        return all(isinstance(value, (str, bytes)) for array in arrays for value in array.ravel()[:FEW])
    if kind in "UTSMm":  # text, dates
        return all(array.size <= FEW for array in arrays)
    return kind in "biufc" and all(array.size <= (FEW if array.ndim == 1 else 1) for array in arrays)


def _label_column(columns: Sequence[Sequence[Array]], names: Sequence[str], class_count: int) -> int | None:
    """Returns the leaf whose values are labels with class names. None without one."""

    def is_label(array: Array) -> bool:
        if array.dtype.kind not in "biuf" or not class_count:
            return False
        if array.shape == (class_count,):
            return True  # one-hot, or a probability for each class
        return array.size == 1 and 0 <= array.item() < class_count and float(array.item()).is_integer()

    able = [number for number, arrays in enumerate(columns) if all(map(is_label, arrays))]
    named = [number for number in able if any(word in names[number].lower() for word in _LABEL_NAMES)]
    return next(iter(named or able), None)


def _label(array: Array, class_names: Sequence[str]) -> str:
    if array.size == 1:
        return class_names[int(array.item())]
    share = float(array.max())
    return class_names[int(array.argmax())] + ("" if share == 1 else f" {share:.2f}")


def _text(array: Array) -> str:
    if array.size == 0:
        return f"empty {array.shape}"
    values = [_value(value) for value in array.ravel()[:FEW].tolist()]
    return values[0] if array.size == 1 else f"[{', '.join(values)}]"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{len(value):,} bytes"
    if isinstance(value, (float, complex)):
        return f"{value:.4g}"
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


# Panels.


def _panels(arrays: Sequence[Array], *, are_windows: bool) -> tuple[list[Panel], list[str]]:
    if all(_is_drawn_as_lines(array) for array in arrays):
        return _lines(arrays)
    strips = [_frames(np.atleast_2d(array), is_window=are_windows) for array in arrays]
    notes = []
    if (longest := max(map(len, strips))) > MOST_FRAMES:
        places = [np.linspace(0, len(strip) - 1, min(len(strip), MOST_FRAMES)).round().astype(int) for strip in strips]
        strips = [[strip[place] for place in chosen] for strip, chosen in zip(strips, places, strict=True)]
        notes.append(f"{MOST_FRAMES} of {longest:,} frames, spread evenly")
    strips = [[_thinned(frame) for frame in strip] for strip in strips]
    frames = [frame for strip in strips for frame in strip]
    painters: dict[Any, Painter] = {}
    for dtype in dict.fromkeys(frame.dtype for frame in frames):  # elements of a list may differ in dtype
        alike = [frame for frame in frames if frame.dtype == dtype]
        painters[dtype], found = _in_colours(alike) or _by_brightness(alike)
        notes += found
    return [_side_by_side([painters[frame.dtype](frame) for frame in strip]) for strip in strips], notes


def _thinned(frame: Array) -> Array:
    step = max(1, max(frame.shape[:2]) // _SIDE)
    return frame[::step, ::step]


def _is_drawn_as_lines(array: Array) -> bool:
    """Whether this is a vector, or up to four beside each other."""
    if array.ndim != 2:
        return array.ndim == 1
    short, long = sorted(array.shape)
    return bool(short <= FEW and long >= 2 * short)


def _lines(arrays: Sequence[Array]) -> tuple[list[Panel], list[str]]:
    sides = [np.asarray(array, np.float64).reshape(len(array), -1) for array in arrays]
    sides = [side if side.shape[0] >= side.shape[1] else side.T for side in sides]
    finite = np.concatenate([side[np.isfinite(side)] for side in sides])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    broken = sum(side.size for side in sides) - finite.size
    notes = [f"lines from {low:.4g} to {high:.4g}"]
    notes += [f"{broken:,} values are NaN or infinite: gaps"] * bool(broken)
    return [Lines(side[:: -(-len(side) // _POINTS)], low, high) for side in sides], notes


def _frames(array: Array, *, is_window: bool) -> list[Array]:
    """Returns the images in an array, each (height, width) or (height, width, channels).

    The last axis holds channels if it has 1, 3 or 4, or else the first of the last three. An image with another number
    of channels is a strip of grey ones.
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


def _in_colours(frames: Sequence[Array]) -> tuple[Painter, list[str]] | None:
    """Paints masks: integers of one channel, with few values, mostly equal to their neighbours. None for others.

    Their brightness would not tell classes apart.
    """
    if any(frame.dtype.kind not in "iu" or (frame.ndim == 3 and frame.shape[-1] > 1) for frame in frames):
        return None
    if np.mean([np.mean(frame[:, 1:] == frame[:, :-1]) for frame in frames if frame.shape[1] > 1] or 0) < 0.7:
        return None
    values = np.unique(np.concatenate([np.unique(frame) for frame in frames]))
    if not 2 < len(values) <= MOST_CLASSES:
        return None
    hues = [colorsys.hsv_to_rgb(number * 0.618 % 1, 0.75, 0.95) for number in range(len(values))]
    colours = (np.array(hues) * 255).astype(np.uint8)
    colours[values == 0] = 0

    def paint(frame: Array) -> Pixels:
        return colours[np.searchsorted(values, frame.reshape(frame.shape[:2]))]

    return paint, [f"{len(values)} classes, {values[0]} to {values[-1]}: a colour each, and black for 0"]


def _by_brightness(frames: Sequence[Array]) -> tuple[Painter, list[str]]:
    """Paints all images of a leaf on one scale."""
    finite = np.concatenate([frame[np.isfinite(frame)] for frame in frames])
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    low, high = _range(frames[0].dtype.kind, least, most)
    notes = [] if (low, high) in _USUAL_RANGES[:3] else [f"black is {low:.4g}, white is {high:.4g}"]
    if broken := sum(frame.size for frame in frames) - finite.size:
        notes.append(f"{broken:,} values are NaN or infinite: magenta")
    # A fourth channel of zeros is no opacity. It would make everything invisible.
    has_alpha = any(frame.ndim == 3 and frame.shape[-1] == 4 and frame[..., 3].any() for frame in frames)

    def paint(frame: Array) -> Pixels:
        values = frame.astype(np.float64).reshape(*frame.shape[:2], -1)
        is_finite = np.isfinite(values)
        unit = (np.where(is_finite, values, low) - low) / (high - low or 1.0)
        shown = (unit.clip(0, 1) * 255 + 0.5).astype(np.uint8)
        if shown.shape[-1] == 1:
            shown = np.repeat(shown, 3, axis=-1)
        elif shown.shape[-1] == 4 and not has_alpha:
            shown = shown[..., :3]
        shown[~is_finite.all(-1)] = (*_BROKEN, 255)[: shown.shape[-1]]
        return shown

    return paint, notes


def _range(kind: str, low: float, high: float) -> tuple[float, float]:
    """Returns the values of black and white: of a usual range that holds the data, or else the data's own.

    Integers fill at least an eighth of it: masks of a few classes, and depths, do not.
    """
    for black, white in _USUAL_RANGES:
        if black <= low and high <= white and (kind in "bf" or 8 * high >= white):
            return black, white
    return low, high


def _side_by_side(frames: list[Pixels]) -> Pixels:
    """Joins frames of one size to one image, with white between them."""
    height, width = frames[0].shape[:2]
    gap = np.full((height, max(1, width // 24), frames[0].shape[2]), 255, np.uint8)
    return np.concatenate([part for frame in frames for part in (gap, frame)][1:], axis=1)
