"""Values by name: `select` and `rename`, and what is not read any more."""

import numpy as np
import pytest

import penstock as ps
from penstock.lower._rewrite import with_rows
from penstock.plan._fields import Fields
from penstock.plan._node import walk
from penstock.sources.arrays import ArraySource
from penstock.testing import CountingSource, assert_resumes_exactly, assert_same

X, Y = np.arange(24.0).reshape(12, 2), np.arange(12)


def table():
    return ps.from_arrays({"x": X, "y": Y, "z": (Y, X)})


def is_gone(ds):
    return not any(isinstance(node, Fields) for node in walk(with_rows(ds._node)))


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize(
    "before",
    [
        lambda ds: ds,
        lambda ds: ds.shuffle(3, reshuffle=False),
        lambda ds: ds.map(lambda e: e),
        lambda ds: ds.batch(3).repeat(2),
    ],
    ids=["arrays", "shuffle", "map", "batch"],
)
def test_chosen_values_are_those_of_the_element(before, executor):
    whole = before(table())
    ds = whole.select("z", "y").rename({"y": "label"})
    assert list(ds.element_spec) == ["z", "label"]
    with ds.loader(executor=executor) as loader:
        for element, want in zip(loader, whole, strict=True):
            assert_same(element, {"z": want["z"], "label": want["y"]})
    assert_same(ds[3], {"z": whole[3]["z"], "label": whole[3]["y"]})


def test_a_run_of_chosen_values_resumes_exactly():
    ds = table().shuffle(1).map(lambda e: e).select("y", "x").batch(5)
    assert_resumes_exactly(ds, executors=[("inline", 1), ("threads", 2)])


def test_values_of_a_stream_are_chosen_too():
    ds = ps.from_generator(lambda: ({"a": np.int64(i), "b": np.float64(i)} for i in range(4)))
    assert [list(each.items()) for each in ds.select("b").rename({"b": "c"})] == [[("c", i)] for i in range(4)]


def test_what_is_left_out_is_not_read():
    left, taken = CountingSource(ArraySource(X)), CountingSource(ArraySource(Y))
    ds = ps.zip({"x": ps.from_source(left), "y": ps.from_source(taken)})
    chosen = ds.shuffle(2).batch(4).rename({"y": "label"}).select("label")
    assert is_gone(chosen)
    with chosen.loader(executor="threads") as loader:
        assert sorted(np.concatenate([batch["label"] for batch in loader]).tolist()) == Y.tolist()
    assert chosen[0].keys() == {"label"}
    assert not left.reads
    assert taken.reads


def test_a_function_gets_its_whole_element():
    ds = table().map(lambda e: {"sum": e["x"].sum(), "y": e["y"]}).select("sum")
    assert not is_gone(ds)
    assert float(ds[3]["sum"]) == X[3].sum()


def test_random_numbers_are_those_of_the_whole_plan():
    noisy = ps.from_arrays(X).random_map(lambda x, rng: x + rng.normal(size=2), seed=4)
    both = ps.zip({"noise": noisy, "y": ps.from_arrays(Y)})

    def draw(element, rng):
        return {"y": element["y"], "n": rng.integers(1000)}

    want = [int(each["n"]) for each in both.random_map(draw, seed=1)]
    assert [int(each["n"]) for each in both.select("y").random_map(draw, seed=1)] == want


def test_columns_that_are_left_out_are_not_decoded(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": [1, 2, None], "y": [1.5, 2.5, 3.5], "z": ["a", "b", "c"]}), tmp_path / "a.parquet")
    ds = ps.from_parquet(tmp_path / "a.parquet").select("z", "y")
    assert ds[2] == {"z": "c", "y": 3.5}  # the null is not looked at
    assert is_gone(ds)
    masked = ps.from_parquet(tmp_path / "a.parquet", null_masks=["x"]).select("x_is_null", "y")
    assert [bool(each["x_is_null"]) for each in masked] == [False, False, True]
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": 2}\n{"y": 3}\n')
    assert ps.from_jsonl(tmp_path / "a.jsonl").select("y")[1] == {"y": 3}


def test_features_of_records_that_are_left_out_are_not_parsed(tmp_path):
    pytest.importorskip("google_crc32c")
    ps.write_tfrecord(tmp_path / "a", [{"x": np.int64(i), "y": np.float32(i)} for i in range(3)])
    ds = ps.from_tfrecord(tmp_path / "a", features="auto").select("y")
    assert is_gone(ds)
    assert [float(each["y"]) for each in ds] == [0, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (
            lambda: table().select("w"),
            ps.SpecError,
            r"select\('w'\): elements have no 'w'; they have \['x', 'y', 'z'\]",
        ),
        (lambda: table().rename({"w": "v"}), ps.SpecError, r"rename\(\{'w': 'v'\}\): elements have no 'w'"),
        (lambda: table().rename({"x": "y"}), ps.SpecError, r"elements would have 'y' twice"),
        (lambda: ps.range(3).select("x"), ps.SpecError, r"takes values of dicts by their names, but elements are \(\)"),
        (lambda: table().select(), ps.ArgumentError, r"select\(\) needs names, each once, got \[\]"),
        (lambda: table().select("x", "x"), ps.ArgumentError, r"each once"),
        (lambda: table().select(3), ps.ArgumentTypeError, r"select\(\) needs names of values"),
        (lambda: table().select([3]), ps.ArgumentTypeError, r"select\(\) needs names of values.*got 3"),
        (lambda: table().rename("x"), ps.ArgumentTypeError, r"rename\(\) needs a dict"),
    ],
)
def test_wrong_names_are_refused(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


@pytest.mark.parametrize(
    "make",
    [lambda ds: ds.map(lambda b: b, batched=2).select("y"), lambda ds: ds.batch(4).select("y").unbatch()],
    ids=["batched", "unbatch"],
)
def test_some_values_of_batches_that_are_taken_apart_with_a_short_one_at_the_end(make):
    dataset = make(ps.from_arrays({"x": np.arange(7), "y": np.arange(7) * 2}))
    with dataset.batch(3).loader(executor="inline") as loader:
        assert [batch["y"].tolist() for batch in loader] == [[0, 2, 4], [6, 8, 10], [12]]


def test_a_function_of_many_elements_is_named_when_it_gives_too_few_and_values_are_chosen():
    dataset = ps.from_arrays({"x": np.arange(8), "y": np.arange(8)}).map(lambda b: {"y": b["y"][:3]}, batched=4)
    with pytest.raises(ps.PenstockError, match="map"):
        list(dataset.select("y").loader(executor="inline"))
