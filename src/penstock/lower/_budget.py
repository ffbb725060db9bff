"""How much memory a loader of a plan takes, known before the first read."""

from penstock.base._random import BLOCK_CACHE_NBYTES
from penstock.base._spec import Spec
from penstock.memory._budget import Budget
from penstock.memory._slot import SlotLayout
from penstock.plan._node import Node, walk
from penstock.plan._shuffle import Shuffle
from penstock.plan._source import key_of


def budget(
    node: Node,
    spec: Spec,
    slot_count: int,
    worker_count: int,
    shared_nbytes: int = 0,
    spans_nbytes: int = 0,
    source_nbytes: int = 0,
    sequence: Node | None = None,
) -> Budget:
    """Adds up what a loader of this plan will take.

    Args:
        node: The plan.
        spec: What a slot holds: an element of the plan, or a shard's part of one.
        slot_count: Slots.
        worker_count: Workers; 0 if there are none.
        shared_nbytes: See `Budget`.
        spans_nbytes: See `Budget`.
        source_nbytes: See `Budget`.
        sequence: The part that one worker reads element after element into the slots, if there is nothing else to do.
    """
    nodes = list(walk(node))
    if sequence is not None:
        scratch = sum(each.memory.sequence_nbytes for each in walk(sequence))
    else:
        scratch = sum(each.memory.scratch_nbytes for each in nodes)
    if spec is not node.spec and node.part_count(0, 0) is None:
        scratch += node.spec.nbytes  # what has no parts is made whole, for a shard to take its part of
    shuffles = any(isinstance(each, Shuffle) for each in nodes)
    return Budget(
        slot_count=slot_count,
        slot_nbytes=SlotLayout(spec).nbytes,
        scratch_nbytes=scratch * max(1, worker_count),
        order_nbytes=BLOCK_CACHE_NBYTES if shuffles else 0,
        shared_nbytes=shared_nbytes,
        kept_nbytes=sum({key_of(each.opens): each.memory.kept_nbytes for each in nodes}.values()),
        source_nbytes=source_nbytes,
        spans_nbytes=spans_nbytes,
        last_step=node.label,
        spec=str(spec),
    )
