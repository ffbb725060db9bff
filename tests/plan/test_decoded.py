"""A source that decodes whole parts, and has no `read_into`."""

import numpy as np
import pytest

import penstock as ps
from penstock.testing import SourceTests

COUNT, PART = 50, 8
BOUNDS = np.append(np.arange(0, COUNT, PART), COUNT)


class Numbers(ps.Source):
    element_spec = {"x": ps.ArraySpec((2,), "int32"), "y": ps.ArraySpec((), "float64")}  # noqa: RUF012
    part_bounds = BOUNDS

    def __len__(self):
        return COUNT

    def decode(self, part):
        numbers = np.arange(*BOUNDS[part : part + 2])
        return {"x": np.stack([numbers, -numbers], 1).astype("int32"), "y": numbers / 2}


class Texts(ps.Source):
    element_spec = (ps.ArraySpec((), str), ps.ArraySpec((None,), "int64"), ps.ArraySpec((), "int8"))
    part_bounds = BOUNDS
    part_nbytes = np.full(len(BOUNDS) - 1, 1000)

    def __len__(self):
        return COUNT

    def decode(self, part):
        numbers = range(*BOUNDS[part : part + 2])
        return (
            [str(number) for number in numbers],
            [np.arange(number) for number in numbers],
            np.array(numbers, "int8"),
        )


class Opened(Numbers):
    """`open` returns another object, which is closed."""

    closed = 0

    def open(self):
        return Open()


class Open:
    def decode(self, part):
        return Numbers().decode(part)

    def close(self):
        Opened.closed += 1


class Duck:
    """Has the members of a source, and is none."""

    element_spec = Numbers.element_spec
    part_bounds = BOUNDS

    def __len__(self):
        return COUNT

    def decode(self, part):
        return Numbers().decode(part)


class TestNumbers(SourceTests):
    @pytest.fixture(params=[Numbers, Opened, Duck])
    def source(self, request):
        return request.param()

    @pytest.fixture
    def expected(self):
        numbers = np.arange(COUNT)
        return {"x": np.stack([numbers, -numbers], 1).astype("int32"), "y": numbers / 2}


class TestTexts(SourceTests):
    @pytest.fixture
    def source(self):
        return Texts()

    @pytest.fixture
    def expected(self):
        numbers = range(COUNT)
        return [str(n) for n in numbers], [np.arange(n) for n in numbers], np.array(numbers, "int8")


def test_what_open_returned_is_closed():
    Opened.closed = 0
    with ps.from_source(Opened()).batch(5).loader(executor="inline") as loader:
        next(iter(loader))
    assert Opened.closed == 1


def test_memory_is_that_of_decoded_parts():
    assert Numbers().kept_nbytes == COUNT * 16 + PART * 16, "all of them, and the decoding of one"
    assert Texts().kept_nbytes == 8000


WRONG = {
    "structure": (lambda part: np.zeros(PART), "returned the structure .*It returns the elements of the part"),
    "shape": (
        lambda part: {"x": np.zeros((PART, 3), "int32"), "y": np.zeros(PART)},
        r"returned an array of \(8, 3\) int32 in \['x'\]",
    ),
    "count": (
        lambda part: {"x": np.zeros((3, 2), "int32"), "y": np.zeros(3)},
        r"decode\(0\) of Wrong returned 3 elements, and part_bounds says 8",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_decode_returns_is_looked_at(kind):
    class Wrong(Numbers):
        decode = staticmethod(WRONG[kind][0])

    with pytest.raises(ps.SourceError, match=WRONG[kind][1]):
        ps.from_source(Wrong())[0]


def test_elements_of_any_size_need_their_memory():
    class Unknown(Texts):
        part_nbytes = None

    with pytest.raises(ps.SourceError, match=r"Unknown has decode.*part_nbytes, an array with the bytes of each"):
        ps.from_source(Unknown()).batch(2).loader(executor="inline")
