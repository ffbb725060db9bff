"""An object store for benchmarks and tests: S3's GET, HEAD and listing, with the faults of a network.

It runs in a process of its own, on asyncio, and answers from memory. `serving` starts it. Each answer waits for
`latency_s`; `tail` of them wait `tail_s` instead. `busy` of the requests get 503, `reset` a broken connection, `cut`
half of their body. `rate` bounds the bytes a second of all answers together. Credentials are not checked.

    with serving(Behaviour(latency_s=0.03)) as store:
        store.put("bucket/train-0.tar", data)
        os.environ.update(store.environment)
        ps.from_tar("s3://bucket/train-0.tar")
"""

import asyncio
import contextlib
import hashlib
import multiprocessing
import random
import re
import resource
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_RANGE = re.compile(rb"range: *bytes=(\d+)-(\d*)", re.IGNORECASE)
_MATCH = re.compile(rb'if-match: *"?([^"\r]+)"?', re.IGNORECASE)


@dataclass(frozen=True)
class Behaviour:
    """How the server answers. Shares are between 0 and 1."""

    latency_s: float = 0.03
    tail: float = 0.0
    tail_s: float = 1.0
    busy: float = 0.0
    reset: float = 0.0
    cut: float = 0.0
    rate: float = 0.0
    """Bytes a second of all connections together; 0 for no limit."""


class _Server:
    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.contents: dict[str, bytes] = {}
        """Equal objects take memory once."""
        self.behaviour = Behaviour()
        self.counts: Counter[str] = Counter()
        self.random = random.Random(0)
        self.free_at = 0.0

    def set(self, behaviour: Behaviour) -> None:
        self.behaviour, self.counts, self.free_at = behaviour, Counter(), 0.0

    def put(self, name: str, data: bytes) -> None:
        tag = hashlib.md5(data).hexdigest()
        self.objects[name] = self.contents.setdefault(tag, data), tag

    def stats(self) -> dict[str, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {**self.counts, "cpu_s": usage.ru_utime + usage.ru_stime}


class _Connection(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self.server, self.buffer, self.transport = server, b"", None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.counts["connections"] += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
            asyncio.get_running_loop().create_task(self.answer(head))

    async def answer(self, head: bytes) -> None:
        server, how = self.server, self.server.behaviour
        method, target = head.split(b"\r\n", 1)[0].decode().split(" ")[:2]
        path, _, query = target.partition("?")
        name = urllib.parse.unquote(path[1:])
        listing = "list-type=2" in query
        server.counts["LIST" if listing else method] += 1
        late = server.random.random() < how.tail
        await asyncio.sleep(how.tail_s if late else how.latency_s)
        draw = server.random.random()
        if draw < how.reset:
            self.transport.abort()
            return
        if draw < how.reset + how.busy:
            server.counts["busy"] += 1
            self.say(503, b"")
        elif listing:
            self.say(200, self.listing(name, query), "application/xml")
        elif name not in server.objects:
            self.say(404, b"")
        else:
            await self.content(method, head, name, is_cut=draw < how.reset + how.busy + how.cut)

    async def content(self, method: str, head: bytes, name: str, *, is_cut: bool) -> None:
        server, how = self.server, self.server.behaviour
        data, tag = server.objects[name]
        if (match := _MATCH.search(head)) and match[1].decode() != tag:
            self.say(412, b"")
            return
        start, stop, status, extra = 0, len(data), 200, ""
        if wanted := _RANGE.search(head):
            start, stop = int(wanted[1]), min(len(data), int(wanted[2] or len(data)) + 1)
            status, extra = 206, f"Content-Range: bytes {start}-{stop - 1}/{len(data)}\r\n"
        part = memoryview(data)[start:stop]
        if how.rate and method == "GET":
            now = asyncio.get_running_loop().time()
            server.free_at = max(now, server.free_at) + len(part) / how.rate
            await asyncio.sleep(server.free_at - now)
        if method == "GET":
            server.counts["bytes"] += len(part)
        self.say(status, part, extra=f'{extra}ETag: "{tag}"\r\n', is_head=method == "HEAD", is_cut=is_cut)

    def say(
        self,
        status: int,
        body: Any,
        kind: str = "binary/octet-stream",
        *,
        extra: str = "",
        is_head: bool = False,
        is_cut: bool = False,
    ) -> None:
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nContent-Type: {kind}\r\n"
            f"Last-Modified: Sun, 01 Nov 2026 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n{extra}\r\n"
        )
        self.transport.write(head.encode())
        if not is_head:
            self.transport.write(body[: len(body) // 2] if is_cut else body)
        if is_cut:
            self.transport.close()

    def listing(self, bucket: str, query: str) -> bytes:
        asked = urllib.parse.parse_qs(query)
        prefix = f"{bucket.rstrip('/')}/{asked.get('prefix', [''])[0]}"
        after = asked.get("continuation-token", asked.get("start-after", [""]))[0]
        start = len(bucket.rstrip("/")) + 1
        names = sorted(each for each in self.server.objects if each.startswith(prefix) and each[start:] > after)
        some, more = names[:1000], len(names) > 1000
        items = "".join(
            f"<Contents><Key>{name[start:]}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{self.server.objects[name][1]}&quot;</ETag><Size>{len(self.server.objects[name][0])}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for name in some
        )
        token = f"<NextContinuationToken>{some[-1][start:]}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><KeyCount>{len(some)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        ).encode()


def _run(pipe: Connection) -> None:
    server = _Server()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=1024)
        pipe.send(listener.sockets[0].getsockname()[1])
        ended = asyncio.Event()

        def command() -> None:
            try:
                name, *given = pipe.recv()
                pipe.send(getattr(server, name)(*given))
            except (EOFError, OSError):  # the process above has ended
                ended.set()

        loop.add_reader(pipe.fileno(), command)
        await ended.wait()

    asyncio.run(main())


class Store:
    """A running server."""

    def __init__(self, pipe: Connection, port: int) -> None:
        self._pipe, self.port = pipe, port
        self.endpoint = f"http://127.0.0.1:{port}"

    def _call(self, *command: Any) -> Any:
        self._pipe.send(command)
        return self._pipe.recv()

    def put(self, name: str, data: bytes) -> None:
        """Stores an object: `bucket/key`."""
        self._call("put", name, data)

    def set(self, behaviour: Behaviour) -> None:
        """Sets how it answers from now on, and counts from 0."""
        self._call("set", behaviour)

    def stats(self) -> dict[str, float]:
        """Counts of requests by method, bytes, and CPU seconds of the server so far."""
        return self._call("stats")

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients of S3 find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextlib.contextmanager
def serving(behaviour: Behaviour | None = None) -> Iterator[Store]:
    """Runs a server in a process of its own, which ends with this one."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    store = Store(ours, ours.recv())
    try:
        store.set(behaviour or Behaviour())
        yield store
    finally:
        ours.close()
        process.join(10)
