"""Every entry point with arguments that nobody means: an exception, and no byte outside of the destination."""

import errno
import os
import shutil
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from penstock.native import CopyError
from tests.native.engines import ENGINES, MODULES, open_engine
from tests.waits import PROGRAM_S

HUGE = 1 << 60
NOT_OPEN = 1 << 20  # a descriptor
ROWS = np.arange(4)


class Liar(np.ndarray):
    """An array of bytes that says it has int64."""

    dtype = np.dtype(np.int64)  # type: ignore[assignment]


def copying(module, tmp_path, **changes):
    """Executes a copy of four rows of two int32, changed."""
    array = np.arange(20, dtype=np.int32).reshape(10, 2)
    parts = {
        "source": module.Engine.memory(array, name="the array"),
        "rows": ROWS,
        "out": np.zeros((4, 2), np.int32),
        "places": None,
        "code": None,
    }
    parts |= {
        name: value(module) if isinstance(value, types.FunctionType) else value for name, value in changes.items()
    }
    module.copy([tuple(parts.values())])


def file_of(module, tmp_path, **changes):
    (tmp_path / "data").write_bytes(bytes(1000))
    given = {"path": tmp_path / "data", "offset": 0, "count": 10, "row_nbytes": 100} | changes
    given["path"] = given["path"](tmp_path) if isinstance(given["path"], types.FunctionType) else given["path"]
    return module.Engine.file(**given)


def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def reading(module, tmp_path, **changes):
    (tmp_path / "data").write_bytes(bytes(100))
    given = {"offsets": np.array([0]), "memory": np.zeros(10, np.uint8), "starts": np.array([0])}
    given |= {"sizes": np.array([5])} | changes
    with open(tmp_path / "data", "rb", buffering=0) as file:
        return module.read_parts(given.pop("descriptor", file.fileno()), *given.values())


def counting(module, tmp_path, **changes):
    given = {"words": memoryview(bytearray(16)).cast("q"), "place": 1, "count": 1} | changes
    return module.count_down(*given.values())


def padding(module, tmp_path, **changes):
    given = {"values": [np.arange(2), np.arange(3)], "out": np.zeros((2, 3), int), "filling": np.array(7)} | changes
    return module.lay_rows(*given.values())


def permuting(module, tmp_path, **changes):
    given = {"values": np.arange(4, dtype=np.uint64), "n": 4, "a": 2, "b": 2, "tweaks": np.zeros(1, np.uint64)}
    given |= {"rounds": np.ones(20, np.uint64)} | changes
    module.permute(*given.values())


def fitting(module, tmp_path, **changes):
    given = {
        "sizes": np.ones((2, 3), "u4"),
        "capacity": np.full(2, 5, "u4"),
        "rows": np.zeros(3, "u4"),
        "fit": 2,
    } | changes
    module.fit_rows(*given.values())


def trading(module, tmp_path, **changes):
    given = {
        "sizes": np.ones((2, 3), "u4"),
        "rows": np.arange(3, dtype="u4"),
        "room": np.zeros((2, 3), int),
        "is_sum": True,
    }
    given |= {"window": 2, "words": np.zeros(3, "u4")} | changes
    module.trade_rows(*given.values())


def ordering(module, tmp_path, **changes):
    given = {"keys": np.arange(3, dtype="u4"), "places": np.zeros(3, int)} | changes
    module.order_keys(*given.values())


def dealing(module, tmp_path, **changes):
    given = {"keys": np.zeros((1, 2), "u8"), "places": np.zeros(1, int), "ends": np.array([3])}
    module.deal(*(given | {"before": np.zeros(1, int)} | changes).values())


def engine(module, tmp_path, method, *arguments):
    made = module.Engine(1)
    try:
        return getattr(made, method)(*arguments)
    finally:
        made.close()


V0 = np.zeros(10, "V0")
VIEW = np.zeros((4, 2, 2), np.int32)
READ_ONLY = np.zeros((4, 2), np.int32)
READ_ONLY.flags.writeable = False
COPIES = {
    "a destination without axes": ({"out": np.zeros((), np.int64)}, ValueError, "needs an axis of rows"),
    "a destination without axes or bytes": (
        {"source": lambda module: module.Engine.memory(V0), "out": np.zeros((), "V0")}, ValueError, "axis of rows",
    ),
    "a read-only destination": ({"out": READ_ONLY}, ValueError, "read-only|writable"),
    "a destination of objects": ({"out": np.zeros((4, 2), object)}, TypeError, "cannot hold Python objects"),
    "objects in a field": ({"out": np.zeros(4, [("a", "i4"), ("b", object)])}, TypeError, "cannot hold Python"),
    "no destination": ({"out": None}, TypeError, "bytes-like"),
    "a list": ({"out": [0] * 8}, TypeError, "bytes-like"),
    "rows with gaps": ({"out": VIEW[..., 0]}, ValueError, "C-contiguous"),
    "smaller rows": ({"out": np.zeros((4, 1), np.int32)}, ValueError, "8 bytes, which do not fit rows of 4 bytes"),
    "fewer rows": ({"out": np.zeros((3, 2), np.int32)}, IndexError, "row for 3 is out of range"),
    "no rows": ({"rows": None}, TypeError, ""),
    "rows in a list": ({"rows": [1]}, TypeError, ""),
    "rows of floats": ({"rows": ROWS.astype(float)}, TypeError, "must be an array of int64"),
    "rows of uint64": ({"rows": ROWS.astype(np.uint64)}, TypeError, "must be an array of int64"),
    "rows of another order": ({"rows": ROWS.astype(">i8")}, TypeError, "must be an array of int64"),
    "rows with two axes": ({"rows": ROWS[None]}, ValueError, "must have one axis, not 2"),
    "rows without axes": ({"rows": np.array(1)}, ValueError, "must have one axis, not 0"),
    "a negative row": ({"rows": np.array([-1])}, IndexError, "element -1 is out of range"),
    "the least row": ({"rows": np.array([-(2**63)])}, IndexError, "out of range"),
    "the greatest row": ({"rows": np.array([2**63 - 1])}, IndexError, "out of range"),
    "more rows than memory": ({"rows": as_strided(ROWS, (1 << 48,), (0,))}, MemoryError, ""),
    "a place outside": ({"places": np.array([0, 1, 2, 4])}, IndexError, "destination row 4 is out of range"),
    "a negative place": ({"places": np.array([0, 1, 2, -1])}, IndexError, "destination row -1"),
    "fewer places": ({"places": ROWS[:3]}, ValueError, "4 rows have 3 destination rows"),
    "places of bytes": ({"places": ROWS.astype("i1")}, TypeError, "must be an array of int64"),
    "conversion 1024": ({"code": 1 << 10}, ValueError, "1024 is not a conversion"),
    "conversion -1": ({"code": -1}, ValueError, "-1 is not a conversion"),
    "conversion 2**32 + 0x22": ({"code": (1 << 32) + 0x22}, ValueError, "is not a conversion"),
    "conversion 2**70": ({"code": 1 << 70}, (ValueError, OverflowError), ""),
    "conversion to no type": ({"code": 0x0F}, ValueError, "15 is not a conversion"),
    "a conversion to other sizes": ({"code": 0x42}, ValueError, "do not fit"),
    "a conversion that is text": ({"code": "x"}, TypeError, ""),
    "no source": ({"source": None}, TypeError, "expected a source of this engine"),
    "an array as source": ({"source": ROWS}, TypeError, "expected a source of this engine"),
}  # fmt: skip
SIZES = "negative, too large, or do not match"
CALLS = {
    **{f"copy: {name}": (copying, *case) for name, case in COPIES.items()},
    "memory: none": (lambda m, _: m.Engine.memory(None), {}, TypeError, "bytes-like"),
    "memory: a list": (lambda m, _: m.Engine.memory([1, 2]), {}, TypeError, "bytes-like"),
    "memory: objects": (lambda m, _: m.Engine.memory(np.array([None])), {}, TypeError, "Python objects"),
    "memory: no axes": (lambda m, _: m.Engine.memory(np.array(1)), {}, ValueError, "1 to 64 axes, not 0"),
    "file: missing": (file_of, {"path": "/missing"}, FileNotFoundError, "missing"),
    "file: a folder": (file_of, {"path": lambda tmp_path: tmp_path}, IsADirectoryError, ""),
    "file: a pipe": (file_of, {"path": pipe}, OSError, "Illegal seek"),
    "file: a device": (file_of, {"path": "/dev/zero"}, OSError, "Illegal seek"),
    "file: closed": (file_of, {"path": NOT_OPEN}, OSError, "Bad file descriptor"),
    "file: descriptor -1": (file_of, {"path": -1}, OSError, "Bad file descriptor"),
    "file: descriptor 2**40": (file_of, {"path": 1 << 40}, OverflowError, ""),
    "file: a zero in the path": (file_of, {"path": "a\0b"}, ValueError, "null"),
    "file: before the start": (file_of, {"offset": -1}, ValueError, "before the file's first byte"),
    "file: far behind": (file_of, {"offset": 1 << 62}, ValueError, "too far behind it"),
    "file: a stride far behind": (file_of, {"row_stride": HUGE}, ValueError, "too far behind it"),
    "file: a stride far before": (file_of, {"row_stride": -(2**63)}, ValueError, "before the file's first byte"),
    "file: a negative count": (file_of, {"count": -1}, ValueError, SIZES),
    "file: too many": (file_of, {"count": 2**63 - 1}, ValueError, "too far behind it"),
    "file: negative rows": (file_of, {"row_nbytes": -1}, ValueError, SIZES),
    "file: large rows": (file_of, {"row_nbytes": 2**63 - 1}, ValueError, SIZES),
    "file: other rows": (file_of, {"inner": (1, (99,), (1,))}, ValueError, "do not have 100 bytes"),
    "file: a wrapping size": (file_of, {"inner": (100, (1 << 32, 1 << 32), (1, 1))}, ValueError, "do not have 100"),
    "file: two negatives": (file_of, {"inner": (1, (-10, -10), (1, 1))}, ValueError, SIZES),
    "file: fewer strides": (file_of, {"inner": (1, (10, 10), (1,))}, ValueError, SIZES),
    "file: strides far behind": (file_of, {"inner": (1, (2, 50), (HUGE << 2, 1))}, ValueError, SIZES + "|too far"),
    "read_parts: objects": (reading, {"memory": np.zeros(10, object)}, (TypeError, ValueError), ""),
    "read_parts: numbers": (reading, {"memory": np.zeros(10, np.int64)}, (TypeError, ValueError), ""),
    "read_parts: read-only": (
        reading, {"memory": np.frombuffer(bytes(10), np.uint8)}, (TypeError, ValueError), "",
    ),
    "read_parts: gaps": (reading, {"memory": np.zeros(10, np.uint8)[::2]}, (TypeError, ValueError), ""),
    "read_parts: before": (reading, {"starts": np.array([-1])}, ValueError, "outside of the memory"),
    "read_parts: behind": (reading, {"starts": np.array([6])}, ValueError, "outside of the memory"),
    "read_parts: a sum that wraps": (
        reading, {"starts": np.array([9]), "sizes": np.array([2**63 - 1])}, ValueError, "outside of the memory",
    ),
    "read_parts: a negative size": (reading, {"sizes": np.array([-1])}, ValueError, "outside of the memory"),
    "read_parts: fewer sizes": (reading, {"sizes": np.zeros(0, int)}, ValueError, "outside of the memory"),
    "read_parts: no descriptor": (reading, {"descriptor": None}, TypeError, ""),
    "count_down: behind": (counting, {"place": 2}, IndexError, ""),
    "count_down: text": (counting, {"place": "1"}, TypeError, ""),
    "count_down: read-only": (counting, {"words": memoryview(bytes(16)).cast("q")}, (TypeError, BufferError), ""),
    "lay_rows: objects": (
        padding, {"values": [np.array([None])] * 2, "out": np.full((2, 3), 1, object)}, ValueError, "do not fit",
    ),
    "lay_rows: read-only": (padding, {"out": READ_ONLY[:2].astype(int).view()[:, :0]}, ValueError, ""),
    "lay_rows: one axis": (padding, {"out": np.zeros(2, int)}, ValueError, "do not fit"),
    "lay_rows: other rows": (padding, {"out": np.zeros((3, 3), int)}, ValueError, "do not fit"),
    "lay_rows: a vector to fill": (padding, {"filling": np.zeros(3, int)}, ValueError, "do not fit"),
    "lay_rows: a smaller number": (padding, {"filling": np.int32(3)}, ValueError, "do not fit"),
    "lay_rows: no values": (padding, {"values": None}, TypeError, ""),
    "lay_rows: behind": (padding, {"rows": np.array([0, 2])}, ValueError, "row 2 of 2"),
    "lay_rows: before": (padding, {"rows": np.array([0, -1])}, ValueError, "row -1 of 2"),
    "lay_rows: full": (padding, {"rows": np.array([1, 1])}, ValueError, "has 1 left"),
    "lay_rows: fewer rows": (padding, {"rows": np.array([1])}, ValueError, "do not fit"),
    "lay_rows: small rows": (padding, {"rows": np.array([0, 1], np.int32)}, TypeError, "64-bit"),
    "lay_rows: other numbers": (padding, {"rows": None, "numbers": np.zeros((2, 3))}, ValueError, "do not fit"),
    "lay_rows: other places": (
        padding, {"rows": None, "numbers": None, "places": np.zeros((1, 3), np.int32)}, ValueError, "do not fit",
    ),
    "permute: objects": (permuting, {"values": np.array([0, 1], object)}, TypeError, "64-bit"),
    "permute: small numbers": (permuting, {"values": np.zeros(2, np.uint32)}, TypeError, "64-bit"),
    "permute: outside": (permuting, {"values": np.array([4], np.uint64)}, ValueError, "no values of a permutation"),
    "permute: no halves": (permuting, {"a": 0}, ValueError, "no values of a permutation"),
    "permute: large halves": (permuting, {"a": 1 << 32}, ValueError, "no values of a permutation"),
    "permute: small halves": (permuting, {"n": 5}, ValueError, "no values of a permutation"),
    "permute: a negative range": (permuting, {"n": -1}, ValueError, "no values of a permutation"),
    "permute: a walk without end": (permuting, {"a": 1 << 31, "b": 1 << 31}, ValueError, "no values of a permutation"),
    "permute: other tweaks": (permuting, {"tweaks": np.zeros(3, np.uint64)}, ValueError, "no values of a permutation"),
    "fit_rows: too large": (fitting, {"sizes": np.full((2, 3), 6, "u4")}, ValueError, "do not fit into rows"),
    "fit_rows: other rows": (fitting, {"rows": np.zeros(2, "u4")}, ValueError, "do not fit into rows"),
    "fit_rows: no kinds": (fitting, {"capacity": np.zeros(0, "u4")}, ValueError, "do not fit into rows"),
    "fit_rows: a huge row": (fitting, {"capacity": np.full(2, 1 << 25, "u4")}, ValueError, "do not fit into rows"),
    "fit_rows: no fit": (fitting, {"fit": 3}, ValueError, "do not fit into rows"),
    "fit_rows: large numbers": (fitting, {"rows": np.zeros(3, int)}, TypeError, "32-bit"),
    "fit_rows: objects": (fitting, {"rows": np.zeros(3, object)}, TypeError, "32-bit"),
    "trade_rows: outside": (trading, {"rows": np.array([0, 1, 3], "u4")}, ValueError, "no elements in rows"),
    "trade_rows: other words": (trading, {"words": np.zeros(2, "u4")}, ValueError, "no elements in rows"),
    "trade_rows: other room": (trading, {"room": np.zeros(5, int)}, ValueError, "no elements in rows"),
    "trade_rows: huge room": (trading, {"room": np.full((2, 3), 1 << 40)}, ValueError, "no elements in rows"),
    "trade_rows: no window": (trading, {"window": 0}, ValueError, "no elements in rows"),
    "trade_rows: small numbers": (trading, {"room": np.zeros((2, 3), "i4")}, TypeError, "64-bit"),
    "order_keys: other places": (ordering, {"places": np.zeros(2, int)}, ValueError, "not one place for each key"),
    "order_keys: large numbers": (ordering, {"keys": np.zeros(3, int)}, TypeError, "32-bit"),
    "order_keys: small places": (ordering, {"places": np.zeros(3, "u4")}, TypeError, "64-bit"),
    "deal: outside": (dealing, {"places": np.array([3])}, ValueError, "no places of orders"),
    "deal: before the first": (dealing, {"places": np.array([-1])}, ValueError, "no places of orders"),
    "deal: no cards": (dealing, {"ends": np.zeros(0, int)}, ValueError, "no places of orders"),
    "deal: too many cards": (dealing, {"ends": np.array([4097])}, ValueError, "no places of orders"),
    "deal: ends that decrease": (dealing, {"ends": np.array([5, 3])}, ValueError, "no places of orders"),
    "deal: other keys": (dealing, {"keys": np.zeros((2, 2), "u8")}, ValueError, "no places of orders"),
    "deal: small numbers": (dealing, {"before": np.zeros(1, "u4")}, TypeError, "64-bit"),
    "Engine: 0": (lambda m, _: m.Engine(0), {}, ValueError, "1 to 256 threads, not 0"),
    "Engine: 257": (lambda m, _: m.Engine(257), {}, ValueError, "1 to 256 threads, not 257"),
    "Engine: none": (lambda m, _: m.Engine(None), {}, TypeError, ""),
    "announce: outside": (
        lambda m, tmp_path: m.announce([file_of(m, tmp_path)], np.array([10])), {}, IndexError, "element 10",
    ),
    "announce: no rows": (lambda m, tmp_path: m.announce([file_of(m, tmp_path)], None), {}, TypeError, ""),
    "advise: outside": (
        lambda m, tmp_path: engine(m, tmp_path, "advise", [file_of(m, tmp_path)], np.array([-1])), {}, IndexError, "-1",
    ),
    "submit: text": (lambda m, tmp_path: engine(m, tmp_path, "submit", "x", []), {}, TypeError, ""),
    "submit: no copies": (lambda m, tmp_path: engine(m, tmp_path, "submit", 1, None), {}, TypeError, ""),
    "submit: a copy of four": (lambda m, tmp_path: engine(m, tmp_path, "submit", 1, [(1, 2, 3, 4)]), {}, TypeError, ""),
    "wait: text": (lambda m, tmp_path: engine(m, tmp_path, "wait", "x"), {}, (TypeError, LookupError), ""),
    "wait: unknown": (lambda m, tmp_path: engine(m, tmp_path, "wait", 7, -1e308), {}, LookupError, "not under way"),
    "cancel: text": (lambda m, tmp_path: engine(m, tmp_path, "cancel", 1, "x", 3), {}, TypeError, ""),
    "close: two": (lambda m, tmp_path: engine(m, tmp_path, "close", 1, 2), {}, TypeError, ""),
}  # fmt: skip


IN_NATIVE_ALONE = (
    "read_parts", "count_down", "lay_rows", "permute", "fit_rows", "trade_rows", "order_keys", "deal",
    "copy: a destination", "copy: objects", "file: before", "file: far", "file: a stride", "file: a negative",
    "file: too many", "file: negative", "file: large", "file: two", "file: fewer", "file: strides",
)  # fmt: skip
ENGINE_ALONE = ("Engine", "advise", "submit", "wait", "cancel", "close")


@pytest.mark.parametrize("implementation", MODULES)
@pytest.mark.parametrize("name", CALLS)
def test_no_argument_does_more_than_raise(implementation, name, tmp_path):
    if implementation == "numpy" and name.startswith(IN_NATIVE_ALONE + ENGINE_ALONE):
        pytest.skip("NumPy reads and writes no memory that an array does not have")
    call, changes, error, message = CALLS[name]
    if error is MemoryError and "PENSTOCK_ENGINE" in os.environ:
        pytest.skip("AddressSanitizer ends a process in which `new` finds no memory")
    with pytest.raises(error, match=message or None):
        call(MODULES[implementation], tmp_path, **changes)


@pytest.mark.skipif("native" not in ENGINES, reason="NumPy reads no memory that an array does not have")
def test_arrays_that_say_another_dtype_are_refused():
    module = MODULES["native"]
    liar = np.zeros(3, np.uint8).view(Liar)
    assert liar.dtype == np.int64
    source = module.Engine.memory(np.arange(10))
    for copy in ((source, liar, np.zeros(3, int), None, None), (source, ROWS[:3], np.zeros(3, int), liar, None)):
        with pytest.raises(TypeError, match="must be an array of int64"):
            module.copy([copy])
    values = [np.zeros(9, np.float64).view(Liar)[:2], np.zeros(0, np.int64)]
    assert not module.lay_rows([values[0][:1], np.zeros(2, "V16").view(Liar)[:1]], np.zeros((2, 2), int), np.array(7))


@pytest.mark.parametrize("implementation", MODULES)
def test_reads_that_fail_say_the_system_s_error(implementation, tmp_path):
    module = MODULES[implementation]
    assert reading(module, tmp_path, descriptor=NOT_OPEN) == (0, 0, errno.EBADF)
    assert reading(module, tmp_path, descriptor=-1) == (0, 0, errno.EBADF)
    assert reading(module, tmp_path, offsets=np.array([-1])) == (0, 0, errno.EINVAL)
    assert reading(module, tmp_path, offsets=np.array([2**63 - 1])) in ((0, 0, errno.EINVAL), (0, 0, 0))


@pytest.mark.parametrize("implementation", MODULES)
def test_sizes_mean_nothing_beside_an_axis_of_zero(implementation, tmp_path):
    module = MODULES[implementation]
    for shape in ((1 << 40, 0, 1 << 40), (0, 1 << 40, 1 << 40), (1 << 40, 1 << 40, 0), (0,) * 3):
        source = file_of(module, tmp_path, row_nbytes=0, inner=(8, shape, (-(2**63), 2**63 - 1, 1 << 62)))
        module.copy([(source, ROWS, np.zeros((4, 0), np.uint8), None, None)])
        out = np.empty((1 << 20, 0, 3))
        module.copy([(source, ROWS, out, None, None)])
    memory = module.Engine.memory(as_strided(np.zeros(1), (4, 1 << 28, 0, 1 << 28), (1 << 40,) * 4))
    module.copy([(memory, ROWS, np.zeros((4, 0), np.uint8), None, None)])


@pytest.mark.parametrize("implementation", MODULES)
@pytest.mark.parametrize("rank", [1, 2, 31, 32, 33, 63, 64])
def test_every_rank_of_numpy_is_copied(implementation, rank):
    module = MODULES[implementation]
    shape = (5, 3, *(1,) * 62)[:rank]
    array = np.arange(np.prod(shape)).reshape(shape)
    out = np.zeros((4, *shape[1:]), int)
    for each in (array, array[::-1], array.T if rank == 1 else array.swapaxes(1, rank - 1)):
        module.copy([(module.Engine.memory(each), ROWS, out.reshape(4, *each.shape[1:]), None, None)])
        assert (out.reshape(4, *each.shape[1:]) == each[:4]).all()


@pytest.mark.parametrize("implementation", MODULES)
def test_announcements_of_absurd_spans_return(implementation, tmp_path):
    module = MODULES[implementation]
    (tmp_path / "data").write_bytes(bytes(10_000))
    spans = [
        {"count": 2, "row_nbytes": 1 << 59, "row_stride": 1 << 59},
        {"count": 2, "row_nbytes": 16, "row_stride": 8, "inner": (8, (2,), (1 << 60,))},
        {"count": 1 << 59, "row_nbytes": 8, "row_stride": 1},
    ]
    with open_engine(implementation, 1) as made:
        for span in spans:
            source = module.Engine.file(tmp_path / "data", 0, mapped=False, **span)
            rows = np.array([0, span["count"] - 1])
            module.announce([source], rows)
            made.advise([source], rows)
            with pytest.raises((CopyError, MemoryError, ValueError)):
                module.copy([(source, rows[1:], np.zeros((1, 16 if "inner" in span else 8), np.uint8), None, None)])


@pytest.mark.parametrize("implementation", MODULES)
@pytest.mark.parametrize("row", ["plain", "large", "strided", "converted"])
def test_an_array_that_is_copied_into_itself_stays_within_itself(implementation, row):
    module = MODULES[implementation]
    guarded = np.full(3 * (1 << 12) + 2, 7, np.int32)
    array = guarded[1:-1].reshape(-1, 1 << 10 if row == "large" else 4)
    source = array[:, ::-1] if row == "strided" else array
    code = module.conversion("i4", "f4") if row == "converted" else None
    out = array.view(np.float32) if code else array
    rows = np.arange(len(array) - 1)
    module.copy([(module.Engine.memory(source), rows, out[1:], None, code)])
    module.copy([(module.Engine.memory(source), rows[::-1].copy(), out, rows, code)])
    assert guarded[0] == guarded[-1] == 7
    if not code:
        assert (array == 7).all()


# ------------------------------------------------------------------------------------ without memory, at the end

FAILING_NEW = """
    #include <cstdlib>
    #include <new>
    extern "C" { thread_local long fails_after = -1; long *counter() { return &fails_after; } }
    static void *take(std::size_t size) {
        if (fails_after >= 0 && fails_after-- == 0) return nullptr;
        return std::malloc(size ? size : 1);
    }
    void *operator new(std::size_t size) { if (void *found = take(size)) return found; throw std::bad_alloc(); }
    void *operator new[](std::size_t size) { return operator new(size); }
    void *operator new(std::size_t size, const std::nothrow_t &) noexcept { return take(size); }
    void *operator new[](std::size_t size, const std::nothrow_t &) noexcept { return take(size); }
    void operator delete(void *memory) noexcept { std::free(memory); }
    void operator delete[](void *memory) noexcept { std::free(memory); }
    void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
    void operator delete[](void *memory, std::size_t) noexcept { std::free(memory); }
"""
WITHOUT_MEMORY = """
    import ctypes, sys
    import numpy as np
    from penstock import native
    library = ctypes.PyDLL(None)
    library.counter.restype = ctypes.POINTER(ctypes.c_long)
    counter = library.counter()
    path = sys.argv[1]
    open(path, "wb").write(bytes(range(250)) * 400)
    engine = native.Engine(2)
    array = np.arange(100_000).reshape(100, 1000)
    memory, file = native.Engine.memory(array), native.Engine.file(path, 0, 100, 1000)
    rows, number = np.arange(100), 0

    def submit(source, width):
        global number
        number += 1
        out = np.zeros((100, width), np.uint8)
        engine.submit(number, [(source, rows, out, rows, None)] * 3)
        assert engine.wait(number, 30.0)
        assert out.any()

    def cancel():
        global number
        number += 1
        engine.submit(number, [(memory, rows, np.zeros((100, 8000), np.uint8), None, None)])
        assert engine.cancel(number, 30.0)

    def padded():
        out = np.zeros((2, 3), int)
        assert native.lay_rows([rows[:2], rows[:3]], out, np.array(7))

    calls = {
        "Engine": lambda: native.Engine(3).close(),
        "memory": lambda: native.Engine.memory(array),
        "file": lambda: native.Engine.file(path, 0, 100, 1000),
        "other file": lambda: native.Engine.file(path, 0, 0, 1000, mapped=False),
        "submit": lambda: submit(memory, 8000),
        "submit, files": lambda: submit(file, 1000),
        "submit, small": lambda: engine.submit(number, []) if number > 1 << 60 else submit(native.Engine.memory(
            np.ones((100, 8), np.uint8)), 8),
        "cancel": cancel,
        "copy": lambda: native.copy([(memory, rows, np.zeros((100, 1000), int), None, None)]),
        "announce": lambda: native.announce([file], rows),
        "advise": lambda: engine.advise([file], rows),
        "lay_rows": padded,
        "permute": lambda: native.permute(np.zeros(1, np.uint64), 4, 2, 2, np.zeros(1, np.uint64), np.ones(4, "u8")),
        "fit_rows": lambda: [
            native.fit_rows(np.ones(9, "u4"), np.full(1, 3, "u4"), np.zeros(9, "u4"), fit) for fit in (0, 1, 2)
        ],
        "deal": lambda: native.deal(np.zeros((1, 2), "u8"), np.zeros(1, int), np.array([9]), np.zeros(1, int)),
        "order_keys": lambda: native.order_keys(np.full(9, 1 << 31, "u4"), np.zeros(9, int)),
        "read_parts": lambda: native.read_parts(0, rows[:0], np.zeros(1, np.uint8), rows[:0], rows[:0]),
    }
    for name, call in calls.items():
        call()
        failures = 0
        for after in range(100):
            counter[0] = after
            try:
                call()
            except MemoryError:
                failures += 1
            except OSError as error:
                assert error.errno == 12, (name, after)
                failures += 1
            else:
                if counter[0] >= 0:
                    break  # it needed no more
            finally:
                counter[0] = -1
        print(name, failures)
        assert after < 99, name
    submit(memory, 8000)
    engine.close()
"""


@pytest.mark.slow
@pytest.mark.skipif("native" not in ENGINES or not shutil.which("g++"), reason="needs the extension and a compiler")
def test_without_memory_calls_raise_and_the_engine_goes_on(tmp_path):
    (tmp_path / "new.cpp").write_text(textwrap.dedent(FAILING_NEW))
    command = ["g++", "-shared", "-fPIC", "-O1", "-o", "new.so", "new.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=PROGRAM_S)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(WITHOUT_MEMORY), tmp_path / "data"],
        cwd=tmp_path,
        env=os.environ | {"LD_PRELOAD": "./new.so"},  # spaces in a path would separate libraries
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    failures = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert {name for name, count in failures.items() if count == "0"} <= {"permute", "read_parts", "copy"}, failures


AT_THE_END = """
    import sys, threading
    import numpy as np
    from penstock import native
    engine, array = native.Engine(2), np.ones((400, 10_000))
    source, begun = native.Engine.memory(array), threading.Semaphore(0)

    def work(number):
        out, rows = np.zeros((400, 10_000)), np.arange(400)
        native.copy([(source, rows, out, None, None)])
        begun.release()
        while True:
            native.copy([(source, rows, out, None, None)] * 3)
            native.read_parts(0, rows[:0], np.zeros(1, np.uint8), rows[:0], rows[:0])

    for number in range(3):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    for _ in range(3):
        begun.acquire()
"""


@pytest.mark.slow
@pytest.mark.skipif("native" not in ENGINES, reason="the extension is not built")
def test_the_program_ends_while_its_threads_copy():
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(AT_THE_END)], capture_output=True, text=True, timeout=PROGRAM_S
        )
        assert (done.returncode, done.stderr) == (0, "")
