"""`on_error`, `max_errors`, the quarantine file and `replay`: what fails is set aside, and nothing else changes."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.usefixtures("workers_stay", "leaves_nothing_behind")

BAD = {3, 10, 11, 17, 24}
EXECUTORS = [("inline", 1), ("threads", 3), ("processes", 2)]


@pytest.fixture(params=EXECUTORS, ids=lambda run: run[0])
def run(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param


@pytest.fixture
def load(run: tuple[str, int], tmp_path: Path) -> Iterator[Callable[..., ps.Loader]]:
    loaders = []

    def load(dataset: ps.Dataset, **options: Any) -> ps.Loader:
        where = {"quarantine": tmp_path / "bad.jsonl"} if "on_error" in options else {}
        loader = dataset.loader(**{"executor": run[0], "workers": run[1]} | where | options)
        loaders.append(loader)
        return loader

    yield load
    while loaders:
        loaders.pop().close()


def decode(x: Any) -> Any:
    if int(x) in BAD:
        raise ValueError(f"broken {x}")
    return x * 10


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]


def elements_of(records: list[dict[str, Any]]) -> list[int]:
    return sorted(record["sources"][0][1] for record in records)


def numbers() -> Iterator[int]:
    yield from range(30)


def replaced(order: list[int], size: int) -> list[list[int]]:
    """What batches hold: the next of the batch that is well, then the first of those before it."""
    batches = []
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        turned = [batch[row + 1 :] + batch[:row] for row in range(len(batch))]
        batches.append(
            [one if one not in BAD else next(x for x in turned[row] if x not in BAD) for row, one in enumerate(batch)]
        )
    return [[one * 10 for one in batch] for batch in batches]


def skipped(order: list[int], size: int) -> list[list[int]]:
    rest = [one * 10 for one in order if one not in BAD]
    return [rest[start : start + size] for start in range(0, len(rest), size)]


ORACLES = {"replace": replaced, "skip": skipped}


@pytest.mark.parametrize("on_error", ["replace", "skip"])
@pytest.mark.parametrize("source", ["range", "shuffled", "filtered", "generator"])
def test_batches_are_as_the_policy_says(load: Any, tmp_path: Path, source: str, on_error: Any) -> None:
    base = ps.from_generator(numbers) if source == "generator" else ps.range(30)
    ordered = base.shuffle(seed=3) if source == "shuffled" else base
    order = [int(x) for x in ordered]
    if source == "filtered":
        ordered, order = ordered.filter(lambda x: x % 5 != 1), [x for x in order if x % 5 != 1]
    loader = load(ordered.map(decode).batch(4), on_error=on_error)
    assert [batch.tolist() for batch in loader] == ORACLES[on_error](order, 4)
    # Of what is behind a filter, the source is the filter.
    bad = [number for number, x in enumerate(order) if x in BAD] if source == "filtered" else sorted(BAD)
    assert elements_of(lines(tmp_path)) == bad
    assert loader.report().set_aside == len(BAD.intersection(order))
    known = on_error == "replace" and source not in ("filtered", "generator")
    assert loader.length == (8 if known else None)


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_a_broken_file_takes_its_label_along(load: Any, on_error: Any, tmp_path: Path) -> None:
    class Files(ps.Source):
        element_spec = ps.ArraySpec((2,), "float32")

        def __len__(self) -> int:
            return 30

        def describe(self, index: int) -> str:
            return f"{index}.jpg"

        def read_into(self, indices: Any, out: Any) -> None:
            for row, index in enumerate(indices.tolist()):
                if index in BAD:
                    raise OSError(f"{index}.jpg is truncated")
                out[row] = index * 10

    pairs = ps.zip((ps.from_source(Files()), ps.range(30))).shuffle(seed=5).batch(4)
    batches = [(x[:, 0].tolist(), y.tolist()) for x, y in load(pairs, on_error=on_error)]
    order = [int(x) for x in ps.range(30).shuffle(seed=5)]
    assert [x for x, _ in batches] == ORACLES[on_error](order, 4)
    assert all(x == [one * 10 for one in y] for x, y in batches)
    (first, *_) = sorted(lines(tmp_path), key=lambda record: record["sources"][0][1])
    assert first["sources"] == [["from_source", 3, "3.jpg"], ["range", 3, "the integer 3"]]
    assert (first["step"], first["exception"], first["message"]) == (
        "from_source",
        "OSError",
        "OSError: 3.jpg is truncated",
    )
    assert "read_into" in first["traceback"]


def test_what_fails_is_written_once_with_its_cause(load: Any, tmp_path: Path) -> None:
    loader = load(ps.range(30).shuffle(seed=1).map(decode).batch(4), on_error="replace")
    for _ in range(3):  # each epoch in another order
        assert sum(len(batch) for batch in loader) == 30
    records = lines(tmp_path)
    assert elements_of(records) == sorted(BAD)
    assert loader.report().set_aside == len(BAD)
    assert f"  5 elements were set aside, see {tmp_path / 'bad.jsonl'}" in str(loader.report()).splitlines()
    for record in records:
        (source,) = record["sources"]
        assert source == ["range", source[1], f"the integer {source[1]}"]
        assert (record["step"], record["exception"]) == ("map(decode)", "ValueError")
        assert f"broken {source[1]}" in record["message"]
        assert "in decode" in record["traceback"]


def test_replay_runs_exactly_those_again_and_they_are_well_once_mended(load: Any, tmp_path: Path) -> None:
    for one in BAD:
        (tmp_path / f"{one}.broken").touch()

    def noisy(x: Any, rng: np.random.Generator) -> Any:
        if (tmp_path / f"{int(x)}.broken").exists():
            raise ValueError(f"broken {x}")
        return x * 10 + rng.random()

    dataset = ps.range(30).shuffle(seed=1).random_map(noisy).batch(4)
    loader = load(dataset, on_error="replace")
    assert len(list(loader)) == len(list(loader)) == 8
    again = list(ps.replay(tmp_path / "bad.jsonl", dataset))
    assert [each.failure for each in again] == lines(tmp_path)
    assert all(each.element is None and str(each.error.__cause__).startswith("broken") for each in again)

    for file in tmp_path.glob("*.broken"):
        file.unlink()
    mended = list(ps.replay(tmp_path / "bad.jsonl", dataset))
    assert [each.failure for each in mended] == lines(tmp_path)
    epochs = [np.concatenate([batch.copy() for batch in load(dataset)]) for _ in range(1)]
    assert all(each.error is None for each in mended)
    in_epoch_0 = [each for each in mended if each.failure["epoch"] == 0]
    assert in_epoch_0
    assert all(each.element == epochs[0][each.failure["index"]] for each in in_epoch_0)


def test_replay_repeats_no_element_of_several_runs(tmp_path: Path) -> None:
    dataset = ps.range(30).shuffle(seed=1).map(decode).batch(4)
    for epoch in range(3):
        with dataset.loader("inline", on_error="replace", quarantine=tmp_path / "bad.jsonl") as loader:
            loader.set_state(loader.get_state() | {"epoch": epoch})  # another place for each element
            list(loader)
    written = lines(tmp_path)
    assert len(written) == 3 * len(BAD)
    assert len({line["run"] for line in written}) == 3
    again = list(ps.replay(tmp_path / "bad.jsonl", dataset))
    assert sorted(each.failure["sources"][0][1] for each in again) == sorted(BAD)
    assert {each.failure["run"] for each in again} == {written[-1]["run"]}


@pytest.mark.slow
def test_an_epoch_resumes_in_its_middle(load: Any) -> None:
    dataset = ps.range(30).shuffle(seed=2).map(decode).batch(4)
    for on_error in ("replace", "skip"):
        loader = load(dataset, on_error=on_error)
        states, batches = [], []
        for batch in loader:
            batches.append(batch.tolist())
            states.append(json.loads(json.dumps(loader.get_state())))
        for cut in (0, 2, len(batches) - 2):
            other = load(dataset, on_error=on_error)
            other.set_state(states[cut])
            assert [batch.tolist() for batch in other] == batches[cut + 1 :]


def test_shards_share_what_was_put_in_its_place(load: Any) -> None:
    dataset = ps.range(28).map(decode).batch(4)
    whole = [batch.tolist() for batch in load(dataset, on_error="replace")]
    parts = [[batch.tolist() for batch in load(dataset, on_error="replace", shard=(rank, 2))] for rank in range(2)]
    assert [left + right for left, right in zip(*parts, strict=True)] == whole


def test_text_and_ragged_elements_are_left_out_too(load: Any) -> None:
    def ragged(x: Any) -> Any:
        return {"text": f"no {int(decode(x))}", "values": np.arange(int(x)), "id": x}

    spec = {"text": ps.ArraySpec((), "U"), "values": ps.ArraySpec((None,), "int64"), "id": ps.ArraySpec((), "int64")}
    dataset = ps.range(30).map(ragged, element_spec=spec)
    wanted = [(x, f"no {x * 10}", [*range(x)]) for x in range(30) if x not in BAD]
    found = [(int(one["id"]), str(one["text"]), one["values"].tolist()) for one in load(dataset, on_error="skip")]
    assert found == wanted
    padded = [batch["values"].tolist() for batch in load(dataset.padded_batch(1), on_error="skip")]
    assert padded == [[values] for _, _, values in wanted]


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_functions_of_batches_are_guarded_as_batches(load: Any, tmp_path: Path, on_error: Any) -> None:
    def total(batch: Any) -> Any:
        if batch[0] == 40:
            raise ValueError("no sum")
        return batch.sum()

    found = [int(x) for x in load(ps.range(16).map(decode).batch(4).map(total), on_error=on_error)]
    if on_error == "replace":  # the second batch fails as a whole, so that the third stands in for it
        assert found == [0 + 10 + 20 + 0, 80 + 90 + 80 + 80, 80 + 90 + 80 + 80, 120 + 130 + 140 + 150]
    else:  # the first batch ends with 40, so none begins with it
        assert found == [0 + 10 + 20 + 40, 50 + 60 + 70 + 80, 90 + 120 + 130 + 140, 150]
    steps = {record["step"] for record in lines(tmp_path)}
    assert steps == ({"map(decode)", "map(total)"} if on_error == "replace" else {"map(decode)"})


def test_the_first_element_may_be_broken(load: Any) -> None:
    def halves(x: Any) -> Any:
        if int(x) < 2:
            raise ValueError("too small")
        return x / 2

    loader = load(ps.range(8).map(halves).batch(4), on_error="replace")
    assert loader.element_spec == ps.ArraySpec((4,), "float64")
    assert [batch.tolist() for batch in loader] == [[1.0, 1.0, 1.0, 1.5], [2.0, 2.5, 3.0, 3.5]]


def test_a_batch_of_broken_elements_is_an_error(load: Any, tmp_path: Path) -> None:
    def halves(x: Any) -> Any:
        if 4 <= int(x) < 8:
            raise ValueError(f"broken {x}")
        return x / 2

    dataset = ps.range(12).map(halves).batch(4)
    with pytest.raises(
        ps.ElementError, match=r"nothing to put in the place of element 4(.|\n)*all elements of the batch"
    ):
        list(load(dataset, on_error="replace"))
    assert sorted(record["index"] for record in lines(tmp_path)) == [4, 5, 6, 7]  # listed all the same
    assert [len(batch) for batch in load(dataset, on_error="skip")] == [4, 4]


def test_a_filter_that_fails_leaves_out_its_element(load: Any, tmp_path: Path) -> None:
    def is_small(x: Any) -> bool:
        if int(x) == 5:
            raise ValueError("neither")
        return bool(x < 8)

    for on_error in ("skip", "replace"):
        loader = load(ps.range(12).filter(is_small).batch(4), on_error=on_error)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 6, 7]]
    assert [(record["step"], record["index"]) for record in lines(tmp_path)] == [("filter(is_small)", 5)] * 2


# How many.


@pytest.mark.slow
@pytest.mark.parametrize(("most", "fails"), [(5, False), (4, True), (0, True), (5 / 30, False), (0.1, True)])
def test_more_than_max_errors_is_an_error(load: Any, most: Any, fails: bool, tmp_path: Path) -> None:
    loader = load(ps.range(30).map(decode).batch(4), on_error="skip", max_errors=most)
    if not fails:
        assert sum(map(len, loader)) == 25
        assert sum(map(len, loader)) == 25, "the same elements again, in the next epoch, are no more"
        return
    with pytest.raises(ps.ElementError, match=rf"elements? failed, which is more than max_errors={most} allows"):
        list(loader)
    assert lines(tmp_path)


def test_an_element_of_a_stream_that_is_kept_counts_once_and_is_named(load: Any, tmp_path: Path) -> None:
    kept = ps.from_generator(numbers).materialize(tmp_path / "kept", executor="inline")
    loader = load(kept.shuffle(seed=1).map(decode).batch(4), on_error="skip", max_errors=len(BAD))
    for _ in range(3):
        assert sum(map(len, loader)) == 25
    assert loader.report().set_aside == len(BAD)
    assert elements_of(lines(tmp_path)) == sorted(BAD)
    for record in lines(tmp_path):
        ((verb, index, text),) = record["sources"]
        assert (verb, text) == ("cache", f"element {index} of cache(kept)")
        assert f"made of {text}: ValueError: broken {index}" in record["message"]


def test_options_without_a_meaning_are_refused(tmp_path: Path) -> None:
    dataset = ps.range(4).batch(2)
    for options, error, text in [
        ({"on_error": "ignore"}, ps.ArgumentError, "on_error='ignore' is not known. Use 'raise', 'skip'"),
        ({"max_errors": 3}, ps.ArgumentError, "but on_error='raise' ends with the first"),
        ({"on_error": "skip", "max_errors": -1}, ps.ArgumentError, "neither a count from 0 on nor a fraction"),
        ({"on_error": "skip", "max_errors": 1.5}, ps.ArgumentError, "neither a count from 0 on nor a fraction"),
        ({"on_error": "skip", "max_errors": float("nan")}, ps.ArgumentError, "neither a count from 0 on nor"),
        ({"on_error": "skip", "max_errors": "1%"}, ps.ArgumentTypeError, "is no number: a count, or a fraction"),
        ({"on_error": "skip", "quarantine": tmp_path / "no" / "x"}, ps.ArgumentError, "there is no folder"),
        ({"on_error": "skip", "quarantine": None}, ps.ArgumentTypeError, "quarantine needs a path, got a NoneType"),
    ]:
        with pytest.raises(error) as caught:
            dataset.loader("inline", **options)
        assert text in str(caught.value)
    stream = ps.from_generator(numbers, element_spec=ps.ArraySpec((), "int64")).map(decode)
    with pytest.raises(ps.ArgumentError, match=r"fraction, but the number of elements is unknown(.|\n)*max_errors=100"):
        stream.batch(4).loader("inline", on_error="skip", max_errors=0.1)
    with pytest.raises(ps.ArgumentError, match=r"single elements of a stream. Put batch\(\) last"):
        stream.loader("inline", on_error="replace")
    assert not list(tmp_path.iterdir())


def test_a_quarantine_that_cannot_be_written_does_not_end_the_run(
    load: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").mkdir()
    loader = load(ps.range(30).map(decode).batch(4), on_error="skip", quarantine=tmp_path / "taken")
    assert sum(map(len, loader)) == 25
    assert loader.report().set_aside == 5
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1
    assert "taken cannot be written" in said[0]


def test_a_quarantine_where_a_stranger_could_plant_one_is_refused(tmp_path: Path) -> None:
    dataset = ps.range(30).map(decode).batch(4)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(ps.ArgumentError, match=f"{name}': it is a link or a pipe. Name a file."):
            dataset.loader("inline", on_error="skip", quarantine=tmp_path / name)
    shared = tmp_path / "shared"
    shared.mkdir()
    loader = dataset.loader("inline", on_error="skip", quarantine=shared / "bad.jsonl")
    shared.chmod(0o777)
    with pytest.raises(ps.ArgumentError, match=f"everybody can write to {shared}, .* Say chmod o-w"):
        dataset.loader("inline", on_error="skip", quarantine=shared / "bad.jsonl")
    (shared / "bad.jsonl").symlink_to(tmp_path / "victim")
    assert sum(map(len, loader)) == 25
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_quarantine_is_never_writable_for_all(load: Any, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert sum(map(len, load(ps.range(30).map(decode).batch(4), on_error="skip"))) == 25
    finally:
        os.umask(before)
    assert (tmp_path / "bad.jsonl").stat().st_mode & 0o777 == 0o664


def test_nothing_is_written_where_nothing_fails(load: Any, tmp_path: Path) -> None:
    assert sum(map(len, load(ps.range(30).batch(4), on_error="replace"))) == 30
    assert not (tmp_path / "bad.jsonl").exists()


# Replaying what is not to be had.


def test_replay_refuses_what_is_not_of_this_dataset(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    dataset = ps.range(30).map(decode).batch(4)
    with pytest.raises(ps.SourceError, match=r"bad.jsonl cannot be read"):
        ps.replay(path, dataset)
    with dataset.loader("inline", on_error="skip", quarantine=path) as loader:
        list(loader)
    with pytest.raises(ps.StateError, match=r"of another dataset: step 3 differs: the arguments of batch changed"):
        ps.replay(path, ps.range(30).map(decode).batch(5))
    with open(path, "a") as file:
        file.write('{"plan": "cut off')  # by a full disk
    assert len(list(ps.replay(path, dataset))) == 5
    path.write_text("epoch,loss\n0,1\n")
    with pytest.raises(ps.SourceError, match=r"no quarantine file: line 1 is b'epoch,loss"):
        ps.replay(path, dataset)
    with pytest.raises(ps.ArgumentTypeError, match=r"replay\(\) needs the dataset"):
        ps.replay(path, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("guard", 7, r"bad\.jsonl is damaged: the plan of this dataset has no place 7 where elements fail"),
        ("guard", -1, r"bad\.jsonl is no quarantine file: line 2"),
        ("guard", None, r"bad\.jsonl is no quarantine file: line 2"),
        ("epoch", 1.5, r"bad\.jsonl is no quarantine file: line 2"),
        ("index", True, r"bad\.jsonl is no quarantine file: line 2"),
        ("on_error", "raise", r"bad\.jsonl is no quarantine file: line 2"),
    ],
)
def test_replay_of_a_damaged_line_names_the_file(tmp_path: Path, field: str, value: Any, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    dataset = ps.range(30).map(decode).batch(4)
    with dataset.loader("inline", on_error="skip", quarantine=path) as loader:
        list(loader)
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {field: value})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ps.SourceError, match=message):
        list(ps.replay(path, dataset))


def test_replay_refuses_streams(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    dataset = ps.from_generator(numbers).map(decode).batch(4)
    with dataset.loader("inline", on_error="skip", quarantine=path) as loader:
        list(loader)
    with pytest.raises(ps.ArgumentError, match="came from a stream"):
        list(ps.replay(path, dataset))


# Streams, whose steps see elements in order. On processes, they are tried by `tests/properties/test_on_error.py`.

near = pytest.mark.parametrize("run", EXECUTORS[:2], ids=lambda run: run[0], indirect=True)


def make_numbers() -> ps.Dataset:
    return ps.from_generator(numbers, element_spec=ps.ArraySpec((), "int64"))


def add(x: Any) -> Any:
    return x + 1


@near
@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_a_function_before_a_step_that_sees_elements_in_order_is_guarded(load: Any, on_error: Any) -> None:
    shuffled = make_numbers().map(decode).shuffle(1, window=4)
    order = [int(x) for x in make_numbers().shuffle(1, window=4)]
    found = [(batch // 10).tolist() for batch in load(shuffled.map(add).batch(4), on_error=on_error)]
    assert found == [[x // 10 for x in batch] for batch in ORACLES[on_error](order, 4)]
    found = np.concatenate([*load(shuffled.filter(lambda x: True).batch(4), on_error=on_error)])
    assert (found // 10).tolist() == [one for one in order if one not in BAD]


def pair_of(x: Any) -> Any:
    return np.full(2, decode(x))


@near
@pytest.mark.parametrize("on_error", ["replace", "skip"])
@pytest.mark.parametrize(
    "rows",
    [
        lambda ds: ds.pack(4),
        lambda ds: ds.pack(4, split=False),
        lambda ds: ds.batch(max_tokens=4),
        lambda ds: ds.pack(4).filter(lambda row: True),
        lambda ds: ds.repeat(1).pack(4),
    ],
    ids=["pack", "whole sequences", "tokens", "filter", "repeat"],
)
def test_a_step_that_makes_a_stream_leaves_out_what_fails_wherever_its_elements_come_from(
    load: Any, on_error: Any, rows: Any, tmp_path: Path
) -> None:
    good = [one * 10 for one in range(30) if one not in BAD]
    for made in (ps.range(30), make_numbers()):
        sequences = made.map(pair_of, element_spec=ps.ArraySpec((None,), "int64"))
        found = [row[0] if isinstance(row, tuple) else row for row in load(rows(sequences), on_error=on_error)]
        assert np.concatenate([*map(np.ravel, found)])[: 2 * len(good)].tolist() == [x for x in good for _ in "ab"]
        assert set(elements_of(lines(tmp_path))) == BAD


@near
def test_what_stands_in_for_an_element_is_of_its_batch_after_a_slice(load: Any) -> None:
    for dataset, order in [
        (make_numbers().map(decode).skip(3), [*range(3, 30)]),
        (make_numbers().map(decode).take(11), [*range(11)]),
    ]:
        assert [batch.tolist() for batch in load(dataset.batch(4), on_error="replace")] == replaced(order, 4)
        assert [batch.tolist() for batch in load(dataset.batch(4), on_error="skip")] == skipped(order, 4)


def as_said(on_error: str, elements: list[Any]) -> list[Any]:
    """Elements in batches of 4; None is one that failed."""
    if on_error == "skip":
        return [each for each in elements if each is not None]
    cuts = [elements[start : start + 4] for start in range(0, len(elements), 4)]
    return [next(x for x in cut[row:] + cut[:row] if x is not None) for cut in cuts for row in range(len(cut))]


@near
@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_no_window_of_a_stream_closes_the_gap(load: Any, on_error: Any) -> None:
    windows = [None if BAD & {a, a + 1} else [a, a + 1] for a in range(29)]
    found = load(make_numbers().map(decode).windows(2).batch(4), on_error=on_error)
    assert [(pair // 10).tolist() for batch in found for pair in batch] == as_said(on_error, windows)


@near
@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_what_zip_makes_of_streams_is_left_out_together(load: Any, on_error: Any) -> None:
    for first in (make_numbers().map(decode), ps.range(30).map(decode)):
        pairs = ps.zip({"x": first, "y": make_numbers()}).batch(4)
        found = [tuple(pair) for each in load(pairs, on_error=on_error) for pair in zip(*each.values(), strict=True)]
        assert found == as_said(on_error, [None if one in BAD else (one * 10, one) for one in range(30)])


@near
def test_a_length_that_fails_leaves_out_its_element(load: Any) -> None:
    def length(x: Any) -> int:
        return int(decode(x)) % 7

    for on_error in ("replace", "skip"):
        found = load(ps.range(30).bucket_by_length(length, [3], [4, 4]), on_error=on_error)
        assert sorted(x for batch in found for x in batch.tolist()) == [one for one in range(30) if one not in BAD]


@near
def test_the_first_elements_of_a_stream_may_be_broken(load: Any) -> None:
    def halves(x: Any) -> Any:
        if int(x) < 3:
            raise ValueError("too small")
        return x / 2

    dataset = make_numbers().map(halves).map(add).filter(lambda x: x < 5).map(add).batch(4)
    assert np.concatenate([*load(dataset, on_error="skip")]).tolist() == [3.5, 4.0, 4.5, 5.0, 5.5]


@near
def test_elements_of_which_nobody_knows_whether_they_are_the_same_count_in_their_epoch(load: Any) -> None:
    dataset = ps.range(30).shuffle(seed=1).filter(lambda x: x % 2 == 0).map(decode).batch(4)
    loader = load(dataset, on_error="skip", max_errors=2)  # 10 and 24, anywhere in what the filter leaves
    for _ in range(6):
        assert sum(map(len, loader)) == 13


# Errors of every kind.


@pytest.mark.parametrize("kind", ["no text", "long text", "no pickle", "exit"])
def test_whatever_is_raised_is_set_aside_and_takes_little(load: Any, tmp_path: Path, kind: str) -> None:
    class OddError(Exception):
        def __init__(self, a: int, b: Any) -> None:
            super().__init__(a)
            self.b = b

        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fails(x: Any) -> Any:
        if int(x) == 5:
            if kind == "exit":
                raise SystemExit(3)
            raise ValueError("é\u2028" * 100_000) if kind == "long text" else OddError(1, lambda: x)
        return x

    assert sum(map(len, load(ps.range(12).map(fails).batch(4), on_error="skip"))) == 11
    ((record),) = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert record["index"] == 5
    assert len(json.dumps(record)) < 200_000


def test_ctrl_c_is_no_error_of_an_element(tmp_path: Path) -> None:
    def interrupted(x: Any) -> Any:
        if int(x) == 5:
            raise KeyboardInterrupt
        return x

    loader = ps.range(8).map(interrupted).batch(2).loader("inline", on_error="skip", quarantine=tmp_path / "q")
    with loader, pytest.raises(KeyboardInterrupt):
        list(loader)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_what_a_function_of_flat_map_raises_is_an_error_that_says_why(load: Any, on_error: str) -> None:
    def twice(x: Any) -> Iterator[Any]:
        yield x
        if int(x) == 2:
            raise ValueError("broken")
        yield x

    loader = load(ps.range(4).flat_map(twice).batch(2), on_error=on_error)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 0], [1, 1]]
    with pytest.raises(
        ps.ElementError,
        match=r"failed on element 2 of epoch 0, made of element 2 .*: ValueError: broken\. on_error= does not",
    ):
        next(batches)


def test_what_fails_before_flat_map_is_left_out_with_all_that_would_have_been_made_of_it(load: Any) -> None:
    loader = load(ps.range(5).map(decode).flat_map(lambda x: [x, x + 1]).batch(2), on_error="skip")
    assert [batch.tolist() for batch in loader] == [[0, 1], [10, 11], [20, 21], [40, 41]]


@pytest.mark.slow
def test_a_failure_in_flat_map_says_nothing_of_on_error_to_who_did_not_ask_for_it(load: Any) -> None:
    with pytest.raises(ps.ElementError) as caught:
        list(load(ps.range(5).flat_map(lambda x: [decode(x)]).batch(2)))
    assert str(caught.value).endswith("failed on element 3 of epoch 0, made of the integer 3: ValueError: broken 3")


class BrokenRows(ps.Source):
    element_spec = ps.ArraySpec((), "int64")

    def __len__(self) -> int:
        return 30

    def describe(self, index: int) -> str:
        return f"row {index}"

    def read_into(self, indices: Any, out: Any) -> None:
        for row, index in enumerate(indices.tolist()):
            if index in BAD:
                raise OSError(f"no row {index}")
            out[row] = index


@pytest.mark.slow
@pytest.mark.parametrize("has_step_above", [False, True])
@pytest.mark.parametrize("verb", ["flat_map", "zip"])
def test_rows_that_fail_where_a_stream_is_read_are_told(
    load: Any, tmp_path: Path, verb: str, has_step_above: bool
) -> None:
    rows = ps.from_source(BrokenRows())
    well = [x for x in range(30) if x not in BAD]
    if verb == "flat_map":
        dataset, expected = rows.flat_map(lambda x: [x, -x]), [y for x in well for y in (x, -x)]
    else:
        dataset = ps.zip((ps.from_generator(numbers), rows)).map(lambda pair: pair[0] * 100 + pair[1])
        expected = [x * 101 for x in well]
    if has_step_above:
        dataset, expected = dataset.map(lambda x: x + 1), [x + 1 for x in expected]
    loader = load(dataset.batch(4), on_error="skip")
    for _ in range(2):
        assert [x for batch in loader for x in batch.tolist()] == expected
    records = lines(tmp_path)
    assert elements_of(records) == sorted(BAD)
    assert {(record["step"], record["exception"]) for record in records} == {("from_source", "OSError")}
    assert loader.report().set_aside == len(BAD)


def test_one_element_too_many_is_told_as_one(tmp_path: Path) -> None:
    rows = ps.from_source(BrokenRows())[min(BAD) : min(BAD) + 1]
    with pytest.raises(ps.ElementError, match=r"^1 element failed, which is more than max_errors=0 allows"):
        list(rows.loader("inline", on_error="skip", max_errors=0, quarantine=str(tmp_path / "bad.jsonl")))


@pytest.mark.slow
@pytest.mark.parametrize("has_step_above", [False, True])
def test_too_many_rows_that_fail_where_a_stream_is_read_are_an_error(load: Any, has_step_above: bool) -> None:
    rows = ps.from_source(BrokenRows())
    dataset = rows.flat_map(lambda x: [x, -x])
    loader = load((dataset.map(lambda x: x + 1) if has_step_above else dataset).batch(4), on_error="skip", max_errors=3)
    with pytest.raises(ps.ElementError, match=r"[45] elements failed, which is more than max_errors=3 allows"):
        list(loader)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(lambda ds: ds.map(decode).batch(4), id="elements"),
        pytest.param(lambda ds: ds.map(decode).batch(4).map(lambda x: x), id="a function of batches"),
        pytest.param(lambda ds: ds.batch(8).unbatch().map(decode).batch(4), id="batches taken apart"),
        pytest.param(lambda ds: ds.map(decode).batch(8).unbatch().batch(4), id="batches taken apart later"),
        pytest.param(lambda ds: ds.map(decode).windows(2, shift=2).batch(4), id="windows"),
        pytest.param(lambda ds: ps.zip((ds.map(decode), ds)).batch(4), id="zip"),
        pytest.param(lambda ds: ds.map(decode).padded_batch(4), id="padded"),
        pytest.param(lambda ds: ds.map(pair_of).pack(8).map(lambda row: row[0]), id="packed"),
    ],
)
@pytest.mark.parametrize("executor", ["inline", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_run_that_leaves_out_what_fails_goes_on_where_it_was(plan: Any, executor: Any, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"on_error": "skip", "quarantine": tmp_path / "bad.jsonl"}
    with plan(ps.range(24)).loader(executor, **kept) as loader:
        whole = [np.asarray(batch).tolist() for batch in loader]
    assert len(whole) > 2
    for position in range(1, len(whole)):
        with (
            plan(ps.range(24)).loader(executor, **kept) as first,
            plan(ps.range(24)).loader("inline", **kept) as second,
        ):
            batches = iter(first)
            for _ in range(position):
                next(batches)
            second.set_state(first.get_state())
            assert [np.asarray(batch).tolist() for batch in second] == whole[position:]


def test_a_place_among_batches_that_are_others_is_refused(tmp_path: Path) -> None:
    ds = ps.range(30).map(decode).batch(4)
    kept: dict[str, Any] = {"executor": "inline", "quarantine": tmp_path / "bad.jsonl"}
    with ds.loader(on_error="skip", **kept) as skips, ds.loader(on_error="replace", **kept) as replaces:
        for saved, other, text in (
            (skips, replaces, "saved with on_error='skip', and this loader is without it"),
            (replaces, skips, "saved without on_error='skip', and this loader is with it"),
        ):
            batches = iter(saved)
            next(batches)
            state = saved.get_state()
            with pytest.raises(ps.StateError, match=text):
                other.set_state(state)
            rest = [batch.tolist() for batch in batches]
            saved.set_state(state)
            assert [batch.tolist() for batch in saved] == rest
            other.set_state({name: 0 if name == "position" else state[name] for name in state if name != "cursor"})


def test_trying_a_function_keeps_no_epoch_without_elements_that_fail(tmp_path: Path) -> None:
    number = ps.ArraySpec((), "int64")

    def broken(x: Any) -> Any:
        raise ValueError(f"{x} is broken")

    def same(x: Any) -> Any:
        return x

    kept = ps.from_generator(range, 3, element_spec=number).map(broken, element_spec=number).cache(tmp_path / "kept")
    dataset = kept.map(same, element_spec=number)
    options = {"on_error": "skip", "quarantine": tmp_path / "bad.jsonl"}
    with dataset.loader("threads", workers=1, **options) as loader, pytest.raises(ps.ElementError, match="0 is broken"):
        list(loader)


def test_a_check_keeps_no_epoch_without_elements_that_fail(tmp_path: Path) -> None:
    number = ps.ArraySpec((), "int64")

    def broken(x: Any) -> Any:
        if x == 1:
            raise ValueError(f"{x} is broken")
        return x

    def same(x: Any) -> Any:
        return x

    kept = ps.from_generator(range, 3, element_spec=number).map(broken, element_spec=number).cache(tmp_path / "kept")
    assert not kept.map(same, element_spec=number).check(executors=()).ok
    with pytest.raises(ps.ElementError, match="1 is broken"):
        list(kept)


def _not_zero(x: Any) -> Any:
    if int(x) % 3 == 0:
        raise ValueError(f"{x} is a multiple of three")
    return x


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_specs_of_functions_over_functions_are_found_where_the_first_element_fails(
    executor: Any, tmp_path: Path
) -> None:
    dataset = ps.range(6).map(_not_zero).map(_not_zero).batch(3)
    with dataset.loader(executor, on_error="replace", quarantine=tmp_path / "bad.jsonl") as loader:
        assert [batch.tolist() for batch in loader] == [[1, 1, 2], [4, 4, 5]]
