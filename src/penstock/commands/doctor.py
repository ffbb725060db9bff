"""`penstock doctor`: this machine as a loader sees it, and what follows."""

import argparse
import json
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import penstock
from penstock.commands import _disk
from penstock.commands._disk import DiskSpeed
from penstock.commands._machine import LIBRARIES, Machine, look
from penstock.memory._budget import mib

WORKER_NBYTES: Final = 45 << 20
"""What a worker process takes beside the batches, see `docs/explanation/memory.md`."""
LEAST_LEFT_NBYTES: Final = 256 << 20
LEAST_OPEN_FILES: Final = 64
FEW_OPEN_FILES: Final = 512

_WIDTH: Final = 96
_INDENT: Final = 14

_DESCRIPTION = """\
Says what this machine gives to a loader: CPUs, memory, the disk's speed, what is installed, and what follows from it.
To measure the disk, a file of up to 256 MiB is written to a folder for two seconds, and removed.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = commands.add_parser(
        "doctor", help="look at this machine, and say what follows for a loader", description=_DESCRIPTION
    )
    parser.add_argument("--path", default=".", metavar="FOLDER", help="where data lie (default: the current folder)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; 0 if loaders work here, else 1.

    Raises:
        ArgumentError: There is no such folder.
    """
    path = Path(options.path)
    if not path.exists():
        raise penstock.ArgumentError(f"--path {path}: there is no such folder. Give the one that your data lie in.")
    found = examine(path if path.is_dir() else path.parent)
    print(json.dumps(found.as_json(), indent=2) if options.json else found)
    return 1 if found.problems else 0


@final
@dataclass(frozen=True)
class Findings:
    """What was found out."""

    machine: Machine
    worker_s: float | None
    """How long a worker process takes to start and to fill a batch; None where there are none."""
    worker_problem: str
    """Why none starts."""
    disk: DiskSpeed | None
    disk_problem: str
    """Why the disk could not be measured."""

    @property
    def problems(self) -> list[str]:
        """What prevents loaders from working."""
        return list(_problems(self))

    @property
    def advice(self) -> list[str]:
        """What follows for a loader."""
        return list(_advice(self))

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs; sizes in bytes, times in seconds."""
        return {
            "penstock": penstock.__version__,
            **asdict(self),
            "problems": self.problems,
            "advice": self.advice,
        }

    def __str__(self) -> str:
        lines = [f"penstock {penstock.__version__} on this machine", ""]
        for title, texts in _facts(self):
            first, rest = f"  {title:<{_INDENT - 2}}", " " * _INDENT
            for number, text in enumerate(texts):
                lines.append(_wrapped(text, rest if number else first, rest))
        for title, texts in (("What prevents loaders", self.problems), ("What follows for a loader", self.advice)):
            if texts:
                lines += ["", title, *(_wrapped(text, "  - ", "    ") for text in texts)]
        return "\n".join(lines)


def examine(folder: Path) -> Findings:
    """Finds out what there is, in about three seconds."""
    machine = look()
    worker_s, worker_problem = _start_a_worker() if "processes" in machine.executors else (None, "")
    disk, disk_problem = None, ""
    try:
        disk = _disk.measure(folder.resolve())
    except OSError as error:
        disk_problem = f"{folder.resolve()} was not measured: {error.strerror or error}"
    return Findings(machine, worker_s, worker_problem, disk, disk_problem)


def _start_a_worker() -> tuple[float | None, str]:
    started_s = time.perf_counter()
    try:
        with penstock.range(1).batch(1).loader("processes", workers=1, timeout_s=60) as loader:
            next(iter(loader))
            return time.perf_counter() - started_s, ""
    except (penstock.PenstockError, OSError) as error:
        return None, str(error)


def _facts(found: Findings) -> Iterator[tuple[str, list[str]]]:
    machine = found.machine
    yield "Python", [f"{machine.python} on {machine.system}"]
    yield "CPUs", [_cpus(machine)]
    yield "Memory", list(_memory(machine))
    yield "/dev/shm", ["there is none" if machine.shm_nbytes is None else mib(machine.shm_nbytes)]
    yield "Open files", [_open_files(machine)]
    yield "io_submit", [machine.io_submit]
    yield "Executors", [", ".join(machine.executors)]
    if found.worker_s is not None:
        yield "Worker", [f"a process gives its first batch after {found.worker_s * 1e3:.0f} ms"]
    yield "Disk", list(_speeds(found.disk)) if found.disk else [found.disk_problem]
    yield "Frameworks", [_list(machine.frameworks) or "none is installed"]
    missing = [name for name in LIBRARIES if name not in machine.libraries]
    yield "Libraries", [_list(machine.libraries) or "none of the optional ones is installed"]
    if missing and machine.libraries:
        yield "", [f"not installed: {', '.join(f'{name} ({LIBRARIES[name][1]})' for name in missing)}"]


def _cpus(machine: Machine) -> str:
    bounds = []
    if machine.affinity_cpus is not None and machine.affinity_cpus != machine.machine_cpus:
        bounds.append(f"{machine.affinity_cpus} by affinity")
    if machine.quota_cpus is not None:
        bounds.append(f"{machine.quota_cpus:g} by the container's quota")
    why = f" ({', '.join(bounds)})" if bounds else ""
    return f"{machine.cpus} of {machine.machine_cpus}{why}"


def _memory(machine: Machine) -> Iterator[str]:
    if machine.memory_nbytes is not None and machine.available_nbytes is not None:
        yield f"{mib(machine.available_nbytes)} available of {mib(machine.memory_nbytes)}"
    if machine.container_nbytes is not None and machine.container_left_nbytes is not None:
        yield f"container: {mib(machine.container_left_nbytes)} left of {mib(machine.container_nbytes)}"
    if machine.address_nbytes is not None:
        yield f"ulimit -v: {mib(machine.address_nbytes)} of addresses"
    if machine.left_nbytes is None:
        yield "nobody says"


def _open_files(machine: Machine) -> str:
    if machine.open_files is None:
        return "any number"
    most = machine.most_open_files
    if most is not None and most <= machine.open_files:
        return f"{machine.open_files:,} a process"
    return f"{machine.open_files:,} a process, up to {'any number' if most is None else f'{most:,}'} with ulimit -n"


def _speeds(disk: DiskSpeed) -> Iterator[str]:
    block = f"{_disk.BLOCK_NBYTES >> 10} KiB at random"
    yield disk.folder if not disk.file_system else f"{disk.folder} ({disk.file_system})"
    yield f"{block}, one by one: {_rate(disk.random_per_s)}"
    yield f"{block}, {_disk.DEPTH} at once: {_rate(disk.random_at_once_per_s)}"
    yield f"in order: {mib(int(disk.in_order_per_s))}/s"
    yield f"{mib(disk.file_nbytes)} were written for it, and removed"
    if disk.is_cached:
        yield "they could not be dropped from memory: this is its speed"


def _rate(per_s: float) -> str:
    return f"{mib(int(per_s))}/s, {per_s / _disk.BLOCK_NBYTES:,.0f} reads/s"


def _list(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _problems(found: Findings) -> Iterator[str]:
    machine = found.machine
    if found.worker_problem:
        yield (
            f"No worker process starts: {found.worker_problem} Without them Python functions run on threads alone: "
            'executor="threads".'
        )
    if machine.left_nbytes is not None and machine.left_nbytes < LEAST_LEFT_NBYTES:
        yield (
            f"{mib(machine.left_nbytes)} of memory are left, and a loader with one worker process takes 93 MiB beside "
            "its batches. End something, or raise the limit."
        )
    if machine.open_files is not None and machine.open_files < LEAST_OPEN_FILES:
        yield f"A process may open {machine.open_files} files, which is too few. Raise it: ulimit -n 1024."


def _advice(found: Findings) -> Iterator[str]:
    machine = found.machine
    yield f'workers="auto" takes {machine.cpus}.'
    if "processes" in machine.executors:
        yield (
            f"{machine.cpus} worker process{'es' if machine.cpus > 1 else ''} take{'' if machine.cpus > 1 else 's'} "
            f"{mib(machine.cpus * WORKER_NBYTES)} beside the batches, {mib(WORKER_NBYTES)} each; threads take nothing."
        )
    else:
        yield "Worker processes run on Linux so far; here Python functions run on threads, and hold each other up."
    if machine.left_nbytes is not None:
        gib = machine.left_nbytes >> 32
        limit = f"{gib} * 2**30" if gib else f"{max(64, machine.left_nbytes >> 22)} * 2**20"
        yield (
            f"memory_limit={limit} keeps a loader to a quarter of the memory that is left; the rest is for the model, "
            "and for the page cache."
        )
    if machine.shm_nbytes is not None and machine.shm_nbytes < 1 << 30:
        yield f"{mib(machine.shm_nbytes)} of /dev/shm are no problem: penstock does not use it. torch's own workers do."
    if machine.open_files is not None and LEAST_OPEN_FILES <= machine.open_files < FEW_OPEN_FILES:
        yield (
            f"{machine.open_files} open files are few: each process keeps up to 128 files of data open, and frameworks "
            "need some. Raise it: ulimit -n 1024."
        )
    if machine.io_submit != "available":
        yield "Without io_submit, rows of .npy files are read one call each: up to a third fewer small rows a second."
    if found.disk is not None:
        yield from _about(found.disk)
    if not machine.frameworks:
        yield "Loaders give NumPy arrays; for fit(), install a framework: pip install 'penstock[keras,tensorflow]'."


def _about(disk: DiskSpeed) -> Iterator[str]:
    if disk.is_cached:
        yield "What the disk reads is not known, for its files stay in memory. Try --path with another folder."
        return
    ratio = disk.in_order_per_s / max(1.0, disk.random_at_once_per_s)
    if ratio < 1.5:
        yield "The disk reads at random about as fast as in order: shuffle globally."
    else:
        yield (
            f"Data that are not in memory are read {ratio:.0f} times as fast in order as in rows of 64 KiB at random. "
            "That is for the first epoch of data that fit into memory, and for every epoch of larger ones. If that is "
            "the limit, shuffle within a window: shuffle(window=...)."
        )
    gain = disk.random_at_once_per_s / max(1.0, disk.random_per_s)
    if gain > 1.5:
        yield f"Several reads at once give {gain:.1f} times the speed of one; loaders announce theirs ahead."


def _wrapped(text: str, first: str, rest: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )
