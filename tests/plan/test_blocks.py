"""Orders that know lengths: `bucket_by_length(lengths=)`, and `pack` out of blocks."""

import json
import logging

import numpy as np
import pytest

import penstock as ps
from penstock.plan import _blocks
from penstock.plan._blocks import Buckets, Packs
from penstock.testing import assert_resumes_exactly, assert_same

RNG = np.random.default_rng(7)
COUNT = 150
LENGTHS = RNG.integers(0, 17, COUNT)
TOKENS = [np.arange(100 * i, 100 * i + length, dtype=np.int32) for i, length in enumerate(LENGTHS.tolist())]
EPOCHS = range(3)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks, of which the last one is not full."""
    monkeypatch.setattr(_blocks, "BLOCK_LENGTH", 40)


def sequences(tokens=TOKENS):
    return ps.from_source(tokens, element_spec=ps.ArraySpec((None,), "int32"))


def epochs(ds, count=3, **options):
    with ds.loader("inline", **options) as loader:
        return [list(loader) for _ in range(count)]


def pieces(tokens, segments):
    """The sequences in a row, each as a list."""
    return [tokens[segments == number].tolist() for number in range(1, segments.max() + 1)]


ORDERS = {
    "in order": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(3),
    "shuffled near": lambda ds: ds.shuffle(3, window=50),
    "shuffled twice": lambda ds: ds.shuffle(3).shuffle(4),
    "mapped": lambda ds: ds.shuffle(3).map(lambda x: x),
}
FITS = [("next", True), ("next", False), ("first", True), ("first", False), ("best", True), ("best", False)]


@pytest.mark.parametrize(("fit", "split"), FITS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_each_token_is_in_one_row_in_every_epoch_and_there_are_as_many_rows(order, fit, split):
    size = 12 if split else 16
    ds = order(sequences()).pack(size, lengths=LENGTHS, fit=fit, split=split, padding_value=-1)
    assert ds.access == "random"
    for epoch in epochs(ds):
        assert len(epoch) == len(ds)
        found = [piece for row in epoch for piece in pieces(*row)]
        whole = {tuple(each.tolist()) for each in TOKENS if len(each)}
        if split:
            assert sorted(token for piece in found for token in piece) == sorted(np.concatenate(TOKENS).tolist())
        else:
            assert sorted(map(tuple, found)) == sorted(whole)
        if split and fit != "next":
            assert all(tuple(piece) in whole for piece in found if piece[0] % 100 == 0 and len(piece) < size)
        for tokens, segments in epoch:
            assert segments.max() > 0
            assert (tokens[segments == 0] == -1).all()
            assert (np.diff(segments[segments > 0]) >= 0).all()


@pytest.mark.parametrize(("fit", "split"), FITS)
def test_rows_differ_from_epoch_to_epoch_after_a_shuffle_alone(fit, split):
    def rows(ds):
        made = ds.pack(40, lengths=LENGTHS, fit=fit, split=split)
        return [[frozenset(map(tuple, pieces(*row))) for row in epoch] for epoch in epochs(made)]

    one, two, three = rows(sequences().shuffle(1))
    assert len(set(one) & set(two)) < len(one) / 2
    assert len(set(two) & set(three)) < len(one) / 2
    assert rows(sequences().shuffle(1)) == [one, two, three]
    assert rows(sequences().shuffle(2))[0] != one
    still = rows(sequences())
    assert still[0] == still[1]


def test_first_and_best_fit_fill_rows_better_than_next_fit(monkeypatch):
    monkeypatch.setattr(_blocks, "BLOCK_LENGTH", 100)
    counts = {}
    for fit in ("next", "first", "best"):
        for order in (lambda ds: ds, lambda ds: ds.shuffle(1)):
            counts.setdefault(fit, []).append(len(order(sequences()).pack(16, lengths=LENGTHS, fit=fit, split=False)))
    assert max(counts["best"] + counts["first"]) < min(counts["next"])
    assert max(counts["best"]) * 16 * 0.92 < LENGTHS.sum()


def test_first_and_best_fit_are_those_of_a_loop():
    lengths = [7, 5, 6, 3, 4, 2, 1]  # the longest first makes no fewer rows
    tokens = [np.full(length, number) for number, length in enumerate(lengths)]

    def rows(fit):
        ds = ps.from_source(tokens).pack(10, lengths=lengths, fit=fit, split=False)
        return [sorted(set(t[s > 0].tolist())) for t, s in ds]

    assert rows("first") == [[0, 3], [1, 4, 6], [2, 5]]
    assert rows("best") == [[0, 3], [1, 5], [2, 4]] or len(rows("best")) == 3


@pytest.mark.parametrize("order", [lambda ds: ds, lambda ds: ds.shuffle(3)], ids=["in order", "shuffled"])
@pytest.mark.parametrize("options", [{"batch_size": 8}, {"batch_size": 7}, {"max_tokens": 60}], ids=str)
def test_each_element_is_in_one_batch_in_every_epoch_and_there_are_as_many_batches(order, options):
    ds = order(sequences()).bucket_by_length(lengths=LENGTHS, padding_values=-1, **options)
    assert ds.access == "random"
    for epoch in epochs(ds):
        assert len(epoch) == len(ds)
        found = [tuple(row[row >= 0].tolist()) for batch in epoch for row in batch]
        assert sorted(found) == sorted(tuple(each.tolist()) for each in TOKENS)
        for batch in epoch:
            assert batch.shape[1] == max((batch >= 0).sum(1))
        if size := options.get("batch_size"):
            assert [len(batch) for batch in epoch[:-1]] == [size] * (COUNT // size - (COUNT % size == 0))
            assert len(ds) == -(-COUNT // size)
        else:
            assert max(batch.size for batch in epoch) <= 60


@pytest.mark.parametrize("options", [{"batch_size": 8}, {"max_tokens": 80}], ids=str)
def test_batches_are_of_similar_length_and_differ_from_epoch_to_epoch(options, monkeypatch):
    monkeypatch.setattr(_blocks, "BLOCK_LENGTH", 100)

    def members(ds):
        return [[frozenset(map(tuple, batch.tolist())) for batch in epoch] for epoch in epochs(ds)]

    ds = sequences().shuffle(1).bucket_by_length(lengths=LENGTHS, **options)
    one, two, _ = members(ds)
    assert len(set(one) & set(two)) < len(one) / 3
    plain = sequences().shuffle(1).padded_batch(8)
    padding = [sum(batch.size for batch in epoch) / LENGTHS.sum() - 1 for epoch in (epochs(ds)[0], epochs(plain)[0])]
    assert padding[0] < padding[1] / 2
    still = members(sequences().bucket_by_length(lengths=LENGTHS, **options))
    assert still[0] == still[1]


def test_a_batch_that_is_short_is_the_last_one_and_can_be_left_out():
    ds = sequences().shuffle(1).bucket_by_length(lengths=LENGTHS, batch_size=7)
    for epoch in epochs(ds):
        assert [len(batch) for batch in epoch] == [7] * 21 + [3]
    dropped = sequences().shuffle(1).bucket_by_length(lengths=LENGTHS, batch_size=7, drop_remainder=True)
    assert [len(batch) for batch in epochs(dropped)[1]] == [7] * 21
    assert Buckets(np.zeros((1, 0), np.uint32), 1, False, 4, None).row_count == 0


def test_the_same_elements_share_a_block_in_every_epoch_and_blocks_are_spread_over_the_data():
    for seed, is_local in ((None, False), (5, True), (5, False)):
        blocks = Packs(LENGTHS.astype(np.uint32)[None], seed, is_local, (16,), "best", False)
        members = [blocks._members(block) for block in range(4)]
        assert [len(each) for each in members] == [40] * 3 + [30]
        assert np.sort(np.concatenate(members)).tolist() == list(range(COUNT))
        assert all((np.diff(each) > 0).all() for each in members)
        if seed and not is_local:
            assert all(each[0] < 10 and each[-1] > COUNT - 10 for each in members)
        else:
            assert all((np.diff(each) == 1).all() for each in members)
        for epoch in EPOCHS:
            for block in range(4):
                if seed is not None or epoch == 0:
                    assert set(blocks.block(epoch, block).elements) <= set(members[block].tolist())


def test_any_row_is_that_of_the_sequence():
    for ds in (
        sequences().shuffle(2).pack(20, lengths=LENGTHS, fit="best", positions=True),
        sequences().shuffle(2).bucket_by_length(lengths=LENGTHS, batch_size=7),
        sequences().shuffle(2).bucket_by_length(lengths=LENGTHS, max_tokens=64),
    ):
        (rows,) = epochs(ds, 1)
        for index in (len(ds) - 1, 0, len(ds) // 2, 3):
            assert_same(ds[index], rows[index])
        (shuffled,) = epochs(ds.shuffle(9), 1)
        assert sorted(map(repr, shuffled)) == sorted(map(repr, rows))


@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["known", "a stream"])
def test_positions_count_tokens_of_each_sequence_from_zero(lengths):
    ds = sequences().pack(12, lengths=lengths, positions=True)
    assert ds.element_spec[2] == ps.ArraySpec((12,), "int32")
    for tokens, segments, places in ds:
        for number in range(1, segments.max() + 1):
            assert places[segments == number].tolist() == list(range((segments == number).sum()))
        assert (places[segments == 0] == 0).all()
        assert (tokens[segments == 0] == 0).all()


TARGETS = RNG.integers(0, 6, COUNT)


def pairs():
    targets = ps.from_source(
        [np.arange(100 * i, 100 * i + length) for i, length in enumerate(TARGETS.tolist())],
        element_spec=ps.ArraySpec((None,), "int64"),
    )
    return ps.zip({"inputs": sequences(), "targets": targets})


@pytest.mark.parametrize("fit", ["next", "first", "best"])
@pytest.mark.parametrize("order", [lambda ds: ds, lambda ds: ds.shuffle(3)], ids=["in order", "shuffled"])
def test_inputs_and_targets_have_rows_of_their_own_lengths(order, fit):
    ds = order(pairs()).pack(
        {"inputs": 24, "targets": 8},
        lengths={"inputs": LENGTHS, "targets": TARGETS},
        split=False,
        fit=fit,
        positions=True,
    )
    (spec, numbers, places) = ds.element_spec
    assert spec == {"inputs": ps.ArraySpec((24,), "int32"), "targets": ps.ArraySpec((8,), "int64")}
    assert numbers == places == {"inputs": ps.ArraySpec((24,), "int32"), "targets": ps.ArraySpec((8,), "int32")}
    for epoch in epochs(ds):
        assert len(epoch) == len(ds)
        found = {"inputs": [], "targets": []}
        for row, segments, places in epoch:
            for name, values in row.items():
                mine = segments[name]
                found[name] += values[mine > 0].tolist()
                assert [int(x) for x in places[name][mine > 0]] == [int(x) % 100 for x in values[mine > 0]]
            for number in set(segments["inputs"].tolist()) & set(segments["targets"].tolist()) - {0}:
                owners = [set((row[name][segments[name] == number] // 100).tolist()) for name in row]
                assert owners[0] == owners[1]
        assert sorted(found["inputs"]) == sorted(np.concatenate(TOKENS).tolist())
        assert len(found["targets"]) == TARGETS.sum()


def test_a_sequence_that_is_too_long_is_left_out_with_its_row(tmp_path, caplog):
    for order in (lambda ds: ds, lambda ds: ds.shuffle(3)):
        for fit in ("next", "first", "best"):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "penstock"):
                ds = order(sequences()).pack(14, lengths=LENGTHS, fit=fit, split=False)
            too_long = int((LENGTHS > 14).sum())
            assert f"pack(14): {too_long} of 150 elements are longer than that" in caplog.text
            with pytest.raises(ps.ElementError, match=r"element \d+ has 1\d tokens, more than a row\. Cut it"):
                list(ds)
            with ds.loader("inline", on_error="skip", quarantine=tmp_path / f"{fit}.jsonl") as loader:
                for _ in range(2):
                    rows = list(loader)
                    assert len(rows) == len(ds) - too_long
                    assert sum((s > 0).sum() for _, s in rows) == LENGTHS[LENGTHS <= 14].sum()
    with caplog.at_level(logging.WARNING, "penstock"):
        ds = sequences().shuffle().bucket_by_length(lengths=LENGTHS, max_tokens=14)
    with pytest.raises(ps.ElementError, match=r"bucket_by_length\(max_tokens=14\): element \d+ alone has 1\d tokens"):
        list(ds)
    with ds.loader("inline", on_error="skip", quarantine=tmp_path / "q.jsonl") as loader:
        assert sum(map(len, loader)) == COUNT - too_long


def test_elements_that_fail_are_left_out_or_replaced(tmp_path):
    def fails(x):
        if len(x) and x[0] == 500:
            raise ValueError("five")
        return x

    made = sequences().map(fails, element_spec=ps.ArraySpec((None,), "int32")).shuffle(1)
    assert LENGTHS[5] > 0
    options = {"quarantine": tmp_path / "q.jsonl"}
    packed = made.pack(20, lengths=LENGTHS, fit="best").batch(4)
    with packed.loader("threads", on_error="replace", **options) as loader:
        for _ in range(2):
            rows = [tokens for batch, _ in loader for tokens in batch]
            assert len(rows) == packed._node.source.length
            assert not any(500 in row.tolist() for row in rows)
    with made.bucket_by_length(lengths=LENGTHS, batch_size=8).loader("threads", on_error="skip", **options) as loader:
        assert sum(map(len, loader)) == COUNT - 1


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.pack(20, lengths=LENGTHS, fit="best").batch(4, drop_remainder=True),
        lambda ds: ds.pack(20, lengths=LENGTHS).batch(4, drop_remainder=True),
        lambda ds: ds.bucket_by_length(lengths=LENGTHS, batch_size=12, padded_shapes=(16,), drop_remainder=True),
    ],
    ids=["best", "next", "buckets"],
)
def test_a_run_resumes_exactly_and_on_other_numbers_of_ranks(make):
    ds = make(sequences().shuffle(4))
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 2)])
    whole = epochs(ds, 2)[1]
    with ds.loader("inline", shard=(0, 2)) as loader:
        list(loader)
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        state = json.loads(json.dumps(loader.get_state()))
    parts = []
    for rank in range(4):
        with ds.loader("inline", shard=(rank, 4)) as loader:
            loader.set_state(state)
            parts.append(list(loader))
    for number, want in enumerate(whole[4:]):
        mine = [part[number] for part in parts]
        for together, wanted in zip(zip(*map(_leaves, mine), strict=True), _leaves(want), strict=True):
            np.testing.assert_array_equal(np.concatenate(together), wanted)


def _leaves(batch):
    return batch if isinstance(batch, tuple) else (batch,)


@pytest.mark.parametrize(
    "make",
    [
        lambda lengths: sequences().shuffle(1).bucket_by_length(lengths=lengths, batch_size=8),
        lambda lengths: sequences().shuffle(1).pack(20, lengths=lengths, fit="best"),
        lambda lengths: sequences().pack(12, lengths=lengths),
        lambda lengths: sequences().batch(max_tokens=40, lengths=lengths),
    ],
    ids=["buckets", "best", "next", "tokens"],
)
def test_lengths_are_those_of_the_call_whatever_becomes_of_the_array(make):
    for dtype in (np.uint32, np.int64):
        given = LENGTHS.astype(dtype)
        ds = make(given)
        given[:] = 0
        for found, want in zip(ds, make(LENGTHS), strict=True):
            assert_same(found, want)


def test_the_number_of_rows_is_counted_as_they_are_laid():
    lengths = RNG.integers(0, 50, 5000).astype(np.uint32)
    for fit, splits in FITS:
        for table, sizes in ((lengths[None], (32,)), (np.array([lengths, lengths[::-1]]), (60, 32))):
            if splits and len(sizes) > 1:
                continue
            for seed in (None, 1):
                blocks = Packs(table, seed, False, sizes, fit, splits)
                for block, count in enumerate(blocks.counts):
                    assert int(blocks._divide(blocks._lengths_of(blocks._members(block)), None).rows.max()) + 1 == count


def test_a_state_needs_no_pass_over_all_lengths(monkeypatch):
    made = [
        sequences().shuffle(1).bucket_by_length(lengths=LENGTHS, batch_size=8),
        sequences().shuffle(1).pack(20, lengths=LENGTHS, fit="best"),
        sequences().pack(20, lengths=LENGTHS),
    ]
    monkeypatch.setattr("penstock.plan._blocks.mark_of", None)
    monkeypatch.setattr("penstock.plan._pack.mark_of", None)
    for ds in made:
        with ds.loader("inline") as loader:
            loader.set_state(loader.get_state())


def test_a_state_is_of_the_same_lengths_seed_and_size():
    def made(lengths=LENGTHS, seed=4, **options):
        return sequences().shuffle(seed).bucket_by_length(lengths=lengths, **{"batch_size": 12} | options)

    with made().loader("inline") as loader:
        state = loader.get_state()
    other = LENGTHS.copy()
    other[3] += 1
    for ds in (made(other), made(seed=5), made(batch_size=6)):
        with (
            ds.loader("inline") as loader,
            pytest.raises(ps.StateError, match="the arguments of bucket_by_length changed"),
        ):
            loader.set_state(state)
    with made().loader("inline") as loader:
        loader.set_state(state)


def test_print_and_the_report_say_what_is_full_and_what_is_padding():
    packed = sequences().shuffle(1).pack(16, lengths=LENGTHS, fit="best", split=False)
    share = LENGTHS.sum() / (len(packed) * 16)
    assert f"pack(16, fit='best', split=False): {len(packed)} elements" in repr(packed)
    assert f"random, {share:.1%} filled" in repr(packed)
    with packed.batch(4).loader("inline") as loader:
        next(iter(loader))
        assert f"pack(16, fit='best', split=False): {share:.1%} filled, shuffled within" in str(loader.report())
    assert "% filled" in repr(sequences().pack(16, lengths=LENGTHS))
    assert "filled" not in repr(sequences().pack(16))
    ds = sequences().shuffle(1).bucket_by_length(lengths=LENGTHS, batch_size=10)
    assert "bucket_by_length(10): 15 elements" in repr(ds)
    assert "% padding, shuffled within blocks (seed=1)" in repr(ds)
    with ds.loader("inline") as loader:
        next(iter(loader))
        assert "bucket_by_length(10): " in str(loader.report()).splitlines()[-1]
        assert "% padding, shuffled within blocks (seed=1)." in str(loader.report()).splitlines()[-1]
    assert "% padding" in repr(sequences().bucket_by_length(lengths=LENGTHS, max_tokens=64))


def test_lengths_may_be_a_leaf_and_batches_keep_trees():
    ds = ps.zip({"ids": sequences(), "n": ps.from_arrays(LENGTHS)}).shuffle(1)
    for options in ({"batch_size": 8}, {"max_tokens": 64}):
        for batch in ds.bucket_by_length(lengths="n", **options):
            assert batch["ids"].shape == (len(batch["n"]), batch["n"].max())


def test_packs_are_mixed_and_a_mix_is_packed():
    packs = [sequences().shuffle(seed).pack(16, lengths=LENGTHS, fit="best") for seed in (1, 2)]
    mixed = ps.mix(packs, [3, 1]).batch(4)
    assert_resumes_exactly(mixed.take(9), executors=[("inline", 1)])
    lengths = np.array(list(ps.mix([ps.from_arrays(LENGTHS)] * 2, [1, 1])))
    one = ps.mix([sequences(), sequences()], [1, 1]).shuffle(3).pack(16, lengths=lengths, fit="first")
    assert sum((s > 0).sum() for _, s in epochs(one)[1]) == lengths.sum()


def test_a_zip_of_datasets_in_one_order_is_packed_and_of_two_orders_is_refused():
    numbers = ps.from_arrays(np.arange(COUNT))
    ds = ps.zip((sequences().shuffle(1), numbers.shuffle(1))).bucket_by_length(lengths=LENGTHS, batch_size=4)
    for tokens, owners in ds:
        for row, owner in zip(tokens, owners, strict=True):
            assert LENGTHS[owner] == 0 or row[0] == 100 * owner
    with pytest.raises(ps.ArgumentError, match="not by a shuffle alone"):
        ps.zip((sequences().shuffle(1), numbers.shuffle(2))).bucket_by_length(lengths=LENGTHS, batch_size=4)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda ds: ds.pack(16, fit="worst"), r"pack\(fit='worst'\): it is 'next', 'first' or 'best'"),
        (lambda ds: ds.pack(16, fit="first"), r"pack\(fit='first'\) looks for room in all rows, .* Give them, pack\("),
        (
            lambda ds: ds.pack({"x": 3}, lengths={"x": LENGTHS}),
            r"no common place to be cut.*with lengths in the same tree",
        ),
        (lambda ds: ds.pack({}, lengths={}, split=False), r"pack\(length=\{\}\): it has no length\. Give tokens a row"),
        (
            lambda ds: ds.pack({"x": 3}, lengths={"x": LENGTHS}, split=False),
            "needs a length for each part of an element",
        ),
        (lambda ds: ds.pack({"x": 3}, lengths={"y": LENGTHS}, split=False), r"not one for each of the row's lengths"),
        (lambda ds: ds.pack(1 << 30, lengths=LENGTHS, fit="best"), r"a row has at most 16,777,216 tokens"),
        (
            lambda ds: ds.shuffle().pack(1 << 33, lengths=LENGTHS, split=False),
            r"pack\(length=8589934592\): .* after a shuffle, a row has at most 16,777,216 tokens\. Make rows shorter",
        ),
        (
            lambda ds: ds.shuffle().pack(16, lengths=LENGTHS, drop_remainder=True),
            "each block may end with a row that is not full",
        ),
        (
            lambda ds: ds.shuffle().repeat(2).pack(16, lengths=[*LENGTHS, *LENGTHS]),
            r"after repeat\(2\) the element at a position changes with each epoch, and not by a shuffle alone",
        ),
        (
            lambda ds: ds.shuffle().take(9).map(len).pack(16, lengths=LENGTHS[:9]),
            r"after take\(9\) the element at a position .* Put this step before it, as in mix",
        ),
        (
            lambda ds: ds.sample(np.ones(COUNT)).bucket_by_length(lengths=LENGTHS, batch_size=2),
            "not by a shuffle alone",
        ),
        (lambda ds: ds.bucket_by_length(lengths=LENGTHS), r"in one way: batch_size=32 or max_tokens=4096"),
        (
            lambda ds: ds.bucket_by_length(len, [3], [1, 2], lengths=LENGTHS, batch_size=3),
            "it takes no function and no boundaries",
        ),
        (
            lambda ds: ds.bucket_by_length(lengths=LENGTHS, batch_size=3, max_tokens=9),
            "the size of batches in one way",
        ),
        (lambda ds: ds.bucket_by_length(len, [3], [1, 2], batch_size=3), "need lengths=, a number for each element"),
        (lambda ds: ds.bucket_by_length(lengths=LENGTHS, max_tokens=9, drop_remainder=True), "no batch has a size"),
        (lambda ds: ds.bucket_by_length(lengths=LENGTHS, batch_size=0), r"batch_size=0\): it must be at least 1"),
        (lambda ds: ds.bucket_by_length(lengths=LENGTHS[:3], batch_size=2), r"needs a value for each element"),
        (
            lambda ds: ds.bucket_by_length(lengths=LENGTHS + 2**33, batch_size=2),
            rf"below 2\*\*32, but that of element 0 is {LENGTHS[0] + 2**33}\. Compute lengths from this dataset",
        ),
        (lambda ds: ds.shuffle().batch(max_tokens=16, lengths=LENGTHS), r"or bucket_by_length\(lengths=\.\.\., max_"),
        (
            lambda ds: ds.pack(16, lengths=LENGTHS - 1),
            rf"but that of element {np.argmin(LENGTHS)} is -1\. Compute lengths from this dataset, in its order",
        ),
        (
            lambda ds: ds.pack(16, lengths=np.where(LENGTHS == 5, np.nan, LENGTHS)),
            r"lengths are integers from 0 on, got float64",
        ),
        (lambda ds: ds.bucket_by_length(lengths=LENGTHS * 1.0, batch_size=2), r"got float64\. Convert whole"),
        (
            lambda ds: ds.bucket_by_length(lengths=LENGTHS > 3, batch_size=2),
            r"lengths are integers from 0 on, got bool",
        ),
        (lambda ds: ds.bucket_by_length(), r"boundaries=None\): a list of integers is needed"),
    ],
)
def test_what_cannot_be_ordered_by_length_is_refused(wrong, text):
    with pytest.raises((ps.ArgumentError, ps.ArgumentTypeError, ps.SpecError), match=text):
        wrong(sequences())


def test_a_stream_has_no_lengths_by_position():
    stream = sequences().filter(lambda x: True)
    with pytest.raises(ps.ArgumentTypeError, match=r"bucket_by_length\(lengths=\.\.\.\) needs random access"):
        stream.bucket_by_length(lengths=LENGTHS, batch_size=2)


def test_lengths_that_are_wrong_are_an_error_that_names_the_element():
    wrong = LENGTHS.copy()
    wrong[9] += 1
    ds = sequences().shuffle(1)
    for made in (ds.pack(20, lengths=wrong, fit="best"), ds.bucket_by_length(lengths=wrong, max_tokens=90)):
        with pytest.raises(ps.ElementError, match=r"element 9 has \d+ tokens, and lengths= says \d+\. Compute lengths"):
            list(made)
    assert sum(map(len, ds.bucket_by_length(lengths=wrong, batch_size=8))) == COUNT  # sorted by any measure


@pytest.mark.parametrize("options", [{}, {"split": False}, {"fit": "best"}, {"fit": "first", "split": False}])
def test_lengths_that_are_wrong_are_an_error_for_sequences_of_one_size_too(options):
    rows = ps.from_arrays(np.arange(40).reshape(4, 10)).pack(20, lengths=[10, 7, 10, 10], **options)
    with pytest.raises(ps.ElementError, match="element 1 has 10 tokens, and lengths= says 7"):
        list(rows)
    pairs = ps.from_arrays({"x": np.zeros((4, 10)), "y": np.zeros((4, 8))})
    with pytest.raises(ps.ElementError, match="has 8 tokens, and lengths= says 10"):
        list(pairs.pack(20, lengths=[10] * 4, **options))


def test_the_length_of_several_sequences_is_that_of_the_longest():
    longest = np.maximum(LENGTHS, TARGETS)
    for batch in pairs().shuffle(1).bucket_by_length(lengths=longest, max_tokens=60):
        assert len(batch["inputs"]) * max(each.shape[1] for each in batch.values()) <= 60
    with pytest.raises(ps.ElementError, match="and lengths= says"):
        list(pairs().shuffle(1).bucket_by_length(lengths=LENGTHS + TARGETS, max_tokens=60))


def test_a_limit_without_a_bound_gives_one_batch():
    for options in ({"max_tokens": 2**40}, {"batch_size": 2**40}):
        for order in (lambda ds: ds, lambda ds: ds.shuffle(1)):
            ds = order(sequences().take(40)).bucket_by_length(lengths=LENGTHS[:40], **options)
            assert [len(batch) for batch in ds] == [40]


def test_sequences_without_tokens_have_no_row_and_are_in_a_batch():
    empty = ps.from_source([np.empty(0, "int32")] * 9, element_spec=ps.ArraySpec((None,), "int32")).shuffle(1)
    for fit in ("next", "first", "best"):
        assert list(empty.pack(4, lengths=[0] * 9, fit=fit)) == []
    assert [batch.shape for batch in empty.bucket_by_length(lengths=[0] * 9, batch_size=4)] == [(4, 0), (4, 0), (1, 0)]
    shapes = {batch.shape for batch in empty.bucket_by_length(lengths=[0] * 9, max_tokens=5)}
    assert shapes == {(5, 0), (4, 0)}
    none = ps.from_source([], element_spec=ps.ArraySpec((None,), "int32"))
    for ds in (none.pack(4, lengths=[]), none.bucket_by_length(lengths=[], batch_size=2)):
        assert len(ds) == 0


def test_batches_that_are_shuffled_again_are_no_caution_for_their_elements_are_mixed(caplog):
    with caplog.at_level(logging.WARNING, "penstock"):
        ds = sequences().shuffle(1).bucket_by_length(lengths=LENGTHS, batch_size=8).shuffle(2)
        ds.loader("inline").close()
    assert not caplog.text
