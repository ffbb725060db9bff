"""`split`, and the cuts of `take`, `skip`, `shard` and slices."""

import logging
from collections.abc import Sequence

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError
from penstock.memory._rows import Indices
from penstock.plan._cautions import caution_cut, reordering
from penstock.plan._index import Select, Shuffle, repeats, scatters_overlaps, sliced
from penstock.plan._node import POSITION_LIMIT, Node, clear_after, finite_length, history, walk
from penstock.plan._pick import Pick
from penstock.plan._split import boundaries, by_classes, by_groups, require_apart
from penstock.verbs._asked import integer, require_finite, require_random
from penstock.verbs._labels import Labels, labels_of

_log = logging.getLogger("penstock")


def cut(node: Node, verb: str, text: str, start: int | None, stop: int | None, step: int | None) -> Node:
    """A slice of a plan, as a verb or a user wrote it.

    Raises:
        ArgumentError: It is not possible here.
    """
    given = (start, stop, step)
    numbers = [as_int(each) for each in given]
    if any(number is None and each is not None for number, each in zip(numbers, given, strict=True)):
        raise ArgumentTypeError(f"A slice of a dataset needs integers, got [{text}].")
    try:
        made = sliced(node, verb, text, *numbers)
    except ValueError as error:
        raise ArgumentError(f"[{text}] is not possible here: {error}.") from None
    if made.start >= POSITION_LIMIT:
        raise ArgumentError(f"[{text}] is not possible here: positions go up to 2**62 - 1.")
    caution_cut(made)
    return made


def split(
    node: Node, parts: tuple[float, ...], groups: Labels | None, stratify: Labels | None, seed: int | None
) -> list[Node]:
    """The parts of a plan; see `Dataset.split`."""
    require_finite(node, "split", "Use take(n) first.")
    parts = tuple(part if (number := as_int(part)) is None else number for part in parts)
    count = finite_length(node)
    if node.randomness.reorders:
        steps, keeps = reordering(node)
        raise ArgumentError(
            f"split() after {steps} would let elements wander between the parts, for each epoch has an order of "
            f"its own. Split first{' and shuffle each part' if keeps else ', and do so in each part'}{keeps}."
        )
    if repeats(node):
        raise ArgumentError(
            "split() after repeat() would put the same element into several parts. Split first and repeat each part."
        )
    if any(isinstance(each, Pick) and each.has_twins for each in walk(node, history)):
        raise ArgumentError(
            "split() after an array of indices that has some of them twice would put the same element into several "
            "parts. Split first, or give each index once: ds[numpy.unique(indices)]."
        )
    if groups is not None or stratify is not None or seed is not None:
        require_random(node, "split(groups=, stratify=, seed=)", "Split by range")
    if groups is not None and stratify is not None:
        raise ArgumentError(
            "split(groups=..., stratify=...): whole groups have the classes that they have. Give one of the two. "
            "Or split the names of the groups, from_arrays(names).split(..., stratify=a class for each), and take "
            "the elements of each part: ds[numpy.isin(groups, part)]."
        )
    seed = None if seed is None else integer("split", "seed", seed)
    if all(isinstance(part, int) for part in parts) and sum(parts) == 100 < count:
        fractions = ", ".join(f"{part / 100:g}" for part in parts)
        _log.warning(
            "split(%s) makes parts of these sizes, and leaves out the other %d of %d. If these are per cent, "
            "write split(%s).", ", ".join(map(str, parts)), count - 100, count, fractions,
        )  # fmt: skip
    if len(parts) == 1 and isinstance(parts[0], float) and 0 < parts[0] < 1:
        _log.warning(
            "split(%g) makes one part, and leaves out the rest. For both, write split(%g, %g).",
            parts[0], parts[0], 1 - parts[0],
        )  # fmt: skip
    if groups is not None:
        chosen = by_groups(labels_of(node, "split(groups=...)", groups), parts, seed)
        require_apart(node, chosen, count)
        for number, (part, members) in enumerate(zip(parts, chosen, strict=True)):
            if part and not len(members):
                _log.warning(
                    "split(%s, groups=...) leaves part %d empty: groups stay whole, and none is so small. Whole "
                    "numbers are counts of elements; shares are fractions, such as 0.8, 0.2.",
                    ", ".join(map(str, parts)), number,
                )  # fmt: skip
        return _chosen(node, parts, chosen)
    scattering = scatters_overlaps(node)
    if scattering is not None:
        groups_cure = ", or give groups=, a label a window" if node.access == "random" else ""
        raise ArgumentError(
            f"split() after {scattering.verb}() of overlapping windows would make parts that share data. Put "
            f"split() before {scattering.verb}(){groups_cure}."
        )
    if node.overlap != "none" and (seed is not None or stratify is not None):
        dealt_by = "stratify" if seed is None else "seed"
        raise ArgumentError(
            f"split({dealt_by}=...) would deal overlapping windows to different parts, which would then share "
            f"data. Split by range (no {dealt_by}), or give groups=, a label a window. Or split the elements, and "
            "make the windows of each part."
        )
    if stratify is not None:
        return _chosen(node, parts, by_classes(labels_of(node, "split(stratify=...)", stratify), parts, seed))
    ends = boundaries(parts, count)
    return _ranges(node if seed is None else Shuffle(node, seed, None, reshuffle=False), parts, ends)


def _chosen(node: Node, parts: Sequence[float], chosen: Sequence[Indices]) -> list[Node]:
    results: list[Node] = []
    for number, positions in enumerate(chosen):
        name, count = f"{number} of {parts}", len(positions)
        first, last = (int(positions[0]), int(positions[-1])) if count else (0, -1)
        if last - first + 1 == count:  # they ascend
            results.append(cut(node, "split", name, first, first + count, None))
        else:
            results.append(Select(node, "split", name, positions))
    return results


def _ranges(node: Node, parts: Sequence[float], ends: list[int]) -> list[Node]:
    """Cuts at the given ends; where elements overlap, a part begins where nothing of the one before is left."""
    results: list[Node] = []
    start = 0
    for number, end in enumerate(ends):
        results.append(sliced(node, "split", f"{number} of {tuple(parts)}", min(start, end), end, None))
        start = end
        if 0 < end < (node.length or 0):
            start = clear_after(node, end - 1)
            if start > end:
                _log.info(
                    "split() left out %d windows after position %d: they share data with both sides.",
                    start - end,
                    end,
                )
    return results
