"""Where to cut a dataset into parts without a common element."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._random import permute
from penstock.memory._rows import Indices, within
from penstock.plan._node import Node, clear_after

Part = float | int


def boundaries(parts: Sequence[Part], count: int) -> list[int]:
    """Returns the end of each part: fractions of `count`, or counts of elements.

    Part `k` of fractions ends at `floor(count * (sum of the first k) + 0.5)`, and fractions that sum to 1
    leave nothing out. The sum is that of the decimals as they are written: 0.1 + 0.2 is 0.3.

    Raises:
        ArgumentError: Negative parts, or more than there is.
        ArgumentTypeError: Not numbers, or fractions and counts mixed.
    """
    if not parts:
        raise ArgumentError("split() got no parts. Give fractions, split(0.8, 0.2), or counts, split(800, 200).")
    part: Any  # whatever a user gave
    for part in parts:
        if as_int(part) is None and not isinstance(part, (float, np.floating)):
            cure = " Write split(0.8, 0.2), or with a star: split(*parts)." if isinstance(part, (list, tuple)) else ""
            raise ArgumentTypeError(f"split() takes fractions or counts, got {part!r:.80}, {type_of(part)}.{cure}")
        if not 0 <= part < math.inf:
            raise ArgumentError(f"split() got the part {part!r}. A part is a fraction from 0 to 1, or a count.")
    parts = [part if (whole := as_int(part)) is None else whole for part in parts]
    are_counts = [isinstance(part, int) for part in parts]
    if (
        any(are_counts)
        and not all(are_counts)
        and not all(part in (0, 1) for part, is_count in zip(parts, are_counts, strict=True) if is_count)
    ):
        raise ArgumentTypeError(f"split{tuple(parts)} mixes fractions and counts. Use one kind.")
    if all(are_counts):
        ends = np.cumsum(np.array(parts, dtype=object)).tolist()
        if ends[-1] > count:
            raise ArgumentError(f"split{tuple(parts)} asks for {ends[-1]} elements, but the dataset has {count}.")
        return [int(end) for end in ends]
    shares = [Fraction(str(part)) for part in parts]
    if sum(shares) > 1:
        # Decimals that are cut off, such as three times 0.3333333333333334, may exceed 1 by a hair.
        if sum(shares) > 1 + Fraction(1, 10**9):
            raise ArgumentError(f"split{tuple(parts)}: the fractions sum to {float(sum(shares))}, above 1.")
        shares = [share / sum(shares) for share in shares]
    sums = [sum(shares[: k + 1], Fraction(0)) for k in range(len(shares))]
    if abs(1 - sums[-1]) < Fraction(1, 10**9):
        sums[-1] = Fraction(1)
    return [math.floor(count * share + Fraction(1, 2)) for share in sums]


def by_groups(labels: npt.NDArray[Any], parts: Sequence[Part], seed: int | None) -> list[Indices]:
    """Deals whole groups to parts: all elements with the same label go to the same part.

    Args:
        labels: A label an element, `(n,)`.
        parts: Fractions of the elements, or counts, as for `boundaries`.
        seed: Of the order of the groups; None for the order of first appearance.

    Returns:
        The positions of each part, ascending. A group goes to the part in which its middle element falls,
        so that a part is off by at most half a group at each end.
    """
    ends = boundaries(parts, len(labels))
    _, first, inverse, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    sequence = np.argsort(first, kind="stable")
    if seed is not None:
        sequence = sequence[permute(np.arange(len(sequence)), len(sequence), seed=seed, epoch=0)]
    after = np.cumsum(sizes[sequence])
    middles = after - sizes[sequence] / 2
    part_of_group = np.empty(len(sizes), np.int64)
    part_of_group[sequence] = np.searchsorted(np.array(ends), middles, side="left")
    part_of_element = part_of_group[inverse.ravel()]
    return [np.flatnonzero(part_of_element == part).astype(np.int64) for part in range(len(parts))]


def by_classes(labels: npt.NDArray[Any], parts: Sequence[Part], seed: int | None) -> list[Indices]:
    """Deals the elements of each class to parts in the parts' proportions.

    Parts are as large as `boundaries` has them. The first has its share of each class, rounded up or down; each
    later one has its share, rounded up or down, of what is left.

    Args:
        labels: The class of each element, `(n,)`.
        parts: Fractions of the elements, or counts, as for `boundaries`.
        seed: Of the order in which the elements of a class are dealt; None for their own order.

    Returns:
        The positions of each part, ascending.
    """
    part_sizes = np.diff(boundaries(parts, len(labels)), prepend=0)
    positions = np.arange(len(labels))
    if seed is not None:
        positions = permute(positions, len(labels), seed=seed, epoch=0)
    _, first, inverse, sizes = np.unique(labels[positions], return_index=True, return_inverse=True, return_counts=True)
    inverse = inverse.ravel()
    # Classes in the order in which they first come, so that chance says which of several small ones a part gets.
    sequence = np.argsort(first)
    left, shares = sizes[sequence], np.empty((len(parts), len(sizes)), np.int64)
    for number, part_size in enumerate(part_sizes.tolist()):
        # Classes lie side by side on a line, of which a part takes elements at even distances: so it takes, of any
        # stretch, what is due, rounded up or down, and in all exactly as many as it has.
        edges = np.cumsum(left, dtype=np.int64)
        taken = (2 * part_size * edges + edges[-1:]) // (2 * np.maximum(edges[-1:], 1))
        shares[number, sequence] = np.diff(taken, prepend=0)
        left = left - shares[number, sequence]
    ends = np.cumsum(shares, axis=0)
    # Each element's number among those of its class.
    by_class = np.argsort(inverse, kind="stable")
    numbers = np.empty(len(labels), np.int64)
    numbers[by_class] = within(sizes)
    part_of = np.zeros(len(labels), np.int64)
    for end in ends:
        part_of += numbers >= end[inverse]
    return [np.sort(positions[part_of == part]).astype(np.int64) for part in range(len(parts))]


def require_apart(node: Node, parts: Sequence[Indices], count: int) -> None:
    """Refuses parts of overlapping elements that meet where elements share data.

    Raises:
        ArgumentError: Names two such elements.
    """
    if node.overlap == "none":
        return
    part_of = np.full(count, -1)
    for number, positions in enumerate(parts):
        part_of[positions] = number
    for border in np.flatnonzero(part_of[1:] != part_of[:-1]).tolist():
        if clear_after(node, border) > border + 1:
            raise ArgumentError(
                f"split(groups=...): elements {border} and {border + 1} are of different parts, but share data, for "
                "windows overlap. Make the windows in the same groups: windows(groups=...), a label a frame."
            )
