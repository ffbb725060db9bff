"""Shape and dtype of every leaf of an element, known before it is read."""

import math
import operator
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, SpecError, type_of
from penstock.base._tree import Structure, Tree

Shape = tuple[int | None, ...]

MAX_DIMS: Final = 64
"""The most axes of an array of NumPy."""

_NO_MASKS: Final = ", and a batch has no masks (return it.filled(0), with it.mask as another leaf)"


@final
@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of one leaf of an element.

    An axis of `None` differs from element to element: the first axis of a batch whose last may be short,
    or a ragged axis. A dtype of zero bytes (`np.dtype("U")`, `np.dtype("S")`) is text or bytes of any size.

    Example:
        >>> ArraySpec((None, 28, 28), "float32", max_shape=(32, 28, 28))
        ArraySpec((None, 28, 28), float32)
        >>> ArraySpec((3, 50, 50), "float64").nbytes
        60000
    """

    shape: Shape
    """Sizes of the axes; `None` for an axis that varies."""
    dtype: np.dtype[Any]
    """The NumPy dtype; anything that `np.dtype` takes is accepted. Axes of its own become the last of `shape`."""
    max_shape: tuple[int, ...] | None = field(default=None, compare=False)
    """The largest possible shape; not part of equality. Known for batches. Unknown for ragged leaves, whose other axes
    vary too, or whose largest size was not declared."""

    if TYPE_CHECKING:

        def __init__(
            self, shape: Sequence[int | None], dtype: npt.DTypeLike, max_shape: Sequence[int] | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        shape, dtype, largest = _sizes(self.shape), _dtype(self.shape, self.dtype), self.max_shape
        if dtype.subdtype is not None:  # as NumPy does where it makes an array of such a dtype
            dtype, axes = dtype.subdtype
            shape, largest = (*shape, *axes), None if largest is None else (*largest, *axes)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        if dtype.hasobject:
            raise SpecError(
                f"{self} holds Python objects, which have no place in a batch. Elements are numbers, records, text or "
                'bytes: np.dtype("U20") is text of up to 20 characters, np.dtype("U") of any number.'
            )
        if len(shape) > MAX_DIMS:
            raise SpecError(
                f"An array of {len(shape)} axes was to be made, and arrays of NumPy have at most {MAX_DIMS}. A batch "
                "or a window has an axis more than its elements. Join axes of 1 before: x.reshape(...)."
            )
        object.__setattr__(self, "max_shape", self._bounds(shape if largest is None else _sizes(largest)))

    def _bounds(self, sizes: Shape) -> Shape | None:
        """The largest shape; None where another axis than the first may be shorter, for which a place has no words."""
        are_sizes = len(sizes) == len(self.shape) and all(map(_is_bound, self.shape, sizes))
        if self.max_shape is not None and not are_sizes:
            raise ArgumentError(
                f"ArraySpec({self.shape}, ..., max_shape={sizes}): the largest shape has a size for each axis, and the "
                "same where that is not None."
            )
        return sizes if are_sizes and None not in self.shape[1:] else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the largest such array, or None where that is not known."""
        if self.max_shape is None or self.dtype.itemsize == 0:
            return None
        return math.prod(self.max_shape) * self.dtype.itemsize

    @property
    def is_bounded(self) -> bool:
        """Whether such an array has a place of a size known ahead, so that it can live in a slot."""
        return self.nbytes is not None

    @property
    def varies(self) -> bool:
        """Whether the first axis may be shorter than its place."""
        return self.max_shape is not None and None in self.shape

    def admits(self, shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
        """Whether an array of this shape and dtype is one that this spec describes."""
        if dtype != self.dtype and not (self.dtype.itemsize == 0 and dtype.kind == self.dtype.kind):
            return False
        if tuple(shape) == self.shape:
            return True
        axes = zip(shape, self.shape, self.max_shape or self.shape, strict=False)
        return len(shape) == len(self.shape) and all(
            size == want or (want is None and (bound is None or size <= bound)) for size, want, bound in axes
        )

    def stacked(self, count: int, *, exact: bool = True) -> "ArraySpec":
        """The spec of up to `count` such arrays, or exactly so many, along a new first axis."""
        maximum = None if self.max_shape is None else (count, *self.max_shape)
        return ArraySpec((count if exact else None, *self.shape), self.dtype, maximum)

    def unstacked(self) -> "ArraySpec":
        """The spec of one of the arrays that are stacked along the first axis."""
        return ArraySpec(self.shape[1:], self.dtype, None if self.max_shape is None else self.max_shape[1:])

    def __repr__(self) -> str:
        return f"ArraySpec({self.shape}, {_dtype_text(self.dtype)})"

    def __str__(self) -> str:
        return f"{self.shape} {_dtype_text(self.dtype)}"


def _is_bound(size: int | None, most: int | None) -> bool:
    return most is not None and size in (None, most)


def _dtype(shape: Any, dtype: Any) -> np.dtype[Any]:
    """The dtype that is meant. NumPy's for None is float64, which nobody wrote."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"ArraySpec({shape!r:.80}, {dtype!r:.80}): {error}.") from None
    if dtype is None:
        raise ArgumentTypeError(f"ArraySpec({shape!r:.80}, None): a dtype is needed, such as 'float32'.")
    return found


def _sizes(shape: Any) -> Shape:
    """A shape in numbers of Python, whatever they were."""
    try:
        if isinstance(shape, (str, bytes, Mapping, set, frozenset)):
            raise TypeError
        sizes = tuple(None if size is None else operator.index(size) for size in shape)
    except TypeError:
        raise ArgumentTypeError(
            f"ArraySpec({shape!r:.80}, ...): a shape is a tuple of integers, such as (28, 28), (3,) or ()."
        ) from None
    if any(size is not None and size < 0 for size in sizes):
        raise ArgumentError(f"ArraySpec({sizes}, ...): sizes are from 0 on, and None for an axis that differs.")
    return sizes


@final
@dataclass(frozen=True)
class Spec:
    """A tree of `ArraySpec`, kept flat: the leaves in order, and the structure that holds them."""

    leaves: tuple[ArraySpec, ...]
    structure: Structure

    @classmethod
    def of(cls, tree: Tree) -> "Spec":
        """Makes a spec of a tree of `ArraySpec`s (or of anything with `.shape` and `.dtype`).

        Raises:
            SpecError: A leaf has no shape or no dtype, or there is none.
        """
        leaves, structure = _tree.flatten(tree)
        if not leaves:
            raise SpecError(f"element_spec is {tree!r}, which has no array, so an element would hold nothing.")
        places = _tree.paths(structure)
        return cls(tuple(_as_array_spec(*pair) for pair in zip(leaves, places, strict=True)), structure)

    @cached_property
    def tree(self) -> Tree:
        """The tree of `ArraySpec`s that a user sees as `element_spec`."""
        return self.structure.unflatten(self.leaves)

    @cached_property
    def is_lone(self) -> bool:
        """Whether an element is a single array, in no container."""
        return self.structure.is_leaf()

    @cached_property
    def is_sized(self) -> bool:
        """Whether every leaf has a largest shape."""
        return all(leaf.max_shape is not None for leaf in self.leaves)

    @cached_property
    def free_ranks(self) -> tuple[int, ...]:
        """For each leaf of which every axis may have any size how many axes it has; of others -1."""
        return tuple(
            len(leaf.shape) if leaf.max_shape is None and set(leaf.shape) == {None} else -1 for leaf in self.leaves
        )

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one element in a slot; leaves of unknown size count as nothing."""
        return sum(leaf.nbytes or 0 for leaf in self.leaves)

    @property
    def is_bounded(self) -> bool:
        """Whether every leaf has a place of known size."""
        return all(leaf.is_bounded for leaf in self.leaves)

    def stacked(self, count: int, *, exact: bool = True) -> "Spec":
        """The spec of `count` such elements, every leaf with a new first axis."""
        return Spec(tuple(leaf.stacked(count, exact=exact) for leaf in self.leaves), self.structure)

    def unstacked(self) -> "Spec":
        """The spec of one part: every leaf without its first axis."""
        return Spec(tuple(leaf.unstacked() for leaf in self.leaves), self.structure)

    def loosened(self) -> "Spec":
        """With axes of any size. Those of text stay."""
        shapes = (leaf.shape if leaf.dtype.itemsize == 0 else (None,) * len(leaf.shape) for leaf in self.leaves)
        leaves = (ArraySpec(shape, leaf.dtype) for shape, leaf in zip(shapes, self.leaves, strict=True))
        return Spec(tuple(leaves), self.structure)

    def divided(self, count: int) -> "Spec":
        """The spec of one of `count` shares of the first axis, which differ by one at most."""
        return Spec(tuple(_divided(leaf, count) for leaf in self.leaves), self.structure)

    def unbounded(self) -> "Spec":
        """The leaves without a place of known size, as a tuple."""
        leaves = tuple(leaf for leaf in self.leaves if not leaf.is_bounded)
        return Spec(leaves, _tree.flatten(leaves)[1])

    def merged(self, other: "Spec") -> "Spec":
        """The spec of elements that may come from either; the sizes of places are the larger ones.

        Raises:
            SpecError: The two differ in structure, shape or dtype.
        """
        if self.structure != other.structure:
            raise SpecError(f"one has the structure {self}, the other {other}")
        return Spec(tuple(map(_merged, self.leaves, other.leaves)), self.structure)

    def fingerprint_parts(self) -> dict[str, Any]:
        """What tells it from another; see `base/_fingerprint.py`."""
        return {
            "leaves": [(leaf, leaf.max_shape) for leaf in self.leaves],
            "structure": _tree.text_of_structure(self.structure),
        }

    def __str__(self) -> str:
        return repr(self.structure.unflatten([Verbatim(leaf) for leaf in self.leaves]))


def _divided(leaf: ArraySpec, count: int) -> ArraySpec:
    size = (leaf.max_shape or (0,))[0]
    return leaf.unstacked().stacked(-(-size // count), exact=not (leaf.varies or size % count))


class Verbatim(str):
    """Prints without quotes, so that a tree of texts reads as one text."""

    __slots__ = ()
    __repr__ = str.__str__


def _as_array_spec(leaf: object, place: str) -> ArraySpec:
    if isinstance(leaf, ArraySpec):
        return leaf
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None or isinstance(leaf, type):  # `np.float32` has both, as descriptors
        raise SpecError(
            f"element_spec{place} is {leaf!r}, which has no shape and dtype. "
            'Write penstock.ArraySpec(shape, dtype), such as ArraySpec((28, 28), "uint8").'
        )
    return ArraySpec(tuple(shape), np.dtype(dtype))


def _merged(one: ArraySpec, other: ArraySpec) -> ArraySpec:
    if one.dtype != other.dtype or len(one.shape) != len(other.shape) or one.shape[1:] != other.shape[1:]:
        raise SpecError(f"one has a leaf of {one}, the other of {other}")
    if one.shape == other.shape and one.max_shape == other.max_shape:
        return one
    if one.shape != other.shape and None not in (one.shape[0], other.shape[0]):
        raise SpecError(f"one has a leaf of {one}, the other of {other}")
    if one.max_shape is None or other.max_shape is None:
        return ArraySpec((None, *one.shape[1:]), one.dtype)
    return ArraySpec((None, *one.shape[1:]), one.dtype, tuple(map(max, one.max_shape, other.max_shape)))


def leaf_of(value: object) -> npt.NDArray[Any] | str | bytes:
    """Returns a leaf that a function returned as what is stored: an array, or text or bytes as they are.

    Lists and numbers become arrays as `np.asarray` makes them (int64, float64, bool); nothing is cast.

    Raises:
        SpecError: NumPy can only hold it as Python objects (a ragged list, None, an object), or not at all, or not
            whole (bytes in a list that end in zeros); or would take its names for its arrays, or what is masked for
            what is not.
    """
    if isinstance(value, (str, bytes)):
        return value
    if hasattr(value, "keys") and not hasattr(value, "__array__"):  # a tokenizer's result, an archive of np.load
        raise SpecError(f"{type_of(value)}, which has arrays by name (return dict(it), or one of them)")
    if is_masked(value):
        raise SpecError(f"a masked array{_NO_MASKS}")
    try:
        array = np.asarray(value)
    except PenstockError:
        raise
    # Tensors refuse with other types: one with a gradient, on a GPU, of bfloat16.
    except (ValueError, TypeError, RuntimeError) as error:
        why = str(error).rstrip(".")
        if "inhomogeneous shape" in why:
            why = (
                "its parts are of several shapes (return a tuple, (a, b), which has an array for each part; what is of "
                "several lengths is padded, or returned one by one for padded_batch(); in map(batched=), element_spec= "
                "says which axis differs)"
            )
        elif "unsupported ScalarType" in why:  # torch's words for a dtype that NumPy has not
            why += " (return tensor.float(), and make the batch of that type)"
        raise SpecError(f"{type_of(value)} that is not an array: {why}") from None
    if array.dtype.itemsize == 0 and array.dtype.kind == "V":
        raise SpecError(f"{type_of(value)} of values of no bytes at all (dtype {array.dtype}). Leave it out")
    if array.dtype.hasobject:
        cure = " (write str(path))" if isinstance(value, os.PathLike) else ""
        if isinstance(value, list) and any(isinstance(each, (dict, tuple)) for each in value):
            cure = " (several elements are for flat_map(); parts of one stand in a tuple or a dict)"
        raise SpecError(f"{type_of(value)}, which is not an array of numbers, text or bytes{cure}")
    if isinstance(value, list):
        if loses_masks(value, array):
            raise SpecError(f"a list of masked arrays{_NO_MASKS}")
        if loses_zeros(value, array):
            raise SpecError(
                f"a list of {'bytes' if array.dtype.kind == 'S' else 'text'} of which one ends in a zero, and "
                "arrays of NumPy drop zeros at the end. Give each as a leaf of its own, or as numbers: "
                "np.frombuffer(x, np.uint8)"
            )
    return array


def loses_masks(value: object, array: npt.NDArray[Any]) -> bool:
    """Whether a list has arrays of which something is masked, which an array that was made of it does not keep."""
    return isinstance(value, list) and array.ndim > 1 and any(map(is_masked, value))


def is_masked(value: object) -> bool:
    """Whether it is an array of which something is masked; of records, a field."""
    masked = sys.modules.get("numpy.ma")  # NumPy imports it when it is first used, which takes 45 ms
    if masked is None or not isinstance(value, masked.MaskedArray):
        return False
    mask = masked.getmask(value)
    return b"\1" in mask.tobytes() if mask.dtype.names else bool(mask.any())


def loses_zeros(value: object, array: npt.NDArray[Any]) -> bool:
    """Whether a list has text or bytes that end in a zero, which an array that was made of it does not keep."""
    if array.dtype.kind not in "US" or not isinstance(value, list):
        return False
    texts = np.array(value, object).flat
    return any(isinstance(text, (str, bytes)) and text[-1:] in ("\0", b"\0") for text in texts)


def spec_of_leaf(leaf: npt.NDArray[Any] | str | bytes) -> ArraySpec:
    """Returns the spec of a leaf as `leaf_of` returns it; text and bytes are of any size."""
    if isinstance(leaf, np.ndarray):
        return ArraySpec(leaf.shape, leaf.dtype)
    return ArraySpec((), np.dtype("U" if isinstance(leaf, str) else "S"))


def text_of_element(element: Tree) -> str:
    """Returns what an element looks like, in the words of an `element_spec`, whatever its leaves are."""
    leaves, structure = _tree.flatten(element)
    return repr(structure.unflatten([Verbatim(_text_of_leaf(leaf)) for leaf in leaves]))


def _text_of_leaf(leaf: object) -> str:
    try:
        return str(spec_of_leaf(leaf_of(leaf)))
    except SpecError:
        return type(leaf).__name__


def _dtype_text(dtype: np.dtype[Any]) -> str:
    if dtype.itemsize == 0:
        return {"U": "text", "S": "bytes"}.get(dtype.kind, str(dtype))
    return str(dtype)
