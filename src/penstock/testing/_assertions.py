"""Assertions about elements, specs, resumed runs, and leftover processes."""

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.base import _tree
from penstock.base._spec import Spec, leaf_of, spec_of_leaf
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.report._memory import worker_pids

STATE_NBYTES = 500
"""A state, as JSON, is smaller than this."""


def assert_same(element: Tree, expected: Tree) -> None:
    """Asserts that two elements have one structure and leaves of the same dtype, shape and bits.

    A NumPy scalar and an array of shape `()` are the same; a NaN is the same as a NaN of the same bits.
    """
    leaves, structure = _tree.flatten(element)
    wanted, wanted_structure = _tree.flatten(expected)
    assert structure == wanted_structure, f"the structure is {structure}, not {wanted_structure}"
    for place, leaf, want in zip(_tree.paths(structure), leaves, wanted, strict=True):
        _assert_same_leaf(leaf, want, f"element{place}")


def _assert_same_leaf(leaf: Any, want: Any, name: str) -> None:
    found, want = np.asarray(leaf), np.asarray(want)
    assert found.dtype == want.dtype, f"{name} has dtype {found.dtype}, not {want.dtype}"
    assert found.shape == want.shape, f"{name} has shape {found.shape}, not {want.shape}"
    if found.dtype.hasobject:  # text or ragged leaves of several elements
        for row, (value, wanted) in enumerate(zip(found.ravel(), want.ravel(), strict=True)):
            kind = next((each for each in (str, bytes, np.ndarray) if isinstance(wanted, each)), type(wanted))
            text = f"{name}[{row}] is {value!r:.80}"
            assert isinstance(value, kind), f"{text}, of type {type(value).__name__}, not {kind.__name__}"
            if isinstance(wanted, np.ndarray):
                _assert_same_leaf(value, wanted, f"{name}[{row}]")
            else:
                assert value == wanted, f"{text}, not {wanted!r:.80}"
    elif found.tobytes() != want.tobytes():
        np.testing.assert_array_equal(found, want, err_msg=name)
        raise AssertionError(f"{name} is equal, but not to the bit")


def assert_fits(element: Tree, element_spec: Tree) -> None:
    """Asserts that an element has the structure, shapes and dtypes of an `element_spec`."""
    leaves, structure = _tree.flatten(element)
    spec = Spec.of(element_spec)
    assert structure == spec.structure, f"the structure is {structure}, not {spec.structure}"
    for leaf, want in zip(leaves, spec.leaves, strict=True):
        if isinstance(leaf, np.generic) and want.dtype.itemsize:
            # A scalar has lost the padding of its text and the order of its bytes.
            leaf = np.asarray(leaf).astype(want.dtype, casting="safe")
        found = spec_of_leaf(leaf_of(leaf))
        shape = [size or 0 for size in found.shape]
        assert want.admits(shape, found.dtype), f"a leaf is {found}, and its spec {want}"


def copied(element: Tree) -> Tree:
    """An element with memory of its own, for looking at after its slot has come back."""
    leaves, structure = _tree.flatten(element)
    return structure.unflatten([np.array(leaf) for leaf in leaves])


def row_of(arrays: Tree, index: Any) -> Tree:
    """The row, or rows, of every array of a tree."""
    leaves, structure = _tree.flatten(arrays)
    return structure.unflatten([leaf[index] for leaf in leaves])


Run = tuple[str, int]
"""An executor and its number of workers."""


def assert_resumes_exactly(
    dataset: Dataset,
    *,
    executors: Sequence[Run] = (("inline", 1), ("threads", 1), ("threads", 3)),
    epochs: int = 2,
    cuts: int | None = None,
    limit: int = 64,
    **loader_options: Any,
) -> None:
    """Asserts that a run resumed at any position delivers its rest, equal to the bit.

    One run is not interrupted. It uses the first executor. For each cut, its state goes through JSON into a new
    loader, each time on the next of the executors. The test compares its batches until the end of the next epoch.

    Args:
        dataset: Any dataset. Its elements are delivered `epochs` times.
        executors: Pairs of executor and number of workers.
        epochs: Epochs of the uninterrupted run.
        cuts: The number of positions to cut at, evenly spaced. None for all.
        limit: The most elements of an endless epoch.
        loader_options: More options of `Dataset.loader`.
    """

    def load(run: Run) -> Any:
        return dataset.loader(executor=run[0], workers=run[1], **loader_options)  # type: ignore[arg-type]

    is_finite = isinstance(dataset.length, int)
    count = int(dataset.length or 0) if is_finite else int(min(dataset.length or 0, limit))
    whole: list[tuple[dict[str, Any], Tree]] = []
    with load(executors[0]) as loader:
        for _ in range(epochs if is_finite else 1):
            iterator = iter(loader)
            whole += [(loader.get_state(), copied(next(iterator))) for _ in range(count)]
    positions = range(len(whole))
    if cuts is not None and cuts < len(whole):
        positions = np.linspace(0, len(whole) - 1, cuts).round().astype(int).tolist()
    for cut, run in zip(positions, itertools.cycle(executors), strict=False):
        text = json.dumps(whole[cut][0])
        assert len(text.encode()) < STATE_NBYTES, f"the state takes {len(text.encode())} bytes: {text}"
        at, stop = cut, min(len(whole), (cut // count + 2) * count)
        with load(run) as loader:
            loader.set_state(json.loads(text))
            while at < stop:
                for element in itertools.islice(loader, stop - at):
                    assert_same(element, whole[at][1])
                    at += 1
                    assert at == len(whole) or loader.get_state() == whole[at][0]


def assert_kept_batches_stay(
    batches: Iterable[Any], close: Callable[[], None], view: Callable[[Any], Tree] = lambda batch: batch
) -> None:
    """Asserts that batches that are kept, some for a while and some beyond `close`, never change.

    Args:
        batches: All batches, one after the other.
        close: Closes what gives them.
        view: Makes arrays of a kept batch.
    """
    dice = np.random.default_rng(0)
    kept: list[tuple[Any, Tree]] = []
    for batch in batches:
        if dice.random() < 0.4:
            kept.append((batch, copied(view(batch))))
        if kept and dice.random() < 0.3:
            kept.pop(dice.integers(len(kept)))
        del batch
        for mine, copy in kept:
            assert_same(view(mine), copy)
    close()
    for mine, copy in kept:
        assert_same(view(mine), copy)


@contextlib.contextmanager
def leaves_no_worker() -> Iterator[None]:
    """Asserts that no thread and no process is left that was started in the block. Linux."""
    threads, children = set(threading.enumerate()), child_processes()
    yield
    assert set(threading.enumerate()) <= threads
    assert child_processes() <= children


def child_processes() -> set[int]:
    """Returns the processes that this one started and that are alive, or dead and not yet waited for. Linux."""
    return set(worker_pids())
