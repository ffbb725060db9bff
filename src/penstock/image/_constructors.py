"""Datasets of image files."""

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import check_choice, checked_size
from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, home_cure, no_path, type_of
from penstock.base._files import is_folder
from penstock.base._positions import require_order
from penstock.dataset import Dataset
from penstock.files import _listing, _remote, _wholefiles
from penstock.files._diskcache import DiskCache
from penstock.files._folder_labels import LabelMode, encoded, given_labels, labels_by_path, named_labels
from penstock.files._store import StorageOptions
from penstock.files._wholefiles import Labels, Objects
from penstock.plan._source_node import SourceNode
from penstock.verbs._asked import integer

if TYPE_CHECKING:
    from penstock.image._decode import ColorMode, DataFormat, Decoding, Speed
    from penstock.image._resize import Interpolation

Path = str | os.PathLike[str]
Subset = Literal["training", "validation", "both"]

_log = logging.getLogger("penstock")

EXTENSIONS: Final = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
"""The endings that Keras lists."""


# `*args` and `**options` are the parameters of the second signature.
@overload
def image_dataset_from_directory(
    directory: Path, *args: Any, subset: Literal["both"], **options: Any
) -> tuple[Dataset, Dataset]: ...
@overload
def image_dataset_from_directory(
    directory: Path,
    labels: "Literal['inferred'] | Mapping[Path, float] | Sequence[float] | npt.ArrayLike | None" = "inferred",
    label_mode: LabelMode | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: "ColorMode" = "rgb",
    batch_size: int | None = 32,
    image_size: int | tuple[int, int] = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: Literal["training", "validation"] | None = None,
    interpolation: "Interpolation" = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: "DataFormat | None" = None,
    verbose: bool = True,
    *,
    decode: "Speed" = "exact",
    extensions: Sequence[str] = EXTENSIONS,
    dtype: Literal["float32", "uint8"] = "float32",
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset: ...
@overload
def image_dataset_from_directory(directory: Path, *args: Any, **options: Any) -> Any: ...
def image_dataset_from_directory(  # type: ignore[misc]  # it does not take all of `*args`
    directory: Path,
    labels: "Literal['inferred'] | Mapping[Path, float] | Sequence[float] | npt.ArrayLike | None" = "inferred",
    label_mode: LabelMode | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: "ColorMode" = "rgb",
    batch_size: int | None = 32,
    image_size: int | tuple[int, int] = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: Subset | None = None,
    interpolation: "Interpolation" = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: "DataFormat | None" = None,
    verbose: bool = True,
    *,
    decode: "Speed" = "exact",
    extensions: Sequence[str] = EXTENSIONS,
    dtype: Literal["float32", "uint8"] = "float32",
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Any:
    """Makes a dataset of the images in a directory, whose folders are the classes: Keras's function of this name.

    Arguments have the meaning of Keras 3. The same seed gives the same files for training and for validation, in the
    same order (`ds.file_paths`), with the same labels. Pixels agree with Keras's within half a level on average.

    An element is a batch `(images, labels)`, with images float32 `(batch_size, height, width, channels)` from 0 to 255.
    With `batch_size=None` it is one image and its label. Labels are int32 `()`; float32 `(classes,)`, 1 at the class,
    for `"categorical"`; float32 `(1,)` for `"binary"`. Without labels an element is the images.

    Lists the directory, and opens no file. `ds[k]` reads the files of batch `k`. Reading a file without an image is an
    error that names the file.

    Random access: yes. Order: with `shuffle`, by `ds.shuffle(seed)`, new in each epoch; else by class, folder and name.
    Memory: 16 bytes a file and its name, shared by worker processes; for each worker a decoded image.

    Args:
        directory: The folder with a folder for each class, or its URL (`s3://`, `gs://`), of which all is listed once.
        labels: `"inferred"` from the folders; None; a number for each file by its path, `{"a.jpg": 0}`, as in
            `file_paths` or from the directory on; or a list of numbers, in the order of the sorted paths. These are
            sorted by folder, then by name: `file_paths` with `shuffle=False`, and not those of a shuffled dataset.
        label_mode: `"int"`, `"categorical"`, `"binary"`, or None for no labels. Without labels all files in the
            directory are listed, also those beside the folders.
        class_names: The folders to use, in the order of their classes; otherwise all, sorted.
        color_mode: `"grayscale"`, `"rgb"` or `"rgba"`: 1, 3 or 4 channels. Not Keras's: `"index"`, the class numbers of
            masks; see `from_image_files`.
        batch_size: Images in a batch, or None.
        image_size: `(height, width)` of every image, or one number for both.
        shuffle: Whether files are shuffled, before the split and again in each epoch.
        seed: From 0 up to 2**32 - 1. None is 0: the same order in every run. Keras draws a seed.
        validation_split: The part of the files for validation: the last `int(validation_split * n)`.
        subset: `"training"`, `"validation"`, or `"both"` for a tuple of the two.
        interpolation: The method of `tf.image.resize`, without antialiasing.
        follow_links: Whether to enter folders behind symbolic links. The folder of a class may always be a link.
        crop_to_aspect_ratio: Crops to the proportions of `image_size` before resizing, instead of stretching.
        pad_to_aspect_ratio: Pads with black instead of stretching.
        data_format: `"channels_last"` or `"channels_first"`; None for the setting of an imported Keras, or the former.
        verbose: Whether to print the number of files.
        decode: `"fast"` decodes a JPEG at a half, a quarter or an eighth of its size, if that is large enough.
        extensions: The endings of file names, in any case: `(".webp", ".tif")` for files that Keras does not list.
        dtype: `"uint8"` rounds, and takes a quarter of the memory.
        storage_options: See `penstock.from_tar`.
        cache: Keeps files behind URLs on a local disk; see `penstock.DiskCache`.

    Returns:
        A `Dataset`; for `subset="both"` a tuple of those for training and validation. The latter is not shuffled.

    Raises:
        ArgumentError: An option has no such value, options exclude each other, the numbers of labels and files differ,
            or a part would be empty.
        SourceError: The directory, or a folder in it, cannot be read. While reading: a file is missing, or holds no
            image that can be decoded.
        ImportError: OpenCV is missing (extra `image`).

    Example:
        >>> import pathlib
        >>> for name in ("cats/a.jpg", "cats/b.jpg", "dogs/a.jpg"):
        ...     path = pathlib.Path("pets", name)
        ...     path.parent.mkdir(parents=True, exist_ok=True)
        ...     _ = path.write_bytes(b"")
        >>> ds = penstock.image_dataset_from_directory("pets", batch_size=2, image_size=(64, 48))
        Found 3 files belonging to 2 classes.
        >>> ds.element_spec
        (ArraySpec((None, 64, 48, 3), float32), ArraySpec((None,), int32))
    """
    verb = "image_dataset_from_directory"
    if not isinstance(directory, (str, os.PathLike)):
        raise ArgumentTypeError(f"{verb}() needs the path of a directory, got {no_path(directory)}")
    root = os.fspath(directory)
    options, cache = StorageOptions.of(verb, storage_options), DiskCache.of(verb, cache)
    paths = _listing.below(root, options) if _remote.is_remote(root) else None
    if label_mode is not None:
        check_choice(f"{verb}(label_mode=)", label_mode, LabelMode)
    if subset is not None:
        check_choice(f"{verb}(subset=)", subset, Subset)
    if image_size is None:
        raise ArgumentError(
            f"{verb}() needs an image_size: all images of a batch have one. Images as large as their files: "
            "from_image_files(paths, labels)."
        )
    if batch_size is not None:
        batch_size = integer(verb, "batch_size", batch_size, least=1)
    fit = _fit(verb, crop_to_aspect_ratio, pad_to_aspect_ratio)
    decoding = _decoding(verb, image_size, color_mode, interpolation, fit, data_format, decode, dtype)
    _require_split(verb, validation_split, subset, shuffle, seed)
    key = integer(verb, "seed", 0 if seed is None else seed)

    is_inferred = isinstance(labels, str)
    if is_inferred and labels != "inferred":
        raise ArgumentError(f"{verb}(labels={labels!r}): 'inferred', None, or a number for each file.")
    if labels is None or label_mode is None:
        labels, label_mode, is_inferred = None, None, False
    if class_names is not None and not is_inferred:
        raise ArgumentError(f"{verb}(class_names=...) goes with labels='inferred' alone: it names the folders.")
    folders = _class_folders(verb, root, class_names, None if paths is None else list(paths)) if is_inferred else [""]
    suffixes = _suffixes(verb, extensions)
    if paths is None:
        files, counts = _listing.listed(root, folders, suffixes, bool(follow_links))
    else:
        files, counts = _listing.listed_remotely(root, folders, suffixes, paths)
    names: tuple[str, ...] | None = None
    values: npt.NDArray[Any] | None = None
    if is_inferred:
        names, values = tuple(folders), np.repeat(np.arange(len(folders), dtype=np.int32), counts)
    elif labels is not None:
        labels = labels_by_path(verb, labels, files, root) if isinstance(labels, Mapping) else labels
        values = given_labels(verb, labels, len(files), root)
        names = tuple(
            map(str, np.unique(np.asarray(labels)).tolist())
        )  # not of `values`, because 0.1 is another number in float32
    if verbose:
        _tell(f"Found {len(files)} files{'' if names is None else f' belonging to {len(names)} classes'}.")
    if not len(files):
        beside = " Its folders are the classes; for files beside them pass labels=None." * is_inferred
        raise ArgumentError(f"{verb}(): no file in {root} ends in {', '.join(extensions)}.{beside}")

    from penstock.image._files import ImageSource

    start = f"{root.rstrip('/')}/"
    objects = None if paths is None else Objects.of(cache, [paths[url.removeprefix(start)] for url in files])
    kept = None
    if values is not None and names is not None and label_mode is not None:
        kept = Labels(encoded(verb, values, names, label_mode), len(names) * (label_mode == "categorical"))
    order = np.arange(len(files), dtype=np.int64)
    if shuffle:
        # Keras's order, which is this generator's.
        np.random.RandomState(key).shuffle(order)
    training, validation = _parts(verb, order, validation_split)
    if subset in ("training", "validation"):
        place = os.path.realpath(root), tuple(folders), len(files)
        words = f"shuffle=True, seed={key}" if shuffle else "shuffle=False"
        _caution_apart(verb, place, subset == "training", (words, float(validation_split or 0)))

    def dataset(part: npt.NDArray[np.int64], is_shuffled: bool) -> Dataset:
        mine = None if kept is None else kept.take(part)
        states = None if objects is None else objects.take(part)
        source = ImageSource(files.take(part), decoding, mine, names, options, states)
        made = Dataset(SourceNode(source, verb))
        made = made.shuffle(seed=key) if is_shuffled else made
        return made if batch_size is None else made.batch(batch_size)

    for name, part in (("training", training), ("validation", validation)):
        if verbose and subset in (name, "both"):
            _tell(f"Using {len(part)} files for {name}.")
    if subset == "both":
        return dataset(training, bool(shuffle)), dataset(validation, is_shuffled=False)
    return dataset(validation if subset == "validation" else training, bool(shuffle))


def from_image_files(
    paths: Path | Iterable[Path],
    labels: "npt.ArrayLike | None" = None,
    *,
    class_names: Iterable[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    color_mode: "ColorMode" = "rgb",
    interpolation: "Interpolation" = "bilinear",
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: "DataFormat" = "channels_last",
    decode: "Speed" = "exact",
    dtype: Literal["float32", "uint8"] = "uint8",
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of image files: JPEG, PNG, GIF, BMP, WebP, TIFF.

    An element is an image, or `(image, label)`. An image is uint8 `(height, width, channels)`. Without `image_size` it
    has the size of its file. Then the spec is `(None, None, channels)`, and a batch needs `map` or `padded_batch`
    before it. Opens no file before the first read.

    Random access: yes. Order: that of the given paths; the files of a pattern by name. Memory: 16 bytes a file and its
    name, and the labels, shared by worker processes; for each worker a decoded image.

    Args:
        paths: A path, a pattern (`"photos/*.jpg"`), or any iterable of paths. URLs (`s3://`, `gs://`, `https://`) are
            paths too.
        labels: A label for each: numbers or text, shape `(n,)` or `(n, ...)`.
        class_names: The names of the classes, for `ds.class_names`. A text label becomes its place there, int32, for a
            loss. An integer label is such a place.
        image_size: As for `image_dataset_from_directory`, like the other options.
        color_mode: `"grayscale"`, `"rgb"` or `"rgba"`: 1, 3 or 4 channels; or `"index"`: the numbers that a PNG stores,
            a palette's indices and not its colours, for masks of classes, with `interpolation="nearest"`.
        interpolation: The method of resizing.
        crop_to_aspect_ratio: Crops instead of stretching.
        pad_to_aspect_ratio: Pads with black instead of stretching.
        data_format: The place of the axis of channels.
        decode: `"fast"` decodes large JPEGs smaller; needs `image_size`.
        dtype: `"uint8"`, or `"float32"` from 0 to 255, which is not rounded; for an exception see
            `penstock.image.Resizing`.
        storage_options: See `penstock.from_tar`.
        cache: Keeps files behind URLs on a local disk; see `penstock.DiskCache`.

    Raises:
        ArgumentError: There are no paths, the numbers of labels and paths differ, a label is no class, or an option has
            no such value.
        ArgumentTypeError: An item is no path, or labels are Python objects.
        SourceError: A pattern fits no file. While reading: a file is missing, or holds no image that can be decoded.
        ImportError: OpenCV is missing (extra `image`), or `obstore` or `fsspec` for a URL (extra `remote`).

    Example:
        >>> ds = penstock.from_image_files(["cat.jpg", "dog.png"], labels=["cat", "dog"], image_size=(32, 32))
        >>> ds.element_spec
        (ArraySpec((32, 32, 3), uint8), ArraySpec((), <U3))
        >>> names = ["cat", "dog"]
        >>> ds = penstock.from_image_files(["1.jpg", "2.jpg"], ["dog", "cat"], class_names=names, image_size=(32, 32))
        >>> ds.element_spec[1]
        ArraySpec((), int32)
    """
    verb = "from_image_files"
    fit = _fit(verb, crop_to_aspect_ratio, pad_to_aspect_ratio)
    decoding = _decoding(verb, image_size, color_mode, interpolation, fit, data_format, decode, dtype)
    cache = DiskCache.of(verb, cache)
    files, objects, options = _wholefiles.found(verb, paths, storage_options, cache)

    from penstock.image._files import ImageSource

    kept, names = None, None
    if labels is not None:
        values, names = named_labels(verb, labels, len(files), class_names)
        kept = Labels(values)
    elif class_names is not None:
        raise ArgumentError(f"{verb}(class_names=...) names labels, and there are none: labels=[...].")
    return Dataset(SourceNode(ImageSource(files, decoding, kept, names, options, objects), verb))


def _fit(verb: str, crops: Any, pads: Any) -> Literal["crop", "pad", "stretch"]:
    if crops and pads:
        raise ArgumentError(f"{verb}(): crop_to_aspect_ratio and pad_to_aspect_ratio do not go together. Choose one.")
    return "crop" if crops else "pad" if pads else "stretch"


def _decoding(
    verb: str, size: Any, color_mode: Any, interpolation: Any, fit: Any, data_format: Any, decode: Any, dtype: Any
) -> "Decoding":
    from penstock.image._decode import Decoding

    if isinstance(interpolation, str):
        interpolation = interpolation.lower()
    if data_format is None:
        data_format = "channels_last"
        with suppress(KeyError, AttributeError):
            data_format = sys.modules["keras"].config.image_data_format()
    if size is None and (fit != "stretch" or decode == "fast"):
        raise ArgumentError(f"{verb}() needs an image_size to crop, pad or decode for.")
    if size is not None:
        sides = np.asarray(size).tolist()
        size = checked_size([sides, sides] if isinstance(sides, int) else sides, f"{verb}(image_size=)")
    return Decoding(
        size,
        color_mode=color_mode,
        interpolation=interpolation,
        fit=fit,
        decode=decode,
        dtype=np.dtype(dtype),
        data_format=data_format,
    )


def _require_split(verb: str, part: Any, subset: object, shuffle: bool, seed: object) -> None:
    if isinstance(part, bool) or not isinstance(part, (float, int, np.floating, np.integer, type(None))):
        raise ArgumentTypeError(f"{verb}(validation_split=...) takes a number, got {type_of(part)}.")
    if part and not 0 < part < 1:
        raise ArgumentError(f"{verb}(validation_split={part}): it is above 0 and below 1.")
    if bool(part) != bool(subset):
        raise ArgumentError(
            f"{verb}(validation_split={part}, subset={subset!r}): the one says how many files are for validation, the "
            "other which part you want; give both or none."
        )
    if part and shuffle and seed is None:
        raise ArgumentError(
            f"{verb}(validation_split={part}, shuffle=True) needs a seed, the same in each call, or the two parts "
            "could have files in common."
        )


def _class_folders(verb: str, root: str, class_names: Any, paths: Sequence[str] | None) -> list[str]:
    try:
        if paths is None:
            there = sorted(name for name in os.listdir(root) if is_folder(os.path.join(root, name)))
        else:
            there = sorted({path.partition("/")[0] for path in paths if "/" in path})
    except OSError as error:
        raise SourceError(f"The directory {root} cannot be listed: {error.strerror}.{home_cure(root)}") from error
    there = [name for name in there if not name.startswith(".")]
    if class_names is None:
        return there
    require_order(f"{verb}(class_names=)", class_names, "Give a list, in the order of the classes.")
    wanted = list(class_names)
    if isinstance(class_names, str) or not set(wanted) <= set(there) or len(set(wanted)) < len(wanted):
        raise ArgumentError(
            f"{verb}(class_names={class_names!r}): each once, and of the folders in {root}, which are {there}."
        )
    return wanted


def _suffixes(verb: str, extensions: Any) -> tuple[str, ...]:
    if isinstance(extensions, str) or not all(isinstance(each, str) and each[:1] == "." for each in extensions):
        raise ArgumentError(f"{verb}(extensions={extensions!r}): several, each with its dot: ('.jpg', '.webp').")
    return tuple(each.lower() for each in extensions)


def _parts(
    verb: str, order: npt.NDArray[np.int64], validation_split: float | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if not validation_split:
        return order, order[:0]
    count = int(validation_split * len(order))
    if not count:
        raise ArgumentError(
            f"{verb}(validation_split={validation_split}): that part of {len(order)} files is no whole file. Take a "
            "larger part, or leave validation_split out."
        )
    return order[:-count], order[-count:]


_unpaired: Final[dict[tuple[Any, ...], tuple[set[tuple[str, float]], set[tuple[str, float]]]]] = {}
"""For each list of files: how parts for validation, and for training, were cut off, while the other was not. It decides
about a line in the log, and about nothing else."""


def _caution_apart(verb: str, place: tuple[Any, ...], is_training: bool, cut: tuple[str, float]) -> None:
    """Cautions about the second part of files in another order than the first: they have files in common."""
    parts = _unpaired.setdefault(place, (set(), set()))
    others = parts[not is_training]
    sign = 1 if is_training else -1
    fits = next((each for each in others if each[0] == cut[0] and sign * each[1] <= sign * cut[1]), None)
    if fits is not None:
        others.remove(fits)
        return
    if not others:
        parts[is_training].add(cut)
        return
    names = "validation", "training"
    _log.warning(
        "%s(subset=%r, %s, validation_split=%g) and the call before, with subset=%r, %s, have files of %s in "
        "common. If you train on one and validate on the other, take both parts from one call, train, val = "
        "image_dataset_from_directory(..., subset='both'), whose second part is not shuffled; or give both calls "
        "the same shuffle, seed and validation_split.",
        verb,
        names[is_training],
        *cut,
        names[not is_training],
        ", or ".join(f"{words}, validation_split={part:g}" for words, part in sorted(others)),
        place[0],
    )
    others.clear()  # a later pair of calls is looked at for itself


def _tell(text: str) -> None:
    print(text)  # noqa: T201  # as Keras does, and for `verbose=True` alone
