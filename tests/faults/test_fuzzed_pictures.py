"""JPEGs in folders, a tenth of them damaged: each policy delivers exactly what it promises, on every executor.

A JPEG has no checksum. So a flipped bit may stop the decoder, change some pixels, or change nothing; a file that was
swapped with another is as good as any. Decoding each file alone decides which are bad; files that are certainly bad
are among these. In `test_fuzzed_files.py` every damaged file is certainly bad.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.faults.policies import BAD_COUNT, COUNT, EXECUTORS, SEED, SIZE, cuts, left_out, stood_in_for
from tests.image.pictures import write

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("leaves_nothing_behind")]

HEIGHT, WIDTH = 48, 64
CLASS_COUNT = 4
TEXT = b"This is no picture, but a note that somebody left in the folder.\n"


@dataclass
class Folder:
    path: Path
    files: list[Path]
    whole: dict[int, bytes]
    """The original contents of the damaged files."""
    spoilt: dict[int, bytes]
    """Their damaged contents."""
    surely_bad: set[int]
    """Cut, empty and text files."""
    bad: set[int]
    """Files that cannot be decoded."""
    images: Any
    """The decoded images of the other files, damaged or not."""
    sound: Any
    """The decoded images when nothing is damaged."""

    is_spoilt: bool = False

    def spoil(self, *, is_spoilt: bool) -> None:
        """Puts the damaged files in their places, or the others."""
        if is_spoilt != self.is_spoilt:
            for index, data in (self.spoilt if is_spoilt else self.whole).items():
                self.files[index].write_bytes(data)
        self.is_spoilt = is_spoilt


def decoded(data: bytes) -> Any:
    """The picture in the bytes of a file, (HEIGHT, WIDTH, 3) uint8; None if there is none."""
    try:
        return ps.image.decode(data, (HEIGHT, WIDTH), dtype="uint8")
    except ps.image.ImageError:
        return None


def damaged(pictures: dict[int, bytes], rng: random.Random) -> tuple[dict[int, bytes], set[int]]:
    """Flips bits of, cuts, empties, or puts text or another one in the place of pictures, a fifth of them each.

    Returns what became of them, and which are no pictures any more, whatever decodes them.
    """
    names, part = list(pictures), len(pictures) // 5
    flipped, cut, emptied, text, swapped = (names[start : start + part] for start in range(0, 5 * part, part))
    spoilt = dict.fromkeys(emptied, b"") | dict.fromkeys(text, TEXT)
    for name in flipped:
        data = bytearray(pictures[name])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        spoilt[name] = bytes(data)
    for name in cut:  # not at its end, without whose marker all pixels may be there
        spoilt[name] = pictures[name][: rng.randrange(1, len(pictures[name]) * 3 // 4)]
    for name, other in zip(swapped, swapped[1:] + swapped[:1], strict=True):
        spoilt[name] = pictures[other]
    return spoilt, {*cut, *emptied, *text}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    y, x = np.mgrid[-1 : 1 : HEIGHT * 1j, -1 : 1 : WIDTH * 1j]
    files = [path / str(number * CLASS_COUNT // COUNT) / f"{number:05}.jpg" for number in range(COUNT)]
    for file in files:
        write(
            file, (128 + rng.uniform(-60, 60, 3) * y[..., None] + rng.uniform(-60, 60, 3) * x[..., None]).astype("u1")
        )
    sound = np.stack([decoded(file.read_bytes()) for file in files])
    whole = {index: files[index].read_bytes() for index in random.Random(6).sample(range(COUNT), BAD_COUNT)}
    spoilt, surely_bad = damaged(whole, random.Random(7))
    found = {index: decoded(data) for index, data in spoilt.items()}
    images = sound.copy()
    for index, image in found.items():
        images[index] = 0 if image is None else image
    return Folder(
        path, files, whole, spoilt, surely_bad, {k for k, image in found.items() if image is None}, images, sound
    )


@pytest.fixture
def folder(pictures: Folder) -> Folder:
    pictures.spoil(is_spoilt=True)
    return pictures


def classified(folder: Folder) -> ps.Dataset:
    """The pictures of the folder with their classes, in `order()`."""
    size = (HEIGHT, WIDTH)
    pairs = ps.image_dataset_from_directory(
        folder.path, image_size=size, batch_size=None, shuffle=False, dtype="uint8", verbose=False
    )
    return pairs.shuffle(seed=SEED).batch(SIZE)


def numbered(folder: Folder) -> ps.Dataset:
    """The same with their numbers."""
    files = ps.from_image_files(folder.files, labels=range(COUNT), image_size=(HEIGHT, WIDTH))
    return files.shuffle(seed=SEED).batch(SIZE)


def test_what_is_cut_empty_or_text_is_no_picture_and_a_flipped_bit_may_be_seen(pictures: Folder) -> None:
    assert pictures.surely_bad <= pictures.bad
    assert len(pictures.surely_bad) == BAD_COUNT * 3 // 5
    assert 0 < len(pictures.bad - pictures.surely_bad) < BAD_COUNT // 5, "of flipped bits some are seen"
    assert (pictures.images != pictures.sound).any(axis=(1, 2, 3)).sum() > len(pictures.bad)


@pytest.mark.parametrize(("on_error", "model"), [("replace", stood_in_for), ("skip", left_out)])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_pictures_that_cannot_be_decoded_are_set_aside_and_run_again_when_repaired(
    folder: Folder, tmp_path: Path, executor: Any, on_error: Any, model: Any
) -> None:
    make = {"replace": classified, "skip": numbered}[on_error]
    dataset, quarantine = make(folder), tmp_path / "bad.jsonl"
    options = {"workers": EXECUTORS[executor], "quarantine": quarantine, "max_errors": len(folder.bad)}
    with dataset.loader(executor, **options, on_error=on_error) as loader:
        for (images, labels), want in zip(loader, model(folder.bad), strict=True):
            assert labels.tolist() == [x * CLASS_COUNT // COUNT if make is classified else x for x in want]
            assert np.array_equal(images, folder.images[want])
        assert loader.report().set_aside == len(folder.bad)
    lines = [json.loads(line) for line in quarantine.read_text().splitlines()]
    listed = [line["sources"][0][1:] for line in lines]
    assert sorted(listed) == sorted([index, str(folder.files[index])] for index in folder.bad)
    for line in lines:
        assert line["exception"] == "SourceError"
        assert line["message"].startswith(f"{line['sources'][0][2]} (element {line['sources'][0][1]}): ")
    assert all(each.error is not None for each in ps.replay(quarantine, dataset))
    folder.spoil(is_spoilt=False)
    again = list(ps.replay(quarantine, dataset))
    assert sorted(each.failure["sources"][0][1] for each in again) == sorted(folder.bad)
    for each in again:
        index = each.failure["sources"][0][1]
        image, label = each.element
        assert np.array_equal(image, folder.sound[index])
        assert label == (index * CLASS_COUNT // COUNT if make is classified else index)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_raise_names_a_file_of_the_first_batch_that_cannot_be_decoded(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # where a quarantine file would be
    workers = EXECUTORS[executor]
    with classified(folder).loader(executor, workers=workers) as loader, pytest.raises(ps.SourceError) as caught:
        list(loader)
    first = next(cut for cut in cuts() if folder.bad.intersection(cut))
    assert any(
        f"{folder.files[index]} (element {index}): " in str(caught.value) for index in folder.bad.intersection(first)
    )
    assert list(tmp_path.iterdir()) == []


def test_a_check_lists_exactly_the_pictures_that_cannot_be_decoded(folder: Folder) -> None:
    assert sorted(each.sources[0][1] for each in numbered(folder).check(executors=()).bad) == sorted(folder.bad)
