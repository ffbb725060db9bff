"""The contract of adapters, on each framework; what is particular to one is tested beside it in `tests/adapters`."""

import gc
import importlib
import os

import numpy as np
import pytest

from penstock import ArraySpec
from penstock.base import _tree
from penstock.testing import AdapterMemoryTests, AdapterTests

BACKEND = os.environ["KERAS_BACKEND"]


@pytest.fixture(scope="module", autouse=True)
def _frameworks_are_imported(request):
    for name in ("torch", "jax", "keras"):
        if any(name in item.nodeid.lower() for item in request.session.items if item.path == request.path):
            importlib.import_module(name)


class _Torch:
    @pytest.fixture
    def make_adapter(self, leaves_nothing_behind):
        return lambda dataset, **options: dataset.to_torch(**options)

    @pytest.fixture
    def to_numpy(self):
        return lambda batch: _mapped(lambda tensor: tensor.numpy(), batch)


class _Jax:
    @pytest.fixture
    def make_adapter(self, leaves_nothing_behind):
        import jax

        yield lambda dataset, **options: dataset.to_jax(**options)
        gc.collect()
        jax.device_put(np.zeros(1)).block_until_ready()  # JAX frees memory in one of its calls

    @pytest.fixture
    def to_numpy(self):
        return lambda batch: _mapped(np.asarray, batch)

    def arrives_as(self, dtype):
        import jax

        return jax.dtypes.canonicalize_dtype(dtype)


class _JaxAhead(_Jax):
    @pytest.fixture
    def make_adapter(self, leaves_nothing_behind):
        import jax

        yield lambda dataset, **options: dataset.to_jax(prefetch_to_device=2, **options)
        gc.collect()
        jax.device_put(np.zeros(1)).block_until_ready()


class _Keras:
    """Batches as Keras draws them for training, on the backend that KERAS_BACKEND names."""

    @pytest.fixture
    def make_adapter(self, leaves_nothing_behind):
        yield lambda dataset, **options: dataset.to_keras(**options)
        gc.collect()
        if BACKEND == "jax":
            import jax

            jax.device_put(np.zeros(1)).block_until_ready()

    @pytest.fixture
    def to_numpy(self):
        return lambda batch: _mapped(np.asarray, batch)

    def epoch(self, adapter):
        if BACKEND == "tensorflow":
            return iter(adapter.get_tf_dataset())
        return iter(adapter.get_jax_iterator() if BACKEND == "jax" else adapter.get_torch_dataloader())

    def count(self, adapter):
        return adapter.num_batches

    def element_spec(self, adapter):
        spec = adapter.loader.element_spec
        return _mapped(lambda leaf: ArraySpec(leaf.shape, self.arrives_as(leaf.dtype)), spec)

    def arrives_as(self, dtype):
        if BACKEND == "jax":
            return _Jax().arrives_as(dtype)
        # torch hardly computes with uint32, so Keras widens it.
        return np.dtype(np.int64) if (BACKEND, dtype) == ("torch", np.uint32) else dtype


def _mapped(function, batch):
    leaves, structure = _tree.flatten(batch)
    return structure.unflatten(map(function, leaves))


@pytest.mark.framework
class TestTorch(_Torch, AdapterTests):
    pass


@pytest.mark.framework
class TestJax(_Jax, AdapterTests):
    pass


@pytest.mark.framework
class TestJaxAhead(_JaxAhead, AdapterTests):
    pass


@pytest.mark.keras
class TestKeras(_Keras, AdapterTests):
    pass


@pytest.mark.framework
@pytest.mark.limits
class TestMemoryOfTorch(_Torch, AdapterMemoryTests):
    pass


@pytest.mark.framework
@pytest.mark.limits
class TestMemoryOfJax(_Jax, AdapterMemoryTests):
    pass


@pytest.mark.keras
@pytest.mark.limits
class TestMemoryOfKeras(_Keras, AdapterMemoryTests):
    pass
