"""Transforms of torchvision inside `random_map`: their numbers from ours, so the run can be repeated.

torchvision draws from torch's global generator. Seeded by a number of `rng` for each element, it gives the same tensors
on every executor and after a resume. That generator belongs to the process, so it runs in worker processes, one element
at a time in each. Needs torchvision, of the same build as torch.
"""

import numpy as np
import torch
from torchvision.transforms import v2

import penstock as ps

transform = v2.Compose(
    [
        v2.RandomResizedCrop(32, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(brightness=0.3, contrast=0.3),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)


def augment(element, rng):
    """Augments an image of (3, height, width), and leaves its label."""
    image, label = element
    torch.manual_seed(int(rng.integers(2**31)))
    return transform(torch.from_numpy(image)).numpy(), label


images = np.random.default_rng(0).integers(0, 256, (64, 3, 48, 48), dtype="uint8")
train = ps.from_arrays((images, np.arange(64))).shuffle(seed=1).random_map(augment, seed=2).batch(16)
with train.loader(executor="processes", workers=2) as processes, train.loader(executor="inline") as inline:
    for (found, labels), (expected, same_labels) in zip(processes, inline, strict=True):
        assert found.shape == (16, 3, 32, 32)
        assert (found == expected).all()
        assert (labels == same_labels).all()
print("torchvision in two worker processes and without: the same tensors.")
