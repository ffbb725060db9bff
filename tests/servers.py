"""A server of files by HTTP with ranges, on this machine, which fails by a rule; and a file system that asks it."""

import http.server
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fsspec.spec import AbstractFileSystem

from tests.waits import DEADLINE_S

Verdict = int | str | None
"""A status; `"reset"`: the connection is broken; `"cut"`: it is in the middle of the answer; None: all is well."""


class Server(http.server.ThreadingHTTPServer):
    """Answers many requests at once."""

    request_queue_size = 64
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are none of its business."""


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers requests of one connection, without a log."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # or the end of an answer waits until its head was acknowledged

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError


class FileServer(Server):
    """Gives `files`; `rule` says of each request, by its number from 0 on and the headers, what becomes of it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files: dict[str, bytes] = {}
        self.rule: Callable[[int, Any], Verdict] = lambda number, headers: None
        self.requests: list[tuple[str, str]] = []
        """Method and range of each."""
        self.answer_headers: dict[str, str] = {}
        self.answer_with: Callable[[int, int, int], tuple[int, int, int, str]] | None = None
        """From a range and the size of a file: the status of the answer, the range of its body, and what it says."""
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        """Of this machine, and the port."""
        return f"127.0.0.1:{self.server_address[1]}"

    def begin_with(self, rule: Callable[[int, Any], Verdict]) -> None:
        """Has requests counted from 0 again, and fail by another rule."""
        with self.lock:
            self.requests, self.rule = [], rule


class _Answer(Answer):
    server: FileServer

    def do_GET(self) -> None:
        server = self.server
        with server.lock:
            number = len(server.requests)
            server.requests.append((self.command, self.headers.get("Range", "")))
        verdict = server.rule(number, self.headers)
        content = server.files.get(self.path[1:])
        if verdict == "reset":
            self.close_connection = True
        elif isinstance(verdict, int) or content is None:
            self._say(verdict if isinstance(verdict, int) else 404, b"")
        elif wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = map(int, wanted.groups())
            status, start, stop = 206, first, last + 1
            place = f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}"
            if server.answer_with is not None:
                status, start, stop, place = server.answer_with(first, last, len(content))
            self._say(status, content[start:stop], is_cut=verdict == "cut", place=place)
        else:
            self._say(200, content, is_cut=verdict == "cut")

    def _say(self, status: int, content: bytes, *, is_cut: bool = False, place: str = "") -> None:
        self.send_response(status)
        headers = {"Content-Range": place} if place else {}
        headers |= {"ETag": '"1"', "Accept-Ranges": "bytes", "Content-Length": str(len(content))}
        for name, value in {**headers, **self.server.answer_headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
        self.close_connection |= is_cut


@contextmanager
def serving() -> Iterator[FileServer]:
    """Runs a server."""
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class WebFileSystem(AbstractFileSystem):
    """`web://host/file`: HTTP by the standard library, with no way to ask again; fsspec's own needs aiohttp."""

    protocol = "web"

    def _asked(self, path: str, method: str = "GET", **headers: str) -> Any:
        url = f"http://{self._strip_protocol(path)}"
        try:
            return urllib.request.urlopen(
                urllib.request.Request(url, method=method, headers=headers), timeout=DEADLINE_S
            )
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Size and mark."""
        with self._asked(path, "HEAD") as answer:
            headers = answer.headers
            return {"name": path, "type": "file", "size": int(headers["Content-Length"]), "ETag": headers["ETag"]}

    def ukey(self, path: str) -> str:
        """Its name; the mark is in what `info` says."""
        return path

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """A range, or all."""
        headers = {} if start is None or end is None else {"Range": f"bytes={start}-{end - 1}"}
        with self._asked(path, **headers) as answer:
            return bytes(answer.read())
