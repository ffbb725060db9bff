"""Whether what a function or an object of the user gave is an element of a spec."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, type_of
from penstock.base._positions import as_values, columns_of, is_table, require_elements
from penstock.base._spec import ArraySpec, Shape, Spec, leaf_of, spec_of_leaf, text_of_element
from penstock.base._tree import Tree
from penstock.memory._rows import Leaves

_ALIKE: Final = (
    "Every element of a dataset has one structure, shape and dtype: give each the same, or say which axis differs: "
)

_NONE: Final = "None has its place in every element of a dataset, or in none"

_ANY_LENGTH: Final = "element_spec=ArraySpec((None,), dtype)"


@final
class MisfitError(Exception):
    """An element is not as its spec says. The message is what was found instead: `an array of (3,) int64`."""

    def __init__(self, found: str, cure: str = _ANY_LENGTH, *, is_number: bool = False) -> None:
        super().__init__(found)
        self.is_number = is_number
        """Whether numbers of another dtype were found."""
        self.cure = cure
        """The spec that would admit it, and what came before, as one writes it; empty where none would."""


def conformed(spec: Spec, value: Tree) -> Leaves:
    """Returns the leaves of an element, each an array or text, after looking at each.

    Raises:
        MisfitError: Structure, shape or dtype are not those of the spec.
    """
    plain = value
    try:
        leaves: list[Any] = [value] if spec.is_lone else spec.structure.flatten_up_to(value)
    except ValueError:
        plain = as_plain(value)
        if plain is value:
            raise _other_structure(spec, value) from None
    if plain is not value:
        return conformed(spec, plain)
    # Counted by hand: it is done for each leaf of each element, and `enumerate` takes longer than a comparison.
    number = 0
    ranks = spec.free_ranks
    for want in spec.leaves:
        leaf = leaves[number]
        is_plain = type(leaf) is np.ndarray or isinstance(leaf, np.generic)
        if (
            not is_plain
            or leaf.dtype != want.dtype
            or not (leaf.shape == want.shape or leaf.ndim == ranks[number] or want.admits(leaf.shape, want.dtype))
        ):
            if _tree.is_structure(leaf):
                raise _other_structure(spec, value)
            leaves[number] = _conformed_leaf(spec, number, want, leaf)
        number += 1  # noqa: SIM113
    return leaves


def as_plain(value: Tree) -> Tree:
    """Replaces other mappings, dataclasses and tables by dicts, if there are any. A table has its columns.

    Raises:
        MisfitError: A column has no values that NumPy has, or shares its name.
    """
    tree = _tree.as_plain(value)
    leaves, structure = _tree.flatten(tree)
    if not any(map(is_table, leaves)):
        return tree
    try:
        columns = [columns_of(leaf) for leaf in leaves]
        arrays = [each and {name: as_values(each[name], f"its column {name!r}") for name in each} for each in columns]
    except (ArgumentError, ArgumentTypeError) as error:
        raise MisfitError(f"a table, which is no dict of arrays ({str(error).rstrip('.')})", "") from None
    return structure.unflatten([leaf if each is None else each for leaf, each in zip(leaves, arrays, strict=True)])


def _other_structure(spec: Spec, value: Tree) -> MisfitError:
    text = f"the structure {text_of_element(value)}"
    here, wanted = (sum(leaf is None for leaf in _tree.flatten_values(tree)[0]) for tree in (value, spec.tree))
    return MisfitError(text) if here == wanted else MisfitError(f"{text} ({_NONE})", "")


def _conformed_leaf(spec: Spec, number: int, want: ArraySpec, leaf: Any) -> npt.NDArray[Any] | str | bytes:
    """One leaf, looked at in full."""
    try:
        found = leaf if type(leaf) is np.ndarray and not leaf.dtype.hasobject else leaf_of(leaf)
    except SpecError as error:
        cure = f" ({_NONE})" if leaf is None else ""
        raise MisfitError(f"a leaf{_place(spec, number)} that is {error}{cure}", "") from None
    if isinstance(found, np.ndarray):
        if found.dtype != want.dtype and isinstance(leaf, np.generic) and found.dtype == want.dtype.newbyteorder("="):
            found = found.astype(want.dtype)  # a scalar is in the machine's byte order, whatever it was taken from
        if isinstance(leaf, list) and not found.size:
            # NumPy calls the numbers of an empty list float64, and knows nothing of the axes of what is not there.
            is_bare = found.ndim == 1 and want.shape[:1] == (None,)
            found = np.empty(_empty_shape(want) if is_bare else found.shape, want.dtype)
        if found.dtype != want.dtype and (cast := _cast(found, want.dtype)) is not None:
            found = cast
        if not want.admits(found.shape, found.dtype):
            raise _other_shape(spec, number, want, found)
        return found
    if want.shape == () and want.dtype.kind == spec_of_leaf(found).dtype.kind:
        if want.dtype.itemsize == 0:
            # Plain text: an enumeration of the user's is text too, but none that others know.
            return str.__str__(found) if isinstance(found, str) else bytes(found)
        if _fits(found, want.dtype):
            return np.array(found, want.dtype)
    raise MisfitError(f"{type_of(found)}{_where(spec, number)}")


def _cast(found: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """The same numbers in another dtype; None if one could change. For floats that depends on the dtypes alone."""
    if found.dtype.kind in "fc":
        return found.astype(dtype) if np.can_cast(found.dtype, dtype, "safe") else None
    if found.dtype.kind not in "iu" or dtype.kind not in "iufc":
        return None
    low, high = (int(found.min()), int(found.max())) if found.size else (0, 0)
    if dtype.kind in "iu":
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    else:
        most = 2 << np.finfo(dtype).nmant  # up to here, each integer has a float
        least = -most
    return found.astype(dtype) if least <= low and high <= most else None


def _other_shape(spec: Spec, number: int, want: ArraySpec, found: npt.NDArray[Any]) -> MisfitError:
    what = f"an array of {spec_of_leaf(found)}{_where(spec, number)}"
    if found.dtype != want.dtype and found.dtype.kind in "biufc" and want.dtype.kind in "biufc":
        have, need = repr(str(found.dtype)), repr(str(want.dtype))
        cure = f"Return np.asarray(x, {need}); or declare ArraySpec({found.shape}, {have}) in element_spec=, and write "
        return MisfitError(what, f"{cure}cast({need}) after this step", is_number=True)
    if found.dtype != want.dtype or not want.shape:
        return MisfitError(what)
    if found.shape == (0,) and len(want.shape) > 1:
        return MisfitError(
            f"{what} (where nothing is, np.zeros({_empty_shape(want)}, {str(want.dtype)!r}) has its axes)"
        )
    if found.ndim != len(want.shape):
        return MisfitError(what)
    shape: Shape = tuple(size if size == had else None for size, had in zip(found.shape, want.shape, strict=True))
    leaf = f"ArraySpec({shape}, {str(want.dtype)!r})"
    if shape == want.shape:
        what += f", larger than its max_shape {want.max_shape}"
    place = _place(spec, number)
    return MisfitError(
        what, f"element_spec=, like the element, with {leaf} at {place}" if place else f"element_spec={leaf}"
    )


def _empty_shape(spec: ArraySpec) -> tuple[int, ...]:
    return (0, *(size or 0 for size in spec.shape[1:]))


def _place(spec: Spec, number: int) -> str:
    return _tree.paths(spec.structure)[number]


def _where(spec: Spec, number: int) -> str:
    """Which of several leaves; nothing of a lone one."""
    return f" in {place}" if (place := _place(spec, number)) else ""


def _fits(text: Any, dtype: np.dtype[Any]) -> bool:
    return bool(np.array(text, dtype).item() == text)  # as Python's: NumPy's own have lost zeros at their ends, too


def observed(value: Tree) -> Spec:
    """Returns the spec of an element that a function returned.

    Raises:
        MisfitError: It has no leaves, or a leaf that is none.
    """
    # None alone is what a function without a `return` gives.
    leaves, structure = _tree.flatten_values(value) if value is None else _tree.flatten(as_plain(value))
    if not leaves:
        raise MisfitError("no array at all")
    places = _tree.paths(structure)
    specs = []
    for leaf, place in zip(leaves, places, strict=True):
        try:
            specs.append(spec_of_leaf(leaf_of(leaf)))
        except SpecError as error:
            cure = " (the function may lack a return)" if value is None else ""
            raise MisfitError(f"a leaf{place} that is {error}{cure}", "") from None
    return Spec(tuple(specs), structure)


def text_of(found: MisfitError, spec: Spec | None, *, is_declared: bool) -> str:
    """The end of a message about a misfit: what was expected, and what can be said of elements that differ."""
    alike = f". {_ALIKE}{found.cure}" if found.cure else ""
    if found.is_number:
        alike = f". Numbers are cast where none can change, and these could. {found.cure}"
    if spec is None:
        return f"{alike}."
    if found.cure == _ANY_LENGTH and not spec.is_lone:
        alike += " for that leaf, in a tree like the element"
    if alike and any(leaf.dtype.kind in "US" and leaf.dtype.itemsize for leaf in spec.leaves):
        alike += ", and text of any size is of np.dtype('U') there, bytes of np.dtype('S')"
    origin = "declared" if is_declared else "found on element 0"
    return f", but its element_spec is {spec} (as {origin}){alike}."


def begun(function: Callable[..., Iterable[Any]], *arguments: Any) -> Iterator[Any]:
    """Calls what returns an iterable and begins it; the end of its elements is not in sight yet.

    Raises:
        TypeError: It returned a table, of which iteration gives names, or a set, which has no order.
        RuntimeError: It raised StopIteration, which would look like that end.
        Exception: Whatever else it raised.
    """
    try:
        made = function(*arguments)
        require_elements(made)
        return iter(made)
    except StopIteration as error:
        raise RuntimeError("it raised StopIteration") from error


def rows_of(many: Tree) -> Iterator[Tree]:
    """The elements of what a function of many returns: arrays, or lists, with an entry for each.

    Raises:
        ValueError: There are unlike numbers of them, or none can be told.
    """
    leaves, structure = _tree.flatten(as_plain(many))
    if any(isinstance(leaf, (str, bytes)) or not hasattr(leaf, "__len__") for leaf in leaves):
        raise ValueError("a function of many elements returns arrays or lists, with an entry for each that it makes")
    counts = {len(leaf) for leaf in leaves}
    if len(counts) != 1:
        raise ValueError(f"it returned unlike numbers of elements, {' and '.join(map(str, sorted(counts))) or 'none'}")
    for row in range(counts.pop()):
        yield structure.unflatten([leaf[row] for leaf in leaves])


def column(leaf: ArraySpec, values: Sequence[Any]) -> Any:
    """A leaf of many elements: one array, which is sooner packed than many, unless they have no one size."""
    has_one_size = leaf.dtype.itemsize and None not in leaf.shape
    return np.stack(values, dtype=leaf.dtype) if has_one_size else list(values)
