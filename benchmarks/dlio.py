"""Does an accelerator wait for its data, as DLIO, the benchmark of storage in MLPerf, defines it?

Question: DLIO's workloads `unet3d_a100` (an `.npz` without compression a sample, of normally distributed sizes) and
`resnet50_a100` (TFRecords of 1,251 images of 115 kB) at a fiftieth of their size, in the page cache, on two cores. DLIO
sleeps for the time that the accelerator computes. Its utilization is that time over the time of the epoch.

Method: `python benchmarks/dlio.py`; pip install --no-deps dlio_benchmark mpi4py omegaconf hydra-core
antlr4-python3-runtime==4.9.3; pip install psutil pandas; and an MPI library. Each case is a run of DLIO in a process of
its own, in turn. `unet3d` has files of 2.9 MB and computes for 12.7 ms a batch of 7, which are 1/50 each; `resnet50`
has 21 files in place of 1,024, and 435 ms for a batch of 400. Five epochs; of each of them DLIO gives a utilization,
and here is the median. The first contains the start of workers.

Contenders: `*_dlio` are DLIO's own loaders, PyTorch's DataLoader and tf.data, with as many processes or threads as
there are cores; `*_penstock` is `_dlio_loader.py`, named by `reader.data_loader_classname`. Its tracer is replaced by
one that does nothing, since it does not install everywhere.

Machine: two cores of an AMD EPYC, Linux 6.18, Python 3.11.7, NumPy 2.4.6, DLIO 2.0, 2026-11-26, quiet, two rounds:
`unet3d` 94.6 % (94.4 to 94.8) by penstock and 91.0 % (90.4 to 91.6) by DLIO's own; in the first epoch 94.2 and 77.9.
Wanted: 95. A batch of 20 MB every 12.7 ms is 1.6 GB/s, which `np.load` reads and checks (CRC-32). `resnet50`, on
2026-11-27, quiet, one round, two epochs: 99.7 % by penstock, 99.5 % by DLIO's own.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _harness import Numbers, Options, Target, bench_dir, run, value

_TRACER = """
DFTRACER_ENABLE = False
class dft_fn:
    def __init__(self, *args, **kwargs): pass
    def log(self, function): return function
    log_init = log_static = log
    def iter(self, iterator, *args, **kwargs): return iterator
    def update(self, *args, **kwargs): pass
    flush = reset = update
    def __enter__(self): return self
    def __exit__(self, *args): pass
class dftracer:
    @classmethod
    def initialize_log(cls, *args, **kwargs): return cls()
    def finalize(self): pass
"""
_WORKLOADS = {
    "unet3d": {
        "dataset.record_length": 2_932_012,
        "dataset.record_length_stdev": 1_366_836,
        "dataset.record_length_resize": 41_943,
        "train.computation_time": 0.0127,
        "reader.read_threads": 2,
    },
    "resnet50": {
        "dataset.num_files_train": 21,
        "train.computation_time": 0.435,
        "reader.read_threads": 2,
        "reader.computation_threads": 2,
    },
}
_WANTED = 95.0


def _dlio(workload: str, folder: Path, settings: dict[str, object]) -> Path:
    """Runs DLIO, and returns the folder of its results."""
    tracer, results = folder / "tracer" / "dftracer", folder / "results"
    tracer.mkdir(parents=True)
    tracer.joinpath("__init__.py").touch()
    tracer.joinpath("logger.py").write_text(_TRACER)
    index = folder / "bin" / "tfrecord2idx"  # of DALI, which alone reads what it writes
    index.parent.mkdir()
    index.write_text("#!/bin/sh\n")
    index.chmod(0o755)
    settings = {**_WORKLOADS[workload], **settings, "dataset.data_folder": bench_dir() / f"dlio-{workload}"}
    settings |= {"workflow.checkpoint": False, "output.folder": results}
    paths = [str(tracer.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    allowed["PATH"] = os.pathsep.join([str(index.parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "dlio_benchmark.main", f"workload={workload}_a100", f"hydra.run.dir={results}"]
    subprocess.run(
        [*command, *(f"++workload.{name}={setting}" for name, setting in settings.items())],
        cwd=folder,
        env=os.environ | allowed | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return results


def _case(workload: str, settings: dict[str, object]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        with tempfile.TemporaryDirectory() as scratch:
            if not (bench_dir() / f"dlio-{workload}" / "train").exists():
                _dlio(workload, Path(scratch, "data"), {"workflow.generate_data": True, "workflow.train": False})
            epochs = {"train.epochs": 2 if options.quick else 5}
            results = _dlio(workload, Path(scratch, "run"), {**epochs, **settings})
            metric = json.loads(results.joinpath("summary.json").read_text())["metric"]
        parts = metric["train_au_percentage"]
        return {"utilization %": float(np.median(parts)), "first epoch %": parts[0], "least %": min(parts)}

    return measure


_OURS = {"reader.data_loader_classname": "_dlio_loader.PenstockLoader", "reader.data_loader_sampler": "iterative"}
_CASES = {}
for _name in _WORKLOADS:
    _CASES |= {f"{_name}_dlio": _case(_name, {}), f"{_name}_penstock": _case(_name, _OURS)}


def _targets(options: Options) -> list[Target]:
    return [
        Target(f"{name}: utilization", value(f"{name}_penstock", "utilization %"), at_least=_WANTED)
        for name in _WORKLOADS
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3, case_timeout_s=300)
