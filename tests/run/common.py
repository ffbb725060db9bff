"""What tests of running share: who is alive, and functions that wait where a test wants them."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.memory import _ring
from penstock.memory._mapping import MemoryFile
from tests.waits import DEADLINE_S

_there_before: set[threading.Thread] = set()
_rings_before: set[str] = set()


def begin() -> None:
    """Forgets the threads that are there now: of loaders that another test has left alive."""
    _there_before.clear()
    _there_before.update(workers())


def workers() -> list[threading.Thread]:
    """The threads of loaders that are alive."""
    threads = threading.enumerate()
    return [one for one in threads if one.name.startswith("penstock-") and one not in _there_before]


def name_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes rings of threads lie in memory files too, whose mappings can be told from others; forgets earlier ones."""
    _rings_before.clear()
    _rings_before.update(_rings())
    monkeypatch.setattr(_ring, "private", lambda nbytes: MemoryFile(nbytes).map())


def mapping_count() -> int:
    """How many rings in memory files are mapped, since `name_rings`."""
    return sum(ring not in _rings_before for ring in _rings())


def _rings() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[0] for line in lines if "memfd:penstock" in line]


def assert_ended(threads: list[threading.Thread]) -> None:
    """Waits for threads that were told to end."""
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)


class Gate:
    """A function for `map` that notes which elements came, in order, and holds some of them.

    Args:
        held: Elements, integers, that wait until `open`.
        then: What it returns, of the element.
    """

    def __init__(self, *held: int, then: Callable[[Any], Any] = lambda x: x) -> None:
        self._held = frozenset(held)
        self._then = then
        self._gate = threading.Event()
        self._changed = threading.Condition()
        self.seen: list[int] = []

    def __call__(self, x: Any) -> Any:
        with self._changed:
            self.seen.append(int(x))
            self._changed.notify_all()
        if int(x) in self._held and not self._gate.wait(DEADLINE_S):
            raise TimeoutError(f"the gate at element {x} was not opened")
        return self._then(x)

    def open(self) -> None:
        """Lets the held ones go on, now and later."""
        self._gate.set()

    def wait_for(self, *elements: int) -> None:
        """Waits until these elements came."""
        with self._changed:
            assert self._changed.wait_for(lambda: set(elements) <= set(self.seen), DEADLINE_S), self.seen


def interrupted_at(step: int, call: Any) -> bool:
    """Calls with a KeyboardInterrupt at the `step`-th place where Python looks for signals; whether it came.

    Those are the beginning of a Python function and the return of a C function.
    """
    left = step

    def strike(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        # What a callback of a weak reference raises, Python drops.
        if event in ("call", "c_return") and frame.f_code.co_name != "return_slot":
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(strike)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
