"""Running elements again that a loader set aside."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, StateError, type_of
from penstock.base._files import open_file
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.lower._analysis import guards_of
from penstock.lower._guards import with_guards
from penstock.lower._rewrite import reader_of
from penstock.plan._node import Node, walk
from penstock.plan._reader import Reader
from penstock.plan._text import difference, identity


@final
@dataclass(frozen=True)
class Replayed:
    """An element that was set aside, run again."""

    failure: dict[str, Any]
    """Its line of the quarantine file: `run`, `sources`, `epoch`, `index`, `step`, `exception`, `message`, and
    `traceback`."""
    element: Tree
    """The element as it would have gone into its batch; None if it still fails."""
    error: Exception | None
    """Its exception now; None if the element is well."""


def replay(path: str | os.PathLike[str], dataset: Dataset) -> Iterator[Replayed]:
    """Runs exactly those elements again that a loader of this dataset set aside, one at a time, here and now.

    Each in its epoch, and with the random numbers that it had there. Mend the file, or the function, and see.

    Args:
        path: A quarantine file, see `Dataset.loader`. Lines of other datasets are passed over. An element that failed
            in several runs or epochs is run once, as in the last of its lines.
        dataset: The dataset whose loader wrote it, built as it was.

    Raises:
        SourceError: There is no such file, or it is no quarantine file.
        StateError: It has lines of other datasets alone; says what differs.
        ArgumentError: After all others, if elements came out of a stream: they can only be had with all before them.

    Example:
        >>> def inverse(x):
        ...     return 1 / float(x) if x else 1 / 0
        >>> ds = penstock.range(4).map(inverse).batch(2)
        >>> with ds.loader("inline", on_error="replace", quarantine="bad.jsonl") as loader:
        ...     [batch.tolist() for batch in loader]
        [[1.0, 1.0], [0.5, 0.3333333333333333]]
        >>> [str(each.error.__cause__) for each in penstock.replay("bad.jsonl", ds)]
        ['division by zero']
    """
    if not isinstance(dataset, Dataset):
        raise ArgumentTypeError(f"replay() needs the dataset whose loader wrote the file, got {type_of(dataset)}.")
    records = _records(Path(path))
    ours = identity(dataset._node)
    mine = [record for record in records if record["plan"] == ours]
    if records and not mine:
        raise StateError(f"{path} is of another dataset: {difference(records[0]['plan'], dataset._node)}.")
    return _run(mine, dataset._node, path)


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        with open_file(path) as file:
            lines = file.read().splitlines(keepends=True)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from None
    records = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            sources = tuple(map(tuple, record["sources"])) if record["recurs"] else ()
            numbers = [record[name] for name in ("epoch", "index", "guard")]
            if record["on_error"] not in ("skip", "replace") or any(type(n) is not int or n < 0 for n in numbers):
                raise ValueError(numbers)
            place = sources or (record["epoch"], record["index"])
            records[record["plan"], record["on_error"], record["guard"], place] = record
        except (ValueError, KeyError, TypeError):
            if number == len(lines) and not line.endswith(b"\n"):
                break  # the disk was full, or the process was killed, in the middle of it
            raise SourceError(f"{path} is no quarantine file: line {number} is {line[:80]!r}.") from None
    return list(records.values())


def _run(records: list[dict[str, Any]], node: Node, path: str | os.PathLike[str]) -> Iterator[Replayed]:
    readers: dict[tuple[str, int], Reader] = {}
    for record in records:
        key = record["on_error"], record["guard"]
        if key not in readers:
            readers[key] = _reader(node, *key, path)
    # Those of streams are refused in the end, when all others have run.
    for record in sorted(records, key=lambda record: readers[record["on_error"], record["guard"]].is_stream):
        key = record["on_error"], record["guard"]
        _require_index(readers[key])
        try:
            element = readers[key].element(record["epoch"], record["index"])
        except Exception as error:
            yield Replayed(record, None, error)
        else:
            yield Replayed(record, element, None)


def _reader(node: Node, on_error: Any, number: int, path: str | os.PathLike[str]) -> Reader:
    guards = {each.number: each for each in guards_of(with_guards(node, on_error))}
    if number not in guards:
        raise SourceError(f"{path} is damaged: the plan of this dataset has no place {number} where elements fail.")
    guard = guards[number]
    if guard.source.access == "stream" and any(getattr(each, "is_numbered", False) for each in walk(guard.source)):
        # What a worker made of groups came in order, and its number is the position.
        placed = guards_of(with_guards(node, on_error, is_placed=True))
        guard = next((each for each in placed if (each.number, each.label) == (number, guard.label)), guard)
    return reader_of(guard.source)


def _require_index(reader: Reader) -> None:
    if reader.is_stream:
        raise ArgumentError(
            f"The failed element came from a stream, {reader.label}, which gives an element only after all before it. "
            "Iterate the dataset again."
        )
