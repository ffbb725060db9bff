"""The text of every error that a user can meet: the fact with its numbers, the cause, the cure.

Texts about splits, functions and specs stand in `tests/plan/test_messages.py`, those about `.npy` files in
`tests/sources/test_npy.py` and `testfiles.py`, beside the damage that causes them.
"""

import builtins
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base import _errors
from tests.texts import assert_refused


def drawing(x: Any) -> Any:
    return x + np.random.random()


def state_of(ds: ps.Dataset, **changes: Any) -> dict[str, Any]:
    with ds.loader(executor="inline") as loader:
        return loader.get_state() | changes


def restore(state: Any, ds: ps.Dataset | None = None) -> None:
    with (ds or ps.range(9).batch(3)).loader(executor="inline") as loader:
        loader.set_state(state)


def next_of_closed() -> None:
    loader = ps.range(9).loader(executor="inline")
    iterator = iter(loader)
    loader.close()
    next(iterator)


def next_of_older() -> None:
    with ps.range(9).loader(executor="inline") as loader:
        older = iter(loader)
        next(older)
        next(iter(loader))
        next(older)


def next_after_set_state() -> None:
    with ps.range(9).loader(executor="inline") as loader:
        iterator = iter(loader)
        next(iterator)
        loader.set_state(loader.get_state())
        next(iterator)


INTEGER = "an integer is needed, not a"
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # Data.
    "lengths of leaves": (
        lambda: ps.from_arrays({"x": np.zeros((3, 2)), "y": (np.zeros(4), np.zeros(3))}),
        ValueError,
        (
            r"from_arrays\(\) puts elements side by side, so lengths must be equal, but they are \['x'\]: 3 "
            r"elements, "
            r"\['y'\]\[0\]: 4 elements, \['y'\]\[1\]: 3 elements\. Cut them to one length with take\(n\) or a slice\."
        ),
    ),
    "objects": (
        lambda: ps.from_arrays({"x": np.array([None, 1])}),
        TypeError,
        (
            r"from_arrays\(\) got Python objects at \['x'\] \(dtype object\)\. Give an array of numbers or "
            r"text, such as "
            r"array\.astype\('U'\) or array\.astype\('float32'\), or use from_source\(\)\."
        ),
    ),
    "single value": (
        lambda: ps.from_arrays(5),
        TypeError,
        r"from_arrays\(\) got the single value 5 at the top\. Every leaf needs a first axis that counts elements\.",
    ),
    "path for an array": (
        lambda: ps.from_arrays({"x": Path("x.npy")}),
        TypeError,
        r"from_arrays\(\) got 'x\.npy' at \['x'\], and takes arrays, not the names of files\. .*",
    ),
    "path": (
        lambda: ps.from_npy({"x": 5}),
        TypeError,
        r"from_npy\(\) needs a path at \['x'\], got an int\.",
    ),
    "file": (
        lambda: ps.from_npy("/nowhere/ds.npy"),
        OSError,
        r"/nowhere/ds\.npy cannot be read: No such file or directory\.",
    ),
    "paths": (
        lambda: ps.from_npy(["/nowhere/a.npy", 3]),
        OSError,
        r"/nowhere/a\.npy cannot be read: No such file or directory\.",
    ),
    "pattern": (
        lambda: ps.from_npy("/nowhere/*.npy"),
        OSError,
        r"No file fits the pattern /nowhere/\*\.npy\.",
    ),
    "file at home": (
        lambda: ps.from_npy("~/ds.npy"),
        OSError,
        r".*/~/ds\.npy cannot be read: No such file or directory\. .*: give os\.path\.expanduser\(path\)\.",
    ),
    "source without length": (
        lambda: ps.from_source(5),
        TypeError,
        r"from_source\(\) needs an object with a length, got an int\.",
    ),
    "sparse matrix as a source": (
        lambda: ps.from_source(pytest.importorskip("scipy.sparse").eye_array(2).tocsr()),
        TypeError,
        r".* got a csr_array, whose len\(\) fails: .*\. Rows of a sparse matrix: from_csr\(matrix\.tocsr\(\)\)\.",
    ),
    "sparse matrix as an array": (
        lambda: ps.from_arrays({"x": pytest.importorskip("scipy.sparse").eye_array(2)}),
        TypeError,
        r"from_arrays\(\) got a \w+_array at \['x'\] .*\. Rows of a sparse matrix: from_csr\(matrix\.tocsr\(\)\)\.",
    ),
    "source that is iterated": (
        lambda: ps.from_source(iter([1])),
        TypeError,
        r"from_source\(\) needs an object with a length, got a list_iterator\. .*: from_generator\(fn, \*args\)\.",
    ),
    "source without elements": (
        lambda: ps.from_source({1, 2}),
        TypeError,
        r"from_source\(\) needs an object with read_into\(\) or \[i\], got a set\.",
    ),
    "columns as a source": (
        lambda: ps.from_source({"x": [1, 2]}),
        TypeError,
        r"from_source\(\) asks for source\[0\], .*, and a dict takes the index for a name\. .* from_arrays\(\{.*",
    ),
    "table as a source": (
        lambda: ps.from_source(type("DataFrame", (list,), {"iloc": None, "columns": None})([1, 2])),
        TypeError,
        r"from_source\(\) .* a DataFrame takes the index for a name\. .* from_arrays\(\{.*",
    ),
    "range of float": (lambda: ps.range(2.5), TypeError, rf"range\(2\.5\): {INTEGER} float\."),
    "range of bool": (lambda: ps.range(True), TypeError, rf"range\(True\): {INTEGER} bool\."),
    "range below 0": (
        lambda: ps.range(-1),
        ValueError,
        r"range\(-1\): from 0 up to 2\*\*62 - 1 elements are possible\.",
    ),
    # Several datasets.
    "zip of nothing": (lambda: ps.zip(()), ValueError, r"zip\(\) got no datasets\."),
    "zip of a list": (
        lambda: ps.zip([ps.range(3), ps.range(3)]),
        TypeError,
        r"zip\(\) needs datasets, got a list\. A list is a leaf here, .*; write a tuple: zip\(\(x, y\)\)\.",
    ),
    "zip of arrays": (
        lambda: ps.zip((ps.range(3), np.zeros(3))),
        TypeError,
        r"zip\(\) needs datasets, got an ndarray\. Make one of it first: from_arrays\(\.\.\.\)\.",
    ),
    "concatenate of one": (
        lambda: ps.concatenate(ps.range(3)),
        TypeError,
        r"concatenate\(\) needs several datasets in a list or tuple, got one dataset\.",
    ),
    "interleave of nothing": (lambda: ps.interleave([]), ValueError, r"interleave\(\) got no datasets\."),
    "concatenate after an endless one": (
        lambda: ps.concatenate([ps.range(3).repeat(), ps.range(2)]),
        ValueError,
        r"concatenate\(\): dataset 0 is endless, so the next one is never reached\. Cut it with take\(n\)\.",
    ),
    # Sizes and counts.
    "batch of 0": (lambda: ps.range(3).batch(0), ValueError, r"batch\(size=0\): it must be at least 1\."),
    "batch of float": (lambda: ps.range(3).batch(2.0), TypeError, rf"batch\(size=2\.0\): {INTEGER} float\."),
    "batch of bool": (lambda: ps.range(3).batch(True), TypeError, rf"batch\(size=True\): {INTEGER} bool\."),
    "take below 0": (lambda: ps.range(3).take(-2), ValueError, r"take\(n=-2\): it must be at least 0\."),
    "skip of text": (lambda: ps.range(3).skip("2"), TypeError, rf"skip\(n='2'\): {INTEGER} str\."),
    "repeat below 0": (lambda: ps.range(3).repeat(-1), ValueError, r"repeat\(count=-1\): it must be at least 0\."),
    "repeat for ever twice": (
        lambda: ps.range(3).repeat().repeat(2),
        ValueError,
        r"repeat\(\) needs a known number of elements, but this is endless\. It is endless already\.",
    ),
    "shuffle seed": (lambda: ps.range(3).shuffle(1.5), TypeError, rf"shuffle\(seed=1\.5\): {INTEGER} float\."),
    "shuffle window": (
        lambda: ps.range(3).shuffle(window=0),
        ValueError,
        r"shuffle\(window=0\): it must be at least 1\.",
    ),
    "shuffle for ever": (
        lambda: ps.range(3).repeat().shuffle(),
        ValueError,
        (
            r"shuffle\(\) needs a known number of elements, but this is endless\. Shuffle before repeat\(\): "
            r"every round "
            r"gets an order of its own\."
        ),
    ),
    "windows length": (lambda: ps.range(3).windows(0), ValueError, r"windows\(length=0\): it must be at least 1\."),
    "windows shift": (
        lambda: ps.range(3).windows(1, shift=0.5),
        TypeError,
        rf"windows\(shift=0\.5\): {INTEGER} float\.",
    ),
    "windows groups": (
        lambda: ps.range(3).windows(1, groups=[0, 0]),
        ValueError,
        r"windows\(groups=\.\.\.\) needs a value for each element, shape \(3,\), got \(2,\)\.",
    ),
    "shard index": (lambda: ps.range(3).shard(2, 2), ValueError, r"shard\(2, 2\): the index must be below the count\."),
    "shard count": (lambda: ps.range(3).shard(0, 0), ValueError, r"shard\(count=0\): it must be at least 1\."),
    # Indices.
    "index": (lambda: ps.range(1500)[1500], IndexError, r"Index 1500 is outside a dataset of 1,500 elements\."),
    "index from the end": (lambda: ps.range(1)[-2], IndexError, r"Index -2 is outside a dataset of 1 element\."),
    "index from no end": (
        lambda: ps.range(3).repeat()[-1],
        IndexError,
        r"Index -1 counts from the end, but this dataset is endless\.",
    ),
    "index of text": (
        lambda: ps.range(3)["x"],
        TypeError,
        (
            r"A dataset is indexed by an integer, a slice or an array, not by 'x', a str\. For a part of each element: "
            r"map\(lambda element: element\['x'\]\)\."
        ),
    ),
    "slice of floats": (
        lambda: ps.range(3)[0.5:],
        TypeError,
        r"A slice of a dataset needs integers, got \[0\.5:\]\.",
    ),
    "slice of floats without end": (
        lambda: ps.range(3).repeat()[0.5:],
        TypeError,
        r"A slice of a dataset needs integers, got \[0\.5:\]\.",
    ),
    "slice by 0": (lambda: ps.range(3)[::0], ValueError, r"\[::0\] is not possible here: slice step cannot be zero\."),
    "slice from no end": (
        lambda: ps.range(3).repeat()[-2:],
        ValueError,
        r"\[-2:\] is not possible here: a dataset without an end cannot be counted from its end\.",
    ),
    "len for ever": (
        lambda: len(ps.range(3).repeat()),
        TypeError,
        r"This dataset is endless, so it has no len\(\)\. Use take\(n\) for a part, or \.length\.",
    ),
    # The loader.
    "executor": (
        lambda: ps.range(3).loader("process"),
        ValueError,
        r"executor='process' is not known\. Use 'auto', 'threads', 'processes', 'ray', or 'inline' \(no workers\)\.",
    ),
    "workers as executor": (
        lambda: ps.range(3).loader(4),
        ValueError,
        r"executor=4 is not known\. .*For so many workers: workers=4\.",
    ),
    "no workers as executor": (
        lambda: ps.range(3).loader(-1),
        ValueError,
        r"executor=-1 is not known\. Use 'auto', 'threads', 'processes', 'ray', or 'inline' \(no workers\)\.",
    ),
    "workers": (
        lambda: ps.range(3).loader(workers=0),
        ValueError,
        r"workers=0 is below 1\. Without workers, on the caller's thread: executor='inline'\.",
    ),
    "workers below 0": (lambda: ps.range(3).loader(workers=-1), ValueError, r"workers=-1 is below 1\."),
    "workers of float": (lambda: ps.range(3).loader(workers=2.0), TypeError, r"workers=2\.0 is not an integer\."),
    "workers of inline": (
        lambda: ps.range(3).loader("inline", workers=2),
        ValueError,
        r"executor='inline' has no workers, but workers=2 was asked for\.",
    ),
    "prefetch": (lambda: ps.range(3).loader(prefetch=0), ValueError, r"prefetch=0 is below 1\."),
    "memory_limit of float": (
        lambda: ps.range(3).loader(memory_limit=1.5e9),
        TypeError,
        r"memory_limit=1500000000\.0 is not an integer \(bytes, such as 2 \* 2\*\*30\)\.",
    ),
    "timeout": (
        lambda: ps.range(3).loader(timeout_s=0),
        ValueError,
        r"timeout_s=0 is not a time above zero, in seconds\.",
    ),
    "timeout of text": (
        lambda: ps.range(3).loader(timeout_s="1"),
        TypeError,
        r"timeout_s='1' is not a number of seconds\.",
    ),
    "shard option": (
        lambda: ps.range(3).loader(shard=2),
        TypeError,
        (
            r"shard=2 is not a pair of integers \(index, count\)\. Use \(index, count\), 'auto', or a dimension of a "
            r"DeviceMesh, as in mesh\['dp'\]\."
        ),
    ),
    "shard option of an array": (
        lambda: ps.range(3).loader(shard=np.array([0, 2])),
        TypeError,
        r"shard=array\(\[0, 2\]\) is not a pair of integers \(index, count\)\. Use \(index, count\), .*",
    ),
    "shard option beyond": (
        lambda: ps.range(3).loader(shard=(2, 2)),
        ValueError,
        r"shard=\(2, 2\) is \(index, count\), and needs 0 <= index < count\.",
    ),
    "shards of single elements": (
        lambda: ps.range(4).loader(shard=(0, 2)),
        ValueError,
        (
            r"shard=\(0, 2\) divides the rows of each batch, but elements of this dataset are \(\) int64, "
            r"without a common "
            r"first axis\. Put batch\(\) last\."
        ),
    ),
    "shards of batches of any length": (
        lambda: (
            ps.range(4).map(np.arange, element_spec=ps.ArraySpec((None,), "int64")).padded_batch(2).loader(shard=(0, 2))
        ),
        ValueError,
        (
            r"shard=\(0, 2\) divides the rows of each batch, but elements of this dataset are \(2, None\) int64, "
            r"whose size is not known ahead\. Give ranks whole batches: whole_batches=True\. Or pad to one: "
            r"padded_batch\(padded_shapes=\)\."
        ),
    ),
    "shards of buckets": (
        lambda: (
            ps.range(4)
            .map(np.arange)
            .shuffle(1)
            .bucket_by_length(lengths=range(4), batch_size=2)
            .map(np.negative, element_spec=ps.ArraySpec((2, None), "int64"))
            .loader(shard=(0, 2))
        ),
        ValueError,
        (
            r"shard=\(0, 2\) divides the rows of each batch, but elements of this dataset are \(2, None\) int64, "
            r"whose size is not known ahead\. Give ranks whole batches: whole_batches=True\. Or pad to one: "
            r"bucket_by_length\(padded_shapes=\)\."
        ),
    ),
    "shards that do not divide": (
        lambda: ps.range(9).batch(3).loader(shard=(0, 2)),
        ValueError,
        (
            r"A batch has 3 elements, which 2 shards cannot share evenly\. Give ranks whole batches: "
            r"whole_batches=True\. Or use a batch size that 2 divides\. Or let "
            r"shares differ by an element: uneven='weights'; for evaluation uneven='mask'\."
        ),
    ),
    "shards that do not divide the last": (
        lambda: ps.range(9).batch(4).loader(shard=(0, 2)),
        ValueError,
        (
            r"The last batch has 1 elements?, which 2 shards cannot share evenly\. Give ranks whole batches: "
            r"whole_batches=True\. Or use a batch size that 2 "
            r"divides and drop_remainder=True\. Or let shares differ by an element: uneven='weights'; for evaluation "
            r"uneven='mask'\."
        ),
    ),
    "nothing to load": (
        lambda: ps.range(9).take(0).shuffle().batch(4).loader(),
        ValueError,
        r"There is nothing to load: take\(0\) has no elements, of 9 elements before it\.",
    ),
    "windows longer than the data": (
        lambda: ps.range(5000).windows(3000, stride=2).batch(4).loader(),
        ValueError,
        (
            r"There is nothing to load: windows\(3000, stride=2\) has no elements, of 5,000 elements before it\. "
            r"A window spans 5,999 of them\."
        ),
    ),
    "windows longer than their groups": (
        lambda: ps.range(4).windows(3, groups=[0, 0, 1, 1]).loader(),
        ValueError,
        (
            r"There is nothing to load: windows\(3, groups=\.\.\.\) has no elements, of 4 elements before it\. "
            r"A window spans 3 neighbours of one group\."
        ),
    ),
    "nothing at all": (
        lambda: ps.from_arrays(np.zeros((0, 3))).batch(4).loader(),
        ValueError,
        r"There is nothing to load: from_arrays\(array of \(0, 3\) float64\) has no elements\.",
    ),
    "dropped to nothing": (
        lambda: ps.range(3).batch(4, drop_remainder=True).loader(),
        ValueError,
        r"There is nothing to load: batch\(4, drop_remainder=True\) has no elements, of 3 elements before it\.",
    ),
    "global randomness on threads": (
        lambda: ps.range(3).map(drawing).loader("threads"),
        ValueError,
        (
            r"map\(drawing\) at test_errors\.py:\d+ draws from the global np\.random or random, whose state "
            r"threads would "
            r"share in an uncontrolled order\. Use random_map\(fn\), whose fn\(element, rng\) gets "
            r"numbers of its own, "
            r"or executor='processes', or 'inline'\."
        ),
    ),
    "memory": (
        lambda: ps.from_arrays(np.zeros((64, 1024, 128))).batch(16).loader(memory_limit=20 * 2**20),
        MemoryError,
        (
            r"Projected memory is 96 MiB, above memory_limit=20 MiB\. 96 MiB of it is the ring after "
            r"batch\(16\): 6 slots of "
            r"16 MiB, \(16, 1024, 128\) float64\. Use a batch of 3\."
        ),
    ),
    "memory of prefetch": (
        lambda: ps.from_arrays(np.zeros((64, 1024, 128))).batch(16).loader(memory_limit=64 * 2**20),
        MemoryError,
        r"Projected memory is 96 MiB, above memory_limit=64 MiB\. .* or a smaller prefetch \(prefetch=2 fits\)\.",
    ),
    "memory of one element": (
        lambda: ps.from_arrays(np.zeros((8, 1024, 1024))).batch(1).loader(memory_limit=32 * 2**20),
        MemoryError,
        r"Projected .* 6 slots of 8 MiB, .* One element of from_arrays\(.*\) alone takes 8 MiB\. If the data .*",
    ),
    "len of an endless loader": (
        lambda: len(ps.range(3).repeat().batch(2).loader("inline")),
        TypeError,
        r"This loader is endless, so it has no len\(\)\. Use take\(n\) for a part\.",
    ),
    "closed": (next_of_closed, RuntimeError, r"This loader is closed\. Make another one: dataset\.loader\(\.\.\.\)\."),
    "iterated twice": (
        next_of_older,
        RuntimeError,
        (
            r"A newer iterator, or set_state\(\), has taken over this loader: one iterator lives at a time\. "
            r"Make a second "
            r"loader to iterate twice at once\."
        ),
    ),
    "iterated after set_state": (next_after_set_state, RuntimeError, r"A newer iterator, or set_state\(\), has .*"),
    # States.
    "no state": (
        lambda: restore([1, 2]),
        ValueError,
        (
            r"Not a loader's state: \[1, 2\]\. It is what get_state\(\) returned: a dict with version, plan, "
            r"epoch and "
            r"position\."
        ),
    ),
    "state of a later version": (
        lambda: restore(state_of(ps.range(9).batch(3), version=9)),
        ValueError,
        r"The state has version 9, this penstock reads version 1\.",
    ),
    "state of another plan": (
        lambda: restore(state_of(ps.range(9).shuffle(1).batch(3)), ps.range(9).shuffle(2).batch(3)),
        ValueError,
        (
            r"The state is of another dataset: step 2 differs: the arguments of shuffle changed \(saved "
            r"shuffle#\w{6}, here "
            r"shuffle#\w{6}\)\. Build the dataset as it was when the state was saved\."
        ),
    ),
    "state of other data": (
        lambda: restore(state_of(ps.range(12).batch(3))),
        ValueError,
        r"The state is of another dataset: step 1 differs: the length or spec of range changed .*",
    ),
    "state with a float": (
        lambda: restore(state_of(ps.range(9).batch(3), position=1.0)),
        ValueError,
        r"epoch=0 and position=1\.0 must be integers from 0 to 2\*\*62 - 1\.",
    ),
    "state beyond the end": (
        lambda: restore(state_of(ps.range(9).batch(3), position=3)),
        ValueError,
        r"position=3 is beyond the 3 batches of an epoch\.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_text_of_error(name: str) -> None:
    assert_refused(*REFUSED[name])


def test_every_error_is_also_the_builtin_that_a_user_would_catch() -> None:
    for name, each in inspect.getmembers(_errors, inspect.isclass):
        assert issubclass(each, ps.PenstockError), name
        assert getattr(ps, name) is each
        assert each.__module__ == "penstock"
        if each is not ps.PenstockError:
            assert [base for base in each.__mro__ if base.__name__ in dir(builtins) and base not in (Exception, object)]


def test_an_error_of_a_users_source_says_what_was_asked_of_it() -> None:
    class Broken(ps.Source):
        element_spec = ps.ArraySpec((), "f4")

        def __len__(self) -> int:
            return 9

        def read_into(self, indices: Any, out: Any) -> None:
            raise OSError("no disk")

    with (
        ps.from_source(Broken()).batch(3)[1:].loader("inline") as loader,
        pytest.raises(OSError, match="no disk") as caught,
    ):
        next(iter(loader))
    assert caught.value.__notes__ == [
        "A source raised it, asked for 3 elements, first element 3 of Broken.",
        "This was in batch 0 of epoch 0.",
    ]


def test_nothing_is_read_before_an_argument_is_refused() -> None:
    class Closed(ps.Source):
        element_spec = ps.ArraySpec((2,), "f4")

        def __len__(self) -> int:
            return 9

        def read_into(self, indices: Any, out: Any) -> None:
            raise AssertionError("read")

    ds = ps.from_source(Closed())
    for wrong in (
        lambda: ds.batch(-1),
        lambda: ds.batch(5).loader(memory_limit=1),
        lambda: ds.batch(5).loader(shard=(0, 4)),
        lambda: ds.windows(2).split(0.5, 0.5, seed=1),
    ):
        with pytest.raises(ps.PenstockError):
            wrong()
