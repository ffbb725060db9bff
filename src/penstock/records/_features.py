"""Features of `tf.train.Example` that a user names, and sources of records that have them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, SpecError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.plan._pad import holds


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

    @cached_property
    def kind(self) -> str:
        """The list of an Example that holds such values; values of other dtypes are the bytes of one byte string."""
        return {"float32": "float_list", "int64": "int64_list"}.get(self.spec.dtype.name, "bytes_list")


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
