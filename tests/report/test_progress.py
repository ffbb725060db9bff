"""The line with the progress of long work, on a terminal only."""

import os
import shutil
import threading
from types import SimpleNamespace

import pytest

from penstock.report import _progress
from penstock.report._progress import ProgressLine

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves: `clock.now_s += 1`."""

    class Clock:
        now_s = 100.0

        def monotonic(self) -> float:
            return self.now_s

    clock = Clock()
    monkeypatch.setattr(_progress, "time", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch):
    """Makes stderr a terminal. `terminal()` closes it and returns its text."""
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(leader, 4096):
                shown.extend(chunk)
        except OSError:  # on Linux, because the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    stderr = os.fdopen(follower, "w")
    monkeypatch.setattr(
        _progress, "sys", SimpleNamespace(stderr=stderr, modules={})
    )  # pytest puts back `sys.stderr` itself
    monkeypatch.setenv("TERM", "xterm")

    def close() -> str:
        if not stderr.closed:
            stderr.close()
            reader.join()
            os.close(leader)
        return shown.decode()

    yield close
    close()


def _lines(shown: str) -> list[str]:
    return shown.split("\r\x1b[K")[1:]


def test_a_terminal_sees_one_line_that_is_taken_away(terminal, clock):
    with ProgressLine("Listing") as progress:
        for _ in range(3):
            clock.now_s += 1
            progress.advance(500)
    assert _lines(terminal()) == [
        "Listing: 500 elements",
        "Listing: 1,000 elements",
        "Listing: 1,500 elements",
        "",
    ]


def test_the_part_of_a_known_number_is_shown(terminal, clock):
    with ProgressLine("Keeping", total=40_000) as progress:
        for count in (100, 19_900, 30_000):
            clock.now_s += 2
            progress.advance(count)
    assert _lines(terminal())[:-1] == [
        "Keeping: 100 of 40,000 elements, 0%",
        "Keeping: 20,000 of 40,000 elements, 50%",
        "Keeping: 40,000 of 40,000 elements, 100%",
    ]


def test_work_of_less_than_half_a_second_shows_nothing(terminal, clock):
    with ProgressLine("Listing") as progress:
        clock.now_s += 0.4
        progress.advance(1000)
    assert terminal() == ""


def test_it_is_drawn_ten_times_a_second(terminal, clock):
    with ProgressLine("Listing") as progress:
        for _ in range(2000):
            clock.now_s += 0.001
            progress.advance()
    assert len(_lines(terminal())) == pytest.approx(15 + 1, abs=1)


def test_a_line_is_no_wider_than_the_terminal(terminal, clock, monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((20, 24)))
    with ProgressLine("Listing a folder of many files") as progress:
        clock.now_s += 1
        progress.advance()
    assert _lines(terminal())[0] == "Listing a folder of"


def test_it_is_taken_away_when_the_work_fails(terminal, clock):
    def fail() -> None:
        with ProgressLine("Listing") as progress:
            clock.now_s += 1
            progress.advance()
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        fail()
    assert terminal().endswith("\r\x1b[K")


def test_a_terminal_that_cannot_take_a_line_back_sees_none(terminal, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with ProgressLine("Listing") as progress:
        clock.now_s += 1
        progress.advance()
    assert terminal() == ""


def test_a_log_has_a_line_every_half_minute(capfd, clock, caplog):
    with caplog.at_level("INFO", "penstock"), ProgressLine("Listing", total=70) as progress:
        for _ in range(70):
            clock.now_s += 1
            progress.advance()
    assert caplog.messages == ["Listing: 30 of 70 elements, 43%.", "Listing: 60 of 70 elements, 86%."]
    assert capfd.readouterr().err == ""


def test_a_notebook_shows_one_line_below_the_cell(clock, monkeypatch):
    shown = []

    def display(data, *, raw, display_id, update):
        shown.append((data["text/plain"], display_id, update))

    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None))
    modules = {"IPython": shell, "IPython.display": SimpleNamespace(display=display)}
    monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=None, modules=modules))
    with ProgressLine("Keeping", total=10) as progress:
        for _ in range(2):
            clock.now_s += 1
            progress.advance(5)
    lines, names, updates = zip(*shown, strict=True)
    assert lines == ("Keeping: 5 of 10 elements, 50%", "Keeping: 10 of 10 elements, 100%", "")
    assert updates == (False, True, True)
    assert len(set(names)) == 1


def test_work_goes_on_without_stderr_and_when_it_is_closed(terminal, clock, monkeypatch):
    with ProgressLine("Listing") as progress:
        clock.now_s += 1
        terminal()
        progress.advance()
    for gone in (None, _progress.sys.stderr):
        monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=gone, modules={}))
        with ProgressLine("Listing") as progress:
            clock.now_s += 1
            progress.advance()
        assert progress.done == 1
