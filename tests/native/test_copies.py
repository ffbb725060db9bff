"""Both implementations copy the same bytes, whatever the layout, the rows, the types and the number of threads."""

import itertools
import math
import pickle
import tempfile
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from penstock.native import conversion
from penstock.native._dtypes import KINDS, dtypes_of
from tests.native.engines import ENGINES, MODULES, open_engine

NATIVE = {name: module for name, module in MODULES.items() if name == "native"}
NATIVE_DTYPES = [np.dtype(kind) for kind in KINDS]
DTYPES = [np.dtype(order + kind) for kind in KINDS for order in ("<", ">")]


@st.composite
def arrays(draw, max_axes=3):
    """An array of any dtype with any strides: transposed, reversed, with gaps."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=max_axes)))
    shape = (draw(st.integers(1, 40)), *shape[1:])
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -2])) for _ in shape]
    full = [n * abs(step) for n, step in zip(shape, steps, strict=True)]
    order = draw(st.permutations(range(len(shape))))
    count = int(np.prod(full)) * dtype.itemsize
    data = np.frombuffer(np.random.default_rng(draw(st.integers(0, 9))).bytes(count), np.uint8).copy()
    base = data.view(dtype).reshape([full[axis] for axis in order]).transpose(np.argsort(order))
    return base[tuple(slice(None, None, step) for step in steps)]


def rows_of(draw, count, max_rows=60):
    rows = draw(
        st.one_of(
            st.lists(st.integers(0, count - 1), max_size=max_rows),
            st.integers(0, count - 1).map(lambda start: list(range(start, count))),  # neighbours
        )
    )
    return np.array(rows, np.int64)


@st.composite
def plans(draw):
    """Copies as (array, rows, destination's dtype, destination rows or None, gap between rows)."""
    copies = []
    for _ in range(draw(st.integers(0, 4))):
        array = draw(arrays())
        rows = rows_of(draw, len(array))
        places = draw(st.one_of(st.none(), st.permutations(range(len(rows) + 2))))
        places = places and places[: len(rows)]
        if copies and draw(st.booleans()) and (copies[-1][1] < len(array)).all():  # columns of a table share their rows
            rows, places = copies[-1][1], copies[-1][3]
        dtype = draw(st.one_of(st.just(array.dtype), st.sampled_from(NATIVE_DTYPES)))
        if array.dtype.kind == "f" and dtype.itemsize == 4 and dtype.kind == "u":
            dtype = array.dtype  # NumPy's result depends on the place in the array, see below
        copies.append((array, rows, dtype, places, draw(st.sampled_from([0, 0, 3]))))
    return copies


def run(engine, number, sources, plan):
    """The destinations after one job."""
    destinations, copies, arrays_of = [], [], {}
    for source, (array, rows, dtype, out_rows, gap) in zip(sources, plan, strict=True):
        row_nbytes = int(np.prod(array.shape[1:], dtype=int)) * dtype.itemsize
        memory = np.full((len(rows) + 2, row_nbytes + gap), 7, np.uint8)
        destinations.append(memory)
        places = None if out_rows is None else arrays_of.setdefault(id(out_rows), np.array(out_rows, np.int64))
        copies.append((source, rows, memory[:, :row_nbytes], places, conversion(array.dtype, dtype)))
    engine.submit(number, copies)
    assert engine.wait(number, 30.0)
    return destinations


@given(plan=plans(), thread_count=st.sampled_from([1, 2, 7]))
def test_random_plans_from_memory_equal_the_oracle(plan, thread_count):
    results = []
    for implementation in ENGINES:
        with open_engine(implementation, thread_count) as engine:
            sources = [engine.memory(array) for array, *_ in plan]
            results.append(run(engine, 1, sources, plan))
    for result in results[1:]:
        for one, other in zip(results[0], result, strict=True):
            np.testing.assert_array_equal(one, other)


@given(plan=plans(), thread_count=st.sampled_from([1, 2, 7]), mapped=st.booleans())
def test_random_plans_from_files_equal_memory(plan, thread_count, mapped, tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "data"
    with open(path, "wb") as file:
        starts = []
        for array, *_ in plan:
            low, high = np.lib.array_utils.byte_bounds(array)
            starts.append(file.tell() + array.__array_interface__["data"][0] - low)
            base = array
            while base.base is not None:
                base = base.base
            first = base.__array_interface__["data"][0]
            file.write(base.view(np.uint8).reshape(-1)[low - first : high - first].tobytes())
    results = []
    for implementation, kind in itertools.product(ENGINES, ("memory", "file")):
        with open_engine(implementation, thread_count) as engine:
            sources = [
                engine.memory(array)
                if kind == "memory"
                else engine.file(
                    path,
                    start,
                    len(array),
                    int(np.prod(array.shape[1:], dtype=int)) * array.itemsize,
                    array.strides[0],
                    mapped=mapped,
                    inner=(array.itemsize, array.shape[1:], array.strides[1:]),
                )
                for (array, *_), start in zip(plan, starts, strict=True)
            ]
            results.append(run(engine, 1, sources, plan))
    for result in results[1:]:
        for one, other in zip(results[0], result, strict=True):
            np.testing.assert_array_equal(one, other)


@given(data=st.data())
def test_vectors_are_padded(data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=0, max_size=20))
    width = max(lengths, default=0) + data.draw(st.integers(0, 3))
    dtype = np.dtype(data.draw(st.sampled_from(["i1", "i2", "f4", "f8", "c16", "M8[s]"])))
    filling = np.array(data.draw(st.integers(0, 9)), "i8").astype(dtype)
    values = [(np.arange(n) + 10 * i).astype(dtype) for i, n in enumerate(lengths)]
    expected = np.full((len(values), width), filling)
    for row, value in zip(expected, values, strict=True):
        row[: len(value)] = value
    for implementation in MODULES.values():
        out = np.empty_like(expected)
        assert implementation.lay_rows(values, out, filling)
        np.testing.assert_array_equal(out, expected)


@given(data=st.data())
def test_vectors_are_laid_end_to_end(data):
    """Rows that are not named, and values that do not fit, change nothing."""
    sizes = data.draw(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=6))
    width = max(map(sum, sizes), default=0) + data.draw(st.integers(0, 3))
    named = data.draw(st.permutations(range(len(sizes) + 2)))[: len(sizes)]
    expected = [np.full((len(sizes) + 2, width), -1, dtype) for dtype in (np.int64, np.int32, np.int32)]
    values, rows = [], []
    for row, mine in zip(named, sizes, strict=True):
        laid = [np.arange(n) + 10 * len(values) + 100 * i for i, n in enumerate(mine)]
        for array, parts, filling in zip(
            expected,
            (laid, [np.full(n, i + 1) for i, n in enumerate(mine)], [np.arange(n) for n in mine]),
            (7, 0, 0),
            strict=True,
        ):
            array[row] = filling
            array[row, : sum(mine)] = np.concatenate(parts)
        values += laid
        rows += [row] * len(mine)
    for implementation in MODULES.values():
        out = [np.full_like(each, -1) for each in expected]
        assert implementation.lay_rows(values, out[0], np.array(7), np.array(rows, np.int64), *out[1:])
        for one, other in zip(out, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("implementation", MODULES.values(), ids=MODULES)
def test_padding_leaves_other_values_to_numpy(implementation):
    out = np.full((2, 3), 7, np.int32)
    vector = np.arange(3, dtype=np.int32)
    others = [
        vector.astype(">i4"),
        vector.astype(np.int64),
        np.arange(6, dtype=np.int32)[::2],
        vector[None],
        [1, 2],
        None,
    ]
    for other in others:
        assert not implementation.lay_rows([vector, other], out, np.zeros((), np.int32))
        assert (out == 7).all()


@pytest.mark.parametrize("implementation", NATIVE.values(), ids=NATIVE)
def test_values_are_laid_into_rows_of_a_dtype_from_another_process(implementation):
    dtype = pickle.loads(pickle.dumps(np.dtype(np.int64)))
    out = np.full((1, 3), 7, dtype)
    assert out.dtype is not np.dtype(np.int64)
    assert implementation.lay_rows([np.arange(2)], out, np.full((), 5, dtype))
    assert out.tolist() == [[0, 1, 5]]


@pytest.mark.parametrize("implementation", NATIVE.values(), ids=NATIVE)
def test_padding_writes_within_its_rows(implementation):
    out = np.full((2, 3), 7, np.int32)
    vector, filling = np.arange(3, dtype=np.int32), np.zeros((), np.int32)
    with pytest.raises(ValueError, match=r"value 1 has 4 numbers|broadcast"):
        implementation.lay_rows([vector, np.arange(4, dtype=np.int32)], out, filling)
    with pytest.raises(ValueError, match="do not fit the values"):
        implementation.lay_rows([vector], out, filling)
    with pytest.raises(ValueError, match="do not fit the values"):
        implementation.lay_rows([vector, vector], out, np.zeros((), np.int64))
    with pytest.raises(ValueError, match="not C-contiguous"):
        implementation.lay_rows([vector, vector], out[:, :2], filling)
    with pytest.raises((TypeError, ValueError)):
        implementation.lay_rows([np.empty(1, object)], np.empty((1, 1), object), np.empty((), object))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        implementation.lay_rows([vector, vector], out, filling)


def special_numbers(dtype):
    """Every number of up to 16 bits; of larger types numbers at all borders, infinities, NaNs of several patterns."""
    rng = np.random.default_rng(0)
    if dtype.itemsize <= 2:
        bits = np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}")
        return bits.view(dtype.newbyteorder("="))
    base = dtype.newbyteorder("=")
    if base.kind == "f":
        powers = np.ldexp(1.0, np.arange(-160 if base.itemsize == 8 else -149, 128))
        near = [powers, np.nextafter(powers, 0), np.nextafter(powers, np.inf), powers * 1.5, powers - 0.5, powers - 1]
        with np.errstate(all="ignore"):
            values = np.concatenate([*near, rng.normal(size=3000) * 10.0 ** rng.integers(-9, 25, 3000)]).astype(base)
        patterns = np.frombuffer(rng.bytes(4000 * base.itemsize), base)
        return np.concatenate([values, -values, patterns, np.array([0.0, -0.0, np.inf, -np.inf, np.nan], base)])
    info = np.iinfo(base)
    powers = [2**k + d for k in range(8 * base.itemsize) for d in (-1, 0, 1)]
    edges = [x for p in powers for x in (p, -p) if info.min <= x <= info.max]
    patterns = np.frombuffer(rng.bytes(4000 * base.itemsize), base)
    return np.concatenate([np.array([*edges, info.min, info.max], base), patterns])


def differ(one, other):
    """Which elements differ in a bit."""
    return (one.view(np.uint8) != other.view(np.uint8)).reshape(len(one), -1).any(axis=1)


@pytest.mark.parametrize("implementation", ENGINES)
@pytest.mark.parametrize("source", KINDS)
def test_conversions_are_those_of_astype_bit_for_bit(source, implementation):
    numbers = special_numbers(np.dtype(source))
    with open_engine(implementation, 1) as engine, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for job, (out, source_order) in enumerate(itertools.product(KINDS, "<>")):
            source_dtype, out_dtype = np.dtype(source_order + source), np.dtype(out)
            values = numbers.astype(source_dtype) if source_dtype != numbers.dtype else numbers
            if source == "b1":
                values = numbers.view(np.uint8).view("b1")
            expected = values.astype(out_dtype)
            got = np.full(len(values), 1, out_dtype)
            rows = np.zeros(1, np.int64)
            code = conversion(source_dtype, out_dtype)
            engine.submit(job, [(engine.memory(values[None]), rows, got[None], None, code)])
            assert engine.wait(job, 30.0)
            is_defined = np.ones(len(values), bool)
            if source_dtype.kind == "f" and out == "u4":
                # Out of range, NumPy's result depends on whether its loop converts several numbers at a time.
                is_defined = (values > -(2**31)) & (values < 2**32)
            different = np.flatnonzero(differ(expected, got) & is_defined)
            message = [(values[i], expected[i], got[i]) for i in different[:5]]
            assert len(different) == 0, f"{source_dtype} to {out_dtype}: {len(different)} differ, such as {message}"


def test_conversions_have_inverse_codes():
    for source, out in itertools.product(DTYPES, NATIVE_DTYPES):
        code = conversion(source, out)
        assert (code is None) == (source == out)
        assert code is None or dtypes_of(code) == (source, out)


@pytest.mark.parametrize("dtype", ["M8[s]", "U3", "S2", "V4", "O", "g", "c8", "c16"])
def test_other_types_are_not_converted(dtype):
    assert conversion(dtype, dtype) is None
    with pytest.raises(TypeError, match="does not convert"):
        conversion(dtype, np.float32)


@pytest.mark.parametrize("implementation", ENGINES)
@pytest.mark.parametrize("dtype", ["M8[s]", "U3", "S2", "V4", "g", "G"])
def test_other_types_are_copied_as_bytes(dtype, implementation):
    array = np.frombuffer(np.random.default_rng(0).bytes(20 * np.dtype(dtype).itemsize), np.uint8).view(dtype)
    out = np.zeros(20, dtype)
    with open_engine(implementation, 2) as engine:
        engine.submit(1, [(engine.memory(array), np.arange(20)[::-1].copy(), out, None, None)])
        assert engine.wait(1)
    assert out.tobytes() == array[::-1].tobytes()


@pytest.mark.parametrize("implementation", ENGINES)
def test_large_rows_are_divided_and_complete(implementation, tmp_path):
    array = np.random.default_rng(0).integers(0, 255, (3, (5 << 20) + 12), np.uint8)
    array.tofile(tmp_path / "data")
    rows = np.array([2, 0, 1, 2])
    with open_engine(implementation, 3) as engine:
        sources = [engine.memory(array)]
        sources += [engine.file(tmp_path / "data", 0, 3, array.shape[1], mapped=mapped) for mapped in (False, True)]
        for number, source in enumerate(sources):
            out = np.zeros((4, array.shape[1]), np.uint8)
            converted = np.zeros((4, array.shape[1]), np.uint16)
            code = conversion(np.uint8, np.uint16)
            engine.submit(number, [(source, rows, out, None, None), (source, rows, converted, None, code)])
            assert engine.wait(number)
            wanted = array[rows]
            assert np.array_equal(out, wanted)
            assert np.array_equal(converted, wanted)


@st.composite
def tables(draw):
    """Columns cut into parts, rows of the whole, and their places."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
    bounds = np.cumsum([0, *sizes], dtype=np.int64)
    count, numbers = int(bounds[-1]), np.random.default_rng(0)
    columns = [numbers.integers(0, 99, (count, *shape)).astype(kind) for kind, shape in draw(st.permutations(COLUMNS))]
    rows = rows_of(draw, count)
    places = draw(st.one_of(st.none(), st.permutations(range(len(rows) + 2))))
    return bounds, columns, rows, places and np.array(places[: len(rows)], np.int64)


COLUMNS = [("f4", ()), ("i1", ()), ("i8", (3,)), ("u2", (40,))]


def opened(engine, part, mapped):
    if mapped is None:
        return engine.memory(part)
    with tempfile.TemporaryFile() as file:
        part.tofile(file)
        file.flush()
        return engine.file(file.fileno(), 0, len(part), part.itemsize * math.prod(part.shape[1:]), mapped=mapped)


@given(table=tables(), converts=st.booleans(), is_file=st.lists(st.sampled_from([None, True, False]), min_size=8))
def test_rows_of_parts_are_those_of_the_whole(table, converts, is_file):
    bounds, columns, rows, places = table
    for module in NATIVE.values():
        memory = module.Engine.memory
        made, copies = [], []
        for column in columns:
            pairs = zip(itertools.pairwise(bounds), is_file, strict=False)
            parts = [opened(module.Engine, column[start:stop], mapped) for (start, stop), mapped in pairs]
            out = np.zeros((len(rows) + 2, *column.shape[1:]), "f8" if converts else column.dtype)
            code = module.conversion(column.dtype, out.dtype) if converts else None
            copies.append((module.Engine.parts(bounds, parts), rows, memory(out), places, code))
            made.append(out)
        module.copy(copies)
        for column, out in zip(columns, made, strict=True):
            np.testing.assert_array_equal(out[np.arange(len(rows)) if places is None else places], column[rows])


@pytest.mark.parametrize("name", NATIVE)
def test_a_part_that_is_not_there_is_an_error_before_anything_is_copied(name):
    module, out = MODULES[name], np.zeros(4)
    parts = module.Engine.parts(np.array([0, 2, 4]), [module.Engine.memory(np.ones(2)), None], name="table")
    module.copy([(parts, np.array([0, 1]), out, None, None)])
    with pytest.raises(IndexError, match="part 1 of table is not there"):
        module.copy([(parts, np.array([0, 1, 3]), out, None, None)])
    with pytest.raises(IndexError, match="element 4 is out of range: table has 4"):
        module.copy([(parts, np.array([4]), out, None, None)])
    assert out.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize(
    ("bounds", "sizes"), [([0, 2, 4], [2]), ([0, 2, 4], [2, 3]), ([1, 2], [1]), ([0], []), ([0, 2, 1], [2, None])]
)
def test_parts_that_do_not_fit_their_bounds_are_refused(name, bounds, sizes):
    memory, parts = MODULES[name].Engine.memory, MODULES[name].Engine.parts
    sources = [None if size is None else memory(np.ones(size)) for size in sizes]
    with pytest.raises(ValueError, match="the parts are no sources of such sizes"):
        parts(np.array(bounds), sources)
    with pytest.raises(ValueError, match="the parts are no sources of such sizes"):
        parts(np.array([0, 1, 2]), [memory(np.ones(1)), memory(np.ones((1, 2)))])


@pytest.mark.parametrize("name", NATIVE)
def test_the_source_of_a_destination_has_to_be_writable(name):
    module, values = MODULES[name], np.arange(3.0)
    values.flags.writeable = False
    source = module.Engine.memory(values)
    with pytest.raises(ValueError, match="writable"):
        module.copy([(source, np.array([0]), source, None, None)])
    with pytest.raises(ValueError, match="C-contiguous"):
        module.copy([(source, np.array([0]), module.Engine.memory(np.zeros((4, 2, 2))[:, :, ::2]), None, None)])
