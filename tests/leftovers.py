"""Finds processes and named shared memory that a test left behind."""

import contextlib
import os
from pathlib import Path


def children() -> set[int]:
    """Returns child processes that were not waited for yet; empty without `/proc`."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # returns at once, and reaps no process
    except (AttributeError, ChildProcessError):  # no such call, and no `/proc` either; or no child
        return set()  # at once, for to look through `/proc` takes milliseconds
    return {process for process, parent in _parents().items() if parent == os.getpid()}


def worker_processes() -> set[int]:
    """Returns the living worker processes: others may be there, such as the resource tracker of `multiprocessing`."""
    found = set()
    for process in children():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"penstock worker" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.add(process)
    return found


def shared_names() -> set[str]:
    """Returns the names of named shared memory, which are no folders; empty without `/dev/shm`."""
    return {path.name for path in Path("/dev/shm").glob("*") if not path.is_dir()}


def not_of_others(names: set[str]) -> set[str]:
    """Returns the names that no foreign process holds: neither this process nor its descendants are foreign.

    Foreign is, for example, another pytest worker: a semaphore of `multiprocessing` has a name while it lives. It is
    open before it is mapped, and after that it may be closed.
    """
    if not names:
        return set()
    parents, held = _parents(), set()
    for process in parents:
        ancestor = process
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        if ancestor == 0:
            with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
                for descriptor in Path(f"/proc/{process}/fd").iterdir():
                    with contextlib.suppress(OSError):  # it is closed meanwhile
                        if os.readlink(descriptor).startswith("/dev/shm/"):
                            held.add(descriptor.stat().st_ino)
                lines = Path(f"/proc/{process}/maps").read_text().splitlines()
                held.update(int(line.split()[4]) for line in lines if " /dev/shm/" in line)
    # By inode: a semaphore is mapped under the name that it had while it was made.
    shared = {entry.name: entry.inode() for entry in os.scandir("/dev/shm")}
    return {name for name in names if shared.get(name) not in {None, *held}}


def _parents() -> dict[int, int]:
    """Returns the parent of each process; empty without `/proc`."""
    found, proc = {}, Path("/proc")
    for process in filter(str.isdecimal, os.listdir(proc) if proc.exists() else []):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found[int(process)] = int((proc / process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return found
