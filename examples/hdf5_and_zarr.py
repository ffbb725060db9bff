"""Reads images from HDF5 and labels from Zarr, side by side, without loading either.

`from_arrays` takes datasets of h5py and arrays of Zarr as they are. It keeps a handle (file, name) and reopens them
where they are read. Needs h5py and zarr.
"""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import zarr

import penstock as ps

rng = np.random.default_rng(0)
images = rng.integers(0, 256, (500, 12, 12), dtype="uint8")
labels = images.max((1, 2)).astype("int64")

with tempfile.TemporaryDirectory() as folder:
    with h5py.File(Path(folder) / "images.h5", "w") as file:
        file.create_dataset("train/images", data=images, chunks=(50, 12, 12), compression="gzip")
    zarr.save(str(Path(folder) / "labels.zarr"), labels)

    with h5py.File(Path(folder) / "images.h5") as file:
        ds = ps.from_arrays(
            {"image": file["train/images"], "label": zarr.open(str(Path(folder) / "labels.zarr"), mode="r")}
        )
    print(ds)  # the file that it was made from is closed; it is opened again to read

    # Compressed chunks are read whole, so a local shuffle is much cheaper than a global one.
    count = 0
    with ds.shuffle(seed=1, window=100).batch(32).loader() as loader:
        for batch in loader:
            assert (batch["image"].max((1, 2)) == batch["label"]).all()
            count += len(batch["label"])
        print(loader.report())

assert count == len(ds) == 500
print(f"{count} elements came, each image with its own label.")
