"""Augments images and their masks together, at random, and the same on every run.

`random_map` hands the function a generator that belongs to this element in this epoch. So the numbers do not depend on
threads, and `ds[i]` shows what training sees in its first epoch.
"""

from typing import Any

import numpy as np

import penstock as ps

rng = np.random.default_rng(0)
images = rng.integers(0, 256, (64, 20, 20, 3), dtype="uint8")
masks = (images.mean(-1) > 128).astype("uint8")


def augment(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Flips, cuts out and brightens; what moves pixels is done to both."""
    image, mask = element["image"], element["mask"]
    if rng.random() < 0.5:
        image, mask = image[:, ::-1], mask[:, ::-1]
    top, left = rng.integers(0, 5, size=2)
    image, mask = image[top : top + 16, left : left + 16], mask[top : top + 16, left : left + 16]
    return {"image": image * np.float32(rng.uniform(0.8, 1.2) / 255), "mask": mask}


plain = ps.from_arrays({"image": images, "mask": masks})
augmented = plain.random_map(augment, seed=7)
batches = augmented.shuffle(seed=1).batch(16)
print(batches)

with batches.loader(workers=2) as threads, batches.loader(executor="inline") as inline:
    first = [batch["image"].copy() for batch in threads]
    assert all((batch["image"] == image).all() for batch, image in zip(inline, first, strict=True))
    second = [batch["image"].copy() for batch in threads]
assert not (first[0] == second[0]).all()
print("With threads and without: the same batches. In the second epoch: others.")

# Image and mask went through the same flip and the same cut.
brightest = augmented[5]["image"].mean(-1)
assert brightest[augmented[5]["mask"] == 1].min() > brightest[augmented[5]["mask"] == 0].max()

# Half of a batch as it is, half distorted.
mixed = ps.interleave(
    [plain.map(lambda e: e["mask"]), plain.random_map(lambda e, rng: e["mask"] ^ (rng.random((20, 20)) < 0.1))]
)
assert (mixed[10] == masks[5]).all()
assert not (mixed[11] == masks[5]).all()
print(f"interleave deals one plain and one distorted in turn: {len(mixed)} elements.")
