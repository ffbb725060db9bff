"""How elements are laid into rows: the implementations agree, and rows are those of a plain loop."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock import native
from tests.native.engines import MODULES

FITS = (native.NEXT, native.FIRST, native.BEST)


def fitted(sizes, capacity, fit):
    """The rows in plain Python."""
    room, rows = [], []
    for size in sizes:
        fits = [row for row, left in enumerate(room) if all(n <= m for n, m in zip(size, left, strict=True))]
        if fit == native.NEXT:
            fits = [row for row in fits if row == len(room) - 1]
        if fit == native.BEST:  # with the least room of the first kind
            fits.sort(key=lambda row: room[row][0])
        row = fits[0] if fits else len(room)
        if not fits:
            room.append(list(capacity))
        room[row] = [have - take for have, take in zip(room[row], size, strict=True)]
        rows.append(row)
    return rows, room


@st.composite
def elements(draw):
    kinds = draw(st.integers(1, 3))
    capacity = draw(st.lists(st.integers(1, 70), min_size=kinds, max_size=kinds))
    size = st.tuples(*(st.integers(0, most) for most in capacity))
    return draw(st.lists(size, max_size=40)), capacity


def arrays(sizes, capacity):
    table = np.array(sizes, np.uint32).reshape(len(sizes), len(capacity))
    return np.ascontiguousarray(table.T), np.array(capacity, np.uint32)


@given(elements(), st.sampled_from(FITS))
def test_rows_are_those_of_a_plain_loop(given_, fit):
    sizes, capacity = given_
    want, room = fitted(sizes, capacity, fit)
    found = []
    for module in MODULES.values():
        rows = np.empty(len(sizes), np.uint32)
        table, limits = arrays(sizes, capacity)
        found.append((module.fit_rows(table, limits, rows, fit), rows.tolist()))
    assert all(each == found[0] for each in found)
    if fit != native.BEST:
        assert found[0] == (len(room), want)
    used = [[sum(sizes[i][kind] for i, row in enumerate(found[0][1]) if row == k) for k in range(found[0][0])]
            for kind in range(len(capacity))]  # fmt: skip
    assert all(max(each, default=0) <= limit for each, limit in zip(used, capacity, strict=True))
    assert set(found[0][1]) == set(range(found[0][0]))


@given(st.lists(st.integers(0, 50), max_size=60))
def test_best_fit_leaves_the_least_room(sizes):
    rows = np.empty(len(sizes), np.uint32)
    native.fit_rows(np.array(sizes, np.uint32), np.array([50], np.uint32), rows, native.BEST)
    room = []
    for size, row in zip(sizes, rows.tolist(), strict=True):
        left = [have - size for have in room if have >= size]
        if row == len(room):
            assert not left
            room.append(50)
        room[row] -= size
        assert not left or room[row] == min(left)


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 5), max_size=60), st.integers(0, 31))
def test_the_order_of_keys_is_stable(keys, bits):
    keys = np.array(keys, np.uint32) >> bits  # one digit, two or three
    for module in MODULES.values():
        places = np.empty(len(keys), np.int64)
        module.order_keys(keys, places)
        assert places.tolist() == sorted(range(len(keys)), key=keys.tolist().__getitem__)


@pytest.mark.parametrize("fit", [native.FIRST, native.BEST], ids=["first", "best"])
@pytest.mark.parametrize("most", [3, 300, 5000, native.MOST_CAPACITY])
def test_many_rows_are_those_of_a_plain_loop(most, fit):
    if native.implementation() == "numpy":
        pytest.skip("it is the loop")
    sizes = np.random.default_rng(most).integers(most // 5, most + 1, 700, dtype=np.uint32)
    found = [np.empty(len(sizes), np.uint32) for _ in MODULES]
    limits = np.array([most], np.uint32)
    counts = {module.fit_rows(sizes, limits, rows, fit) for module, rows in zip(MODULES.values(), found, strict=True)}
    assert len(counts) == 1
    np.testing.assert_array_equal(*found)


@given(elements(), st.booleans(), st.integers(1, 50), st.integers(0, 9))
def test_elements_trade_places_only_where_both_fit(given_, is_sum, window, seed):
    sizes, capacity = given_
    start, left = fitted(sizes, capacity, native.FIRST)
    most = [[max((sizes[i][k] for i, row in enumerate(start) if row == r), default=0) + 3 for k in range(len(capacity))]
            for r in range(len(left))]  # fmt: skip
    words = np.random.default_rng(seed).integers(0, 2**32, len(sizes), dtype=np.uint32)
    found = []
    for module in MODULES.values():
        rows, room = (
            np.array(start, np.uint32),
            np.array(left if is_sum else most, np.int64).reshape(-1, len(capacity)).T.copy(),
        )
        module.trade_rows(arrays(sizes, capacity)[0], rows, room, is_sum, window, words)
        found.append((rows.tolist(), room.tolist()))
    assert all(each == found[0] for each in found)
    rows, room = found[0]
    assert sorted(rows) == sorted(start)
    for kind, limit in enumerate(capacity):
        for row in range(len(left)):
            mine = [sizes[i][kind] for i, each in enumerate(rows) if each == row]
            if is_sum:
                assert sum(mine) + room[kind][row] == limit
            else:
                assert max(mine, default=0) <= most[row][kind]


def test_equal_elements_trade_places_freely():
    rows = np.repeat(np.arange(100, dtype=np.uint32), 10)
    before, words = rows.copy(), np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    native.trade_rows(np.ones(1000, np.uint32), rows, np.zeros((1, 100), np.int64), True, 500, words)
    assert (rows != before).mean() > 0.9
    assert (np.bincount(rows) == 10).all()


@pytest.mark.parametrize("implementation", MODULES.values(), ids=MODULES)
def test_best_fit_looks_further_than_the_rows_with_the_least_room(implementation):
    # Rows that have room of the first kind, and little of the second.
    sizes = np.array([[1] * 300 + [1], [5] * 300 + [1]], np.uint32)
    rows = np.empty(301, np.uint32)
    assert implementation.fit_rows(sizes, np.array([9, 5], np.uint32), rows, native.BEST) == 301
    for fit in (
        native.FIRST,
        native.BEST,
    ):  # none of the 256 rows with the least room has it in both kinds, another has
        assert implementation.fit_rows(sizes, np.array([9, 6], np.uint32), rows, fit) == 300


@given(elements())
def test_best_fit_begins_no_row_while_another_has_room(given_):
    sizes, capacity = given_
    table, limits = arrays(sizes, capacity)
    rows, room = np.empty(len(sizes), np.uint32), []
    native.fit_rows(table, limits, rows, native.BEST)
    for size, row in zip(sizes, rows.tolist(), strict=True):
        if row == len(room):
            assert not any(all(n <= have for n, have in zip(size, each, strict=True)) for each in room)
            room.append(capacity)
        room[row] = [have - n for have, n in zip(room[row], size, strict=True)]


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("kind", ["uniform", "skewed", "alike", "opposed", "three"])
def test_best_fit_of_several_kinds_is_about_as_full_as_first_fit(kind, is_sorted):
    rng, count, most = np.random.default_rng(5), 20_000, 512
    one = rng.integers(1, most, count)
    sizes = {
        "uniform": rng.integers(1, 300, (2, count)),
        "skewed": np.minimum(rng.pareto(1.2, (2, count)) * 20 + 1, most),
        "alike": np.stack([one, np.minimum(one + rng.integers(0, 50, count), most)]),
        "opposed": np.stack([one // 8, (most - one) // 8]),
        "three": rng.integers(1, 200, (3, count)),
    }[kind].astype(np.uint32)
    if is_sorted:
        sizes = sizes[:, np.argsort(-sizes.max(axis=0).astype(int), kind="stable")]
    sizes, capacity = np.ascontiguousarray(sizes), np.full(len(sizes), most, np.uint32)
    first, best = (native.fit_rows(sizes, capacity, np.empty(count, np.uint32), fit) for fit in FITS[1:])
    assert best <= 1.02 * first
