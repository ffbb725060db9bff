"""Helpers for tests of messages."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock import PenstockError


def assert_refused(call: Callable[[], Any], builtin: type[Exception], text: str) -> None:
    """Asserts that a call raises our error, which is also this builtin, with a message that matches entirely."""
    with pytest.raises(PenstockError) as caught:
        call()
    assert isinstance(caught.value, builtin)
    assert re.fullmatch(text, str(caught.value), re.DOTALL), str(caught.value)
