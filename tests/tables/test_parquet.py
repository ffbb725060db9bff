import ast
import datetime as dt
import os
import pickle
import re
import struct
import sys
import threading
from decimal import Decimal

import numpy as np
import pytest

import penstock as ps
from penstock.plan import _parted
from penstock.plan._source import Read, limited_nbytes
from penstock.testing import SourceTests
from tests.waits import DEADLINE_S

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from penstock.tables import _columns, _tableread, parquet  # noqa: E402  # they need pyarrow

RNG = np.random.default_rng(0)


def read(opened, indices, out):
    opened.gather([Read(indices, list(out.values()), slice(0, len(indices)))])


COUNT = 23
VECTORS = RNG.random((COUNT, 2, 3), "float32")


def tensors(array):
    return pa.FixedShapeTensorArray.from_numpy_ndarray(array)


def table():
    flat = pa.array(VECTORS.reshape(-1))
    return pa.table(
        {
            "u1": pa.array(np.arange(COUNT, dtype="u1")),
            "f8": pa.array(RNG.random(COUNT)),
            "truth": pa.array([i % 3 == 0 for i in range(COUNT)]),
            "day": pa.array(np.arange(COUNT).astype("M8[D]")),
            "time": pa.array(np.arange(COUNT).astype("M8[us]")),
            "name": pa.array([f"ä{i}" for i in range(COUNT)]),
            "kind": pa.array([f"k{i % 3}" for i in range(COUNT)]).dictionary_encode(),
            "matrix": pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 3), 2),
            "tensor": tensors(VECTORS),
            "digest": pa.array([bytes([i] * 4) for i in range(COUNT)], pa.binary(4)),
        }
    )


def saved(path, content, rows_in_a_group=5):
    if path.suffix == ".parquet":
        pq.write_table(content, path, row_group_size=rows_in_a_group, write_page_checksum=True)
        return path
    options = pa.ipc.IpcWriteOptions(compression="lz4" if "lz4" in path.name else None)
    with pa.ipc.new_file(path, content.schema, options=options) as writer:
        writer.write_table(content, rows_in_a_group)
    return path


def dataset(paths, **options):
    first = paths if not isinstance(paths, list) else paths[0]
    return (ps.from_parquet if str(first).endswith("parquet") else ps.from_arrow)(paths, **options)


class TestTables(SourceTests):
    @pytest.fixture(params=["a.arrow", "lz4.arrow", "two.parquet", "pieces.parquet"])
    def source(self, request, tmp_path, content, monkeypatch):
        path = tmp_path / request.param
        if "pieces" in request.param:  # rows one by one, and columns that are memory of their own
            monkeypatch.setattr(_tableread, "PIECE_NBYTES", 1)
            monkeypatch.setattr(_columns, "MAPPED_NBYTES", 1)
            return dataset(saved(path, content, COUNT))._node.data
        if "two" not in request.param:
            return dataset(saved(path, content))._node.data
        saved(tmp_path / "0.parquet", content[:9])
        saved(tmp_path / "1.parquet", content[9:])
        return dataset(f"{tmp_path}/*.parquet")._node.data

    @pytest.fixture
    def content(self):
        return table()

    @pytest.fixture
    def expected(self, content):
        return {
            **{name: content[name].to_numpy() for name in ("u1", "f8", "truth", "day", "time")},
            **{name: np.array(content[name].to_pylist(), object) for name in ("name", "kind")},
            "matrix": VECTORS,
            "tensor": VECTORS,
            "digest": np.repeat(np.arange(COUNT, dtype="u1"), 4).reshape(COUNT, 4),
        }


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.list_(pa.uint8()), pa.large_list(pa.uint8())])
def test_values_of_any_size(tmp_path, name, kind):
    values = [RNG.bytes(n) for n in (3, 0, 1000, 7, 7, 0, 2)]
    made = pa.array([list(each) if "list" in str(kind) else each for each in values], kind)
    ds = dataset(saved(tmp_path / name, pa.table({"x": made}), 3))
    assert ds.element_spec == {"x": ps.ArraySpec((None,), "uint8")}
    assert [ds[i]["x"].tobytes() for i in (6, 5, 2, 0, 1, 3, 4)] == [values[i] for i in (6, 5, 2, 0, 1, 3, 4)]


def test_lists_of_vectors(tmp_path):
    rows = [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]]
    ds = dataset(saved(tmp_path / "a.parquet", pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.float32(), 2)))}), 2))
    assert ds.element_spec == {"x": ps.ArraySpec((None, 2), "float32")}
    assert [ds[i]["x"].tolist() for i in range(3)] == rows


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_lists_of_byte_strings_of_one_size(tmp_path, name):
    rows = [[b"ab", b"cd"], [b"ef", b"gh"], [b"ij", b"kl"]]
    content = pa.table(
        {"any": pa.array(rows, pa.list_(pa.binary(2))), "two": pa.array(rows, pa.list_(pa.binary(2), 2))}
    )
    ds = dataset(saved(tmp_path / name, content.slice(1), 1))
    assert ds.element_spec == {"any": ps.ArraySpec((None, 2), "uint8"), "two": ps.ArraySpec((2, 2), "uint8")}
    for element, row in zip(ds, rows[1:], strict=True):
        for leaf in element.values():
            assert (leaf.dtype, leaf.shape, leaf.tobytes()) == (np.uint8, (2, 2), b"".join(row))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_lists_of_matrices_are_right_in_a_part_of_a_batch(tmp_path, name, monkeypatch):
    """`take` of pyarrow 26.0.1 gives other matrices."""
    monkeypatch.setattr(_tableread, "PIECE_NBYTES", 100)
    matrix = pa.list_(pa.list_(pa.int64(), 2), 2)
    rows = [[{"m": [[i, k], [-i, -k]]} for k in range(i % 4)] for i in range(23)]
    column = pa.array(rows, pa.list_(pa.struct([("m", matrix)])))
    ds = dataset(saved(tmp_path / name, pa.table({"x": column}).slice(3), 20))
    assert [element["x"]["m"].tolist() for element in ds] == [[each["m"] for each in row] for row in rows[3:]]


TEXTS = [["a", "bc"], ["", "d"], ["e", "a"]]


@pytest.mark.parametrize("name", ["a.arrow", "lz4.arrow", "a.parquet"])
@pytest.mark.parametrize("form", ["text", "large", "views", "dictionary", "structs", "lists of lists"])
def test_lists_of_texts_of_one_size(tmp_path, name, form):
    kind = {"large": pa.large_string(), "views": pa.string_view()}.get(form, pa.string())
    column, right, shape = pa.array(TEXTS, pa.list_(kind, 2)), TEXTS, (2,)
    if form == "dictionary":
        column = pa.FixedSizeListArray.from_arrays(column.flatten().dictionary_encode(), 2)
    elif form == "structs":
        rows = [[{"t": text} for text in texts] for texts in TEXTS]
        column = pa.array(rows, pa.list_(pa.struct([("t", kind)]), 2))
    elif form == "lists of lists":
        column, right, shape = pa.FixedSizeListArray.from_arrays(column.slice(0, 2), 2), [TEXTS[:2]], (2, 2)
    ds = dataset(saved(tmp_path / name, pa.table({"x": column})))

    def column_of(tree):
        return tree["x"]["t"] if form == "structs" else tree["x"]

    assert column_of(ds.element_spec) == ps.ArraySpec(shape, "U")
    assert [column_of(each).tolist() for each in ds] == right
    assert column_of(next(iter(ds.batch(len(right))))).tolist() == right


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_text_in_views(tmp_path, name):
    texts = ["short", "a text of more than twelve bytes", ""]
    ds = dataset(saved(tmp_path / name, pa.table({"x": pa.array(texts, pa.string_view())})))
    assert [element["x"] for element in ds] == texts


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tensors_whose_axes_lie_in_another_order(tmp_path, name):
    kind = pa.fixed_shape_tensor(pa.int32(), (2, 3, 4), permutation=[2, 0, 1])
    values = np.arange(5 * 24, dtype="i4")
    column = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(pa.array(values), 24))
    ds = dataset(saved(tmp_path / name, pa.table({"x": column}), 2))
    assert ds.element_spec == {"x": ps.ArraySpec((4, 2, 3), "int32")}
    np.testing.assert_array_equal(ds.batch(5)[0]["x"], values.reshape(5, 2, 3, 4).transpose(0, 3, 1, 2))


def test_columns_are_those_asked_for_in_their_order(tmp_path):
    ds = dataset(saved(tmp_path / "a.parquet", table()), columns=["f8", "u1"])
    assert list(ds[3]) == ["f8", "u1"]
    ds = dataset(saved(tmp_path / "a.arrow", table()), columns=["name", "u1"])
    assert ds[7] == {"name": "ä7", "u1": 7}


@pytest.fixture
def little_room(monkeypatch):
    """No more is kept than two neighbouring groups."""
    monkeypatch.setattr(_parted, "ROOM_NBYTES", 1)


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_each_row_group_is_decoded_once_in_order(tmp_path, decoded):
    ds = dataset(saved(tmp_path / "small.parquet", table()), columns=["u1"])
    assert np.concatenate([batch["u1"] for batch in ds.batch(3)]).tolist() == list(range(COUNT))
    assert decoded == [0, 1, 2, 3, 4]
    ds = dataset(saved(tmp_path / "large.parquet", table(), COUNT), columns=["u1"])
    with ds.batch(3).loader(executor="threads", workers=2) as loader:
        assert np.concatenate([batch["u1"] for batch in loader]).tolist() == list(range(COUNT))
    assert decoded[5:] == [0]  # threads that need it at once wait for the one that decodes it


@pytest.mark.parametrize(
    ("order", "is_told"),
    [
        (lambda ds: ds.shuffle(seed=1), True),
        (lambda ds: ds.shuffle(seed=1, window=100), False),
        (lambda ds: ds.repeat(2), False),
    ],
    ids=["shuffle", "window", "in order"],
)
@pytest.mark.usefixtures("little_room")
def test_groups_that_are_decoded_for_a_few_rows_are_told_with_the_cure(order, is_told, tmp_path, caplog):
    path = saved(tmp_path / "a.parquet", pa.table({"x": np.arange(2000)}), rows_in_a_group=50)
    with order(ps.from_parquet(path)).batch(4).loader(executor="inline") as loader:
        for _ in loader:
            pass
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == is_told
    if is_told:
        assert re.match("a.parquet: 3[2-9] row groups, of 50 rows on average, were decoded for ", told[0])
        assert "shuffle(seed, window=100)" in told[0]
        assert "ds.materialize(path)" in told[0]


def test_a_table_that_there_is_room_for_is_decoded_once_in_any_order(tmp_path, decoded, caplog):
    path = saved(tmp_path / "a.parquet", pa.table({"x": np.arange(2000)}), rows_in_a_group=50)
    for epochs in (1, 2):
        del decoded[:]
        with ps.from_parquet(path).shuffle(seed=1).repeat(epochs).batch(4).loader(executor="threads") as loader:
            assert sorted(np.concatenate([batch["x"] for batch in loader])) == sorted([*range(2000)] * epochs)
        assert sorted(decoded) == list(range(40))
    assert not caplog.records


def test_what_is_there_is_read_before_others_take_its_place(tmp_path, decoded):
    source = ps.from_parquet(saved(tmp_path / "a.parquet", pa.table({"x": np.arange(1000)}), 100))._node.data
    # 8 of 10 groups, and the memory to decode one.
    opened = source.open()
    opened.part_cache.limit((8.5 * 4096 + 4 * 4096) / source.kept_nbytes)
    out = {"x": np.empty(10, "i8")}
    for _ in range(11):
        read(opened, np.arange(0, 1000, 100), out)
    assert len(decoded) == 10 + 10 * 2


@pytest.mark.usefixtures("little_room")
def test_no_more_is_kept_than_said(tmp_path):
    content = pa.table({"x": np.arange(100_000), "l": pa.array([[i] * (i % 7) for i in range(100_000)])})
    source = dataset(saved(tmp_path / "a.parquet", content, 10_000))._node.data
    sizes = [10_000 * 8 + 8 * 10_001 + 8 * sum(max(1, i % 7) for i in range(at, at + 10_000)) for at in (0, 10_000)]
    assert source.groups.nbytes.tolist()[:2] == sizes, "the footer knows"
    nbytes, work = source.groups.nbytes, source.groups.work_nbytes
    assert source.kept_nbytes == max(nbytes[:-1] + nbytes[1:]) + max(work) <= 6 * max(nbytes)
    assert pickle.loads(pickle.dumps(source)).kept_nbytes == source.kept_nbytes
    opened, out = source.open(), {"x": np.empty(100, "i8"), "l": np.empty(100, object)}
    for at in range(0, 100_000, 5000):
        read(opened, np.arange(at, at + 100), out)
        assert out["x"].tolist() == list(range(at, at + 100))
        assert [len(each) for each in out["l"]] == [i % 7 for i in range(at, at + 100)]
        assert opened.part_cache.nbytes <= source.kept_nbytes
    opened.close()
    assert not opened.part_cache.nbytes


def test_less_is_kept_where_it_is_asked_for(tmp_path):
    source = dataset(saved(tmp_path / "a.parquet", pa.table({"x": np.arange(100_000)}), 10_000))._node.data
    assert source.kept_nbytes == 100_000 * 8 + 4 * 80_000
    assert limited_nbytes(source, 0.5) == 560_000
    assert limited_nbytes(source, 0) == 5 * 80_000, "one group, and what it takes to decode it"
    opened, out = source.open(), {"x": np.empty(10, "i8")}
    opened.part_cache.limit(0.5)
    for _ in range(2):
        read(opened, np.arange(0, 100_000, 10_000), out)
        assert opened.part_cache.nbytes <= 560_000


@pytest.mark.parametrize("kind", ["text", "bytes", "list", "nulls", "field"])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_text_that_rows_share_is_in_memory_once(tmp_path, kind, name):
    """A small file may repeat a long text very often."""
    count, long = 500, "ä" * 200_000
    rows = [long if i % 2 else "short" for i in range(count)]
    words = pa.DictionaryArray.from_arrays(pa.array([i % 2 for i in range(count)], pa.int32()), ["short", long])
    column = {
        "text": words,
        "bytes": words.cast(pa.dictionary(pa.int32(), pa.binary())),
        "list": pa.ListArray.from_arrays(np.arange(count + 1, dtype="i4"), words),
        "nulls": pa.DictionaryArray.from_arrays(
            pa.array([None] + [i % 2 for i in range(1, count)], pa.int32()), ["short", long]
        ),
        "field": pa.StructArray.from_arrays([words], ["t"]),
    }[kind]
    content = pa.table({"x": column})
    if name == "a.parquet":
        pq.write_table(content, tmp_path / name, compression="zstd")
        assert (tmp_path / name).stat().st_size < 10_000
    else:
        saved(tmp_path / name, content, count)
    source = dataset(tmp_path / name, fill_null="short" if kind == "nulls" else None)._node.data
    opened, out = source.open(), {"x": np.empty(6, object)}
    before = pa.default_memory_pool().bytes_allocated()
    indices = np.array([1, 0, 499, 7, 2, 1])
    read(opened, indices, out)
    found = [each.tobytes().decode() if kind == "bytes" else each[0] if kind == "list" else each for each in out["x"]]
    assert found == [rows[i] for i in indices]
    if kind in ("text", "nulls", "field"):
        assert out["x"][0] is out["x"][2]
    assert opened.part_cache.nbytes < source.kept_nbytes < 8 << 20
    assert pa.default_memory_pool().bytes_allocated() - before < 8 << 20


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_the_size_of_decompressed_batches_is_known_from_their_rows(tmp_path, monkeypatch, compression):
    content = pa.table({"x": np.zeros(40_000), "k": pa.array(["a", "b"] * 20_000).dictionary_encode()})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(tmp_path / "a.arrow", content.schema, options=options) as writer:
        writer.write_table(content[:10], 10)
        writer.write_table(content[10:])
    monkeypatch.setattr(_parted, "ROOM_NBYTES", 1 << 10)
    source = ps.from_arrow(tmp_path / "a.arrow", columns=["x"])._node.data
    if compression is None:
        assert source.groups.nbytes.tolist() == [parquet.COLUMN_NBYTES] * 2
    else:
        assert (tmp_path / "a.arrow").stat().st_size < 20_000
        assert source.groups.nbytes[1] >= 39_990 * 8
        text = r"is what sources keep in memory.*The source that keeps most is a\.arrow\."
        with pytest.raises(ps.MemoryLimitError, match=text):
            ps.from_arrow(tmp_path / "a.arrow").batch(4).loader(executor="threads", memory_limit=200_000)


def test_compressed_columns_that_are_not_read_cost_no_memory(tmp_path, monkeypatch):
    content = pa.table({"x": np.arange(1000), "big": np.zeros((1 << 20,))[:1000], "t": ["a" * 10_000] * 1000})
    with pa.ipc.new_file(
        tmp_path / "a.arrow", content.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(content)
    monkeypatch.setattr(_parted, "ROOM_NBYTES", 1 << 20)
    ds = ps.from_arrow(tmp_path / "a.arrow", columns=["x"])
    assert ds._node.data.groups.nbytes.tolist() == [8000]
    opened, out = ds._node.data.open(), {"x": np.empty(1, "i8")}
    before = pa.default_memory_pool().bytes_allocated()
    read(opened, np.array([7]), out)
    assert out["x"].tolist() == [7]
    assert pa.default_memory_pool().bytes_allocated() - before < 100_000
    assert ps.from_arrow(tmp_path / "a.arrow")._node.data.groups.nbytes[0] > 10_000_000


@pytest.mark.parametrize("where", [0.2, 0.5, 0.8])
def test_a_damaged_footer_is_an_error_that_names_the_file(tmp_path, where):
    """Of values of one size. Of others pyarrow may end the process."""
    path = saved(tmp_path / "a.parquet", pa.table({"x": [1, 2] * 9, "f": [0.5] * 18}))
    whole = path.read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    place = len(whole) - 8 - size + int(size * where)
    for value in range(0, 256, 5):
        path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            found = [element["x"] for element in ps.from_parquet(path)]
        except ps.PenstockError as error:
            assert "a.parquet" in str(error)  # noqa: PT017  # or the rows
        else:
            assert len(found) == 18 or found


@pytest.mark.parametrize("levels", [b"\x36\x9a\x01\x42\x02", b"\x16\xba\x01"])
def test_counts_of_levels_that_do_not_fit_a_column_are_an_error_that_names_the_file(tmp_path, levels):
    path = saved(tmp_path / "a.parquet", pa.table({"x": [None] * 77 + [5] * 33, "y": range(110)}), 110)
    whole, two_counts = path.read_bytes(), b"\x26\x9a\x01\x42"  # a list of 77 and 33, in Thrift's compact protocol
    at, size = whole.rindex(two_counts), int.from_bytes(whole[-8:-4], "little") + len(levels) - len(two_counts)
    path.write_bytes(whole[:at] + levels + whole[at + len(two_counts) : -8] + size.to_bytes(4, "little") + whole[-4:])
    with pytest.raises(ps.SourceError, match=r"a\.parquet cannot be read: Definition level histogram size mismatch"):
        list(ps.from_parquet(path, fill_null={"x": 5}))
    assert ps.from_parquet(path, columns=["y"])[109] == {"y": 109}


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_without_row_groups_has_no_elements(tmp_path, name):
    schema = pa.schema([("x", pa.int64()), ("t", pa.string())])
    with (pq.ParquetWriter if name == "a.parquet" else pa.ipc.new_file)(str(tmp_path / name), schema):
        pass
    ds = dataset(tmp_path / name)
    assert ds.element_spec == {"x": ps.ArraySpec((), "int64"), "t": ps.ArraySpec((), "U")}
    assert len(ds) == 0
    assert list(ds) == []
    saved(tmp_path / f"b{name}", pa.table({"x": [1], "t": ["a"]}))
    assert list(dataset([tmp_path / name, tmp_path / f"b{name}", tmp_path / name])) == [{"x": 1, "t": "a"}]


@pytest.mark.parametrize("column", ["x", "t", "k", "l"])
def test_pages_with_fewer_rows_than_the_footer_says_are_damage(tmp_path, column):
    content = pa.table({"x": range(77), "t": map(str, range(77)), "k": ["a", "b"] * 38 + ["a"], "l": [[1]] * 77})
    pq.write_table(content, tmp_path / "a.parquet", use_dictionary=["k"], write_statistics=False)
    whole = (tmp_path / "a.parquet").read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    footer = whole[-8 - size :].replace(b"\x9a\x01", b"\x9c\x01")  # 77 and 78, in Thrift's compact protocol
    (tmp_path / "a.parquet").write_bytes(whole[: -8 - size] + footer)
    ds = ps.from_parquet(tmp_path / "a.parquet", columns=[column])
    assert len(ds) == 78
    for index in (0, 77):
        with pytest.raises(
            ps.SourceError, match=r"a\.parquet (is damaged: (the pages .* \(77\).*\(78\)|in row group)|cannot be read)"
        ):
            ds[index]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_names_of_fields_that_are_no_text_are_an_error_that_names_the_file(tmp_path, name):
    path = saved(tmp_path / name, pa.table({"x": [{"qzqz": 1, "o": [{"zqzq": 2}]}]}))
    whole = path.read_bytes()
    for field in (b"qzqz", b"zqzq"):
        path.write_bytes(whole.replace(field, b"\xff" + field[1:]))
        with pytest.raises(ps.SourceError, match=rf"{name} cannot be read: .*codec can't decode byte 0xff"):
            _ = dataset(path).element_spec


def test_lists_of_a_negative_size_are_an_error_that_names_the_file(tmp_path):
    path = saved(tmp_path / "a.arrow", pa.table({"x": pa.array([[0] * 77] * 3, pa.list_(pa.int8(), 77))}))
    whole = path.read_bytes()
    at = whole.rindex((77).to_bytes(4, "little"))  # in the schema of the footer
    path.write_bytes(whole[:at] + (-77).to_bytes(4, "little", signed=True) + whole[at + 4 :])
    with pytest.raises(ps.SpecError, match=r"a\.arrow: .*-77"):
        _ = ps.from_arrow(path).element_spec


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_a_thread_waits_until_there_is_room_for_what_it_needs(tmp_path, monkeypatch):
    source = dataset(saved(tmp_path / "a.parquet", pa.table({"x": np.arange(3000)}), 1000))._node.data
    opened = source.open()
    opened.part_cache.limit(0)
    began, waits, done = [], threading.Event(), threading.Event()
    read_group = parquet.read_group
    monkeypatch.setattr(parquet, "read_group", lambda *what: began.append(what[1]) or read_group(*what))

    class Condition(threading.Condition):
        def wait(self, timeout=None):
            waits.set()
            return super().wait(timeout)

    opened.part_cache._let_go = Condition()
    out = {"x": np.empty(1, "i8")}

    def read_in_thread():
        read(opened, np.array([2500]), out)
        done.set()

    thread = threading.Thread(target=read_in_thread)
    with opened.part_cache.use(0):
        thread.start()
        assert waits.wait(DEADLINE_S)
        assert began == [0]
    assert done.wait(DEADLINE_S)
    thread.join()
    assert out["x"].tolist() == [2500]
    assert [opened.part_cache.is_there(part) for part in range(3)] == [False, False, True]


def test_structs_of_a_dictionary_have_their_fields(tmp_path):
    structs = pa.array([{"a": "x", "b": 1}, {"a": "y", "b": 2}])
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), structs)
    ds = dataset(saved(tmp_path / "a.arrow", pa.table({"x": column})), fill_null={"x.a": "-", "x.b": -1})
    assert [element["x"] for element in ds] == [{"a": "y", "b": 2}, {"a": "x", "b": 1}, {"a": "-", "b": -1}]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.usefixtures("leaves_nothing_behind")
def test_null_is_an_error_that_names_row_and_column(tmp_path, name):
    group = "row group" if name == "a.parquet" else "record batch"
    for column in (
        pa.array([1, 2, 3, 4, None]),
        pa.array(["a", "b", "c", "d", None]),
        pa.array([[1], [2], [3], [4], None]),
        pa.array([b"a", b"b", b"c", b"d", None]),
        pa.array(["a", "b", "c", "d", None]).dictionary_encode(),
        pa.array([[1], [], [3, 4, 5], [4], [5, 6, None]]),
        pa.array([[[1, 2]]] * 4 + [[[3, None]]], pa.list_(pa.list_(pa.int8(), 2), 1)),
    ):
        ds = dataset(saved(tmp_path / name, pa.table({"y": np.arange(5), "x": column}), 3))
        assert ds[2]["y"] == 2
        text = rf"{name} {group} 1 row 1 has no value in column 'x': it is null, .* columns=\[\.\.\.\]"
        with pytest.raises(ps.SourceError, match=text) as caught:
            ds[3]
        advised = re.search(r"fill_null=(\{.*?\})", str(caught.value))
        assert advised is not None
        filled = dataset(tmp_path / name, fill_null=ast.literal_eval(advised[1]))
        assert [element["y"] for element in filled] == [*range(5)]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (
            pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            r"column 'x' is map<string.*>, which is no array .* Leave it out with columns=",
        ),
        (pa.array([[b"a"]]), r"a\.parquet: column 'x' is list<.*binary>, which is no array"),
        (pa.array([{"a": [[b"a"]]}]), r"column 'x.a' is list<.*list<.*binary>>, which is no array"),
        (pa.array([dt.time(1)]), r"a\.parquet: column 'x' is time64.* dtypes=\{'x': 'int64'\}"),
        (pa.array([Decimal("1.50")]), r"a\.parquet: column 'x' is decimal128.* dtypes=\{'x': 'float64'\}"),
        (pa.nulls(1), r"a\.parquet: column 'x' has no value in any row.* fill_null=\{'x': 0\.0\}"),
    ],
)
def test_columns_that_are_no_arrays_are_refused(tmp_path, column, text):
    saved(tmp_path / "a.parquet", pa.table({"y": [1], "x": column}))
    with pytest.raises(ps.SpecError, match=text):
        ps.from_parquet(tmp_path / "a.parquet")
    assert ps.from_parquet(tmp_path / "a.parquet", columns=["y"])[0] == {"y": 1}


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_types_are_the_least_that_hold_every_file_and_a_column_that_one_lacks_is_null(tmp_path, kind, caplog):
    saved(tmp_path / f"0.{kind}", pa.table({"x": pa.array([1], pa.int32()), "s": pa.array([{"a": 1}])}))
    saved(tmp_path / f"1.{kind}", pa.table({"y": ["b"], "x": [1.5], "s": pa.array([{"a": 2, "b": [True]}])}))
    saved(tmp_path / f"2.{kind}", pa.table({"x": pa.array([7], pa.int8())}))
    ds = dataset(f"{tmp_path}/*.{kind}", fill_null={"y": "", "s.a": -1, "s.b": False})
    assert ds.element_spec["x"] == ps.ArraySpec((), "float64")
    assert [(float(e["x"]), e["y"], int(e["s"]["a"]), e["s"]["b"].tolist()) for e in ds] == [
        (1, "", 1, []),
        (1.5, "b", 2, [True]),
        (7, "", -1, []),
    ]
    with ds.select("x").batch(3).loader(executor="threads") as loader:
        assert [batch["x"].tolist() for batch in loader] == [[1, 1.5, 7]]
    (line,) = [record.getMessage() for record in caplog.records]  # selections say no more
    assert line.startswith(
        f"from_{kind}(): files differ. {tmp_path}/0.{kind} has column 'x' as int32, read as double; "
    )
    assert f"{tmp_path}/0.{kind} has no column 'y', which is null then" in line
    with pytest.raises(
        ps.SourceError, match=rf"0\.{kind} .* row 0 has no value in column 'y': its file has no such column"
    ):
        dataset(f"{tmp_path}/*.{kind}", columns=["y"])[0]
    assert dataset(f"{tmp_path}/*.{kind}", columns=["y"], null_masks=["y"])[0] == {"y": "", "y_is_null": True}
    assert dataset(f"{tmp_path}/*.{kind}", columns=["x"], dtypes={"x": "int16"}, fill_null=0)[0] == {"x": 1}


def test_the_line_about_files_that_differ_says_what_is_so_in_the_names_of_arrow(tmp_path, caplog):
    first = {"x": pa.array([1], pa.int32()), "l": [[1]], "t": pa.array([1], pa.timestamp("ms", "UTC")), "s": [{"a": 1}]}
    second = {"x": [1.5], "l": [[0.5]], "t": pa.array([1], pa.timestamp("us", "UTC")), "s": [{"a": 0.5}]}
    saved(tmp_path / "0.parquet", pa.table(first))
    saved(tmp_path / "1.parquet", pa.table(second))
    ps.from_parquet(f"{tmp_path}/*")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.replace(f"{tmp_path}/", "") == (
        "from_parquet(): files differ. 0.parquet has column 'x' as int32, read as double; 0.parquet has "
        "column 'l' as list<element: int64>, read as list<item: double>; 0.parquet has column 't' as timestamp[ms, "
        "tz=UTC], read as timestamp[us, tz=UTC]; 0.parquet has column 's' as struct<a: int64>, read as struct<a: "
        "double>."
    )


@pytest.mark.parametrize("kind", ["a.arrow", "a.parquet"])
def test_a_value_that_cannot_be_cast_is_told_with_the_remedy(tmp_path, kind):
    path = saved(tmp_path / kind, pa.table({"x": [1, 300]}))
    text = r"row 1 .* does not fit \(\) int8: Integer value 300 not in range.*dtypes=\{'x': \"U\"\} for text\."
    with pytest.raises(ps.SourceError, match=text):
        dataset(path, dtypes={"x": "int8"})[1]
    saved(tmp_path / f"b{kind[1:]}", pa.table({"x": [2**53 + 1]}))
    saved(tmp_path / f"c{kind[1:]}", pa.table({"x": [0.5]}))
    both = [tmp_path / f"b{kind[1:]}", tmp_path / f"c{kind[1:]}"]
    verb = ps.from_arrow if kind == "a.arrow" else ps.from_parquet
    with pytest.raises(
        ps.SourceError, match=r"such as dtypes=\{'x': \"float64\"\}, or .*\"U\"\} for text\..* may round"
    ):
        verb(both)[0]
    assert verb(both, dtypes={"x": "float64"})[0]["x"] == 2.0**53
    assert [element["x"] for element in verb(both, dtypes={"x": "U"})] == ["9007199254740993", "0.5"]


def test_files_without_a_common_type_are_refused_with_the_argument(tmp_path):
    saved(tmp_path / "0.parquet", pa.table({"x": [1]}))
    saved(tmp_path / "1.parquet", pa.table({"x": ["a"]}))
    text = (
        r"no type holds column 'x' of all files: .*0\.parquet and .* int64 there, and string in .*1\.parquet.*dtypes="
    )
    with pytest.raises(ps.SpecError, match=text):
        ps.from_parquet(f"{tmp_path}/*")
    assert [element["x"] for element in ps.from_parquet(f"{tmp_path}/*", dtypes={"x": "U"})] == ["1", "a"]
    for column in (pa.array([2**63], pa.uint64()), pa.array([Decimal(10**37 + 1)], pa.decimal128(38, 0))):
        saved(tmp_path / "1.parquet", pa.table({"x": column}))
        with pytest.raises(ps.SpecError, match="no type holds column 'x' of all files"):
            ps.from_parquet(f"{tmp_path}/*")
    saved(tmp_path / "0.parquet", pa.table({"x": [0.5]}))
    with pytest.raises(ps.SpecError, match="no type holds column 'x' of all files"):
        ps.from_parquet(f"{tmp_path}/*")


UNITS = {
    "times": (pa.array([1], pa.timestamp("ms")), pa.array([1], pa.timestamp("us")), [1000, 1]),
    "zoned times": (
        pa.array([1], pa.timestamp("s", "UTC")),
        pa.array([1], pa.timestamp("ms", "Asia/Tokyo")),
        [1000, 1],
    ),
    "durations": (pa.array([1], pa.duration("s")), pa.array([1], pa.duration("ms")), [1000, 1]),
    "times of a day": (pa.array([1], pa.time32("s")), pa.array([1], pa.time64("us")), [1_000_000, 1]),
    "days": (pa.array([1], pa.date32()), pa.array([1], pa.timestamp("ms")), [86_400_000, 1]),
    "lists": (
        pa.array([[1]], pa.list_(pa.time32("ms"))),
        pa.array([[1]], pa.list_(pa.time64("ns"))),
        [[1_000_000], [1]],
    ),
    "structs in lists": (
        pa.array([[{"n": 1}]], pa.list_(pa.struct([("n", pa.timestamp("ms"))]))),
        pa.array([[{"n": 1}]], pa.list_(pa.struct([("n", pa.timestamp("us"))]))),
        [[1000], [1]],
    ),
    "kinds": (
        pa.array([1], pa.timestamp("ms")).dictionary_encode(),
        pa.array([1], pa.timestamp("us")).dictionary_encode(),
        [1000, 1],
    ),
    "a file without values": (pa.nulls(1), pa.array([7], pa.timestamp("us")), [0, 7]),
}


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize("name", UNITS)
def test_numbers_of_times_have_the_finest_unit_of_all_files(tmp_path, kind, dtype, name):
    first, second, want = UNITS[name]
    for number, column in enumerate((first, second)):
        saved(tmp_path / f"{number}.{kind}", pa.table({"x": column}))
    leaf = "x.n" if name == "structs in lists" else "x"
    ds = dataset(f"{tmp_path}/*.{kind}", dtypes={leaf: dtype}, fill_null={leaf: 0})
    found = [element["x"]["n"] if "." in leaf else element["x"] for element in ds]
    assert [each.dtype for each in found] == [np.dtype(dtype)] * 2
    assert [each.tolist() for each in found] == want


@pytest.mark.parametrize("dtype", ["int64", "float32", "M8[us]"])
@pytest.mark.parametrize(
    ("column", "text"),
    [
        (
            pa.array([1], pa.timestamp("us", "UTC")),
            r"timestamp\[us\] there, and timestamp\[us, tz=UTC\] in .*1\.parquet",
        ),
        (pa.array([1], pa.duration("us")), r"timestamp\[us\] there, and duration\[us\] in .*1\.parquet"),
    ],
)
def test_times_of_two_kinds_make_no_numbers_together(tmp_path, dtype, column, text):
    saved(tmp_path / "0.parquet", pa.table({"x": pa.array([1], pa.timestamp("us"))}))
    saved(tmp_path / "1.parquet", pa.table({"x": column}))
    with pytest.raises(
        ps.SpecError, match=rf"no type holds column 'x' of all files: .*{text}\. Say .*\"U\"\}} for text"
    ):
        ps.from_parquet(f"{tmp_path}/*", dtypes={"x": dtype})
    assert ps.from_parquet(f"{tmp_path}/*", dtypes={"x": "U"})[0] == {"x": "1970-01-01 00:00:00.000001"}


def test_numbers_and_times_make_no_numbers_together(tmp_path):
    saved(tmp_path / "0.parquet", pa.table({"x": [1]}))
    saved(tmp_path / "1.parquet", pa.table({"x": pa.array([1], pa.timestamp("us"))}))
    with pytest.raises(
        ps.SpecError, match=r"no type holds column 'x' of all files: .*int64 there, and timestamp\[us\]"
    ):
        ps.from_parquet(f"{tmp_path}/*", dtypes={"x": "int64"})


VALUES = {
    "decimal as float": (pa.array([Decimal("1.50"), None]), "float64", np.float64(1.5)),
    "decimal as text": (pa.array([Decimal("1.50"), None]), "U", "1.50"),
    "decimal as integer": (pa.array([Decimal("7.00"), None]), "int32", np.int32(7)),
    "time as text": (pa.array([dt.time(1, 2, 3), None]), "U", "01:02:03.000000"),
    "time as integer": (pa.array([dt.time(0, 0, 1), None]), "int64", np.int64(1_000_000)),
    "short time": (pa.array([61, None], pa.time32("ms")), "int64", np.int64(61)),
    "time as duration": (pa.array([61, None], pa.time32("ms")), "m8[ms]", np.timedelta64(61, "ms")),
    "nothing": (pa.nulls(2), "float32", None),
    "kinds": (pa.array(["7", None]).dictionary_encode(), "int64", np.int64(7)),
    "list": (pa.array([[Decimal("1.5")], None]), "float32", np.array([1.5], "f4")),
}


@pytest.mark.parametrize("kind", ["a.arrow", "a.parquet"])
@pytest.mark.parametrize("name", VALUES)
def test_columns_without_a_dtype_are_read_as_the_user_says(tmp_path, name, kind):
    column, dtype, want = VALUES[name]
    fill = "" if dtype == "U" else np.timedelta64(0, "ms") if dtype[0] == "m" else 0
    ds = dataset(saved(tmp_path / kind, pa.table({"v": column})), dtypes={"v": dtype}, fill_null=fill)
    found = ds[0]["v"]
    if want is None:
        assert ds.element_spec == {"v": ps.ArraySpec((), dtype)}
        return
    assert np.asarray(found).dtype.kind == np.asarray(want).dtype.kind
    np.testing.assert_array_equal(found, want)


COLUMNS = {
    "integers": pa.array([5]),
    "floats": pa.array([5.0]),
    "truth": pa.array([True]),
    "text": pa.array(["5"]),
    "views": pa.array(["5"], pa.string_view()),
    "bytes": pa.array([b"5"]),
    "bytes of one size": pa.array([b"5"], pa.binary(1)),
    "decimals": pa.array([Decimal(5)]),
    "times": pa.array([5], pa.timestamp("us")),
    "zoned times": pa.array([5], pa.timestamp("us", "UTC")),
    "days": pa.array([5], pa.date32()),
    "times of a day": pa.array([5], pa.time32("ms")),
    "durations": pa.array([5], pa.duration("ns")),
    "kinds": pa.array([5], pa.timestamp("us")).dictionary_encode(),
    "lists": pa.array([[5]], pa.list_(pa.timestamp("us"))),
    "lists of times of a day": pa.array([[5]], pa.list_(pa.time64("us"))),
    "structs": pa.array([{"a": 5}]),
    "tensors": tensors(np.ones((1, 2, 2), "f4")),
}
DTYPES = ["int64", "int32", "uint8", "float64", "float32", "float16", "bool", "M8[us]", "M8[D]", "m8[us]", "U"]


@pytest.mark.parametrize("kind", ["a.arrow", "a.parquet"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_dtype_is_refused_at_once_or_can_be_read(tmp_path, name, kind):
    path, done = saved(tmp_path / kind, pa.table({"x": COLUMNS[name]})), set()
    for dtype in DTYPES:
        words = ""
        try:
            found = np.asarray(dataset(path, dtypes={"x": dtype})[0]["x"])
        except (ps.SpecError, ps.SourceError) as error:
            words = f"{type(error).__name__}: {error}"
        if words:
            assert re.match(
                r"SpecError: .*column 'x' .*is .*(no value can be read as|is no array of)|"
                r"SourceError: .* row 0 cannot be read: .*(Failed to parse|would lose data|would become)",
                words,
            )
            continue
        assert found.dtype.kind == np.dtype(dtype).kind
        if dtype[0] in "iuf":
            assert found.ravel().tolist() in ([5], [1])
        done.add(dtype)
    if name in ("times", "zoned times", "days", "durations", "kinds", "lists", "lists of times of a day"):
        assert done >= {"int64", "int32", "uint8", "float64", "float32", "float16", "U"}


def test_a_dtype_is_refused_for_the_file_whose_values_cannot_be_read_so(tmp_path):
    saved(tmp_path / "0.parquet", pa.table({"x": [1]}))
    saved(tmp_path / "1.parquet", pa.table({"x": [True]}))
    text = r"\(dtypes=\): column 'x' of .*1\.parquet is bool, of which no value can be read as datetime64\[us\]"
    with pytest.raises(ps.SpecError, match=text):
        ps.from_parquet(f"{tmp_path}/*", dtypes={"x": "M8[us]"})


def test_a_number_of_a_time_that_does_not_fit_is_named_with_its_row(tmp_path):
    times = pa.array([5, 2**40, 5], pa.timestamp("us"))
    for path in (
        saved(tmp_path / "a.parquet", pa.table({"x": times})),
        saved(tmp_path / "a.arrow", pa.table({"x": times})),
    ):
        ds = dataset(path, dtypes={"x": "int32"})
        with pytest.raises(
            ps.SourceError, match=r"row 1 cannot be read: its column 'x' is timestamp\[us\] there, and does"
        ):
            list(ds)
    assert dataset(path, dtypes={"x": "float32"})[1]["x"] == np.float32(2**40)


def test_a_value_that_does_not_fit_its_dtype_is_named(tmp_path):
    path = saved(tmp_path / "a.parquet", pa.table({"v": [Decimal("1.00"), Decimal("1.50"), Decimal("2.00")]}))
    with pytest.raises(ps.SourceError, match=r"a\.parquet row group 0 row 1 cannot be read: its column 'v' is decimal"):
        ps.from_parquet(path, dtypes={"v": "int64"})[0]
    with pytest.raises(ps.ArgumentTypeError, match="'V3' of 'v' is no dtype"):
        ps.from_parquet(path, dtypes={"v": "V3"})


@pytest.mark.parametrize("kind", ["a.arrow", "a.parquet"])
def test_a_column_of_nulls_has_the_type_of_what_stands_in(tmp_path, kind):
    content = pa.table({"n": pa.nulls(2), "l": pa.array([[], []])})
    for fill, want in ((0.5, np.float64(0.5)), (7, np.int64(7)), ("a", "a"), (True, np.True_)):
        found = dataset(saved(tmp_path / kind, content), columns=["n"], fill_null=fill)[1]["n"]
        assert (np.asarray(found).dtype.kind, found) == (np.asarray(want).dtype.kind, want)
    assert dataset(tmp_path / kind, null_masks=["n"])[0]["n_is_null"] == np.True_
    assert dataset(tmp_path / kind, columns=["l"])[0]["l"].tolist() == []


@pytest.mark.parametrize("kind", ["a.arrow", "a.parquet"])
def test_lists_of_lists_are_arrays_where_they_are_as_long_as_each_other(tmp_path, kind):
    numbers, texts = [[[1, 2], [3, 4]], [], [[], []], [[5], [6, 7]]], [[["a"], ["b"]], [[]], [["c", "d"]], [["e"], []]]
    ds = dataset(saved(tmp_path / kind, pa.table({"x": numbers, "t": texts}), 3))
    assert ds.element_spec == {"x": ps.ArraySpec((None, None), "int64"), "t": ps.ArraySpec((None, None), "U")}
    assert [(e["x"].tolist(), e["x"].shape) for e in ds[:3]] == [
        ([[1, 2], [3, 4]], (2, 2)),
        ([], (0, 0)),
        ([[], []], (2, 0)),
    ]
    assert [(e["t"].tolist(), e["t"].dtype.kind) for e in ds[:3]] == [
        ([["a"], ["b"]], "U"),
        ([[]], "U"),
        ([["c", "d"]], "U"),
    ]
    with pytest.raises(
        ps.SourceError, match=r"row 0 cannot be read: its column 'x' has lists of differing lengths \(1 to 2"
    ):
        ds[3]


@pytest.mark.parametrize("kind", ["a.arrow", "a.parquet"])
def test_what_is_no_text_is_named(tmp_path, kind):
    bad = pa.array([b"ok", b"\xff\xfe", b"x"]).view(pa.string())
    ds = dataset(saved(tmp_path / kind, pa.table({"t": bad, "l": pa.ListArray.from_arrays([0, 1, 2, 3], bad)}), 5))
    assert ds.select("t")[2] == {"t": "x"}
    with pytest.raises(
        ps.SourceError, match=rf"{kind} .* row 1 cannot be read: its column 't' is no text in UTF-8: inva"
    ):
        ds[:3].select("t").batch(3)[0]
    with pytest.raises(ps.SourceError, match=r" row 1 cannot be read: its column 'l' is no text in UTF-8"):
        list(ds.select("l"))


def test_wrong_columns_are_refused(tmp_path):
    saved(tmp_path / "a.parquet", pa.table({"x": [1]}))
    with pytest.raises(ps.ArgumentError, match=r"from_parquet\(columns=\): .* has no column 'y'; it has \['x'\]"):
        ps.from_parquet(tmp_path / "a.parquet", columns=["y"])
    with pytest.raises(ps.ArgumentTypeError, match=r"from_parquet\(columns=\) is a list of names, got a str"):
        ps.from_parquet(tmp_path / "a.parquet", columns="x")
    with pytest.raises(ps.ArgumentError, match=r"needs at least one column"):
        ps.from_parquet(tmp_path / "a.parquet", columns=[])
    with pytest.raises(ps.ArgumentError, match=r"the column 'x' would come twice, .* Name each once"):
        ps.from_parquet(tmp_path / "a.parquet", columns=["x", "x"])
    saved(tmp_path / "b.parquet", pa.table([[1], [2], [3]], names=["x", "y", "x"]))
    with pytest.raises(ps.ArgumentError, match=r"the column 'x' would come twice"):
        ps.from_parquet(tmp_path / "b.parquet")
    assert ps.from_parquet(tmp_path / "b.parquet", columns=["y"])[0] == {"y": 2}


@pytest.mark.parametrize("kind", ["a.arrow", "a.parquet"])
def test_fields_of_one_name_are_refused(tmp_path, kind):
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(ps.SpecError, match=rf"{kind}: column 's' has two fields 'a'"):
        dataset(saved(tmp_path / kind, pa.table({"s": twice})))


def test_other_formats_are_told_apart(tmp_path):
    saved(tmp_path / "a.parquet", pa.table({"x": [1]}))
    saved(tmp_path / "a.arrow", pa.table({"x": [1]}))
    with pytest.raises(ps.SourceError, match=r"a\.parquet cannot be read: Not an Arrow file"):
        ps.from_arrow(tmp_path / "a.parquet")
    with pytest.raises(ps.SourceError, match=r"a\.arrow cannot be read: .*not a parquet file"):
        ps.from_parquet(tmp_path / "a.arrow")
    with pa.ipc.new_stream(tmp_path / "stream", pa.schema([("x", pa.int64())])) as writer:
        writer.write_table(pa.table({"x": [1]}))
    with pytest.raises(
        ps.SourceError,
        match=r"stream cannot be read: Not an Arrow file.* A stream of Arrow .* write it",
    ):
        ps.from_arrow(tmp_path / "stream")
    (tmp_path / "text").write_text("a,b\n")
    with pytest.raises(ps.SourceError, match=r"text cannot be read: "):
        ps.from_parquet(tmp_path / "text")


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_damage_is_an_error_that_names_the_file(tmp_path):
    path = saved(tmp_path / "a.parquet", pa.table({"x": RNG.random(1000)}), 500)
    whole = bytearray(path.read_bytes())
    path.write_bytes(whole[:-20])
    with pytest.raises(ps.SourceError, match=r"a\.parquet cannot be read: "):
        ps.from_parquet(path)
    whole[len(whole) // 3] ^= 1
    path.write_bytes(whole)
    ds = ps.from_parquet(path)
    with pytest.raises(ps.SourceError, match=r"a\.parquet cannot be read: .*CRC"):
        list(ds)


DAMAGES = {
    "text": (pa.array(["ab", "cd", "ef"]), struct.pack("<iiii", 0, 2, 4, 6), struct.pack("<iiii", 0, 2, 1 << 30, 6)),
    "falling": (pa.array(["ab", "cd", "ef"]), struct.pack("<iiii", 0, 2, 4, 6), struct.pack("<iiii", 0, 6, 4, 6)),
    "list": (pa.array([[7], [8], [9]]), struct.pack("<iiii", 0, 1, 2, 3), struct.pack("<iiii", 0, 1, 2, 99)),
    "texts": (pa.array([["ab"], ["cd"], []]), struct.pack("<iiii", 0, 1, 2, 2), struct.pack("<iiii", 0, 9, 2, 2)),
    "kinds": (
        pa.array(["ab", "cd", "ab"]).dictionary_encode(),
        struct.pack("<iii", 0, 1, 0),
        struct.pack("<iii", 0, 9, 0),
    ),
    "field": (
        pa.array([{"a": "ab"}, {"a": "cd"}, {"a": "ef"}]),
        struct.pack("<iiii", 0, 2, 4, 6),
        struct.pack("<iiii", 0, -2, 4, 6),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("fill", [None, 0])
def test_offsets_that_lie_outside_are_damage_that_names_the_file(tmp_path, name, fill):
    column, whole, damaged = DAMAGES[name]
    path = saved(tmp_path / "a.arrow", pa.table({"x": pa.array([1, 2, 3]), "v": column}))
    content = path.read_bytes()
    assert whole in content
    path.write_bytes(content.replace(whole, damaged))
    assert dataset(path, columns=["x"])[2] == {"x": 3}
    with pytest.raises(
        ps.SourceError, match=r"a\.arrow is damaged: column 'v' of record batch 0 is not what it should be"
    ):
        dataset(path, fill_null=fill)[0]


@pytest.mark.parametrize("name", ["x", "t", "l", "lt"])
@pytest.mark.parametrize("left", [0.9, 0.5, 0.001])
def test_a_mapped_file_that_becomes_shorter_is_an_error(tmp_path, name, left):
    """Never a signal, and never the zeros that lie behind the end of a file in memory."""
    count = 20_000
    texts = [f"text {i}" for i in range(count)]
    columns = {
        "x": np.arange(1, count + 1),
        "t": texts,
        "l": [[i, i] for i in range(count)],
        "lt": [[t, t] for t in texts],
    }
    path = saved(tmp_path / "a.arrow", pa.table(columns), count)
    ds = ps.from_arrow(path, columns=[name])
    opened, out = ds._node.data.open(), {name: np.empty(3, ds.element_spec[name].dtype if name == "x" else object)}
    indices = np.array([0, count // 2, count - 1])
    read(opened, indices, out)
    assert [np.array_equal(found, columns[name][i]) for found, i in zip(out[name], indices, strict=True)] == [True] * 3
    os.truncate(path, int(path.stat().st_size * left))
    with pytest.raises(ps.SourceError, match=r"a\.arrow has changed since the dataset was made: .* bytes then"):
        read(opened, indices, out)


def encrypted(path, *, footer):
    """A file with the encrypted column "x" and the column "y"."""
    import base64

    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, _):
            super().__init__()

        def wrap_key(self, key, _):
            return base64.b64encode(key)

        def unwrap_key(self, key, _):
            return base64.b64decode(key)

    keys = encryption.EncryptionConfiguration(footer_key="a", column_keys={"b": ["x"]}, plaintext_footer=not footer)
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), keys)
    content = pa.table({"x": [1, 2, 3], "y": ["a", "b", "c"]})
    with pq.ParquetWriter(path, content.schema, encryption_properties=properties) as writer:
        writer.write_table(content)
    return path


def test_an_encrypted_column_is_an_error_and_the_others_are_read(tmp_path):
    path = encrypted(tmp_path / "a.parquet", footer=False)
    with pytest.raises(ps.SourceError, match=r"a\.parquet cannot be read: Cannot decrypt ColumnMetadata"):
        ps.from_parquet(path)
    assert [element["y"] for element in ps.from_parquet(path, columns=["y"])] == ["a", "b", "c"]
    with pytest.raises(ps.SourceError, match=r"a\.parquet cannot be read: Could not read encrypted metadata"):
        ps.from_parquet(encrypted(path, footer=True))


def test_file_that_was_replaced_meanwhile_is_refused(tmp_path):
    ds = ps.from_parquet(saved(tmp_path / "a.parquet", pa.table({"x": [1, 2]})))
    assert len(ds) == 2
    saved(tmp_path / "a.parquet", pa.table({"x": [1, 2, 3]}))
    with pytest.raises(ps.SourceError, match=r"a\.parquet has changed since the dataset was made"):
        ds[0]


@pytest.mark.parametrize("name", ["a.parquet", "lz4.arrow", "a.arrow"])
def test_the_work_of_a_wide_table_is_linear_in_its_columns(tmp_path, name):
    def calls(count):
        path = saved(tmp_path / f"{count}{name}", pa.table({f"c{number}": [1, 2] for number in range(count)}))
        names, found = [f"c{number}" for number in range(count)], 0

        def profile(frame, event, argument):
            nonlocal found
            found += event in ("call", "c_call")

        ds, before = dataset(path), sys.getprofile()  # imports
        sys.setprofile(profile)
        try:
            ds = dataset(path, columns=names, fill_null=dict.fromkeys(names, 0)).batch(2)
            assert repr(ds)
            with ds.loader(executor="inline") as loader:
                assert repr(loader.report())
        finally:
            sys.setprofile(before)
        return found

    calls(2)
    assert calls(400) < 4.4 * calls(100)


def test_record_batches_are_looked_at_once(tmp_path, monkeypatch):
    checked, whole = [], _tableread._whole
    monkeypatch.setattr(_tableread, "_whole", lambda *what: checked.append(len(what[3])) or whole(*what))
    ds = dataset(saved(tmp_path / "lz4.arrow", pa.table({f"c{number}": [1, 2] for number in range(50)})))
    assert repr(ds.batch(2)) == repr(ds.batch(2))
    assert checked == [50]


def test_the_footer_of_a_file_is_parsed_once(tmp_path, monkeypatch):
    parsed, of_pyarrow = [], pq.ParquetFile

    def opened(path, *, metadata=None, **options):
        parsed.extend([path] * (metadata is None))
        return of_pyarrow(path, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", opened)
    path = saved(tmp_path / "a.parquet", pa.table({"x": np.arange(20)}))
    for _ in range(3):
        assert [element["x"] for element in dataset(path)] == list(range(20))
    assert len(parsed) == 1
    saved(path, pa.table({"x": np.arange(30)}))
    assert [element["x"] for element in dataset(path)] == list(range(30))
    assert len(parsed) == 2


def test_footers_are_kept_up_to_a_limit(tmp_path, monkeypatch):
    paths = [saved(tmp_path / f"{number}.parquet", pa.table({"x": [number]})) for number in range(5)]
    monkeypatch.setattr(_tableread, "_footers", {})
    monkeypatch.setattr(_tableread, "MOST_FOOTERS", 3)
    ds = dataset(paths)
    assert len(ds) == 5
    assert len(_tableread._footers) == 3
    nbytes = next(iter(_tableread._footers.values())).serialized_size
    monkeypatch.setattr(_tableread, "FOOTERS_NBYTES", nbytes)
    assert [element["x"] for element in ds] == [0, 1, 2, 3, 4]
    assert len(_tableread._footers) == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_files_behind_an_url(tmp_path, name):
    fsspec = pytest.importorskip("fsspec")
    saved(tmp_path / name, table())
    fsspec.filesystem("memory").pipe(f"/tables/{name}", (tmp_path / name).read_bytes())
    ds = dataset(f"memory://tables/{name}", columns=["u1", "name"])
    assert [ds[i]["name"] for i in (22, 3)] == ["ä22", "ä3"]
    assert [element["u1"] for element in ds] == list(range(COUNT))


@pytest.mark.usefixtures("leaves_nothing_behind")
@pytest.mark.slow
def test_worker_processes_decode_for_themselves(tmp_path):
    ds = dataset(saved(tmp_path / "a.parquet", table()), columns=["u1", "matrix"])
    with ds.batch(8).loader(executor="processes", workers=1) as loader:
        batches = list(loader)
    assert np.concatenate([batch["u1"] for batch in batches]).tolist() == list(range(COUNT))
    assert np.concatenate([batch["matrix"] for batch in batches]).tobytes() == VECTORS.tobytes()


@pytest.mark.parametrize("name", ["a.arrow", "lz4.arrow"])
def test_rows_of_arrow_files_are_read_where_they_lie(tmp_path, name):
    content = pa.table({"x": np.arange(10_000), "y": np.arange(10_000.0), "truth": np.arange(10_000) % 3 == 0})
    path, compressed = saved(tmp_path / name, content, 1000), "lz4" in name
    source = dataset(path, columns=["x"])._node.data
    assert source.groups.nbytes.tolist() == [8000 if compressed else parquet.COLUMN_NBYTES] * 10
    with_copied = dataset(path, columns=["truth", "x"])._node.data
    assert 0 <= with_copied.groups.nbytes.min() - (9000 if compressed else 2 * parquet.COLUMN_NBYTES) < 300
    opened, out = source.open(), {"x": np.empty(100, "i8")}
    before = pa.total_allocated_bytes()
    read(opened, np.arange(0, 10_000, 100), out)
    assert out["x"].tolist() == list(range(0, 10_000, 100))
    assert (pa.total_allocated_bytes() > before) == compressed
    opened.close()


def frames(path, **options):
    saved(path, pa.table({"x": np.arange(1_000_000)}), 100_000)
    return ps.from_parquet(path, **options)


def test_what_is_kept_is_part_of_the_projected_memory(tmp_path):
    ds = frames(tmp_path / "a.parquet").shuffle(seed=1).batch(32)
    kept = 1_000_000 * 8 + 4 * 800_000
    with ds.loader(executor="threads", workers=2) as loader:
        rest = loader.projected_nbytes - kept
        assert 0 < rest < 6 << 20
    with ds.loader(executor="processes", workers=3) as loader:
        # Worker processes share what is decoded. Each holds a group until it is in shared memory.
        assert loader.projected_nbytes == kept + 3 * 800_000 + rest
    pair = ps.zip((ds, ds.map(lambda batch: batch["x"] + 1)))  # equal sources are opened once
    with pair.loader(executor="threads", workers=2) as loader:
        assert kept < loader.projected_nbytes < 2 * kept
    with ds.unbatch().filter(lambda e: e["x"] % 2 == 0).batch(32).loader(executor="threads", workers=2) as loader:
        assert kept < loader.projected_nbytes < kept + (8 << 20)


def test_under_a_limit_less_is_kept_and_then_the_loader_is_refused(tmp_path, decoded):
    ds = frames(tmp_path / "a.parquet").shuffle(seed=1).batch(1000)
    workers = 2
    for executor in ("threads", "processes"):
        with ds.loader(executor=executor, workers=workers) as loader:
            whole = loader.projected_nbytes + loader.report().overhead_nbytes
        limit = whole - 2 * workers * 800_000
        with ds.loader(executor=executor, workers=workers, memory_limit=limit) as loader:
            assert limit - 4 <= loader.projected_nbytes + loader.report().overhead_nbytes <= limit
            if executor == "threads":
                assert sorted(next(iter(loader))["x"]) == sorted(ds[0]["x"])
    text = (
        r"3\.8 MiB of it is what sources keep in memory, such as decoded row groups of Parquet\. Write the file with "
    )
    text += r"smaller row groups \(row_group_size=\.\.\.\) or chunks \(chunks=\.\.\.\), or read fewer of its columns "
    text += r"\(columns=\[\.\.\.\]\)\."
    with pytest.raises(ps.MemoryLimitError, match=text):
        ds.loader(executor="threads", memory_limit=7 << 20)
    calls = []
    counted = ds.map(lambda batch: calls.append(1) or batch["x"])
    with counted.loader(executor="threads", workers=2, memory_limit=15 << 20) as loader:
        assert loader.projected_nbytes == 15 << 20
    assert len(calls) == 1, "the function ran on one element, to see what it returns, as without a limit"
    filtered = frames(tmp_path / "b.parquet").filter(lambda e: e["x"] % 2 == 0).batch(32)
    with filtered.loader(executor="threads", workers=2) as loader:
        limit = loader.projected_nbytes - 4 * 800_000
    with filtered.loader(executor="threads", workers=2, memory_limit=limit) as loader:
        assert loader.projected_nbytes <= limit
        assert next(iter(loader))["x"].tolist() == list(range(0, 64, 2))


def test_row_and_column_of_a_null_are_named_in_any_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(_tableread, "PIECE_NBYTES", 1)
    for values in ([1, 2, 3, None], ["a", "b", "c", None], [[1], [2, 3], [], [4, None]]):
        ds = dataset(saved(tmp_path / "a.parquet", pa.table({"y": range(4), "x": values}), 4))
        with pytest.raises(ps.SourceError, match=r"row group 0 row 3 has no value in column 'x'"):
            ds[0]


INF, NAN = float("inf"), float("nan")
FAR = [dt.datetime(9999, 12, 31, 23, 59, 59), dt.datetime(2021, 6, 9, 3, 2, 37), dt.datetime(1000, 1, 1)]
BEYOND = {
    "float64 as float32": (pa.array([1.1, INF, NAN, 1e40]), "float32", [1.1, INF, NAN]),
    "float64 as float16": (pa.array([1.0, -INF, NAN, -70000.0]), "float16", [1.0, -INF, NAN]),
    "int64 as float16": (pa.array([65504, -5, 0, 70000]), "float16", [65504, -5, 0]),
    "int64 as float32": (pa.array([2**24 + 1, 2**62, 0]), "float32", [2**24, 2**62, 0]),
    "uint64 as int64": (pa.array([5, 2**63 - 1, 0, 2**63], pa.uint64()), "int64", [5, 2**63 - 1, 0]),
    "int64 as uint8": (pa.array([5, 255, 0, 256]), "uint8", [5, 255, 0]),
    "int64 as bool": (pa.array([0, 1, 0, 2]), "bool", [False, True, False]),
    "float64 as int64": (pa.array([0.0, -1.0, 2.0, 2.5]), "int64", [0, -1, 2]),
    "decimals as float32": (
        pa.array([Decimal(1), Decimal("0.5"), Decimal(0), Decimal("1e60")], pa.decimal256(76, 2)),
        "float32",
        [1, 0.5, 0],
    ),
    "decimals as integers": (pa.array([Decimal(1), Decimal(2), Decimal(0), Decimal("1e11")]), "int32", [1, 2, 0]),
    "text as float32": (pa.array(["1.5", "inf", "-Infinity", "1e40"]), "float32", [1.5, INF, -INF]),
    "lists": (pa.array([[1.0, INF], [], [2.0], [0.0, 1e40]]), "float32", [[1, INF], [], [2]]),
    "pairs": (pa.array([[1, INF], [2, 2], [1e40, 0]], pa.list_(pa.float64(), 2)), "float32", [[1, INF], [2, 2]]),
    "kinds": (pa.array([1.0, 2.0, 1.0, 1e40]).dictionary_encode(), "float32", [1, 2, 1]),
    "times in ns": (pa.array([FAR[1], FAR[1], FAR[1], FAR[0]], pa.timestamp("us")), "M8[ns]", [FAR[1]] * 3),
    "zoned times in ns": (
        pa.array([FAR[1], FAR[1], FAR[1], FAR[2]], pa.timestamp("s", "UTC")),
        "M8[ns]",
        [FAR[1]] * 3,
    ),
    "days in ns": (pa.array([FAR[1], FAR[1], FAR[1], FAR[0]], pa.date32()), "M8[ns]", [dt.datetime(2021, 6, 9)] * 3),
    "days of ms in ns": (pa.array([FAR[1], FAR[1], FAR[2]], pa.date64()), "M8[ns]", [dt.datetime(2021, 6, 9)] * 2),
    "times in s": (pa.array([0, 10**6, 1], pa.timestamp("us")), "M8[s]", [0, 1]),
    "times as days": (pa.array([0, 86_400, 86_399], pa.timestamp("s")), "M8[D]", [0, 1]),
    "durations in ns": (pa.array([0, 1, 2**40], pa.duration("s")), "m8[ns]", [0, 10**9]),
    "durations in s": (pa.array([0, 3000, 1500], pa.duration("ms")), "m8[s]", [0, 3]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["a.arrow", "a.parquet"])
@pytest.mark.parametrize("name", BEYOND)
def test_a_number_that_its_dtype_cannot_hold_is_an_error_and_none_is_infinite(tmp_path, name, kind):
    values, dtype, right = BEYOND[name]
    for form in ("column", "field"):
        column = values if form == "column" else pa.StructArray.from_arrays([values], ["f"])
        path = saved(tmp_path / kind, pa.table({"x": column}), 100)
        ds = dataset(path, dtypes={"x" if form == "column" else "x.f": dtype})
        read = (lambda row: row["x"]) if form == "column" else (lambda row: row["x"]["f"])
        unit = np.datetime_data(np.dtype(dtype))[0] if dtype[0] in "mM" else ""
        last = len(right)
        if name != "int64 as float32":
            with pytest.raises(ps.SourceError, match=rf"row {last} cannot be read: its column 'x.*' is .*does not fit"):
                ds[0]  # all rows of a group are cast together
        ds = dataset(
            saved(tmp_path / f"right {kind}", pa.table({"x": column.slice(0, last)})),
            dtypes=dict(ds._node.data.dtypes.named),
        )
        for found, wanted in zip(map(read, ds), right, strict=True):
            if unit:
                wanted = np.dtype(dtype).type(wanted, unit)
            np.testing.assert_array_equal(found, np.asarray(wanted).astype(dtype))


@pytest.mark.parametrize("place", ["local", "remote"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_times_of_12_bytes_are_right_in_every_unit_or_an_error(tmp_path, place, is_nested):
    values = pa.array(FAR, pa.timestamp("us"))
    near = pa.array([f"2021-06-09T03:02:37.{digits:09}" for digits in (1, 2, 3)]).cast(pa.timestamp("ns"))
    columns = {"t": values, "near": near, "name": pa.array(["a", "b", "c"]), "n": pa.array([1, 2, 3])}
    if is_nested:
        columns = {
            name: pa.array([[each] for each in column], pa.list_(column.type)) for name, column in columns.items()
        }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True)
    if place == "remote":
        content = path.read_bytes()
        path = f"memory://times/{is_nested}.parquet"
        pytest.importorskip("fsspec").filesystem("memory").pipe(f"/times/{is_nested}.parquet", content)
    with pytest.raises(
        ps.SourceError, match=r"row 0 .*'t' .* out of bounds .*Name another .*dtypes=\{'t': \"M8\[us\]\""
    ):
        ps.from_parquet(path)[0]
    for dtype in ("M8[us]", "M8[s]"):
        found = [np.ravel(each["t"])[0] for each in ps.from_parquet(path, dtypes={"t": dtype})]
        assert found == [np.datetime64(each, "us").astype(dtype) for each in FAR]
    found = [np.ravel(each["t"])[0] for each in ps.from_parquet(path, dtypes={"t": "U"})]
    assert [each[:19] for each in found] == [str(each) for each in FAR]
    for rows in (
        list(ps.from_parquet(path, columns=["near", "n"])),
        list(ps.from_parquet(path, dtypes={"t": "M8[us]"})),
    ):
        assert [str(np.ravel(each["near"])[0])[-9:] for each in rows] == ["000000001", "000000002", "000000003"]


def test_times_of_12_bytes_have_the_unit_that_their_file_needs(tmp_path):
    near = pa.array(["2021-06-09T03:02:37.000000001"]).cast(pa.timestamp("ns"))
    pq.write_table(pa.table({"t": near}), tmp_path / "0.parquet", use_deprecated_int96_timestamps=True)
    far = pa.table({"t": pa.array(FAR[:1], pa.timestamp("us"))})
    pq.write_table(far, tmp_path / "1.parquet", use_deprecated_int96_timestamps=True)
    ds = ps.from_parquet([tmp_path / "0.parquet", tmp_path / "1.parquet"])  # each has its own unit
    assert str(ds[0]["t"]) == "2021-06-09T03:02:37.000000001"
    with pytest.raises(ps.SourceError, match=r"1\.parquet row group 0 row 0 .* out of bounds"):
        ds[1]


def test_what_stands_in_for_nulls_does_not_become_infinite_or_another_time(tmp_path):
    columns = {"x": pa.array([None], pa.float32()), "t": pa.array([None], pa.timestamp("ns"))}
    path = saved(tmp_path / "a.parquet", pa.table(columns))
    for name, fill in (("x", 1e40), ("t", np.datetime64("9999-12-31"))):
        with pytest.raises(ps.SpecError, match=rf"column '{name}' is .* which cannot hold"):
            ps.from_parquet(path, fill_null={name: fill})
    (found,) = ps.from_parquet(path, fill_null={"x": INF, "t": np.datetime64("2021-06-09")})
    assert (found["x"], found["t"]) == (INF, np.datetime64("2021-06-09", "ns"))
