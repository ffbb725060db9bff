"""Memory of a table of plans, each in a process of its own, stays within the projection and the limit.

    peak <= projected + overhead <= limit        (on threads: projected <= limit)

`projected` is `loader.projected_nbytes`. The overhead measured here is

- in this process up to 8 MiB: code that runs for the first time, threads, the current elements of generators;
- up to 45 MiB for each worker process: an interpreter, NumPy, this package, OpenCV if images are decoded;
- for each worker the temporary memory of the user's function or of the image decoder, as given in the table.

The C library keeps freed memory, about twice the largest array for each thread, without any guarantee. So an
environment variable makes it return arrays at once; otherwise a batch too many could hide in 8 MiB. Without that
variable, all must stay within the 48 MiB that this process may take (`PARENT_NBYTES`).
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.base._units import size_text
from penstock.memory._budget import MIB, PARENT_NBYTES, WORKER_NBYTES
from tests.conftest import WARNINGS
from tests.image.pictures import write
from tests.limits import memory_plans
from tests.limits.memory_plans import FRAME, FRAME_COUNT, PLANS, WORKER_COUNT

pytestmark = pytest.mark.slow

OVERHEAD_NBYTES = 8 * MIB
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "50000"}
"""Freed frames of 60 kB return to the system at once; another test leaves them to the C library."""
INLINE = ("shuffled frames", "shard of mapped batches", "padded_batch", "generator and map")
"""Plans with a smaller projection on the inline executor; for the others the formula is the same."""
PROCESSES = (
    "shuffled frames",
    "map of elements",
    "unbatch and batch",
    "random_map, replacing",
    "cache in memory",
    "cache on disk",
    "padded_batch of a stream",
    "generator",
    "generator and a window",
    "images",
    "a row group",
    "row groups",
    "a large array",
)
"""Plans with another projection on worker processes, or with other parts of one."""
ROWS = [(name, "threads") for name in PLANS] + [(name, "processes") for name in PROCESSES]
ROWS += [(name, "inline") for name in INLINE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory")
    np.save(
        path / "frames.npy", np.broadcast_to(np.arange(float(FRAME_COUNT))[:, None, None, None], (FRAME_COUNT, *FRAME))
    )
    lengths = np.random.default_rng(0).integers(2, 21, 320_000)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.random.default_rng(1).integers(0, 1 << 60, ends[-1])
    table = pa.table({"x": np.arange(320_000.0), "l": pa.ListArray.from_arrays(ends, values)})
    for name, count in (("one", 320_000), ("many", 40_000)):
        pq.write_table(table, path / f"{name}.parquet", row_group_size=count)
    y, x = np.mgrid[:750, :1000]
    for number in range(160):
        file = path / "pictures" / str(number % 2) / f"{number}.jpg"
        if number < 2:
            write(file, np.stack([x // 4, y // 3, (x + y) // 8], -1).astype(np.uint8))
        else:
            file.hardlink_to(path / "pictures" / str(number % 2) / f"{number % 2}.jpg")
    return path


Measure = Callable[[str, str, dict[str, str]], dict[str, Any]]


@pytest.fixture(scope="module")
def measure(folder: Path) -> Iterator[Measure]:
    """Runs a plan in a process of its own, forked from one that has imported penstock under these variables."""
    with contextlib.ExitStack() as at_end:

        @functools.cache
        def started(variables: tuple[tuple[str, str], ...]) -> tuple["subprocess.Popen[str]", TextIO]:
            errors = at_end.enter_context(tempfile.TemporaryFile("w+"))
            options = [*WARNINGS, "-W", "ignore:This process:DeprecationWarning", "-X", "faulthandler"]  # about fork()
            command = [sys.executable, *options, memory_plans.__file__, str(folder)]
            env = os.environ | dict(variables)
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=errors, text=True)
            at_end.callback(process.communicate)
            return process, errors

        def measure(name: str, executor: str, variables: dict[str, str]) -> dict[str, Any]:
            process, errors = started(tuple(variables.items()))
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([name, executor]) + "\n")
            process.stdin.flush()
            result: dict[str, Any] = {}
            while "status" not in result:
                line = process.stdout.readline()
                result |= json.loads(line) if line else {"status": "ended"}
            errors.seek(0)
            assert result["status"] == 0, (result, errors.read()[-3000:])
            return result

        yield measure


@pytest.mark.parametrize(("name", "executor"), ROWS)
def test_no_more_is_taken_than_was_said(measure: Measure, name: str, executor: str) -> None:
    plan, result = PLANS[name], measure(name, executor, GIVE_BACK)
    process_count = plan.process_count if executor == "processes" else 0
    own = plan.own_mib * MIB * (1 if executor == "inline" else WORKER_COUNT)
    bound = result["projected"] + own + OVERHEAD_NBYTES + process_count * WORKER_NBYTES
    assert result["peak"] <= bound, result
    assert result["reported"] <= bound, result  # what the loader itself saw, at moments of its own
    assert result["copied"] == 0, "or there would be batches that are the program's own"

    assert result["overhead"] == (PARENT_NBYTES + process_count * WORKER_NBYTES if process_count else 0)
    assert result["projected"] + result["overhead"] <= result["limit"]
    if executor == "processes":
        assert result["peak"] <= result["limit"]
    if executor != "inline":
        assert result["projected"] >= 0.9 * (result["limit"] - result["overhead"]), "so tight was the limit"

    # And below what is projected it is refused, with the largest item and what would help.
    if plan.gives_way:
        assert result["refusal"].startswith("Projected memory is "), result
    else:
        assert result["refusal"].startswith(f"Projected memory is {size_text(result['projected'])}"), result
    if process_count:
        assert f"{size_text(result['overhead'])} of it is what {process_count} worker process" in result["refusal"], (
            result
        )
        assert "se executor='threads'" in result["refusal"], result
    elif executor == "threads":  # inline, another item may be the largest
        assert plan.largest in result["refusal"], result
        assert plan.cure in result["refusal"], result


@pytest.mark.parametrize("name", ["map of elements", "map of batches", "unbatch and batch"])
def test_with_what_the_c_library_keeps_it_is_within_the_allowance(measure: Measure, name: str) -> None:
    result = measure(name, "threads", {})
    assert result["peak"] <= result["projected"] + PLANS[name].own_mib * MIB * WORKER_COUNT + PARENT_NBYTES, result
