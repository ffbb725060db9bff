"""Batches of elements whose lengths differ: values end to end, and offsets."""

import re

import numpy as np
import pytest

import penstock as ps
from penstock import ArraySpec, Ragged

COUNT = 23
LENGTHS = np.random.default_rng(0).integers(0, 6, COUNT)
BOXES = {"boxes": ArraySpec((None, 4), "float32"), "label": ArraySpec((), "int64")}


def boxes(i):
    return {"boxes": np.full((LENGTHS[i], 4), i, "float32"), "label": np.int64(i)}


def images(spec=BOXES):
    return ps.range(COUNT).map(boxes, element_spec=spec)


def bounded(most=5):
    return {**BOXES, "boxes": ArraySpec((None, 4), "float32", (most, 4))}


def parts(batch):
    """The elements of a batch."""
    values, offsets = batch["boxes"]
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert offsets[-1] == len(values)
    assert len(offsets) == len(batch["label"]) + 1
    return [
        (int(label), part.tolist()) for label, part in zip(batch["label"], np.split(values, offsets[1:-1]), strict=True)
    ]


def elements(ds):
    return [(int(x["label"]), x["boxes"].tolist()) for x in ds]


@pytest.mark.parametrize("spec", [BOXES, bounded(), None], ids=["declared", "bounded", "found"])
@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("drops", [False, True])
def test_a_batch_has_its_elements_end_to_end(spec, executor, drops):
    ds = images(spec).shuffle(seed=1)
    batches = ds.ragged_batch(4, drop_remainder=drops)
    assert len(batches) == (5 if drops else 6)
    with batches.loader(executor) as loader:
        found = [part for batch in loader for part in parts(batch)]
    assert found == elements(images().shuffle(seed=1))[: len(found)]
    assert len(found) == (20 if drops else 23)
    assert parts(batches[2]) == found[8:12]


def test_the_spec_is_a_pair_of_values_and_offsets():
    spec = images().ragged_batch(4).element_spec
    assert spec["boxes"] == Ragged(ArraySpec((None, 4), "float32"), ArraySpec((None,), "int64"))
    assert spec["label"] == ArraySpec((None,), "int64")
    assert images().ragged_batch(4, drop_remainder=True).element_spec["boxes"].offsets.shape == (5,)
    values, offsets = images(bounded()).ragged_batch(4).element_spec["boxes"]
    assert values.max_shape == (20, 4)
    assert offsets.max_shape == (5,)


def test_a_batch_of_known_size_lies_in_a_slot():
    with images(bounded()).ragged_batch(4).loader("threads") as loader:
        assert loader.projected_nbytes > 4 * 5 * 16
    with images().ragged_batch(4).loader("threads") as loose:
        assert loose.projected_nbytes < loader.projected_nbytes


def test_text_is_stacked_and_lists_of_text_are_laid_end_to_end():
    spec = {"words": ArraySpec((None,), "U"), "name": ArraySpec((), "U"), "image": ArraySpec((2, 2), "uint8")}
    texts = ["a bc", "", "def"]
    items = [{"words": np.array(t.split(), "U3"), "name": t, "image": np.full((2, 2), 7, "u1")} for t in texts]
    batch = ps.from_source(items, element_spec=spec).ragged_batch(3)[0]
    assert batch["words"].values.tolist() == ["a", "bc", "def"]
    assert batch["words"].offsets.tolist() == [0, 2, 2, 3]
    assert batch["name"].tolist() == texts
    assert batch["name"].dtype.kind == "U"
    assert batch["image"].shape == (3, 2, 2)


def test_rows_of_a_stream_are_laid_end_to_end_as_they_come():
    ds = images().filter(lambda x: len(x["boxes"]) > 0)
    found = [part for batch in ds.ragged_batch(4) for part in parts(batch)]
    assert found == elements(ds)
    with ds.ragged_batch(4).loader("threads") as loader:
        assert [part for batch in loader for part in parts(batch)] == found


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("shuffles", [False, True])
def test_batches_have_at_most_so_many_tokens(executor, shuffles):
    ds = images().shuffle(seed=3) if shuffles else images()
    batches = ds.ragged_batch(max_tokens=8, lengths=LENGTHS)
    with batches.loader(executor) as loader:
        for _ in range(2):
            made = [parts(batch) for batch in loader]
            assert len(made) == len(batches)
            assert all(sum(max(1, len(values)) for _, values in batch) <= 8 for batch in made)
            assert sorted(part for batch in made for part in batch) == elements(images())
    if not shuffles:
        assert [part for batch in made for part in batch] == elements(ds)
        assert [parts(batch) for batch in ds.ragged_batch(max_tokens=8)] == made  # without lengths: a stream
    assert batches.element_spec["boxes"].values.max_shape == (8, 4)


def test_a_stream_counts_the_longest_leaf_of_each_element_as_lengths_do():
    sizes = [(2, 0), (1, 3), (0, 2), (3, 1)]
    spec = {name: ArraySpec((None,), "float64") for name in "ab"}
    ds = ps.range(4).map(lambda i: dict(zip("ab", map(np.ones, sizes[i]), strict=True)), element_spec=spec)
    known = ds.ragged_batch(max_tokens=4, lengths=list(map(max, sizes)))
    for batches in (known, ds.ragged_batch(max_tokens=4)):
        assert [batch["a"].offsets.tolist() for batch in batches] == [[0, 2], [0, 1], [0, 0], [0, 3]]


def test_an_element_with_more_tokens_is_an_error_that_names_it():
    first = int(np.argmax(LENGTHS > 3))
    with pytest.raises(ps.ElementError, match=rf"^ragged_batch\(max_tokens=3\): element {first} alone has"):
        images().ragged_batch(max_tokens=3, lengths=LENGTHS)
    with pytest.raises(ps.ElementError, match="alone has"):
        list(images().ragged_batch(max_tokens=3))
    wrong = np.where(np.arange(COUNT) == 2, 7, LENGTHS)
    with pytest.raises(
        ps.ElementError, match=re.escape(f"element 2 has {max(1, LENGTHS[2])} tokens, and lengths= says 7")
    ):
        list(images().ragged_batch(max_tokens=8, lengths=wrong))


@pytest.mark.parametrize("make", [
    lambda: images(bounded()).shuffle(seed=3).ragged_batch(2),
    lambda: images().shuffle(seed=3).ragged_batch(max_tokens=8, lengths=LENGTHS),
], ids=["size", "tokens"])  # fmt: skip
def test_a_run_goes_on_where_it_was_cut(make):
    with make().loader("threads") as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state, rest = loader.get_state(), [parts(each) for each in batches]
    with make().loader("inline") as loader:
        loader.set_state(state)
        assert [parts(each) for each in loader] == rest


@pytest.mark.slow
@pytest.mark.parametrize("spec", [BOXES, bounded()], ids=["loose", "bounded"])
def test_worker_processes_make_the_same(workers_stay, spec):
    ds = images(spec).shuffle(seed=3).ragged_batch(4)
    with ds.loader("processes", workers=2) as loader:
        assert [parts(batch) for batch in loader] == [parts(batch) for batch in ds]


@pytest.mark.parametrize("how", ["skip", "replace"])
def test_elements_that_fail_are_left_out_or_replaced(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fails(x):
        if x["label"] == 5:
            raise ValueError("broken")
        return x

    ds = images().map(fails, element_spec=BOXES).ragged_batch(4)
    with ds.loader("threads", on_error=how) as loader:
        sizes = [len(parts(batch)) for batch in loader]
    assert sizes == ([4, 4, 4, 4, 4, 2] if how == "skip" else [4, 4, 4, 4, 4, 3])


@pytest.mark.parametrize("counts", [(2, 3), (3, 1), (1, 2)])
@pytest.mark.parametrize("tokens", [False, True])
def test_ranks_take_whole_batches_and_go_on_in_another_number(counts, tokens):
    ds = images().shuffle(seed=1)
    batches = ds.ragged_batch(max_tokens=7, lengths=LENGTHS) if tokens else ds.ragged_batch(2)
    want, (first, second) = [parts(batch) for batch in batches], counts

    def steps(count, state, most):
        found = []
        for rank in range(count):
            with batches.loader("threads", shard=(rank, count), whole_batches=True) as loader:
                if state is not None:
                    loader.set_state(state)
                mine = [parts(batch) for _, batch in zip(range(most), loader, strict=False)]
                found.append((mine, loader.get_state()))
        return [batch for step in zip(*(mine for mine, _ in found), strict=True) for batch in step], found[0][1]

    begun, state = steps(first, None, 2)
    rest, _ = steps(second, state, 100)
    assert begun + rest == want[: 2 * first + (len(want) - 2 * first) // second * second]


def test_ranks_share_elements_before_the_batch():
    with pytest.raises(ps.ArgumentError, match="shard="):
        images(bounded()).ragged_batch(4).loader(shard=(0, 2))
    shares = [images().shard(rank, 2).ragged_batch(4) for rank in range(2)]
    found = [part for share in shares for batch in share for part in parts(batch)]
    assert sorted(found) == elements(images())


@pytest.mark.parametrize(("make", "text"), [
    (lambda: ps.range(3).ragged_batch(2), r"^ragged_batch\(2\) lays elements of several lengths end to end, but here"),
    (
        lambda: images({**BOXES, "boxes": ArraySpec((4, None), "float32")}).ragged_batch(2),
        r"^ragged_batch\(2\) lays elements of several lengths",
    ),
], ids=["fixed", "other axis"])  # fmt: skip
def test_elements_without_a_first_axis_that_varies_are_refused(make, text):
    with pytest.raises(ps.SpecError, match=text):
        make().element_spec  # noqa: B018


def test_other_axes_must_agree():
    ds = ps.from_source([np.ones((2, 3)), np.ones((1, 4))]).ragged_batch(2)
    with pytest.raises(ps.SpecError, match=r"element 0 is \(2, 3\), and element 1 is \(1, 4\)"):
        list(ds)


def test_a_size_is_needed_in_one_way():
    with pytest.raises(ps.ArgumentError, match=r"ragged_batch\(\) needs a size"):
        images().ragged_batch()
    with pytest.raises(ps.ArgumentError, match=r"ragged_batch\(\) needs a size"):
        images().ragged_batch(2, max_tokens=3)
    with pytest.raises(ps.ArgumentError, match=r"^ragged_batch\(size=0\): it must be at least 1"):
        images().ragged_batch(0)
    with pytest.raises(ps.ArgumentError, match=r"ragged_batch\(lengths=\) is for"):
        images().ragged_batch(2, lengths=LENGTHS)
    with pytest.raises(ps.ArgumentError, match="no batch has a size to be short of"):
        images().ragged_batch(max_tokens=8, drop_remainder=True)


def test_a_function_of_a_batch_may_return_ragged_leaves():
    batches = images().ragged_batch(4).map(lambda b: {**b, "boxes": Ragged(b["boxes"].values * 2, b["boxes"].offsets)})
    assert isinstance(batches[0]["boxes"], Ragged)
    assert batches.element_spec["boxes"]._fields == ("values", "offsets")


def test_a_function_that_makes_more_values_than_a_batch_had_is_told_the_most():
    batches = images().ragged_batch(4)
    more = batches.map(lambda b: {**b, "label": np.zeros(9, "int64")}, element_spec=batches.element_spec)
    with pytest.raises(ps.SpecError, match=r"\(9,\) int64 in \['label'\], larger than its max_shape \(4,\)"):
        more[0]


# Rows of tokens with offsets.

TOKENS = [np.arange(10 * i, 10 * i + n, dtype="int32") for i, n in enumerate(LENGTHS)]


def sentences():
    return ps.from_source(TOKENS, element_spec=ArraySpec((None,), "int32"))


@pytest.mark.parametrize("options", [
    {}, {"split": False}, {"fit": "best"}, {"positions": True}, {"fit": "first", "split": False},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("shuffles", [False, True])
def test_offsets_say_what_segments_say(options, shuffles):
    ds = sentences().shuffle(seed=2) if shuffles else sentences()
    plain = ds.pack(8, lengths=LENGTHS, **options)
    rows = ds.pack(8, lengths=LENGTHS, offsets=True, **options)
    assert rows.element_spec[1] == ArraySpec((None,), "int64")
    assert "offsets=True" in repr(rows)
    for (tokens, segments, *more), (same, offsets, *others) in zip(plain, rows, strict=True):
        assert (tokens == same).all()
        assert offsets.tolist() == [0, *np.cumsum(np.bincount(segments)[1:])]
        assert [each.tolist() for each in more] == [each.tolist() for each in others]


def test_offsets_of_a_stream_and_of_two_lengths():
    rows = [(tokens.tolist(), ends.tolist()) for tokens, ends in sentences().pack(8, offsets=True)]
    with_lengths = sentences().pack(8, lengths=LENGTHS, offsets=True)
    assert rows == [(tokens.tolist(), ends.tolist()) for tokens, ends in with_lengths]
    both = ps.zip({"a": sentences(), "b": sentences()})
    packed = both.pack({"a": 8, "b": 12}, lengths={"a": LENGTHS, "b": LENGTHS}, split=False, offsets=True)
    for _, ends in packed:
        assert ends["a"].tolist() == ends["b"].tolist()


def test_rows_with_offsets_make_ragged_batches():
    rows = sentences().pack(8, lengths=LENGTHS, offsets=True)
    tokens, ends = rows.ragged_batch(2)[0]
    assert tokens.shape == (2, 8)
    assert np.split(ends.values, ends.offsets[1:-1])[1].tolist() == rows[1][1].tolist()


# Elements that lie end to end.

FLAT = np.concatenate(TOKENS)
OFFSETS = np.cumsum([0, *LENGTHS])


@pytest.mark.parametrize("where", ["memory", "file"])
def test_runs_of_an_array_are_elements(tmp_path, where):
    np.save(tmp_path / "tokens.npy", FLAT)
    values = FLAT if where == "memory" else np.load(tmp_path / "tokens.npy", mmap_mode="r")
    ds = ps.from_arrays({"tokens": Ragged(values, OFFSETS), "id": np.arange(COUNT)})
    assert [x["tokens"].tolist() for x in ds] == [each.tolist() for each in TOKENS]
    assert ds.element_spec["tokens"] == ArraySpec((None,), "int32")
    ds[3]["tokens"][...] = -1  # an element is the user's own
    batches = ds.shuffle(seed=1).ragged_batch(5)
    want = [np.concatenate([TOKENS[i] for i in batch["id"]]).tolist() for batch in batches]
    for executor in ("inline", "threads"):
        with batches.loader(executor) as loader:
            assert [batch["tokens"].values.tolist() for batch in loader] == want
    assert ds.shuffle(seed=1).ragged_batch(5)._node.length == 5


@pytest.mark.slow
def test_runs_reach_worker_processes(workers_stay, tmp_path):
    np.save(tmp_path / "tokens.npy", FLAT)
    values = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    ds = ps.from_arrays(Ragged(values, OFFSETS)).map(lambda x: x + 1, element_spec=ArraySpec((None,), "int32"))
    batches = ds.ragged_batch(5)
    with batches.loader("processes", workers=2) as loader:
        assert np.concatenate([batch.values for batch in loader]).tolist() == (FLAT + 1).tolist()


@pytest.mark.parametrize(("offsets", "error", "text"), [
    ([0, 3, 2], ps.ArgumentError, "They descend after number 1"),
    ([0, 1000], ps.ArgumentError, "to at most the number of rows"),
    ([-1, 3], ps.ArgumentError, "these go from -1"),
    ([0.0, 3.0], ps.ArgumentTypeError, r"offsets are integers, shape \(n \+ 1,\)"),
    ([], ps.ArgumentTypeError, "offsets are integers"),
], ids=["descend", "long", "negative", "floats", "none"])  # fmt: skip
def test_offsets_that_fit_no_rows_are_refused(offsets, error, text):
    with pytest.raises(error, match=text):
        ps.from_arrays(Ragged(FLAT, offsets))
