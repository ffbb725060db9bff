"""Parts of arrays of several shapes, at random places."""

import numpy as np
import pytest

import penstock as ps

SHAPES = [(9, 7, 2), (5, 8, 2), (4, 4, 2)]


@pytest.fixture
def paths(tmp_path):
    for number, shape in enumerate(SHAPES):
        scan = np.arange(np.prod(shape)).reshape(shape)
        np.save(tmp_path / f"scan-{number}.npy", scan)
        np.save(tmp_path / f"label-{number}.npy", -scan)
    return {name: np.array([str(tmp_path / f"{name}-{n}.npy") for n in range(3)]) for name in ("scan", "label")}


def test_all_arrays_of_an_element_are_cut_at_one_place(paths):
    patches = ps.from_arrays(paths).random_map(ps.RandomPatch((4, 3)), seed=1)
    assert patches.element_spec["scan"] == ps.ArraySpec((4, 3, 2), "int64")
    for number, patch in enumerate(patches):
        assert (patch["scan"] == -patch["label"]).all()
        whole = np.load(paths["scan"][number])
        z, y, _ = np.unravel_index(patch["scan"].flat[0], whole.shape)
        assert (patch["scan"] == whole[z : z + 4, y : y + 3]).all()


def test_each_epoch_has_other_places_and_executors_the_same(paths):
    batches = ps.from_arrays(paths["scan"]).random_map(ps.RandomPatch((4, 3)), seed=1).batch(3)
    runs = []
    for executor in ("inline", "threads"):
        with batches.loader(executor) as loader:
            runs.append([next(iter(loader)).tolist() for _ in range(3)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_only_the_part_is_read():
    class Counting:
        shape = (1000, 1000)
        boxes: list[object] = []  # noqa: RUF012

        def __getitem__(self, box):
            self.boxes.append(box)
            return np.zeros([each.stop - each.start for each in box])

    assert ps.RandomPatch((3, 4))(Counting(), np.random.default_rng(0)).shape == (3, 4)
    ((rows, columns),) = Counting.boxes
    assert 0 <= rows.start <= 997
    assert 0 <= columns.start <= 996


def test_open_arrays_of_zarr_are_read(tmp_path):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(tmp_path / "x.zarr", data=np.arange(20).reshape(4, 5), chunks=(2, 2))
    patch = ps.RandomPatch((2, 2))(array, np.random.default_rng(0))
    assert patch[1, 0] - patch[0, 0] == 5


def test_a_smaller_array_is_filled_up_or_refused():
    rng, small = np.random.default_rng(0), np.ones((2, 5), "f4")
    assert ps.RandomPatch((3, 4), fill=-1)(small, rng).tolist() == [[1] * 4, [1] * 4, [-1] * 4]
    with pytest.raises(ps.ArgumentError, match=r"of an array of \(2, 5\), which is smaller\. .*fill=0"):
        ps.RandomPatch((3, 4))(small, rng)


def test_mistakes_say_what_to_write(tmp_path):
    patch, rng = ps.RandomPatch((2, 2)), np.random.default_rng(0)
    for shape in ((), (0, 2), 3, (2.5,)):
        with pytest.raises(ps.ArgumentError, match="a tuple of sizes from 1 on"):
            ps.RandomPatch(shape)
    with pytest.raises(ps.ArgumentError, match=r"without a generator\. Use random_map\(\)"):
        patch(np.ones((3, 3)))
    with pytest.raises(ps.ArgumentError, match=r"the same 2 first sizes, but they are \[\(3, 3\), \(3, 4\)\]"):
        patch((np.ones((3, 3)), np.ones((3, 4))), rng)
    with pytest.raises(ps.SourceError, match=r"none\.npy cannot be read: No such file"):
        patch(str(tmp_path / "none.npy"), rng)


@pytest.mark.parametrize("order", "CF")
def test_a_file_in_either_order_is_read(tmp_path, order):
    whole = np.arange(60, dtype="i2").reshape(5, 4, 3)
    np.save(tmp_path / "a.npy", np.asarray(whole, order=order))
    part = ps.RandomPatch((2, 3))(tmp_path / "a.npy", np.random.default_rng(0))
    z, y, _ = np.unravel_index(part.flat[0], whole.shape)
    assert (part == whole[z : z + 2, y : y + 3]).all()


def test_a_file_that_was_shortened_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(10_000.0).reshape(100, 100))
    from penstock.functions import _random_patch

    opened = _random_patch._opened(path)
    with open(path, "r+b") as file:
        file.truncate(20_000)
    with pytest.raises(ps.SourceError, match=r"a\.npy was (shortened|replaced)"):
        opened[slice(90, 100), slice(0, 100)]
