"""Feeds a plain TensorFlow loop through tf.data, stops in the middle of an epoch, and goes on exactly there.

The Python function runs on worker processes, what follows it are steps of tf.data. `dataset.loader` knows the position.
Needs TensorFlow.
"""

import numpy as np
import tensorflow as tf

import penstock as ps

x = np.random.default_rng(0).normal(size=(800, 16)).astype("float32")
y = x.sum(axis=1, keepdims=True)


def distort(sample, rng):
    image, label = sample
    return image + rng.normal(scale=0.01, size=image.shape).astype("float32"), label


def pipeline():
    made = ps.from_arrays((x, y)).shuffle(seed=1).random_map(distort, seed=2).batch(40).to_tf(workers=2)
    return made, made.map(lambda image, label: (tf.clip_by_value(image, -2.0, 2.0), label))


weights = tf.Variable(tf.zeros((16, 1)))


@tf.function
def train_step(image, label):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((image @ weights - label) ** 2)
    weights.assign_sub(0.05 * tape.gradient(loss, weights))
    return loss


made, batches = pipeline()
print(batches.element_spec, len(batches))
losses = []
for epoch in range(3):
    for image, label in batches:
        losses.append(float(train_step(image, label)))
        if len(losses) == 30:
            saved = made.loader.get_state(), weights.numpy()
    print(f"epoch {epoch}: loss {losses[-1]:.5f}")
print(made.loader.report())
made.loader.close()

# Another process, another day: the position, and the weights that belong to it.
made, batches = pipeline()
made.loader.set_state(saved[0])
weights.assign(saved[1])
again = [float(train_step(image, label)) for _ in range(2) for image, label in batches]
made.loader.close()

assert again == losses[30:]
print(f"Loss {losses[0]:.3f}, at the end {losses[-1]:.5f}. Resumed after batch 30: the same losses.")
