"""Resident memory of a long `fit`, in a fresh process, on each backend: this is where other libraries leak."""

from itertools import pairwise

import pytest

pytestmark = pytest.mark.framework

EPOCHS = (80, 120, 160, 200)
ALLOWED_MIB = 1
"""Growth in the best of three times 40 epochs, that is 400 batches of 512 KiB: if one in a hundred were kept it would
be 2 MiB in each. The best, for what the C library keeps of freed memory comes in steps, on plain arrays too, which end:
in 8 runs on torch (2026-11) 2.2 to 5.3 MiB from epoch 10 to 120, 0.1 to 1.8 after it."""

FIT = """
import os
import keras, numpy as np, penstock as ps

x = np.random.default_rng(0).normal(size=(640, 2048)).astype(np.float32)
y = x[:, :1]
train = ps.from_arrays((x, y)).shuffle(1).batch(64).to_keras(workers=2)
held_out = ps.from_arrays((x[:64], y[:64])).batch(32).to_keras(training=False, workers=1)
resident_mib = {}

class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with open("/proc/self/status") as status:
            kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        resident_mib[epoch + 1] = kib / 1024

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(train, validation_data=held_out, epochs=200, verbose=0, callbacks=[Watch()])
print(*resident_mib.values())
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_memory_is_flat_over_200_epochs(fresh_python, backend):
    # Warnings of the frameworks are not the subject, and their threads would wait for each other's CPUs.
    env = {"KERAS_BACKEND": backend, "PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"}
    run = fresh_python(FIT, env=env)
    assert run.returncode == 0, run.stderr
    resident_mib = [float(mib) for mib in run.stdout.split()]
    assert len(resident_mib) == EPOCHS[-1]
    grown_mib = [resident_mib[end - 1] - resident_mib[begin - 1] for begin, end in pairwise(EPOCHS)]
    assert min(grown_mib) <= ALLOWED_MIB, f"MiB after each epoch: {resident_mib}"
