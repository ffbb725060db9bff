"""Ranks that are about to train on different data are told before their first step, and not by a hang at the end.

`torch.distributed` and JAX each keep a small table that all ranks reach. Of each first iteration of a loader, the rank
that comes first puts down what it is about to deliver. Every other one compares that with its own. This costs one or
two requests a run and rank, and none in a step. It is no collective: nothing here waits for another rank.

No deadlock. The only waits are for the server of that table. It answers by itself, or it is dead, and then the request
fails as everything else does. A thread that waits in torch's store for another rank would hold up all that use the same
connection, so this one has its own (`clone`). No rank waits for one that never comes here. The price: where the rank
that differs comes first, the others find the difference. The message names both.

What is compared with what. A rank counts the first iterations of loaders whose share was found (`FoundShard`), for each
group of ranks. The n-th of one rank is compared with the n-th of the others. Ranks that iterate together count alike.
`set_state` has the next iteration compared again, in all ranks or in none. Where the table does not answer, nothing is
compared: a check must not stop a run that would work.
"""

import json
import logging
import sys
from typing import Any, final

from penstock.base._errors import LoaderError
from penstock.run._shard import FoundShard, find_world

_log = logging.getLogger("penstock")


def require_agreement(shard: tuple[int, int], facts: dict[str, Any]) -> None:
    """Compares what this rank is about to deliver with what the first rank of its group put down.

    Nothing is compared where the share was given as numbers, or where the ranks have no table.

    Args:
        shard: The share of this rank.
        facts: What all ranks have in common, in values of JSON; `plan` is a line of `identity`.

    Raises:
        LoaderError: The two differ. Names both ranks, and the first fact that differs.
    """
    if not isinstance(shard, FoundShard) or shard[1] == 1:
        return
    rank = find_world().rank
    group = "penstock/" + "-".join(map(str, shard.ranks))
    mine = json.loads(json.dumps(facts))
    try:
        table = _TorchTable.find() or _JaxTable.find()
        if table is None:
            return
        number = table.count(f"{group}/{rank}")
        theirs = json.loads(table.first(f"{group}/run {number}", json.dumps(mine | {"rank": rank})))
    except RuntimeError as error:  # a store of another kind; or a dead server, of which the first step will tell
        _log.debug("Ranks are not compared: %s", error)
        return
    other = theirs.pop("rank")
    for name, value in mine.items():
        if theirs.get(name) != value:
            here, there = _steps(value, theirs[name]) if name == "plan" else (value, theirs.get(name))
            raise LoaderError(
                f"Ranks {other} and {rank} are about to train on different data: {name} is {there} in rank {other} "
                f"and {here} in rank {rank}. All ranks need the same dataset, the same options and the same state: "
                "build it from the same files and seeds, and give set_state() the same state in all of them or in none."
            )


def _steps(here: str, there: str) -> tuple[str, str]:
    """The first step in which two lines of plans differ."""
    steps = zip((*here.split(" > "), "nothing more"), (*there.split(" > "), "nothing more"), strict=False)
    return next((mine, theirs) for mine, theirs in steps if mine != theirs)


@final
class _TorchTable:
    """The store by which the ranks of `torch.distributed` found each other."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @classmethod
    def find(cls) -> "_TorchTable | None":
        """Returns it; None where torch has no process group, or one without a store (MPI)."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        # There is no public path to it (torch 2.13).
        get = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_get_default_store", None)
        store = None if get is None else get()
        return None if store is None else cls(store.clone() if hasattr(store, "clone") else store)

    def count(self, key: str) -> int:
        """Adds one to a number and returns it."""
        number: int = self._store.add(key, 1)
        return number

    def first(self, key: str, value: str) -> str:
        """Puts a value where there is none, and returns the one that is there."""
        found: bytes = self._store.compare_set(key, "", value)
        return found.decode()


@final
class _JaxTable:
    """The service by which the processes of JAX found each other; with the methods of `_TorchTable`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def find(cls) -> "_JaxTable | None":
        """Returns it; None where JAX runs in one process, or its client has other methods."""
        # There is no public path to it (JAX 0.10).
        state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
        client = getattr(state, "client", None)
        return cls(client) if hasattr(client, "key_value_increment") else None

    def count(self, key: str) -> int:
        number: int = self._client.key_value_increment(key, 1)
        return number

    def first(self, key: str, value: str) -> str:
        try:
            self._client.key_value_set(key, value)
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            found: str = self._client.key_value_try_get(key)
            return found
        return value
