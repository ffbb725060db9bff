"""Starts the ranks of a run, each a fresh process, with the variables that torchrun sets."""

import os
import re
import signal
import socket
import subprocess
import sys
from typing import Any, NamedTuple

from tests.conftest import WARNINGS


class Ended(NamedTuple):
    """A rank that has ended."""

    status: int
    out: str
    err: str


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def run_ranks(
    script: str, count: int, *arguments: Any, env: dict[str, str] | None = None, timeout_s: float = 120
) -> list[Ended]:
    """Runs a script in several ranks, and returns how each ended, with what it printed.

    Args:
        script: The text of the script.
        count: The number of ranks.
        arguments: What the script finds in `sys.argv[1:]`.
        env: More variables.
        timeout_s: If a rank runs longer, all are aborted with their stacks, and the test fails.
    """
    port = free_port()
    processes = []
    try:
        for rank in range(count):
            ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
            variables = {name: str(value) for name, value in ours.items()}
            processes.append(
                subprocess.Popen(
                    [sys.executable, *WARNINGS, "-X", "faulthandler", "-c", script, *map(str, arguments)],
                    env=os.environ
                    | variables
                    | {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
                    | (env or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        found = [process.communicate(timeout=timeout_s) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.send_signal(signal.SIGABRT)
        texts = [process.communicate()[1] for process in processes]
        raise AssertionError(f"Ranks still ran after {timeout_s} s.\n" + "\n".join(texts)) from None
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return [
        # Gloo greets on the standard output.
        Ended(process.returncode, re.sub(r"(?m)^\[Gloo\].*\n", "", out), err)
        for process, (out, err) in zip(processes, found, strict=True)
    ]


def require_success(ranks: list[Ended]) -> list[str]:
    """What each rank printed; all of them ended well."""
    assert not any(rank.status for rank in ranks), "\n".join(rank.err[-3000:] for rank in ranks if rank.status)
    return [rank.out for rank in ranks]
