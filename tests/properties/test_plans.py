"""Any plan: by index, in order, on any executor, with any number of workers, cut anywhere. One meaning."""

import contextlib
import operator
import re

import numpy as np
import pytest
from hypothesis import given, reject, settings, strategies as st

from penstock import ArgumentError, SpecError
from penstock.base import _tree
from penstock.base._tree import Tree
from penstock.testing import assert_fits, assert_resumes_exactly, assert_same
from tests.strategies import MOVES, Plan, plans


@given(plans())
def test_elements_by_index_are_those_of_the_model(plan: Plan) -> None:
    expected = plan.elements(0)
    assert len(plan.dataset) == plan.dataset.length == len(expected)
    for index, element in enumerate(expected):
        assert_same(plan.dataset[index], element)
        assert_same(plan.dataset[index - len(expected)], element)
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            plan.dataset[outside]


@given(plans())
def test_elements_in_order_are_those_of_the_model(plan: Plan) -> None:
    for element, want in zip(plan.dataset, plan.elements(0), strict=True):
        assert_same(element, want)


@given(plans())
def test_every_element_fits_the_spec(plan: Plan) -> None:
    for element in plan.elements(0):
        assert_fits(element, plan.dataset.element_spec)


@given(plans(), st.data())
def test_slices_of_slices_are_those_of_the_list(plan: Plan, data: st.DataObject) -> None:
    once, twice = data.draw(st.slices(len(plan))), data.draw(st.slices(len(plan)))
    part, expected = plan.dataset[once][twice], plan.elements(0)[once][twice]
    assert len(part) == len(expected)
    for element, want in zip(part, expected, strict=True):
        assert_same(element, want)


@given(plans(max_steps=3), plans(max_steps=3))
def test_an_element_is_the_same_inside_another_plan(plan: Plan, other: Plan) -> None:
    import penstock as ps

    count = min(len(plan), len(other))
    both = ps.zip((plan.dataset.take(count), other.dataset.take(count)))
    for index in range(count):
        assert_same(both[index], (plan.elements(0)[index], other.elements(0)[index]))


@pytest.mark.parametrize(
    ("executor", "workers"), [("inline", 1), ("threads", 1), ("threads", 2), ("threads", 7)], ids=str
)
@given(plan=plans())
@settings(max_examples=settings.default.max_examples // 3)
def test_a_loader_delivers_the_epochs_of_the_model(executor: str, workers: int, plan: Plan) -> None:
    with plan.dataset.loader(executor=executor, workers=workers, prefetch=2) as loader:
        for epoch in range(2):
            for batch, want in zip(loader, plan.elements(epoch), strict=True):
                assert_same(batch, want)


@given(plan=plans(verbs=MOVES), workers=st.integers(1, 3), count=st.integers(1, 3))
def test_shards_of_copied_batches_are_the_rows_of_the_model(plan: Plan, workers: int, count: int) -> None:
    with contextlib.ExitStack() as stack:
        loaders = []
        for index in range(count):
            try:
                loader = plan.dataset.loader(executor="threads", workers=workers, prefetch=2, shard=(index, count))
            except ArgumentError:  # batches that so many shards cannot share evenly
                assert count > 1
                reject()
            loaders.append(stack.enter_context(loader))
        try:
            for epoch in range(2):
                for *parts, want in zip(*loaders, plan.elements(epoch), strict=True):
                    assert_same(parts[0] if count == 1 else _joined(parts), want)
        except SpecError as error:  # rows whose number is known when they are there, such as those of a group
            if count == 1 or not re.search(r"cannot share evenly|divide only rows that belong together", str(error)):
                raise


def _joined(parts: list[Tree]) -> Tree:
    leaves, structures = zip(*(_tree.flatten(part) for part in parts), strict=True)
    return structures[0].unflatten([np.concatenate(pieces) for pieces in zip(*leaves, strict=True)])


@given(plan=plans(), workers=st.integers(1, 3))
@settings(max_examples=settings.default.max_examples // 3)
def test_elements_are_folded_in_order_on_any_executor(plan: Plan, workers: int) -> None:
    for options in ({"executor": "inline"}, {"executor": "threads", "workers": workers}):
        for combine in (None, operator.add):
            found = plan.dataset.reduce(lambda state, x: [*state, x], [], combine=combine, **options)
            for element, want in zip(found, plan.elements(0), strict=True):
                assert_same(element, want)


@given(plan=plans(), prefetch=st.integers(1, 5))
@settings(max_examples=settings.default.max_examples // 4)
def test_a_run_resumes_exactly_at_every_position(plan: Plan, prefetch: int) -> None:
    runs = [("inline", 1), ("threads", 2), ("threads", 1), ("threads", 7)]
    assert_resumes_exactly(plan.dataset, executors=runs, prefetch=prefetch)


@given(plan=plans(), seed=st.integers(0, 9))
@settings(max_examples=settings.default.max_examples // 4)
def test_batches_that_somebody_keeps_stay_as_they_were(plan: Plan, seed: int) -> None:
    rng, kept = np.random.default_rng(seed), []
    with plan.dataset.loader(executor="threads", workers=2, prefetch=1) as loader:
        for epoch in range(3):
            for index, batch in enumerate(loader):
                if rng.random() < 0.5:
                    kept.append((batch, plan.elements(epoch)[index]))
                if len(kept) > 4:
                    kept.pop(rng.integers(len(kept)))
                for held, want in kept:
                    assert_same(held, want)
    for held, want in kept:
        assert_same(held, want)
