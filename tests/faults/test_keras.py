"""Ctrl-C and killed workers during `fit` on worker processes: training continues, or the interpreter stays usable."""

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.adapters.keras_models import arrays, assert_same, delivered, recording_model
from tests.faults.programs import Program
from tests.leftovers import worker_processes
from tests.waits import PROGRAM_S

pytestmark = [pytest.mark.keras, pytest.mark.faults, pytest.mark.slow]

# What is tried is mostly ours, and the same for each backend.
COUNT = 16 if os.environ.get("KERAS_BACKEND") == "tensorflow" else 6

FITS = """
import faulthandler, gc, os, random, signal, sys, threading, time
import keras, numpy as np
import penstock as ps
from penstock.testing._assertions import child_processes

def augment(x):
    return x + 0.5

def numbered():
    x = np.arange(128, dtype=np.float32).reshape(64, 2) / 64
    pairs = ps.from_arrays((x, x[:, :1]))
    return pairs.shuffle(1).map(lambda pair: (augment(pair[0]), pair[1])).batch(8)

def descriptors():
    return len(os.listdir('/proc/self/fd'))

def settle(most=1 << 20):
    # Threads and processes that were asked to end do so within a moment. So do descriptors: a thread that is about to
    # begin has no identity yet, and then it ends what was begun.
    ends_at = time.monotonic() + 120
    while True:
        gc.collect()
        # One without an identity was struck before it began: Python keeps it among those that are about to.
        threads = [each for each in threading.enumerate() if each.name.startswith('penstock') and each.ident]
        if not threads and not child_processes() and descriptors() <= most:
            return ''
        if time.monotonic() > ends_at:
            faulthandler.dump_traceback()
            with os.popen(f'ls -l /proc/{os.getpid()}/fd') as listing:
                return f'{threads}, {child_processes()}, more than {most} descriptors: {listing.read()}'
        time.sleep(0.01)
        for thread in threads:
            thread.join(0.1)

def chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__

def new_model():
    # Without a compiled step, which would take longer to compile than all the rest.
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile('sgd', 'mse', run_eagerly=True)
    return model

model = new_model()
model.fit(numbered().to_keras(workers=2), epochs=1, verbose=0)
began = time.perf_counter()
model.fit(numbered().to_keras(workers=2), epochs=2, verbose=0)
fit_s = time.perf_counter() - began
assert not settle()
gc.collect()
gc.freeze()  # what is there now stays; collections need not look at it
before = descriptors()
rng = random.Random(1)
interrupted = 0
print('ready', flush=True)
for number in range(int(sys.argv[1])):
    timer = threading.Timer(rng.uniform(0, 1.2 * fit_s), os.kill, (os.getpid(), signal.SIGINT))
    adapter = None
    # Keras on JAX keeps a model's weights outside of it while fit runs: interrupted, the model may be lost (not the
    # interpreter, which is what we answer for), so that each round has a model of its own.
    model = new_model()
    try:
        try:
            timer.start()
            adapter = numbered().to_keras(workers=2)
            model.fit(adapter, epochs=2, verbose=0)
        finally:
            timer.join()
    except KeyboardInterrupt:
        interrupted += 1
    except Exception as error:
        # Keras and its backends may turn it into one of theirs, or fail in what they do on the way out.
        if not any('KeyboardInterrupt' in repr(one) for one in chain(error)):
            raise
        interrupted += 1
    sys.last_value = sys.last_traceback = None
    if adapter is not None:
        state = adapter.loader.get_state()
        adapter.loader.close()
    adapter = None
    left = settle(before + 2)
    assert not left, (number, left)
# And it still works; the last model may be lost.
model = new_model()
history = model.fit(numbered().to_keras(workers=2), epochs=2, verbose=0)
assert len(history.history['loss']) == 2
assert interrupted >= int(sys.argv[1]) // 2, interrupted
with numbered().loader(executor='processes') as one, numbered().loader(executor='inline') as other:
    for batch, want in zip(one, other, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(batch, want))
del batch, want, one, other
assert not settle()
print('done', interrupted, flush=True)
"""


def test_ctrl_c_at_many_moments_of_fit_leaves_a_usable_interpreter(start: Callable[..., Program]) -> None:
    program = start(FITS, arguments=[str(COUNT)])
    status, out, err = program.wait(deadline_s=PROGRAM_S)
    assert status == 0, err
    assert out.startswith("done")


def test_fit_goes_on_when_a_worker_is_killed() -> None:
    import keras

    class Killer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            for process in worker_processes() if batch in (2, 9) else ():
                os.kill(process, signal.SIGKILL)

    x = np.arange(128, dtype=np.float32).reshape(64, 2)
    dataset = ps.from_arrays((x, x[:, :1])).shuffle(1).map(lambda pair: (pair[0] + 1, pair[1])).batch(4)
    adapter, model, before = dataset.to_keras(workers=2), recording_model(), worker_processes()
    model.fit(adapter, epochs=2, verbose=0, callbacks=[Killer()])
    assert "was killed by signal 9" in adapter.loader.report().note
    adapter.loader.close()
    assert worker_processes() <= before
    assert_same(arrays(model.trained), delivered(dataset, 2))
