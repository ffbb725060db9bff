"""Leaves of the elements of a table: columns, and the fields of structs in them; and what stands in for nulls.

A struct is a dict of its fields. A list of structs is a dict of lists. So each leaf is one column of values, which
`_columns.py` decodes.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.files._openfile import File, bounds_of
from penstock.plan._pad import holds
from penstock.tables._columns import (
    Column,
    NullError,
    RaggedColumn,
    RowError,
    arrow_of,
    column_of,
    conformed,
    dtype_of,
    inmost,
    is_binary,
    is_list,
    is_text,
    numbers,
    spec_of,
    with_values,
)
from penstock.tables._leasttypes import plain

_log = logging.getLogger("penstock")
_MOST_TOLD: Final = 8

MASK: Final = "_is_null"
"""The end of the name of a leaf that says where another one is null."""


@final
@dataclass(frozen=True)
class Leaf:
    """A leaf of an element."""

    path: tuple[str, ...]
    """The names of the dicts and of the leaf: a column, and the fields of structs in it."""
    spec: ArraySpec
    fill: Any = field(default=None, compare=False)  # NaN differs from itself
    """What stands in for a null; None if a null is an error."""
    may_round: bool = False
    """Whether the user named the dtype."""
    unit: Any = field(default=None, compare=False)  # it follows from the files and the dtype
    """For numbers of times or durations the least type of those in the files, which says their unit; else None."""
    masks: str = ""
    """The last name of the leaf of which this one says where it is null; empty if it is no mask."""

    @property
    def origin(self) -> tuple[str, ...]:
        """The column, and the fields of structs in it."""
        return (*self.path[:-1], self.masks) if self.masks else self.path

    @property
    def name(self) -> str:
        """The path with dots."""
        return ".".join(self.path)


@final
@dataclass(frozen=True)
class Nulls:
    """What the user says about nulls, by `fill_null=` and `null_masks=`."""

    every: Any
    """A value for all leaves that can hold it; None for errors."""
    named: tuple[tuple[str, Any], ...]
    """Names of leaves, and the value of each."""
    masks: tuple[str, ...]

    @classmethod
    def of(cls, verb: str, fill_null: Any, null_masks: Sequence[str]) -> "Nulls":
        """Checks the arguments.

        Raises:
            ArgumentTypeError: A value is no scalar, or masks are no list of names.
        """
        every, named = (None, dict(fill_null)) if isinstance(fill_null, Mapping) else (fill_null, {})
        for value in (every, *named.values()):
            if value is not None and np.ndim(value):
                raise ArgumentTypeError(
                    f"{verb}(fill_null=): a single value stands in for nulls, or a dict of one for each column, such "
                    f'as {{"x": 0.0}}; got {type_of(value)}. In lists it stands in for their values.'
                )
        return cls(every, tuple(named.items()), names_in(verb, "null_masks", null_masks))

    @cached_property
    def by_name(self) -> dict[str, Any]:
        return dict(self.named)

    def of_columns(self, columns: Collection[str]) -> "Nulls":
        """What is said of these columns."""
        named = tuple(each for each in self.named if each[0].partition(".")[0] in columns)
        return replace(self, named=named, masks=tuple(each for each in self.masks if each.partition(".")[0] in columns))

    def applied(self, verb: str, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """The leaves, with what stands in for nulls, and with those that say where nulls are.

        Raises:
            ArgumentError: There is no such leaf.
            SpecError: A leaf cannot hold its value.
        """
        named, masks = self.by_name, set(self.masks)
        names = dict.fromkeys(leaf.name for leaf in leaves)
        if unknown := [name for name in (*named, *self.masks) if name not in names]:
            raise ArgumentError(
                f"{verb}(): fill_null= or null_masks= name {unknown[0]!r}, which is not read. Columns are {[*names]}; "
                "a field of a struct is named by dots."
            )
        found = []
        for leaf in leaves:
            fill = named.get(leaf.name, self.every)
            if fill is not None and not _fits(leaf.spec, fill):
                if leaf.name in named:
                    is_float = isinstance(fill, float) and leaf.spec.dtype.kind in "iu"
                    cure = f" Read it as a float: dtypes={{{leaf.name!r}: 'float64'}}." if is_float else ""
                    raise SpecError(
                        f"{verb}(fill_null=): column {leaf.name!r} is {leaf.spec}, which cannot hold {fill!r}.{cure}"
                    )
                fill = None
            if fill is None and leaf.name in masks:
                fill = np.zeros((), leaf.spec.dtype)[()] if leaf.spec.dtype.itemsize else ""
            found.append(replace(leaf, fill=fill))
            if leaf.name in masks:
                path = (*leaf.path[:-1], leaf.path[-1] + MASK)
                found.append(Leaf(path, ArraySpec((), np.dtype(bool)), masks=leaf.path[-1]))
        return tuple(found)


class Tabular:
    """A source of rows of tables, a frozen dataclass: its columns."""

    columns: tuple[str, ...] | None
    nulls: Nulls
    is_part = False
    """Whether it has some columns of another source, which has logged how its files differ."""

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of an element."""
        raise NotImplementedError

    @cached_property
    def element_spec(self) -> Tree:
        """Dicts within dicts, in the order of the leaves."""
        return tree_of(self.leaves)

    def selected(self, names: Sequence[str]) -> Any:
        """Returns a source of some columns. The others are not read, or not converted."""
        found: dict[str, dict[str, None]] = {name: {} for name in names}
        for leaf in self.leaves:
            if leaf.path[0] in found:
                found[leaf.path[0]][leaf.origin[0]] = None
        columns = dict.fromkeys(column for each in found.values() for column in each)
        made = replace(self, columns=tuple(columns), nulls=self.nulls.of_columns(columns))  # type: ignore[type-var]
        made.__dict__["is_part"] = True
        if "index" in self.__dict__:  # the same files
            made.__dict__["index"] = self.__dict__["index"]
        return made


def names_in(verb: str, argument: str, names: Any) -> tuple[str, ...]:
    """Returns an argument that is a list of names.

    Raises:
        ArgumentTypeError: It is no list.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ArgumentTypeError(f"{verb}({argument}=) is a list of names, got {type_of(names)}.")
    return tuple(names)


def chosen(verb: str, argument: str, names: Sequence[str] | None, url: str, there: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns of a file that are named, or all.

    Raises:
        ArgumentError: There is no such column, or one would come twice.
    """
    names = tuple(there if names is None else names)
    asked, found = Counter(names), Counter(there)
    if unknown := [name for name in asked if name not in found]:
        raise ArgumentError(f"{verb}({argument}=): {url} has no column {unknown[0]!r}; it has {list(there)}.")
    if twice := [name for name in asked if asked[name] > 1 or found[name] > 1]:
        raise ArgumentError(
            f"{verb}(): the column {twice[0]!r} would come twice, and an element is a dict. Name each once with "
            f"columns=[...]; of columns that have one name in the file none can be read. {url} has {list(there)}."
        )
    return names


def _fits(spec: ArraySpec, fill: Any) -> bool:
    if isinstance(fill, str) or spec.dtype.itemsize == 0:
        return isinstance(fill, str) and spec.dtype.itemsize == 0
    return holds(spec.dtype, fill)


@final
@dataclass(frozen=True)
class Dtypes:
    """What the user says about dtypes, by `dtypes=`."""

    named: tuple[tuple[str, str], ...]
    """Names of leaves, and the dtype of each; of lists, that of their values."""

    @classmethod
    def of(cls, verb: str, dtypes: Any) -> "Dtypes":
        """Checks the argument.

        Raises:
            ArgumentTypeError: It is no dict, or a value is no dtype.
        """
        if dtypes is None:
            return cls(())
        if not isinstance(dtypes, Mapping):
            raise ArgumentTypeError(f"{verb}(dtypes=) is a dict of names and dtypes, got {type_of(dtypes)}.")
        named = []
        for name, dtype in dtypes.items():
            try:
                found = np.dtype(dtype)
                arrow_of(found)
            except (TypeError, pa.ArrowException) as error:
                raise ArgumentTypeError(
                    f"{verb}(dtypes=): {dtype!r} of {name!r} is no dtype of numbers, times or text."
                ) from error
            named.append((name, found.str))
        return cls(tuple(named))

    @cached_property
    def by_name(self) -> dict[str, str]:
        return dict(self.named)

    def require(self, verb: str, url: str, there: Sequence[str]) -> None:
        """Refuses a name that is neither a column, nor one of a field in it."""
        columns = [name if name in there else name.partition(".")[0] for name, _ in self.named]
        chosen(verb, "dtypes", tuple(dict.fromkeys(columns)), url, there)

    def applied(self, name: str, kind: Any) -> Any:
        """The type of a column, or of a field, with the dtypes that are named.

        Times and durations stay what they are, unless they are read as text. Their numbers depend on the unit, so
        `leaves_of` takes these when the least type of all files is known. So does a column without a value.

        Args:
            name: The name of the column or of the field.
            kind: Its type.
        """
        dtype, value = self.by_name.get(name), inmost(kind)
        if dtype is not None:
            value = plain(value)
            is_kept = np.dtype(dtype).kind != "U" and (kinds.is_temporal(value) or kinds.is_null(value))
            return with_values(kind, value if is_kept else arrow_of(np.dtype(dtype)))
        if kinds.is_struct(value):
            parts = [(part.name, self.applied(f"{name}.{part.name}", part.type)) for part in value]
            return with_values(kind, pa.struct(parts))
        return kind


def leaves_of(verb: str, where: str, types: Mapping[str, Any], nulls: Nulls, dtypes: Dtypes) -> tuple[Leaf, ...]:
    """The leaves of columns, with what stands in for nulls.

    Args:
        verb: The user's function, for messages.
        where: The files, for messages.
        types: The columns and their types, to which `dtypes` are applied.
        nulls: What stands in for nulls.
        dtypes: The dtypes that the user named.

    Raises:
        SpecError: No array holds the values of one, or all of them are null; or none can be read as its dtype. The
            message has the files.
    """
    try:
        leaves = [leaf for name, kind in types.items() for leaf in _leaves((name,), kind, nulls, dtypes)]
    except (SpecError, ArgumentError) as error:
        raise SpecError(f"{verb}(): {where}: {error}") from error
    if types and not leaves:
        raise SpecError(
            f"{verb}(): {where}: {list(types)} hold objects without fields, so elements would hold nothing. Name other "
            "columns with columns=[...]."
        )
    require_casts(verb, where, types, leaves)
    return nulls.applied(verb, leaves)


def require_casts(verb: str, url: str, types: Mapping[str, Any], leaves: Sequence[Leaf]) -> None:
    """Refuses a dtype that no value of its column can be read as.

    Args:
        verb: The user's function, for messages.
        url: The file, for messages.
        types: The columns of the file and their types.
        leaves: The leaves; only those with a dtype of the user's are looked at.

    Raises:
        SpecError: A column cannot be read as its dtype. The message has the file and the types.
    """
    for leaf in leaves:
        if leaf.origin[0] in types and leaf.may_round:
            values = pa.nulls(0, types[leaf.origin[0]])
            for name in leaf.origin[1:]:
                values = field_of(values, name)
            kind, spec = values.type, leaf.spec
            while is_list(values.type):  # of lists without values Arrow casts none
                values, spec = values.flatten(), ArraySpec(spec.shape[1:], spec.dtype)
            with suppress(RowError, SpecError):
                if spec_of("", conformed(values, spec, unit=leaf.unit).type) == spec:
                    continue
            dtype = leaf.spec.dtype if leaf.spec.dtype.itemsize else "text"
            raise SpecError(
                f"{verb}(dtypes=): column {leaf.name!r} of {url} is {kind}, of which no value can be read "
                f"as {dtype}. Name another dtype, or leave the column out with columns=[...]."
            )


def _leaves(path: tuple[str, ...], kind: Any, nulls: Nulls, dtypes: Dtypes) -> Iterator[Leaf]:
    parts = kind.value_type if is_list(kind) else kind
    names = [part.name for part in parts] if kinds.is_struct(parts) else []
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise SpecError(
            f"column {'.'.join(path)!r} has two fields {twice[0]!r}, and an element is a dict. Leave the column out "
            "with columns=[...]."
        )
    if names:
        size = kind.list_size if kinds.is_fixed_size_list(kind) else -1
        for part in parts:
            inner = part.type if kinds.is_struct(kind) else pa.list_(part.type, size)
            yield from _leaves((*path, part.name), inner, nulls, dtypes)
    elif not kinds.is_struct(parts):
        name, unit = ".".join(path), None
        dtype = dtypes.by_name.get(name)
        value = inmost(kind)
        if dtype is not None and (kinds.is_temporal(value) or kinds.is_null(value)):
            kind = with_values(kind, arrow_of(np.dtype(dtype)))
            unit = value if kinds.is_temporal(value) and np.dtype(dtype).kind in "iuf" else None
        yield Leaf(path, spec_of(name, _known(name, kind, nulls)), may_round=dtype is not None, unit=unit)


def _known(name: str, kind: Any, nulls: Nulls) -> Any:
    """A type without a null type: that of the value that stands in for nulls; a list without values has floats.

    Raises:
        SpecError: All values are null, and nothing stands in for them.
    """
    inner = inmost(kind)
    if not kinds.is_null(inner):
        return kind
    fill = nulls.by_name.get(name, nulls.every)
    if fill is None and kind == inner and name not in nulls.masks:
        raise SpecError(
            f"column {name!r} has no value in any row, so its type is unknown. Say it: "
            f'dtypes={{{name!r}: "float64"}}; or say what stands in for nulls: fill_null={{{name!r}: 0.0}}; or leave '
            "the column out with columns=[...]."
        )
    dtype: Any = np.dtype(float) if fill is None else np.asarray(fill).dtype
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic":
        dtype = np.dtype(f"{dtype.kind}8[us]")
    return with_values(kind, arrow_of(dtype))


def stored_numbers(schema: Any) -> dict[tuple[str, ...], int]:
    """The numbers of the columns of Parquet that hold the leaves of a schema, by their paths."""
    found: dict[tuple[str, ...], int] = {}
    paths = (path for part in schema for path in _stored((part.name,), part.type))
    for number, path in enumerate(paths):
        found.setdefault(path, number)
    return found


def _stored(path: tuple[str, ...], kind: Any) -> Iterator[tuple[str, ...]]:
    kind = getattr(kind, "storage_type", kind)
    for number in range(kind.num_fields):
        part = kind.field(number)
        yield from _stored((*path, part.name) if kinds.is_struct(kind) else path, part.type)
    if not kind.num_fields:
        yield path


def log_differences(
    verb: str, files: Sequence[File], types: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
) -> None:
    """Logs what `differences` says, once in a process."""
    if text := differences(verb, files, types, found):
        log_once(text, files)


def differences(verb: str, files: Sequence[File], types: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> str:
    """One line about files whose columns differ from those of the dataset; empty if none do.

    Args:
        verb: The user's function.
        files: The files.
        types: The types of the columns of each; a column without a value has none.
        found: The columns of the dataset, with the types that hold those of all files.
    """
    facts: dict[str, str] = {}
    for file, there in zip(files, types, strict=True):
        for name, kind in found.items():
            if name not in there:
                facts.setdefault(f"no column {name!r}, which is null then", str(file))
            elif there[name] != kind and not kinds.is_null(there[name]):
                facts.setdefault(f"column {name!r} as {there[name]}, read as {kind}", str(file))
    told = "; ".join(f"{file} has {fact}" for fact, file in itertools.islice(facts.items(), _MOST_TOLD))
    return f"{verb}(): files differ. {told}." * bool(facts)


@lru_cache(64)
def log_once(text: str, _: Sequence[File]) -> None:
    """Logs a warning about files, once in a process."""
    _log.warning("%s", text)


def tree_of(leaves: Sequence[Leaf]) -> Tree:
    """The `element_spec`: dicts within dicts, in the order of the leaves."""
    tree: dict[str, Any] = {}
    for leaf in leaves:
        place = tree
        for name in leaf.path[:-1]:
            place = place.setdefault(name, {})
        place[leaf.path[-1]] = leaf.spec
    return tree


def decoded(batch: Any, leaf: Leaf, first: int = 0) -> Column | RaggedColumn:
    """Decodes a leaf of a record batch, of which `first` is the row of the first value, for the error.

    Raises:
        RowError: A value is missing, or does not fit.
    """
    try:
        return column_of(values_of(batch, leaf, first), leaf.spec, leaf.name, first)
    except NullError as error:
        error.is_column = leaf.origin[0] not in batch.schema.names
        raise


def values_of(batch: Any, leaf: Leaf, first: int = 0) -> Any:
    """The values of a leaf as an Arrow array that has its spec; see `decoded`."""
    place = batch.schema.get_field_index(leaf.origin[0])
    values = pa.nulls(batch.num_rows) if place < 0 else batch.column(place)
    for name in leaf.origin[1:]:
        values = field_of(values, name)
    try:
        if leaf.masks:
            return values.is_null()
        values = conformed(values, leaf.spec, may_round=leaf.may_round, unit=leaf.unit, name=leaf.name)
        return values if leaf.fill is None else _filled(values, leaf.fill)
    except RowError as error:
        error.column, error.row = leaf.name, error.row + first
        raise


def field_of(values: Any, name: str) -> Any:
    """A field of structs, or of the structs in lists; null where the struct or the list is null."""
    if kinds.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if kinds.is_null(kind):
        return values
    if kinds.is_struct(kind):
        place = kind.get_field_index(name)
        return pa.nulls(len(values)) if place < 0 else values.flatten()[place]
    mask = values.is_null() if values.null_count else None
    if kinds.is_fixed_size_list(kind):
        size = kind.list_size
        inner = values.values.slice(values.offset * size, len(values) * size)  # with that of null lists
        return pa.FixedSizeListArray.from_arrays(field_of(inner, name), size, mask=mask)
    return pa.LargeListArray.from_arrays(_offsets(values), field_of(values.flatten(), name), mask=mask)


def _filled(values: Any, fill: Any) -> Any:
    """The same values without nulls. A list that is null becomes an empty one; of a fixed size, one of nulls."""
    kind = values.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return values
    if kinds.is_dictionary(kind):
        if not (values.null_count or values.dictionary.null_count):
            return values
        return _filled(values.dictionary_decode(), fill).dictionary_encode()
    if is_list(kind):
        is_fixed = kinds.is_fixed_size_list(kind)
        if values.null_count:
            values = values.fill_null(pa.scalar([None] * kind.list_size if is_fixed else [], kind))
        inner = values.flatten()
        found = _filled(inner, fill)
        if found is inner:
            return values
        if is_fixed:
            return pa.FixedSizeListArray.from_arrays(found, kind.list_size)
        return pa.LargeListArray.from_arrays(_offsets(values), found)
    if not values.null_count:
        return values
    if kinds.is_temporal(kind):  # by their numbers, because Arrow has no NaT but null
        stored = pa.int32() if kind.bit_width == 32 else pa.int64()
        number = np.asarray(fill).astype(dtype_of(kind)).view(np.int64)
        return values.view(stored).fill_null(pa.scalar(int(number), stored)).view(kind)
    if is_binary(kind):
        fill = b""
    elif kinds.is_fixed_size_binary(kind):
        fill = bytes([fill]) * kind.byte_width
    elif not is_text(kind):
        fill = np.asarray(fill).astype(dtype_of(kind)).item()
    return values.fill_null(pa.scalar(fill, kind))


def _offsets(values: Any) -> Any:
    """The start of each list in `flatten()` of the lists, which has no values of those that are null."""
    return pa.array(bounds_of(numbers(values.value_lengths().fill_null(0))), pa.int64())
