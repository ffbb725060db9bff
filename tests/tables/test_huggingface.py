"""Datasets of Hugging Face. They are no framework, but `import datasets` takes a second: see the mark."""

import datetime as dt
import io
import json
import os
import pickle
import sys
import types

import numpy as np
import pytest

import penstock as ps
from penstock.base import _tree
from penstock.testing import SourceTests, assert_same

pytestmark = pytest.mark.framework

COUNT = 37
RNG = np.random.default_rng(0)
VALUES = {
    "vector": RNG.normal(size=(COUNT, 8)).astype("float32"),
    "image": RNG.integers(0, 256, (COUNT, 4, 3), dtype="uint8"),
    "label": np.arange(COUNT) % 2,
    "is_new": np.arange(COUNT) % 3 == 0,
    "half": RNG.normal(size=COUNT).astype("float16"),
    "nested": {"small": np.arange(COUNT, dtype="int8"), "pairs": np.arange(4 * COUNT).reshape(COUNT, 2, 2)},
    "bits": RNG.random((COUNT, 5)) < 0.5,
}
TEXT = {
    "text": np.array([f"täxt {'x' * (i % 4)}{i}" for i in range(COUNT)]),
    "blob": np.array([b"\xff" * (1 + i % 3) + b"." for i in range(COUNT)]),
}


@pytest.fixture(scope="module")
def hf():
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


@pytest.fixture
def saved(hf, tmp_path):
    """A dataset in Arrow files, with small chunks; and the elements that it should have."""

    def save(columns, features, **options):
        rows = [{name: _row(column, i) for name, column in columns.items()} for i in range(len(columns["label"]))]
        made = hf.Dataset.from_list(rows, features=features)
        # `map` writes a file with chunks of `writer_batch_size` rows; `save_to_disk` divides it into files.
        made = made.map(cache_file_name=str(tmp_path / "made.arrow"), writer_batch_size=5, load_from_cache_file=False)
        made.save_to_disk(tmp_path / "saved", **options)
        return hf.load_from_disk(tmp_path / "saved")

    return save


def _row(column, i):
    if isinstance(column, dict):
        return {name: _row(values, i) for name, values in column.items()}
    return column[i].tolist() if isinstance(column[i], (np.ndarray, np.generic)) else column[i]


def _features(hf):
    value = hf.Value
    return hf.Features(
        {
            "vector": hf.Sequence(value("float32"), length=8),
            "image": hf.Array2D((4, 3), "uint8"),
            "label": hf.ClassLabel(names=["no", "yes"]),
            "is_new": value("bool"),
            "half": value("float16"),
            "nested": {"small": value("int8"), "pairs": hf.Sequence(hf.Sequence(value("int64"), length=2), length=2)},
            "bits": hf.Sequence(value("bool"), length=5),
        }
    )


def _some(tree, rows):
    leaves, structure = _tree.flatten(tree)
    return structure.unflatten([leaf[rows] for leaf in leaves])


def _form(kind, hf, saved):
    """A dataset of this kind, and its elements."""
    ds = saved(VALUES, _features(hf), num_shards=3 if kind == "files" else 1)
    rows = {
        "part": np.arange(8, 31),
        "shuffled": np.array([30, 2, 2, 17, 36, 0, 21, 5]),
        "joined": np.r_[3:9, 0:COUNT],
    }.get(kind, np.arange(COUNT))
    expected = _some(VALUES, rows)
    if kind == "memory":
        ds = hf.Dataset.from_list(ds.to_list(), features=ds.features)
    if kind == "part":
        ds = ds.select(range(8, 31))
    if kind == "shuffled":
        ds = ds.select([36, *range(36)]).select((rows + 1) % COUNT)
    if kind == "joined":
        ds = hf.concatenate_datasets([ds.select(range(3, 9)), ds])
    if kind == "cast":
        ds = ds.cast_column("label", hf.Value("int16"))
        expected = expected | {"label": expected["label"].astype("int16")}
    if kind == "narrowed":
        ds = ds.remove_columns(["vector", "bits"]).rename_column("label", "y").select_columns(["y", "image"])
        expected = {"y": VALUES["label"], "image": VALUES["image"]}
    if kind == "formatted":
        ds = ds.with_format("torch", columns=["image", "half"])
        expected = {"image": VALUES["image"], "half": VALUES["half"]}
    return ds, expected


@pytest.mark.parametrize("kind", ["part", "joined", "cast", "narrowed", "formatted"])
def test_rows_of_every_kind_of_dataset_are_read_in_any_order(kind, hf, saved):
    ds, expected = _form(kind, hf, saved)
    order = [int(index) for index in ps.range(len(ds)).shuffle(seed=1)]
    with ps.from_source(ds).shuffle(seed=1).batch(len(ds)).loader("threads") as loader:
        assert_same(next(iter(loader)), _some(expected, order))


class TestHuggingFace(SourceTests):
    @pytest.fixture(params=["files", "memory", "shuffled"])
    def made(self, request, hf, saved):
        return _form(request.param, hf, saved)

    @pytest.fixture
    def source(self, made, monkeypatch):
        if not made[0].cache_files:
            monkeypatch.setattr(type(self), "max_pickle_nbytes", None)
        return ps.from_source(made[0])._node.data

    @pytest.fixture
    def expected(self, made):
        return made[1]


def test_text_bytes_and_lists_of_any_length_are_leaves(hf, saved):
    lists = [list(range(i % 4)) for i in range(COUNT)]
    tables = [np.arange(3.0 * (i % 3)).reshape(-1, 3).tolist() for i in range(COUNT)]
    value = hf.Value
    ds = saved(
        TEXT | {"label": VALUES["label"], "lists": lists, "tables": tables},
        hf.Features(
            {
                "text": value("string"),
                "blob": value("large_binary"),
                "label": value("uint8"),
                "lists": hf.Sequence(value("int32")),
                "tables": hf.Array2D((None, 3), "float64"),
            }
        ),
    )
    ours = ps.from_source(ds)
    assert ours.element_spec["lists"] == ps.ArraySpec((None,), "int32")
    assert ours.element_spec["tables"] == ps.ArraySpec((None, 3), "float64")
    with ours.shuffle(1).loader(executor="threads", workers=2) as loader:
        for got, index in zip(loader, ps.range(COUNT).shuffle(1), strict=True):
            assert got["text"] == TEXT["text"][index]
            assert got["blob"] == TEXT["blob"][index]
            assert got["lists"].tolist() == lists[index]
            assert got["tables"].tolist() == tables[index]
            assert got["tables"].shape == (len(tables[index]), 3)
            got["lists"][:] = 0  # what a function gets is its own
    assert ours[3]["lists"].tolist() == [0, 1, 2]


def test_times_and_lists_of_text_are_leaves_as_those_of_parquet_files(hf):
    rows = {"x": [dt.datetime(2026, 1, 1), dt.datetime(1999, 2, 3)], "words": [["a", "bc"], []]}
    ours = ps.from_source(hf.Dataset.from_dict(rows))
    assert [element["x"] for element in ours] == [np.datetime64(each) for each in rows["x"]]
    assert [element["words"].tolist() for element in ours] == rows["words"]


def test_worker_processes_map_the_files_and_do_not_import_datasets(hf, saved):
    def loaded(element):
        import sys

        return element["vector"], "datasets" in sys.modules

    ds = ps.from_source(saved(VALUES, _features(hf), num_shards=2).shuffle(seed=1))
    with ds.map(loaded).batch(8).loader(executor="processes", workers=1) as loader:
        batches = [(vectors.copy(), was.copy()) for vectors, was in loader]
    assert_same(np.concatenate([vectors for vectors, _ in batches]), np.stack([element["vector"] for element in ds]))
    assert not any(was.any() for _, was in batches)


def test_missing_values_are_told_by_column_and_row_and_others_are_read(hf, saved):
    values = [1.5, None, 2.5] * 6
    ds = saved(
        {"label": values, "pair": [[1, 2], [3, None], None] * 6, "text": ["a", None, "b"] * 6},
        hf.Features(
            {
                "label": hf.Value("float32"),
                "pair": hf.Sequence(hf.Value("int32"), length=2),
                "text": hf.Value("string"),
            }
        ),
    )
    assert ps.from_source(ds.select_columns(["label"]))[5]["label"] == np.float32(2.5)
    assert ps.from_source(ds.select_columns(["pair"]))[3]["pair"].tolist() == [1, 2]
    for name, index, says in [
        ("label", 4, "is missing (None)"),
        ("text", 1, "is missing (None)"),
        ("pair", 5, "is missing (None)"),
        ("pair", 7, "has missing values (None) in it"),
    ]:
        with pytest.raises(ps.SpecError) as caught:
            ps.from_source(ds.select_columns([name]))[index]
        assert f"Column {name} of datasets.Dataset[{index}] {says}" in str(caught.value)
    whole = ds.select_columns(["label"]).filter(lambda element: element["label"] is not None)
    assert [float(element["label"]) for element in ps.from_source(whole)] == [1.5, 2.5] * 6


def test_file_that_is_gone_is_named(hf, saved):
    ds = ps.from_source(saved(VALUES, _features(hf)))
    source = pickle.loads(pickle.dumps(ds._node.data))
    os.unlink(source._table[0][0].path)
    with pytest.raises(ps.SourceError, match=r"arrow cannot be opened again: .*No such file"):
        source.open()


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("left", [0.9, 0.5, 0.001])
def test_a_mapped_file_that_becomes_shorter_is_an_error(hf, tmp_path, left, is_ordered):
    """Never a signal. Rows of the other files are read."""
    count = 40_000
    made = hf.Dataset.from_dict({"x": range(count), "t": [f"text {i}" for i in range(count)]})
    made.save_to_disk(tmp_path / "saved", num_shards=2)
    found = hf.load_from_disk(tmp_path / "saved")
    ds = ps.from_source(found.select(range(count - 1, -1, -1)) if is_ordered else found)
    first, last = (count - 1, 0) if is_ordered else (0, count - 1)
    assert ds[first] == {"x": 0, "t": "text 0"}
    path = sorted((tmp_path / "saved").glob("*.arrow"))[1]
    os.truncate(path, int(path.stat().st_size * left))
    for _ in range(2):
        with pytest.raises(ps.SourceError, match=r"00001-of-00002\.arrow has changed since .* bytes then, .* now"):
            ds[last]
        assert ds[first] == {"x": 0, "t": "text 0"}


def test_a_mapped_file_that_is_deleted_is_read_on(hf, tmp_path):
    hf.Dataset.from_dict({"x": range(9)}).save_to_disk(tmp_path / "saved")
    ds = ps.from_source(hf.load_from_disk(tmp_path / "saved"))
    assert ds[0] == {"x": 0}
    for path in (tmp_path / "saved").glob("*.arrow"):
        path.unlink()
    assert ds[8] == {"x": 8}


def test_images_give_the_bytes_of_their_files_and_map_decodes_them(hf, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    pictures = RNG.integers(0, 256, (6, 5, 4, 3), dtype="uint8")
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for path, picture in zip(paths, pictures, strict=True):
        pil.fromarray(picture).save(path)
    inside = [{"bytes": path.read_bytes(), "path": None} for path in paths[:3]]
    beside = [{"bytes": None, "path": str(path)} for path in paths[3:]]
    ds = hf.Dataset.from_dict({"image": inside + beside}, features=hf.Features({"image": hf.Image(decode=False)}))

    ours = ps.from_source(ds, files_in=tmp_path)
    assert ours.element_spec == {"image": ps.ArraySpec((), "S")}
    decoded = ours.map(lambda element: np.asarray(pil.open(io.BytesIO(element["image"]))))
    for got, picture in zip(decoded, pictures, strict=True):
        assert_same(got, picture)

    cure = r"Column image .* decoded as Image.* map\(\).*cast_column\('image', datasets\.Image\(decode=False\)\)"
    with pytest.raises(ps.SpecError, match=cure):
        ps.from_source(ds.cast_column("image", hf.Image()))
    paths[5].unlink()
    with pytest.raises(ps.SourceError, match=r"Column image of .*\[5\] is a file that cannot be read: .*No such file"):
        ours[5]


def test_rows_that_name_files_elsewhere_read_none_unless_asked(hf, tmp_path):
    pa = pytest.importorskip("pyarrow")
    data, secret = tmp_path / "data", tmp_path / "secret"
    data.mkdir()
    secret.write_bytes(b"precious")
    (data / "mine").write_bytes(b"mine")
    (data / "link").symlink_to(secret)
    paths = [data / "mine", secret, f"{data}/../secret", data / "link", "/etc/hostname"]
    rows = {"image": [{"bytes": None, "path": str(path)} for path in paths]}
    made = hf.Dataset.from_dict(rows, features=hf.Features({"image": hf.Image(decode=False)}))
    outside = r"Column image of .*\[\d\] is in .*, which is not in .*files_in=folder"
    in_memory = ps.from_source(made)
    with pa.ipc.new_stream(data / "rows.arrow", made.data.schema) as file:
        file.write_table(made.data.table)
    mapped = hf.Dataset.from_file(str(data / "rows.arrow"))
    on_disk = ps.from_source(mapped)
    for number in range(5):
        with pytest.raises(ps.SourceError, match=outside):
            in_memory[number]
        if number:
            with pytest.raises(ps.SourceError, match=outside):
                on_disk[number]
    assert on_disk[0]["image"] == b"mine"
    asked = ps.from_source(mapped, files_in=tmp_path)
    assert [asked[number]["image"] for number in range(4)] == [b"mine", *3 * [b"precious"]]
    with pytest.raises(ps.SourceError, match=outside):
        asked[4]
    with pytest.raises(ps.ArgumentError, match=r"files_in=\) is for datasets of Hugging Face whose rows name files"):
        ps.from_source([1, 2], files_in=tmp_path)
    with pytest.raises(ps.ArgumentTypeError, match=r"from_source\(files_in=\) is the path of a folder, got an int"):
        ps.from_source(made, files_in=3)


def test_json_is_the_text_that_map_decodes(hf):
    if not hasattr(hf, "Json"):
        pytest.skip("datasets of this version has no Json")
    ds = hf.Dataset.from_dict({"x": [{"q": 1}, [2, "ä"]]}, features=hf.Features({"x": hf.Json()}))
    with pytest.raises(
        ps.SpecError, match=r"decoded as Json.*cast_column\('x', datasets\.Json\(decode=False\)\)\) gives text"
    ):
        ps.from_source(ds)
    ours = ps.from_source(ds.cast_column("x", hf.Json(decode=False)))
    assert ours.element_spec == {"x": ps.ArraySpec((), "U")}
    assert [json.loads(element["x"]) for element in ours] == [{"q": 1}, [2, "ä"]]


def test_what_has_no_spec_is_refused_with_the_cure(hf):
    small = hf.Dataset.from_dict({"x": [1, 2]})
    for column, says in [
        ([dt.time(1)] * 2, r"Column x .* is time64.*cast_column"),
        ([[[1], [2, 3]]] * 2, r"is list<.*at most the first axis is of any length"),
        ([[["a", "b"], ["c"]]], r"Column x .*list<.*string"),
        ([None, None], r"Column x .* is null"),
    ]:
        with pytest.raises(ps.SpecError, match=says):
            ps.from_source(hf.Dataset.from_dict({"x": column}))
    with pytest.raises(ps.SpecError, match=r"a transform .* Put the function into map\(\)"):
        ps.from_source(small.with_transform(lambda batch: batch))
    with pytest.raises(ps.SpecError, match=r"converts with \{'dtype': .*cast\(dtype\)"):
        ps.from_source(small.with_format("numpy", dtype=np.float32))
    with pytest.raises(ps.ArgumentTypeError, match=r"several datasets: 'train', 'test'\. Choose one: .*\['train'\]"):
        ps.from_source(hf.DatasetDict({"train": small, "test": small}))
    with pytest.raises(
        ps.ArgumentTypeError, match=r"got an IterableDatasetDict, several datasets: 'train'\. Choose one"
    ):
        ps.from_source(hf.IterableDatasetDict({"train": small.to_iterable_dataset()}))
    with pytest.raises(ps.SpecError, match="no columns"):
        ps.from_source(small.remove_columns("x"))


def test_plan_says_where_elements_come_from(hf, saved):
    ds = saved(VALUES, _features(hf)).select_columns(["label"])
    assert str(ps.from_source(ds)) == ("from_source(datasets.Dataset): 37 elements, {'label': () int64}, random")


def test_a_module_of_the_users_called_datasets_does_not_matter(monkeypatch):
    monkeypatch.delitem(sys.modules, "datasets.arrow_dataset", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    assert ps.from_source([10, 20])[1] == 20


def test_text_that_is_no_utf_8_is_named_with_its_row():
    pa, datasets = pytest.importorskip("pyarrow"), pytest.importorskip("datasets")
    bad = pa.array([b"ok", b"\xff", b"x"]).view(pa.string())
    ds = ps.from_source(datasets.Dataset(datasets.table.InMemoryTable(pa.table({"t": bad}))))
    assert ds[2] == {"t": "x"}
    with pytest.raises(ps.SourceError, match=r"Column t of .* is no text in UTF-8: invalid start byte"):
        ds[1]


def test_bounds_of_text_may_have_bytes_after_them():
    pa, datasets = pytest.importorskip("pyarrow"), pytest.importorskip("datasets")
    bounds, text = np.array([0, 1, 3, 6], np.int32).tobytes(), b"abcdef"
    column = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(bounds + b"\1"), pa.py_buffer(text)])
    ds = ps.from_source(datasets.Dataset(datasets.table.InMemoryTable(pa.table({"t": column}))))
    assert [row["t"] for row in ds] == ["a", "bc", "def"]
