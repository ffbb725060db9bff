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
# A word that ends in `python` or is that of another Python, its version, and how it was built: `python3.13t`,
# `python_d.exe`, `python3-intel64`, `x86_64-linux-gnu-python3`, `hython` of Houdini, `mayapy` of Maya.
_PYTHON: Final = re.compile(
    r"(?:.*[-_])?(?:\w*python|hython|mayapy|pypy|graalpy|py)(?:w|\d[\d.]*[a-z]{0,2})?"
    r"(?:[-_](?:c|d|config|[a-z\d]*\d[a-z\d]*))*(?:\.(?:exe|bin))?"
)
_AT_START: Final = sys.executable
"""What Python said of this program. `multiprocessing` keeps it, even if a program corrects it after that import."""
_CURE: Final = (
    "Use executor='threads', or name a Python of this version that has the same packages: "
    "multiprocessing.set_executable('/usr/bin/python3')."
)


def interpreter() -> str:
    """Returns the path of the Python that runs worker processes: `sys.executable`, or what the user named."""
    spawn = sys.modules.get("multiprocessing.spawn")
    named = os.fsdecode((None if spawn is None else spawn.get_executable()) or "")
    return named if named not in ("", _AT_START) else sys.executable or ""


def why_no_interpreter() -> str:
    """Returns why worker processes cannot run, and what helps; an empty text if they can."""
    path = interpreter()
    if os.environ.get(WORKER_OF) == str(os.getppid()):
        return f"This process was started as a worker process, and {path} ran the program instead. {_CURE}"
    if path != (sys.executable or ""):
        return ""
    if getattr(sys, "frozen", False) and path == (_AT_START or ""):
        return f"This program is frozen, so a worker process would run all of {path} again. {_CURE}"
    if not _PYTHON.fullmatch(os.path.basename(path).lower()):
        return f"Worker processes are started with sys.executable, and {path!r} is no Python by its name. {_CURE}"
    return ""
