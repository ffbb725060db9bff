"""Arrays of every odd shape, dtype and stride come out as NumPy's indexing gives them, on every path.

The paths: a dataset that is iterated, the copy engine in C++ and in NumPy, units on threads, worker processes, files.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import penstock as ps
from penstock import native
from tests.native.engines import MODULES

N = 7
RNG = np.random.default_rng(0)
Array = Any


def values(*shape: int, dtype: Any = "int32") -> Array:
    """Random bytes as an array; of floats, every NaN is one with the same bits."""
    dtype = np.dtype(dtype)
    if dtype.kind == "U":
        return RNG.integers(32, 500, shape).astype("U").astype(dtype)
    if dtype.kind == "b":
        return RNG.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "fc":
        return RNG.normal(size=shape).astype(dtype)
    if dtype.fields:  # text in a field needs numbers that are characters
        return np.ones(shape, dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(RNG.bytes(nbytes), np.uint8).view(dtype).reshape(shape)


def unaligned(array: Array) -> Array:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(array.tobytes(), np.uint8)
    return memory[1:].view(array.dtype).reshape(array.shape)


def frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


SHAPES = {
    "scalars": (N,), "an axis of 0": (N, 0), "0 before 3": (N, 0, 3), "3 before 0": (N, 3, 0), "two of 0": (N, 0, 0),
    "1": (N, 1), "rank 3": (N, 1, 3, 1), "rank 32": (N, *(1,) * 30, 2), "rank 33": (N, *(1,) * 31, 2),
    "rank 61": (N, 2, *(1,) * 59), "a row of 3 kB": (N, 1031),
}  # fmt: skip
PADDED = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [1, 8], "itemsize": 20})
DTYPES = [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "c8", "c16", ">i2", ">i4", ">u8", ">f2",
    ">f4", ">f8", ">c16", "S1", "S5", "U1", "U3", ">U3", "V1", "V7", "M8[D]", "M8[s]", "M8[ns]", ">M8[us]", "m8[h]",
    [("x", "i4"), ("y", ">f8")], PADDED, [("p", [("q", "i2"), ("r", "S3")]), ("s", "f4", (2, 2))], [("e", "i4", (0,))],
    np.dtype([("a", "i1"), ("b", "i8")], align=True), [("t", "U2"), ("d", "M8[s]")], [("none", "V0"), ("one", "u1")],
]  # fmt: skip
DTYPES = [each for each in map(np.dtype, DTYPES) if each.itemsize]
WIDE = values(2 * N, 6)
STRIDES = {
    "negative": values(N, 3)[::-1],
    "negative within": values(N, 3, 2)[:, ::-1],
    "every second": WIDE[::2],
    "every second within": WIDE[:N, ::2],
    "a column": WIDE[:N, 2],
    "0": np.broadcast_to(values(3), (N, 3)),
    "0 within": np.broadcast_to(values(N, 1), (N, 4)),
    "0 throughout": np.broadcast_to(np.int16(7), (N, 2, 2)),
    "Fortran": np.asfortranarray(values(N, 3, 2)),
    "turned": values(2, 3, N).T,
    "axes exchanged": values(N, 4, 3).transpose(0, 2, 1),
    "unaligned": unaligned(values(N, 3)),
    "unaligned records": unaligned(values(N, 2, dtype=PADDED)),
    "read-only": frozen(values(N, 3).copy()),
    "overlapping": as_strided(values(40), (N, 5), (4, 8)),
    "overlapping backwards": as_strided(values(40)[20:], (N, 3), (-4, -4)),
    "a field": values(N, dtype=PADDED)["b"],
    "one row of many": as_strided(values(4), (N, 1, 4), (0, 1 << 40, 4)),
    "nothing, far apart": as_strided(values(1), (N, 0, 3), (1 << 40, 1 << 40, 1 << 40)),
}


GROUPS: dict[str, dict[str, Array]] = {
    "shapes": {
        f"{name} of {dtype}": values(*shape, dtype=dtype) for dtype in ("u1", "i4") for name, shape in SHAPES.items()
    },
    "dtypes": {
        f"{shape} of {number} {dtype}": values(N, *shape, dtype=dtype)
        for number, dtype in enumerate(DTYPES)
        for shape in ((), (2,), (0,))[number % 2 :]
    },
    "strides": STRIDES,
}
with contextlib.suppress(ImportError):
    import ml_dtypes

    GROUPS["dtypes"]["bfloat16"] = RNG.normal(size=(N, 3)).astype(ml_dtypes.bfloat16)

# ---------------------------------------------------------------------------------------------- verbs

Batches = list[dict[str, Array]]
Rows = list[list[Any]]


def cut(order: Any, size: int, *, keeps: bool = True) -> Rows:
    """The elements of each batch."""
    order = list(order)
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return [each for each in batches if keeps or len(each) == size]


def shuffled(count: int, seed: int) -> list[int]:
    return [int(each) for each in ps.range(count).shuffle(seed)]


# A verb, and the elements of each batch by NumPy's indexing: `array[rows]`.
VERBS: dict[str, tuple[Callable[[ps.Dataset], ps.Dataset], Rows]] = {
    "elements": (lambda ds: ds, [*range(N)]),  # type: ignore[dict-item]
    "batch": (lambda ds: ds.batch(2), cut(range(N), 2)),
    "one batch": (lambda ds: ds.batch(2 * N), cut(range(N), 2 * N)),
    "drop_remainder": (lambda ds: ds.batch(3, drop_remainder=True), cut(range(N), 3, keeps=False)),
    "shuffle": (lambda ds: ds.shuffle(3).batch(2), cut(shuffled(N, 3), 2)),
    "windows": (lambda ds: ds.windows(3).batch(2), cut([[i, i + 1, i + 2] for i in range(N - 2)], 2)),
    "strides": (lambda ds: ds.windows(2, shift=2, stride=3).batch(2), cut([[0, 3], [2, 5]], 2)),
    "windows alone": (lambda ds: ds.windows(3), [[i, i + 1, i + 2] for i in range(N - 2)]),
    "take, skip": (lambda ds: ds.skip(1).take(4).batch(3), cut(range(1, 5), 3)),
    "slices": (lambda ds: ds[::-2].batch(3), cut(range(N)[::-2], 3)),
    "repeat": (lambda ds: ds.repeat(2).batch(4), cut([*range(N)] * 2, 4)),
    "unbatch": (lambda ds: ds.batch(3).unbatch().batch(2), cut(range(N), 2)),
    "concatenate": (lambda ds: ps.concatenate([ds[4:], ds[:2]]).batch(3), cut([4, 5, 6, 0, 1], 3)),
    "interleave": (lambda ds: ps.interleave([ds[:2], ds[2:4]]).batch(3), cut([0, 2, 1, 3], 3)),
    "shard": (lambda ds: ds.shard(1, 2).batch(2), cut(range(1, N, 2), 2)),
    "batches of batches": (lambda ds: ds.batch(2, drop_remainder=True).batch(2)[:1], [[[0, 1], [2, 3]]]),
    "cache": (lambda ds: ds.cache().batch(2), cut(range(N), 2)),
    "padded_batch": (lambda ds: ds.padded_batch(3), cut(range(N), 3)),
}
MOST_DIMS = {"windows": 2, "strides": 2, "batches of batches": 2, "elements": 0}


# ---------------------------------------------------------------------------------------------- paths


def by_iterating(dataset: ps.Dataset) -> Batches:
    return list(dataset)


def by_index(dataset: ps.Dataset) -> Batches:
    return [dataset[index] for index in range(-len(dataset), 0)]


def loaded(dataset: ps.Dataset, *options: Any) -> Batches:
    with dataset.loader(*options) as loader:
        return [{name: np.array(leaf) for name, leaf in batch.items()} for batch in loader]


PATHS: dict[str, Callable[[ps.Dataset], Batches]] = {
    "iterated": by_iterating,
    "indexed": by_index,
    "inline": lambda dataset: loaded(dataset, "inline"),
    "engine": lambda dataset: loaded(dataset, "threads", 2),
    "threads": lambda dataset: loaded(dataset.map(lambda element: element), "threads", 2),
    "processes": lambda dataset: loaded(dataset, "processes", 2),
}


@pytest.fixture(params=MODULES)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each copy engine in turn, everywhere in the package."""
    module = MODULES[request.param]
    for each in list(sys.modules.values()):
        if each.__name__.startswith("penstock.") and each is not native:
            for name in ("native", "Engine"):
                if getattr(each, name, None) is getattr(native, name, native) and not each.__name__.startswith(
                    "penstock.native"
                ):
                    monkeypatch.setattr(each, name, module if name == "native" else module.Engine)
    return str(request.param)


def expected(array: Array, rows: Any) -> Array:
    return array[np.array(rows)]


def require_equal(found: Batches, arrays: dict[str, Array], rows: Rows) -> None:
    assert len(found) == len(rows)
    for batch, each in zip(found, rows, strict=True):
        assert batch.keys() == arrays.keys()
        for name, array in arrays.items():
            want, leaf = expected(array, each), np.asarray(batch[name])
            assert (name, leaf.shape, leaf.dtype) == (name, want.shape, want.dtype)
            assert same_bytes(leaf, want), name


def same_bytes(one: Array, other: Array) -> bool:
    if one.dtype.names or one.dtype.char == "g":  # bytes between numbers mean nothing
        return repr(one.tolist()) == repr(np.asarray(other).tolist())
    return bool(one.tobytes() == other.tobytes())


def fitting(group: str, verb: str) -> dict[str, Array]:
    """The arrays of a group that still have at most 64 axes after a verb."""
    most = 64 - MOST_DIMS.get(verb, 1)
    return {name: array for name, array in GROUPS[group].items() if array.ndim - 1 <= most}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("path", ["iterated", "indexed", "inline", "threads"])
def test_arrays_come_out_as_numpy_indexes_them(group: str, verb: str, path: str) -> None:
    step, rows = VERBS[verb]
    arrays = fitting(group, verb)
    require_equal(PATHS[path](step(ps.from_arrays(arrays))), arrays, rows)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("group", GROUPS)
def test_arrays_come_out_of_both_engines_as_numpy_indexes_them(group: str, verb: str, implementation: str) -> None:
    step, rows = VERBS[verb]
    arrays = fitting(group, verb)
    require_equal(PATHS["engine"](step(ps.from_arrays(arrays))), arrays, rows)


@pytest.mark.slow
@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("verb", VERBS)
def test_arrays_come_out_of_worker_processes(verb: str) -> None:
    step, rows = VERBS[verb]
    arrays = {f"{group}, {name}": array for group in GROUPS for name, array in fitting(group, verb).items()}
    require_equal(PATHS["processes"](step(ps.from_arrays(arrays))), arrays, rows)


@pytest.mark.parametrize("path", ["iterated", "inline", "engine", "threads"])
@pytest.mark.parametrize("group", GROUPS)
def test_files_come_out_as_arrays_in_memory_do(group: str, path: str, implementation: str, tmp_path: Any) -> None:
    arrays = fitting(group, "batch")
    arrays.pop("bfloat16", None)  # .npy has no name for it
    for number, array in enumerate(arrays.values()):
        np.save(tmp_path / f"{number}.npy", np.asfortranarray(array) if number % 2 else array)
    paths = {name: tmp_path / f"{number}.npy" for number, name in enumerate(arrays)}
    for mapped in (None, False):
        require_equal(PATHS[path](ps.from_npy(paths, mapped=mapped).batch(2)), arrays, cut(range(N), 2))


@pytest.mark.parametrize("path", ["inline", "engine", "threads"])
def test_slices_of_a_memmap_come_out_as_its_elements(path: str, implementation: str, tmp_path: Any) -> None:
    np.save(tmp_path / "wide.npy", values(2 * N, 6, 4))
    wide = np.load(tmp_path / "wide.npy", mmap_mode="r")
    arrays = {
        "part": wide[3 : 3 + N], "backwards": wide[::-2], "within": wide[:N, 1:4, ::-1], "column": wide[:N, 2, 3],
        "turned": wide[:N].transpose(0, 2, 1), "none": wide[:N, :0],
        "windows": as_strided(wide, (N, 3, 4), (96, 96, 4)),
    }  # fmt: skip
    require_equal(PATHS[path](ps.from_arrays(arrays).shuffle(3).batch(2)), arrays, cut(shuffled(N, 3), 2))


@pytest.mark.parametrize("path", ["iterated", "inline", "engine", "threads"])
def test_casts_are_numpy_s_for_every_shape_and_stride(path: str, implementation: str) -> None:
    for group in ("shapes", "strides"):
        arrays = {name: each for name, each in fitting(group, "batch").items() if each.dtype.kind == "i"}
        found = PATHS[path](ps.from_arrays(arrays).batch(2).cast(">f4"))
        require_equal(found, {name: array.astype(">f4") for name, array in arrays.items()}, cut(range(N), 2))


@pytest.mark.parametrize("path", ["iterated", "inline", "engine", "threads"])
def test_a_zip_has_each_array(path: str, implementation: str) -> None:
    arrays = fitting("shapes", "batch") | fitting("strides", "batch")
    zipped = ps.zip({name: ps.from_arrays(array).shuffle(3) for name, array in arrays.items()}).batch(2)
    require_equal(PATHS[path](zipped), arrays, cut(shuffled(N, 3), 2))


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("group", GROUPS)
def test_shards_have_the_rows_of_each_batch(group: str, executor: Any, implementation: str) -> None:
    arrays = fitting(group, "batch")
    batches = ps.from_arrays(arrays).shuffle(3).batch(4, drop_remainder=True)
    rows = cut(shuffled(N, 3), 4, keeps=False)
    for index in range(2):
        with batches.loader(executor, shard=(index, 2)) as loader:
            require_equal(list(loader), arrays, [each[2 * index : 2 * index + 2] for each in rows])


@pytest.mark.parametrize("group", GROUPS)
def test_kept_arrays_come_back(group: str, tmp_path: Any) -> None:
    arrays = fitting(group, "batch")
    kept = ps.from_arrays(arrays).materialize(tmp_path / "whole", executor="inline")
    require_equal(list(kept.batch(2)), arrays, cut(range(N), 2))
    with kept.batch(2).loader("threads", 2) as loader:
        require_equal(list(loader), arrays, cut(range(N), 2))
    for _ in range(2):
        require_equal(list(ps.from_arrays(arrays).cache(tmp_path / "cache").batch(2)), arrays, cut(range(N), 2))


@pytest.mark.parametrize("path", ["iterated", "inline", "engine", "threads"])
def test_without_rows_there_is_nothing(path: str, implementation: str) -> None:
    for array in (np.zeros(0), np.zeros((0, 3)), np.zeros((0, 0), "S2"), np.zeros((0, *(1,) * 40), PADDED)):
        dataset = ps.from_arrays({"x": array})
        assert len(dataset.batch(2)) == 0
        if path == "iterated":
            assert list(dataset.batch(2)) == list(dataset.shuffle(1)) == list(dataset.windows(2)) == []
        else:
            with pytest.raises(ps.ArgumentError, match="There is nothing to load"):
                PATHS[path](dataset.batch(2))


def objects() -> Iterator[tuple[Any, str]]:
    yield np.array([None] * N), "Python objects"
    yield np.zeros(N, [("a", "i4"), ("b", object)]), "Python objects"
    yield np.zeros(N, "V0"), "no bytes at all"
    yield np.zeros((N, 3), "V0"), "no bytes at all"
    yield np.zeros(N, []), "no bytes at all"
    yield np.ndarray((N,), np.dtype("S0")), "no bytes at all"
    yield np.ndarray((N,), np.dtype("U0")), "no bytes at all"


@pytest.mark.parametrize(("array", "message"), list(objects()))
def test_values_without_bytes_of_their_own_are_refused(array: Array, message: str) -> None:
    with pytest.raises(ps.ArgumentTypeError, match=message):
        ps.from_arrays({"x": array})


def test_values_without_bytes_of_a_function_are_refused() -> None:
    with pytest.raises(ps.PenstockError, match="no bytes at all"):
        list(ps.range(3).map(lambda x: np.zeros(2, "V0")))


@pytest.mark.parametrize("verb", ["batch", "padded_batch", "windows"])
def test_more_axes_than_numpy_has_are_refused(verb: str) -> None:
    dataset = ps.from_arrays(np.zeros((6, *(1,) * 63)))
    assert len(dataset.element_spec.shape) == 63
    batches = getattr(dataset, verb)(2)
    assert len(batches.element_spec.shape) == 64
    with pytest.raises(ps.SpecError, match="An array of 65 axes was to be made, and arrays of NumPy have at most 64"):
        list(batches.batch(2))
