"""What a report says of what was measured."""

import dataclasses
from pathlib import Path

import pytest

import penstock as ps
from penstock.demos.augment_report import Accuracy, Outcome
from penstock.demos.characters import Characters
from penstock.demos.report import Run, heading, table
from penstock.report._memory import Memory

MIB = 1 << 20
ALONE = ps.Report(
    batches=41,
    elements_per_batch=256,
    elapsed_s=2.0,
    wait_s=2.0,
    first_batch_s=0.1,
    copied=0,
    executor="processes",
    workers=2,
    projected_nbytes=20 * MIB,
    slot_count=6,
    slot_nbytes=MIB,
    shared_nbytes=0,
    note="",
)


@pytest.fixture
def run():
    return Run(
        train_s=40.0,
        loader=dataclasses.replace(ALONE, elapsed_s=40.0, wait_s=0.4),
        before=Memory(480 * MIB, 0),
        peak=Memory(490 * MIB, 12 * MIB, (30 * MIB, 34 * MIB)),
        projected_nbytes=20 * MIB,
        fingerprints=("ab" * 32, "ab" * 32),
        compared_batches=4,
        picture=Path.cwd() / "out.png",
    )


@pytest.fixture
def outcome(run, tmp_path):
    path = tmp_path / "characters-1.npy"
    path.write_bytes(bytes(3 * MIB))
    return Outcome(
        characters=Characters(path, "あいうえ"),
        counts=(200, 40),
        batch_size=256,
        epochs=4,
        epoch_batches=50,
        fit_s=50.0,
        worker_cpu_s=(25.0, 20.0),
        serial_s=0.1,
        alone=ALONE,
        plain_train_s=20.0,
        augmented=Accuracy(0.84, 0.95),
        unaugmented=Accuracy(0.5, 0.85),
        run=run,
    )


def test_memory_of_workers_is_said_apart_from_ours(run):
    assert run.memory(27 * MIB) == (
        "at its peak 22 MiB more than before the loaders were made, which had announced 20 MiB; the file has 27 MiB. "
        "The peak: here 490 MiB, in 2 workers together 64 MiB, and 12 MiB shared, of which Keras and its backend took "
        "480 MiB before."
    )
    one = dataclasses.replace(run, peak=Memory(490 * MIB, 12 * MIB, (30 * MIB,)))
    assert "here 490 MiB, in the worker 30 MiB, and 12 MiB shared" in one.memory(0)
    threads = dataclasses.replace(run, peak=Memory(490 * MIB, 12 * MIB))
    assert "The peak: 490 MiB private and 12 MiB shared, of which" in threads.memory(0)


def test_batches_that_differ_are_not_called_repeatable(run):
    assert run.repeatable.startswith("a second loader with the same seed, without workers, gave the same first 4")
    assert dataclasses.replace(run, fingerprints=("ab" * 32, "cd" * 32)).repeatable.startswith("NO. Two loaders")


def test_report_on_characters_compares_with_one_core_and_with_no_distortion(outcome):
    text = " ".join(str(outcome).split())
    assert "1,280 characters/s in model.fit, 40 s for 4 epochs. Training waited for data 1.0% of the time." in text
    assert "A batch took 200 ms, and 100 ms in the run that distorts nothing." in text
    assert "2 processes, each at work for 40% to 50% of model.fit." in text
    assert "distorts half a batch in 100 ms;" in text
    assert "gave a whole batch every 50 ms, 2.0 times as fast." in text
    assert "84.0% are named right; 50.0% by the same model" in text
    assert "As they are: 95.0% and 85.0%. Chance: 25.0%." in text


def test_threads_have_no_processor_time_of_their_own(outcome):
    loader = dataclasses.replace(ALONE, executor="threads")
    threads = dataclasses.replace(outcome, worker_cpu_s=(), run=dataclasses.replace(outcome.run, loader=loader))
    assert "Workers 2 threads. One core in a plain loop" in " ".join(str(threads).split())


def test_table_wraps_texts_beside_their_names():
    lines = table({"Data": "word " * 40, "Speed": "fast"}).splitlines()
    assert [line[:14].strip() for line in lines] == ["Data", "", "", "Speed"]
    assert max(map(len, lines)) <= 110
    assert heading("jax", 44.4) == f"penstock {ps.__version__}, Keras on jax, 44 s in all"
