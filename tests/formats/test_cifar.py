import pickle

import numpy as np
import pytest

import penstock as ps

RNG = np.random.default_rng(0)


def records(count, label_count=1):
    return RNG.integers(0, 100, (count, label_count + 3072)).astype("u1")


def written(path, rows):
    rows.tofile(path)
    return path


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_records_are_images_and_labels(tmp_path, executor):
    parts = [records(7), records(4)]
    for number, rows in enumerate(parts):
        written(tmp_path / f"data_batch_{number}.bin", rows)
    ds = ps.from_cifar(f"{tmp_path}/data_batch_*.bin")
    assert ds.element_spec == {"image": ps.ArraySpec((32, 32, 3), "uint8"), "label": ps.ArraySpec((), "uint8")}
    rows = np.concatenate(parts)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    assert (ds[8]["image"] == images[8]).all()
    order = [int(index) for index in ps.range(11).shuffle(seed=1)]
    for steps in (ds.shuffle(seed=1), ds.shuffle(seed=1).map(dict)):
        with steps.batch(11).loader(executor) as loader:
            (batch,) = loader
        assert (batch["image"] == images[order]).all()
        assert batch["label"].tolist() == rows[order, 0].tolist()


def test_cifar_100_has_two_labels(tmp_path):
    rows = records(5, 2)
    ds = ps.from_cifar([written(tmp_path / "train.bin", rows)])
    assert list(ds.element_spec) == ["image", "coarse_label", "label"]
    batch = ds.batch(5)[0]
    assert batch["coarse_label"].tolist() == rows[:, 0].tolist()
    assert batch["label"].tolist() == rows[:, 1].tolist()
    assert (batch["image"][3, 1, 2] == rows[3, 2:].reshape(3, 32, 32)[:, 1, 2]).all()


def test_labels_tell_the_version_where_the_size_fits_both(tmp_path):
    ten = np.zeros((3074, 3073), "u1")  # as many bytes as 3,073 records of CIFAR-100
    with pytest.raises(
        ps.SourceError, match=r"a\.bin has 9,446,402 bytes, .*labels tell not which\. Write its records"
    ):
        ps.from_cifar(written(tmp_path / "a.bin", ten))
    ten[:, 0], ten[:, 1:] = 9, 255
    assert list(ps.from_cifar(written(tmp_path / "a.bin", ten)).element_spec) == ["image", "label"]
    hundred = np.full((3073, 3074), 255, "u1")
    hundred[:, 0], hundred[:, 1] = 19, 99
    assert len(ps.from_cifar(written(tmp_path / "a.bin", hundred)).select("coarse_label")) == 3073


@pytest.mark.parametrize("content", [b"", b"x" * 3072, b"x" * 3075], ids=len)
def test_what_is_no_whole_records_is_named(tmp_path, content):
    (tmp_path / "a.bin").write_bytes(content)
    text = (
        rf"a\.bin has {len(content):,} bytes, which are no whole records of CIFAR-10 .*It is cut off, or another file"
    )
    with pytest.raises(ps.SourceError, match=text):
        ps.from_cifar(tmp_path / "a.bin")


def test_the_python_version_is_refused_with_the_cure(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"labels": [1]}))
    with pytest.raises(
        ps.SourceError, match=r"of the Python version, a pickle, which runs whatever code it contains\. D"
    ):
        ps.from_cifar(tmp_path / "data_batch_1")


def test_a_url_is_refused():
    pytest.importorskip("fsspec").filesystem("memory").pipe("/cifar/a.bin", bytes(3073))
    with pytest.raises(
        ps.ArgumentError, match=r"from_cifar\(\) reads files of this machine, and memory://.* Download it"
    ):
        ps.from_cifar("memory://cifar/a.bin")


def test_a_file_that_became_shorter_is_an_error(tmp_path):
    path = written(tmp_path / "a.bin", records(9))
    ds = ps.from_cifar(path)
    written(path, records(2))
    with pytest.raises(ps.SourceError, match=r"a\.bin was shortened since the dataset was made"):
        ds[8]
