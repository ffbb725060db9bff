"""Functions on a Ray cluster: the same batches as without one, also after a crash and on another number of workers.

`address="local"` makes a cluster of this machine. On more machines, start one (`ray start --head` on the first,
`ray start --address=...` on the others), and write `ray.init(address="auto")`; nothing else changes.

Run it: python examples/ray_cluster.py. It needs Ray: the extra `ray`.
"""

import os

import numpy as np

import penstock as ps

PICTURES, BATCH = 400, 16


def decode(index: np.ndarray) -> np.ndarray:
    """Makes a picture of (32, 32, 3) uint8. Yours may read a file, with a path that all machines have."""
    return np.random.default_rng(int(index)).integers(0, 256, (32, 32, 3), np.uint8)


def flipped(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return picture[:, ::-1] if rng.random() < 0.5 else picture


def main() -> None:
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ds = ps.range(PICTURES).shuffle(seed=1).map(decode).random_map(flipped, seed=2).batch(BATCH)

    # Two workers on each machine. The run stops in the middle of the second epoch.
    batches = []
    with ds.loader(executor="ray", workers=2) as loader:
        batches += [batch.copy() for batch in loader]
        for batch in loader:
            batches.append(batch.copy())
            if len(batches) == 35:
                break
        state = loader.get_state()  # save this beside the weights of the model
        print(loader.report())

    # It goes on with one worker.
    with ds.loader(executor="ray", workers=1) as loader:
        loader.set_state(state)
        batches += [batch.copy() for batch in loader]

    with ds.loader(executor="inline") as loader:  # without workers
        wanted = [batch.copy() for _ in range(2) for batch in loader]
    assert len(batches) == len(wanted) == 2 * PICTURES // BATCH
    assert all(np.array_equal(batch, want) for batch, want in zip(batches, wanted, strict=True))
    print(f"All {len(batches)} batches from Ray are those of one process without it.")
    ray.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    main()
