"""Memory that nobody wrote looks like nothing that a plan gives; a worker process that reads streams stays."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.lower._streams import FeedProgram
from penstock.memory._ring import Ring
from penstock.memory._rows import Rows
from penstock.run import _crew
from penstock.run.pool._pool import Pool, PoolClient, join_alone, registry
from tests.waits import DEADLINE_S

POISON = 0xA5
"""In every byte: -6510615555426900571 as int64, -2.9e-16 as float32, 165 as uint8."""


class PoisonedSlots(deque[int]):
    """The free slots of a ring. A slot that is taken to be filled is poisoned, whatever its last batch left in it."""

    ring: Ring

    def pop(self) -> int:
        slot = super().pop()
        poison(self.ring, slot)
        return slot

    def copy(self) -> "deque[int]":
        return deque(self)


def poison(ring: Ring, slot: int) -> None:
    # Not the words that say how much of a leaf is used: the copy engine knows what it wrote there.
    if ring.memory is not None:
        poison_rows(ring.rows(slot), 0, 1)


def poison_rows(rows: Rows, start: int, stop: int) -> None:
    for array in rows.arrays:
        if array.dtype.itemsize and not array.dtype.hasobject:
            array[start:stop] = np.frombuffer(bytes([POISON]) * array.dtype.itemsize, array.dtype)[0]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisons slots, spans and scratch memory of this process before each use."""
    make_ring, allocate, run_feed = Ring.__init__, Rows.allocate.__func__, FeedProgram.run  # type: ignore[attr-defined]

    def made(ring: Ring, *args: Any, **options: Any) -> None:
        make_ring(ring, *args, **options)
        slots = PoisonedSlots(ring.free)
        slots.ring = ring
        ring.free = slots
        for slot in range(ring.slot_count):
            poison(ring, slot)

    def allocated(cls: type[Rows], spec: Any, count: int) -> Rows:
        rows: Rows = allocate(cls, spec, count)
        poison_rows(rows, 0, count)
        return rows

    def fed(program: FeedProgram, reader: Any, unit: Any, memory: Any) -> int:
        poison_rows(program.layout.rows(memory.rows(unit.slot)), unit.start, unit.stop)
        return run_feed(program, reader, unit, memory)

    monkeypatch.setattr(Ring, "__init__", made)
    monkeypatch.setattr(Rows, "allocate", classmethod(allocated))
    monkeypatch.setattr(FeedProgram, "run", fed)


@pytest.fixture(scope="module", autouse=True)
def stream_worker_stays() -> Iterator[None]:
    """Lets loaders read a stream in a process that stays, because it takes longer to start than a plan to run.

    A loader that needs it while another one has it starts one of its own.
    """
    kept: list[PoolClient] = []

    def join(lines: list[str]) -> PoolClient:
        client = PoolClient(registry.join(Pool, "streams"), lines)
        client.pool.post(lambda: client.pool.require(1))
        return client

    def join_kept(lines: list[str]) -> PoolClient:
        if not kept:
            kept.append(join([]))
        client = join(lines)
        if client.pool.client_count <= 2:  # this one, and the kept one
            return client
        client.leave()
        return join_alone(lines)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_crew, "join_alone", join_kept)
        yield
    for client in kept:
        client.leave()
        assert client.join(DEADLINE_S)
