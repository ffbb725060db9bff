"""What tests of messages share."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock import PenstockError


def assert_refused(call: Callable[[], Any], builtin: type[Exception], text: str) -> None:
    """Asserts that a call raises an error of ours that is a builtin too, and whose whole message matches a text."""
    with pytest.raises(PenstockError) as caught:
        call()
    assert isinstance(caught.value, builtin)
    assert re.fullmatch(text, str(caught.value), re.DOTALL), str(caught.value)
