"""Contract suites for authors of a source, an executor, an adapter or a step.

    class TestMySource(penstock.testing.SourceTests):
        @pytest.fixture
        def source(self, tmp_path): ...
        @pytest.fixture
        def expected(self): ...

- Subclass `SourceTests`, `ExecutorTests`, `WorkerDeathTests`, `AdapterTests` and `AdapterMemoryTests`.
- Call `assert_resumes_exactly`.
- Wrap a source in `CountingSource`, `FailingSource`, `GatedSource` or `LethalSource` to test other code with it, on
  every executor. `LethalFunction` is a function for `map`.

The suites and assertions need pytest. `import penstock` does not import it.

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
    from penstock.testing._assertions import (
        assert_fits as assert_fits,
        assert_resumes_exactly as assert_resumes_exactly,
        assert_same as assert_same,
        copied as copied,
    )
    from penstock.testing._executor import ExecutorTests as ExecutorTests, WorkerDeathTests as WorkerDeathTests
    from penstock.testing._source import SourceTests as SourceTests

_NEED_PYTEST = {
    "_adapter": ("AdapterMemoryTests", "AdapterTests"),
    "_assertions": ("assert_fits", "assert_resumes_exactly", "assert_same", "copied"),
    "_executor": ("ExecutorTests", "WorkerDeathTests"),
    "_source": ("SourceTests",),
}
"""Modules that are imported on first use, and their public names."""

if not TYPE_CHECKING:  # type checkers take the names that are imported `as` themselves
    __all__ = ["CountingSource", "FailingSource", "Fault", "GatedSource", "LethalFunction", "LethalSource"]
    __all__ += [name for names in _NEED_PYTEST.values() for name in names]


def __getattr__(name: str) -> Any:
    """Imports the modules that need pytest on first use. A worker process needs the fakes alone."""
    module = next((module for module, names in _NEED_PYTEST.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    # Before the import, so that a failing `assert` in a suite shows its values, as in a test file.
    pytest.register_assert_rewrite(*({f"{__name__}.{each}" for each in _NEED_PYTEST} - sys.modules.keys()))
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """Lists the suites, too, so that `help` shows them."""
    return [*{*globals(), *(name for names in _NEED_PYTEST.values() for name in names)}]
