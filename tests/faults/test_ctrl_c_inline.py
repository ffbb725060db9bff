"""Ctrl-C at every place of ours where it can strike a consumer that does the work itself: the loader goes on."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import penstock as ps

pytestmark = [
    pytest.mark.faults,
    # Python itself drops one that strikes a finalizer.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

COUNT = 24
BATCH_SIZE = 4


def numbers(count: int) -> Any:
    yield from range(count)


def doubled(x: Any) -> Any:
    return x * 2


PLANS: dict[str, Callable[[], ps.Dataset]] = {
    "random access": lambda: ps.range(COUNT).map(doubled),
    "a generator alone": lambda: ps.from_generator(numbers, COUNT),
    "a generator and a function": lambda: ps.from_generator(numbers, COUNT).map(doubled),
    "a filter": lambda: ps.range(2 * COUNT).filter(lambda x: x % 2),
}


class Interrupt:
    """Raises KeyboardInterrupt at the n-th place where the interpreter looks for signals in penstock's code."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.struck = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        # At the beginning of a function, and when a call of C code returns.
        if self.struck or event not in ("call", "c_return") or "/penstock/" not in frame.f_code.co_filename:
            return
        self._left -= 1
        if self._left < 0:
            self.struck = True
            sys.setprofile(None)
            raise KeyboardInterrupt


@pytest.mark.parametrize("plan", PLANS)
def test_an_interrupt_anywhere_in_next_loses_no_more_than_the_batch_in_hand(plan: str) -> None:
    dataset = PLANS[plan]().batch(BATCH_SIZE)
    want = [batch.tolist() for batch in dataset]
    place = 0
    while True:
        with dataset.loader(executor="inline", timeout_s=0.2) as loader:
            batches = iter(loader)
            got = [next(batches).tolist()]
            interrupt = Interrupt(place)
            sys.setprofile(interrupt)
            try:
                got.append(next(batches).tolist())
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            got += [batch.tolist() for batch in batches]
        assert got == want or (interrupt.struck and got == [*want[:1], *want[2:]]), (place, got)
        if not interrupt.struck:
            break
        place += 1
    assert place > 50, "the interrupt was not where the work is"
