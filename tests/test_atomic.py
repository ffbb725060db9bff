"""The one way to write a file."""

import errno
import os
import stat
from pathlib import Path

import pytest

import penstock as ps
from penstock.base import _atomic


def test_a_file_is_replaced_when_all_of_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, done = tmp_path / "a", []
    path.write_bytes(b"old")
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(_atomic.os, "fsync", lambda number: (done.append(os.fstat(number).st_size), fsync(number)))
    monkeypatch.setattr(_atomic.os, "replace", lambda *names: (done.append("named"), replace(*names)))
    with _atomic.complete(path) as out:
        out.write(b"newer")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"newer"
    assert done[:2] == [5, "named"]
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_after_a_failure_the_old_file_is_there_and_nothing_else(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_nothing_behind: None
) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def fail(*args: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(_atomic.os, call, fail)
    with pytest.raises(OSError, match="quota"):
        _atomic.write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_a_killed_process_left_is_deleted_after_an_hour_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    names = [f".penstock-{number:016x}.part" for number in range(5)]
    abandoned, young, link, folder, pipe = (tmp_path / name for name in names)
    others = [tmp_path / ".penstock-x.part", tmp_path / f"{names[0]}.txt", tmp_path / names[0].upper()]
    for path in (abandoned, young, *others):
        path.write_bytes(b"half")
    link.symlink_to("target")
    folder.mkdir()
    os.mkfifo(pipe)
    with _atomic.complete(tmp_path / "alive") as out:
        out.write(b"half")
        out.flush()
        for path in set(tmp_path.iterdir()) - {young, link}:
            os.utime(path, (0, 0))
        there = set(os.listdir(tmp_path))
        for _ in range(2):
            _atomic._swept.clear()  # as in another process
            _atomic.write(tmp_path / "new", b"new")
            assert set(os.listdir(tmp_path)) == there - {abandoned.name} | {"new"}
    assert (tmp_path / "alive").read_bytes() == b"half"
    assert (tmp_path / "target").read_bytes() == b"precious"


def test_a_folder_is_looked_at_once_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _atomic.write(tmp_path / "a", b"")
    monkeypatch.setattr(_atomic.os, "listdir", lambda path: pytest.fail("again"))
    _atomic.write(tmp_path / "a", b"b")


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    _atomic.write(tmp_path / "link", b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "link").read_bytes() == b"new"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "full").mkdir()
    for name in ("pipe", "device", "full"):
        with pytest.raises(OSError, match=f"{name} is a folder, a device or a pipe, and no file that can be replaced"):
            _atomic.write(tmp_path / name, b"new")
    with pytest.raises(OSError, match="device or a pipe"):
        ps.write_tfrecord(tmp_path / "device", [b"abc"])
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert (tmp_path / "device").is_symlink()


def test_a_picture_makes_no_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(FileNotFoundError, match="no"):
        ps.range(3).show(tmp_path / "no" / "out.png")
    assert not os.listdir(tmp_path)


def test_a_picture_does_not_write_through_a_link(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "out.png").symlink_to(tmp_path / "victim")
    ps.range(3).show(tmp_path / "out.png")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
