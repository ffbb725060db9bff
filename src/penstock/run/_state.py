"""What a checkpoint holds: `{"version", "plan", "epoch", "position"}`, and where it is needed, three more.

- `batch`: the elements of a global batch, if the dataset has random access and its batches come last. Another size may
  then continue the epoch: behind the elements that were delivered, in batches of its own.
- `cut`: where it did so, as a number of elements. `position` counts batches from there. The next epoch is whole again.
- `cursor`: see `Loader.get_state`.
"""

from typing import Any, Final, NamedTuple

from penstock.base._arguments import as_int
from penstock.base._errors import StateError
from penstock.lower._rewrite import batching_of, with_batches
from penstock.plan._node import POSITION_LIMIT, Node
from penstock.plan._text import difference, identity

STATE_VERSION: Final = 1
RESIZE_NEEDS: Final = (
    "Only random access, with batch() last but for map(), lets a run continue an epoch with another batch size. "
    "on_error='skip', filter() and generators make a stream."
)
BATCH_LIMIT: Final = 1 << 40
"""More than the batches of any epoch of unknown length."""


class Place(NamedTuple):
    """A place in a run."""

    epoch: int
    position: int
    """Global batches of the epoch that were handed out, from the cut on."""
    cut: int = 0
    """The elements before the first of these batches."""
    consumed: int = -1
    """The cursor; -1 without one."""


def state_of(plan: Node, line: str, place: Place) -> dict[str, Any]:
    """Returns a place as JSON.

    Args:
        plan: The plan as the user wrote it.
        line: Its identity.
        place: The place.
    """
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "plan": line,
        "epoch": place.epoch,
        "position": place.position,
    }
    if (batching := batching_of(plan)) is not None:
        state["batch"] = batching.size
    if place.cut:
        state["cut"] = place.cut
    if place.consumed >= 0:
        state["cursor"] = [place.consumed]
    return state


def place_of_state(state: Any, plan: Node, line: str) -> Place:
    """Returns the place of a state, in batches of this plan.

    Raises:
        StateError: It is no state, or one of another version or dataset.
    """
    needed = {"version", "plan", "epoch", "position"}
    if not isinstance(state, dict) or set(state) - {"batch", "cut", "cursor"} != needed:
        cure = " json.loads() makes one of text." if isinstance(state, str) else ""
        raise StateError(
            f"Not a loader's state: {state!r:.200}. It is what get_state() returned: a dict with version, plan, "
            f"epoch and position.{cure}"
        )
    if state["version"] != STATE_VERSION:
        raise StateError(f"The state has version {state['version']!r}, this penstock reads version {STATE_VERSION}.")
    size, cut = _counts(state | {"batch": state.get("batch", 1), "cut": state.get("cut", 0)}, "batch", "cut")
    resizes = state["plan"] != line and _differs_in_size(plan, size, state["plan"])
    if state["plan"] != line and not resizes:
        changed = difference(str(state["plan"]), line, plan)
        needs = f" {RESIZE_NEEDS}" if "arguments of batch changed" in changed and batching_of(plan) is None else ""
        raise StateError(
            f"The state is of another dataset: {changed}. Build the dataset as it was when the state was saved.{needs}"
        )
    epoch, position = _counts(state, "epoch", "position")
    cursor = state.get("cursor", [0])
    consumed = as_int(cursor[0]) if isinstance(cursor, list) and len(cursor) == 1 else None
    if consumed is None or not 0 <= consumed < POSITION_LIMIT:
        raise StateError(f"cursor={cursor!r} must be a list of one integer from 0 to 2**62 - 1.")
    if not resizes:
        return Place(epoch, position, cut, consumed if "cursor" in state else -1)
    done = cut + position * size
    if done and with_batches(plan, done).length == 0:  # what is left is no batch, and is dropped
        return Place(epoch + 1, 0)
    return Place(epoch, 0, done)


def _counts(state: dict[str, Any], one: str, two: str) -> tuple[int, int]:
    counts = [as_int(state[name]) for name in (one, two)]
    first, second = (-1 if count is None else count for count in counts)
    if not (0 <= first < POSITION_LIMIT and 0 <= second < POSITION_LIMIT):
        raise StateError(f"{one}={state[one]!r} and {two}={state[two]!r} must be integers from 0 to 2**62 - 1.")
    return first, second


def _differs_in_size(plan: Node, size: int, saved: Any) -> bool:
    """Whether a saved plan is this one, with batches of another size."""
    batching = batching_of(plan)
    return batching is not None and size > 0 and identity(with_batches(plan, size=size)) == saved
