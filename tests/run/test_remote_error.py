import functools
import io
import os
import pdb
import pickle
import re
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest

import penstock as ps
from penstock.run.pool._payload import pack
from penstock.run.pool._remote_error import dump_error, load_error

# As the modules beside a user's script: a worker cannot import this one.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORKER = """
import pickle, struct, sys
from penstock.run.pool._payload import unpack
from penstock.run.pool._remote_error import dump_error

while head := sys.stdin.buffer.read(8):
    data, arrays = pickle.loads(sys.stdin.buffer.read(*struct.unpack("q", head)))
    function = unpack(data, [bytearray(array) for array in arrays])
    try:
        function()
    except BaseException as error:
        data = dump_error(error, "worker 2 (pid 41207)")
    sys.stdout.buffer.write(struct.pack("q", len(data)) + data)
    sys.stdout.buffer.flush()
"""
NOTE = "It was raised in worker 2 (pid 41207)."

Raised = Callable[[Callable[[], object]], BaseException]


@pytest.fixture(scope="module")
def worker() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


@pytest.fixture
def raised(worker: "subprocess.Popen[bytes]") -> Raised:
    """What arrives here of what a function raises in a fresh interpreter."""

    def run(function: Callable[[], object]) -> BaseException:
        payload = pack(ps.range(1)._node, function)
        task = pickle.dumps((payload.data, [root.tobytes("A") for root in payload.arrays]))
        worker.stdin.write(struct.pack("q", len(task)) + task)
        worker.stdin.flush()
        (nbytes,) = struct.unpack("q", worker.stdout.read(8))
        return load_error(worker.stdout.read(nbytes))

    return run


def text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def raise_it(make: Callable[..., BaseException], *arguments: Any) -> None:
    raise make(*arguments)


# The same type, with all that it holds.


class MyError(Exception):
    count = 0

    def __init__(self, frame: int, path: str) -> None:
        super().__init__(f"frame {frame} of {path}")
        self.frame = frame
        self.path = path


class OwnDiskError(OSError):
    def __init__(self, disk: int) -> None:
        super().__init__(5, "broken", f"disk{disk}")
        self.disk = disk


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int


class OwnReduceError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(code)
        self.lock = threading.Lock()
        self.code = code

    def __reduce__(self) -> Any:
        return functools.partial(OwnReduceError, code=self.code), ()


def test_builtin_error_is_the_same(raised: Raised) -> None:
    error = raised(lambda: {}["no such frame"])
    assert type(error) is KeyError
    assert error.args == ("no such frame",)
    assert error.__notes__ == [NOTE]


def test_class_of_the_user_is_the_users_own(raised: Raised) -> None:
    error = raised(lambda: raise_it(MyError, 3, "film.npy"))
    assert type(error) is MyError
    assert (str(error), error.frame, error.path) == ("frame 3 of film.npy", 3, "film.npy")


def test_class_of_the_user_is_not_written_to(raised: Raised) -> None:
    method = MyError.__init__

    def function() -> None:
        MyError.count += 1
        raise MyError(1, "a")

    assert type(raised(function)) is MyError
    assert MyError.count == 0
    assert MyError.__init__ is method


def test_class_that_only_the_worker_has_arrives(raised: Raised) -> None:
    def function() -> None:
        class InnerError(ValueError):
            def __str__(self) -> str:
                return f"inner {self.args}"

        raise InnerError(1)

    error = raised(function)
    assert isinstance(error, ValueError)
    assert (type(error).__name__, str(error)) == ("InnerError", "inner (1,)")


@pytest.mark.parametrize(
    "make", [functools.partial(OwnDiskError, 3), functools.partial(open, "/no/such/file")], ids=str
)
def test_os_errors_keep_number_text_and_file(raised: Raised, make: Callable[[], Any]) -> None:
    def call() -> None:
        raise make()

    with pytest.raises(OSError) as caught:  # noqa: PT011  # which, is compared
        call()
    error = raised(call)
    assert type(error) is type(caught.value)
    names = ("errno", "strerror", "filename", "args")
    assert [getattr(error, name) for name in names] == [getattr(caught.value, name) for name in names]
    assert str(error) == str(caught.value)
    assert vars(error).get("disk") == vars(caught.value).get("disk")


@pytest.mark.parametrize(
    ("make", "attributes"),
    [
        (lambda: ImportError("no", name="lib", path="/lib"), ("name", "path", "msg")),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ("object", "start", "reason")),
        (lambda: StopIteration(7), ("value",)),
        (lambda: SystemExit(3), ("code",)),
        (KeyboardInterrupt, ()),
        (lambda: MemoryError("1 GiB"), ()),
        (lambda: ps.MemoryLimitError("1 GiB"), ()),
        (lambda: ps.SourceError("x.h5 is cut"), ("errno",)),
        (lambda: SyntaxError("bad", ("a.py", 3, 1, "x =", 3, 2)), ("filename", "lineno", "text")),
        (lambda: np.exceptions.AxisError(3, 2), ("axis", "ndim")),
        (lambda: FrozenError(7), ("code",)),
        (lambda: OwnReduceError(code=8), ("code",)),
    ],
    ids=lambda value: type(value()).__name__ if callable(value) else "",
)
def test_errors_with_fields_keep_them(raised: Raised, make: Any, attributes: tuple[str, ...]) -> None:
    error, want = raised(lambda: raise_it(make)), make()
    assert type(error) is type(want)
    assert str(error) == str(want)
    assert [getattr(error, name) for name in attributes] == [getattr(want, name) for name in attributes]
    assert error.__notes__[-1] == NOTE


def test_penstocks_own_error_arrives_with_its_cause(raised: Raised) -> None:
    def fragile(x: Any) -> Any:
        raise MyError(int(x), "film.npy")

    error = raised(lambda: ps.range(3).map(fragile, element_spec=ps.ArraySpec((), "int64"))[2])
    assert type(error) is ps.ElementError
    assert re.match(
        r"^map\(fragile\) at .* failed on element 2 of epoch 0.*: MyError: frame 2 of film\.npy$", str(error)
    )
    assert type(error.__cause__) is MyError
    assert error.__cause__.frame == 2
    assert not hasattr(error.__cause__, "__notes__")


# The chain.


def test_chain_notes_and_their_order_arrive(raised: Raised) -> None:
    def function() -> None:
        try:
            try:
                {}["a"]
            except KeyError:
                int("b")
        except ValueError as error:
            error.add_note("once")
            error.add_note("twice")
            wanted = RuntimeError("top")
            wanted.add_note("mine")
            raise wanted from error

    error = raised(function)
    cause = error.__cause__
    assert isinstance(cause, ValueError)
    assert error.__context__ is cause
    assert error.__suppress_context__
    assert type(cause.__context__) is KeyError
    assert not cause.__suppress_context__
    assert cause.__cause__ is None
    assert cause.__notes__ == ["once", "twice"]
    assert error.__notes__ == ["mine", NOTE]


def test_suppressed_context_stays_suppressed(raised: Raised) -> None:
    def function() -> None:
        try:
            {}["a"]
        except KeyError:
            raise ValueError("b") from None

    error = raised(function)
    assert type(error.__context__) is KeyError
    assert error.__cause__ is None
    assert "KeyError" not in text(error)


def test_groups_arrive_with_each_members_traceback(raised: Raised) -> None:
    def function() -> None:
        errors = []
        for number in range(2):
            try:
                raise_it(MyError, number, "a")
            except MyError as error:
                errors.append(error)
        raise ExceptionGroup("all of them", [*errors, ExceptionGroup("more", [ValueError(3)])])

    error = raised(function)
    assert isinstance(error, ExceptionGroup)
    assert error.message == "all of them"
    assert [type(one) for one in error.exceptions] == [MyError, MyError, ExceptionGroup]
    assert [one.frame for one in error.exceptions[:2]] == [0, 1]
    assert error.exceptions[2].exceptions[0].args == (3,)
    assert text(error).count("raise make(*arguments)") == 2


def test_chain_that_is_a_circle_or_endless_ends(raised: Raised) -> None:
    def circle() -> None:
        error = ValueError("its own cause")
        raise error from error

    def long() -> None:
        top = error = ValueError("top")
        for number in range(5000):
            error.__cause__ = error = ValueError(number)
        raise top

    error = raised(circle)
    assert error.__cause__ is error
    count, one = 0, raised(long)
    while one is not None:
        count, one = count + 1, one.__cause__
    assert count == 64


# The traceback.


def test_traceback_is_printed_as_if_raised_here(raised: Raised) -> None:
    def inner(x: int) -> float:
        values = {"a": 1}
        return values["a"] + (
            x / 0) + len("abc")  # fmt: skip

    def outer() -> float:
        return inner(3) + 1

    with pytest.raises(ZeroDivisionError) as caught:
        outer()
    lines = text(caught.value.with_traceback(caught.tb.tb_next)).splitlines()
    here = [line for line in lines if line.strip(" ~^")]  # columns do not travel
    there = text(raised(outer)).splitlines()
    assert [line for line in there if 'File "<string>"' not in line] == [*here, NOTE]  # the worker's own script


def test_frames_hold_no_others(raised: Raised) -> None:
    link = raised(lambda: raise_it(ValueError, 1)).__traceback__
    names = []
    while link is not None:
        assert link.tb_frame.f_back is None
        names.append(link.tb_frame.f_code.co_name)
        link = link.tb_next
    assert names[-2:] == ["<lambda>", "raise_it"]


def test_post_mortem_shows_the_users_line(raised: Raised) -> None:
    error = raised(lambda: raise_it(ValueError, 1))
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("list\nup\nq\n"), stdout=out, nosigint=True, readrc=False)
    debugger.reset()
    debugger.interaction(None, error.__traceback__)
    assert f"{__file__}(" in out.getvalue()
    assert re.search(r"^ *\d+ +->\s+raise make\(\*arguments\)$", out.getvalue(), re.MULTILINE)


def test_deep_recursion_arrives_and_is_bounded(raised: Raised) -> None:
    def down(n: int) -> int:
        return down(n + 1)

    error = raised(lambda: down(0))
    assert type(error) is RecursionError
    assert len(list(traceback.walk_tb(error.__traceback__))) <= 1000
    assert "more times]" in text(error)


def test_frames_of_ours_before_the_users_are_left_out(raised: Raised) -> None:
    def fragile(x: Any) -> Any:
        return np.reshape(x, (2, 2))

    error = raised(lambda: ps.range(3).map(fragile, element_spec=ps.ArraySpec((2, 2), "int64")).batch(2)[0])
    cause = error.__cause__
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(cause.__traceback__)]
    assert names[0] == "fragile"
    ours = os.path.dirname(ps.__file__)
    assert ours not in text(cause.with_traceback(cause.__traceback__))


# What cannot come.


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


class NonsenseError(Exception):
    def __reduce__(self) -> Any:
        return int, ("x",)


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class LeavingError(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit


class FussyStateError(Exception):
    def __setstate__(self, state: Any) -> None:
        raise SystemExit(1)


class NeedsLockError(Exception):
    def __init__(self) -> None:
        super().__init__("text of the base")
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return f"locked: {self.lock.locked()}"


@pytest.mark.parametrize("cls", [UnpicklableError, NonsenseError, LeavingError, FussyStateError])
def test_class_whose_own_pickle_fails_arrives_all_the_same(raised: Raised, cls: type[Exception]) -> None:
    error = raised(lambda: raise_it(cls, "words", 3))
    assert type(error) is cls
    assert error.args == ("words", 3)
    assert error.__notes__ == [NOTE]


def test_class_whose_text_fails_arrives(raised: Raised) -> None:
    error = raised(lambda: raise_it(SilentError, "words"))
    assert type(error) is SilentError
    assert error.args == ("words",)


def test_attribute_that_cannot_come_is_named(raised: Raised) -> None:
    def function() -> None:
        error = ValueError("words")
        error.lock, error.frame = threading.Lock(), 7  # type: ignore[attr-defined]
        raise error

    error = raised(function)
    assert type(error) is ValueError
    assert vars(error)["frame"] == 7
    assert not hasattr(error, "lock")
    assert error.__notes__ == [
        "What stayed in worker 2 (pid 41207): its attribute 'lock' (TypeError: cannot pickle '_thread.lock' object).",
        NOTE,
    ]


def test_arguments_that_cannot_come_leave_the_message(raised: Raised) -> None:
    error = raised(lambda: raise_it(ValueError, "words", threading.Lock))
    assert error.args == ("words", threading.Lock)
    error = raised(lambda: raise_it(ValueError, "words", sys._getframe()))
    assert type(error) is ValueError
    assert str(error).startswith("('words', <frame at ")
    assert "its arguments (TypeError: cannot pickle 'frame' object)" in error.__notes__[0]


@pytest.mark.parametrize("what", [np.zeros(1 << 20), "x" * (1 << 21), [b"x" * 1000] * 10 + [bytes(1 << 21)]], ids=type)
def test_exception_with_more_than_a_mebibyte_comes_without_it(raised: Raised, what: Any) -> None:
    error = raised(lambda: raise_it(ValueError, "words", what))
    assert type(error) is ValueError
    assert str(error).startswith("('words', ")
    assert len(str(error)) < 21_000
    assert "1 MiB" in error.__notes__[0]


def test_type_that_cannot_be_made_again_has_a_stand_in(raised: Raised) -> None:
    error = raised(lambda: raise_it(NeedsLockError))
    assert type(error) is ps.RemoteError
    assert isinstance(error, RuntimeError)
    assert str(error) == "NeedsLockError: locked: False"
    why = (
        "The NeedsLockError itself could not come from worker 2 (pid 41207): AttributeError: 'NeedsLockError' object "
        "has no attribute 'lock'; its attribute 'lock' (TypeError: cannot pickle '_thread.lock' object)."
    )
    assert error.__notes__ == [why, NOTE]
    assert "in raise_it" in text(error)


def test_class_that_does_not_pickle_has_a_stand_in(raised: Raised) -> None:
    def function() -> None:
        cls = type("Held", (ValueError,), {"lock": threading.Lock()})
        try:
            raise cls("words")
        except ValueError as error:
            raise KeyError("top") from error

    error = raised(function)
    assert type(error) is KeyError
    assert type(error.__cause__) is ps.RemoteError
    assert str(error.__cause__) == "Held: words"
    assert "its class (TypeError: cannot pickle '_thread.lock' object)" in error.__cause__.__notes__[0]
    assert "raise cls(" in text(error.__cause__)


def test_bytes_that_are_no_exception_are_an_error_that_says_so() -> None:
    for data in (b"", b"nonsense", dump_error(ValueError(1), "worker")[:40], pickle.dumps(3)):
        assert str(load_error(data)).startswith("A worker sent an exception that cannot be read here (")


@pytest.mark.slow
def test_error_of_a_script_is_caught_as_the_scripts_own(fresh_python: Any) -> None:
    script = f"""
import pickle, struct, subprocess, sys
import penstock
from penstock.run.pool._payload import pack
from penstock.run.pool._remote_error import load_error

class MyError(Exception):
    pass

def function():
    raise MyError("mine")

task = pickle.dumps((pack(penstock.range(1)._node, function).data, []))
worker = {WORKER!r}
done = subprocess.run([sys.executable, "-c", worker], input=struct.pack("q", len(task)) + task, capture_output=True)
try:
    raise load_error(done.stdout[8:])
except MyError as error:
    print(error, type(error) is MyError)
"""
    done = fresh_python(script)
    assert done.stdout == "mine True\n", done.stderr
