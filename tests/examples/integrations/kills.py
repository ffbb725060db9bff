"""A run that is killed at a random step, goes on with another number of ranks, and has the losses of a whole run.

Losses are compared to the bit. All sums of them are exact, in any order: they are of small integers and of these over
powers of two.
"""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from tests.adapters.ranks import require_success, run_ranks

EXAMPLES = Path(__file__).parents[3] / "examples" / "integrations"
STEPS, SAVE_EVERY = 12, 2

START = f"""
import json, os, signal, sys
sys.path[:0] = [{str(EXAMPLES)!r}, sys.argv[1] + "/stubs"]
folder, run, kill_rank, kill_step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
STEPS, SAVE_EVERY = {STEPS}, {SAVE_EVERY}
rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def kill_if(step):
    if (rank, step) == (kill_rank, kill_step):
        os.kill(os.getpid(), signal.SIGKILL)

def write(step, loss):
    with open(f"{{folder}}/{{run}}-{{rank}}.losses", "a") as file:
        file.write(json.dumps([step, float(loss).hex()]) + "\\n")
"""

# One weight for each number that an element may be, and a loss that is linear in the weights.
TORCH = (
    START
    + """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights, gradient, loss = (torch.zeros(size, dtype=torch.float64) for size in (300, 300, 1))

def learn_from(numbers, signs):
    numbers, signs = numbers.flatten().long(), signs.flatten().double()
    loss.add_((weights[numbers] * signs).sum() / 1024)
    gradient.add_(torch.bincount(numbers, signs, 300) / 1024)

def end_step(step):
    for each in (loss, gradient):
        dist.all_reduce(each)
    write(step, loss)
    weights.sub_(gradient)
    loss.zero_(), gradient.zero_()
"""
)


class Killed(NamedTuple):
    """Where a run ends."""

    counts: tuple[int, int]
    """Ranks, before and after."""
    rank: int
    step: int
    """During which it is killed, from 0 on."""


def drawn(seed: int, counts: tuple[int, ...] = (1, 2, 4)) -> Killed:
    """The kill of this seed, at least two steps behind the first checkpoint, and not in the step that saves."""
    draw = random.Random(seed)
    before, after = draw.sample(counts, 2)
    steps = [step for step in range(SAVE_EVERY + 1, STEPS) if step % SAVE_EVERY]
    return Killed((before, after), draw.randrange(before), draw.choice(steps))


def run(script: str, folder: Path, count: int, name: str, kill: tuple[int, int] = (-1, -1), **options: Any) -> Any:
    """Runs a script in ranks. Returns how they ended."""
    return run_ranks(script, count, folder, name, *kill, timeout_s=250, **options)


def losses(folder: Path, name: str, count: int) -> dict[int, float]:
    """The loss of each step of a run that all ranks took: the mean over them."""
    found: dict[int, list[float]] = {}
    for path in folder.glob(f"{name}-*.losses"):
        for line in path.read_text().splitlines():
            step, loss = json.loads(line)
            found.setdefault(step, []).append(float.fromhex(loss))
    return {step: sum(each) / count for step, each in sorted(found.items()) if len(each) == count}


def require_the_same_losses(
    script: str, folder: Path, killed: Killed, want: dict[int, float] | None = None, **options: Any
) -> None:
    """Kills a run, lets it go on, and compares its losses.

    Args:
        script: Begins with `START`, and has checkpoints in the folder of its first argument.
        folder: For all files of the runs.
        killed: Where the first run ends.
        want: The losses of a whole run; by default the script runs in one rank.
        options: Of `run_ranks`.
    """
    before, after = killed.counts
    ended = run(script, folder, before, "first", (killed.rank, killed.step), **options)
    assert ended[killed.rank].status == -9, ended[killed.rank].err[-3000:]
    require_success(run(script, folder, after, "second", **options))
    first, second = losses(folder, "first", before), losses(folder, "second", after)
    if want is None:
        (folder / "whole").mkdir()
        for each in folder.iterdir():
            if each.name in ("stubs", "data"):
                (folder / "whole" / each.name).symlink_to(each)
        require_success(run(script, folder / "whole", 1, "whole", **options))
        want = losses(folder / "whole", "whole", 1)
    assert list(want) == list(range(STEPS))
    assert len(set(want.values())) == STEPS  # or they would tell nothing
    saved = killed.step - killed.step % SAVE_EVERY
    assert list(second) == list(range(saved, STEPS))
    assert set(range(saved)) <= set(first) <= set(range(killed.step))
    assert first | second == want
    assert first.items() <= want.items()
