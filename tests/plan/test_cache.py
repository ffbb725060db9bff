"""A cache changes nothing but the time: what it keeps is what the plan gives, made once."""

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock.sources import _cachefiles
from penstock.sources.arrays import ArraySource, RangeSource
from penstock.testing import CountingSource, assert_resumes_exactly, assert_same
from tests.strategies import Plan, plans

EXECUTORS = ["inline", "threads", "processes"]
pytestmark = pytest.mark.usefixtures("workers_stay")


def tree(x: Any) -> Any:
    return {"image": np.full((3, 4), x, "float32"), "label": np.int64(x) * 2}


class Pair(NamedTuple):
    left: Any
    right: Any


RAGGED = (ps.ArraySpec((None,), "int64"), ps.ArraySpec((), "U"), ps.ArraySpec((), "S"), ps.ArraySpec((None,), "U"))


def ragged(x: Any) -> Any:
    words = np.array(["a", "bcd\0e", "日本"][: int(x) % 4], "U")
    return np.arange(x), "é\0\ud800" * int(x), b"ab\0" * int(x), words


class Stream:
    """A stream that counts how often it was begun, and what it gave; its fingerprint is that of its length."""

    def __init__(self, count: int) -> None:
        self.count, self.begun, self.given = count, 0, 0

    def fingerprint_parts(self) -> dict[str, Any]:
        return {"count": self.count}

    def __call__(self) -> Iterator[Any]:
        self.begun += 1
        for number in range(self.count):
            self.given += 1
            yield {"x": np.full(3, number), "y": number}


@pytest.fixture(params=["disk", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {"path": tmp_path / "kept"} if request.param == "disk" else {"limit": 1 << 20}


def workers_of(executor: str) -> int:
    return 1 if executor == "inline" else 2


def numbers(dataset: ps.Dataset, **options: Any) -> list[int]:
    with dataset.loader(**options) as loader:
        return [int(x) for batch in loader for x in np.ravel(batch)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_element_is_made_once_for_all_workers_and_epochs(executor: Any, where: dict[str, Any]) -> None:
    source = CountingSource(RangeSource(60))
    kept = ps.from_source(source).map(tree).cache(**where).shuffle(seed=3).batch(7)
    with kept.loader(executor=executor, workers=1) as loader:
        for _ in range(3):
            seen = {int(label): image for batch in loader for image, label in zip(*batch.values(), strict=False)}
            assert sorted(seen) == list(range(0, 120, 2))
            assert all((image == label / 2).all() for label, image in seen.items())
    reads = source.reads
    assert reads.pop(0) <= 3  # and once or twice more, to see what the function returns
    assert set(reads.values()) == {1}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("make", [tree, ragged, lambda x: Pair(x, (x, "text"))])
def test_elements_of_any_kind_come_back_as_they_were(
    executor: Any, make: Callable[[Any], Any], where: dict[str, Any]
) -> None:
    spec = RAGGED if make is ragged else None
    made = ps.range(12).map(make, element_spec=spec)
    kept = made.cache(**where)
    for _ in range(2):
        with kept.loader(executor=executor, workers=workers_of(executor)) as loader:
            for element, want in zip(loader, made, strict=True):
                assert_same(element, want)
    assert_same(kept[5], made[5])


@given(plan=plans(), data=st.data())
@settings(max_examples=15)
def test_a_cache_on_disk_at_the_end_of_any_plan_changes_nothing(
    plan: Plan, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = plan.dataset._node
    if node.randomness.depth or node.randomness.reorders:
        return
    kept = plan.dataset.cache(tmp_path_factory.mktemp("plan"))
    for index in data.draw(st.lists(st.integers(0, len(plan) - 1), max_size=3)):
        assert_same(kept[index], plan.elements(0)[index])
    for executor in ("inline", "threads"):
        with kept.loader(executor=executor, workers=workers_of(executor)) as loader:
            for _ in range(2):
                for element, want in zip(loader, plan.elements(0), strict=True):
                    assert_same(element, want)


def test_the_next_run_goes_on_with_what_is_there(tmp_path: Path) -> None:
    source = CountingSource(RangeSource(40))

    def made() -> ps.Dataset:
        return ps.from_source(source).map(tree, element_spec=spec).cache(tmp_path)

    spec = {"image": ps.ArraySpec((3, 4), "float32"), "label": ps.ArraySpec((), "int64")}
    for index in (3, 30, 7):
        assert int(made()[index]["label"]) == 2 * index
    # One worker, for two may make an element twice: the one that has run ahead into the next epoch is not waited for.
    with made().batch(8).loader(executor="threads", workers=1) as loader:
        assert [int(x) for batch in loader for x in batch["label"]] == list(range(0, 80, 2))
    reads = source.reads
    assert reads.pop(0) == 2  # once more, to see whether the function draws from global generators
    assert set(reads.values()) == {1}


def test_sources_hear_nothing_of_elements_that_are_kept(tmp_path: Path) -> None:
    source = CountingSource(RangeSource(64))
    kept = ps.from_source(source).cache(tmp_path).batch(4)
    with kept.loader(executor="threads", workers=1) as loader:
        list(loader)
        advised = source.advised.total()
        list(loader)
    assert source.advised.total() - advised <= 64  # the last batches announced the next epoch before all was kept
    assert source.reads.total() == 64


def test_rows_of_fixed_size_are_npy_files(tmp_path: Path) -> None:
    list(ps.range(10).map(tree).cache(tmp_path))
    (folder,) = tmp_path.iterdir()
    assert (np.load(folder / "0.npy", mmap_mode="r") == np.arange(10)[:, None, None]).all()
    assert np.load(folder / "1.npy").tolist() == list(range(0, 20, 2))
    assert np.load(folder / "index.npy").shape == (10, 1)


def test_nothing_is_made_or_written_before_it_is_read(tmp_path: Path) -> None:
    kept = ps.range(10).map(lambda x: 1 / 0).cache(tmp_path / "kept")
    assert "cache(kept): 10 elements, spec is known when element 0 has run, random" in repr(kept)
    assert not (tmp_path / "kept").exists()


def test_to_keep_what_reads_a_dataset_that_is_kept_makes_nothing(tmp_path: Path) -> None:
    source = CountingSource(RangeSource(10))
    lookup = ps.from_source(source).map(lambda x: x * 3).cache(tmp_path / "lookup")
    ds = ps.range(10).map(lambda i: lookup[int(i)] + 1).cache(tmp_path / "kept")
    assert "cache(" in repr(ds)
    assert not source.reads
    assert not list(tmp_path.iterdir())
    assert numbers(ds.batch(5), executor="inline") == [*range(1, 31, 3)]


def test_another_function_is_another_cache_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def made(width: int) -> ps.Dataset:
        return ps.range(4).map(lambda x: x * width).cache(tmp_path)

    for width in (3, 4, 3):
        assert [int(x) for x in made(width)] == [0, width, 2 * width, 3 * width]
    (record,) = caplog.records
    assert re.fullmatch(
        r"The cache in .* begins anew: the variable `width` changed in step 2, map\(<lambda>\)\. The earlier elements "
        r"stay in .*/[0-9a-f]{32} \([0-9.]+ MiB\); delete it if it is not needed\.",
        record.getMessage(),
    )


def test_another_python_makes_its_own_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = ps.range(3).cache(tmp_path)
    assert numbers(kept) == [0, 1, 2]
    (header,) = tmp_path.glob("*/cache.json")
    # As another one would have written it: what is Python's own is known by its version.
    content = json.loads(header.read_text())
    content["steps"][0][2]["the data"], content["python"] = "0" * 32, "3.10"
    header.write_text(json.dumps(content))
    header.parent.rename(tmp_path / ("0" * 32))
    assert numbers(ps.range(3).cache(tmp_path)) == [0, 1, 2]
    (record,) = caplog.records
    now = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"begins anew: Python was 3.10 and is {now}. The earlier elements stay" in record.getMessage()


def test_files_are_known_by_path_and_time(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4))
    assert numbers(ps.from_npy(tmp_path / "x.npy").cache(tmp_path / "kept")) == [0, 1, 2, 3]
    np.save(tmp_path / "x.npy", np.arange(4) + 1)
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    assert numbers(ps.from_npy(tmp_path / "x.npy").cache(tmp_path / "kept")) == [1, 2, 3, 4]


def test_files_of_one_size_and_time_are_known_by_their_content(tmp_path: Path) -> None:
    def write(first: int, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        np.save(folder / "x.npy", np.arange(4) + first)  # in place
        (folder / "lines").write_text("".join(f"{first + number}\n" for number in range(4)))
        for name in ("x.npy", "lines"):
            os.utime(folder / name, ns=(1, 1))

    def kept(folder: Path) -> list[list[int]]:
        rows = np.memmap(folder / "x.npy", np.int64, "r", 128)
        mapped = ps.range(4).map(lambda number: rows[number])
        lines = ps.from_text(folder / "lines").map(np.int64)
        every = ps.from_npy(folder / "x.npy"), mapped, lines
        return [numbers(ds.cache(tmp_path / f"kept {number}")) for number, ds in enumerate(every)]

    data = tmp_path / "data"
    for first in (0, 3):
        write(first, data)
        assert kept(data) == [[first, first + 1, first + 2, first + 3]] * 3
    folders = sorted(tmp_path.glob("kept */*"))
    for name in ("x.npy", "lines"):
        (data / name).chmod(0o600)
        shutil.copy2(data / name, tmp_path / name)
        os.replace(tmp_path / name, data / name)  # another inode, as on another machine
    assert kept(data) == [[3, 4, 5, 6]] * 3
    assert sorted(tmp_path.glob("kept */*")) == folders


def test_files_of_images_are_known_by_their_inode_too(tmp_path: Path) -> None:
    for first in (0, 3):
        (tmp_path / "new").write_bytes(bytes([first] * 4))
        os.utime(tmp_path / "new", ns=(1, 1))
        os.replace(tmp_path / "new", tmp_path / "a.bin")
        (found,) = ps.from_files([tmp_path / "a.bin"]).cache(tmp_path / "kept")
        assert bytes(found["bytes"]) == bytes([first] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["h5py", "zarr", "datasets"])
def test_files_of_other_libraries_are_known_by_path_and_time(kind: str, tmp_path: Path) -> None:
    library = pytest.importorskip(kind)

    def written(value: int) -> ps.Dataset:
        path = tmp_path / "data"
        if kind == "datasets":
            library.Dataset.from_dict({"x": [value] * 4}).save_to_disk(path)
            return ps.from_source(library.load_from_disk(path)).map(lambda row: row["x"])
        if kind == "zarr":
            library.create_array(store=str(path), shape=(4,), dtype="i8", overwrite=True)[...] = value
            return ps.from_arrays(library.open_array(str(path), mode="r"))
        with library.File(path, "w") as file:
            file["x"] = np.full(4, value)
            return ps.from_arrays(file["x"])

    for value in (1, 2):
        kept = written(value).materialize(tmp_path / "kept", executor="inline")
        assert [int(x) for x in kept] == [value] * 4


def test_image_files_are_known_by_path_and_time_and_keep_their_names(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    for name in ("cats", "dogs"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(3):
            cv2.imwrite(str(tmp_path / "pets" / name / f"{number}.png"), np.full((4, 4, 3), 50 * number, "uint8"))

    def kept() -> ps.Dataset:
        images = ps.image_dataset_from_directory(tmp_path / "pets", image_size=(4, 4), batch_size=None, shuffle=False)
        return images.materialize(tmp_path / "kept", executor="inline")

    assert kept().class_names == ["cats", "dogs"]
    assert int(kept()[1][0][0, 0, 0]) == 50
    cv2.imwrite(str(tmp_path / "pets" / "cats" / "1.png"), np.full((4, 4, 3), 70, "uint8"))
    assert int(kept()[1][0][0, 0, 0]) == 70


def test_a_key_stands_for_what_is_before(tmp_path: Path) -> None:
    lock = __import__("threading").Lock()

    def made(width: int, key: str) -> list[int]:
        return [int(x) for x in ps.range(3).map(lambda x: (x * width, lock)[0]).cache(tmp_path, key=key)]

    assert made(1, "a") == made(2, "a") == [0, 1, 2]
    assert made(2, "b") == [0, 2, 4]
    assert made(3, "") == made(4, "") == [0, 3, 6]


# What is not believed.


class Life:
    """The machine's life, which a test ends."""

    def __init__(self) -> None:
        self.tag = 7


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    life = Life()
    monkeypatch.setattr(_cachefiles, "tag_of", lambda files: life.tag)
    return life


@pytest.mark.parametrize("make", [tree, ragged])
def test_what_is_damaged_when_the_machine_went_down_is_made_again(
    make: Callable[[Any], Any], tmp_path: Path, life: Life
) -> None:
    source = CountingSource(RangeSource(20))
    spec = RAGGED if make is ragged else None
    made = ps.range(20).map(make, element_spec=spec)

    def kept() -> ps.Dataset:
        return ps.from_source(source).map(make, element_spec=spec).cache(tmp_path)

    list(kept())
    (folder,) = tmp_path.iterdir()
    file = folder / ("rest.bin" if make is ragged else "0.npy")
    data = bytearray(file.read_bytes())
    data[-100:-60] = bytes(40)  # which were not written, where they had been marked
    file.write_bytes(data)
    before = source.reads.total()
    life.tag = 8
    for element, want in zip(kept(), made, strict=True):
        assert_same(element, want)
    again = source.reads.total() - before
    assert 0 < again < 10
    for element, want in zip(kept(), made, strict=True):
        assert_same(element, want)
    assert source.reads.total() - before == again + (spec is None)  # all have the new tag by now


def test_after_a_copy_of_the_directory_every_element_is_compared(tmp_path: Path) -> None:
    import shutil

    first = ps.range(20).map(tree)
    list(first.cache(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (folder,) = (tmp_path / "two").iterdir()
    with open(folder / "1.npy", "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"wrong!!!")
    assert [int(x["label"]) for x in first.cache(tmp_path / "two")] == list(range(0, 40, 2))


def test_on_a_file_system_of_which_nothing_is_believed_all_is_compared_once_a_process(
    tmp_path: Path, life: Life
) -> None:
    life.tag = 0
    source = CountingSource(RangeSource(20))
    kept = ps.from_source(source).cache(tmp_path)
    assert numbers(kept) == numbers(kept) == list(range(20))
    assert set(source.reads.values()) == {1}
    (folder,) = tmp_path.iterdir()
    (folder / "0.npy").write_bytes((folder / "0.npy").read_bytes()[:-8] + bytes(8))
    assert numbers(ps.from_source(source).cache(tmp_path)) == list(range(20))


@pytest.mark.parametrize("damage", ["no header", "half a header", "short rows", "no index", "other leaves"])
def test_a_directory_that_is_damaged_begins_anew(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    list(ps.range(9).cache(tmp_path))
    (folder,) = tmp_path.iterdir()
    header = (folder / "cache.json").read_text()
    if damage == "no header":
        (folder / "cache.json").unlink()
    elif damage == "half a header":
        (folder / "cache.json").write_text(header[: len(header) // 2])
    elif damage == "other leaves":
        (folder / "cache.json").write_text(header.replace("<i8", "<u8"))
    elif damage == "short rows":
        os.truncate(folder / "0.npy", 140)
    else:
        (folder / "index.npy").unlink()
    assert numbers(ps.range(9).cache(tmp_path)) == list(range(9))
    assert "is damaged" in caplog.text
    assert "begins anew" in caplog.text
    aside = next(tmp_path.glob(f"{folder.name}.damaged-*"))
    assert {each.name for each in tmp_path.iterdir()} == {folder.name, aside.name}


def test_text_that_is_gone_is_made_again(tmp_path: Path) -> None:
    made = ps.range(9).map(ragged, element_spec=RAGGED)
    list(made.cache(tmp_path))
    next(tmp_path.glob("*/rest.bin")).unlink()
    for _ in range(2):
        with made.cache(tmp_path).loader() as loader:  # which asks whether all is there
            for element, want in zip(loader, made, strict=True):
                assert_same(element, want)


@pytest.mark.parametrize("left", [0, 30])
def test_text_that_is_cut_off_is_an_error_that_names_the_cache(left: int, tmp_path: Path) -> None:
    made = ps.range(9).map(ragged, element_spec=RAGGED)
    list(made.cache(tmp_path))
    os.truncate(next(tmp_path.glob("*/rest.bin")), left)
    for read in (lambda: made.cache(tmp_path)[8], lambda: list(made.cache(tmp_path))):  # none writes at the end
        with pytest.raises(ps.SourceError, match=r"Element \d of the cache in .* is damaged: .* Delete the directory"):
            read()


@pytest.mark.parametrize("content", [b"", bytes(500), b"\xff" * 500])
def test_text_that_is_cut_off_or_changed_while_it_is_read_is_named(content: bytes, tmp_path: Path) -> None:
    kept = ps.range(9).map(ragged, element_spec=RAGGED).cache(tmp_path)
    with kept.loader(executor="inline") as loader:
        assert len(list(loader)) == 9
        next(tmp_path.glob("*/rest.bin")).write_bytes(content)
        with pytest.raises(ps.SourceError, match=r"Element \d of the cache in .* is damaged: .* Delete the directory"):
            list(loader)


def test_a_stream_whose_text_is_gone_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert list(ps.from_generator(_texts).cache(tmp_path)) == list(_texts())
    next(tmp_path.glob("*/rest.bin")).unlink()
    for _ in range(2):
        assert list(ps.from_generator(_texts).cache(tmp_path)) == list(_texts())
    assert caplog.text.count("begins anew") == 1


def _texts() -> Iterator[str]:
    yield from ("to", "be", "or")


def test_a_stream_that_is_kept_and_damaged_says_so(tmp_path: Path, life: Life) -> None:
    list(ps.from_generator(Stream(9)).cache(tmp_path))
    file = next(tmp_path.glob("*/1.npy"))
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))
    life.tag = 8
    kept = ps.from_generator(Stream(9)).cache(tmp_path)
    assert int(kept[7]["y"]) == 7
    with pytest.raises(ps.SourceError, match=r"Element 8 of the cache in .* is damaged: .* Delete the directory"):
        kept[8]


# Limits.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("on_disk", [True, False])
def test_under_a_limit_a_part_is_kept(executor: Any, on_disk: bool, tmp_path: Path) -> None:
    source = CountingSource(ArraySource(np.arange(100.0)))
    limit = 40 * (8 + 8)
    kept = ps.from_source(source).cache(tmp_path if on_disk else None, limit=limit)
    for _ in range(2):
        assert numbers(kept.shuffle(1).batch(10), executor=executor) != list(range(100))
        assert numbers(kept.batch(10), executor=executor) == list(range(100))
    counts = sorted(source.reads.values())  # one more where workers had begun the next epoch
    assert max(counts[:40]) <= 2
    assert min(counts[40:]) == 4


def test_under_a_limit_a_part_of_ragged_elements_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    source = CountingSource(RangeSource(30))
    kept = ps.from_source(source).map(ragged, element_spec=RAGGED).cache(limit=3000)
    for _ in range(2):
        for element, want in zip(kept, ps.range(30).map(ragged, element_spec=RAGGED), strict=True):
            assert_same(element, want)
    assert set(source.reads.values()) == {1, 2}
    assert "cannot keep more elements: limit= is reached" in caplog.text


def test_a_cache_in_memory_is_a_part_of_projected_memory() -> None:
    rows = ps.from_arrays(np.zeros((1000, 1000), "uint8"))
    with rows.batch(10).loader() as plain, rows.cache().batch(10).loader() as kept:
        assert kept.projected_nbytes - plain.projected_nbytes == pytest.approx(1000 * (1000 + 8), abs=4000)
    with rows.cache(limit=5000).batch(10).loader() as kept:
        assert kept.projected_nbytes - plain.projected_nbytes <= 5000 + 4000
    with pytest.raises(ps.MemoryLimitError, match=r"984 KiB of it is a cache in memory. Say how much it may take"):
        rows.cache().batch(1).loader(memory_limit=1 << 19)


def test_a_cache_in_memory_of_ragged_elements_needs_a_limit() -> None:
    made = ps.range(4).map(ragged, element_spec=RAGGED).cache()
    with pytest.raises(ps.ArgumentError, match=r"cache\(\) in memory needs limit=, in bytes, because it is not known"):
        made.loader()


# What is refused.


def test_steps_that_differ_from_epoch_to_epoch_are_refused() -> None:
    with pytest.raises(
        ps.ArgumentError, match=r"random_map\(<lambda>\) at test_cache.py:\d+ makes others in each epoch"
    ):
        ps.range(4).random_map(lambda x, rng: x).batch(2).cache()
    with pytest.raises(ps.ArgumentError, match=r"shuffle\(seed=1\) before it would give their order to every epoch"):
        ps.range(4).shuffle(1).batch(2).cache()
    with pytest.raises(ps.ArgumentError, match=r"Put cache\(\) before repeat\(\)"):
        ps.range(4).repeat().cache()
    assert numbers(ps.range(4).shuffle(1, reshuffle=False).cache()) == numbers(ps.range(4).shuffle(1, reshuffle=False))


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ps.ArgumentTypeError, match=r"cache\(\) needs the path of a directory, got an int"):
        ps.range(4).cache(3)  # type: ignore[arg-type]
    with pytest.raises(ps.ArgumentError, match=r"cache\(limit=0\): it must be at least 1"):
        ps.range(4).cache(limit=0)
    with pytest.raises(ps.ArgumentTypeError, match=r"cache\(key=3\): text is needed, not an int"):
        ps.range(4).cache(tmp_path, key=3)  # type: ignore[arg-type]
    for path in ("s3://bucket/kept", "file:///kept", ""):
        with pytest.raises(ps.ArgumentError, match=rf"cache\('{path}'\) keeps elements in a directory of this machine"):
            ps.range(4).cache(path)
    with pytest.raises(
        ps.ArgumentError, match=r"materialize\('gs://kept'\) keeps elements in a directory of this mach"
    ):
        ps.range(4).materialize("gs://kept")
    (tmp_path / "file").write_text("")
    with pytest.raises(ps.SourceError, match=r"cache\(\) cannot use the directory .*/file: File exists"):
        ps.range(4).cache(tmp_path / "file")[0]


# Now.


@pytest.mark.parametrize("executor", EXECUTORS)
def test_materialize_keeps_all_now(executor: Any, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    made = ps.range(100).map(tree)
    kept = made.materialize(tmp_path, executor=executor, progress=lambda *now: told.append(now))
    assert told[-1] == (100, 100)
    assert (len(kept), kept.access) == (100, "random")
    assert "map" not in repr(kept)
    with kept.shuffle(2).batch(9).loader() as loader:
        assert "threads" in repr(loader)  # there is nothing left to compute
        assert sorted(int(x) for batch in loader for x in batch["label"]) == list(range(0, 200, 2))
    assert_same(made.cache(tmp_path)[7], kept[7])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_materialize_keeps_bytes_and_text_whole(executor: Any, tmp_path: Path) -> None:
    kept = ps.range(30).map(lambda x: {"bytes": b"\0" * int(x), "text": "a\0"}).materialize(tmp_path, executor=executor)
    assert [element["bytes"] for element in kept] == [b"\0" * x for x in range(30)]
    assert {element["text"] for element in kept} == {"a\0"}


def test_materialize_a_stream_and_go_on(tmp_path: Path) -> None:
    stream = Stream(30)
    told: list[tuple[int, int | None]] = []
    kept = ps.from_generator(stream).materialize(tmp_path, executor="threads", progress=lambda *now: told.append(now))
    assert told[-1] == (30, None)
    assert int(kept.shuffle(1)[0]["y"]) < 30
    begun = stream.begun
    assert len(ps.from_generator(stream).materialize(tmp_path, executor="threads")) == 30
    assert stream.begun == begun


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("length", [None, 10])
def test_materialize_a_stream_of_any_length(length: Any, executor: Any, tmp_path: Path) -> None:
    stream = ps.from_generator(range(10), element_spec=ps.ArraySpec((), "int64"), length=length)
    kept = stream.batch(4).materialize(tmp_path, executor=executor, workers=1)
    assert kept.access == "random"
    assert [batch.tolist() for batch in kept] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_cannot_be_kept_whole_is_not_materialized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: Any, offset: int) -> int:
        raise OSError(28, "No space left on device")

    made = ps.range(30).map(tree)
    made.cache(tmp_path)[3]
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(
        ps.SourceError, match=r"could not keep all elements in .* Make room, or mend what failed, and call"
    ):
        made.materialize(tmp_path, executor="inline")


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_cannot_be_written_is_read_and_the_log_says_so(
    is_stream: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> ps.Dataset:
        plain = ps.from_generator(lambda: iter(np.arange(20))) if is_stream else ps.range(20).map(lambda x: x)
        return plain.cache(tmp_path / "kept")

    begun = iter(made())
    assert [next(begun) for _ in range(7)] == list(range(7))
    begun.close()  # type: ignore[attr-defined]
    opened = os.open

    def refusing(path: Any, flags: int, *rest: Any, **options: Any) -> int:  # as for a user who is not root
        if flags & os.O_RDWR and str(path).startswith(str(tmp_path)):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert [int(x) for x in made()] == list(range(20))
    assert {record.getMessage().split("more elements: ")[1] for record in caplog.records} == {
        "its files cannot be written. Missing ones are made again in each epoch."
    }


def test_a_cache_that_another_process_makes_meanwhile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce = _cachefiles._announce

    def late(path: str, steps: Any) -> None:
        monkeypatch.setattr(_cachefiles, "_announce", announce)
        assert numbers(ps.range(4).cache(tmp_path / "kept")) == [0, 1, 2, 3]  # the other process
        announce(path, steps)

    monkeypatch.setattr(_cachefiles, "_announce", late)
    assert numbers(ps.range(4).cache(tmp_path / "kept")) == [0, 1, 2, 3]


def test_what_was_materialized_and_is_gone_is_named(tmp_path: Path) -> None:
    kept = ps.range(4).materialize(tmp_path / "kept", executor="inline")
    shutil.rmtree(tmp_path / "kept")
    with pytest.raises(ps.SourceError, match=r"kept.*/index\.npy.* cannot be read: .*No such file"):
        list(kept)
    with pytest.raises(ps.ArgumentTypeError, match=r"materialize\(\) needs the path of a directory, got None"):
        ps.range(4).materialize(None)  # type: ignore[arg-type]


def test_windows_that_are_kept_still_share_data(tmp_path: Path) -> None:
    kept = ps.range(10).windows(3).materialize(tmp_path)
    train, test = kept.split(0.5, 0.5)
    assert set(np.ravel(list(train))).isdisjoint(np.ravel(list(test)))


def test_a_run_resumes_whatever_is_kept(tmp_path: Path) -> None:
    made = ps.range(30).map(tree)
    before = made.cache(tmp_path / "a").shuffle(1).batch(4)
    with before.loader(executor="inline") as loader:
        state = loader.get_state()
    assert_resumes_exactly(before, executors=[("inline", 1), ("threads", 2)], cuts=6)
    with made.materialize(tmp_path / "a", executor="inline").shuffle(1).batch(4).loader() as loader:
        loader.set_state(state)
    stream = ps.from_generator(Stream(20)).cache(tmp_path / "b").batch(3)
    assert_resumes_exactly(stream, executors=[("inline", 1), ("threads", 2)], limit=6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_dataset_with_a_cache_that_a_function_reads_is_kept(executor: Any, where: dict[str, Any]) -> None:
    source = CountingSource(RangeSource(10))
    lookup = ps.from_source(source).map(lambda x: x * 3).cache(**where)  # what it gives is unknown when it travels
    ds = ps.range(10).map(lambda i: lookup[int(i)]).batch(5)
    with ds.loader(executor=executor, workers=1) as loader:
        for _ in range(20):
            assert [int(x) for batch in loader for x in batch] == [*range(0, 30, 3)]
    # Not 20 times; but workers that read ahead may be at the same element of two epochs.
    assert max(source.reads.values()) < 10


def test_what_a_cache_that_a_function_reads_is_to_keep_is_found_by_a_worker(tmp_path: Path) -> None:
    here = os.getpid()

    def made(x: Any) -> Any:
        assert os.getpid() != here
        return x * 3

    inner = ps.range(4).map(made).cache(tmp_path / "inner")
    lookup = ps.range(4).map(lambda i: inner[int(i)] + 1).cache(tmp_path / "outer")
    ds = ps.range(4).map(lambda i: lookup[int(i)]).batch(2)
    assert numbers(ds, executor="processes", workers=1) == [1, 4, 7, 10]
    assert (tmp_path / "inner").exists()
    assert (tmp_path / "outer").exists()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_cache_that_a_function_reads_and_that_cannot_be_says_so_on_every_executor(executor: Any) -> None:
    lookup = ps.range(4).map(ragged, element_spec=RAGGED).cache()
    ds = ps.range(4).map(lambda i: lookup[int(i)][0].sum(), element_spec=ps.ArraySpec((), "int64"))
    with pytest.raises(ps.PenstockError, match=r"cache\(\) in memory needs limit="):
        numbers(ds, executor=executor)


def test_a_cache_in_memory_ends_with_its_dataset(leaves_nothing_behind: None) -> None:
    kept = ps.range(100).cache()
    assert numbers(kept.batch(10), executor="threads") == list(range(100))
    del kept


def test_nothing_is_logged_where_all_goes_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            list(ps.range(10).cache(tmp_path))
    assert not caplog.records


# Elements that fail.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_what_stands_in_for_an_element_that_fails_is_not_kept(executor: Any, on_error: Any, tmp_path: Path) -> None:
    flag = tmp_path / "mended"

    def fragile(x: Any) -> Any:
        if x == 7 and not flag.exists():
            raise ValueError("broken")
        return x

    kept = ps.range(12).map(fragile, element_spec=ps.ArraySpec((), "int64")).cache(tmp_path / "kept")
    options = {"executor": executor, "workers": workers_of(executor), "on_error": on_error}
    for plan, instead in ((kept.batch(4), [4, 5, 6]), (kept.batch(4).cache(tmp_path / "batches"), None)):
        for _ in range(2):
            with plan.loader(**options, quarantine=tmp_path / "q.jsonl") as loader:
                got = [int(x) for batch in loader for x in batch]
            others = [x for x in range(12) if x not in ((7,) if instead else (4, 5, 6, 7))]
            assert set(got) == set(others)
    with pytest.raises(
        ps.SourceError, match=r"could not keep all elements in .* or mend what failed, and call it again"
    ):
        kept.materialize(tmp_path / "all", **options, quarantine=tmp_path / "q.jsonl")
    flag.touch()
    assert numbers(kept.batch(4), executor=executor) == list(range(12))
