"""Limits of control groups, read from folders that imitate the kernel's."""

from pathlib import Path

import pytest

from penstock.report import _cgroups, _memory
from penstock.run import _cpus

V2 = {"cpu.max": "{quota} 100000"}
V1 = {"cpu.cfs_quota_us": "{quota}", "cpu.cfs_period_us": "100000"}


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "self").mkdir()
    monkeypatch.setattr(_cgroups, "PROC", tmp_path)
    monkeypatch.setattr(_cgroups, "CGROUP", tmp_path / "cgroup")
    return tmp_path


def give(kernel: Path, version: int, quotas: dict[str, str], here: str) -> None:
    (kernel / "self/cgroup").write_text(f"0::{here}\n" if version == 2 else f"5:cpu,cpuacct:{here}\n0::/\n")
    for group, quota in quotas.items():
        folder = kernel / "cgroup" / ("" if version == 2 else "cpu") / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (V2 if version == 2 else V1).items():
            (folder / name).write_text(text.format(quota=quota))


@pytest.mark.parametrize("version", [2, 1])
@pytest.mark.parametrize(
    ("quotas", "here", "expected"),
    [
        pytest.param({"": "150000"}, "/", 1.5, id="a container"),
        pytest.param({"": "150000"}, "/docker/a1b2", 1.5, id="a container that sees the host's path"),
        pytest.param({"job": "200000", "job/step": "{no}"}, "/job/step", 2.0, id="a job's step: the group above it"),
        pytest.param({"job": "400000", "job/step": "100000"}, "/job/step", 1.0, id="the least"),
        pytest.param({"job": "{no}", "other": "100000"}, "/job", None, id="no limit, and another's"),
        pytest.param({}, "/job", None, id="no counts"),
    ],
)
def test_the_quota_is_the_least_of_the_groups_around_this_process(
    kernel: Path, version: int, quotas: dict[str, str], here: str, expected: float | None
) -> None:
    no_limit = "max" if version == 2 else "-1"
    give(kernel, version, {group: quota.replace("{no}", no_limit) for group, quota in quotas.items()}, here)
    assert _cpus.cpu_quota() == expected


def test_without_control_groups_there_is_no_quota(kernel: Path) -> None:
    assert _cpus.cpu_quota() is None
    assert _cpus.usable_cpu_count() >= 1


def test_a_quota_below_one_cpu_is_one_worker(kernel: Path) -> None:
    give(kernel, 2, {"job": "20000"}, "/job")
    assert _cpus.usable_cpu_count() == 1


@pytest.mark.parametrize(
    ("line", "folder", "stat"),
    [
        ("0::/job", "job", "file 3000\nshmem 1000\n"),
        ("7:memory:/job", "memory/job", "cache 9\ntotal_cache 3000\ntotal_shmem 1000\n"),
    ],
)
def test_the_page_cache_is_that_of_the_own_group_without_shared_memory(
    kernel: Path, line: str, folder: str, stat: str
) -> None:
    (kernel / "self/cgroup").write_text(line + "\n")
    (kernel / "cgroup" / folder).mkdir(parents=True)
    (kernel / "cgroup" / folder / "memory.stat").write_text(stat)
    assert _memory.page_cache_nbytes() == 2000
