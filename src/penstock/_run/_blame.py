"""Whose fault the end of a worker was, and what is said of it."""

from typing import Final

from penstock._errors import DeadlineError, WorkerError
from penstock._run._child import Child
from penstock._run._tenant import Job

DEATH_COUNT: Final = 3
"""How many workers a unit may cost before it is an error: one may have been somebody else's doing."""
HANG_COUNT: Final = 2
"""How many workers may stand still on a unit for `timeout_s` each."""


def blame(child: Child, job: Job, trace: tuple[int, ...]) -> Exception | None:
    """Counts a unit that a worker did not survive.

    Args:
        child: The worker, reaped.
        job: What it was at.
        trace: Where in it: see `Trace`.

    Returns:
        An error if it was one too many; None if the unit is to be done again.
    """
    if job.unit.ticket <= job.plan.words[0]:
        return None  # given up: whoever gets it does not run it
    step, epoch, index = trace
    if step:
        at = f"{job.plan.steps[step - 1]} on element {index} of epoch {epoch}"
    else:
        at = job.plan.receiver.describe(job.unit)
    if child.asked_at:
        job.hangs += 1
        state = "was stopped, by SIGSTOP." if child.was_stopped else f"was here:\n{child.stack.strip()}\n"
        text = f"{child} did not get on for timeout_s={job.plan.timeout_s:g} s with {at}. It {state}"
        if job.hangs >= HANG_COUNT:
            return DeadlineError(
                f"{text} It was killed, the second worker in a row that did not get on there. If that is how long it "
                "takes, raise timeout_s."
            )
    else:
        job.deaths += 1
        text = f"{child} {child.ending} while it was at {at}."
        if job.deaths >= DEATH_COUNT:
            return WorkerError(
                f"{text} It was the third worker in a row that ended there. {child.likely_cause()} "
                "executor='inline' runs it in this process, under a debugger if you like."
            )
    job.plan.note(f"{text} A new worker does its work again.", is_warning=True)
    return None
