"""How evenly do batches come from 1,000 nodes of unequal speed?

Question: some nodes are four times as fast as others, and now and then one pauses. How even are batches, and how much
of the nodes' speed is used, if they take shares from the head of one queue? Beside it: the same number of rows for each
node in every batch, as a fixed assignment gives, and a whole batch for each node.

Method: `python benchmarks/ray_shares.py`. A simulation by events, without Ray: `_give_out` of `ray/_fleet.py` in a few
lines. A row takes 20 ms on a worker of a node of speed 1, and a node has 16 workers. Speeds are drawn evenly from 0.5
to 2, and a share takes 2 ms more to travel. With pauses, one share in 1,000 takes 0.2 s longer. The consumer takes
batches as fast as they come. A gap is the time from one complete batch to the next, in order. `p99/mean` is the 99th
percentile of gaps over their mean, and `speed` the rows a second over the sum of the nodes' speeds.

Result, 2026-11-24, seed 0; it does not depend on the machine:

    nodes  rows a batch  slots   policy  no pauses: p99/mean  speed   pauses: p99/mean  speed
        4         1,024      6   shares                 1.05   1.00               1.62   0.99
        4         1,024      6   even                   1.00   0.66               1.00   0.66
        4         1,024      6   whole                  4.54   0.74               4.54   0.74
      100        16,384      6   shares                 1.01   1.00               2.29   1.00
      100        16,384      6   even                   1.00   0.36               1.00   0.36
      100        16,384      6   whole                  8.36   0.04               8.36   0.04
     1000        65,536      6   shares                 1.06   1.00               3.15   1.00
     1000        65,536      6   even                   1.00   0.40               1.00   0.40
     1000        65,536      6   whole                  6.76   0.00               6.76   0.00
     1000        65,536     24   shares                 1.06   1.00               3.15   1.00
     1000        65,536     24   even                   1.00   0.40               1.00   0.40
     1000        65,536     24   whole                 16.09   0.01              16.09   0.01

Shares use all of the speed, and come evenly: the last share of a batch takes some 50 ms on any node. A node that pauses
holds one batch up, and meanwhile the others fill the slots behind it. A fixed assignment goes at the speed of the
slowest node. Whole batches need a slot for each node, or most nodes stand still.

Not shown: the trainer's own time. A share costs it 1 ms of CPU and the copy of the rows, so one trainer hands out some
1,000 shares a second: see design/0027-ray.md.
"""

import argparse
import heapq
import random
from collections import deque

import numpy as np

ROW_S, TRAVEL_S = 20e-3, 2e-3
SHARE_S, LEAST_SHARE_S, SHARE_COUNT = 0.05, 0.005, 2
PAUSE_S, PAUSED_ONE_OF = 0.2, 1000
WORKERS = 16


def simulate(
    node_count: int, batch_rows: int, slot_count: int, batch_count: int, policy: str, *, pauses: bool
) -> tuple[float, float]:
    """Returns the 99th percentile of gaps over their mean, and the part of all nodes' speed that was used."""
    rng = random.Random(0)
    rates = [rng.uniform(0.5, 2.0) * WORKERS / ROW_S for _ in range(node_count)]  # rows a second
    free_at = [0.0] * node_count
    held = [0] * node_count
    remaining: dict[int, int] = {}
    waiting: deque[list[int]] = deque()  # batch, rows
    events: list[tuple[float, int, int, int]] = []  # time, node, batch, rows
    issued, head, now = 0, 0, 0.0
    done: list[float] = []
    idle = deque(range(node_count))

    def send(node: int, batch: int, rows: int) -> None:
        pause_s = PAUSE_S if pauses and rng.randrange(PAUSED_ONE_OF) == 0 else 0.0
        held[node] += 1
        free_at[node] = max(now + TRAVEL_S / 2, free_at[node]) + rows / rates[node] + pause_s
        heapq.heappush(events, (free_at[node] + TRAVEL_S / 2, node, batch, rows))

    while head < batch_count:
        while issued < head + slot_count and issued < batch_count + slot_count:
            remaining[issued] = batch_rows
            if policy == "even":
                for node in range(node_count):
                    share = batch_rows * (node + 1) // node_count - batch_rows * node // node_count
                    send(node, issued, share)
            else:
                waiting.append([issued, batch_rows])
            issued += 1
        while waiting and idle:
            node = idle.popleft()
            if held[node] >= SHARE_COUNT:
                continue
            batch, rows = waiting[0]
            if policy == "shares":
                places = 2 * len(idle) + 1
                left = sum(each[1] for each in waiting) / places
                limit = min(SHARE_S * rates[node], max(LEAST_SHARE_S * rates[node], left))
                rows = min(rows, max(WORKERS, int(limit)))
            waiting[0][1] -= rows
            if not waiting[0][1]:
                waiting.popleft()
            send(node, batch, rows)
            if held[node] < SHARE_COUNT:
                idle.append(node)
        now, node, batch, rows = heapq.heappop(events)
        held[node] -= 1
        if held[node] == SHARE_COUNT - 1:
            idle.append(node)
        remaining[batch] -= rows
        while remaining.get(head) == 0:
            del remaining[head]
            head += 1
            done.append(now)
    gaps = np.diff(done[len(done) // 5 :])
    speed = batch_rows * len(gaps) / gaps.sum() / sum(rates)
    return float(np.quantile(gaps, 0.99) / gaps.mean()), float(speed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print("    nodes  rows a batch  slots   policy  no pauses: p99/mean  speed   pauses: p99/mean  speed")
    for node_count, batch_rows, slot_count in ((4, 1024, 6), (100, 16384, 6), (1000, 65536, 6), (1000, 65536, 24)):
        for policy in ("shares", "even", "whole"):
            count = 40 if quick else 200
            numbers = [
                number
                for pauses in (False, True)
                for number in simulate(node_count, batch_rows, slot_count, count, policy, pauses=pauses)
            ]
            print(f"    {node_count:5} {batch_rows:13,} {slot_count:6}   {policy:6}", end=" ")
            print("{:20.2f} {:6.2f} {:18.2f} {:6.2f}".format(*numbers))


if __name__ == "__main__":
    main()
