"""Cases that a reviewer found, each with what is right."""

import threading

import numpy as np
import pytest

import penstock as ps


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_exception_that_is_its_own_cause_arrives(executor):
    def fail(x):
        try:
            raise ValueError("no")
        except ValueError as error:
            raise error from error

    dataset = ps.range(4).map(fail, element_spec=ps.ArraySpec((), "int64")).batch(2)
    with dataset.loader(executor=executor) as loader, pytest.raises(ps.ElementError, match="ValueError: no"):
        list(loader)


def test_unbatch_of_a_function_that_drops_rows_is_refused_and_not_stale():
    dataset = ps.range(10).batch(4).map(lambda batch: batch[batch % 5 != 4]).unbatch()
    with pytest.raises(
        ps.SpecError, match=r"unbatch\(\) counts on 4 rows in element 1 of map\(<lambda>\), but it has 3"
    ):
        list(dataset)


def test_shards_are_refused_if_any_of_several_short_batches_does_not_divide():
    dataset = ps.concatenate([ps.range(10).batch(4), ps.range(9).batch(4)])
    with pytest.raises(ps.ArgumentError, match="The last batch has 1 elements, which 2 shards"):
        dataset.loader(shard=(0, 2))


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_batches_beside_ragged_elements_are_loaded(executor):
    spec = ps.ArraySpec((None,), "int64")
    ragged = ps.range(3).map(lambda i: np.arange(int(i)), element_spec=spec)
    dataset = ps.concatenate([ps.range(8).batch(4), ragged])
    with dataset.loader(executor=executor) as loader:
        assert [x.tolist() for x in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [], [0], [0, 1]]


def test_a_consumer_waits_for_another_that_has_just_begun():
    with ps.range(8).batch(2).loader(workers=1) as loader:
        epoch = iter(loader)
        next(epoch)
        loader._lock.acquire()
        thread = threading.Thread(target=next, args=(epoch,))
        thread.start()
        loader._lock.release()
        thread.join(10)
        assert not thread.is_alive()
        assert next(epoch).tolist() == [4, 5]


def test_cast_to_text_of_any_size_is_refused():
    with pytest.raises(ps.SpecError, match=r"cannot make <U0 of \(\) int64: text and bytes of any size"):
        ps.range(3).cast("U")[1]
    assert ps.range(3).cast("U20")[1] == "1"


def test_an_element_without_arrays_is_refused():
    with pytest.raises(ps.SpecError, match="returned no array at all for element 0"):
        ps.range(3).map(lambda i: ())[0]


def test_an_element_that_refuses_to_be_an_array_is_named():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    with pytest.raises(ps.SpecError, match=r"^map\(.*\) .* a Tensor that is not an array: Can't call .* element 0"):
        ps.range(3).map(lambda i: Tensor())[0]


def test_indices_that_are_no_integers_are_refused():
    ds, numbers = ps.range(10), np.array([7, 2])
    cure = r"penstock\.from_arrays\(numbers\)\.map\(lambda i: dataset\[i\], element_spec=dataset\.element_spec\)\.$"
    with pytest.raises(ps.ArgumentTypeError, match=rf"indexed by an integer or a slice, not by an ndarray\. .* {cure}"):
        ds[numbers]
    assert [int(x) for x in ps.from_arrays(numbers).map(lambda i: ds[i])] == [7, 2]
