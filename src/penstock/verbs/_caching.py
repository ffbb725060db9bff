"""`cache` and `materialize`: which plans can be kept, and how all of one is kept now."""

import os
import uuid
from typing import Any, Final

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.loader import Loader, LoaderOptions
from penstock.plan._batch import Bundle
from penstock.plan._cache import Cache, CompleteCache, Whole
from penstock.plan._cautions import reordering
from penstock.plan._fingerprint import table
from penstock.plan._node import Node, located, walk
from penstock.report._progress import ProgressLine, Told
from penstock.sources.cache import CacheDirectory, CacheMemory

_BATCH_NBYTES: Final = 4 << 20
_BATCH_COUNT: Final = 256


def cached(node: Node, path: Any, limit: int | None, key: str | None, verb: str = "cache") -> Cache | CompleteCache:
    """Makes the step that keeps what a plan gives.

    Raises:
        ArgumentError: It is endless, or differs from epoch to epoch; or the path is none of this machine.
        ArgumentTypeError: Nobody can tell what it depends on.
    """
    _require_one_epoch(node, verb)
    if path is None:
        text = "" if limit is None else f"limit={limit}"
        return Cache(node, CacheMemory(node, limit), text)
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"{verb}() needs the path of a directory, got {type_of(path)}.")
    if key is not None and not isinstance(key, str):
        raise ArgumentTypeError(f"{verb}(key={key!r}): text is needed, not {type_of(key)}.")
    directory = os.fspath(path)
    if not directory or "://" in directory:
        raise ArgumentError(
            f"{verb}({directory!r}) keeps elements in a directory of this machine: give its path. "
            "cache() without one keeps them in memory."
        )
    name = os.path.basename(os.path.normpath(directory))
    store = CacheDirectory(node, os.path.abspath(directory), limit, key)
    whole = store.complete() if node.access == "stream" else None
    text = name if limit is None else f"{name}, limit={limit}"
    return Cache(node, store, text) if whole is None else CompleteCache(store, text, whole, node, node.randomness)


def settled(node: Node) -> Node:
    """Returns a plan with random access in place of a stream that `cache()` has in memory, once that is complete."""
    if isinstance(node, Cache) and isinstance(node.store, CacheMemory) and node.access == "stream":
        whole = node.store.complete()
        return node if whole is None else CompleteCache(node.store, node.text, whole, node.source, node.randomness)
    return node


def _image_cure(node: Node) -> str:
    if any(each.verb == "image_dataset_from_directory" for each in walk(node)):
        return (
            " image_dataset_from_directory() shuffles by itself: give it shuffle=False and batch_size=None, then "
            "cache(), split(0.8, 0.2, seed=1), shuffle() and batch()."
        )
    return ""


def _require_one_epoch(node: Node, verb: str) -> None:
    if node.length == float("inf"):
        raise ArgumentError(f"{verb}() of an endless dataset would never be full. Put {verb}() before repeat().")
    for each in walk(node):
        if each.verb == "random_map":
            raise ArgumentError(
                f"{verb}() keeps the elements of epoch 0, but {located(each)} makes others in each epoch. "
                f"Put {verb}() before random_map(), so that what is before is kept and randomness stays."
            )
        if each.randomness.reorders and not any(below.randomness.reorders for below in each.inputs):
            steps, keeps = reordering(each)
            raise ArgumentError(
                f"{verb}() keeps the elements of epoch 0, and {steps} before it would give their order to every "
                f"epoch. Put {each.verb}() after {verb}(), which has random access{keeps}.{_image_cure(node)}"
            )


def materialized(
    node: Node, path: Any, key: str | None, progress: Told | None, options: dict[str, Any]
) -> CompleteCache:
    """Keeps all that a plan gives, now.

    Raises:
        ArgumentTypeError: There is no path.
        SourceError: Not all of it could be kept.
    """
    if path is None:
        raise ArgumentTypeError("materialize() needs the path of a directory, got None. cache() keeps in memory.")
    if key is None and not _is_known(node):
        if os.path.isdir(path) and os.listdir(path):
            raise ArgumentTypeError(
                f"materialize() found files in {os.fspath(path)}, and cannot tell whether they are of this dataset: "
                "one of its steps holds an object without a fingerprint. Give another folder, or delete this one. To "
                "open later what a first call kept, give key='v1' in both calls, and another whenever the dataset "
                "changes."
            )
        key = f"made at {uuid.uuid4()}"  # nothing will be taken for it later
    step = cached(node, path, None, key, "materialize")
    if isinstance(step, CompleteCache):
        return step
    assert isinstance(step.store, CacheDirectory)
    _fill(step, progress, options)
    whole, files = step.store.complete(), step.store.files()
    if whole is None and node.access == "random" and not (files.length and files.tag):
        whole = Whole(node.spec, files.length)  # on another machine's disk nothing is trusted: reads compare checksums
    if whole is None:
        raise SourceError(
            f"materialize() could not keep all elements in {path}: see the log for why. Make room, or mend what "
            "failed, and call it again: it goes on from there."
        )
    return CompleteCache(step.store, step.text, whole, node, node.randomness)


def _is_known(node: Node) -> bool:
    """Whether a plan can be told from others."""
    try:
        table(node, [])
    except ArgumentTypeError:
        return False
    return True


def _fill(step: Cache, progress: Told | None, options: dict[str, Any]) -> None:
    count = 1
    if step.access == "random" and all(None not in leaf.shape for leaf in step.spec.leaves):
        count = max(1, min(_BATCH_COUNT, _BATCH_NBYTES // max(1, step.spec.nbytes)))
    plan = Bundle(step, count, drop_remainder=False) if count > 1 else step
    if step.length == 0:
        return
    total = step.length if isinstance(step.length, int) else None
    with (
        Loader(plan, LoaderOptions(**options)) as loader,
        ProgressLine("Keeping", total=total, told=progress) as line,
    ):
        for _ in loader:
            line.advance(count)
