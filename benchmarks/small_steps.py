"""What does a small training step pay for its batches?

Question: a table in memory, 1,000,000 rows of 20 float32 features and a target, in shuffled batches of 256, and a
network with one hidden layer of 16: a step of some 250 us, of which nothing hides what a batch costs. What part of the
step's own speed is left when the batches come from each library?

Method: `python benchmarks/small_steps.py`. Fresh processes in turn; endless epochs, of which the first second is not
counted, then 3 s. `torch_*` trains in PyTorch (SGD, one thread), `jax_*` in JAX (one jitted step, awaited). `one` is
the same batch again and again: the limit. `loop` is NumPy: a permutation, and `table[indices]`, made a tensor.
`penstock` chooses how to run by itself; `penstock_threads` says threads, which it would choose too.
`dataloader` gets the indices of a batch at a time (`BatchSampler` as the sampler), without workers;
`dataloader_rows` a row at a time, which is what most people write. `tf` is tf.data with `shuffle(100_000)`, `batch` and
`prefetch`, whose batches become tensors or arrays without a copy where that is possible.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, PyTorch 2.13, JAX 0.10,
2026-11-22.

Result, medians of four rounds and their spread, steps/s (tf.data of one round an hour before):

    torch_one               3,338 (3,252 to 3,440)    jax_one                 3,199 (2,994 to 3,319)
    torch_loop              2,817 (2,611 to 2,897)    jax_loop                2,621 (2,268 to 2,934)
    torch_penstock          2,044 (1,961 to 2,173)    jax_penstock            2,160 (1,872 to 2,316)
    torch_penstock_threads  1,321 (1,214 to 1,474)    jax_penstock_threads    1,775 (1,288 to 1,964)
    torch_dataloader        1,909 (1,747 to 2,149)    jax_tf                  1,463
    torch_dataloader_rows     721 (486 to 754)
    torch_tf                1,484

PyTorch: 1.07 (0.99 to 1.15) times the best of the others, a DataLoader that gets whole batches of indices; 2.8 times it
without that; 0.62 (0.58 to 0.64) of the step alone and 0.76 (0.68 to 0.77) of the loop; 1.62 (1.34 to 1.63) times
penstock on threads. JAX: 0.68 (0.56 to 0.77) of the step alone, 0.81 (0.72 to 0.94) of the loop, 1.29 (1.07 to 1.45)
times penstock on threads.

On 2026-11-23, with the copy engine, two cores of an Intel Xeon at 2.8 GHz, five rounds: PyTorch 0.71 (0.60 to 1.01) of
the step alone (wanted 0.80), 0.82 (0.71 to 1.37) of the loop, 0.98 (0.89 to 1.33) of the DataLoader by batches; steps/s
1,270, 1,849, 1,547 and 1,261. JAX 0.77 (0.70 to 0.88) of the step alone (wanted 0.75). A batch takes the consumer's
thread 35 us alone; between steps, whose data have replaced Python's in the caches, about 140 more than the loop.

On 2026-11-24, three rounds, PyTorch: penstock 0.71 (0.70 to 0.83) of the step alone, `bare` 0.74 (0.72 to 0.86), which
is the least native engine that can be written (`_bare_engine.py`). So 0.80 is not reached without checks either. Of the
DataLoader by batches penstock had 1.13 (1.12 to 1.28). `loop` was as fast as `one`, so the machine was unsteady.

On 2026-11-26, a faster AMD EPYC, quiet, two rounds, PyTorch, steps/s: one 6,633, loop 5,279, bare 4,590, penstock
4,428, dataloader 3,609: 0.67 (0.66 to 0.68) of the step alone, `bare` 0.69; 0.84 of the loop; 1.23 of the DataLoader by
batches.

Not shown: a device that computes while the program goes on; Keras, whose own Python takes longer a step.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _bare_engine import bare_batches
from _harness import Array, Numbers, Options, Target, ratio, run, time_steady

_ROW_COUNT = 1_000_000
_QUICK_ROW_COUNT = 20_000
_BATCH_SIZE = 256
_HIDDEN_SIZE = 16

Batches = Iterator[tuple[Any, Any]]
Contender = Callable[[Array], Batches]
Step = Callable[[Any, Any], None]


def torch_step() -> Step:
    import torch

    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(20, _HIDDEN_SIZE), torch.nn.ReLU(), torch.nn.Linear(_HIDDEN_SIZE, 1))
    optimizer, loss_of = torch.optim.SGD(net.parameters(), lr=1e-3), torch.nn.MSELoss()

    def step(features: Any, targets: Any) -> None:
        optimizer.zero_grad()
        loss_of(net(features)[:, 0], targets).backward()
        optimizer.step()

    return step


def jax_step() -> Step:
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    shapes = (20, _HIDDEN_SIZE), (_HIDDEN_SIZE,), (_HIDDEN_SIZE, 1)
    parameters = [jnp.asarray(rng.standard_normal(shape, "float32")) / 10 for shape in shapes]

    def loss_of(parameters: Any, features: Any, targets: Any) -> Any:
        weights, bias, last = parameters
        return jnp.mean((jax.nn.relu(features @ weights + bias) @ last)[:, 0] - targets) ** 2

    @jax.jit
    def update(parameters: Any, features: Any, targets: Any) -> Any:
        slopes = jax.grad(loss_of)(parameters, features, targets)
        return [old - 1e-3 * slope for old, slope in zip(parameters, slopes, strict=True)]

    def step(features: Any, targets: Any) -> None:
        nonlocal parameters
        parameters = jax.block_until_ready(update(parameters, features, targets))

    return step


def one(table: Array) -> Batches:
    rows = table[:_BATCH_SIZE]
    while True:
        yield rows[:, :-1].copy(), rows[:, -1].copy()


def loop(table: Array) -> Batches:
    rng = np.random.default_rng(1)
    while True:
        order = rng.permutation(len(table))
        for start in range(0, len(table) - _BATCH_SIZE + 1, _BATCH_SIZE):
            rows = table[order[start : start + _BATCH_SIZE]]
            yield rows[:, :-1], rows[:, -1]


def bare(table: Array) -> Batches:
    rng = np.random.default_rng(1)

    def indices() -> Iterator[list[Array]]:
        while True:
            order = rng.permutation(len(table))
            for start in range(0, len(table) - _BATCH_SIZE + 1, _BATCH_SIZE):
                yield [order[start : start + _BATCH_SIZE]]

    return ((rows[:, :-1], rows[:, -1]) for (rows,) in bare_batches([table], _BATCH_SIZE, indices()))


def penstock(table: Array, adapt: str, executor: Any = "auto") -> Batches:
    import penstock as ps

    dataset = ps.from_arrays((table[:, :-1], table[:, -1])).shuffle(seed=1).batch(_BATCH_SIZE)
    epochs = getattr(dataset, adapt)(executor=executor)
    while True:
        yield from epochs


def dataloader(table: Array, *, whole_batches: bool) -> Batches:
    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    rows = torch.from_numpy(table)
    dataset = TensorDataset(rows[:, :-1], rows[:, -1])
    sampler = RandomSampler(dataset, num_samples=1000 * len(table))
    if whole_batches:
        return iter(DataLoader(dataset, sampler=BatchSampler(sampler, _BATCH_SIZE, drop_last=True), batch_size=None))
    return iter(DataLoader(dataset, batch_size=_BATCH_SIZE, sampler=sampler))


def tf(table: Array) -> Batches:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((table[:, :-1], table[:, -1])).shuffle(100_000, seed=1).repeat()
    batched: Batches = dataset.batch(_BATCH_SIZE).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
    return batched


def _as_tensors(batches: Batches) -> Batches:
    import torch

    return ((torch.as_tensor(features), torch.as_tensor(targets)) for features, targets in batches)


def _as_jax(batches: Batches) -> Batches:
    import jax

    return ((jax.device_put(features), jax.device_put(targets)) for features, targets in batches)


def _case(make_step: Callable[[], Step], contender: Contender, convert: Callable[[Batches], Batches]) -> Any:
    def measure(options: Options) -> Numbers:
        count = _QUICK_ROW_COUNT if options.quick else _ROW_COUNT
        table = np.random.default_rng(0).standard_normal((count, 21), "float32")
        step = make_step()

        def stepped() -> Iterator[tuple[Array]]:
            for features, targets in convert(contender(table)):
                step(features, targets)
                yield (np.zeros(1),)  # a step, as a sample

        return time_steady(stepped(), options)

    return measure


def _itself(batches: Batches) -> Batches:
    return batches


_TO_TORCH: dict[str, Contender] = {
    "penstock": functools.partial(penstock, adapt="to_torch"),
    "penstock_threads": functools.partial(penstock, adapt="to_torch", executor="threads"),
    "dataloader": functools.partial(dataloader, whole_batches=True),
    "dataloader_rows": functools.partial(dataloader, whole_batches=False),
}
_TO_JAX: dict[str, Contender] = {
    "penstock": functools.partial(penstock, adapt="to_jax"),
    "penstock_threads": functools.partial(penstock, adapt="to_jax", executor="threads"),
}
_TO_NUMPY: dict[str, Contender] = {"one": one, "loop": loop, "bare": bare, "tf": tf}
_CASES = {
    **{f"torch_{name}": _case(torch_step, each, _as_tensors) for name, each in _TO_NUMPY.items()},
    **{f"torch_{name}": _case(torch_step, each, _itself) for name, each in _TO_TORCH.items()},
    **{f"jax_{name}": _case(jax_step, each, _as_jax) for name, each in _TO_NUMPY.items()},
    **{f"jax_{name}": _case(jax_step, each, _itself) for name, each in _TO_JAX.items()},
}


def _targets(options: Options) -> list[Target]:
    others = ["torch_dataloader", "torch_dataloader_rows", "torch_tf"]
    return [
        Target("torch: penstock / the step alone", ratio("torch_penstock", ["torch_one"])),
        Target("torch: the bare engine / the step alone", ratio("torch_bare", ["torch_one"])),
        Target("torch: penstock / a loop", ratio("torch_penstock", ["torch_loop"])),
        Target("torch: penstock / the best of the others", ratio("torch_penstock", others), at_least=1.0),
        Target("torch: penstock / penstock on threads", ratio("torch_penstock", ["torch_penstock_threads"])),
        Target("jax: penstock / the step alone", ratio("jax_penstock", ["jax_one"])),
        Target("jax: penstock / a loop", ratio("jax_penstock", ["jax_loop"])),
        Target("jax: penstock / tf.data", ratio("jax_penstock", ["jax_tf"]), at_least=1.0),
        Target("jax: penstock / penstock on threads", ratio("jax_penstock", ["jax_penstock_threads"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
