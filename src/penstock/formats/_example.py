"""`tf.train.Example` without TensorFlow: records in memory to rows of arrays.

An Example is a protocol buffer, a map of names to lists of float32, int64 or bytes:

    Example { Features features = 1 }    Features { map<string, Feature> feature = 1 }
    Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }    each list { repeated value = 1 }

Reading has two steps. The first finds the places of each feature's values. A walk over one record takes microseconds
in Python. But records of one program mostly share one layout. So a walked record becomes a *layout*: its size, and its
bytes that are not values. These bytes determine the places of the values. So another record of that size with the same
bytes has its values in the same places, which NumPy checks for many records at once. The second step, values to arrays,
is NumPy's for all records.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._spec import ArraySpec
from penstock.base._windows import spacing, windows
from penstock.formats._features import (
    ABSENT,
    BYTES,
    FLOAT,
    INT64,
    LISTS,
    MANY,
    MISSING,
    DamagedError,
    Feature,
    FoundFeature,
    Payloads,
    walk,
)

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# The fewest records of one size that are worth a layout, and the most layouts that are kept. A layout takes about as
# much memory as the names of its features.
_MIN_ALIKE: Final = 4
_MAX_LAYOUTS: Final = 256
_MAX_LAYOUTS_OF_A_SIZE: Final = 16


class ExampleError(Exception):
    """A record is damaged, or does not fit. The caller adds the file and the record."""

    def __init__(self, row: int, text: str, *, is_damaged: bool = False) -> None:
        super().__init__(text)
        self.row = row
        """The number of the record in the call."""
        self.is_damaged = is_damaged
        """Whether it is no Example."""


class FeaturePlaces(NamedTuple):
    """The places of the values of features."""

    facts: Integers
    """The kind, the first byte and the end of each, shape `(records, features, 3)`."""
    many: dict[tuple[int, int], list[bytes]]
    """The byte strings of features of kind `MANY`, by record and feature."""


class _ExampleLayout(NamedTuple):
    """The common parts of records with one layout."""

    runs: list[tuple[int, Bytes]]
    """Offsets in the record, and bytes there that are not values."""
    facts: Integers
    """As those of `FeaturePlaces`, from the start of the record, shape `(features, 3)`."""


@final
class ExampleReader:
    """Reads features of many records at once, on any number of threads.

    Memory: layouts, some hundred bytes each.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = features
        self._numbers = {feature.name.encode(): number for number, feature in enumerate(features)}
        # Threads may both add the same layout. That costs a comparison, and locks would cost more.
        self._layouts: dict[int, tuple[_ExampleLayout, ...]] = {}

    def read(
        self,
        data: Bytes,
        starts: Integers,
        ends: Integers,
        outs: Sequence[npt.NDArray[Any]],
        rows: Integers | slice,
    ) -> None:
        """Writes the features of records to rows of arrays.

        Args:
            data: Memory with the records, shape `(any,)`.
            starts: The start of each record, shape `(n,)`.
            ends: The end of each record.
            outs: An array for each feature, `(count, *shape)`, C-contiguous; of objects for values of any size.
            rows: The `n` rows to write.

        Raises:
            ExampleError: A record is damaged, or does not fit.
        """
        places, data = self._locate(data, starts, ends)
        numbers = np.arange(rows.stop)[rows] if isinstance(rows, slice) else rows
        every = np.arange(len(numbers))
        for number, (feature, out) in enumerate(zip(self.features, outs, strict=True)):
            facts = places.facts[:, number]
            kinds = sorted(set(facts[:, 0].tolist()))
            for kind in kinds:
                mine = every if len(kinds) == 1 else np.flatnonzero(facts[:, 0] == kind)
                writer = _FeatureWriter(feature, number, places, data, mine, facts[mine, 1], facts[mine, 2])
                writer.write(kind, out, rows if len(kinds) == 1 else numbers[mine])

    def _locate(self, data: Bytes, starts: Integers, ends: Integers) -> tuple[FeaturePlaces, Bytes]:
        places = FeaturePlaces(np.zeros((len(starts), len(self.features), 3), np.int64), {})
        spilt: list[bytes] = []  # packed copies of unpacked numbers, appended to the data
        spilt_at = len(data)
        for row in self._match(data, starts, ends, places):
            found, _ = _walked(row, data, int(starts[row]), int(ends[row]))
            for name, number in self._numbers.items():
                kind, start, end, values = found.get(name, ABSENT)
                if isinstance(values, list):
                    places.many[row, number] = values
                elif values is not None:
                    start, end = spilt_at, spilt_at + len(values)
                    spilt.append(values)
                    spilt_at = end
                places.facts[row, number] = kind, start, end
        return places, np.concatenate([data, np.frombuffer(b"".join(spilt), np.uint8)]) if spilt else data

    def _match(self, data: Bytes, starts: Integers, ends: Integers, places: FeaturePlaces) -> list[int]:
        """Fills in the places of records with a known layout, or a new one. Returns the others."""
        sizes = ends - starts
        order = np.argsort(sizes, kind="stable")
        others: list[int] = []
        for rows in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1):
            size = int(sizes[rows[0]]) if len(rows) else 0
            for layout in self._layouts.get(size, ()):
                rows = _matched(layout, data, starts, rows, places)
            while len(rows) >= _MIN_ALIKE:
                row = int(rows[0])
                learnt = self._learn(row, data, int(starts[row]), int(ends[row]))
                left = rows if learnt is None else _matched(learnt, data, starts, rows, places)
                is_worth_it = len(rows) - len(left) >= _MIN_ALIKE
                rows = left
                if learnt is None or not is_worth_it:  # nothing repeats here
                    break
                self._keep(size, learnt)
            others += rows.tolist()
        return others

    def _keep(self, size: int, layout: _ExampleLayout) -> None:
        if sum(map(len, self._layouts.values())) >= _MAX_LAYOUTS:
            self._layouts.clear()
        # The newest layouts are tried first. Each costs a comparison of all records of the size.
        self._layouts[size] = (layout, *self._layouts.get(size, ()))[:_MAX_LAYOUTS_OF_A_SIZE]

    def _learn(self, row: int, data: Bytes, start: int, end: int) -> _ExampleLayout | None:
        found, payloads = _walked(row, data, start, end)
        wanted = [found.get(name, ABSENT) for name in self._numbers]
        if any(each.values is not None for each in found.values()):
            return None
        runs, at = [], start
        for payload_start, payload_end in [*sorted(payloads), (end, end)]:
            if payload_start > at:
                runs.append((at - start, data[at:payload_start].copy()))
            at = payload_end
        facts = [(each.kind, each.start - start, each.end - start) for each in wanted]
        return _ExampleLayout(runs, np.array(facts, np.int64).reshape(-1, 3))


def _matched(layout: _ExampleLayout, data: Bytes, starts: Integers, rows: Integers, places: FeaturePlaces) -> Integers:
    """Fills in the places of the records with this layout. Returns the others."""
    if not len(rows):
        return rows
    at = starts[rows]
    step = spacing(at)
    fits = np.ones(len(rows), np.bool_)
    for offset, wanted in layout.runs:
        fits &= (windows(data, at + offset, len(wanted), step) == wanted).all(axis=1)
    mine: Any = rows
    if bool(fits.all()):
        if len(rows) == len(starts):
            mine = slice(None)  # all rows, in order
        rows = rows[:0]
    else:
        mine, at, rows = rows[fits], at[fits], rows[~fits]
    places.facts[mine] = layout.facts
    places.facts[mine, :, 1:] += at[:, None, None]
    return rows


class _FeatureWriter(NamedTuple):
    """Writes the values of one feature to its array."""

    feature: Feature
    number: int
    places: FeaturePlaces
    data: Bytes
    mine: Integers
    """The records."""
    starts: Integers
    """The first byte of the values of each."""
    ends: Integers

    def write(self, kind: int, out: npt.NDArray[Any], rows: Integers | slice) -> None:
        """Writes values of one kind to rows of an array."""
        spec, feature = self.feature.spec, self.feature
        if kind == MISSING:
            self._write_default(out, rows)
        elif feature.is_text:
            if kind not in (BYTES, MANY):
                raise self._error(0, f"is a {LISTS[kind]}, and {spec} is made of a bytes_list")
            self._write_texts(out, rows)
        elif kind == MANY:
            count = len(self.places.many[int(self.mine[0]), self.number])
            raise self._error(0, f"holds {count} byte strings, and {spec} is made of the bytes of one")
        elif kind == INT64:
            if spec.dtype != np.int64:
                raise self._error(0, f"is an int64_list, and {spec} is another dtype. Read int64, then cast()")
            self._write_integers(out, rows)
        else:
            if kind == FLOAT and spec.dtype != np.float32:
                raise self._error(0, f"is a float_list, and {spec} is another dtype. Read float32, then cast()")
            self._write_content(kind, out, rows)

    def _error(self, k: int, text: str) -> ExampleError:
        return ExampleError(int(self.mine[k]), f"feature {self.feature.name!r} {text}")

    def _write_content(self, kind: int, out: npt.NDArray[Any], rows: Integers | slice) -> None:
        """Writes values whose bytes are those of the array."""
        spec, starts, ends = self.feature.spec, self.starts, self.ends
        sizes, nbytes = ends - starts, spec.nbytes
        if nbytes is not None:
            wrong = np.flatnonzero(sizes != nbytes)
            if len(wrong):
                k = int(wrong[0])
                raise self._error(k, _sizes_text(kind, int(sizes[k]), nbytes, spec))
            if nbytes:
                out.reshape(len(out), -1).view(np.uint8)[rows] = windows(self.data, starts, nbytes)
            return
        inner = _inner_nbytes(spec)
        for k, (row, start, end) in enumerate(zip(row_numbers(rows), starts.tolist(), ends.tolist(), strict=True)):
            if (end - start) % inner:
                raise self._error(k, _sizes_text(kind, end - start, inner, spec))
            out[row] = self.data[start:end].copy().view(spec.dtype).reshape(-1, *spec.shape[1:])

    def _write_integers(self, out: npt.NDArray[Any], rows: Integers | slice) -> None:
        """Writes varints: seven bits a byte, the lowest first. The last byte is below 128."""
        spec = self.feature.spec
        values, counts = self._varints(self.starts, self.ends)
        if spec.max_shape is not None:
            wanted = int(np.prod(spec.max_shape))
            wrong = np.flatnonzero(counts != wanted)
            if len(wrong):
                k = int(wrong[0])
                raise self._error(k, f"has {counts[k]:,} integers, and {spec} has {wanted:,}")
            out[rows] = values.reshape(len(counts), *out.shape[1:])
            return
        inner = _inner_nbytes(spec) // 8
        for k, (row, part) in enumerate(zip(row_numbers(rows), np.split(values, np.cumsum(counts)[:-1]), strict=True)):
            if len(part) % inner:
                raise self._error(k, f"has {len(part):,} integers, and {spec} has a multiple of {inner:,}")
            out[row] = part.reshape(-1, *spec.shape[1:]).copy()

    def _varints(self, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
        sizes = ends - starts
        if bool((sizes == sizes[0]).all()):
            content = windows(self.data, starts, int(sizes[0])).reshape(-1)
        else:
            shifts = starts - np.concatenate(([0], np.cumsum(sizes)[:-1]))
            content = self.data[np.arange(int(sizes.sum())) + np.repeat(shifts, sizes)]
        if len(content) == len(sizes) and bool((content < 0x80).all()) and bool((sizes == 1).all()):
            return content.astype(np.int64), sizes  # one small number each, such as labels
        bounds = np.cumsum(sizes)
        lasts = np.flatnonzero(content < 0x80)
        counts = np.diff(np.searchsorted(lasts, bounds), prepend=0)
        # A record that ends within a number would take bytes from the next.
        unfinished = (sizes > 0) & (content[np.maximum(bounds - 1, 0)] >= 0x80) if len(content) else sizes > 0
        firsts = np.concatenate(([0], lasts[:-1] + 1))[: len(lasts)]
        widths = lasts - firsts + 1
        if bool(unfinished.any()) or bool((widths > 10).any()):
            k = int(np.argmax(unfinished)) if unfinished.any() else int(np.searchsorted(bounds, firsts[widths > 10][0]))
            raise ExampleError(int(self.mine[k]), "an integer is cut off or too long", is_damaged=True)
        values = (content[firsts] & 0x7F).astype(np.uint64)
        for place in range(1, int(widths.max(initial=1))):
            wide = np.flatnonzero(widths > place)
            part = (content[firsts[wide] + place] & 0x7F).astype(np.uint64)
            values[wide] |= part << np.uint64(7 * place)
        return values.view(np.int64), counts.astype(np.int64)

    def _write_texts(self, out: npt.NDArray[Any], rows: Integers | slice) -> None:
        spec = self.feature.spec
        is_text, size = spec.dtype.kind == "U", None if spec.max_shape is None else int(np.prod(spec.max_shape))
        for k, row in enumerate(row_numbers(rows)):
            raw = self.places.many.get((int(self.mine[k]), self.number))
            if raw is None:
                raw = [self.data[self.starts[k] : self.ends[k]].tobytes()]
            try:
                values: list[Any] = [each.decode() for each in raw] if is_text else raw
            except UnicodeDecodeError as error:
                raise self._error(k, f"is not text in UTF-8 ({error.reason} at byte {error.start})") from error
            if size is not None and len(values) != size:
                raise self._error(k, f"holds {len(values)} byte strings, and {spec} is {size}")
            if size is not None:
                out[row] = values if spec.shape else values[0]
            elif (array := np.array(values, spec.dtype)).tolist() == values:
                out[row] = array
            else:
                raise self._error(
                    k,
                    f"holds {'text' if is_text else 'a byte string'} that ends in a zero, and arrays of NumPy drop "
                    "zeros at the end. Leave features= out, and take the record apart in map()",
                )

    def _write_default(self, out: npt.NDArray[Any], rows: Integers | slice) -> None:
        default, spec = self.feature.default, self.feature.spec
        if default is None:
            raise self._error(0, "is missing, and has no default. Give defaults={...}, or another features=")
        shape: Any = (-1, *spec.shape[1:]) if spec.max_shape is None else spec.max_shape
        for row in row_numbers(rows):
            if not self.feature.is_text:
                out[row] = np.frombuffer(default, spec.dtype).reshape(shape)[...]
            elif spec.shape:
                out[row] = np.array([], spec.dtype)
            else:
                out[row] = default.decode() if spec.dtype.kind == "U" else default


def row_numbers(rows: Integers | slice) -> list[int]:
    """Returns rows as numbers."""
    if isinstance(rows, slice):
        return list(range(rows.start, rows.stop, rows.step or 1))
    return rows.tolist()  # type: ignore[no-any-return]


def _inner_nbytes(spec: ArraySpec) -> int:
    """Returns the bytes of one step along the axis that varies."""
    return int(np.prod([size or 0 for size in spec.shape[1:]], dtype=np.int64)) * spec.dtype.itemsize


def _sizes_text(kind: int, found: int, wanted: int, spec: ArraySpec) -> str:
    multiple = "a multiple of " * (spec.max_shape is None)
    if kind == FLOAT:
        return f"has {found / 4:,g} floats, and {spec} has {multiple}{wanted // 4:,}"
    return f"has {found:,} bytes, and {spec} has {multiple}{wanted:,}"


def _walked(row: int, data: Bytes, start: int, end: int) -> tuple[dict[bytes, FoundFeature], Payloads]:
    """Returns the features of a record, and the places of all values."""
    try:
        return walk(data.data, start, end)
    except DamagedError as error:
        text = f"is no tf.train.Example: {error}. Without features= its bytes are given as they are"
        raise ExampleError(row, text, is_damaged=True) from None
