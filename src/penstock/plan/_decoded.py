"""Reads the elements of a source that decodes whole parts, and has no `read_into` of its own: `DecodedParts`."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._conform import MisfitError, column, conformed, rows_of
from penstock.plan._parted import PartCache, PartSizes, by_part


@final
class DecodedParts:
    """An open source, whose decoded parts a plan may share; see `_parted.py`.

    Args:
        decode: See `Source.decode`.
        close: Called at the end; None for nothing.
        sizes: Those of its parts.
        element_spec: The tree of specs of its elements.
        name: What messages call it.
    """

    def __init__(
        self,
        decode: Callable[[int], Tree],
        close: Callable[[], object] | None,
        sizes: PartSizes,
        element_spec: Tree,
        name: str,
    ) -> None:
        self.element_spec = element_spec
        self.part_cache = PartCache(self._decode, sizes)
        self._decode_all = decode
        self._close = close
        self._name = name
        self._spec = Spec.of(element_spec)
        self._many: Spec | None = None
        """Many elements; None if they have no one size."""
        if all(map(_has_one_size, self._spec.leaves)):
            leaves = [ArraySpec((None, *leaf.shape), leaf.dtype) for leaf in self._spec.leaves]
            self._many = Spec(tuple(leaves), self._spec.structure)

    def gather(self, reads: Sequence[Any]) -> None:
        """Reads requests part by part, those first that are decoded, because others may take their place."""
        wanted: dict[int, list[tuple[Any, Indices, Indices | slice]]] = defaultdict(list)
        cache = self.part_cache
        for indices, arrays, places, _ in reads:
            for part, inside, rows in by_part(cache.sizes.bounds, indices, places):
                wanted[part].append((arrays, inside, rows))
        for part in sorted(wanted, key=lambda each: (not cache.is_there(each), each)):
            with cache.use(part) as leaves:
                for arrays, inside, rows in wanted[part]:
                    for array, leaf in zip(arrays, leaves, strict=True):
                        if isinstance(rows, slice) and not leaf.dtype.hasobject:
                            # In place, which `clip` means here. An assignment copies twice.
                            leaf.take(inside, axis=0, out=array[rows], mode="clip")
                        else:
                            array[rows] = _copied(leaf[inside]) if leaf.dtype.hasobject else leaf[inside]

    def close(self) -> None:
        """Drops what was decoded, and closes what was opened."""
        self.part_cache.clear()
        if self._close is not None:
            self._close()

    def _decode(self, part: int) -> tuple[list[Any], int]:
        """Returns an array for each leaf, with a row for each element, and their memory."""
        spec = self._spec
        try:
            value = self._decode_all(part)
            if self._many is not None:
                leaves = conformed(self._many, value)
            else:
                rows = [conformed(spec, row) for row in rows_of(value)]
                columns = [column(leaf, [row[number] for row in rows]) for number, leaf in enumerate(spec.leaves)]
                leaves = [_objects(each) if isinstance(each, list) else each for each in columns]
        except (MisfitError, ValueError) as error:
            raise SourceError(
                f"decode({part}) of {self._name} returned {error}. It returns the elements of the part in the tree of "
                f"element_spec, {spec}, with an entry of each leaf for each element."
            ) from None
        count = int(np.diff(self.part_cache.sizes.bounds)[part])
        if (found := {len(leaf) for leaf in leaves}) != {count}:
            raise SourceError(
                f"decode({part}) of {self._name} returned {' and '.join(map(str, sorted(found)))} elements, and "
                f"part_bounds says {count}."
            )
        return leaves, sum(_nbytes(leaf) for leaf in leaves)


def _has_one_size(leaf: ArraySpec) -> bool:
    return leaf.dtype.itemsize > 0 and None not in leaf.shape


def _objects(values: Sequence[Any]) -> Any:
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _copied(values: Any) -> Any:
    return _objects([value.copy() if isinstance(value, np.ndarray) else value for value in values])


def _nbytes(leaf: Any) -> int:
    values = leaf if leaf.dtype.hasobject else ()
    return int(leaf.nbytes) + sum(int(getattr(value, "nbytes", 0)) or len(value) for value in values)
