"""Which share of each batch a process takes, and what says so."""

import itertools
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


def side_by_side(*, unlabelled: Any = lambda x: x, stream: bool = False) -> ps.Dataset:
    """Batches of 8 numbers beside batches of 2."""
    few = ps.from_arrays({"y": np.arange(100, 108)}).shuffle(2)
    if stream:
        few = few.filter(lambda x: True)
    many = ps.range(32).shuffle(1).map(unlabelled, element_spec=ps.ArraySpec((), "int64"))
    return ps.zip((many.batch(8, drop_remainder=True), few.batch(2, drop_remainder=True)))


@pytest.mark.parametrize("stream", [False, True], ids=["by index", "in order"])
@pytest.mark.parametrize("last", [lambda ds: ds, lambda ds: ds.map(lambda e: e)], ids=["zip", "map"])
def test_batches_of_two_sizes_are_shared_out_and_go_on_with_other_ranks(last: Any, *, stream: bool) -> None:
    ds = last(side_by_side(stream=stream))
    with ds.loader("inline") as loader:
        whole = [(many.tolist(), few["y"].tolist()) for _ in range(2) for many, few in loader]
    found: list[Any] = []
    state = None
    for executor, ranks, count in (("threads", 2, 3), ("inline", 1, 2), ("threads", 2, 3)):
        loaders = [ds.loader(executor, shard=(rank, ranks)) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.set_state(state)
        for parts in itertools.islice(zip(*map(rest_of, loaders), strict=True), count):
            assert {(len(many), len(few["y"])) for many, few in parts} == {(8 // ranks, 2 // ranks)}
            found.append([np.concatenate(each).tolist() for each in zip(*[(m, f["y"]) for m, f in parts], strict=True)])
        states = [loader.get_state() for loader in loaders]
        assert states == states[:1] * ranks
        state = states[0]
        for loader in loaders:
            loader.close()
    assert list(map(tuple, found)) == whole


def rest_of(loader: ps.Loader) -> Iterator[Any]:
    """The batches of this epoch and the next."""
    yield from loader
    yield from loader


def test_a_rank_reads_only_its_rows_of_batches_of_two_sizes() -> None:
    seen: list[int] = []

    def noted(x: Any) -> Any:
        seen.append(int(x))
        return x

    with side_by_side(unlabelled=noted).loader("inline", shard=(1, 2)) as loader:
        many, few = next(iter(loader))
    assert (seen, len(few["y"])) == (many.tolist(), 1)


def test_micro_batches_of_two_sizes_have_their_part_of_each() -> None:
    with side_by_side().loader("inline") as loader:
        whole = [(many.tolist(), few["y"].tolist()) for many, few in loader]
    with side_by_side().loader("inline", micro_batches=2) as loader:
        parts = [(many.tolist(), few["y"].tolist()) for many, few in loader]
        assert [len(many) for many, _ in parts] == [4] * 8
        assert loader.element_spec[0].shape == (4,)
    joined = [(a + c, b + d) for (a, b), (c, d) in zip(parts[::2], parts[1::2], strict=True)]
    assert joined == whole


@pytest.mark.parametrize(
    ("ds", "options", "message"),
    [
        (side_by_side(), {"shard": (0, 4)}, r"A batch has 2 elements, which 4 shards .* batch size that 4 divides\.$"),
        (side_by_side(stream=True), {"micro_batches": 4}, r"A batch has 2 elements, which 4 micro-batches"),
        (
            ps.zip((ps.range(15).batch(8), ps.range(4).batch(2))),
            {"shard": (0, 2)},
            r"The last batch has 7 elements, .* 2 divides and drop_remainder=True\.$",
        ),
        *(
            (side_by_side(stream=stream), {"uneven": "mask"}, r"uneven='mask' .* batches of 2 and 8 elements stand")
            for stream in (False, True)
        ),
        (
            ps.from_arrays((np.zeros((9, 4)), np.zeros((9, 2)))),
            {"shard": (0, 2)},
            r"without a common first axis\. Put batch",
        ),
        (ps.zip((ps.range(4), ps.range(8).batch(2))), {"shard": (0, 2)}, r"without a common first axis\. Put batch"),
        (
            ps.zip((ps.range(32).batch(8).unbatch(), ps.range(32).map(lambda x: [x, x]).batch(2).unbatch())),
            {"shard": (0, 2)},
            r"without a common first axis\. Put batch",
        ),
    ],
)
def test_batches_of_two_sizes_that_cannot_be_shared_out_are_refused(ds: Any, options: Any, message: str) -> None:
    with pytest.raises(ps.ArgumentError, match=message):
        ds.loader("inline", **options)


def test_a_function_that_changes_the_rows_of_one_of_two_batches_is_named() -> None:
    spec = (ps.ArraySpec((None,), "int64", (8,)), ps.ArraySpec((2,), "int64"))
    ds = side_by_side().map(lambda e: (e[0][:7], e[1]["y"]), element_spec=spec)
    with (
        ds.loader("inline", shard=(0, 2)) as loader,
        pytest.raises(ps.SpecError, match="A batch has 7 elements, which 2 shards cannot share evenly"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("stream", [False, True], ids=["by index", "in order"])
def test_what_fails_in_one_of_two_batches_is_replaced_or_left_out_there(tmp_path: Any, *, stream: bool) -> None:
    def fails(x: Any) -> Any:
        if x % 8 == 3:
            raise ValueError
        return x

    ds = side_by_side(unlabelled=fails, stream=stream)
    good = [int(x) for x in ps.range(32).shuffle(1) if x % 8 != 3]
    with ds.loader("inline", on_error="skip", quarantine=tmp_path / "q") as loader:
        found = list(loader)
    assert [row for many, _ in found for row in many.tolist()] == good[:24]
    with ds.loader("inline", on_error="replace", quarantine=tmp_path / "q") as loader:
        found = list(loader)
    assert [len(many) for many, _ in found] == [8] * 4
    assert {row for many, _ in found for row in many.tolist()} == set(good)
    assert sorted(y for _, few in found for y in few["y"].tolist()) == list(range(100, 108))


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize(("count", "text"), [(3, "2 elements, which 3 shards cannot share"), (1, None)])
def test_leaves_whose_numbers_of_rows_differ_are_not_divided_as_those_of_the_first(executor, count, text):
    groups = ps.range(5).group_by(np.array([0, 0, 0, 1, 1])).cast("float32")
    both = ps.zip((groups, groups.shuffle(0, reshuffle=False)))  # 3 rows beside 2, and 2 beside 3
    with both.loader(executor, workers=1, shard=(count - 1, count)) as loader:
        if text is None:
            assert [[len(leaf) for leaf in pair] for pair in loader] == [[3, 2], [2, 3]]
        else:
            with pytest.raises(ps.SpecError, match=text):
                next(iter(loader))


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_rows_that_do_not_belong_together_are_not_divided(executor):
    groups = ps.range(6).group_by(np.array([0, 0, 0, 0, 1, 1])).cast("float32")
    both = ps.zip((groups, groups.shuffle(0, reshuffle=False)))  # 4 rows beside 2
    with both.loader(executor, workers=1, shard=(0, 2)) as loader, pytest.raises(ps.SpecError, match="of 2 and 4 rows"):
        next(iter(loader))
