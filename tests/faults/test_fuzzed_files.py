"""Small images in files, a tenth of them damaged: each policy delivers exactly what it promises, on every executor.

Each file holds an image as `.npy` bytes, after a checksum of the bytes and of the file's name. So every damaged file
is found, also one that was swapped with another.
"""

import io
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.faults.policies import BAD_COUNT, COUNT, EXECUTORS, SEED, SIZE, cuts, left_out, stood_in_for

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("leaves_nothing_behind")]


class Images(ps.Source):
    """The images of a folder."""

    element_spec = ps.ArraySpec((8, 8, 3), "uint8")

    def __init__(self, folder: str, count: int) -> None:
        self.folder, self.count = folder, count

    def __len__(self) -> int:
        return self.count

    def describe(self, index: int) -> str:
        return f"{self.folder}/{index:05}.img"

    def read_into(self, indices: Any, out: Any) -> None:
        for row, index in enumerate(indices.tolist()):
            out[row] = decoded(Path(self.describe(index)))


def encoded(name: str, image: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, image)
    return zlib.crc32(name.encode() + file.getvalue()).to_bytes(4) + file.getvalue()


def decoded(path: Path) -> Any:
    data = path.read_bytes()
    if zlib.crc32(path.name.encode() + data[4:]) != int.from_bytes(data[:4]):
        raise OSError(f"{path} is damaged")
    return np.load(io.BytesIO(data[4:]))


@dataclass
class Folder:
    path: Path
    images: Any
    whole: dict[int, bytes] = field(default_factory=dict)
    """The original contents of the damaged files."""

    def file(self, index: int) -> Path:
        return self.path / f"{index:05}.img"

    def damage(self) -> None:
        """Flips a bit of, cuts, empties or swaps files, as many of each."""
        rng = random.Random(6)
        chosen = rng.sample(range(COUNT), BAD_COUNT)
        self.whole = {index: self.file(index).read_bytes() for index in chosen}
        quarter = BAD_COUNT // 4
        for index in chosen[:quarter]:
            data = bytearray(self.whole[index])
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            self.file(index).write_bytes(data)
        for index in chosen[quarter : 2 * quarter]:
            self.file(index).write_bytes(self.whole[index][: rng.randrange(1, len(self.whole[index]))])
        for index in chosen[2 * quarter : 3 * quarter]:
            self.file(index).write_bytes(b"")
        swapped = chosen[3 * quarter :]
        for one, other in zip(swapped[::2], swapped[1::2], strict=True):
            self.file(one).write_bytes(self.whole[other])
            self.file(other).write_bytes(self.whole[one])

    def repair(self) -> None:
        for index, data in self.whole.items():
            self.file(index).write_bytes(data)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("images")
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), np.uint8)
    folder = Folder(path, images)
    for index, image in enumerate(images):
        folder.file(index).write_bytes(encoded(folder.file(index).name, image))
    return folder


@pytest.fixture
def folder(sound: Folder) -> Iterator[Folder]:
    sound.damage()
    yield sound
    sound.repair()


@pytest.fixture(params=EXECUTORS)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {
        "executor": request.param,
        "workers": EXECUTORS[request.param],
        "quarantine": tmp_path / "bad.jsonl",
    }


def dataset_of(folder: Folder) -> ps.Dataset:
    pairs = ps.zip((ps.from_source(Images(str(folder.path), COUNT)), ps.range(COUNT)))
    return pairs.shuffle(seed=SEED).batch(SIZE)


@pytest.mark.parametrize(("on_error", "model"), [("replace", stood_in_for), ("skip", left_out)])
def test_damaged_files_are_set_aside_and_run_again_when_repaired(
    folder: Folder, options: dict[str, Any], on_error: Any, model: Any
) -> None:
    bad, dataset, path = set(folder.whole), dataset_of(folder), options["quarantine"]
    with dataset.loader(**options, on_error=on_error, max_errors=BAD_COUNT) as loader:
        for (images, numbers), want in zip(loader, model(bad), strict=True):
            assert numbers.tolist() == want
            assert np.array_equal(images, folder.images[want])
        assert loader.report().set_aside == BAD_COUNT
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["sources"][0][1] for line in lines) == sorted(bad)
    for line in lines:
        file = line["sources"][0][2]
        assert (line["step"], line["exception"], line["message"]) == (
            "from_source",
            "OSError",
            f"OSError: {file} is damaged",
        )
    assert all(each.error is not None for each in ps.replay(path, dataset))
    folder.repair()
    again = {}
    for each in ps.replay(path, dataset):
        image, number = each.element
        assert np.array_equal(image, folder.images[number])
        again[int(number)] = each.failure["sources"][0][1]
    assert again == {index: index for index in bad}


def test_raise_delivers_the_error_in_the_place_of_the_first_batch_with_a_damaged_file(
    folder: Folder, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del options["quarantine"]
    monkeypatch.chdir(tmp_path)  # where the file would be
    bad = set(folder.whole)
    with (
        dataset_of(folder).loader(**options) as loader,
        pytest.raises(OSError, match=r"\d{5}.img is damaged") as caught,
    ):
        list(loader)
    assert int(str(caught.value).partition(".img")[0][-5:]) in bad.intersection(cuts()[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_one_error_too_many_ends_it(folder: Folder, tmp_path: Path, on_error: Any) -> None:
    options = {"quarantine": tmp_path / "bad.jsonl", "max_errors": BAD_COUNT - 1}
    loader = dataset_of(folder).loader("threads", 4, on_error=on_error, **options)
    with (
        loader,
        pytest.raises(
            ps.ElementError, match=f"{BAD_COUNT} elements failed, which is more than max_errors={BAD_COUNT - 1}"
        ),
    ):
        list(loader)


def test_a_check_lists_exactly_the_damaged_files(folder: Folder) -> None:
    result = dataset_of(folder).check(executors=())
    assert sorted(each.sources[0][1] for each in result.bad) == sorted(folder.whole)
    assert not result.misfits
    folder.repair()
    assert dataset_of(folder).check(executors=("inline", "processes")).ok
