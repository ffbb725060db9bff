import gc
import os
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from penstock.memory import _shared
from penstock.memory._mapping import PAGE_NBYTES
from penstock.memory._shared import Place, SharedFile, lay_out, map_private, read_bytes

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


@pytest.fixture
def shared():
    file = SharedFile()
    yield file
    file.close()


def taken_nbytes(shared):
    return os.fstat(shared.descriptor).st_blocks * 512


def test_what_was_put_is_read_again_from_places_of_whole_pages(shared):
    first, empty, second = shared.put_bytes(b"abc"), shared.put_bytes(b""), shared.put_bytes(b"defg")
    assert [first, empty, second] == [Place(0, 3), Place(PAGE_NBYTES, 0), Place(2 * PAGE_NBYTES, 4)]
    assert [read_bytes(shared.descriptor, place) for place in (first, empty, second)] == [b"abc", b"", b"defg"]
    assert map_private(shared.descriptor, empty).shape == (0,)


def test_what_a_worker_writes_is_its_own(shared):
    place = shared.put_array(np.arange(10_000, dtype=np.uint8))
    one, other = map_private(shared.descriptor, place), map_private(shared.descriptor, place)
    one[:] = 255
    assert one.flags.writeable
    assert other[1] == 1
    assert read_bytes(shared.descriptor, place)[:3] == b"\0\1\2"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.zeros(3, [("a", "u1"), ("b", "f8", (2, 2))]),
        np.arange(6).reshape(2, 3).view(np.recarray),
        np.empty((0, 3)),
    ],
    ids=["C", "Fortran", "dates", "records", "subclass", "empty"],
)
def test_memory_of_any_array_is_put_as_it_lies(shared, array):
    place = shared.put_array(array)
    assert read_bytes(shared.descriptor, place) == array.tobytes("A")


def test_one_array_has_one_place_until_it_changes(shared):
    array = np.arange(3 * MIB // 8 + 5)
    place = shared.put_array(array)
    assert shared.put_array(array) == place
    array[-1] = 0
    changed = shared.put_array(array)
    assert changed != place
    assert shared.put_array(array) == changed
    assert shared.put_array(array.copy()) not in (place, changed)


def test_only_a_weak_reference_is_kept(shared):
    array = np.ones(100)
    gone = weakref.ref(array)
    shared.put_array(array)
    del array
    gc.collect()
    assert gone() is None


def test_the_last_release_gives_the_memory_back(shared):
    array = np.ones(4 * MIB, np.uint8)
    before = shared.put_bytes(b"before")
    place = shared.put_array(array)
    shared.put_array(array)
    after = shared.put_bytes(b"after")
    shared.release(place)
    assert taken_nbytes(shared) >= 4 * MIB
    shared.release(place)
    assert taken_nbytes(shared) == 2 * PAGE_NBYTES
    assert read_bytes(shared.descriptor, before) + read_bytes(shared.descriptor, after) == b"beforeafter"
    assert shared.put_array(array).offset > after.offset


def test_a_place_of_less_than_a_page_is_given_back_too(shared):
    shared.release(shared.put_bytes(b"a few bytes at the end of the file"))
    assert taken_nbytes(shared) == 0


def test_the_parent_maps_nothing(shared):
    array = np.ones(64 * MIB, np.uint8)
    resident = resident_nbytes()
    shared.release(shared.put_array(array))
    shared.put_array(array)
    shared.put_array(array)
    assert "memfd:penstock" not in Path("/proc/self/maps").read_text()
    assert resident_nbytes() - resident < 8 * MIB


def resident_nbytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_NBYTES


def test_short_writes_go_on_where_they_ended(shared, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, data[:1001], offset))
    data = np.random.default_rng(0).bytes(10_000)
    assert read_bytes(shared.descriptor, shared.put_bytes(data)) == data


def test_pieces_are_smaller_than_what_the_kernel_moves_in_one_call(shared, monkeypatch):
    sizes = []
    write = os.pwrite
    monkeypatch.setattr(_shared, "_WRITE_NBYTES", 4096)
    monkeypatch.setattr(_shared, "_READ_NBYTES", 3000)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: sizes.append(len(data)) or write(fd, data, offset))
    data = np.random.default_rng(0).bytes(10_000)
    assert read_bytes(shared.descriptor, shared.put_bytes(data)) == data
    assert sizes == [4096, 4096, 1808]


def test_a_write_that_fails_leaves_nothing(shared, monkeypatch):
    place = shared.put_bytes(b"there")
    write = os.pwrite

    def fail_later(fd, data, offset):
        if offset > place.offset + PAGE_NBYTES:
            raise OSError(28, "No space left on device")
        return write(fd, data[:100], offset)

    monkeypatch.setattr(os, "pwrite", fail_later)
    with pytest.raises(OSError, match="No space"):
        shared.put_bytes(bytes(MIB))
    monkeypatch.undo()
    assert taken_nbytes(shared) == PAGE_NBYTES
    assert read_bytes(shared.descriptor, shared.put_bytes(b"more")) == b"more"


def test_a_file_that_ends_early_is_said(shared):
    shared.put_bytes(bytes(PAGE_NBYTES))
    place = shared.put_bytes(b"abc")
    with pytest.raises(EOFError, match="ends 2 bytes before"):
        read_bytes(shared.descriptor, Place(place.offset, 5))


def test_threads_put_and_release_at_once(shared):
    arrays = [np.full(300_000, number, np.uint8) for number in range(4)]
    wrong = []

    def work():
        for _ in range(20):
            for array in arrays:
                place = shared.put_array(array)
                if read_bytes(shared.descriptor, place) != array.tobytes():
                    wrong.append(place)
                shared.release(place)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert taken_nbytes(shared) == 0


def test_a_forked_child_does_not_change_the_file(fresh_python):
    script = """
import os
from penstock.memory._shared import SharedFile, read_bytes
shared = SharedFile()
place = shared.put_bytes(b"still here")
shared._lock.acquire()  # as another thread may have it at the moment of the fork
child = os.fork()
if child == 0:
    shared.release(place)
    shared.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(read_bytes(shared.descriptor, place))
"""
    result = fresh_python(script)
    assert result.stdout == "b'still here'\n", result.stderr


def test_closing_again_does_nothing(shared):
    shared.close()
    shared.close()
    assert shared.descriptor == -1


# What is shared for the sake of which views.


def made_again(arrays):
    views, roots = lay_out(arrays)
    memory = [np.frombuffer(bytearray(root.tobytes("A")), np.uint8) for root in roots]
    return [view.load(memory) for view in views], roots


VIEWS = {
    "all": lambda x: x,
    "every other row": lambda x: x[::2],
    "backwards": lambda x: x[::-1, ::3],
    "transposed": lambda x: x.T,
    "new axis": lambda x: x[5:, None],
    "one row": lambda x: x[60:61],
    "one column": lambda x: x[:, 3],
    "field of records": lambda x: x.astype([("a", "i2"), ("b", "f8")])["b"],
    "windows": lambda x: np.lib.stride_tricks.sliding_window_view(x, 5, axis=0),
    "repeated": lambda x: np.broadcast_to(x[0], (1000, 100)),
}


@pytest.mark.parametrize("take", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_views_are_made_again_bit_for_bit(take, order):
    view = take(np.array(np.arange(10_000.0).reshape(100, 100), order=order))
    (again,), _ = made_again([view])
    assert again.dtype == view.dtype
    np.testing.assert_array_equal(again, view)


def test_views_of_half_of_an_array_share_it_whole():
    source = np.arange(1000)
    (one, other), roots = made_again([source[:250], source[500:750]])
    assert len(roots) == 1
    assert roots[0] is source
    assert np.shares_memory(one.base, other.base)
    one[0] = 7
    assert other[0] == 500


def test_a_small_view_is_shared_alone():
    source = np.arange(1000).reshape(10, 100)
    whole_rows, gaps = source[:2], source[:, :10]
    _, (root,) = made_again([whole_rows])
    assert root is whole_rows  # its memory is one piece: not copied
    (again,), (root,) = made_again([gaps])
    assert root.nbytes == gaps.nbytes
    np.testing.assert_array_equal(again, gaps)


def test_windows_do_not_multiply_the_memory():
    source = np.arange(100_000)
    windows = np.lib.stride_tricks.sliding_window_view(source, 1000)
    _, roots = made_again([windows])
    assert [root.nbytes for root in roots] == [source.nbytes]


def test_memory_from_elsewhere_is_shared_through_the_array_on_top():
    array = np.frombuffer(bytes(range(200)), np.uint8)
    (again,), roots = made_again([array[10:190]])
    assert roots[0] is array
    assert again[0] == 10
