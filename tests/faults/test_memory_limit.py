"""A worker process gets no more memory than its share, and what asks for more is an error of its element."""

import json
import mmap
import os
import resource
import struct
import subprocess
import sys
import threading
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("leaves_nothing_behind")]

LIMIT = 500 << 20
COUNT, BAD = 6, 3


def hungry(x: Any) -> Any:
    if int(x) == BAD:
        np.ones(8 << 30, np.uint8)
    return x


def aborts(x: Any) -> Any:
    if int(x) == BAD:
        try:
            np.ones(8 << 30, np.uint8)
        except MemoryError:
            os.abort()  # as compiled code does
    return x


def starts_threads(x: Any) -> Any:
    if int(x) != BAD:
        return x
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(16)]
    given = threading.stack_size(1 << 30)
    try:
        for thread in threads:
            thread.start()
    finally:
        end.set()
        threading.stack_size(given)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    return x


def write_png(path: Path, side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((1 + 3 * side) * min(side, 64)))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def pictures(folder: Path) -> tuple[ps.Dataset, list[Any]]:
    pytest.importorskip("cv2")
    for number in range(COUNT):
        write_png(folder / f"{number}.png", 32_000 if number == BAD else 16)
    paths = [str(folder / f"{number}.png") for number in range(COUNT)]
    dataset = ps.from_image_files(paths, list(range(COUNT)), image_size=(8, 8))
    return dataset.map(lambda pair: pair[1]), list(range(COUNT))


def texts_of_hdf5(folder: Path) -> tuple[ps.Dataset, list[Any]]:
    h5py = pytest.importorskip("h5py")
    path, texts = folder / "texts.h5", [f"text {number}" for number in range(COUNT)]
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (COUNT,), h5py.string_dtype())
        dataset[:] = texts
        file.flush()
        place = dataset.id.get_offset()
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, place + 16 * BAD, 0xFFFFFFF0)  # a length, before the place of the text
    path.write_bytes(data)
    return ps.from_hdf5(path).map(lambda row: row["x"]), texts


def frames_of_a_film(folder: Path) -> tuple[ps.Dataset, list[Any]]:
    av = pytest.importorskip("av")
    sizes = [16] * COUNT
    with av.open(str(folder / "film.mov"), "w") as film:
        stream = film.add_stream("png", rate=10)
        stream.width = stream.height = 16
        stream.pix_fmt = "rgb24"
        for number, side in enumerate(sizes):
            write_png(folder / "frame.png", 16_000 if number == BAD else side)
            packet = av.Packet((folder / "frame.png").read_bytes())
            packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, number, number, True
            packet.time_base = Fraction(1, 10)
            film.mux(packet)
    return ps.from_videos(str(folder / "film.mov")).map(lambda frame: frame["frame"].shape[0]), sizes


SOURCES = {"PNG": pictures, "HDF5": texts_of_hdf5, "film": frames_of_a_film}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_file_that_asks_for_more_is_an_error_with_its_name_and_the_run_goes_on(make: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    dataset, values = make(tmp_path / "data")
    options: dict[str, Any] = {"executor": "processes", "workers": 1, "memory_limit": LIMIT}
    with (
        dataset.batch(1).loader(**options) as loader,
        pytest.raises((ps.SourceError, ps.MemoryLimitError, ps.ElementError, ps.WorkerError)) as caught,
    ):
        list(loader)
    assert str(tmp_path / "data") in str(caught.value)
    aside = tmp_path / "aside.jsonl"
    with dataset.batch(1).loader(**options, on_error="skip", quarantine=aside) as loader:
        found = [batch.tolist()[0] for batch in loader]
    assert found == [value for number, value in enumerate(values) if number != BAD]
    assert len(aside.read_text().splitlines()) == 1


def test_a_dictionary_of_parquet_that_expands_gives_its_rows_or_an_error_with_the_file(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "dictionary.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3_000, "i4")), pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({"t": texts}), path)
    dataset = ps.from_parquet(path).map(lambda row: len(row["t"]), element_spec=ps.ArraySpec((), "int64"))
    with dataset.batch(10).loader("processes", 1, memory_limit=LIMIT) as loader:
        try:
            assert {int(n) for batch in loader for n in batch} == {1_000_000}
        except ps.PenstockError as error:
            assert "dictionary.parquet" in str(error)  # noqa: PT017


@pytest.mark.parametrize("function", [hungry, aborts, starts_threads])
def test_a_function_that_asks_for_more_costs_its_element(function: Any, tmp_path: Path) -> None:
    dataset = ps.range(COUNT).map(function, element_spec=ps.ArraySpec((), "int64")).batch(1)
    options: dict[str, Any] = {"executor": "processes", "workers": 1, "memory_limit": LIMIT}
    with dataset.loader(**options) as loader, pytest.raises(ps.PenstockError, match=f"element {BAD} of") as caught:
        list(loader)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "A worker process may reserve 1." in text
    assert "raise memory_limit" in text
    aside = tmp_path / "aside.jsonl"
    with dataset.loader(**options, on_error="skip", quarantine=aside) as loader:
        assert [batch.tolist() for batch in loader] == [[x] for x in range(COUNT) if x != BAD]
    assert "A worker process may reserve 1." in json.loads(aside.read_text())["message"]


def test_an_error_of_a_function_whose_file_has_memory_in_its_name_is_not_about_memory() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("no such frame")

    assert "memory" in Path(__file__).name
    dataset = ps.range(COUNT).map(fails, element_spec=ps.ArraySpec((), "int64")).batch(1)
    with (
        dataset.loader("processes", 1, memory_limit=LIMIT) as loader,
        pytest.raises(ps.ElementError, match="no such frame") as caught,
    ):
        list(loader)
    assert not any("may reserve" in note for note in caught.value.__notes__)


def test_a_program_that_a_function_starts_inherits_the_limit_and_may_raise_it() -> None:
    def run(x: Any) -> Any:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        code = f"import mmap; mmap.mmap(-1, {soft}, {mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS})"
        lift = (lambda: resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))) if x else None
        return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, preexec_fn=lift).returncode

    dataset = ps.range(2).map(run, element_spec=ps.ArraySpec((), "int64")).batch(2)
    with dataset.loader("processes", 1, memory_limit=LIMIT) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 0]]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_worker_whose_function_keeps_what_it_read_is_replaced_when_it_gets_no_more(
    on_error: Any, tmp_path: Path
) -> None:
    kept: list[Any] = []

    def keep(x: Any) -> Any:
        kept.append(np.ones(100 << 20, np.uint8))
        return x

    dataset = ps.range(16).map(keep, element_spec=ps.ArraySpec((), "int64")).batch(2)
    options: dict[str, Any] = {"memory_limit": LIMIT, "on_error": on_error, "quarantine": tmp_path / "aside.jsonl"}
    with dataset.loader("processes", 1, 1, **options) as loader:
        assert [batch.tolist() for batch in loader] == [[x, x + 1] for x in range(0, 16, 2)]
    assert not (tmp_path / "aside.jsonl").exists()


def test_a_large_table_in_a_function_needs_no_limit_and_counts_for_none_if_it_travels() -> None:
    table = np.ones(1 << 28, np.uint8)

    def read(x: Any) -> Any:
        return int(table[x]) + int(np.zeros(1 << 30, np.uint8)[x])

    dataset = ps.range(COUNT).map(read, element_spec=ps.ArraySpec((), "int64")).batch(1)
    for limit in (None, 1200 << 20):
        with dataset.loader("processes", 1, memory_limit=limit) as loader:
            assert [batch.tolist() for batch in loader] == [[1]] * COUNT
