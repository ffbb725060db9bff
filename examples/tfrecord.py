"""Writes pictures as TFRecord files, and reads them again in any order, without TensorFlow.

`tf.data` reads such files from start to end, and shuffles what fits in its buffer. Here they have an index, so that
`shuffle` is over all of them, `ds[i]` is any record, and a run goes on where it stopped. Needs google-crc32c and
protobuf.
"""

import tempfile
from pathlib import Path

import numpy as np

import penstock as ps

rng = np.random.default_rng(0)
pictures = rng.integers(0, 256, (1000, 16, 16), "uint8")
labels = pictures.max((1, 2)).astype("int64")

with tempfile.TemporaryDirectory() as folder:
    for part in range(4):
        mine = slice(250 * part, 250 * (part + 1))
        made = ps.from_arrays({"picture": pictures[mine], "label": labels[mine]})
        ps.write_tfrecord(Path(folder) / f"train-{part}.tfrecord", made)

    features = {"picture": ps.ArraySpec((16, 16), "uint8"), "label": ps.ArraySpec((), "int64")}
    ds = ps.from_tfrecord(f"{folder}/train-*.tfrecord", features=features)
    print(ds)
    assert (ds[777]["picture"] == pictures[777]).all()

    train, test = ds.split(0.8, 0.2)
    count = 0
    with train.shuffle(seed=1).batch(32).loader() as loader:
        for batch in loader:
            assert (batch["picture"].max((1, 2)) == batch["label"]).all()
            count += len(batch["label"])

assert (count, len(test)) == (800, 200)
print(f"{count} records of 4 files came, in an order over all of them.")
