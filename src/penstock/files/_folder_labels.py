"""Labels of files, such as images: checks and conversions."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._positions import as_labels, as_values, require_order

LabelMode = Literal["int", "categorical", "binary"]


def labels_by_path(verb: str, labels: Mapping[Any, Any], files: Iterable[str], root: str) -> list[Any]:
    """Returns the label of each file, which is named by its whole path, or by its path from `root` on.

    Raises:
        ArgumentTypeError: A key is no path.
        ArgumentError: A file has no label.
    """
    if strange := [key for key in labels if not isinstance(key, (str, os.PathLike))]:
        raise ArgumentTypeError(f"{verb}(labels=...) is a dict with the key {strange[0]!r:.80}, and keys are paths.")
    of = {os.fspath(key): label for key, label in labels.items()}
    start, base = f"{root.rstrip('/')}/", os.path.join(os.path.abspath(root), "")
    values, missing = [], []
    for path in files:
        inner = path.removeprefix(start)
        key = next((each for each in (path, inner, base + inner) if each in of), None)
        if key is None:
            missing.append(path)
        else:
            values.append(of[key])
    if missing:
        raise ArgumentError(
            f"{verb}(labels=...) has no label for {len(missing):,} of {len(values) + len(missing):,} files in {root}, "
            f"such as {missing[0]}. Its keys are paths as in file_paths, or from the directory on."
        )
    return values


def given_labels(verb: str, labels: Any, file_count: int, root: str) -> npt.NDArray[Any]:
    """Returns a number for each file, int32 or float32.

    Raises:
        ArgumentError: The labels are no numbers, or their number differs from that of the files.
    """
    values = np.asarray(as_values(labels, f"{verb}(labels=)"))
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise ArgumentError(
            f"{verb}(labels=...) takes a number for each file, got {type_of(labels)} of shape {values.shape}, "
            f"{values.dtype}. Others go with from_image_files(paths, labels)."
        )
    if len(values) != file_count:
        raise ArgumentError(f"{verb}() got {len(values):,} labels, but there are {file_count:,} files in {root}.")
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    limits = np.iinfo(np.int32)
    if not limits.min <= values.min(initial=0) <= values.max(initial=0) <= limits.max:
        raise ArgumentError(
            f"{verb}(labels=...) are kept as int32, but are up to {values.max()}. Number them from 0: "
            "np.unique(labels, return_inverse=True)[1]."
        )
    return values.astype(np.int32)


def encoded(verb: str, values: npt.NDArray[Any], names: tuple[str, ...], label_mode: LabelMode) -> npt.NDArray[Any]:
    """Returns the labels in the form of the mode. `"categorical"` labels become rows when they are read."""
    if label_mode == "int":
        return values
    if label_mode == "binary" and len(names) != 2:
        raise ArgumentError(
            f"{verb}(label_mode='binary') needs two classes, but there are {len(names)}: {list(names)}."
        )
    if not np.isin(values, np.arange(len(names))).all():
        raise ArgumentError(
            f"{verb}(label_mode={label_mode!r}): {len(names)} classes are labelled 0 to {len(names) - 1}, but labels "
            f"are {', '.join(names[:8])}{', ...' * (len(names) > 8)}. Number them: np.unique(labels, "
            "return_inverse=True)[1]."
        )
    return values.astype(np.int32) if label_mode == "categorical" else values.astype(np.float32)[:, None]


def named_labels(
    verb: str, labels: Any, file_count: int, class_names: Iterable[str] | None
) -> tuple[npt.NDArray[Any], tuple[str, ...] | None]:
    """Returns a label for each file, shape `(n, ...)`; with names, their places, int32.

    Raises:
        ArgumentError: The numbers of labels and files differ, or a label is no class.
        ArgumentTypeError: Labels are Python objects, or names are no texts.
    """
    try:
        values = as_labels(labels, f"{verb}(labels=)")
    except ValueError as error:  # a list of arrays of several lengths
        raise ArgumentTypeError(
            f"{verb}(labels=...) make no array ({error}). Where an image has some or none, as boxes: "
            "penstock.zip((images, penstock.from_source(labels, element_spec=penstock.ArraySpec((None, 4), dtype))))."
        ) from None
    if values.dtype.hasobject:
        raise ArgumentTypeError(
            f"{verb}(labels=...) are Python objects. Give numbers or text: np.asarray(labels, 'U')."
        )
    if values.shape[:1] != (file_count,):
        found = f"{len(values):,} labels" if values.ndim else "one label"
        raise ArgumentError(f"{verb}() got {file_count:,} files and {found}. Each file needs its own.")
    if class_names is None:
        return values, None
    require_order(f"{verb}(class_names=)", class_names, "Give a list, in the order of the classes.")
    names = tuple(class_names)
    if isinstance(class_names, str) or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"{verb}(class_names=...) takes texts, as ['cat', 'dog'].")
    return _places(verb, values, names), names


def _places(verb: str, labels: npt.NDArray[Any], names: tuple[str, ...]) -> npt.NDArray[np.int32]:
    """Returns the place of each label among the names."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(f"{verb}(class_names=...) has {twice!r} twice.")
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise ArgumentError(
            f"{verb}(class_names=...) goes with one text or integer a file, but labels are {labels.dtype} of shape "
            f"{labels.shape}."
        )
    known = names if labels.dtype.kind == "U" else range(len(names))
    places: dict[Any, int] = {label: place for place, label in enumerate(known)}
    found, where = np.unique(labels, return_inverse=True)
    if strangers := [label for label in found.tolist() if label not in places]:
        raise ArgumentError(
            f"{verb}(): the label {strangers[0]!r} is none of the {len(names):,} class_names. Add it there, or leave "
            "out its files."
        )
    return np.array([places[label] for label in found.tolist()], np.int32)[where]
