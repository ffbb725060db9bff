"""Nodes are frozen, have no member that nothing asks for, and are visited once each, however often a plan uses them."""

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.lower._guards import with_guards
from penstock.plan import (  # noqa: F401
    _batch,
    _cache,
    _cast,
    _combine,
    _filter,
    _index,
    _map,
    _pad,
    _source,
    _stream,
    _tolerate,
    _windows,
)
from penstock.plan._fingerprint import fingerprint_of, table
from penstock.plan._node import Node, upwards, walk
from penstock.plan._reader import OpenSources, Reader
from penstock.plan._text import identity

LEVELS = 40


def classes(base: type = Node) -> list[type]:
    return [each for sub in base.__subclasses__() for each in (sub, *classes(sub))]


def add_one(x: Any) -> Any:
    return x + 1


def twice_at_each_level(levels: int, *, repeats: int = 1) -> ps.Dataset:
    ds = ps.range(3).map(add_one, element_spec=ps.ArraySpec((), "int64"))
    for _ in range(levels):
        ds = ps.interleave([ds, ds]).take(3)
    return ds


def test_each_member_of_a_node_is_asked_for_outside_of_the_plan():
    package = Path(ps.__file__).parent
    code = [path.read_text() for path in package.rglob("*.py") if path.parent.name != "plan"]
    asked = {name for text in code for name in re.findall(r"\.(\w+)", text)}
    members = {name for name in vars(Node) if not name.startswith("_")}
    # The function of this name asks the first, `element_count` the second, and `place_of` the others.
    assert members - asked == {"clear_after", "takes_each_once", "elements_at", "notes_inputs"}


def test_concrete_nodes_are_frozen_dataclasses_and_compared_by_identity():
    concrete = {each for each in classes() if not each.__subclasses__()} | {_batch.Batch}
    assert len(concrete) > 15
    for each in concrete:
        assert dataclasses.is_dataclass(each), each
        assert each.__dataclass_params__.frozen, each  # type: ignore[attr-defined]
        assert each.__hash__ is object.__hash__, each


def test_a_node_cannot_be_written():
    ds = ps.range(10).map(add_one).shuffle(1).batch(2)
    for node in walk(ds._node):
        for name in [field.name for field in dataclasses.fields(node)] + ["other"]:  # type: ignore[arg-type]
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(node, name, None)


def test_a_loader_leaves_the_nodes_of_its_dataset_as_they_were():
    def values() -> list[Any]:
        return [getattr(node, field.name) for node in walk(ds._node) for field in dataclasses.fields(node)]  # type: ignore[arg-type]

    ds = ps.range(10).map(add_one).filter(lambda x: x > 3).batch(2)
    nodes, before = list(walk(ds._node)), values()
    with ds.loader("threads", on_error="skip") as loader:
        assert sum(len(batch) for batch in loader) == 7
    assert list(walk(ds._node)) == nodes
    assert all(one is two for one, two in zip(before, values(), strict=True))


def test_a_node_that_is_used_twice_is_walked_once():
    ds = ps.range(4)
    both = ps.zip((ds, ds.map(add_one)))
    assert [node.verb for node in walk(both._node)] == ["zip", "range", "map"]
    assert [node.verb for node in upwards(both._node)] == ["range", "map", "zip"]


def test_readers_have_the_numbers_of_the_walk_and_share_what_is_used_twice():
    ds = ps.range(4).map(add_one)
    node = ps.zip((ds, ds.map(add_one)))._node
    reader = Reader(node, OpenSources(node), isolation=None)
    first, second = reader.inputs
    assert first is second.inputs[0]
    assert [reader.number, first.number, first.inputs[0].number, second.number] == [0, 1, 2, 3]
    assert [each.verb for each in walk(node)] == ["zip", "map", "range", "map"]


def test_a_step_that_is_used_twice_gives_each_use_its_own_memory():
    windows = ps.range(64).windows(4, shift=4).map(lambda x: x * 2)
    both = ps.zip((windows.unbatch(), windows.unbatch().shuffle(1).map(add_one)))
    assert [int(x) for x, _ in both] == [2 * x for x in range(64)]
    assert sorted(int(y) for _, y in both) == [2 * x + 1 for x in range(64)]


def test_a_plan_that_uses_each_level_twice_is_handled_in_linear_time():
    began = time.process_time()
    ds = twice_at_each_level(LEVELS)
    node = ds._node
    assert len(list(walk(node))) == 2 * LEVELS + 2
    assert (ds.access, ds.length, node.batch_size, node.randomness.depth, node.overlap) == ("random", 3, 1, 0, "none")
    assert len(repr(ds).splitlines()) < 5 * LEVELS
    assert len(identity(node)) < 400
    assert len(fingerprint_of(table(node))) == 32
    assert ds.split(0.5, 0.5)
    assert with_guards(node, "replace").length == 3
    for options in ({"executor": "inline"}, {"executor": "threads", "on_error": "skip"}):
        with ds.batch(3).loader(**options) as loader:
            assert [batch.tolist() for batch in loader] == [[1, 1, 1]]
            assert loader.report()
    assert time.process_time() - began < 20, "2**40 visits would take years"


def test_a_failed_element_of_a_step_that_is_used_twice_is_named():
    def fails(x: Any) -> Any:
        raise ValueError(x)

    ds = ps.range(4).map(fails, element_spec=ps.ArraySpec((), "int64"))
    both = ps.interleave([ds, ds]).batch(2)
    with both.loader("inline") as loader, pytest.raises(ps.ElementError, match=r"map\(.*fails\) .* on element 0"):
        next(iter(loader))


def test_plans_with_other_sharing_have_other_fingerprints():
    ds = ps.range(4).map(add_one)
    twin = ps.range(4).map(lambda x: x + 2)
    tables = [table(ps.zip(pair)._node) for pair in ((ds, ds), (ds, twin), (twin, ds), (twin, twin))]
    assert len({fingerprint_of(each) for each in tables}) == 4


def test_arrays_in_a_plan_are_its_own():
    labels = np.array([0, 0, 1, 1])
    ds = ps.range(4).windows(2, groups=labels)
    labels[:] = 7
    assert [element.tolist() for element in ds] == [[0, 1], [2, 3]]
