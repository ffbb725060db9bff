"""The loader survives Ctrl-C at every place of our code, where the consumer does the work itself."""

import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Literal

import numpy as np
import pytest

import penstock as ps
from penstock.run._span_schedule import SpanSchedule
from tests.waits import DEADLINE_S

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
    "arrays that threads copy": lambda: ps.range(COUNT + 1)[1:],
    "a list that threads read": lambda: ps.from_source([np.int64(number) for number in range(1, COUNT + 1)]),
    "a filter": lambda: ps.range(2 * COUNT).filter(lambda x: x % 2),
}


MORE_PLANS: dict[str, Callable[[], ps.Dataset]] = {
    "a filter of a filter": lambda: ps.range(4 * COUNT).filter(lambda x: x % 2).filter(lambda x: x % 4 == 1),
}
STRIDES = {"a filter": 3, "a generator and a function": 2}
"""Plans with so many places that not each is tried; a statement has several."""
PAIR_COUNT = 16


class Interrupt:
    """Raises KeyboardInterrupt at places where the interpreter looks for signals in penstock's code, and below it.

    Args:
        numbers: How many places go by before it strikes; then again, counted from there, and so on.
    """

    def __init__(self, *numbers: int) -> None:
        self._numbers = list(numbers)
        self._left = self._numbers.pop(0)
        self.place_count = 0
        self.struck = False
        """As often as it is to."""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        # At the beginning of a function, and when a call of C code returns.
        if self.struck or event not in ("call", "c_return") or not self._is_ours(frame.f_code.co_filename):
            return
        self.place_count += 1
        self._left -= 1
        if self._left < 0:
            self.struck = not self._numbers
            self._left = self._numbers.pop(0) if self._numbers else 0
            sys.setprofile(None)
            raise KeyboardInterrupt

    @staticmethod
    def _is_ours(path: str) -> bool:
        return "/penstock/" in path or path.endswith("/contextlib.py")


def interrupted(loader: Any, interrupt: Interrupt) -> tuple[list[Any], int]:
    """The batches of an epoch, and how many had come when Ctrl-C struck. Keeps tracebacks, as a notebook does."""
    batches, got, came = iter(loader), [], -1
    kept = []
    while True:
        sys.setprofile(None if interrupt.struck else interrupt)
        try:
            got.append(next(batches).tolist())
        except StopIteration:
            return got, came
        except KeyboardInterrupt as error:
            came = len(got)
            kept.append(error)
        finally:
            sys.setprofile(None)


def options(plan: str) -> dict[str, Any]:
    return {"executor": "auto" if "threads" in plan else "inline"}


@pytest.mark.parametrize("plan", PLANS)
def test_an_interrupt_anywhere_in_an_epoch_loses_no_more_than_the_batch_in_hand(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It follows from how long elements took, so that a place would be another in each run.
    issue = SpanSchedule.issue
    monkeypatch.setattr(SpanSchedule, "issue", lambda self, _: issue(self, 2))
    dataset = PLANS[plan]().batch(BATCH_SIZE)
    want = [batch.tolist() for batch in dataset]
    assert all(all(batch) for batch in want), "a zero is what an element that was left out looks like"
    place = 0
    while True:
        with dataset.loader(**options(plan), timeout_s=DEADLINE_S) as loader:
            interrupt = Interrupt(place)
            got, came = interrupted(loader, interrupt)
            after = whole_epoch(loader)
        assert got == want or (came >= 0 and got == want[:came] + want[came + 1 :]), (place, got)
        assert after == want, (place, after)
        if not interrupt.struck:
            break
        place += STRIDES.get(plan, 1)
    assert place > 50, "the interrupt was not where the work is"


@pytest.mark.parametrize("executor", ["threads", "auto", "inline"])
def test_an_interrupt_of_iter_loses_no_slot(executor: Literal["threads", "auto", "inline"]) -> None:
    dataset = ps.range(6 * BATCH_SIZE).batch(BATCH_SIZE)
    want = [batch.tolist() for batch in dataset]
    place = 0
    while True:
        with dataset.loader(executor, prefetch=1, timeout_s=DEADLINE_S) as loader:
            next(iter(loader))
            pipeline = loader._delivery
            assert pipeline is not None
            while executor == "threads" and len(pipeline.ring.free) + len(pipeline._scheduler._pending):
                time.sleep(0)  # all slots are to be ready: the others give themselves back
            interrupt = Interrupt(place)
            sys.setprofile(interrupt)
            try:
                iter(loader)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            assert [batch.tolist() for batch in loader] == want, place
        if not interrupt.struck:
            break
        place += 1
    assert place > 10, "the interrupt was not where the work is"


def test_an_interrupt_of_the_first_of_few_slots_costs_a_batch_at_most() -> None:
    dataset = ps.range(6 * BATCH_SIZE).batch(BATCH_SIZE)
    want = [batch.tolist() for batch in dataset]
    place = 0
    while True:
        with dataset.loader(prefetch=1, timeout_s=DEADLINE_S) as loader:
            batches = iter(loader)
            kept = [next(batches)]  # so that each slot is needed
            interrupt = Interrupt(place)
            sys.setprofile(interrupt)
            try:
                kept.append(next(batches))
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            kept += batches
            got = [batch.tolist() for batch in kept]
        assert got in (want, want[:1] + want[2:]), (place, got)
        if not interrupt.struck:
            break
        place += 1
    assert place > 10, "the interrupt was not where the work is"


def whole_epoch(loader: Any) -> list[Any]:
    """The batches of an epoch; a strike that came while the last batches were dropped comes with the next first."""
    for _ in range(2):
        try:
            return [batch.tolist() for batch in loader]
        except KeyboardInterrupt:
            pass
    return [batch.tolist() for batch in loader]


def struck_twice(loader: Any, interrupt: Interrupt) -> tuple[list[Any], list[int]]:
    """The batches of an epoch, and how many had come each time that Ctrl-C struck; it may strike `iter`, too."""
    batches: Any = None
    got: list[Any] = []
    came = []
    while True:
        sys.setprofile(interrupt)
        try:
            if batches is None:
                batches = iter(loader)
            else:
                got.append(next(batches).tolist())
        except StopIteration:
            return got, came
        except KeyboardInterrupt:
            if batches is not None:
                came.append(len(got))
        finally:
            sys.setprofile(None)


def without_some(want: list[Any], came: Sequence[int]) -> list[list[Any]]:
    """All that may be left of an epoch, if each strike lost the batch in hand, or did not."""
    found = []
    for lost in itertools.product((False, True), repeat=len(came)):
        gone = {one + sum(lost[:number]) for number, one in enumerate(came) if lost[number]}
        found.append([batch for index, batch in enumerate(want) if index not in gone])
    return found


@pytest.mark.parametrize("plan", [*PLANS, *MORE_PLANS])
def test_two_interrupts_in_an_epoch_lose_no_more_than_a_batch_each(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every pair of places would take hours. The second is near to the first in two of three pairs, and so in what
    # cleans up after it.
    issue = SpanSchedule.issue
    monkeypatch.setattr(SpanSchedule, "issue", lambda self, _: issue(self, 2))
    dataset = (PLANS | MORE_PLANS)[plan]().batch(BATCH_SIZE)
    want = [batch.tolist() for batch in dataset]
    with dataset.loader(**options(plan)) as loader:
        nowhere = Interrupt(sys.maxsize)
        assert struck_twice(loader, nowhere) == (want, [])
    rng = random.Random(plan)
    for _ in range(PAIR_COUNT):
        places = rng.randrange(nowhere.place_count), rng.randrange(rng.choice((10, 100, nowhere.place_count)))
        with dataset.loader(**options(plan), timeout_s=DEADLINE_S) as loader:
            got, came = struck_twice(loader, Interrupt(*places))
            after = whole_epoch(loader)
        assert got in without_some(want, came), (places, got, came)
        assert after == want, (places, after)
