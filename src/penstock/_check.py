"""Checks a dataset before a long training: one pass over epoch 0, and trial calls of its functions.

The pass is a loader's, with `on_error`: what fails is noted with its step and its source, and the rest goes on. Then
functions are called here, on a few elements, in ways that tell whether they keep to what a dataset counts on.
"""

import hashlib
import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np

from penstock._loader import Loader, LoaderOptions
from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, TravelError, words_of
from penstock.base._random import ElementRng, seeded_globals
from penstock.base._tree import Tree
from penstock.lower._analysis import analyse
from penstock.lower._guards import OnError
from penstock.memory._rows import Leaves, copied
from penstock.plan._index import sliced
from penstock.plan._map import Map
from penstock.plan._node import Node, located
from penstock.plan._reader import OpenSources, Reader
from penstock.plan._text import length_text, sources_of
from penstock.plan._tolerate import Failure
from penstock.run._quarantine import Quarantine
from penstock.run.executors import _registry
from penstock.run.pool._payload import stay_behind

COMPARED_COUNT: Final = 64
"""Number of elements that are compared between executors."""
CALLED_COUNT: Final = 8
"""Number of elements on which a function is called twice, or which are read twice from a source."""
SHOWN_COUNT: Final = 10
"""Number of findings of a kind that are printed."""
_LETHAL: Final = ("WorkerError", "DeadlineError")
EXECUTORS: Final = tuple(_registry.EXECUTORS)


@final
@dataclass(frozen=True, repr=False)
class CheckResult:
    """What `Dataset.check` found. Print it; `result.ok`, which is its truth too, says whether all is well."""

    elements: int
    """How many elements were delivered, which are batches after `batch()`; those that failed are not among them."""
    executor: str
    """What ran the pass over all of them."""
    compared: tuple[str, ...] = ()
    """Executors that ran the first of them, too, and were compared."""
    bad: tuple[Failure, ...] = ()
    """Elements that fail, each with `step`, `sources`, `exception`, `message` and `traceback`."""
    misfits: tuple[Failure, ...] = ()
    """Elements that are not as `element_spec` says, alike."""
    ended: str = ""
    """Why the pass ended before its time: what a generator raised, say."""
    nondeterministic: tuple[str, ...] = ()
    """Functions, `from_source` objects and generators whose second result for the same element differs."""
    reuses_memory: tuple[str, ...] = ()
    """Functions that return memory which they write again: on threads, two calls would write it at once."""
    differences: tuple[str, ...] = ()
    """Executors that deliver something else."""
    uses_globals: tuple[str, ...] = ()
    """Functions that draw from the global `np.random` or `random`."""
    keeps_input: tuple[str, ...] = ()
    """Functions that hold what they were given after they have returned, so that it needs new memory each time."""
    stays: tuple[str, ...] = ()
    """What cannot go to worker processes, with the variable that is to blame."""
    remarks: tuple[str, ...] = field(default=(), repr=False)
    """Checks that were left out, and why."""
    are_batches: bool = field(default=False, repr=False)
    """Whether the elements that were delivered are batches; those that fail are what goes into one."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong.

        What cannot travel, draws from global generators or keeps its input is right, if slower, and leaves this True.
        """
        return not (
            self.bad or self.misfits or self.ended or self.nondeterministic or self.reuses_memory or self.differences
        )

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        others = f"; the first {min(self.elements, COMPARED_COUNT)} on {' and '.join(self.compared)} too"
        count = length_text(self.elements)
        if self.are_batches:
            count = f"{self.elements:,} batch{'' if self.elements == 1 else 'es'}"
        lines = [f"Checked {count} on {self.executor}{others if self.compared else ''}."]
        lines += _section("that fail", [_told(each) for each in self.bad])
        lines += _section("that are not as element_spec says", [_told(each) for each in self.misfits])
        if self.ended:
            lines.append(f"The pass ended before its time: {self.ended}")
        for text, found in [
            ("Other results on the same element", self.nondeterministic),
            ("Returns memory that it writes again; copy what you return", self.reuses_memory),
            ("Differs between executors", self.differences),
            (
                "Draws from np.random or random, so that it is seeded for each element; use random_map()",
                self.uses_globals,
            ),
            ("Keeps what it was given, so that it needs new memory each time", self.keeps_input),
            ("Cannot go to worker processes", self.stays),
        ]:
            lines += [f"{text}: {each}" for each in found]
        lines += self.remarks
        return "\n".join(lines if not self.ok or len(lines) > 1 else [*lines, "Nothing was found."])

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows at the end of a cell


def _section(what: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"Elements {what}: {len(lines):,}"
        yield from (f"  {line}" for line in lines[:SHOWN_COUNT])
    if len(lines) > SHOWN_COUNT:
        yield f"  and {len(lines) - SHOWN_COUNT:,} more."


def _told(failure: Failure) -> str:
    sources = ", ".join(text for _, _, text in failure.sources)
    lines = failure.message.splitlines() or [""]
    said = lines[0] if sources and sources in lines[0] else f"{sources or failure.index}: {lines[0]}"
    return said if failure.step in said else f"{failure.step}: {said}"


def check(node: Node, limit: int | None, executors: Sequence[str], timeout_s: float) -> CheckResult:
    """See `Dataset.check`. What generators draw here from `np.random` and `random` leaves those as they were."""
    with seeded_globals():
        return _check(node, limit, executors, timeout_s)


def _check(node: Node, limit: int | None, executors: Sequence[str], timeout_s: float) -> CheckResult:
    unknown = [each for each in executors if each not in EXECUTORS]
    if isinstance(executors, str) or unknown:
        raise ArgumentTypeError(f"check(executors={executors!r}) needs a selection of {EXECUTORS}.")
    if limit is not None:
        node = sliced(node, "take", str(limit), 0, limit, None)
    if node.length == math.inf:
        raise ArgumentError("check() goes through all elements, but this dataset is endless. Say how many: limit=1000.")
    first = _Pass(node, "auto", timeout_s)
    remarks: list[str] = []
    differences: list[str] = []
    compared: list[str] = []
    is_lethal = any(each.exception in _LETHAL for each in first.failures)
    if is_lethal:
        remarks.append("Worker processes died of elements, so that no function was called in this one.")
    for executor in () if is_lethal else executors:
        if executor == first.executor:
            continue
        part = sliced(node, "take", str(COMPARED_COUNT), 0, COMPARED_COUNT, None)
        try:
            other = _Pass(part, executor, timeout_s)
        except (ArgumentError, TravelError) as error:
            remarks.append(f"Not compared with {executor}: {error}")
            continue
        compared.append(executor)
        differences += _difference(first, other)
    functions = _Functions()
    if not is_lethal:
        functions.look_at(node, {each.sources for each in first.failures if each.sources})
    misfits = [each for each in first.failures if each.exception == "SpecError"]
    return CheckResult(
        elements=len(first.digests),
        executor=first.executor,
        compared=tuple(compared),
        bad=tuple(each for each in first.failures if each.exception != "SpecError"),
        misfits=tuple(misfits),
        ended=first.ended,
        differences=tuple(differences),
        **{name: tuple(steps) for name, steps in functions.found.items()},
        stays=tuple(str(error) for error in stay_behind(node)),
        remarks=tuple(remarks),
        are_batches=node.batch_size != 1,
    )


@final
class _Pass:
    """Epoch 0 on an executor: a digest of each element that is there, and what failed."""

    def __init__(self, node: Node, executor: str, timeout_s: float) -> None:
        # By the first, no more is read than was asked for; where all of a batch fails, it gives up.
        policies: list[OnError] = ["replace", "skip"] if node.access == "random" else ["skip", "replace"]
        for policy in policies:
            quarantine = Quarantine(None)
            self.digests: list[bytes] = []
            self.ended = ""
            self.executor = executor
            try:
                self._run(_loader(node, executor, timeout_s, policy, quarantine))
            except TravelError:
                raise
            except ArgumentError:  # this policy is not for this plan, or nothing is
                if policy == policies[-1]:
                    raise
                continue
            except PenstockError as error:
                self.ended = str(error)
            except Exception as error:  # a source's own
                self.ended = words_of(error)
            self.failures = sorted(quarantine.kept, key=lambda each: (each.guard, each.epoch, each.index))
            if not self.ended or policy == "skip":
                return

    def _run(self, loader: Loader) -> None:
        with loader:
            self.executor = loader.report().executor
            for element in loader:
                self.digests.append(_digest(element))


def _loader(node: Node, executor: Any, timeout_s: float, on_error: OnError, quarantine: Quarantine) -> Loader:
    options = LoaderOptions(executor=executor, timeout_s=timeout_s, on_error=on_error)
    return Loader(node, options, same_epoch=True, quarantine=quarantine)


def _difference(one: _Pass, other: _Pass) -> Iterator[str]:
    pairs = zip(one.digests[:COMPARED_COUNT], other.digests, strict=False)
    unlike = [place for place, (mine, theirs) in enumerate(pairs) if mine != theirs]
    if unlike:
        yield f"{one.executor} and {other.executor} deliver different bytes, first as element {unlike[0]}"
    elif len(other.digests) != min(len(one.digests), COMPARED_COUNT) and not (one.ended or other.ended):
        yield f"{one.executor} delivers {len(one.digests)} elements, {other.executor} {len(other.digests)}"


def _digest(element: Tree) -> bytes:
    leaves, structure = _tree.flatten(element)
    found = hashlib.blake2b(repr(structure).encode(), digest_size=16)
    for leaf in leaves:
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return found.digest()


@final
class _Functions:
    """What functions do that are called on a few elements, each twice, and sources that are asked for some twice."""

    def __init__(self) -> None:
        names = ("nondeterministic", "reuses_memory", "uses_globals", "keeps_input")
        self.found: dict[str, dict[str, None]] = {name: {} for name in names}
        """The steps, by the name in `CheckResult`; as keys, so each stands once."""

    def _add(self, name: str, step: str) -> None:
        self.found[name][step] = None

    def look_at(self, plan: Node, failed: set[Any]) -> None:
        """Calls each function of a plan, and reads each source.

        Args:
            plan: The plan.
            failed: Sources of elements that are passed over.
        """
        parts = {(source,) for sources in failed for source in sources}
        for step in analyse(plan).user_steps:
            try:
                sources = OpenSources(step)
            except Exception:  # which the pass has told
                continue
            try:
                if isinstance(step, Map):
                    self._look_at_function(step, _elements(step.source, sources, failed))
                else:
                    self._look_at_source(step, sources, parts)
            finally:
                sources.close()

    def _look_at_source(self, step: Node, sources: OpenSources, failed: set[Any]) -> None:
        with seeded_globals() as globals_:  # which are not seeded: no executor does so for these
            first = dict(_elements(step, sources, failed))
            again = _elements(step, sources, failed)
            if any(not _same(first.get(index, leaves), leaves) for index, leaves in again):
                drawn = "; it draws from np.random or random, which are seeded for map() and filter() alone"
                self._add("nondeterministic", located(step) + drawn * globals_.used())

    def _look_at_function(self, step: Map, elements: Iterator[tuple[int, Leaves]]) -> None:
        name = f"{step.label} at {step.where}"
        before: tuple[list[Any], list[Any]] | None = None
        for index, leaves in elements:
            try:
                first, drew, kept = _called(step, index, leaves)
                value = [copied(leaf) for leaf in first]
                again, drew_again, _ = _called(step, index, leaves)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException:  # which the pass has told
                continue
            if not _same(value, again):
                self._add("nondeterministic", name)
            if before is not None and not _same(*before):
                self._add("reuses_memory", name)
            if drew or drew_again:
                self._add("uses_globals", name)
            if kept:
                self._add("keeps_input", name)
            before = again, [copied(leaf) for leaf in again]


def _elements(node: Node, sources: OpenSources, failed: set[Any]) -> Iterator[tuple[int, Leaves]]:
    """Some elements of a step, as the next one gets them, by number; what cannot be read is passed over."""
    reader = Reader(node, sources, isolation=seeded_globals)
    if node.access == "stream":
        reader.status.takes_any = True
        elements = enumerate(itertools.islice(reader.sequence(0), CALLED_COUNT))
        while True:
            try:
                index, leaves = next(elements)
            except (Exception, SystemExit):  # it ended, or raised
                return
            yield index, [copied(leaf) for leaf in leaves]
    for index in range(min(CALLED_COUNT, int(node.length or 0))):
        if tuple(sources_of(node, 0, index)) in failed:
            continue
        try:
            yield index, node.spec.structure.flatten_up_to(reader.element(0, index))
        except (Exception, SystemExit):
            continue


def _called(step: Map, index: int, leaves: Leaves) -> tuple[list[Any], bool, bool]:
    """Calls a function as a loader does.

    Returns:
        What it returned, whether it drew from global generators, and whether it holds what it was given.
    """
    given = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    held = [weakref.ref(leaf) for leaf in given if isinstance(leaf, np.ndarray)]
    element = step.source.spec.structure.unflatten(given)
    rng = () if step.seed is None else (ElementRng(step.seed, step.randomness.depth).at(0, index),)
    with seeded_globals() as globals_:
        globals_.seed(0, step.randomness.depth, 0, index)
        result = step.function(element, *rng)
        drew = globals_.used()
    found = _tree.flatten(result)[0]
    mine = [leaf for leaf in given if isinstance(leaf, np.ndarray)]
    returned = [np.may_share_memory(leaf, one) for leaf in found if isinstance(leaf, np.ndarray) for one in mine]
    del given, element, mine, result, rng
    return found, drew, not any(returned) and any(ref() is not None for ref in held)


def _same(leaves: list[Any], others: list[Any]) -> bool:
    return len(leaves) == len(others) and all(map(_same_leaf, leaves, others))


def _same_leaf(leaf: Any, other: Any) -> bool:
    one, two = np.asarray(leaf), np.asarray(other)
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    return one.tolist() == two.tolist() if one.dtype.hasobject else one.tobytes() == two.tobytes()
