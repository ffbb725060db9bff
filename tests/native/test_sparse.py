"""Rows of a sparse matrix: both engines write the same, whatever the pieces, and use no column before it is checked."""

import errno
import os

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from penstock.native import CopyError, conversion
from penstock.native._dtypes import KINDS
from tests.native.engines import ENGINES, MODULES

VALUES = ["b1", "i1", ">i2", "f2", "<f4", ">f8", "c8", "c16", "V3"]


@st.composite
def matrices(draw):
    """`(starts, indices, values, columns)`, where rows have their columns in any order."""
    columns = draw(st.integers(1, 40))
    kind = draw(st.sampled_from(["i1", "u1", "i4", ">i4", "i8", ">u8"]))
    rows = draw(st.lists(st.lists(st.integers(0, columns - 1), unique=True, max_size=columns), min_size=1, max_size=9))
    if draw(st.booleans()):
        rows = [sorted(row) for row in rows]
    starts = np.cumsum([0, *map(len, rows)]).astype("i8")
    dtype = np.dtype(draw(st.sampled_from(VALUES[:-1])))
    values = np.frombuffer(np.random.default_rng(len(rows)).bytes(int(starts[-1]) * dtype.itemsize), "u1").view(dtype)
    if dtype.kind == "b":
        values = values.view("u1") % 2 == 1
    return starts, np.array([column for row in rows for column in row], kind), values, columns


def in_pieces(engine, array, length, folder=None, mapped=True, shift=3):
    """A vector whose pieces lie in reverse order, at odd places."""
    pieces = [array[at : at + length].tobytes() for at in range(0, len(array), length)]
    places, data = [], b"\xff" * shift
    for piece in reversed(pieces):
        places.append(len(data))
        data += piece
    if folder is None:
        source = engine.memory(np.frombuffer(data, "u1"))
    else:
        path = folder / f"{len(os.listdir(folder))}"
        path.write_bytes(data)
        source = engine.file(path, 0, len(data), 1, mapped=mapped)
    return source, np.array(places[::-1], "i8"), length, array.dtype


def dense_of(starts, indices, values, columns, rows):
    out = np.zeros((len(rows), columns), values.dtype)
    for number, row in enumerate(rows):
        span = slice(starts[row], starts[row + 1])
        out[number, indices[span].astype("i8")] = values[span]
    return out


@given(matrix=matrices(), lengths=st.tuples(st.integers(1, 9), st.integers(1, 9)), data=st.data())
def test_random_matrices_equal_what_they_say(matrix, lengths, data):
    starts, indices, values, columns = matrix
    rows = np.array(data.draw(st.lists(st.integers(0, len(starts) - 2), max_size=9)), "i8")
    places = np.array(data.draw(st.permutations(range(len(rows) + 1)))[: len(rows)], "i8")
    to = np.dtype(data.draw(st.sampled_from([values.dtype, "f8"] if values.dtype.str[1:] in KINDS else [values.dtype])))
    with np.errstate(invalid="ignore"):  # a NaN may be a signalling one, of which NumPy's cast warns
        want = dense_of(*matrix, rows).astype(to)
    for name, module in MODULES.items():
        vectors = [
            in_pieces(module.Engine, array, length) for array, length in zip((indices, values), lengths, strict=True)
        ]
        source = module.Engine.sparse(starts, *vectors, columns)
        out = np.full((len(rows) + 1, columns + 2), 7).astype(to)
        inner = out[:, 1:-1]
        module.copy([(source, rows, inner, places, conversion(values.dtype, to))])
        assert inner[places].tobytes() == want.tobytes(), name
        assert (out[:, 0] == np.array(7).astype(to)).all()
        assert (out[:, -1] == np.array(7).astype(to)).all()


LARGE = 5_000
"""Values of a row, more than are looked at together."""


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("implementation", ENGINES)
@pytest.mark.parametrize("order", [1, -1])
def test_long_rows_of_files_are_read_whole(implementation, mapped, order, tmp_path):
    engine, count = MODULES[implementation].Engine, LARGE
    indices = np.tile(np.arange(count, dtype="i4") * 2, 3)[::order].copy()
    values = np.arange(3 * count, dtype="f4")
    starts = np.arange(4) * count
    vectors = [in_pieces(engine, array, 777, tmp_path, mapped) for array in (indices, values)]
    source = engine.sparse(starts, *vectors, 2 * count)
    jobs = ENGINES[implementation](3)
    out = np.empty((6, 2 * count), "f4")
    rows = np.array([2, 0, 1, 1, 0, 2])
    jobs.advise([source], rows)
    MODULES[implementation].announce([source], rows)
    jobs.submit(1, [(source, rows, out, None, None)])
    assert jobs.wait(1)
    jobs.close()
    assert np.array_equal(out, dense_of(starts, indices, values, 2 * count, rows))


@pytest.mark.parametrize("implementation", ENGINES)
@pytest.mark.parametrize(
    ("column", "kind"), [(-1, "i1"), (5, "i4"), (2**63, "u8"), (-(2**63), "i8"), (2**31 - 1, "i4")]
)
def test_columns_outside_of_the_row_are_errors_and_write_nothing_there(implementation, column, kind):
    module = MODULES[implementation]
    indices, memory = np.array([0, 1, 2, column], kind), np.full((3, 5), 7.0)
    vectors = [(module.Engine.memory(a.view("u1")), np.zeros(1, "i8"), 4, a.dtype) for a in (indices, np.ones(4))]
    source = module.Engine.sparse(np.array([0, 2, 4]), *vectors, 5, name="x")
    module.copy([(source, np.array([0]), memory[1:2], None, None)])
    with pytest.raises(CopyError) as caught:
        module.copy([(source, np.array([1]), memory[1:2], None, None)])
    error = caught.value
    assert (error.source, error.element, error.errno, error.expected_nbytes) == ("x", 1, errno.EDOM, 5)
    assert error.found_nbytes == (column if column < 2**63 else column - 2**64)
    assert (memory[[0, 2]] == 7).all()


@pytest.mark.parametrize("implementation", ENGINES)
def test_a_column_that_comes_twice_is_an_error(implementation):
    module = MODULES[implementation]
    indices = np.array([3, 1, 3, 0, 1], "i4")
    vectors = [(module.Engine.memory(a.view("u1")), np.zeros(1, "i8"), 5, a.dtype) for a in (indices, np.zeros(5))]
    source = module.Engine.sparse(np.array([0, 3, 5]), *vectors, 5)
    out = np.ones((1, 5))
    module.copy([(source, np.array([1]), out, None, None)])
    assert not out.any()
    with pytest.raises(CopyError) as caught:
        module.copy([(source, np.array([0]), out, None, None)])
    assert (caught.value.element, caught.value.errno, caught.value.found_nbytes) == (0, errno.EEXIST, 3)


@pytest.mark.parametrize("implementation", ENGINES)
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_becomes_shorter_is_an_error_of_its_row(implementation, mapped, which, tmp_path):
    module, count = MODULES[implementation], 30_000
    arrays = np.tile(np.arange(count, dtype="i4"), 2), np.arange(2 * count, dtype="f4")
    vectors = [in_pieces(module.Engine, array, 9_000, tmp_path, mapped) for array in arrays]
    source = module.Engine.sparse(np.array([0, count, 2 * count]), *vectors, count)
    os.truncate(tmp_path / str(which), 100)
    with pytest.raises(CopyError) as caught:
        module.copy([(source, np.array([1]), np.empty((1, count), "f4"), None, None)])
    assert caught.value.element == 1
    assert caught.value.errno in (None, errno.EIO)


def vector(module, count=4, dtype="i4", **changes):
    array = changes["array"] if "array" in changes else np.arange(count, dtype=dtype)
    parts = {"array": array, "places": np.zeros(1, "i8"), "length": 4, "dtype": dtype} | changes
    return module.Engine.memory(parts["array"].view("u1")), parts["places"], parts["length"], np.dtype(parts["dtype"])


@pytest.mark.parametrize("implementation", ENGINES)
@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"starts": np.array([0, 3, 2])}, ValueError, "decrease"),
        ({"starts": np.array([-1, 3])}, ValueError, "decrease"),
        ({"starts": np.zeros(0, "i8")}, ValueError, "decrease"),
        ({"starts": np.array([0, 2], "i4")}, TypeError, "int64"),
        ({"starts": np.array([0, 5])}, ValueError, "pieces"),
        ({"starts": np.array([0, 2**62])}, ValueError, "pieces"),
        ({"indices": {"places": np.array([1])}}, IndexError, "piece 0 lies outside"),
        ({"indices": {"places": np.array([-1])}}, IndexError, "piece 0 lies outside"),
        ({"values": {"places": np.array([2**62])}}, IndexError, "piece 0 lies outside"),
        ({"values": {"places": np.array([0], "i4")}}, TypeError, "int64"),
        ({"values": {"length": 0}}, ValueError, "pieces"),
        ({"values": {"length": 2**62, "array": np.zeros(1, "u1")}}, IndexError, "piece 0 lies outside"),
        ({"values": {"dtype": "V3", "array": np.zeros(12, "u1")}}, ValueError, "pieces"),
        ({"indices": {"dtype": "f4"}}, TypeError, "integers"),
        ({"columns": -1}, ValueError, "decrease"),
        ({"columns": 2**62}, ValueError, "too large"),
    ],
)
def test_parts_that_do_not_fit_are_refused(implementation, changes, error, text):
    module = MODULES[implementation]
    given = {"starts": np.array([0, 2, 4]), "columns": 5} | changes
    vectors = [vector(module, **changes.get(name, {})) for name in ("indices", "values")]
    with pytest.raises(error, match=text):
        module.Engine.sparse(given["starts"], *vectors, given["columns"])


@pytest.mark.parametrize("implementation", ENGINES)
def test_a_conversion_of_other_numbers_and_rows_of_other_sizes_are_refused(implementation):
    module = MODULES[implementation]
    source = module.Engine.sparse(np.array([0, 2, 4]), vector(module), vector(module), 6)
    for out, code in ((np.zeros((1, 5), "i4"), None), (np.zeros((1, 12), "u2"), conversion("i2", "u2"))):
        with pytest.raises(ValueError, match=r"do not fit|other numbers"):
            module.copy([(source, np.array([0]), out, None, code)])


@pytest.mark.parametrize("implementation", ENGINES)
def test_a_sparse_source_keeps_what_it_reads(implementation):
    module = MODULES[implementation]
    source = module.Engine.sparse(np.array([0, 4]), vector(module), vector(module, dtype="f8"), 4)
    junk = [np.full(4, 9) for _ in range(99)]  # where its arrays were, if they were freed
    out = np.empty((1, 4))
    module.copy([(source, np.array([0]), out, None, None)])
    assert out.tolist() == [[0, 1, 2, 3]]
    assert len(junk) == 99
