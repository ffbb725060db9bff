"""The Python that runs worker processes.

A frozen program, and one that embeds Python, has itself as `sys.executable`. Started as a worker, it would run the
program again, which would start workers, without end.
"""

import os
import re
import sys
from typing import Final

WORKER_OF: Final = "PENSTOCK_WORKER_OF"
"""In the environment of a worker until it begins: the process that started it."""
_CURE: Final = (
    "Use executor='threads', or name a Python of this version that has the same packages: "
    "multiprocessing.set_executable('/usr/bin/python3')."
)


def interpreter() -> str:
    """Returns the path of the Python that runs worker processes: `sys.executable`, or what the user named."""
    spawn = sys.modules.get("multiprocessing.spawn")
    named = None if spawn is None else spawn.get_executable()
    return os.fsdecode(named or sys.executable or "")


def why_no_interpreter() -> str:
    """Returns why worker processes cannot run, and what helps; an empty text if they can."""
    path = interpreter()
    if os.environ.get(WORKER_OF) == str(os.getppid()):
        return f"This process was started as a worker process, and {path} ran the program instead. {_CURE}"
    if path != (sys.executable or ""):
        return ""
    if getattr(sys, "frozen", False):
        return f"This program is frozen, so a worker process would run all of {path} again. {_CURE}"
    if not re.search("py|hython", os.path.basename(path).lower()):
        return f"Worker processes are started with sys.executable, and {path!r} is no Python by its name. {_CURE}"
    return ""
