"""Training in several processes, really run: the same parameters as one process, each element once.

A run is saved in mid-epoch, and goes on with another number of ranks. What ranks do that share nothing is in
`tests/run/test_shard.py` and `tests/properties/test_ranks.py`.
"""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.run import _shard
from tests.adapters.ranks import (
    BATCH,
    DATA,
    EPOCHS,
    ROWS,
    STOP,
    TORCH,
    Launcher,
    one_process,
    require_success,
    run_ranks,
    together,
)

pytestmark = pytest.mark.framework

DDP = (
    DATA
    + TORCH
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
folder, stop, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = new_model()
batches = batches_of(size).to_torch(shard="auto", uneven="weights", executor="threads", workers=1)
if os.path.exists(folder + "/saved.pt"):
    saved = torch.load(folder + "/saved.pt")
    model.load_state_dict(saved["model"])
    batches.load_state_dict(saved["data"])
seen = []
train(DistributedDataParallel(model), batches, seen, stop)
if dist.get_rank() == 0:
    torch.save({"model": model.state_dict(), "data": batches.state_dict()}, folder + "/saved.pt")
print(json.dumps(seen))
batches.close()

# Another seed in one rank is told before the first step, also where a thread waits for another rank all the time.
import threading
from torch.distributed.distributed_c10d import _get_default_store
store = _get_default_store()
waits = threading.Thread(target=store.wait, args=(["done"],))
waits.start()
other = rows.shuffle(seed=5 + dist.get_rank() // (dist.get_world_size() - 1)).batch(12).to_torch(shard="auto")
try:
    next(iter(other))
except ps.LoaderError as error:
    print(error)
other.close()
store.clone().set("done", "")
waits.join()
dist.barrier()

if dist.get_world_size() == 4:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for shard in (mesh["dp"], mesh["tp"], mesh):
        with batches_of(24).to_torch(shard=shard, executor="inline") as batches:
            print("share", *batches.loader.arrangement.options.shard, next(iter(batches))["id"].tolist())
dist.destroy_process_group()
"""
)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as one:
        yield one


def test_ddp_in_any_number_of_ranks_is_one_process(launcher: Launcher, tmp_path: Path) -> None:
    """Four ranks share batches of 26; three go on in mid-epoch with batches of 20, and a short one of 8."""
    import torch

    first = require_success(run_ranks(DDP, 4, tmp_path, STOP, 26, launcher=launcher))
    second = require_success(run_ranks(DDP, 3, tmp_path, 0, 20, launcher=launcher))
    want, batches = one_process((26, STOP), (20, 0))
    assert together(first) + together(second) == batches
    assert [len(batch) for batch in batches[5:]] == [26, 26, 20, 20, 20, 8]
    assert sorted(row for batch in batches[5:] for row in batch) == list(range(ROWS))
    saved = torch.load(tmp_path / "saved.pt")
    assert saved["data"]["epoch"] == EPOCHS
    for found, wanted in zip(saved["model"].values(), want, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=3e-7)  # weights are float32
    lines = [out.splitlines()[1:] for out in first]
    shares = [[line for line in mine if line.startswith("share")] for mine in lines]
    rows = one_process((BATCH, 1))[1][0]
    for rank, found in enumerate(shares):
        places = [(rank // 2, 2), (rank % 2, 2), (rank, 4)]
        parts = [rows[index * BATCH // count : (index + 1) * BATCH // count] for index, count in places]
        assert found == [f"share {index} {count} {part}" for (index, count), part in zip(places, parts, strict=True)]
    told = [line for mine in lines for line in mine if not line.startswith("share")]
    told += [line for out in second for line in out.splitlines()[1:]]
    assert len(told) >= 2
    for line in told:
        assert re.match(r"Ranks \d and \d are about to train on different data: plan is shuffle#", line)


KILLED = (
    DATA
    + """
import signal
import torch
import torch.distributed as dist

folder, attempt = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
with ds.to_torch(shard="auto", executor="threads", workers=1) as batches:
    if os.path.exists(folder + "/state.json"):
        batches.load_state_dict(json.load(open(folder + "/state.json")))
    while batches.state_dict()["epoch"] < 2:
        for step, batch in enumerate(batches):
            dist.barrier()  # all have written down the step before
            if attempt == "0" and rank == 1 and batches.state_dict()["epoch"] == 1 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
            if rank == 0:
                json.dump(batches.state_dict(), open(folder + "/new.json", "w"))
                os.replace(folder + "/new.json", folder + "/state.json")
            with open(f"{folder}/{attempt}-{rank}.txt", "a") as seen:
                print(*batch["id"].tolist(), file=seen)
dist.destroy_process_group()
"""
)


def test_a_job_that_was_killed_goes_on_with_other_ranks_and_no_element_comes_twice(
    launcher: Launcher, tmp_path: Path
) -> None:
    statuses = [rank.status for rank in run_ranks(KILLED, 2, tmp_path, 0, launcher=launcher)]
    assert statuses[1] == -signal.SIGKILL
    assert statuses[0] != 0
    require_success(run_ranks(KILLED, 3, tmp_path, 1, launcher=launcher))
    seen: list[list[int]] = []
    for attempt, count in ((0, 2), (1, 3)):
        ranks = [(tmp_path / f"{attempt}-{rank}.txt").read_text().splitlines() for rank in range(count)]
        seen += [[int(row) for part in parts for row in part.split()] for parts in zip(*ranks, strict=True)]
    assert seen == one_process()[1]


@pytest.mark.parametrize("adapter", ["to_torch", "to_jax", "to_tf", "to_keras"])
def test_an_adapter_without_a_share_is_told(
    adapter: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_shard, "_warned", [])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = ps.range(8).batch(4)
    for options in ({"training": False}, {"shard": (0, 1)}, {"shard": "auto"}):
        getattr(dataset, adapter)(executor="inline", **options).loader.close()
    assert not caplog.records
    getattr(dataset, adapter)(executor="inline").loader.close()
    (record,) = caplog.records
    assert f"This is rank 1 of 2 (RANK and WORLD_SIZE in the environment), and {adapter}() has" in record.message


# JAX.

JAX = (
    DATA
    + """
import jax

jax.config.update("jax_enable_x64", True)
address = f"127.0.0.1:{os.environ['MASTER_PORT']}"
count, number, stop, path = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]), int(sys.argv[1]), sys.argv[2]
if count > 1:
    jax.distributed.initialize(address, count, number, initialization_timeout=200)
sharding = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.array(jax.devices()), "batch"), jax.sharding.PartitionSpec("batch")
)

@jax.jit
def step(weights, batch):
    return weights - 0.1 * jax.grad(lambda weights: ((batch["x"] @ weights - batch["y"]) ** 2).mean())(weights)

weights, state, seen = jax.numpy.zeros(3), None, []
if os.path.exists(path):
    weights, state = (read(value) for read, value in zip((np.array, dict), json.load(open(path))))
with ds.to_jax(sharding=sharding, executor="threads", workers=1) as batches:
    if state:
        batches.loader.set_state(state)
    while batches.loader.get_state()["epoch"] < 2 and (not stop or len(seen) < stop):
        for batch in batches:
            weights = step(weights, batch)
            seen.append(sum((shard.data.tolist() for shard in batch["id"].addressable_shards), []))
            if len(seen) == stop:
                break
    saved = [np.asarray(weights.addressable_data(0)).tolist(), batches.loader.get_state()]
    if number == 0:
        json.dump(saved, open(path, "w"))
print(json.dumps(seen))
with rows.batch(50).to_jax(sharding=sharding, uneven="mask", training=False, executor="inline") as batches:
    counted = jax.jit(lambda batch, mask: (mask.sum(), (mask[:, None] * batch["x"]).sum(), mask.size))
    sums = [counted(*batch) for batch in batches]
    assert [(int(rows), size) for rows, _, size in sums] == [(50, 50), (50, 50), (20, 50)]
    np.testing.assert_allclose(sum(total for _, total, _ in sums), x.sum(), atol=1e-9)
if count > 1:
    assert ds.loader(shard="auto").arrangement.options.shard == (number, count)
    other = rows.shuffle(seed=number).batch(8).to_jax(sharding=sharding, executor="inline")
    try:
        next(iter(other))
    except ps.LoaderError as error:
        print(error)
    other.close()
    jax.distributed.shutdown()
"""
)


def test_jax_in_two_processes_is_one_process(tmp_path: Path) -> None:
    path, whole = tmp_path / "saved.json", tmp_path / "whole.json"
    env = {"JAX_PLATFORMS": "cpu"}
    first = require_success(run_ranks(JAX, 2, STOP, path, env=env))
    second = require_success(run_ranks(JAX, 1, 0, path, env=env))
    wanted = require_success(run_ranks(JAX, 1, 0, whole, env=env))
    assert together(first) + together(second) == together(wanted)
    np.testing.assert_allclose(json.loads(path.read_text())[0], json.loads(whole.read_text())[0], rtol=0, atol=1e-12)
    told = [line for out in first for line in out.splitlines()[1:]]
    assert told
    for line in told:
        assert re.match(r"Ranks \d and \d are about to train on different data: plan is shuffle#", line)


FAILING = """
import os, sys
import jax
import penstock as ps

address = f"127.0.0.1:{os.environ['MASTER_PORT']}"

{hook}
number = int(os.environ["RANK"])
jax.distributed.initialize(address, 2, number, initialization_timeout=200)
sharding = jax.sharding.NamedSharding(jax.make_mesh((2,), ("batch",)), jax.sharding.PartitionSpec("batch"))

def broken(x):
    if x == 10 and number == 1:
        raise ValueError("a broken file")
    return x

step = jax.jit(lambda batch: batch.sum())
for batch in ps.range(32).map(broken).batch(4).to_jax(sharding=sharding, executor="inline"):
    print(step(batch))
"""


def test_one_processs_error_ends_both_at_once_with_the_hook_of_the_page() -> None:
    """Without it both wait five minutes at the end, for each other."""
    page = (Path(__file__).parents[2] / "docs/how-to/jax-processes.md").read_text()
    hook = re.search(r"def end_at_once.*?sys.excepthook = end_at_once", page, re.DOTALL)
    assert hook is not None
    script = FAILING.replace("{hook}", hook[0])
    first, second = run_ranks(script, 2, env={"JAX_PLATFORMS": "cpu"})
    assert first.status == second.status == 1
    assert "failed on element 10 of epoch 0, made of the integer 10: ValueError: a broken file" in second.err


KERAS = (
    DATA
    + """
import keras

def pairs(batch):
    return batch["x"].astype("float32"), batch["y"].astype("float32")

def batches(size):
    return rows.shuffle(seed=5).random_map(widened, seed=6).batch(size).map(pairs).to_keras(executor="inline")

def trained(epochs):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    adapter = batches(24)
    model.fit(adapter, epochs=epochs, verbose=0)
    print(json.dumps(np.concatenate([np.ravel(weight) for weight in model.get_weights()]).tolist()))
    return model, adapter

trained(2)
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
trained(2)
model, adapter = trained(1)
model.fit(adapter, epochs=1, steps_per_epoch=2, verbose=0)
state = adapter.loader.get_state()

# The rest of the epoch in smaller batches.
adapter = batches(12)
adapter.loader.set_state(state)
steps = []
count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda number, logs: steps.append(number))
model.fit(adapter, verbose=0, callbacks=[count])
print(state["position"], len(steps), adapter.loader.get_state()["epoch"])
"""
)


def test_keras_on_jax_over_two_devices_is_one_device(fresh_python: Any) -> None:
    env = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = fresh_python(KERAS, env=env)
    assert done.returncode == 0, done.stderr
    one, two, _, resumed = done.stdout.splitlines()
    np.testing.assert_allclose(json.loads(one), json.loads(two), rtol=0, atol=3e-7)
    assert resumed == "2 6 2"


def test_keras_takes_weights_and_masks_as_sample_weights() -> None:
    import keras

    x = np.arange(26, dtype=np.float32).reshape(13, 2)
    errors = np.arange(13, dtype=np.float32)[:, None]
    pairs = ps.from_arrays((x, x.sum(axis=1, keepdims=True) + errors)).batch(8)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(weighted_metrics=["mae"], loss="mse")
    for uneven in ("mask", "weights"):
        adapter = pairs.to_keras(training=False, uneven=uneven, executor="inline")
        assert adapter.has_partial_batch is (uneven == "weights")
        assert model.evaluate(adapter, verbose=0, return_dict=True)["mae"] == errors.mean()
        adapter.loader.close()
    with pytest.raises(ps.ArgumentError, match=r"So elements are \(x, y\), or \(x, y, sample_weight\); here they are"):
        pairs.map(lambda pair: pair[0]).to_keras(uneven="mask")
    named = ps.zip((ps.from_arrays((x, errors)), ps.range(13).map(str, element_spec=ps.ArraySpec((), "U"))))
    texts = named.map(lambda pair: (*pair[0], pair[1])).batch(8)
    with pytest.raises(ps.ArgumentError, match=r"multiplies the sample weights of elements, but these are .*, no numb"):
        texts.to_keras(uneven="mask")


def test_global_arrays_of_jax_have_one_shape() -> None:
    import jax

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for options in ({"uneven": "weights"}, {"micro_batches": 2}):
        with pytest.raises(ps.ArgumentError, match="it takes uneven='mask', but neither uneven='weights' nor micro_ba"):
            ps.range(8).batch(4).to_jax(sharding=sharding, **options)
    for options in ({}, {"sharding": sharding}):
        with ps.range(5).batch(4).to_jax(uneven="mask", executor="inline", **options) as batches:
            assert [int((rows * mask).sum()) for rows, mask in batches] == [6, 4]
