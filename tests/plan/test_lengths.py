"""The lengths of elements: counted on workers, kept with files, and named by a leaf."""

import json

import numpy as np
import pytest

import penstock as ps
from penstock import ArraySpec

LENGTHS = [3, 0, 5, 1, 2]
RAGGED = ArraySpec((None,), "int64")
SPEC = {"tokens": RAGGED, "count": ArraySpec((), "int64")}


def sentences(spec=None):
    return ps.range(5).map(
        lambda i: {"tokens": np.arange(LENGTHS[i]), "count": np.int64(LENGTHS[i])}, element_spec=spec
    )


@pytest.mark.parametrize("spec", [None, SPEC], ids=["found", "declared"])
@pytest.mark.parametrize("key", ["tokens", "count", None])
def test_lengths_are_those_of_the_elements(spec, key):
    found = sentences(spec).lengths(key, executor="threads", workers=2)
    assert found.dtype == np.int64
    assert found.tolist() == LENGTHS


@pytest.mark.slow
def test_of_several_leaves_the_longest_counts(workers_stay):
    both = ps.zip((sentences(SPEC).select("tokens"), ps.range(5).map(lambda i: np.ones((i, 2)))))
    assert both.lengths().tolist() == [3, 1, 5, 3, 4]
    assert both.lengths(1).tolist() == [0, 1, 2, 3, 4]
    assert both.lengths(0).tolist() == LENGTHS


@pytest.mark.slow
def test_worker_processes_count(workers_stay):
    assert sentences(SPEC).lengths("tokens", executor="processes", workers=2).tolist() == LENGTHS


@pytest.mark.parametrize("key", ["tokens", "count"])
def test_a_callback_is_told_how_many_are_read(key):
    told = []
    sentences().lengths(key, executor="inline", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (5, 5)


@pytest.mark.parametrize("key", ["tokens", "count"])
def test_lengths_of_files_are_kept_until_a_file_or_a_step_changes(tmp_path, key):
    def write(texts):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def dataset(scale=1):
        def tokens(x):
            with (tmp_path / "calls").open("a") as file:
                file.write("x")
            count = scale * len(str(x["text"]))
            return {"tokens": np.arange(count), "count": count}

        return ps.from_jsonl(tmp_path / "a.jsonl").map(tokens, element_spec=SPEC)

    def counted():
        path = tmp_path / "calls"
        count = len(path.read_text()) if path.exists() else 0
        path.unlink(missing_ok=True)
        return count

    write(["ab", "c", ""])
    options = {"executor": "threads"}
    assert dataset().lengths(key, **options).tolist() == [2, 1, 0]
    assert counted() >= 3
    assert dataset().lengths(key, **options).tolist() == [2, 1, 0]
    assert counted() == 0
    assert dataset(2).lengths(key, **options).tolist() == [4, 2, 0]
    assert counted() >= 3
    assert len(dataset(2).bucket_by_length(lengths=key, batch_size=2)) == 2
    assert counted() == 0
    write(["abc", "d"])
    assert dataset(2).lengths(key, **options).tolist() == [6, 2]
    assert counted() >= 2


@pytest.mark.slow
@pytest.mark.parametrize("key", ["tokens", "count"])
@pytest.mark.parametrize("shuffles", [False, True])
def test_steps_take_lengths_by_the_key_of_a_leaf(workers_stay, key, shuffles):
    ds = sentences(SPEC).shuffle(seed=1) if shuffles else sentences(SPEC)
    plain = ds.select("tokens")
    rows = (ds if key == "count" else plain).pack(4, lengths=key)
    want = plain.pack(4, lengths=LENGTHS)
    for (row, segments), (same, others) in zip(rows, want, strict=True):
        assert row["tokens"].tolist() == same["tokens"].tolist()
        assert segments.tolist() == others.tolist()
    batches, same = (ds.bucket_by_length(lengths=each, batch_size=2) for each in (key, LENGTHS))
    assert [x["tokens"].tolist() for x in batches] == [x["tokens"].tolist() for x in same]
    flat, same = (ds.ragged_batch(max_tokens=6, lengths=each) for each in (key, LENGTHS))
    assert [x["tokens"].values.tolist() for x in flat] == [x["tokens"].values.tolist() for x in same]


def test_pack_takes_lengths_by_the_place_of_a_leaf():
    pairs = ps.zip((ps.from_arrays(np.array(LENGTHS)), sentences(SPEC).map(lambda x: x["tokens"], element_spec=RAGGED)))
    rows = pairs.pack(4, lengths=0)
    assert rows.element_spec == (ArraySpec((4,), "int64"), ArraySpec((4,), "int32"))
    assert len(rows) == 3


def test_what_has_no_length_is_refused():
    with pytest.raises(ps.ArgumentError, match=r"^lengths\('x'\): elements have no such leaf\."):
        sentences(SPEC).lengths("x")
    with pytest.raises(ps.ArgumentError, match=r"^lengths\(\): a length is the size of the first axis"):
        ps.range(3).lengths()
    with pytest.raises(ps.ArgumentError, match="Of text, count tokens"):
        ps.from_source(["a", "bc"]).lengths()
    with pytest.raises(ps.ArgumentError, match="changes the order in each epoch"):
        sentences(SPEC).shuffle(seed=1).lengths("tokens")
    with pytest.raises(ps.ArgumentTypeError, match=r"^lengths\(\) needs random access"):
        sentences(SPEC).filter(lambda x: True).lengths("tokens")
    with pytest.raises(ps.ArgumentError, match=r"^lengths\(on_error=\)"):
        sentences(SPEC).lengths("tokens", on_error="skip")
    assert ps.range(0).map(np.arange, element_spec=RAGGED).lengths().tolist() == []


# Padding on the left.


def test_elements_are_padded_on_the_left():
    ragged = sentences(SPEC).select("tokens").map(lambda x: x["tokens"], element_spec=RAGGED)
    left = ragged.padded_batch(3, padding_values=-1, side="left")
    assert left[0].tolist() == [[-1, -1, 0, 1, 2], [-1] * 5, [0, 1, 2, 3, 4]]
    for batch, other in zip(left, ragged.padded_batch(3, padding_values=-1), strict=True):
        for row, same in zip(batch, other, strict=True):
            assert row[row >= 0].tolist() == same[same >= 0].tolist()
    shaped = ragged.padded_batch(3, padded_shapes=(6,), side="left")
    with shaped.loader("threads") as loader:
        assert next(iter(loader))[0].tolist() == [0, 0, 0, 0, 1, 2]
    bucket = ragged.bucket_by_length(lengths=LENGTHS, batch_size=5, side="left")
    assert bucket[0][3].tolist()[-1:] == [0]
    assert bucket[0][1].tolist() == [0] * 5


def test_a_side_is_left_or_right_and_part_of_the_plan():
    with pytest.raises(ps.ArgumentError, match=r"^padded_batch\(side='top'\): it is 'right' or 'left'"):
        sentences().padded_batch(2, side="top")
    with sentences(SPEC).padded_batch(2).loader("inline") as loader:
        state = loader.get_state()
    with (
        sentences(SPEC).padded_batch(2, side="left").loader("inline") as other,
        pytest.raises(ps.StateError),
    ):
        other.set_state(state)
