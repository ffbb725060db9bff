"""Slots, and the leases on them. Nothing runs here: the test is the worker and the consumer."""

import gc
import itertools
import os
import re
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import native
from penstock.base._spec import Spec
from penstock.memory._ring import Ring
from tests.native.engines import MODULES
from tests.run.common import mapping_count, name_rings

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

PAIR = (ps.ArraySpec((5, 3), "float32"), ps.ArraySpec((5,), "int64"))


class Wakes:
    """Counts how often a slot came back."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


def make(wakes: Callable[[], None], *, slot_count: int = 4, spec: Any = PAIR, is_shared: bool = False) -> Ring:
    return Ring(Spec.of(spec), slot_count, wakes, is_shared=is_shared)


def filled(ring: Ring, value: float) -> int:
    """Takes a free slot and writes a value everywhere in it."""
    slot = ring.free.pop()
    for array in ring.rows(slot).arrays:
        array[...] = value
    return slot


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_the_slot_of_a_dropped_batch_is_the_next_one_filled(wakes: Wakes) -> None:
    ring = make(wakes)
    addresses = set()
    for value in range(20):
        batch = ring.hand_out(filled(ring, value))
        assert batch[0].tolist() == np.full((5, 3), value).tolist()
        addresses.add(address(batch[0]))
        del batch
    assert len(addresses) == 1
    assert wakes.count == 20
    assert ring.leased_count == 0


VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda a: a,
    "view of a view": lambda a: a[1:][::2, 1:],
    "transposed": lambda a: a.T,
    "reshaped": lambda a: a.reshape(-1)[3:],
    "other dtype": lambda a: a.view(np.uint8),
    "subclass": lambda a: a.view(np.matrix)[1:],
    "record array": lambda a: a.view(np.recarray),
    "diagonal": lambda a: a.diagonal(),
    "broadcast": lambda a: np.broadcast_to(a, (2, 5, 3)),
    "strided": lambda a: np.lib.stride_tricks.as_strided(a, (2,), (4,)),
    "window": lambda a: np.lib.stride_tricks.sliding_window_view(a, (2, 2)),
    "memoryview": memoryview,
    "asarray of a memoryview": lambda a: np.asarray(memoryview(a))[2],
    "frombuffer": lambda a: np.frombuffer(a, np.uint8),
    "flat": lambda a: a.flat,
    "iterator over rows": iter,
    "ctypes": lambda a: a.ctypes,
    "dlpack": lambda a: np.from_dlpack(a)[1:],
    "interface": lambda a: np.asarray(type("Holder", (), {"__array_interface__": a.__array_interface__, "a": a})()),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_view_alone_keeps_the_slot(wakes: Wakes, view: Callable[[Any], Any]) -> None:
    ring = make(wakes)
    kept = view(ring.hand_out(filled(ring, 7))[0])
    assert ring.leased_count == 1
    assert wakes.count == 0
    del kept
    gc.collect()  # NumPy's `ctypes` object is in a cycle
    assert ring.leased_count == 0
    assert wakes.count == 1


def test_one_leaf_keeps_the_slot_of_all(wakes: Wakes) -> None:
    ring = make(wakes)
    _, labels = ring.hand_out(filled(ring, 7))
    assert ring.leased_count == 1
    del labels, _
    assert ring.leased_count == 0


def test_batches_are_copies_when_fewer_than_two_slots_would_be_left(wakes: Wakes) -> None:
    ring = make(wakes, slot_count=4)
    batches = [ring.hand_out(filled(ring, value)) for value in range(6)]
    assert ring.leased_count == 2
    assert ring.copied_count == 4
    assert [batch[1].tolist() for batch in batches] == [[value] * 5 for value in range(6)]
    assert len(set(ring.free)) == 2
    del batches[2:]  # copies: no slot comes back
    assert wakes.count == 4
    assert ring.leased_count == 2


@pytest.mark.parametrize("is_enabled", [True, False])
def test_batches_that_only_cycles_hold_are_no_reason_to_copy(is_enabled: bool, wakes: Wakes) -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(1 << 30)  # so that it is not by chance that they are found
    try:
        if is_enabled:
            gc.enable()
        ring = make(wakes, slot_count=4)
        for value in range(20):
            batch = ring.hand_out(filled(ring, value))
            cycle: list[Any] = [batch]
            cycle.append(cycle)
            assert batch[1].tolist() == [value] * 5
            del batch, cycle
        assert ring.copied_count == (0 if is_enabled else 18), "who turned the collector off wants no collection"
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()


def test_scalars_are_copies_and_hold_nothing(wakes: Wakes) -> None:
    ring = make(wakes, spec={"x": ps.ArraySpec((), "float64"), "n": ps.ArraySpec((), "int32")})
    batch = ring.hand_out(filled(ring, 3))
    assert batch == {"x": 3.0, "n": 3}
    assert type(batch["x"]) is np.float64
    assert ring.leased_count == 0
    assert len(ring.free) == 4


def test_leaves_are_aligned_writable_and_contiguous(wakes: Wakes) -> None:
    spec = tuple(ps.ArraySpec((size,), dtype) for size in (1, 3, 7) for dtype in ("uint8", "float64", "complex128"))
    ring = make(wakes, spec=spec)
    batches = [ring.hand_out(filled(ring, value)) for value in (1, 2)]
    for leaf in (leaf for batch in batches for leaf in batch):
        assert address(leaf) % 64 == 0
        assert leaf.flags.writeable
        assert leaf.flags.c_contiguous
    spans = sorted((address(leaf), leaf.nbytes) for batch in batches for leaf in batch)
    assert all(first + nbytes <= second for (first, nbytes), (second, _) in itertools.pairwise(spans))


def test_a_batch_that_its_user_changes_changes_no_other(wakes: Wakes) -> None:
    ring = make(wakes)
    one, other = (ring.hand_out(filled(ring, value)) for value in (1, 2))
    one[0][...] = 99
    assert other[0].tolist() == np.full((5, 3), 2).tolist()


def test_varying_leaves_are_cut_to_what_is_used(wakes: Wakes) -> None:
    ring = make(wakes, spec=ps.ArraySpec((None, 2), "int16", max_shape=(6, 2)))
    slot = filled(ring, 4)
    ring.rows(slot).set_extents(np.array([3]))
    batch = ring.hand_out(slot)
    assert batch.shape == (3, 2)
    ring.rows(slot).set_extents(np.array([5]))
    assert batch.shape == (3, 2)


def test_batches_outlive_the_ring_and_free_its_memory_last(wakes: Wakes, monkeypatch: pytest.MonkeyPatch) -> None:
    name_rings(monkeypatch)
    ring = make(wakes)
    batch = ring.hand_out(filled(ring, 5))
    ring.release()
    alive = weakref.ref(ring)
    del ring
    assert alive() is None
    assert batch[0].sum() == 75
    assert mapping_count() == 1
    del batch
    assert mapping_count() == 0


def test_release_is_followed_by_an_error_and_not_by_a_crash(wakes: Wakes) -> None:
    ring = make(wakes)
    slot = filled(ring, 5)
    ring.release()
    ring.release()
    with pytest.raises(ps.LoaderError, match="closed while a batch was being taken"):
        ring.hand_out(slot)


def test_lost_slots_are_found_again_and_leased_or_busy_ones_are_not(wakes: Wakes) -> None:
    ring = make(wakes, slot_count=5)
    lost, leased, busy = filled(ring, 1), filled(ring, 2), filled(ring, 3)
    batch = ring.hand_out(leased)
    ring.reclaim({busy})
    assert sorted(ring.free) == sorted(set(range(5)) - {leased, busy})
    assert lost in ring.free
    ring.reclaim({busy})
    assert len(ring.free) == 3
    assert batch[1].tolist() == [2] * 5


@pytest.mark.parametrize(("implementation", "least"), [("native", 1), ("numpy", 2)])
def test_an_interrupt_while_a_slot_comes_back_leaves_it_free_and_in_nobodys_hands(
    wakes: Wakes, monkeypatch: pytest.MonkeyPatch, implementation: str, least: int
) -> None:
    if implementation not in MODULES:
        pytest.skip("the extension is not built")
    monkeypatch.setattr(native, "return_slot", MODULES[implementation].return_slot)
    place = 0
    while True:
        ring, struck = make(wakes), False
        batch = ring.hand_out(filled(ring, 1))
        left = place

        def strike(frame: Any, event: str, _: Any) -> None:
            nonlocal left, struck
            # Where a finalizer in Python begins, Python drops what strikes. The native one begins with no such place.
            name = frame.f_code.co_name
            if (event, name) in (("c_return", "return_slot"), ("call", "__call__")):
                left -= 1
                if left < 0:
                    struck = True
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        sys.setprofile(strike)
        try:
            del batch
        finally:
            sys.setprofile(None)
        assert ring.leased_count == 0, place
        assert sorted(ring.free) == [0, 1, 2, 3], place
        assert len(ring.interrupts) == struck
        if not struck:
            break
        place += 1
    assert place >= least


def test_leases_that_a_forked_child_may_hold_last_as_long_as_the_ring(wakes: Wakes) -> None:
    ring = make(wakes, is_shared=True)
    batch = ring.hand_out(filled(ring, 1))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    later = ring.hand_out(filled(ring, 2))
    del batch, later
    assert (ring.leased_count, len(ring.free), wakes.count) == (1, 3, 1)
    ring.reclaim(set())
    assert len(ring.free) == 3
    ring.release()
    assert ring.leased_count == 0


def test_no_memory_is_allocated_when_slots_are_reused(wakes: Wakes) -> None:
    ring = make(wakes, spec=ps.ArraySpec((1000, 100), "float64"))
    ring.hand_out(filled(ring, 0))
    tracemalloc.start()
    try:
        for value in range(50):
            ring.hand_out(filled(ring, value))
        _, peak_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_nbytes < 20_000


@pytest.mark.parametrize("slot_count", [10**11, 10**20])
def test_memory_that_the_system_does_not_give_is_said_with_the_cure(wakes: Wakes, slot_count: int) -> None:
    with pytest.raises(ps.MemoryLimitError) as caught:
        make(wakes, slot_count=slot_count)
    text = (
        rf"The system gives no [\d,]+ TiB for {slot_count:,} slots of 4 KiB, .*: .*\. Use a smaller prefetch or batch\."
    )
    assert re.fullmatch(text, str(caught.value)), str(caught.value)
    assert isinstance(caught.value.__cause__, (OSError, OverflowError))


@pytest.mark.slow
def test_slots_return_from_any_thread_each_once(wakes: Wakes) -> None:
    ring = make(wakes, slot_count=8)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            batches = [[ring.hand_out(filled(ring, value))] for value in range(6)]
            threads = [threading.Thread(target=batch.clear) for batch in batches]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(ring.free) == list(range(8))
    finally:
        sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def _no_garbage_collector() -> Iterator[None]:
    """What is free is free at once, and not when the collector comes."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_batch_does_not_change_in_a_forked_child(executor: Any) -> None:
    loader = ps.range(64).batch(4).loader(executor, prefetch=1)
    iterator = iter(loader)
    batch = next(iterator)
    out, mine = os.pipe()
    go, signal = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go, 1)
        os.write(mine, bytes(batch.tolist()))
        os._exit(0)
    del batch
    list(iterator)  # its slot is filled again
    os.write(signal, b"\0")
    os.waitpid(pid, 0)
    assert os.read(out, 4) == bytes([0, 1, 2, 3])
    for descriptor in (out, mine, go, signal):
        os.close(descriptor)
    loader.close()
