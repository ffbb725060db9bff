"""The Python that runs worker processes, and programs that would start them without end.

A frozen program, and one that embeds Python, has itself as `sys.executable`. Started as a worker, it would run the
program again, which would start workers, without end. So would a module that runs a loader when it is imported, if a
worker of that loader imports it.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Final, final

from penstock.base._errors import WorkerError

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


def is_starting() -> bool:
    """Whether this process was started as a worker process, and has not begun as one."""
    return os.environ.get(WORKER_OF) == str(os.getppid())


def why_no_interpreter() -> str:
    """Returns why worker processes cannot run, and what helps; an empty text if they can."""
    path = interpreter()
    if is_starting():
        return f"This process was started as a worker process, and {path} ran the program instead. {_CURE}"
    if path != (sys.executable or ""):
        return ""
    if getattr(sys, "frozen", False) and path == (_AT_START or ""):
        return f"This program is frozen, so a worker process would run all of {path} again. {_CURE}"
    if not _PYTHON.fullmatch(os.path.basename(path).lower()):
        return f"Worker processes are started with sys.executable, and {path!r} is no Python by its name. {_CURE}"
    return ""


@final
class _Process:
    """What this process is."""

    is_worker = False
    is_loading = False
    """Whether it makes the objects of a plan again."""


_this: Final = _Process()


def begin_worker() -> None:
    """Notes that this process is a worker process, before it runs anything of the user's."""
    _this.is_worker = True


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Notes that this worker process makes the objects of a plan again."""
    _this.is_loading = True
    try:
        yield
    finally:
        _this.is_loading = False


def require_run_time() -> None:
    """Refuses worker processes of a worker process while that imports a module or makes objects again.

    A function in a worker may run a loader: how deep that goes, the function says.

    Raises:
        WorkerError: Names the module.
    """
    if not _this.is_worker:
        return
    if not is_importing():
        return
    module = _imported_module()
    what = f"the module {module} is imported" if module else "an object that came with a function is made again"
    raise WorkerError(
        f"A loader starts worker processes while {what}, and this is a worker process already. Its workers would do "
        "the same, without end. Run the loader inside a function that only the program calls, or below "
        '`if __name__ == "__main__":`.'
    )


def is_importing() -> bool:
    """Whether this worker process imports a module or makes objects again."""
    return _this.is_loading or _imported_module() is not None


def _imported_module() -> str | None:
    """The module whose code runs now: in the stack of this thread, or imported by another, which waits for this one."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # The script of the process has no spec, and neither has text that a function executes.
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__spec__") is not None:
            return str(frame.f_globals.get("__name__"))
        frame = frame.f_back
    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    return next((spec.name for spec in reversed(specs) if getattr(spec, "_initializing", False)), None)
