"""A function that makes worker processes import a framework: what that costs is told once, and not by each worker."""

import logging
import os
import time
from pathlib import Path

import pytest

import penstock as ps
from tests.waits import DEADLINE_S


@pytest.mark.framework
def test_that_workers_import_a_framework_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import torch

    def negative(x: int) -> int:
        (tmp_path / str(os.getpid())).touch()
        ends_at = time.monotonic() + DEADLINE_S
        while len(list(tmp_path.iterdir())) < 2:  # both workers load it
            assert time.monotonic() < ends_at
            time.sleep(0.001)
        return int(torch.tensor(-x))

    dataset = ps.range(8).map(negative, element_spec=ps.ArraySpec((), "int64")).batch(4)
    with caplog.at_level(logging.WARNING, "penstock"), dataset.loader("processes", workers=2) as loader:
        assert [batch.tolist() for batch in loader] == [[0, -1, -2, -3], [-4, -5, -6, -7]]
        note = loader.report().note
    told = "A function makes each worker import torch, which took "
    (record,) = caplog.records
    assert record.message.startswith(told)
    assert record.message in note  # which may also say that threads would have done as well
    assert note.count(told) == 1
