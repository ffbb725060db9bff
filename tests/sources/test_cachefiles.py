"""What a cache deletes, what it takes for damage, and whose folders it uses."""

import builtins
import contextlib
import errno
import io
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base import _trust
from penstock.sources import _cachefiles


def square(x: Any) -> Any:
    return x * x


def cached(path: Path) -> ps.Dataset:
    return ps.range(9).map(square).cache(path)


def texts() -> Iterator[str]:
    yield from ("to", "be", "or")


def kept_text(path: Path) -> ps.Dataset:
    return ps.from_generator(texts).cache(path)


SQUARES = [x * x for x in range(9)]


def numbers(ds: ps.Dataset) -> list[int]:
    return [int(x) for x in ds]


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def make_old(path: Path) -> None:
    for each in [*path.rglob("*"), path]:
        os.utime(each, (time.time() - 9999999,) * 2, follow_symlinks=False)


# Deletion.


@pytest.mark.parametrize(
    "name",
    [
        ".old-photos",
        ".new-york",
        ".old-0123456789abcdef",
        ".penstock-new-",
        ".penstock-new-0123456789abcdef",
        "x.damaged-1",
    ],
)
@pytest.mark.parametrize(
    "content", [{"a.txt": "mine"}, {"0.npy": "mine"}, {"cache.json": '{"made_as": "another"}'}, {}]
)
def test_folders_of_the_user_beside_a_cache_stay(name: str, content: dict[str, str], tmp_path: Path) -> None:
    theirs = tmp_path / name
    theirs.mkdir()
    for file, text in content.items():
        (theirs / file).write_text(text)
    make_old(theirs)
    before = tree(tmp_path)
    assert numbers(cached(tmp_path)) == SQUARES
    assert {file: text for file, text in tree(tmp_path).items() if file in before} == before
    assert theirs.exists() or not content


def test_what_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*names: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_cachefiles.os, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        numbers(cached(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["cache.json", "0.npy", "count"])
def test_what_a_full_disk_left_unfinished_is_deleted_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = iter(["cache.json", "0.npy", "index.npy", "rest.bin", "count", "lock"])

    def fail(descriptor: int) -> None:
        if next(synced) == name:
            os.truncate(descriptor, 3)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_cachefiles, "sync", fail)
    with pytest.raises(ps.SourceError, match=os.strerror(errno.ENOSPC)):
        numbers(cached(tmp_path))
    assert not list(tmp_path.iterdir())


# Damage.


@contextlib.contextmanager
def failing(name: str, number: int, after: int = 0) -> Iterator[list[str]]:
    """Each attempt to open a file of this name fails, after the first ones."""
    real, failed, left = io.open, [], iter(range(after))

    def refuse(path: Any, *args: Any, **options: Any) -> Any:
        if isinstance(path, (str, Path)) and os.path.basename(path) == name and next(left, None) is None:
            failed.append(str(path))
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", refuse)
        patch.setattr(io, "open", refuse)
        yield failed


READ_ERRORS = [errno.EIO, errno.EACCES, errno.ESTALE]


@pytest.mark.parametrize("number", READ_ERRORS, ids=os.strerror)
@pytest.mark.parametrize("name", ["cache.json", "0.npy", "index.npy"])
def test_a_file_that_cannot_be_opened_is_no_damage(name: str, number: int, tmp_path: Path) -> None:
    assert numbers(cached(tmp_path)) == SQUARES
    before = tree(tmp_path)
    with (
        failing(name, number) as failed,
        pytest.raises(ps.SourceError, match=f"cannot be read: {os.strerror(number)}. Nothing of it was changed."),
    ):
        numbers(cached(tmp_path))
    assert failed
    assert tree(tmp_path) == before
    assert numbers(cached(tmp_path)) == SQUARES


@pytest.mark.parametrize("number", READ_ERRORS, ids=os.strerror)
@pytest.mark.parametrize("name", ["cache.json", "index.npy", "count"])
def test_a_kept_stream_that_cannot_be_opened_is_no_damage(name: str, number: int, tmp_path: Path) -> None:
    assert list(kept_text(tmp_path)) == list(texts())
    before = tree(tmp_path)
    with failing(name, number), pytest.raises(ps.SourceError, match=f"cannot be read: {os.strerror(number)}"):
        kept_text(tmp_path)
    assert tree(tmp_path) == before
    assert kept_text(tmp_path).access == "random"


@pytest.mark.parametrize("number", READ_ERRORS, ids=os.strerror)
@pytest.mark.parametrize("good_count", range(4))
def test_a_kept_stream_whose_length_cannot_be_opened_again_is_no_damage(
    good_count: int, number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert list(kept_text(tmp_path)) == list(texts())
    before = tree(tmp_path)
    with failing("count", number, after=good_count) as failed, contextlib.suppress(ps.SourceError):
        list(kept_text(tmp_path))
    assert failed or good_count > 2
    assert tree(tmp_path) == before
    assert not caplog.records
    assert kept_text(tmp_path).access == "random"


@pytest.mark.parametrize("number", READ_ERRORS, ids=os.strerror)
def test_a_materialized_dataset_that_cannot_be_opened_stays(number: int, tmp_path: Path) -> None:
    made = ps.range(9).map(square)
    made.materialize(tmp_path, executor="inline")
    before = tree(tmp_path)
    with failing("0.npy", number), pytest.raises(ps.SourceError, match=os.strerror(number)):
        made.materialize(tmp_path, executor="inline")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((cached, name) for name in ("cache.json", "0.npy", "index.npy")),
        *((kept_text, name) for name in ("cache.json", "index.npy", "count")),
    ],
)
def test_a_damaged_cache_is_set_aside(make: Any, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = list(make(tmp_path))
    (folder,) = tmp_path.iterdir()
    os.truncate(folder / name, 3)
    before = tree(folder)
    assert list(make(tmp_path)) == wanted
    (aside,) = tmp_path.glob(f"{folder.name}.damaged-*")
    assert tree(aside) == before
    assert f"begins anew. The old one is kept as {aside}" in caplog.text
    assert list(make(tmp_path)) == wanted
    assert len(list(tmp_path.iterdir())) == 2
    numbers(ps.range(3).cache(tmp_path))
    assert "The earlier elements stay in" in caplog.messages[-1]
    assert aside.name not in caplog.messages[-1]


def test_a_stream_of_fewer_elements_than_are_kept_is_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = list(kept_text(tmp_path))
    (folder,) = tmp_path.iterdir()
    (folder / "count").write_bytes((2).to_bytes(8, "little"))  # of one element
    assert list(kept_text(tmp_path)) == wanted
    assert "npy has other rows" in caplog.text


def test_a_cache_that_another_process_has_just_made_is_not_set_aside(tmp_path: Path) -> None:
    numbers(cached(tmp_path))
    (folder,) = tmp_path.iterdir()
    seen = os.stat(folder)
    folder.rename(tmp_path / "aside")
    numbers(cached(tmp_path))
    _cachefiles._set_aside(str(folder), seen, ValueError("it was damaged"))
    assert sorted(os.listdir(tmp_path)) == sorted([folder.name, "aside"])


# Whose it is.


def test_a_cache_is_its_users_alone(tmp_path: Path) -> None:
    numbers(cached(tmp_path / "cache"))
    paths = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o600}


def test_a_cache_in_a_folder_of_the_user_has_its_permissions(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    before = os.umask(0o007)
    try:
        numbers(cached(shared))
    finally:
        os.umask(before)
    (folder,) = shared.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o770
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o660}
    assert numbers(cached(shared)) == SQUARES


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("below", ["", "below", "a/b"])
def test_a_cache_in_a_folder_that_everybody_can_write_is_refused(is_there: bool, below: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    path = shared / below
    shared.mkdir()
    if is_there:
        path.mkdir(parents=True, exist_ok=True)
    shared.chmod(0o777)
    for keep in (cached, lambda path: ps.range(9).materialize(path), kept_text):
        with pytest.raises(ps.SourceError, match=rf"everybody can write to {shared}, .* Say chmod o-w, or name"):
            keep(path)
    assert not list(shared.rglob("*.npy"))


@pytest.mark.parametrize("place", ["plan", "file"])
def test_a_cache_that_everybody_can_write_is_refused(place: str, tmp_path: Path) -> None:
    numbers(cached(tmp_path))
    (folder,) = tmp_path.iterdir()
    wanted = folder if place == "plan" else folder / "0.npy"
    wanted.chmod(0o777 if place == "plan" else 0o666)
    with pytest.raises(ps.SourceError, match=f"everybody can write to {wanted}"):
        numbers(cached(tmp_path))


def test_a_link_in_a_cache_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    numbers(cached(tmp_path / "cache"))
    (folder,) = (tmp_path / "cache").iterdir()
    for name in ("0.npy", "index.npy", "count", "lock"):
        (folder / name).rename(tmp_path / "away")
        (folder / name).symlink_to(victim)
        with pytest.raises(ps.SourceError, match=f"{name} is a link, or no file, and is not used. Delete it"):
            numbers(cached(tmp_path / "cache"))
        (tmp_path / "away").rename(folder / name)
    assert victim.read_bytes() == b"precious"
    assert numbers(cached(tmp_path / "cache")) == SQUARES


def test_the_users_own_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir(0o700)
    (tmp_path / "link").symlink_to("scratch")
    assert numbers(cached(tmp_path / "link")) == SQUARES
    assert list((tmp_path / "scratch").iterdir())


def test_in_a_folder_as_tmp_only_own_names_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sticky = tmp_path / "tmp"
    sticky.mkdir()
    sticky.chmod(0o1777)
    assert numbers(cached(sticky / "mine")) == SQUARES
    assert numbers(cached(sticky)) == SQUARES
    (sticky / "link").symlink_to(sticky / "mine")
    monkeypatch.setattr(_trust, "_trusted", lambda: (4242,))  # as if this were another user's process
    for name in ("mine", "link"):
        with pytest.raises(ps.SourceError, match=rf"belongs to user {os.geteuid()}, and everybody can make files in"):
            cached(sticky / name)


def test_a_cache_of_another_user_is_read_where_no_stranger_could_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(cached(tmp_path / "theirs"))
    monkeypatch.setattr(_trust, "_trusted", lambda: (4242,))
    monkeypatch.setattr(_trust, "_way", lambda path, way=_trust._way: [x for x in way(path) if x[0] != "/tmp"])
    assert numbers(cached(tmp_path / "theirs")) == SQUARES


def test_the_record_of_a_cache_has_no_more_than_it_needs(tmp_path: Path) -> None:
    numbers(cached(tmp_path))
    (record,) = tmp_path.glob("*/cache.json")
    assert set(json.loads(record.read_text())) == {"version", "length", "spec", "steps", "python"}
    assert np.load(record.with_name("0.npy")).tolist() == SQUARES
