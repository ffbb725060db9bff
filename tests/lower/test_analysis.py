"""One walk answers questions about a plan, and a plan takes a short way into a loader."""

import math
import os
import sys
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.loader import Loader, LoaderOptions
from penstock.lower._analysis import Analysis, analyse, lower
from penstock.lower._stages import divide
from penstock.plan._node import Node, walk

# 2 of them to find the copies of a plan that only moves bytes, 4 to choose where functions run, to run them, and to
# choose with what they told.
MOST_CHANGES = 19
ROOT = os.path.dirname(ps.__file__)


def add_one(x: Any) -> Any:
    return x + 1


def way_of(ds: ps.Dataset, **options: Any) -> list[str]:
    """The files of the functions that a plan is passed to while a loader is made; `plan/` has the plan itself."""
    files: list[str] = []
    calls: list[str | None] = []

    def note(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if not name.startswith(ROOT) or name.startswith(os.path.join(ROOT, "plan")):
            return
        if event == "call":
            code = frame.f_code
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            passed = [frame.f_locals.get(each) for each in names if each != "self"]
            calls.append(name if any(isinstance(each, (Node, Analysis)) for each in passed) else None)
        elif event == "return" and calls:
            calls.pop()
        here = next((each for each in reversed(calls) if each), None)
        if here is not None and files[-1:] != [here]:
            files.append(here)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        loader = Loader(ds._node, LoaderOptions(**options))
    finally:
        sys.setprofile(before)
    loader.close()
    return [os.path.relpath(each, ROOT) for each in files]


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.from_arrays(np.arange(100.0)).shuffle(1).batch(4),
        lambda: ps.range(100).map(add_one).batch(4),
        lambda: ps.zip((ps.range(9), ps.range(9).map(add_one))).repeat(2).batch(4),
    ],
    ids=["bytes", "a function", "two inputs"],
)
def test_the_way_of_a_plan_into_a_loader_is_short(make, executor):
    way = way_of(make(), executor=executor)
    assert len(way) - 1 <= MOST_CHANGES, way


def test_an_analysis_is_immutable():
    analysis = analyse(ps.range(3)._node)
    with pytest.raises(AttributeError):
        analysis.steps = ()  # type: ignore[misc]


def test_an_analysis_has_the_facts_of_all_steps():
    ds = ps.range(10).cache().random_map(lambda x, rng: x, seed=1).shuffle(1).batch(3, drop_remainder=True)
    analysis = analyse(ds._node)
    assert [step.verb for step in analysis.steps] == ["batch", "shuffle", "random_map", "cache", "range"]
    assert [step.verb for step in analysis.functions] == ["random_map"]
    assert (analysis.spreads, analysis.traits.is_cached, analysis.traits.is_cpu_bound, analysis.traits.is_remote) == (
        [math.inf],
        True,
        True,
        False,
    )
    assert (analysis.wants_processes, analysis.travels, analysis.batch_size) == (True, True, 3)


def test_lowering_leaves_the_plan_of_the_user_as_it_is():
    ds = ps.range(10).map(add_one).batch(2)
    analysis = lower(ds._node, "replace", prunes=True)
    assert [guard.label for guard in analysis.guards] == ["map(add_one)"]
    assert not analyse(ds._node).guards


def test_a_plan_without_anything_to_rewrite_is_itself():
    node = ps.range(10).map(add_one).batch(2)._node
    assert lower(node, "raise", prunes=True).plan is node


def test_each_use_of_a_stream_has_its_own_readers():
    stream = ps.from_generator(lambda: iter(range(4)), element_spec=ps.ArraySpec((), "int64"))
    kept = stream.shuffle(1, window=4)
    both = analyse(ps.zip((kept, kept.map(add_one)))._node)
    counts = {step.verb: both.reader_counts[id(step)] for step in both.steps}
    assert counts == {"zip": 1, "shuffle": 2, "from_generator": 2, "map": 1}
    assert both.sequence_nbytes() >= 2 * kept._node.memory.sequence_nbytes


def test_a_stream_is_divided_where_elements_must_be_in_order():
    numbers = ps.range(100).map(add_one, element_spec=ps.ArraySpec((), "int64"))
    parts = divide(numbers.filter(lambda x: x > 3).map(add_one, element_spec=ps.ArraySpec((), "int64")).batch(8)._node)
    assert [step.verb for step in walk(parts.above)] == ["batch", "map", "filter"]
    assert parts.below.verb == "filter"
    assert [stage.node.verb for stage in parts.stages] == ["filter"]
    assert (parts.gives_cursor, parts.batch_size) == (True, None)
