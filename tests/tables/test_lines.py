"""Lines of text and whole files as elements."""

import re

import numpy as np
import pytest

import penstock as ps
from penstock.tables import lines
from penstock.testing import SourceTests
from tests.texts import words_of_encodings


def written(path, *texts, newline="\n", end="\n"):
    """Writes lines; some files end without one."""
    path.write_bytes((newline.join(texts) + end).encode())
    return path


class TestText(SourceTests):
    @pytest.fixture(params=["lines", "files", "small windows"])
    def source(self, request, tmp_path, monkeypatch):
        if request.param == "small windows":
            monkeypatch.setattr(lines, "_WINDOW_NBYTES", 2)
        if request.param == "files":
            for number in range(7):
                written(tmp_path / f"{number}.txt", f"file {number}", "ä" * number, end="")
            return ps.from_text(f"{tmp_path}/*.txt", by="file")._node.data
        written(tmp_path / "a.txt", "one", "", "ä two", " three ", end="")
        written(tmp_path / "b.txt", "four", "five", "six", newline="\r\n", end="\r\n")
        return ps.from_text([tmp_path / "a.txt", tmp_path / "b.txt"])._node.data

    @pytest.fixture
    def expected(self, request):
        if request.node.callspec.params["source"] == "files":
            return np.array([f"file {number}\n" + "ä" * number for number in range(7)])
        return np.array(["one", "", "ä two", " three ", "four", "five", "six"])


@pytest.mark.slow
def test_worker_processes_read_lines(tmp_path):
    ds = ps.from_text(written(tmp_path / "a.txt", "one", "three", "of"))
    with ds.map(len).loader(executor="processes", workers=1) as loader:
        assert list(map(int, loader)) == [3, 5, 2]


def test_an_index_is_kept_and_made_again_for_a_changed_file(tmp_path):
    path = written(tmp_path / "a.txt", "one", "two")
    assert len(ps.from_text(path)) == 2
    kept = (tmp_path / ".a.txt.index").read_bytes()
    assert len(ps.from_text(path)) == 2
    assert (tmp_path / ".a.txt.index").read_bytes() == kept
    written(path, "one", "two", "three")
    assert list(ps.from_text(path)) == ["one", "two", "three"]
    assert len(ps.from_text(path, cache_dir=tmp_path / "kept")) == 3
    assert (tmp_path / "kept").is_dir()


def test_a_mark_of_utf_8_is_no_text(tmp_path):
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a").write_bytes(mark + b"one\ntwo\n")
    assert list(ps.from_text(tmp_path / "a")) == ["one", "two"]
    assert list(ps.from_text(tmp_path / "a", by="file")) == ["one\ntwo\n"]
    (tmp_path / "a").write_bytes(mark)
    assert list(ps.from_text(tmp_path / "a")) == []


def test_empty_files_have_no_lines(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    assert len(ps.from_text(tmp_path / "a")) == 0
    assert list(ps.from_text([tmp_path / "a", written(tmp_path / "b", "one")])) == ["one"]
    assert list(ps.from_text(tmp_path / "a", by="file")) == [""]


def test_a_line_may_be_longer_than_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_WINDOW_NBYTES", 1 << 10)
    path = written(tmp_path / "a", "a" * (1 << 18), "b", "", "c" * 999)
    assert [len(each) for each in ps.from_text(path)] == [1 << 18, 1, 0, 999]


def test_wrong_arguments_are_refused(tmp_path):
    path = written(tmp_path / "a.txt", "one")
    with pytest.raises(ps.ArgumentError, match=r"by='word'.: it is 'line' or 'file'"):
        ps.from_text(path, by="word")
    with pytest.raises(ps.ArgumentError, match="Python knows no such encoding"):
        ps.from_text(path, encoding="utf-9")
    with pytest.raises(ps.ArgumentError, match="Python knows no such encoding"):
        ps.from_text(path, encoding="rot13")


@pytest.mark.parametrize(("encoding", "word"), words_of_encodings().items())
def test_text_may_have_another_encoding(tmp_path, encoding, word):
    (tmp_path / "a").write_bytes(f'{word},b\n"{word}\n,",1\nx,2\n'.encode(encoding))
    assert list(ps.from_text(tmp_path / "a", encoding=encoding)) == [f"{word},b", f'"{word}', ',",1', "x,2"]


def test_bytes_that_are_no_text_are_named_with_file_line_and_column(tmp_path):
    (tmp_path / "a").write_bytes("x,y\nx,y\né,1\nx,y".encode("latin-1"))
    ds = ps.from_text(tmp_path / "a")
    text = r"a line 3 is no text in utf-8: .* in column 1, at its byte 0\. Name .* encoding=, such as 'latin-1'"
    with pytest.raises(ps.SourceError, match=text):
        ds[2]
    assert [ds[0], ds[3]] == ["x,y"] * 2
    assert ps.from_text(tmp_path / "a", encoding="latin-1")[2] == "é,1"
    (tmp_path / "a").write_bytes("x,y\n".encode("utf-16"))
    with pytest.raises(ps.SourceError, match=r"a.* is no text in utf-8: .* such as 'utf-16'"):
        list(ps.from_text(tmp_path / "a"))
    (tmp_path / "a").write_bytes("x,y\nx,y".encode("utf-16-le") + b"\x00")
    with pytest.raises(ps.SourceError, match=r"a line 2 is no text in utf-16-le: truncated data"):
        list(ps.from_text(tmp_path / "a", encoding="utf-16-le"))
    (tmp_path / "a").write_bytes("ok\nä".encode("latin-1"))
    with pytest.raises(ps.SourceError, match=re.escape("in column 1 (its line 2), at its byte 3")):
        list(ps.from_text(tmp_path / "a", by="file"))
