"""Log records of worker processes reach the handlers of the program."""

import hashlib
import io
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.run.pool import _logs
from penstock.run.pool._logs import Sender
from tests.waits import DEADLINE_S

pytestmark = pytest.mark.slow


class Records(logging.Handler):
    """Keeps the records of the logger `steps`. May wait for a gate, take time, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.work_nbytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        assert self.gate.wait(DEADLINE_S)
        hashlib.sha256(bytes(self.work_nbytes))
        self.kept.append(record)
        if self.error is not None:
            raise self.error

    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.kept]


@pytest.fixture
def records() -> Iterator[Records]:
    handler, logger = Records(), logging.getLogger("steps")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def run(function: Callable[[Any], Any], count: int = 4, workers: int = 2, **options: Any) -> None:
    """Runs a function on elements, each in a batch, so that all run once; when it returns, all records are there."""
    with (
        ps.range(count)
        .map(function, element_spec=ps.ArraySpec((), int))
        .batch(1)
        .loader("processes", workers=workers, **options) as loader
    ):
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)


def of_first(texts: list[str]) -> set[str]:
    """The texts, once each: elements of the next epoch run ahead."""
    return set(texts)


def test_records_arrive_with_the_worker_and_its_process(records: Records) -> None:
    def step(x: Any) -> Any:
        logging.getLogger("steps").warning("element %d of %s", x, "these")
        return x

    run(step)
    assert of_first(records.texts()) == {f"element {x} of these" for x in range(4)}
    for record in records.kept:
        assert record.processName in ("penstock worker 0", "penstock worker 1")
        assert record.process != os.getpid()
        assert (record.name, record.levelname, record.funcName) == ("steps", "WARNING", "step")
        assert record.pathname == __file__


def test_records_below_the_levels_of_the_program_stay(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: Any) -> Any:
        for name in ("steps", "steps.loud", "steps.quiet"):
            logger = logging.getLogger(name)
            logger.debug("%s debug %s", name, logger.isEnabledFor(logging.DEBUG))
            logger.info("%s info %s", name, logger.isEnabledFor(logging.DEBUG))
            logger.error("%s error %s", name, logger.isEnabledFor(logging.DEBUG))
        return x

    logging.getLogger("steps").setLevel(logging.INFO)
    for name, level in (("steps.loud", logging.DEBUG), ("steps.quiet", logging.ERROR)):
        monkeypatch.setattr(logging.getLogger(name), "level", level)
        logging.getLogger(name).manager._clear_cache()  # type: ignore[attr-defined]
    run(step, 1)
    assert of_first(records.texts()) == {
        "steps info False",
        "steps error False",
        "steps.loud debug True",
        "steps.loud info True",
        "steps.loud error True",
        "steps.quiet error False",
    }


def test_exceptions_arguments_and_extras_arrive_as_text(records: Records) -> None:
    def step(x: Any) -> Any:
        try:
            raise KeyError("left")
        except KeyError:
            logging.getLogger("steps").exception(
                "%s %s", np.float32(1.5), threading.Lock(), extra={"shape": (2, 3), "lock": threading.Lock()}
            )
        logging.getLogger("steps").warning("x" * 1_000_000, stack_info=True)
        return x

    run(step, 1, 1)
    first = records.kept[0]
    assert first.getMessage().startswith("1.5 <unlocked _thread.lock")
    assert "raise KeyError(\"left\")\nKeyError: 'left'" in logging.Formatter().format(first)
    assert first.__dict__["shape"] == (2, 3)
    assert first.__dict__["lock"].startswith("<unlocked")
    second = records.kept[1]
    assert second.getMessage().endswith("x ... (the first 16,384 of 1,000,000 characters)")
    assert second.stack_info is not None


def test_a_flood_of_records_arrives_whole_from_all_workers(records: Records) -> None:
    def step(x: Any) -> Any:
        for number in range(3000):
            logging.getLogger("steps").warning("%d of element %d", number, x)
        return x

    run(step)
    assert of_first(records.texts()) >= {f"{number} of element {x}" for number in range(3000) for x in range(4)}


def test_a_slow_handler_costs_no_record(records: Records) -> None:
    def step(x: Any) -> Any:
        for number in range(400):
            logging.getLogger("steps").warning("%d of element %d", number, x)
        return x

    records.work_nbytes = 1 << 20
    run(step, 2, 1)
    assert of_first(records.texts()) >= {f"{number} of element {x}" for number in range(400) for x in range(2)}


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_handler_that_raises_costs_no_record(
    records: Records, error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    def step(x: Any) -> Any:
        logging.getLogger("steps").warning("element %d", x)
        return x

    records.error = error("a handler fails")
    run(step)
    assert of_first(records.texts()) == {f"element {x}" for x in range(4)}
    assert f"{error.__name__}: a handler fails" in capfd.readouterr().err


def test_a_handler_that_does_not_return_stops_no_worker(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    def step(x: Any) -> Any:
        for number in range(2000):
            logging.getLogger("steps").warning("%d %s", number, "x" * 16_000)
        return x

    records.gate.clear()
    with ps.range(2).map(step, element_spec=ps.ArraySpec((), int)).batch(1).loader("processes", workers=1) as loader:
        iterator = iter(loader)
        next(iterator)  # the worker went on
        records.gate.set()
        list(iterator)
    warnings = [each for each in caplog.messages if " log records of this worker were dropped" in each]
    dropped_count = sum(int(each.partition(" ")[0].replace(",", "")) for each in warnings)
    assert dropped_count > 500


def test_a_record_before_the_end_of_a_killed_worker_arrives(records: Records) -> None:
    def step(x: Any) -> Any:
        logging.getLogger("steps").warning("element %d", x)
        os.kill(os.getpid(), signal.SIGKILL)
        return x

    with pytest.raises(ps.WorkerError):
        run(step, 1, 1)
    assert "element 0" in records.texts()


def test_records_arrive_from_generators_and_from_workers_of_workers(records: Records) -> None:
    def generate() -> Iterator[int]:
        logging.getLogger("steps").warning("begins")
        yield from range(4)

    def inner(x: Any) -> Any:
        logging.getLogger("steps").warning("deep inside")
        return x

    def outer(x: Any) -> Any:
        with ps.range(1).map(inner).batch(1).loader("processes", workers=1) as loader:
            return x + int(next(iter(loader))[0])

    with ps.from_generator(generate).map(outer).batch(2).loader("processes", workers=1) as loader:
        list(loader)
    assert of_first(records.texts()) == {"begins", "deep inside"}


def test_records_of_the_last_batch_are_in_the_file_when_the_program_ends(
    fresh_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    script = f"""
import logging
import penstock as ps
logging.basicConfig(level=logging.INFO, filename={str(tmp_path / "run.log")!r}, format="%(processName)s %(message)s")
def step(x):
    logging.getLogger("steps").info("element %d", x)
    return x
loader = ps.range(10).map(step).batch(5).loader("processes", workers=2)
list(loader)
"""
    done = fresh_python(script)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in (tmp_path / "run.log").read_text().splitlines() if line.split()[-1].isdigit()]
    assert {line.partition("element ")[2] for line in lines} >= set(map(str, range(10)))
    assert all(line.startswith("penstock worker ") for line in lines)


SETUPS = {
    "a handler for stdout": "log.addHandler(logging.StreamHandler(sys.stdout))",
    "no propagation": "log.propagate = False; log.addHandler(logging.StreamHandler(sys.stdout))",
    "basicConfig": "logging.basicConfig(force=True, stream=sys.stdout)",
    "dictConfig": "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': False, "
    "'root': {'handlers': ['out']}, 'handlers': {'out': {'class': 'logging.StreamHandler', 'stream': 'ext://sys.stdout'}}})",
}


@pytest.mark.parametrize("setup", SETUPS)
def test_a_module_that_sets_up_logging_when_it_is_imported_logs_each_record_as_on_threads(
    setup: str, fresh_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    text = f"""
import itertools, logging.config, os, sys
log = logging.getLogger("module")
number = itertools.count()
{SETUPS[setup]}
log.setLevel(logging.ERROR)
def step(x):
    log.debug("element %d, record %d of process %d", x, next(number), os.getpid())
    return x
"""
    (tmp_path / "module_that_logs.py").write_text(text)
    script = f"""
import itertools, logging, sys
sys.path.insert(0, {str(tmp_path)!r})
import penstock as ps
import module_that_logs
def late(x):
    import module_that_logs
    logging.getLogger("module").setLevel(logging.DEBUG)
    return module_that_logs.step(x)
logging.getLogger("module").setLevel(logging.DEBUG)
for step, executor in itertools.product((module_that_logs.step, late), ("threads", "processes")):
    with ps.range(3).map(step, element_spec=ps.ArraySpec((), int)).batch(3).loader(executor, workers=1) as loader:
        next(iter(loader))
    print("end of a loader", flush=True)
"""
    done = fresh_python(script)
    assert (done.returncode, done.stderr) == (0, "")
    *parts, last = done.stdout.split("end of a loader\n")
    assert (len(parts), last) == (4, "")
    for lines in parts:
        found = [line[line.index("element") :] for line in lines.splitlines() if "element" in line]
        assert {text.partition(",")[0] for text in found} == {"element 0", "element 1", "element 2"}
        assert len(found) == len(set(found))


def test_handlers_that_functions_attach_in_workers_get_records_too(records: Records) -> None:
    def step(x: Any) -> Any:
        stream, logger = io.StringIO(), logging.getLogger("steps")
        logging.basicConfig()  # adds nothing: there is a handler
        logger.addHandler(handler := logging.StreamHandler(stream))
        logger.warning("element %d", x)
        logger.removeHandler(handler)
        return np.int64(len(stream.getvalue()))

    with ps.range(2).map(step, element_spec=ps.ArraySpec((), int)).batch(2).loader("processes", workers=1) as loader:
        assert next(iter(loader)).tolist() == [len("element 0\n")] * 2
    assert of_first(records.texts()) == {"element 0", "element 1"}


def test_filters_of_loggers_hold_in_workers_and_change_records(records: Records) -> None:
    def step(x: Any) -> Any:
        logger = logging.getLogger("steps")

        def keep(record: logging.LogRecord) -> bool:
            record.msg = "filtered " + record.msg
            return x != 1

        logger.addFilter(keep)
        logger.warning("element %d", x)
        logger.removeFilter(keep)
        return x

    run(step, 3)
    assert of_first(records.texts()) == {"filtered element 0", "filtered element 2"}


def test_extras_that_cannot_travel_arrive_as_text(records: Records, capfd: pytest.CaptureFixture[str]) -> None:
    class Mute:
        def __str__(self) -> str:
            raise SystemError("no text")

    def step(x: Any) -> Any:
        circular: list[Any] = []
        circular.append(circular)
        extra = {"circular": circular, "mute": Mute(), "fine": [1, {"a": (2.5, None)}]}
        logging.getLogger("steps").warning("small", extra=extra)
        logging.getLogger("steps").warning("large", extra={"large": list(range(10**6)), "number": 1 << 2_000_000})
        logging.getLogger("steps").warning("many", extra={f"x{number}": "y" * 300 for number in range(3000)})
        return x

    run(step, 1, 1)
    small, large, many = records.kept[:3]
    assert vars(small)["circular"] == "[[...]]"
    assert vars(small)["mute"] == "Mute"
    assert vars(small)["fine"] == [1, {"a": (2.5, None)}]
    assert (small.getMessage(), large.getMessage(), many.getMessage()) == ("small", "large", "many")
    assert large.levelno == logging.WARNING
    assert capfd.readouterr().err == ""


def test_the_end_of_the_program_waits_for_a_slow_handler(
    fresh_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    script = f"""
import logging, threading
import penstock as ps
class Slow(logging.FileHandler):
    def emit(self, record):
        threading.Event().wait(0.2)
        super().emit(record)
log = logging.getLogger("steps")
log.addHandler(Slow({str(tmp_path / "run.log")!r}))
def step(x):
    log.warning("element %d", x)
    return x
loader = ps.range(16).map(step, element_spec=ps.ArraySpec((), int)).batch(2).loader("processes", workers=2)
list(loader)
"""
    done = fresh_python(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert set((tmp_path / "run.log").read_text().splitlines()) >= {f"element {x}" for x in range(16)}


def test_a_packet_fits_into_the_socket_whatever_a_record_holds() -> None:
    record = logging.makeLogRecord({"msg": "\U0001f600" * 10**6, "exc_text": "\U0001f600" * 10**6, "stack_info": None})
    vars(record).update({f"extra{number}": "\U0001f600" * 10**6 for number in range(20)})
    assert len(Sender._packed(_Unbound(), record)) <= _logs._PACKET_NBYTES  # type: ignore[arg-type]


class _Unbound:
    _worker_name = "penstock worker 0"
