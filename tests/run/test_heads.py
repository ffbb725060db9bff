import io
import pickle

import numpy as np
import pytest

import penstock as ps
from penstock.run._heads import Head, MoreNeededError


def bytes_of(count):
    for number in range(count):
        yield np.full(1000, number, np.uint8)


def heads(count, chunks):
    return Head(ps.from_generator(lambda: bytes_of(count))._node, chunks)


def read(head, chunks, count, stop):
    chunk = io.BytesIO()
    grows = head.read(count, chunk, stop)
    chunks.append(np.frombuffer(chunk.getbuffer(), np.uint8))
    return grows


def test_a_head_has_as_many_elements_as_were_read_and_travels_with_them():
    chunks = []
    head = heads(7, chunks)
    for count in (1, 2, 4):
        assert read(head, chunks, count, 1 << 20)
    elements = pickle.loads(pickle.dumps(head)).iterate(0)
    assert [int(next(elements)[0]) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(MoreNeededError):
        next(elements)
    assert not read(head, chunks, 8, 1 << 20)
    assert [int(each[0]) for each in head.iterate(0)] == list(range(7))


def test_a_head_ends_at_its_limit_of_bytes_whatever_number_is_asked_for():
    chunks = []
    head = heads(1000, chunks)
    assert not read(head, chunks, 1 << 12, 10_000)
    assert len(chunks[0]) < 11_500
    assert not read(head, chunks, 1 << 13, 0)
    assert not len(chunks[1])


def test_a_failure_behind_the_head_is_raised_when_more_is_asked_for():
    def generate():
        yield from bytes_of(2)
        raise OSError("gone")

    chunks = []
    head = Head(ps.from_generator(generate)._node, chunks)
    assert read(head, chunks, 4, 1 << 20)
    assert [int(each[0]) for _, each in zip(range(2), head.iterate(0), strict=False)] == [0, 1]
    with pytest.raises(ps.ElementError, match="gone"):
        read(head, chunks, 8, 1 << 20)
