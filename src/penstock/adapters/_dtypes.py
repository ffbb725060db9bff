"""Refuses dtypes that a framework does not have."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.base._errors import SpecError
from penstock.base._spec import Spec
from penstock.base._tree import paths


def require_dtypes(spec: Spec, framework: str, has_dtype: Callable[[np.dtype[Any]], bool]) -> None:
    """Checks each leaf.

    Args:
        spec: The spec of the batches.
        framework: Its name in messages.
        has_dtype: Whether the framework takes an array of a dtype in the byte order of this machine.

    Raises:
        SpecError: The framework does not have a dtype; names the leaf and the remedy.
    """
    for place, leaf in zip(paths(spec.structure), spec.leaves, strict=True):
        dtype = leaf.dtype
        if dtype.isnative and has_dtype(dtype):
            continue
        signed = f"int{min(64, 16 * dtype.itemsize)}"
        casts = {"M": "int64", "m": "int64", "f": "float32", "c": "complex64", "u": signed}
        if dtype.names:
            cure = f"Take its fields apart with map(), such as {{{dtype.names[0]!r}: x[{dtype.names[0]!r}]}}"
        elif not dtype.isnative:
            cure = f"Its bytes are in the order of another machine: use cast({str(dtype.newbyteorder('='))!r})"
        elif dtype.kind in casts:
            cure = f"Use cast({casts[dtype.kind]!r})"
        else:
            cure = "Leave it out, or make numbers of it, with map()"
        raise SpecError(f"{framework} has no dtype for element{place}, which is {leaf}. {cure}.")
