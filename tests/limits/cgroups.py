"""A limit on a process's memory that the kernel enforces."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")

ENTER = """
import os, resource
if group := os.environ["LIMITED_BY"]:
    with open(group, "w") as procs:
        procs.write(str(os.getpid()))
else:
    resource.setrlimit(resource.RLIMIT_DATA, (int(os.environ["LIMIT_NBYTES"]),) * 2)
"""
"""The first lines of a script: from here on it is limited, all that it allocates and all that it reads."""


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[dict[str, str]]:
    """Makes a memory cgroup, of whichever version the machine lets us; without one, `ENTER` sets RLIMIT_DATA.

    Yields:
        The environment that `ENTER` wants.
    """
    environment = {"LIMITED_BY": "", "LIMIT_NBYTES": str(nbytes)}
    group = _group(nbytes)
    if group is None:
        yield environment
        return
    try:
        yield environment | {"LIMITED_BY": str(group / "cgroup.procs")}
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def _group(nbytes: int) -> Path | None:
    for root, limit in ((V1, "memory.limit_in_bytes"), (V2, "memory.max")):
        group = root / f"penstock-test-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
            (group / limit).write_text(str(nbytes))
            (group / "cgroup.procs").write_text("")  # whether it may be written at all
        except OSError:
            if group.exists():
                with contextlib.suppress(OSError):
                    group.rmdir()
            continue
        return group
    return None


def drop_from_page_cache(path: Path) -> None:
    """Makes the next reader of a file fetch it, on its own account."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
