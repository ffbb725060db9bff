"""In which process the user's code runs, with worker processes: never in the program's, where a crash would end it."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base import _tree
from penstock.dataset import Dataset
from penstock.plan._stream import Generate, StreamSource

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workers_stay")]

COUNT = 24
SCALAR = ps.ArraySpec((), np.dtype(np.int64))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", str(tmp_path))


def note(name: str) -> None:
    """Notes in a file that code with this name ran in this process."""
    with open(os.path.join(os.environ["PLACE"], f"{name}.pids"), "a") as file:
        print(os.getpid(), file=file)


def noting(name: str, function: Callable[[Any], Any] = lambda x: x) -> Any:
    """A function that notes where it runs."""
    folder = os.environ["PLACE"]

    def noted(x: Any, *_: Any) -> Any:
        os.environ["PLACE"] = folder
        note(name)
        return function(x)

    return noted


def generated(name: str = "generator", count: int = COUNT) -> ps.Dataset:
    """A stream of integers, whose generator notes where it runs."""
    folder = os.environ["PLACE"]

    def generate() -> Iterator[int]:
        os.environ["PLACE"] = folder
        note(name)
        yield from range(count)

    return ps.from_generator(generate)


def sharded() -> ps.Dataset:
    folder = os.environ["PLACE"]

    def generate(shard: int, count: int) -> Iterator[int]:
        os.environ["PLACE"] = folder
        note(f"shard {shard}")
        yield from range(shard, COUNT, count)

    return ps.from_generator(generate, shards=2)


class Items:
    """An object with random access."""

    def __init__(self) -> None:
        self.folder = os.environ["PLACE"]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        os.environ["PLACE"] = self.folder
        note("__getitem__")
        return np.int64(index)


class Staying(StreamSource):
    """A stream whose source cannot travel, as a `tf.data.Dataset`."""

    travels = False

    def __init__(self, elements: Iterable[Any] = range(COUNT), spec: Any = SCALAR) -> None:
        self.elements = elements
        self.spec = spec

    @property
    def element_spec(self) -> Any:
        return self.spec

    def iterate(self, epoch: int) -> Iterator[Any]:
        note("stays")
        yield from self.elements

    def describe(self, index: int) -> str:
        return f"element {index}"


def staying(*arguments: Any) -> ps.Dataset:
    return Dataset(Generate(Staying(*arguments), "from_staying", "here"))


class Pictures:
    """Pictures whose head is larger than what a payload holds as a pickle, while each is too small to be shared."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(50):
            yield {"image": np.full((1000, 1000), number, np.uint8), "name": f"p{number}", "box": np.arange(number % 3)}


def pictures() -> ps.Dataset:
    image = ps.ArraySpec((1000, 1000), np.dtype(np.uint8))
    box = ps.ArraySpec((None,), np.dtype(np.int64))
    return staying(Pictures(), {"image": image, "name": ps.ArraySpec((), np.dtype("U")), "box": box})


def mean(element: Any) -> Any:
    return element["image"].mean(), element["name"], len(element["box"])


def is_odd(x: Any) -> bool:
    return bool(x % 2)


def is_late(x: Any) -> bool:
    return bool(x > 12)


def mapped(name: str = "map") -> ps.Dataset:
    return generated().map(noting(name))


PLANS: dict[str, Callable[[], ps.Dataset]] = {
    "map": lambda: ps.range(COUNT).map(noting("map")).batch(4),
    "random_map": lambda: ps.range(COUNT).random_map(noting("random_map")).batch(4),
    "filter": lambda: ps.range(COUNT).filter(noting("filter", is_odd)).map(noting("map")).batch(4),
    "flat_map": lambda: ps.range(COUNT).flat_map(noting("flat_map", lambda x: [x, x])).batch(4),
    "an object, to a filter": lambda: ps.from_source(Items()).filter(noting("filter", is_odd)).batch(4),
    "an object, beside a stream": lambda: ps.concatenate([ps.from_source(Items()), mapped()]).batch(4),
    "a stream": lambda: generated().batch(4),
    "a stream of shards": lambda: sharded().map(noting("map")).batch(4),
    "map of a stream": lambda: mapped().batch(4),
    "random_map of a stream": lambda: generated().random_map(noting("random_map")).batch(4),
    "filter of a stream": lambda: generated().filter(noting("filter", is_odd)).map(noting("map")).batch(4),
    "flat_map of a stream": lambda: generated().flat_map(noting("flat_map", lambda x: iter([x, x]))).batch(4),
    "map of groups of a stream": lambda: generated().map(noting("map"), batched=4).batch(4),
    "map of groups to others": lambda: (
        generated().map(noting("map", lambda x: x[::2]), batched=4, keeps_count=False).batch(4)
    ),
    "map of batches of a stream": lambda: generated().batch(4).map(noting("map")),
    "padded batches": lambda: generated().map(noting("map", lambda x: np.arange(x % 3))).padded_batch(4),
    "buckets": lambda: (
        generated()
        .map(noting("map", lambda x: np.arange(1 + x % 5)))
        .bucket_by_length(noting("length", len), [3], [4, 4])
    ),
    "windows": lambda: mapped().windows(3).map(noting("map of windows")).batch(4),
    "unbatch": lambda: generated().batch(4).map(noting("map of batches")).unbatch().map(noting("map")).batch(4),
    "interleave": lambda: ps.interleave([generated(), generated("another", 10)]).map(noting("map")).batch(4),
    "interleave of maps": lambda: ps.interleave([mapped(), generated("another", 10).map(noting("b"))]).batch(4),
    "mix": lambda: ps.mix([mapped(), ps.range(COUNT).map(noting("b"))], [1, 1]).batch(4),
    "cache": lambda: mapped().cache(os.path.join(os.environ["PLACE"], str(os.urandom(4).hex()))).batch(4),
    "concatenate": lambda: ps.concatenate([mapped(), ps.range(8).map(noting("b"))]).batch(4),
    "concatenate of a generator": lambda: ps.concatenate([generated(), ps.range(8).map(noting("b"))]).batch(4),
    "zip of generators": lambda: ps.zip((generated(), generated("another").map(noting("map")))).batch(4),
    "zip with random access": lambda: ps.zip((generated(), ps.range(COUNT).map(noting("map")))).batch(4),
    "shuffle in a window": lambda: mapped().shuffle(1, window=8).map(noting("b")).batch(4),
    "take and repeat": lambda: mapped().take(9).repeat(2).batch(4),
    "a source that stays": lambda: staying().map(noting("map")).batch(4),
    "a source that stays, and batches": lambda: staying().batch(8).map(noting("map")),
    "a source that stays, and late elements": lambda: (
        staying().filter(noting("filter", is_late)).map(noting("map")).batch(4)
    ),
    "a source that stays, and large batches": lambda: (
        pictures().map(lambda x: x["image"]).batch(50).map(noting("map", np.mean))
    ),
    "a source that stays, and large late elements": lambda: (
        pictures().filter(noting("filter", lambda x: x["image"][0, 0] > 40)).map(noting("map", mean)).batch(3)
    ),
    "a source that stays, 40 times": lambda: (
        ps.interleave([staying(range(50 * k, 50 * k + 50)) for k in range(40)])
        .filter(noting("filter", lambda x: x % 50 > 45))
        .map(noting("map"))
        .batch(4)
    ),
    "a source that stays, beside a stream": lambda: ps.zip((staying(), mapped())).map(noting("b")).batch(4),
}
HERE = {"an object, to a filter": 1, "an object, beside a stream": 1}
"""Elements that `from_source` reads when it is called."""


def rows(batches: Any) -> list[Any]:
    return [[np.asarray(leaf).tolist() for leaf in _tree.flatten(batch)[0]] for batch in batches]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", PLANS)
def test_code_of_the_user_runs_in_worker_processes_also_to_find_specs(kind: str, workers: int, tmp_path: Path) -> None:
    with PLANS[kind]().loader("processes", workers=workers) as loader:
        found = rows(loader)
    noted = {path.stem: path.read_text().split() for path in tmp_path.glob("*.pids")}
    for path in tmp_path.glob("*.pids"):
        path.unlink()
    own = str(os.getpid())
    if "stays" in kind:
        assert set(noted.pop("stays")) == {own}
    here = {name: pids.count(own) for name, pids in noted.items() if own in pids}
    assert here == ({"__getitem__": HERE[kind]} if kind in HERE else {})
    assert noted
    assert found == rows(PLANS[kind]().loader("inline"))


@pytest.mark.parametrize("executor", ["processes", "auto"])
def test_a_function_that_crashes_on_the_first_element_of_a_stream_ends_no_program(executor: Any) -> None:
    with pytest.raises(ps.WorkerError, match="from_generator"):
        generated().map(lambda x: os.abort()).batch(4).loader(executor, workers=1)


def test_a_generator_that_crashes_before_its_first_element_ends_no_program() -> None:
    def generate() -> Iterator[int]:
        os.abort()
        yield 0

    with pytest.raises(ps.WorkerError, match="from_generator"):
        ps.from_generator(generate).batch(4).loader("processes", workers=1)


def test_a_generator_that_cannot_travel_stays_and_functions_run_in_workers(tmp_path: Path) -> None:
    file = open(os.devnull)  # noqa: SIM115

    def generate() -> Iterator[int]:
        assert not file.closed
        note("generator")
        yield from range(COUNT)

    with file, ps.from_generator(generate).map(noting("map")).batch(4).loader(workers=2) as loader:
        assert [batch.tolist() for batch in loader] == np.arange(COUNT).reshape(6, 4).tolist()
    assert set((tmp_path / "generator.pids").read_text().split()) == {str(os.getpid())}
    assert str(os.getpid()) not in (tmp_path / "map.pids").read_text().split()


@pytest.mark.framework
def test_a_tf_dataset_stays_and_functions_of_its_elements_run_in_workers(tmp_path: Path) -> None:
    import tensorflow as tf

    dataset = ps.from_tf(tf.data.Dataset.range(COUNT)).filter(noting("filter", is_late)).map(noting("map")).batch(4)
    with dataset.loader("processes", workers=2) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(13, COUNT))
    for name in ("filter", "map"):
        assert str(os.getpid()) not in (tmp_path / f"{name}.pids").read_text().split()
