"""`penstock.show`: a labelled grid of elements."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock._dataset import Dataset, integer
from penstock._show._elements import look
from penstock._show._figure import Picture, draw
from penstock._show._panels import arrange
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of


def show(
    data: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    count: int = 16,
    class_names: Iterable[str] | None = None,
) -> Picture:
    """Draws a labelled grid of the first elements of a dataset, or of a batch.

    In a notebook the result of the last line is shown; elsewhere give a path, for a script has no window.

    Images may be (height, width), (height, width, channels) or (channels, height, width), of 1, 3 or 4 channels, and of
    any dtype and range: unusual ranges are stretched, and the picture says so, as it does for NaN. Several images of an
    element stand side by side; a window or video is a strip. Integers that look like a mask get a colour for each
    class. A vector is drawn as a line, or named if it is one-hot; numbers and text are written below.

    Reads the elements that it shows and no others, in epoch 0 and without workers; of a dataset of batches, one batch.
    Memory: these, and the picture.

    Args:
        data: A dataset; a batch or an element, which are told apart by their shapes; or a list of elements.
        path: The PNG to write, too.
        count: The most elements to show.
        class_names: The names of integer and one-hot labels, from 0 on; those of the dataset, if it has any. Where a
            label has no name, as 7 of 3 classes, all are shown as numbers, and a note says so.

    Returns:
        What a notebook shows; `save(path)` writes it, and `figure` is Matplotlib's.

    Raises:
        ImportError: Matplotlib is not installed.
        ArgumentError: There is nothing in it, `path` is no PNG, or `count` is below 1.
        SpecError: Nothing in an element can be drawn or written.
        ElementError: A function of the dataset raised.
    """
    integer("show", "count", count, least=1)
    if path is not None and Path(path).suffix.lower() != ".png":
        raise ArgumentError(f"show({os.fspath(path)!r}): the picture is a PNG, so its name must end in .png.")
    if class_names is None and isinstance(data, Dataset):
        class_names = getattr(data, "class_names", None)
    if isinstance(class_names, str) or not isinstance(class_names, (Iterable, type(None))):
        raise ArgumentTypeError(f"show(class_names=...) needs a list of names, got {type_of(class_names)}.")
    picture = draw(arrange(look(data, count), None if class_names is None else list(map(str, class_names))))
    if path is not None:
        picture.save(path)
    return picture
