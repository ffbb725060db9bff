import gc
import math
import pickle
import weakref

import numpy as np
import pytest

import penstock as ps
from penstock.sources.arrays import ArraySource
from penstock.testing import CountingSource


def counted(count=20):
    source = CountingSource(ArraySource(np.arange(count * 2.0).reshape(count, 2)))
    return source, ps.from_source(source)


def test_building_a_plan_reads_nothing():
    source, ds = counted()
    plan = ds.windows(2).shuffle(1).repeat(2).batch(4).take(3)
    assert (len(plan), plan.element_spec.shape, plan.access) == (3, (None, 2, 2), "random")
    repr(plan)
    train, test = ds.split(0.5, 0.5, seed=1)
    ps.zip((train, test)).loader("inline").close()
    assert not source.reads
    assert not source.advised


def test_an_index_reads_what_its_element_is_made_of_and_nothing_else():
    source, ds = counted()
    _ = ds.windows(3).batch(2)[4]
    assert source.reads == {8: 1, 9: 2, 10: 2, 11: 1}


def test_a_loader_reads_each_element_once_an_epoch_and_announces_what_comes():
    source, ds = counted(40)
    with ds.shuffle(1).batch(4).loader("inline", prefetch=1) as loader:
        list(loader)
        assert set(source.reads) == set(range(40))
        assert max(source.reads.values()) <= 2  # what is read ahead is of the next epoch
        assert source.advised


class Numbers(ps.Source):
    element_spec = ps.ArraySpec((), "int64")

    def __init__(self):
        self.advised = set()

    def __len__(self):
        return 16

    def read_into(self, indices, out):
        out[...] = indices


class Listening(Numbers):
    def advise(self, indices):
        self.advised.update(indices.tolist())


class Assigned(Numbers):
    def __init__(self):
        super().__init__()
        self.advise = lambda indices: self.advised.update(indices.tolist())


class Wrapped(Numbers):
    """What it opens is no source itself, and has from one what it lacks."""

    def __init__(self, inner):
        super().__init__()
        self._inner, self.advised = inner, inner.advised

    def open(self):
        inner = self._inner

        class Wrapper:
            def __getattr__(self, name):
                return getattr(inner, name)

        return Wrapper()


@pytest.mark.parametrize(
    "source",
    [Listening(), Assigned(), Wrapped(Listening()), Wrapped(Assigned())],
    ids=["by its class", "by itself", "wrapped, by a class", "wrapped, by itself"],
)
def test_a_source_is_told_what_comes_wherever_it_has_it_from(source):
    with ps.from_source(source).batch(4).loader("inline", prefetch=1) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(16))
    assert source.advised


def test_a_source_that_opens_something_that_does_not_listen_is_read():
    with ps.from_source(Wrapped(Numbers())).batch(4).loader("inline") as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(16))


def test_dataset_is_immutable_and_each_verb_makes_another():
    ds = ps.range(5)
    assert ds.batch(2) is not ds
    assert len(ds) == 5
    with pytest.raises(AttributeError):
        ds.anything = 1


def test_dataset_is_true_even_if_empty_or_endless():
    assert bool(ps.range(0))
    assert bool(ps.range(2).repeat())


def test_length_is_an_int_or_infinite():
    assert ps.range(5).length == 5
    assert ps.range(5).repeat().length == math.inf


def test_list_and_iteration_agree_with_indices():
    ds = ps.range(7).shuffle(1)
    assert list(ds) == [ds[i] for i in range(7)] == list(iter(ds))
    assert [int(x) for x in reversed(ds)] == [int(x) for x in ds][::-1]


def test_membership_and_unpacking_work_as_for_a_sequence():
    a, b, c = ps.range(3)
    assert (a, b, c) == (0, 1, 2)
    assert 2 in ps.range(3)
    assert 3 not in ps.range(3)


@pytest.mark.parametrize("index", [np.int64(2), np.uint8(2), np.array(2)])
def test_integers_of_numpy_are_indices(index):
    assert ps.range(5)[index] == 2


def test_what_is_neither_an_integer_nor_a_slice_nor_an_array_is_no_index():
    with pytest.raises(ps.ArgumentTypeError, match=r"by an integer, a slice or an array, not by None, a NoneType\.$"):
        ps.range(10)[None]


def plan_of_all_verbs(integer):
    two, three = integer(2), integer(3)
    rows = ps.from_arrays(np.arange(48.0).reshape(24, 2))
    stream = ps.from_generator(lambda part, count: iter(np.zeros((5, 2))), shards=two)
    parts = (
        rows.shuffle(two, window=three).repeat(two).take(integer(40)).skip(two).shard(integer(1), two),
        rows.split(integer(20), integer(4), seed=two)[0],
        rows.random_map(lambda row, rng: row, seed=two),
        ps.mix([rows, rows], [two, three], seed=two),
        ps.interleave([rows, rows], cycle_length=two, block_length=three),
        stream,
    )
    rows = ps.interleave(parts).windows(two, shift=three, stride=integer(1)).unbatch()
    return (
        rows.bucket_by_length(len, [two, three], [two, two, three]).unbatch().padded_batch(two, padded_shapes=(three,))
    )


@pytest.mark.parametrize("integer", [np.int64, np.uint8, np.array])
def test_a_plan_of_integers_of_numpy_is_the_same_plan(integer):
    ours, plain = plan_of_all_verbs(integer), plan_of_all_verbs(int)
    assert repr(ours) == repr(plain)
    with ours.loader("inline") as one, plain.loader("inline") as other:
        assert one.get_state() == other.get_state()
        for batch, want in zip(one, other, strict=True):
            assert np.array_equal(batch, want)


def test_elements_have_memory_of_their_own():
    ds = ps.from_arrays(np.zeros((3, 2)))
    kept = list(ds)
    kept[0][...] = 5
    assert not kept[1].any()
    assert not ds[0].any()


def test_inline_meaning_has_no_state():
    ds = ps.range(9).shuffle(1).random_map(lambda x, rng: x + rng.random())
    first = [float(x) for x in ds]
    with ds.loader("inline") as loader:
        list(loader)
        list(loader)
    assert [float(x) for x in ds] == first
    one, two = iter(ds), iter(ds)
    assert [next(one), next(two), next(one), next(two)] == [first[0], first[0], first[1], first[1]]


def test_a_function_may_look_into_another_dataset_and_into_its_own():
    ds = ps.range(5)
    assert [int(x) for x in ds.map(lambda x: x + ds[-1])] == [4, 5, 6, 7, 8]


def test_an_infinite_dataset_is_iterated():
    iterator = iter(ps.range(2).repeat())
    assert [int(next(iterator)) for _ in range(5)] == [0, 1, 0, 1, 0]


def test_public_names_say_where_users_find_them():
    assert {getattr(ps, name).__module__ for name in ("Dataset", "Loader", "ArraySpec", "Source", "SpecError")} == {
        "penstock"
    }
    assert pickle.loads(pickle.dumps(ps.ArraySpec((2,), "f4"))) == ps.ArraySpec((2,), "f4")


def test_a_dataset_that_is_dropped_is_freed():
    array = np.zeros(3)
    ds = ps.from_arrays(array).map(np.negative).batch(2)
    list(ds)
    gone = weakref.ref(ds)
    del ds
    gc.collect()
    assert gone() is None


def test_the_memmap_question():
    frames = ps.from_arrays(np.arange(20 * 6.0).reshape(20, 3, 2))
    pairs = ps.zip((frames[:-1], frames[1:]))
    train, val, test = pairs.split(0.6, 0.2, 0.2)
    assert [len(part) for part in (train, val, test)] == [11, 4, 4]
    x, y = train.shuffle(seed=1).batch(4)[0]
    np.testing.assert_array_equal(y - x, np.full((4, 3, 2), 6.0))


def test_a_dataset_refuses_to_become_an_array_with_the_cure() -> None:
    dataset = ps.range(4).batch(2)
    with pytest.raises(
        ps.ArgumentTypeError, match=r"no array: it is read as it is needed. Keras takes fit\(ds.to_keras"
    ):
        np.asarray(dataset)
    with pytest.raises(AttributeError, match=r"no shape: (.|\n)*fit\(ds.to_keras\(\)\)"):
        dataset.shape  # noqa: B018
    assert not hasattr(dataset, "shape")


def test_names_of_other_libraries_say_what_to_write_here() -> None:
    dataset = ps.range(4)
    with pytest.raises(AttributeError, match=r"no 'prefetch': each loader reads ahead by itself"):
        dataset.prefetch(2)
    with pytest.raises(AttributeError, match=r"no .bucket_by_sequence_length.: bucket_by_length\(length_fn, bound"):
        dataset.bucket_by_sequence_length(len, [3], [2, 2])
    with pytest.raises(AttributeError, match=r"A dataset has no 'nonsense'\."):
        dataset.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match=r"no class_names: none of its sources does\.\n"):
        dataset.class_names  # noqa: B018
    with pytest.raises(AttributeError, match=r"sources does\. Sources with an element for each file have it, as"):
        dataset.file_paths  # noqa: B018


def test_names_of_other_libraries_in_the_package_say_what_to_write_here() -> None:
    with pytest.raises(AttributeError, match=r"^penstock has no 'DataLoader': ds\.batch\(32\)\."):
        ps.DataLoader  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"^penstock has no 'nonsense'\.$"):
        ps.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_a_dataset_is_not_made_of_data_by_its_class() -> None:
    with pytest.raises(
        ps.ArgumentTypeError, match=r"^Dataset\(\) takes no data, and got a list\. Make one with from_a"
    ):
        ps.Dataset([1, 2])  # type: ignore[arg-type]


def test_a_function_of_several_arguments_is_told_what_it_gets() -> None:
    pairs = ps.zip((ps.range(4), ps.range(4)))
    with pytest.raises(ps.ElementError, match=r"here a tuple of 2: lambda e: \(e\[0\], e\[1\]\)"):
        pairs.map(lambda x, y: x + y)[0]
    three = ps.zip((ps.range(4), ps.range(4), ps.range(4)))
    with pytest.raises(ps.ElementError, match=r"here a tuple of 3: lambda e: \(e\[0\], e\[1\], e\[2\]\)"):
        three.map(lambda x, y, z: x + y)[0]
    for dataset in (pairs, ps.range(4)):
        with pytest.raises(ps.ElementError, match=r"random_map\(\) calls fn\(element, rng\), .* not the epoch"):
            dataset.random_map(lambda x, rng, epoch: x)[0]
    for dataset in (pairs, ps.range(4)):
        with pytest.raises(
            ps.ElementError, match=r"argument: 'rng'\. A function of the element and random num.*_map\(\)"
        ):
            dataset.map(lambda e, rng: e)[0]


def test_text_of_a_declared_size_is_taken() -> None:
    names = ps.from_arrays(np.array(["cat", "horse"]))
    kept = names.map(lambda name: name, element_spec=names.element_spec)
    assert list(kept) == ["cat", "horse"]
    assert kept.batch(2)[0].tolist() == ["cat", "horse"]
    with pytest.raises(ps.SpecError, match="returned a str"):
        names.map(lambda name: name * 2, element_spec=names.element_spec)[1]


@pytest.mark.parametrize("count", [2**62, 2**63 - 1, 2**64])
def test_a_source_that_says_more_than_all_elements_is_refused(count):
    class Claims(ps.Source):
        element_spec = ps.ArraySpec((), "int8")

        def __len__(self):
            return count

        def __str__(self):
            return "a.zarr"

    with pytest.raises(ps.SourceError, match=r"from_source\(a\.zarr\) says that it has 2\*\*62 elements or more, and"):
        len(ps.from_source(Claims()))


@pytest.mark.parametrize("count", [2**62, 2**63, np.uint64(2**64 - 1), 10**400])
def test_a_count_beyond_all_elements_means_all_of_them(count):
    ds = ps.range(5)
    stream = ds.filter(lambda x: True)
    for each in (ds, stream):
        assert list(each.take(count)) == list(each.repeat(count).take(5)) == [0, 1, 2, 3, 4]
        assert list(each.shard(1, count)) == [1]
        assert [window.tolist() for window in each.windows(3, shift=count)] == [[0, 1, 2]]
        assert sorted(each.shuffle(1, window=count)) == [0, 1, 2, 3, 4]
        assert list(ps.interleave([each, each], cycle_length=count, block_length=count)) == [0, 1, 2, 3, 4] * 2
    assert list(ds.skip(count)) == []
    assert [batch.tolist() for batch in stream.batch(count)] == [[0, 1, 2, 3, 4]]
    assert (list(ds[:: int(count)]), list(ds[:: -int(count)])) == ([0], [4])
