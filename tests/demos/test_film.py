"""The film: made of real photographs, the same on every run, and complete or missing."""

import itertools
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.demos import film
from penstock.demos.frames import _film
from tests.waits import DEADLINE_S

COUNT = 600


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    pytest.importorskip("skimage")
    path = tmp_path_factory.mktemp("film") / "folder" / "film.npy"
    film.make_film(path, COUNT)
    return path


needs_photographs = pytest.mark.framework


@needs_photographs
def test_film_is_float64_frames_from_0_to_1(made):
    frames = np.load(made)
    assert frames.shape == (COUNT, 3, 50, 50)
    assert frames.dtype == np.float64
    assert frames.flags.c_contiguous
    assert 0.0 <= frames.min() < 0.05
    assert 0.95 < frames.max() <= 1.0
    assert os.listdir(made.parent) == [made.name]


@needs_photographs
def test_film_is_the_same_on_every_run(made, tmp_path):
    film.make_film(tmp_path / "again.npy", COUNT)
    assert (tmp_path / "again.npy").read_bytes() == made.read_bytes()


@needs_photographs
def test_film_shows_photographs_and_each_its_own_share(made):
    from skimage import data

    frames = np.load(made)
    shares = np.split(frames, (np.cumsum(list(film.SHARES.values()))[:-1] * COUNT + 0.5).astype(int))
    for name, photograph in (
        ("rocket.jpg", data.rocket()),
        ("chelsea.png", data.chelsea()),
        ("astronaut.png", data.astronaut()),
    ):
        part = shares[list(film.SHARES).index(name)]
        # A part of a photograph has its colours, by mean and spread.
        assert np.abs(part.mean((0, 2, 3)) - photograph.mean((0, 1)) / 255).max() < 0.15, name
        assert np.abs(part.std((0, 2, 3)) - photograph.std((0, 1)) / 255).max() < 0.15, name


@needs_photographs
def test_next_frame_differs_from_the_last_and_is_most_like_it_two_pixels_on(made):
    frames = np.load(made)[-100:]  # the photograph of the test

    def error(shift: int) -> float:
        width = frames.shape[-1] - 4
        return float(np.square(frames[1:, ..., :width] - frames[:-1, ..., shift : shift + width]).mean())

    errors = [error(shift) for shift in range(5)]
    assert np.argmin(errors) == 2
    assert errors[2] < errors[0] / 2
    assert all((one != other).any() for one, other in itertools.pairwise(frames))


def test_camera_moves_about_two_pixels_a_frame_cuts_seldom_and_stays_inside():
    x, y = film.camera(3_000, 299, 450, seed=0)
    assert len(x) == len(y) == 3_000
    cuts = np.diff(x) < 0
    assert 5 < cuts.sum() < 30
    assert np.diff(x)[~cuts] == pytest.approx(film.SPEED)
    assert (np.diff(y)[~cuts] == 0).all()
    assert x.min() >= 0
    assert int(x.max()) + film.SIDE + 1 <= 450
    assert y.min() >= 0
    assert int(y.max()) + film.SIDE <= 299
    assert all((one == other).all() for one, other in zip((x, y), film.camera(3_000, 299, 450, seed=0), strict=True))


def test_film_lies_in_the_users_cache_or_where_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert film.film_path() == tmp_path / "penstock" / f"film-{film.RECIPE}.npy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert film.film_path().parent == tmp_path / ".cache" / "penstock"
    assert film.film_path("elsewhere").parent.name == "elsewhere"


def test_film_that_was_made_before_is_used_again(tmp_path, capsys):
    path = tmp_path / "film.npy"
    path.touch()
    assert _film(path) == path
    assert capsys.readouterr().out == f"Film: {path} (made before; delete it when you like)\n"


@needs_photographs
def test_film_that_an_exception_ended_is_not_there(tmp_path, monkeypatch):
    def fail(*_):
        yield from [np.zeros((3, 50, 50))] * film.CHUNK
        assert not (tmp_path / "film.npy").exists()
        raise RuntimeError("enough")

    monkeypatch.setattr(film, "_frames", fail)
    with pytest.raises(RuntimeError, match="enough"):
        film.make_film(tmp_path / "film.npy", COUNT)
    assert list(tmp_path.iterdir()) == []


@needs_photographs
def test_a_disk_that_is_too_small_is_refused_with_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=5 * 10**8))
    with pytest.raises(film.DemoError) as refused:
        film.make_film(tmp_path / "film.npy")
    assert str(refused.value) == (
        f"The film needs 1.20 GB, but the disk of {tmp_path} has 0.50 GB free. Choose a folder on another disk: "
        "penstock demo --data-dir FOLDER"
    )
    assert list(tmp_path.iterdir()) == []


def test_missing_photographs_are_named_with_their_cure(monkeypatch, tmp_path):
    def missing(name: str):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.resources.files", missing)
    with pytest.raises(film.DemoError, match=r"not installed\. Install it: pip install scikit-image\. Or bring"):
        film.make_film(tmp_path / "film.npy")


@needs_photographs
@pytest.mark.faults
def test_ctrl_c_while_the_film_is_made_leaves_nothing_and_is_status_130(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.commands.cli", "demo", "--data-dir", str(tmp_path / "cache")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            assert any("Making a film" in line for line in lines), process.communicate()
            assert " 0 %" in next(lines, ""), process.communicate()  # the file is open, and being written
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "\nInterrupted. Nothing is left behind.\n"), err
    assert [path.name for path in tmp_path.rglob("*")] == ["cache"]
