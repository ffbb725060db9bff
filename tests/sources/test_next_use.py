"""The policy of the disk cache, on plans alone: its hits beside those of the optimum, of LRU, and of what stays."""

import heapq
from collections import OrderedDict

import numpy as np
import pytest

import penstock as ps
from penstock.plan._order import ReadOrder
from penstock.sources._nextuse import FAR, NextUse, Shelf


def order_of(ds, same_epoch=False):
    node = ds._node
    source = node
    while source.opens is None:
        source = source.inputs[0]
    return ReadOrder(node, source.opens, node.length if isinstance(node.length, int) else None, same_epoch)


def accesses(order, epochs):
    return [[order.elements(epoch, i, i + 1)[0] for i in range(order.batch_count)] for epoch in range(epochs)]


def hits_of_penstock(order, limit, epochs, sizes, cell):
    """Counts hits as the cache does: a block is stored if there is room, or if the shelf makes room."""
    future = NextUse(order, lambda elements: (elements // cell)[:, None])
    shelf, held, used, hits = Shelf(limit), set(), 0, 0
    now = 0

    def next_uses(ids):
        return future.after(ids, now - 1)

    for epoch, batches in enumerate(accesses(order, epochs)):
        for index, elements in enumerate(batches):
            for block in (elements // cell).tolist():
                if block in held:
                    hits += 1
                    continue
                size = int(sizes[block])
                if used + size > limit:
                    now = future.time(epoch, index, is_now=True)
                    next_use = int(future.after(np.array([block]), now)[0])
                    for victim, freed in shelf.offer(size, next_use, next_uses) or ():
                        held.discard(victim)
                        used -= freed
                if used + size <= limit:
                    held.add(block)
                    shelf.add(block, size)
                    used += size
    return hits


def hits_of_optimum(trace, limit):
    """Belady's rule, with the choice not to keep what arrives; blocks of equal size."""
    next_of, last = [FAR] * len(trace), {}
    for at in range(len(trace) - 1, -1, -1):
        next_of[at] = last.get(trace[at], FAR)
        last[trace[at]] = at
    held, heap, hits = {}, [], 0
    for block, after in zip(trace, next_of, strict=True):
        hits += block in held
        held[block] = after
        heapq.heappush(heap, (-after, block))
        while len(held) > limit:
            after, victim = heapq.heappop(heap)
            if held.get(victim) == -after:
                del held[victim]
    return hits


def hits_of_lru(trace, limit):
    held, hits = OrderedDict(), 0
    for block in trace:
        hits += block in held
        held[block] = None
        held.move_to_end(block)
        if len(held) > limit:
            held.popitem(last=False)
    return hits


def hits_of_what_stays(trace, limit):
    """Blocks are kept while there is room, and none is evicted."""
    held, hits = set(), 0
    for block in trace:
        hits += block in held
        if len(held) < limit:
            held.add(block)
    return hits


@pytest.mark.parametrize(
    ("name", "cell", "lru_share", "stay_share"),
    [
        ("global", 1, 0.75, 1.02),
        ("window", 1, 0.1, 1.02),
        ("cells", 8, 0.9, 0.65),
        ("cells of a window", 8, 1.0, 0.55),  # `shuffle(window=)` is what we advise for small elements
        ("repeat", 1, 0.75, 1.02),
    ],
)
def test_hits_are_those_of_the_optimum_and_more_than_those_of_lru(name, cell, lru_share, stay_share):
    count, epochs = 4096, 3
    ds = ps.range(count)
    plans = {
        "global": ds.shuffle(seed=1).batch(32),
        "cells": ds.shuffle(seed=1).batch(32),
        "window": ds.shuffle(seed=1, window=512).batch(32),
        "cells of a window": ds.shuffle(seed=1, window=512).batch(32),
        "repeat": ds.shuffle(seed=1).repeat(3).batch(32),
    }
    order = order_of(plans[name])
    epochs = 1 if name == "repeat" else epochs
    trace = [int(i) // cell for batches in accesses(order, epochs) for batch in batches for i in batch]
    blocks = count // cell
    found = hits_of_penstock(order, blocks // 2, epochs, np.ones(blocks), cell)
    optimum, lru = hits_of_optimum(trace, blocks // 2), hits_of_lru(trace, blocks // 2)
    stays = hits_of_what_stays(trace, blocks // 2)
    print(name, *(hits / len(trace) for hits in (found, optimum, lru, stays)))
    assert found >= 0.98 * optimum
    assert lru <= lru_share * found
    assert stays <= stay_share * found
