"""Runs the contenders of a benchmark: each case in a fresh process, in turn, for some rounds of one run.

A benchmark is a script with cases (a name and a function that returns numbers) and targets (a number of one
round and its bound). `run` starts the script once for each case and round; the child prints nothing and
leaves its numbers in a file. Cases start one place later in each round, so that none is always first. Ratios
are taken within a round, where the machine is the same for all, and reported with their spread over rounds.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Numbers = dict[str, float]
"""What one case measured in one round: column title to value."""

Round = Mapping[str, Numbers]
"""One round: case name to its numbers."""

Array = np.ndarray[Any, Any]

Epoch = Callable[[], Iterable[Sequence[Array]]]
"""Starts an epoch: an iterable of batches, each a sequence of arrays whose first axis is samples."""

_EXIT_TIMEOUT_S = 10
_POLL_S = 0.05
_WARM_UP_S = 1.0
_CHUNK_NBYTES = 64 << 20
MIB = float(1 << 20)
_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONWARNINGS": "ignore",
    "GLOG_minloglevel": "3",
    "JAX_PLATFORMS": "cpu",
}


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    quick: bool
    """One round, and less repetition inside it."""
    cold: bool
    """The file's pages are dropped from the page cache before each case."""


@dataclass(frozen=True)
class Target:
    """A bound on a number that each round gives."""

    text: str
    """What the number is, for the report."""
    number: Callable[[Round], float]
    """Computes it from one round, case name to numbers; `KeyError` where a case is missing."""
    at_least: float | None = None
    at_most: float | None = None


def ratio(case: str, others: Sequence[str], column: str = "samples/s") -> Callable[[Round], float]:
    """Returns the function of a round that divides `case` by the best of `others` that ran."""

    def number(round_: Round) -> float:
        return round_[case][column] / max(round_[other][column] for other in others if other in round_)

    return number


def part_of_twice(case: str, serial: str = "serial") -> Callable[[Round], float]:
    """Returns the function of a round that divides the speed of `case` by twice the speed of `serial`."""
    return lambda round_: round_[case]["samples/s"] / (2 * round_[serial]["samples/s"])


def value(case: str, column: str) -> Callable[[Round], float]:
    """Returns the function of a round that looks up one number."""
    return lambda round_: round_[case][column]


def run(
    script: str,
    cases: Mapping[str, Callable[[Options], Numbers]],
    targets: Callable[[Options], Sequence[Target]],
    *,
    round_count: int = 5,
    case_timeout_s: float = 600,
) -> None:
    """Is the `main` of a benchmark: parses the command line, runs the cases, prints table and targets.

    Args:
        script: the benchmark's `__file__`.
        cases: name to function; each call has a process of its own.
        targets: the bounds that hold under the options.
        round_count: how many rounds, where the command line does not say.
        case_timeout_s: a case that takes longer is ended, and has no numbers.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, help=f"default: 1 with --quick, otherwise {round_count}")
    parser.add_argument("--cold", action="store_true", help="drop the file's pages before each case")
    parser.add_argument("--only", help="comma-separated names of the cases to run")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    options = Options(quick=args.quick, cold=args.cold)
    if args.case:
        unfinished = args.result.with_suffix(".part")
        unfinished.write_text(json.dumps(cases[args.case](options)))
        unfinished.rename(args.result)
        return
    names = args.only.split(",") if args.only else list(cases)
    if unknown := set(names) - set(cases):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    round_count = args.rounds or (1 if args.quick else round_count)
    rounds: list[dict[str, Numbers]] = []
    for index in range(round_count):
        turn = index % len(names)
        order = names[turn:] + names[:turn]
        done = {
            name: numbers for name in order if (numbers := _run_case(script, name, options, case_timeout_s)) is not None
        }
        rounds.append({name: done[name] for name in names if name in done})
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1))
    cache = ", cold page cache" if options.cold else ""
    print(f"\n{Path(script).stem}{cache}, {round_count} round{'s' * (round_count > 1)}, {_machine()}")
    _print_table(rounds)
    _print_targets(rounds, targets(options))


def _run_case(script: str, name: str, options: Options, timeout_s: float) -> Numbers | None:
    """Returns what the case measured in a process of its own; None, said on stderr, where it failed."""
    flags = ["--quick"] * options.quick + ["--cold"] * options.cold
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        result, errors = Path(scratch, "result.json"), Path(scratch, "errors")
        command = [sys.executable, script, "--case", name, "--result", str(result), *flags]
        with open(errors, "w") as file:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=os.environ | _QUIET,
                start_new_session=True,
            )
            try:
                _await_result(child, result, timeout_s)
            finally:
                with contextlib.suppress(ProcessLookupError):  # with what it may have left, or it would disturb others
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        # Some frameworks crash or hang while the interpreter exits: what counts is whether the numbers were written.
        if not result.exists():
            last_lines = "\n    ".join(errors.read_text().strip().splitlines()[-8:])
            took = f"exit code {child.returncode} after {time.perf_counter() - began_s:.0f} s"
            print(f"  {name}: failed with {took}\n    {last_lines}", file=sys.stderr)
            return None
        numbers: Numbers = json.loads(result.read_text())
    print(f"  {name}: {time.perf_counter() - began_s:.1f} s in all", file=sys.stderr, flush=True)
    return numbers


def _await_result(child: "subprocess.Popen[bytes]", result: Path, timeout_s: float) -> None:
    """Waits for the process to end, or its time; and for a moment only once its numbers are there."""
    deadline_s = time.monotonic() + timeout_s
    while child.poll() is None and time.monotonic() < deadline_s:
        if result.exists():
            deadline_s = min(deadline_s, time.monotonic() + _EXIT_TIMEOUT_S)
        time.sleep(_POLL_S)


def _machine() -> str:
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown CPU")
    return (
        f"{len(os.sched_getaffinity(0))} cores of {cpu}, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}"
    )


def _print_table(rounds: Sequence[Round]) -> None:
    names = list(dict.fromkeys(name for round_ in rounds for name in round_))
    columns = list(dict.fromkeys(key for round_ in rounds for numbers in round_.values() for key in numbers))
    rows = [["case", *columns]]
    for name in names:
        cells = []
        for column in columns:
            values = [round_[name][column] for round_ in rounds if column in round_.get(name, {})]
            cells.append(_with_spread(values) if values else "")
        rows.append([name, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_targets(rounds: Sequence[Round], targets: Sequence[Target]) -> None:
    for target in targets:
        values = []
        for round_ in rounds:
            try:
                values.append(target.number(round_))
            except (KeyError, ValueError):
                continue  # a case of it was not asked for, or failed and was said above
        if not values:
            print(f"{target.text}: not measured")
            continue
        median = statistics.median(values)
        if target.at_least is not None:
            bound, met = f"at least {target.at_least:g}", median >= target.at_least
        elif target.at_most is not None:
            bound, met = f"at most {target.at_most:g}", median <= target.at_most
        else:
            print(f"{target.text}: {_with_spread(values)}")
            continue
        print(f"{target.text}: {_with_spread(values)}, wanted {bound}: {'met' if met else 'NOT MET'}")


def _with_spread(values: Sequence[float]) -> str:
    median = _short(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({_short(min(values))} to {_short(max(values))})"


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def bench_dir() -> Path:
    """Returns the directory of the data files: `PENSTOCK_BENCH_DIR`, or one in the temporary directory."""
    directory = Path(os.environ.get("PENSTOCK_BENCH_DIR") or Path(tempfile.gettempdir(), "penstock-bench"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def npy_file(name: str, shape: tuple[int, ...], dtype: str, *, sparse: bool = False) -> Path:
    """Returns a `.npy` of random numbers in [0, 1), made once and kept; a sparse one is a hole of zeros.

    Memory: 64 MiB while it is made.
    """
    path = bench_dir() / name
    if path.exists():
        return path
    unfinished = path.with_suffix(".part")
    row_nbytes = int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
    chunk_count = max(1, _CHUNK_NBYTES // row_nbytes)
    rng = np.random.default_rng(0)
    with open(unfinished, "wb") as file:
        descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        if sparse:
            file.truncate(file.tell() + shape[0] * row_nbytes)
        for start in range(0, 0 if sparse else shape[0], chunk_count):
            rows = min(chunk_count, shape[0] - start)
            file.write(rng.random((rows, *shape[1:]), dtype=np.float32).astype(dtype).tobytes())
    unfinished.rename(path)
    return path


def read_every_byte(leaves: Iterable[Array]) -> int:
    """Is the consumer of every contender: sums each contiguous leaf as 8-byte integers, as fast as memory is read."""
    return sum(int(leaf.reshape(-1).view(np.uint64).sum()) for leaf in leaves)


def time_epochs(epoch: Epoch, options: Options) -> Numbers:
    """Runs epochs with `read_every_byte` as the consumer and returns samples/s and the time to a first batch.

    Warm, the first epoch only warms up and the rate is that of the epochs after it, for at least 2 s (0.5 s
    with `--quick`), each timed from its `iter` to its last batch. Cold, the first epoch is the one measured.

    Args:
        epoch: starts one epoch after another.
        options: `cold` and `quick` are obeyed.
    """
    sample_count, elapsed_s, first_batch_s = _time_epoch(epoch)
    if not options.cold:
        sample_count, elapsed_s = 0, 0.0
        while elapsed_s < (0.5 if options.quick else 2.0):
            counted, epoch_s, _ = _time_epoch(epoch)
            sample_count, elapsed_s = sample_count + counted, elapsed_s + epoch_s
    return {"samples/s": sample_count / elapsed_s, "first batch ms": 1e3 * first_batch_s}


def _time_epoch(epoch: Epoch) -> tuple[int, float, float]:
    """Returns samples, seconds from `iter` until the last batch is read, and seconds to the first batch."""
    sample_count, first_batch_s = 0, 0.0
    began_s = time.perf_counter()
    for leaves in epoch():
        if not sample_count:
            first_batch_s = time.perf_counter() - began_s
        read_every_byte(leaves)
        sample_count += len(leaves[0])
    return sample_count, time.perf_counter() - began_s, first_batch_s


def time_steady(batches: Iterable[Sequence[Array]], options: Options, *, gap_count: int = 0) -> Numbers:
    """Reads batches with `read_every_byte` as the consumer and returns what holds once all is under way.

    The rate is that of at least 3 s of batches (0.5 s with `--quick`), after a first second that warms up, so that
    the start of workers is not in it. Batches that end sooner end it.

    Args:
        batches: an epoch, long or endless.
        options: `quick` is obeyed.
        gap_count: where above 0, at least so many gaps between batches are measured too (20 with `--quick`), from
            hand-over to hand-over; their median, and their 99th percentile over the median, are returned as well.
    """
    warm_up_s, rated_s = (_WARM_UP_S / 4, 0.5) if options.quick else (_WARM_UP_S, 3.0)
    least_count = min(gap_count, 20) if options.quick else gap_count
    began_s = time.perf_counter()
    first_s, sample_count = 0.0, 0
    arrivals_s: list[float] = []
    for leaves in batches:
        arrived_s = time.perf_counter()
        read_every_byte(leaves)
        first_s = first_s or arrived_s
        if arrived_s < first_s + warm_up_s:
            continue
        sample_count += len(leaves[0]) if arrivals_s else 0
        arrivals_s.append(arrived_s)
        if arrived_s >= arrivals_s[0] + rated_s and len(arrivals_s) > least_count:
            break
    if len(arrivals_s) < 2:
        raise RuntimeError(f"The batches ended within the {warm_up_s} s that warm up.")
    numbers = {
        "samples/s": sample_count / (arrivals_s[-1] - arrivals_s[0]),
        "first batch ms": 1e3 * (first_s - began_s),
    }
    if gap_count:
        gaps_s = np.diff(arrivals_s)
        numbers["gap ms"] = 1e3 * float(np.median(gaps_s))
        numbers["p99/median"] = float(np.quantile(gaps_s, 0.99) / np.median(gaps_s))
    return numbers
