"""What a step declares of itself holds: each fact of each step of any plan, also of steps that are defined here.

Rewrites of plans trust these facts (`Node`), so a fact that is too bold gives wrong elements.
"""

import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock.base._tree import Tree, flatten
from penstock.dataset import Dataset
from penstock.lower._copies import CopyPlan
from penstock.lower._guards import with_guards
from penstock.lower._loose import loosened
from penstock.lower._rewrite import with_rows
from penstock.lower._stages import divide
from penstock.memory._rows import Rows
from penstock.plan._cache import CacheStep
from penstock.plan._cast import ByChunk
from penstock.plan._map import OfFunction
from penstock.plan._node import Demand, Elements, Node, OneInput, Reorder, Traits, finite_length, walk
from penstock.plan._reader import OpenSources, Reader
from penstock.run.pool._payload import pack, stay_behind
from penstock.testing import assert_same
from tests.strategies import EPOCHS, VERBS, Plan, Verb, _each, plans

INT64 = ps.ArraySpec((), "int64")


# Two verbs of a user's: one file in `plan/`, one method of `Dataset`, one strategy.


@dataclass(frozen=True, eq=False)
class Backwards(Reorder, OneInput):
    """The elements from the last to the first."""

    verb = "backwards"

    def demand(self, epoch: int, indices: Any) -> Iterable[Demand]:
        return [Demand(0, epoch, finite_length(self.source) - 1 - indices)]

    def clear_after(self, index: int, ask: Any) -> int:
        return finite_length(self)


@dataclass(frozen=True, eq=False)
class Negative(ByChunk):
    """The elements with another sign."""

    verb = "negative"

    @cached_property
    def spec(self) -> Any:
        return self.source.spec

    def convert(self, box: Rows, out: Rows, count: int) -> None:
        out.copy_from(box, count)
        for array in out.arrays:
            array[out.rows] = -array[out.rows]

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        for leaves in reader.inputs[0].sequence(epoch):
            yield [-leaf for leaf in leaves]


def _backwards(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.is_stream:
        return None
    return p.then(Dataset(Backwards(p.dataset._node)), lambda epoch: p.elements(epoch)[::-1])


def _negative(draw: st.DrawFn, p: Plan) -> Plan | None:
    if p.has_text or any(leaf.dtype.kind not in "if" for leaf in p.specs):
        return None
    return p.then(Dataset(Negative(p.dataset._node)), lambda epoch: [_each(lambda x: -x, e) for e in p.elements(epoch)])


OWN: list[Verb] = [_backwards, _negative]
ALL: list[Verb] = [*VERBS, *OWN, *OWN]


@given(plans(verbs=ALL), st.integers(1, 3))
def test_plans_with_a_verb_of_a_user_are_those_of_the_model(plan: Plan, workers: int) -> None:
    for index, element in enumerate(plan.elements(0)):
        assert_same(plan.dataset[index], element)
    with plan.dataset.loader("threads", workers=workers) as loader:
        for epoch in EPOCHS:
            for batch, want in zip(loader, plan.elements(epoch), strict=True):
                assert_same(batch, want)


def test_a_verb_of_a_user_that_moves_bytes_is_copied_by_the_engine() -> None:
    ds = Dataset(Backwards(ps.from_arrays(np.arange(12.0)).batch(3)._node)).shuffle(1)
    assert CopyPlan.of(ds._node, (0, 1)) is not None
    assert CopyPlan.of(Dataset(Negative(ds._node))._node, (0, 1)) is None


def fails(x: Any) -> Any:
    if x == 2:
        raise ValueError("two")
    return x


def test_a_verb_of_a_user_goes_on_after_elements_that_fail(tmp_path: Any) -> None:
    ds = Dataset(Negative(ps.range(6).map(fails, element_spec=INT64).batch(2)._node))
    with ds.loader("threads", on_error="skip", quarantine=tmp_path / "q") as loader:
        assert [batch.tolist() for batch in loader] == [[0, -1], [-3, -4], [-5]]
    backwards = Dataset(Backwards(ps.range(6).map(fails, element_spec=INT64).batch(2)._node))
    with backwards.loader("threads", on_error="skip", quarantine=tmp_path / "q") as loader:
        assert [batch.tolist() for batch in loader] == [[4, 5], [3], [0, 1]]


def test_a_state_resumes_with_another_batch_size_behind_a_verb_of_a_user() -> None:
    def made(size: int) -> ps.Dataset:
        return Dataset(Negative(ps.range(12).batch(size)._node))

    with made(2).loader("inline") as loader:
        next(iter(loader))
        state = loader.get_state()
    with made(5).loader("inline") as loader:
        loader.set_state(state)
        assert [batch.tolist() for batch in loader] == [[-2, -3, -4, -5, -6], [-7, -8, -9, -10, -11]]


# Facts that have a step of their own to show that they are asked. The careful answer stands beside each.


@dataclass(frozen=True, eq=False)
class Passes(OneInput):
    """The elements of a stream, or of data with random access, in order."""

    runs_code: bool = False
    ends_guards: bool = False
    takes: Any = None

    verb = label = "passes"
    access = "stream"

    @property
    def held(self) -> Any:
        return self.takes

    @property
    def traits(self) -> Traits:
        return Traits(runs_code=self.runs_code)

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        yield from reader.inputs[0].sequence(epoch)


def test_no_guard_reaches_below_a_step_that_ends_guards(tmp_path: Any) -> None:
    options: dict[str, Any] = {"on_error": "skip", "quarantine": tmp_path / "q"}
    for made in (ps.from_generator(range(6), element_spec=INT64), ps.range(6)):
        failing = made.map(fails, element_spec=INT64)._node
        with Dataset(Passes(failing)).loader("inline", **options) as loader:
            assert [int(x) for x in loader] == [0, 1, 3, 4, 5]
        with (
            Dataset(Passes(failing, ends_guards=True)).loader("inline", **options) as loader,
            pytest.raises(ps.ElementError, match=r"^map\(fails\) at .* failed on element 2 of epoch 0"),
        ):
            list(loader)


def test_what_a_step_holds_is_named_where_it_cannot_travel() -> None:
    lock = threading.Lock()
    named = "passes is a lock, which cannot travel"
    for node, text in (
        (Passes(ps.range(3)._node, takes=lock), named),
        (Unsaid(ps.range(3)._node, takes=lock), "This dataset cannot travel"),
    ):
        with pytest.raises(ps.TravelError) as caught:
            pack(node, node)
        assert str(caught.value).startswith(text)
        assert [str(error)[: len(named)] for error in stay_behind(node)] == [named] * (text == named)


@dataclass(frozen=True, eq=False)
class Unsaid(Passes):
    """Holds something, and does not say it."""

    held = None  # type: ignore[assignment]


@pytest.mark.parametrize("runs_code", [False, True])
def test_elements_that_are_only_read_are_made_apart_unless_a_step_above_them_runs_code(runs_code: bool) -> None:
    # Beside them the user's code could not run in a process of its own, where it may end the process.
    plan = Passes(ps.from_arrays(np.arange(6))._node, runs_code)
    parts = divide(with_guards(plan, "skip"))
    assert parts.below.traits.runs_code == runs_code
    assert [stage.node.verb for stage in parts.stages] == [] if runs_code else ["filter"]
    with Dataset(plan).loader("threads", on_error="skip") as loader:
        assert [int(x) for x in loader] == list(range(6))


# The four cases of which users had one each: a step was missing in a list of classes.


@pytest.mark.parametrize(
    "step",
    [
        lambda ds: ds.select("x"),
        lambda ds: ds.rename({"x": "x"}),
        lambda ds: ds.cast("int64"),
        lambda ds: ds.map(lambda element: element, element_spec={"x": ps.ArraySpec((None,), "int64", (2,))}),
    ],
    ids=["select", "rename", "cast", "map"],
)
def test_a_step_after_a_batch_goes_on_after_elements_that_fail_and_resumes_with_another_size(
    step: Any, tmp_path: Any
) -> None:
    spec = {"x": INT64}
    made = ps.range(6).map(lambda x: {"x": fails(x)}, element_spec=spec)
    with step(made.batch(2)).loader("threads", on_error="skip", quarantine=tmp_path / "q") as loader:
        assert [batch["x"].tolist() for batch in loader] == [[0, 1], [3, 4], [5]]
    whole = ps.zip({"x": ps.range(6)})
    with step(whole.batch(2)).loader("inline") as loader:
        next(iter(loader))
        state = loader.get_state()
    with step(whole.batch(1)).loader("inline") as loader:
        loader.set_state(state)
        assert [batch["x"].tolist() for batch in loader] == [[2], [3], [4], [5]]


@pytest.mark.parametrize(
    "step", [lambda ds: ds.shuffle(1), lambda ds: ds.sample(np.ones(6))], ids=["shuffle", "sample"]
)
def test_a_step_that_draws_elements_reads_the_selected_leaves_alone(step: Any) -> None:
    both = ps.zip({"x": ps.range(6), "y": ps.from_arrays(np.zeros(6))})
    assert "from_arrays" not in [each.verb for each in walk(with_rows(step(both).select("x")._node))]


def test_a_cache_that_has_what_one_epoch_draws_is_not_complete_for_all() -> None:
    kept = ps.range(40).map(lambda x: x + 100, element_spec=INT64).cache(limit=1 << 20)
    ds = kept.sample(np.ones(40), count=3)
    with ds.loader("inline") as loader:
        assert len(list(loader)) == 3
    with ds.loader("inline") as loader:
        for _ in range(4):
            assert all(100 <= int(x) < 140 for x in loader)


# The facts, one after the other. A step is tried alone, over inputs that the test makes of its own inputs.


def steps(plan: Plan, *, takes_functions: bool = True) -> Iterator[Node]:
    """The steps of a plan, and those that read rows alone, that have inputs, all with random access and elements."""
    last = plan.dataset._node
    for node in dict.fromkeys([*walk(last), *walk(with_rows(last))]):
        is_asked = takes_functions or not isinstance(node, OfFunction)
        if is_asked and node.inputs and node.access == "random" and not isinstance(node, CacheStep):
            yield node


def elements(node: Node, epoch: int = 0) -> list[Tree]:
    reader = reader_of(node)
    return [reader.element(epoch, index) for index in range(finite_length(node))]


def reader_of(node: Node) -> Reader:
    node = with_rows(node)
    return Reader(node, OpenSources(node), isolation=None)


def in_order(node: Node) -> list[Tree]:
    return list(Dataset(node))


def needs(node: Node, epoch: int, indices: Any) -> list[tuple[int, list[int]]]:
    return [(need.input, need.indices.tolist()) for need in node.demand(epoch, np.asarray(indices, np.int64))]


@given(plans(verbs=ALL))
@settings(max_examples=40)
def test_a_step_that_does_not_redraw_asks_for_the_same_in_every_epoch(plan: Plan) -> None:
    for node in steps(plan):
        everything = range(finite_length(node))
        if not node.redraws:
            assert needs(node, 0, everything) == needs(node, 3, everything)


@given(plans(verbs=ALL))
@settings(max_examples=40)
def test_a_step_that_takes_each_once_asks_for_each_element_of_each_input_once(plan: Plan) -> None:
    for node in steps(plan):
        if node.takes_each_once:
            asked: list[list[int]] = [[] for _ in node.inputs]
            for number, indices in needs(node, 3, range(finite_length(node))):
                asked[number] += indices
            assert [sorted(each) for each in asked] == [list(range(finite_length(each))) for each in node.inputs]


@given(plans(verbs=ALL))
@settings(max_examples=40)
def test_a_step_that_keeps_neighbours_asks_for_neighbours(plan: Plan) -> None:
    for node in steps(plan):
        if node.keeps_neighbours:
            for _, indices in needs(node, 0, range(finite_length(node))):
                assert (np.diff(indices) == 1).all()
        if node.traits.is_parallel and (count := finite_length(node)):
            for start, stop in [*itertools.pairwise(range(count + 1)), (0, count)]:
                ((_, asked),) = needs(node, 0, range(start, stop))
                assert node.needs(start, stop) == (asked[0], asked[-1] + 1)


@given(plans(verbs=ALL))
@settings(max_examples=40)
def test_elements_of_a_chunk_have_a_chunk_of_an_input_in_common(plan: Plan) -> None:
    for node in steps(plan):
        if node.chunks is not None:
            chunks = [node.chunks.elements(k, np.arange(n)) for k, n in enumerate(node.chunks.sizes)]
            assert sorted(itertools.chain.from_iterable(chunks)) == list(range(finite_length(node)))
            for members in chunks:
                assert (np.diff(members) > 0).all()
                if len(members) and any(each.chunks is not None for each in node.inputs):  # patches know theirs
                    assert set.intersection(*(chunks_of(node, index) for index in members.tolist()))


def chunks_of(node: Node, index: int) -> set[tuple[int, int]]:
    """The chunks of the inputs that an element is made of, with the number of the input."""
    found = set()
    for number, indices in needs(node, 0, [index]):
        if (below := node.inputs[number].chunks) is not None:
            for chunk, size in enumerate(below.sizes):
                if not set(below.elements(chunk, np.arange(size)).tolist()).isdisjoint(indices):
                    found.add((number, chunk))
    return found


@given(plans(verbs=ALL))
@settings(max_examples=40)
def test_elements_have_as_many_axes_more_as_a_step_says(plan: Plan) -> None:
    for node in steps(plan, takes_functions=False):
        if node.moves:
            inputs = [leaf for each in node.inputs for leaf in each.spec.leaves]
            for leaf, below in zip(node.spec.leaves, inputs, strict=False):
                assert len(leaf.shape) == len(below.shape) + node.stacks
                assert leaf.dtype == below.dtype or node.converts


@given(plans(verbs=ALL))
@settings(max_examples=25)
def test_a_step_that_gives_elements_of_its_inputs_gives_those_that_it_asks_for(plan: Plan) -> None:
    for node in steps(plan):
        if node.gives_inputs and node.moves:
            inputs = [reader_of(each) for each in node.inputs]
            for index, element in enumerate(elements(node)):
                (need,) = node.demand(0, np.array([index]))
                assert_same(element, inputs[need.input].element(need.epoch, int(need.indices[0])))


@given(plans(verbs=ALL))
@settings(max_examples=25)
def test_a_step_beside_has_the_leaves_of_all_inputs(plan: Plan) -> None:
    for node in steps(plan):
        if node.is_beside:
            assert [leaf for each in node.inputs for leaf in each.spec.leaves] == [*node.spec.leaves]
            inputs = [reader_of(each) for each in node.inputs]
            for index, element in enumerate(elements(node)):
                below = [leaf for each in inputs for leaf in flatten(each.element(0, index))[0]]
                assert_same(tuple(flatten(element)[0]), tuple(below))


@given(plans(verbs=ALL), st.data())
@settings(max_examples=40)
def test_a_step_over_pairs_gives_its_elements_and_whether_all_that_they_are_made_of_is_there(
    plan: Plan, data: st.DataObject
) -> None:
    for node in steps(plan):
        is_asked = len(node.inputs) == 1 and takes_streams(node)
        if not is_asked or getattr(node, "batched", None) is not None or not finite_length(node):
            continue
        is_there = np.ones(finite_length(node.inputs[0]), bool)
        absent = data.draw(st.integers(0, len(is_there) - 1))
        is_there[absent] = False
        made = node.over_pairs(ps.zip((Dataset(node.inputs[0]), ps.from_arrays(is_there)))._node)
        if made is not None:
            wanted = elements(node)  # first: no function is tried on an element that is not there
            for index, ((element, verdict), want) in enumerate(zip(in_order(made), wanted, strict=True)):
                ((_, asked),) = needs(node, 0, [index])
                assert bool(verdict) == (absent not in asked)
                if verdict:
                    assert_same(element, want)


@given(plans(verbs=ALL))
@settings(max_examples=25)
def test_a_pointwise_step_over_other_orders_gives_its_elements_in_that_order(plan: Plan) -> None:
    for node in steps(plan):
        if node.is_pointwise and len({each.length for each in node.inputs}) == 1:
            backwards = node.over(*map(Backwards, node.inputs))
            for element, want in zip(elements(backwards), elements(node)[::-1], strict=True):
                assert_same(element, want)


@given(plans(verbs=ALL))
@settings(max_examples=25)
def test_a_step_that_treats_leaves_alike_reads_no_leaf_that_is_not_selected(plan: Plan) -> None:
    for node in steps(plan):
        if node.treats_leaves_alike:
            # Where elements are taken apart, all leaves need as many rows.
            others = [each if node.stacks < 0 else ps.range(finite_length(each))._node for each in node.inputs]
            both = [
                ps.zip({"mine": Dataset(each), "other": Dataset(other)})._node
                for each, other in zip(node.inputs, others, strict=True)
            ]
            selected = Dataset(node.over(*both)).select("mine")._node
            assert not {*map(id, walk(with_rows(selected)))} & {*map(id, both)}
            for element, want in zip(elements(selected), elements(node), strict=True):
                assert_same(element["mine"], want)


def takes_streams(node: Node) -> bool:
    is_placed = getattr(node, "has_lengths", False) or getattr(node, "groups", None) is not None
    return type(node).sequence is not Node.sequence and not is_placed and getattr(node, "step", 1) > 0


@given(plans(verbs=ALL))
@settings(max_examples=25)
def test_a_step_that_takes_streams_gives_the_same_over_one(plan: Plan) -> None:
    for node in steps(plan):
        # A window of a stream has an order of its own.
        if len(node.inputs) == 1 and takes_streams(node) and not node.redraws and node.verb != "shuffle":
            stream = node.over(Dataset(node.inputs[0]).filter(lambda element: True)._node)
            assert stream.access == "stream"
            for element, want in zip(in_order(stream), elements(node), strict=True):
                assert_same(element, want)


@given(plans(verbs=ALL))
@settings(max_examples=25)
def test_a_step_that_takes_any_shape_gives_elements_of_any_size(plan: Plan) -> None:
    for node in steps(plan, takes_functions=False):
        if isinstance(node, Reorder):
            assert node.takes_any_shape
            sizes = [
                [10 * number + n % 4 for n in range(finite_length(each))] for number, each in enumerate(node.inputs)
            ]
            if all(sizes):
                inputs = [ps.from_source([np.zeros(size) for size in each])._node for each in sizes]
                found = elements(loosened(node.over(*inputs)))
                numbers = node.over(*(ps.from_arrays(np.array(each))._node for each in sizes))
                assert [len(element) for element in found] == [int(size) for size in elements(numbers)]


def test_a_step_with_a_verdict_gives_pairs_and_no_other_step_has_one() -> None:
    filtered = ps.range(6).filter(lambda x: x > 2).map(lambda x: x + 1, element_spec=INT64)
    verdicts = [each for each in walk(filtered._node) if each.verdict is not None]
    assert [each.verb for each in verdicts] == ["filter"]
    assert [(leaf.shape, str(leaf.dtype)) for leaf in verdicts[0].spec.leaves] == [((), "int64"), ((), "bool")]


def test_only_what_on_error_adds_is_a_guard() -> None:
    plan = ps.range(6).map(fails, element_spec=INT64).batch(2)._node
    assert not any(each.is_guard for each in walk(plan))
    assert sum(each.is_guard for each in walk(with_guards(plan, "replace"))) == 1


def test_inputs_that_are_left_out_change_neither_the_length_nor_the_random_numbers() -> None:
    drawn = ps.zip({"x": ps.range(6), "y": ps.range(6).random_map(lambda x, rng: x, element_spec=INT64)})
    for ds, is_narrow in ((drawn, False), (ps.zip({"x": ps.range(6), "y": ps.range(6)}), True)):
        found = with_rows(ds.select("x")._node)
        assert (len(found.inputs) == 1 and found.verb == "zip") == is_narrow
        assert (found.length, found.randomness) == (ds._node.length, ds._node.randomness)
        assert [int(each["x"]) for each in elements(found)] == list(range(6))


ROWS = [np.arange(n % 3 + 1.0) for n in range(7)]


STEPS = {
    "nothing": lambda ds: ds,
    "cast": lambda ds: ds.cast("float32"),
    "a verb of a user": lambda ds: Dataset(Negative(ds._node)),
    "select": lambda ds: ps.zip({"x": ds}).select("x").map(lambda element: element["x"]),
    "rename": lambda ds: ps.zip({"x": ds}).rename({"x": "y"}).map(lambda element: element["y"]),
    "map": lambda ds: ds.map(lambda x: x * 2),
    "random_map": lambda ds: ds.random_map(lambda x, rng: x * 2),
    "filter": lambda ds: ds.filter(lambda x: True),
    "flat_map": lambda ds: ds.flat_map(lambda x: [x]),
    "shuffle": lambda ds: ds.shuffle(1, window=3),
    "slices": lambda ds: ds.repeat(2).skip(1).take(6),
    "concatenate": lambda ds: ps.concatenate([ds, ds]) if ds.length else ds,
    "interleave": lambda ds: ps.interleave([ds, ds]),
    "mix": lambda ds: ps.mix([ds, ds], [1, 1]),
}


@pytest.mark.parametrize("length", [None, 7])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_elements_of_any_size_are_padded_after_any_step_with_and_without_a_length(step: Any, length: Any) -> None:
    sources = [ps.from_generator(lambda: iter(ROWS), length=length)]
    if length:
        sources.append(ps.from_source(ROWS))
    for source in sources:
        ds = step(source)
        padded = ds.padded_batch(2)
        rows = [row for batch in padded for row in batch]
        assert len(rows) >= 6
        assert {len(row) for row in rows} <= {1, 2, 3}
        if ds.length is not None:
            assert len(rows) == len(ds)
        with padded.loader("threads") as loader:
            assert sum(map(len, loader)) == len(rows)
