"""Plans that run, and most likely not as intended. Each is one line in the log, once a plan: it may be intended."""

import logging
import math
import sys
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt

from penstock.plan._batch import Batching
from penstock.plan._by_chunks import ShuffleChunks
from penstock.plan._filter import FlatMap
from penstock.plan._index import Shuffle, Slice
from penstock.plan._mix import BLOCK_LENGTH, Mix
from penstock.plan._node import Node, walk
from penstock.plan._windows import Windows

_log = logging.getLogger("penstock")
_told: Final[WeakKeyDictionary[Node, set[str]]] = WeakKeyDictionary()
_SHUFFLES: Final = (Shuffle, ShuffleChunks)
_read_to_end: Final[WeakSet[Node]] = WeakSet()


def caution(node: Node, text: str, *values: Any) -> None:
    """Logs a warning about a plan, once.

    Args:
        node: The last step of the plan.
        text: The message, with a `%s` for each value.
        values: The values.
    """
    told = _told.setdefault(node, set())
    if text not in told:
        told.add(text)
        _log.warning(text, *values)


def random_steps(node: Node) -> str:
    """Names the steps that give each epoch something of its own: `random_map(flip) and shuffle(seed=1)`; or nothing."""
    labels = []
    for each in walk(node):
        below = [one.randomness for one in each.inputs]
        deeper = each.randomness.depth > max((one.depth for one in below), default=0)
        if deeper or (each.randomness.reorders and not any(one.reorders for one in below)):
            labels.append(each.label)
    return " and ".join(dict.fromkeys(reversed(labels)))


def begins_again(node: Node) -> None:
    """Cautions about a dataset that is iterated to its end, and then once more, as a training loop does."""
    if node in _read_to_end and (steps := random_steps(node)):
        caution(
            node,
            "A dataset that is iterated again gives epoch 0 again: %s did the same as before. For an epoch of its own "
            "in each iteration, make a loader once, loader = ds.loader(), and write: for batch in loader.",
            steps,
        )


def was_read(node: Node) -> None:
    """Notes that a dataset was iterated to its end."""
    _read_to_end.add(node)


def caution_data_loader(node: Node) -> None:
    """Cautions about a torch `DataLoader` over a dataset: it asks for elements by index, of epoch 0."""
    info = sys.modules["torch.utils.data"].get_worker_info()
    if (info is None or info.id == 0) and (steps := random_steps(node)):
        caution(
            node,
            "A DataLoader over a dataset reads epoch 0 in each epoch: %s does the same in all of them. Write "
            "ds.batch(32).to_torch() in place of the DataLoader: each iteration is the next epoch.",
            steps,
        )


def reordering(node: Node) -> tuple[str, str]:
    """Names the steps that give each epoch an order of its own, and the cure beside another place, where there is one.

    What `sample` draws differs in each epoch whatever its arguments.
    """
    steps = [each for each in walk(node) if each.redraws]
    keeps = ", or use shuffle(reshuffle=False)" if all(each.verb == "shuffle" for each in steps) else ""
    return " and ".join(dict.fromkeys(each.label for each in reversed(steps))), keeps


def caution_cut(cut: Slice) -> None:
    """Cautions about the rest of an order that each epoch makes anew: its beginning is another part, which it meets.

    A beginning alone is some elements at random in each epoch, as many programs want them. Shards go together.
    """
    node = cut.source
    is_rest = cut.start > 0 and (node.length is None or cut.length != node.length or node.length == math.inf)
    if is_rest and cut.verb != "shard" and node.randomness.reorders:
        steps, keeps = reordering(node)
        caution(
            node,
            "%s after %s leaves out other elements in each epoch, for each has an order of its own. Parts that are "
            "made so have elements in common. Write split() before %s%s. A round of repeat() is such an epoch, too.",
            cut.label,
            steps,
            steps,
            keeps,
        )


def caution_windows(node: Node, written: str) -> None:
    """Cautions about windows of an order that each epoch makes anew."""
    if node.randomness.reorders:
        caution(
            node,
            "%s after %s makes windows of elements that stand side by side in the order of one epoch. For neighbours "
            "in the data, write windows() before it.",
            written,
            reordering(node)[0],
        )


def caution_absent(mix: Mix) -> None:
    """Cautions about datasets of a mix that give nothing, however long it is."""
    if mix.absent:
        caution(
            mix,
            "Dataset %d of %s never has its turn: its weight is too small for one of %d elements, the block in which "
            "shares are exact. Give it a larger one, or a temperature= above 1.",
            mix.absent[0],
            mix.label,
            BLOCK_LENGTH,
        )


def caution_labels(node: Node, call: str) -> None:
    """Cautions about labels by position of an order that each epoch makes anew."""
    if node.randomness.reorders:
        steps, keeps = reordering(node)
        caution(
            node,
            "%s after %s takes a value by position, where each epoch has another element. Put this step before %s%s.",
            call,
            steps,
            steps,
            keeps,
        )


def caution_missing(node: Node, labels: npt.NDArray[Any]) -> None:
    """Cautions about classes by number beside -1, the number of a missing category in pandas and AnnData."""
    if labels.dtype.kind == "i" and labels.min(initial=0) == -1 and (labels == 0).any():
        caution(
            node,
            "sample(balance=...): %s of %s elements have the label -1, as missing categories have. They are drawn as "
            "a class of their own. If they have no label, leave them out: ds[labels >= 0].",
            f"{np.count_nonzero(labels == -1):,}",
            f"{len(labels):,}",
        )


def caution_stride(node: Node, windows: Windows) -> None:
    """Cautions about a stride that looks like the distance between windows, as other libraries call it."""
    if windows.size >= 32 and windows.stride >= windows.size - 1 and windows.shift == 1:
        caution(
            node,
            "%s takes elements that are %d apart, and windows begin at every element. For windows of neighbours that "
            "begin every %d elements write shift=%d.",
            windows.label,
            windows.stride,
            windows.stride,
            windows.stride,
        )


def caution_batches(node: Node) -> None:
    """Cautions about a plan that shuffles whole batches, whose elements stay together in all epochs."""
    shuffle = None
    for each in _chain(node):
        if isinstance(each, Batching):
            is_mixed = each.randomness.reorders or any(isinstance(below, _SHUFFLES) for below in walk(each))
            if shuffle is None or each.size == 1 or is_mixed:
                return
            caution(
                node,
                "%s after %s puts batches in order, not elements: those of a batch stay together in all epochs. Write "
                "shuffle() before batch().",
                shuffle.label,
                each.label,
            )
            return
        if isinstance(each, _SHUFFLES):
            shuffle = shuffle or each


def caution_functions(node: Node) -> None:
    """Cautions about functions that say so of the elements they get, by `caution_of_elements`."""
    for each in walk(node):
        find = getattr(getattr(each, "function", None), "caution_of_elements", None)
        if callable(find) and (text := find(each.inputs[0].spec.tree)):
            caution(node, "%s", text)


def _chain(node: Node) -> list[Node]:
    """The steps from the last one back, by first inputs, as far as elements are not taken apart."""
    chain = [node]
    while node.inputs and not isinstance(node, FlatMap) and node.verb != "unbatch":
        node = node.inputs[0]
        chain.append(node)
    return chain
