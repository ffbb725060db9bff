"""Runs a program's batches on 1, 2 and 3 ranks, and goes on from a state of one number of ranks with another."""

import hashlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.base import _tree
from penstock.base._tree import Tree
from penstock.dataset import Dataset

RANKS = (1, 2, 3)


def on_ranks(make: Callable[[], Dataset], *, whole_batches: bool = True) -> list[Tree]:
    """Compares what all numbers of ranks get, byte by byte, over two epochs. Each rank makes the dataset for itself.

    Args:
        make: Makes the dataset.
        whole_batches: Whether ranks take batches in turn; otherwise each takes its share of the rows of every batch.

    Returns:
        The batches of the first epoch.
    """
    ds = make()
    with ds.loader("threads", workers=2, shard=(0, 1)) as loader:
        epochs = [list(loader) for _ in range(2)]
    wanted = [[digest(batch) for batch in epoch] for epoch in epochs]
    assert len(wanted[0]) == len(ds) >= 6
    for before, after in itertools.permutations(RANKS, 2):
        _go_on(make, before, after, wanted, whole_batches)
    return epochs[0]


def _go_on(make: Callable[[], Dataset], before: int, after: int, wanted: list[list[str]], whole_batches: bool) -> None:
    """Takes a step on some ranks, and the rest of that epoch and the next one on others."""
    state, begin = None, 0
    for count, most in [(before, 1), (after, None)]:
        loaders = [make().loader("inline", shard=(rank, count), whole_batches=whole_batches) for rank in range(count)]
        for loader in loaders:
            if state is not None:
                loader.set_state(json.loads(state))
        for epoch in wanted[: 1 if most else 2]:
            mine = [list(itertools.islice(loader, most)) for loader in loaders]
            steps = list(zip(*mine, strict=True))  # each rank makes the same number of steps
            found = [digest(batch) for step in steps for batch in (step if whole_batches else [joined(step)])]
            left = epoch[begin:]
            group = count if whole_batches else 1
            assert found == left[: most * group if most else len(left) // group * group]
            begin = len(found) if most else 0
        states = {json.dumps(loader.get_state()) for loader in loaders}
        assert len(states) == 1
        state = states.pop()
        for loader in loaders:
            loader.close()


def joined(shares: tuple[Tree, ...]) -> Tree:
    """Puts the rows of a batch together again."""
    columns = zip(*(_tree.flatten(share)[0] for share in shares), strict=True)
    return _tree.flatten(shares[0])[1].unflatten([np.concatenate(column) for column in columns])


def digest(batch: Tree) -> str:
    """Reduces a batch to a word that depends on each byte, dtype and shape."""
    found = hashlib.sha1()
    for leaf in map(np.asarray, _tree.flatten(batch)[0]):
        found.update(f"{leaf.dtype} {leaf.shape} ".encode() + (leaf.tobytes() if leaf.dtype.itemsize else b""))
        if leaf.dtype.kind in "UTSO":
            found.update(repr(leaf.tolist()).encode())
    return found.hexdigest()


def runs(ragged: Any) -> list[Any]:
    """Takes the elements of a ragged leaf apart."""
    values, offsets = ragged
    return [values[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
