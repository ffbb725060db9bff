"""Ragged batches reach frameworks as pairs, and TensorFlow as a tensor of its own kind."""

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.framework

LENGTHS = [2, 0, 3, 1]
SPEC = {"boxes": ps.ArraySpec((None, 4), "float32"), "image": ps.ArraySpec((), "int32")}


def batches():
    def make(i):
        return {"boxes": np.full((LENGTHS[i], 4), i, "float32"), "image": np.int32(i)}

    return ps.range(4).map(make, element_spec=SPEC).ragged_batch(2)


def test_torch_gets_a_pair_of_tensors_that_makes_a_nested_one():
    import torch

    (values, offsets), images = next(iter(batches().to_torch())).values()
    assert (values.shape, values.dtype, offsets.dtype) == ((2, 4), torch.float32, torch.int64)
    assert images.tolist() == [0, 1]
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert [len(part) for part in nested.unbind()] == [2, 0]


def test_tensorflow_gets_a_ragged_tensor():
    import tensorflow as tf

    dataset = batches().to_tf()
    assert isinstance(dataset.element_spec["boxes"], tf.RaggedTensorSpec)
    found = list(dataset)
    assert [batch["boxes"].row_lengths().numpy().tolist() for batch in found] == [[2, 0], [3, 1]]
    assert found[1]["boxes"].values.numpy().tolist() == [[2.0] * 4] * 3 + [[3.0] * 4]
    assert found[1]["image"].numpy().tolist() == [2, 3]


def test_jax_gets_a_pair_of_arrays():
    values, offsets = list(batches().to_jax())[1]["boxes"]
    assert values.shape == (4, 4)
    assert offsets.tolist() == [0, 3, 4]
