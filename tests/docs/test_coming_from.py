"""The rows of the tables in docs/coming-from, in their order."""

import numpy as np
import pytest

import penstock as ps


def gen(n):
    yield from range(n)


class Squares:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return np.float32(index) ** 2


class Stream:
    def __iter__(self):
        return iter(range(5))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_rows_of_tfdata():
    x, y = np.zeros((100, 8, 8), "float32"), np.arange(100)

    def f(element):
        return (element[0] + 1, element[1])

    slices = ps.from_arrays((x, y))
    numbers = ps.from_generator(gen, 10)
    mapped = slices.map(f)
    assert len(slices.shuffle(seed=1)) == 100
    assert numbers.shuffle(seed=1, window=1000).access == "stream"
    batched = mapped.batch(32, drop_remainder=True)
    assert len(batched) == 3
    assert len(batched.unbatch()) == 96
    ragged = numbers.map(np.arange, element_spec=ps.ArraySpec((None,), "int64"))
    assert [b.shape for b in ragged.padded_batch(5)] == [(5, 4), (5, 9)]
    assert sum(len(b) for b in ragged.bucket_by_length(len, [5], [3, 2])) == 10
    places = {letter: place for place, letter in enumerate("abc")}
    words = ps.from_arrays(np.array(["cab", "abc"])).map(lambda word: np.array([places[letter] for letter in word]))
    assert words[0].tolist() == [2, 0, 1]
    assert [int(i) for i in numbers.filter(lambda i: i % 2).take(3).skip(1).repeat(2)] == [3, 5, 3, 5]
    assert len(slices.shard(0, 3)) == 34
    assert [int(i) for i in numbers.take(3).flat_map(lambda i: [i, i])] == [0, 0, 1, 1, 2, 2]
    assert slices.windows(3)[0][0].shape == (3, 8, 8)
    val, train = slices.split(0.2, 0.8, seed=1)
    assert not {int(e[1]) for e in val} & {int(e[1]) for e in train.shuffle(seed=1)}
    by_key = ps.range(12).bucket_by_length(lambda i: i % 3, [1, 2], [4, 4, 4])
    assert [batch.tolist() for batch in by_key] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert slices.map(f).cache("cached")[3][1] == 3
    assert slices.map(f).materialize("saved")[3][1] == 3
    with open("lines.txt", "w") as file:
        file.write("one\ntwo\n")
    assert list(ps.from_generator(open, "lines.txt")) == ["one\n", "two\n"]
    assert len(list(ps.interleave([numbers, ps.range(5)], cycle_length=2, block_length=2))) == 15
    assert len(ps.zip((slices, ps.range(100)))) == 100
    assert ps.concatenate([ps.range(3), ps.range(4)]).length == 7
    assert ps.mix([ps.range(50), ps.range(50)], [0.5, 0.5]).access == "random"
    assert slices[7][1] == 7


def test_rows_of_torch():
    squares = ps.from_source(Squares())
    sizes = ps.range(10).map(lambda i: np.zeros(i + 1), element_spec=ps.ArraySpec((None,), "float64"))
    assert [batch.shape for batch in sizes.padded_batch(5)] == [(5, 5), (5, 10)]
    assert [len(part) for part in squares.split(0.8, 0.2, seed=1)] == [8, 2]
    assert [int(i) for i in ps.from_arrays([7, 2]).map(lambda i: squares[i])] == [49, 4]
    assert [int(i) for i in ps.from_generator(Stream())] == [0, 1, 2, 3, 4]
    with squares.batch(4, drop_remainder=True).loader(executor="threads", shard=(1, 2)) as loader:
        assert [batch.tolist() for batch in loader] == [[4, 9], [36, 49]]
