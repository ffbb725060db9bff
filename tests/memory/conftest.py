import pytest

from tests.run import common


@pytest.fixture(autouse=True)
def _begin() -> None:
    common.begin()
