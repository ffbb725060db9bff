"""`sample`: draws by weights and by class."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.plan._cautions import caution_missing
from penstock.plan._node import Node
from penstock.plan._sample import Sample, Weights, as_weights, by_class
from penstock.verbs._asked import integer, require_finite, require_random
from penstock.verbs._labels import Labels, labels_of


def sample(
    node: Node,
    weights: Labels | None,
    balance: Labels | None,
    per_class: int | Mapping[Any, int] | None,
    class_count: int | None,
    seed: int,
    replacement: bool,
    count: int | None,
) -> Node:
    """The draws from a plan; see `Dataset.sample`."""
    require_random(node, "sample()", "Let filter() with a random choice leave elements out of it")
    require_finite(node, "sample", "Use take(n) first.")
    seed = integer("sample", "seed", seed)
    wanted = None if count is None else integer("sample", "count", count)
    if (weights is None) == (balance is None):
        raise ArgumentError("sample() draws by weights, sample(weights), or by class, sample(balance=labels).")
    if balance is None:
        assert weights is not None
        if per_class is not None or class_count is not None:
            raise ArgumentError("sample(per_class=, class_count=) are for sample(balance=labels).")
        values = as_weights(labels_of(node, "sample(weights=...)", weights))
    else:
        labels = labels_of(node, "sample(balance=...)", balance)
        if not isinstance(per_class, Mapping) or -1 in per_class:
            caution_missing(node, labels)
        if per_class is not None:
            if not replacement:
                raise ArgumentError(
                    "sample(per_class=, replacement=False): a class that has no element left begins again, or "
                    "groups would not be full. Leave replacement out."
                )
            return by_class(node, labels, per_class, class_count, seed, wanted)
        if class_count is not None:
            raise ArgumentError("sample(class_count=) needs the number of elements of each: per_class=.")
        _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
        values = (1 / counts)[inverse.ravel()]
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise ArgumentError("sample(weights): weights are finite, none below 0, and not all 0.")
    most = len(values) if replacement else int(np.count_nonzero(values))
    number = most if wanted is None else wanted
    if not replacement and number > most:
        raise ArgumentError(
            f"sample(count={number}, replacement=False): only {most} elements have a weight. Draw fewer, or with "
            "replacement."
        )
    return Sample(node, seed, number, Weights(values), bool(replacement))
