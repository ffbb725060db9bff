"""What is said about `executor="ray"` where there is no Ray, and about its options. `tests/cluster` has the rest."""

import sys
from typing import Any

import pytest

import penstock as ps
from penstock import ray


def test_without_ray_the_install_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_executor", "_fleet"):
        monkeypatch.delitem(sys.modules, f"penstock.ray.{name}", raising=False)
        monkeypatch.delattr(ray, name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"executor='ray' needs Ray: pip install 'ray\[data\]', on each"):
        ps.range(8).loader("ray")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"executor": "threads", "ray_options": {}}, r"ray_options= is for executor='ray', and this is .*'threads'"),
        ({"executor": "ray", "ray_options": 4}, r"ray_options=4 is no dict of options of Ray's actors"),
    ],
)
def test_ray_options_are_checked(options: Any, text: str) -> None:
    with pytest.raises(ps.PenstockError, match=text):
        ps.range(8).loader(**options)
