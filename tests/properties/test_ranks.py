"""Runs that go on with another number of ranks and another global batch: each element once, in the same order."""

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps

DATA = np.arange(144, dtype=np.int64)


def noisy(x: Any, rng: Any) -> Any:
    return x * 1000 + rng.integers(1000)


def doubled(batch: Any) -> Any:
    return batch * 2


def plans(size: int) -> dict[str, ps.Dataset]:
    copies = ps.from_arrays(DATA).shuffle(seed=3)
    return {
        "copies": copies.batch(size),
        "windows": ps.from_arrays(DATA).windows(1).shuffle(seed=3).batch(size),
        "functions": ps.range(144).shuffle(seed=3).random_map(noisy, seed=2).batch(size),
        "functions of batches": copies.batch(size).map(doubled).cast("float64"),
        "padded": copies.padded_batch(size, padded_shapes=()),
        "rounds": ps.from_arrays(DATA[:36]).shuffle(seed=3).repeat(4).batch(size),
        "combined": ps.concatenate([ps.from_arrays(DATA[:60]), ps.from_arrays(DATA[60:])]).shuffle(1).batch(size),
    }


NAMES = sorted(plans(12))
ORDERS = {
    name: [[row for batch in loader for row in np.ravel(batch).tolist()] for _ in range(3)]
    for name, dataset in plans(12).items()
    for loader in [dataset.loader("inline")]
}

phases = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([12, 24, 36, 60]), st.integers(0, 9)),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", NAMES)
@given(phases=phases)
@settings(max_examples=settings.default.max_examples // 3)
def test_other_ranks_and_another_global_batch_go_on_exactly(name: str, phases: list[tuple[int, int, int]]) -> None:
    """A phase is `(ranks, global batch, batches before the save)`."""
    got: list[int] = []
    epoch, state = 0, None
    for ranks, size, count in [*phases, (1, 12, 99)]:
        with contextlib.ExitStack() as stack:
            loaders = []
            for rank in range(ranks):
                loader = plans(size)[name].loader(shard=(rank, ranks), executor="threads", workers=1, prefetch=1)
                loaders.append(stack.enter_context(loader))
                if state is not None:
                    loader.set_state(json.loads(state))
            for _, *parts in zip(range(count), *loaders, strict=False):
                got += [row for part in parts for row in np.ravel(part).tolist()]
            saved = {json.dumps(loader.get_state()) for loader in loaders}
            assert len(saved) == 1
            state = saved.pop()
            if len(got) == len(ORDERS[name][epoch]):
                assert got == ORDERS[name][epoch]
                epoch, got = epoch + 1, []
            if epoch == 2:
                return
    assert not got
