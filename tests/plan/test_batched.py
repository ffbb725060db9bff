"""Functions of many elements: `map(batched=)`."""

import itertools
import threading

import numpy as np
import pytest

import penstock as ps
from penstock.plan._text import place_of
from penstock.testing import assert_resumes_exactly
from tests.waits import DEADLINE_S

INT64 = ps.ArraySpec((), "int64")
TOKENS = {"ids": ps.ArraySpec((None,), "int64"), "n": INT64}
EXECUTORS = ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]


def grouped(count=10, batched=4, **options):
    return ps.range(count).map(lambda many: many * 10 + len(many), batched=batched, **options)


def test_elements_are_those_of_their_groups():
    want = [i * 10 + (4 if i < 8 else 2) for i in range(10)]
    ds = grouped()
    assert len(ds) == 10
    assert ds.access == "random"
    assert [int(ds[i]) for i in (9, 0, 7, 3)] == [want[i] for i in (9, 0, 7, 3)]
    assert [int(x) for x in ds] == want
    for executor in ("inline", "threads"):
        with ds.shuffle(1).batch(3).loader(executor=executor) as loader:
            assert sorted(int(x) for batch in loader for x in batch) == want
    assert_resumes_exactly(ds.batch(3), executors=[("inline", 1), ("threads", 2)])


@pytest.mark.slow
def test_worker_processes_run_functions_of_many(workers_stay):
    with grouped().batch(5).loader(executor="processes", workers=2) as loader:
        assert [int(x) for batch in loader for x in batch] == [int(x) for x in grouped()]


def test_a_function_runs_once_for_each_group():
    calls = []

    def noted(many):
        calls.append(many["x"].tolist())
        return {"y": many["x"] + 1, "x": many["x"]}

    ds = ps.from_arrays({"x": np.arange(6)}).map(noted, batched=3)
    assert [int(each["y"]) for each in ds] == [1, 2, 3, 4, 5, 6]
    assert sorted(map(tuple, calls))[-2:] == [(0, 1, 2), (3, 4, 5)]
    assert "map(noted" in repr(ds).replace(noted.__qualname__, "noted")
    assert "batched=3)" in repr(ds)
    assert "unbatch" not in repr(ds)


def test_a_stream_has_groups_too():
    ds = ps.from_generator(range, 5, element_spec=ps.ArraySpec((), "int64")).map(lambda x: x * 2, batched=2)
    assert [int(x) for x in ds] == [0, 2, 4, 6, 8]


def test_a_spec_is_that_of_one_element():
    ds = grouped(element_spec=ps.ArraySpec((), "int64"))
    assert ds.element_spec == ps.ArraySpec((), "int64")
    assert int(ds[9]) == 92
    assert grouped(3).element_spec == ps.ArraySpec((), "int64")  # one group, a short one


def test_errors_name_the_elements():
    def broken(many):
        if 6 in many:
            raise KeyError("six")
        return many

    with pytest.raises(ps.ElementError, match=r"batched=4\) at .* failed on elements 4 to 7 of epoch 0.*six"):
        ps.range(10).map(broken, batched=4)[5]
    with pytest.raises(ps.SpecError, match=r"got 4 elements, elements 0 to 3, and returned 3 along the first axis"):
        ps.range(10).map(lambda many: many[1:], batched=4)[5]
    with pytest.raises(ps.SpecError, match="a value without a first axis"):
        ps.range(10).map(np.sum, batched=4)[5]
    with pytest.raises(ps.SpecError, match=r"map\(batched=4\) stacks elements, so they must have one shape"):
        ps.range(4).map(np.arange, element_spec=ps.ArraySpec((None,), "int64")).map(lambda x: x, batched=4)[0]
    with pytest.raises(ps.ArgumentError, match=r"map\(batched=0\): it must be at least 1"):
        ps.range(10).map(lambda many: many, batched=0)


# Other numbers of elements, and elements of any size.


def tokens(many):
    """Lists of one to four numbers, one an element."""
    return {"ids": [list(range(int(x) % 4 + 1)) for x in many], "n": [int(x) for x in many]}


def repeated(many):
    """Each number as often as it says, modulo 3."""
    return np.repeat(many, many % 3)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ["by index", "stream"])
def test_elements_of_any_size_come_one_by_one(kind, executor, workers_stay):
    source = ps.range(50).shuffle(1) if kind == "by index" else ps.range(50).filter(lambda x: x % 7 > 0)
    want = [int(x) for x in source]
    ds = source.map(tokens, batched=8, element_spec=TOKENS)
    assert (ds.access, ds.length) == ("random", 50) if kind == "by index" else ("stream", None)
    for made in (ds, ds.map(lambda e: e, element_spec=TOKENS)):
        with made.padded_batch(6).loader(executor=executor) as loader:
            found = [
                (int(n), ids.tolist()) for batch in loader for n, ids in zip(batch["n"], batch["ids"], strict=True)
            ]
        assert [n for n, _ in found] == want
        assert all(ids[: n % 4 + 1] == list(range(n % 4 + 1)) for n, ids in found)
    if kind == "by index":
        assert [int(ds[i]["n"]) for i in (49, 0, 7, 8)] == [want[i] for i in (49, 0, 7, 8)]
        assert [int(e["n"]) for e in ds[[3, 40, 3]]] == [want[3], want[40], want[3]]


def test_what_is_done_to_an_element_of_any_size_does_not_stay():
    ds = ps.range(8).map(tokens, batched=4, element_spec=TOKENS)
    ds[3]["ids"][:] = 9
    assert ds[3]["ids"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_function_may_make_any_number_of_elements(executor, workers_stay):
    want = [x for x in range(50) for _ in range(x % 3)]
    for source in (ps.range(50), ps.from_generator(range, 50, element_spec=INT64)):
        ds = source.map(repeated, batched=8, keeps_count=False)
        assert (ds.access, ds.length, ds.element_spec) == ("stream", None, INT64)
        assert [int(x) for x in ds] == want
        with ds.batch(7).loader(executor=executor) as loader:
            for _ in range(2):
                assert [x for batch in loader for x in batch.tolist()] == want
    none = ps.range(50).map(lambda many: many[:0], batched=8, keeps_count=False, element_spec=INT64)
    with none.loader(executor=executor) as loader:
        assert list(loader) == []


def test_a_changed_number_of_elements_resumes_and_is_shared_out():
    ds = ps.range(60).shuffle(1).map(repeated, batched=8, keeps_count=False).batch(4, drop_remainder=True)
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 2)])
    with ds.loader("inline") as loader:
        whole = [batch.tolist() for batch in loader]
    loaders = [ds.loader("threads", shard=(rank, 2)) for rank in range(2)]
    halves = list(zip(*(itertools.islice(loader, 3) for loader in loaders), strict=True))
    state = loaders[0].get_state()
    for loader in loaders:
        loader.close()
    with ds.loader("inline") as loader:
        loader.set_state(state)
        assert [np.concatenate(pair).tolist() for pair in halves] + [batch.tolist() for batch in loader] == whole


def test_an_element_that_fails_before_is_left_out_of_its_group(tmp_path):
    def fails(x):
        if x == 5:
            raise ValueError
        return x

    def of_stream(ds):
        return ds.filter(lambda x: True)

    source = ps.range(12).map(fails, element_spec=INT64)
    with (
        of_stream(source)
        .map(tokens, batched=4, element_spec=TOKENS)
        .padded_batch(4)
        .loader("inline", on_error="skip", quarantine=tmp_path / "q") as loader
    ):
        assert [int(n) for batch in loader for n in batch["n"]] == [*range(5), *range(6, 12)]
    for keeps_count in (True, False):
        ds = source.map(tokens, batched=4, keeps_count=keeps_count, element_spec=TOKENS)
        with ds.padded_batch(4).loader("inline", on_error="skip", quarantine=tmp_path / "q") as loader:
            found = [int(n) for batch in loader for n in batch["n"]]
        assert found == [*range(5), *range(6, 12)]


def breaks_on_seven(many):
    if 7 in many:
        raise ValueError("seven")
    return tokens(many)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_group_that_fails_is_left_out_whole_whatever_the_size_of_its_elements(executor, tmp_path, workers_stay):
    for source in (ps.range(12), ps.from_generator(range, 12, element_spec=INT64)):
        ds = source.map(breaks_on_seven, batched=4, element_spec=TOKENS).padded_batch(4)
        with ds.loader(executor=executor, on_error="skip", quarantine=tmp_path / "q") as loader:
            assert [int(n) for batch in loader for n in batch["n"]] == [*range(4), *range(8, 12)]
    assert "made of the integer 4, the integer 5" in (tmp_path / "q").read_text()


def test_names_and_errors_of_other_numbers_are_those_of_the_user():
    ds = ps.range(10).map(repeated, batched=4, keeps_count=False)
    assert repr(ds).startswith("map(repeated, batched=4, keeps_count=False)")
    assert repr(ps.range(10).map(tokens, batched=4, element_spec=TOKENS)).startswith("map(tokens, batched=4): 10 ")
    with pytest.raises(
        ps.ElementError, match=r"batched=4.* failed on elements 8 to 9 of epoch 0, made of .*: ZeroDivisionError"
    ):
        list(ps.range(10).map(lambda many: many[: 2 // (9 - int(many[-1]))], batched=4, keeps_count=False))
    with pytest.raises(ps.ElementError, match=r"unlike numbers of elements, 1 and 2"):
        list(ps.range(10).map(lambda many: {"a": [1], "b": [1, 2]}, batched=4, keeps_count=False))
    with pytest.raises(ps.ElementError, match=r"returns arrays or lists, with an entry for each that it makes"):
        list(ps.range(10).map(lambda many: "text", batched=4, keeps_count=False))
    with pytest.raises(
        ps.SpecError, match=r"batched=4\) at .*, for elements 8 to 9: it returned unlike numbers .* 1 and 2\."
    ):
        ps.range(10).map(lambda many: {"ids": [[1]], "n": [1, 2]}, batched=4, element_spec=TOKENS)[9]
    with pytest.raises(ps.SpecError, match=r"got 2 elements, elements 8 to 9, and returned 1\. .*keeps_count=F"):
        ps.range(10).map(lambda many: [[1.5]], batched=4, element_spec=ps.ArraySpec((None,), "f8"))[9]
    with pytest.raises(
        ps.SpecError, match=r"returned an array of \(2, 2\) int64 for elements 4 to 7, but its element_spec is"
    ):
        ps.range(10).map(lambda many: [np.ones((2, 2), int)] * 4, batched=4, element_spec=TOKENS["ids"])[5]
    with pytest.raises(ps.ArgumentError, match=r"keeps_count=False\) is for map\(batched=\).*flat_map\(\)"):
        ps.range(10).map(repeated, keeps_count=False)


@pytest.mark.parametrize("keeps_count", [True, False])
def test_what_a_worker_was_at_is_said_in_elements_of_the_user(keeps_count):
    ds = ps.range(10).map(tokens, batched=4, keeps_count=keeps_count, element_spec=TOKENS)
    assert place_of((2, 0, 2), ds._node).endswith("on elements 8 to 9 of epoch 0, made of the integer 8, the integer 9")


# flat_map runs on workers, too.


def countdown(x):
    yield from range(int(x) % 5)


def large(x):
    """More than a worker makes of one element."""
    for i in range(20):
        yield np.full(10_000, x * 100 + i)


def breaks(x):
    yield x
    if x == 5:
        raise ValueError("five")
    yield x


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_workers_make_of_elements_comes_in_order(executor, workers_stay):
    for source in (ps.range(50), ps.range(50).map(lambda x: x), ps.from_generator(range, 50, element_spec=INT64)):
        for fn in (countdown, lambda x: list(countdown(x)), lambda x: np.arange(x % 5)):
            with source.flat_map(fn, element_spec=INT64).batch(7).loader(executor=executor) as loader:
                found = [x for batch in loader for x in batch.tolist()]
            assert found == [i for x in range(50) for i in countdown(x)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_more_than_a_worker_makes_of_one_element_comes_too(executor, workers_stay):
    want = [x * 100 + i for x in range(4) for i in range(20)]
    for fn in (large, lambda x: list(large(x))):
        with ps.range(4).flat_map(fn).loader(executor=executor) as loader:
            assert [int(each[0]) for each in loader] == want
    endless = ps.range(2).flat_map(lambda x: itertools.count(), element_spec=INT64)
    with endless.take(20_000).batch(1000).loader(executor=executor) as loader:
        assert [int(batch[0]) for batch in loader] == [*range(0, 20_000, 1000)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_comes_behind_what_was_made_before_it(executor, workers_stay):
    found = []
    with ps.range(9).flat_map(breaks).loader(executor=executor) as loader:
        message = r"^flat_map\(breaks\) at .* failed on element 5 of epoch 0, made of the integer 5: ValueError: five"
        with pytest.raises(ps.ElementError, match=message):
            found.extend(int(x) for x in loader)
    assert found == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_threads_run_functions_of_flat_map_side_by_side():
    began = threading.Event()

    def meets(x):
        if x == 1:  # 0 shows what an element looks like
            assert began.wait(DEADLINE_S)
        if x > 3:
            began.set()
        return [x]

    with ps.range(8).flat_map(meets, element_spec=INT64).loader("threads", workers=2) as loader:
        assert [int(x) for x in loader] == list(range(8))


def test_the_last_batch_is_short_where_elements_before_it_fail(tmp_path):
    def fails(x):
        if x == 0:
            raise ValueError
        return x

    source = ps.range(4).map(fails, element_spec=INT64)
    for ds in (
        source.batch(2).map(lambda many: many + 1),
        source.map(lambda many: many + 1, batched=2).batch(2),
        source.map(lambda many: many + 1, batched=2, element_spec=INT64).batch(2),
    ):
        with ds.loader(executor="inline", on_error="skip", quarantine=tmp_path / "q") as loader:
            assert [batch.tolist() for batch in loader] == [[2, 3], [4]]
