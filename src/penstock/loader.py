"""A dataset being run: executor, ring, position."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, TypeVarTuple, final

import numpy as np

from penstock.base._arguments import NoArray, refuse_attribute
from penstock.base._errors import (
    ArgumentError,
    ArgumentTypeError,
    ElementError,
    LoaderError,
    MemoryLimitError,
    PenstockError,
    SourceError,
    StateError,
    TravelError,
    UnknownLengthError,
    WorkerError,
)
from penstock.base._spec import ArraySpec
from penstock.base._tracebacks import shorten
from penstock.base._traffic import Traffic
from penstock.base._tree import Tree
from penstock.base._units import size_text
from penstock.lower._analysis import functions_of
from penstock.lower._rewrite import batching_of, prune_cached, with_batches
from penstock.lower._share import Share
from penstock.memory._ring import Ring
from penstock.plan._cache import CompleteCache
from penstock.plan._cautions import caution_batches, caution_functions
from penstock.plan._mix import Shares
from penstock.plan._mixture import with_shares
from penstock.plan._node import Node, walk
from penstock.plan._text import length_text, length_words, uncounted
from penstock.report._cgroups import free_nbytes
from penstock.report._counters import Counters
from penstock.report._cpus import CpuMoment, CpuUse, between, cpus_now
from penstock.report._lanes import Lane
from penstock.report._memory import Peak, mapped_nbytes, page_cache_nbytes
from penstock.report._report import Report
from penstock.run._agreement import require_agreement
from penstock.run._arrange import Arrangement, arrange
from penstock.run._consumer import CLOSED, END_OF_EPOCH, STARTED_ELSEWHERE, DeliveryBase
from penstock.run._cpus import usable_cpu_count
from penstock.run._file_watch import FileWatch
from penstock.run._lanes import steps_of
from penstock.run._options import OPTIONS as OPTIONS, LoaderOptions as LoaderOptions
from penstock.run._position import RunPosition
from penstock.run._quarantine import Quarantine
from penstock.run._shutdown import watch
from penstock.run._start import start
from penstock.run._state import BATCH_LIMIT, RESIZE_NEEDS, SavedPlace, used

_log = logging.getLogger("penstock")

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

CLOSE_WAIT_S = 5.0
"""The time that `close` waits for busy workers."""


@final
class Loader(NoArray):
    """Delivers a dataset's elements, most often batches, filled ahead by workers into memory that is reused.

    Iterating it is one epoch, and epochs advance by themselves. After a `break` the next iteration is the
    next epoch; after `set_state` it is the rest of that epoch. One iterator lives at a time: making a new one
    ends the older. Workers live until `close`, the end of a `with` block, or until the loader is dropped.

    Order: that of the dataset, whatever the executor and the number of workers.
    Memory: `projected_nbytes`, known before the first read. A batch is yours while you hold it, and its slot
    is used again when you drop it; if you keep many, further batches are copies.

    Example:
        >>> loader = penstock.range(5).batch(2).loader()
        >>> [batch.tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
        >>> loader.close()
    """

    _called = "A loader"
    _no_array = (
        "it delivers batches, one after the other: for batch in loader. Keras takes fit(dataset.to_keras()), which has "
        "the options of loader(), and makes its own."
    )

    def __init__(
        self,
        node: "Node",
        options: "LoaderOptions",
        *,
        same_epoch: bool = False,
        quarantine: "Quarantine | None" = None,
        multiple: int = 1,
        logs_epochs: bool = True,
    ) -> None:
        _require_elements(node)
        caution_batches(node)
        self._peak = Peak()
        self.progress = RunPosition(node, same_epoch=same_epoch)
        """Where the run is, for adapters."""
        share = Share(*options.shard, options.uneven, options.micro_batches, multiple)
        if options.whole_batches:
            share = Share()
            _require_steps(node, options)
        self.arrangement = arrange(node, options, share, same_epoch=same_epoch, quarantine=quarantine)
        """What runs, for adapters. Another takes its place where the rest of an epoch has other batches."""
        caution_functions(node)
        self._budget = self.arrangement.budget  # a cache that is complete takes less, and what was said stays
        if options.memory_limit is None and (text := self._budget.caution(free_nbytes())):
            _log.warning("%s", text)
        self._batch_count = self.arrangement.batch_count
        """Batches of all ranks in an epoch; None if that is unknown or infinite."""
        self._length = self.arrangement.plan.length
        self._files = FileWatch(node)
        self._delivery: DeliveryBase | None = None
        self._must_restart = False
        """Whether the worker processes failed; the next epoch tries others."""
        self._past = ""
        """Notes about workers that have ended."""
        self._is_closed = False
        self._counters = Counters()
        self._cpus: CpuMoment | None = None
        """The CPU times when the first batch was handed out."""
        self._mark: tuple[Counters, tuple[Lane, ...], CpuMoment | None] | None = None
        """The counts when the iteration began, if the log level asks for them."""
        self._logs_epochs = logs_epochs
        """False of a loader that reads labels or keys: its epoch is none of the user's."""
        self._runs_from = (self.progress.place_at((0, 0)).shares, 0, 0)
        """The shares of a mix and the cut of what is set up, and the batch at which its first step begins."""
        self._is_compared = False
        """Whether the ranks agree on what they deliver from here on."""
        self._warned_empty = False
        """Whether the log has the warning about an epoch without a batch."""
        self._started_at = 0.0
        self._lock = threading.Lock()
        self._lock_holder = 0
        self._pid = os.getpid()
        """The process that holds the lock, if one does."""

    if not TYPE_CHECKING:  # type checkers name a wrong attribute themselves

        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(self, name, "A loader", "data_loader", "stateful_loader", "loader")

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuses: a loader gives batches one after the other."""
        raise ArgumentTypeError(
            f"A loader gives batches one after the other, so it has no [{index!r}]. The dataset has one batch by its "
            "number: ds[i]."
        )

    # Delivery.

    def __iter__(self) -> Iterator[Tree]:
        """Begins the next epoch, or the rest of one after `set_state`."""
        return self._exclusively(self._begin)

    def _begin(self) -> "_Epoch":
        self._settle()
        self.progress.begin()
        self._run_from(self.progress.place_at(self.progress.at))
        self._compare_ranks()
        self._files.look(self.progress.at[0])
        self._counters.paused()
        self._started_at = self._started_at or time.perf_counter()
        self._running().seek(self._place(), self.progress.consumed)
        # Adding up the counts is only worth it if the end of the epoch is logged.
        listened = self._logs_epochs and _log.isEnabledFor(logging.INFO)
        self._mark = (self._counters.copy(), self._lanes(), self._cpus and self._cpus_now()) if listened else None
        return _Epoch(self, self.progress.iteration)

    def _compare_ranks(self) -> None:
        if self._is_compared:
            return
        epoch, position = self.progress.at
        shard, length = self.arrangement.options.shard, self.arrangement.top.program.batch_count
        facts = {
            "plan": self.progress.identity,
            "mix": self.progress.place_at((epoch, position)).eras,
            "epoch": epoch,
            "position": position,
            "length": length,
            "world size": shard[1],
        }
        require_agreement(shard, facts)
        self._is_compared = True

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        length = self.length
        if not isinstance(length, int):
            cure = "Use take(n) for a part."
            if self.arrangement.options.on_error == "skip":
                cure = "on_error='skip' leaves out an unknown number of elements; 'replace' keeps the length."
            elif length is None:
                cure = uncounted(self.arrangement.plan)
            raise UnknownLengthError(f"This loader is {length_words(length)}, so it has no len(). {cure}")
        return length

    @property
    def length(self) -> int | float | None:
        """The number of batches in an epoch: an int, `math.inf`, or None if it is unknown."""
        return None if self._length is None else self._length * self.arrangement.share.micro_count

    @property
    def element_spec(self) -> Tree:
        """The tree of `ArraySpec` of what is delivered."""
        spec, count = self.arrangement.top.program.spec, self.arrangement.share.micro_count
        tree = self._in_place(spec.tree if count == 1 else spec.divided(count).tree)
        return (tree, ArraySpec((), np.float32)) if self.arrangement.options.uneven == "pad" else tree

    @property
    def projected_nbytes(self) -> int:
        """All bytes that this loader takes: slots, scratch memory of workers, caches, decoded data of sources."""
        return self._budget.projected_nbytes

    # Position.

    def get_state(self) -> dict[str, Any]:
        """Returns the position as JSON of less than 500 bytes: the same for any executor and worker count.

        A `filter` of a dataset with random access adds its place in that dataset, as `cursor`. So does a generator
        object with a `get_state()`. With random access and `batch()` last, it has the size of a global batch.

        The position is that after the batches that were handed out. Save it beside the model's weights.
        """
        return self.progress.state()

    def set_state(self, state: dict[str, Any], *, changed: Literal["mix"] | None = None) -> None:
        """Makes the next iteration the rest of a saved epoch, exactly; nothing is read to get there.

        The number of shards may be another one. So may the size of the batches, if the dataset has random access and
        nothing but `map` follows `batch`: that epoch then goes on behind the last element that was delivered.

        With `changed="mix"` the weights of a `mix` may be others, for what is still to come. What was delivered stays
        what it was: later states hold the weights from the beginning on, and where they changed. So such a state goes
        on without `changed`, and one that is set back gives the former mixture again. Between `mix` and the end may
        stand `batch`, `map`, `random_map`, `cast`, `take`, `skip`, `zip` and, over random access, `filter`. Datasets
        may be added at the end. Where nothing changed, `changed` does nothing.

        Args:
            state: What `get_state` returned.
            changed: The step that may differ: `"mix"`, in its weights.

        Raises:
            ArgumentError: `changed` is something else.
            StateError: The state has another version, another plan (the message names the step that differs), or a
                position that this dataset does not have.

        Example:
            >>> parts = [penstock.range(1).map(lambda _, k=k: k).repeat() for k in (0, 1)]
            >>> with penstock.mix(parts, [3, 1]).batch(256).loader("inline") as loader:
            ...     zeros_and_ones = [int(batch.sum()) for _, batch in zip(range(4), loader)]
            ...     state = loader.get_state()
            >>> with penstock.mix(parts, [1, 3]).batch(256).loader("inline") as loader:
            ...     loader.set_state(state, changed="mix")
            ...     later = [int(batch.sum()) for _, batch in zip(range(4), loader)]
            >>> sum(zeros_and_ones), sum(later)
            (256, 768)
        """
        if changed not in (None, "mix"):
            raise ArgumentError(f"set_state(changed={changed!r:.80}): the one step that may differ is 'mix'.")
        place = self.progress.place_of(state, changed)
        if len(place.eras) > 1 and self.arrangement.options.on_error == "skip":
            raise StateError(
                "The weights of the mix changed in this run, at some element. on_error='skip' leaves out an unknown "
                "number of elements before it; 'replace' keeps their positions."
            )
        if place.cut and (batching_of(self.progress.plan) is None or self.arrangement.plan.access == "stream"):
            raise StateError(f"The state continues an epoch with another batch size. {RESIZE_NEEDS}")
        self._require_same_batches(place.position, has_cursor="cursor" in state)
        count = self._count_from(place)
        if count is None and place.position >= BATCH_LIMIT:
            raise StateError(f"position={place.position} is no number of batches that anybody reads.")
        if place.position == count and any(isinstance(each, CompleteCache) for each in walk(self.progress.plan)):
            # Nobody knew the number of batches while the cache was filled.
            place = SavedPlace(place.epoch + 1, 0, eras=place.eras)
        if count is not None and (place.position or place.cut) and place.position >= count:
            raise StateError(f"position={place.position} is beyond the {count} batches of an epoch.")
        turns = self.arrangement.turns
        if turns is not None and count is not None and not turns.count_of(count - place.position):
            place = SavedPlace(place.epoch + 1, 0, eras=place.eras)  # too few are left for a step of so many ranks
        self._exclusively(self._resume, place)

    def _count_from(self, place: SavedPlace) -> int | None:
        """The number of batches of an epoch, from its cut on; None if that is unknown."""
        plan = place.plan(self.progress.plan)
        length = self._batch_count if plan is self.progress.plan else plan.length
        return length if isinstance(length, int) else None

    def _resume(self, place: SavedPlace) -> None:
        self._run_from(place)
        self.progress.resume(place)
        self._is_compared = False

    def _run_from(self, place: SavedPlace) -> None:
        """Has the epoch of a place run, from its cut on, and steps of whole batches begin at its position."""
        turns = self.arrangement.turns
        runs_from = place.shares, place.cut, 0 if turns is None else place.position % turns.group
        if runs_from != self._runs_from:
            self._restart(*runs_from)
            self._counters, self._started_at, self._cpus = Counters(), 0.0, None

    def _restart(self, shares: Shares, cut: int, first: int) -> None:
        """Stops the workers, and prepares others for epochs that begin behind some elements; see `arrange`."""
        old, delivery, plan = self.arrangement, self._delivery, with_shares(self.progress.plan, shares)
        made = arrange(
            with_batches(plan, cut) if cut else plan,
            old.options,
            old.share,
            first=first,
            same_epoch=self.progress.same_epoch,
            quarantine=old.quarantine,
        )
        # Attributes only: Ctrl-C does not strike between these lines.
        self._delivery, self.arrangement, self._runs_from = None, made, (shares, cut, first)
        _close(old, delivery)

    def _require_same_batches(self, position: int, *, has_cursor: bool) -> None:
        """Refuses a position of a run with `on_error="skip"` in a run without it, and the reverse.

        Only `on_error="skip"` turns a plan with random access into one with a cursor. Without a cursor, as for batches
        that are taken apart again, the difference is not visible.
        """
        leaves_out = self.arrangement.plan.access == "stream"
        is_told = has_cursor or self.arrangement.gives_cursor
        if self.progress.plan.access != "random" or not position or not is_told or leaves_out == has_cursor:
            return
        here, there = ("", "out") if leaves_out else ("out", "")
        raise StateError(
            f"The state was saved with{there} on_error='skip', and this loader is with{here} it. That leaves out what "
            f"fails, so batch {position} is another one. Give both the same on_error (or 'replace' instead of 'raise', "
            "which leaves the order as it is), or begin the epoch anew: position 0, and no cursor."
        )

    # For adapters.

    def rest_count(self) -> int | None:
        """The number of batches of the next iteration; None if that is unknown."""
        place = self.progress.place_at(self.progress.start)
        count, turns = self._count_from(place), self.arrangement.turns
        if count is None or turns is None:
            return None if count is None else (count - place.position) * self.arrangement.share.micro_count
        return turns.count_of(count - place.position)

    def ring(self) -> "Ring":
        """The ring of the batches, for adapters that register its memory. Workers start."""
        return self._running().ring

    def require_open(self) -> None:
        """Refuses a loader that is closed. Raises LoaderError."""
        if self._is_closed:
            raise LoaderError(CLOSED) from None

    # Reports.

    def report(self) -> Report:
        """Returns where time and memory went so far, what limits the speed, and what was chosen. Print it."""
        delivery = self._delivery
        if delivery is not None and not self._is_closed:
            self._peak.look(delivery.pids())
        return self._report(self._counters.copy(), self._lanes(), self._cpus)

    def counters(self) -> dict[str, int | float]:
        """Returns the counts up to now as plain numbers, for a log or a monitoring system.

        Any thread may call this while the loader runs. It waits for nothing and reads no data. A batch that is handed
        out meanwhile may be in some numbers already and not in others. Names end in the unit: `_s` are seconds,
        `_nbytes` bytes, and others counts.

        | name | meaning |
        |---|---|
        | `epoch`, `position` | of the next batch |
        | `batches` | handed out |
        | `elements_per_batch` | in a full batch, or in this shard's part of it; 1 if unknown |
        | `wait_s`, `use_s` | your program waited for data, and worked, since the first batch |
        | `first_batch_s`, `longest_wait_s` | the wait for the first batch, and the longest later one |
        | `worker_s`, `worker_cpu_s` | all workers together had an element at work, and were on a CPU |
        | `workers` | threads or processes |
        | `requests`, `repeats`, `received_nbytes` | requests to servers, those made again, bytes of all answers |
        | `set_aside` | elements that failed, with `on_error=` |
        | `copied` | batches handed out as copies, because many were kept |
        | `projected_nbytes`, `peak_nbytes` | memory: projected, and the measured growth of this program |

        Counts start at 0 again when the way of running changes: when a loader resumes with another size of batches, or
        when a `cache` is full and threads read it.

        Example:
            >>> with penstock.range(100).batch(10).loader() as loader:
            ...     batches = list(loader)
            ...     counters = loader.counters()
            >>> counters["batches"], counters["epoch"], counters["workers"] > 0
            (10, 1, True)
        """
        counters, lanes, delivery = self._counters.copy(), self._lanes(), self._delivery
        epoch, position = self.progress.at
        traffic = sum((lane.traffic for lane in lanes), Traffic())
        return {
            "epoch": epoch,
            "position": position,
            "batches": counters.batches,
            "elements_per_batch": self._elements_per_batch(),
            "wait_s": counters.wait_s,
            "use_s": counters.use_s,
            "first_batch_s": counters.first_batch_s or 0.0,
            "longest_wait_s": counters.longest_wait_s,
            "worker_s": sum((lane.wall_s for lane in lanes), 0.0),
            "worker_cpu_s": sum((lane.cpu_s for lane in lanes), 0.0),
            "workers": self._worker_count(lanes),
            "requests": traffic.requests,
            "repeats": traffic.repeats,
            "received_nbytes": traffic.nbytes,
            "set_aside": self.arrangement.quarantine.count if self.arrangement.quarantine else 0,
            "copied": delivery.ring.copied_count if delivery else 0,
            "projected_nbytes": self.projected_nbytes,
            "peak_nbytes": self._peak.nbytes,
        }

    def _lanes(self) -> tuple[Lane, ...]:
        delivery = self._delivery
        return tuple(delivery.lanes()) if delivery else ()

    def _end_epoch(self, epoch: int) -> None:
        """Logs a sentence about an epoch, or the rest of one, to the logger `penstock` at the level INFO."""
        self._counters.ended()
        self._files.look(epoch)
        if self._mark is not None:
            counters, lanes, cpus = self._mark
            before = {lane.place: lane for lane in lanes}  # parts of a stream begin when they are first needed
            done = tuple(lane.since(before.get(lane.place)) for lane in self._lanes())
            said = self._report(self._counters.copy().since(counters), done, cpus or self._cpus)
            _log.info("Epoch %d: %s.", epoch, said.sentence)

    def _cpus_now(self) -> CpuMoment:
        delivery = self._delivery
        return cpus_now(delivery.tasks() if delivery else ())

    def _report(self, counters: Counters, lanes: tuple[Lane, ...], since: CpuMoment | None) -> Report:
        """Makes a report of counts and lanes, with the CPU times since a moment."""
        use = between(since, self._cpus_now()) if since else CpuUse()
        if use.delay is not None:
            lanes = tuple(replace(lane, delay_s=lane.cpu_s * use.delay) for lane in lanes)
        delivery = self._delivery  # another thread may be putting another one there
        arrangement, quarantine, budget = self.arrangement, self.arrangement.quarantine, self._budget
        busiest = arrangement.top.busiest
        remarks = [f"{node.label}: {node.remark}." for node in walk(self.progress.plan) if node.remark]
        return Report(
            batches=counters.batches,
            elements_per_batch=self._elements_per_batch(),
            longest_use_s=counters.longest_use_s,
            longest_wait_s=counters.longest_wait_s,
            unit="element" if arrangement.plan.batch_size else "batch",
            elapsed_s=counters.wait_s + counters.use_s,
            wait_s=counters.wait_s,
            first_batch_s=counters.first_batch_s or 0.0,
            copied=delivery.ring.copied_count if delivery else 0,
            executor=busiest.executor,
            workers=self._worker_count(lanes),
            projected_nbytes=self.projected_nbytes,
            slot_count=budget.slot_count,
            slot_nbytes=budget.slot_nbytes,
            shared_nbytes=budget.shared_nbytes,
            note="\n".join(filter(None, (self._past, arrangement.notes, *remarks))),
            mixed=used(self.progress.plan, self.progress.place_at(self.progress.at)),
            set_aside=quarantine.count if quarantine else 0,
            quarantine=(quarantine.path or "") if quarantine else "",
            may_hold_gil=busiest.reach == "thread" and arrangement.facts.traits.may_hold_gil,
            memory_limit=arrangement.options.memory_limit,
            cpu_count=usable_cpu_count(),
            cpus=use.cpus,
            cpu_s=counters.cpu_s,
            lanes=lanes,
            plan=steps_of(arrangement.plan),
            reserved_nbytes=self._peak.reserved_nbytes,
            peak_nbytes=self._peak.nbytes,
            overhead_nbytes=arrangement.overhead_nbytes,
            page_cache_nbytes=page_cache_nbytes(),
            mapped_nbytes=mapped_nbytes(),
        )

    def _worker_count(self, lanes: tuple[Lane, ...]) -> int:
        """The workers that run units of the steps that take most."""
        busiest = self.arrangement.top.busiest
        if busiest.reach not in ("process", "machine"):
            return busiest.worker_count
        # Of processes, a loader beside this one may have had more started, and all of them share the work.
        hands = [lane.workers for lane in lanes if lane.reach in ("process", "machine") and not lane.is_serial]
        return max([busiest.worker_count, *hands])

    def _elements_per_batch(self) -> int:
        """Elements of a delivered batch: this shard's rows of a full one; 1 if it is unknown."""
        share = self.arrangement.share
        return self.arrangement.facts.batch_size // (share.count * share.micro_count) or 1

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "epoch {}, position {}".format(*self.progress.at)
        return f"<penstock.Loader of {length_text(self._length)}, {self.arrangement.top.crew.executor}, {state}>"

    # Lifetime.

    def _exclusively(self, call: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Makes a call as the one consumer; other threads wait. `get_state`, `report` and `close` do not call this."""
        # After fork() the thread that held the lock may be missing, and then nothing releases it.
        if self._delivery is not None:
            self._delivery.require_open()
        elif self._pid != os.getpid():
            if self._lock.locked():
                raise LoaderError(STARTED_ELSEWHERE)
            self._pid = os.getpid()
        here = threading.get_ident()  # not below, where a signal handler would strike between the lock and its holder
        if self._lock_holder == here:
            raise LoaderError(
                "This loader is in the middle of a call on this very thread, and a finalizer or a signal handler "
                "called it again. Iterate it outside of them."
            )
        # Not a context manager in Python: Ctrl-C may interrupt it before it releases the lock, and a notebook that
        # keeps the traceback would then keep the lock.
        with self._lock:
            self._lock_holder = here
            try:
                return call(*arguments)
            finally:
                self._lock_holder = 0

    def _settle(self) -> None:
        """Starts other workers after a failure, or goes on without when `cache` has all results of functions.

        Threads are faster then. Counts start again, because they would mix two ways of running.
        """
        if self._must_restart and not self._is_closed:
            self._must_restart = False
            self._restart(*self._runs_from)
        old = self.arrangement
        if self._is_closed or old.options.executor != "auto" or old.top.busiest.reach == "thread":
            return
        plan = prune_cached(old.plan)
        if plan is old.plan or not all(each.releases_gil for each in functions_of(plan)):
            return
        past = (
            "The cache has all that is asked for, so threads read it now; the numbers here are of the time since then."
        )
        self._past = "\n".join(filter(None, (old.notes, past)))
        self._restart(*self._runs_from)
        self._counters, self._started_at, self._cpus = Counters(), 0.0, None

    def _running(self) -> DeliveryBase:
        self.require_open()
        if self._delivery is None:
            try:
                self._delivery = start(self.arrangement)
            except Exception as error:
                self.require_open()  # it may have been closed meanwhile
                if isinstance(error, MemoryLimitError):
                    nbytes, step = self.arrangement.budget.largest_element
                    error.add_note(f"One element of {step} takes {size_text(nbytes)}.")
                raise
            watch(self, self._delivery)
            try:
                self.require_open()
            except LoaderError:  # the call of close() may have found nothing to stop
                self._delivery.close(CLOSE_WAIT_S)
                raise
        return self._delivery

    def _take(self, iterator: "_Epoch") -> Tree:
        """Returns the next batch for an iterator; raises StopIteration after the last of its epoch."""
        entered_at = time.perf_counter()
        try:
            if iterator.is_over:
                raise StopIteration
            if iterator.number != self.progress.iteration:
                raise LoaderError(
                    "A newer iterator, or set_state(), has taken over this loader: one iterator lives at a time. "
                    "Make a second loader to iterate twice at once."
                )
            delivery = self._delivery or self._running()
            progress, arrangement = self.progress, self.arrangement
            epoch, position = progress.at
            turns = arrangement.turns
            # As in most runs: each call that is left out here counts, because a training step empties the caches.
            is_plain = turns is None is arrangement.batch_first and arrangement.share.micro_count == 1
            batch = delivery.take(progress.at, arrangement.options.timeout_s) if is_plain else self._draw(delivery)
            if batch is END_OF_EPOCH:
                iterator.is_over = True
                if not position and not self._counters.batches and not self._warned_empty:
                    self._warned_empty = True
                    _log.warning(
                        "Epoch %d had no batch: nothing came out of %s. To see which step leaves nothing, or too "
                        "little for one batch, iterate the dataset as it is after each.",
                        epoch,
                        arrangement.plan.label,
                    )
                self._end_epoch(epoch)
                progress.end_epoch()
                raise StopIteration
            left_at = self._counters.delivered(entered_at, self._started_at)
            if self._cpus is None:
                self._cpus = self._cpus_now()
            if left_at >= self._peak.due_s:
                self._peak.look(delivery.pids())
                self._files.look(epoch)
            if not (is_plain or progress.hand_out()):
                return batch
            # First: if Ctrl-C struck behind the move, the iterator would go on with the next epoch.
            last = position + 1 if turns is None else self._place()[1] + turns.step_size
            iterator.is_over = last == arrangement.top.program.batch_count
            progress.step(delivery.consumed, count=turns.group if turns else 1, is_last=iterator.is_over)
            if iterator.is_over:
                self._end_epoch(epoch)
            return batch
        except Exception as error:  # a failed epoch is over; the loader can begin another
            if not isinstance(error, StopIteration):
                self._counters.failed(entered_at)
                self._tell_cure(error)
                self._must_restart = isinstance(error, WorkerError)
            iterator.is_over = True
            raise

    def _place(self) -> tuple[int, int]:
        """Epoch and number of the batch at the position, among those that the program delivers."""
        (epoch, position), turns = self.progress.at, self.arrangement.turns
        return epoch, position if turns is None else (position - turns.first) // turns.count

    def _draw(self, delivery: DeliveryBase) -> Tree:
        """Takes the next batch, or the next part of one."""
        progress, share, timeout_s = self.progress, self.arrangement.share, self.arrangement.options.timeout_s
        if (turns := self.arrangement.turns) is not None:
            left = progress.micro_batches or [*range(turns.step_size)][::-1]  # their numbers in the step
            epoch, index = self._place()
            batch = delivery.take((epoch, index + left[-1]), timeout_s)
            if batch is END_OF_EPOCH:
                return batch
            if turns.step_size > 1:
                progress.micro_batches = left
            return (batch, np.float32(turns.weight(progress.at[1], left[-1]))) if turns.fills else batch
        if share.micro_count == 1:
            batch = delivery.take(progress.at, timeout_s)
            return batch if batch is END_OF_EPOCH else self._in_place(batch)
        if not progress.micro_batches:
            batch = delivery.take(progress.at, timeout_s)
            if batch is END_OF_EPOCH:
                return batch
            structure = self.arrangement.top.program.spec.structure
            progress.micro_batches = [
                structure.unflatten(each) for each in share.micro_batches(structure.flatten_up_to(batch))
            ]
        return self._in_place(progress.micro_batches[-1])

    def _in_place(self, batch: Tree) -> Tree:
        """What is delivered, or its spec, with the axis of elements where functions put it; see `BatchFirst`."""
        moved = self.arrangement.batch_first
        if moved is None:
            return batch
        return moved.back(batch) if self.arrangement.share.uneven == "refuse" else (moved.back(batch[0]), batch[1])

    def _tell_cure(self, error: Exception) -> None:
        """Adds the remedy to the error of an element. A generator that failed has ended; nothing helps there."""
        fails = isinstance(error, (ElementError, SourceError))
        if fails and self.arrangement.options.on_error == "raise" and self.arrangement.plan.access == "random":
            error.add_note(
                "To go on without elements that fail: on_error='replace'. The dataset's check() lists them all, and so "
                "does `penstock check PATH` in a terminal."
            )

    def close(self) -> None:
        """Stops the workers, waits for them for a moment, and frees the memory. Closing again does nothing.

        Batches that you hold stay yours.
        """
        self._is_closed, self.progress.micro_batches = True, []
        _close(self.arrangement, self._delivery)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        # A copy of what it holds would share this one's workers, and close this one's descriptors.
        raise TravelError(
            "A Loader runs in the process that made it, and is neither copied nor pickled: its workers and its memory "
            "are its own. Copy or send the dataset, and make another loader of that: dataset.loader(...)."
        )


@final
class _Epoch(Iterator[Tree]):
    """One epoch of a loader, or the rest of one."""

    def __init__(self, loader: Loader, number: int) -> None:
        self._loader: Loader | None = loader
        self.number = number
        self.is_over = False

    def __next__(self) -> Tree:
        loader = self._loader  # another thread sets it to None after the last batch
        if loader is None:
            raise StopIteration
        try:
            return loader._exclusively(loader._take, self)
        except PenstockError as error:
            shorten(error)
            raise
        finally:
            if self.is_over:
                self._loader = None


def _close(arrangement: Arrangement, delivery: DeliveryBase | None) -> None:
    if delivery is None:
        arrangement.close()
    else:
        delivery.close(CLOSE_WAIT_S)


def _require_steps(node: Node, options: LoaderOptions) -> None:
    """Refuses ranks that would not get one whole batch each, and logs what whole batches of a stream cost."""
    count, step_size, length = options.shard[1], options.micro_batches, node.length
    if options.uneven == "pad" and not isinstance(length, int):
        raise ArgumentError(
            f"uneven='pad' fills up the last step, but this dataset is {length_words(length)}, so no rank knows which "
            "step is the last. Leave it out: batches at the end that are too few for a step are then left out."
        )
    if options.uneven == "refuse" and isinstance(length, int) and length < count * step_size:
        each = "a whole batch" if step_size == 1 else f"{step_size} whole batches"
        raise ArgumentError(
            f"An epoch has {length:,} batch{'' if length == 1 else 'es'}, too few for {each} for each of {count} "
            "ranks. Use smaller batches, or repeat() before them; or uneven='pad', which gives a rank without one the "
            "weight 0."
        )
    if count > 1 and node.access == "stream":
        _log.warning(
            "%s is a stream, so each of %d ranks reads all of it, and leaves out the batches of the others. The "
            "elements of %d batches wait in memory for a step.",
            node.label,
            count,
            count * step_size,
        )


def _require_elements(node: Node) -> None:
    if node.length != 0:
        return
    while any(each.length == 0 for each in node.inputs):
        node = next(each for each in node.inputs if each.length == 0)
    before = ", ".join(length_text(each.length) for each in node.inputs)
    why = ""
    if node.verb == "windows" and node.inputs[0].length:
        span, groups = getattr(node, "span", 0), getattr(node, "groups", None)
        why = f" A window spans {span:,} {'neighbours of one group' if groups else 'of them'}."
    raise ArgumentError(
        f"There is nothing to load: {node.label} has no elements{f', of {before} before it' if before else ''}.{why}"
    )
