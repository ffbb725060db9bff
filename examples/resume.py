"""Continues training where a crash ended it, with exactly the batches that were still to come.

A loader's state is a small JSON: which plan, which epoch, which position. Save it beside the model's weights. There
is nothing else to restore, because the order is computed and not stored.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

import penstock as ps


def make_loader(path: Path, executor: str = "auto") -> ps.Loader:
    """What a training script does at its start, on the first run and on every other."""
    rows = ps.from_npy(path)
    noisy = rows.shuffle(seed=3).random_map(lambda row, rng: row + rng.normal(size=row.shape), seed=4)
    return noisy.batch(10).loader(executor=executor)


with tempfile.TemporaryDirectory() as folder:
    path, checkpoint = Path(folder) / "rows.npy", Path(folder) / "loader.json"
    np.save(path, np.arange(400.0).reshape(100, 4))

    # The run that nobody disturbs: two epochs of ten batches.
    with make_loader(path) as loader:
        undisturbed = [batch.copy() for _ in range(2) for batch in loader]

    # The run that crashes in its second epoch. It saved its state after every batch.
    seen: list[np.ndarray] = []
    try:
        with make_loader(path) as loader:
            for _ in range(2):
                for batch in loader:
                    seen.append(batch.copy())
                    checkpoint.write_text(json.dumps(loader.get_state()))
                    if len(seen) == 14:
                        raise RuntimeError("the power failed")
    except RuntimeError as error:
        print(f"Stopped after {len(seen)} batches: {error}.")

    # A new process would do this; here without threads, which changes nothing.
    with make_loader(path, executor="inline") as loader:
        state = json.loads(checkpoint.read_text())
        print(f"Resuming at epoch {state['epoch']}, position {state['position']}: {checkpoint.read_text()}")
        loader.set_state(state)
        seen += [batch.copy() for batch in loader]

assert len(seen) == len(undisturbed) == 20
assert all((one == other).all() for one, other in zip(seen, undisturbed, strict=True))
assert not (undisturbed[0] == undisturbed[10]).all()
print("All 20 batches are those of a run without a crash, random numbers included; the epochs differ from each other.")
