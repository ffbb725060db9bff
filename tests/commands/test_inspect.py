"""`penstock inspect`: its description of files and folders, and the Python that opens them."""

import json
import os
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.commands import cli
from penstock.commands._target import dataset_of
from penstock.commands.inspect import _leaves
from penstock.records._example import encoded
from tests.films import test_lerobot as lerobot, test_videos as videos
from tests.records import test_mds as mds


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def inspect(capsys):
    """Runs the command: `inspect("a.npy")` returns its output, as JSON, and its exit status."""

    def run(path: str, *options: str) -> tuple[dict, int]:
        status = cli.main(["inspect", path, "--json", *options])
        return json.loads(capsys.readouterr().out), status

    return run


def opened(found: dict) -> ps.Dataset:
    """The dataset of the printed lines of Python."""
    names = {"ps": ps}
    exec(found["code"], names)
    return names["ds"]


def write_tar(path: str) -> None:
    with tarfile.open(path, "w") as tar:
        for name in ("a.txt", "a.cls", "b.txt", "b.cls"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, BytesIO(b"7"))


def write_hdf5(path: str) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["train/x"], file["train/y"] = np.ones((6, 4, 4), "uint8"), np.arange(6)
        file["test/x"], file["version"] = np.ones((2, 4, 4), "uint8"), 3


def write_zarr(path: str) -> None:
    import zarr

    group = zarr.open_group(path, mode="w")
    group.create_array("x", shape=(6, 4), dtype="float32")[:] = 1
    group.create_array("y", shape=(6,), dtype="int64")[:] = 2


def write_table(path: str) -> None:
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table({"x": [0.5, 1.5, 2.5], "name": ["a", "b", "c"]})
    if path.endswith(".parquet"):
        pa.parquet.write_table(table, path)
    else:
        pa.feather.write_feather(table, path)


def write_lance(path: str) -> None:
    lance, pa = pytest.importorskip("lance"), pytest.importorskip("pyarrow")
    lance.write_dataset(pa.table({"x": [0.5, 1.5, 2.5], "name": ["a", "b", "c"]}), path)


def write_volume(path: str) -> None:
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(np.ones((4, 3, 2), "int16"), np.eye(4)), path)


def write_arrays(path: str) -> None:
    os.mkdir(path)
    np.save(f"{path}/x.npy", np.zeros((5, 3)))
    np.save(f"{path}/y.npy", np.arange(5))


def write_arrayrecord(path: str, records: list[bytes]) -> None:
    writer = pytest.importorskip("array_record.python.array_record_module").ArrayRecordWriter(path, "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_mds(path: str) -> None:
    mds.written(Path(path), {"x": "int", "s": "str"}, [{"x": k, "s": "a"} for k in range(5)])


def write_shards(path: str) -> None:
    os.mkdir(path)
    for number in range(3):
        write_tar(f"{path}/train-{number}.tar")


def write_cells(path: str) -> None:
    """Sparse cells of AnnData, and a column with a missing value, in HDF5 or Zarr."""
    import h5py
    import zarr

    is_zarr = path.endswith(".zarr")
    root = zarr.open_group(path, mode="w") if is_zarr else h5py.File(path, "w")
    parts = {"X/data": np.float32([1, 2]), "X/indices": [0, 3], "X/indptr": [0, 1, 2], "obs/_index": [7, 8]}
    parts |= {"obs/y": [3, 4], "obs/kind/codes": [0, 1], "obs/kind/categories": [5, 6]}
    for name, values in (parts | {"obs/n/values": [1, 2], "obs/n/mask": [0, 1]}).items():
        root.create_array(name, data=np.asarray(values)) if is_zarr else root.create_dataset(name, data=values)
    for name, form in (("X", "csr_matrix"), ("obs/kind", "categorical"), ("obs/n", "nullable-integer")):
        root[name].attrs["encoding-type"] = form
    root["X"].attrs["shape"], root["obs"].attrs["_index"] = (2, 4), "_index"
    root["obs"].attrs["column-order"] = ["y", "kind", "n"]
    if not is_zarr:
        root.close()


def write_netcdf(path: str) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("scipy")
    xarray.Dataset({"t": (("time", "x"), np.ones((6, 2), "f4")), "unit": 3}).to_netcdf(path, engine="scipy")


def write_sparse(path: str) -> None:
    np.savez(path, data=np.float32([1, 2]), indices=[0, 3], indptr=[0, 1, 2], shape=[2, 4], format=b"csr")


def write_sounds(path: str) -> None:
    for name in ("no/1.wav", "yes/1.wav", "yes/2.wav"):
        Path(path, name).parent.mkdir(parents=True, exist_ok=True)
        Path(path, name).write_bytes(b"RIFF\x24\0\0\0WAVEfmt ")


def write_corpus(path: str) -> None:
    os.mkdir(path)
    Path(path, "a.bin").write_bytes(bytes(4))
    head = b"MMIDIDX\0\0" + np.int64(1).tobytes() + b"\x08" + np.int64([1, 1]).tobytes()
    Path(path, "a.idx").write_bytes(head + np.int32(2).tobytes() + np.int64([0, 0]).tobytes())


FORMATS = {
    "a.npy": (lambda path: np.save(path, np.ones((7, 2))), "a .npy file", 7, "(2,) float64"),
    "a.h5": (write_hdf5, "a .h5 file", 6, "{'train/x': (4, 4) uint8, 'train/y': () int64}"),
    "a.zarr": (write_zarr, "a Zarr store", 6, "{'x': (4,) float32, 'y': () int64}"),
    "a.wav": (
        lambda path: Path(path).write_bytes(b"RIFF\x24\0\0\0WAVEfmt "),
        "a .wav file",
        1,
        "{'path': () text, 'bytes': (None,) uint8}",
    ),
    "a.nii": (write_volume, "a .nii file", 1, "(4, 3, 2) float32"),
    "a.nii.gz": (write_volume, "a .nii file", 1, "(4, 3, 2) float32"),
    "a.parquet": (write_table, "a .parquet file", 3, "{'x': () float64, 'name': () text}"),
    "a.arrow": (write_table, "a .arrow file", 3, "{'x': () float64, 'name': () text}"),
    "a.tar": (
        write_tar,
        "a .tar file",
        2,
        "{'__key__': () text, 'txt': (None,) uint8, 'cls': (None,) uint8}",
    ),
    "train.tfrecord-00000-of-00001": (
        lambda path: ps.write_tfrecord(path, [{"x": np.float32([1, 2])}] * 4),
        "a .tfrecord file, of Examples",
        4,
        "{'x': (2,) float32}",
    ),
    "raw.tfrecord": (
        lambda path: ps.write_tfrecord(path, [b"one", b"three"]),
        "a .tfrecord file, of records that are no Examples",
        2,
        "(None,) uint8",
    ),
    "a.array_record": (
        lambda path: write_arrayrecord(path, [b"one", b"three"]),
        "a .array_record file, of records that are no Examples",
        2,
        "(None,) uint8",
    ),
    "b.array_record": (
        lambda path: write_arrayrecord(path, [encoded({"x": np.int64(k)}) for k in range(3)]),
        "a .array_record file, of Examples",
        3,
        "{'x': () int64}",
    ),
    "a.mp4": (
        lambda path: videos.written(path, 3),
        "a .mp4 file",
        3,
        "{'frame': (48, 64, 3) uint8, 'time': () float64, 'video': () int64}",
    ),
    "a.webm": (
        lambda path: videos.written(path, 3, "libvpx-vp9"),
        "a .webm file",
        3,
        "{'frame': (48, 64, 3) uint8, 'time': () float64, 'video': () int64}",
    ),
    "a.avi": (
        lambda path: videos.written(path, 3, "mpeg4", bf="0"),
        "a .avi file",
        3,
        "{'frame': (48, 64, 3) uint8, 'time': () float64, 'video': () int64}",
    ),
    "robot": (
        lambda path: lerobot.folder(Path(path)),
        "a folder with meta/info.json",
        18,
        (
            "{'action': (2,) float32, 'timestamp': () float32, 'frame_index': () int64, 'episode_index': () int64, "
            "'observation.images.top': (48, 64, 3) uint8, 'observation.images.wrist': (48, 64, 3) uint8}"
        ),
    ),
    "a.h5ad": (write_cells, "cells of AnnData", 2, "{'X': (4,) float32, 'y': () int64, 'kind': () int32}"),
    "cells.zarr": (write_cells, "cells of AnnData", 2, "{'X': (4,) float32, 'y': () int64, 'kind': () int32}"),
    "a.npz": (write_sparse, "a sparse matrix of SciPy (.npz)", 2, "(4,) float32"),
    "a.nc": (write_netcdf, "a .nc file", 6, "{'t': (2,) float32}"),
    "words": (
        write_sounds,
        "3 .wav files in a folder a class",
        3,
        "{'path': () text, 'bytes': (None,) uint8, 'label': () int32}",
    ),
    "corpus": (write_corpus, "a .bin file", 1, "(None,) uint16"),
    "corpus/a.bin": (lambda path: write_corpus("corpus"), "a .bin file", 1, "(None,) uint16"),
    "a.jsonl": (lambda path: Path(path).write_text('{"a": 1}\n{"a": 2}\n'), "a .jsonl file", 2, "{'a': () int64}"),
    "a.csv": (lambda path: Path(path).write_text("a,b\n1,2\n"), "a .csv file", 1, "{'a': () int64, 'b': () int64}"),
    "a.txt": (lambda path: Path(path).write_text("one\ntwo\n"), "a .txt file", 2, "() text"),
    "mds": (write_mds, "a folder with index.json", 5, "{'x': () int64, 's': () text}"),
    "mds/index.json": (
        lambda path: write_mds(path.partition("/")[0]),
        "a .json file",
        5,
        "{'x': () int64, 's': () text}",
    ),
    "a.lance": (write_lance, "a folder with _versions/*.manifest", 3, "{'x': () float64, 'name': () text}"),
    "arrays": (write_arrays, "2 .npy files with as many rows", 5, "{'x': (3,) float64, 'y': () int64}"),
    "shards": (
        write_shards,
        "3 .tar files",
        6,
        "{'__key__': () text, 'txt': (None,) uint8, 'cls': (None,) uint8}",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each == "a.lance")) for each in FORMATS]
)
def test_each_format_is_recognised_and_the_printed_python_opens_it(name, inspect):
    write, what, length, spec = FORMATS[name]
    write(name)
    found, status = inspect(name)
    assert status == 0
    assert (found["what"], found["length"], found["element_spec"], found["problem"]) == (what, length, spec, "")
    assert len(found["elements"]) == min(3, length)
    assert found["nbytes"] > 0
    ds = opened(found)
    assert (len(ds), str(ds._node.spec)) == (length, spec)
    ds[0]


def test_text_alone_in_hdf5_is_opened(inspect):
    h5py = pytest.importorskip("h5py")
    with h5py.File("a.mat", "w", userblock_size=512) as file:  # as MATLAB writes it
        file["x"] = ["one", "two"]
    found, status = inspect("a.mat")
    assert (found["length"], found["element_spec"], status) == (2, "() text", 0)


def test_findings_are_printed_as_text(capsys):
    write_hdf5("a.h5")
    assert cli.main(["inspect", "a.h5", "--elements", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a.h5 is a .h5 file"
    assert lines[2].startswith("  on disk     ")
    assert lines[3:] == [
        "  elements    6",
        "  an element  {'train/x': (4, 4) uint8, 'train/y': () int64}",
        "  arrays      test/x   (2, 4, 4) uint8",
        "              train/x  (6, 4, 4) uint8",
        "              train/y  (6,) int64",
        "              version  () int64",
        "",
        "  ds[0]['train/x']  (4, 4) uint8  1 to 1, mean 1",
        "  ds[0]['train/y']  () int64      0",
        "",
        "  import penstock as ps",
        '  ds = ps.from_hdf5("a.h5", names=["train/x", "train/y"])',
    ]


def test_names_with_quotes_are_printed_as_code_that_runs(inspect):
    import h5py

    write_cells("a.h5ad")
    with h5py.File("a.h5ad", "r+") as file:
        file['obs/doctor\'s "y"'] = [1, 2]
    found, status = inspect("a.h5ad")
    assert status == 0
    assert opened(found)[1]['doctor\'s "y"'] == 2


def test_lone_leaves_take_a_line_each(capsys):
    np.save("a.npy", np.arange(8.0).reshape(2, 4))
    assert cli.main(["inspect", "a.npy"]) == 0
    assert capsys.readouterr().out == (
        "a.npy is a .npy file\n\n"
        "  on disk     192 bytes\n  elements    2\n  an element  (4,) float64\n\n"
        "  ds[0]  (4,) float64  [0., 1., 2., 3.]\n"
        "  ds[1]  (4,) float64  [4., 5., 6., 7.]\n\n"
        '  import penstock as ps\n  ds = ps.from_npy("a.npy")\n'
    )


def test_a_quarantine_file_is_summed_up(inspect, caplog):
    def fail(x):
        if x % 3 == 1:
            raise ValueError("no good")
        return x

    with ps.range(9).map(fail).batch(3).loader("inline", on_error="replace", quarantine="bad.jsonl") as loader:
        list(loader)
    found, status = inspect("bad.jsonl")
    assert status == 0
    assert found["what"] == "a quarantine file, of elements that a loader set aside"
    assert found["facts"]["failures"] == ["3"]
    assert found["facts"]["by kind"] == ["3 x map(fail): ValueError"]
    assert found["facts"]["the last"] == ["the integer 1", "the integer 4", "the integer 7"]
    assert 'ps.replay("bad.jsonl", ds)' in found["code"]


def test_elements_that_failed_in_two_runs_count_once(inspect):
    def fail(x):
        return 1 // int(x % 3)

    for _ in range(2):
        with ps.range(9).map(fail).batch(3).loader("inline", on_error="replace", quarantine="bad.jsonl") as loader:
            list(loader)
    facts = inspect("bad.jsonl")[0]["facts"]
    assert facts["failures"] == ["3"]
    assert facts["by kind"] == ["3 x map(fail): ZeroDivisionError"]
    assert facts["the last"] == ["the integer 0", "the integer 3", "the integer 6"]


def write_bytes(content: bytes):
    return lambda path: Path(path).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "write", "what", "problem"),
    [
        (
            "a.npz",
            lambda path: np.savez(path, x=[1], y=[2]),
            "a .npz file",
            'ps.from_arrays(dict(np.load("a.npz"))). Else save each by itself, once: np.save("x.npy",',
        ),
        ("cut.npz", write_bytes(b"PK\x03\x04" + bytes(100)), "a .npz file", "cut.npz cannot be opened. It is damaged"),
        ("cut.nc", write_bytes(b"CDF\1" + bytes(3)), "a .nc file", "cut.nc cannot be opened. It is damaged"),
        ("table.dat", write_bytes(b"a,b\n1,2\n"), "a .dat file, which is unknown", r"begins with b'a,b\n1,2\n'"),
        ("empty", write_bytes(b""), "a nameless file, which is unknown", "Read other files with ps.from_files(paths)"),
        ("cut.npy", write_bytes(b"\x93NUMPY\1\0"), "a .npy file", "cut.npy is not a .npy file that can be read"),
        ("cut.h5", write_bytes(b"\x89HDF\r\n\x1a\n123"), "a .h5 file", "It is damaged or not complete"),
        ("folder", os.mkdir, "a folder", "folder as a whole is no dataset of a known kind"),
    ],
)
def test_unreadable_data_are_reported_with_a_remedy(name, write, what, problem, inspect):
    write(name)
    found, status = inspect(name)
    assert status == 1
    assert found["what"] == what
    assert problem in found["problem"]
    assert "length" not in found


def test_a_missing_library_is_reported_with_its_remedy(inspect, monkeypatch):
    write_hdf5("a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert inspect("a.h5")[0]["problem"] == "Reading it needs h5py: pip install h5py."


def test_arrays_of_different_lengths_are_not_put_side_by_side(inspect):
    write_arrays("arrays")
    np.save("arrays/z.npy", np.zeros(9))
    found, status = inspect("arrays")
    assert status == 1
    assert found["what"] == "3 .npy files with as many rows"


def test_files_of_one_kind_are_given_by_a_pattern_or_their_folder(inspect):
    os.mkdir("rows")
    for number in range(3):
        Path(f"rows/{number}.csv").write_text(f"x\n{number}\n")
    Path("rows/[x].csv").write_text("x\n3\n")
    for path in ("rows/*.csv", "rows"):
        found, status = inspect(path)
        assert (status, found["what"], found["length"]) == (0, "4 .csv files", 4)
        assert len(opened(found)) == 4
    assert inspect("rows/[x].csv")[0]["what"] == "a .csv file"  # a file of this name is no pattern
    assert len(dataset_of("rows/?.csv")[0]) == 3  # of the other commands
    os.mkdir("other")
    Path("other/a.csv").write_text("x;y\n1;2\n")
    found, status = inspect("other")
    assert (status, found["what"]) == (1, "a .csv file")
    assert "Write delimiter=';'" in found["problem"]


def test_an_unreadable_element_is_reported(inspect):
    ps.write_tfrecord("a.tfrecord", [b"one", b"three"])
    content = bytearray(Path("a.tfrecord").read_bytes())
    content[-6] ^= 1
    Path("a.tfrecord").write_bytes(content)
    found, status = inspect("a.tfrecord")
    assert status == 1
    assert "a.tfrecord" in found["problem"]
    assert found["length"] == 2


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("nowhere", "There is no file or folder nowhere, seen from "),
        ("secret", "secret cannot be read: Permission denied"),
        ("nowhere/*.npy", "No file fits the pattern nowhere/*.npy."),
    ],
)
def test_a_path_that_cannot_be_read_is_refused(path, complaint, capsys):
    if path == "secret":
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        Path("secret").touch(mode=0)
    assert cli.main(["inspect", path]) == 1
    assert capsys.readouterr().err.startswith(f"penstock inspect: {complaint}")


def write_images() -> None:
    for folder, count in (("cats", 2), ("dogs", 3)):
        Path("pets", folder, "deeper").mkdir(parents=True)
        for number in range(count):
            Path("pets", folder, "deeper" if number else "", f"{number}.jpg").write_bytes(b"\xff\xd8\xff")
    Path("pets/README.txt").touch()


def test_folders_of_images_are_classes(inspect):
    write_images()
    found, _ = inspect("pets")
    assert found["what"] == "a folder of images in a folder a class"
    assert found["facts"]["images"] == ["5"]
    assert found["facts"]["2 classes"] == ["cats 2, dogs 3"]


def test_folders_of_images_are_opened_by_the_python_that_is_printed(inspect, capsys):
    write_images()
    found, _ = inspect("pets")
    assert found["code"] == 'ds = ps.image_dataset_from_directory("pets", image_size=(256, 256))'
    assert len(opened(found)) == 1
    assert found["length"] == 5
    assert found["element_spec"] == "((256, 256, 3) float32, () int32)"


def test_links_in_a_circle_are_passed_over(inspect):
    write_images()
    Path("pets", "cats", "one").symlink_to("two")
    Path("pets", "cats", "two").symlink_to("one")
    Path("pets", "cats", "all").symlink_to("..")
    found, _ = inspect("pets")
    assert found["facts"]["2 classes"] == ["cats 2, dogs 3"]


def test_a_listing_counts_hidden_files_as_readers_of_images_do(inspect):
    write_images()
    Path("pets/cats/.hidden.jpg").write_bytes(bytes(100))
    found, _ = inspect("pets")
    assert found["facts"]["2 classes"] == ["cats 3, dogs 3"]
    assert found["length"] == 6


@pytest.mark.parametrize(
    ("leaf", "spec", "values"),
    [
        (np.arange(10), "(10,) int64", "0 to 9, mean 4.5"),
        (np.array([np.nan, 1, np.inf, 3, 2]), "(5,) float64", "1 to 3, mean 2, 2 not finite"),
        (np.full(9, np.nan), "(9,) float64", "no finite value"),
        (np.zeros((0, 3)), "(0, 3) float64", "[]"),
        (np.arange(8) > 5, "(8,) bool", "0 to 1, mean 0.25"),
        (np.float32(0.1), "() float32", "0.1"),
        (np.frombuffer(b"\xff\xd8\xff\xe0 and much more", "uint8"), "(18,) uint8", r"b'\xff\xd8\xff\xe0 and muc'..."),
        ("a text " * 10, "() text", "'a text a text a text a text a text a..."),
        (np.array(["a", "b"]), "(2,) <U1", "['a', 'b']"),
    ],
)
def test_values_are_summed_up(leaf, spec, values):
    assert _leaves(leaf) == [{"place": "", "spec": spec, "values": values}]


def test_a_picture_needs_matplotlib(monkeypatch, capsys):
    np.save("a.npy", np.zeros((3, 4, 4)))
    drawn = []
    monkeypatch.setattr(ps, "show", lambda ds, path: drawn.append((len(ds), path)))
    assert cli.main(["inspect", "a.npy", "--picture", "a.png"]) == 0
    assert drawn == [(3, "a.png")]

    def lack(ds: object, path: str) -> None:
        raise ImportError("show() needs matplotlib: pip install matplotlib.")

    monkeypatch.setattr(ps, "show", lack)
    assert cli.main(["inspect", "a.npy", "--picture", "a.png"]) == 1
    assert capsys.readouterr().err == ("penstock inspect: show() needs matplotlib: pip install matplotlib.\n")


@pytest.mark.parametrize("command", ["inspect", "check", "bench"])
def test_a_pipe_is_refused_and_not_waited_for(command, capsys):
    os.mkfifo("frames.npy")
    assert cli.main([command, "frames.npy"]) == 1
    assert "frames.npy is a pipe, a socket or a device" in capsys.readouterr().err


def test_a_folder_of_pipes_is_not_waited_for(capsys):
    os.mkdir("folder")
    os.mkfifo("folder/a.bin")
    assert cli.main(["inspect", "folder"]) == 1
    assert "a.bin is a pipe" in capsys.readouterr().err
