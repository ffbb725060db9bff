"""The memory that a loader of a plan takes, known before the first read."""

from penstock.base._spec import Spec
from penstock.lower._analysis import Analysis
from penstock.memory._budget import Budget
from penstock.memory._slot import SlotLayout
from penstock.plan._text import largest_element


def budget(
    analysis: Analysis,
    spec: Spec,
    *,
    slot_count: int,
    worker_count: int,
    shared_nbytes: int = 0,
    spans_nbytes: int = 0,
    kept_nbytes: int = 0,
    source_nbytes: int = 0,
    parts_nbytes: int = 0,
    is_sent: bool = False,
) -> Budget:
    """Adds up the memory of a loader.

    Args:
        analysis: The plan.
        spec: The spec of a slot: an element of the plan, or a shard's part of one.
        slot_count: Slots.
        worker_count: Workers; 0 if there are none.
        shared_nbytes: See `Budget`.
        spans_nbytes: See `Budget`.
        kept_nbytes: Caches in memory of other parts.
        source_nbytes: See `Budget`.
        parts_nbytes: See `Budget`.
        is_sent: Whether batches come from other machines. Then as many may be on their way as there are slots.
    """
    node = analysis.plan
    scratch = analysis.scratch_nbytes
    if spec is not node.spec and node.row_count(0, 0) is None:
        scratch += node.spec.nbytes  # an element without parts is made whole, and a shard takes its part of it
    return Budget(
        slot_count=slot_count,
        slot_nbytes=SlotLayout(spec).nbytes,
        scratch_nbytes=scratch * max(1, worker_count),
        order_nbytes=max(each.memory.order_nbytes for each in analysis.steps),
        shared_nbytes=shared_nbytes,
        kept_nbytes=analysis.kept_nbytes() + kept_nbytes,
        source_nbytes=source_nbytes,
        parts_nbytes=parts_nbytes,
        spans_nbytes=spans_nbytes,
        last_step=node.label,
        store_nbytes=slot_count * SlotLayout(spec).nbytes if is_sent else 0,
        spec=str(spec),
        batch_size=node.batch_size or 1,
        largest_source=analysis.largest_source,
        largest_element=largest_element(node),
    )
