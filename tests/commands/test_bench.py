"""`penstock bench`: its runs, its output, and the targets that it refuses."""

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import penstock as ps
from penstock.commands import bench, cli
from tests.servers import serving

PROGRAM = """
import numpy as np
import penstock as ps
print("what a module prints")
ds = ps.range(64).batch(8)
number = 3
class there: ds = ps.range(10).batch(5)
def make(): return ds
def make_loader(): return ds.loader()
def fails(): raise ValueError("no data here")
def leaves(): raise SystemExit(2)
def needs(n, *more, size, of=3): return ds
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    # A busy machine changes nothing: a millisecond passes at each look at the clock.
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=itertools.count(0, 0.001).__next__))
    Path("data_of_mine.py").write_text(PROGRAM)
    yield
    sys.modules.pop("data_of_mine", None)


@pytest.fixture
def run(capsys):
    """Runs the command for a moment, inline: `run("a.npy")` returns its output, as JSON."""

    def run(target: str, *options: str, executor: str = "inline") -> dict:
        status = cli.main(["bench", target, "--json", "--seconds", "0.05", "--executor", executor, *options])
        assert status == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_path_is_opened_as_inspect_does_and_batched(run):
    np.save("a.npy", np.zeros((100, 3)))
    found = run("a.npy")
    assert found["code"] == 'ds = ps.from_npy("a.npy")'
    assert found["plan"] == [
        "batch(32): 4 elements, (None, 3) float64, random",
        "from_npy(a.npy): 100 elements, (3,) float64, random",
    ]
    assert found["nbytes"] == found["elements"] * 3 * 8
    assert found["elements"] / found["batches"] == pytest.approx(25, rel=0.5)
    assert found["elements_per_s"] == pytest.approx(found["elements"] / found["seconds"])
    assert found["epochs"] == (found["batches"] + 1) / 4
    assert found["seconds"] == pytest.approx(0.05, rel=0.1)
    assert found["report"]["batches"] == found["batches"] + 1
    assert found["report"]["executor"] == "inline"
    assert [each["workers"] for each in found["report"]["what_if"]] == [1, 2, 4]


def test_batch_size_and_shuffle_are_taken(run):
    np.save("a.npy", np.zeros((100, 3)))
    found = run("a.npy", "--batch-size", "10", "--shuffle")
    assert found["plan"][0].startswith("batch(10): 10 elements")
    assert found["plan"][1].startswith("shuffle(seed=0)")
    assert found["elements"] == found["batches"] * 10


def test_ragged_elements_are_padded(run):
    ps.write_tfrecord("a.tfrecord", [b"a" * number for number in range(1, 9)])
    found = run("a.tfrecord", "--batch-size", "4")
    assert found["plan"][0].startswith("padded_batch(4): 2 elements")
    assert found["elements"] == found["batches"] * 4


@pytest.mark.parametrize(
    "target", ["data_of_mine.py:make", "data_of_mine.py:ds", "data_of_mine:make", "data_of_mine:ds"]
)
def test_a_name_in_a_module_or_file_is_run_as_it_is(target, run, capsys):
    found = run(target)
    assert found["plan"][0] == "batch(8): 8 elements, (8,) int64, random"
    assert found["elements"] == found["batches"] * 8


def test_dotted_names_are_found(run):
    assert run("data_of_mine:there.ds")["plan"][0] == "batch(5): 2 elements, (5,) int64, random"


def test_the_printed_result_has_sentence_table_and_other_numbers_of_workers(capsys, leaves_nothing_behind):
    assert (
        cli.main(["bench", "data_of_mine.py:ds", "--seconds", "0.05", "--executor", "threads", "--workers", "1"]) == 0
    )
    printed = capsys.readouterr()
    assert printed.err == "what a module prints\n"
    for part in (
        "  range(64): 64 elements, () int64, random\n\n",
        " elements/s, ",
        "  before it  an epoch, or 3 s of one, to warm up\n  consumer   reads every byte, and does nothing else\n",
        " (threads, 1 worker), ",
        " of the workers' time\n",
        "\n  with 1 worker: ",
        "\n  with 4 workers: ",
    ):
        assert part in printed.out
    assert printed.out.count("(as now)") == 1


@pytest.mark.slow
def test_worker_processes_run_functions_of_a_file(run, leaves_nothing_behind):
    Path("data_of_mine.py").write_text(
        "import penstock as ps\ndef double(x): return 2 * x\ndef make(): return ps.range(64).map(double).batch(8)\n"
    )
    found = run("data_of_mine.py:make", "--workers", "1", executor="auto")
    assert (found["report"]["executor"], found["report"]["workers"]) == ("processes", 1)


def test_a_stream_and_elements_without_batches_are_measured():
    measured, _ = bench.measure(ps.range(50).filter(lambda x: x % 2 == 0), 0.02, "inline")
    assert measured["epochs"] is None
    assert measured["elements"] == measured["batches"] > 0


def test_epochs_that_give_nothing_are_refused():
    with pytest.raises(ps.ArgumentError, match="An epoch gave nothing, because every element was left out"):
        bench.measure(ps.range(50).filter(lambda x: x < 0), 0.02, "inline")


def test_a_url_is_opened_as_a_path_is(run, capsys):
    np.save("a.npy", np.zeros((100, 3)))
    with serving() as server:
        server.files["a.npy"] = Path("a.npy").read_bytes()
        url = f"http://{server.address}/a.npy"
        found = run(url)
        assert cli.main(["bench", f"{url}.gone"]) == 1
    assert found["code"] == f'ds = ps.from_npy("{url}")'
    assert found["plan"][0] == "batch(32): 4 elements, (None, 3) float64, random"
    assert found["report"]["lanes"][0]["traffic"]["requests"] > 0
    assert "a.npy.gone" in capsys.readouterr().err


def test_every_byte_is_read_and_counted():
    assert bench._read({"x": np.zeros((3, 5), "uint8"), "y": np.zeros((4, 2)).T, "t": np.array(["ab"])}) == 15 + 64 + 8


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nowhere.npy", "There is no file or folder nowhere.npy, seen from "),
        (
            "data_of_mine.py",
            "data_of_mine.py is a program. Name the dataset in it, or the function that returns it: data_of_mine.",
        ),
        (
            "data_of_mine.py:needs",
            "needs() raised TypeError: needs() missing 1 required positional argument: 'n'",
        ),
        ("nowhere.py:ds", "Importing nowhere.py raised FileNotFoundError: "),
        ("nowhere_at_all:ds", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        (
            "data_of_mine:dataset",
            "data_of_mine has no dataset. It has ds, there, make,",
        ),
        (
            "data_of_mine:number",
            "data_of_mine:number is of type int. Name a penstock.Dataset, or a function without arg",
        ),
        (
            "data_of_mine:make_loader",
            "data_of_mine:make_loader() is of type Loader. Name a penstock.Dataset, or a function without arguments",
        ),
        ("data_of_mine:fails", "fails() raised ValueError: no data here, at "),
        ("data_of_mine:fails", "data_of_mine.py:10. Try it by itself, in Python."),
        ("data_of_mine:leaves", "leaves() raised SystemExit: 2, at "),
        ("broken.py:ds", "Importing broken.py raised SyntaxError: '(' was never closed (broken.py, line 2), at "),
        ("broken.py:ds", "broken.py:2. Try it"),
        ("a.npz", "a.npz is a .npz file. The arrays of a.npz cannot be read by rows"),
    ],
)
def test_targets_without_a_dataset_are_refused_with_the_place(target, complaint, capsys):
    Path("broken.py").write_text("import penstock\nds = penstock.range(3\n")
    np.savez("a.npz", x=[1])
    assert cli.main(["bench", target]) == 1
    err = capsys.readouterr().err
    assert complaint in err
    assert "penstock bench: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--seconds", "0"], "argument --seconds: '0' is no number of seconds above 0"),
        (["--seconds", "soon"], "argument --seconds: 'soon' is no number of seconds above 0"),
        (["--workers", "many"], "argument --workers: 'many' is no integer from 1 on"),
        (["--batch-size", "0"], "argument --batch-size: '0' is no integer from 1 on"),
        (["--executor", "dask"], "argument --executor: invalid choice: 'dask'"),
    ],
)
def test_senseless_options_are_status_2(options, complaint, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["bench", "a.npy", *options])
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_failed_element_is_reported_with_its_step(capsys):
    Path("data_of_mine.py").write_text(
        "import penstock as ps\ndef fail(x): raise ValueError('no good')\nds = ps.range(64).map(fail).batch(8)\n"
    )
    assert cli.main(["bench", "data_of_mine.py:ds", "--executor", "inline"]) == 1
    assert "map(fail) at data_of_mine.py:3 failed on element 0" in capsys.readouterr().err


def test_a_picture_needs_matplotlib(run, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(ps.Report, "save", lambda report, path: drawn.append((report.batches > 0, path)))
    run("data_of_mine.py:there.ds", "--picture", "a.svg")
    assert drawn == [(True, "a.svg")]

    def lack(report: ps.Report, path: str) -> None:
        raise ImportError("report().save() needs matplotlib.")

    monkeypatch.setattr(ps.Report, "save", lack)
    assert cli.main(["bench", "data_of_mine.py:ds", "--seconds", "0.01", "--picture", "a.png"]) == 1
    assert capsys.readouterr().err.endswith("penstock bench: report().save() needs matplotlib.\n")


def test_a_picture_of_another_kind_is_refused_before_the_run(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "data_of_mine.py:ds", "--picture", "a.jpg"])
    assert "'a.jpg' ends in neither .png nor .svg" in capsys.readouterr().err
