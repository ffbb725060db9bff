"""Transforms of Albumentations inside `random_map`: their numbers from ours, so the run can be repeated.

Albumentations draws from generators of its own. Seeded by a number of `rng` for each element, it gives the same
pictures on every executor and after a resume. It is a function that we cannot know to let go of the GIL, so it runs in
worker processes. Needs Albumentations.
"""

import os

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # or it asks the network for a newer version when it is imported

import albumentations as A  # noqa: N812  # as its documentation writes it
import numpy as np

import penstock as ps

transform = A.Compose(
    [A.HorizontalFlip(), A.Affine(rotate=(-15, 15), shear=(-8, 8)), A.RandomBrightnessContrast(), A.CoarseDropout()]
)


def augment(element, rng):
    """Augments an image and its mask together."""
    transform.set_random_seed(int(rng.integers(2**31)))
    return transform(image=element["image"], mask=element["mask"])


y, x = np.mgrid[:48, :48]
masks = np.stack([(x - 24) ** 2 + (y - 20) ** 2 < (6 + k % 12) ** 2 for k in range(64)]).astype("uint8")
images = np.repeat(40 + 160 * masks[..., None], 3, axis=-1).astype("uint8")

train = ps.from_arrays({"image": images, "mask": masks}).shuffle(seed=1).random_map(augment, seed=2).batch(16)
with train.loader(workers=2) as processes, train.loader(executor="inline") as inline:
    for found, expected in zip(processes, inline, strict=True):
        assert (found["image"] == expected["image"]).all()
        assert (found["mask"] == expected["mask"]).all()
    assert "processes" in str(processes.report())
print("Albumentations in two worker processes and without: the same pictures, and the same masks.")
