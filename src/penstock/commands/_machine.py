"""What this machine gives to a process: CPUs, memory, descriptors, the kernel's interfaces, and installed packages.

Read from `/proc` and `/sys/fs/cgroup`; where there is none of them, what is not known is None. No package is imported
to learn its version.
"""

import contextlib
import importlib.metadata
import os
import platform
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from penstock.report._cgroups import PROC, control_groups, group_page_cache_nbytes
from penstock.run._cpus import affinity_count, cpu_quota, usable_cpu_count
from penstock.run._executor_spec import HAS_PROCESSES
from penstock.sources import _aio

_NO_LIMIT_NBYTES: Final = 1 << 60
"""What version 1 of cgroups says where there is no limit is above this."""
_MEMORY_FILES: Final = {
    2: ("memory.max", "memory.current"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""Limit and use, by the version of control groups."""

# What a user may have, by the names of the distributions that bring it, and the extra of ours that installs it.
FRAMEWORKS: Final = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    "torch": ("torch",),
    "jax": ("jax",),
    "keras": ("keras",),
}
LIBRARIES: Final = {
    "h5py": (("h5py",), "hdf5"),
    "zarr": (("zarr",), "zarr"),
    "pyarrow": (("pyarrow",), "parquet"),
    "google-crc32c": (("google-crc32c",), "tfrecord"),
    "datasets": (("datasets",), "huggingface"),
    "fsspec": (("fsspec",), "remote"),
    "opencv": (("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless"), "image"),
    "simplejpeg": (("simplejpeg",), "image"),
    "matplotlib": (("matplotlib",), "show"),
}


@final
@dataclass(frozen=True)
class Machine:
    """What this process is given. Sizes in bytes; None is what nobody says, or no limit."""

    python: str
    system: str
    machine_cpus: int
    """CPUs that the machine has."""
    affinity_cpus: int | None
    """CPUs that this process may run on."""
    quota_cpus: float | None
    """CPUs' worth of time that its container may take."""
    cpus: int
    """What `workers="auto"` takes: the least of these."""
    memory_nbytes: int | None
    available_nbytes: int | None
    """What the kernel could give without swapping."""
    container_nbytes: int | None
    """The least limit of the containers (cgroups) around this process."""
    container_left_nbytes: int | None
    """What their processes do not use yet; the page cache gives way, and does not count."""
    address_nbytes: int | None
    """The limit on a process's addresses, `ulimit -v`."""
    shm_nbytes: int | None
    open_files: int | None
    """How many a process may have open, `ulimit -n`."""
    most_open_files: int | None
    """To which it may raise that itself."""
    io_submit: str
    """`"available"`, or why not."""
    executors: tuple[str, ...]
    frameworks: dict[str, str]
    """Those that are installed, with their versions."""
    libraries: dict[str, str]
    """The same of optional libraries."""

    @property
    def left_nbytes(self) -> int | None:
        """What a process can still get: the least of what bounds it."""
        bounds = (self.available_nbytes, self.container_left_nbytes, self.address_nbytes)
        return min((bound for bound in bounds if bound is not None), default=None)


def look() -> Machine:
    """Looks at this machine; takes some tens of milliseconds, which closing an AIO context takes."""
    bounds = list(_cgroups())
    open_files, most_open_files = _limit(resource.RLIMIT_NOFILE)
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        machine_cpus=os.cpu_count() or 1,
        affinity_cpus=affinity_count(),
        quota_cpus=cpu_quota(),
        cpus=usable_cpu_count(),
        memory_nbytes=_meminfo("MemTotal"),
        available_nbytes=_meminfo("MemAvailable"),
        container_nbytes=min((limit for limit, _ in bounds), default=None),
        container_left_nbytes=min((max(0, limit - used) for limit, used in bounds), default=None),
        address_nbytes=_limit(resource.RLIMIT_AS)[0],
        shm_nbytes=_shm_nbytes(),
        open_files=open_files,
        most_open_files=most_open_files,
        io_submit=_io_submit(),
        executors=("inline", "threads", *(["processes"] if HAS_PROCESSES else [])),
        frameworks=dict(_versions(FRAMEWORKS)),
        libraries=dict(_versions({name: found for name, (found, _) in LIBRARIES.items()})),
    )


def _meminfo(name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / "meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroups() -> Iterator[tuple[int, int]]:
    """Yields limit and use of each control group around this process that has a limit on memory."""
    for version, folder in control_groups("memory"):
        limit_name, use_name = _MEMORY_FILES[version]
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_name).read_text())  # "max" is no number
            if limit < _NO_LIMIT_NBYTES:
                yield limit, int((folder / use_name).read_text()) - group_page_cache_nbytes(version, folder)


def _limit(which: int) -> tuple[int | None, int | None]:
    """The limit, and that to which it may be raised."""
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(which))
    return soft, hard


def _shm_nbytes() -> int | None:
    with contextlib.suppress(OSError):
        if os.path.ismount("/dev/shm"):
            found = os.statvfs("/dev/shm")
            return found.f_blocks * found.f_frsize
    return None


def _io_submit() -> str:
    if not _aio.SUPPORTED:
        return f"not on {sys.platform}, {platform.machine()}"
    try:
        _aio.ReadQueue().close()
    except OSError as error:
        return f"refused ({error.strerror})"
    return "available"


def _versions(candidates: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Yields what is installed, with its version."""
    for name, distributions in candidates.items():
        for each in distributions:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                yield name, importlib.metadata.version(each)
                break
