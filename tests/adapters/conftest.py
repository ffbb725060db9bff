"""What the tests of adapters share."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_to_collect(request):
    """A framework's modules are hundreds of thousands of objects, and each test collects three times."""
    if not request.node.get_closest_marker("keras"):
        yield
        return
    import keras  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
