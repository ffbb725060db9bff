"""Functions of many elements: `map(batched=)`."""

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_resumes_exactly


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
