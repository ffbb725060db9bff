"""The permutation of the engine against its definition in NumPy, up to the largest range."""

import math

import numpy as np
import pytest

from penstock import native
from penstock.native import _numpy


@pytest.mark.parametrize(
    "n", [257, 4097, 2**31 - 1, 2**31, 2**40 + 7, 2**53 + 1, 2**60, 2**61 + 12345, (2**31 - 1) ** 2, 2**62 - 1]
)
@pytest.mark.parametrize("is_one", [True, False])
def test_the_engine_permutes_as_numpy_does(n: int, *, is_one: bool) -> None:
    rng = np.random.default_rng(n)
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    borders = rng.integers(1, a - 1, 200)[:, None] * b + np.arange(-1, 2)  # quotients that rounding could miss
    values = np.concatenate([rng.integers(0, n, 1_000), borders.ravel(), [0, n - 1]])
    values = values[values < n].astype(np.uint64)
    rounds = rng.integers(0, 2**63, 20).astype(np.uint64) | np.uint64(1)
    tweaks = rng.integers(0, 2**63, 1 if is_one else len(values)).astype(np.uint64)
    expected = values.copy()
    _numpy.permute_now(expected, n, a, b, tweaks, rounds)
    native.permute(values, n, a, b, tweaks, rounds)
    assert np.array_equal(values, expected)


@pytest.mark.parametrize("ends", [[1], [1024], [0, 3, 3, 1024], [4, 100], [1000, 4095, 4096], list(range(1, 1025))])
def test_the_engine_deals_cards_as_numpy_does(ends: list[int]) -> None:
    rng = np.random.default_rng(len(ends))
    orders = np.repeat(rng.integers(0, 2**64 - 1, (60, 2), np.uint64, endpoint=True), rng.integers(1, 30, 60), axis=0)
    places = rng.integers(0, ends[-1], len(orders))
    kinds, expected = places.copy(), places.copy()
    before, expected_before = np.empty_like(places), np.empty_like(places)
    _numpy.deal(orders, expected, np.array(ends), expected_before)
    native.deal(orders, kinds, np.array(ends), before)
    assert np.array_equal(kinds, expected)
    assert np.array_equal(before, expected_before)
