"""The way of a batch to a CUDA device, with a fake of the calls of CUDA: order, leases, and page-locked memory."""

import gc
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.framework

X = np.arange(240, dtype=np.float32).reshape(60, 4)


class FakeCopying:
    """Keeps its source, as the real one."""

    def __init__(self, source, number):
        self.source = source
        self.number = number

    def wait(self):
        pass


class FakeRuntime:
    """Keeps what it was asked, and copies when the event is waited for."""

    def __init__(self, *, allows: bool = True) -> None:
        self.allows = allows
        self.calls: list[tuple[str, int]] = []
        self.pending: list[list[tuple[Any, Any]]] = []

    def register(self, address, nbytes):
        self.calls.append(("register", nbytes))
        return self.allows

    def unregister(self, address):
        self.calls.append(("unregister", address))

    def copy(self, leaves):
        import torch

        copies = [torch.empty_like(leaf) for leaf in leaves]
        self.pending.append(list(zip(leaves, copies, strict=True)))
        self.calls.append(("copy", len(self.pending)))
        return FakeCopying(leaves, len(self.pending)), copies

    def finish(self, copying, copies):
        for source, target in self.pending[copying.number - 1]:
            target.copy_(source)
        self.pending[copying.number - 1] = []
        self.calls.append(("finish", copying.number))


@pytest.fixture
def adapter_of(monkeypatch):
    torch = pytest.importorskip("torch")
    from penstock.adapters.torch import TorchAdapter

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("penstock.adapters.torch._as_device", lambda device: torch.device(device or "cpu"))
    adapters = []

    def make(runtime, *, device="cuda", pin_memory=True, **options):
        loader = ps.from_arrays(X).shuffle(seed=1).batch(8, drop_remainder=True).loader(**options)
        adapters.append(TorchAdapter(loader, pin_memory=pin_memory, device=device, runtime=runtime))
        return adapters[-1]

    yield make
    for each in adapters:
        each.close()


def expected(**options):
    with ps.from_arrays(X).shuffle(seed=1).batch(8, drop_remainder=True).loader("inline") as loader:
        return [batch.copy() for batch in loader]


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_batch_is_copied_from_its_slot_one_ahead(adapter_of, executor):
    runtime = FakeRuntime()
    found = [batch.numpy() for batch in adapter_of(runtime, executor=executor)]
    for batch, want in zip(found, expected(), strict=True):
        np.testing.assert_array_equal(batch, want)
    order = [call for call in runtime.calls if call[0] in ("copy", "finish")]
    assert order[:5] == [("copy", 1), ("finish", 1), ("copy", 2), ("copy", 3), ("finish", 2)]


def test_the_ring_is_registered_once_and_taken_back_at_the_end(adapter_of):
    runtime = FakeRuntime()
    adapter = adapter_of(runtime, executor="threads")
    for _ in range(3):
        list(adapter)
    assert [name for name, _ in runtime.calls if name != "copy" and name != "finish"] == ["register"]
    assert runtime.calls[0][1] >= 6 * 8 * X[0].nbytes
    adapter.close()
    assert [name for name, _ in runtime.calls].count("unregister") == 1


def test_a_ring_that_nobody_closes_is_taken_back_when_it_is_dropped(adapter_of):
    from penstock.adapters.torch import TorchAdapter

    runtime = FakeRuntime()
    loader = ps.from_arrays(X).batch(8).loader("threads")
    adapter = TorchAdapter(loader, pin_memory=True, device="cuda", runtime=runtime)
    next(iter(adapter))
    del adapter, loader
    gc.collect()
    assert [name for name, _ in runtime.calls].count("unregister") == 1


def test_a_slot_stays_leased_until_its_copy_is_done(adapter_of):
    runtime = FakeRuntime()
    adapter = adapter_of(runtime, executor="threads", prefetch=2)
    batches = iter(adapter)
    first = next(batches)
    second = next(batches)  # the third is on its way now, and not copied before its event
    want = expected()
    np.testing.assert_array_equal(first.numpy(), want[0])
    np.testing.assert_array_equal(second.numpy(), want[1])
    source, _ = runtime.pending[2][0]
    np.testing.assert_array_equal(source.numpy(), want[2])
    np.testing.assert_array_equal(next(batches).numpy(), want[2])


def test_memory_that_cannot_be_registered_is_copied_into_memory_of_torch(adapter_of, monkeypatch):
    pinned = []
    monkeypatch.setattr("torch.Tensor.pin_memory", lambda self: pinned.append(1) or self.clone())
    found = [batch.numpy() for batch in adapter_of(FakeRuntime(allows=False), executor="threads")]
    assert len(pinned) == len(found) == 7


def test_tensors_of_a_registered_ring_are_not_copied(adapter_of, monkeypatch):
    monkeypatch.setattr("torch.Tensor.pin_memory", lambda self: pytest.fail("it is pinned already"))
    adapter = adapter_of(FakeRuntime(), device=None, executor="threads")
    for batch, want in zip(adapter, expected(), strict=True):
        np.testing.assert_array_equal(batch.numpy(), want)


def test_kept_batches_are_private_copies_and_pinned_one_by_one(adapter_of, monkeypatch):
    pinned = []
    monkeypatch.setattr("torch.Tensor.pin_memory", lambda self: pinned.append(1) or self.clone())
    kept = list(adapter_of(FakeRuntime(), device=None, executor="threads", prefetch=1))
    assert 0 < len(pinned) < len(kept)
    for batch, want in zip(kept, expected(), strict=True):
        np.testing.assert_array_equal(batch.numpy(), want)
