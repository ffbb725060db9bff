"""What users of input pipelines complain of, where the cause is worker processes. It does not happen here.

Each complaint, and the tests that it is a case of; those of this file are for what no other covers.

| complaint | test |
|---|---|
| memory grows with the number of workers | here; `run/test_parcel.py`: `test_each_refusal_names...` |
| `fit` freezes when a worker is gone | here; `faults/test_ctrl_c_in_keras.py` |
| batches in bursts of N | `run/test_worker_processes.py`: `test_all_workers_fill_the_next_batch_together` |
| `/dev/shm` too small: "Bus error" | `faults/test_memory_of_workers.py`: `test_batches_need_no_shared_memory...` |
| too many open files | `run/test_worker_processes.py`: `test_a_loader_has_two_descriptors...` |
| the same random numbers in every worker | `run/test_worker_processes.py`: `test_global_random_numbers...` |
| no exact resumption | `properties/test_processes.py`; the contract's `test_resumes_at_any_position` |
| slow first batch, workers made anew | `run/test_worker_processes.py`: `test_epochs_and_loaders_start_no_new_workers` |
| lambdas and notebooks do not pickle | `run/test_programs.py`, `run/test_parcel.py` |
| a worker is killed, the run dies, nobody named | `testing/_worker_deaths.py`, `faults/test_signals_to_workers.py` |
| fork with live threads deadlocks | `run/test_worker_processes.py`: `test_workers_are_fresh_interpreters...` |
| Ctrl-C hangs, zombies, no exit | `faults/test_ends_of_processes.py`, `faults/test_ctrl_c_in_keras.py` |
| too many threads in workers | `run/test_worker_processes.py`: `test_threads_of_libraries_are_a_share_of_the_cpus` |
| stale shared memory after a crash | `faults/test_ends_of_processes.py`: `test_a_signal_that_kills_leaves_nothing` |
| a silent hang | `testing/_worker_deaths.py`: `test_element_that_never_returns_is_named_in_time` |
| exceptions lose type, traceback, index | `run/test_remote_error.py`, the contract's `test_function_that_raises...` |
| Python's tracker of shared memory | `run/test_worker_processes.py`: `test_workers_import_no_framework_and...` |
| buffers that are used again | here; `properties/test_processes.py`: `test_batches_that_somebody_keeps...` |
| a scheduler's signal ends workers first | `faults/test_signals_to_workers.py`: `test_what_a_scheduler_sends...` |
| processes times loaders | `faults/test_processes_of_the_user.py`: `two loaders in turn, as train and validation` |
"""

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing._runs import child_processes
from tests.adapters.keras_models import arrays, assert_same, delivered, recording_model

Run = Callable[..., subprocess.CompletedProcess[str]]

CAPTURES = """
import os, pathlib
import numpy as np
import penstock as ps
from penstock.testing._runs import child_processes

def private_mib(process):
    lines = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024

def measure(nbytes, workers):
    table = np.ones(nbytes, np.uint8)
    dataset = ps.range(512).map(lambda i: table[i::512].sum(dtype=np.int64)).batch(8)
    with dataset.loader("processes", workers=workers) as loader:
        assert sum(int(batch.sum()) for batch in loader) == nbytes
        return max(private_mib(process) for process in child_processes()), private_mib(os.getpid())

measure(1 << 20, 1)  # what is imported and allocated once
few, parent = measure(1 << 20, 4)
many, parent_of_many = measure(128 << 20, 4)
assert many - few < 4, (few, many)
assert parent_of_many - parent < 128 + 8, (parent, parent_of_many)  # the user's own array
assert many < 45, many
"""


@pytest.mark.limits
def test_an_array_that_a_function_refers_to_is_there_once_for_all_workers(fresh_python: Run) -> None:
    done = fresh_python(CAPTURES)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_function_may_return_the_same_buffer_each_time() -> None:
    class Buffered:
        def __init__(self) -> None:
            self.buffer = np.zeros(3)

        def __call__(self, x: Any) -> Any:
            self.buffer[:] = x
            return self.buffer

    with ps.range(40).map(Buffered()).batch(4).loader(executor="processes", workers=2) as loader:
        batches = [batch.copy() for batch in loader]
    assert np.concatenate(batches).tolist() == [[float(i)] * 3 for i in range(40)]


@pytest.mark.keras
@pytest.mark.faults
def test_fit_goes_on_when_a_worker_is_killed() -> None:
    import keras

    class Killer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            for process in child_processes() if batch in (2, 9) else ():
                os.kill(process, signal.SIGKILL)

    x = np.arange(128, dtype=np.float32).reshape(64, 2)
    dataset = ps.from_arrays((x, x[:, :1])).shuffle(1).map(lambda pair: (pair[0] + 1, pair[1])).batch(4)
    adapter, model, before = dataset.to_keras(workers=2), recording_model(), child_processes()
    model.fit(adapter, epochs=2, verbose=0, callbacks=[Killer()])
    assert "was killed by signal 9" in adapter.loader.report().note
    adapter.loader.close()
    assert child_processes() <= before
    assert_same(arrays(model.trained), delivered(dataset, 2))
