"""`shuffle(window="chunks")`: chunks of a source in a random order, and the elements of each in a random order."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.base._random import BLOCK_CACHE_NBYTES, permute
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices, distinct
from penstock.plan._cache import CacheStep
from penstock.plan._chunks import Chunks
from penstock.plan._index import Select, Shuffle, mark_of
from penstock.plan._node import Demand, Memory, Node, OneInput, Reorder, finite_length, located, walk
from penstock.plan._patches import Patches, shape_of
from penstock.plan._rewritten import rewritten
from penstock.plan._source_node import SourceNode


@dataclass(frozen=True, eq=False)
class ShuffleChunks(Reorder, OneInput):
    """Each element once: chunk after chunk in a random order, and those of a chunk in a random order."""

    seed: int
    reshuffle: bool
    by_chunk: Chunks
    """Those of the input. Rewrites of the plan below leave them as they are."""

    verb = "shuffle"
    takes_each_once = True
    _scatters = True
    spread = math.inf

    @property
    def label(self) -> str:
        """As the user wrote it, without defaults."""
        return f"shuffle(seed={self.seed}, window='chunks'{'' if self.reshuffle else ', reshuffle=False'})"

    def settings(self) -> dict[str, Any]:
        """The seed, and the chunks."""
        firsts = [each for grid in self.by_chunk.grids for each in grid.firsts]
        return {"seed": self.seed, "reshuffle": self.reshuffle, "chunks": mark_of(*firsts)}

    @property
    def redraws(self) -> bool:  # type: ignore[override]
        """Unless the order stays."""
        return self.reshuffle

    @cached_property
    def chunks(self) -> Chunks | None:
        """The same, in their new order, if that stays."""
        if self.reshuffle:
            return None
        return Chunks.of_bounds(np.append(0, self.by_chunk.order(self.seed, 0)[1]))

    @property
    def memory(self) -> Memory:
        """Tables of the chunks, two of them for each of two epochs, and what other shuffles take."""
        return Memory(kept_nbytes=6 * self.by_chunk.sizes.nbytes, order_nbytes=BLOCK_CACHE_NBYTES)

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """The image of the positions: the chunk that is at this place now, and an element in it."""
        order = epoch if self.reshuffle else 0
        chunks, ends = self.by_chunk.order(self.seed, order)
        ranks = np.searchsorted(ends, indices, side="right")
        found = np.empty(len(indices), np.int64)
        for rank in distinct(ranks).tolist():
            here, chunk = ranks == rank, int(chunks[rank])
            size = int(self.by_chunk.sizes[chunk])
            # Each chunk's order has its own seed, far from seeds that a user gives.
            seed = self.seed + ((chunk + 1) << 64)
            inner = permute(indices[here] - (int(ends[rank]) - size), size, seed=seed, epoch=order)
            found[here] = self.by_chunk.elements(chunk, inner)
        return [Demand(0, epoch, found)]


def shuffled_by_chunks(node: Node, seed: int, reshuffle: bool) -> Node:
    """A shuffle that takes the elements of a chunk together, over a plan that reads by chunks.

    Raises:
        ArgumentError: The data have no chunks, or a step leaves elements of a chunk at places that are not known.
    """
    if node.chunks is None:
        raise ArgumentError(_refusal(node))
    others = {id(each): each for each in walk(node, _inputs) if not _inputs(each) and each.inputs}
    node = rewritten(node, _by_chunks, others)
    assert node.chunks is not None
    return ShuffleChunks(node, seed, reshuffle, node.chunks) if finite_length(node) else node


def _inputs(node: Node) -> tuple[Node, ...]:
    """The inputs that may be read by chunks. A cache is known by the plan that fills it, so that plan stays."""
    return () if node.chunks is None or isinstance(node, CacheStep) else node.inputs


def _by_chunks(node: Node) -> Node:
    """Rows of arrays in chunks as patches, so that a chunk serves all of its rows."""
    if not isinstance(node, SourceNode) or node.data.chunk_shape is None or node.data.parts is not None:
        return node
    assert isinstance(node.data.element_spec, ArraySpec)
    whole = shape_of(node.data, node.data.element_spec)
    sizes = (1, *whole[1:])
    data = node.data.patched(sizes, keeps_first=False)
    if data is None:
        return node
    return Patches(SourceNode(data, node.name), sizes, (1,) * len(whole), whole, "", node.data.chunk_shape)


def _refusal(node: Node) -> str:
    """Names the step that leaves no chunks, or the data that have none, and the remedy."""
    above = node
    while without := [each for each in node.inputs if each.chunks is None]:
        above, node = node, without[0]
    if not node.inputs:
        return (
            "shuffle(window='chunks') takes elements that are stored in chunks, as in HDF5, Zarr, Parquet and Arrow; "
            f"{node.label} has none. Give a number: shuffle(window=4096)."
        )
    step = located(node)
    if isinstance(node, Shuffle) and above.verb == "split":
        step = f"split(seed={node.seed})"
        cure = (
            "Split by range, without a seed. Or deal whole chunks: "
            f"shuffle(seed={node.seed}, window='chunks', reshuffle=False).split(...)"
        )
    elif isinstance(node, (Shuffle, ShuffleChunks)):
        cure = f"Leave out {node.label}"
    elif isinstance(node, Select) and (np.diff(node.positions) < 0).any():
        cure = "Sort the indices"
    else:
        cure = f"Put shuffle(window='chunks') before {node.label}, or give a number: shuffle(window=4096)"
    return (
        "shuffle(window='chunks') takes elements together that begin in one chunk, and cannot tell which these are "
        f"after {step}. {cure}."
    )
