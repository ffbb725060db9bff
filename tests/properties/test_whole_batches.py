"""Random plans whose elements ranks take whole, in turn: none is lost, repeated or out of order, on 1 to 64 ranks.

Half of the plans end with batches of unequal size, as `ragged_batch` makes them.

A run goes on with other ranks, from the state of the ranks before. `PENSTOCK_PLANS` is the number of plans for each
test.
"""

import contextlib
import itertools
import json
import os
from typing import Any

import numpy as np
from hypothesis import assume, given, settings, strategies as st

from penstock import range as range_of
from penstock.plan._own_batches import OwnBatches
from penstock.testing import assert_same
from tests.properties.streams import streams
from tests.strategies import Plan, plans, ragged_batches

PLANS = int(os.environ.get("PENSTOCK_PLANS", "25"))

phases = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 6), st.integers(1, 64)),  # ranks
        st.integers(1, 3),  # whole batches of a rank in a step
        st.integers(0, 3),  # steps before the save
        st.sampled_from([("inline", 1), ("inline", 1), ("threads", 1), ("threads", 2)]),
    ),
    min_size=1,
    max_size=4,
)
# Many ranks need many elements: a plan of few is repeated.
rounds = st.one_of(st.just(1), st.integers(2, 40))


@given(plan=plans(), rounds=rounds, phases=phases, pads=st.booleans())
@settings(max_examples=PLANS)
def test_ranks_take_the_elements_of_any_plan_in_turn(plan: Plan, rounds: int, phases: list[Any], pads: bool) -> None:
    assume(plan.dataset.length != 0 and plan.elements(0))
    check(repeated(plan, rounds), phases, pads=pads and isinstance(plan.dataset.length, int))


@given(plan=streams(), rounds=rounds, phases=phases)
@settings(max_examples=PLANS)
def test_ranks_take_the_elements_of_any_stream_in_turn(plan: Plan, rounds: int, phases: list[Any]) -> None:
    assume(plan.dataset.length != 0)
    check(repeated(plan, rounds), phases, pads=False)


@given(plan=ragged_batches(plans(max_steps=3)), rounds=rounds, phases=phases, pads=st.booleans())
@settings(max_examples=PLANS)
def test_ranks_take_ragged_batches_of_any_plan_in_turn(plan: Plan, rounds: int, phases: list[Any], pads: bool) -> None:
    assume(plan.dataset.length != 0)
    check(repeated(plan, rounds), phases, pads=pads and isinstance(plan.dataset.length, int))


@given(plan=ragged_batches(streams(max_steps=3)), rounds=rounds, phases=phases)
@settings(max_examples=PLANS)
def test_ranks_take_ragged_batches_of_any_stream_in_turn(plan: Plan, rounds: int, phases: list[Any]) -> None:
    assume(plan.dataset.length != 0)
    check(repeated(plan, rounds), phases, pads=False)


@given(st.integers(1, 500), st.lists(st.tuples(st.integers(1, 64), st.integers(1, 3), st.integers(0, 5)), min_size=1))
@settings(max_examples=PLANS)
def test_all_ranks_together_take_each_batch_once(length: int, phases: list[tuple[int, int, int]]) -> None:
    # The numbers of batches alone, of each rank.
    batches, first = range_of(length)._node, 0
    for fills in (False, True):
        for count, size, steps in phases:
            ranks = [OwnBatches(batches, first, rank, count, size, fills) for rank in range(count)]
            assert len({rank.length for rank in ranks}) == 1
            mine = np.stack([rank.numbers(np.arange(rank.length)) for rank in ranks], axis=1)
            left = length - first
            whole = left if fills else left // (count * size) * count * size
            assert mine.ravel()[:whole].tolist() == list(range(first, first + whole))
            assert (mine.ravel()[whole:] == length - 1).all()
            first += min(steps * count * size, whole)
        first = 0


def repeated(plan: Plan, rounds: int) -> Plan:
    if rounds == 1:
        return plan
    return plan.then(
        plan.dataset.repeat(rounds),
        lambda epoch: [x for number in range(rounds) for x in plan.elements(epoch * rounds + number)],
    )


def check(plan: Plan, phases: list[Any], *, pads: bool) -> None:
    state, epoch, position = None, 0, 0
    for count, size, step_count, (executor, workers) in phases:
        group = count * size
        if isinstance(plan.dataset.length, int) and plan.dataset.length < group and not pads:
            continue  # refused
        want, length = plan.elements(epoch), plan.dataset.length  # which a cache learns when it is full
        if state is not None and len(want) - position < (1 if pads else group) and position:
            if length is None:
                continue  # the end of the epoch is found when it is read
            epoch, position, want = epoch + 1, 0, plan.elements(epoch + 1)
        with contextlib.ExitStack() as stack:
            # All of a few ranks; of many ranks some, because each is a loader of its own.
            ranks = range(count) if count <= 6 else sorted({0, 1, count // 2, count - 1})
            options: Any = {"whole_batches": True, "micro_batches": size, "uneven": "pad" if pads else "refuse"}
            options |= {"executor": executor, "workers": workers, "prefetch": 1}
            loaders = [stack.enter_context(plan.dataset.loader(shard=(rank, count), **options)) for rank in ranks]
            epochs = []
            for loader in loaders:
                if state is not None:
                    loader.set_state(json.loads(state))
                epochs.append(iter(loader))
            for _ in range(step_count):
                if (left := len(want) - position) < (1 if pads else group):
                    for each in epochs:
                        assert next(each, None) is None
                    epoch, position = epoch + 1, 0
                    break
                for rank, each in zip(ranks, epochs, strict=True):
                    mine = list(itertools.islice(each, size))
                    assert len(mine) == size
                    for number, element in enumerate(mine):
                        own = number * count + rank
                        if pads:
                            element, weight = element
                            assert abs(weight - (group / min(left, group) if own < left else 0)) < 1e-5
                        assert_same(element, want[min(position + own, len(want) - 1)])
                position += group
            saved = {json.dumps(loader.get_state()) for loader in loaders}
            assert len(saved) == 1
            state = saved.pop()
            place = json.loads(state)["epoch"], json.loads(state)["position"]
            is_over = len(want) - position < (1 if pads else group) and position > 0
            # The end of a stream of unknown length is known ahead at times, as after take().
            if is_over and (isinstance(length, int) or place != (epoch, position)):
                epoch, position = epoch + 1, 0
            assert place == (epoch, position)
