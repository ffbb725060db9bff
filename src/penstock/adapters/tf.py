"""A loader as a `tf.data.Dataset`.

How a batch gets from a slot into a tensor. `Dataset.from_generator` calls `next` on the loader's iterator on a thread
of TensorFlow, and makes tensors of the arrays that it gets. Every leaf of a slot begins at a multiple of 64 bytes. Such
an array is not copied: the tensor shares its memory, and keeps the lease on the slot until TensorFlow drops the tensor.
TensorFlow computes nothing in place in memory that it does not own.

Problems of the default settings, and their cures:
- tf.data adds a prefetch of a length of its own choice to a dataset that ends as ours does, and makes a `map` after it
  parallel. Batches then wait in TensorFlow, not in the loader: slots run out, batches are copied, and the position
  of training is lost. Options of the dataset turn that off. A `prefetch` that the user writes stays, and so
  does `map(num_parallel_calls=)`.
- TensorFlow never forgets a Python function that a dataset calls. So that function does not hold the loader: the
  dataset does, and what is made of it (`map`, an iterator, a distributed dataset) holds the dataset.
- `assert_cardinality` fails at the end of an epoch that is the rest of one. See `_counted`.
- A thread of TensorFlow that reads ahead, and asks for a batch while the interpreter is torn down, never comes back,
  and the process waits for it. So at the end of the process every epoch ends. See `_end_epochs`.
"""

import atexit
import functools
import math
import time
import weakref
from collections.abc import Iterator
from typing import Any, Final, final

import numpy as np
import tensorflow as tf

from penstock.adapters._dtypes import require_dtypes
from penstock.adapters._epochs import LoaderAdapter
from penstock.base import _tree
from penstock.base._errors import LoaderError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.loader import Loader
from penstock.plan._ragged import Ragged


def to_dataset(loader: Loader) -> Any:
    """Makes a `tf.data.Dataset` of what a loader delivers; each iteration of it is the loader's next epoch.

    Args:
        loader: Its attribute `loader`, whose `get_state`, `set_state`, `report`, `counters` and `close` are its own,
            too. The dataset is the one that iterates it.

    Raises:
        SpecError: A leaf has a dtype that TensorFlow does not know.
    """
    spec = Spec.of(loader.element_spec)
    require_dtypes(spec, "TensorFlow", _has_dtype)
    # A signature has no word for None, and values and offsets have no common first axis. So there leaves come by
    # themselves, and their tree is made of tensors.
    parts = [*_tree.flatten_values(spec.tree)[0], *_tree.flatten_until(spec.tree, _is_ragged)[0]]
    comes_apart = any(part is None or _is_ragged(part) for part in parts)
    structure = _tree.flatten(spec.leaves)[1] if comes_apart else spec.structure
    signature = structure.unflatten([tf.TensorSpec(leaf.shape, _dtype(leaf)) for leaf in spec.leaves])
    # Weak: see above.
    reference = weakref.ref(loader)

    def epoch() -> Iterator[Tree]:
        loader = reference()
        if loader is None:
            raise LoaderError("The dataset that to_tf() made is gone, and its loader with it. Keep what it returned.")
        if _TfEpoch.process_ends:
            return iter(())
        return map(leaves_of, _TfEpoch(loader)) if comes_apart else _TfEpoch(loader)

    def leaves_of(batch: Tree) -> Tree:
        return tuple(_tree.flatten_like(spec.structure, batch))

    def tree_of(*tensors: Any) -> Tree:
        parts, structure = _tree.flatten_until(spec.structure.unflatten(tensors), _is_ragged)
        made = (tf.RaggedTensor.from_row_splits(*part, validate=False) if _is_ragged(part) else part for part in parts)
        return structure.unflatten(list(made))

    dataset = _counted(tf.data.Dataset.from_generator(epoch, output_signature=signature), loader.length)
    if comes_apart:
        dataset = dataset.map(tree_of)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    dataset = dataset.with_options(options)
    dataset.__class__ = _without_items(type(dataset))  # type: ignore[arg-type]  # a class is hashable
    dataset.loader = loader
    for name in ("get_state", "set_state", "report", "counters", "close"):
        setattr(dataset, name, getattr(loader, name))
    return dataset


@functools.cache
def _without_items(kind: type) -> type:
    """A class of tf.data whose `[i]` says what to write."""
    return type(kind.__name__, (kind,), {"__getitem__": LoaderAdapter.__getitem__})


def _counted(batches: Any, length: int | float | None) -> Any:
    """Tells tf.data how many batches an epoch has, without a check of it: the first may be the rest of an epoch.

    tf.data computes cardinality from the steps of a dataset. An empty dataset that is repeated is endless to it. So is
    a dataset to which that is appended; and its first `n` batches are `n`.
    """
    if length is None:
        return batches
    if length == math.inf:
        return batches.repeat()
    nothing = tf.data.Dataset.from_generator(tuple, output_signature=batches.element_spec)
    return batches.concatenate(nothing.repeat()).take(length)


def _is_ragged(part: Any) -> bool:
    return isinstance(part, Ragged)


def _dtype(leaf: ArraySpec) -> Any:
    return tf.string if leaf.dtype.kind in "US" else tf.as_dtype(leaf.dtype)


def _has_dtype(dtype: np.dtype[Any]) -> bool:
    try:
        return dtype.kind in "US" or bool(tf.as_dtype(dtype))
    except TypeError:
        return False


EXIT_WAIT_S: Final = 0.1
"""How long the end of the process waits for TensorFlow's threads to take note of it."""


@final
class _TfEpoch(Iterator[Tree]):
    """An epoch that TensorFlow draws batches of. It drops this when the epoch or its own iterator ends."""

    process_ends = False
    """Set at the end of the process, for all."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches = iter(loader)
        _epochs.add(self)

    def __next__(self) -> Tree:
        try:
            return next(self._batches)
        except BaseException:
            if _TfEpoch.process_ends:  # the loader is closed, and no consumer is left to see an error
                raise StopIteration from None
            raise

    def close(self) -> None:
        """Ends what waits in `next`."""
        self._loader.close()


_epochs: "weakref.WeakSet[_TfEpoch]" = weakref.WeakSet()


@atexit.register
def _end_epochs() -> None:
    """Ends all epochs, and gives threads that read ahead a moment to come for a batch, find none, and end, too.

    One that waits until the batches it has are wanted does not come, and does no harm.
    """
    _TfEpoch.process_ends = True
    for epoch in list(_epochs):
        epoch.close()
    deadline_s = time.monotonic() + EXIT_WAIT_S
    while _epochs and time.monotonic() < deadline_s:
        time.sleep(0.005)
