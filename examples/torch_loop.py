"""Trains with a plain PyTorch loop: `to_torch()` delivers tensors that share the loader's memory.

Nothing is copied: a tensor is lent to you as long as you hold it, or anything that you made of its memory, so you may
keep tensors, too. On a machine with a GPU, `to_torch(device="cuda")` copies each batch there while the model works on
the one before. Needs torch.
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

    with train.shuffle(seed=1).batch(50).cast("float32").to_torch() as batches:
        for epoch in range(5):
            for batch in batches:
                loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                kept.append((batch["x"], batch["x"].sum().item()))
            print(f"epoch {epoch}: loss {loss.item():.6f}")
        print(batches.loader.report())

    with test.batch(50).cast("float32").to_torch(training=False) as batches, torch.no_grad():
        errors = [float((model(batch["x"]) - batch["y"]).abs().max()) for batch in batches]

assert max(errors) < 0.1
assert all(inputs.sum().item() == total for inputs, total in kept)
print(f"Largest error on the test: {max(errors):.4f}. None of the {len(kept)} batches that were kept has changed.")
