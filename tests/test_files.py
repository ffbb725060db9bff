"""Pipes, sockets, devices and folders where a file is expected: an error at once that names them, and never a wait."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

CONSTRUCTORS: dict[str, Callable[[str], Any]] = {
    "from_npy": ps.from_npy,
    "from_hdf5": ps.from_hdf5,
    "from_image_files": lambda path: ps.from_image_files(path)[0],
    "from_tfrecord": ps.from_tfrecord,
    "from_arrayrecord": ps.from_arrayrecord,
    "from_tar": ps.from_tar,
    "from_parquet": ps.from_parquet,
    "from_arrow": ps.from_arrow,
    "from_jsonl": ps.from_jsonl,
    "from_csv": ps.from_csv,
    "from_text": ps.from_text,
    "from_files": lambda path: ps.from_files(path)[0],
    "from_files(labels)": lambda path: ps.from_files([__file__], labels=path),
    "from_nifti": lambda path: pytest.importorskip("nibabel") and ps.from_nifti(path),
    "decode": ps.image.decode,
    "replay": lambda path: list(ps.replay(path, ps.range(3))),
}


def made(kind: str, path: Path) -> str:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(os.path.relpath(path))  # a name of at most 107 bytes
    else:
        return "/dev/zero"
    return str(path)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
@pytest.mark.parametrize("constructor", CONSTRUCTORS)
def test_what_is_no_file_is_refused_by_its_name(
    constructor: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = made(kind, tmp_path / "it")
    fact = r"(?i)is a directory" if kind == "folder" else r"is a pipe, a socket or a device, .* to a file"
    with pytest.raises(OSError, match=fact) as caught:
        CONSTRUCTORS[constructor](path)
    assert path in str(caught.value)
    assert "Error:" not in str(caught.value)


@pytest.mark.parametrize("kind", ["npy", "h5", "jpg", "txt"])
def test_a_file_that_became_a_pipe_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"it.{kind}"
    if kind == "npy":
        np.save(path, np.arange(4))
        dataset = ps.from_npy(path)
    elif kind == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(4)
        dataset = ps.from_hdf5(path)
    elif kind == "jpg":
        dataset = ps.from_image_files([path])
    else:
        path.write_text("a\n1\n2\n")
        dataset = ps.from_text(path)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(ps.SourceError, match=r"it\."):
        dataset[0]
