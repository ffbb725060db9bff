"""`tf.train.Example` without TensorFlow, by the library `protobuf`: records to rows of arrays, and elements to records.

An Example is a map of names to lists of float32, int64 or bytes. `benchmarks/examples.py` compares it with what stood
here before, which took records apart by hand.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from penstock.base._errors import SourceError, SpecError, type_of
from penstock.base._spec import ArraySpec, leaf_of
from penstock.records._features import Feature

_SCHEMA: Final = """
name: "example.proto" syntax: "proto3"
message_type { name: "Texts" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Floats" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Integers" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Texts" oneof_index: 0 }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Floats" oneof_index: 0 }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Integers" oneof_index: 0 }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".Features.FeatureEntry" }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Feature" }
  }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Features" }
  field { name: "feature_lists" number: 2 label: LABEL_REPEATED type: TYPE_BYTES }
}
"""
"""TensorFlow's example.proto. An Example has no `feature_lists`: a SequenceExample has its lists there."""
_DTYPES: Final[dict[str, Any]] = {"float_list": np.dtype(np.float32), "int64_list": np.dtype(np.int64)}


@cache
def example_class() -> Any:
    """Returns the class of the messages, from a pool of its own: TensorFlow's may be in the default one."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()).SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))


def _parsed(record: bytes, name: Callable[[], str]) -> Any:
    try:
        return example_class().FromString(record)
    except DecodeError as error:
        raise SourceError(
            f"{name()} is no tf.train.Example: {error}. Without features= its bytes are given as they are."
        ) from error


def read_example(
    features: Sequence[Feature], record: bytes, outs: Sequence[npt.NDArray[Any]], row: int, name: Callable[[], str]
) -> None:
    """Writes the features of a record to a row of arrays.

    Args:
        features: The requested features.
        record: The bytes of an Example.
        outs: An array for each feature, `(count, *shape)`; of objects for values of any size.
        row: The row.
        name: Returns the name of the record, for messages.

    Raises:
        SourceError: The record is no Example.
        SpecError: A feature is missing, or does not fit its spec.
    """
    found = _parsed(record, name).features.feature
    for feature, out in zip(features, outs, strict=True):
        try:
            out[row] = _value(feature, found.get(feature.name))
        except ValueError as error:
            raise SpecError(f"{name()}: feature {feature.name!r} {error}.") from None


def _value(feature: Feature, message: Any) -> Any:
    """Returns the value of a feature for its array, in memory of its own or to be copied.

    Raises:
        ValueError: It is missing, or does not fit its spec.
    """
    spec, kind = feature.spec, feature.kind
    values = () if message is None else getattr(message, kind).value
    if not values:
        kind, values = _others(feature, message)
    if feature.is_text:
        return _texts(values, spec)
    if kind != "bytes_list":
        if spec.shape == () and len(values) == 1:
            return values[0]
        if kind == "float_list":  # packed, behind a tag and their size; one by one they take ten times as long
            array = np.frombuffer(message.float_list.SerializeToString()[-4 * len(values) :], "<f4")
        else:
            array = np.array(values, spec.dtype)
    elif len(values) == 1:
        array = np.frombuffer(values[0], spec.dtype)
        array = array if spec.max_shape else array.copy()
    else:
        raise ValueError(f"holds {len(values)} byte strings, and {spec} is made of the bytes of one")
    try:
        return array.reshape((-1, *spec.shape[1:]) if spec.max_shape is None else spec.max_shape)
    except ValueError:
        raise ValueError(f"has {array.size:,} values, and {spec} has another size") from None


def _others(feature: Feature, message: Any) -> tuple[str, Any]:
    """Returns the values of a feature without values in its own list, and which list has them.

    Raises:
        ValueError: It is missing, or of another kind.
    """
    spec, kind = feature.spec, None if message is None else message.WhichOneof("kind")
    if kind is None:
        if feature.default is None:
            raise ValueError("is missing, and has no default. Give defaults={...}, or another features=")
        return "bytes_list", [] if feature.is_text and spec.shape else [feature.default]
    if feature.is_text and kind != "bytes_list":
        raise ValueError(f"is a {kind}, and {spec} is made of a bytes_list")
    if kind not in ("bytes_list", feature.kind):
        raise ValueError(f"is a {kind}, and {spec} is another dtype. Read {_DTYPES[kind]}, then cast()")
    return kind, getattr(message, kind).value


def _texts(raw: Any, spec: ArraySpec) -> Any:
    try:
        values: list[Any] = [each.decode() for each in raw] if spec.dtype.kind == "U" else list(raw)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not text in UTF-8 ({error.reason} at byte {error.start})") from error
    if spec.max_shape is not None:
        if len(values) != (wanted := int(np.prod(spec.max_shape))):
            raise ValueError(f"holds {len(values)} byte strings, and {spec} is {wanted}")
        return values if spec.shape else values[0]
    if (array := np.array(values, spec.dtype)).tolist() != values:
        raise ValueError(
            "holds text or a byte string that ends in a zero, and arrays of NumPy drop zeros at the end. Leave "
            "features= out, and take the record apart in map()"
        )
    return array


def first_features(name: str, record: bytes) -> tuple[Feature, ...]:
    """Returns the features of the Example in a record of this name, with the specs that their values suggest.

    One number is a scalar, several are an array of that length. Bytes are uint8 of any size, and several byte strings
    an array of them.

    Raises:
        SourceError: It is no Example.
        SpecError: It has no features, or one without values, or is a sequence.
    """
    example = _parsed(record, lambda: name)
    if example.feature_lists:
        raise SpecError(
            f"{name} is a tf.train.SequenceExample, whose lists of features are not read here. Name features "
            "of its context with features={...}, or leave features= out and parse the records in map()."
        )
    found = example.features.feature
    if not found:
        raise SourceError(f"{name} is a tf.train.Example without features.")
    return tuple(Feature(each, _suggested(each, found[each])) for each in sorted(found))


def _suggested(name: str, message: Any) -> ArraySpec:
    kind = message.WhichOneof("kind")
    count = 0 if kind is None else len(getattr(message, kind).value)
    if not count:
        raise SpecError(
            f"features='auto' learns from the first record, but there feature {name!r} is empty. Say what it is: "
            f"features={{{name!r}: penstock.ArraySpec(shape, dtype), ...}}."
        )
    if kind == "bytes_list":
        return ArraySpec((None,), "uint8") if count == 1 else ArraySpec((count,), "S")
    return ArraySpec((count,) if count > 1 else (), _DTYPES[kind])


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
    example = example_class()()
    for name, value in element.items():
        if not isinstance(name, str) or isinstance(value, (tuple, Mapping)):
            raise SpecError(
                f"Feature {name!r} is {type_of(value)}: a dict of arrays, numbers, text or bytes is needed."
            )
        kind, values = _values_of(name, value)
        getattr(example.features.feature[name], kind).value.extend(values)
    return example.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def _values_of(name: str, value: Any) -> tuple[str, list[Any]]:
    """Returns the list of a feature, and its values."""
    if isinstance(value, list) and value and all(isinstance(each, (str, bytes)) for each in value):
        texts = value  # an array would drop zeros at their ends
    else:
        try:
            leaf = leaf_of(value)
        except SpecError as error:
            raise SpecError(f"Feature {name!r} is {error}.") from None
        if isinstance(leaf, (str, bytes)):
            texts = [leaf]
        elif leaf.dtype.kind in "US":
            texts = leaf.reshape(-1).tolist()
        else:
            kind = next((kind for kind, dtype in _DTYPES.items() if leaf.dtype == dtype), None)
            return (kind, leaf.reshape(-1).tolist()) if kind else ("bytes_list", [leaf.tobytes()])
    return "bytes_list", [each.encode() if isinstance(each, str) else each for each in texts]
