"""Rows of tokens: `pack`, and batches of at most so many tokens."""

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_resumes_exactly, assert_same
from penstock.verbs import _batches
from tests.strategies import fitted

RNG = np.random.default_rng(5)
LENGTHS = [*RNG.integers(0, 9, 40).tolist(), 0, 0]
TOKENS = [np.arange(10 * i, 10 * i + length, dtype=np.int32) for i, length in enumerate(LENGTHS)]


def sequences(tokens=TOKENS):
    return ps.from_source(tokens, element_spec=ps.ArraySpec((None,), "int32"))


def pairs():
    return sequences().map(
        lambda x: {"ids": x, "mask": x % 2 == 0},
        element_spec={"ids": ps.ArraySpec((None,), "int32"), "mask": ps.ArraySpec((None,), "bool")},
    )


def packed(tokens, size, split=True, drop_remainder=False, padding=0):
    """The rows in plain Python: token by token."""
    rows, row = [], []

    def full(end=False):
        if row and not (end and split and drop_remainder and len(row) < size):
            owners = {owner: number for number, owner in enumerate(dict.fromkeys(o for _, o in row), 1)}
            rest = size - len(row)
            rows.append(([t for t, _ in row] + [padding] * rest, [owners[o] for _, o in row] + [0] * rest))
        row.clear()

    for owner, sequence in enumerate(tokens):
        if not split and len(row) + len(sequence) > size:
            full()
        for token in sequence.tolist():
            row.append((token, owner))
            if split and len(row) == size:
                full()
    full(end=True)
    return rows


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("size", [8, 11, 64])
def test_rows_are_those_of_a_loop_over_tokens(size, split):
    want = packed(TOKENS, size, split, padding=-1)
    known = sequences().pack(size, lengths=LENGTHS, split=split, padding_value=-1)
    stream = sequences().pack(size, split=split, padding_value=-1)
    assert (known.access, stream.access, len(known), stream.length) == ("random", "stream", len(want), None)
    for ds in (known, stream):
        assert [(tokens.tolist(), segments.tolist()) for tokens, segments in ds] == want
    for index in (len(want) - 1, 0, len(want) // 2):
        assert [part.tolist() for part in known[index]] == [*map(list, want[index])]
    with known.shuffle(2).batch(3).loader(executor="threads", workers=2) as loader:
        found = [(t.tolist(), s.tolist()) for tokens, segments in loader for t, s in zip(tokens, segments, strict=True)]
    assert sorted(found) == sorted(want)
    dropped = sequences().pack(size, lengths=LENGTHS, drop_remainder=True)
    assert [(tokens.tolist(), s.tolist()) for tokens, s in dropped] == packed(TOKENS, size, drop_remainder=True)


@pytest.mark.parametrize(("size", "most"), [(8, 1), (8, 3), (11, 7), (64, 3), (64, 1000)])
def test_rows_of_a_stream_take_the_longest_that_fits_of_those_that_wait(size, most, monkeypatch):
    monkeypatch.setattr(_batches, "WAITING_COUNT", most)
    want = [[each.tolist() for each in row] for row in fitted(TOKENS, size, most)]
    ds = sequences().pack(size, fit="best", padding_value=-1, offsets=True)
    assert (ds.access, ds.length, f"pack({size}, fit='best', offsets=True)" in repr(ds)) == ("stream", None, True)
    rows = list(ds)
    assert [[part.tolist() for part in np.split(row, ends[1:])[:-1]] for row, ends in rows] == want
    assert all((row[ends[-1] :] == -1).all() for row, ends in rows)
    for executor in ("threads", "inline"):
        with ds.ragged_batch(2).loader(executor=executor) as loader:
            steps = iter(loader)
            next(steps)
            state = loader.get_state()
            rest = [batch[0].tolist() for batch in steps]
        with ds.ragged_batch(2).loader(executor=executor) as loader:
            loader.set_state(state)
            assert [batch[0].tolist() for batch in loader] == rest
    dropped = list(sequences().pack(size, fit="best", drop_remainder=True))
    assert len(dropped) in (len(rows), len(rows) - 1)
    if max(map(len, TOKENS)) > size:
        with pytest.raises(ps.ElementError, match="Cut it with map"):
            list(sequences().pack(size, fit="best", split=False))


def test_trees_of_sequences_are_packed_alike():
    for ds in (pairs().pack(8, lengths=LENGTHS), pairs().pack(8)):
        assert ds.element_spec == (
            {"ids": ps.ArraySpec((8,), "int32"), "mask": ps.ArraySpec((8,), "bool")},
            ps.ArraySpec((8,), "int32"),
        )
        for row, segments in ds:
            used = segments > 0
            np.testing.assert_array_equal(row["mask"][used], row["ids"][used] % 2 == 0)
    with pairs().pack(8).batch(2).loader(executor="threads") as loader:
        streamed = list(loader)
    with pairs().pack(8, lengths=LENGTHS).batch(2).loader(executor="inline") as loader:
        for one, two in zip(streamed, loader, strict=True):
            assert_same(one, two)


@pytest.mark.parametrize("lengths", [LENGTHS, None])
def test_a_run_resumes_exactly(lengths):
    ds = sequences().pack(7, lengths=lengths).batch(3)
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 2)])
    ds = sequences().batch(max_tokens=20, lengths=lengths)
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 2)])


def budgeted(lengths, limit):
    batches, batch = [], []
    for index, length in enumerate(lengths):
        if batch and (len(batch) + 1) * max(length, *(lengths[i] for i in batch)) > limit:
            batches.append(batch)
            batch = []
        batch.append(index)
    return [*batches, batch]


@pytest.mark.parametrize("limit", [8, 20, 1000])
def test_batches_have_at_most_so_many_tokens(limit):
    want = budgeted(LENGTHS, limit)
    known, stream = sequences().batch(max_tokens=limit, lengths=LENGTHS), sequences().batch(max_tokens=limit)
    assert (known.access, stream.access, len(known)) == ("random", "stream", len(want))
    for ds in (known, stream):
        for batch, members in zip(ds, want, strict=True):
            assert batch.size <= limit
            assert batch.shape == (len(members), max(LENGTHS[i] for i in members))
            for row, index in zip(batch, members, strict=True):
                assert row.tolist() == TOKENS[index].tolist() + [0] * (batch.shape[1] - LENGTHS[index])
    with known.shuffle(1).loader(executor="threads", workers=2) as loader:
        assert sorted(map(len, loader)) == sorted(map(len, want))


def test_labels_are_batched_beside_their_sequences():
    ds = ps.zip((sequences(), ps.range(len(TOKENS)))).batch(max_tokens=20, lengths=LENGTHS)
    assert np.concatenate([labels for _, labels in ds]).tolist() == list(range(len(TOKENS)))


def test_wrong_lengths_of_leaves_of_one_size_are_an_error_that_names_the_element():
    rows = ps.zip((ps.from_arrays(np.zeros((9, 4))), ps.range(9)))
    assert [len(x) for x, _ in rows.batch(max_tokens=20, lengths=[4] * 9)] == [5, 4]
    wrong = [4, 4, 1, 4, 4, 4, 4, 4, 4]
    for made in (rows.batch(max_tokens=20, lengths=wrong), rows.bucket_by_length(lengths=wrong, max_tokens=20)):
        with pytest.raises(ps.ElementError, match=r"element 2 has 4 tokens, and lengths= says 1"):
            list(made)


TIMES = np.random.default_rng(0).integers(50, 400, 60)


def spectrogram(index, first=(80,), last=()):
    return np.full((*first, TIMES[index], *last), index, "float32")


OF_TIMES = {  # how to make an element, its spec, and the axis of time
    "the second axis": (spectrogram, ps.ArraySpec((80, None), "float32"), 1),
    "the middle axis": (lambda i: spectrogram(i, (2,), (3,)), ps.ArraySpec((2, None, 3), "float32"), 1),
    "the first axis": (lambda i: spectrogram(i, (), (80,)), ps.ArraySpec((None, 80), "float32"), 0),
    "the second axis, undeclared": (lambda i: spectrogram(i, (40,)), None, 1),
    "the first axis, undeclared": (lambda i: spectrogram(i, (), (40,)), None, 0),
    "beside an embedding": (
        lambda i: (spectrogram(i), np.zeros(900, "int8"), np.float32(i)),
        (ps.ArraySpec((80, None), "float32"), ps.ArraySpec((900,), "int8"), ps.ArraySpec((), "float32")),
        1,
    ),
    "beside a shorter sequence": (
        lambda i: (spectrogram(i), np.zeros(TIMES[i] // 9, "int32"), np.float32(i)),
        (ps.ArraySpec((80, None), "float32"), ps.ArraySpec((None,), "int32"), ps.ArraySpec((), "float32")),
        1,
    ),
}


@pytest.mark.parametrize("how", ["batch", "bucket_by_length", "a stream"])
@pytest.mark.parametrize("what", OF_TIMES)
def test_tokens_are_counted_along_the_axis_that_varies(what, how):
    make, spec, axis = OF_TIMES[what]
    ds = ps.from_source([make(i) for i in range(len(TIMES))], element_spec=spec)
    batches = {
        "batch": lambda: ds.batch(max_tokens=2000, lengths=TIMES),
        "bucket_by_length": lambda: ds.bucket_by_length(max_tokens=2000, lengths=TIMES),
        "a stream": lambda: ps.from_generator(lambda: map(make, range(len(TIMES))), element_spec=spec).batch(
            max_tokens=2000
        ),
    }[how]()
    found = []
    for batch in batches:
        part = batch[0] if isinstance(batch, tuple) else batch
        members = part.reshape(len(part), -1).max(axis=1).astype(int).tolist()
        assert part.shape[axis + 1] == max(TIMES[i] for i in members)
        assert len(members) * max(TIMES[i] for i in members) <= 2000
        found.append(members)
    assert sorted(i for members in found for i in members) == list(range(len(TIMES)))
    if how != "bucket_by_length":
        assert found == budgeted(TIMES.tolist(), 2000)


@pytest.mark.parametrize("what", OF_TIMES)
def test_lengths_of_other_elements_are_refused_whatever_axis_varies(what):
    make, spec, _ = OF_TIMES[what]
    ds = ps.from_source([make(i) for i in range(len(TIMES))], element_spec=spec)
    for batches in (
        ds.batch(max_tokens=2000, lengths=TIMES[::-1]),
        ds.bucket_by_length(max_tokens=2000, lengths=TIMES[::-1]),
    ):
        with pytest.raises(ps.ElementError, match=r"element \d+ has \d+ tokens, and lengths= says \d+"):
            list(batches)


@pytest.mark.parametrize("how", ["batch", "bucket_by_length"])
def test_lengths_of_undeclared_elements_may_be_those_of_any_leaf(how):
    lengths = np.arange(12) % 3 + 4

    def make(index):
        return {"x": np.ones(int(index) % 3 + 4), "onehot": np.eye(10)[int(index) % 10], "label": int(index)}

    def batches(said):
        return list(getattr(ps.range(12).map(make), how)(max_tokens=24, lengths=said))

    found = batches(lengths)
    assert sorted(int(label) for batch in found for label in batch["label"]) == list(range(12))
    for batch in found:
        assert batch["x"].shape == (len(batch["label"]), max(lengths[each] for each in batch["label"]))
        assert batch["x"].size <= 24
        assert (batch["x"].sum(axis=1) == lengths[batch["label"]]).all()
        assert batch["onehot"].tolist() == np.eye(10)[batch["label"] % 10].tolist()
    with pytest.raises(ps.ElementError, match=r"element \d+ has 10 tokens, and lengths= says 3"):
        batches(lengths - 1)


def test_tokens_of_two_axes_that_vary_are_their_product_as_padded():
    shapes = [(3, 20), (20, 3), (4, 5), (5, 4), (2, 2)]
    images = [np.ones(shape, "uint8") for shape in shapes]
    spec = ps.ArraySpec((None, None), "uint8")
    stream = ps.from_generator(lambda: iter(images), element_spec=spec).batch(max_tokens=80)
    assert [batch.shape for batch in stream] == [(1, 3, 20), (1, 20, 3), (3, 5, 5)]
    known = ps.from_source(images, element_spec=spec).batch(
        max_tokens=80, lengths=[height * width for height, width in shapes]
    )
    assert [len(batch) for batch in known] == [1, 1, 3]


def test_the_first_axis_that_is_fixed_is_no_length():
    ds = ps.from_source([spectrogram(0)], element_spec=ps.ArraySpec((80, None), "float32"))
    with pytest.raises(ps.ArgumentError, match=r"whose len is always 80.*lambda element: element.shape\[1\]"):
        ds.bucket_by_length(len, [100], [2, 2])


def test_lengths_and_weights_may_be_leaves():
    ds = ps.zip({"ids": sequences(), "n": ps.from_arrays(np.array(LENGTHS))})
    assert len(ds.batch(max_tokens=20, lengths="n")) == len(budgeted(LENGTHS, 20))
    assert {int(each["n"]) for each in ds.sample("n", count=200)} <= set(LENGTHS) - {0}


def test_sequences_that_a_function_makes_need_no_spec():
    ds = ps.range(5).map(np.arange)
    assert [tokens.tolist() for tokens, _ in ds.pack(5)] == [[0, 0, 1, 0, 1], [2, 0, 1, 2, 3]]
    assert [batch.shape for batch in ds.batch(max_tokens=6)] == [(3, 2), (1, 3), (1, 4)]


def test_nothing_gives_no_rows():
    assert len(sequences([np.zeros(0, "int32")] * 3).pack(4, lengths=[0, 0, 0])) == 0
    assert len(sequences([np.zeros(0, "int32")] * 3).pack(4, lengths=[0, 0, 0], split=False)) == 0


@pytest.mark.parametrize("size", [2**40, 2**61, 2**62 - 1, 2**70])
def test_a_row_that_is_larger_than_all_sequences_is_one_row(size):
    assert (
        len(sequences().pack(size, lengths=LENGTHS)) == len(sequences().pack(size, lengths=LENGTHS, split=False)) == 1
    )


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: sequences().pack(0), ps.ArgumentError, r"pack\(length=0\): it must be at least 1"),
        (
            lambda: sequences().pack(4, lengths=[1]),
            ps.ArgumentError,
            r"pack\(lengths=\.\.\.\) needs a value for each element",
        ),
        (lambda: sequences().pack(4, lengths=[-1] * 42), ps.ArgumentError, "integers from 0 on"),
        (
            lambda: list(sequences().pack(4, lengths=LENGTHS, split=False)),
            ps.ElementError,
            r"tokens, more than a row\. Cut it",
        ),
        (
            lambda: sequences().shuffle().batch(max_tokens=9, lengths=LENGTHS),
            ps.ArgumentError,
            "the order changes with each epoch",
        ),
        (lambda: ps.range(3).pack(4), ps.SpecError, r"lays sequences of numbers end to end, but element is \(\) int64"),
        (lambda: sequences().pack(9, lengths=LENGTHS[::-1])[0], ps.ElementError, r"tokens, and lengths= says"),
        (
            lambda: sequences().pack(4, lengths=np.full(42, 1 << 57)),
            ps.ArgumentError,
            r"come to 6\.05e\+18 tokens, more than a dataset has; the longest is \d+, of element 0\. Compute lengths",
        ),
        (
            lambda: sequences().pack(4, lengths=np.full(42, 2**64 - 1, np.uint64)),
            ps.ArgumentError,
            r"pack\(lengths=\.\.\.\): the lengths come to",
        ),
        (lambda: sequences().pack(4, padding_value=0.5), ps.SpecError, r"which cannot hold the padding value 0\.5\."),
        (lambda: sequences().pack(4, padding_value=1 << 40), ps.SpecError, "cannot hold the padding value"),
        (lambda: sequences().pack(4, padding_value=None), ps.SpecError, "cannot hold the padding value None"),
        (lambda: sequences().batch(), ps.ArgumentError, r"batch\(\) needs a size, batch\(32\), or a number of tokens"),
        (lambda: sequences().batch(3, max_tokens=3), ps.ArgumentError, r"batch\(\) needs a size"),
        (lambda: sequences().batch(3, lengths=LENGTHS), ps.ArgumentError, r"is for batch\(max_tokens=\)"),
        (
            lambda: sequences().batch(max_tokens=4, lengths=LENGTHS),
            ps.ElementError,
            r"element \d+ alone has \d+ tokens",
        ),
        (lambda: list(sequences().batch(max_tokens=4)), ps.ElementError, r"element \d+ alone has \d tokens"),
        (lambda: list(sequences().pack(4, split=False)), ps.ElementError, r"tokens, more than a row"),
    ],
)
def test_what_cannot_be_packed_is_refused(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


@pytest.mark.parametrize("lengths", [[3, 2], None])
def test_a_padding_value_is_for_tokens_alone(lengths):
    sequences = ps.from_source([np.ones(3), np.ones(2)], element_spec=ps.ArraySpec((None,), "float64"))
    (first, second), (tokens, segments) = sequences.pack(4, lengths=lengths, padding_value=np.nan)
    assert (first.tolist(), second.tolist(), segments.tolist()) == ([1] * 4, [1, 1, 1, 2], [1, 0, 0, 0])
    np.testing.assert_array_equal(tokens, [1, np.nan, np.nan, np.nan])
