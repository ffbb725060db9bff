"""Random plans whose elements ranks take whole, in turn: none is lost, repeated or out of order, on 1 to 64 ranks.

A run goes on with other ranks, from the state of the ranks before. `PENSTOCK_PLANS` is the number of plans for each
test.
"""

import contextlib
import itertools
import json
import os
from typing import Any

from hypothesis import assume, given, settings, strategies as st

from penstock.testing import assert_same
from tests.properties.streams import streams
from tests.strategies import Plan, plans

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


@given(plan=plans(), phases=phases, pads=st.booleans())
@settings(max_examples=PLANS)
def test_ranks_take_the_elements_of_any_plan_in_turn(plan: Plan, phases: list[Any], pads: bool) -> None:
    assume(plan.elements(0))
    check(plan, phases, pads=pads and isinstance(plan.dataset.length, int))


@given(plan=streams(), phases=phases)
@settings(max_examples=PLANS)
def test_ranks_take_the_elements_of_any_stream_in_turn(plan: Plan, phases: list[Any]) -> None:
    assume(plan.dataset.length != 0)
    check(plan, phases, pads=False)


def check(plan: Plan, phases: list[Any], *, pads: bool) -> None:
    state, epoch, position = None, 0, 0
    for count, size, step_count, (executor, workers) in phases:
        group = count * size
        if isinstance(plan.dataset.length, int) and plan.dataset.length < group and not pads:
            continue  # refused
        want = plan.elements(epoch)
        if state is not None and len(want) - position < (1 if pads else group) and position:
            if plan.dataset.length is None:
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
            if isinstance(plan.dataset.length, int) and len(want) - position < (1 if pads else group) and position:
                epoch, position = epoch + 1, 0
            saved = {json.dumps(loader.get_state()) for loader in loaders}
            assert len(saved) == 1
            state = saved.pop()
            assert (json.loads(state)["epoch"], json.loads(state)["position"]) == (epoch, position)
