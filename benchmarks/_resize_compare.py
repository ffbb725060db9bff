"""Compares what a run trained on with what the same run trains on if nothing happens to it.

A unit is what a step counts: an element, a packed row, or a whole batch. It holds the numbers of its elements, and a
digest of its bytes. Within a step the order of units has no meaning, because ranks add their gradients up.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

Unit = tuple[tuple[int, ...], int]
"""The numbers of the elements of a unit, and a digest of its bytes."""

Step = list[Unit]
"""What all ranks together train on in one step."""


@dataclass(frozen=True)
class Difference:
    """How a run differs from the one without events; all 0 where it does not."""

    lost: int
    """Elements of steps that are over, which the run never trained on."""
    repeated: int
    """How often an element came again."""
    moved: int
    """Elements that came in another step, or in another packed row or batch."""
    steps: int
    """Steps with another element, or another bit."""
    bits: int
    """Elements whose bytes differ: other random numbers."""

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


def compare(reference: Sequence[Step], trained: Sequence[Step]) -> Difference:
    """Returns how `trained` differs from `reference`, the same run without events, which is at least as long.

    The sizes of steps may differ from those of the reference. A step that covers units `[a, b)` of the run is right if
    it has, of each step of the reference, as many units as lie in `[a, b)`.
    """
    place: dict[tuple[int, ...], tuple[int, int]] = {}  # elements of a unit -> step of the reference, digest
    wanted_counts: Counter[int] = Counter()  # a document that is cut is in two rows
    bounds = [0]
    for number, step in enumerate(reference):
        for ids, digest in step:
            place[ids] = (number, digest)
            wanted_counts.update(ids)
        bounds.append(bounds[-1] + len(step))
    seen: Counter[int] = Counter()
    moved = steps = bits = start = 0
    for step in trained:
        stop = start + len(step)
        room = _overlaps(bounds, start, stop)
        is_same = True
        for ids, digest in step:
            seen.update(ids)
            number, wanted = place.get(ids, (-1, 0))
            if room.get(number, 0) > 0:
                room[number] -= 1
            else:
                moved += len(ids)
                is_same = False
            if number >= 0 and digest != wanted:
                bits += len(ids)
                is_same = False
        steps += not is_same
        start = stop
    over = [step for step, stop in zip(reference, bounds[1:], strict=True) if stop <= start]
    lost = sum(number not in seen for step in over for ids, _ in step for number in ids)
    repeated = sum(
        count - max(wanted_counts[number], 1) for number, count in seen.items() if count > wanted_counts[number]
    )
    return Difference(lost, repeated, moved, steps, bits)


def _overlaps(bounds: Sequence[int], start: int, stop: int) -> dict[int, int]:
    """Returns how many units of each step of the reference lie in `[start, stop)`."""
    found = {}
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        if (count := min(stop, last) - max(start, first)) > 0:
            found[number] = count
    return found
