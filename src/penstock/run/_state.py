"""What a checkpoint holds: `{"version", "plan", "epoch", "position"}`, and where it is needed, four more.

- `batch`: the elements of a global batch, if the dataset has random access and its batches come last. Another size may
  then continue the epoch: behind the elements that were delivered, in batches of its own.
- `cut`: where it did so, as a number of elements. `position` counts batches from there. The next epoch is whole again.
- `cursor`: see `Loader.get_state`.
- `mix`: the weights that a mix had, and from where on, if they may change; see `plan/_mixture.py`.
"""

from typing import Any, Final, NamedTuple

from penstock.base._arguments import as_int
from penstock.base._errors import StateError
from penstock.lower._rewrite import batching_of, with_batches
from penstock.plan._mix import Shares
from penstock.plan._mixture import MIX_NBYTES, Eras, eras_of, reached, shares_in, way_to_mix, with_shares
from penstock.plan._node import POSITION_LIMIT, Node, walk
from penstock.plan._text import difference, is_line_of

STATE_VERSION: Final = 1
RESIZE_NEEDS: Final = (
    "Only random access, with batch() last but for map(), lets a run continue an epoch with another batch size. "
    "on_error='skip', filter() and generators make a stream."
)
BATCH_LIMIT: Final = 1 << 40
"""More than the batches of any epoch of unknown length."""


class SavedPlace(NamedTuple):
    """A place in a run."""

    epoch: int
    position: int
    """Global batches of the epoch that were handed out, from the cut on."""
    cut: int = 0
    """The elements before the first of these batches."""
    consumed: int = -1
    """The cursor; -1 without one."""
    eras: Eras = ()
    """The shares of the mix."""

    @property
    def shares(self) -> Shares:
        """Those of the mix in this epoch; empty for those of the plan."""
        return shares_in(self.eras, self.epoch)

    def plan(self, whole: Node) -> Node:
        """What runs in this epoch, from the cut on, of a plan as the user wrote it."""
        plan = with_shares(whole, self.shares)
        return with_batches(plan, self.cut) if self.cut else plan

    def reached(self, plan: Node) -> int:
        """The elements of the mix that are used up in this epoch, of such a plan."""
        is_begun = self.position or self.cut
        return reached(way_to_mix(self.plan(plan)), self.position, self.consumed) if is_begun else 0


def state_of(plan: Node, line: str, place: SavedPlace) -> dict[str, Any]:
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
    if place.eras:
        state["mix"] = [[*each] for each in place.eras]
    return state


def place_of_state(state: Any, plan: Node, changed: str | None = None) -> SavedPlace:
    """Returns the place of a state, in batches of this plan.

    Args:
        state: The state.
        plan: The plan as the user wrote it.
        changed: The verb of a step that may differ: `mix`.

    Raises:
        StateError: It is no state, or one of another version or dataset.
    """
    needed = {"version", "plan", "epoch", "position"}
    if not isinstance(state, dict) or set(state) - {"batch", "cut", "cursor", "mix"} != needed:
        cure = " json.loads() makes one of text." if isinstance(state, str) else ""
        raise StateError(
            f"Not a loader's state: {state!r:.200}. It is what get_state() returned: a dict with version, plan, "
            f"epoch and position.{cure}"
        )
    if state["version"] != STATE_VERSION:
        raise StateError(f"The state has version {state['version']!r}, this penstock reads version {STATE_VERSION}.")
    size, cut = _counts(state | {"batch": state.get("batch", 1), "cut": state.get("cut", 0)}, "batch", "cut")
    epoch, position = _counts(state, "epoch", "position")
    cursor = state.get("cursor", [0])
    consumed = as_int(cursor[0]) if isinstance(cursor, list) and len(cursor) == 1 else None
    if consumed is None or not 0 <= consumed < POSITION_LIMIT:
        raise StateError(f"cursor={cursor!r} must be a list of one integer from 0 to 2**62 - 1.")
    way, saved = way_to_mix(plan), str(state["plan"])
    place = SavedPlace(
        epoch, position, cut, consumed if "cursor" in state else -1, eras_of(way.shares, state.get("mix"))
    )
    known: list[Shares] = [((0, each[2:]),) for each in place.eras[-1:] if "mix" in state]
    known += [way.shares[:count] for count in range(1, len(way.shares))]
    formers = (with_shares(plan, each) for each in known)
    former = next((each for each in (plan, *formers) if _is_of(each, saved, size)), None)
    resizes = former is not None and not is_line_of(saved, former)
    if resizes:
        place = place._replace(position=0, cut=cut + position * size, consumed=-1)
    eras: Eras | str = place.eras
    if former is None:
        may_change = not changed or ("mix" in state and not way.why)
        eras = "" if may_change else f" The weights of mix() cannot change: {way.why or 'the state has none'}."
    elif former is not plan:
        eras = _changed(place, plan, former, changed)
    if isinstance(eras, str):
        found = difference(saved, with_shares(plan, known[0]) if changed and known else plan)
        needs = f" {RESIZE_NEEDS}" if "arguments of batch changed" in found and batching_of(plan) is None else ""
        raise StateError(
            f"The state is of another dataset: {found}. Build the dataset as it was when the state was saved.{needs}"
            f"{eras}"
        )
    place = place._replace(eras=eras)
    if resizes and place.cut and place.plan(plan).length == 0:  # what is left is no batch, and is dropped
        return SavedPlace(epoch + 1, 0, eras=eras)
    return place


def _changed(place: SavedPlace, plan: Node, former: Node, changed: str | None) -> Eras | str:
    """The eras of a run whose mix has other weights from a place on; or why it cannot have them."""
    now, then = (way_to_mix(each).shares for each in (plan, former))
    element = place.reached(former)
    if len(now) > 1:  # written into the plan
        if len(place.eras) < 2 and now[: len(then)] == then and element <= now[len(then)][0]:
            return ()
        return f" Weights of mix() by element may change from element {element} of this epoch on."
    if changed is None:
        return " Or go on with other weights of its mix() from here on: set_state(state, changed='mix')."
    before = (each for each in place.eras if each[:2] < (place.epoch, element))
    eras = (*before, (place.epoch, element, *now[0][1]))
    if len(str(eras)) > MIX_NBYTES:
        return f" A state has {MIX_NBYTES} bytes for the weights of mix(), too few for these. Give them by element."
    return eras


def used(plan: Node, at: SavedPlace) -> tuple[tuple[str, int], ...]:
    """The source of each dataset of the mix, and the elements that were used of it in an epoch; see `Report.mixed`."""
    if at.epoch and not at.position and isinstance(length := at._replace(epoch=at.epoch - 1).plan(plan).length, int):
        at = at._replace(epoch=at.epoch - 1, position=length)
    mix = way_to_mix(at.plan(plan)).mix
    if mix is None:
        return ()
    labels = (next(one.label for one in walk(each) if not one.inputs) for each in mix.sources)
    return tuple(zip(labels, mix.counts(at.reached(plan)), strict=True))


def _counts(state: dict[str, Any], one: str, two: str) -> tuple[int, int]:
    counts = [as_int(state[name]) for name in (one, two)]
    first, second = (-1 if count is None else count for count in counts)
    if not (0 <= first < POSITION_LIMIT and 0 <= second < POSITION_LIMIT):
        raise StateError(f"{one}={state[one]!r} and {two}={state[two]!r} must be integers from 0 to 2**62 - 1.")
    return first, second


def _is_of(plan: Node, saved: str, size: int) -> bool:
    """Whether a saved line is that of a plan, or of one with batches of this size."""
    batching = batching_of(plan)
    resized = [with_batches(plan, size=size)] if batching is not None and size > 0 else []
    return any(is_line_of(saved, each) for each in (plan, *resized))
