"""What `penstock doctor` says of a machine, and what it leaves on its disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import cli
from penstock.commands import _disk, _machine, doctor
from penstock.commands._disk import DiskSpeed
from penstock.commands._machine import Machine
from penstock.report import _cgroups

MIB = 1 << 20
MACHINE = Machine(
    python="3.12.3",
    system="Linux 6.8.0, x86_64",
    machine_cpus=16,
    affinity_cpus=8,
    quota_cpus=4.0,
    cpus=4,
    memory_nbytes=64 << 30,
    available_nbytes=40 << 30,
    container_nbytes=16 << 30,
    container_left_nbytes=12 << 30,
    address_nbytes=None,
    shm_nbytes=64 * MIB,
    open_files=1024,
    most_open_files=1_048_576,
    io_submit="available",
    executors=("inline", "threads", "processes"),
    frameworks={"torch": "2.13.0"},
    libraries={"h5py": "3.14.0"},
)
DISK = DiskSpeed("/data", "ext4", 256 * MIB, 250 * MIB, 1000 * MIB, 2500 * MIB, is_cached=False)
FOUND = doctor.Findings(MACHINE, 0.21, "", DISK, "")


@pytest.fixture
def quick(monkeypatch):
    """A disk that is looked at for a moment."""
    monkeypatch.setattr(_disk, "FILE_NBYTES", _disk.LEAST_NBYTES)
    monkeypatch.setattr(_disk, "READ_S", 0.01)


def with_machine(**changes: object) -> doctor.Findings:
    return replace(FOUND, machine=replace(MACHINE, **changes))


def text_of(found: doctor.Findings) -> str:
    """Its text in one line, as it is wrapped anywhere."""
    return " ".join(str(found).split())


def test_what_there_is_is_said_in_short_lines():
    text = str(FOUND)
    assert max(map(len, text.splitlines())) <= 96
    for fact in (
        "Python 3.12.3 on Linux 6.8.0, x86_64",
        "CPUs 4 of 16 (8 by affinity, 4 by the container's quota)",
        "Memory 40 GiB available of 64 GiB container: 12 GiB left of 16 GiB",
        "/dev/shm 64 MiB",
        "Open files 1,024 a process, up to 1,048,576 with ulimit -n",
        "Worker a process gives its first batch after 210 ms",
        "Disk /data (ext4)",
        "64 KiB at random, one by one: 250 MiB/s, 4,000 reads/s",
        "64 KiB at random, 8 at once: 1000 MiB/s, 16,000 reads/s",
        "in order: 2.4 GiB/s",
        "256 MiB were written for it, and removed",
        "Frameworks torch 2.13.0",
        "Libraries h5py 3.14.0 not installed: zarr (zarr), pyarrow (parquet)",
    ):
        assert fact in " ".join(text.split())


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        (FOUND, 'workers="auto" takes 4.'),
        (FOUND, "4 worker processes take 180 MiB beside the batches, 45 MiB each; threads take nothing."),
        (FOUND, "memory_limit=3 * 2**30 keeps a loader to a quarter of the memory that is left"),
        (with_machine(container_left_nbytes=2 << 30), "memory_limit=512 * 2**20 keeps"),
        (FOUND, "64 MiB of /dev/shm are no problem: penstock does not use it."),
        (FOUND, "are read 2 times as fast in order as in rows of 64 KiB at random."),
        (FOUND, "Several reads at once give 4.0 times the speed of one"),
        (replace(FOUND, disk=replace(DISK, is_cached=True)), "What the disk reads is not known"),
        (with_machine(executors=("inline", "threads")), "Worker processes run on Linux so far"),
        (with_machine(open_files=256), "256 open files are few: each process keeps up to 128 files"),
        (with_machine(io_submit="refused (Operation not permitted)"), "Without io_submit, rows of .npy files"),
        (with_machine(frameworks={}), "install a framework: pip install 'penstock[keras,tensorflow]'"),
    ],
)
def test_what_follows_is_said(found, advice):
    assert not found.problems
    assert advice in text_of(found)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (replace(FOUND, worker_s=None, worker_problem="Ended by signal 9."), "No worker process starts: Ended by"),
        (with_machine(address_nbytes=100 * MIB), "100 MiB of memory are left, and a loader with one worker process"),
        (with_machine(open_files=32), "A process may open 32 files, which is too few. Raise it: ulimit -n 1024."),
    ],
)
def test_what_prevents_loaders_is_status_1(found, problem, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda folder: found)
    assert cli.main(["doctor"]) == 1
    assert f"What prevents loaders - {problem}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_this_machine_can_run_loaders(quick, tmp_path, capsys, leaves_nothing_behind):
    assert cli.main(["doctor", "--json", "--path", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["machine"]["cpus"] >= 1
    assert found["worker_s"] > 0
    assert found["disk"]["folder"] == str(tmp_path)
    assert found["disk"]["file_nbytes"] == _disk.LEAST_NBYTES
    speeds = [found["disk"][name] for name in ("random_per_s", "random_at_once_per_s", "in_order_per_s")]
    assert min(speeds) > _disk.BLOCK_NBYTES, "less than a block a second, on however busy a disk"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_no_file(quick, tmp_path, monkeypatch, capsys, leaves_nothing_behind):
    def interrupt(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(_disk, "_speed", interrupt)
    monkeypatch.setattr(doctor, "_start_a_worker", lambda: (0.2, ""))
    assert cli.main(["doctor", "--path", str(tmp_path)]) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_in_memory_is_told(quick):
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    assert _disk.measure(Path("/dev/shm")).is_cached


def test_a_disk_that_is_full_is_told_and_no_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(_disk, "FILE_NBYTES", _disk.LEAST_NBYTES - 1)
    monkeypatch.setattr(doctor, "_start_a_worker", lambda: (0.2, ""))
    found = doctor.examine(tmp_path)
    assert not found.problems
    assert f"Disk {tmp_path} was not measured:" in text_of(found)
    assert "MiB are free there, and 64 are needed" in text_of(found)


def test_a_folder_that_is_not_there_is_refused(capsys):
    assert cli.main(["doctor", "--path", "no/where"]) == 1
    assert capsys.readouterr().err == (
        "penstock doctor: --path no/where: there is no such folder. Give the one that your data lie in.\n"
    )


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (
            2,
            {
                "memory.max": "1073741824",
                "memory.current": "700000000",
                "memory.stat": "file 300000000\nshmem 100000000",
            },
        ),
        (
            1,
            {
                "memory.limit_in_bytes": "1073741824",
                "memory.usage_in_bytes": "700000000",
                "memory.stat": "total_cache 300000000\ntotal_shmem 100000000",
            },
        ),
    ],
)
def test_memory_of_a_container_is_its_limit_less_what_is_used_but_for_the_page_cache(
    version, files, tmp_path, monkeypatch
):
    group = tmp_path / "cgroup" / ("memory" if version == 1 else "") / "box"
    group.mkdir(parents=True)
    for name, text in files.items():
        (group / name).write_text(text)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/box/deeper\n" if version == 2 else "4:cpu,memory:/box/deeper\n")
    monkeypatch.setattr(_cgroups, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(_cgroups, "PROC", tmp_path)
    assert list(_machine._cgroups()) == [(1_073_741_824, 500_000_000)]
