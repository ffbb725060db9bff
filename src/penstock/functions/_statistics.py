"""`statistics`: mean, deviation and bounds of each leaf, over all elements."""

import math
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.memory._rows import chunk_count

Moments = list[tuple[Any, ...]]
"""For each leaf: the number of values, their mean, the sum of squared differences from it, least and greatest."""


class Statistics(NamedTuple):
    """Of the values of one leaf, see `statistics`. With `axis`, each but `count` is an array of those axes."""

    count: int  # type: ignore[assignment]  # replaces a method of tuples that is not used here
    """How many values there are, for each number below."""
    mean: Any
    """float64."""
    deviation: Any
    """The standard deviation, as `numpy.std` has it: of all these values, not an estimate from a sample. float64."""
    min: Any
    """In the dtype of the leaf."""
    max: Any


def statistics(
    dataset: Dataset,
    *,
    axis: int | Iterable[int] | None = None,
    path: str | os.PathLike[str] | None = None,
    key: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    **loader_options: Any,
) -> Tree:
    """Computes number, mean, deviation, least and greatest value of each leaf, over all elements of epoch 0.

    Sums of squares would lose digits. So each element has its own mean and squared differences, in float64, and two
    such are merged by the update of Chan, Golub and LeVeque ("Updating Formulae and a Pairwise Algorithm for Computing
    Sample Variances", 1979). Elements are merged in blocks, on workers, see `Dataset.reduce`: the result is the same in
    every run, to the bit, for any executor and any number of workers. A NaN makes all but the count a NaN, as in
    NumPy.

    Memory: a loader's.

    Args:
        dataset: Elements of numbers, in batches or not.
        axis: Axes of an element that are kept, as Keras's `Normalization` calls them: -1 gives a mean for each channel
            of images, and for each column of rows. None for one number a leaf, as a leaf without axes has anyway.
        path: See `Dataset.reduce`.
        key: See `Dataset.reduce`.
        progress: See `Dataset.materialize`.
        loader_options: See `Dataset.reduce`.

    Returns:
        A `Statistics` in place of each leaf.

    Raises:
        ArgumentTypeError: It is no dataset, or `axis` is no integer.
        ArgumentError: A leaf has no such axis, or one of any size; the dataset is endless, or has no value.
        SpecError: A leaf is not of numbers.

    Example:
        >>> x = np.array([[0, 10], [2, 10], [4, 40]])
        >>> found = penstock.statistics(penstock.from_arrays({"x": x, "y": np.array([1.0, 2.0, 6.0])}), axis=-1)
        >>> found["x"].mean, found["x"].max
        (array([ 2., 20.]), array([ 4, 40]))
        >>> count, mean, deviation, *bounds = found["y"]
        >>> count, float(mean), round(float(deviation), 3), [float(each) for each in bounds]
        (3, 3.0, 2.16, [1.0, 6.0])
    """
    if not isinstance(dataset, Dataset):
        raise ArgumentTypeError(f"statistics() takes a Dataset, and got {type_of(dataset)}.")
    tree, structure = _tree.flatten(dataset.element_spec)
    _require_numbers(dataset.element_spec, tree, structure)
    kept = [_kept_axes(leaf, place, axis) for leaf, place in zip(tree, _tree.paths(structure), strict=True)]
    spec = dataset._node.spec
    if all(None not in leaf.shape for leaf in tree):  # many elements at once: NumPy takes as long for one
        dataset = dataset.batch(max(1, chunk_count(spec) // 4))
        kept = [tuple(each + 1 for each in axes) for axes in kept]
    found: Moments = dataset.reduce(
        _Merging(kept), [], combine=merged, path=path, key=key, progress=progress, **loader_options
    )
    if not found or not all(count for count, *_ in found):
        raise ArgumentError("statistics(): there is no value of which there could be a mean.")
    with np.errstate(invalid="ignore"):
        return structure.unflatten(
            [Statistics(count, mean, np.sqrt(squares / count), *bounds) for count, mean, squares, *bounds in found]
        )


class _Merging:
    """For `reduce`: the moments of an element, merged into those of the elements before.

    Args:
        kept: For each leaf the axes that are kept.
    """

    releases_gil = True

    def __init__(self, kept: list[tuple[int, ...]]) -> None:
        self._kept = kept

    def __call__(self, state: Moments, element: Tree) -> Moments:
        """Merges one."""
        return merged(state, list(map(_moments, _tree.flatten(element)[0], self._kept)))


def merged(state: Moments, later: Moments) -> Moments:
    """The moments of the values of both, by Chan, Golub and LeVeque; see `statistics`."""
    return [_merged(*pair) for pair in zip(state, later, strict=True)] if state else later


def _merged(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    (n, mean, squares, least, most), (more, its_mean, its_squares, its_least, its_most) = one, other
    if not n or not more:
        return one if n else other
    count = n + more
    with np.errstate(invalid="ignore", over="ignore"):
        delta = its_mean - mean
        mean = mean + delta * (more / count)
        squares = squares + its_squares + delta**2 * (n * more / count)
    return count, mean, squares, np.minimum(least, its_least), np.maximum(most, its_most)


def _moments(leaf: Any, kept: tuple[int, ...]) -> tuple[Any, ...]:
    array = np.asarray(leaf)
    axes = tuple(number for number in range(array.ndim) if number not in kept)
    count = math.prod(array.shape[number] for number in axes)
    if not array.size:
        return 0, 0.0, 0.0, 0, 0
    values = array.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = values.mean(axis=axes, keepdims=True)
        squares = ((values - mean) ** 2).sum(axis=axes)
    return count, mean.squeeze(axes)[()], squares, array.min(axis=axes), array.max(axis=axes)


def _require_numbers(element: Tree, leaves: list[ArraySpec], structure: Any) -> None:
    for place, leaf in zip(_tree.paths(structure), leaves, strict=True):
        if leaf.dtype.kind not in "biuf":
            cure = "map(lambda element: element[0])"
            if isinstance(element, dict):
                numbers = [
                    name for name, part in element.items() if isinstance(part, ArraySpec) and part.dtype.kind in "biuf"
                ]
                cure = f"select({', '.join(map(repr, numbers))})"
            raise SpecError(f"statistics() are of numbers, but element{place} is {leaf}. Leave it out: {cure}.")


def _kept_axes(leaf: ArraySpec, place: str, axis: int | Iterable[int] | None) -> tuple[int, ...]:
    """The axes of a leaf that are kept, from 0 on; none of a single number."""
    if axis is None or not leaf.shape:
        return ()
    where = f"statistics(axis={axis!r:.80}): element{place} is {leaf}"
    try:
        kept: tuple[int, ...] = normalize_axis_tuple(axis, len(leaf.shape))
    except TypeError as error:
        raise ArgumentTypeError(f"{where}: {error}.") from None
    except ValueError as error:
        raise ArgumentError(f"{where}: {error}.") from None
    if any(leaf.shape[number] is None for number in kept):
        raise ArgumentError(f"{where}, without such an axis of one size.")
    return kept
