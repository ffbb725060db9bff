import weakref

import numpy as np

from penstock.image._scratch import KEPT_NBYTES, scratch


def test_memory_is_used_again_whatever_is_made_of_it() -> None:
    large = scratch("again", (30, 20, 3), np.uint8)
    assert np.shares_memory(scratch("again", (30, 20, 3), np.uint8), large)
    for shape, dtype in (((20, 30, 3), np.uint8), ((5, 5), np.float32), ((30, 20, 3), np.uint8)):
        array = scratch("again", shape, dtype)
        assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, dtype, True)
        assert np.shares_memory(array, large)
    assert not np.shares_memory(scratch("another", (30, 20, 3), np.uint8), large)


def test_memory_that_was_too_small_is_let_go() -> None:
    small = scratch("grows", (10,), np.uint8)
    gone = weakref.ref(small)
    array = scratch("grows", (11,), np.uint8)
    assert not np.shares_memory(array, small)
    assert np.shares_memory(scratch("grows", (10,), np.uint8), array)
    del small
    assert gone() is None


def test_much_memory_is_not_kept() -> None:
    kept = scratch("much", (KEPT_NBYTES,), np.uint8)
    more = scratch("much", (KEPT_NBYTES + 1,), np.uint8)
    assert not np.shares_memory(more, kept)
    assert scratch("much", (KEPT_NBYTES + 1,), np.uint8) is not more
    assert np.shares_memory(scratch("much", (KEPT_NBYTES,), np.uint8), kept)
