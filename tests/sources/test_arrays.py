import enum
import json
import pickle
import re
import tracemalloc
from pathlib import PurePosixPath

import numpy as np
import pytest

import penstock as ps
from penstock.memory._rows import CHUNK_NBYTES
from penstock.plan._source import Read
from penstock.sources.arrays import ArraySource, RangeSource, SequenceSource
from penstock.sources.files import FileSource

RAGGED, TEXT = ps.ArraySpec((None,), "int64"), ps.ArraySpec((), str)


def test_array_is_not_copied():
    array = np.zeros((4, 2))
    ds = ps.from_arrays(array)
    array[2] = 7
    assert ds[2].tolist() == [7, 7]


@pytest.mark.parametrize("make", [ps.from_arrays, ps.from_npy])
def test_a_tree_without_leaves_is_no_dataset(make):
    for tree in ((), {}, {"x": ()}):
        with pytest.raises(ps.ArgumentError, match=r"\(\) got an empty tree"):
            make(tree)


def test_element_does_not_alias_the_array():
    array = np.zeros((4, 2))
    ps.from_arrays(array)[1][...] = 5
    assert not array.any()


TABLE = np.arange(1_000_000, dtype="float32").reshape(50_000, 20)
VIEWS = {
    "columns": TABLE[:, 1:],
    "a column": TABLE[:, 0],
    "every other row": TABLE[::2],
    "backwards": TABLE[::-1],
    "Fortran order": np.asfortranarray(TABLE),
    "a field": np.zeros(50_000, [("id", "u1"), ("pixels", "f4", (20,))])["pixels"],
    "unaligned": np.frombuffer(b"." + TABLE.tobytes(), "uint8")[1:].view("f4").reshape(TABLE.shape),
    "as it is": TABLE,
}


@pytest.mark.parametrize("view", VIEWS)
def test_rows_of_a_view_are_read_without_a_copy_of_all_of_it(view):
    array, indices = VIEWS[view], np.array([7, 24_000, 3])
    source, out = ArraySource(array), np.empty((3, *array.shape[1:]), array.dtype)
    tracemalloc.start()
    try:
        source.read_into(indices, out)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(out, array[indices])


@pytest.mark.parametrize("dtype", ["u1", ">i4", "f8", "U3", "?", "M8[s]", [("a", "u1"), ("b", "f4")]])
def test_columns_of_any_dtype_are_copied_as_they_are(dtype):
    table = np.zeros((10, 7), dtype)
    for place in np.ndindex(table.shape):  # all bytes differ from their neighbours'
        table[place] = np.frombuffer(bytes([place[0] + 1, place[1], 0, 0] * 4)[: table.itemsize], dtype)[0]
    for view in (table[:, 1:], table[::-1, :4], table[2:, 2:3], table[:, ::2]):
        for source in (ArraySource(view), pickle.loads(pickle.dumps(ArraySource(view)))):
            out = np.zeros((5, *view.shape[1:]), dtype)
            source.gather([Read(np.array([3, 0, 7]), [out], slice(1, 4))])
            assert out[1:4].tobytes() == view[[3, 0, 7]].tobytes()
            assert not any(out[[0, 4]].tobytes())


class _OfNumbers(np.ndarray):
    """A user's kind of array, that can have no other dtype than those of numbers."""

    def __array_finalize__(self, _):
        if self.dtype.kind == "V":
            raise TypeError(f"no numbers: {self.dtype}")


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("kind", [np.matrix, np.recarray, _OfNumbers])
def test_columns_of_a_table_of_any_class_are_read(kind):
    table = np.arange(12.0).reshape(3, 4)
    batches = list(ps.from_arrays(table.view(kind)[:, 1:]).batch(2).loader(executor="inline"))
    np.testing.assert_array_equal(np.concatenate(batches), table[:, 1:])
    assert list(ps.from_arrays(table.view(kind)).unbatch()) == table.ravel().tolist()


def test_memmap_is_read_by_a_handle(tmp_path):
    np.save(tmp_path / "ds.npy", np.arange(12).reshape(4, 3))
    for view in (np.load(tmp_path / "ds.npy", mmap_mode="r"), np.load(tmp_path / "ds.npy", mmap_mode="r")[1:, ::2]):
        ds = ps.from_arrays(view)
        assert isinstance(ds._node.data, FileSource)
        np.testing.assert_array_equal(ds.batch(len(view))[0], view)


def test_lists_of_numbers_are_arrays():
    ds = ps.from_arrays({"x": [[1, 2], [3, 4]], "y": [0.5, 1.5]})
    assert ds.element_spec == {"x": ps.ArraySpec((2,), "int64"), "y": ps.ArraySpec((), "float64")}


def test_empty_array_is_an_empty_dataset():
    ds = ps.from_arrays(np.zeros((0, 3)))
    assert len(ds) == 0
    assert list(ds) == []
    assert ds.element_spec == ps.ArraySpec((3,), "float64")


def test_element_of_a_structured_array_is_its_own():
    records = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])
    element = ps.from_arrays(records)[1]
    assert element.dtype == records.dtype
    assert element.tolist() == (3, 4.0)


def test_array_source_does_not_touch_what_it_was_not_asked_for():
    out = np.full((5, 2), -1.0)
    ArraySource(np.ones((3, 2))).read_into(np.array([0, 2]), out[1:3])
    assert out[:, 0].tolist() == [-1, 1, 1, -1, -1]


def test_sequence_is_read_element_by_element_and_its_first_once():
    class Items:
        def __init__(self):
            self.asked = []

        def __len__(self):
            return 5

        def __getitem__(self, index):
            self.asked.append(index)
            return np.full(2, index)

    items = Items()
    ds = ps.from_source(items)
    assert items.asked == []
    assert ds.element_spec == ds.batch(2, drop_remainder=True).unbatch().element_spec
    assert items.asked == [0]
    assert ds[3].tolist() == [3, 3]
    assert items.asked == [0, 3]


def test_sequence_of_text():
    ds = ps.from_source(["a", "bcd", ""])
    assert list(ds) == ["a", "bcd", ""]
    assert ds.batch(3)[0].tolist() == ["a", "bcd", ""]


@pytest.mark.parametrize(("texts", "kind"), [([b"a", b"b", b"c\0", b"d"], "bytes"), (["a", "b", "c\0", "d"], "text")])
def test_text_that_ends_in_a_zero_is_whole_or_refused_where_an_array_would_drop_it(texts, kind):
    ds = ps.from_source(texts)
    assert list(ds) == texts
    error = rf"^Number 0 of a batch of {kind} ends in a zero, and arrays of NumPy drop zeros at the end\. Use .*"
    with pytest.raises(ps.SpecError, match=error):
        ds.batch(2)[1]
    with ds.batch(2).loader("inline") as loader:
        for _ in range(4):  # no slot is lost by it
            batches = iter(loader)
            assert next(batches).tolist() == texts[:2]
            with pytest.raises(ps.SpecError, match=error):
                next(batches)
    with ds.loader("inline") as loader:
        assert list(loader) == texts


@pytest.mark.parametrize("texts", [[b"a", b"b\0"], ["a", "b\0"]])
@pytest.mark.parametrize("verb", ["batch", "windows", "padded_batch"])
def test_a_stream_refuses_to_drop_zeros_at_the_end_of_what_it_stacks(verb, texts):
    ds = getattr(ps.from_generator(texts), verb)(2)
    with pytest.raises(ps.SpecError, match=r"^Number 1 of a batch of (text|bytes) ends in a zero"):
        list(ds)
    with ds.loader("inline") as loader, pytest.raises(ps.SpecError, match="ends in a zero"):
        list(loader)


def test_sequence_that_answers_with_another_shape_or_structure_is_told():
    start = r" \(as found on element 0\)\. .*say which axis differs: element_spec=ArraySpec\(\(None,\), dtype\)"
    end, end_of_tree = rf"{start}\.$", rf"{start} for that leaf, in a tree like the element\.$"
    axis = end.replace("dtype", "'int64'")
    with pytest.raises(
        ps.SpecError, match=rf"^list\[1\] gave an array of \(3,\) int64, but its element_spec is \(2,\) int64{axis}"
    ):
        list(ps.from_source([np.zeros(2, int), np.zeros(3, int)]))
    number = r"gave an array of \(\) float64, but its element_spec is \(\) int64 .* Return np\.asarray\(x, 'int64'\)"
    with pytest.raises(ps.SpecError, match=number):
        list(ps.from_source([1, 2.5]))
    with pytest.raises(ps.SpecError, match=r"^list\[1\] gave an array of \(\) float64 in \['b'\], but its"):
        list(ps.from_source([{"a": 1, "b": 2}, {"a": 1, "b": 2.5}]))
    with pytest.raises(
        ps.SpecError,
        match=rf"list\[1\], 'text' gave the structure \{{'b': \(\) text\}}, but .* \(\(\) int64, \(\) int64\)"
        rf"{end_of_tree}",
    ):
        list(ps.from_source([(1, 2), {"b": "text"}]))
    with pytest.raises(ps.SpecError, match=r"^list\[1\] gave the structure \{'a': None\} \(None has its"):
        list(ps.from_source([1, {"a": None}]))
    for items, text in (
        ([{"a": 1}, {"a": None}], r"^list\[1\] gave a leaf\['a'\] that is a NoneType, which is not .* \(None has its"),
        ([{"a": None}, {"a": 1}], r"^list\[0\] gave no array at all"),
        ([{"a": None, "b": 1}, {"a": 1, "b": 1}], r"^list\[1\] gave the structure .* \(None has its place in every"),
    ):
        with pytest.raises(ps.SpecError, match=text):
            list(ps.from_source(items))
    with pytest.raises(
        ps.SpecError, match=r"^list is empty, so the look of its elements is unknown\. .* element_spec="
    ):
        _ = ps.from_source([]).element_spec


def test_a_sequence_of_elements_of_several_lengths_says_so():
    sentences = [np.arange(length) for length in (3, 0, 5, 2)]
    ds = ps.from_source(sentences, element_spec=ps.ArraySpec((None,), "int64"))
    assert [len(element) for element in ds] == [3, 0, 5, 2]
    assert ds.padded_batch(4)[0].tolist() == [[0, 1, 2, 0, 0], [0] * 5, [0, 1, 2, 3, 4], [0, 1, 0, 0, 0]]
    with ds.shuffle(seed=1).padded_batch(2, padded_shapes=(6,)).loader(executor="threads", workers=2) as loader:
        assert sorted(batch.sum() for batch in loader) == sorted(b.sum() for b in ds.shuffle(seed=1).padded_batch(2))

    element = ds[2]
    element[:] = -1
    assert sentences[2].tolist() == [0, 1, 2, 3, 4], "what is the user's stays so"

    words = ps.from_source([{"x": [1], "y": "a"}, {"x": [], "y": "bc"}], element_spec={"x": RAGGED, "y": TEXT})
    assert [(element["x"].tolist(), element["y"]) for element in words] == [([1], "a"), ([], "bc")]
    assert ps.from_source([], element_spec=RAGGED).batch(2).length == 0
    with pytest.raises(
        ps.SpecError, match=r"^list\[1\] gave an array of \(\) int64, .* \(None,\) int64 \(as declared\)"
    ):
        list(ps.from_source([[1], 2], element_spec=RAGGED))


def test_a_spec_of_a_source_that_has_one_is_refused():
    with pytest.raises(
        ps.ArgumentError, match=r"is for objects with \[i\]; 3 has its own spec: \(\) int64\. Leave it out"
    ):
        ps.from_source(RangeSource(3), element_spec=RAGGED)


@pytest.mark.parametrize(
    ("attributes", "cure"),
    [
        (
            {"to_numpy"},
            r"Give numbers or text: table\['x'\]\.to_numpy\('float32'\), .*fillna\(''\)\.to_numpy\('U'\)\.$",
        ),
        ({"to_numpy", "columns"}, r"Give the columns of a table: \{'x': table\['x'\]\.to_numpy\(\), .*\}\.$"),
    ],
)
def test_tables_are_told_how_they_are_given(attributes, cure):
    class Table:
        def __array__(self, dtype=None, copy=None):
            return np.array([["x"]], object)

    for name in attributes:
        setattr(Table, name, None)
    with pytest.raises(ps.ArgumentTypeError, match=rf"got Python objects at \['x'\] \(dtype object\)\. {cure}"):
        ps.from_arrays({"x": Table()})


def test_records_with_objects_are_told_to_be_given_by_columns():
    table = np.array([(1, "x")], [("x", int), ("name", object)])
    with pytest.raises(ps.ArgumentTypeError, match=r"Give its fields as columns: \{'x': array\['x'\], .*\}\.$"):
        ps.from_arrays(table)
    columns = ps.from_arrays({"x": table["x"], "name": table["name"].astype("U")})
    assert columns[0] == {"x": 1, "name": "x"}


def test_rows_of_different_lengths_are_told_how_to_be_read():
    items = [[1], [2, 3]]
    with pytest.raises(
        ps.ArgumentTypeError, match=r"^from_arrays\(\) got a list that makes no array at \['x'\]: .*None"
    ):
        ps.from_arrays({"x": items})
    ragged = ps.from_source(items, element_spec=RAGGED)
    assert ragged.padded_batch(2)[0].tolist() == [[1, 0], [2, 3]]


def test_files_of_a_list_are_told_to_be_put_one_after_the_other(tmp_path, caplog):
    for name, count in (("a", 3), ("b", 3), ("c", 5)):
        np.arange(count, dtype="uint16").tofile(tmp_path / name)
    a, b, c = (np.memmap(tmp_path / name, "uint16", "r") for name in "abc")
    cure = "concatenate([from_arrays(array) for array in arrays])."
    with pytest.raises(ps.ArgumentTypeError, match=re.escape(cure) + "$"):
        ps.from_arrays([a, c])
    assert not caplog.records
    assert ps.from_arrays([a, b]).element_spec == ps.ArraySpec((3,), "uint16")
    (record,) = caplog.records
    assert "read a list of memmaps into memory, 12 bytes, as one array of shape (2, 3)" in record.message
    assert record.message.endswith(cure)
    assert len(ps.concatenate([ps.from_arrays(array) for array in (a, b, c)])) == 11


def test_sequence_that_fails_is_told_with_the_cause():
    class Broken:
        def __len__(self):
            return 9

        def __getitem__(self, index):
            raise OSError("no disk")

    source = SequenceSource(Broken())
    with pytest.raises(
        ps.ElementError, match=r"^Broken failed on elements \[4, 5, 6, 7\]\.\.\.: OSError: no disk"
    ) as caught:
        source._get([4, 5, 6, 7, 8])
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(ps.ElementError, match=r"^Broken failed on elements \[0\]: OSError: no disk"):
        ps.from_source(Broken())[0]  # which is read for the spec


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (
            [[1], [2, 3]],
            r"got a list that makes no array at \['x'\]: .*inhomogeneous.*from_source\(items, element_spec=",
        ),
        (
            np.array(["a", "bc"], np.dtypes.StringDType()),
            r"dtype StringDType\(\)\)\. .*: np\.array\(array\.tolist\(\)\)",
        ),
        (np.ma.array([1, 2], mask=[False, True]), r"got a masked array at \['x'\], .* array\.filled\(0\)"),
        (
            np.ma.array([(1, 2)], [("a", "i4"), ("b", "i4")], mask=[(False, True)]),
            r"got a masked array at \['x'\], .* array\.filled\(0\)",
        ),
    ],
)
def test_what_is_no_array_is_refused_with_the_cure(leaf, text):
    with pytest.raises(ps.ArgumentTypeError, match=text):
        ps.from_arrays({"x": leaf})


def test_masked_array_without_masked_items_is_an_array():
    assert list(ps.from_arrays(np.ma.array([1, 2]))) == [1, 2]
    records = np.ma.zeros(2, [("a", "i4"), ("b", "i4", 2)])
    assert [len(x) for x in (list(ps.from_arrays(records)), list(ps.from_source([records, records])))] == [2, 2]


def test_what_has_arrays_by_name_is_refused_with_the_cure(tmp_path):
    np.savez(tmp_path / "two.npz", x=np.arange(3), y=np.arange(3))
    with np.load(tmp_path / "two.npz") as archive:
        with pytest.raises(
            ps.ArgumentTypeError, match=r"at \['a'\], which has arrays by name: x, y\. .*file\['x'\], .*dict"
        ):
            ps.from_arrays({"a": archive})
        assert ps.from_arrays(dict(archive))[1] == {"x": 1, "y": 1}


def test_a_column_of_pandas_is_a_sequence():
    series = type("Series", (list,), {"iloc": None})  # which has rows by number, and no columns
    assert list(ps.from_source(series([3, 4]))) == [3, 4]


class _Picture:
    """What is decoded when it is made an array, as a lazy image is."""

    def __array__(self, dtype=None, copy=None):
        return np.ones((128, 128), "u1")


class _Pictures:
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return np.ones((128, 128), "u1")


@pytest.mark.parametrize("items", [[_Picture()] * 512, _Pictures()], ids=["list", "object"])
def test_what_a_list_or_an_object_gives_is_in_its_place_before_the_rest_is_asked_for(items):
    source, out = SequenceSource(items), np.zeros((512, 128, 128), "u1")
    assert source.element_spec == ps.ArraySpec((128, 128), "u1")
    tracemalloc.start()
    try:
        source.read_into(np.arange(512), out)
        assert tracemalloc.get_traced_memory()[1] < 3 * CHUNK_NBYTES < out.nbytes
    finally:
        tracemalloc.stop()
    assert out.all()


def test_an_object_that_gives_another_number_of_elements_than_it_was_asked_for_is_told():
    class Columns(list):
        def __getitems__(self, indices):
            return [self[index] for index in indices], [0 for _ in indices]

    with pytest.raises(
        ps.ElementError,
        match=r"^Columns failed on elements \[0, 1, 2\]: ValueError: __getitems__\(\) gave 2 elements for 3 indices",
    ):
        list(ps.from_source(Columns([1, 2, 3]), element_spec=ps.ArraySpec((), "int64")).batch(3).loader("threads"))


def test_a_row_of_text_is_named_with_what_it_says():
    def decode(path):
        raise ValueError("no image")

    paths = ps.from_arrays(np.array(["a.jpg", "b" * 500 + "/c.jpg"]))
    with pytest.raises(ps.ElementError, match=r"made of row 0 of array of \(2,\) <U506, 'a\.jpg': ValueError"):
        paths.map(decode, element_spec=ps.ArraySpec((), "int64"))[0]
    with pytest.raises(ps.ElementError, match=r"'b{20}\.\.\.b{91}/c\.jpg'") as caught:
        paths.map(decode, element_spec=ps.ArraySpec((), "int64"))[1]
    assert len(str(caught.value)) < 400


def test_an_element_of_a_list_that_fails_is_told_by_its_text():
    def load(item):
        if "b" in str(item):
            raise ValueError("bad header")
        return 0

    for items, name in (
        (["a.npy", "b.npy"], "list[1], 'b.npy'"),
        ((("a.npy", 1), ("b.npy", 2)), "tuple[1], 'b.npy'"),
        (["a", "b" * 200], "list[1], '" + "b" * 20 + "..." + "b" * 97 + "'"),
        (list(np.array(["a", "b"])), "list[1], 'b'"),
        (list(enum.Enum("Name", {"A": "a", "B": "b"}, type=str)), "list[1], 'b'"),
    ):
        with pytest.raises(ps.ElementError) as caught:
            list(ps.from_source(items).map(load))
        assert f"made of {name}: ValueError: bad header" in str(caught.value)


def test_an_element_that_a_list_has_lost_is_told_by_its_place(tmp_path):
    items, told = ["a.npy", "b.npy"], tmp_path / "bad.jsonl"
    with ps.from_source(items).loader("inline", on_error="skip", quarantine=told) as loader:
        del items[1]
        assert list(loader) == ["a.npy"]
    assert [json.loads(line)["sources"] for line in told.read_text().splitlines()] == [[["from_source", 1, "list[1]"]]]


def test_a_path_is_text_for_whoever_writes_str():
    with pytest.raises(ps.SpecError, match=r"a PurePosixPath, which is not .* \(write str\(path\)\)"):
        list(ps.from_source([PurePosixPath("a.npy")]))


def test_where_no_element_is_well_an_error_says_that_on_error_was_not_ignored():
    def bad(_):
        raise ValueError("always")

    with pytest.raises(ps.ElementError, match="always") as caught:
        list(ps.range(9).map(bad).batch(3).loader("threads", on_error="skip"))
    assert any("all of the first 9 elements" in note for note in caught.value.__notes__)


def test_a_list_of_dicts_in_an_element_is_a_dict_of_arrays() -> None:
    chats = [{"id": n, "turns": [{"role": "user", "text": "hi" * n}] * n} for n in range(1, 4)]
    ds = ps.from_source(chats)
    text = ps.ArraySpec((None,), "U")
    assert ds.element_spec == {"id": ps.ArraySpec((), "int64"), "turns": {"role": text, "text": text}}
    assert ds[1]["turns"]["text"].tolist() == ["hihi"] * 2
    later = ps.from_source([*chats, {"id": 0, "turns": []}])
    assert later[3]["turns"]["role"].tolist() == []
    batch = later.ragged_batch(4)[0]
    assert batch["turns"]["role"].offsets.tolist() == [0, 1, 3, 6, 6]
    with pytest.raises(ps.SpecError, match="but its element_spec is"):
        list(ps.from_source([*chats, {"id": 0, "turns": [{"role": "a"}]}]))
