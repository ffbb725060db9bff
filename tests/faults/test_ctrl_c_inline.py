"""Ctrl-C at every place of ours where it can strike a consumer that does the work itself: the loader goes on."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import penstock as ps
from penstock._run._feed import Feed

pytestmark = [
    pytest.mark.faults,
    # Python itself drops one that strikes a finalizer.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

COUNT = 3
BATCH_SIZE = 2


def numbers(count: int) -> Any:
    yield from range(1, count + 1)


def doubled(x: Any) -> Any:
    return x * 2


PLANS: dict[str, Callable[[], ps.Dataset]] = {
    "random access": lambda: ps.range(COUNT + 1)[1:].map(doubled),
    "a generator alone": lambda: ps.from_generator(numbers, COUNT),
    "a generator without a rest": lambda: ps.from_generator(numbers, COUNT + 1),
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
        if frame.f_code.co_name == "_alone":  # also told where throw() enters a generator, and no signal is looked for
            return
        self._left -= 1
        if self._left < 0:
            self.struck = True
            sys.setprofile(None)
            raise KeyboardInterrupt


def interrupted(loader: Any, interrupt: Interrupt) -> tuple[list[Any], int]:
    """The batches of an epoch, and how many had come when Ctrl-C struck."""
    batches, got, came = iter(loader), [], -1
    while True:
        sys.setprofile(None if interrupt.struck else interrupt)
        try:
            got.append(next(batches).tolist())
        except StopIteration:
            return got, came
        except KeyboardInterrupt:
            came = len(got)
        finally:
            sys.setprofile(None)


@pytest.mark.parametrize("plan", PLANS)
def test_an_interrupt_anywhere_in_an_epoch_loses_no_more_than_the_batch_in_hand(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It follows from how long elements took, so that a place would be another in each run.
    monkeypatch.setattr(Feed, "_unit_rows", lambda self: 2)
    dataset = PLANS[plan]().batch(BATCH_SIZE)
    want = [batch.tolist() for batch in dataset]
    assert all(all(batch) for batch in want), "a zero is what an element that was left out looks like"
    place = 0
    while True:
        with dataset.loader(executor="inline", timeout_s=0.2) as loader:
            interrupt = Interrupt(place)
            got, came = interrupted(loader, interrupt)
            after = [batch.tolist() for batch in loader]
        assert got == want or (came >= 0 and got == want[:came] + want[came + 1 :]), (place, got)
        assert after == want, (place, after)
        if not interrupt.struck:
            break
        place += 1
    assert place > 50, "the interrupt was not where the work is"
