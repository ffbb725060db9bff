import gc
import os
import re
import struct
import traceback
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.files._listing import FileList, Texts, packed
from penstock.plan._source_node import SourceNode
from penstock.run.pool._payload import pack
from tests.image.pictures import make_pets, picture, write

CATS = ["cats/a.png", "cats/b.png", "cats/c.png", "cats/d.png", "cats/e.png", "cats/old/z.png"]
DOGS = [f"dogs/{name}.png" for name in "abcdef"]
SIZE = (12, 16)


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "pets"
    make_pets(folder)
    return folder


@pytest.fixture
def numbers(pets: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The number of each file, by its path."""
    names = make_pets(tmp_path_factory.mktemp("again"))
    return {str(pets / name): number for number, name in enumerate(names)}


def of(folder: Path, **options: Any) -> Any:
    return ps.image_dataset_from_directory(folder, **{"image_size": SIZE, "verbose": False, **options})


def source_of(dataset: Any) -> Any:
    node = dataset._node
    while node.inputs:
        (node,) = node.inputs
    return node.data


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that this process opens from here on."""
    paths: list[str] = []
    real = os.open

    def counting(path: Any, *args: Any, **options: Any) -> int:
        paths.append(os.fsdecode(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", counting)
    return paths


def test_elements_are_the_files_and_their_classes(pets: Path, numbers: dict[str, int]) -> None:
    ds = of(pets, batch_size=None, shuffle=False)
    paths = [str(pets / name) for name in CATS + DOGS]
    assert (ds.file_paths, ds.class_names) == (paths, ["cats", "dogs"])
    assert ds.element_spec == (ps.ArraySpec((*SIZE, 3), "float32"), ps.ArraySpec((), "int32"))
    for path, (image, label) in zip(paths, ds, strict=True):
        np.testing.assert_array_equal(image, picture(numbers[path]).astype("float32"))
        assert label == ("dogs" in path)


def test_making_it_opens_nothing_and_a_batch_opens_its_own_files(pets: Path, opened: list[str]) -> None:
    ds = of(pets, batch_size=5, seed=3)
    assert (len(ds), ds.element_spec[0].shape, opened) == (3, (None, *SIZE, 3), [])
    in_order = of(pets, batch_size=5, shuffle=False)
    for index in (2, 0, 1, -1):
        opened.clear()
        assert len(in_order[index][0]) == len(opened)
        assert opened == in_order.file_paths[index % 3 * 5 :][:5]
    opened.clear()
    for index, count in enumerate((5, 10, 12)):
        ds[index]
        assert len(opened) == count
    assert sorted(opened) == sorted(ds.file_paths)


@pytest.mark.parametrize(
    ("label_mode", "spec", "of_dog"),
    [
        ("int", ps.ArraySpec((), "int32"), 1),
        ("binary", ps.ArraySpec((1,), "float32"), [1.0]),
        ("categorical", ps.ArraySpec((2,), "float32"), [0.0, 1.0]),
    ],
)
def test_labels_are_of_the_mode(pets: Path, label_mode: str, spec: ps.ArraySpec, of_dog: Any) -> None:
    ds = of(pets, batch_size=None, shuffle=False, label_mode=label_mode)
    assert ds.element_spec[1] == spec
    labels = ds.batch(12)[0][1]
    np.testing.assert_array_equal(labels[-1], of_dog)
    np.testing.assert_array_equal(labels[0], 1 - np.asarray(of_dog) if label_mode == "categorical" else labels[0] * 0)


def test_the_files_of_a_part_are_those_of_its_source(pets: Path) -> None:
    whole = of(pets, batch_size=None, shuffle=False)
    for part in whole.split(0.5, 0.5):
        assert part.file_paths == whole.file_paths
    parts = of(pets, batch_size=None, seed=1, validation_split=0.25, subset="both")
    assert [len(part.file_paths) for part in parts] == [len(part) for part in parts]
    assert sorted(parts[0].file_paths + parts[1].file_paths) == sorted(whole.file_paths)


@pytest.mark.parametrize("options", [{"labels": None}, {"label_mode": None}])
def test_without_labels_all_of_the_directory_is_listed(pets: Path, options: dict[str, None]) -> None:
    ds = of(pets, batch_size=None, shuffle=False, **options)
    expected = [str(pets / name) for name in ["beside.png", ".hidden/h.png", *CATS[:-1], CATS[-1], *DOGS]]
    assert (ds.file_paths, ds.class_names) == (expected, None)
    assert ds.element_spec == ps.ArraySpec((*SIZE, 3), "float32")


def test_labels_by_something_else_than_paths_are_refused(pets: Path) -> None:
    with pytest.raises(ps.ArgumentTypeError, match="is a dict with the key 0, and keys are paths"):
        of(pets, labels=dict(enumerate(range(14))))


def test_labels_that_are_given_belong_to_the_sorted_paths_and_stay_as_they_are(pets: Path) -> None:
    labels = list(range(14))
    ds = of(pets, labels=labels, batch_size=None, seed=1)
    plain = of(pets, labels=None, shuffle=False, batch_size=None).file_paths
    found = source_of(ds).labels.values
    assert [plain[label] for label in found] == ds.file_paths
    assert labels == list(range(14))
    assert (found.dtype, ds.class_names[:3]) == (np.int32, ["0", "1", "2"])
    by_path = dict(zip(ds.file_paths, found.tolist(), strict=True))
    whole = {Path(path).resolve(): label for path, label in by_path.items()}
    below = {str(Path(path).relative_to(pets)): label for path, label in by_path.items()} | {"not there.png": 99}
    for given in (by_path, whole, below, dict(reversed(by_path.items()))):
        again = of(pets, labels=given, batch_size=None, seed=1)
        assert source_of(again).labels.values.tolist() == found.tolist()
    floats = of(pets, labels=[0.1, *[0.5] * 13])
    assert (source_of(floats).labels.values.dtype, floats.class_names) == (np.float32, ["0.1", "0.5"])


def test_class_names_choose_and_order_the_folders(pets: Path) -> None:
    ds = of(pets, class_names=["dogs", "cats"], shuffle=False, batch_size=None)
    assert (ds[0][1], ds.file_paths[0]) == (0, str(pets / "dogs/a.png"))
    assert len(of(pets, class_names=("dogs",), batch_size=None)) == 6


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_order_and_parts_are_those_of_keras(pets: Path, seed: int) -> None:
    training, validation = of(pets, seed=seed, validation_split=0.3, subset="both")
    expected = [str(pets / name) for name in CATS + DOGS]
    np.random.RandomState(seed).shuffle(expected)  # type: ignore[arg-type]
    assert training.file_paths + validation.file_paths == expected
    assert len(validation.file_paths) == int(0.3 * 12)
    for dataset, subset in ((training, "training"), (validation, "validation")):
        assert of(pets, seed=seed, validation_split=0.3, subset=subset).file_paths == dataset.file_paths
        classes = [int("dogs" in path) for path in dataset.file_paths]
        assert source_of(dataset).labels.values.tolist() == classes


def test_training_is_shuffled_anew_each_epoch_and_validation_comes_in_order(pets: Path) -> None:
    training, validation = of(pets, seed=1, validation_split=0.3, subset="both", batch_size=9)
    with training.loader("inline") as loader:
        first, second = (next(iter(loader))[0][:, 0, 0, 0].tolist() for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)
    labels = source_of(validation).labels.values.tolist()
    assert validation[0][1].tolist() == labels


def test_no_seed_is_the_same_order_each_time(pets: Path) -> None:
    assert of(pets).file_paths == of(pets, seed=0).file_paths != of(pets, seed=1).file_paths


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Found 12 files belonging to 2 classes.\n"),
        ({"labels": None}, "Found 14 files.\n"),
        (
            {"validation_split": 0.25, "subset": "both", "seed": 1},
            "Found 12 files belonging to 2 classes.\nUsing 9 files for training.\nUsing 3 files for validation.\n",
        ),
    ],
)
def test_verbose_says_what_was_found(
    pets: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], said: str
) -> None:
    of(pets, **options)
    assert capsys.readouterr().out == ""
    of(pets, verbose=True, **options)
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"labels": "guess"}, "labels='guess'.: 'inferred', None, or a number for each file"),
        (
            {"labels": {"a.png": 1}},
            "has no label for 14 of 14 files in .*pets, such as .*pets/.* Its keys are paths as in",
        ),
        ({"labels": [1, 2]}, "got 2 labels, but there are 14 files in .*pets"),
        ({"labels": ["a"] * 14}, "takes a number for each file, got a list of shape .14,., <U1"),
        ({"labels": [0] * 14, "class_names": ["cats", "dogs"]}, "goes with labels='inferred' alone"),
        ({"labels": None, "class_names": ["cats", "dogs"]}, "goes with labels='inferred' alone"),
        ({"labels": [1, 2] * 7, "label_mode": "categorical"}, "2 classes are labelled 0 to 1, but labels are 1, 2"),
        ({"labels": [1, 2] * 7, "label_mode": "binary"}, "2 classes are labelled 0 to 1, but labels are 1, 2"),
        ({"labels": [0, 1, 2, 3, 4, 5, 6] * 2, "label_mode": "binary"}, "needs two classes, but there are 7"),
        ({"class_names": ["cats", "birds"]}, r"of the folders in .*pets, which are \['cats', 'dogs'\]"),
        ({"labels": [2**40] * 14}, "are kept as int32, but are up to 1099511627776"),
        ({"class_names": ["cats", "cats"]}, "each once"),
        ({"label_mode": "sparse"}, r"label_mode=\) is 'sparse'. It is one of 'int', 'categorical', 'binary'"),
        ({"color_mode": "bgr"}, "color_mode is 'bgr'. It is one of 'grayscale', 'rgb', 'rgba'"),
        ({"interpolation": "cubic"}, "interpolation is 'cubic'. It is one of 'bilinear'"),
        ({"data_format": "last"}, "data_format is 'last'"),
        ({"decode": "quick"}, "decode is 'quick'. It is one of 'exact', 'fast'"),
        ({"dtype": "int8"}, "dtype is int8"),
        ({"image_size": (12, 16, 3)}, r"image_size=\) is \[12, 16, 3\]. It is two integers of at least 1"),
        ({"image_size": (0, 16)}, r"image_size=\) is \[0, 16\]. It is two integers of at least 1"),
        ({"image_size": None}, "needs an image_size"),
        ({"batch_size": 0}, "batch_size=0.: it must be at least 1"),
        ({"crop_to_aspect_ratio": True, "pad_to_aspect_ratio": True}, "do not go together"),
        ({"validation_split": 0.2}, "give both or none"),
        ({"subset": "training"}, "give both or none"),
        ({"validation_split": 1.5, "subset": "training", "seed": 1}, "above 0 and below 1"),
        ({"validation_split": 0.2, "subset": "test", "seed": 1}, r"subset=\) is 'test'. It is one of"),
        ({"validation_split": 0.2, "subset": "training"}, "needs a seed"),
        ({"validation_split": 0.05, "subset": "training", "seed": 1}, "that part of 12 files is no whole file"),
        ({"extensions": ".png"}, "several, each with its dot"),
        ({"extensions": [".webp"]}, "no file in .*pets ends in .webp. Its folders are the classes"),
    ],
)
def test_mistakes_are_said_at_the_call(pets: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ps.ArgumentError, match=complaint):
        of(pets, **options)


@pytest.mark.parametrize("seed", [2**32, -1])
def test_a_seed_is_one_that_numpy_takes(pets: Path, seed: int) -> None:
    with pytest.raises(ValueError, match=r"Seed must be between 0 and 2\*\*32 - 1"):
        of(pets, seed=seed)


def test_directory_that_is_not_there_is_said_at_the_call(tmp_path: Path) -> None:
    for options in ({}, {"labels": None}):
        with pytest.raises(ps.SourceError, match=r"gone/? cannot be (listed|read): No such file"):
            of(tmp_path / "gone", **options)
    with pytest.raises(ps.ArgumentTypeError, match="the path of a directory, got an int"):
        ps.image_dataset_from_directory(3)  # type: ignore[arg-type]


def test_numbers_may_be_numpys_but_not_text(pets: Path) -> None:
    with pytest.raises(ps.ArgumentTypeError, match=r"validation_split=\.\.\.\) takes a number, got a str"):
        of(pets, validation_split="0.2", subset="both", seed=1)
    assert of(pets, image_size=np.array((12, 16)), batch_size=None)[0][0].shape == (12, 16, 3)
    with pytest.raises(ps.ArgumentError, match=r"two integers of at least 1, \(height, width\)"):
        of(pets, image_size=np.zeros(3, int))


def test_options_reach_the_pixels(pets: Path, numbers: dict[str, int]) -> None:
    exact = picture(numbers[str(pets / CATS[0])])
    plain = {"batch_size": None, "shuffle": False}
    np.testing.assert_array_equal(of(pets, dtype="uint8", **plain)[0][0], exact)
    first = of(pets, data_format="channels_first", **plain)[0][0]
    np.testing.assert_array_equal(first, exact.astype("float32").transpose(2, 0, 1))
    assert of(pets, color_mode="grayscale", **plain)[0][0].shape == (*SIZE, 1)
    cropped = of(pets, image_size=12, crop_to_aspect_ratio=True, **plain)[0][0]
    padded = of(pets, image_size=12, pad_to_aspect_ratio=True, **plain)[0][0]
    np.testing.assert_array_equal(cropped, exact[:, 2:14])
    assert (padded[0] == 0).all()
    assert (padded[6] > 0).any()


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_executors_agree(pets: Path, executor: Any) -> None:
    ds = of(pets, batch_size=5, seed=2, label_mode="categorical")
    with ds.loader("inline") as expected, ds.loader(executor, workers=2) as loader:
        for batch, want in zip(loader, expected, strict=True):
            np.testing.assert_array_equal(batch[0], want[0])
            np.testing.assert_array_equal(batch[1], want[1])


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_bad_file_is_named_by_every_executor(tmp_path: Path, executor: Any) -> None:
    make_pets(tmp_path)
    (tmp_path / "cats/c.png").write_bytes(b"<html>no picture</html>")
    ds = of(tmp_path, batch_size=4, shuffle=False)
    with ds.loader(executor) as loader, pytest.raises(ps.SourceError, match=r"/cats/c\.png \(element 2\)"):
        list(loader)


def _vanish(path: Path) -> None:
    path.unlink()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _bomb(path: Path) -> None:
    header = struct.pack(">II", 100_000, 100_000) + path.read_bytes()[24:29]
    data = path.read_bytes()
    path.write_bytes(data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:])


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_vanish, "cannot be read: No such file or directory. Put it back"),
        (_pipe, "is no file, but a folder, pipe or device"),
        (_folder, "is no file, but a folder, pipe or device"),
        (_empty, "it has 0 bytes"),
        (_cut, "truncated"),
        (_bomb, "damaged or truncated PNG"),
    ],
)
def test_file_that_changed_since_it_was_listed_is_an_error(
    tmp_path: Path, change: Callable[[Path], None], complaint: str
) -> None:
    make_pets(tmp_path)
    ds = of(tmp_path, batch_size=None, shuffle=False)
    change(tmp_path / "dogs/a.png")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ps.SourceError, match=rf"{re.escape(str(tmp_path))}/dogs/a\.png \(element 6\).*{complaint}"):
        ds[6]
    assert len(os.listdir("/proc/self/fd")) <= before
    assert ds[5][1] == 0


def test_a_broken_file_ends_a_loader_with_its_name_and_the_cures_last(tmp_path: Path) -> None:
    make_pets(tmp_path)
    (tmp_path / "dogs/a.png").write_bytes(b"hello")
    ds = of(tmp_path, batch_size=2, shuffle=False)
    with ds.loader("inline") as loader, pytest.raises(ps.SourceError) as caught:
        list(loader)
    lines = "".join(traceback.format_exception(caught.value)).rstrip().splitlines()
    file = re.escape(str(tmp_path / "dogs/a.png"))
    assert re.match(
        rf"penstock\.SourceError: {file} \(element 6\): no image of a kind that .* and begins with b'hello'", lines[-3]
    )
    assert lines[-2:] == [
        "This was in batch 3 of epoch 0.",
        (
            "To go on without elements that fail: on_error='replace'. The dataset's check() lists them all, and so "
            "does `penstock check PATH` in a terminal."
        ),
    ]
    with ds.loader("inline", on_error="replace", quarantine=tmp_path / "bad.jsonl") as loader:
        assert len(list(loader)) == len(ds)


def bomb(side: int) -> bytes:
    """A PNG of black pixels of one bit, a file of a thousandth of their bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(side * (1 + side // 8)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_file_that_grew_since_it_was_listed_is_read_as_it_is_now(tmp_path: Path) -> None:
    make_pets(tmp_path)
    ds = of(tmp_path, batch_size=None, shuffle=False, image_size=(300, 400))
    large = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    write(tmp_path / "cats/a.png", large)
    assert (tmp_path / "cats/a.png").stat().st_size > 256 << 10  # more than the memory that reading begins with
    np.testing.assert_array_equal(ds[0][0], large)


def test_a_file_of_another_format_than_its_name_says_is_read(tmp_path: Path) -> None:
    write(tmp_path / "x.png", picture(1))
    (tmp_path / "x.png").rename(tmp_path / "x.jpg")
    np.testing.assert_array_equal(ps.from_image_files(tmp_path / "x.jpg")[0], picture(1))


def test_named_files_keep_their_sizes(tmp_path: Path) -> None:
    sizes = [(12, 16), (5, 9), (20, 3)]
    for number, size in enumerate(sizes):
        write(tmp_path / f"{number}.png", picture(number, *size))
    ds = ps.from_image_files(tmp_path / "*.png", [2, 1, 0])
    assert ds.element_spec == (ps.ArraySpec((None, None, 3), "uint8"), ps.ArraySpec((), "int64"))
    for number, (image, label) in enumerate(ds):
        np.testing.assert_array_equal(image, picture(number, *sizes[number]))
        assert label == 2 - number
    padded, _ = ds.padded_batch(3)[0]
    assert padded.shape == (3, 20, 16, 3)
    with ds.loader("threads") as loader:
        assert [image.shape[:2] for image, _ in loader] == sizes


def test_files_are_named_by_anything_that_is_iterated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = make_pets(tmp_path)
    paths = [str(tmp_path / name) for name in names]
    for given in (paths, tuple(map(Path, paths)), np.array(paths), (path for path in paths)):
        ds = ps.from_image_files(given)
        assert (len(ds), ds.file_paths) == (14, paths)
    both = [str(tmp_path / "cats/a.png"), str(tmp_path / "dogs/a.png")]
    assert ps.from_image_files(f"{tmp_path}/**/a.png").file_paths == both
    monkeypatch.chdir(tmp_path)
    here = ps.from_image_files(names[:2])
    monkeypatch.chdir("/")
    assert here.file_paths == names[:2]
    np.testing.assert_array_equal(here[1], picture(1))


def test_files_behind_urls_are_read() -> None:
    import cv2
    import fsspec

    data = cv2.imencode(".png", picture(5)[..., ::-1])[1].tobytes()
    fsspec.filesystem("memory").pipe("/pets/five.png", data)
    ds = ps.from_image_files(["memory://pets/five.png", "memory://pets/six.png"])
    np.testing.assert_array_equal(ds[0], picture(5))
    with pytest.raises(ps.SourceError, match=r"memory://pets/six\.png cannot be read"):
        ds[1]
    assert ps.from_image_files("memory://pets/*.png").file_paths == ["memory:///pets/five.png"]
    with ds[:1].loader("threads") as loader:
        np.testing.assert_array_equal(next(iter(loader)), picture(5))
    with pytest.raises(ps.ArgumentError, match=r"got URLs, such as memory://pets, and paths of this machine"):
        ps.from_image_files(["memory://pets/five.png", "six.png"])


@pytest.mark.parametrize("labels", [["dog", "cat", "dog"], [1, 0, 1]])
def test_labels_of_named_files_are_places_among_class_names(tmp_path: Path, labels: Any) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.png", picture(number))
    ds = ps.from_image_files(tmp_path / "*.png", labels, class_names=("cat", "dog", "owl"))
    assert ds.class_names == ["cat", "dog", "owl"]
    assert ds.element_spec[1] == ps.ArraySpec((), "int32")
    assert [int(label) for _, label in ds] == [1, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "complaint"),
    [
        ((["a.png", "b.png"], [1]), {}, ps.ArgumentError, "got 2 files and 1 labels"),
        (
            (["a.png", "b.png"], [np.zeros((1, 4)), np.zeros((2, 4))]),
            {},
            ps.ArgumentTypeError,
            r"labels=\.\.\.\) make no array .*penstock\.zip\(\(images, penstock\.from_source\(labels, element_spec=",
        ),
        ((["a.png", "b.png"], 1), {}, ps.ArgumentError, "got 2 files and one label"),
        ((["a.png"], [None]), {}, ps.ArgumentTypeError, "Python objects"),
        (([],), {}, ps.ArgumentError, "got no files"),
        (([3],), {}, ps.ArgumentTypeError, "needs paths, got an int"),
        (
            ([b"a.png"],),
            {},
            ps.ArgumentTypeError,
            r"needs paths, got a bytes\. os\.fsdecode\(path\) makes text of it\.",
        ),
        ((3,), {}, ps.ArgumentTypeError, "needs a path, a pattern or a list of paths, got an int"),
        ((["a.png"],), {"decode": "fast"}, ps.ArgumentError, "needs an image_size"),
        ((["a.png"],), {"crop_to_aspect_ratio": True}, ps.ArgumentError, "needs an image_size"),
        ((["a.png"],), {"class_names": ["cat"]}, ps.ArgumentError, "names labels, and there are none"),
        ((["a.png"], ["cow"]), {"class_names": ["cat", "dog"]}, ps.ArgumentError, "'cow' is none of the 2 class_names"),
        ((["a.png"], [2]), {"class_names": ["cat", "dog"]}, ps.ArgumentError, "label 2 is none of the 2 class_names"),
        ((["a.png"], [0]), {"class_names": ["cat", "cat"]}, ps.ArgumentError, "has 'cat' twice"),
        ((["a.png"], [0.5]), {"class_names": ["cat"]}, ps.ArgumentError, "one text or integer a file"),
        ((["a.png"], [0]), {"class_names": "cat"}, ps.ArgumentTypeError, "takes texts"),
    ],
)
def test_mistakes_with_named_files_are_said_at_the_call(
    arguments: Any, options: Any, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        ps.from_image_files(*arguments, **options)


def test_a_pattern_that_fits_nothing_is_said_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(ps.SourceError, match="No file fits the pattern"):
        ps.from_image_files(tmp_path / "*.png")
    with pytest.raises(
        ps.SourceError, match=r"The directory ~/pets cannot be listed: .* os\.path\.expanduser\(path\)\.$"
    ):
        ps.image_dataset_from_directory("~/pets")


def test_the_list_of_files_goes_to_workers_in_shared_memory() -> None:
    from penstock.files._wholefiles import Labels
    from penstock.image import Decoding
    from penstock.image._files import ImageSource

    count = 300_000
    names = Texts(np.zeros(6 * count, np.uint8), np.arange(count) * 6, np.full(count, 5, np.int32))
    files = FileList("", "/", Texts.of([packed([""])]), np.zeros(count, np.int32), names)
    node = SourceNode(ImageSource(files, Decoding((2, 2)), Labels(np.arange(count))), "from_image_files")
    payload = pack(node, node)
    assert len(payload.data) < 10_000
    assert payload.shared_nbytes == count * (16 + 6 + 8)


def test_the_list_of_files_is_gone_with_its_dataset(pets: Path) -> None:
    ds = of(pets)
    ds[0]
    files = weakref.ref(source_of(ds).files)
    gc.collect()
    gc.disable()
    try:
        del ds
        assert files() is None
    finally:
        gc.enable()


def test_a_description_names_the_file(pets: Path) -> None:
    ds = of(pets, batch_size=None, shuffle=False)
    assert source_of(ds).describe(0) == str(pets / "cats/a.png")
    assert repr(ds).startswith("image_dataset_from_directory(pets): 12 elements, ((12, 16, 3) float32, () int32)")
    assert repr(ps.from_image_files(["b.png"])).startswith("from_image_files(b.png): 1 element")


def test_images_and_masks_of_one_name_are_told_apart_by_their_folders() -> None:
    both = ps.zip((ps.from_image_files(["/data/photos/a.png", "b.png"]), ps.from_image_files(["masks/a.png"] * 2)))
    assert "from_image_files(photos/a.png and 1 more): 2 elements" in repr(both)
    assert "from_image_files(masks/a.png and 1 more): 2 elements" in repr(both)
