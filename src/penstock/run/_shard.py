"""Which share of each batch a process takes: `shard=` of a loader, given or found.

Only what the user has imported is asked, in this order: Ray Train, `torch.distributed`, JAX. Then come the variables
that launchers set. A framework that is imported and not initialized says nothing, and asking must not initialize it:
JAX would start its devices, and could then no longer be told about other processes.
"""

import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, final

from penstock.base._arguments import as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError

_log = logging.getLogger("penstock")

_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    # Not SLURM_NTASKS: the script of sbatch has it, too, and is one process. srun alone sets the number of a step.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_KINDS: Final = "Use (index, count), 'auto', or a dimension of a DeviceMesh, as in mesh['dp']."


class Mesh(Protocol):
    """A `DeviceMesh` of torch, or one dimension of it."""

    mesh: Any
    """The ranks, as a tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of ranks along each dimension."""

    def get_coordinate(self) -> Sequence[int] | None:
        """The place of this rank in it."""


Shard = tuple[int, int] | Literal["auto"] | Mesh | None
"""The values of `shard=`."""


class World(NamedTuple):
    """The processes of a run."""

    rank: int
    size: int
    origin: str
    """What says so."""


@final
class FoundShard(tuple[int, int]):
    """A share that was not given as numbers. The ranks that have the others are known, and can be compared.

    Args:
        shard: `(index, count)`.
        ranks: The ranks that have all shares; empty if it is every rank.
    """

    ranks: tuple[int, ...]

    def __new__(cls, shard: tuple[int, int], ranks: Sequence[int] = ()) -> Self:
        """Makes a pair that knows more."""
        self = super().__new__(cls, shard)
        self.ranks = tuple(ranks)
        return self


def shard_of(value: Shard) -> tuple[int, int]:
    """Returns `(index, count)` for a value of `shard=`.

    Args:
        value: `(index, count)`; `"auto"`; a `DeviceMesh` of torch, often one dimension of a larger one; or None.

    Raises:
        ArgumentTypeError: It is something else.
        ArgumentError: The numbers have no meaning, or this process is not in the mesh.
    """
    if value is None:
        return 0, 1
    if isinstance(value, FoundShard):
        return value
    if isinstance(value, str) and value == "auto":
        world = find_world()
        return FoundShard((world.rank, world.size))
    if not isinstance(value, (tuple, str)) and hasattr(value, "get_coordinate"):
        return _place_in_mesh(value)
    parts = [as_int(part) for part in value] if isinstance(value, tuple) else []
    numbers = tuple(number for number in parts if number is not None)
    if not len(parts) == len(numbers) == 2:
        raise ArgumentTypeError(f"shard={value!r} is not a pair of integers (index, count). {_KINDS}")
    if not 0 <= numbers[0] < numbers[1]:
        raise ArgumentError(f"shard={numbers} is (index, count), and needs 0 <= index < count.")
    return numbers[0], numbers[1]


def _place_in_mesh(mesh: Mesh) -> FoundShard:
    """The place of this process in a mesh, counted along all of its dimensions; the last one varies fastest."""
    coordinate, sizes = mesh.get_coordinate(), tuple(mesh.shape)
    if coordinate is None:
        raise ArgumentError(f"shard={mesh}: this process is not in that mesh, so it has no share.")
    index = 0
    for place, size in zip(coordinate, sizes, strict=True):
        index = index * size + place
    return FoundShard((index, math.prod(sizes)), mesh.mesh.flatten().tolist())


def find_world() -> World:
    """Returns the rank of this process, and how many there are; `(0, 1)` where nothing speaks of others.

    Raises:
        ArgumentError: A launcher set variables that have no meaning.
    """
    return _in_ray_train() or _in_torch() or _in_jax() or _in_variables() or World(0, 1, "one process")


def _in_ray_train() -> World | None:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        rank, size = context.get_world_rank(), context.get_world_size()
    except Exception:  # outside of a training function
        return None
    return World(rank, size, "Ray Train") if size > 1 else None


def _in_torch() -> World | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return World(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _in_jax() -> World | None:
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)  # JAX from 0.5 on
    if jax is None or is_initialized is None or not is_initialized() or jax.process_count() == 1:
        return None
    return World(jax.process_index(), jax.process_count(), "JAX")


def _in_variables() -> World | None:
    for names in _VARIABLES:
        texts = [os.environ.get(name, "") for name in names]
        if not all(texts):
            continue
        try:
            rank, size = map(int, texts)
        except ValueError:
            rank, size = -1, 0
        if not 0 <= rank < size:
            settings = " and ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))
            raise ArgumentError(f"shard='auto' found {settings} in the environment, which are no rank and world size.")
        return World(rank, size, f"{names[0]} and {names[1]} in the environment")
    return None


_warned: Final[list[World]] = []
"""Whom the log has warned."""


def warn_of_missing_shard(call: str) -> None:
    """Logs, once a process, that each of several ranks is about to train on everything.

    Args:
        call: What the user wrote: `loader`, `to_torch`.
    """
    if _warned:
        return
    try:
        world = find_world()
    except ArgumentError:  # these variables were not asked for
        return
    if world.size > 1:
        _warned.append(world)
        _log.warning(
            "This is rank %d of %d (%s), and %s() has no shard=: every rank gets all rows of every batch. For a share "
            "each: %s(shard='auto'). If that is meant: %s(shard=(0, 1)).",
            *world,
            call,
            call,
            call,
        )
