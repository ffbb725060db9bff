"""`reduce`: all elements of epoch 0 folded into one value, now."""

import base64
import copy
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from penstock.base import _atomic, _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, SourceError, type_of
from penstock.base._trust import private_mode, require_own_file, require_safe
from penstock.loader import Loader, LoaderOptions
from penstock.memory._rows import copied
from penstock.plan._batch import Batch, is_object
from penstock.plan._fingerprint import Step, change, table
from penstock.plan._fold import Fold, dumped
from penstock.plan._node import Node
from penstock.report._progress import ProgressLine, Told
from penstock.run._cpus import usable_cpu_count
from penstock.run.pool._remote_error import unpickled

_log = logging.getLogger("penstock")

BLOCK_NBYTES: Final = 4 << 20
"""The most bytes of elements that are brought here at once, to be folded in order."""
BLOCK_COUNT: Final = 64
"""Neighbours that a worker folds into one state. Results depend on it, so it is the same everywhere."""
_FORMAT: Final = "penstock result 1"

Function = Callable[[Any, Any], Any]


def reduced(
    node: Node,
    fn: Function,
    initial: Any,
    where: str,
    *,
    combine: Function | None,
    path: Any,
    key: str | None,
    progress: Told | None,
    options: dict[str, Any],
) -> Any:
    """Folds all elements; see `Dataset.reduce`."""
    if node.length == math.inf:
        raise ArgumentError("reduce() of an endless dataset would never end. Use take(n), or put it before repeat().")
    if options.get("shard") not in (None, (0, 1)):
        raise ArgumentError(
            "reduce(shard=): the result is that of all elements. For one of a part of them in each process: "
            "ds.shard(rank, count).reduce(...)."
        )
    fold = Fold(node, 1, False, fn, None, where, initial=dumped(initial), combine=(combine,))
    kept = None if path is None else _Saved(fold, path, key, initial, options.get("on_error", "raise"))
    if kept is not None and (found := kept.load()) is not None:
        return found[0]
    state = copy.deepcopy(initial)
    if node.length != 0:
        total = node.length if isinstance(node.length, int) else None
        with ProgressLine("Reducing", total=total, told=progress) as line:
            run = _in_order if combine is None else _side_by_side
            state = run(fold, state, line, options)
    if kept is not None:
        kept.save(state)
    return state


def _in_order(fold: Fold, state: Any, line: ProgressLine, options: dict[str, Any]) -> Any:
    """Workers make elements, some at a time; they are folded here, one after the other."""
    source, number = fold.source, 0
    plan = _stacked(source)
    with _one_epoch(plan, options) as loader:
        for batch in loader:
            elements = [batch] if plan is source else _rows(batch)
            for element in elements:
                state = fold.step(state, element, 0, number)
                number += 1
            line.advance(number - line.done)
            del batch, elements
    return state


def _side_by_side(fold: Fold, state: Any, line: ProgressLine, options: dict[str, Any]) -> Any:
    """Workers fold blocks of neighbours; what they make of them is combined here, the first block first."""
    (combine,) = fold.combine
    assert combine is not None
    # A block is one worker's, and all of them have one.
    options = {"prefetch": max(4, usable_cpu_count())} | options
    plan = replace(fold, size=BLOCK_COUNT)
    with _one_epoch(plan, options) as loader:
        for block in loader:
            state = combine(state, unpickled(bytes(block)))
            line.advance(BLOCK_COUNT)
    return state


def _one_epoch(plan: Node, options: dict[str, Any]) -> Loader:
    return Loader(plan, LoaderOptions(**options), same_epoch=True)


def _stacked(source: Node) -> Node:
    """Some elements at a time, where they have one shape; else themselves."""
    try:
        spec = source.spec
    except PenstockError:  # the loader says what is wrong, or goes on without that element
        return source
    if any(is_object(leaf) or None in leaf.shape for leaf in spec.leaves):
        return source
    return Batch(source, max(1, min(BLOCK_COUNT, BLOCK_NBYTES // max(1, spec.nbytes))), drop_remainder=False)


def _rows(batch: _tree.Tree) -> Iterator[_tree.Tree]:
    leaves, structure = _tree.flatten(batch)
    for row in range(len(leaves[0])):
        yield structure.unflatten([copied(leaf[row]) if leaf.dtype.names else leaf[row] for leaf in leaves])


@final
class _Saved:
    """A result in a file, with the fingerprints of all that it depends on.

    The file is JSON, of numbers, text, arrays, and dicts, lists and tuples of them. So no file runs code.

    Raises:
        ArgumentTypeError: It is no path, the initial state cannot be kept, or a step has no fingerprint.
    """

    def __init__(self, fold: Fold, path: Any, key: str | None, initial: Any, on_error: Any) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ArgumentTypeError(f"reduce(path={path!r:.80}): the path of a file is needed, got {type_of(path)}.")
        if key is not None and not isinstance(key, str):
            raise ArgumentTypeError(f"reduce(key={key!r:.80}): text is needed, not {type_of(key)}.")
        self._path = os.path.abspath(os.fspath(path))
        _written(initial)
        self._steps = [Step("key", 0, {"the key": key})] if key is not None else table(fold, verb="reduce")
        if on_error != "raise":  # it may lack elements
            self._steps.append(Step("the loader", 0, {"on_error": f"{on_error}"}))

    def load(self) -> tuple[Any] | None:
        """Returns what is kept, as a tuple of it; None if nothing is, or of another dataset.

        Raises:
            SourceError: Another user may have written the file, or may write in its folder; or it cannot be read.
        """
        try:
            require_safe(os.path.dirname(self._path))
            if not os.path.lexists(self._path):
                return None
            require_own_file(self._path)
            with open(self._path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise SourceError(f"reduce() cannot use {self._path}: {error.strerror or error}.") from error
        try:
            kept = json.loads(data)
            if kept["format"] != _FORMAT:
                raise ValueError(kept["format"])
            before = [Step(label, count, dict(parts)) for label, count, parts in kept["steps"]]
            result = _read(kept["result"])
        except Exception:  # of any type, for another file
            raise SourceError(
                f"{self._path} holds no result of reduce(), and is not overwritten. Give another path, or delete it."
            ) from None
        if before == self._steps:
            return (result,)
        _log.info(
            "reduce() begins anew, for %s has a result of another dataset: %s.", self._path, change(before, self._steps)
        )
        return None

    def save(self, result: Any) -> None:
        """Writes the result; the file appears when all of it is on the disk. If it cannot, the log says why."""
        try:
            content = json.dumps({"format": _FORMAT, "steps": self._steps, "result": _written(result)})
            folder = os.path.dirname(self._path)
            os.makedirs(folder, exist_ok=True)
            require_safe(folder)
            with _atomic.complete(self._path, private_mode(folder)) as file:
                file.write(content.encode())
        except (OSError, ArgumentTypeError) as error:
            cause = f"{getattr(error, 'strerror', None) or error}".rstrip(".")
            _log.warning("reduce() cannot keep its result in %s, and returns it: %s.", self._path, cause)


def _written(value: Any) -> Any:
    """A value as JSON has it. What JSON has not, is a list that begins with a name."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return [kind.__name__, *map(_written, value)]
    if kind is dict:
        return ["dict", *([_written(key), _written(each)] for key, each in value.items())]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in "biufcUSmM":
        name = "array" if kind is np.ndarray else "scalar"
        return [name, value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]
    raise ArgumentTypeError(
        f"reduce(path=) keeps numbers, text, arrays, and dicts, lists and tuples of them, not {type_of(value)}. Fold "
        "into one of these, or leave path= out and keep the result yourself."
    )


def _read(value: Any) -> Any:
    """The value of what `_written` made."""
    if not isinstance(value, list):
        return value
    name, *rest = value
    if name in ("list", "tuple"):
        return list(map(_read, rest)) if name == "list" else tuple(map(_read, rest))
    if name == "dict":
        return {_read(key): _read(each) for key, each in rest}
    data = base64.b64decode(rest[-1], validate=True)
    if name == "bytes":
        return data
    dtype, shape, _ = rest
    array = np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)
    return array if name == "array" else array[()]
