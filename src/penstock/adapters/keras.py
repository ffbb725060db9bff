"""Datasets for `fit`, `evaluate` and `predict` of Keras 3, on TensorFlow, JAX and torch.

How a batch gets from a slot to a training step. On each backend Keras calls `next` on a plain Python iterator of
ours, on the thread that trains, when it trains on that batch. So an error in the pipeline leaves `fit` unchanged. The
position of the loader is that of training: only the loader's workers read ahead. The framework gets the memory of the
slot if it can share it: see `_as_tensorflow` and `_as_torch`. JAX gets NumPy arrays.

On TensorFlow that iterator takes the place of a `tf.data` one: Keras trains on whatever iterator it gets
(`train_on_batch` gives it a generator). `Dataset.from_generator` would be the other way. It copies every batch
twice, reads ahead by an unknown number of batches, turns errors into text, and holds on to the function that
it was given.

Keras does not pass everything to an adapter. The rest is read from the frames of the calling `EpochIterator`: whether
`fit` was given steps (then Keras's epochs are not the loader's), and arguments that Keras drops silently. There an
epoch of unknown length is also marked, so that it ends when the data end. If another version of Keras lacks these
variables, these checks are left out.
"""

import contextlib
import math
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NoReturn, final

import keras
import numpy as np
import numpy.typing as npt

# There is no public path to this class, and Keras takes another's adapter by `isinstance` of it, from 3.11 on.
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from penstock.adapters import _keras_frames as frames
from penstock.adapters._class_weight import ClassWeights
from penstock.adapters._dtypes import require_dtypes
from penstock.adapters._epochs import LoaderAdapter
from penstock.adapters._filled import FilledUp
from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, StateError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree, flatten, flatten_like, paths
from penstock.loader import Loader, LoaderOptions
from penstock.memory._slot import ALIGNMENT_NBYTES
from penstock.plan._batch import are_side_by_side, remainders

UNKNOWN_SIZE: Final = 64
"""The size of an axis without bounds, where Keras looks at shapes alone and no batch can be had. A model for any length
takes this one: it is larger than most kernels, and can be halved six times."""

TARGETS: Final = ("label", "labels", "target", "targets", "y")
"""Keys of a dict, and fields of a named tuple, that are taken for targets."""

Convert = Callable[[npt.NDArray[Any], str], Any]
"""Makes a framework's tensor of a leaf of a batch, given its place in the batch, such as `[0]`."""


@final
class KerasAdapter(LoaderAdapter, DataAdapter):
    """What Keras 3 takes as `x` of `fit`, `evaluate` and `predict`, and as `validation_data`.

    `dataset.to_keras()` makes one. Elements of the dataset are batches: `x`, `(x, y)` or `(x, y, sample_weight)`,
    each a leaf or, for several inputs or outputs, a dict or a tuple of leaves. All leaves have a common first axis, of
    one size or None, unless `zip` puts batches of several sizes side by side. Other axes of None, of `padded_batch` and
    `bucket_by_length`, are as long as each batch has them. JAX compiles the step anew for each new shape of a batch: a
    few `padded_shapes` are then faster than many lengths. TensorFlow traces a second step, for any length, and torch
    has nothing to compile. On JAX and torch the first batch is read once more, inline, before the first `fit`, for
    Keras wants shapes to build with; where the spec says them, nothing is read for that.

    An epoch of Keras is an epoch of the loader. A second `fit` goes on with new epochs, whatever its `initial_epoch`.
    After `adapter.set_state(...)` the first epoch is the rest of the saved one. With `steps_per_epoch` Keras's
    epochs have that number of batches, and run on from one epoch of the loader into the next, from one `fit` to the
    next. Validation, `evaluate` and `predict` end with the epoch: if they are given more steps than it has batches,
    Keras warns. An adapter with `training=False` starts with the first batch of epoch 0 each time.

    Memory: the loader's slots. On TensorFlow and torch, on a CPU, a step works on the slot's own memory; JAX copies
    a batch when a step begins. A leaf whose length only its batch knows has memory of its own, of which nothing is
    known ahead and nothing is counted; with `padded_shapes` it lies in the slot.

    Args:
        loader: What delivers the batches. The adapter is the one that iterates it.
        class_weight: A weight for each label, see `Dataset.to_keras`.

    Raises:
        SpecError: Elements are not batches, or not one of the three forms; or the backend lacks the dtype of a leaf.
    """

    # Keras before 3.15 otherwise draws two batches ahead on JAX, and the position would not be that of training.
    builtin_prefetch = True

    def __init__(self, loader: Loader, *, class_weight: dict[int, float] | None = None) -> None:
        self.loader = loader
        delivered = Spec.of(loader.element_spec)
        self._delivered = delivered
        self._filled = FilledUp(loader) if loader.arrangement.options.uneven == "mask" else None
        self._pads = loader.arrangement.options.uneven == "pad"
        self._own_weight_count = 0
        """With `uneven=`: leaves of the weights that elements have themselves, which its weights multiply."""
        self._spec = delivered
        element = loader.element_spec
        if loader.arrangement.options.uneven != "refuse":
            self._spec = _with_weights(delivered)
            element = delivered.tree[0]
            self._own_weight_count = len(flatten(_own_weights(element))[0])
        self._names = paths(self._spec.structure)
        _require_batches(self._spec, have_several_sizes=are_side_by_side(loader.arrangement.plan))
        if not loader.progress.same_epoch:
            _require_targets_apart(self._spec.tree)
        self._weights = None if class_weight is None else ClassWeights(class_weight, element)

    def __repr__(self) -> str:
        return f"<penstock.KerasAdapter of {self.loader!r}, for x= of fit, evaluate and predict>"

    def __iter__(self) -> NoReturn:
        """Refuses what `fit` never does: it knows adapters by their class, and asks for an iterator of its backend."""
        raise ArgumentTypeError(
            "What to_keras() makes is given to fit(), evaluate() and predict(), and is not iterated. To look at "
            "batches: ds[0], or for batch in ds.loader(). adapt() of a layer takes ds.to_tf()."
        )

    # What Keras asks before it begins.

    @property
    def num_batches(self) -> int | None:
        """Batches in an epoch; None where Keras is to go by the steps that `fit` was given.

        Raises:
            ArgumentError: Keras asks for a `fit` that would never end, that was given what Keras would drop or steps
                that are no number, that trains on this and measures on it, too, or that shares batches out which its
                devices do not divide.
        """
        frame = sys._getframe(1)
        frames.require_nothing_dropped(frame)
        frames.caution_batch_size(frame, self.loader.progress.plan, _sizes(self._spec))
        frames.require_own_data(frame, self)
        _require_rows(self.loader.arrangement.options)
        length, asking = self._count(self.loader.length, frame), frames.asking(frame)
        steps = asking.steps_per_epoch if asking is not None else None
        if steps is not None and ((number := as_int(steps)) is None or number < 0):
            raise ArgumentError(
                f"Keras was given {steps!r} steps (steps_per_epoch=, validation_steps= or steps=), which is no number "
                "of batches. Write a whole number of at least 1, or leave it out for whole epochs."
            )
        if asking is not None:
            full = {size for size in _sizes(self._spec) if size is not None}
            takes_all = not steps or (length is not None and steps >= length and not frames.runs_on(frame))
            _require_divisible(full | self._short_batch_sizes if takes_all else full)
        if frames.runs_on(frame):
            return None
        if length == math.inf and asking is not None and not steps:
            raise ArgumentError(
                "This dataset is endless, so Keras would never come to the end of an epoch. Say how long one is: "
                "fit(..., steps_per_epoch=1000), or steps= for evaluate and predict, or validation_steps=."
            )
        return length if isinstance(length, int) else None

    @property
    def batch_size(self) -> int | None:
        """Elements in a full batch, or None where the spec does not say. Of several batches side by side, the first."""
        return _batch_size(self._spec)

    @property
    def has_partial_batch(self) -> bool:
        """Whether the loader may deliver a batch that is smaller than the others."""
        return any(leaf.shape[0] is None for leaf in self._spec.leaves)

    @property
    def partial_batch_size(self) -> int | None:
        """Elements in that batch, or None."""
        rows = min(self._short_batch_sizes, default=0)
        return rows if self.has_partial_batch and rows else None

    @property
    def _short_batch_sizes(self) -> set[int]:
        """Elements in the batches that are smaller than the others, where that is known; 0 where a shard has none."""
        share = self.loader.arrangement.share
        if share.uneven == "mask":
            return set()
        return {rows // (share.count * share.micro_count) for rows in remainders(self.loader.arrangement.plan)}

    def _count(self, count: Any, frame: Any) -> Any:
        """A number of batches; None where it is not known how many of them an evaluation leaves out."""
        leaves_out = self._pads or (self._filled is not None and self._filled.may_be_empty and _distribution() is None)
        return None if leaves_out and frames.verb(frame) in frames.MEASURING else count

    def _scale(self, frame: Any) -> float | None:
        """The weight of rows of which devices get their shares, if it is one for all, see `FilledUp.scale`."""
        if self._filled is None or _distribution() is None or (method := frames.method(frame)) is None:
            return None
        steps = getattr(method.f_locals.get("epoch_iterator"), "steps_per_epoch", None)
        return self._filled.scale(frames.verb(frame), method.f_locals.get("self"), steps, self.loader.progress.start[1])

    def on_epoch_begin(self) -> None:
        """Says how many batches this epoch has: the rest of one after `set_state`.

        Where that is unknown, Keras looks for the end of the epoch, and does not go by the length of the one before. It
        would also warn that the data ran out, which here is how every epoch ends, unless it was given steps.
        """
        frame = sys._getframe(1)
        asking = frames.asking(frame)
        if asking is not None and not frames.runs_on(frame):
            asking._num_batches = self._count(self.loader.rest_count(), frame)
            if asking._num_batches is None and not asking.steps_per_epoch:
                asking._interrupted_warning = _say_nothing

    # What Keras trains on. It asks more often than it reads, so all of these do nothing until their first `next`.

    def get_numpy_iterator(self) -> Iterator[Tree]:
        """Batches of NumPy arrays."""
        return _KerasPass(self, _as_numpy, sys._getframe(1))

    def get_tf_dataset(self) -> "_Feed":
        """What Keras iterates once an epoch, for batches of TensorFlow's eager tensors. No `tf.data.Dataset`."""
        return _Feed(self)

    def get_jax_iterator(self) -> Iterator[Tree]:
        """Batches that JAX takes, with integers that keep their values where its 64-bit numbers are off."""
        import jax

        from penstock.adapters.jax import fitting

        on_cpu = jax.default_backend() == "cpu"
        # Then Keras moves each batch to the device while the model works on the one before.
        is_one_ahead = not on_cpu and keras.distribution.distribution() is None
        return _KerasPass(self, fitting, sys._getframe(1), is_one_ahead=is_one_ahead)

    def get_torch_dataloader(self) -> Iterator[Tree]:
        """Batches of torch tensors, on Keras's device. No `DataLoader`, for which Keras has no need."""
        return _KerasPass(self, _as_torch, sys._getframe(1))


@final
class _KerasPass(Iterator[Tree]):
    """Batches of one epoch, or without end where Keras counts the steps; begun by its first `next`.

    Args:
        adapter: What Keras was given.
        convert: What Keras gets for a leaf.
        frame: Of the method of Keras's that asks for it.
        is_one_ahead: Keras trains on the batch before the one that it drew last.
        for_trainer: The steps of an execution of Keras's TensorFlow trainer, which iterates it; 0 if none does.
    """

    def __init__(
        self,
        adapter: KerasAdapter,
        convert: Convert,
        frame: Any,
        *,
        is_one_ahead: bool = False,
        for_trainer: int = 0,
    ) -> None:
        self._adapter = adapter
        self._loader, self._spec, self._weights = adapter.loader, adapter._spec, adapter._weights
        self._delivered, self._filled = adapter._delivered, adapter._filled
        self._convert = convert
        self._runs_on = frames.runs_on(frame)
        """Whether it goes on from one epoch to the next, and from where the last such pass stopped."""
        self._verb = frames.verb(frame)
        self._scale: float | None = None
        self._is_one_ahead = is_one_ahead
        self._for_trainer = for_trainer
        self._rows = list(map(_row_count, adapter._spec.leaves))
        """Rows of each leaf of a full batch; None where they are unknown."""
        self._epoch: Iterator[Tree] | None = None
        self._drawn_count = 0
        self._drawn_from = (0, 0)
        """Epoch and number of the batch that was drawn last."""
        self._begun_at: tuple[int, int] | None = None
        """Epoch and batch where it began; None when something was drawn."""

    def __next__(self) -> Tree:
        frame = sys._getframe(1)
        try:
            return self._batch(frame)
        except StopIteration:
            raise
        except BaseException as error:
            frames.give_weights_back(frame)
            _tell_cause(error)
            raise

    def _batch(self, frame: Any) -> Tree:
        """The next batch, in the framework's arrays.

        Args:
            frame: The caller's.
        """
        if self._epoch is None:
            if frames.is_building(frame):
                return self._made(self._weighed(flatten_like(self._delivered.structure, self._blank())))
            if self._runs_on:
                self._loader.progress.stay()
            self._begun_at = self._loader.progress.start
            self._scale = self._adapter._scale(frame)
            self._epoch = iter(self._loader)
        try:
            leaves = self._next()
            while leaves is None:  # of this process's share nothing is left
                leaves = self._next()
        except StopIteration:
            self._require_some_batch()
            if self._for_trainer:
                self._end_for_tensorflow()
            raise
        self._begun_at = None
        self._drawn_count += 1
        return self._made(leaves)

    def _next(self) -> list[Any] | None:
        """The leaves of the next batch of this epoch, or of the next one where Keras counts the steps."""
        assert self._epoch is not None
        is_over = False
        try:
            batch = self._drawn(self._epoch)
        except StopIteration:
            if not self._runs_on:
                raise
            is_over = True
        if is_over:
            self._epoch = iter(self._loader)
            batch = self._drawn(self._epoch)  # an epoch without a batch ends it, too
        leaves: list[Any] = flatten_like(self._delivered.structure, batch)
        if self._adapter._pads and self._verb in frames.MEASURING and not leaves[-1]:
            return None  # it was given to another rank
        if self._filled is None:
            return self._weighed(leaves)
        if _distribution() is not None:
            return self._weighed(self._filled.weighed(leaves, self._scale))
        left = self._filled.left(leaves, keeps_one=self._verb not in frames.MEASURING)
        return None if left is None else self._weighed(left)

    def _weighed(self, leaves: list[Any]) -> list[Any]:
        """The leaves, with the product of the weights in place of those of elements and those of `uneven=`."""
        count = self._adapter._own_weight_count
        if self._adapter._pads:  # the weight of a batch, which its own rank measures as it is
            *rest, weight = leaves
            leaves = [*rest, np.full(len(rest[-1]), 1 if self._verb in frames.MEASURING else weight, np.float32)]
        if not count:
            return leaves
        *rest, weights = leaves
        own = (np.multiply(each.T, weights, dtype=np.float32).T for each in rest[-count:])
        return [*rest[:-count], *own]

    def _require_some_batch(self) -> None:
        """Refuses to end where nothing was drawn and Keras would fail on a name that it has not set.

        A state that is saved after the last batch leads there, when the end of the epoch is not known yet.
        """
        if self._begun_at is None:
            return
        epoch, position = self._begun_at
        on_jax = keras.backend.backend() == "jax"
        if position and on_jax:
            raise StateError(
                f"The state that was set is of the end of epoch {epoch}: nothing is left of it after {position:,} "
                "batches, and Keras on JAX cannot train on nothing. Begin with the next epoch: "
                f"set_state({{**state, 'epoch': {epoch + 1}, 'position': 0}}), without 'cursor' if the state has it, "
                f"and fit(initial_epoch={epoch + 1})."
            ) from None
        if self._verb == "predict" or (self._verb and on_jax):
            shard = self._loader.arrangement.options.shard
            raise ArgumentError(
                f"{self._verb}() has nothing to work on: epoch {epoch} has no batch"
                f"{f' with a row for shard={tuple(shard)}' if shard[1] > 1 else ''}. To see which step leaves nothing, "
                "iterate the dataset as it is after each."
            ) from None

    def _end_for_tensorflow(self) -> None:
        """Ends an epoch as an iterator of tf.data does: where nothing was drawn, Keras's trainer knows no other end.

        Within an execution of several steps it does, and the steps before count.
        """
        import tensorflow as tf

        if self._drawn_count % self._for_trainer:
            self._drawn_count = 0
            return
        raise tf.errors.OutOfRangeError(None, None, "The epoch has ended.") from None

    def _drawn(self, epoch: Iterator[Tree]) -> Tree:
        before = self._drawn_from = self._loader.progress.at
        if not self._is_one_ahead:
            return next(epoch)
        try:
            batch = next(epoch)
        except StopIteration:  # the last batch is now trained on
            self._loader.progress.worked_at = None
            raise
        self._loader.progress.worked_at = before
        return batch

    def _made(self, leaves: list[Any]) -> Tree:
        """The batch in the framework's arrays, with weights if there are any."""
        counts = list(map(len, leaves))
        if self._epoch is not None and counts != self._rows:  # full batches were checked before the first
            _require_divisible(set(counts))
        tensors: Tree = self._spec.structure.unflatten(map(self._convert, leaves, self._adapter._names))
        if self._weights is not None:
            x, y, *others = tensors
            has_others = any(other is not None for other in others)
            labels = leaves[-2] if has_others else leaves[-1]
            if self._epoch is None:  # a blank batch has no labels
                weights = np.ones(len(labels), np.float32)
            else:
                weights = self._weights.of(labels, "batch {1} of epoch {0}".format(*self._drawn_from))
            tensors = x, y, self._convert(weights * leaves[-1] if has_others else weights, "[2]")
        is_short = any(full not in (None, count) for full, count in zip(self._rows, counts, strict=True))
        if self._for_trainer and isinstance(tensors, tuple) and is_short:
            # A list, so that TensorFlow traces a separate step for the short batch. For a tuple it would trace one step
            # for any number of rows. In that step Keras counts a batch as one sample when it averages the losses of
            # several outputs.
            return list(tensors)
        return tensors

    def _blank(self) -> Tree:
        """A batch from which Keras reads shapes and dtypes only.

        It holds zeros, in memory that is never touched. If the spec does not give the size of batches, it is the first
        batch of epoch 0, because a model may be made for the size that all batches have.
        """
        spec = self._delivered
        if any(leaf.max_shape is None for leaf in spec.leaves):
            options = LoaderOptions(executor="inline", prefetch=1)
            # What fails here fails again in training, or is set aside there.
            with (
                contextlib.suppress(Exception),
                Loader(self._loader.arrangement.plan, options, same_epoch=True) as loader,
            ):
                first = next(iter(loader))
                return (first, np.float32(1)) if self._adapter._pads else first
        rows = _batch_size(spec) or UNKNOWN_SIZE
        shapes = [leaf.max_shape or (rows, *(size or UNKNOWN_SIZE for size in leaf.shape[1:])) for leaf in spec.leaves]
        dtypes = [leaf.dtype for leaf in spec.leaves]
        if self._filled is not None:
            dtypes[-1] = np.dtype(np.float32)  # a mask becomes weights
        return spec.structure.unflatten(map(np.zeros, shapes, dtypes))


@final
class _Feed:
    """What Keras's TensorFlow trainer iterates: something new at each `iter`, and nothing read before `next`."""

    def __init__(self, adapter: KerasAdapter) -> None:
        self._adapter = adapter

    def __iter__(self) -> Iterator[Tree]:
        # Only now: of validation data, `fit` asks for this before it calls `evaluate`.
        frame = sys._getframe(1)
        asking = frames.asking(frame)
        step_count = 0 if asking is None else asking.steps_per_execution
        return _KerasPass(self._adapter, _as_tensorflow, frame, for_trainer=step_count)

    @property
    def _variant_tensor(self) -> Any:
        # The first thing that any strategy but the default one asks of a dataset.
        raise ArgumentError(
            "to_keras() does not work with a model made in the scope of a tf.distribute strategy, which would share "
            "out each batch by itself. Give fit() dataset.to_tf(), make the model outside of the scope, or use the JAX "
            "backend with keras.distribution."
        )


def _say_nothing() -> None:
    """Takes the place of a warning."""


# What frameworks get.


def _as_numpy(leaf: npt.NDArray[Any], _: str) -> Any:
    return leaf


def _as_tensorflow(leaf: npt.NDArray[Any], _: str) -> Any:
    """An eager tensor that shares the leaf's memory and keeps its lease, where TensorFlow can; otherwise a copy."""
    import tensorflow as tf

    # TensorFlow does not check what it is given by DLPack, and its kernels end the process on unaligned memory.
    if leaf.ctypes.data % ALIGNMENT_NBYTES or leaf.dtype.kind not in "fiu" or not leaf.size:
        return tf.convert_to_tensor(leaf)
    return tf.experimental.dlpack.from_dlpack(leaf.__dlpack__())


def _as_torch(leaf: npt.NDArray[Any], _: str) -> Any:
    """A tensor that shares the leaf's memory and keeps its lease on a CPU; a copy on another device."""
    from penstock.adapters.torch import tensor_of

    # Keras's own conversion of an array copies it; that of a tensor does not. uint32, which torch hardly
    # computes with, is left to Keras to widen.
    return keras.ops.convert_to_tensor(leaf if leaf.dtype == np.uint32 else tensor_of(leaf))


# Devices.


def _distribution() -> Any:
    """What shares batches out to devices; None if nothing does."""
    return keras.distribution.distribution() if keras.backend.backend() == "jax" else None


def _require_divisible(sizes: Collection[int]) -> None:
    """Refuses batches that cannot be shared out evenly, where Keras does that, in words that JAX does not have for it.

    Those of known sizes before an epoch begins, the others as they come.

    Args:
        sizes: Elements in a batch, full or short.

    Raises:
        ArgumentError: Says which size, and the cure.
    """
    distribution = _distribution()
    if distribution is None:
        return
    import jax

    mesh = distribution.device_mesh
    replica_count = mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]
    count = max(1, replica_count // jax.process_count())
    uneven = [size for size in sizes if size % count]
    if uneven:
        raise ArgumentError(
            f"keras.distribution.{type(distribution).__name__} makes {count} equal parts of each batch, and one has "
            f"{max(uneven)} elements. Use batch(size, drop_remainder=True), with a size that {count} divides."
        )


def _require_rows(options: LoaderOptions) -> None:
    """Refuses whole batches where Keras makes one array of what all processes have."""
    if options.whole_batches and options.shard[1] > 1 and _distribution() is not None:
        raise ArgumentError(
            "keras.distribution makes one array of the rows that all processes have, so they need equal shares of each "
            "batch. Leave whole_batches= out, or train without keras.distribution."
        )


def _tell_cause(error: BaseException) -> None:
    """Notes the traceback of the cause: `fit` shortens tracebacks, and does it by raising the error `from None`.

    Before the other notes, and the error's own text once more after it: what stands last is what is read.
    """
    if error.__cause__ is not None and keras.config.is_traceback_filtering_enabled():
        cause = "".join(traceback.format_exception(error.__cause__))
        notes = getattr(error, "__notes__", [])
        error.__notes__ = [f"{cause}That was the cause of this:\n{type(error).__name__}: {error}", *notes]


# Specs.


def _batch_size(spec: Spec) -> int | None:
    """The first axis of a full batch, or None where no leaf says it; of the first leaf that does."""
    return next((size for size in map(_row_count, spec.leaves) if size is not None), None)


def _sizes(spec: Spec) -> set[int | None]:
    """The sizes that first axes have in a full batch; None for one of unknown size. Every leaf has a first axis."""
    return set(map(_row_count, spec.leaves))


def _row_count(leaf: ArraySpec) -> int | None:
    return leaf.max_shape[0] if leaf.max_shape else leaf.shape[0]


def _have_rows(spec: Spec, *, have_several_sizes: bool) -> bool:
    """Whether all leaves have a first axis that may be that of a batch.

    It has one size, unless batches of several stand side by side; where one is unknown, all are None.
    """
    if not spec.leaves or any(leaf.shape == () for leaf in spec.leaves):
        return False
    sizes = _sizes(spec)
    are_mixed = None in sizes and any(leaf.shape[0] is not None for leaf in spec.leaves)
    return not are_mixed and (have_several_sizes or len(sizes - {None}) <= 1)


def _has_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether Keras's backend can be given it; this starts no device."""
    if dtype.kind in "US":
        return bool(keras.backend.backend() == "tensorflow")
    try:
        keras.backend.standardize_dtype(dtype.name)
    except ValueError:
        return False
    return True


def _with_weights(spec: Spec) -> Spec:
    """The spec of `(x, y, sample_weight)` for a loader with `uneven=`, which delivers pairs of an element and weights.

    Raises:
        ArgumentError: There are no targets, or weights that are no numbers.
    """
    element, weights = spec.tree
    if weights.shape == ():  # of a batch
        last = flatten(element)[0][-1]
        weights = ArraySpec(last.shape[:1], np.float32, last.max_shape and last.max_shape[:1])
    if not isinstance(element, tuple) or len(element) not in (2, 3):
        raise ArgumentError(
            "uneven= gives each element a weight, which Keras takes as (x, y, sample_weight). So elements are (x, y), "
            f"or (x, y, sample_weight); here they are {element}."
        )
    own, structure = flatten(weights if _own_weights(element) is None else element[2])
    other = next((leaf for leaf in own if leaf.dtype.kind not in "biuf"), None)
    if other is not None:
        raise ArgumentError(f"uneven= multiplies the sample weights of elements, but these are {other}, no numbers.")
    leaves = [ArraySpec(leaf.shape, np.float32, leaf.max_shape) for leaf in own]
    return Spec.of((*element[:2], structure.unflatten(leaves)))


def _own_weights(element: Tree) -> Tree:
    """The third part of an element; None where it has none."""
    return element[2] if len(element) == 3 else None


def _require_targets_apart(tree: Tree) -> None:
    """Refuses a dict of inputs and targets, which Keras would take for inputs alone."""
    target = next((key for key in tree if key in TARGETS), None) if isinstance(tree, dict) and len(tree) > 1 else None
    if target is None:
        return
    inputs = [key for key in tree if key != target]
    x = f"e[{inputs[0]!r}]"
    if len(inputs) > 1:
        x = "{" + ", ".join(f"{key!r}: e[{key!r}]" for key in inputs) + "}"
    raise SpecError(
        f"fit() takes pairs (x, y), and an element of this dataset is a dict with {target!r} in it, which Keras would "
        f"take for an input. Before batch(), or after it: map(lambda e: ({x}, e[{target!r}])). For a train_step() of "
        "your own that takes the dict: map(lambda e: (e,))."
    )


def _require_batches(spec: Spec, *, have_several_sizes: bool) -> None:
    if not _have_rows(spec, have_several_sizes=have_several_sizes):
        cure = "Put batch() last: dataset.batch(32).to_keras()."
        if all(leaf.shape for leaf in spec.leaves) and any(leaf.shape[0] is None for leaf in spec.leaves):
            cure += (
                " Where a function makes batches, its element_spec has None as first axis of all leaves, or of none."
            )
        raise SpecError(
            f"Keras takes batches, but an element of this dataset is {spec}: its leaves have no common first axis. "
            f"{cure}"
        )
    tree = spec.tree
    targets = flatten(tree[1])[0] if isinstance(tree, tuple) and len(tree) > 1 else []
    text = next((leaf for leaf in targets if leaf.dtype.kind in "SU"), None)
    if text is not None:
        raise SpecError(
            f"The targets of this dataset are text, {text}, and Keras's losses take numbers. Give each class a number "
            "before batch(): map(lambda e: (e[0], names.index(e[1]))), or from_image_files(class_names=names). "
            "predict() needs no targets: map(lambda e: e[0])."
        )
    require_dtypes(spec, f"Keras on {keras.backend.backend()}", _has_dtype)
    if isinstance(tree, tuple) and not 1 <= len(tree) <= 3:
        raise SpecError(
            f"Keras takes x, (x, y) or (x, y, sample_weight), but an element of this dataset is a tuple "
            f"of {len(tree)}: {spec}. Put inputs into a dict or a tuple of their own: "
            "map(lambda e: ((e[0], e[1]), e[2]))."
        )
    names: tuple[str, ...] = getattr(tree, "_fields", ())
    target = next((name for name in names if name in TARGETS), None)
    if target is not None and len(names) > 1 and names[1] not in TARGETS:
        inputs = [f"e.{name}" for name in names if name != target]
        x = inputs[0] if len(inputs) == 1 else f"({', '.join(inputs)})"
        role = ("x", "y", "sample_weight")[names.index(target)]
        raise SpecError(
            f"Keras takes x, (x, y) or (x, y, sample_weight) by place, and would take {target!r} of this named tuple "
            f"for {role}: {spec}. Put the targets second: map(lambda e: ({x}, e.{target}))."
        )
