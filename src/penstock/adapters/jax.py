"""Datasets for JAX: an iterable of trees of `jax.Array`, on their devices before they are asked for.

How a batch gets from a slot to a device. JAX gets NumPy's views of the slot, and keeps them while it reads them. On a
CPU it shares aligned memory, so it keeps them as long as the array lives; elsewhere until the transfer is done. So a
batch that the user keeps never changes. The slot comes back at one of the next calls of JAX after that.

Several processes. A sharding over devices of several processes makes global arrays. Each process holds the rows of its
own devices. The sharding says which rows these are, and the loader delivers that share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from penstock.adapters._dtypes import require_dtypes
from penstock.adapters._epochs import Epoch, EpochAdapter
from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.loader import Loader, LoaderOptions
from penstock.lower._share import Share
from penstock.plan._batch import remainders
from penstock.plan._node import Node
from penstock.run._shard import FoundShard


@final
class JaxAdapter(EpochAdapter):
    """Iterates batches of `jax.Array`; one iteration is one epoch of its `loader`.

    `dataset.to_jax()` makes one. A batch has the structure of the dataset, and `element_spec` describes its arrays.
    With
    a sharding over several processes, shapes are those of the global arrays. While JAX's 64-bit numbers are off, dtypes
    have 32 bits. That conversion copies the batch; `cast` converts on workers instead.

    Order: the loader's. Memory: on a CPU the loader's slots. On a device `ahead_count` batches and the one in use; no
    more slots than that are held by transfers.

    Args:
        loader: What delivers the batches. The adapter is the one that iterates it.
        spec: The spec of the batches, dtypes excepted.
        places: Where each leaf goes: a device, a sharding, or None for JAX's default.
        share: The rows of global arrays that the loader delivers; None for arrays of this process alone.
        ahead_count: Batches that are on their way while the user works on one.
    """

    def __init__(
        self, loader: Loader, spec: Spec, places: Sequence[Any], *, share: tuple[int, int] | None, ahead_count: int
    ) -> None:
        super().__init__(loader)
        self._spec = spec
        self._names = _tree.paths(spec.structure)
        self._places = list(places)
        self._place = _one_place(self._places)
        self._share = share
        self._ahead_count = ahead_count

    @property
    def element_spec(self) -> Tree:
        """The tree of `ArraySpec` of what arrives, of 32 bits where JAX's 64-bit numbers are off here and now."""
        return self._arriving.tree

    @property
    def _arriving(self) -> Spec:
        return Spec(tuple(map(_arriving, self._spec.leaves)), self._spec.structure)

    def __iter__(self) -> Iterator[Tree]:
        """Begins the loader's next epoch, or the rest of one after `loader.set_state`."""
        return Epoch(self.loader, self._put, self._arrived, self._ahead_count)

    def _put(self, batch: Tree) -> list[Any]:
        leaves = list(map(fitting, _tree.flatten_like(self._spec.structure, batch), self._names))
        if self._share is None:
            # Given a place for each leaf, or a device in place of its sharding, JAX takes twice as long.
            arrays: list[Any] = jax.device_put(leaves, self._place)
            return arrays
        count = self._share[1]
        shapes = [(count * len(leaf), *leaf.shape[1:]) for leaf in leaves]
        return list(map(jax.make_array_from_process_local_data, self._places, leaves, shapes))

    def _arrived(self, arrays: list[Any]) -> Tree:
        if self._ahead_count:
            # It was sent a step ago and is about to be computed with. Waiting here keeps a loop that only queues work
            # from queueing transfers without end, each with a slot in its hand.
            jax.block_until_ready(arrays)
        return self._spec.structure.unflatten(arrays)

    def __repr__(self) -> str:
        rows = "" if self._share is None else f", rows {self._share[0]} of {self._share[1]} from here"
        return f"<penstock JaxAdapter of {self._arriving}{rows}, of {self.loader!r}>"


def adapt(
    node: Node,
    options: LoaderOptions,
    *,
    device: Any,
    sharding: Any,
    prefetch_to_device: int | None,
    training: bool,
    has_shard: bool,
) -> JaxAdapter:
    """Makes the adapter, and its loader with the share of the rows that this process's devices hold.

    Args:
        node: The dataset.
        options: The loader's options.
        device: See `Dataset.to_jax`.
        sharding: See there.
        prefetch_to_device: See there.
        training: See there.
        has_shard: Whether the user gave the `shard` in the options.

    Raises:
        SpecError: See `Dataset.to_jax`.
        ArgumentError: See there.
        ArgumentTypeError: An argument is none of JAX's things.
    """
    if device is not None and sharding is not None:
        raise ArgumentError("to_jax() takes device= or sharding=, not both: a sharding names its devices.")
    if device is not None and not isinstance(device, jax.Device):
        raise ArgumentTypeError(f"device={device!r} is no jax.Device. Take one of jax.devices().")
    if prefetch_to_device is not None and (type(prefetch_to_device) is not int or prefetch_to_device < 0):
        raise ArgumentError(f"prefetch_to_device={prefetch_to_device!r} is not a number of batches, 0 or more.")
    if sharding is not None and (options.uneven == "weights" or options.micro_batches > 1):
        raise ArgumentError(
            "to_jax(sharding=) makes arrays over all devices, of one shape. So it takes uneven='mask', but neither "
            "uneven='weights' nor micro_batches=. To accumulate gradients, make the batch as large as a part."
        )
    spec = node.spec
    require_dtypes(spec, "JAX", _has_dtype)
    if prefetch_to_device is None:
        prefetch_to_device = 0 if _is_cpu(device, sharding) else 1
    # What is on its way holds its slot: with one batch ahead there are enough, each beyond it needs one more.
    options = replace(options, prefetch=options.prefetch + max(0, prefetch_to_device - 1))
    if sharding is None:
        loader = Loader(node, options, same_epoch=not training)
        places = [device] * len(spec.leaves)
        return JaxAdapter(loader, Spec.of(loader.element_spec), places, share=None, ahead_count=prefetch_to_device)
    places = _shardings(spec, sharding)
    if options.whole_batches or options.batch_axis is not None:
        raise ArgumentError(
            "to_jax(sharding=) divides the rows of each batch among devices, by their first axis. whole_batches=True "
            "divides no batch, and batch_axis= is about shard=. Leave sharding= out, and put each batch where it "
            "belongs in your loop: jax.device_put(batch, sharding)."
        )
    share, share_count, short_counts = None, 1, remainders(node)
    if options.uneven == "mask":
        share_count, short_counts = max(map(_share_count, spec.leaves, places)), set()
        spec = Share(uneven="mask", multiple=share_count).spec(spec)
        places.append(_of_rows(places[0]))
    if not all(each.is_fully_addressable for each in places):
        _require_divisible(spec, places, short_counts)
        share = _common_share(spec, places)
        if has_shard and options.shard != share:
            raise ArgumentError(
                f"shard={options.shard} does not fit the sharding, by which the devices of this process hold part "
                f"{share[0]} of {share[1]} of the rows. Leave shard= out: it follows from the sharding."
            )
        options = replace(options, shard=FoundShard(share))
    multiple = share_count if share is None else -(-share_count // share[1])
    loader = Loader(node, options, same_epoch=not training, multiple=multiple)
    if share is None:
        spec = Spec.of(loader.element_spec)
        _require_divisible(spec, places, {count // options.shard[1] for count in short_counts})
    return JaxAdapter(loader, spec, places, share=share, ahead_count=prefetch_to_device)


def _one_place(places: list[Any]) -> Any:
    """What says to `jax.device_put` where all leaves go, as shortly as that can be said."""
    if not all(each == places[0] for each in places):
        return places
    return SingleDeviceSharding(places[0]) if isinstance(places[0], jax.Device) else places[0]


def _is_cpu(device: Any, sharding: Any) -> bool:
    if sharding is not None:
        devices = [device for each in _tree.flatten(sharding)[0] for device in getattr(each, "device_set", ())]
        return all(each.platform == "cpu" for each in devices)
    platform: str = jax.default_backend() if device is None else device.platform
    return platform == "cpu"


# Leaves and arrays.


def _arriving(leaf: ArraySpec) -> ArraySpec:
    return ArraySpec(leaf.shape, _arriving_dtype(leaf.dtype), leaf.max_shape)


def _arriving_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype, or that of 32 bits where JAX's 64-bit numbers are off.

    To be asked for each batch: they are a setting of a block and of a thread (`jax.enable_x64`), and where they are off
    JAX takes the upper half away without a word.
    """
    found: np.dtype[Any] = jax.dtypes.canonicalize_dtype(dtype)
    return found


def fitting(leaf: Any, name: str) -> npt.NDArray[Any]:
    """Returns the leaf, or a copy in the dtype of 32 bits that JAX would make of it without looking at the values.

    Args:
        leaf: An array or a number of a batch.
        name: Its place there, such as `['x']`.

    Raises:
        SpecError: An integer does not fit.
    """
    array = np.asarray(leaf)
    dtype = _arriving_dtype(array.dtype)
    if array.dtype == dtype:
        return array
    if dtype.kind in "iu" and array.size:
        bounds = np.iinfo(dtype)
        low, high = int(array.min()), int(array.max())
        if low < bounds.min or high > bounds.max:
            raise SpecError(
                f"batch{name} has values from {low} to {high}, which do not fit {dtype}, and JAX's 64-bit numbers are "
                "off. Turn them on, and leave them on: jax.config.update('jax_enable_x64', True)."
            )
    return array.astype(dtype)


def _has_dtype(dtype: np.dtype[Any]) -> bool:
    try:
        jax.eval_shape(lambda array: array, np.empty(0, dtype))
    except TypeError:
        return False
    return True


# Shardings.


def _shardings(spec: Spec, sharding: Any) -> list[Any]:
    """One for each leaf.

    Raises:
        ArgumentTypeError: Something else than shardings, or not in a tree like the element.
    """
    leaves, structure = _tree.flatten(sharding)
    other = next((leaf for leaf in leaves if not isinstance(leaf, jax.sharding.Sharding)), None)
    if other is not None:
        raise ArgumentTypeError(
            f"sharding= holds {other!r}, which is no jax.sharding.Sharding. A PartitionSpec needs its mesh: "
            "NamedSharding(mesh, spec)."
        )
    if structure.is_leaf():
        return leaves * len(spec.leaves)
    if structure != spec.structure:
        raise ArgumentTypeError(
            f"sharding= is a tree of another structure than the element, which is {spec}. Give one sharding for all "
            "leaves, or one for each."
        )
    return leaves


def _share_count(leaf: ArraySpec, sharding: Any) -> int:
    """The parts that a sharding makes of the rows of a leaf."""
    device_count = len(sharding.device_set)
    part: int = sharding.shard_shape((device_count, *(leaf.max_shape or ())[1:]))[0]
    return device_count // part


def _of_rows(sharding: Any) -> Any:
    """The sharding of an array that has a number for each row."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))


def _require_divisible(spec: Spec, shardings: Sequence[Any], short_counts: set[int]) -> None:
    """Refuses batches that their sharding does not divide, before anything is read.

    Args:
        spec: The spec of the arrays that arrive.
        shardings: One for each leaf.
        short_counts: Row counts of short batches; empty if there are none, or if they are not known.
    """
    for place, leaf, sharding in zip(_tree.paths(spec.structure), spec.leaves, shardings, strict=True):
        shape = leaf.max_shape
        if shape is None:
            raise SpecError(
                f"element{place} is {leaf}: without a size known ahead it cannot be shared out to devices. Give "
                "batches one shape, padded_batch(n, padded_shapes=..., drop_remainder=True), or leave sharding= out, "
                "and put each batch where it belongs in your loop: jax.device_put(batch, sharding)."
            )
        try:
            part_shape = sharding.shard_shape(shape)
        except IndexError:
            raise SpecError(
                f"element{place} is {leaf}, which has fewer axes than the sharding names: {sharding}. Put batch() "
                "last, which adds the first axis: dataset.batch(32).to_jax(...), or give that leaf a sharding of its "
                "own, in a tree like the element."
            ) from None
        except ValueError as error:
            raise SpecError(f"element{place} is {leaf}, which the sharding does not divide: {error}") from None
        if not leaf.varies or part_shape[0] == shape[0]:
            continue
        parts = shape[0] // part_shape[0]
        uneven = [count for count in sorted(short_counts) if count % parts]
        if uneven or not short_counts:
            rows = f"{uneven[0]} rows" if uneven else "any number of rows"
            raise SpecError(
                f"element{place} is {leaf}: a short batch has {rows}, and the sharding makes {parts} parts. Give the "
                "step that makes batches drop_remainder=True, or fill up: to_jax(uneven='mask')."
            )


def _common_share(spec: Spec, shardings: Sequence[Any]) -> tuple[int, int]:
    """The part of the rows that the devices of this process hold; the same for every leaf.

    Raises:
        SpecError: It is no such part, or not one for all leaves.
    """
    shares: set[tuple[int, int] | None] = set()
    for leaf, sharding in zip(spec.leaves, shardings, strict=True):
        if not (shape := leaf.max_shape):
            shares.add(None)
            continue
        held = np.zeros(shape[0], bool)
        for where in sharding.addressable_devices_indices_map(shape).values():
            held[where[0]] = True
        count, first = int(held.sum()), int(held.argmax())
        is_part = held[first : first + count].all() and not (len(held) % count or first % count)
        shares.add((first // count, len(held) // count) if is_part else None)
    share = shares.pop()
    if shares or share is None:
        raise SpecError(
            f"By this sharding, the devices of process {jax.process_index()} do not hold one even part of the rows of "
            f"each batch, the same for all leaves of {spec}. Order the devices of the mesh by process along the axis "
            "of the batch, as jax.make_mesh does, and shard the first axis of every leaf by it."
        )
    return share
