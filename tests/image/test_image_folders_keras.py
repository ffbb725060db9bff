"""`image_dataset_from_directory` and `timeseries_dataset_from_array` beside those of the installed Keras.

Every pair of values of two options comes in some case. `PENSTOCK_FULL_PARITY=1` runs the cross product of those that
decide the pixels, 432 cases, and of those that decide files and labels, 72.
"""

import inspect
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.image.pictures import write

pytestmark = pytest.mark.framework

PIXELS: dict[str, tuple[Any, ...]] = {
    "interpolation": ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic"),
    "color_mode": ("rgb", "grayscale", "rgba"),
    "image_size": ((24, 24), (40, 20), (75, 90)),
    "fit": ("stretch", "crop", "pad"),
    "data_format": ("channels_last", "channels_first"),
}
LABELS: dict[str, tuple[Any, ...]] = {
    "label_mode": ("int", "categorical", "binary", None),
    "labels": ("inferred", "given", None),
    "split": (None, "training", "validation"),
    "batch_size": (4, None),
}
# What TensorFlow reads in each colour mode: the others raise there.
FORMATS = {"rgb": ("jpg", "png", "bmp", "gif"), "grayscale": ("jpg", "png"), "rgba": ("png",)}
# What Keras refuses with `crop_to_aspect_ratio`, though it takes them without.
NOT_WITH_CROP = {"gaussian", "mitchellcubic"}
LEVELS = 0.5
"""How far the pixels of a batch may be apart on average, of 255. 0.27 is the most in the cross product."""


def pairwise(options: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Few cases in which every pair of values of two options comes, found greedily."""
    names = list(options)
    wanted = {
        frozenset({(one, x), (other, y)})
        for one, other in itertools.combinations(names, 2)
        for x in range(len(options[one]))
        for y in range(len(options[other]))
    }
    while wanted:
        case = dict(sorted(min(wanted, key=sorted)))
        for name in names:
            if name not in case:
                gains = [
                    sum(frozenset({(name, x), each}) in wanted for each in case.items())
                    for x in range(len(options[name]))
                ]
                case[name] = int(np.argmax(gains))
        wanted -= {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}
        yield {name: options[name][case[name]] for name in names}


def cases() -> list[dict[str, Any]]:
    if not os.environ.get("PENSTOCK_FULL_PARITY"):
        return list(pairwise(PIXELS | LABELS))
    return [
        dict(zip(options, values, strict=True))
        for options in (PIXELS, LABELS)
        for values in itertools.product(*options.values())
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each colour mode, of two classes and some more files; pictures are smooth, with edges."""
    root = tmp_path_factory.mktemp("parity")
    for color_mode, formats in FORMATS.items():
        for number in range(6):
            kind = formats[number % len(formats)]
            height, width = (45 + 7 * number, 66 - 5 * number)
            y, x = np.mgrid[:height, :width]
            waves = np.stack([np.sin(x / 7 + number), np.cos(y / 9), np.sin((x + y) / 11)], -1)
            pixels = (127 + 90 * waves + 30 * (x > y)[..., None]).clip(0, 255).astype(np.uint8)
            if color_mode == "rgba":
                pixels = np.concatenate([pixels, (x * 3 % 256)[..., None].astype(np.uint8)], -1)
            folder = ("cats", "dogs", "dogs/old")[number % 3]
            write(root / color_mode / folder / f"{number}.{kind}", pixels)
    return root


@pytest.fixture(autouse=True)
def each_test_is_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the parts that other tests took of these folders: a part that does not go with them would be refused."""
    monkeypatch.setattr("penstock.image._constructors._unpaired", {})


def both(root: Path, **options: Any) -> tuple[Any, Any, Any]:
    """The dataset of Keras, ours, and the labels given to Keras, which shuffles them in place."""
    import keras

    given = [3, 1, 4, 1, 5, 9] if options.get("labels") == "given" else options.get("labels", "inferred")
    if given == [3, 1, 4, 1, 5, 9] and options.get("label_mode") != "int":
        given = [0, 1, 1, 0, 1, 0]
    theirs = list(given) if isinstance(given, list) else given
    options = {**options, "verbose": False}
    dataset = keras.utils.image_dataset_from_directory(str(root), **{**options, "labels": theirs})
    return dataset, ps.image_dataset_from_directory(str(root), **{**options, "labels": given}), theirs


def source_of(dataset: Any) -> Any:
    node = dataset._node
    while node.inputs:
        (node,) = node.inputs
    return node.data


def assert_alike(theirs: Any, ours: Any) -> None:
    expected, found = np.asarray(theirs), np.asarray(ours)
    assert found.shape == expected.shape
    assert np.abs(found.astype(np.float64) - expected.astype(np.float64)).mean() < LEVELS


@pytest.mark.parametrize("case", cases(), ids=lambda case: "-".join(str(value) for value in case.values()))
def test_batches_are_those_of_keras(folders: Path, case: dict[str, Any]) -> None:
    options = {name: value for name, value in case.items() if name not in ("fit", "split")}
    options.setdefault("image_size", (30, 30))
    if (fit := case.get("fit", "stretch")) != "stretch":
        options[f"{fit}_to_aspect_ratio"] = True
    if split := case.get("split"):
        options |= {"subset": split, "validation_split": 0.4}
    if fit == "crop" and case["interpolation"] in NOT_WITH_CROP:
        pytest.skip("Keras raises; here it works.")
    theirs, ours, _ = both(folders / case.get("color_mode", "rgb"), shuffle=False, **options)
    assert ours.file_paths == theirs.file_paths
    assert ours.class_names == theirs.class_names
    count = 0
    for expected, found in zip(theirs, ours, strict=True):
        count += 1
        if not isinstance(found, tuple):
            assert_alike(expected, found)
            continue
        assert_alike(expected[0], found[0])
        assert found[1].dtype == expected[1].dtype.as_numpy_dtype
        np.testing.assert_array_equal(found[1], expected[1])
    assert count == len(ours)


@pytest.mark.parametrize("subset", ["training", "validation", None])
@pytest.mark.parametrize("seed", [0, 1337, 2**31, 2**32 - 1])
def test_shuffled_files_and_labels_are_those_of_keras(folders: Path, seed: int, subset: str | None) -> None:
    split = {} if subset is None else {"subset": subset, "validation_split": 0.4}
    for labels in ("inferred", "given", None):
        theirs, ours, shuffled = both(folders / "rgb", seed=seed, labels=labels, label_mode="int", **split)
        source = source_of(ours)
        assert ours.file_paths == theirs.file_paths
        if labels == "given":
            part = {"training": slice(None, -2), "validation": slice(-2, None), None: slice(None)}[subset]
            assert source.labels.values.tolist() == shuffled[part]
        elif labels == "inferred":
            assert source.labels.values.tolist() == [int("/dogs/" in path) for path in theirs.file_paths]


def test_both_parts_are_those_of_keras(folders: Path) -> None:
    theirs, ours, _ = both(folders / "rgb", seed=5, subset="both", validation_split=0.4)
    assert [part.file_paths for part in ours] == [part.file_paths for part in theirs]


def test_class_names_are_taken_as_keras_does(folders: Path) -> None:
    for class_names in (["dogs", "cats"], ["dogs"]):
        theirs, ours, _ = both(folders / "rgb", class_names=class_names, shuffle=False)
        assert (ours.file_paths, ours.class_names) == (theirs.file_paths, theirs.class_names)
        np.testing.assert_array_equal(ours[0][1], next(iter(theirs))[1])


@pytest.mark.parametrize("follow_links", [False, True])
@pytest.mark.parametrize("labels", ["inferred", None])
def test_folders_are_walked_as_keras_does(tmp_path: Path, labels: str | None, follow_links: bool) -> None:
    names = ["b/x.jpg", "b/.h.PNG", "b/deep-1/y.gif", "b/deep/z.bmp", "b/deep/.no/q.jpeg", "a/10.jpg", "a/9.jpg"]
    names += [".hidden/h.jpg", "top.jpg", "B/é.jpg", "a/x.webp", "a/x.txt", "far/away/l.jpg"]
    for name in names:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    (tmp_path / "data/far").rename(tmp_path / "far")
    (tmp_path / "data/link").symlink_to(tmp_path / "far")
    (tmp_path / "data/a/link").symlink_to(tmp_path / "far")
    (tmp_path / "data/a/nowhere.jpg").symlink_to(tmp_path / "gone.jpg")
    theirs, ours, _ = both(tmp_path / "data", labels=labels, follow_links=follow_links, shuffle=False)
    assert (ours.file_paths, ours.class_names) == (theirs.file_paths, theirs.class_names)


def test_signature_begins_as_that_of_keras() -> None:
    import keras

    for name in ("image_dataset_from_directory", "timeseries_dataset_from_array"):
        theirs = dict(inspect.signature(getattr(keras.utils, name)).parameters)
        theirs.pop("format", None)  # "tf" or "grain": what it returns
        ours = inspect.signature(getattr(ps, name)).parameters
        positional = {key: each for key, each in ours.items() if each.kind is each.POSITIONAL_OR_KEYWORD}
        assert list(positional) == list(theirs)
        assert [each.default for each in positional.values()] == [each.default for each in theirs.values()]


def test_data_format_is_that_of_keras_where_it_is_imported(folders: Path) -> None:
    import keras

    before = keras.config.image_data_format()
    try:
        keras.config.set_image_data_format("channels_first")
        ds = ps.image_dataset_from_directory(folders / "rgb", verbose=False, batch_size=None, image_size=9)
    finally:
        keras.config.set_image_data_format(before)
    assert ds.element_spec[0].shape == (3, 9, 9)


SERIES: dict[str, tuple[Any, ...]] = {
    "sequence_length": (1, 3, 6),
    "sequence_stride": (1, 2, 5),
    "sampling_rate": (1, 3),
    "start_index": (None, 0, 4),
    "end_index": (None, 27),
    "batch_size": (4, None),
    "targets": (None, 30, 9),
}


@pytest.mark.parametrize(
    "case", list(pairwise(SERIES)), ids=lambda case: "-".join(str(value) for value in case.values())
)
def test_windows_are_those_of_keras(case: dict[str, Any]) -> None:
    import keras

    data = np.random.default_rng(0).normal(size=(30, 2))
    targets = None if case["targets"] is None else np.arange(case["targets"]) + 100
    if case["targets"] == 9 and case["start_index"]:
        pytest.skip("Keras fails while it reads: there are too few targets. We say so at the call.")
    options = {name: value for name, value in case.items() if name != "targets"}
    theirs = list(keras.utils.timeseries_dataset_from_array(data, targets, **options))
    ours = list(ps.timeseries_dataset_from_array(data, targets, **options))
    assert len(ours) == len(theirs) > 0
    for expected, found in zip(theirs, ours, strict=True):
        pairs = [(expected, found)] if targets is None else list(zip(expected, found, strict=True))
        for want, have in pairs:
            np.testing.assert_array_equal(have, want)


def test_shuffled_windows_are_those_of_keras_in_another_order() -> None:
    import keras

    arguments = (np.arange(50), np.arange(50) * 2, 4)
    theirs, ours = (
        sorted((window.tolist(), int(target)) for window, target in made)
        for made in (
            [
                (w.numpy(), t)
                for w, t in keras.utils.timeseries_dataset_from_array(*arguments, batch_size=None, shuffle=True, seed=3)
            ],
            ps.timeseries_dataset_from_array(*arguments, batch_size=None, shuffle=True, seed=3),
        )
    )
    assert ours == theirs
