"""Files and folders that a demo makes once and keeps: there whole, or not there at all."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from penstock.demos.errors import DemoError


def cache_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder where such files are kept: `data_dir`, or else penstock's in the user's cache."""
    if data_dir is not None:
        return Path(data_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


@contextlib.contextmanager
def making(path: Path, nbytes: int, what: str) -> Iterator[BinaryIO]:
    """Opens a file to write that has its name when the block ends well, and not before.

    An exception, KeyboardInterrupt included, leaves nothing. What a killed process left is removed by the next one.

    Args:
        path: The file; its folder is made, too.
        nbytes: The size that it will have.
        what: Its name in messages: "film".

    Raises:
        DemoError: The disk is too small.
    """
    with _partial(path, nbytes, what) as partial, partial.open("wb") as file:
        yield file


@contextlib.contextmanager
def making_folder(path: Path, nbytes: int, what: str) -> Iterator[Path]:
    """Makes a folder to fill that has its name when the block ends well, and not before; otherwise as `making`."""
    with _partial(path, nbytes, what) as partial:
        partial.mkdir()
        yield partial


@contextlib.contextmanager
def _partial(path: Path, nbytes: int, what: str) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    free_nbytes = shutil.disk_usage(path.parent).free
    if free_nbytes < nbytes:
        raise DemoError(
            f"The {what} needs {nbytes / 1e9:.2f} GB, but the disk of {path.parent} has {free_nbytes / 1e9:.2f} GB "
            "free. Choose a folder on another disk: penstock demo --data-dir FOLDER"
        )
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Removes what processes wrote that no longer live; one that lives may be making the same now."""
    for partial in path.parent.glob(f"{path.name}.*.part"):
        found = re.fullmatch(r".*\.(\d+)\.part", partial.name)
        if found and not _is_alive(int(found[1])):
            _remove(partial)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
