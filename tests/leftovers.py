"""What a test may leave behind outside of its process: processes, and shared memory that has a name."""

import contextlib
import os
from pathlib import Path


def children() -> set[int]:
    """Processes that this one has started and not yet waited for; empty where there is no `/proc`."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # waits for nobody, and leaves those that ended
    except (AttributeError, ChildProcessError):  # no such call, and no `/proc` either; or nobody is there
        return set()  # at once, for to look through `/proc` takes milliseconds
    return {process for process, parent in _parents().items() if parent == os.getpid()}


def shared_names() -> set[str]:
    """Names of shared memory that has one; empty where there is no `/dev/shm`."""
    return {path.name for path in Path("/dev/shm").glob("*")}


def not_of_others(names: set[str]) -> set[str]:
    """Those names that no process has mapped which neither is this one nor descends from it.

    Such as another worker of pytest's: a semaphore of `multiprocessing` has a name as long as it lives.
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
                lines = Path(f"/proc/{process}/maps").read_text().splitlines()
                held.update(int(line.split()[4]) for line in lines if " /dev/shm/" in line)
    # By inode: a semaphore is mapped under the name that it had while it was made.
    shared = {entry.name: entry.inode() for entry in os.scandir("/dev/shm")}
    return {name for name in names if shared.get(name) not in {None, *held}}


def _parents() -> dict[int, int]:
    """The parent of each process; empty where there is no `/proc`."""
    found, proc = {}, Path("/proc")
    for process in filter(str.isdecimal, os.listdir(proc) if proc.exists() else []):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found[int(process)] = int((proc / process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return found
