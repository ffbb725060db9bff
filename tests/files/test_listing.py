import errno
import glob
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.files._listing import FileList, Paths, Texts, listed, matching, named, packed

JPG = (".jpg",)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def keras_order(root: Path, folder: str, extensions: tuple[str, ...], follow_links: bool) -> list[str]:
    """What Keras 3.15 does, in its own words: the sorted walk of a folder."""
    walk = sorted(os.walk(root / folder, followlinks=follow_links), key=lambda step: step[0])
    return [
        str(Path(root, folder, os.path.relpath(os.path.join(place, name), root / folder)))
        for place, _, files in walk
        for name in sorted(files)
        if name.lower().endswith(extensions)
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    touch(tmp_path, "a/b.jpg", "a/b/x.jpg", "a/b-c/x.jpg", "a/b/c/y.JPG", "a/B.jpg", "a/é.jpg", "a/.h.jpg", "a/z.png")
    touch(tmp_path, "a/.hidden/x.jpg", "a/10.jpg", "a/9.jpg", "a/\U0001f408.jpg", "a/\uffee.jpg", "b/1.jpg", "top.jpg")
    touch(tmp_path, "elsewhere/deep/l.jpg", "a/dir.jpg/inside.jpg")
    (tmp_path / "a/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a/file_link.jpg").symlink_to(tmp_path / "b/1.jpg")
    (tmp_path / "a/nowhere.jpg").symlink_to(tmp_path / "gone.jpg")
    (tmp_path / "c").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a" / os.fsdecode(b"\xff.jpg")).touch()  # no UTF-8
    return tmp_path


@pytest.mark.parametrize("follow_links", [False, True])
@pytest.mark.parametrize("folder", ["a", "b", "c", ""])
def test_order_is_that_of_keras(tree: Path, folder: str, follow_links: bool) -> None:
    files, counts = listed(str(tree), [folder], JPG, follow_links)
    assert list(files) == keras_order(tree, folder, JPG, follow_links)
    assert counts == [len(files)]


def test_folders_come_as_they_are_given(tree: Path) -> None:
    files, counts = listed(str(tree), ["c", "a"], JPG, follow_links=False)
    assert list(files) == keras_order(tree, "c", JPG, False) + keras_order(tree, "a", JPG, False)
    assert counts == [1, len(files) - 1]


def test_folder_that_a_link_puts_into_itself_is_read_once(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.jpg", "a/b/y.jpg")
    (tmp_path / "a/b/back").symlink_to(tmp_path / "a")
    files, _ = listed(str(tmp_path), ["a"], JPG, follow_links=True)
    assert [os.path.relpath(path, tmp_path) for path in files] == ["a/x.jpg", "a/b/y.jpg"]


def test_paths_are_as_the_root_was_written_and_are_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "data/a/x.jpg")
    monkeypatch.chdir(tmp_path)
    files, _ = listed("data/", ["a"], JPG, follow_links=False)
    monkeypatch.chdir("/")
    assert (files[0], Paths(files)(np.array([0]))) == ("data/a/x.jpg", [os.fsencode(tmp_path / "data/a/x.jpg")])


@pytest.mark.parametrize("folders", [["a", "c"], [""]])
def test_paths_of_many_at_once_are_those_of_each(tree: Path, folders: list[str]) -> None:
    files, _ = listed(str(tree), folders, JPG, follow_links=True)
    order = np.random.default_rng(0).integers(len(files), size=3 * len(files))
    assert Paths(files)(order) == [os.fsencode(files[index]) for index in order]
    assert Paths(files)(order[:0]) == []
    assert Paths(files.take(order))(np.array([5, 0])) == [os.fsencode(files[order[index]]) for index in (5, 0)]


def test_paths_of_files_that_were_named_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["b.jpg", "/x/y/a.png", "/a.png", "x/\udcff.gif", "./c.jpg", *(f"{n}/{n % 7}.jpg" for n in range(5000))]
    paths = Paths(named(names))
    monkeypatch.chdir("/")
    for _ in range(2):  # of more folders than are kept
        assert paths(np.arange(len(names))) == [os.fsencode(os.path.join(tmp_path, name)) for name in names]


def test_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ps.SourceError, match=r"The folder .*/gone cannot be read: No such file or directory\. "):
        listed(str(tmp_path), ["gone"], JPG, follow_links=False)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    files, counts = listed(str(tmp_path), [""], JPG, follow_links=False)
    assert (list(files), len(files), counts) == ([], 0, [0])
    assert listed(str(tmp_path), [], JPG, follow_links=False)[1] == []


def test_paths_that_are_named_stay_as_they_are() -> None:
    paths = ["b.jpg", "/x/y/a.png", "x/ä.gif", "x/b.gif", "s3://bucket/deep/c.jpg", "b.jpg"] * 1000
    files = named(path for path in paths)
    assert list(files) == paths
    assert [files[index] for index in range(6)] == paths[:6]
    assert len(files.folders) == 4


@pytest.mark.parametrize("path", ["", "folder/", "a\0b.jpg"])
def test_what_is_no_path_of_a_file_is_refused(path: str) -> None:
    with pytest.raises(ps.ArgumentError, match="is no path of a file"):
        named(["a.jpg", path])


def test_taking_shares_the_names(tree: Path) -> None:
    files, _ = listed(str(tree), ["a"], JPG, follow_links=False)
    order = np.arange(len(files))[::-2].copy()
    some = files.take(order)
    assert list(some) == list(files)[::-2]
    assert some.names.data is files.names.data


def test_a_file_is_sixteen_bytes_and_its_name() -> None:
    files: FileList = named(f"folder_{number % 100}/image_{number:06d}.jpg" for number in range(10_000))
    tables = (files.folders, files.names)
    nbytes = sum(each.nbytes for table in tables for each in vars(table).values()) + files.folder_of.nbytes
    assert nbytes / len(files) < 16 + len("image_000000.jpg") + 1 + 0.5


def test_texts_come_back() -> None:
    texts = ["", "a", "äöü", "", "x" * 300]
    assert [Texts.of([packed(texts[:2]), packed([]), packed(texts[2:])])[index] for index in range(5)] == texts


@pytest.mark.parametrize(
    "pattern",
    ["*", "*/*", "**", "**/*", "**/*.jpg", "a/**/b/*", "**/b/**", "*/**/*.jpg", ".*", "a/.*/*", "a/9.jpg", "no/*",
     "[ab]/*", "a*/b*", "**/a/*.jpg", "**/.*", "./a/*", "*.jpg/*", "a//*", "../*/top.jpg"],
)  # fmt: skip
def test_patterns_are_those_of_glob(pattern: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    for each in (pattern, os.path.join(tree, pattern)):
        found = matching(each)
        assert found == sorted(set(found))
        assert {os.path.abspath(path) for path in found if not os.path.isdir(path)} == {
            os.path.abspath(path) for path in glob.glob(each, recursive=True) if not os.path.isdir(path)
        }


def test_a_pattern_reads_a_folder_that_a_link_puts_into_itself_once(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert matching(f"{tmp_path}/**/*.jpg") == [f"{tmp_path}/a/1.jpg"]


@pytest.mark.parametrize("pattern", ["*/*.jpg", "**/*.jpg", "a/*.jpg"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_pattern_does_not_leave_out_a_folder_that_cannot_be_read(
    number: int, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    scandir = os.scandir

    def failing(folder: str) -> Any:
        if folder.endswith("/a"):
            raise OSError(number, os.strerror(number), folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(
        ps.SourceError, match=rf"The folder {tmp_path}/a cannot be read: {os.strerror(number)}\. Files in"
    ):
        ps.from_files(f"{tmp_path}/{pattern}")


def test_a_folder_of_a_class_that_cannot_be_looked_at_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    stat = os.stat

    def failing(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("/a"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(ps.SourceError, match="cannot be listed: Input/output error"):
        ps.image_dataset_from_directory(tmp_path)


def test_a_broken_link_that_fits_a_pattern_is_an_error_that_names_it(tree: Path) -> None:
    with pytest.raises(ps.SourceError, match=r"nowhere\.jpg cannot be read: No such file or directory"):
        ps.from_files(f"{tree}/a/*.jpg")[0]
