"""`penstock doctor`: describes this machine as a loader sees it, with advice."""

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, final

import penstock
from penstock.base._arguments import install
from penstock.base._units import size_text
from penstock.report._cgroups import group_free_nbytes, machine_nbytes
from penstock.run._choose import HAS_PROCESSES
from penstock.run._cpus import usable_cpu_count

WORKER_NBYTES: Final = 45 << 20
"""The memory of a worker process besides the batches, see `docs/explanation/memory.md`."""
FEW_OPEN_FILES: Final = 512
FRAMEWORKS: Final = ("tensorflow", "tensorflow-cpu", "torch", "jax", "keras")
LIBRARIES: Final = (
    *("array_record", "av", "datasets", "fsspec", "google-crc32c", "h5py", "matplotlib", "nibabel", "obstore"),
    *("opencv-python-headless", "pillow", "protobuf", "pyarrow", "pylance", "simplejpeg", "soundfile", "soxr"),
    *("xarray", "zarr"),
)
"""Optional libraries, by their names on PyPI."""
_WIDTH: Final = 96


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    summary = "describe this machine, with advice for a loader"
    parser = commands.add_parser("doctor", help=summary, description=f"{summary.capitalize()}.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns 0 if loaders work here, else 1."""
    found = examine()
    if options.json:
        about = {"penstock": penstock.__version__, **asdict(found), "problems": found.problems}
        print(json.dumps(about | {"advice": list(found.advice())}, indent=2))
    else:
        print(f"penstock {penstock.__version__} on this machine\n")
        for title, text in found.facts():
            _print(f"  {title:<12}{text}", " " * 14)
        for title, texts in (("Problems", found.problems), ("Advice", list(found.advice()))):
            if texts:
                print(f"\n{title}")
            for text in texts:
                _print(f"  - {text}", "    ")
    return 1 if found.problems else 0


@final
@dataclass(frozen=True)
class MachineFacts:
    """The resources of this process."""

    cpus: int
    """The CPUs that it may use, by affinity and the container's quota."""
    machine_cpus: int
    memory_nbytes: dict[str, int]
    """The bounds of the memory that it can still get, by their names."""
    open_files: int | None
    """The limit of open files, `ulimit -n`. None is no limit."""
    has_processes: bool
    worker_s: float | None
    """The time from the start of a worker process to its first batch."""
    worker_problem: str
    """The reason why no worker process starts."""
    packages: dict[str, str]
    """The versions of installed frameworks and optional libraries."""

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yields titles and texts."""
        yield "Python", f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}"
        yield "CPUs", f"{self.cpus} of {self.machine_cpus}"
        yield "Memory", ", ".join(f"{size_text(size)} {name}" for name, size in self.memory_nbytes.items()) or "unknown"
        yield "Open files", "no limit" if self.open_files is None else f"{self.open_files:,} a process"
        if self.worker_s is not None:
            yield "Worker", f"a process gives its first batch after {self.worker_s * 1e3:.0f} ms"
        yield "Installed", ", ".join(map(" ".join, self.packages.items())) or "no framework and no optional library"
        yield "Missing", ", ".join(name for name in LIBRARIES if name not in self.packages) or "no optional library"

    @property
    def problems(self) -> list[str]:
        """The reasons why loaders do not work."""
        if not self.worker_problem:
            return []
        cure = 'Python functions can run on threads only: executor="threads".'
        return [f"No worker process starts: {self.worker_problem} {cure}"]

    def advice(self) -> Iterator[str]:
        """Yields advice for the options of a loader."""
        yield f'workers="auto" takes {self.cpus}.'
        if self.has_processes:
            total = size_text(self.cpus * WORKER_NBYTES)
            yield f"Worker processes take {size_text(WORKER_NBYTES)} each besides the batches, {total} for {self.cpus}."
        else:
            yield "Worker processes need Linux. Here Python functions run on threads, which share the GIL."
        if self.memory_nbytes:
            quarter = min(self.memory_nbytes.values()) // 4
            limit = f"{quarter >> 30} * 2**30" if quarter >> 30 else f"{max(64, quarter >> 20)} * 2**20"
            yield f"memory_limit={limit} keeps a loader to a quarter of the memory that is left."
        if self.open_files is not None and self.open_files < FEW_OPEN_FILES:
            yield (
                f"{self.open_files} open files are few. Each process keeps up to 128 files of data open, and "
                "frameworks need some. Raise it: ulimit -n 1024."
            )
        if not any(name in self.packages for name in FRAMEWORKS):
            yield f"Loaders give NumPy arrays. For fit(), install a framework: {install('keras', 'tensorflow')}."


def examine() -> MachineFacts:
    """Examines this machine, and starts a worker process."""
    worker_s, worker_problem = _start_a_worker() if HAS_PROCESSES else (None, "")
    soft_limits = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE))
    addresses, open_files = (None if limit == resource.RLIM_INFINITY else limit for limit in soft_limits)
    bounds = {
        "available": machine_nbytes("MemAvailable"),
        "left in the container": group_free_nbytes(),
        "by ulimit -v": addresses,
    }
    versions = {}
    for name in (*FRAMEWORKS, *LIBRARIES):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return MachineFacts(
        cpus=usable_cpu_count(),
        machine_cpus=os.cpu_count() or 1,
        memory_nbytes={name: bound for name, bound in bounds.items() if bound is not None},
        open_files=open_files,
        has_processes=HAS_PROCESSES,
        worker_s=worker_s,
        worker_problem=worker_problem,
        packages=versions,
    )


def _start_a_worker() -> tuple[float | None, str]:
    started_s = time.perf_counter()
    try:
        with penstock.range(1).batch(1).loader("processes", workers=1, timeout_s=60) as loader:
            next(iter(loader))
            return time.perf_counter() - started_s, ""
    except (penstock.PenstockError, OSError) as error:
        return None, str(error)


def _print(text: str, indent: str) -> None:
    print(textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False))
