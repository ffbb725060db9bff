"""Plans of every kind of step, small, for what must hold whatever the plan. Workers import this, and no pytest."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.dataset import Dataset
from penstock.functions._constructors import concatenate, from_arrays, interleave, range as range_of, zip as zip_of


def _frames() -> Dataset:
    return from_arrays(np.arange(60 * 4, dtype=np.float32).reshape(60, 2, 2))


def _noisy(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.normal(size=x.shape).astype(x.dtype)


PLANS: dict[str, Callable[[], Dataset]] = {
    "single elements": lambda: range_of(9),
    "shuffled batches": lambda: _frames().shuffle(seed=1).batch(8),
    "mapped twice": lambda: _frames().random_map(_noisy).random_map(_noisy).batch(7, drop_remainder=True),
    "mapped batches": lambda: _frames().batch(8).map(lambda x: {"x": x, "mean": x.mean((1, 2))}),
    "pairs of neighbours": lambda: zip_of((_frames()[:-1], _frames()[1:])).shuffle(2).batch(16),
    "windows in groups": lambda: _frames().windows(3, stride=2, groups=np.arange(60) // 11).shuffle(3).batch(4),
    "taken apart": lambda: _frames().batch(8).map(np.negative).unbatch().shuffle(4).batch(5),
    "rounds": lambda: _frames().shuffle(5).random_map(_noisy).repeat(2).batch(32),
    "mixed": lambda: concatenate([interleave([_frames(), _frames().map(np.negative)]), _frames()[::7]]).batch(9),
    "an input that is not given": lambda: zip_of(({"x": _frames(), "text": None}, range_of(60))).shuffle(6).batch(8),
    "cast": lambda: _frames().cast("uint8").batch(16).cast("float64"),
}
