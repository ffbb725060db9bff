"""Memory of reads from an object store stays within the projection on a fast and distant connection."""

import io
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.base._units import size_text
from penstock.memory._budget import PARENT_NBYTES
from tests.limits.test_memory import measured

pytest.importorskip("obstore")
pytestmark = pytest.mark.slow

SHARD_COUNT, RECORD_COUNT, RECORD_NBYTES = 80, 50, 100_000
SCRIPT = """
import json, sys, time
import obstore
import penstock as ps

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name + ":")).split()[1])

ds = ps.from_tar("s3://bucket/*.tar", fields=["bin"])
if sys.argv[1] == "shuffled":
    ds = ds.shuffle(seed=1)
lengths = ds.map(lambda element: len(element["bin"])).batch(32)
lengths.element_spec
with lengths.loader("threads") as loader:
    before, total = status("VmRSS"), 0
    for number, batch in enumerate(loader):
        total += int(batch.sum())
        if number % 20 == 0:
            time.sleep(0.3)  # as much as may be kept ahead of its reads arrives
    assert total == int(sys.argv[2])
    print(json.dumps({"projected": loader.projected_nbytes, "peak": status("VmHWM") - before}))
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """100 ms, and 10 Gb/s together."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import _object_server as server

    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(RECORD_COUNT):
            member = tarfile.TarInfo(f"{number:03}.bin")
            member.size = RECORD_NBYTES
            tar.addfile(member, io.BytesIO(random.Random(number).randbytes(RECORD_NBYTES)))
    with server.serving() as store:
        for shard in range(SHARD_COUNT):
            store.put(f"bucket/{shard:03}.tar", file.getvalue())
        store.set(server.Behaviour(latency_s=0.1, rate=1.25e9))
        yield store
    sys.modules.pop("_object_server", None)


@pytest.mark.parametrize("order", ["shuffled", "in order"])
def test_reads_of_a_fast_and_distant_server_stay_within_the_projection(
    fresh_python: Callable[..., subprocess.CompletedProcess[str]], server: Any, tmp_path: Path, order: str
) -> None:
    result = measured(
        fresh_python(
            SCRIPT,
            order,
            str(SHARD_COUNT * RECORD_COUNT * RECORD_NBYTES),
            env={**server.environment, "XDG_CACHE_HOME": str(tmp_path)},
        )
    )
    assert result["projected"] >= 128 << 20
    said = f"peak {size_text(result['peak'])}, projected {size_text(result['projected'])}"
    print(said)
    assert result["peak"] <= result["projected"] + PARENT_NBYTES, said
