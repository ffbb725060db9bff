"""What the loaders of this process share while they live: the pool of worker processes, and fleets of agents on Ray."""

import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, final


class Shared(Protocol):
    """An object that ends with its last client."""

    client_count: int
    """1 at first. Guarded by the registry."""


S = TypeVar("S", bound=Shared)


@final
class Registry(Generic[S]):
    """The objects that new clients may join, by key. Each counts its clients."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """After fork(): the child has none of the threads, neither the one that held the lock."""
        self._lock = threading.Lock()
        self._entries: dict[str, S] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def join(self, make: Callable[[], S], key: str = "") -> S:
        """Returns the object of a key, which has one more client; `make` makes it."""
        with self._lock:
            if (found := self._entries.get(key)) is None:
                found = self._entries[key] = make()
            else:
                found.client_count += 1
            return found

    def left(self, each: S) -> bool:
        """Takes a client off; returns whether it was the last one."""
        with self._lock:
            each.client_count -= 1
            if not each.client_count:
                self._drop(each)
            return not each.client_count

    def discard(self, each: S) -> None:
        """Gives new clients another one."""
        with self._lock:
            self._drop(each)

    def _drop(self, dropped: S) -> None:
        self._entries = {key: each for key, each in self._entries.items() if each is not dropped}
