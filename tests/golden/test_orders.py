"""The order of a seed is a promise: a run that is resumed on another machine or version goes on in it.

`orders.json` holds it. To change an order is a decision; then run `python tests/golden/test_orders.py`, which
writes the file anew, and say so in the changelog.
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.base._random import ElementRng, local_permute, permute, permute_each, seeded_globals

GOLDEN = Path(__file__).with_name("orders.json")

# (n, seed, epoch, window); window None is the full shuffle.
ORDERS: list[tuple[int, int, int, int | None]] = [
    (1, 0, 0, None),
    (10, 0, 0, None),
    (10, 0, 1, None),
    (1000, -7, 3, None),
    (4096, 1, 0, None),
    (4097, 1, 0, None),
    (12_000, 1, 0, None),
    (12_000, 1, 1, None),
    (65_536, 2**70, 0, None),
    (1_000_003, 42, 5, None),
    (10**12, 0, 0, None),
    (10**12, 1, 49, None),
    (2**62 - 1, 1, 0, None),
    (10, 0, 0, 4),
    (1000, 3, 0, 64),
    (1000, 3, 1, 64),
    (10_000, 3, 0, 3000),
    (10_000, 3, 0, 4999),
    (1_000_003, 3, 2, 100_000),
    (10**12, 3, 0, 4096),
    (10**12, 3, 0, 10**9),
]
# (seed, epoch) of several short orders; (number, length) of each.
SHORT: list[tuple[int, int]] = [(0, 0), (0, 1), (2**70, 0), (-7, 3)]
LENGTHS = [(0, 1), (1, 2), (2, 5), (3, 64), (2**40, 64), (4, 65), (5, 1000), (6, 2**61)]
# Each is a seed, a depth, an epoch and an index.
ELEMENTS: list[tuple[int, int, int, int]] = [(0, 0, 0, 0), (1, 0, 0, 0), (1, 2, 3, 4), (-1, 0, 9, 10**12)]


def positions_of(n: int) -> np.ndarray:
    """The first, some in the middle across the border of a block, and the last."""
    middle = n // 2 // 4096 * 4096
    wanted = [*range(12), *range(middle - 3, middle + 3), *range(n - 3, n)]
    return np.array(sorted({p for p in wanted if 0 <= p < n}), np.int64)


def order_of(n: int, seed: int, epoch: int, window: int | None) -> list[int]:
    positions = positions_of(n)
    if window is None:
        return permute(positions, n, seed=seed, epoch=epoch).tolist()
    return local_permute(positions, n, seed=seed, epoch=epoch, window=window).tolist()


def short_orders_of(seed: int, epoch: int) -> list[int]:
    """The images of the first five positions of each order, fewer if it is shorter."""
    wanted = [(place, size, number) for number, size in LENGTHS for place in range(min(5, size))]
    places, sizes, numbers = np.array(wanted, np.int64).T
    return permute_each(places, sizes, numbers, seed=seed, epoch=epoch).tolist()


def words_of(seed: int, depth: int, epoch: int, index: int) -> dict[str, list[int]]:
    """Raw words of the element's generator and of both globals; distributions on them are NumPy's to keep."""
    raw = ElementRng(seed, depth).at(epoch, index).bit_generator.random_raw(3)
    with seeded_globals() as globals_:
        globals_.seed(seed, depth, epoch, index)
        numpy_words = np.random.randint(0, 2**32, 3, np.uint32)
        python_words = [random.getrandbits(32) for _ in range(3)]
    return {"rng": raw.tolist(), "numpy": numpy_words.tolist(), "random": python_words}


def computed() -> dict[str, list[dict[str, Any]]]:
    """Returns the content of the file, computed now."""
    return {
        "orders": [
            {"n": n, "seed": seed, "epoch": epoch, "window": window, "at": positions_of(n).tolist()}
            | {"indices": order_of(n, seed, epoch, window)}
            for n, seed, epoch, window in ORDERS
        ],
        "short": [{"seed": seed, "epoch": epoch, "indices": short_orders_of(seed, epoch)} for seed, epoch in SHORT],
        "elements": [
            {"seed": seed, "depth": depth, "epoch": epoch, "index": index} | words_of(seed, depth, epoch, index)
            for seed, depth, epoch, index in ELEMENTS
        ],
    }


@pytest.mark.parametrize("kind", ["orders", "short", "elements"])
def test_orders_and_streams_are_those_of_the_golden_file(kind: str) -> None:
    golden = json.loads(GOLDEN.read_text())[kind]
    now = computed()[kind]
    assert len(golden) == len(now)
    for then, entry in zip(golden, now, strict=True):
        assert entry == then


if __name__ == "__main__":
    groups = []
    for kind, entries in computed().items():
        lines = ",\n  ".join(json.dumps(entry) for entry in entries)
        groups.append(f'"{kind}": [\n  {lines}\n]')
    GOLDEN.write_text("{" + ",\n".join(groups) + "}\n")
