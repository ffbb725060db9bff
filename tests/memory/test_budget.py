"""Memory is known before the first read, and refused then."""

import math
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base._random import BLOCK_CACHE_NBYTES
from penstock.base._units import size_text
from penstock.memory._budget import Budget

PAGE = 4096


def frames(count: int = 1000, shape: tuple[int, ...] = (3, 50, 50)) -> ps.Dataset:
    return ps.from_arrays(np.broadcast_to(np.float64(0), (count, *shape)))


@pytest.mark.parametrize("prefetch", [1, 4, 9])
def test_projected_memory_of_plain_batches_is_the_ring(prefetch: int) -> None:
    with frames().batch(32).loader(prefetch=prefetch) as loader:
        slot_nbytes = -(-32 * 60_000 // PAGE) * PAGE
        assert loader.projected_nbytes == (prefetch + 2) * slot_nbytes
        assert loader.report().slot_nbytes == slot_nbytes
        assert loader.report().slot_count == prefetch + 2


def test_projected_memory_is_the_sum_of_its_parts() -> None:
    with frames().shuffle(1).map(lambda x: x).batch(32).loader(executor="threads", workers=3) as loader:
        ring = 6 * (-(-32 * 60_000 // PAGE) * PAGE)
        scratch = (2**20 // 60_000) * 60_000  # a chunk of the function's input, about 1 MiB
        assert loader.projected_nbytes == ring + 3 * scratch + BLOCK_CACHE_NBYTES


def test_projected_memory_does_not_grow_with_the_number_of_elements() -> None:
    small, large = (ps.range(count).shuffle(1).batch(8).loader(workers=2) for count in (100, 10**12))
    assert small.projected_nbytes == large.projected_nbytes


def test_projected_memory_is_right_for_a_shard() -> None:
    whole = frames().batch(32).loader()
    part = frames().batch(32).loader(shard=(1, 4))
    assert part.projected_nbytes == pytest.approx(whole.projected_nbytes / 4, rel=0.02)


def test_what_has_no_parts_is_made_whole_for_each_shard() -> None:
    mapped = frames().batch(32).map(lambda x: x)
    whole, part = mapped.loader("threads", workers=2), mapped.loader("threads", workers=2, shard=(1, 4))
    ring = whole.projected_nbytes - 2 * 32 * 60_000  # without the input of the function, which both have
    assert part.projected_nbytes == pytest.approx(ring / 4 + 2 * 2 * 32 * 60_000, rel=0.01)


def test_ragged_elements_that_wait_are_counted_where_they_must_fit() -> None:
    ragged = ps.from_generator(lambda: iter(()), element_spec=ps.ArraySpec((None,), "float64"))
    slot = 32 * 8192 * 8
    unknown = ragged.padded_batch(32).loader("threads").projected_nbytes
    known = ragged.padded_batch(32, padded_shapes=(8192,)).loader("threads", workers=1).projected_nbytes
    # Six slots; four spans of a batch each; and a worker's elements, and what it makes of them.
    assert unknown < 2**16
    assert known == pytest.approx((6 + 4 + 2) * slot, rel=0.01)


def test_a_bucket_of_elements_of_one_size_has_a_place_in_the_ring() -> None:
    spec = ps.ArraySpec((1000,), "float64")
    ds = ps.range(40).map(lambda x: np.zeros(1000), element_spec=spec).bucket_by_length(lambda row: 1, [5], [4, 8])
    assert ds.element_spec.max_shape == (8, 1000)
    with ds.loader(executor="inline") as loader:
        assert loader.projected_nbytes > 6 * 8 * 1000 * 8
        assert [len(batch) for batch in loader] == [4] * 10


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_shuffle_window_counts_in_projected_memory(executor: Any) -> None:
    def large() -> Iterator[Any]:
        for i in range(60):
            yield np.full(10_000, i)

    dataset = ps.from_generator(large, element_spec=ps.ArraySpec((10_000,), "int64"))
    with dataset.loader(executor) as plain, dataset.shuffle(window=20).loader(executor) as shuffled:
        assert shuffled.projected_nbytes - plain.projected_nbytes >= 20 * 80_000 * 0.9
        assert sorted(int(row[0]) for row in shuffled) == list(range(60))
    with ps.range(60).shuffle(1).loader(executor) as indices_alone:
        assert indices_alone.projected_nbytes < 8 << 20


def test_a_batch_above_the_limit_is_refused_before_anything_is_read() -> None:
    reads = []

    class Watched(ps.Source):
        element_spec = ps.ArraySpec((1024, 1024), "float32")

        def __len__(self) -> int:
            return 100

        def read_into(self, indices: object, out: object) -> None:
            reads.append(indices)

    dataset = ps.from_source(Watched()).batch(16, drop_remainder=True)
    with pytest.raises(ps.MemoryLimitError) as caught:
        dataset.loader(memory_limit=2**28)
    assert str(caught.value) == (
        "Projected memory is 384 MiB, above memory_limit=256 MiB. 384 MiB of it is the ring after "
        "batch(16, drop_remainder=True): 6 slots of 64 MiB, (16, 1024, 1024) float32. Use a batch of 10, "
        "or a smaller prefetch (prefetch=2 fits)."
    )
    assert isinstance(caught.value, MemoryError)
    assert not reads


def test_slots_above_the_memory_that_is_free_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ds = frames().batch(32)
    for free, options in ((2**24, {}), (2**23, {"memory_limit": 2**24}), (None, {})):
        monkeypatch.setattr("penstock.loader.free_nbytes", lambda free=free: free)
        ds.loader(**options)
    assert not caplog.messages
    monkeypatch.setattr("penstock.loader.free_nbytes", lambda: 2**23)
    ds.loader("inline")
    (text,) = caplog.messages
    assert text.startswith(
        "The loader may take 11.0 MiB, and 8 MiB are free, so the system may kill it: 6 slots of 1.8 "
    )
    assert "(None, 3, 50, 50) float64" in text


@pytest.mark.parametrize("prefetch", [1, 4, 10])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.2, 0.1])
def test_the_batch_that_is_said_to_fit_fits(share: float, prefetch: int) -> None:
    rows = ps.from_arrays({"x": np.zeros((200, 1000)), "y": np.zeros((200, 3), np.uint8)})
    limit = int(share * rows.batch(64).loader(prefetch=prefetch).projected_nbytes)
    with pytest.raises(ps.MemoryLimitError) as caught:
        rows.batch(64).loader(prefetch=prefetch, memory_limit=limit)
    found = re.search(r"Use a batch of (\d+)( with prefetch=1)?[,;.]", str(caught.value))
    assert found is not None
    size, used = int(found[1]), 1 if found[2] else prefetch
    rows.batch(size).loader(prefetch=used, memory_limit=limit)
    with pytest.raises(ps.MemoryLimitError):
        rows.batch(size + 2).loader(prefetch=used, memory_limit=limit)


def test_the_prefetch_that_is_said_to_fit_fits() -> None:
    dataset = frames().shuffle(1).batch(32)
    limit = dataset.loader(prefetch=3).projected_nbytes
    with pytest.raises(ps.MemoryLimitError, match=r"prefetch=3 fits"):
        dataset.loader(prefetch=10, memory_limit=limit)
    dataset.loader(prefetch=3, memory_limit=limit)
    with pytest.raises(ps.MemoryLimitError) as caught:
        dataset.loader(prefetch=10, memory_limit=1000)
    assert "prefetch=" not in str(caught.value)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (3 * 2**19, "1.5 MiB"), (147 * 2**20 + 1, "147 MiB"),
     (5 * 2**30, "5 GiB")],
)  # fmt: skip
def test_bytes_for_people(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


def test_budget_is_its_items() -> None:
    items = Budget(3, 100, 20, 7, 5, 6, 8, 4, "batch(2)", "(2,) uint8")
    assert items.projected_nbytes == 350
    items.require(None)
    items.require(350)
    assert items.source_share(350) == 1
    assert items.source_share(346) == 0.5
    assert items.source_share(100) == 0
    assert math.isclose(items.ring_nbytes, 300)


def test_a_limit_that_is_too_small_for_elements_of_any_size_is_told_what_takes_it() -> None:
    """They have no slots, so that no smaller prefetch fits."""
    sentences = ps.from_source([np.arange(3), np.arange(5)], element_spec=ps.ArraySpec((None,), "int64"))
    with pytest.raises(
        ps.MemoryLimitError, match=r"4 MiB of it is blocks of shuffled positions\. .*: raise the limit\.$"
    ):
        sentences.shuffle(seed=1).padded_batch(2).loader(memory_limit=2**20)
    with pytest.raises(
        ps.MemoryLimitError, match=r"93 MiB of it is what 1 worker process takes\. Use executor='threads'"
    ):
        sentences.padded_batch(2).loader("processes", workers=1, memory_limit=2**20)


def test_worker_processes_count_where_there_are_some() -> None:
    dataset = ps.range(100).map(lambda x: x).batch(4)
    limit = 150 << 20
    with dataset.loader("threads", workers=2, memory_limit=limit), dataset.loader("processes", 2, memory_limit=limit):
        pass
    with pytest.raises(ps.MemoryLimitError) as caught:
        dataset.loader("processes", workers=3, memory_limit=limit)
    said = str(caught.value)
    assert "and 183 MiB for 3 worker processes, above memory_limit=150 MiB. 183 MiB of it is what" in said
    assert "Use executor='threads', or fewer workers: each process takes 45 MiB, and their pool 48 MiB here." in said


def test_a_refusal_of_worker_processes_names_a_batch_that_fits() -> None:
    elements, limit = ps.range(1000).map(lambda x: np.zeros(1 << 16)), 180 << 20  # of half a MiB
    with pytest.raises(ps.MemoryLimitError) as caught:
        elements.batch(32).loader("processes", workers=2, memory_limit=limit)
    assert "Use a batch of 13; or use executor='threads', or fewer workers: each" in str(caught.value)
    elements.batch(13).loader("processes", workers=2, memory_limit=limit).close()


@pytest.mark.skipif(sys.platform != "linux", reason="measured by /proc")
def test_a_cache_in_memory_is_measured_although_it_is_nowhere_mapped() -> None:
    with frames(200).map(lambda x: x.copy()).cache().batch(20).loader("threads", workers=1) as loader:
        for _ in loader:
            pass
        assert loader.report().peak_nbytes >= 200 * 60_000 / 2  # what other tests left is given back meanwhile


def test_the_report_sets_what_was_measured_beside_what_was_projected() -> None:
    with frames(64).batch(32).loader("threads") as loader:
        assert len(list(loader)) == 2
        kept = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE)  # no memory that was freed before
        kept.write(bytes(64 << 20))
        report = loader.report()
    assert report.reserved_nbytes > 8 << 20
    assert report.peak_nbytes >= 32 << 20, "this is the program's, and grew meanwhile"
    assert f"; {report.projected_nbytes / 2**20:.0f} MiB projected (" in str(report).splitlines()[3]
    assert str(report).splitlines()[3].startswith("memory: grew by ")


class Keeps:
    """Looks like a source, and keeps some of its data."""

    element_spec = ps.ArraySpec((), "int64")

    def __init__(self, kept_nbytes: int = 5 << 20) -> None:
        self.kept_nbytes = kept_nbytes

    def __len__(self) -> int:
        return 100

    def read_into(self, indices: Any, out: Any) -> None:
        out[...] = indices

    def with_cache_limit(self, nbytes: int) -> "Keeps":
        return Keeps(max(1 << 20, nbytes))


def test_what_sources_keep_is_counted_once_for_each_process_and_gives_way_to_a_limit() -> None:
    plain, kept = (ps.from_source(each).batch(4) for each in (Keeps(0), Keeps()))
    for executor, workers, count in (("inline", 1, 1), ("threads", 3, 1), ("processes", 3, 3)):
        options: dict[str, Any] = {"executor": executor, "workers": workers}
        with plain.loader(**options) as loader:
            rest, overhead = loader.projected_nbytes, loader.report().overhead_nbytes
        with kept.loader(**options) as loader:
            assert loader.projected_nbytes == rest + count * (5 << 20)
        limit = rest + overhead + count * (2 << 20)
        with kept.loader(**options, memory_limit=limit) as loader:
            assert limit - count <= loader.projected_nbytes + overhead <= limit
            if executor != "processes":
                assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        with pytest.raises(ps.MemoryLimitError, match=rf"^Projected memory is {count}"):
            kept.loader(**options, memory_limit=rest + overhead + count * (1 << 20) - 1)


# ---------------------------------------------------------------------------------------------- lying headers

HUGE = 1 << 47  # columns: more than the address space


def huge_hdf5(folder: Path) -> ps.Dataset:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "lies.x", "w") as file:
        return ps.from_arrays(file.create_dataset("x", (4, HUGE), "i2", chunks=(1, 8)))


def huge_npz(folder: Path) -> ps.Dataset:
    np.savez(
        folder / "lies.npz",
        indptr=np.zeros(5, "i4"),
        indices=np.zeros(0, "i8"),
        data=np.zeros(0, "i2"),
        shape=(4, HUGE),
        format=b"csr",
    )
    return ps.from_csr(folder / "lies.npz")


def huge_h5ad(folder: Path) -> ps.Dataset:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "lies.h5ad", "w") as file:
        file["X/indptr"], file["X/indices"], file["X/data"] = np.zeros(5, "i4"), np.zeros(0, "i8"), np.zeros(0, "i2")
        file["X"].attrs["encoding-type"], file["X"].attrs["shape"] = "csr_matrix", (4, HUGE)
    return ps.from_h5ad(folder / "lies.h5ad")


def huge_zarr(folder: Path) -> ps.Dataset:
    zarr = pytest.importorskip("zarr")
    zarr.create_array(str(folder / "lies.zarr"), shape=(4, HUGE), dtype="i2", chunks=(1, 8))
    return ps.from_zarr(folder / "lies.zarr")


def huge_source(folder: Path) -> ps.Dataset:
    class Lies(ps.Source):
        element_spec = ps.ArraySpec((HUGE,), "i2")

        def __len__(self) -> int:
            return 4

        def __str__(self) -> str:
            return "lies.own"

        def read_into(self, indices: Any, out: Any) -> None:
            raise AssertionError("it was read")

    return ps.from_source(Lies())


READS: dict[str, Any] = {
    "one": lambda ds: ds[0],
    "all": lambda ds: next(iter(ds)),
    "map": lambda ds: ds.map(len)[0],
    "batch": lambda ds: ds.batch(3)[0],
    "stream": lambda ds: next(iter(ds.filter(len))),
    "inline": lambda ds: next(iter(ds.batch(3).loader("inline"))),
    "threads": lambda ds: next(iter(ds.shuffle(1).batch(3).loader("threads"))),
    "limit": lambda ds: ds.batch(3).loader("threads", memory_limit=1 << 30),
    "map and limit": lambda ds: ds.map(np.sum, element_spec=ps.ArraySpec((), "i8")).loader(memory_limit=1 << 30),
}
LIES = [huge_hdf5, huge_npz, huge_h5ad, huge_zarr, huge_source]


@pytest.mark.parametrize("make", LIES)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_an_element_that_no_memory_holds_is_an_error_with_its_file_before_it_is_read(
    make: Any, read: Any, tmp_path: Path
) -> None:
    with pytest.raises(ps.MemoryLimitError) as caught:
        read(make(tmp_path))
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert re.search(r"lies\.", text), text
    assert re.search(r"\d TiB", text), text


def test_a_source_that_gets_no_memory_is_an_error_with_the_element() -> None:
    class Hungry(Keeps):
        def read_into(self, indices: Any, out: Any) -> None:
            np.empty(HUGE)

        def describe(self, index: int) -> str:
            return f"row {index} of hungry.own"

    dataset = ps.from_source(Hungry())
    with pytest.raises(MemoryError, match=r"Unable to allocate 1\.00 PiB") as caught:
        dataset[7]
    assert any("row 7 of hungry.own" in note for note in caught.value.__notes__)
    with pytest.raises(MemoryError, match=r"Unable to allocate 1\.00 PiB") as caught:
        list(dataset.batch(4).loader("threads"))
    assert any("row 0 of hungry.own" in note for note in caught.value.__notes__)


def test_categories_and_starts_of_more_rows_than_memory_holds_are_errors_with_the_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "lies.h5ad", "w") as file:
        file.create_dataset("X/indptr", (HUGE + 1,), "i8", chunks=(8,))
        file["X/indices"], file["X/data"] = np.zeros(0, "i8"), np.zeros(0, "i2")
        file["X"].attrs["encoding-type"], file["X"].attrs["shape"] = "csr_matrix", (HUGE, 3)
        file.create_dataset("obs/kind/codes", (HUGE,), "i1", chunks=(8,))
        file["obs/kind/categories"], file["obs/kind"].attrs["encoding-type"] = ["a"], "categorical"
    text = r"lies\.h5ad.*Unable to allocate"
    with pytest.raises(ps.SourceError, match=text):
        ps.from_h5ad(tmp_path / "lies.h5ad")[0]
    with pytest.raises(ps.SourceError, match=text):
        next(iter(ps.from_h5ad(tmp_path / "lies.h5ad", ["kind"]).select("kind").batch(3).loader("threads")))
