"""What happens when something goes wrong in the middle of an epoch?

Question: sixteen faults of a training process and its two workers. Does the epoch go on with the same data, or end
in time with an error that names the element? Does the process end, and is anything left behind?

Method: `python benchmarks/faults.py [--only 1,2,4] [--rounds 3] [--quick]` prints a Markdown table. Each fault has a
fresh process with a time limit; the work is 4,000 elements (800 with `--quick`) of about 1 ms that hold the GIL, in
batches of 8, and every byte of every batch is compared. *Seconds* are the longest that the consumer waited for a
batch or for the error, the first batch apart; for signals to the parent, from the signal until the last process is
gone; for fault 11 until the first batch; for 9, 12, 14 and 15 all that was done. *Left* counts what is still there
when the loaders were dropped (processes, descriptors), and up to 5 s after the process has ended: processes, entries
of /dev/shm, and entries of the directory for temporary files, which each fault has for itself. What others put into
/dev/shm meanwhile would count too. A bold row is not as promised.

Faults 4 and 6 are hangs, and have `timeout_s=5`; an error comes when the element hung in each attempt. Fault 10 has a
/dev/shm of its own, in a mount namespace (`unshare`), where the system allows that. Fault 11 takes an eighth of the
free memory where that is less than 1 GB.

Machine: Linux alone, for `/proc`.

Result, 2026-11-20, two cores, Linux 6.18, Python 3.11.7: 19 of 19 as promised, nothing left by any. 1, 2', 4, 10,
10', 11, 12, 13 and 16 deliver identical data; 2, 3, 5 and 6 are errors that name element 777, at once or, for the
one that never returns, 12 s later, in its second attempt of 5 s; a worker that is stopped costs 5.8 s; after SIGINT
everything has ended in 0.07 s, after SIGKILL of the parent in 0.01 s; the array of 1 GiB costs 1 GiB of shared
memory once.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _faulty
from _memory import descendants

_LIMIT_S = 90.0
_GONE_S = 5.0
_TEXT_LENGTH = 160
_PR_SET_CHILD_SUBREAPER = 36
_SMALL_SHM = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    text: str
    work: str
    """The function of `_faulty` that the process runs."""
    sent: signal.Signals | None = None
    """Sent to the process when it is ready."""
    to_group: bool = False
    """The signal goes to its whole process group, as a terminal's Ctrl-C does."""
    ends_within_s: float = 5.0
    """For a signal: the time in which everything has to be gone."""
    small_shm: bool = False


_FAULTS = {
    "1": Fault("a worker is killed by SIGKILL", "killed_worker"),
    "2": Fault("`os._exit(1)` in the function at element 777", "exits"),
    "2'": Fault("the same, the first time alone", "exits_once"),
    "3": Fault("segmentation fault in the function at element 777", "crashes"),
    "4": Fault("a worker is stopped by SIGSTOP, `timeout_s=5`", "stopped_worker"),
    "5": Fault("ValueError in the function at element 777", "raises"),
    "6": Fault("the function never returns from element 777, `timeout_s=5`", "never_returns"),
    "7": Fault("SIGINT to the parent", "waits_for_signal", signal.SIGINT),
    "7'": Fault("Ctrl-C: SIGINT to all of its group", "waits_for_signal", signal.SIGINT, to_group=True),
    "8": Fault("the parent is killed by SIGKILL", "waits_for_signal", signal.SIGKILL, ends_within_s=1.0),
    "9": Fault("`break`, and a consumer that raises", "stops_early"),
    "10": Fault("64 MB of /dev/shm, 9.6 MB batches", "little_shm", small_shm=True),
    "10'": Fault("64 MB of /dev/shm, 38.5 MB batches", "less_shm", small_shm=True),
    "11": Fault("an array of 1 GB in the function", "large_capture"),
    "12": Fault("no `__main__` guard", "no_main_guard"),
    "13": Fault("a lambda that captures a local", "local_function"),
    "14": Fault("`np.random` in the function", "global_random"),
    "15": Fault("many epochs: growth", "many_epochs"),
    "16": Fault("resumed with 3 workers instead of 2", "other_worker_count"),
}


@dataclass(frozen=True)
class Result:
    """What came of a fault, once."""

    text: str
    as_promised: bool
    seconds: float | None = None
    left: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Processes, descriptors, entries of /dev/shm, temporary entries."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a fifth of the elements")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault happens; default 1")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(_FAULTS)}")
    parser.add_argument("--live", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.live:
        _faulty.live(args.live, args.quick, args.scratch)
        return
    names = args.only.split(",") if args.only else list(_FAULTS)
    if unknown := set(names) - set(_FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(_FAULTS)}")
    _adopt_orphans()
    print("| | fault | what happened | seconds | left |\n|---|---|---|---|---|")
    broken = []
    for name in names:
        results = [_happen(_FAULTS[name], args.quick) for _ in range(args.rounds)]
        print(_row(name, results), flush=True)
        if not all(result.as_promised and not any(result.left) for result in results):
            broken.append(name)
    print(f"\n{len(names) - len(broken)} of {len(names)} as promised" + (f"; not {', '.join(broken)}" * bool(broken)))


def _row(name: str, results: Sequence[Result]) -> str:
    texts = Counter(result.text for result in results)
    text = "; ".join(f"{count} of {len(results)}: {each}" if len(texts) > 1 else each for each, count in texts.items())
    text = text.replace("|", "/").replace("\n", " ")  # a cell of Markdown
    if not all(result.as_promised for result in results):
        text = f"**{text}**"
    seconds = [result.seconds for result in results if result.seconds is not None]
    took = f"{statistics.median(seconds):.2f}" if seconds else "-"
    if len(seconds) > 1:
        took += f" ({min(seconds):.2f} to {max(seconds):.2f})"
    kinds = ("processes", "descriptors", "/dev/shm", "temporary")
    most = [max(counts) for counts in zip(*(result.left for result in results), strict=True)]
    left = ", ".join(f"**{count} {kind}**" for count, kind in zip(most, kinds, strict=True) if count) or "nothing"
    return f"| {name} | {_FAULTS[name].text} | {text} | {took} | {left} |"


def _happen(fault: Fault, quick: bool) -> Result:
    """Runs the process of a fault, does to it what is to be done, and counts what is left."""
    prefix: list[str] = []
    if fault.small_shm:
        unshare = _unshare()
        if unshare is None:
            return Result("not done: this system allows no mount namespace", as_promised=True)
        prefix = [*unshare, "sh", "-c", _SMALL_SHM, "sh"]
    with tempfile.TemporaryDirectory() as directory:
        scratch, temporary = Path(directory, "scratch"), Path(directory, "tmp")
        scratch.mkdir()
        temporary.mkdir()
        shm_before = set(os.listdir("/dev/shm"))
        command = [sys.executable, __file__, "--live", fault.work, "--scratch", str(scratch), *["--quick"] * quick]
        with open(scratch / "said", "w+") as said:
            process = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=os.environ | {"TMPDIR": str(temporary)},
                start_new_session=True,
            )
            signalled_s = _await_end(process, fault, scratch / "ready")
            last_line = (Path(said.name).read_text().strip().splitlines() or ["nothing"])[-1][:_TEXT_LENGTH]
        ended, gone_s, alive = _await_descendants(process)
        left_shm = len(set(os.listdir("/dev/shm")) - shm_before)
        left_temporary = sum(1 for _ in temporary.rglob("*"))
        report = scratch / "report"
        told = json.loads(report.read_text()) if report.exists() else {}
    left = (max(alive, told.get("processes", 0)), told.get("descriptors", 0), left_shm, left_temporary)
    if not ended:
        return Result(f"hangs: no end within {_LIMIT_S:.0f} s; said: {last_line}", as_promised=False, left=left)
    if fault.sent is not None and signalled_s is not None:
        took_s = gone_s - signalled_s
        word = "killed" if fault.sent == signal.SIGKILL else last_line
        as_promised = word in ("killed", "KeyboardInterrupt") and took_s <= fault.ends_within_s
        return Result(f"ends: {word}", as_promised, took_s, left)
    if not told:
        text = f"training process gone, status {process.returncode}; said: {last_line}"
        return Result(text, as_promised=False, left=left)
    return Result(told["text"], told["as_promised"], told["seconds"], left)


def _await_end(process: "subprocess.Popen[bytes]", fault: Fault, ready: Path) -> float | None:
    """Waits until the process has ended, or its time; sends the fault's signal and returns when that was."""
    deadline_s = time.monotonic() + _LIMIT_S
    signalled_s = None
    while time.monotonic() < deadline_s and process.poll() is None:
        if fault.sent is not None and signalled_s is None and ready.exists():
            time.sleep(random.uniform(0, 0.1))  # any moment of the work
            signalled_s = time.monotonic()
            send = os.killpg if fault.to_group else os.kill
            send(process.pid, fault.sent)
        time.sleep(0.005)
    return signalled_s


def _await_descendants(process: "subprocess.Popen[bytes]") -> tuple[bool, float, int]:
    """Returns whether the process had ended, when the last of its descendants was gone, and how many never went.

    Those are killed. Orphans become children of this process, so that none is missed.
    """
    ended = process.poll() is not None
    deadline_s = time.monotonic() + (_GONE_S if ended else 0)
    while (alive := _living_children()) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    gone_s = time.monotonic()
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    while _living_children():
        time.sleep(0.005)
    return ended, gone_s, len(alive) - (not ended)


def _living_children() -> list[int]:
    """Returns descendants of this process, after those that have ended were taken leave of."""
    alive = []
    for pid in descendants(os.getpid()):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                alive.append(pid)
        except ChildProcessError:  # a child's child, or one that was waited for already
            if Path(f"/proc/{pid}").exists():
                alive.append(pid)
    return alive


def _adopt_orphans() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _unshare() -> list[str] | None:
    """Returns the command that gives a process mounts of its own, as root or in a user namespace; None for neither."""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0
        ):
            return command
    return None


if __name__ == "__main__":
    main()
