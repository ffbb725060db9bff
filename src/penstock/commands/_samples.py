"""Elements in a line a leaf: shape, dtype, and what the values are like."""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._spec import leaf_of, spec_of_leaf

_TEXT_LENGTH: Final = 40
_FEW: Final = 4
"""So many values are shown themselves."""
_HEAD_NBYTES: Final = 12


@final
@dataclass(frozen=True)
class LeafSummary:
    """A leaf of an element."""

    place: str
    """As code: `['image']`; empty for a lone leaf."""
    spec: str
    """Shape and dtype of this one."""
    values: str


def summaries(element: Any) -> list[LeafSummary]:
    """Returns a summary of each leaf of an element."""
    leaves, structure = _tree.flatten(element)
    return [
        LeafSummary(place, str(spec_of_leaf(leaf_of(leaf))), _values(leaf_of(leaf)))
        for place, leaf in zip(_tree.paths(structure), leaves, strict=True)
    ]


def _values(leaf: npt.NDArray[Any] | str | bytes) -> str:
    if not isinstance(leaf, np.ndarray):
        return _short(repr(leaf))
    if leaf.size == 0:
        return "empty"
    if leaf.ndim == 1 and leaf.dtype == np.uint8:  # as encoded files are, whose first bytes tell what they are
        return f"{leaf[:_HEAD_NBYTES].tobytes()!r}{'...' if leaf.size > _HEAD_NBYTES else ''}"
    if leaf.size <= _FEW or leaf.dtype.kind not in "biuf":
        few = [_number(value) for value in leaf.reshape(-1)[:_FEW].tolist()]
        return _short(f"[{', '.join(few)}]" if leaf.ndim else few[0])
    if leaf.dtype == bool:
        return f"{leaf.mean():.0%} True"
    return _range(leaf)


def _range(leaf: npt.NDArray[Any]) -> str:
    values = leaf[np.isfinite(leaf)] if leaf.dtype.kind == "f" else leaf
    if not values.size:
        return "no finite value"
    mean = float(values.mean(dtype=np.float64))
    text = f"{_number(values.min().item())} to {_number(values.max().item())}, mean {_number(mean)}"
    missing = leaf.size - values.size
    return f"{text}, {missing:,} not finite" if missing else text


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH else f"{text[: _TEXT_LENGTH - 3]}..."
