"""The elements that each policy of `on_error` delivers from a shuffled dataset with bad elements."""

import functools

import penstock as ps

COUNT, BAD_COUNT, SIZE = 2_000, 200, 64
EXECUTORS = {"inline": 1, "threads": 4, "processes": 2}
"""Executors and their numbers of workers."""
SEED = 6


@functools.cache
def order() -> list[int]:
    """The elements of `shuffle(SEED)`."""
    return [int(x) for x in ps.range(COUNT).shuffle(seed=SEED)]


def cuts() -> list[list[int]]:
    """The elements of each batch when none is bad."""
    return [order()[start : start + SIZE] for start in range(0, COUNT, SIZE)]


def stood_in_for(bad: set[int]) -> list[list[int]]:
    """`replace`: the next good element of the batch."""
    return [[next(x for x in cut[row:] + cut[:row] if x not in bad) for row in range(len(cut))] for cut in cuts()]


def left_out(bad: set[int]) -> list[list[int]]:
    """`skip`: batches of the good elements."""
    rest = [x for x in order() if x not in bad]
    return [rest[start : start + SIZE] for start in range(0, len(rest), SIZE)]
