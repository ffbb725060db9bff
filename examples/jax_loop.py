"""Trains with a plain JAX loop on four devices: `to_jax(sharding=...)` shares each batch out, and nobody counts rows.

The devices are the CPU's, which JAX makes on demand; on a machine with accelerators leave the line with `XLA_FLAGS`
out. The run is stopped in the middle of an epoch and goes on, in another loader, with the batch after the last one.
Needs JAX.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps

rng = np.random.default_rng(0)
truth = rng.normal(size=(8, 1))
x = rng.normal(size=(2_048, 8))

pairs = ps.from_arrays({"x": x, "y": x @ truth}).cast("float32")
train, test = pairs.split(0.75, 0.25)
train = train.shuffle(seed=1).batch(64, drop_remainder=True)

mesh = Mesh(np.array(jax.devices()), ("batch",))
by_rows = NamedSharding(mesh, PartitionSpec("batch"))


@jax.jit
def step(weights, batch):
    def loss(weights):
        return jnp.mean((batch["x"] @ weights - batch["y"]) ** 2)

    value, slope = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * slope, value


weights = jax.device_put(jnp.zeros((8, 1)), NamedSharding(mesh, PartitionSpec()))

with train.to_jax(sharding=by_rows) as batches:
    for number, batch in enumerate(batches, 1):
        weights, loss = step(weights, batch)
        if number == 10:
            state = batches.loader.get_state()
            break
print(f"Stopped after {state['position']} of {len(train)} batches, each on {len(batch['x'].devices())} devices.")

with train.to_jax(sharding=by_rows) as batches:
    batches.loader.set_state(state)
    seen = 0
    for epoch in range(4):
        for batch in batches:
            weights, loss = step(weights, batch)
            seen += 1
        print(f"epoch {epoch}: loss {float(loss):.6f}")

assert seen == 4 * len(train) - 10
with test.batch(64).to_jax(sharding=by_rows, training=False) as batches:
    error = max(float(jnp.abs(batch["x"] @ weights - batch["y"]).max()) for batch in batches)
assert error < 0.05, error
print(f"Largest error on the test: {error:.4f}. No batch was seen twice, and none was left out.")
