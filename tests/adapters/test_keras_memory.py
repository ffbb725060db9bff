"""Resident memory of a long `fit`, in a fresh process, on each backend: this is where other libraries leak."""

import pytest

pytestmark = pytest.mark.limits

ALLOWED_MIB = 4
"""Growth over 150 epochs, that is 1,500 batches of 512 KiB: if one in a hundred were kept it would be 7.5 MiB.
Measured 2026-11 on TensorFlow, JAX and torch: 0.9, 0.8 and 1.7 MiB; on plain arrays 0.3, 0.3 and 1.1."""

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
print(resident_mib[50], resident_mib[200])
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_memory_is_flat_over_200_epochs(fresh_python, backend):
    ignored = {"PYTHONWARNINGS": "default"}  # the frameworks' own are not the subject
    run = fresh_python(FIT, timeout_s=180, env={"KERAS_BACKEND": backend, **ignored})
    assert run.returncode == 0, run.stderr
    early_mib, late_mib = map(float, run.stdout.split())
    assert late_mib - early_mib <= ALLOWED_MIB, f"{early_mib:.1f} MiB after 50 epochs, {late_mib:.1f} after 200"
