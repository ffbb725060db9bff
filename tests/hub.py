"""The Hugging Face Hub on this machine: repositories of datasets with commits and branches, for its own libraries.

It answers what `huggingface_hub` asks: facts of a repository, listings, and files by commit, with ranges.
"""

import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from tests.servers import Answer, Server

_ADDRESS = re.compile(
    r"/(api/)?datasets/(?P<name>[^/]+/[^/]+)(/(?P<kind>\w[\w-]*)(/(?P<revision>[^/?]+)(/(?P<path>.*))?)?)?$"
)


class Hub(Server):
    """Serves `repos`: for each name its commits, and `branches`, the commit of each branch."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.private: set[str] = set()
        """Names of repositories that need the token `hf_secret`."""
        self.requests: list[tuple[str, str, str]] = []
        """Method, path and range of each."""
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Makes a commit of these files alone on a branch, and returns its name."""
        content = b"".join(path.encode() + data for path, data in sorted(files.items()))
        commit = hashlib.sha1(content).hexdigest()
        self.repos.setdefault(name, {})[commit] = files
        self.branches.setdefault(name, {})[branch] = commit
        return commit


class _Answer(Answer):
    server: Hub

    def do_POST(self) -> None:  # noqa: N802  # the standard library's name
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802
        hub = self.server
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        target, _, query = self.path.partition("?")
        hub.requests.append((self.command, target, self.headers.get("Range", "")))
        found = _ADDRESS.match(target)
        name = found["name"] if found else ""
        is_allowed = name not in hub.private or self.headers.get("Authorization") == "Bearer hf_secret"
        if found is None or name not in hub.repos or not is_allowed:
            self._refuse(401, "RepoNotFound")
        else:
            revision = urllib.parse.unquote(found["revision"] or "main")
            commit = hub.branches[name].get(revision, revision)
            files = hub.repos[name].get(commit)
            path = urllib.parse.unquote(found["path"] or "")
            if files is None:
                self._refuse(404, "RevisionNotFound")
            elif found["kind"] == "resolve":
                self._file(files.get(path), commit)
            elif found["kind"] == "tree":
                self._tree(files, path, is_deep="recursive=true" in query.lower())
            elif found["kind"] == "paths-info":
                wanted = urllib.parse.parse_qs(asked).get("paths") or json.loads(asked)["paths"]
                self._say([_entry(each, files[each]) for each in wanted if each in files])
            else:
                self._say({"id": name, "sha": commit, "siblings": [{"rfilename": each} for each in files]})

    def _tree(self, files: dict[str, bytes], folder: str, *, is_deep: bool) -> None:
        start = f"{folder}/" if folder else ""
        below = sorted(each for each in files if each.startswith(start))
        inner = {
            each[: len(start)] + each[len(start) :].rpartition("/")[0] for each in below if "/" in each[len(start) :]
        }
        folders = {each[: at + len(start)] for each in inner for at in _ends(each[len(start) :])}
        entries: list[Any] = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": each} for each in sorted(folders)
        ]
        entries += [_entry(each, files[each]) for each in below]
        if folder and not entries:
            self._refuse(404, "EntryNotFound")
        else:
            self._say([each for each in entries if is_deep or "/" not in each["path"][len(start) :]])

    def _file(self, content: bytes | None, commit: str) -> None:
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        status, extra, part = 200, {}, content
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
            status, part = 206, content[first : last + 1]
            extra = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        tag = hashlib.sha1(content).hexdigest()
        self._say(part, status, {"ETag": f'"{tag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes", **extra})

    def _refuse(self, status: int, code: str) -> None:
        self._say({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})

    def _say(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _ends(path: str) -> Iterator[int]:
    """The lengths of a folder's path and of those above it."""
    yield from (at for at, each in enumerate(path) if each == "/")
    yield len(path)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": path}


@contextlib.contextmanager
def serving(monkeypatch: Any, folder: Any) -> Iterator[Hub]:
    """Runs a server that the Hub's libraries take for the Hub; what they keep is in a folder."""
    import datasets.config
    import huggingface_hub.constants
    from huggingface_hub import HfFileSystem

    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_HOME", str(folder))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # Both libraries read the environment when they are imported.
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
        form = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", form)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(folder / "token"))
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.address)
        monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
        monkeypatch.setattr(datasets.config, "USE_PARQUET_EXPORT", False)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "datasets"))
        HfFileSystem.clear_instance_cache()
        try:
            yield hub
        finally:
            HfFileSystem.clear_instance_cache()
            hub.shutdown()
