"""Which elements does a run lose or see twice, when it is killed and goes on with other ranks, workers and batches?

Question: A run feeds a number of ranks. It is killed a hundred times, and goes on with 1 to 64 ranks, other numbers of
worker processes, other parts of a step and other batches. Against the same run without events: which elements were
never trained on, which came twice, which came in another step, and which had other bytes?

Method: `python benchmarks/resize.py`; `--quick` has 12 events in place of 100. Each life of the run is a process of
its own, which simulates the ranks one after the other. It saves after some steps, makes up to two more, and ends: it
exits, or signal 9 ends it after half of the ranks have had their part of a step. In a third kind of life, signal 9
ends a worker process before the second step. What was trained on after the save is taken back, as the weights are.
Events come from a seed, and are the same for all. A phase that a contender refuses counts as refused; it then goes on
from the same state with the ranks, workers and batch that it last took. A loader that raises when a worker dies starts
again from its last state. Where ranks do not divide a batch, a contender takes the next smaller batch that they
divide, if it can.

The run without events has 4 ranks. Within a step the order has no meaning. `lost`: elements of steps that are over,
never trained on. `repeated`: came again. `moved`: came in another step, or in another row or batch. `steps differ`: at
least one element or bit is another. `bits differ`: elements with other bytes, such as other random numbers.

Jobs: `shuffled` is batches of 192 of 98,304 numbers in random order, with one random number each. `packed` is three
corpora of documents with known lengths in files, without those that a function of their tokens rejects, packed into
rows of 256 tokens by best fit, and mixed with weights that change at row 4,000; a step is 64 rows. `pictures` is
pictures and captions, flipped and brightened at random, in batches of at most 1,024 tokens of caption, padding
included; a step is one or two whole batches of each rank.

`far` is the first batch on one rank, at the beginning and at batch 1,000,000 of 8 of 8,400,000 elements.

Machine: two cores of an AMD EPYC in a virtual machine, busy with other work, Linux 6.18, Python 3.11.7, NumPy 2.4.6,
2026-11-28. torch 2.13, Grain 0.2.18, accelerate 1.15, torchdata 0.11, datasets 5.2, Energon 7.4.1, Lhotse 1.33,
LanceDB 0.40, LitData 0.2.76, MosaicML Streaming 0.13 (without its bounds on NumPy and transformers).

Result, seed 1: 100 events of penstock, 20 of the others; refused, lost, repeated, moved, bits differ, bytes of state:

`shuffled`

    penstock                 0 of 100        0      0       0        0       144
    torch by hand            0 of 20         0      0       0        0        40
    Grain                    0 of 20         0      0       0        0        38
    MosaicML Streaming       0 of 20         0      0       0   10,351       115
    Energon                  5 of 6          0      0       0        0   109,597
    accelerate               2 of 20         0      0       0   10,368   171,140
    LanceDB                  3 of 20         0      0       0   10,368     5,382
    LitData                  0 of 20       192    367   4,830   10,351     2,870
    StatefulDataLoader       9 of 20     4,764    920   9,007   10,543     1,850
    Hugging Face streaming  19 of 20     5,428    384   8,964   10,560     6,154

`packed`

    penstock                 0 of 100        0      0       0        0       305
    torch by hand            0 of 20         0      0       0        0        40
    Grain                   19 of 20         0      0       0        0       436
    torchtitan's recipe     19 of 20         0      0       0        0     3,691

`pictures`

    penstock                 0 of 100        0      0       0        0       120
    torch by hand            0 of 20         0      0       0        0        40
    Lhotse                  19 of 20         0      0       0   10,489       622

Where we lose. torch by hand is as exact in all jobs, with a state of 40 bytes, and Grain in `shuffled`, with 38. In
`packed`, torch by hand took 0.45 (one rank) and 0.17 (four) of the processor time, before rows were laid in one native
call; that made it 0.73 of itself. On 2026-11-29, quiet, `--quick`: `packed` penstock 11,947 rows a second, by hand
9,606.

Times of `--quick` on the same machine without other work, 6.5 minutes in all. Seconds to the first batch after a stop,
without workers and with some, and units a second: `shuffled` penstock 0.02, 0.55 and 138,883, by hand 0.01, 0.06 and
91,459, StatefulDataLoader 0.03 and 210,847, Grain 2.48, 2.28 and 6,225; `packed` penstock 0.20, 0.53 and 7,253, by hand
0.26, 0.33 and 9,321; `pictures` penstock 0.14, 0.40 and 666, by hand 0.25, 0.26 and 693. At batch 1,000,000 of `far`,
two runs: penstock 0.008, with two workers 0.25 and 0.26; Grain 0.11, 0.09 and 0.45, 0.46; by hand 0.34 and 0.47, 0.34;
accelerate 1.2, 1.0 and 1.4, 1.1. (Busy, four ranks, 20 events: by hand 1.6 times our rows of `packed`.)

Not shown: ranks on several machines; the filter is a mask of penstock, made once, because a stream has no best fit;
MosaicML's ranks are threads in place of processes; Energon's tool that deals states out anew; random numbers are drawn
as guides show it, from torch's generator, where a function seeded with the number of the element would be exact for
all.
"""

import argparse
import importlib.metadata
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from _harness import _machine
from _resize_all import CONTENDERS
from _resize_compare import compare
from _resize_jobs import JOBS, ROW, Job, Phase, phases
from _resize_runs import run_life, run_lives

_CASE_TIMEOUT_S = 3600
_CONTROL_STEPS = 10
_SHOWN = 110
"""Characters of a message that the table prints."""

COLUMNS = {
    "refused": "refused",
    "died": "died with a worker",
    "lost": "lost",
    "repeated": "repeated",
    "moved": "moved",
    "steps": "steps differ",
    "bits": "bits differ",
    "state": "state, bytes",
    "resume": "resume, s",
    "resume_workers": "with workers, s",
    "rate": "units/s",
}


def measure(name: str, job: Job, event_count: int, seed: int) -> dict[str, Any]:
    """Runs one contender through the events of a job, and once without any, and returns what differs."""
    contender = CONTENDERS[name]
    run = run_lives(contender, job.name, phases(job, event_count, seed))
    units = sum(map(len, run.steps))
    least_steps = job.least_steps if event_count > QUICK else job.least_steps // 5
    whole = replace(job.start, steps=max(units // job.start.batch + 2, least_steps))
    reference = run_life(contender, job.name, whole, None)
    if reference.error and not reference.steps:
        return {"failed": reference.error}
    control = run_life(contender, job.name, replace(whole, steps=_CONTROL_STEPS), None)
    difference = compare(reference.steps, run.steps)
    resumes = [[taken for workers, taken in run.resumes_s if bool(workers) == with_workers] for with_workers in (0, 1)]
    counts = asdict(difference)
    return counts | {
        "refused": len(run.refusals),
        "died": len(run.worker_deaths),
        "of_steps": len(run.steps),
        "lives": run.life_count,
        "stopped": run.stopped,
        "control": asdict(compare(reference.steps, control.steps)),
        "state": max(run.state_nbytes, default=0),
        "resume": statistics.median(resumes[0]) if resumes[0] else None,
        "resume_workers": statistics.median(resumes[1]) if resumes[1] else None,
        "fresh": reference.first_s,
        "rate": sum(map(len, reference.steps)) / (reference.first_s + reference.rest_s),
        "messages": Counter(message for _, message in run.refusals).most_common(),
        "deaths": Counter(run.worker_deaths).most_common(1),
    }


QUICK = 12
"""Events with `--quick`; speeds are then taken over fewer steps, and say less."""
FAR_BATCH, FAR_PLACE, FAR_COUNT = 8, 1_000_000, 8_400_000
FAR: dict[str, Callable[[Any], Any]] = {
    "penstock": lambda state: state | {"position": FAR_PLACE},
    "torch by hand": lambda state: state | {"position": FAR_PLACE * FAR_BATCH},
    "Grain": lambda state: dict.fromkeys(state, FAR_PLACE * FAR_BATCH),
    "accelerate": lambda state: state | {"elements": FAR_PLACE * FAR_BATCH},
}
"""Makes a state at batch `FAR_PLACE` of one after the first batch, for contenders whose state is a position."""


def measure_far(name: str) -> dict[str, Any]:
    """Measures the seconds to a first batch, fresh and far on, on one rank; the median of three."""
    contender, found = CONTENDERS[name], {}
    for workers in (0, 2):
        phase = Phase(1, workers, FAR_BATCH, 1, 1)
        fresh = [run_life(contender, "shuffled", phase, None) for _ in range(3)]
        if fresh[0].error or fresh[0].state is None:
            return {"failed": fresh[0].error}
        state = pickle.dumps(FAR[name](pickle.loads(fresh[0].state)))
        resumed = [run_life(contender, "shuffled", phase, state) for _ in range(3)]
        if resumed[0].error:
            return {"failed": resumed[0].error}
        for title, lives in (("fresh", fresh), ("far", resumed)):
            found[f"{title}, {workers} workers"] = statistics.median(life.first_s for life in lives)
    return found


def _print_far(results: dict[str, dict[str, Any]]) -> None:
    print(f"\n## seconds to a first batch of {FAR_BATCH}, fresh and at batch {FAR_PLACE:,}, on one rank\n")
    for name, found in results.items():
        line = found.get("failed") or ", ".join(f"{title} {taken:.3f}" for title, taken in found.items())
        print(f"{name}: {line[:_SHOWN]}")


def _run_case(name: str, job: str, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch, "result.json")
        flags = [
            "--case",
            f"{job}:{name}",
            "--result",
            str(result),
            "--events",
            str(args.events),
            "--seed",
            str(args.seed),
        ]
        here = str(Path(__file__).parent)
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        quiet = {"PYTHONWARNINGS": "ignore", "PENSTOCK_RESIZE_DIR": scratch, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        if job == "far":
            quiet["PENSTOCK_RESIZE_ELEMENTS"] = str(FAR_COUNT)
        with open(Path(scratch, "errors"), "w") as errors:
            done = subprocess.run(
                [sys.executable, __file__, *flags],
                stdout=errors,
                stderr=errors,
                env=os.environ | quiet,
                timeout=_CASE_TIMEOUT_S,
                check=False,
            )
        if result.exists():
            found: dict[str, Any] = json.loads(result.read_text())
            return found
        lines = Path(scratch, "errors").read_text().strip().splitlines()
        return {"failed": f"exit code {done.returncode}: {' '.join(lines[-1:])}"}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _print_job(job: Job, results: dict[str, dict[str, Any]]) -> None:
    print(f"\n## {job.title}\n")
    for line in _behind(results):
        print(f"behind: {line}")
    rows = [["", *COLUMNS.values()]]
    for name, found in results.items():
        if "failed" in found:
            rows.append([name, found["failed"][:_SHOWN]])
            continue
        cells = [_cell(key, found) for key in COLUMNS]
        rows.append([name, *cells])
    widths = [
        max(len(row[place]) if place < len(row) else 0 for row in rows if len(row) != 2)
        for place in range(len(rows[0]))
    ]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip())
    for name, found in results.items():
        if "failed" in found:
            continue
        if any(found["control"].values()):
            print(f"{name}: differs from itself without any event: {found['control']}")
        if found["stopped"]:
            print(f"{name}: stopped after {found['lives']} lives: {found['stopped'][:_SHOWN]}")
        for message, count in found["messages"][:3]:
            print(f"{name}: refused {count}: {' '.join(message.split())[:_SHOWN]}")
        for message, _ in found["deaths"]:
            print(f"{name}: when a worker was killed: {' '.join(message.split())[:_SHOWN]}")


def _cell(key: str, found: dict[str, Any]) -> str:
    value = found[key]
    if value is None:
        return "-"
    if key == "steps":
        return f"{value:,} of {found['of_steps']:,}"
    if key == "refused":
        return f"{value:,} of {found['lives']:,}"
    return f"{value:,.2f}" if key in ("resume", "resume_workers") else f"{value:,.0f}"


def _behind(results: dict[str, dict[str, Any]]) -> list[str]:
    """Returns where another contender has a better number than penstock: a line for each column."""
    ours = results.get("penstock")
    if ours is None or "failed" in ours:
        return []
    lines = []
    for key, title in COLUMNS.items():
        sign = -1 if key == "rate" else 1
        values = {name: found[key] for name, found in results.items() if found.get(key) is not None}
        if "penstock" not in values:
            continue
        best = min(values, key=lambda name: sign * values[name])
        if sign * values[best] < sign * values["penstock"]:
            lines.append(f"{title}: {_cell(key, results['penstock'])}, {best} {_cell(key, results[best])}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="12 events in place of 100")
    parser.add_argument("--events", type=int, help="lives of each run; default 100")
    parser.add_argument("--seed", type=int, default=1, help="of the events")
    parser.add_argument("--only", help="comma-separated names of contenders")
    parser.add_argument("--jobs", default=",".join([*JOBS, "far"]), help="comma-separated names of jobs")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.events = args.events or (QUICK if args.quick else 100)
    if args.case:
        job, name = args.case.split(":")
        unfinished = args.result.with_suffix(".part")
        found = measure_far(name) if job == "far" else measure(name, JOBS[job], args.events, args.seed)
        unfinished.write_text(json.dumps(found))
        unfinished.rename(args.result)
        return
    names = args.only.split(",") if args.only else list(CONTENDERS)
    installed = [name for name in names if _version(CONTENDERS[name].package)]
    everything: dict[str, dict[str, dict[str, Any]]] = {}
    for job in args.jobs.split(","):
        everything[job] = {}
        for name in installed:
            if name in FAR if job == "far" else job in CONTENDERS[name].jobs:
                print(f"  {job}: {name}", file=sys.stderr, flush=True)
                everything[job][name] = _run_case(name, job, args)
                if args.json:
                    args.json.write_text(json.dumps(everything, indent=1))
    print(f"{args.events} events, seed {args.seed}, {_machine()}")
    print(", ".join(f"{name} ({CONTENDERS[name].package} {_version(CONTENDERS[name].package)})" for name in installed))
    for job, results in everything.items():
        if job == "far":
            _print_far(results)
            continue
        _print_job(JOBS[job], results)
        for name in installed:
            if job not in CONTENDERS[name].jobs:
                print(f"{name}: not offered: {CONTENDERS[name].lacks}")
    if missing := [name for name in names if name not in installed]:
        print(f"\nnot installed: {', '.join(missing)}")
    print(f"\nA unit is an element, a row of {ROW} tokens, or a batch of pictures.")


if __name__ == "__main__":
    main()
