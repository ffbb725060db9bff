"""The bar with the progress of long work, on a terminal and in a notebook, and the lines in the log."""

import io
import os
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
    # pytest puts back `sys.stderr` itself
    monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=stderr, modules={}))

    def close() -> str:
        if not stderr.closed:
            stderr.close()
            reader.join()
            os.close(leader)
        return shown.decode()

    yield close
    close()


def _lines(shown: str) -> list[str]:
    """What was on the line, one state after the other."""
    return [line for each in shown.split("\r") if (line := each.strip())]


def test_a_terminal_sees_one_line_that_is_taken_away(terminal, clock):
    with ProgressLine("Listing") as progress:
        clock.now_s += 1
        progress.advance(500)
    shown = terminal()
    assert [line.partition(" [")[0] for line in _lines(shown)] == ["Listing: 500 elements"]
    assert "\n" not in shown
    assert shown.rpartition("\r")[0].endswith(" ")


def test_the_part_of_a_known_number_is_shown(terminal, clock):
    with ProgressLine("Keeping", total=40_000) as progress:
        clock.now_s += 1
        progress.advance(30_000)
        progress._bar.mininterval = 0
        progress.advance(20_000)  # the last batch is counted as a full one
    first, last = _lines(terminal())
    assert first.startswith("Keeping:  75%")
    assert "30000/40000" in first
    assert last.startswith("Keeping: 100%")
    assert "40000/40000" in last


def test_work_of_less_than_half_a_second_shows_nothing(terminal, clock):
    with ProgressLine("Listing") as progress:
        clock.now_s += 0.4
        progress.advance(1000)
    assert terminal() == ""


def test_it_is_taken_away_when_the_work_fails(terminal, clock):
    def fail() -> None:
        with ProgressLine("Listing") as progress:
            clock.now_s += 1
            progress.advance()
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        fail()
    assert terminal().endswith(" \r")


def test_a_log_has_a_line_every_half_minute(capfd, clock, caplog):
    with caplog.at_level("INFO", "penstock"), ProgressLine("Listing", total=70) as progress:
        for _ in range(70):
            clock.now_s += 1
            progress.advance()
    assert caplog.messages == ["Listing: 30 of 70 elements, 43%.", "Listing: 60 of 70 elements, 86%."]
    assert capfd.readouterr().err == ""


def test_a_notebook_shows_the_bar_although_its_stderr_is_no_terminal(clock, monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=stderr, modules={"ipykernel.zmqshell": None}))
    with ProgressLine("Keeping", total=10) as progress:
        clock.now_s += 1
        progress.advance(5)
    assert "Keeping:  50%" in stderr.getvalue()


def test_work_goes_on_without_stderr_and_when_it_is_closed(terminal, clock, monkeypatch):
    with ProgressLine("Listing") as progress:
        clock.now_s += 1
        progress.advance()
        terminal()
        progress._bar.mininterval = 0
        progress.advance()
    for gone in (None, _progress.sys.stderr):
        monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=gone, modules={}))
        with ProgressLine("Listing") as progress:
            clock.now_s += 1
            progress.advance()
        assert progress.done == 1
