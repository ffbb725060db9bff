import itertools
import shutil
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

pytestmark = pytest.mark.slow
COUNT = 23


@pytest.fixture(autouse=True, scope="module")
def _libraries():
    """Imports them here, because that takes a second, and the fast set reads this file too."""
    global lance, pa
    lance, pa = pytest.importorskip("lance"), pytest.importorskip("pyarrow")


def table(count=COUNT):
    return pa.table(
        {
            "n": np.arange(count),
            "s": [f"row {k}" for k in range(count)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4 * count, dtype="f4")), 4),
            "l": [list(range(k % 4)) for k in range(count)],
            "d": pa.array([f"k{k % 3}" for k in range(count)]).dictionary_encode(),
            "o": [{"a": k, "b": k / 2} for k in range(count)],
            "b": [bytes([k]) * 3 for k in range(count)],
        }
    )


def written(path, rows=None, **options):
    lance.write_dataset(table() if rows is None else rows, str(path), max_rows_per_file=10, **options)
    return path


class TestLance(SourceTests):
    @pytest.fixture
    def source(self, tmp_path):
        return ps.from_lance(written(tmp_path / "a.lance"), columns=["s", "n", "v", "l"])._node.data

    @pytest.fixture
    def expected(self):
        rows = table().to_pydict()
        return {
            "s": rows["s"],
            "n": np.array(rows["n"]),
            "v": np.array(rows["v"], "f4"),
            "l": [np.array(each, int) for each in rows["l"]],
        }


def test_columns_are_decoded_as_those_of_parquet(tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(table(), tmp_path / "a.parquet")
    one, other = ps.from_lance(written(tmp_path / "a.lance")), ps.from_parquet(tmp_path / "a.parquet")
    assert one.element_spec == other.element_spec
    assert [str(each) for each in one] == [str(each) for each in other]


def test_columns_that_are_chosen(tmp_path):
    ds = ps.from_lance(written(tmp_path / "a.lance"), columns=["s", "n"], dtypes={"n": "float32"})
    assert ds[3] == {"s": "row 3", "n": 3.0}
    assert ds.element_spec["n"] == ps.ArraySpec((), "float32")
    assert ds.select(["n"])[4] == {"n": 4.0}
    with pytest.raises(ps.ArgumentError, match=r"from_lance\(columns=\): .*a\.lance has no column 'm'; it has \['n', "):
        ps.from_lance(tmp_path / "a.lance", columns=["m"])


def test_nulls_are_errors_that_name_the_row_or_are_filled(tmp_path):
    path = written(tmp_path / "a.lance", pa.table({"x": [1.5, None, 2.5]}))
    ds = ps.from_lance(path)
    assert ds[2] == {"x": 2.5}
    with pytest.raises(ps.SourceError, match=r"a\.lance row 1.*'x'"):
        list(ds)
    filled = ps.from_lance(path, fill_null={"x": 0.0}, null_masks=["x"])
    assert [(each["x"], each["x_is_null"]) for each in filled] == [(1.5, False), (0.0, True), (2.5, False)]


def test_the_version_is_pinned_and_part_of_the_plan(tmp_path):
    ds = ps.from_lance(written(tmp_path / "a.lance"))
    lance.dataset(str(tmp_path / "a.lance")).delete("n < 10")
    lance.dataset(str(tmp_path / "a.lance")).tags.create("old", 1)
    now = ps.from_lance(tmp_path / "a.lance")
    assert (len(ds), len(now), ds[0]["n"], now[0]["n"]) == (COUNT, COUNT - 10, 0, 10)
    for version in (1, "old"):
        assert [each["n"] for each in ps.from_lance(tmp_path / "a.lance", version=version)] == list(range(COUNT))
    states = []
    for each in (ds, now, ps.from_lance(tmp_path / "a.lance", version=1)):
        with each.select(["n"]).batch(2).loader("inline") as loader:
            states.append(loader.get_state())
    assert states[0] == states[2]
    with now.select(["n"]).batch(2).loader("inline") as loader, pytest.raises(ps.StateError):
        loader.set_state(states[0])


def test_a_dataset_that_is_written_anew_is_refused(tmp_path):
    ds = ps.from_lance(written(tmp_path / "a.lance"))
    shutil.rmtree(tmp_path / "a.lance")
    written(tmp_path / "a.lance")
    with pytest.raises(ps.SourceError, match=r"a\.lance, version 1, has other files than when the dataset was made"):
        ds[0]


def test_a_dataset_that_is_gone_is_named(tmp_path):
    ds = ps.from_lance(written(tmp_path / "a.lance"))
    shutil.rmtree(tmp_path / "a.lance")
    with pytest.raises(ps.SourceError, match=r"/a\.lance, version 1, cannot be read by Lance: .* was not found"):
        ds[0]


@pytest.mark.parametrize("path", ["none", "empty", "file"])
def test_what_is_no_dataset_is_named(tmp_path, path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(ps.SourceError, match=rf"/{path} cannot be read by Lance: "):
        ps.from_lance(tmp_path / path)


def test_arguments_are_checked(tmp_path):
    written(tmp_path / "a.lance")
    for version in (9, "tag"):
        with pytest.raises(ps.SourceError, match=rf"a\.lance, version {version!r}, cannot be read by Lance: "):
            ps.from_lance(tmp_path / "a.lance", version=version)
    with pytest.raises(ps.ArgumentTypeError, match=r"from_lance\(version=\) is a number or a tag, got 1\.5"):
        ps.from_lance(tmp_path / "a.lance", version=1.5)
    with pytest.raises(ps.ArgumentTypeError, match=r"from_lance\(\) needs the folder or URL of one Lance dataset, got"):
        ps.from_lance(["a.lance"])


def damaged(path, folder, damage):
    for file in (path / folder).iterdir():
        if file.suffix != ".json":
            file.write_bytes(damage(file.read_bytes()))


@pytest.mark.parametrize("folder", ["data", "_versions"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:-60] + b"\xff" * 60,
        lambda data: bytes(len(data)),
    ],
    ids=["empty", "half", "cut", "end", "zeros"],
)
def test_damaged_files_are_named(tmp_path, folder, damage):
    path = written(tmp_path / "a.lance")
    damaged(path, folder, damage)
    with pytest.raises(ps.SourceError, match=r"/a\.lance.* cannot be read by Lance: .*It is missing, or damaged\."):
        list(ps.from_lance(path))


def test_a_panic_of_the_library_is_an_error(tmp_path, monkeypatch):
    ds = ps.from_lance(written(tmp_path / "a.lance"))
    panic = type("PanicException", (BaseException,), {})

    def take(*_, **__):
        raise panic("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(lance.LanceDataset, "take", take)
    with pytest.raises(ps.SourceError, match=r"a\.lance, rows 3 to 3, cannot be read by Lance: called `Option"):
        ds[3]


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ImportError, match=r"^from_lance\(\) needs lance: pip install pylance pyarrow\."):
        ps.from_lance("a.lance")


@pytest.mark.usefixtures("workers_stay")
def test_worker_processes_resume_in_the_middle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ds = ps.from_lance(written(tmp_path / "a.lance").relative_to(tmp_path), columns=["n", "s"])
    batches = ds.map(lambda element: (element["n"], len(element["s"]))).shuffle(seed=1).batch(4)
    with batches.loader("processes", 2) as loader:
        found = [str(batch) for batch in itertools.islice(loader, 2)]
        state = loader.get_state()
    with batches.loader("processes", 2) as loader:
        loader.set_state(state)
        found += [str(batch) for batch in loader]
    assert found == [str(batch) for batch in batches]


def test_a_batch_is_one_call(tmp_path, monkeypatch):
    taken, take = [], lance.LanceDataset.take

    def counting(self, indices, columns=None):
        taken.append((len(indices), columns))
        return take(self, indices, columns)

    ds = ps.from_lance(written(tmp_path / "a.lance"), columns=["n"])
    monkeypatch.setattr(lance.LanceDataset, "take", counting)
    with ds.shuffle(seed=1).batch(8).loader("inline") as loader:
        assert sorted(int(n) for batch in loader for n in batch["n"]) == list(range(COUNT))
    assert taken == [(8, ["n"]), (8, ["n"]), (7, ["n"])]


def test_urls_are_told_without_their_secrets():
    with pytest.raises(ps.SourceError, match=r"no-store://\*\*\*@host/a\.lance cannot be read by Lance: ") as caught:
        ps.from_lance("no-store://user:secret@host/a.lance")
    assert "secret" not in str(caught.value)
