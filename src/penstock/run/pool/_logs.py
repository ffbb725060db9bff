"""The way of log records from worker processes to the handlers of the program.

In a worker, `logging.Logger.callHandlers` formats a record, and sends it as one packet through a socket that all
workers of a pool share. That is below the levels and filters of loggers, and above handlers and `propagate`. So it does
not matter which handlers a worker has. The program hands each record to the logger of its name.

In the program, the thread `penstock-log` takes packets from the socket, and hands the records to handlers. A handler
that raises costs nothing. One that is slow delays workers that log faster than it handles.

Guarantees.
- A packet arrives whole or not at all, so a worker that is killed while it logs does no harm.
- A worker that ends by itself loses nothing: its packets are in the socket, and the reader takes all of them.
- Only a worker drops records, and only into a full socket. Its next record that finds room says how many.

Each wait, and what ends it.
- A worker waits while the socket is full: ended by room, or after `FULL_S`. Then it drops records, without a wait,
  until there is room.
- The reader waits for a packet: ended by one, or by `close`, which shuts the socket. A child that the program or a
  function forked may have a copy of the socket; shutting ends that too.
- `close` waits for the reader while that handles records, and for `GRACE_S` if a handler does not return.
"""

import contextlib
import logging
import os
import pickle
import socket
import sys
import threading
import time
import traceback
import weakref
from typing import Any, Final, final

from penstock.base._threads import start_thread
from penstock.run.pool._interpreter import is_importing

FULL_S: Final = 5.0
"""How long a worker waits for room in the socket: a slow handler delays it, as it would in the program itself. A
handler that waits for the training, which waits for the worker, costs this time once."""
GRACE_S: Final = 2.0
END_S: Final = 30.0
"""How long the end of the program waits for handlers."""
_MOST_CHARACTERS: Final = 1 << 14
"""A longer text is cut."""
_FEW_CHARACTERS: Final = 256
"""The same, where that is not enough for the packet to fit into the socket."""
_MOST_DEPTH: Final = 8
"""Of lists and dicts in `extra=`; deeper ones, and circular ones, travel as text."""
_PACKET_NBYTES: Final = 1 << 17

_log = logging.getLogger("penstock")


def levels_here() -> tuple[int, dict[str, int]]:
    """Returns what `logging.disable` was given, and the level of each logger; the root's has the name ""."""
    root = logging.getLogger()
    known = root.manager.loggerDict.copy()
    found = {name: each.level for name, each in known.items() if isinstance(each, logging.Logger)}
    return root.manager.disable, {"": root.level, **found}


def follow_levels(disabled: int, levels: dict[str, int]) -> None:
    """Sets the levels of the loggers of this process, and enables those that `logging.config` disabled."""
    logging.disable(disabled)
    known = logging.root.manager.loggerDict
    for name, level in levels.items():
        if level or not name or name in known:
            logger = logging.getLogger(name or None)
            logger.disabled = False  # the program knows which it disabled
            if logger.level != level:
                logger.setLevel(level)


@final
class Sender:
    """Sends the records of a worker.

    Args:
        descriptor: The worker's end of the socket.
        number: The number of the worker.
    """

    def __init__(self, descriptor: int, number: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._dropped_count = 0
        self._worker_name = f"penstock worker {number}"

    def install(self) -> None:
        """Sends all records of this process from now on.

        Handlers that modules attach when they are imported are ignored: the program has imported these modules, too,
        and its handlers get the records. Handlers that functions attach when they run are called as well.
        """
        call_handlers, add_handler = logging.Logger.callHandlers, logging.Logger.addHandler

        def send_and_call(logger: logging.Logger, record: logging.LogRecord) -> None:
            self.send(record)
            call_handlers(logger, record)

        def add_unless_importing(logger: logging.Logger, hdlr: logging.Handler) -> None:
            if not is_importing():
                add_handler(logger, hdlr)

        logging.Logger.callHandlers = send_and_call  # type: ignore[method-assign, assignment]
        logging.Logger.addHandler = add_unless_importing  # type: ignore[method-assign, assignment]
        logging.lastResort = logging.NullHandler()
        add_handler(logging.getLogger(), logging.NullHandler())  # with it, basicConfig() in a function adds no other

    def send(self, record: logging.LogRecord) -> None:
        """Sends a record, or drops it where there is no room."""
        try:
            self._socket.settimeout(0 if self._dropped_count else FULL_S)
            self._socket.send(self._packed(record))
        except (BlockingIOError, TimeoutError):
            self._dropped_count += 1
            return
        except (BrokenPipeError, ConnectionResetError):  # the pool has ended, and this process ends, too
            return
        except Exception:
            _ON_ERROR.handleError(record)
        if self._dropped_count:
            count, self._dropped_count = self._dropped_count, 0
            _log.warning(
                "%s log records of this worker were dropped, because handlers of the program are slow. Log less, or "
                "use faster handlers.",
                f"{count:,}",
            )

    def _packed(self, record: logging.LogRecord) -> bytes:
        """As `logging.handlers.QueueHandler` prepares records: with text in place of arguments and exceptions."""
        fields = {**vars(record), "processName": self._worker_name, "args": None, "exc_info": None}
        fields["msg"] = fields["message"] = record.getMessage()
        if record.exc_info and not record.exc_text:
            fields["exc_text"] = _FORMATTER.formatException(record.exc_info)
        data = b""
        for most, depth in ((_MOST_CHARACTERS, _MOST_DEPTH), (_FEW_CHARACTERS, 0)):
            plain = {name: _plain(each, most, depth) for name, each in fields.items()}
            data = pickle.dumps(plain)
            if len(data) <= _PACKET_NBYTES:
                return data
        own = vars(logging.makeLogRecord({}))
        return pickle.dumps({name: each for name, each in plain.items() if name in own})


_FORMATTER: Final = logging.Formatter()
_ON_ERROR: Final = logging.NullHandler()


def _plain(value: Any, most: int, depth: int) -> Any:
    """A value of a record that may travel: text in place of other objects, cut after `most` characters."""
    if not _is_plain(value, depth):
        try:
            value = str(value)
        except Exception:  # of the object's class
            value = type(value).__name__
    if type(value) is not str or len(value) <= most:
        return value
    return f"{value[:most]} ... (the first {most:,} of {len(value):,} characters)"


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a value of `extra=` may travel: it is no object of a class, which the program might not have."""
    if type(value) is dict:
        return depth > 0 and all(_is_plain(each, depth - 1) for pair in value.items() for each in pair)
    if type(value) in (list, tuple):
        return depth > 0 and all(_is_plain(each, depth - 1) for each in value)
    return value is None or type(value) in (bool, int, float, str)


@final
class LogReader:
    """Takes the records of the workers of one pool, on a thread of its own."""

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.descriptor = self._theirs.fileno()
        """What workers write to."""
        self._handled_count = 0
        self._reading = threading.Thread(target=self._read, name="penstock-log", daemon=True)
        try:
            start_thread(self._reading)
        except BaseException:
            self._theirs.close()
            self._socket.close()
            raise
        _open.add(self)

    def close(self, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Handles what is there, and ends the thread. The workers have ended.

        Returns:
            Whether all records are handled.
        """
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)
        ends_at, before = time.monotonic() + timeout_s, -1
        while self._reading.is_alive() and before != self._handled_count and time.monotonic() < ends_at:
            before = self._handled_count
            self._reading.join(GRACE_S)
        self._theirs.close()
        return not self._reading.is_alive()

    def _read(self) -> None:
        with self._socket:
            while data := self._socket.recv(2 * _PACKET_NBYTES):
                try:
                    _handle(pickle.loads(data))
                except BaseException:  # of a handler or a filter; SystemExit too, which would end this thread
                    if logging.raiseExceptions and sys.stderr is not None:
                        with contextlib.suppress(Exception):  # stderr may be closed
                            traceback.print_exc()
                self._handled_count += 1


_open: Final["weakref.WeakSet[LogReader]"] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.clear)  # a child must not shut the sockets of its parent


def close_all() -> None:
    """Waits for handlers at the end of the program, and says on stderr if records are lost."""
    ends_at = time.monotonic() + END_S
    are_handled = [each.close(max(0.0, ends_at - time.monotonic())) for each in list(_open)]
    if not all(are_handled) and sys.stderr is not None:
        sys.stderr.write("penstock: log records of worker processes are lost, because handlers are slow.\n")


def _handle(fields: dict[str, Any]) -> None:
    record = logging.makeLogRecord({**fields, "levelname": logging.getLevelName(fields["levelno"])})
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
