"""Datasets for PyTorch: an iterable for loops, `DataLoader(num_workers=0)` and Lightning, and a map-style dataset.

`TorchAdapter` is a loader whose batches are tensors. On a CPU a tensor is the slot's own memory, and the slot is used
again when the last tensor that shares it is gone. To a CUDA device batches are copied on a stream of their own, one
batch ahead, and the slot stays leased until the copy is done.

`MapDataset` is for those who want torch's own sampler and workers: elements by index, made where they are asked for.
"""

import contextlib
import multiprocessing.context
import multiprocessing.reduction
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset as TorchDataset, IterableDataset, get_worker_info

from penstock.adapters._dtypes import require_dtypes
from penstock.adapters._epochs import Epoch, EpochAdapter
from penstock.adapters._torch_device import Copying, CudaRuntime, PinnedRing, is_tensor
from penstock.base._arguments import as_int, refuse_attribute
from penstock.base._errors import (
    ArgumentError,
    ArgumentTypeError,
    ElementIndexError,
    LoaderError,
    TravelError,
)
from penstock.base._spec import Spec
from penstock.base._tree import Tree, flatten_like
from penstock.loader import Loader
from penstock.lower._rewrite import reader_of
from penstock.memory._rows import Rows
from penstock.memory._shared import Place, SharedFile, map_private
from penstock.plan._cache import CacheStep
from penstock.plan._node import Node, finite_length, walk
from penstock.plan._reader import Reader
from penstock.plan._text import length_text
from penstock.run.pool._payload import pack, unpack

_OWN_WORKERS = (
    "A TorchAdapter runs in the process that made it: its loader has workers of its own, and each worker of a "
    "DataLoader would deliver every batch once more. Use DataLoader(adapter, batch_size=None, num_workers=0) and "
    "to_torch(workers=...), or, for torch's own workers, penstock.adapters.torch.MapDataset(dataset). A process that a "
    "trainer starts makes an adapter of its own, as in Lightning's train_dataloader()."
)


@final
class TorchAdapter(EpochAdapter, IterableDataset):
    """Iterates batches of torch tensors; one iteration is one epoch of its `loader`.

    `dataset.to_torch()` makes one. A batch is a tree as the dataset's, its arrays as tensors of the same dtype; text
    and bytes stay NumPy arrays, as `DataLoader` leaves them. It is an `IterableDataset`, for code that wants one:
    `DataLoader(adapter, batch_size=None)`, without workers of torch's. `state_dict` and `load_state_dict` are the
    loader's state, for what saves by torch's `Stateful` protocol.

    Order: the loader's. Memory: on a CPU the loader's slots, nothing is copied. With `pin_memory` the ring itself
    is page-locked. If the system refuses that, each batch is copied into page-locked memory that torch reuses. On a
    device two batches, the one in use and the next; on CUDA up to four where a loop only queues steps.

    Args:
        loader: What delivers the batches.
        pin_memory: Whether tensors lie in page-locked memory, or come by way of it.
        device: Where tensors arrive; None for the CPU.

    Raises:
        SpecError: A leaf is of a dtype that torch does not have.
        ArgumentError: The device is not there.
    """

    def __init__(
        self, loader: Loader, *, pin_memory: bool = False, device: Any = None, runtime: CudaRuntime | None = None
    ) -> None:
        super().__init__(loader)
        self._spec = Spec.of(loader.element_spec)
        require_dtypes(self._spec, f"torch {torch.__version__}", _has_dtype)
        self._device = _as_device(device)
        self._pins = _can_pin(self._device) if pin_memory else False
        self._runtime = runtime or CudaRuntime(self._device)
        self._ring = PinnedRing(self._runtime)

    def __getattr__(self, name: str) -> NoReturn:
        refuse_attribute(self, name, "What to_torch() makes", "data_loader")

    def __iter__(self) -> Iterator[Tree]:
        """Begins the loader's next epoch, or the rest of one after `loader.set_state`.

        Raises:
            LoaderError: This is a worker process of a `DataLoader`.
            ArgumentError: A `DataLoader` would stack batches into batches, or accelerate would deal out one process's
                share to all.
        """
        if get_worker_info() is not None:
            raise LoaderError(_OWN_WORKERS)
        _require_no_collation(sys._getframe(1), self.loader.arrangement.plan)
        _require_not_dealt_out(sys._getframe(1), self.loader.arrangement.options.shard)
        if self._device.type != "cuda":
            return Epoch(self.loader, self._to_device)
        return Epoch(self.loader, self._copy, self._copied, ahead_count=1, rest=lambda moving: moving[0])

    def _tensors(self, batch: Tree) -> list[Any]:
        """The leaves as tensors. They share the memory of the slot, unless that could not be page-locked."""
        leaves = [_as_tensor(leaf) for leaf in flatten_like(self._spec.structure, batch)]
        if not self._pins:
            return leaves
        self._ring.cover(self.loader.ring())
        return [leaf.pin_memory() if is_tensor(leaf) and not self._ring.holds(leaf) else leaf for leaf in leaves]

    def _to_device(self, batch: Tree) -> Tree:
        leaves = self._tensors(batch)
        if self._device.type != "cpu":
            leaves = [leaf.to(self._device) if is_tensor(leaf) else leaf for leaf in leaves]
        return self._spec.structure.unflatten(leaves)

    def _copy(self, batch: Tree) -> tuple[Copying, list[Any]]:
        return self._runtime.copy(self._tensors(batch))

    def _copied(self, moving: tuple[Copying, list[Any]]) -> Tree:
        self._runtime.finish(*moving)
        return self._spec.structure.unflatten(moving[1])

    def state_dict(self) -> dict[str, Any]:
        """The loader's state: the position after the batches that were handed out."""
        return self.loader.get_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration the rest of a saved epoch; see `Loader.set_state`."""
        self.loader.set_state(state_dict)

    def __reduce__(self) -> Any:
        raise TravelError(_OWN_WORKERS)

    def __repr__(self) -> str:
        pinned = ", pinned" if self._pins and self._device.type == "cpu" else ""
        return f"<penstock TorchAdapter of {self._spec}, on {self._device}{pinned}, of {self.loader!r}>"


@final
class MapDataset(TorchDataset):
    """A map-style dataset of torch: `dataset[i]` as a tree of tensors, for `DataLoader`'s own sampler and workers.

    Each worker makes the elements that it is asked for, one after the other; the memory of batches is torch's. To a
    worker that is spawned it goes by handles: files by path, large arrays through memory that all workers share,
    functions by value. `ds.loader()` and `ds.to_torch()` have none of what that costs, and a state.

    Elements are tensors of their own, writable; text and bytes stay `str`, `bytes` or NumPy arrays. Shuffle by the
    sampler, or in the dataset. A reshuffle and `random_map` follow `set_epoch`, which reaches workers that live, too.

    Args:
        dataset: A `Dataset` with random access and a known length. `batch()` is the sampler's work.

    Raises:
        ArgumentTypeError: It is no dataset.
        ArgumentError: Its length is not known, or it has no random access.
        SpecError: A leaf is of a dtype that torch does not have.

    Example:
        >>> import torch
        >>> squares = MapDataset(penstock.range(10).map(lambda x: x * x))
        >>> squares[-1], len(squares)
        (tensor(81), 10)
        >>> [batch.tolist() for batch in torch.utils.data.DataLoader(squares, batch_size=4)]
        [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    """

    def __init__(self, dataset: Any) -> None:
        node = getattr(dataset, "_node", None)  # `Dataset` is not imported: it names the class of `to_torch()`
        if not isinstance(node, Node) or isinstance(dataset, Loader):
            raise ArgumentTypeError(f"MapDataset() takes a penstock.Dataset, not {dataset!r:.100}.")
        if node.access != "random" or not isinstance(node.length, int):
            raise ArgumentError(
                f"MapDataset() needs random access and a known length, but this dataset is {length_text(node.length)}, "
                f'access "{node.access}". Iterate dataset.to_torch(), which needs neither.'
            )
        require_dtypes(node.spec, f"torch {torch.__version__}", _has_dtype)
        self._set_up(node, _shared_number(0))
        if any(isinstance(each, CacheStep) for each in walk(node)):
            # Opened before torch forks, or each worker makes a cache of its own.
            self._readers.append(self._take_reader())

    def _set_up(self, node: Node, epoch: Any) -> None:
        self._node = node
        self._epoch = epoch
        self._shared: SharedFile | None = None
        self._readers: list[Reader] = []
        self._pid = os.getpid()

    def set_epoch(self, epoch: int) -> None:
        """Makes elements those of this epoch, from now on, in every worker: their order and their random numbers.

        Raises:
            ArgumentError: It is no integer of at least 0.
        """
        number = as_int(epoch)
        if number is None or number < 0:
            raise ArgumentError(f"set_epoch({epoch!r}) is no epoch: it is an integer of at least 0.")
        self._epoch.fill_(number)

    def __len__(self) -> int:
        """The number of elements."""
        return finite_length(self._node)

    def __getitem__(self, index: int) -> Tree:
        """Makes one element; a negative index counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Tree]:
        """Makes several elements, which are read at once; `DataLoader` asks for a batch in this way.

        Raises:
            ElementIndexError: An `IndexError`; an index is outside `[-len, len)`.
            ArgumentTypeError: An index is no integer.
        """
        count = len(self)
        numbers = [as_int(index) for index in indices]
        if None in numbers:
            raise ArgumentTypeError(
                f"An index of a MapDataset is an integer, but {list(indices)!r:.100} was asked for. A sampler of whole "
                "batches goes to DataLoader(batch_sampler=)."
            )
        wanted = [number for number in numbers if number is not None]
        if outside := [number for number in wanted if not -count <= number < count]:
            raise ElementIndexError(f"Index {outside[0]} is outside a dataset of {length_text(count)}.")
        reader = self._take_reader()
        try:
            box = Rows.allocate(reader.spec, len(wanted))
            reader.read(int(self._epoch), np.array(wanted, np.int64) % count, box)
        finally:
            self._readers.append(reader)
        structure = reader.spec.structure
        return [structure.unflatten(map(_as_tensor, box.leaf_values(row))) for row in range(len(wanted))]

    def _take_reader(self) -> Reader:
        if self._pid != os.getpid():  # a forked child opens its own files
            self._pid, self._readers = os.getpid(), []
        with contextlib.suppress(IndexError):
            return self._readers.pop()
        return reader_of(self._node)

    def __reduce__(self) -> Any:
        payload = pack(self._node, self._node)
        if multiprocessing.context.get_spawning_popen() is None:  # not to a worker: a copy, or a file
            return _unpacked, (payload.data, payload.arrays, int(self._epoch))
        if self._shared is None:
            self._shared = SharedFile()
        places = [self._shared.put_array(array) for array in payload.arrays]
        handle = multiprocessing.reduction.DupFd(self._shared.descriptor)
        return _arrived, (payload.data, handle, places, self._epoch)

    def __repr__(self) -> str:
        return f"<penstock MapDataset of {len(self)}, each {self._node.spec}>"


def _shared_number(value: int) -> Any:
    """One number that all processes see, so that `set_epoch` reaches workers that torch keeps between epochs."""
    return torch.tensor(value).share_memory_()


def _unpacked(data: bytes, arrays: Sequence[npt.NDArray[Any]], epoch: int) -> MapDataset:
    made = MapDataset.__new__(MapDataset)
    memory = [np.frombuffer(bytearray(array.tobytes("A")), np.uint8) for array in arrays]
    made._set_up(unpack(data, memory), _shared_number(epoch))
    return made


def _arrived(data: bytes, handle: Any, places: Sequence[Place], epoch: Any) -> MapDataset:
    """In a worker: the memory of arrays is mapped, and private where it is written to."""
    made, descriptor = MapDataset.__new__(MapDataset), handle.detach()
    try:
        made._set_up(unpack(data, [map_private(descriptor, place) for place in places]), epoch)
    finally:
        os.close(descriptor)
    return made


# To a device.


def _as_device(device: Any) -> Any:
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError, ModuleNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(
            f"device={device!r} is no device that torch {torch.__version__} finds here: {reason}. Leave device= out "
            "for tensors on the CPU."
        ) from error
    return found


def _can_pin(device: Any) -> bool:
    """Whether there is a device to pin memory for; without one torch warns and goes on, and so do we."""
    if device.type in ("cpu", "cuda") and torch.cuda.is_available():
        return True
    warnings.warn(
        "to_torch(pin_memory=True) does nothing here: torch finds no CUDA device to pin memory for.", stacklevel=5
    )
    return False


# Leaves and tensors.


def _as_tensor(leaf: Any) -> Any:
    """A tensor that shares the leaf's memory and keeps its lease; text and bytes as they are."""
    if isinstance(leaf, (str, bytes)) or leaf.dtype.kind in "US":
        return leaf
    return tensor_of(leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf))


def tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor that shares the array's memory.

    Raises:
        TypeError: torch does not have its dtype, or not from NumPy.
        ValueError: Nor its strides or byte order.
    """
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":  # of ml_dtypes, whose bits are those of torch's
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _has_dtype(dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "US":
        return True  # text stays as it is
    try:
        tensor_of(np.empty(0, dtype))
    except TypeError:
        return False
    return True


# Facts that only the frames of DataLoader show.


def _require_no_collation(frame: Any, node: Node) -> None:
    """Refuses a `DataLoader` that would stack whole batches, which gives every tensor one more axis, and a copy.

    Args:
        frame: That of the caller of `iter`; what it is in another version of torch says nothing.
        node: The plan that is delivered.
    """
    stacks = frame.f_code.co_name == "__init__" and frame.f_locals.get("auto_collation")
    steps = (each.verb for each in walk(node) if each.verb in _STACKING or each.verb == "unbatch")
    if stacks and next(steps, None) in _STACKING:
        raise ArgumentError(
            "This DataLoader would stack batches into batches: what to_torch() delivers is batched by the dataset "
            "already. Use DataLoader(adapter, batch_size=None) or, where a trainer makes the DataLoader, have its "
            "get_train_dataloader() return the adapter."
        )


def _require_not_dealt_out(frame: Any, shard: tuple[int, int]) -> None:
    """Refuses a share that accelerate reads in its first process alone, for all: the others' shares would be lost.

    Args:
        frame: That of the caller of `iter`. In accelerate's `DataLoaderDispatcher`, which `prepare` makes of a
            `DataLoader` of an `IterableDataset`, it is some frames of `DataLoader`'s below.
        shard: Which share it delivers.
    """
    if shard[1] == 1:
        return
    for _ in range(8):
        if frame is None:
            return
        dealer = frame.f_locals.get("self")
        if type(dealer).__name__ == "DataLoaderDispatcher" and dealer.state.num_processes > 1:
            raise ArgumentError(
                "accelerate would read this adapter in its first process alone and deal out its batches to all, but it "
                f"has shard={shard}: the elements of the other shares would never be seen. Leave the adapter out of "
                "accelerator.prepare(), and iterate it in each process."
            )
        frame = frame.f_back


_STACKING = {"batch", "padded_batch", "bucket_by_length"}
"""Steps whose elements are batches."""
