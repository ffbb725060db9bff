"""What the user's objects have at a position, where `[i]` or iteration may mean a label, a name or a key.

Columns and tables of pandas, Polars and Arrow are read by position. None of these libraries is imported: an object can
only be of a library that its owner has imported.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._spec import loses_zeros
from penstock.base._tree import Tree, flatten

Array = npt.NDArray[Any]

_COLUMNS: Final = {
    "pandas": ("Series", "Index", "api.extensions.ExtensionArray"),
    "polars": ("Series",),
    "pyarrow": ("Array", "ChunkedArray"),
}
_TABLES: Final = {"pandas": ("DataFrame",), "polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}


def _library(value: object, classes: Mapping[str, tuple[str, ...]]) -> str:
    """The library that has one of these classes of a value; empty if none has."""
    for library, names in classes.items():
        if library in sys.modules:
            for name in names:
                kind: Any = sys.modules[library]
                for part in name.split("."):
                    kind = getattr(kind, part, ())  # not there in the middle of an import
                if isinstance(value, kind):
                    return library
    return ""


def is_table(value: object) -> bool:
    """Whether a value is a table of one of these libraries."""
    return bool(_library(value, _TABLES))


def columns_of(value: Any) -> dict[Any, Any] | None:
    """Returns the columns of a table by their names; None if it is no table.

    Raises:
        ArgumentError: Two columns have one name, or there are none.
    """
    library = _library(value, _TABLES)
    if not library:
        return None
    names = list(value.column_names if library == "pyarrow" else value.columns)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(
            f"A {type(value).__name__} has {names.count(twice)} columns named {twice!r}, and an element is a "
            "dict. Give each a name of its own."
        )
    if not names:
        raise ArgumentError(f"A {type(value).__name__} has no columns, so its elements would hold nothing.")
    if library == "pandas":
        return {name: value.iloc[:, place] for place, name in enumerate(names)}
    return {name: value.column(name) if library == "pyarrow" else value.get_column(name) for name in names}


def with_columns(tree: Tree) -> Tree:
    """Replaces each table in a tree by a dict of its columns."""
    leaves, structure = flatten(tree)
    found = [columns_of(leaf) for leaf in leaves]
    if all(each is None for each in found):
        return tree
    return structure.unflatten([leaf if each is None else each for leaf, each in zip(leaves, found, strict=True)])


def as_values(value: Any, where: str) -> Any:
    """Returns a column as an array of its values, in their order; anything else as it is.

    Numbers, times and durations that NumPy has stay as they are, most often without a copy. Text becomes an array of
    text, and categories become their values.

    Args:
        value: Perhaps a column.
        where: The user's words for its place, for the error: `from_arrays() at ['x']`.

    Raises:
        ArgumentTypeError: A value is missing, and NumPy has none such for the dtype; or the values are Python objects.
    """
    found = _values(value, where)
    if found is None or not found.dtype.hasobject:
        return value if found is None else found
    texts = found.tolist()
    if not all(isinstance(text, str) for text in texts):
        raise ArgumentTypeError(
            f"{where}: {type_of(value)} of {_dtype(value)} holds Python objects, for which NumPy has no dtype. Make "
            f"numbers, times or text of it{_casts(value)}. Arrays of several "
            "lengths are read one by one: from_source(column, element_spec=penstock.ArraySpec((None,), dtype))."
        )
    array = np.array(texts, np.dtype("U"))
    if loses_zeros(texts, array):
        raise ArgumentTypeError(
            f"{where}: {type_of(value)} has text that ends in a zero, and arrays of NumPy drop zeros at the end. "
            "from_source() takes the column as it is."
        )
    return array


def as_labels(value: Any, where: str) -> npt.NDArray[Any]:
    """Returns a column or a list of labels as an array, in which labels that differ still do.

    NumPy makes text of a number beside text, and a float of an integer beside one above 2**63.

    Args:
        value: The labels.
        where: As for `as_values`.

    Raises:
        ArgumentTypeError: As `as_values`; or labels are masked, text and something else, or integers of no one dtype.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ArgumentTypeError(
            f"{where}: {np.count_nonzero(value.mask):,} of {np.size(value):,} values are masked, so they have no "
            "label. Give them one, values.filled(label), or leave these elements out."
        )
    found = np.asarray(as_values(value, where))
    if not isinstance(value, (list, tuple, np.ndarray)):
        return found.copy()  # it may be the memory of a column, a tensor or a buffer, which `own` does not know
    if not isinstance(value, (list, tuple)) or found.ndim != 1:
        return found
    if (kind := {"U": str, "S": bytes}.get(found.dtype.kind)) is not None:
        if odd := [each for each in value if not isinstance(each, kind)][:1]:
            raise ArgumentTypeError(
                f"{where} has labels of several kinds: beside text there is {type_of(odd[0])}, {odd[0]!r:.80}, of "
                "which NumPy would make text, perhaps that of another label. Make all of them text, or all numbers."
            )
    elif found.size and found.dtype.kind == "f" and all(isinstance(each, int | np.integer) for each in value):
        integers = [int(each) for each in value]
        try:
            return np.array(integers, np.uint64)
        except OverflowError:
            raise ArgumentTypeError(
                f"{where} has integers from {min(integers)} to {max(integers)}, which no dtype of NumPy holds "
                "together. Make text of them: list(map(str, labels))."
            ) from None
    return found


def by_position(value: Any) -> Any:
    """Returns an object whose `[i]` is the element at position `i`, for a column or a table; anything else as it is.

    The rows of a table are dicts.

    Raises:
        ArgumentError: See `columns_of`.
        ArgumentTypeError: A value is missing.
    """
    columns = columns_of(value)
    if columns is not None:
        return TableRows({name: by_position(column) for name, column in columns.items()}, value)
    found = _values(value, "from_source()")
    if found is not None:
        return found.tolist() if found.dtype.hasobject else found
    # A column of a library with the interface of pandas.
    if getattr(value, "iloc", None) is not None and not hasattr(value, "columns"):
        return TableRows(value.iloc, value)
    return value


def require_order(call: str, value: object, cure: str) -> None:
    """Refuses a set, a mapping and a table in place of a list.

    Raises:
        ArgumentTypeError: It is one.
    """
    if isinstance(value, (set, frozenset)):
        raise ArgumentTypeError(f"{call} got {type_of(value)}, whose order is another one in each process. {cure}")
    if isinstance(value, Mapping) or is_table(value):
        raise ArgumentTypeError(f"{call} got {type_of(value)}, of which iteration gives names, not values. {cure}")


def require_elements(made: object) -> None:
    """Refuses a table or a set that a function of the user returned as its elements; the caller names the function.

    Raises:
        TypeError: It is one.
    """
    if isinstance(made, (set, frozenset)):
        raise TypeError(
            f"it returned {type_of(made)}, whose order is another one in each process. Return a list, such as "
            "sorted(values)"
        )
    if is_table(made):
        raise TypeError(
            f"it returned {type_of(made)}, of which iteration gives names, not values. Return [table] to make one "
            "element of it, a dict of its columns; or a list of its rows"
        )


@final
class TableRows:
    """The rows of a table, or of a column, by position."""

    def __init__(self, parts: Any, of: Any) -> None:
        self._parts, self._length, self._kind = parts, len(of), type(of).__name__

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return self._kind

    def __getitem__(self, index: int) -> Any:
        if isinstance(self._parts, dict):
            return {name: part[index] for name, part in self._parts.items()}
        return self._parts[index]


def _values(value: Any, where: str) -> Array | None:
    """The values of a column, perhaps as Python objects; None if it is no column."""
    library = _library(value, _COLUMNS)
    if not library:
        return None
    if library == "pandas":
        found, missing = _of_pandas(value)
    elif library == "polars":
        found, missing = value.to_numpy(), value.is_null().to_numpy()
    else:
        if hasattr(value.type, "index_type"):  # a dictionary
            value = value.cast(value.type.value_type)
        found, missing = value.to_numpy(zero_copy_only=False), np.asarray(value.is_null())
    if missing.any():
        fill, mark = ("fillna", "isna") if library == "pandas" else ("fill_null", "is_null")
        raise ArgumentTypeError(
            f"{where}: {type_of(value)} of {_dtype(value)} lacks {np.count_nonzero(missing):,} of {len(missing):,} "
            f"values, the first at position {missing.argmax():,}, and arrays have no such thing. Fill them, "
            f"column.{fill}(0) or column.{fill}(''), and give column.{mark}() beside it if it matters where they were."
        )
    return found


def _of_pandas(value: Any) -> tuple[Array, Array]:
    """The values of a column of pandas, and which of them are missing. Those that NumPy has itself never are."""
    pandas, dtype = sys.modules["pandas"], value.dtype
    if isinstance(value, pandas.MultiIndex):
        return value.to_numpy(), np.zeros(1, bool)  # tuples
    missing = np.asarray(pandas.isna(value))
    if isinstance(dtype, pandas.CategoricalDtype):
        return _of_pandas(value.astype(dtype.categories.dtype)) if not missing.any() else (np.asarray(value), missing)
    array = value.to_numpy()
    if isinstance(dtype, (np.dtype, pandas.SparseDtype)) and not array.dtype.hasobject:
        return array, np.zeros(1, bool)
    own = getattr(dtype, "numpy_dtype", None)
    if isinstance(own, np.dtype) and own.kind in "biuf" and not missing.any():
        array = value.to_numpy(dtype=own)  # pandas 2 makes objects of some
    return array, missing


def _dtype(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else value.type


def _casts(value: Any) -> str:
    """The remedy in pandas."""
    if not hasattr(value, "astype"):
        return ""
    zone = getattr(_dtype(value), "tz", None) or getattr(getattr(_dtype(value), "pyarrow_dtype", None), "tz", None)
    if zone is not None:
        return ", such as times in UTC: column.dt.tz_convert(None)"
    return ", such as column.astype('float32'), column.astype('datetime64[s]') or column.astype(str)"
