"""`penstock doctor`: facts, problems and advice."""

import json
from dataclasses import replace

import pytest

from penstock.commands import cli, doctor
from penstock.report import _cgroups

FOUND = doctor.MachineFacts(
    cpus=4,
    machine_cpus=16,
    memory_nbytes={"available": 40 << 30, "left in the container": 12 << 30},
    open_files=1024,
    has_processes=True,
    worker_s=0.21,
    worker_problem="",
    packages={"torch": "2.13.0", "h5py": "3.14.0"},
)


@pytest.fixture
def said(monkeypatch, capsys):
    """Runs the command on a machine. Returns its status, its lines, and its text in one line."""

    def run(found: doctor.MachineFacts) -> tuple[int, list[str], str]:
        monkeypatch.setattr(doctor, "examine", lambda: found)
        status = cli.main(["doctor"])
        out = capsys.readouterr().out
        return status, out.splitlines(), " ".join(out.split())

    return run


def test_facts_are_printed_in_short_lines(said):
    status, lines, text = said(FOUND)
    assert status == 0
    assert max(map(len, lines)) <= 96
    for fact in (
        "CPUs 4 of 16",
        "Memory 40 GiB available, 12 GiB left in the container",
        "Open files 1,024 a process",
        "Worker a process gives its first batch after 210 ms",
        "Installed torch 2.13.0, h5py 3.14.0",
        "Missing array_record, av, ",
        "pyarrow, pylance",
    ):
        assert fact in text


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, 'workers="auto" takes 4.'),
        ({}, "Worker processes take 45 MiB each besides the batches, 180 MiB for 4."),
        ({}, "memory_limit=3 * 2**30 keeps a loader to a quarter of the memory that is left"),
        ({"memory_nbytes": {"left in the container": 2 << 30}}, "memory_limit=512 * 2**20 keeps"),
        ({"has_processes": False}, "Worker processes need Linux."),
        ({"open_files": 256}, "256 open files are few. Each process keeps up to 128 files"),
        ({"packages": {}}, "install a framework: pip install keras tensorflow."),
    ],
)
def test_advice_follows_from_the_facts(changes, advice, said):
    status, _, text = said(replace(FOUND, **changes))
    assert status == 0
    assert advice in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"worker_s": None, "worker_problem": "Ended by signal 9."}, "No worker process starts: Ended by"),
    ],
)
def test_a_problem_is_status_1(changes, problem, said):
    status, _, text = said(replace(FOUND, **changes))
    assert status == 1
    assert f"Problems - {problem}" in text


@pytest.mark.slow
def test_this_machine_can_run_loaders(capsys, leaves_nothing_behind):
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["cpus"] >= 1
    assert found["worker_s"] > 0


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
def test_memory_left_in_a_container_does_not_count_the_page_cache(version, files, tmp_path, monkeypatch):
    group = tmp_path / "cgroup" / ("memory" if version == 1 else "") / "box"
    group.mkdir(parents=True)
    for name, text in files.items():
        (group / name).write_text(text)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/box/deeper\n" if version == 2 else "4:cpu,memory:/box/deeper\n")
    monkeypatch.setattr(_cgroups, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(_cgroups, "PROC", tmp_path)
    assert list(_cgroups.memory_limits()) == [(1_073_741_824, 500_000_000)]
    assert _cgroups.free_nbytes() == 573_741_824
    (tmp_path / "meminfo").write_text("MemAvailable: 1000 kB\n")
    assert _cgroups.free_nbytes() == 1_024_000
