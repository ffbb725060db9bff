"""Writes whole files into a folder or an object store: a name appears when its content is complete."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from penstock.base._atomic import complete
from penstock.base._errors import ArgumentError
from penstock.sources import _remote, _store
from penstock.sources._store import StorageOptions


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
        _require_none(verb, target, any(folder.glob("*.tar")))
        return lambda name, file: _write(folder / name, file)
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


def _write(path: Path, file: BinaryIO) -> str:
    with complete(path) as out:
        shutil.copyfileobj(file, out, 1 << 20)
    return os.fspath(path)
