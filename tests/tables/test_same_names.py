"""Files of one name in two folders: messages name the folder, too."""

import csv
import io
import json
import tarfile

import numpy as np
import pytest

import penstock as ps


def tar(path):
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    return ps.from_tar


def tfrecord(path):
    ps.write_tfrecord(path, [b"abc"])
    return ps.from_tfrecord


def parquet(path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": [1]}), path)
    return ps.from_parquet


def arrow(path):
    pa = pytest.importorskip("pyarrow")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.schema({"x": pa.int64()})) as writer:
        writer.write_table(pa.table({"x": [1]}))
    return ps.from_arrow


def jsonl(path):
    path.write_text(json.dumps({"x": 1}) + "\n")
    return ps.from_jsonl


def table_csv(path):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["x"], [1]])
    return ps.from_csv


def text(path):
    path.write_text("a line\n")
    return ps.from_text


def arrays(path):
    with path.open("wb") as file:
        np.save(file, np.arange(1))
    return lambda paths: ps.concatenate([ps.from_npy(each) for each in paths])


def mds(path):
    path.mkdir()
    shard = np.array([1, 12, 20], "<u4").tobytes() + np.int64(1).tobytes()
    (path / "shard.mds").write_bytes(shard)
    columns = {"column_names": ["x"], "column_encodings": ["int"], "column_sizes": [8]}
    raw = {"basename": "shard.mds", "bytes": len(shard), "hashes": {}}
    about = {"format": "mds", "version": 2, "samples": 1, "raw_data": raw, "zip_data": None, **columns}
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": [about]}))
    return ps.from_mds


def hdf5(path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(1)
    return lambda paths: ps.concatenate([ps.from_hdf5(each, "x") for each in paths])


def zarr(path):
    store = pytest.importorskip("zarr").create_array(str(path), shape=(1,), dtype="int64")
    store[:] = 1
    return lambda paths: ps.concatenate([ps.from_zarr(each) for each in paths])


def files(path):
    path.write_bytes(b"abc")
    return ps.from_files


FORMS = {each.__name__: each for each in (tar, tfrecord, parquet, arrow, jsonl, text, mds, files)}
FORMS |= {"csv": table_csv, "npy": arrays, "hdf5": hdf5, "zarr": zarr}


@pytest.mark.parametrize("form", FORMS)
def test_a_message_tells_files_of_one_name_apart(form, tmp_path):
    def fails(element):
        raise ValueError("no")

    paths = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / f"a.{form}")
        made = FORMS[form](paths[-1])
    elements = made(paths)
    assert len(elements) == 2
    for index, path in enumerate(paths):
        with pytest.raises(ps.ElementError) as caught:
            elements.map(fails, element_spec=ps.ArraySpec((), "int64"))[index]
        assert str(path) in str(caught.value)
        assert str(paths[1 - index]) not in str(caught.value)


def test_a_damaged_sample_names_its_folder(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        mds(tmp_path / folder / "data")
    shard = tmp_path / "two" / "data" / "shard.mds"
    # The sizes of the sample: a column of 8 bytes, of which the table leaves none.
    shard.write_bytes(np.array([1, 20, 20], "<u4").tobytes() + bytes(8))
    samples = ps.from_mds([tmp_path / "one" / "data", tmp_path / "two" / "data"])
    with pytest.raises(ps.SourceError, match=r"/two/data/shard\.mds"):
        samples[1]
