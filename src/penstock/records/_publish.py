"""Writes whole files into a folder or an object store: a name appears when its content is complete."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.base._atomic import complete
from penstock.base._errors import ArgumentError
from penstock.files import _remote, _store
from penstock.files._store import StorageOptions
from penstock.sources._localfile import LocalFile


def publisher(verb: str, target: str, storage_options: Any) -> Callable[[str, Any], str]:
    """Returns a function that writes a file, by its name and an open file, and returns its path.

    Raises:
        ArgumentError: The target has tar files already, or is a URL that cannot be written.
        SourceError: The connection fails.
    """
    options = StorageOptions.of(verb, storage_options)
    root = target.rstrip("/")
    if not _remote.is_remote(target):
        folder = Path(target)
        folder.mkdir(parents=True, exist_ok=True)
        lock = _locked(verb, folder)
        _require_none(verb, target, any(folder.glob("*.tar")))

        def write(name: str, file: Any) -> str:
            assert lock.descriptor >= 0  # it is open as long as this function
            with complete(folder / name) as out:
                shutil.copyfileobj(file, out, 1 << 20)
            return os.path.join(folder, name)

        return write
    if not _store.is_native(target) or target.startswith(("http://", "https://")):
        raise ArgumentError(f"{verb}() writes into folders, and s3://, gs:// and az:// with obstore; not {target}.")
    _require_none(verb, target, bool(_remote.matches(f"{root}/*.tar", options)))

    def put(name: str, file: Any) -> str:
        url = f"{root}/{name}"

        def ask() -> None:
            file.seek(0)
            _store.put(url, file, options)

        _remote.insist(ask, lambda: f"{url} cannot be written")
        return url

    return put


def _require_none(verb: str, target: str, has_some: bool) -> None:
    if has_some:
        raise ArgumentError(
            f"{verb}(): {target} holds tar files, which would mix with the new ones. Name another folder."
        )


def _locked(verb: str, folder: Path) -> LocalFile:
    """Returns an open folder: while it is, no other program writes shards into it by this function.

    Raises:
        ArgumentError: Another one does.
    """
    opened = LocalFile(os.fspath(folder))
    try:
        fcntl.flock(opened.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ArgumentError(
            f"{verb}(): another program writes shards into {folder} now, which would mix with these. Name another "
            "folder."
        ) from None
    except OSError:
        pass  # a file system without locks of folders
    return opened
