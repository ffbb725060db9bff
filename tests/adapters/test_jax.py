"""What is particular to JAX; the contract of all adapters is tested in `tests/contract/test_adapters.py`.

Several devices are several of the CPU's, which JAX makes on demand, in a fresh process. There it copies to all but
the first of them, as it would to an accelerator.
"""

import contextlib
import re

import numpy as np
import pytest

import penstock as ps
from tests.adapters.ranks import run_ranks

pytestmark = [pytest.mark.framework, pytest.mark.usefixtures("leaves_nothing_behind", "_jax_lets_go")]

X = np.arange(48, dtype=np.float32).reshape(24, 2)


@pytest.fixture(scope="module", autouse=True)
def _jax_is_there():
    import jax

    jax.device_put(np.zeros(1)).block_until_ready()


@pytest.fixture
def _jax_lets_go(leaves_nothing_behind):
    yield
    import gc

    import jax

    gc.collect()
    jax.device_put(np.zeros(1)).block_until_ready()


@contextlib.contextmanager
def numbers_of_64_bits():
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


def test_numbers_of_64_bits_that_are_turned_off_later_are_told_where_they_do_not_fit():
    with numbers_of_64_bits():
        adapter = ps.from_arrays(np.array([1, 2, 2**40])).batch(1).to_jax()
        assert adapter.element_spec == ps.ArraySpec((1,), "int64")
        assert [batch.tolist() for batch in adapter] == [[1], [2], [2**40]]
    assert adapter.element_spec == ps.ArraySpec((1,), "int32")
    batches = iter(adapter)
    assert [next(batches).tolist(), next(batches).tolist()] == [[1], [2]]
    with pytest.raises(ps.SpecError, match=r"values from 1099511627776 .* do not fit int32, .* are off\. Turn them on"):
        next(batches)
    adapter.close()


def test_arrays_on_a_cpu_are_the_slots_memory_and_keep_it():
    import jax

    with ps.from_arrays(X).batch(8).to_jax(executor="inline") as adapter:
        batch = next(iter(adapter))
        assert isinstance(batch, jax.Array)
        ring = adapter.loader._delivery.ring
        slot = next(slot for slot, _ in ring._leases.values())
        assert batch.unsafe_buffer_pointer() == ring.rows(slot).arrays[0].ctypes.data
        assert ring.leased_count == 1
        del batch
        jax.device_put(np.zeros(1)).block_until_ready()
        assert ring.leased_count == 0


def test_a_batch_that_is_donated_is_not_written_to():
    import jax

    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with ps.from_arrays(X).batch(8).to_jax(executor="threads", workers=1) as adapter:
        for number, batch in enumerate(adapter):
            assert np.array_equal(step(batch), X[8 * number : 8 * number + 8] + 1)
    with ps.from_arrays(X).batch(8).to_jax() as adapter:
        for number, batch in enumerate(adapter):
            assert np.array_equal(batch, X[8 * number : 8 * number + 8])


def test_the_spec_is_that_of_what_arrives_with_32_bits_while_64_are_off():
    ds = ps.from_arrays({"f": np.arange(6.0) / 3, "i": np.arange(6), "u": np.arange(6, dtype="uint8")}).batch(3)
    with ds.to_jax() as adapter:
        assert {name: str(leaf.dtype) for name, leaf in adapter.element_spec.items()} == {
            "f": "float32",
            "i": "int32",
            "u": "uint8",
        }
        batch = next(iter(adapter))
        assert {name: str(leaf.dtype) for name, leaf in batch.items()} == {"f": "float32", "i": "int32", "u": "uint8"}
        assert np.array_equal(batch["f"], (np.arange(3.0) / 3).astype("float32"))
    with numbers_of_64_bits(), ds.to_jax() as adapter:
        assert adapter.element_spec == ds.element_spec
        assert np.array_equal(next(iter(adapter))["f"], np.arange(3.0) / 3)


def test_integers_that_do_not_fit_32_bits_are_refused_and_not_wrapped():
    ds = ps.from_arrays({"id": np.array([1, 2, 3, 1 << 40])}).batch(2)
    with ds.to_jax() as adapter:
        batches = iter(adapter)
        assert next(batches)["id"].tolist() == [1, 2]
        with pytest.raises(ps.SpecError, match=r"batch\['id'\] has values from 3 to 1099511627776, .* fit int32"):
            next(batches)
        assert adapter.loader.get_state()["position"] == 1
    with numbers_of_64_bits(), ds.to_jax() as adapter:
        assert [batch["id"].tolist() for batch in adapter] == [[1, 2], [3, 1 << 40]]


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (
            "U4",
            "JAX has no dtype for element['bad'], which is (4,) <U4. Leave it out, or make numbers of it, with map",
        ),
        ([("a", "f4")], "Take its fields apart with map(), such as {'a': x['a']}."),
        ("datetime64[s]", "Use cast('int64')"),
        ("longdouble", "Use cast('float32')"),
        (">f4", "Its bytes are in the order of another machine: use cast('float32')"),
    ],
)
def test_dtypes_that_jax_lacks_are_refused_with_the_leaf_and_a_cure(dtype, message):
    ds = ps.from_arrays({"good": np.zeros(8), "bad": np.zeros(8, dtype)})
    with pytest.raises(ps.SpecError, match=re.escape(message)):
        ds.batch(4).to_jax()


def test_arguments_that_mean_nothing_are_refused():
    import jax

    ds, device = ps.from_arrays((X, X)).batch(8), jax.devices()[0]
    one = jax.sharding.SingleDeviceSharding(device)
    for options, error, message in (
        ({"device": device, "sharding": one}, ps.ArgumentError, "takes device= or sharding=, not both"),
        ({"device": "cpu"}, ps.ArgumentTypeError, "device='cpu' is no jax.Device. Take one of jax.devices()"),
        ({"prefetch_to_device": -1}, ps.ArgumentError, "prefetch_to_device=-1 is not a number of batches"),
        ({"sharding": jax.sharding.PartitionSpec()}, ps.ArgumentTypeError, "needs its mesh: NamedSharding(mesh, spec)"),
        ({"sharding": {"x": one}}, ps.ArgumentTypeError, "a tree of another structure than the element, which is"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            ds.to_jax(**options)
    buckets = ps.range(8).map(np.ones, element_spec=ps.ArraySpec((None,), "float64")).bucket_by_length(len, [4], [2, 2])
    with pytest.raises(ps.ArgumentError, match="divides the rows of each batch among devices, by their"):
        buckets.to_jax(sharding=one, whole_batches=True)
    with pytest.raises(ps.SpecError, match=r"element is \(None, None\) float64: without .*, sharding\)\.$"):
        buckets.to_jax(sharding=one)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_batches_on_their_way_are_no_reason_to_copy(count: int) -> None:
    array = np.arange(4000, dtype=np.float32).reshape(400, 10)
    with ps.from_arrays(array).batch(8).to_jax(prefetch_to_device=count, executor="inline") as batches:
        kept = [np.asarray(batch).copy() for batch in batches]
        assert np.array_equal(np.concatenate(kept), array)
        assert batches.loader.report().copied == 0


def test_arrays_are_committed_to_a_device_that_was_named_and_to_no_other():
    import jax

    with ps.from_arrays(X).batch(8).to_jax(device=jax.devices()[0]) as named, ps.range(4).to_jax() as default:
        assert next(iter(named)).committed
        assert not next(iter(default)).committed


def test_says_what_it_is():
    with ps.range(6).batch(4).to_jax(executor="inline") as adapter:
        assert repr(adapter) == (
            "<penstock JaxAdapter of (None,) int32, of <penstock.Loader of 2 elements, inline, epoch 0, position 0>>"
        )


# Several devices.

SEVERAL_DEVICES = """
import gc
import jax, numpy as np, penstock as ps
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

X = np.arange(48, dtype=np.float32).reshape(24, 2)
devices = np.array(jax.devices())
assert len(devices) == 4
by_rows = NamedSharding(Mesh(devices, "rows"), P("rows"))
mesh = Mesh(devices.reshape(2, 2), ("rows", "columns"))
ds = ps.from_arrays({"x": X, "y": X[:, 0]}).shuffle(1)

def run(batch_size, **options):
    plan = ds.batch(batch_size)
    with plan.loader(executor="inline") as loader:
        wanted = [{name: leaf.copy() for name, leaf in batch.items()} for _ in range(3) for batch in loader]
    kept = []
    with plan.to_jax(executor="threads", workers=2, **options) as adapter:
        for _ in range(3):
            for number, batch in enumerate(adapter, 1):
                state = adapter.loader.get_state()
                assert number in (state["position"], len(adapter))
                kept.append(batch)
    for batch, want in zip(kept, wanted, strict=True):
        for name in want:
            assert np.array_equal(batch[name], want[name])
    return kept

batch = run(8, sharding=by_rows)[0]
assert batch["x"].sharding == by_rows and batch["x"].addressable_shards[3].data.shape == (2, 2)
tree = {"x": NamedSharding(mesh, P("rows", "columns")), "y": NamedSharding(mesh, P())}
batch = run(8, sharding=tree, prefetch_to_device=2)[0]
assert batch["x"].addressable_shards[0].data.shape == (4, 1) and batch["y"].sharding.is_fully_replicated
batch = run(10, device=devices[2], prefetch_to_device=1)[0]
assert batch["x"].devices() == {devices[2]}
run(10, sharding=NamedSharding(mesh, P("rows")))  # batches of 10, 10 and 4 rows, by two

for size, message in ((6, "does not divide"), (20, None), (16, None)):
    try:
        ds.take(22).batch(size).to_jax(sharding=by_rows).close()
    except ps.SpecError as error:
        print(size, error)
try:
    ps.range(12).to_jax(sharding=by_rows).close()
except ps.SpecError as error:
    print(error)

with ps.from_arrays(np.zeros((96, 64, 64), np.float32)).batch(4).to_jax(device=devices[1], workers=1) as adapter:
    for _ in range(3):
        for batch in adapter:
            batch.block_until_ready()
            del batch
    assert adapter.loader.report().copied == 0, adapter.loader.report()
"""


def test_shardings_over_devices_of_this_process(fresh_python):
    done = fresh_python(
        SEVERAL_DEVICES, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr
    indivisible, short, also_short, unbatched = done.stdout.splitlines()
    assert indivisible.startswith("6 element['x'] is (None, 2) float32, which the sharding does not divide: ")
    for line in (short, also_short):
        assert re.search(r"a short batch has [26] rows, and the sharding makes 4 parts\. Give the step .* drop_r", line)
    assert re.match(r"element is \(\) int64, which has fewer axes than the sharding names: .*Put batch\(\)", unbatched)


# Several processes.

ONE_OF_TWO_PROCESSES = """
import os
import jax, numpy as np, penstock as ps
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

address, number = f"127.0.0.1:{os.environ['MASTER_PORT']}", int(os.environ["RANK"])
jax.distributed.initialize(address, num_processes=2, process_id=number, initialization_timeout=200)
X = np.arange(48, dtype=np.float32).reshape(24, 2)
ds = ps.from_arrays((X, np.arange(24))).shuffle(1).batch(8)
devices = np.array(jax.devices())
assert len(devices) == 4 and len(jax.local_devices()) == 2

# Rows lie as the mesh says: in the second one, the second process holds the first of them.
for order in (devices, devices[::-1]):
    sharding = NamedSharding(Mesh(order, "rows"), P("rows"))
    with ds.to_jax(sharding=sharding, executor="threads", workers=1) as adapter, ds.loader("inline") as oracle:
        assert adapter.element_spec[0].shape == (8, 2) and len(adapter) == 3
        for _ in range(2):
            for (x, y), (want_x, want_y) in zip(adapter, oracle, strict=True):
                assert x.shape == (8, 2) and y.shape == (8,) and x.sharding == sharding
                for found, want in ((x, want_x), (y, want_y)):
                    for shard in found.addressable_shards:
                        assert np.array_equal(shard.data, want[shard.index]), (shard.index, shard.data, want)
        first_row = next(iter(adapter))[1].addressable_shards[0].index[0].start
        print(adapter.loader.arrangement.options.shard)

columns = NamedSharding(Mesh(devices.reshape(2, 2), ("columns", "rows")), P("rows"))  # both hold all rows
with ds.to_jax(sharding=columns, executor="threads", workers=1) as adapter:
    print(adapter.loader.arrangement.options.shard)
odd = NamedSharding(Mesh(devices[[0, 2, 1, 3]], "rows"), P("rows"))
for options in ({"sharding": sharding, "shard": (number, 2)}, {"sharding": odd}):
    try:
        ds.to_jax(**options).close()
    except ValueError as error:
        print(error)
jax.distributed.shutdown()
"""


def test_shardings_over_two_processes_make_global_batches_of_the_rows_that_each_holds():
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    for number, rank in enumerate(run_ranks(ONE_OF_TWO_PROCESSES, 2, env=env, warnings=())):
        assert rank.status == 0, rank.err
        first, second, all_rows, mismatch, odd = rank.out.splitlines()
        assert (first, second, all_rows) == (f"({number}, 2)", f"({1 - number}, 2)", "(0, 1)")
        assert mismatch.startswith(
            f"shard=({number}, 2) does not fit the sharding, by which the devices of this process hold part "
            f"{1 - number} of 2 of the rows. Leave shard= out"
        )
        assert "do not hold one even part of the rows of each batch" in odd
