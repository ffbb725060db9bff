"""A `tf.data.Dataset` as a stream: iterated from the beginning in each epoch, in this process.

A dataset of TensorFlow cannot go to another process, and has no random access. So it runs on a thread here, with
TensorFlow's own threads below it. The steps after it run on workers.
"""

import math
from collections.abc import Iterator
from typing import Any, final

import numpy as np
import tensorflow as tf

from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, type_of
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.plan._stream import StreamSource


@final
class TfSource(StreamSource):
    """The elements of a `tf.data.Dataset` in its order; batches, if it is batched.

    Args:
        dataset: Its elements are tensors, or tuples, named tuples and dicts of tensors.

    Raises:
        ArgumentTypeError: It is no `tf.data.Dataset`.
        ArgumentError: It is part of a graph.
        SpecError: An element holds another object than a tensor of known rank, such as a ragged one.
    """

    travels = False
    """Its graph and its threads belong to TensorFlow, and stay in their process."""

    def __init__(self, dataset: Any) -> None:
        if not isinstance(dataset, tf.data.Dataset):
            raise ArgumentTypeError(f"from_tf() needs a tf.data.Dataset, got {type_of(dataset)}.")
        leaves, structure = _tree.flatten(dataset.element_spec)
        places = _tree.paths(structure)
        self._spec = Spec(tuple(map(_array_spec, leaves, places)), structure)
        self._dataset = dataset
        self.length = _length(dataset)

    @property
    def element_spec(self) -> Tree:
        return self._spec.tree

    def iterate(self, epoch: int) -> Iterator[Tree]:
        """Iterates over the dataset once. It has no epochs to choose from.

        Yields:
            Trees of arrays: read-only views of TensorFlow's memory, without copies. A string is bytes.
        """
        elements = self._dataset.as_numpy_iterator()
        if all(leaf.dtype.itemsize or not leaf.shape for leaf in self._spec.leaves):
            return iter(elements)
        return map(self._without_objects, elements)

    def _without_objects(self, element: Tree) -> Tree:
        """Converts arrays of bytes, which TensorFlow returns as objects, to NumPy's byte strings."""
        structure = self._spec.structure
        leaves = [
            _as_bytes(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject else leaf
            for leaf in _tree.flatten_like(structure, element)
        ]
        return structure.unflatten(leaves)

    def describe(self, index: int) -> str:
        return f"element {index} of the tf.data.Dataset"


def _length(dataset: Any) -> int | float | None:
    """Returns the length that TensorFlow knows without iterating.

    Raises:
        ArgumentError: The dataset, or the call, is part of a graph.
    """
    try:
        count = int(dataset.cardinality())
    except TypeError:  # a tensor without a value
        raise ArgumentError(
            "from_tf(): this is in a graph, as all is within a tf.function or a tf.Graph, where a dataset is only "
            "described and cannot be iterated. Make the dataset, and call from_tf(), outside."
        ) from None
    if count == tf.data.INFINITE_CARDINALITY:
        return math.inf
    return None if count == tf.data.UNKNOWN_CARDINALITY else count


def _array_spec(leaf: Any, place: str) -> ArraySpec:
    """Returns the spec of one tensor.

    Raises:
        SpecError: It is no tensor, its rank is unknown, or NumPy does not have its dtype.
    """
    where = f" at {place}" if place else ""
    if not isinstance(leaf, tf.TensorSpec):
        kind = type(leaf).__name__.removesuffix("Spec")
        raise SpecError(
            f"from_tf(): an element holds a {kind}{where}, which is no tensor. Make tensors of it by TensorFlow: "
            "map(lambda x: x.to_tensor()), map(tf.sparse.to_dense), or flat_map(lambda window: window.batch(size))."
        )
    if leaf.shape.rank is None:
        raise SpecError(
            f"from_tf(): TensorFlow does not know how many axes the tensor{where} has. Tell it: "
            "dataset.map(lambda x: tf.ensure_shape(x, (None, None, 3)))."
        )
    if leaf.dtype == tf.string:
        return ArraySpec(tuple(leaf.shape), np.dtype("S"))
    if leaf.dtype.is_quantized or not leaf.dtype.is_numpy_compatible:
        raise SpecError(f"from_tf(): NumPy has no {leaf.dtype.name}, which the tensor{where} is of. Use tf.cast.")
    return ArraySpec(tuple(leaf.shape), leaf.dtype.as_numpy_dtype)


def _as_bytes(strings: Any) -> Any:
    if any(string.endswith(b"\0") for string in strings.flat):
        raise SpecError(
            "a batch of strings, one of which ends in a zero byte, which an array of NumPy would drop. Use "
            "dataset.unbatch() of TensorFlow, and batch() after what needs the strings."
        )
    return strings.astype("S")
