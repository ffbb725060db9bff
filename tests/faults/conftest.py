"""Fixtures of the fault tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.programs import Program


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts programs and asserts at the end that nothing of them is left. Arguments: see `Program`."""
    programs: list[Program] = []

    def begin(script: str, *arguments: Any, **options: Any) -> Program:
        directory = tmp_path / f"temporary {len(programs)}"
        directory.mkdir()
        programs.append(Program(script, directory, *arguments, **options))
        return programs[-1]

    yield begin
    try:
        for program in programs:
            program.assert_nothing_left()
    finally:
        for program in programs:
            program.kill()
