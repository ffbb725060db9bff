"""What each policy of `on_error` delivers of 10,000 elements in a shuffled order, of which some are bad."""

import functools

import penstock as ps

COUNT, BAD_COUNT, SIZE = 10_000, 1_000, 64
EXECUTORS = {"inline": 1, "threads": 4, "processes": 2}
"""And their numbers of workers."""
SEED = 6


@functools.cache
def order() -> list[int]:
    """The elements of `shuffle(SEED)`."""
    return [int(x) for x in ps.range(COUNT).shuffle(seed=SEED)]


def cuts() -> list[list[int]]:
    """The elements of its batches of `SIZE`, if none is bad."""
    return [order()[start : start + SIZE] for start in range(0, COUNT, SIZE)]


def stood_in_for(bad: set[int]) -> list[list[int]]:
    """With `replace`: the next of the batch that is well."""
    return [[next(x for x in cut[row:] + cut[:row] if x not in bad) for row in range(len(cut))] for cut in cuts()]


def left_out(bad: set[int]) -> list[list[int]]:
    """With `skip`: batches of those that are well."""
    rest = [x for x in order() if x not in bad]
    return [rest[start : start + SIZE] for start in range(0, len(rest), SIZE)]
