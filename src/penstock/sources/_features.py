"""Features of `tf.train.Example`: how a user names them, how they are found out, how elements become Examples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, type_of
from penstock.base._spec import ArraySpec, leaf_of
from penstock.sources._wire import BYTES, FLOAT, INT64, MANY, MISSING, field, varint


@final
@dataclass(frozen=True)
class Feature:
    """A feature that is wanted."""

    name: str
    spec: ArraySpec
    default: bytes | None = None
    """Its values where a record lacks it, as bytes of the spec's dtype; one text in UTF-8, or no texts."""

    @property
    def is_text(self) -> bool:
        """Whether it is text, or byte strings of any size."""
        return self.spec.dtype.itemsize == 0


def features_of(features: Any, defaults: Mapping[str, Any] | None) -> tuple[Feature, ...]:
    """Returns features as a user names them: by `ArraySpec`, or by TensorFlow's `FixedLenFeature` and its kin.

    Raises:
        ArgumentTypeError: It is no dict of such.
        ArgumentError: A default is for no feature, or does not fit.
        SpecError: A spec is one that no feature can have.
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
    spec = given if isinstance(given, ArraySpec) else _spec_of_foreign(name, given)
    text = spec.dtype.itemsize == 0
    if spec.shape[:1] == (None,) and 0 in spec.shape:
        raise SpecError(f"feature {name!r} cannot be {spec}: no value tells how long the first axis is.")
    if None in spec.shape[1:] or (text and len(spec.shape) > 1):
        raise SpecError(
            f"feature {name!r} cannot be {spec}: only the first axis can vary, and text has one axis at most. Read it "
            "flat, and reshape it in map()."
        )
    is_sequence = hasattr(given, "allow_missing")  # whose own default fills up a batch
    if default is None and not is_sequence:
        default = getattr(given, "default_value", None)
    if default is None and not isinstance(given, ArraySpec) and None in spec.shape:
        default = ()  # as in TensorFlow, where a list of any size may be absent
    return Feature(name, spec, None if default is None else _default(name, spec, default))


def _spec_of_foreign(name: str, given: Any) -> ArraySpec:
    """The spec of a feature of `tf.io`.

    A `FixedLenFeature` has shape and dtype, a `FixedLenSequenceFeature` that of one step, a `VarLenFeature` none.

    Raises:
        ArgumentTypeError: It is no such.
        SpecError: It is made of several features of the record.
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
                f"defaults= of feature {name!r} is {default!r}. A text can have one, and "
                "texts of any number the empty ()."
            )
        return default.encode() if isinstance(default, str) else default
    array = np.asarray(default)
    if not np.can_cast(array.dtype, spec.dtype, "same_kind") and array.size:
        raise ArgumentError(f"defaults= of feature {name!r} is of {array.dtype}, and {spec} is another kind.")
    array = array.astype(spec.dtype)
    try:
        if spec.max_shape is None:
            return array.reshape(-1, *spec.shape[1:]).tobytes()
        return np.broadcast_to(array, spec.max_shape).tobytes()
    except ValueError:
        raise ArgumentError(f"defaults= of feature {name!r} has shape {array.shape}, and {spec} another.") from None


def inferred(name: str, kind: int, nbytes: int, count: int) -> Feature:
    """Returns a feature as one record has it.

    One number is a scalar, several are an array of so many; bytes are uint8 of any size, and several byte strings
    an array of those.

    Args:
        name: Its name.
        kind: Its kind.
        nbytes: Bytes of its values.
        count: How many integers or byte strings it has.

    Raises:
        SpecError: It has no values.
    """
    if kind == FLOAT:
        count = nbytes // 4
    if kind == MISSING or (kind != BYTES and count == 0):
        raise SpecError(
            f"features='auto' learns from the first record, but there feature {name!r} is empty. Say what it is: "
            f"features={{{name!r}: penstock.ArraySpec(shape, dtype), ...}}."
        )
    if kind == BYTES:
        return Feature(name, ArraySpec((None,), np.dtype("uint8")))
    dtype = {FLOAT: np.float32, INT64: np.int64, MANY: np.bytes_}[kind]
    return Feature(name, ArraySpec((count,) if count > 1 or kind == MANY else (), np.dtype(dtype)))


def encoded(element: Any) -> bytes:
    """Returns an element as the bytes of a record.

    Bytes, and arrays `(n,)` of uint8, are a record as they are. A dict is an Example: float32 becomes a `float_list`,
    int64 an `int64_list`, text and byte strings a `bytes_list`. Arrays of other dtypes become one byte string, their
    content in C order and little-endian byte order unless the dtype says otherwise.

    Raises:
        SpecError: It is none of these.
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
        entry = field(1, name.encode()) + field(2, _encoded_feature(name, value))
        entries.append(field(1, entry))
    return field(1, b"".join(entries))


def _encoded_feature(name: str, value: Any) -> bytes:
    if isinstance(value, list) and value and all(isinstance(each, (str, bytes)) for each in value):
        return _encoded_texts(value)  # an array would drop zeros at their ends
    try:
        leaf = leaf_of(value)
    except SpecError as error:
        raise SpecError(f"Feature {name!r} is {error}.") from None
    if isinstance(leaf, (str, bytes)):
        return field(BYTES, field(1, leaf.encode() if isinstance(leaf, str) else leaf))
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
