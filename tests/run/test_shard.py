"""Which share of each batch a process takes, and what says so."""

import logging
import math
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.run import _shard
from penstock.run._shard import find_world, shard_of

VARIABLES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
MODULES = ("ray.train", "torch.distributed", "jax")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shard, "_warned", [])
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def torch_of(rank: int, size: int, *, is_initialized: bool = True) -> Any:
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: is_initialized,
        get_rank=lambda: rank,
        get_world_size=lambda: size,
    )


def jax_of(rank: int, size: int, *, is_initialized: bool = True) -> Any:
    def process_count() -> int:
        assert is_initialized, "the question would have started JAX's devices"
        return size

    distributed = SimpleNamespace(is_initialized=lambda: is_initialized)
    return SimpleNamespace(distributed=distributed, process_count=process_count, process_index=lambda: rank)


def ray_of(rank: int, size: int) -> Any:
    def get_context() -> Any:
        if not size:
            raise RuntimeError("not in a training function")
        return SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: size)

    return SimpleNamespace(get_context=get_context)


def mesh_of(shape: tuple[int, ...], coordinate: tuple[int, ...] | None) -> Any:
    return SimpleNamespace(shape=shape, get_coordinate=lambda: coordinate, mesh=np.arange(math.prod(shape)))


def test_one_process_has_everything() -> None:
    assert shard_of("auto") == (0, 1)
    assert shard_of(None) == (0, 1)


def test_variables_of_launchers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    assert shard_of("auto") == (5, 8)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert shard_of("auto") == (1, 4)


def test_the_script_of_sbatch_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert shard_of("auto") == (0, 1)


@pytest.mark.parametrize(("rank", "size"), [("4", "4"), ("one", "4"), ("0", "0")])
def test_variables_without_a_meaning_are_refused(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ps.ArgumentError, match=f"found RANK={rank} and WORLD_SIZE={size} in the environment"):
        ps.range(8).batch(4).loader(shard="auto")


def test_frameworks_come_before_variables_and_only_where_they_are_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "9")
    monkeypatch.setitem(sys.modules, "jax", jax_of(1, 8, is_initialized=False))
    monkeypatch.setitem(sys.modules, "torch.distributed", torch_of(1, 7, is_initialized=False))
    monkeypatch.setitem(sys.modules, "ray.train", ray_of(0, 0))
    assert find_world()[:2] == (0, 9)
    monkeypatch.setitem(sys.modules, "jax", jax_of(1, 8))
    assert find_world() == (1, 8, "JAX")
    monkeypatch.setitem(sys.modules, "torch.distributed", torch_of(1, 7))
    assert find_world() == (1, 7, "torch.distributed")
    monkeypatch.setitem(sys.modules, "ray.train", ray_of(1, 6))
    assert find_world() == (1, 6, "Ray Train")


def test_jax_in_one_process_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", jax_of(0, 1))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert shard_of("auto") == (2, 3)


def test_a_mesh_gives_the_place_in_it() -> None:
    assert shard_of(mesh_of((4,), (3,))) == (3, 4)
    assert shard_of(mesh_of((2, 3), (1, 2))) == (5, 6)
    with pytest.raises(ps.ArgumentError, match="this process is not in that mesh"):
        shard_of(mesh_of((2,), None))


def test_a_share_that_was_found_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with ps.range(8).batch(4).loader(shard="auto") as loader:
        assert [batch.tolist() for batch in loader] == [[2, 3], [6, 7]]
    with ps.range(8).batch(4).loader(shard=mesh_of((4,), (3,))) as loader:
        assert [batch.tolist() for batch in loader] == [[3], [7]]


@pytest.mark.parametrize("shard", ["all", (0,), [0, 1], 3])
def test_another_thing_is_refused_and_all_kinds_are_named(shard: Any) -> None:
    with pytest.raises(ps.ArgumentTypeError, match=r"not a pair of integers .* 'auto', or a dimension of a DeviceMesh"):
        ps.range(8).batch(4).loader(shard=shard)


@pytest.fixture
def _four_ranks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with caplog.at_level(logging.WARNING, "penstock"):
        yield


@pytest.mark.usefixtures("_four_ranks")
def test_a_forgotten_share_is_told_once_with_the_line_to_write(caplog: pytest.LogCaptureFixture) -> None:
    ps.range(8).batch(4).loader().close()
    ps.range(8).batch(4).loader().close()
    (record,) = caplog.records
    assert record.message == (
        "This is rank 1 of 4 (RANK and WORLD_SIZE in the environment), and loader() has no shard=: every rank gets all "
        "rows of every batch. For a share each: loader(shard='auto'). If that is meant: loader(shard=(0, 1))."
    )


@pytest.mark.usefixtures("_four_ranks")
def test_a_share_that_was_given_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for shard in ((0, 1), "auto", mesh_of((4,), (3,))):
        ps.range(8).batch(4).loader(shard=shard).close()
    assert not caplog.records


def test_a_process_alone_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ps.range(8).batch(4).loader().close()
    assert not caplog.records


def test_skipping_is_refused_with_several_ranks() -> None:
    with pytest.raises(ps.ArgumentError, match=r"2 ranks may fail differently.*Use on_error='replace'"):
        ps.range(8).batch(4).loader(shard=(0, 2), on_error="skip")
