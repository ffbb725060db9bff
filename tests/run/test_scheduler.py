"""Tables of events for the scheduler, and its decisions.

A line of a table is an event, and after `=` the decision. Units are written `epoch.index[start:stop)`, ends of epochs
`epoch.index end`, and batches that failed `epoch.index error from ROW`.
"""

from collections import deque
from typing import Any

import pytest

import penstock as ps
from penstock.lower._batches import ParallelProgram
from penstock.lower._program import Unit
from penstock.lower._rewrite import cut
from penstock.memory._spans import SpanLayout
from penstock.run._scheduler import Scheduler
from penstock.run._span_schedule import SpanSchedule

INT64 = ps.ArraySpec((), "int64")
ROW_S = 4e-3
"""Two rows are a unit then."""


def same(x: Any) -> Any:
    return x


def numbers() -> Any:
    return iter(())


class Table:
    """Sends events to a scheduler, and writes its decisions as text."""

    def __init__(self, slot_count: int = 3, **options: Any) -> None:
        self.slot_count = slot_count
        self.free = deque(reversed(range(slot_count)))
        self.units: dict[str, Unit] = {}
        self.reading_units: list[Unit] = []
        self.stream: SpanSchedule | None = None
        self.scheduler = self.make(**options)

    def make(self, **options: Any) -> Scheduler:
        plan = ps.range(18).map(same, element_spec=INT64).batch(4)
        return Scheduler(ParallelProgram(plan._node), self.free, **options)

    def run(self, table: str) -> None:
        for line in table.strip().splitlines():
            event, _, want = (part.strip() for part in line.partition("="))
            name, *arguments = event.split()
            assert getattr(self, name)(*arguments) == want, line

    def seek(self, position: str, consumed: str = "-1") -> str:
        self.scheduler.abandon()
        self.free.extend(set(range(self.slot_count)) - self.scheduler.busy_slots - set(self.free))  # `Ring.reclaim`
        self.scheduler.start(self.position(position), int(consumed))
        return ""

    def issue(self, target: str = "100") -> str:
        return self.noted(self.scheduler.issue(int(target), worker_count=2, row_s=ROW_S))

    def noted(self, units: list[Unit]) -> str:
        names = [f"{unit.epoch}.{unit.index}[{unit.start}:{unit.stop})" + "!" * unit.is_poisoned for unit in units]
        self.units.update(zip(names, units, strict=True))
        return " ".join(names)

    def finish(self, *names: str) -> str:
        return " ".join(filter(None, (self.noted(self.scheduler.finished(self.units.pop(name))) for name in names)))

    def fail(self, name: str) -> str:
        return self.noted(self.scheduler.finished(self.units.pop(name), OSError(name)))

    def crash(self, name: str) -> str:
        return self.noted(self.scheduler.finished(self.units.pop(name), ps.WorkerError(name), crashed=True))

    def is_wanted(self, name: str) -> str:
        return "yes" if self.scheduler.is_wanted(self.units[name]) else "no"

    def take(self) -> str:
        if not self.scheduler.is_head_ready:
            return "not ready"
        batch = self.scheduler.take()
        name = f"{batch.epoch}.{batch.index}"
        if batch.is_end:
            return f"{name} end"
        if batch.slot >= 0:
            self.free.append(batch.slot)
        return f"{name} error from {batch.first_error[0]}" if batch.errors else name

    def keep(self) -> str:
        """Takes a batch whose slot does not come back."""
        self.scheduler.take()
        return ""

    def slots(self) -> str:
        return f"{len(self.free)} free"

    def under_way(self) -> str:
        return str(self.scheduler.unfinished_count)

    def close(self) -> str:
        self.scheduler.close()
        return ""

    @staticmethod
    def position(text: str) -> tuple[int, int]:
        epoch, index = text.split(".")
        return int(epoch), int(index)


class Stream(Table):
    """A stream of unknown length, of which workers make batches of two, and spans have four elements."""

    def make(self, **options: Any) -> Scheduler:
        plan = ps.from_generator(numbers, element_spec=INT64).map(same, element_spec=INT64).batch(2)
        above, below = cut(plan._node)
        self.stream = SpanSchedule(4, deque(reversed(range(3))), ahead_count=2)
        program = ParallelProgram(above, spans=SpanLayout(below.spec, 4, 3))
        return Scheduler(program, self.free, self.stream, lambda place: 100 + place, **options)

    def read(self) -> str:
        """What the worker of the feed is given, two elements at a time."""
        assert self.stream is not None
        units = self.stream.issue(2)
        self.reading_units += units
        return " ".join(f"{unit.epoch}.{unit.index}[{unit.start}:{unit.stop})" for unit in units)

    def arrive(self, count: str, how: str = "") -> str:
        """The oldest unit of the feed ends with so many elements; with the end of the epoch, or an error."""
        assert self.stream is not None
        unit = self.reading_units.pop(0)
        if self.stream.is_wanted(unit):
            self.stream.arrived(unit, unit.start + int(count))
        self.stream.finished(unit, ended=how == "end", error=OSError("gone") if how == "error" else None)
        return ""

    def look(self, count: str) -> str:
        """So many elements of the oldest unit are there, and it goes on."""
        assert self.stream is not None
        oldest = self.stream.oldest()
        assert oldest is self.reading_units[0]
        self.stream.arrived(oldest, oldest.start + int(count))
        return ""

    def lost(self) -> str:
        """The worker is done with the oldest unit, after the reading was given up."""
        return self.arrive("0")


class Filled(Stream):
    """A stream that its reader writes into batches of two: spans are batches."""

    def make(self, **options: Any) -> Scheduler:
        above, _ = cut(ps.from_generator(numbers, element_spec=INT64).batch(2)._node)
        self.stream = SpanSchedule(2, self.free, ahead_count=3)
        consumed_at = self.stream.slot_of
        return Scheduler(ParallelProgram(above), self.free, self.stream, consumed_at, spans_are_batches=True, **options)


TABLES = {
    "batches are delivered in order whatever ends first": (
        Table,
        {},
        """
        seek 0.0
        issue = 0.0[0:2) 0.0[2:4) 0.1[0:2) 0.1[2:4) 0.2[0:2) 0.2[2:4)
        finish 0.1[0:2) 0.1[2:4) 0.2[0:2) 0.0[2:4)
        take = not ready
        finish 0.0[0:2)
        take = 0.0
        take = 0.1
        take = not ready
        issue = 0.3[0:2) 0.3[2:4) 0.4[0:1) 0.4[1:2)
        """,
    ),
    "no more units than the target are under way, but for the rest of a batch": (
        Table,
        {},
        """
        seek 0.0
        issue 1 = 0.0[0:2) 0.0[2:4)
        issue 2 =
        finish 0.0[0:2)
        issue 2 = 0.1[0:2) 0.1[2:4)
        issue 0 =
        under_way = 3
        """,
    ),
    "a kept batch leaves its slot taken": (
        Table,
        {"slot_count": 1},
        """
        seek 0.0
        issue = 0.0[0:2) 0.0[2:4)
        finish 0.0[0:2) 0.0[2:4)
        issue =
        keep
        issue =
        """,
    ),
    "the next epoch follows the last batch": (
        Table,
        {},
        """
        seek 0.4
        issue = 0.4[0:1) 0.4[1:2) 1.0[0:2) 1.0[2:4) 1.1[0:2) 1.1[2:4)
        finish 1.0[0:2) 1.0[2:4) 0.4[0:1) 0.4[1:2)
        take = 0.4
        take = 1.0
        """,
    ),
    "a seek gives up what is under way, and its slots come back with its last unit": (
        Table,
        {},
        """
        seek 0.0
        issue 1 = 0.0[0:2) 0.0[2:4)
        slots = 2 free
        seek 0.3
        is_wanted 0.0[0:2) = no
        issue = 0.3[0:2) 0.3[2:4) 0.4[0:1) 0.4[1:2)
        slots = 0 free
        finish 0.0[0:2) 0.0[2:4)
        slots = 1 free
        take = not ready
        finish 0.3[0:2) 0.3[2:4)
        take = 0.3
        """,
    ),
    "after close nothing is issued, and units that end do no harm": (
        Table,
        {"redoes_crashes": True},
        """
        seek 0.0
        issue 1 = 0.0[0:2) 0.0[2:4)
        close
        is_wanted 0.0[0:2) = no
        issue =
        crash 0.0[0:2) =
        finish 0.0[2:4)
        """,
    ),
    "an error takes the place of its batch, and the first row that failed counts": (
        Table,
        {},
        """
        seek 0.0
        issue = 0.0[0:2) 0.0[2:4) 0.1[0:2) 0.1[2:4) 0.2[0:2) 0.2[2:4)
        fail 0.1[2:4) =
        is_wanted 0.1[0:2) = yes
        fail 0.1[0:2) =
        finish 0.0[0:2) 0.0[2:4)
        take = 0.0
        take = 0.1 error from 0
        take = not ready
        """,
    ),
    "rows behind one that failed are not wanted": (
        Table,
        {},
        """
        seek 0.0
        issue 1 = 0.0[0:2) 0.0[2:4)
        fail 0.0[0:2) =
        is_wanted 0.0[2:4) = no
        finish 0.0[2:4)
        take = 0.0 error from 0
        """,
    ),
    "where the rest is given, rows of a unit that failed are tried one by one": (
        Table,
        {"gives_rest": True},
        """
        seek 0.0
        issue 1 = 0.0[0:2) 0.0[2:4)
        fail 0.0[2:4) = 0.0[2:3) 0.0[3:4)
        under_way = 3
        finish 0.0[2:3)
        fail 0.0[3:4) =
        take = not ready
        finish 0.0[0:2)
        take = 0.0 error from 3
        """,
    ),
    "an element that crashes workers is found, and set aside": (
        Table,
        {"redoes_crashes": True},
        """
        seek 0.0
        issue 1 = 0.0[0:2) 0.0[2:4)
        crash 0.0[0:2) = 0.0[0:1) 0.0[1:2)
        finish 0.0[0:1)
        crash 0.0[1:2) = 0.0[1:2)!
        finish 0.0[1:2)! 0.0[2:4)
        take = 0.0
        """,
    ),
    "a crash is an error where nothing is set aside, and where setting aside crashes too": (
        Table,
        {"redoes_crashes": True},
        """
        seek 0.0
        issue 1 = 0.0[0:2) 0.0[2:4)
        fail 0.0[0:2) =
        crash 0.0[2:4) = 0.0[2:3) 0.0[3:4)
        crash 0.0[2:3) = 0.0[2:3)!
        crash 0.0[2:3)! =
        finish 0.0[3:4)
        take = 0.0 error from 0
        """,
    ),
    "a span that is a batch is ready when it is full, and ends its epoch where it is not": (
        Filled,
        {},
        """
        seek 0.0
        issue =
        read = 0.0[0:2) 0.1[0:2) 0.2[0:2)
        slots = 0 free
        take = not ready
        arrive 2
        arrive 1 end
        issue =
        under_way = 0
        take = 0.0
        take = 0.1
        take = 0.2 end
        lost
        read = 1.0[0:2) 1.1[0:2) 1.2[0:2)
        """,
    ),
    "a stream that ends with a full batch has an end, and no empty batch": (
        Filled,
        {},
        """
        seek 0.3
        read = 0.3[0:2) 0.4[0:2) 0.5[0:2)
        arrive 0 end
        lost
        lost
        issue =
        take = 0.3 end
        read = 1.0[0:2) 1.1[0:2) 1.2[0:2)
        """,
    ),
    "empty epochs of a stream that fills batches are not begun without end": (
        Filled,
        {"slot_count": 1},
        """
        seek 0.0
        read = 0.0[0:2)
        arrive 0 end
        issue =
        read = 1.0[0:2)
        arrive 0 end
        issue =
        read =
        take = 0.0 end
        issue =
        read = 2.0[0:2)
        take = 1.0 end
        """,
    ),
    "an error of a stream that fills batches ends the epoch, and a seek goes on": (
        Filled,
        {},
        """
        seek 0.0
        read = 0.0[0:2) 0.1[0:2) 0.2[0:2)
        arrive 2
        arrive 1 error
        issue =
        take = 0.0
        take = 0.1 error from 0
        take = not ready
        issue =
        read =
        lost
        seek 0.1
        read = 0.1[0:2) 0.2[0:2) 0.3[0:2)
        """,
    ),
    "the rest of a stream that fills batches before its error": (
        Filled,
        {"gives_rest": True},
        """
        seek 0.0
        read = 0.0[0:2) 0.1[0:2) 0.2[0:2)
        arrive 1 error
        issue =
        take = 0.0 error from 1
        """,
    ),
    "a seek gives up what fills batches, and its slots come back with their units": (
        Filled,
        {},
        """
        seek 0.0
        read = 0.0[0:2) 0.1[0:2) 0.2[0:2)
        arrive 2
        issue =
        seek 5.4
        slots = 1 free
        read = 5.4[0:2)
        lost
        lost
        read = 5.5[0:2) 5.6[0:2)
        arrive 2
        issue =
        take = 5.4
        """,
    ),
    "a batch that the user keeps leaves its slot taken, whichever comes back first": (
        Filled,
        {},
        """
        seek 0.0
        read = 0.0[0:2) 0.1[0:2) 0.2[0:2)
        arrive 2
        arrive 2
        arrive 2
        issue =
        keep
        read =
        take = 0.1
        read = 0.3[0:2)
        """,
    ),
    "batches of a stream are issued when their elements arrived": (
        Stream,
        {},
        """
        seek 0.0
        issue =
        read = 0.0[0:2) 0.0[2:4)
        arrive 2
        issue = 0.0[0:1) 0.0[1:2)
        look 1
        issue =
        arrive 2
        issue = 0.1[0:1) 0.1[1:2)
        """,
    ),
    "the end of a stream makes the last batch short, and then begins the next epoch": (
        Stream,
        {},
        """
        seek 0.0
        issue =
        read = 0.0[0:2) 0.0[2:4)
        arrive 2
        arrive 1 end
        issue = 0.0[0:1) 0.0[1:2) 0.1[0:1)
        read = 1.0[0:2) 1.0[2:4)
        finish 0.0[0:1) 0.0[1:2) 0.1[0:1)
        take = 0.0
        take = 0.1
        take = 0.2 end
        """,
    ),
    "empty epochs of a stream are not begun without end": (
        Stream,
        {},
        """
        seek 0.0
        issue =
        read = 0.0[0:2) 0.0[2:4)
        arrive 0 end
        issue =
        lost
        read = 1.0[0:2) 1.0[2:4)
        arrive 0 end
        issue =
        take = 0.0 end
        take = not ready
        issue =
        take = 1.0 end
        """,
    ),
    "an error of a stream comes in its place, and a seek reads again": (
        Stream,
        {},
        """
        seek 0.0
        issue =
        read = 0.0[0:2) 0.0[2:4)
        arrive 2
        arrive 1 error
        issue = 0.0[0:1) 0.0[1:2)
        finish 0.0[0:1) 0.0[1:2)
        take = 0.0
        take = 0.1 error from 0
        issue =
        read =
        seek 0.1
        read = 0.0[2:4) 0.1[0:2)
        """,
    ),
    "where the rest is given, a stream's last elements before its error are a batch, and the error comes with them": (
        Stream,
        {"gives_rest": True},
        """
        seek 0.0
        issue =
        read = 0.0[0:2) 0.0[2:4)
        arrive 2
        arrive 1 error
        issue = 0.0[0:1) 0.0[1:2) 0.1[0:1)
        finish 0.0[0:1) 0.0[1:2) 0.1[0:1)
        take = 0.0
        take = 0.1 error from 1
        """,
    ),
    "a seek in a stream gives up what is read, and its spans": (
        Stream,
        {},
        """
        seek 0.0
        issue =
        read = 0.0[0:2) 0.0[2:4)
        seek 5.4
        lost
        lost
        issue =
        read = 5.2[0:2) 5.2[2:4)
        arrive 2
        issue = 5.4[0:1) 5.4[1:2)
        """,
    ),
    "a stream is read no further than there are spans": (
        Stream,
        {"slot_count": 1},
        """
        seek 0.0
        issue =
        read = 0.0[0:2) 0.0[2:4)
        arrive 2
        arrive 2
        read = 0.1[0:2) 0.1[2:4)
        arrive 2
        arrive 2
        read = 0.2[0:2) 0.2[2:4)
        arrive 2
        arrive 2
        read =
        issue = 0.0[0:1) 0.0[1:2)
        finish 0.0[0:1) 0.0[1:2)
        take = 0.0
        issue = 0.1[0:1) 0.1[1:2)
        read =
        finish 0.1[0:1) 0.1[1:2)
        read = 0.3[0:2) 0.3[2:4)
        """,
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str) -> None:
    kind, options, table = TABLES[name]
    kind(**options).run(table)


def test_a_batch_of_a_stream_knows_how_far_its_input_was_read() -> None:
    table = Stream()
    table.run("seek 0.0\nissue =\nread = 0.0[0:2) 0.0[2:4)\narrive 2\nissue = 0.0[0:1) 0.0[1:2)")
    table.finish("0.0[0:1)", "0.0[1:2)")
    assert table.scheduler.take().consumed == 101


def test_a_stream_that_is_resumed_begins_at_its_cursor() -> None:
    table = Stream()
    table.seek("2.3", "77")
    assert table.stream is not None
    assert [unit.origin for unit in table.stream.issue(2)] == [(6, 77), (6, 77)]


def test_reads_are_announced_many_at_once_and_each_once() -> None:
    plan = ps.range(400).batch(4)
    program = ParallelProgram(plan._node)
    program.__dict__["announces"] = True
    table = Table(slot_count=100)
    table.scheduler = Scheduler(program, table.free)
    table.seek("0.0")
    announced = [unit.announce for unit in table.scheduler.issue(60, worker_count=2, row_s=0.0) if unit.announce[2]]
    assert announced[0] == (0, 1, 16)
    positions = [(epoch, index + step) for epoch, index, count in announced for step in range(count)]
    assert positions == [(0, index) for index in range(1, len(positions) + 1)]
    assert len(announced) < 10
