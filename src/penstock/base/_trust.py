"""Which folders are used: those in which no stranger can plant a file or a link.

A stranger is any user of the system who was not given the folder. Root, the owner of a folder and the members of its
group were. So a folder that only they can write is used, whoever owns it, and one that everybody can write is refused.
In a folder like `/tmp` (sticky), everybody can add names, but only an owner can replace one. There each name on the
way has to be this user's or root's. The same holds for every folder and link on the way to a path.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.base._files import is_folder

_MOST_LINKS: Final = 40


def require_safe(path: str | os.PathLike[str]) -> None:
    """Refuses a path that a stranger may have made, or may replace. As much of it is looked at as is there.

    Raises:
        PermissionError: Another user may have. Its `strerror` says why, and what helps.
    """
    last = "/"
    for folder, entry, status in _way(os.path.abspath(path)):
        last = entry
        mode = os.lstat(folder).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise _refusal(folder)
        if mode & stat.S_IWOTH and status.st_uid not in _trusted():
            raise PermissionError(
                errno.EPERM,
                f"{entry} belongs to user {status.st_uid}, and everybody can make files in {folder}. Name a folder of "
                "your own",
            )
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(last).st_mode
        if mode & stat.S_IWOTH and (stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not mode & stat.S_ISVTX)):
            raise _refusal(last)


def require_own_file(path: str | os.PathLike[str]) -> None:
    """Refuses a file that a stranger may have made or changed, and a link in its place.

    Raises:
        PermissionError: It is one. Its `strerror` says so, and what helps.
        OSError: It cannot be looked at.
    """
    require_safe(path)
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise PermissionError(errno.EPERM, f"{path} is a link, or no file, and is not used. Delete it")


def is_safe(path: str | os.PathLike[str]) -> bool:
    """Whether `require_safe` accepts a path."""
    try:
        require_safe(path)
    except OSError:
        return False
    return True


def is_inside(path: str | os.PathLike[str], folders: Iterable[str]) -> bool:
    """Whether a path leads into one of some folders, or below, after all links and `..`."""
    real = os.path.realpath(path)
    return any(os.path.commonpath([real, each]) == each for each in map(os.path.realpath, folders))


def private_mode(folder: str | os.PathLike[str]) -> int:
    """Returns the permissions of files that are kept in a folder: those of the folder, without execution.

    A folder that the library made is its user's alone (0700), so its files are, too (0600). What a user opened to
    others, they can read.
    """
    return os.stat(folder).st_mode & 0o664 | 0o600


def make_private(folder: str | os.PathLike[str]) -> None:
    """Makes a folder that only this user may enter, unless it is there.

    Raises:
        OSError: It cannot be made.
    """
    parent = os.path.dirname(os.path.abspath(folder))
    if not is_folder(parent):
        os.makedirs(parent, exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not is_folder(folder):
            raise


def _trusted() -> tuple[int, int]:
    """The users whose names are used in a folder like `/tmp`: root and this one."""
    return 0, os.geteuid()


def _refusal(path: str) -> PermissionError:
    return PermissionError(
        errno.EPERM,
        f"everybody can write to {path}, so another user may plant or change what is read from it. Say chmod o-w, or "
        "name a folder of your own",
    )


def _way(path: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yields each folder, link and file on the way to a path, with its folder: the targets of links, too."""
    at, rest, links = "/", path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        entry = os.path.join(at, name)
        try:
            status = os.lstat(entry)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield at, entry, status
        if not stat.S_ISLNK(status.st_mode):
            at = entry
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(entry)
        at = "/" if target.startswith("/") else at
        rest += target.split("/")[::-1]
