import contextlib
import dataclasses
import enum
from collections import UserDict, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.plan import _reader

Frame = namedtuple("Frame", "pixels label")
FRAMES = np.arange(24.0).reshape(6, 2, 2)


def frames():
    return ps.from_arrays(FRAMES.copy())


def test_element_is_the_function_of_the_element():
    assert [int(x) for x in ps.range(4).map(lambda x: x * x)] == [0, 1, 4, 9]


def test_order_length_and_random_access_are_kept():
    ds = ps.range(5).shuffle(1).map(lambda x: x * 10)
    assert len(ds) == 5
    assert [int(ds[i]) for i in (3, 0)] == [10 * int(ps.range(5).shuffle(1)[i]) for i in (3, 0)]


@pytest.mark.parametrize("is_lone", [True, False])
def test_a_tuple_of_a_class_of_its_own_is_an_array(is_lone):
    class Size(tuple):  # as torch.Size
        __slots__ = ()

    ds = ps.range(4).map(lambda x: Size((3, x)) if is_lone else {"size": Size((3, x))}).batch(2)
    assert [(batch if is_lone else batch["size"]).tolist() for batch in ds] == [[[3, 0], [3, 1]], [[3, 2], [3, 3]]]


def test_function_may_change_what_it_gets():
    def clear(x):
        x[...] = 0
        return x

    ds = frames()
    assert all(not x.any() for x in ds.map(clear).batch(3))
    np.testing.assert_array_equal(ds[2], FRAMES[2])


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_function_may_keep_what_it_gets(executor):
    kept = {}

    def keep(x):
        kept.setdefault(float(x[0, 0]), x)
        return x.sum()

    with frames().map(keep).batch(2).loader(executor=executor) as loader:
        for _ in range(3):
            list(loader)
    assert len(kept) == 6
    for index, x in enumerate(kept[key] for key in sorted(kept)):
        np.testing.assert_array_equal(x, FRAMES[index])


def test_memory_of_what_nobody_keeps_is_used_again():
    seen = set()

    def look(x):
        seen.add(x.ctypes.data)
        return x.sum()

    with frames().map(look).batch(2).loader(executor="inline") as loader:
        seen.clear()  # the probe for the spec has memory of its own
        for _ in range(5):
            list(loader)
    assert len(seen) == 2  # a batch's worth of elements, 15 batches long


def test_function_may_return_a_view_of_what_it_gets():
    ds = frames().map(lambda x: x[::-1, ::-1])
    np.testing.assert_array_equal(np.stack(list(ds)), FRAMES[:, ::-1, ::-1])
    np.testing.assert_array_equal(ds.batch(6)[0], FRAMES[:, ::-1, ::-1])


def test_two_branches_do_not_see_each_others_changes():
    def negate(x):
        return np.negative(x, out=x)

    ds = frames()
    for left, right in ps.zip((ds.map(negate), ds)):
        np.testing.assert_array_equal(left, -right)


def test_dict_order_is_that_of_insertion():
    ds = ps.range(2).map(lambda x: {"z": x, "a": x, "m": x})
    assert list(ds[1]) == list(ds.element_spec) == ["z", "a", "m"]


def test_named_tuples_stay_named_tuples():
    element = ps.range(3).map(lambda x: Frame(np.zeros(2), {"id": x})).batch(3)[0]
    assert isinstance(element, Frame)
    assert element.label["id"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        ([1, 2, 3], "int64", (3,)),
        ([[1.0], [2.0]], "float64", (2, 1)),
        ([], "float64", (0,)),
        (1, "int64", ()),
        (1.5, "float64", ()),
        (True, "bool", ()),
        (2j, "complex128", ()),
        (np.float32(1), "float32", ()),
        (np.datetime64("2020-01-01"), "datetime64[D]", ()),
    ],
)
def test_lists_and_numbers_are_leaves_as_numpy_makes_them(value, dtype, shape):
    ds = ps.range(2).map(lambda x: (value,))
    assert ds.element_spec == (ps.ArraySpec(shape, dtype),)
    assert ds[1][0].dtype == dtype
    np.testing.assert_array_equal(ds.batch(2)[0][0], np.array([value, value], dtype))


def test_an_element_without_arrays_is_refused():
    with pytest.raises(ps.SpecError, match="returned no array at all for element 0"):
        ps.range(3).map(lambda i: ())[0]


def test_an_element_that_refuses_to_be_an_array_is_named():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    with pytest.raises(ps.SpecError, match=r"^map\(.*\) .* a Tensor that is not an array: Can't call .* element 0"):
        ps.range(3).map(lambda i: Tensor())[0]


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize(("value", "kind"), [("name.png", "U"), (b"bytes", "S"), ("", "U")])
def test_text_and_bytes_are_leaves_of_any_size(value, kind):
    ds = ps.range(3).map(lambda x: value * int(x))
    assert ds.element_spec.dtype == np.dtype(kind)
    assert ds[2] == value * 2
    batch = ds.batch(3)[0]
    assert batch.tolist() == [value[:0], value, value * 2]
    with ds.batch(3).loader() as loader:
        assert next(iter(loader)).tolist() == batch.tolist()


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.usefixtures("workers_stay")
def test_text_of_a_type_of_the_users_is_text() -> None:
    dataset = ps.range(6).map(lambda x: Colour.RED if x % 2 else Colour.BLUE).batch(3)
    with dataset.loader("processes", workers=1) as loader, dataset.loader("inline") as oracle:
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in oracle]
        assert [type(text) for batch in loader for text in batch.tolist()] == [str] * 6


def test_learning_a_chain_of_functions_takes_one_reader(monkeypatch):
    made, init = [], _reader.Reader.__init__

    def counted(self, *arguments, **options):
        made.append(self)
        init(self, *arguments, **options)

    monkeypatch.setattr(_reader.Reader, "__init__", counted)
    dataset = ps.range(10)
    for _ in range(50):
        dataset = dataset.map(lambda x: x + 1)
    assert dataset.element_spec == ps.ArraySpec((), np.dtype("i8"))
    assert len(made) == 1


def test_spec_comes_from_element_0_run_once():
    ran = []
    ds = ps.range(5).map(lambda x: ran.append(int(x)) or x * 0.5)
    top = ds.batch(2).shuffle(3).take(1)
    assert ran == []
    assert top.element_spec == ps.ArraySpec((None,), "float64")
    assert ds.element_spec == ps.ArraySpec((), "float64")
    assert ran == [0]


@pytest.mark.parametrize("between", [lambda ds: ds, lambda ds: ds.cast("int32").cast("int64")], ids=["maps", "casts"])
@pytest.mark.parametrize("source", [lambda: ps.range(9), lambda: ps.from_generator(range, 9)], ids=["random", "stream"])
@pytest.mark.parametrize("on_error", [None, "raise", "skip"])
def test_each_function_of_a_chain_runs_once_to_find_its_spec(source, between, on_error):
    calls, ds = [], source()
    for number in range(12):
        ds = between(ds.map(lambda x, number=number: (calls.append(number), x + number)[1]))
    if on_error is None:
        assert ds.element_spec == ps.ArraySpec((), "int64")
    else:
        ds.batch(2).loader("inline", on_error=on_error).close()
    assert calls == list(range(12))
    assert int(next(iter(ds))) == sum(range(12))


def test_a_function_that_changes_what_it_gets_changes_no_other_elements(tmp_path):
    def doubled(x):
        x *= 2
        return x

    both = ps.from_arrays(np.ones((4, 3))).map(doubled)
    ds = ps.zip((both.map(doubled), both.map(doubled).map(doubled)))
    assert ds.element_spec
    assert [[leaf.tolist() for leaf in pair] for pair in ds] == [[[4.0] * 3, [8.0] * 3]] * 4


def test_elements_after_the_first_are_run_for_a_batch_that_a_function_gets():
    calls = []
    ds = ps.range(8).map(lambda x: (calls.append(int(x)), x + 10)[1]).batch(4).map(lambda x: x.sum())
    assert ds.element_spec == ps.ArraySpec((), "int64")
    assert calls == [0, 1, 2, 3]
    assert int(ds[0]) == 10 + 11 + 12 + 13


def test_spec_of_shuffled_elements_comes_from_the_first_in_order():
    ran = []
    ds = ps.range(50).shuffle(3).map(lambda x: ran.append(int(x)) or x)
    assert ds.element_spec == ps.ArraySpec((), "int64")
    assert ran == [int(ps.range(50).shuffle(3)[0])]


def test_declared_spec_is_believed_and_nothing_runs():
    ran = []
    ds = ps.range(5).map(lambda x: ran.append(x) or x, element_spec=ps.ArraySpec((), "int64"))
    assert ds.batch(5).element_spec == ps.ArraySpec((5,), "int64")
    assert "() int64" in repr(ds)
    assert ran == []


def test_function_of_a_batch_gets_short_batches_as_they_are():
    ds = ps.range(5).batch(2).map(lambda x: {"x": x, "mean": x.mean()})
    assert ds.element_spec["x"] == ps.ArraySpec((None,), "int64")
    assert [e["x"].tolist() for e in ds] == [[0, 1], [2, 3], [4]]
    assert [float(e["mean"]) for e in ds] == [0.5, 2.5, 4.0]


@pytest.mark.parametrize("order", [slice(None, None, -1), slice(2, None)])
def test_spec_is_right_where_element_0_is_the_short_batch(order):
    ds = ps.range(7).batch(3)[order].map(lambda x: x * 2)
    assert [e.tolist() for e in ds] == [[0, 2, 4], [6, 8, 10], [12]][order]
    assert ds.element_spec.shape == (None,)
    assert ds.element_spec.max_shape == (3,)


@pytest.mark.usefixtures("workers_stay")
def test_ragged_elements_are_delivered_and_not_stacked():
    ds = ps.range(4).map(np.arange, element_spec=ps.ArraySpec((None,), "int64"))
    assert [x.tolist() for x in ds] == [[], [0], [0, 1], [0, 1, 2]]
    with ds.loader() as loader:
        assert [x.tolist() for x in loader] == [[], [0], [0, 1], [0, 1, 2]]
    with pytest.raises(ps.SpecError, match=r"one shape, but element is \(None,\) int64"):
        _ = ds.batch(2).element_spec


def test_function_that_draws_from_global_generators_gives_the_same_twice():
    ds = ps.range(6).map(lambda x: np.random.random())
    first = [float(x) for x in ds]
    np.random.random(7)
    assert [float(x) for x in ds] == first == [float(ds[i]) for i in range(6)]
    assert len(set(first)) == 6


def test_global_generators_of_the_caller_are_left_as_they_were():
    np.random.seed(3)
    expected = np.random.RandomState(3).random(2)
    found = [np.random.random()]
    list(ps.range(4).map(lambda x: np.random.random()))
    found.append(np.random.random())
    assert found == expected.tolist()


@pytest.mark.usefixtures("workers_stay")
def test_random_numbers_depend_on_seed_epoch_and_index_alone():
    def draw(x, rng):
        return rng.random()

    ds = ps.from_arrays(np.zeros(5)).random_map(draw, seed=1)
    assert [float(ds[i]) for i in (4, 2)] == [float(x) for x in ds][4:1:-2]
    assert [float(x) for x in ds.batch(2).unbatch()] == [float(x) for x in ds]
    with ds.loader() as loader:
        epochs = [[float(x) for x in loader] for _ in range(2)]
    assert epochs[0] == [float(x) for x in ds]
    assert not set(epochs[0]) & set(epochs[1])
    assert not {float(x) for x in ps.from_arrays(np.zeros(5)).random_map(draw, seed=2)} & set(epochs[0])


def test_index_is_the_position_in_the_steps_input():
    def draw(x, rng):
        return rng.random()

    plain = [float(x) for x in ps.range(8).random_map(draw)]
    assert [float(x) for x in ps.range(8).shuffle(1).random_map(draw)] == plain
    assert [float(x) for x in ps.range(8).random_map(draw)[::2]] == plain[::2]
    assert [float(x) for x in ps.range(8)[::2].random_map(draw)] == plain[:4]


def test_branches_with_one_seed_draw_the_same_numbers():
    def flip(x, rng):
        return x[::-1] if rng.random() < 0.5 else x

    images = ps.from_arrays(np.arange(40).reshape(20, 2))
    pairs = ps.zip((images.random_map(flip, seed=1), images.map(np.negative).random_map(flip, seed=1)))
    assert all((x == -y).all() for x, y in pairs)
    other = ps.zip((images.random_map(flip, seed=1), images.random_map(flip, seed=2)))
    assert not all((x == y).all() for x, y in other)


def test_two_random_steps_in_a_row_draw_other_numbers():
    def draw(x, rng):
        return np.append(x, rng.random())

    ds = ps.from_arrays(np.zeros((4, 0))).random_map(draw).random_map(draw)
    assert all(a != b for a, b in ds)


def test_exception_is_the_cause_and_the_message_says_where():
    def fragile(x):
        if x[0] == 8:
            raise KeyError("no key")
        return x

    ds = ps.from_arrays({"x": np.arange(10).reshape(5, 2)}).map(lambda e: e["x"]).shuffle(1).map(fragile)
    index = next(i for i in range(5) if ps.range(5).shuffle(1)[i] == 4)
    with pytest.raises(ps.ElementError) as caught:
        list(ds)
    assert isinstance(caught.value.__cause__, KeyError)
    assert isinstance(caught.value, RuntimeError)
    message = str(caught.value)
    assert message.startswith("map(fragile) at test_map.py:")
    assert f"failed on element {index} of epoch 0, made of row 4 of array" in message
    assert message.endswith("KeyError: 'no key'")


def test_an_element_that_failed_can_be_tried_again():
    failures = [OSError("once")]

    def flaky(x):
        if x == 1 and failures:
            raise failures.pop()
        return x

    ds = ps.range(4).map(flaky).batch(2).map(np.negative).unbatch()
    with contextlib.suppress(ps.ElementError):
        list(ds)
    assert [int(x) for x in ds] == [0, -1, -2, -3]


def test_a_batch_that_failed_leaves_nothing_in_the_place_of_another():
    def half(x):
        return {"a": x, "b": x if x[0] < 4 else x.astype("f4")}  # of the second batch, `a` is written and `b` refused

    ds = ps.range(8).batch(4).map(half).unbatch()
    assert ds[1] == {"a": 1, "b": 1}
    with pytest.raises(ps.SpecError, match=r"an array of \(4,\) float32 in .*for element 1"):
        _ = ds[5]
    assert ds[1] == {"a": 1, "b": 1}


@pytest.mark.parametrize(("text", "dtype"), [("a\0", "U2"), (b"a\0", "S2"), ("abc", "U2")])
def test_text_that_a_declared_dtype_does_not_keep_whole_is_refused(text, dtype):
    ds = ps.range(2).map(lambda x: text, element_spec=ps.ArraySpec((), dtype))
    with pytest.raises(ps.SpecError, match=r"text of any size is of np\.dtype\('U'\)"):
        ds[0]


@dataclasses.dataclass
class Encoding:
    ids: Any
    mask: Any


@pytest.mark.parametrize(
    "make",
    [
        lambda x: UserDict(ids=[x, 2], mask=True),
        lambda x: MappingProxyType({"ids": [x, 2], "mask": True}),
        lambda x: Encoding([x, 2], mask=True),
    ],
    ids=["UserDict", "proxy", "dataclass"],
)
def test_mappings_and_dataclasses_are_dicts(make: Any) -> None:
    ds = ps.range(4).map(lambda x: (make(x), {"deep": make(x)}))
    for dataset in (ds, ps.from_source([(make(x), {"deep": make(x)}) for x in range(4)])):
        first, second = dataset.batch(4)[0]
        assert type(first) is type(second["deep"]) is dict
        assert first["ids"].tolist() == second["deep"]["ids"].tolist() == [[0, 2], [1, 2], [2, 2], [3, 2]]
        assert first["mask"].dtype == bool


NO_LOSS = [
    (1, "float64"), (1, "float32"), (1, "complex64"), ([1, 2], "float32"), (5, "int8"), (np.int64(255), "uint8"),
    (np.float32(0.1), "float64"), (np.uint8(3), "int64"), (2**53, "float64"), (np.zeros((0,), "int64"), "int8"),
]  # fmt: skip
LOSS = [
    (0.1, "float32"), (0.5, "float32"), (1.0, "int64"), (True, "int64"), (1, "bool"), (128, "int8"), (-1, "uint8"),
    (2**53 + 1, "float64"), (2**24 + 1, "float32"), (np.float64(1), "float32"), (1j, "float64"),
    (np.uint64(2**64 - 1), "int64"), (np.uint64(2**64 - 1), "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype"), NO_LOSS, ids=range(len(NO_LOSS)))
def test_numbers_are_cast_where_none_can_change(value: Any, dtype: str) -> None:
    found = ps.range(2).map(lambda _: value, element_spec=ps.ArraySpec(np.shape(value), dtype))[1]
    assert (found.dtype, np.asarray(found).tolist()) == (np.dtype(dtype), np.asarray(value).tolist())


@pytest.mark.parametrize(("value", "dtype"), LOSS, ids=range(len(LOSS)))
def test_numbers_that_could_change_are_refused(value: Any, dtype: str) -> None:
    with pytest.raises(ps.SpecError, match=rf"these could\. Return np\.asarray\(x, '{dtype}'\); or declare ArraySpec"):
        ps.range(2).map(lambda _: value, element_spec=ps.ArraySpec(np.shape(value), dtype))[1]
