"""Files on the nodes of a cluster, options that are refused, and streams. Agents stay from test to test."""

import io
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import penstock as ps

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("agents_stay")]


def _file_dataset(kind: str, path: Path) -> ps.Dataset:
    if kind == "tfrecord":
        ps.write_tfrecord(path, [b"%d" % number for number in range(12)])
        return ps.from_tfrecord(path).map(lambda record: int(record.tobytes())).batch(4)
    np.save(path, np.arange(12))
    if kind == "npy":
        return ps.from_npy(path).batch(4)
    array = np.load(path, mmap_mode="r")
    return ps.range(12).map(lambda i: array[i]).batch(4)


@pytest.mark.parametrize("kind", ["npy", "memmap", "tfrecord"])
def test_a_file_that_a_node_lacks_is_named_with_the_node(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data.npy"
    with _file_dataset(kind, path).loader("ray", workers=1) as loader:
        path.unlink()
        with pytest.raises(ps.SourceError, match=rf"{path} cannot be") as caught:
            next(iter(loader))
        assert any(re.match(r"It was on the Ray node \d+\.", note) for note in caught.value.__notes__)


@pytest.mark.parametrize("kind", ["npy", "memmap", "tfrecord"])
def test_files_are_known_on_other_machines_by_their_content(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data.npy"
    dataset = _file_dataset(kind, path)
    want = [batch.tolist() for batch in dataset]
    with dataset.loader("ray", workers=1) as loader:  # which has packed the plan
        copy = shutil.copy(path, tmp_path / "copy")  # another inode and time, as on another machine
        os.replace(copy, path)
        assert [batch.tolist() for batch in loader] == want


@pytest.mark.parametrize("kind", ["npy", "memmap", "tfrecord"])
def test_files_of_other_content_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data.npy"
    with _file_dataset(kind, path).loader("ray", workers=1) as loader:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        (tmp_path / "copy").write_bytes(content)
        os.replace(tmp_path / "copy", path)
        with pytest.raises(ps.SourceError, match=rf"{path} on this machine, .*, differs|{path} has changed"):
            next(iter(loader))


def test_agents_of_a_machine_share_one_cache_of_remote_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "index"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import _object_server as server

    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(60):
            member = tarfile.TarInfo(f"{number:03}.bin")
            member.size = 50_000
            tar.addfile(member, io.BytesIO(bytes([number]) * member.size))
    with server.serving() as store:
        store.put("bucket/train.tar", file.getvalue())
        cache = ps.DiskCache(tmp_path / "blocks", 1 << 30)
        keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
        samples = ps.from_tar(
            "s3://bucket/train.tar", fields=["bin"], storage_options={"endpoint": store.endpoint, **keys}, cache=cache
        )
        dataset = samples.map(lambda sample: int(sample["bin"][0])).batch(4)
        assert len(dataset) == 15  # which reads the index
        store.set(server.Behaviour(latency_s=0.01))
        with dataset.loader("ray", workers=1) as loader:
            for _ in range(2):
                assert [number for batch in loader for number in batch.tolist()] == [*range(60)]
        # Both nodes are this machine, so their agents have one folder. An index may be made once more.
        assert 60 * 50_000 <= store.stats()["bytes"] < 1.2 * 60 * 50_000
    sys.modules.pop("_object_server", None)


def test_options_that_are_not_the_users_are_refused() -> None:
    with pytest.raises(ps.ArgumentError, match=r"ray_options=\{'max_restarts': \.\.\.\} is set by penstock"):
        ps.range(8).batch(4).loader("ray", ray_options={"max_restarts": 3})


def test_a_stream_is_read_here_and_says_so() -> None:
    dataset = ps.from_generator(lambda: iter(np.arange(20))).map(lambda x: x + 1).batch(4)
    with dataset.loader("ray", workers=1) as loader:
        assert np.concatenate([batch.copy() for batch in loader]).tolist() == list(range(1, 21))
        assert "The steps after a stream run on this machine" in str(loader.report())
