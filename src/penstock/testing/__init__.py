"""Contract suites for those who add to penstock: a source, an executor, an adapter, a step.

    class TestMySource(penstock.testing.SourceTests):
        @pytest.fixture
        def source(self, tmp_path): ...
        @pytest.fixture
        def expected(self): ...

- Subclass `SourceTests`, `ExecutorTests`, `WorkerDeathTests`, `AdapterTests` and `AdapterMemoryTests`.
- Call `assert_resumes_exactly`.
- Wrap a source in `CountingSource`, `FailingSource`, `GatedSource` or `LethalSource` to test other code with it, on
  every executor. `LethalFunction` is a function for `map`.
- `penstock.testing.strategies` makes random plans, each with a perfect model. It needs Hypothesis, so import it by
  name.

The rest needs pytest. `import penstock` imports neither.

Sources and adapters may live outside the package. Executors and steps are part of it: see CONTRIBUTING.md.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from penstock.testing._fakes import (
    CountingSource as CountingSource,
    FailingSource as FailingSource,
    Fault as Fault,
    GatedSource as GatedSource,
    LethalFunction as LethalFunction,
    LethalSource as LethalSource,
)

if TYPE_CHECKING:
    from penstock.testing._adapter import AdapterMemoryTests as AdapterMemoryTests, AdapterTests as AdapterTests
    from penstock.testing._compare import (
        assert_fits as assert_fits,
        assert_same as assert_same,
        copied as copied,
    )
    from penstock.testing._executor import ExecutorTests as ExecutorTests
    from penstock.testing._resume import assert_resumes_exactly as assert_resumes_exactly
    from penstock.testing._source import SourceTests as SourceTests
    from penstock.testing._worker_deaths import WorkerDeathTests as WorkerDeathTests

_HOMES = {
    "AdapterMemoryTests": "_adapter",
    "AdapterTests": "_adapter",
    "ExecutorTests": "_executor",
    "SourceTests": "_source",
    "WorkerDeathTests": "_worker_deaths",
    "assert_fits": "_compare",
    "assert_resumes_exactly": "_resume",
    "assert_same": "_compare",
    "copied": "_compare",
}

__all__ = [
    "AdapterMemoryTests",
    "AdapterTests",
    "CountingSource",
    "ExecutorTests",
    "FailingSource",
    "Fault",
    "GatedSource",
    "LethalFunction",
    "LethalSource",
    "SourceTests",
    "WorkerDeathTests",
    "assert_fits",
    "assert_resumes_exactly",
    "assert_same",
    "copied",
]


def __getattr__(name: str) -> Any:
    """Imports what needs pytest when it is asked for: a worker process, which needs the fakes alone, asks for none."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    # Before the import: a failing `assert` in a suite then shows its values, as in a test file.
    modules = {f"{__name__}.{home}" for home in _HOMES.values()} | {f"{__name__}._runs"}
    pytest.register_assert_rewrite(*(modules - sys.modules.keys()))
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """What there is, with the suites, so that `help` shows them."""
    return [*{*globals(), *_HOMES}]
