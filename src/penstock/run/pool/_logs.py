"""The way of log records from worker processes to the handlers of the program.

A worker has one handler, at its root logger. It formats a record, and sends it as one packet through a socket that all
workers of a pool share. A thread of the program takes packets, and hands each record to the logger of its name.

Who does what. `Sender.emit` runs on the thread of a worker that logs. Everything of `LogReader` but its start and its
end runs on the thread `penstock-log`, so handlers of the program run there, and not on the pool's thread: one that is
slow, that raises, or that waits for a lock of the training delays records and nothing else.

Guarantees.
- A packet arrives whole or not at all, so a worker that is killed while it logs does no harm.
- A worker that ends by itself loses nothing: its packets are in the socket, and the thread reads them to the end.
- Memory is bounded: what waits is in the socket, about 200 KiB for all workers.

Each wait, and what ends it.
- A worker waits while the socket is full: until there is room, or for `FULL_S`. Then it drops records, without a wait,
  until there is room again, and the next record says how many. It looks again every few milliseconds, because the
  system tells a sender of room only when three quarters of the socket are empty.
- The thread waits for a packet: ended by one, or by `close`, which shuts the socket. A child that the program or a
  function forked may have a copy of the socket; shutting ends that too.
- `close` waits for the thread as long as it takes packets, and for `GRACE_S` if a handler does not return.
"""

import contextlib
import logging
import pickle
import socket
import sys
import threading
import time
import traceback
from typing import Any, Final, final

from penstock.base._threads import start_thread

FULL_S: Final = 2.0
"""How long a worker waits for room. A handler that needs less for a record loses none."""
GRACE_S: Final = 2.0
_LOOK_S: Final = 0.005
_MOST_CHARACTERS: Final = 1 << 14
"""A longer text is cut."""
_FEW_CHARACTERS: Final = 256
"""The same, where that is not enough for the packet to fit into the socket."""
_PACKET_NBYTES: Final = 1 << 17

_log = logging.getLogger("penstock")


@final
class Levels:
    """The levels of the program's loggers, which a worker follows."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    @staticmethod
    def here() -> tuple[int, dict[str, int]]:
        """Returns what `logging.disable` was given, and the levels that were set; the root's has the name ""."""
        root = logging.getLogger()
        known = root.manager.loggerDict.copy()
        found = {name: each.level for name, each in known.items() if isinstance(each, logging.Logger) and each.level}
        return root.manager.disable, {"": root.level, **found}

    def follow(self, disabled: int, levels: dict[str, int]) -> None:
        """Sets the levels of the loggers of this process."""
        logging.disable(disabled)
        for name in self._names - levels.keys():
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, level in levels.items():
            logging.getLogger(name or None).setLevel(level)
        self._names = set(levels)


@final
class Sender(logging.Handler):
    """Sends the records of a worker.

    Args:
        descriptor: The worker's end of the socket.
        number: The number of the worker.
    """

    def __init__(self, descriptor: int, number: int) -> None:
        super().__init__()
        self._socket = socket.socket(fileno=descriptor)
        self._worker_name = f"penstock worker {number}"
        self._dropped_count = 0
        self._is_stuck = False
        """Whether the last record found no room in time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record. The lock of the handler is held, so one thread at a time is here."""
        try:
            data = self._packed(record)
            until = time.monotonic() + (0 if self._is_stuck else FULL_S)
            while not (is_sent := self._send(data)) and time.monotonic() < until:
                time.sleep(_LOOK_S)
            self._is_stuck = not is_sent
            self._dropped_count = 0 if is_sent else self._dropped_count + 1
        except Exception:
            self.handleError(record)

    def _send(self, data: bytes) -> bool:
        try:
            self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):  # the pool has ended, and this process ends, too
            pass
        return True

    def _packed(self, record: logging.LogRecord) -> bytes:
        """As `logging.handlers.QueueHandler` prepares records: with text in place of arguments and exceptions."""
        fields = {**vars(record), "processName": self._worker_name, "args": None, "exc_info": None}
        fields["msg"] = fields["message"] = record.getMessage()
        if record.exc_info and not record.exc_text:
            fields["exc_text"] = (self.formatter or _FORMATTER).formatException(record.exc_info)
        for most in (_MOST_CHARACTERS, _FEW_CHARACTERS):
            plain = {name: _cut(each if _is_plain(each) else str(each), most) for name, each in fields.items()}
            data = pickle.dumps((self._dropped_count, plain))
            if len(data) <= _PACKET_NBYTES:
                break
        return data


_FORMATTER: Final = logging.Formatter()


def _is_plain(value: Any) -> bool:
    """Whether a value of `extra=` may travel: it is no object of a class, which the program might not have."""
    if type(value) is dict:
        return all(_is_plain(each) for pair in value.items() for each in pair)
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _cut(value: Any, most: int) -> Any:
    if type(value) is not str or len(value) <= most:
        return value
    return f"{value[:most]} ... (the first {most:,} of {len(value):,} characters)"


@final
class LogReader:
    """Takes the records of the workers of one pool, on a thread of its own."""

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.descriptor = self._theirs.fileno()
        """What workers write to."""
        self._progress = 0
        self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)
        try:
            start_thread(self._thread)
        except BaseException:
            self._socket.close()
            self._theirs.close()
            raise

    def close(self) -> None:
        """Takes what is there, and ends the thread. The workers have ended."""
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)
        before = -1
        while self._thread.is_alive() and before != self._progress:
            before = self._progress
            self._thread.join(GRACE_S)
        self._theirs.close()

    def _run(self) -> None:
        with self._socket:
            while data := self._socket.recv(2 * _PACKET_NBYTES):
                self._progress += 1
                try:
                    _handle(*pickle.loads(data))
                except Exception:  # of a handler or a filter
                    if logging.raiseExceptions and sys.stderr is not None:
                        traceback.print_exc()


def _handle(dropped_count: int, fields: dict[str, Any]) -> None:
    if dropped_count:
        _log.warning(
            "%s dropped %s log records, because handlers of this program did not take them within %g s.",
            fields["processName"],
            f"{dropped_count:,}",
            FULL_S,
        )
    record = logging.makeLogRecord({**fields, "levelname": logging.getLevelName(fields["levelno"])})
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
