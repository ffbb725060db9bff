"""Contract suites for those who add to penstock: a source, an executor, a step.

    class TestMySource(penstock.testing.SourceTests):
        @pytest.fixture
        def source(self, tmp_path): ...
        @pytest.fixture
        def expected(self): ...

`SourceTests` and `ExecutorTests` are subclassed; `assert_resumes_exactly` is called; `CountingSource`,
`FailingSource` and `GatedSource` wrap a source in a test of anything else. `penstock.testing.strategies`
makes random plans together with a perfect model of each, and is imported by name, for it alone needs
Hypothesis. The rest needs pytest; `import penstock` brings neither.
"""

import pytest

# Before the imports below: a failing `assert` in a suite then shows its values, as in a test file.
pytest.register_assert_rewrite(
    "penstock.testing._compare",
    "penstock.testing._executor",
    "penstock.testing._resume",
    "penstock.testing._source",
)

from penstock.testing._compare import (  # noqa: E402  # see above
    assert_fits as assert_fits,
    assert_same as assert_same,
    copied as copied,
)
from penstock.testing._executor import ExecutorTests as ExecutorTests  # noqa: E402
from penstock.testing._fakes import (  # noqa: E402
    CountingSource as CountingSource,
    FailingSource as FailingSource,
    GatedSource as GatedSource,
)
from penstock.testing._resume import assert_resumes_exactly as assert_resumes_exactly  # noqa: E402
from penstock.testing._source import SourceTests as SourceTests  # noqa: E402

__all__ = [
    "CountingSource",
    "ExecutorTests",
    "FailingSource",
    "GatedSource",
    "SourceTests",
    "assert_fits",
    "assert_resumes_exactly",
    "assert_same",
    "copied",
]
