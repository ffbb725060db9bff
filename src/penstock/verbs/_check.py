"""Checks a dataset before a long training: one pass over epoch 0, and trial calls of its functions.

A loader makes the pass, with `on_error`: failed elements are noted with step and source, and the rest goes on. Then
this module calls the functions on a few elements, to find those that break the rules of a dataset.
"""

import hashlib
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np

from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, TravelError, words_of
from penstock.base._printable import printable
from penstock.base._random import ElementRng, seeded_globals
from penstock.loader import Loader, LoaderOptions
from penstock.lower._analysis import held_in
from penstock.lower._guards import OnError
from penstock.memory._rows import Leaves
from penstock.plan._index import sliced
from penstock.plan._map import Map
from penstock.plan._node import Node, located
from penstock.plan._reader import OpenSources, Reader
from penstock.plan._text import length_text
from penstock.plan._tolerate import Failure
from penstock.report._progress import ProgressLine
from penstock.run._quarantine import Quarantine
from penstock.run.executors import _registry
from penstock.run.pool._interpreter import require_run_time
from penstock.run.pool._payload import stay_behind

COMPARED_COUNT: Final = 64
"""Number of elements that are compared between executors."""
CALLED_COUNT: Final = 8
"""Number of elements on which a function is called twice, or which are read twice from a source."""
SHOWN_COUNT: Final = 10
"""Number of findings of a kind that are printed."""
_LETHAL: Final = ("WorkerError", "DeadlineError")
EXECUTORS: Final = tuple(name for name, kind in _registry.EXECUTORS.items() if kind.reach != "machine")
_TEXTS: Final = {
    "nondeterministic": "Other results on the same element",
    "reuses_memory": "Returns memory that it writes again; copy what you return",
    "differences": "Differs between executors",
    "uses_globals": "Draws from np.random or random, so that it is seeded for each element; use random_map()",
    "keeps_input": "Keeps what it was given, so that it needs new memory each time",
    "stays": "Cannot go to worker processes",
}
"""Fields of the result, and the text before each of their findings."""


@final
@dataclass(frozen=True, repr=False)
class CheckResult:
    """The findings of `Dataset.check`. Print it. `result.ok`, which is also its truth, is True if nothing is wrong."""

    elements: int
    """The number of delivered elements, without failed ones. After `batch()` these are batches."""
    executor: str
    """The executor of the pass over all of them."""
    compared: tuple[str, ...] = ()
    """Executors that ran the first elements, too, for comparison."""
    bad: "tuple[Failure, ...]" = ()
    """Elements that fail, each with `step`, `sources`, `exception`, `message` and `traceback`."""
    misfits: "tuple[Failure, ...]" = ()
    """Elements that do not match `element_spec`, with the same fields."""
    ended: str = ""
    """The reason why the pass ended early, such as an exception of a generator."""
    nondeterministic: tuple[str, ...] = ()
    """Functions, `from_source` objects and generators whose second result for the same element differs."""
    reuses_memory: tuple[str, ...] = ()
    """Functions that return memory which they write again. On threads, two calls would write it at the same time."""
    differences: tuple[str, ...] = ()
    """Executors that deliver other elements."""
    uses_globals: tuple[str, ...] = ()
    """Functions that draw from the global `np.random` or `random`."""
    keeps_input: tuple[str, ...] = ()
    """Functions that hold their input after they return, so that each call needs new memory."""
    stays: tuple[str, ...] = ()
    """Objects that cannot go to worker processes, with the variable that prevents it."""
    remarks: tuple[str, ...] = field(default=(), repr=False)
    """Checks that were left out, with the reasons."""
    are_batches: bool = field(default=False, repr=False)
    """Whether the delivered elements are batches. Failed ones are the elements of a batch."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong.

        Functions that cannot travel, draw from global generators or keep their input are right, if slower.
        """
        found = self.bad, self.misfits, self.ended, self.nondeterministic, self.reuses_memory, self.differences
        return not any(found)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        others = f"; the first {min(self.elements, COMPARED_COUNT)} on {' and '.join(self.compared)} too"
        count = length_text(self.elements)
        if self.are_batches:
            count = f"{self.elements:,} batch{'' if self.elements == 1 else 'es'}"
        lines = [f"Checked {count} on {self.executor}{others if self.compared else ''}."]
        lines += _section("that fail", self.bad)
        lines += _section("that are not as element_spec says", self.misfits)
        if self.ended:
            lines.append(f"The pass ended before its time: {self.ended}")
        for field_name, text in _TEXTS.items():
            lines += [f"{text}: {each}" for each in getattr(self, field_name)]
        lines += self.remarks
        text = "\n".join(lines if not self.ok or len(lines) > 1 else [*lines, "Nothing was found."])
        return printable(text, has_lines=True)

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows at the end of a cell


def _section(title: str, failures: Sequence[Failure]) -> Iterator[str]:
    if failures:
        yield f"Elements {title}: {len(failures):,}"
    for each in failures[:SHOWN_COUNT]:
        sources = ", ".join(text for _, _, text in each.sources)
        line = (each.message.splitlines() or [""])[0]
        text = line if sources and sources in line else f"{sources or each.index}: {line}"
        yield f"  {text if each.step in text else f'{each.step}: {text}'}"
    if len(failures) > SHOWN_COUNT:
        yield f"  and {len(failures) - SHOWN_COUNT:,} more."


def check(node: Node, limit: int | None, executors: Sequence[str], timeout_s: float) -> CheckResult:
    """Implements `Dataset.check`. The states of `np.random` and `random` stay as they were."""
    unknown = [each for each in executors if each not in EXECUTORS]
    if isinstance(executors, str) or unknown:
        raise ArgumentTypeError(f"check(executors={executors!r}) needs a selection of {EXECUTORS}.")
    require_run_time()  # here, because a pass would only note the error
    with seeded_globals():
        if limit is not None:
            node = sliced(node, "take", str(limit), 0, limit, None)
        if node.length == math.inf:
            raise ArgumentError(
                "check() goes through all elements, but this dataset is endless. Say how many: limit=1000."
            )
        with ProgressLine("Checking", total=node.length if isinstance(node.length, int) else None) as line:
            first = _Pass(node, "auto", timeout_s, line)
        found: dict[str, list[str]] = {name: [] for name in (*_TEXTS, "compared", "remarks")}
        found["stays"] = [str(error) for error in stay_behind(node)]
        if first.ended_by in _LETHAL or any(each.exception in _LETHAL for each in first.failures):
            found["remarks"].append("Worker processes failed, so that no function was called in this one.")
        else:
            for executor in executors:
                if executor == first.executor:
                    continue
                part = sliced(node, "take", str(COMPARED_COUNT), 0, COMPARED_COUNT, None)
                try:
                    found["differences"] += _difference(first, _Pass(part, executor, timeout_s))
                    found["compared"].append(executor)
                except (ArgumentError, TravelError) as error:
                    found["remarks"].append(f"Not compared with {executor}: {error}")
            _call_functions(node, found)
        return CheckResult(
            elements=len(first.digests),
            executor=first.executor,
            bad=tuple(each for each in first.failures if each.exception != "SpecError"),
            misfits=tuple(each for each in first.failures if each.exception == "SpecError"),
            ended=first.ended,
            are_batches=node.batch_size != 1,
            **{name: tuple(dict.fromkeys(texts)) for name, texts in found.items()},
        )


@final
class _Pass:
    """Epoch 0 on an executor: a digest of each delivered element, and the failures."""

    def __init__(self, node: Node, executor: str, timeout_s: float, line: ProgressLine | None = None) -> None:
        # The first policy reads no more elements than were asked for. It gives up where all of a batch fails.
        policies: list[OnError] = ["replace", "skip"] if node.access == "random" else ["skip", "replace"]
        for policy in policies:
            quarantine = Quarantine(None)
            self.digests: list[bytes] = []
            self.ended = self.ended_by = ""
            self.executor = executor
            try:
                options = LoaderOptions(executor=executor, timeout_s=timeout_s, on_error=policy)  # type: ignore[arg-type]
                with Loader(node, options, same_epoch=True, quarantine=quarantine) as loader:
                    self.executor = loader.report().executor
                    for element in loader:
                        leaves, structure = _tree.flatten(element)
                        self.digests.append(_digest([repr(structure), *leaves]))
                        if line is not None:
                            line.advance(len(self.digests) - line.done)
            except TravelError:
                raise
            except ArgumentError:  # this plan does not take this policy, or any
                if policy == policies[-1]:
                    raise
                continue
            except PenstockError as error:
                self.ended, self.ended_by = str(error), type(error).__name__
            except Exception as error:  # a source's own
                self.ended = words_of(error)
            self.failures = sorted(quarantine.kept, key=lambda each: (each.guard, each.epoch, each.index))
            if not self.ended or policy == "skip":
                return


def _difference(one: _Pass, other: _Pass) -> Iterator[str]:
    pairs = zip(one.digests[:COMPARED_COUNT], other.digests, strict=False)
    unlike = [place for place, (mine, theirs) in enumerate(pairs) if mine != theirs]
    if unlike:
        yield f"{one.executor} and {other.executor} deliver different bytes, first as element {unlike[0]}"
    elif len(other.digests) != min(len(one.digests), COMPARED_COUNT) and not (one.ended or other.ended):
        yield f"{one.executor} delivers {len(one.digests)} elements, {other.executor} {len(other.digests)}"


def _digest(leaves: Sequence[Any]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for leaf in leaves:
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode())
        if array.dtype.hasobject:
            values = array.reshape(-1).tolist()
            found.update(b"".join(_digest([v]) if isinstance(v, np.ndarray) else repr(v).encode() for v in values))
        else:
            found.update(array.tobytes())
    return found.digest()


def _call_functions(plan: Node, found: dict[str, list[str]]) -> None:
    """Calls each function of a plan twice on a few elements, and reads a few elements of each source twice.

    Args:
        plan: The plan.
        found: The findings by the fields of `CheckResult`.
    """
    for step, _ in held_in(plan):
        try:
            sources = OpenSources(step)
        except Exception:  # the pass has reported it
            continue
        try:
            if isinstance(step, Map):
                _call_function(step, _elements(step.source, sources), found)
                continue
            with seeded_globals() as globals_:  # not seeded again, because no executor seeds them for a source
                first = {index: _digest(leaves) for index, leaves in _elements(step, sources)}
                again = ((index, _digest(leaves)) for index, leaves in _elements(step, sources))
                if any(first.get(index, digest) != digest for index, digest in again):
                    drawn = "; it draws from np.random or random, which are seeded for map() and filter() alone"
                    found["nondeterministic"].append(located(step) + drawn * globals_.used())
        finally:
            sources.close()


def _call_function(step: Map, elements: Iterator[tuple[int, Leaves]], found: dict[str, list[str]]) -> None:
    name = f"{step.label} at {step.where}"
    before: tuple[list[Any], bytes] | None = None
    for index, leaves in elements:
        try:
            first, drew, is_kept = _called(step, index, leaves)
            digest = _digest(first)
            again, drew_again, _ = _called(step, index, leaves)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:  # the pass has reported it
            continue
        findings = {
            "nondeterministic": digest != _digest(again),
            "reuses_memory": before is not None and _digest(before[0]) != before[1],
            "uses_globals": drew or drew_again,
            "keeps_input": is_kept,
        }
        for field_name, is_so in findings.items():
            found[field_name] += [name] * is_so
        before = again, _digest(again)


def _elements(node: Node, sources: OpenSources) -> Iterator[tuple[int, Leaves]]:
    """Yields some elements of a step by number, as the next step gets them. Leaves out those that fail."""
    for index, element in enumerate(Reader(node, sources, isolation=seeded_globals).attempts(CALLED_COUNT)):
        if not isinstance(element, Exception):
            yield index, node.spec.structure.flatten_up_to(element)


def _called(step: Map, index: int, leaves: Leaves) -> tuple[list[Any], bool, bool]:
    """Calls a function as a loader does.

    Returns:
        Its result, whether it drew from global generators, and whether it still holds its input.
    """
    given = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    held = [weakref.ref(leaf) for leaf in given if isinstance(leaf, np.ndarray)]
    element = step.source.spec.structure.unflatten(given)
    number = step.randomness.number_of(index)
    rng = () if step.seed is None else (ElementRng(step.seed, step.randomness.depth).at(0, number),)
    with seeded_globals() as globals_:
        globals_.seed(0, step.randomness.depth, 0, number)
        result = step.function(element, *rng)
        drew = globals_.used()
    found = _tree.flatten(result)[0]
    mine = [leaf for leaf in given if isinstance(leaf, np.ndarray)]
    returned = [np.may_share_memory(leaf, one) for leaf in found if isinstance(leaf, np.ndarray) for one in mine]
    del given, element, mine, result, rng
    return found, drew, not any(returned) and any(ref() is not None for ref in held)
