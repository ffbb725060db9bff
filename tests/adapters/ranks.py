"""What ranks train, and how they are started: each a process of its own, with the variables that torchrun sets."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import WARNINGS
from tests.waits import PROGRAM_S

ROWS, BATCH, EPOCHS, STOP = 120, 24, 2, 7
"""There are five batches in an epoch; the run is saved after the second one of epoch 1."""

# The dataset, the model and the steps are the same everywhere.
DATA = f"""
import json, os, sys
import numpy as np
import penstock as ps

def widened(row, rng):
    return {{"x": row["x"] + 0.1 * rng.normal(size=3), "y": row["y"], "id": row["id"]}}

x = np.random.default_rng(0).normal(size=({ROWS}, 3))
rows = ps.from_arrays({{"x": x, "y": x @ [1.0, -2.0, 3.0], "id": np.arange({ROWS})}})

def batches_of(size):
    return rows.shuffle(seed=5).random_map(widened, seed=6).batch(size)

ds = batches_of({BATCH})
"""

TORCH = """
import torch

def new_model():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1).double()

def train(model, batches, seen, stop):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while batches.state_dict()["epoch"] < 2:
        for batch in batches:
            batch, weights = batch if isinstance(batch, tuple) else (batch, 1.0)
            seen.append(batch["id"].tolist())
            optimizer.zero_grad()
            (weights * (model(batch["x"])[:, 0] - batch["y"]) ** 2).mean().backward()
            optimizer.step()
            if len(seen) == stop:
                return
"""


class Ended(NamedTuple):
    """A rank that has ended."""

    status: int
    out: str
    err: str


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """A port that the system gives to no other process, and that a server with `SO_REUSEADDR` can have meanwhile."""
    with socket.socket() as held:
        held.bind(("", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # before, it might be one that another holds so
        yield held.getsockname()[1]


LAUNCHER = """
import gc, importlib, json, os, runpy, sys

for name in sys.argv[1].split():
    importlib.import_module(name)
gc.freeze()  # what is there now: a rank's collections would copy its pages
for line in sys.stdin:
    folder, script, arguments, variables = json.loads(line)
    processes = []
    for rank in range(int(variables["WORLD_SIZE"])):
        process = os.fork()
        if process == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for descriptor, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
            os.environ |= variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            sys.argv[:] = [script, *arguments]
            runpy.run_path(script, run_name="__main__")
            sys.exit()
        processes.append(process)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]), flush=True)
"""

MODULES = "torch torch._dynamo torch.distributed torch.nn.parallel"
"""What ranks on torch import, in four seconds. A process that has only imported it may fork."""
ALWAYS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Launcher:
    """Starts ranks as copies of itself, once it has imported what they import."""

    def __init__(self, warnings: Sequence[str] = WARNINGS) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *warnings, "-X", "faulthandler", "-c", LAUNCHER, MODULES],
            env=os.environ | ALWAYS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it with its ranks."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def run(
        self, folder: Path, script: Path, words: list[str], variables: dict[str, str], timeout_s: float
    ) -> list[int]:
        """Runs a script in ranks, which write to `folder`. Returns how each ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(folder), str(script), words, variables]).encode() + b"\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            os.killpg(self._process.pid, signal.SIGABRT)  # which faulthandler answers with the stacks
            self._process.communicate()
            texts = [path.read_text() for path in sorted(folder.glob("*.err"))]
            raise AssertionError(f"Ranks still ran after {timeout_s} s.\n" + "\n".join(texts))
        line = self._process.stdout.readline()
        assert line, "the launcher ended"
        statuses: list[int] = json.loads(line)
        return statuses


def run_ranks(
    script: str | Path,
    count: int,
    *arguments: Any,
    env: dict[str, str] | None = None,
    timeout_s: float = PROGRAM_S,
    warnings: Sequence[str] = WARNINGS,
    launcher: Launcher | None = None,
) -> list[Ended]:
    """Runs a script in several ranks, and returns how each ended, with what it printed.

    Ranks that import torch and not JAX, with which none can fork, come from a launcher.

    Args:
        script: The script, as text or as a path.
        count: The number of ranks.
        arguments: What the script finds in `sys.argv[1:]`.
        env: More variables.
        timeout_s: If a rank runs longer, all are aborted with their stacks, and the test fails.
        warnings: What the interpreter is told about them; by default they are errors.
        launcher: One for several runs; by default this one has its own.
    """
    text = script.read_text() if isinstance(script, Path) else script
    words = [str(word) for word in arguments]
    with tempfile.TemporaryDirectory() as name, _reserved_port() as port:
        job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | ALWAYS | (env or {})
        folder = Path(name)
        if not isinstance(script, Path):
            script = folder / "script.py"
            script.write_text(text)
        if "import torch" in text and "import jax" not in text:
            with contextlib.nullcontext(launcher) if launcher else Launcher(warnings) as starts:
                statuses = starts.run(folder, script, words, job, timeout_s)
            ended = [
                (status, (folder / f"{rank}.out").read_text(), (folder / f"{rank}.err").read_text())
                for rank, status in enumerate(statuses)
            ]
        else:
            places = [job | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
            program = [sys.executable, *warnings, "-X", "faulthandler", str(script), *words]
            ended = _run([program] * count, places, timeout_s)
    # Gloo greets on the standard output.
    return [Ended(status, re.sub(r"(?m)^\[Gloo\].*\n", "", out), err) for status, out, err in ended]


def _run(commands: list[list[str]], variables: list[dict[str, str]], timeout_s: float) -> list[tuple[int, str, str]]:
    """Runs commands at the same time. Returns the status and the output of each."""
    processes = []
    try:
        for command, mine in zip(commands, variables, strict=True):
            process = subprocess.Popen(
                command,
                env=os.environ | mine,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            processes.append(process)
        found = [process.communicate(timeout=timeout_s) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            os.killpg(process.pid, signal.SIGABRT)
        texts = [process.communicate()[1] for process in processes]
        raise AssertionError(f"Ranks still ran after {timeout_s} s.\n" + "\n".join(texts)) from None
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return [(process.returncode, *texts) for process, texts in zip(processes, found, strict=True)]


def require_success(ranks: list[Ended]) -> list[str]:
    """What each rank printed; all of them ended well."""
    assert not any(rank.status for rank in ranks), "\n".join(rank.err[-3000:] for rank in ranks if rank.status)
    return [rank.out for rank in ranks]


def one_process(*phases: tuple[int, int]) -> tuple[Any, list[list[int]]]:
    """What one process makes of the same global batches: its parameters, and the rows of each batch.

    Args:
        phases: Sizes of global batches, and after how many of them another size follows; 0 for the end.
    """
    names: dict[str, Any] = {}
    exec(DATA + TORCH, names)
    model, seen, state = names["new_model"](), [], None
    for size, stop in phases or [(BATCH, 0)]:
        with names["batches_of"](size).to_torch(executor="inline") as batches:
            if state is not None:
                batches.load_state_dict(state)
            names["train"](model, batches, seen, stop)
            state = batches.state_dict()
    return [parameter.detach().numpy() for parameter in model.parameters()], seen


def together(outs: list[str]) -> list[list[int]]:
    """The global batches of some ranks."""
    shares = [json.loads(out.splitlines()[0]) for out in outs]
    return [[row for part in parts for row in part] for parts in zip(*shares, strict=True)]
