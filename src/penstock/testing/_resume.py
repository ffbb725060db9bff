"""The promise of a checkpoint: a run that is cut anywhere goes on as if it had not been."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock._dataset import Dataset
from penstock.base._tree import Tree
from penstock.testing._compare import assert_same, copied

STATE_NBYTES = 500
"""A state, as JSON, is smaller than this."""

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
    """Asserts that a run resumed at any position delivers the rest of it, equal to the bit.

    One run is uninterrupted, on the first executor. For each cut its state goes through JSON into a new loader,
    each time on the next of the executors, and what that delivers is compared until the end of the next epoch.

    Args:
        dataset: Anything that can be loaded; its elements are delivered `epochs` times.
        executors: Pairs of executor and number of workers.
        epochs: Epochs that the uninterrupted run has.
        cuts: How many positions to cut at, evenly spaced; None for all of them.
        limit: The most elements taken from an epoch without an end.
        loader_options: More options of `Dataset.loader`.
    """
    whole: list[tuple[dict[str, Any], Tree]] = []
    count = min(dataset.length or 0, limit) if not isinstance(dataset.length, int) else dataset.length
    with _loader(dataset, executors[0], loader_options) as loader:
        for _ in range(epochs if isinstance(dataset.length, int) else 1):
            iterator = iter(loader)
            for _ in range(int(count)):
                state = loader.get_state()
                whole.append((state, copied(next(iterator))))
    positions = range(len(whole))
    if cuts is not None and cuts < len(whole):
        positions = np.linspace(0, len(whole) - 1, cuts).round().astype(int).tolist()
    for cut, run in zip(positions, itertools.cycle(executors), strict=False):
        text = json.dumps(whole[cut][0])
        assert len(text.encode()) < STATE_NBYTES, f"the state takes {len(text.encode())} bytes: {text}"
        stop = min(len(whole), (cut // int(count) + 2) * int(count))
        with _loader(dataset, run, loader_options) as loader:
            loader.set_state(json.loads(text))
            at = cut
            while at < stop:
                for element in itertools.islice(loader, stop - at):
                    assert loader.get_state() == _state_after(whole, at, loader.get_state())
                    assert_same(element, whole[at][1])
                    at += 1


def _loader(dataset: Dataset, run: Run, options: dict[str, Any]) -> Any:
    executor, workers = run
    return dataset.loader(executor=executor, workers=workers, **options)  # type: ignore[arg-type]


def _state_after(whole: list[tuple[dict[str, Any], Tree]], at: int, last: dict[str, Any]) -> dict[str, Any]:
    """The state before the next element; of the last one, nothing is known to compare with."""
    return whole[at + 1][0] if at + 1 < len(whole) else last
