"""Arrays of torch and JAX that share a batch's memory keep it, as NumPy's views do."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = [pytest.mark.framework, pytest.mark.usefixtures("leaves_nothing_behind")]


def rows() -> np.ndarray[Any, Any]:
    return np.arange(240 * 16, dtype=np.float32).reshape(240, 4, 4)


def torch_from_numpy(batch: Any) -> Any:
    import torch

    return torch.from_numpy(batch)


def torch_view_of_a_view(batch: Any) -> Any:
    import torch

    return torch.as_tensor(batch).permute(2, 0, 1)[1:].reshape(-1)[::3]


def torch_from_dlpack(batch: Any) -> Any:
    import torch

    return torch.from_dlpack(batch)[1]


def torch_to_numpy_and_back(batch: Any) -> Any:
    import torch

    return torch.from_numpy(torch.from_numpy(batch)[2:].numpy()[:, 1])


def jax_asarray(batch: Any) -> Any:
    import jax.numpy

    return jax.numpy.asarray(batch)


def jax_device_put(batch: Any) -> Any:
    import jax

    return jax.device_put(batch)


def jax_may_alias(batch: Any) -> Any:
    import jax

    return jax.device_put(batch, may_alias=True)


def jax_from_dlpack(batch: Any) -> Any:
    import jax.dlpack

    return jax.dlpack.from_dlpack(batch)


@functools.cache
def _compiled() -> Callable[[Any], Any]:
    import jax

    return jax.jit(lambda x: (x @ x.transpose(0, 2, 1)).sum(0))


def jax_computed_later(batch: Any) -> Any:
    return _compiled()(batch)


def tensorflow_convert(batch: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(batch)


def tensorflow_dlpack(batch: Any) -> Any:
    import tensorflow as tf

    return tf.experimental.dlpack.from_dlpack(batch.__dlpack__())


ALIASES: list[Callable[[Any], Any]] = [
    torch_from_numpy,
    torch_view_of_a_view,
    torch_from_dlpack,
    torch_to_numpy_and_back,
    jax_asarray,
    jax_device_put,
    jax_may_alias,
    jax_from_dlpack,
    jax_computed_later,
    tensorflow_convert,
    tensorflow_dlpack,
]


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: alias.__name__)
def test_an_alias_that_is_kept_never_changes(alias: Callable[[Any], Any]) -> None:
    dice = np.random.default_rng(1)
    kept: list[tuple[Any, Any]] = []
    with ps.from_arrays(rows()).shuffle(5).batch(8).loader("threads", workers=2) as loader:
        for _ in range(2):
            for batch in loader:
                copy = alias(batch.copy())
                mine = alias(batch)
                if dice.random() < 0.5:
                    kept.append((mine, np.array(copy)))
                if kept and dice.random() < 0.4:
                    kept.pop(dice.integers(len(kept)))
                del batch, mine, copy
                for array, want in kept:
                    assert np.array_equal(np.asarray(array), want)
    for array, want in kept:
        assert np.array_equal(np.asarray(array), want)


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: alias.__name__)
def test_slots_come_back_when_aliases_are_dropped(alias: Callable[[Any], Any]) -> None:
    with ps.from_arrays(rows()).batch(8).loader("threads", workers=2) as loader:
        for _ in range(3):
            for batch in loader:
                done = alias(batch)
                getattr(done, "block_until_ready", lambda: None)()
                del batch, done
        assert loader.report().copied == 0
        assert loader.report().slot_count == 6


def test_an_alias_of_jax_shares_the_slot_and_keeps_it() -> None:
    # Slots are aligned to 64 bytes, which is what lets JAX take them over on a CPU without a copy.
    import jax

    with ps.from_arrays(rows()).batch(8).loader("threads", workers=2) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        array = jax.device_put(batch, may_alias=True)
        assert array.unsafe_buffer_pointer() == batch.__array_interface__["data"][0]
        pipeline = loader._delivery
        assert pipeline is not None
        del batch
        assert pipeline.ring.leased_count == 1
        del array
        # JAX drops references to Python objects at one of its next calls, for its own threads may not.
        jax.device_put(np.zeros(3)).block_until_ready()
        assert pipeline.ring.leased_count == 0
