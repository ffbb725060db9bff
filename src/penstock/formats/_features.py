"""Features of `tf.train.Example`: named by the user, inferred from a record, and written from elements.

`walk` finds the features in the bytes of a record. Every value of a protocol buffer has a tag: the number of its field
and its form. The forms are a varint (0), 8 bytes (1), 4 bytes (5), and a length with that many bytes (2). A varint is
an integer in pieces of seven bits, the lowest first.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, SpecError, type_of
from penstock.base._spec import ArraySpec, leaf_of
from penstock.base._tree import Tree
from penstock.plan._pad import holds

MISSING, BYTES, FLOAT, INT64, MANY = 0, 1, 2, 3, 4
"""The kind of a feature in a record: the number of the field of `Feature`, or several byte strings."""
LISTS: Final = {BYTES: "bytes_list", FLOAT: "float_list", INT64: "int64_list", MANY: "bytes_list"}
"""Names of kinds for messages."""

Payloads = list[tuple[int, int]]


class DamagedError(Exception):
    """The bytes are no Example."""


class FoundFeature(NamedTuple):
    """A feature of one record."""

    kind: int
    start: int
    end: int
    values: list[bytes] | bytes | None = None
    """Values that are not contiguous: several byte strings, or unpacked numbers in packed form."""


ABSENT: Final = FoundFeature(MISSING, 0, 0)


def walk(view: memoryview, start: int, end: int) -> tuple[dict[bytes, FoundFeature], Payloads]:
    """Returns the features of the record at `view[start:end]`, and the places of all values.

    Raises:
        DamagedError: The record is no Example.
    """
    found: dict[bytes, FoundFeature] = {}
    payloads: Payloads = []
    for number, wire, at, stop in _fields(view, start, end):
        if number != 1 or wire != 2:
            continue
        for inner, inner_wire, entry, entry_end in _fields(view, at, stop):
            if inner == 1 and inner_wire == 2:
                _walk_entry(view, entry, entry_end, found, payloads)
    return found, payloads


def is_sequence(record: bytes) -> bool:
    """Whether it is a `tf.train.SequenceExample` with lists: its context lies where an Example has its features.

    Raises:
        DamagedError: It is neither.
    """
    return any(number == 2 and wire == 2 for number, wire, *_ in _fields(memoryview(record), 0, len(record)))


def _walk_entry(view: memoryview, start: int, end: int, found: dict[bytes, FoundFeature], payloads: Payloads) -> None:
    name, value = b"", ABSENT
    for number, wire, at, stop in _fields(view, start, end):
        if wire != 2:
            continue
        if number == 1:
            name = bytes(view[at:stop])
        elif number == 2:
            for kind, kind_wire, list_at, list_end in _fields(view, at, stop):
                if kind_wire == 2 and kind in (BYTES, FLOAT, INT64):
                    value = _walk_list(view, kind, list_at, list_end, payloads)
    found[name] = value  # the last of equal names counts, as always in protocol buffers


def _walk_list(view: memoryview, kind: int, start: int, end: int, payloads: Payloads) -> FoundFeature:
    parts = [(wire, at, stop) for number, wire, at, stop in _fields(view, start, end) if number == 1]
    payloads += [(at, stop) for _, at, stop in parts]
    if len(parts) == 1 and parts[0][0] == 2:
        return FoundFeature(kind, parts[0][1], parts[0][2])
    if kind == BYTES:
        return FoundFeature(MANY, start, end, [bytes(view[at:stop]) for _, at, stop in parts])
    # Numbers with a tag each, or in several packs. Their bytes are those of one pack.
    return FoundFeature(kind, start, end, b"".join(bytes(view[at:stop]) for _, at, stop in parts))


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the fields of a message: number, form, and start and end of the content."""
    while at < end:
        tag, at = _read_varint(view, at, end)
        wire = tag & 7
        if wire == 2:
            nbytes, at = _read_varint(view, at, end)
            stop = at + nbytes
        elif wire == 0:
            stop = _read_varint(view, at, end)[1]
        elif wire in (1, 5):
            stop = at + (8 if wire == 1 else 4)
        else:
            raise DamagedError(f"it has a field of wire type {wire}")
        if stop > end:
            raise DamagedError("a field goes beyond the end of what it is in")
        yield tag >> 3, wire, at, stop
        at = stop


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DamagedError("an integer is cut off or too long")


def field(number: int, content: bytes) -> bytes:
    """Returns a field that begins with its length."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Returns an int64 as a varint; a negative one takes ten bytes."""
    if 0 <= value < 0x80:
        return bytes([value])
    (value,) = struct.unpack("<Q", struct.pack("<q", value))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@final
@dataclass(frozen=True)
class Feature:
    """A requested feature."""

    name: str
    spec: ArraySpec
    default: bytes | None = None
    """Values for a record without it, as bytes of the spec's dtype: a text in UTF-8, or no texts."""

    @property
    def is_text(self) -> bool:
        """Whether it is text, or byte strings of any size."""
        return self.spec.dtype.itemsize == 0


def features_of(features: Any, defaults: Mapping[str, Any] | None) -> tuple[Feature, ...]:
    """Returns the features that a user names by `ArraySpec`, or by TensorFlow's `FixedLenFeature` and its kin.

    Raises:
        ArgumentTypeError: `features` is no such dict.
        ArgumentError: A default has no feature, or does not fit.
        SpecError: No feature can have such a spec.
    """
    if not isinstance(features, Mapping):
        raise ArgumentTypeError(
            f"features= is a dict of names and specs, or 'auto', not {type_of(features)}. Write "
            '{"image": penstock.ArraySpec((28, 28), "uint8"), "label": penstock.ArraySpec((), "int64")}.'
        )
    if not features:
        raise ArgumentError("features= names no feature. Leave it out for records as they are.")
    defaults = dict(defaults or {})
    if unknown := [name for name in defaults if name not in features]:
        raise ArgumentError(f"defaults= has {unknown[0]!r}, which is not among the features {list(features)}.")
    return tuple(_feature(name, spec, defaults.get(name)) for name, spec in features.items())


def _feature(name: str, given: Any, default: Any) -> Feature:
    is_foreign = not isinstance(given, ArraySpec)
    spec = _spec_of_foreign(name, given) if is_foreign else given
    if spec.shape[:1] == (None,) and 0 in spec.shape:
        raise SpecError(f"feature {name!r} cannot be {spec}: no value tells how long the first axis is.")
    if None in spec.shape[1:] or (spec.dtype.itemsize == 0 and len(spec.shape) > 1):
        raise SpecError(
            f"feature {name!r} cannot be {spec}: only the first axis can vary, and text has one axis at most. Read it "
            "flat, and reshape it in map()."
        )
    if default is None and not hasattr(given, "allow_missing"):  # a sequence's own default fills up a batch
        default = getattr(given, "default_value", None)
    if default is None and is_foreign and None in spec.shape:
        default = ()  # TensorFlow allows a record without a list of any size
    return Feature(name, spec, None if default is None else _default(name, spec, default))


def _spec_of_foreign(name: str, given: Any) -> ArraySpec:
    """Returns the spec of a feature of `tf.io`.

    A `FixedLenFeature` has shape and dtype, a `FixedLenSequenceFeature` those of one step, a `VarLenFeature` no shape.
    """
    dtype = getattr(given, "dtype", None)
    if dtype is None:
        raise ArgumentTypeError(
            f"feature {name!r} is {type_of(given)}, and neither an ArraySpec nor a FixedLenFeature of TensorFlow."
        )
    values = getattr(given, "value_key", None) or name
    if values != name or getattr(given, "partitions", ()) or hasattr(given, "index_key"):
        raise SpecError(
            f"feature {name!r} is {type_of(given)} that is made of other features. Name each as it is in the record, "
            f"such as {{{values!r}: tf.io.VarLenFeature(dtype)}}, and put them together in map()."
        )
    dtype = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    shape = tuple(getattr(given, "shape", (None,)))
    shape = (None, *shape) if hasattr(given, "allow_missing") else shape
    return ArraySpec(shape, np.dtype("S") if dtype.hasobject else dtype)


def _default(name: str, spec: ArraySpec, default: Any) -> bytes:
    if spec.dtype.itemsize == 0:
        if spec.shape == (None,) and not len(default):
            return b""
        if not isinstance(default, (str, bytes)) or spec.shape:
            raise ArgumentError(
                f"defaults= of feature {name!r} is {default!r}. A text can have one, and texts of any number the "
                "empty ()."
            )
        return default.encode() if isinstance(default, str) else default
    array = np.asarray(default)
    if not np.can_cast(array.dtype, spec.dtype, "same_kind") and array.size:
        raise ArgumentError(f"defaults= of feature {name!r} is of {array.dtype}, and {spec} is another kind.")
    if unfit := [value for value in array.flat if not holds(spec.dtype, value)]:
        raise ArgumentError(f"defaults= of feature {name!r} has {unfit[0]}, which {spec} cannot hold.")
    array = array.astype(spec.dtype)
    try:
        if spec.max_shape is None:
            return array.reshape(-1, *spec.shape[1:]).tobytes()
        return np.broadcast_to(array, spec.max_shape).tobytes()
    except ValueError:
        raise ArgumentError(f"defaults= of feature {name!r} has shape {array.shape}, and {spec} another.") from None


class Featured:
    """A source of records, a frozen dataclass: their bytes, or the features of an Example in each."""

    features: tuple[Feature, ...] | None
    """The features of Examples; None for the bytes of records, uint8 of shape `(None,)`."""
    is_auto: bool
    """Whether the features are those of the first record."""

    def learned(self) -> tuple[Feature, ...]:
        """Returns the features of the first record.

        Raises:
            SourceError: The record is damaged, or no Example.
            SpecError: There is no record, or its features cannot be learnt.
        """
        raise NotImplementedError

    @cached_property
    def wanted(self) -> tuple[Feature, ...] | None:
        """The features, read from the first record if necessary."""
        return self.learned() if self.is_auto else self.features

    @cached_property
    def element_spec(self) -> Tree:
        if self.wanted is None:
            return ArraySpec((None,), np.dtype(np.uint8))
        return {feature.name: feature.spec for feature in self.wanted}

    def selected(self, names: Sequence[str]) -> Any:
        """Returns a source of some features; the others are not parsed."""
        found = {feature.name: feature for feature in self.wanted or ()}
        made = replace(self, features=tuple(found[name] for name in names), is_auto=False)  # type: ignore[type-var]
        made.__dict__.update({name: self.__dict__[name] for name in ("index", "ahead_nbytes") if name in self.__dict__})
        return made


def wanted_of(features: Any, defaults: Any) -> tuple[tuple[Feature, ...] | None, bool]:
    """Returns `features` and `is_auto` of a source from the arguments of `penstock.from_tfrecord`."""
    if defaults and (features is None or features == "auto"):
        raise ArgumentError("defaults= are for features, which have to be named: features={...}.")
    is_auto = isinstance(features, str) and features == "auto"
    return (None if features is None or is_auto else features_of(features, defaults)), is_auto


def first_features(name: str, record: bytes) -> tuple[Feature, ...]:
    """Returns the features of the Example in a record of this name.

    Raises:
        SourceError: It is no Example.
        SpecError: It has no features, or one without values, or is a sequence.
    """
    try:
        found, _ = walk(memoryview(record), 0, len(record))
        has_lists = is_sequence(record)
    except DamagedError as error:
        raise SourceError(f"{name} is no tf.train.Example: {error}.") from error
    if has_lists:
        raise SpecError(
            f"{name} is a tf.train.SequenceExample, whose lists of features are not read here. Name features "
            "of its context with features={...}, or leave features= out and parse the records in map()."
        )
    if not found:
        raise SourceError(f"{name} is a tf.train.Example without features.")
    return tuple(inferred(each.decode(), found[each], record) for each in sorted(found))


def inferred(name: str, found: FoundFeature, record: bytes) -> Feature:
    """Returns a feature with the spec that its values in one record suggest.

    One number is a scalar, several are an array of that length. Bytes are uint8 of any size, and several byte strings
    an array of them.

    Raises:
        SpecError: It has no values.
    """
    values, kind = found.values, found.kind
    if kind == BYTES or (isinstance(values, list) and len(values) == 1):
        return Feature(name, ArraySpec((None,), np.dtype("uint8")))
    content = values if isinstance(values, bytes) else record[found.start : found.end]
    count = len(values) if isinstance(values, list) else len(content) // 4
    if kind == INT64:
        count = sum(byte < 0x80 for byte in content)
    if kind == MISSING or count == 0:
        raise SpecError(
            f"features='auto' learns from the first record, but there feature {name!r} is empty. Say what it is: "
            f"features={{{name!r}: penstock.ArraySpec(shape, dtype), ...}}."
        )
    dtype = {FLOAT: np.float32, INT64: np.int64, MANY: np.bytes_}[kind]
    return Feature(name, ArraySpec((count,) if count > 1 or kind == MANY else (), np.dtype(dtype)))


def encoded(element: Any) -> bytes:
    """Returns an element as the bytes of a record.

    Bytes, and arrays `(n,)` of uint8, are a record as they are. A dict is an Example: float32 becomes a `float_list`,
    int64 an `int64_list`, text and byte strings a `bytes_list`. Arrays of other dtypes become one byte string: their
    content in C order, and little-endian unless the dtype has another byte order.

    Raises:
        SpecError: The element is none of these.
    """
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    if isinstance(element, np.ndarray) and element.dtype == np.uint8 and element.ndim == 1:
        return element.tobytes()
    if not isinstance(element, Mapping):
        raise SpecError(
            f"A record is made of bytes, or of a dict of features, not of {type_of(element)}. Name what is in it: "
            'map(lambda pair: {"x": pair[0], "y": pair[1]}).'
        )
    entries = []
    for name, value in element.items():
        if not isinstance(name, str) or isinstance(value, (tuple, Mapping)):
            raise SpecError(
                f"Feature {name!r} is {type_of(value)}: a dict of arrays, numbers, text or bytes is needed."
            )
        entries.append(field(1, field(1, name.encode()) + field(2, _encoded_feature(name, value))))
    return field(1, b"".join(entries))


def _encoded_feature(name: str, value: Any) -> bytes:
    if isinstance(value, list) and value and all(isinstance(each, (str, bytes)) for each in value):
        return _encoded_texts(value)  # an array would drop zeros at their ends
    try:
        leaf = leaf_of(value)
    except SpecError as error:
        raise SpecError(f"Feature {name!r} is {error}.") from None
    if isinstance(leaf, (str, bytes)):
        return _encoded_texts([leaf])
    if leaf.dtype.kind in "US":
        return _encoded_texts(leaf.reshape(-1).tolist())
    if leaf.dtype == np.float32:
        return field(FLOAT, field(1, leaf.astype("<f4").tobytes()))
    if leaf.dtype == np.int64:
        return field(INT64, field(1, b"".join(map(varint, leaf.reshape(-1).tolist()))))
    return field(BYTES, field(1, leaf.tobytes()))


def _encoded_texts(texts: list[str | bytes]) -> bytes:
    values = (each.encode() if isinstance(each, str) else each for each in texts)
    return field(BYTES, b"".join(field(1, each) for each in values))
