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
    assert_no_chance_context(caught.value)


def assert_no_chance_context(error: BaseException | None) -> None:
    """Asserts that a traceback shows no error above another that does not cause it.

    Python shows one where an error is raised while another is handled, without `from`.
    """
    while error is not None:
        context = None if error.__suppress_context__ else error.__context__
        assert context is None, f"{context!r} is above {error!r}"
        error = error.__cause__


def words_of_encodings() -> dict[str, str]:
    """Encodings beside UTF-8, and a word that each can write."""
    others = ("latin-1", "cp1252", "utf-16", "utf-16-be", "utf-32", "utf-7", "utf-8-sig", "cp037")
    return dict.fromkeys(others, "é") | {"shift_jis": "が→日", "iso2022_jp": "が→日", "hz": "日本"}
