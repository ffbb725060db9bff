"""What is particular to torch; the contract of all adapters is tested in `tests/contract/test_adapters.py`."""

import contextlib
import logging
import operator
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest

import penstock as ps
from penstock.sources.arrays import RangeSource
from penstock.testing import CountingSource

pytestmark = [pytest.mark.framework, pytest.mark.usefixtures("leaves_nothing_behind")]

X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.arange(20)


def pairs(batch_size=8):
    return ps.from_arrays({"x": X, "y": Y}).shuffle(1).batch(batch_size)


def labels(batches):
    return [batch["y"].tolist() for batch in batches]


@pytest.fixture(scope="module", autouse=True)
def _torch_is_imported():
    from multiprocessing import resource_tracker

    import torch  # noqa: F401

    resource_tracker.ensure_running()  # which the first worker of torch's would start, for the life of this process


# The adapter.


def test_tensors_are_the_slots_memory_and_the_last_of_them_gives_it_back():
    with pairs().to_torch(executor="inline") as adapter:
        batch = next(iter(adapter))
        ring = adapter.loader._delivery.ring
        slot = next(slot for slot, _ in ring._leases.values())
        part, places = batch["x"][1:, 0], [array.ctypes.data for array in ring.rows(slot).arrays]
        assert [tensor.data_ptr() for tensor in batch.values()] == places
        del batch
        assert ring.leased_count == 1
        del part
        assert ring.leased_count == 0


def test_tensors_without_an_array_are_refused_with_a_cure():
    import torch

    for tensor, cure in (
        (
            torch.zeros(2, dtype=torch.bfloat16),
            r"BFloat16 \(return tensor\.float\(\), and make the batch of that type\)",
        ),
        (torch.zeros(2, requires_grad=True), r"Use tensor\.detach\(\)\.numpy\(\) instead"),
    ):
        with pytest.raises(ps.SpecError, match=rf"returned a leaf that is a Tensor .*{cure} for element 0\.$"):
            ps.range(3).map(lambda i, tensor=tensor: tensor)[0]


def test_threads_say_that_they_share_torchs_generator(caplog):
    import torch

    def seeded(x, rng):
        torch.manual_seed(int(rng.integers(2**31)))
        return torch.rand(())

    def own(x, rng):
        return torch.rand((), generator=torch.Generator().manual_seed(int(rng.integers(2**31))))

    torch.manual_seed(7)
    wanted = torch.rand(())
    torch.manual_seed(7)
    for function, is_told in ((seeded, True), (own, False)):
        dataset = ps.range(6).random_map(function, seed=1).batch(3)
        inline = list(dataset)
        torch.manual_seed(7)
        dataset = ps.range(6).random_map(function, seed=1).batch(3)
        with dataset.to_torch(executor="processes", workers=1) as adapter:
            assert [batch.tolist() for batch in adapter] == [batch.tolist() for batch in inline]
        for looked_at in (dataset, ps.range(6).random_map(function, seed=1).batch(3)):  # by a worker, and not yet
            caplog.clear()
            with looked_at.to_torch(executor="threads") as adapter:
                told = [record.message for record in caplog.records if "which threads share" in record.message]
                assert len(told) == is_told
                assert all(text in adapter.loader.report().note for text in told)
            assert torch.rand(()) == wanted  # the training's generator is as it was
            torch.manual_seed(7)


def test_tensors_can_be_written_to_and_nobody_else_sees_it():
    with pairs().to_torch(executor="inline") as adapter:
        for batch in adapter:
            batch["x"].zero_()
        assert labels(adapter) != []
    assert X[-1].tolist() == [38.0, 39.0]


def test_single_elements_are_tensors_too():
    with ps.zip((ps.from_arrays(X), ps.range(20))).to_torch() as adapter:
        x, number = list(adapter)[3]
    assert (x.tolist(), number.item(), tuple(number.shape)) == ([6.0, 7.0], 3, ())


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_bfloat16_of_ml_dtypes_is_torchs(executor):
    import torch

    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    ds = ps.from_arrays({"x": X, "n": X[:, 0] / 3}).cast({"x": None, "n": bfloat16}).map(lambda e: e)
    with ds.batch(8).to_torch(executor=executor) as adapter:
        found = torch.cat([batch["n"].clone() for batch in adapter])
        assert torch.equal(found, torch.from_numpy(X[:, 0] / 3).to(torch.bfloat16))
    with ds.to_torch(executor=executor) as adapter:
        assert [element["n"].item() for element in adapter] == found.tolist()


def test_text_stays_as_it_is():
    names = np.array(["a", "bc", "d"])
    ds = ps.from_arrays({"n": np.arange(3), "name": names}).map(lambda e: {**e, "any": str(e["name"]) * 2}).batch(2)
    with ds.to_torch(executor="inline") as adapter:
        batches = list(adapter)
    assert [batch["name"].tolist() for batch in batches] == [["a", "bc"], ["d"]]
    assert [batch["any"].tolist() for batch in batches] == [["aa", "bcbc"], ["dd"]]
    assert [type(batch["n"]).__name__ for batch in batches] == ["Tensor", "Tensor"]


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (">f4", r"no dtype for element['bad'], which is (4,) >f4. Its bytes are in the order of another machine: use"),
        ("datetime64[s]", "which is (4,) datetime64[s]. Use cast('int64')"),
        ("longdouble", "Use cast('float32')"),
        ([("r", "u1"), ("g", "u1")], "Take its fields apart with map(), such as {'r': x['r']}"),
    ],
    ids=str,
)
def test_dtypes_that_torch_lacks_are_refused_with_the_leaf_and_a_cure(dtype, message):
    ds = ps.from_arrays({"good": np.zeros(8), "bad": np.zeros(8, dtype)})
    with pytest.raises(ps.SpecError, match=re.escape(message)):
        ds.batch(4).to_torch()


def test_what_is_refused_leaves_no_worker_behind():
    ds = ps.range(8).map(lambda x: x.astype("datetime64[s]")).batch(4)
    with pytest.raises(ps.SpecError, match="datetime64"):
        ds.to_torch(executor="processes", workers=1)


def test_state_dict_is_the_loaders_state():
    ds = pairs()
    with ds.to_torch() as first, ds.to_torch() as second:
        batches = iter(first)
        before = labels([next(batches)])
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        assert before + labels(second) == labels(ds)


def test_says_what_it_is():
    with pairs().to_torch(executor="inline") as adapter:
        assert repr(adapter) == (
            "<penstock TorchAdapter of {'x': (None, 2) float32, 'y': (None,) int64}, on cpu, "
            "of <penstock.Loader of 3 elements, inline, epoch 0, position 0>>"
        )


# Devices.


def test_batches_arrive_on_the_device_that_was_named():
    with pairs().to_torch(device="meta") as adapter:
        assert [(batch["x"].device.type, tuple(batch["x"].shape)) for batch in adapter] == [
            ("meta", (8, 2)),
            ("meta", (8, 2)),
            ("meta", (4, 2)),
        ]


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(ps.ArgumentError, match=r"device='gpu' is no device that torch .* finds here: Expected one of"):
        pairs().to_torch(device="gpu")
    with pytest.raises(ps.ArgumentError, match=r"device='cuda:64' is no device that torch .* finds here: "):
        pairs().to_torch(device="cuda:64")
    with pytest.raises(ps.ArgumentError, match=r"device='xpu:64' is no device that torch .* Leave device= out"):
        pairs().to_torch(device="xpu:64")


def test_pinning_without_a_device_to_pin_for_warns_as_torch_does():
    _without_cuda()
    with pytest.warns(UserWarning, match=r"to_torch\(pin_memory=True\) does nothing here") as warned:
        adapter = pairs().to_torch(pin_memory=True)
    assert warned[0].filename == __file__
    with adapter:
        assert labels(adapter) == labels(pairs())


@pytest.fixture
def cuda_calls(monkeypatch):
    """Returns what happens without a device, in order: streams and events of the test's own, and copies to nowhere."""
    import torch

    calls = []

    class Event:
        def __init__(self, number):
            self.number = number

        def synchronize(self):
            calls.append(("host waits", self.number))

    class Stream:
        def __init__(self, device):
            self.event_count = 0

        def record_event(self):
            self.event_count += 1
            calls.append(("copy", self.event_count))
            return Event(self.event_count)

        def wait_stream(self, stream):
            calls.append(("copies wait", stream))

        def wait_event(self, event):
            calls.append(("stream waits", event.number))

    user_stream = Stream(None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: user_stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: calls.append(("recorded", stream)))
    return SimpleNamespace(calls=calls, stream=Stream, user_stream=user_stream)


def _as_if_to_cuda(adapter, cuda_calls):
    import torch

    from penstock.adapters._epochs import Epoch
    from penstock.adapters._torch_device import CudaRuntime

    adapter._runtime = CudaRuntime(torch.device("meta"))
    adapter._runtime._stream = cuda_calls.stream(None)
    return Epoch(adapter.loader, adapter._copy, adapter._copied, ahead_count=1, rest=operator.itemgetter(0))


def test_the_users_stream_waits_for_a_copy_to_cuda_and_the_thread_for_the_one_before(cuda_calls):
    with pairs(4).to_torch(executor="inline") as adapter:
        batches = _as_if_to_cuda(adapter, cuda_calls)
        ring, leased = adapter.loader.ring(), []
        for batch in batches:
            assert tuple(batch["x"].shape) == (4, 2)
            leased.append(ring.leased_count)
            cuda_calls.calls.append("step")
        assert [call for call in cuda_calls.calls if call[0] not in ("recorded", "copies wait")] == [
            *(("copy", 1), ("stream waits", 1), "step"),
            *(("host waits", 1), ("copy", 2), ("copy", 3), ("stream waits", 2), "step"),
            *(("host waits", 2), ("copy", 4), ("stream waits", 3), "step"),
            *(("host waits", 3), ("copy", 5), ("stream waits", 4), "step"),
            *(("host waits", 4), ("stream waits", 5), "step"),
            ("host waits", 5),
        ]
        # The memory of both leaves of each batch is the user's stream's.
        assert cuda_calls.calls.count(("recorded", cuda_calls.user_stream)) == 10
        # A copy begins after the steps that are queued, or batches would fill the device.
        waiting = [call for call in cuda_calls.calls if call[0] in ("copy", "copies wait")]
        assert waiting[::2] == [("copies wait", cuda_calls.user_stream)] * 5
        # A slot is leased while its batch may be on its way: the one in hand and the next. The last is alone.
        assert leased == [1, 2, 2, 2, 1]
        assert ring.leased_count == 0
        assert adapter.loader.report().copied == 0


def test_copies_to_cuda_that_are_abandoned_keep_their_slots_until_they_are_done(cuda_calls):
    with pairs(4).to_torch(executor="inline") as adapter:
        batches = _as_if_to_cuda(adapter, cuda_calls)
        ring = adapter.loader.ring()
        batch = [next(batches), next(batches)][-1]
        assert (ring.leased_count, ("host waits", 2) in cuda_calls.calls) == (2, False)
        del batches
        assert sorted(cuda_calls.calls[-2:]) == [("host waits", 2), ("host waits", 3)]
        assert ring.leased_count == 0
        assert tuple(batch["x"].shape) == (4, 2)


def test_ctrl_c_while_a_copy_to_cuda_is_waited_for_reaches_the_user_and_loses_nothing(cuda_calls, monkeypatch):
    from penstock.adapters._torch_device import Copying

    with pairs(4).to_torch(executor="inline") as adapter:
        batches = _as_if_to_cuda(adapter, cuda_calls)
        next(batches)
        with monkeypatch.context() as patch:
            patch.setattr(Copying, "wait", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        assert len(list(batches)) == 4


@pytest.mark.parametrize("pin_memory", [False, True])
def test_batches_on_cuda_are_those_of_the_loader_and_give_slots_back(pin_memory):
    _with_cuda()
    ds = ps.from_arrays(np.random.default_rng(0).normal(size=(256, 64, 64)).astype("float32")).shuffle(1).batch(16)
    with ds.to_torch(device="cuda", pin_memory=pin_memory) as adapter:
        kept = []
        for _ in range(4):
            for batch in adapter:
                assert batch.is_cuda
                kept.append((batch, (batch * 2).sum(0)))
                del batch
        with ds.loader(executor="inline") as oracle:
            wanted = [batch.copy() for _ in range(4) for batch in oracle]
        for (batch, doubled), want in zip(kept, wanted, strict=True):
            assert np.array_equal(batch.cpu().numpy(), want)
            np.testing.assert_allclose(doubled.cpu().numpy(), 2 * want.sum(0), rtol=1e-3, atol=1e-3)
        assert adapter.loader.report().copied == 0


def test_pinned_batches_are_pinned():
    _with_cuda()
    with pairs().to_torch(pin_memory=True) as adapter:
        assert all(tensor.is_pinned() for batch in adapter for tensor in batch.values())


def _with_cuda():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def _without_cuda():
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")


# DataLoader.


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, if an earlier test imported it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_over_a_dataset_with_random_steps_is_one_line_in_the_log(num_workers, tmp_path):
    from torch.utils.data import DataLoader

    plain, random = ps.range(8), ps.range(8).random_map(lambda x, rng: x + rng.integers(9))
    handler = logging.FileHandler(tmp_path / "log")  # forked workers write to it, too
    logging.getLogger("penstock").addHandler(handler)
    for dataset in (plain, random):
        loader = DataLoader(
            dataset, 4, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None
        )
        assert len(list(loader)) == 2
    logging.getLogger("penstock").removeHandler(handler)
    handler.close()
    told = (tmp_path / "log").read_text()
    assert told.count("reads epoch 0 in each epoch: random_map(<lambda>) does the same in all of them. Write ds") == 1
    assert "in place of the DataLoader: each iteration is the next epoch." in told


def test_a_data_loader_in_this_process_delivers_the_batches_as_they_are():
    from torch.utils.data import DataLoader

    with pairs().to_torch() as adapter:
        loader = DataLoader(adapter, batch_size=None)
        assert len(loader) == 3
        assert labels(loader) == labels(pairs())
        assert adapter.state_dict()["epoch"] == 1
    with ps.range(4).repeat().batch(2).to_torch() as adapter, pytest.raises(TypeError, match="endless"):
        len(DataLoader(adapter, batch_size=None))


def test_a_data_loader_that_would_stack_batches_is_refused():
    from torch.utils.data import DataLoader

    text = r"Use DataLoader\(adapter, batch_size=None\) or, where a trainer makes the DataLoader, have its get_train_"
    with pairs().to_torch() as adapter, pytest.raises(ps.ArgumentError, match=text):
        next(iter(DataLoader(adapter)))
    with ps.range(20).to_torch() as adapter:  # what is not batched it may stack
        assert [batch.tolist() for batch in DataLoader(adapter, batch_size=10)] == np.arange(20).reshape(2, 10).tolist()


def test_a_share_that_accelerate_would_deal_out_to_all_processes_is_refused():
    from torch.utils.data import DataLoader

    class DataLoaderDispatcher:  # as accelerate's, which the tests do not install
        def __init__(self, loader, process_count=2):
            self.base_dataloader = loader
            self.state = SimpleNamespace(num_processes=process_count)

        def __iter__(self):
            yield from self.base_dataloader.__iter__()

    with pairs(10).to_torch(shard=(0, 2)) as adapter:
        loader = DataLoader(adapter, batch_size=None)
        assert [len(each) for each in labels(loader)] == [5, 5]
        with pytest.raises(
            ps.ArgumentError, match=r"has shard=\(0, 2\).* Leave the adapter out of accelerator\.prepare"
        ):
            next(iter(DataLoaderDispatcher(loader)))
        assert len(list(DataLoaderDispatcher(loader, process_count=1))) == 2
    with pairs(10).to_torch() as adapter:  # the first process reads it all: whole batches for each
        assert len(list(DataLoaderDispatcher(DataLoader(adapter, batch_size=None)))) == 2


NO_WORKERS = r"num_workers=0\) and to_torch\(workers=...\), or, .*MapDataset\(dataset\).* makes an adapter of its own"


def test_a_worker_that_is_spawned_is_refused_with_the_cure():
    import warnings

    from torch.utils.data import DataLoader

    with pairs().to_torch() as adapter, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what does not pickle; newer versions of torch say that, too
        loader = DataLoader(adapter, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        with pytest.raises(ps.TravelError, match=NO_WORKERS):
            iter(loader)


def test_a_worker_that_was_forked_is_refused_with_the_cure(monkeypatch):
    # A real one takes five seconds to end, which is torch's, for any dataset whose `iter` raises.
    monkeypatch.setattr("torch.utils.data._utils.worker._worker_info", object())
    with pairs().to_torch() as adapter, pytest.raises(ps.LoaderError, match=NO_WORKERS):
        iter(adapter)


# The map-style dataset.


def mapped(ds):
    from penstock.adapters.torch import MapDataset

    return MapDataset(ds)


def test_elements_come_by_index_and_are_writable_tensors():
    dataset = mapped(ps.from_arrays({"x": X, "y": Y, "name": Y.astype("U")}))
    assert len(dataset) == 20
    element = dataset[-2]
    assert (element["x"].tolist(), element["y"].item(), element["name"]) == ([36.0, 37.0], 18, "18")
    element["x"].zero_()
    assert dataset[18]["x"].tolist() == [36.0, 37.0]
    assert [each["y"].item() for each in dataset.__getitems__([3, -1, 3])] == [3, 19, 3]
    for index in (20, -21):
        with pytest.raises(ps.ElementIndexError, match=rf"Index {index} is outside a dataset of 20 elements"):
            dataset[index]
    assert [element["y"].item() for element in dataset] == list(range(20))


@pytest.mark.parametrize("index", [1.5, "a", None, slice(0, 2), True, [0, 1], np.arange(2)])
def test_what_is_no_integer_is_no_index(index):
    import torch

    from penstock.adapters.torch import MapDataset

    dataset = MapDataset(ps.range(10))
    assert dataset[np.int64(3)] == dataset[torch.tensor(3)] == 3
    assert dataset.__getitems__([]) == []
    with pytest.raises(ps.ArgumentTypeError, match=r"^An index of a MapDataset is an integer, but \[.*batch_sampler="):
        dataset[index]


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", None])
def test_what_is_no_number_of_an_epoch_is_refused(epoch):
    with pytest.raises(ps.ArgumentError, match=r"set_epoch\(.*\) is no epoch: it is an integer of at least 0"):
        mapped(ps.range(10)).set_epoch(epoch)


def test_several_elements_are_read_at_once():
    source = CountingSource(RangeSource(9))
    dataset = mapped(ps.from_source(source))
    assert [int(x) for x in dataset.__getitems__([8, 0, 4])] == [8, 0, 4]
    assert source.reads == {8: 1, 0: 1, 4: 1}


def test_only_what_can_be_indexed_is_taken():
    with pytest.raises(ps.ArgumentTypeError, match=r"MapDataset\(\) takes a penstock\.Dataset"):
        mapped(X)
    with pytest.raises(ps.ArgumentError, match=r"needs random access and a known length, but this dataset is endless"):
        mapped(ps.range(4).repeat())
    with pytest.raises(ps.SpecError, match="no dtype for element, which is"):
        mapped(ps.from_arrays(np.zeros(3, "m8[s]")))


OWN_WORKERS = """
import sys, warnings
import numpy as np
import penstock as ps
import torch
from penstock.adapters.torch import MapDataset
from penstock.sources.arrays import RangeSource
from penstock.testing import CountingSource
from torch.utils.data import DataLoader

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # of processes with threads that fork
    folder, start_method = sys.argv[1:]
    np.save(f"{folder}/x.npy", np.arange(60.0).reshape(20, 3))
    large = np.arange(1 << 19, dtype=np.int64).reshape(-1, 1 << 14)  # 4 MiB: through shared memory
    offset = 20  # a variable of a function that only travels by value

    def plan(source):
        return ps.zip({
            "file": ps.from_npy(f"{folder}/x.npy"),
            "large": ps.from_arrays(large).take(20).map(lambda row: row[:2] + offset),
            "drawn": ps.range(20).shuffle(1).random_map(lambda x, rng: x + rng.random()),
            "cached": ps.from_source(source).map(lambda x: x * 3).cache(),
        })

    source = CountingSource(RangeSource(20))
    dataset = MapDataset(plan(source))
    dataset[0]  # what this opened in the parent is no worker's
    loader = DataLoader(
        dataset, batch_size=4, num_workers=2, persistent_workers=True, multiprocessing_context=start_method
    )
    with plan(RangeSource(20)).batch(4).loader(executor="inline") as oracle:
        for epoch in range(2):
            dataset.set_epoch(epoch)  # which reaches workers that live
            for batch, want in zip(loader, oracle, strict=True):
                assert {name: leaf.tolist() for name, leaf in batch.items()} == {
                    name: leaf.tolist() for name, leaf in want.items()
                }
    loader._iterator._shutdown_workers()
    assert sum(source.reads.values()) == 21, source.reads  # element 0 also for its spec

    if start_method == "fork":  # each worker that is spawned imports torch
        ds = ps.range(6).shuffle(1).random_map(lambda x, rng: x + rng.random())
        dataset = MapDataset(ds)
        with ds.loader(executor="inline") as oracle:
            loader = DataLoader(
                dataset, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
            )
            for epoch in range(2):
                dataset.set_epoch(epoch)
                assert [float(x) for x in loader] == [float(x) for x in oracle]
        loader._iterator._shutdown_workers()

        source = CountingSource(RangeSource(6))
        dataset = MapDataset(ps.from_source(source).map(lambda x: x * 3).cache())
        loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context="fork")
        for epoch in range(3):  # of other workers each time
            assert torch.cat(list(loader)).tolist() == [0, 3, 6, 9, 12, 15]
        assert sum(source.reads.values()) == 7, source.reads
    print("the same")
"""


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_torchs_own_workers_make_the_same_elements(fresh_python, start_method, tmp_path):
    # In a process of its own: this one may have JAX in it, with which none can fork.
    script = tmp_path / "script.py"
    script.write_text(OWN_WORKERS)
    done = fresh_python(script, str(tmp_path), start_method)
    assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr


def test_a_pickled_dataset_is_a_copy():
    large = np.arange(1 << 18, dtype=np.float64).reshape(4, -1)  # 2 MiB
    dataset = mapped(ps.from_arrays(large).map(lambda row: row[-3:]))
    dataset.set_epoch(3)
    copy = pickle.loads(pickle.dumps(dataset))
    assert [each.tolist() for each in copy] == [each.tolist() for each in dataset]
    copy.set_epoch(4)
    assert int(dataset._epoch) == 3


def test_attributes_of_a_data_loader_are_answered() -> None:
    with ps.range(5).batch(2).to_torch() as adapter:
        with pytest.raises(
            AttributeError, match=r"^What to_torch\(\) makes has no 'dataset': elements are counted by len"
        ):
            _ = adapter.dataset
        with pytest.raises(AttributeError, match=r"has no 'sampler': each iteration is the next epoch"):
            adapter.sampler.set_epoch(1)
        with pytest.raises(AttributeError, match=r"has no 'no_such_name'\.$"):
            _ = adapter.no_such_name
        with pytest.raises(AttributeError, match=r"has no shape: it delivers batches"):
            _ = adapter.shape


def test_the_weight_of_a_whole_batch_is_a_tensor() -> None:
    with ps.range(10).batch(4).to_torch(shard=(3, 4), whole_batches=True, uneven="pad") as adapter:
        ((batch, weight),) = adapter
    assert (batch.tolist(), float(weight), str(weight.dtype), weight.shape) == ([8, 9], 0.0, "torch.float32", ())
