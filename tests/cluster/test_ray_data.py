"""Datasets to Ray Data, and back. No agent runs meanwhile, for its tasks need the CPUs."""

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # of its own settings
def test_a_dataset_goes_to_ray_data_and_comes_back() -> None:
    dataset = ps.range(50).shuffle(1).map(lambda x: {"x": x, "rows": np.full((2, 3), x, np.float32)})
    there = dataset.to_ray(override_num_blocks=4)
    assert [row["x"] for row in there.iter_rows()] == [int(each["x"]) for each in dataset]
    back = ps.from_ray(there).batch(10)
    with back.loader(executor="threads", workers=1) as loader:
        for batch, want in zip(loader, dataset.batch(10), strict=True):
            assert_same(batch, want)


def test_streams_do_not_go_to_ray_data() -> None:
    with pytest.raises(ps.UnknownLengthError, match=r"to_ray\(\) reads ranges of positions, .* a stream"):
        ps.range(9).filter(lambda x: x > 3).to_ray()
    with pytest.raises(ps.ArgumentTypeError, match=r"from_ray\(\) needs a ray\.data\.Dataset, got a list"):
        ps.from_ray([1])
