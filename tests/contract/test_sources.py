import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.base._spec import Spec
from penstock.sources.arrays import ArraySource, RangeSource, SequenceSource
from penstock.sources.files import FileSource, from_memmap
from penstock.sources.npy import describe
from penstock.testing import CountingSource, FailingSource, GatedSource, SourceTests
from tests.image.pictures import picture, write

FRAMES = np.random.default_rng(0).normal(size=(23, 4, 3))
RECORDS = np.array([(i, f"name {i}", [i, -i]) for i in range(17)], [("a", ">i4"), ("b", "U9"), ("c", "f8", 2)])


class TestArray(SourceTests):
    max_pickle_nbytes = None

    @pytest.fixture(params=["F", "reversed", "records", "text"])
    def expected(self, request):
        return {
            "F": np.asfortranarray(FRAMES),
            "reversed": FRAMES[::-1, :, ::2],
            "records": RECORDS,
            "text": np.array(["ä", "bcd", "", "xyz", "z" * 9]),
        }[request.param]

    @pytest.fixture
    def source(self, expected):
        return ArraySource(expected)


class TestRange(SourceTests):
    @pytest.fixture
    def source(self):
        return RangeSource(29)

    @pytest.fixture
    def expected(self):
        return np.arange(29)


class TestSequenceOfSeveralLengths(SourceTests):
    @pytest.fixture
    def source(self, expected):
        return SequenceSource(expected, Spec.of(ps.ArraySpec((None,), "int64")))

    @pytest.fixture
    def expected(self):
        return [np.arange(index % 4) for index in range(11)]


class TestSequenceOfTrees(SourceTests):
    max_pickle_nbytes = None

    @pytest.fixture
    def source(self):
        return SequenceSource([{"z": np.full(3, i, "f4"), "a": (i, i / 2)} for i in range(11)])

    @pytest.fixture
    def expected(self):
        i = np.arange(11)
        return {"z": np.repeat(i, 3).reshape(11, 3).astype("f4"), "a": (i, i / 2)}


class Table:
    """An object that has `__getitems__`, as map-style datasets of torch may."""

    def __len__(self):
        return 13

    def __getitem__(self, index):
        raise AssertionError("one by one, though it gives many at once")

    def __getitems__(self, indices):
        return [np.array([i, i * i]) for i in indices]


class TestSequenceThatGivesManyAtOnce(SourceTests):
    @pytest.fixture
    def source(self, monkeypatch):
        monkeypatch.setattr(Table, "__getitem__", lambda self, i: np.array([i, i * i]))  # for the spec
        source = SequenceSource(Table())
        assert source.element_spec
        monkeypatch.undo()
        return source

    @pytest.fixture
    def expected(self):
        return np.array([(i, i * i) for i in range(13)])


class TestNpy(SourceTests):
    @pytest.fixture(params=["F", "scalars", "large"])
    def expected(self, request):
        return {
            "F": np.asfortranarray(FRAMES),
            "scalars": np.arange(30, dtype=">f2"),
            "large": np.random.default_rng(1).normal(size=(9, 9000)),
        }[request.param]

    @pytest.fixture
    def source(self, expected, tmp_path: Path):
        np.save(tmp_path / "ds.npy", expected)
        return FileSource(describe(tmp_path / "ds.npy"))


class TestMemmap(SourceTests):
    @pytest.fixture(params=[np.s_[:], np.s_[3:20:2, 1:, ::-1]], ids=str)
    def expected(self, request):
        return FRAMES[request.param]

    @pytest.fixture
    def source(self, request, expected, tmp_path: Path):
        np.save(tmp_path / "ds.npy", FRAMES)
        view = np.load(tmp_path / "ds.npy", mmap_mode="r")[request.node.callspec.params["expected"]]
        return from_memmap(view)


class TestImages(SourceTests):
    @pytest.fixture(params=["plain", "categories", "channels first"])
    def options(self, request):
        return {
            "plain": {"labels": None},
            "categories": {"label_mode": "categorical", "dtype": "uint8"},
            "channels first": {"label_mode": "binary", "data_format": "channels_first"},
        }[request.param]

    @pytest.fixture
    def source(self, options, tmp_path: Path):
        for number in range(6):
            write(tmp_path / "ab"[number % 2] / f"{number}.png", picture(number))
        ds = ps.image_dataset_from_directory(
            tmp_path, image_size=(12, 16), shuffle=False, verbose=False, **{"batch_size": None, **options}
        )
        return ds._node.data

    @pytest.fixture
    def expected(self, options):
        images = np.stack([picture(number) for number in (0, 2, 4, 1, 3, 5)])
        classes = np.repeat(np.arange(2, dtype="i4"), 3)
        if "dtype" in options:
            return images, np.eye(2, dtype="f4")[classes]
        if "data_format" in options:
            return images.transpose(0, 3, 1, 2).astype("f4"), classes[:, None].astype("f4")
        return images.astype("f4") if "labels" in options else (images.astype("f4"), classes)


class Lookalike:
    """Has what a source has, without being one."""

    element_spec = ps.ArraySpec((2,), "int64")

    def __len__(self):
        return 8

    def read_into(self, indices, out):
        out[:, 0], out[:, 1] = indices, -indices


class Opening:
    """A handle that has what a source needs, without being one; what it opens has less."""

    element_spec = ps.ArraySpec((2,), "int64")

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 8

    def open(self):
        return Reading(self.path)

    def read_into(self, indices, out):
        raise AssertionError("read by the handle, though it opens another object for it")


class Reading:
    def __init__(self, path):
        self._file = path.open("rb", buffering=0)

    def read_into(self, indices, out):
        for row, index in enumerate(indices):
            out[row] = np.frombuffer(os.pread(self._file.fileno(), 16, int(index) * 16), "i8")

    def close(self):
        self._file.close()


class OpeningSource(Opening, ps.Source):
    pass


class TestLookalike(SourceTests):
    @pytest.fixture(params=["plain", "opening", "source"])
    def source(self, request, expected, tmp_path: Path):
        expected.tofile(tmp_path / "rows")
        kinds = {"opening": Opening, "source": OpeningSource}
        return Lookalike() if request.param == "plain" else kinds[request.param](tmp_path / "rows")

    @pytest.fixture
    def expected(self):
        return np.stack([np.arange(8), -np.arange(8)], 1)


class Words(ps.Source):
    """Leaves whose sizes differ."""

    def __init__(self):
        self.element_spec = {"letters": ps.ArraySpec((None,), "uint8"), "text": ps.ArraySpec((), str)}

    def __len__(self):
        return 5

    def read_into(self, indices, out):
        for row, index in enumerate(indices):
            out["letters"][row] = np.arange(index, dtype="uint8")
            out["text"][row] = "word " * index


class TestSizesThatDiffer(SourceTests):
    @pytest.fixture
    def source(self):
        return Words()

    @pytest.fixture
    def expected(self):
        return {
            "letters": [np.arange(size, dtype="uint8") for size in range(5)],
            "text": np.array(["word " * size for size in range(5)]),
        }


class TestList(SourceTests):
    @pytest.fixture
    def source(self):
        return [2.5, 3.5, 4.5, 5.5]

    @pytest.fixture
    def expected(self):
        return [2.5, 3.5, 4.5, 5.5]


@dataclass
class Numbers(ps.Source):
    """A dataclass has no hash, for it can be changed."""

    start: int
    element_spec = ps.ArraySpec((), "int64")

    def __len__(self):
        return 6

    def advise(self, indices):
        assert indices.dtype == np.int64

    def read_into(self, indices, out):
        out[...] = indices + self.start


class TestDataclass(SourceTests):
    @pytest.fixture
    def source(self):
        return Numbers(7)

    @pytest.fixture
    def expected(self):
        return np.arange(7, 13)

    @pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
    def test_two_are_two(self, executor):
        both = ps.zip((ps.from_source(Numbers(0)), ps.from_source(Numbers(10)))).cache().batch(2)
        with both.loader(executor=executor, workers=1) as loader:
            found = [[leaf.tolist() for leaf in batch] for batch in loader]
        assert found == [[[i, i + 1], [i + 10, i + 11]] for i in (0, 2, 4)]


def test_what_opens_nothing_that_reads_is_told():
    class Forgets(Numbers):
        def open(self):
            self.start = 3

    with pytest.raises(ps.SourceError, match=r"^open\(\) of Forgets returned a NoneType, which has no read_into\(\)"):
        ps.from_source(Forgets(0))[1]


class TestFakes(SourceTests):
    max_pickle_nbytes = None

    @pytest.fixture
    def expected(self):
        return FRAMES

    @pytest.fixture(params=["counting", "failing", "gated"])
    def source(self, request):
        inner = ArraySource(FRAMES)
        if request.param == "gated":
            gated = GatedSource(inner, closed={1})
            gated.open_gate()
            return gated
        return CountingSource(inner) if request.param == "counting" else FailingSource(inner, {})
