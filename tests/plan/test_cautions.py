"""Plans that run, and most likely not as intended, are one line in the log; plans that look alike log nothing."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

import penstock as ps
from tests.strategies import Parted


def noisy(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.integers(9)


def passes(ds: ps.Dataset, count: int) -> None:
    for _ in range(count):
        for _ in ds:
            pass


def parts(ds: ps.Dataset) -> tuple[ps.Dataset, ...]:
    return ds.take(80), ds.skip(80)


SHUFFLED = ps.range(99).shuffle(seed=1)
TOLD: dict[str, tuple[Callable[[], Any], str]] = {
    "epochs of a shuffle": (
        lambda: passes(ps.range(9).shuffle(seed=1).batch(2), 3),
        (
            "gives epoch 0 again: shuffle(seed=1) did the same as before. For an epoch of its own in each iteration, "
            "make a loader once, loader = ds.loader(), and write: for batch in loader."
        ),
    ),
    "epochs of an augmentation": (
        lambda: passes(ps.range(9).shuffle(seed=1).random_map(noisy).batch(2), 2),
        "gives epoch 0 again: shuffle(seed=1) and random_map(noisy) did the same as before.",
    ),
    "epochs of a stream": (lambda: passes(ps.from_generator(range, 9).shuffle(window=3), 2), "gives epoch 0 again"),
    "take and skip": (
        lambda: parts(ps.range(99).shuffle(seed=1)),
        (
            "skip(80) after shuffle(seed=1) leaves out other elements in each epoch, for each has an order of its "
            "own. Parts that are made so have elements in common. Write split() before shuffle(seed=1), or use "
            "shuffle(reshuffle=False). A round of repeat() is such an epoch, too."
        ),
    ),
    "skip": (lambda: ps.range(99).shuffle(seed=1).skip(80), "skip(80) after shuffle(seed=1) leaves out other elements"),
    "slices": (
        lambda: [ps.range(99).shuffle(seed=1)[80:], ps.range(99).shuffle(seed=1, reshuffle=False)[:80]],
        "slice(80:) after shuffle(seed=1) leaves out other elements",
    ),
    "every second, from the second on": (
        lambda: ps.range(99).shuffle(seed=1)[1::2],
        "slice(1::2) after shuffle(seed=1) leaves out other",
    ),
    "another rest each round": (
        lambda: ps.range(9).shuffle(seed=1)[4:].repeat(5),
        "A round of repeat() is such an epoch",
    ),
    "the rest of a stream": (
        lambda: ps.from_generator(range, 9).shuffle(seed=1, window=3).skip(5),
        "skip(5) after shuffle(seed=1, window=3) leaves out other elements in each epoch",
    ),
    "the rest of what is drawn": (
        lambda: ps.range(9).sample([1] * 9).map(np.negative).skip(5),
        "Write split() before sample(..., seed=0). A round of repeat()",
    ),
    "the rest of what is drawn in an order": (
        lambda: ps.range(9).sample([1] * 9).random_map(noisy).shuffle(seed=1)[5:],
        "Write split() before sample(..., seed=0) and shuffle(seed=1). A round of repeat()",
    ),
    "windows of an order": (
        lambda: ps.range(99).shuffle(seed=1).windows(3),
        "windows(3) after shuffle(seed=1) makes windows of elements that stand side by side in the order of one epoch.",
    ),
    "groups of an order": (
        lambda: ps.range(4).shuffle(seed=1).windows(2, groups=[0, 0, 1, 1]),
        "windows(groups=...) after shuffle(seed=1) takes a value by position, where each epoch has another element.",
    ),
    "labels of what is drawn": (
        lambda: ps.range(4).sample([1] * 4).windows(2, groups=[0, 0, 1, 1]),
        "where each epoch has another element. Put this step before sample(..., seed=0).",
    ),
    "weights of an order": (
        lambda: ps.range(3).shuffle(seed=1).sample([1, 0, 0]),
        "sample(weights=...) after shuffle(seed=1) takes a value by position, where each epoch has another element.",
    ),
    "a stride for a shift": (
        lambda: ps.range(999).windows(129, stride=128),
        (
            "takes elements that are 128 apart, and windows begin at every element. For windows of neighbours that "
            "begin every 128 elements write shift=128."
        ),
    ),
    "few elements of a class": (
        lambda: ps.range(9).sample(balance=[0] * 7 + [1] * 2, per_class=4),
        "sample(per_class=4): 1 classes have fewer elements, and so repeat some within a group; 1 has 2.",
    ),
    "categories of which some are missing": (
        lambda: ps.range(6).sample(balance=pd.Series([*"abcab", None], dtype="category").cat.codes),
        (
            "sample(balance=...): 1 of 6 elements have the label -1, as missing categories have. They are drawn as a "
            "class of their own. If they have no label, leave them out: ds[labels >= 0]."
        ),
    ),
    "missing categories of a leaf": (
        lambda: ps.from_arrays({"x": np.arange(4), "c": np.array([-1, 0, 1, -1])}).sample(balance="c", per_class=1),
        "2 of 4 elements have the label -1",
    ),
    "the last batches": (lambda: ps.range(99).shuffle().batch(3)[-5:], "leaves out other elements in each epoch"),
    "batches in another order": (
        lambda: ps.range(99).batch(10).map(np.negative).shuffle(seed=1).loader("threads").close(),
        (
            "shuffle(seed=1) after batch(10) puts batches in order, not elements: those of a batch stay together in "
            "all epochs. Write shuffle() before batch()."
        ),
    ),
    "batches in the order of chunks": (
        lambda: ps.from_source(Parted([3, 4])).batch(2).shuffle(seed=1, window="chunks").loader("threads").close(),
        "shuffle(seed=1, window='chunks') after batch(2) puts batches in order, not elements",
    ),
}
NOT_TOLD: dict[str, Callable[[], Any]] = {
    "an evaluation": lambda: passes(ps.range(9).map(np.negative).batch(2), 3),
    "one order for all epochs": lambda: passes(ps.range(9).shuffle(seed=1, reshuffle=False).batch(2), 3),
    "one pass": lambda: passes(ps.range(9).shuffle(seed=1), 1),
    "looks": lambda: [next(iter(SHUFFLED)) for _ in range(9)],
    "a look after a pass": lambda: [[list(ds), ds[3], next(iter(ds[:]))] for ds in [ps.range(9).shuffle(seed=1)]],
    "all of an order": lambda: [SHUFFLED[:], SHUFFLED[::-1], SHUFFLED.take(99), SHUFFLED.take(200), SHUFFLED.skip(0)],
    "a number of steps": lambda: SHUFFLED.repeat().batch(3).take(500),
    "some at random in each epoch": lambda: SHUFFLED.take(80),
    "some batches at random": lambda: SHUFFLED.batch(3)[:5].loader("inline"),
    "some of what is drawn": lambda: ps.range(9).sample([1] * 9).take(5),
    "some of a stream": lambda: ps.from_generator(range, 9).shuffle(seed=1, window=3).take(5),
    "every second": lambda: SHUFFLED[::2],
    "some in each round": lambda: SHUFFLED[:4].repeat(5),
    "a part before the shuffle": lambda: ps.range(99)[:80].shuffle(seed=1).repeat(5),
    "windows before the shuffle": lambda: ps.range(99).windows(3).shuffle(seed=1),
    "frames of a clip": lambda: ps.range(999).windows(8, stride=8),
    "enough of each class": lambda: ps.range(9).sample(balance=[0] * 7 + [1] * 2, per_class=2),
    "labels of two classes": lambda: ps.range(4).sample(balance=[-1, 1, 1, -1]),
    "numbers that are no places": lambda: ps.range(4).sample(balance=[-2, -1, 0, 1]),
    "classes that are named": lambda: ps.range(4).sample(balance=[-1, 0, 1, 1], per_class={0: 1, 1: 1}),
    "a seed of a loader's folder": lambda: ps.timeseries_dataset_from_array(
        [1, 2, 3], None, 2, shuffle=True, seed=1000
    ),
    "epochs of a loader": lambda: [list(loader) for loader in [SHUFFLED.loader("inline")] for _ in range(3)],
    "epochs by repeat": lambda: passes(ps.range(9).shuffle(seed=1).repeat(3), 1),
    "another seed in each epoch": lambda: [passes(ps.range(9).shuffle(seed=epoch), 1) for epoch in range(3)],
    "shards": lambda: (SHUFFLED.shard(0, 2), SHUFFLED.shard(1, 2)),
    "parts of one order": lambda: parts(ps.range(99).shuffle(seed=1, reshuffle=False)),
    "parts without an order": lambda: parts(ps.range(99).random_map(noisy)),
    "shuffles of both, one of them by chunks": lambda: (
        ps.from_source(Parted([3, 4]))
        .shuffle(window="chunks", reshuffle=False)
        .batch(2)
        .shuffle(seed=1)
        .loader("inline")
    ),
    "shuffles of both": lambda: SHUFFLED.batch(3).shuffle(seed=2).loader("inline"),
    "a batch that is an element": lambda: ps.range(99).batch(3).shuffle(seed=2).batch(4).loader("inline"),
    "batches taken apart": lambda: ps.range(99).batch(3).unbatch().shuffle(seed=2).loader("inline"),
    "batches of one": lambda: ps.range(99).batch(1).shuffle(seed=2).loader("inline"),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_plan_that_is_most_likely_a_mistake_is_one_line_in_the_log(name: str, caplog: pytest.LogCaptureFixture):
    call, words = TOLD[name]
    call()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("penstock", logging.WARNING)
    assert words in record.getMessage()


@pytest.mark.parametrize("name", NOT_TOLD)
def test_a_plan_that_looks_alike_logs_nothing(name: str, caplog: pytest.LogCaptureFixture):
    NOT_TOLD[name]()
    assert not caplog.records


@pytest.fixture
def pets(tmp_path: Path) -> Callable[..., Any]:
    for number in range(20):
        path = tmp_path / ("cats", "dogs")[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), np.zeros((4, 4, 3), "uint8"))

    def part(subset: str, split: float = 0.2, **options: Any) -> Any:
        return ps.image_dataset_from_directory(
            tmp_path, validation_split=split, subset=subset, verbose=False, **options
        )

    return part


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"seed": 1}, {"shuffle": False}),
        ({"shuffle": False}, {"seed": 1}),
        ({"seed": 1}, {"seed": 2}),
        ({"seed": 1}, {"seed": 1, "split": 0.4}),
    ],
)
def test_parts_of_two_calls_that_have_files_in_common_are_one_line_in_the_log(
    pets: Callable[..., Any], first: dict[str, Any], second: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    training = pets("training", **first)
    assert not caplog.records
    parts = [pets("validation", **second) for _ in range(3)]  # no call means another thing because of earlier ones
    assert all(part.file_paths == parts[0].file_paths for part in parts)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    text = r".*subset='validation', shuffle=.* and the call before, with subset='training', .*, have files of .+ in "
    text += r"common\. .*, take both parts from one call, train, val = .*subset='both'.*; or give both calls the .*"
    assert re.fullmatch(text, record.getMessage())
    assert not set(pets("validation", **first).file_paths) & set(training.file_paths)


def test_parts_of_two_calls_that_have_no_file_in_common_log_nothing(
    pets: Callable[..., Any], caplog: pytest.LogCaptureFixture
):
    for seed in (1, 2):  # one experiment after the other
        assert not set(pets("training", seed=seed).file_paths) & set(pets("validation", seed=seed).file_paths)
    pets("training", seed=3)
    pets("training", seed=4)  # the cell is run again
    pets("validation", seed=4)
    assert not caplog.records


def test_a_smaller_part_of_the_files_that_were_left_out_logs_nothing(
    pets: Callable[..., Any], caplog: pytest.LogCaptureFixture
):
    pets("training", seed=5, split=0.4)
    pets("validation", seed=5, split=0.1)
    assert not caplog.records
