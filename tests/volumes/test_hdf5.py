import os
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

h5py = pytest.importorskip("h5py")


def saved(path, array, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("group/x", data=array, **options)
    return path


class TestHdf5(SourceTests):
    @pytest.fixture(params=["contiguous", "compressed", "records"])
    def expected(self, request):
        if request.param == "records":
            return np.array([(i, -i) for i in range(9)], [("a", "i4"), ("b", "f8")])
        return np.arange(132, dtype="f4").reshape(11, 4, 3)

    @pytest.fixture
    def source(self, request, expected, tmp_path):
        is_compressed = request.node.callspec.params["expected"] == "compressed"
        options = {"chunks": (3, 4, 3), "compression": "gzip"} if is_compressed else {}
        saved(tmp_path / "ds.h5", expected, **options)
        with h5py.File(tmp_path / "ds.h5") as file:
            return ps.from_arrays(file["group/x"])._node.data


def test_filters_that_hdf5_lacks_come_from_a_package_or_are_named(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((2,))
        plan.set_filter(40000, h5py.h5z.FLAG_OPTIONAL)
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((5,)), plan)
        file["x"][...] = range(5)
    with pytest.raises(ps.SourceError, match=r"/x in .*a\.h5 is compressed by filter 40000 .*pip install hdf5plugin"):
        ps.from_hdf5(tmp_path / "a.h5")
    (tmp_path / "hdf5plugin.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: "hdf5plugin" in sys.modules)
    ds = ps.from_hdf5(tmp_path / "a.h5", "x")
    assert list(ds) == [0, 1, 2, 3, 4]
    del sys.modules["hdf5plugin"]
    opened, out = ds._node.data.open(), np.empty(1, "i4")  # as in another process
    opened.read_into(np.array([3]), out)
    opened.close()
    assert out == 3
    del sys.modules["hdf5plugin"]


def test_a_chunk_that_is_larger_than_the_limit_is_refused_before_it_is_decoded(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (10, 4), "f8", maxshape=(None, 4), chunks=(4 << 20, 4), compression="gzip")
    ds = ps.from_hdf5(tmp_path / "a.h5")
    text = r"128 MiB of it is what sources keep.* or chunks \(chunks=\.\.\.\).*keeps most is .*a\.h5/x"
    with pytest.raises(ps.MemoryLimitError, match=text):
        ds.batch(2).loader("inline", memory_limit=100 << 20)
    with ds.batch(2).loader("inline", memory_limit=200 << 20) as loader:
        assert loader.projected_nbytes >= 128 << 20


def test_a_checksum_inside_of_compressed_data_is_read(tmp_path):
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((2, 3))
    plan.set_fletcher32()
    plan.set_deflate(4)
    content = np.arange(21).reshape(7, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT64, h5py.h5s.create_simple((7, 3)), plan)
        file["x"][:] = content
    assert [element["x"].tolist() for element in ps.from_hdf5(tmp_path / "a.h5")] == content.tolist()


def test_user_may_close_the_file(tmp_path):
    with h5py.File(saved(tmp_path / "ds.h5", np.arange(10))) as file:
        ds = ps.from_arrays({"x": file["group/x"], "y": np.arange(10)})
    assert ds[3] == {"x": 3, "y": 3}
    with ds.shuffle(1).batch(3).loader(executor="threads", workers=2) as loader:
        assert sorted(np.concatenate([batch["x"] for batch in loader])) == list(range(10))


def test_file_that_is_gone_is_named(tmp_path):
    with h5py.File(saved(tmp_path / "ds.h5", np.arange(10))) as file:
        ds = ps.from_arrays(file["group/x"])
    (tmp_path / "ds.h5").unlink()
    with pytest.raises(ps.SourceError, match=r"ds\.h5/group/x cannot be opened again: .*No such file"):
        ds[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda file: file.pop("x"), r"ds\.h5/group/x cannot be opened again", id="gone"),
        pytest.param(
            lambda file: (file.pop("x"), file.create_group("x")),
            r"group/x has no rows now\. Make the dataset again\.$",
            id="a group",
        ),
    ],
)
def test_dataset_that_is_no_more_is_named(tmp_path, change, message):
    with h5py.File(saved(tmp_path / "ds.h5", np.arange(10))) as file:
        ds = ps.from_arrays(file["group/x"])
    with h5py.File(tmp_path / "ds.h5", "a") as file:
        change(file["group"])
    with pytest.raises(ps.SourceError, match=message):
        ds[0]


def test_dataset_that_became_shorter_is_told(tmp_path):
    with h5py.File(saved(tmp_path / "ds.h5", np.arange(10))) as file:
        ds = ps.from_arrays(file["group/x"])
    saved(tmp_path / "ds.h5", np.arange(7))
    with pytest.raises(ps.SourceError, match=r"has 7 rows now; it had 10 when .* Make the dataset again\.$"):
        ds[0]


def test_damaged_chunk_is_told_with_its_rows(tmp_path):
    path = saved(tmp_path / "ds.h5", np.random.default_rng(0).random((100, 50)), chunks=(10, 50), compression="gzip")
    with h5py.File(path) as file:
        ds = ps.from_arrays(file["group/x"])
        offset = file["group/x"].id.get_chunk_info(5).byte_offset
    data = bytearray(path.read_bytes())
    data[offset : offset + 200] = bytes(200)
    path.write_bytes(data)
    assert ds[5].shape == (50,)
    with pytest.raises(ps.SourceError, match=r"group/x\[50\] to row 50 cannot be read: "):
        ds[50]


class TestTextInHdf5(SourceTests):
    @pytest.fixture
    def expected(self):
        return np.array(["a", "bcd", "", "zwölf", "x" * 100])

    @pytest.fixture
    def source(self, expected, tmp_path):
        with h5py.File(tmp_path / "ds.h5", "w") as file:
            file["x"] = expected.tolist()
            return ps.from_arrays(file["x"])._node.data


def test_text_of_any_size_is_read_as_text(tmp_path):
    with h5py.File(tmp_path / "ds.h5", "w") as file:
        file["x"] = ["a", "bcdé"]
        file.create_dataset("y", data=[["a", "bb"], ["", "c"]], dtype=h5py.string_dtype("ascii"))
        file.create_dataset("z", shape=(2,), dtype=h5py.string_dtype())  # never written
    ds = ps.from_hdf5(tmp_path / "ds.h5")
    assert ds.element_spec == {
        "x": ps.ArraySpec((), "U"),
        "y": ps.ArraySpec((2,), "U"),
        "z": ps.ArraySpec((), "U"),
    }
    assert ds[1]["x"] == "bcdé"
    assert ds[0]["y"].tolist() == ["a", "bb"]
    assert ds[1]["z"] == ""
    with ds.select("x").batch(2).loader() as loader:
        assert next(iter(loader))["x"].tolist() == ["a", "bcdé"]


def test_names_that_are_no_text_are_refused_with_the_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[b"\xff"], file["x"] = [1], [2]
    with pytest.raises(ps.SourceError, match=r"a\.h5 has an array with the name .*which is no text in UTF-8"):
        ps.from_hdf5(tmp_path / "a.h5")
    assert ps.from_hdf5(tmp_path / "a.h5", "x")[0] == 2  # others are not looked at


def test_text_that_is_not_utf_8_is_named(tmp_path):
    with h5py.File(tmp_path / "ds.h5", "w") as file:
        file.create_dataset("x", data=[b"a", b"caf\xe9"], dtype=h5py.string_dtype())
    ds = ps.from_hdf5(tmp_path / "ds.h5", "x")
    assert ds[0] == "a"
    with pytest.raises(ps.SourceError, match=r"ds\.h5/x\[1\] to row 1 cannot be read: 'utf-8' codec"):
        ds[1]


def odd(kind, file):
    if kind == "lists":
        file.create_dataset("x", (3,), h5py.vlen_dtype(np.int32))
    elif kind == "references":
        file.create_dataset("x", (3,), h5py.ref_dtype)
    elif kind == "records":
        file.create_dataset("x", (3,), [("a", "i4"), ("b", h5py.string_dtype())])
    elif kind == "times":
        space = h5py.h5s.create_simple((3,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.UNIX_D32LE, space)
    else:
        file["x"] = 3.0 if kind == "one" else h5py.Empty("f4")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "lists",
            r"has values that are arrays of any size, .* which have no place .*range\(3\)\.map\(fn\), .* row of h5py",
        ),
        ("references", r"has values that are arrays of any size, references, or records"),
        ("records", r"has values that are .* or records with these or text, .*'a'"),
        ("times", r"has a type that h5py does not read: "),
        ("one", r"has no axes, and elements are counted by a first one"),
        ("empty", r"has no axes, and elements are counted by a first one"),
    ],
)
def test_an_array_of_a_file_that_has_no_rows_of_a_fixed_size_is_named(tmp_path, kind, message):
    with h5py.File(tmp_path / "ds.h5", "w") as file:
        odd(kind, file)
        file["y"] = np.arange(3)
    with pytest.raises(ps.SpecError, match=rf"^/x in .*ds\.h5 {message}.*") as caught:
        ps.from_hdf5(tmp_path / "ds.h5", "x")
    assert "from_arrays" not in str(caught.value)
    with pytest.raises(ps.SpecError, match=r"Leave it out: names=\['y'\]\."):
        ps.from_hdf5(tmp_path / "ds.h5")
    assert ps.from_hdf5(tmp_path / "ds.h5", names=["y"])[1] == {"y": 1}


def test_errors_of_from_hdf5_speak_of_its_arguments(tmp_path):
    with h5py.File(tmp_path / "ds.h5", "w") as file:
        file["group/x"], file["y"] = np.arange(3), np.arange(4)
    path = tmp_path / "ds.h5"
    with pytest.raises(
        ps.ArgumentError, match=r"from_hdf5\(\): .*ds\.h5 has no array 'group'; it has \['group/x', 'y'\]"
    ):
        ps.from_hdf5(path, "group")
    with pytest.raises(ps.ArgumentTypeError, match=r"from_hdf5\(names=\) has the paths of arrays in the file, as text"):
        ps.from_hdf5(path, [1])
    with pytest.raises(
        ps.ArgumentError, match=r"lengths must be equal, but they are .*group/x.*: 3 elements, .*y.*: 4 e"
    ):
        ps.from_hdf5(path)
    with h5py.File(tmp_path / "none.h5", "w"):
        pass
    with pytest.raises(ps.SourceError, match=r"none\.h5 has no arrays"):
        ps.from_hdf5(tmp_path / "none.h5")


def test_dataset_without_a_first_axis_is_refused(tmp_path):
    with h5py.File(tmp_path / "ds.h5", "w") as file:
        file["one"], file["none"] = 3.0, h5py.Empty("f4")
        for name in ("one", "none"):
            with pytest.raises(
                ps.ArgumentTypeError, match=rf"got the single value <HDF5 dataset \"{name}\".* first axis"
            ):
                ps.from_arrays(file[name])


def test_dataset_of_arrays_has_their_axes(tmp_path):
    array = np.arange(15, dtype="i4").reshape(5, 3)
    with h5py.File(tmp_path / "ds.h5", "w") as file:
        file.create_dataset("x", shape=(5,), dtype=np.dtype(("i4", (3,))))[...] = array
        ds = ps.from_arrays(file["x"])
    assert ds.element_spec == ps.ArraySpec((3,), "i4")
    with ds.batch(5).loader(executor="threads") as loader:
        np.testing.assert_array_equal(next(iter(loader)), array)


@pytest.mark.parametrize("other", [np.full(10, 1.5), np.arange(20).reshape(10, 2)])
def test_rows_that_are_others_now_are_told(tmp_path, other):
    with h5py.File(saved(tmp_path / "ds.h5", np.arange(10))) as file:
        ds = ps.from_arrays(file["group/x"])
    saved(tmp_path / "ds.h5", other)
    with pytest.raises(ps.SourceError, match=r"A row of .*ds\.h5/group/x is .* now; it was \(\) int64 when "):
        ds[0]


def test_dataset_that_nobody_can_find_again_is_refused(tmp_path):
    with h5py.File(saved(tmp_path / "ds.h5", np.arange(10)), "a") as file:
        data = file["group/x"]
        with pytest.raises(ps.ArgumentTypeError, match=r"which has no name.*create_dataset\('x'"):
            ps.from_arrays(file.create_dataset(None, data=np.arange(3)))
        with pytest.raises(ps.ArgumentTypeError, match=r"got a Group at the top, which has arrays by name: x\. "):
            ps.from_arrays(file["group"])
    with pytest.raises(ps.ArgumentTypeError, match=r"an HDF5 file that is closed\. Call from_arrays\(\) while"):
        ps.from_arrays(data)


def test_all_arrays_of_a_file_are_the_values_of_an_element(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["labels/y"] = np.eye(3), np.arange(3)
    assert ps.from_hdf5(tmp_path / "a.h5")[2]["labels/y"] == 2
    assert ps.from_hdf5(tmp_path / "a.h5", "x")[1].tolist() == [0, 1, 0]
    assert list(ps.from_hdf5(tmp_path / "a.h5", ["x"])[1]) == ["x"]
    with ps.from_hdf5(tmp_path / "a.h5").select("x").batch(3).loader() as loader:
        assert next(iter(loader))["x"].tolist() == np.eye(3).tolist()
    with pytest.raises(ps.ArgumentError, match=r"a\.h5 has no array 'z'; it has \['labels/y', 'x'\]"):
        ps.from_hdf5(tmp_path / "a.h5", "z")
    with pytest.raises(ps.ArgumentTypeError, match=r"rename\({'a/x': 'x'}\) comes after"):
        ps.from_hdf5(tmp_path / "a.h5", {"x": "x"})
    with (
        h5py.File(tmp_path / "a.h5") as file,
        pytest.raises(ps.ArgumentTypeError, match=r"got a File\. Of an open file: from_arrays\({'x': file\['x'\]}\)"),
    ):
        ps.from_hdf5(file, "x")


def test_a_link_to_nothing_is_no_array(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["old"], file["good"] = np.arange(3), h5py.SoftLink("/gone"), h5py.SoftLink("x")
    assert ps.from_hdf5(tmp_path / "a.h5", "good")[2] == 2
    with pytest.raises(ps.ArgumentError, match=r"a\.h5 has no array 'old'; it has \['x'\]"):
        ps.from_hdf5(tmp_path / "a.h5", "old")


@pytest.mark.parametrize("content", [b"no", b"CDF\x01" + bytes(40)])
def test_a_file_of_another_kind_is_named(tmp_path, content):
    (tmp_path / "b.h5").write_bytes(content)
    with pytest.raises(ps.SourceError, match=r"b\.h5 cannot be opened: .*file signature not found"):
        ps.from_hdf5(tmp_path / "b.h5")


PACKED = {
    "scaled": (
        {"scale_factor": [0.01], "add_offset": [280.0], "_FillValue": np.int16([-1])},
        "scale_factor, add_offset, _F",
    ),
    "missing": ({"missing_value": -9999.0}, "missing_value"),
    "unsigned": ({"_Unsigned": "true"}, "_Unsigned"),
    "neutral": ({"scale_factor": 1.0, "add_offset": 0, "_FillValue": np.float32([np.nan]), "units": "K"}, None),
    "several": ({"missing_value": [-1, -2]}, "missing_value"),
}


@pytest.mark.parametrize(("attributes", "text"), PACKED.values(), ids=list(PACKED))
def test_numbers_that_netcdf_packed_are_said_once(tmp_path, attributes, text, caplog):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["t"], file["other"] = np.arange(3, dtype="i2"), np.arange(3)
        file["t"].attrs.update(attributes)
    list(ps.from_hdf5(tmp_path / "a.nc").batch(2))
    with h5py.File(tmp_path / "a.nc") as file:
        ps.from_arrays({"t": file["t"], "other": file["other"]})
    ps.from_hdf5(tmp_path / "a.nc", "other")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (0 if text is None else 2)
    for line, call in zip(said, ("from_hdf5()", "from_arrays()"), strict=False):
        assert line.startswith(f"{call} gives numbers as the file has them, of ")
        assert f"a.nc, with {text}" in line
        assert line.endswith("from_xarray(xarray.open_dataset(path), dim) decodes these attributes.")


# Other files that a file names.


@pytest.fixture
def elsewhere(tmp_path):
    """A folder of the data, and beside it a file whose content no file of the folder may give."""
    (tmp_path / "data").mkdir()
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.arange(6)
    (tmp_path / "secret.bin").write_bytes(np.arange(6).tobytes())
    (tmp_path / "data" / "linked.h5").symlink_to(tmp_path / "secret.h5")
    with h5py.File(tmp_path / "data" / "second.h5", "w") as file:
        file["x"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/x")
    return tmp_path


def _virtual(file, name, path="x"):
    layout = h5py.VirtualLayout((6,), "int64")
    layout[:] = h5py.VirtualSource(name, path, shape=(6,))
    file.create_virtual_dataset("x", layout)


def _virtual_blocks(file, name):
    """An array of any number of blocks, each in a file of its own; `%b` in the name is the block's number."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    whole = h5py.h5s.create_simple((1, 6), (h5py.h5s.UNLIMITED, 6))
    whole.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (1, 1), (1, 6))
    part = h5py.h5s.create_simple((6,))
    part.select_hyperslab((0,), (1,), (1,), (6,))
    plan.set_virtual(whole, name.encode(), b"x", part)
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT64, whole, plan)


OUTSIDE = {
    "external link": lambda file, there: file.__setitem__("x", h5py.ExternalLink(f"{there}/secret.h5", "/x")),
    "link with ..": lambda file, there: file.__setitem__("x", h5py.ExternalLink("../secret.h5", "/x")),
    "symbolic link": lambda file, there: file.__setitem__("x", h5py.ExternalLink("linked.h5", "/x")),
    "link by a link": lambda file, there: file.__setitem__("x", h5py.ExternalLink("second.h5", "/x")),
    "soft link to a link": lambda file, there: (
        file.__setitem__("away", h5py.ExternalLink("../secret.h5", "/")),
        file.__setitem__("x", h5py.SoftLink("/away/x")),
    ),
    "external storage": lambda file, there: file.create_dataset(
        "x", (6,), "int64", external=[(f"{there}/secret.bin", 0, 48)]
    ),
    "relative storage": lambda file, there: file.create_dataset("x", (6,), "int64", external=[("secret.bin", 0, 48)]),
    "virtual": lambda file, there: _virtual(file, f"{there}/secret.h5"),
    "virtual with ..": lambda file, there: _virtual(file, "../secret.h5"),
    "virtual by a link": lambda file, there: _virtual(file, "second.h5"),
    "virtual with a pattern": lambda file, there: _virtual_blocks(file, "linked%b.h5"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_file_that_names_files_elsewhere_reads_none_unless_asked(elsewhere, kind, monkeypatch):
    monkeypatch.chdir(elsewhere)  # where relative names of external storage begin
    (elsewhere / "data" / "linked0.h5").symlink_to(elsewhere / "secret.h5")
    path = elsewhere / "data" / "a.h5"
    with h5py.File(path, "w") as file:
        OUTSIDE[kind](file, elsewhere)
        file["y"] = np.arange(6)
    with pytest.raises(ps.SourceError, match=r"x in .*a\.h5 has its values in .*, which is not in .*files_in=folder"):
        ps.from_hdf5(path, "x")
    assert ps.from_hdf5(path, "y")[3] == 3
    if kind in ("external storage", "virtual", "virtual with .."):
        with h5py.File(path) as file, pytest.raises(ps.SourceError, match=r"which is not in .*files_in=folder"):
            ps.from_arrays(file["x"])
    if kind != "virtual with a pattern":
        assert [int(x) for x in ps.from_hdf5(path, "x", files_in=elsewhere)] == list(range(6))
    with pytest.raises(ps.ArgumentTypeError, match=r"from_hdf5\(files_in=\) is the path of a folder"):
        ps.from_hdf5(path, "y", files_in=1)


@pytest.mark.parametrize("kind", ["external link", "virtual", "virtual with a pattern", "external storage"])
def test_files_in_the_folder_are_read(tmp_path, kind):
    with h5py.File(tmp_path / "part0.h5", "w") as file:
        file["x"] = np.arange(6)
    (tmp_path / "part.bin").write_bytes(np.arange(6).tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if kind == "external link":
            file["x"] = h5py.ExternalLink("part0.h5", "/x")
        elif kind == "virtual":
            _virtual(file, "part0.h5")
        elif kind == "virtual with a pattern":
            _virtual_blocks(file, "part%b.h5")
        else:
            file.create_dataset("x", (6,), "int64", external=[(str(tmp_path / "part.bin"), 0, 48)])
    ds = ps.from_hdf5(tmp_path / "a.h5", "x")
    if kind == "virtual with a pattern":
        assert [x.tolist() for x in ds] == [list(range(6))]
        return
    assert [int(x) for x in ds] == list(range(6))
    with ds.batch(3).loader("threads", workers=2) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(6))


def test_links_that_lead_in_a_circle_are_refused(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = h5py.ExternalLink(f"{other}.h5", "/x")
            file["y"] = h5py.SoftLink("/y")
    for name in ("x", "y"):
        with pytest.raises((ps.SourceError, ps.ArgumentError)):
            ps.from_hdf5(tmp_path / "a.h5", name)


# Values that are not there, for which HDF5 gives fill values.


def _parts(folder):
    """A virtual dataset of three files of five rows; one of its rows by way of another; and one of the file itself."""
    layout, own = h5py.VirtualLayout((15, 2), "f4"), h5py.VirtualLayout((5, 2), "f4")
    for part in range(3):
        with h5py.File(folder / f"part{part}.h5", "w") as file:
            file.create_dataset("x", data=np.full((5, 3), part + 1, "f4"), maxshape=(None, None))
        layout[part::3] = h5py.VirtualSource(f"part{part}.h5", "x", (5, 3))[:, 1:]
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
        file["base"] = np.ones((5, 2), "f4")
        own[:] = h5py.VirtualSource(".", "base", (5, 2))
        file.create_virtual_dataset("own", own)
    outer = h5py.VirtualLayout((15, 2), "f4")
    outer[:] = h5py.VirtualSource("all.h5", "x", (15, 2))
    with h5py.File(folder / "outer.h5", "w") as file:
        file.create_virtual_dataset("x", outer)
    (folder / "raw.bin").write_bytes(np.ones(10, "f4").tobytes())
    with h5py.File(folder / "raw.h5", "w") as file:
        slots = [(str(folder / "raw.bin"), 0, 24), (str(folder / "raw.bin"), 24, h5py.h5f.UNLIMITED)]
        file.create_dataset("x", (5, 2), "f4", external=slots)


def _edited(name, change):
    def edit(folder):
        with h5py.File(folder / name, "r+") as file:
            change(file)

    return edit


def _shaped(*shape):
    return _edited("part1.h5", lambda file: file["x"].resize(shape))


LOSSES = {
    "a file": ("all.h5", "x", lambda folder: (folder / "part1.h5").rename(folder / "q"), r"part1\.h5 .*is missing"),
    "a file below": ("outer.h5", "x", lambda folder: (folder / "part1.h5").unlink(), r"part1\.h5 .*which is missing"),
    "no HDF5": ("all.h5", "x", lambda folder: (folder / "part1.h5").write_bytes(b""), r"part1\.h5 .*cannot be opened"),
    "an array": ("all.h5", "x", _edited("part1.h5", lambda file: file.move("x", "y")), r"there is no such array"),
    "an array of itself": ("all.h5", "own", _edited("all.h5", lambda file: file.pop("base")), r"no such array"),
    "an array below": ("outer.h5", "x", _edited("all.h5", lambda file: file.move("x", "y")), r"no such array"),
    "a group": (
        "all.h5", "x", _edited("part1.h5", lambda f: (f.pop("x"), f.create_group("x"))), r"there is no such array"
    ),
    "rows": ("all.h5", "x", _shaped(4, 3), r"x of .*part1\.h5 .*which is \(4, 3\) and has not all"),
    "all rows": ("all.h5", "x", _shaped(0, 3), r"part1\.h5 .*which is \(0, 3\) and"),
    "columns": ("outer.h5", "x", _shaped(9, 2), r"part1\.h5 .*which is \(9, 2\) and"),
    "an axis": (
        "all.h5", "x", _edited("part1.h5", lambda f: (f.pop("x"), f.create_dataset("x", (99,), "f4"))),
        r"is \(99,\) and"
    ),
    "bytes": ("raw.h5", "x", lambda folder: os.truncate(folder / "raw.bin", 39), r"storage\), which has 39 bytes of "),
    "storage": ("raw.h5", "x", lambda folder: (folder / "raw.bin").unlink(), r"external storage\), which is missing"),
}  # fmt: skip


@pytest.mark.parametrize(("file", "name", "lose", "text"), LOSSES.values(), ids=list(LOSSES))
def test_values_that_are_missing_are_an_error_and_no_fill_values(tmp_path, file, name, lose, text):
    _parts(tmp_path)
    ds = ps.from_hdf5(tmp_path / file, name)
    opened, out = ds._node.data.open(), np.empty((1, 2), "f4")
    opened.read_into(np.array([0]), out)
    assert out.tolist() == [[1, 1]]
    opened.close()
    lose(tmp_path)
    for read in (lambda: ps.from_hdf5(tmp_path / file, name), lambda: ds[1], lambda: ds.batch(5)[0]):
        with pytest.raises(ps.SourceError, match=rf"{name} in .*has its values in .*{text}"):
            read()
    with h5py.File(tmp_path / file) as given, pytest.raises(ps.SourceError, match=text):
        ps.from_arrays(given[name])


@pytest.mark.parametrize("name", ["all.h5", "outer.h5", "raw.h5"])
def test_values_that_go_while_a_file_is_read_are_an_error_until_they_are_back(tmp_path, name):
    _parts(tmp_path)
    lost = tmp_path / ("raw.bin" if name == "raw.h5" else "part1.h5")
    opened, out = ps.from_hdf5(tmp_path / name, "x")._node.data.open(), np.empty((2, 2), "f4")
    opened.read_into(np.array([0, 3]), out)  # of the first part, so HDF5 did not need the second
    lost.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(ps.SourceError, match=r"which is missing|unable to open external raw data file"):
            opened.read_into(np.array([1, 4]), out)
    (tmp_path / "away").rename(lost)
    opened.read_into(np.array([1, 4]), out)
    assert out.tolist() == [[1 if name == "raw.h5" else 2] * 2] * 2
    opened.close()


def test_a_file_that_was_away_during_a_read_is_read_again(tmp_path):
    _parts(tmp_path)
    opened, reads = ps.from_hdf5(tmp_path / "all.h5", "x")._node.data.open(), []

    def read(data):
        if not reads:
            (tmp_path / "part1.h5").rename(tmp_path / "away")
        reads.append(data[1, 0])
        if len(reads) == 1:
            (tmp_path / "away").rename(tmp_path / "part1.h5")
        return reads[-1]

    assert opened._steadily(np.array([1]), read) == 2
    assert reads == [0, 2]
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_workers_read_no_fill_values(tmp_path, executor, workers_stay):
    _parts(tmp_path)
    ds = ps.from_hdf5(tmp_path / "outer.h5", "x").batch(3)
    with ds.loader(executor, workers=1) as loader:
        assert np.concatenate(list(loader))[:, 0].tolist() == [1, 2, 3] * 5
    (tmp_path / "part2.h5").unlink()
    with ds.loader(executor, workers=1) as loader, pytest.raises(ps.SourceError, match=r"part2\.h5 .*which is missing"):
        list(loader)


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path):
    _parts(tmp_path)
    with h5py.File(tmp_path / "long.h5", "w") as file:
        file["x"] = np.ones(100_000)
    for name, cut in (("long.h5", "long.h5"), ("all.h5", "part1.h5")):
        opened = ps.from_hdf5(tmp_path / name, "x")._node.data.open()
        out = np.empty((1, *opened._source.element_spec.shape))
        opened.read_into(np.array([0]), out)
        os.truncate(tmp_path / cut, 3000)
        with pytest.raises(
            ps.SourceError, match=r"long\.h5 has 3,000 bytes now; it had 8|part1\.h5 .*cannot be opened"
        ):
            opened.read_into(np.array([len(opened._source) - 2]), out)
        opened.close()


def _growing(folder, counts):
    """A virtual dataset of one column of each file, each of any number of rows."""
    plan, most = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5s.UNLIMITED
    whole, part = h5py.h5s.create_simple((5, 2), (most, 2)), h5py.h5s.create_simple((5,), (most,))
    part.select_hyperslab((0,), (most,), (1,), (1,))
    for column, count in enumerate(counts):
        with h5py.File(folder / f"grow{column}.h5", "w") as file:
            file.create_dataset("x", data=np.full(count, column + 1), maxshape=(None,))
        whole.select_hyperslab((0, column), (most, 1), (1, 1), (1, 1))
        plan.set_virtual(whole, f"grow{column}.h5".encode(), b"x", part)
    whole.select_all()
    with h5py.File(folder / "grow.h5", "w") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT64, whole, plan)


def test_a_virtual_dataset_of_any_length_is_as_long_as_each_of_its_files(tmp_path):
    _growing(tmp_path, (7, 7))
    ds = ps.from_hdf5(tmp_path / "grow.h5", "x")
    assert np.stack(list(ds)).tolist() == [[1, 2]] * 7
    outer = h5py.VirtualLayout((5, 2), "i8")
    outer[:] = h5py.VirtualSource("grow.h5", "x", (7, 2))[:5]
    with h5py.File(tmp_path / "outer.h5", "w") as file:
        file.create_virtual_dataset("x", outer)
    assert len(ps.from_hdf5(tmp_path / "outer.h5", "x")) == 5
    with h5py.File(tmp_path / "less.h5", "w") as file:
        file.create_dataset("x", data=np.full(6, 2), maxshape=(None,))
    (tmp_path / "less.h5").replace(tmp_path / "grow1.h5")
    text = r"x of .*grow1\.h5 .*which is \(6,\) and has not all of the values that are taken from it"
    for read in (
        lambda: ds[0],
        lambda: ps.from_hdf5(tmp_path / "grow.h5"),
        lambda: ps.from_hdf5(tmp_path / "outer.h5"),
    ):
        with pytest.raises(ps.SourceError, match=text):
            read()


def test_frames_in_turns_of_any_number_end_with_the_last_of_all(tmp_path):
    plan, most = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5s.UNLIMITED
    whole, part = h5py.h5s.create_simple((5,), (most,)), h5py.h5s.create_simple((2,), (most,))
    part.select_hyperslab((0,), (most,), (1,), (1,))
    for number, count in enumerate((3, 2)):
        with h5py.File(tmp_path / f"turn{number}.h5", "w") as file:
            file.create_dataset("x", data=np.arange(count) * 2 + number, maxshape=(None,))
        whole.select_hyperslab((number,), (most,), (2,), (1,))
        plan.set_virtual(whole, f"turn{number}.h5".encode(), b"x", part)
    whole.select_all()
    with h5py.File(tmp_path / "turns.h5", "w") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT64, whole, plan)
    assert [int(x) for x in ps.from_hdf5(tmp_path / "turns.h5", "x")] == list(range(5))
    with h5py.File(tmp_path / "turn1.h5", "r+") as file:
        file["x"].resize((1,))
    with pytest.raises(ps.SourceError, match=r"turn1\.h5 .*which is \(1,\) and has not all"):
        ps.from_hdf5(tmp_path / "turns.h5", "x")


def test_a_block_that_is_missing_among_others_is_named(tmp_path):
    for number in (0, 1, 3):
        with h5py.File(tmp_path / f"part{number}.h5", "w") as file:
            file["x"] = np.arange(6)
    (tmp_path / "part02.h5").touch()
    (tmp_path / "partial.h5").touch()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        _virtual_blocks(file, "part%b.h5")
    with pytest.raises(ps.SourceError, match=r"in .*part%b\.h5 \(a virtual dataset\), of which number 2 is missing"):
        ps.from_hdf5(tmp_path / "a.h5", "x")
    (tmp_path / "part3.h5").unlink()
    ds = ps.from_hdf5(tmp_path / "a.h5", "x")
    assert len(ds) == 2
    (tmp_path / "part1.h5").rename(tmp_path / "part2.h5")
    with pytest.raises(ps.SourceError, match=r"of which number 1 is missing"):
        ds[1]
    (tmp_path / "part2.h5").unlink()
    with pytest.raises(ps.SourceError, match=r"a\.h5/x has 1 rows now; it had 2"):
        ds[1]
    (tmp_path / "part0.h5").unlink()
    with pytest.raises(ps.SourceError, match=r"of which number 0 is missing"):
        ps.from_hdf5(tmp_path / "a.h5", "x")


def test_a_link_to_a_file_that_is_missing_is_told(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = h5py.ExternalLink("nowhere.h5", "/x")
    with pytest.raises(
        ps.SourceError, match=r"x in .*a\.h5 has its values in .*nowhere\.h5 \(an external link\), which is mi"
    ):
        ps.from_hdf5(tmp_path / "a.h5", "x")


def test_what_the_writer_never_wrote_is_the_fill_value_that_it_chose(tmp_path):
    layout = h5py.VirtualLayout((6,), "i4")
    layout[:2] = h5py.VirtualSource(".", "sparse", (6,))[2:4]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        sparse = file.create_dataset("sparse", (6,), "i4", chunks=(2,), fillvalue=7)
        sparse[2:4] = 1, 2
        file.create_virtual_dataset("part", layout, fillvalue=-1)
    assert [int(x) for x in ps.from_hdf5(tmp_path / "a.h5", "sparse")] == [7, 7, 1, 2, 7, 7]
    assert [int(x) for x in ps.from_hdf5(tmp_path / "a.h5", "part")] == [1, 2, -1, -1, -1, -1]
