"""Trains with a plain PyTorch loop: batches are NumPy arrays, which torch takes as they are.

`torch.from_numpy` copies nothing: the tensor is the loader's own memory, lent to you as long as you hold it, so you
may keep tensors, too. Needs torch.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import penstock as ps

torch.manual_seed(0)
rng = np.random.default_rng(0)
truth = rng.normal(size=(8, 1))
x = rng.normal(size=(2_000, 8))

with tempfile.TemporaryDirectory() as folder:
    paths = {"x": Path(folder) / "x.npy", "y": Path(folder) / "y.npy"}
    np.save(paths["x"], x)
    np.save(paths["y"], x @ truth)

    train, test = ps.from_npy(paths).split(0.8, 0.2)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    kept = []

    with train.shuffle(seed=1).batch(50).cast("float32").loader() as loader:
        for epoch in range(5):
            for batch in loader:
                inputs, targets = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                kept.append((inputs, inputs.sum().item()))
            print(f"epoch {epoch}: loss {loss.item():.6f}")
        print(loader.report())

    with test.batch(50).cast("float32").loader() as loader, torch.no_grad():
        errors = [float((model(torch.from_numpy(b["x"])) - torch.from_numpy(b["y"])).abs().max()) for b in loader]

assert max(errors) < 0.1
assert all(inputs.sum().item() == total for inputs, total in kept)
print(f"Largest error on the test: {max(errors):.4f}. None of the {len(kept)} batches that were kept has changed.")
