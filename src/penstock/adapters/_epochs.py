"""The common part of adapters that users iterate: one epoch of the loader per `iter`, moved to a device ahead of time.

The loader's state is the position after the batches that the *user* got. Batches drawn early, to move them to a device,
do not count. They come again after `set_state(get_state())`.

Guarantees.
- An error, of the pipeline or of a move, is raised in its batch's place, after the batches before it.
- Nothing is moved ahead before the user has the first batch, which therefore comes as soon as it can.
- One iterator lives at a time, as of the loader: an older one delivers nothing more, not even what it has moved.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar, final

from penstock.base._arguments import NoArray, refuse_attribute
from penstock.base._errors import ArgumentTypeError, LoaderError
from penstock.base._tree import Tree
from penstock.loader import Loader
from penstock.report._report import Report

Moving = TypeVar("Moving")


class LoaderAdapter:
    """The common part of all adapters: length, state and report are those of the loader."""

    loader: Loader

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self.loader)

    def __bool__(self) -> bool:
        """True: an adapter is a thing, also one without a `len`."""
        return True

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuses: an adapter gives batches one after the other."""
        raise ArgumentTypeError(
            "What to_keras(), to_torch(), to_jax() and to_tf() make gives batches one after the other, so they have no "
            f"[{index!r}]. The dataset has one batch by its number, as NumPy arrays: ds[i]."
        )

    def __getattr__(self, name: str) -> NoReturn:
        refuse_attribute(self, name, "What to_keras() or to_jax() makes", "stateful_loader")

    @property
    def length(self) -> int | float | None:
        """The number of batches in an epoch: an int, `math.inf`, or None if it is not known."""
        return self.loader.length

    @property
    def element_spec(self) -> Tree:
        """The tree of `ArraySpec` of what arrives."""
        return self.loader.element_spec

    def get_state(self) -> dict[str, Any]:
        """Returns the position after the batches that were worked on, see `Loader.get_state`."""
        return self.loader.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Makes the next epoch the rest of a saved one, see `Loader.set_state`."""
        self.loader.set_state(state)

    def report(self) -> Report:
        """Returns the limit of the run, and the times of its steps, see `Loader.report`."""
        return self.loader.report()

    def counters(self) -> dict[str, int | float]:
        """Returns the counts up to now as numbers by name, see `Loader.counters`."""
        return self.loader.counters()

    def close(self) -> None:
        """Closes the loader: its workers end. Batches that you hold stay yours. Closing again does nothing."""
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EpochAdapter(LoaderAdapter, NoArray, ABC):
    """A loader whose batches arrive as a framework's own arrays.

    Args:
        loader: What delivers the batches. The adapter is the one that iterates it.
    """

    _called = "What to_torch() or to_jax() makes"
    _no_array = (
        "it delivers batches, one after the other: for batch in adapter. Keras takes fit(dataset.to_keras()), on torch "
        "and JAX, too."
    )

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        """What delivers the batches."""

    @abstractmethod
    def __iter__(self) -> Iterator[Tree]:
        """Begins the loader's next epoch, or the rest of one after `set_state`."""


class Rest(Protocol):
    """What is left of a move."""

    def wait(self) -> None:
        """Waits until the batch has moved."""


@final
class Epoch(Iterator[Tree], Generic[Moving]):
    """One epoch of a loader, or the rest of one, on its way to where the user wants it.

    Args:
        loader: Where batches come from; its next epoch begins now.
        begin: Begins to move a batch. Its result must keep the batch alive until the move is done.
        finish: Waits until that is done and returns the batch where it belongs. By default `begin` did it all.
        ahead_count: How many batches are being moved while the user works on one.
        rest: Returns, of what `begin` returned, what ends the move of a batch that was handed out while it is still on
            its way. When the next one is asked for, this is waited for and dropped. None if no batch is.
    """

    def __init__(
        self,
        loader: Loader,
        begin: Callable[[Tree], Moving],
        finish: Callable[[Moving], Tree] = lambda batch: batch,
        ahead_count: int = 0,
        rest: "Callable[[Moving], Rest] | None" = None,
    ) -> None:
        self._batches = iter(loader)
        self._number = loader.progress.iteration
        # Batches drawn early do not count as worked on, whichever thread asks.
        loader.progress.worked_at = self._drawn_to = loader.progress.at
        self._loader: Loader | None = loader
        self._begin = begin
        self._finish = finish
        self._ahead_count = ahead_count
        self._rest_of = rest
        self._rest: Rest | None = None
        self._moving: deque[tuple[Moving, Any]] = deque()
        self._is_first = True
        self._last: Exception | None = None
        """The end of the drawn batches: an error, or StopIteration."""

    def __next__(self) -> Tree:
        if self._rest is not None:
            self._rest.wait()  # an interrupt costs nothing: the next call waits again
            self._rest = None  # before a batch is drawn, which may need the slot
        loader = self._loader
        if loader is None:
            raise StopIteration
        self._require_current(loader)
        ahead_count = 0 if self._is_first else self._ahead_count
        while self._last is None and len(self._moving) <= ahead_count:
            self._draw(loader)
        if not self._moving:
            raise self._end(loader)
        moving, after = self._moving[0]
        try:
            batch = self._finish(moving)
        except Exception:
            self._loader = None
            raise
        self._is_first = False
        self._rest = self._rest_of and self._rest_of(moving)
        loader.progress.worked_at = after
        self._moving.popleft()  # at last: an interrupt before it has the batch come again
        return batch

    def _draw(self, loader: Loader) -> None:
        if loader.progress.at != self._drawn_to:
            raise LoaderError(
                "An interrupt struck while a batch was being moved ahead, and this iterator lost it. To go on with "
                "that batch: loader.set_state(loader.get_state()), and iterate again."
            )
        try:
            batch = next(self._batches)
            moving = self._begin(batch)
        except Exception as error:
            self._last = error
            return
        self._moving.append((moving, loader.progress.at))
        self._drawn_to = loader.progress.at

    def _end(self, loader: Loader) -> Exception:
        last, self._last, self._loader = self._last, None, None
        assert last is not None
        if isinstance(last, StopIteration):  # the last batch is worked on, too
            loader.progress.worked_at = None
        try:
            return last
        finally:
            # The traceback refers to this frame. Without `del` the two would keep each other alive.
            del last

    def _require_current(self, loader: Loader) -> None:
        if self._number != loader.progress.iteration:
            raise LoaderError(
                "A newer iterator, or set_state(), has taken over this adapter: one iterator lives at a time. "
                "Make a second adapter to iterate twice at once."
            )
        loader.require_open()
