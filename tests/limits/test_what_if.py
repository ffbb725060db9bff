"""A report's estimate for another number of workers is close to a run with that number.

In its own file, because worker processes that other tests keep would share the work.
"""

import time
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.limits


def slowly(x: Any) -> Any:
    time.sleep(0.004)
    return np.full(4, x)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_what_if_is_near_the_real_run_of_functions_that_wait(executor: Any) -> None:
    """Of functions that wait. Of those that compute it was 0 to 30 percent off on two CPUs, which others use too.

    Of six threads on two CPUs it said 0.84 to 0.92 of what they gave (2026-11-22), so that the bound there is wider.
    """
    dataset = ps.range(1000).map(slowly).batch(16)

    def run(workers: int) -> ps.Report:
        with dataset.loader(executor, workers=workers) as loader:
            next(iter(loader))
            for batch in loader:
                batch.sum()
            return loader.report()

    left, found = {(1, 2): 0.15, (2, 1): 0.15, (2, 6): 0.25}, []
    for _ in range(10):  # another program may have the CPUs for a moment
        reports = {workers: run(workers) for workers in {each for pair in left for each in pair}}
        for (here, there), within in list(left.items()):
            said, ran = reports[here].what_if(workers=there).elements_per_s, reports[there].elements_per_s
            found.append((here, there, said, ran))
            if said == pytest.approx(ran, rel=within):
                del left[here, there]
        if not left:
            return
    raise AssertionError(found)
