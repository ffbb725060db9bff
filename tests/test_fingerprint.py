"""A fingerprint changes when what a function does may change, and with nothing else: neither place nor process."""

import collections
import dataclasses
import functools
import importlib.util
import itertools
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base import _fingerprint
from penstock.base._fingerprint import OWN_VERSION, NoFingerprintError, fingerprint, fingerprints
from penstock.files._openfile import File
from penstock.plan._fingerprint import change, fingerprint_of, table

SCRIPT = """
import functools
import math

import numpy as np

SCALE = 3
NAMES = {"b", "a", "c", "d"}
TABLE = {"z": 1, "y": [2, {"x": 3}]}
WEIGHTS = np.arange(6.0).reshape(2, 3)


class Base:
    offset = 1

    def shift(self, x):
        return x + self.offset


class Step(Base):
    def __init__(self, width):
        self.width = width

    def __call__(self, x):
        return self.shift(x) * self.width

    @property
    def half(self):
        return self.width / 2


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def helper(x, *, power=2):
    "Says what it does."
    return x**power


def made(width):
    def inner(x):
        return x * width

    return inner


closed = made(4)
step = Step(5)
partial = functools.partial(helper, power=3)


def f(x, y=1):
    if x in NAMES or even(2):
        return TABLE
    inside = [closed(i) for i in range(3)]
    return helper(x) * SCALE + step(x) + partial(x) + math.pi + float(WEIGHTS.sum()) + y + len(inside)
"""


def _module(text: str, path: Path) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        return module
    finally:
        del sys.modules[path.stem]


_numbers = itertools.count()


def _of(text: str, folder: Path) -> str:
    return fingerprint(_module(text, folder / f"made_{next(_numbers)}.py").f)


CHANGES = {
    "a constant": ("return n == 0 or", "return n == 1 or"),
    "an operator": ("helper(x) * SCALE", "helper(x) - SCALE"),
    "a global": ("SCALE = 3", "SCALE = 4"),
    "a global's type": ("SCALE = 3", "SCALE = 3.0"),
    "a member of a set": ('"d"}', '"e"}'),
    "a value deep in a dict": ('{"x": 3}', '{"x": 4}'),
    "the order of a dict": ('{"z": 1, "y": [2, {"x": 3}]}', '{"y": [2, {"x": 3}], "z": 1}'),
    "a number in an array": ("np.arange(6.0)", "np.arange(1.0, 7.0)"),
    "an array's dtype": ("np.arange(6.0)", "np.arange(6.0, dtype='f4')"),
    "an array's shape": ("reshape(2, 3)", "reshape(3, 2)"),
    "a function that it calls": ("return x**power", "return x*power"),
    "a function that a function calls": ("return n != 0 and", "return n != 1 and"),
    "a default": ("y=1", "y=2"),
    "a default by keyword": ("power=2", "power=4"),
    "what a closure holds": ("made(4)", "made(5)"),
    "an argument of a partial": ("power=3", "power=5"),
    "a method": ("* self.width", "+ self.width"),
    "an attribute of a class": ("offset = 1", "offset = 2"),
    "an attribute of an object": ("Step(5)", "Step(6)"),
    "a property": ("self.width / 2", "self.width / 3"),
    "an attribute that is taken": ("math.pi", "math.e"),
    "the name of an argument by keyword": ("power", "exponent"),
    "what it is called with": ("range(3)", "range(4)"),
    "its number of arguments": ("def f(x, y=1)", "def f(x, y=1, z=1)"),
}  # fmt: skip

NO_CHANGES = {
    "lines": ("SCALE = 3", "\n\n\nSCALE = 3"),
    "lines inside": ("    inside =", "\n    # Why.\n\n    inside ="),
    "comments": ("SCALE = 3", "SCALE = 3  # three"),
    "docstrings": ('"Says what it does."', '"Says it in other words."'),
    "no docstring": ('    "Says what it does."\n', ""),
    "annotations": ("def f(x, y=1)", "def f(x: int, y: 'int' = 1) -> float"),
    "the name of a variable inside": ("inside", "within"),
    "the order of a set": ('{"b", "a", "c", "d"}', '{"d", "c", "b", "a"}'),
    "functions that are not called": ("def f(", "def unused():\n    return SCALE\n\n\ndef f("),
    "the order of definitions": ("SCALE = 3\n", "def late():\n    pass\n\n\nSCALE = 3\n"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_a_function_does_changes_it(what: str, tmp_path: Path) -> None:
    old, new = CHANGES[what]
    assert old in SCRIPT
    assert _of(SCRIPT, tmp_path) != _of(SCRIPT.replace(old, new), tmp_path)


@pytest.mark.parametrize("what", NO_CHANGES)
def test_a_change_of_nothing_that_it_does_does_not(what: str, tmp_path: Path) -> None:
    old, new = NO_CHANGES[what]
    assert old in SCRIPT
    assert _of(SCRIPT, tmp_path) == _of(SCRIPT.replace(old, new), tmp_path)


GENERIC = """
from typing import Generic, TypeVar

T = TypeVar("T")


class Box(Generic[T]):
    def get(self, x):
        return x


def f(x):
    class Inner(Box[int]):
        scale = 3

    return Inner().get(x)
"""
TYPE_PARAMETERS = """
class Box[T]:
    def get(self, x: T) -> T:
        return x


def f[T](x: T) -> T:
    class Inner[S](Box[int]):
        scale = 3

    return Inner().get(x)
"""  # of 3.12
SCRIPTS = [SCRIPT, GENERIC, TYPE_PARAMETERS] if sys.version_info >= (3, 12) else [SCRIPT, GENERIC]


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_another_file_is_the_same(script: str, tmp_path: Path) -> None:
    assert _module(script, tmp_path / "one.py").f.__module__ == "one"
    assert fingerprint(_module(script, tmp_path / "one.py").f) == fingerprint(_module(script, tmp_path / "other.py").f)


def test_what_a_class_inside_takes_of_a_module_that_is_closed_over_changes_it(tmp_path: Path) -> None:
    def made(module: Any) -> Any:
        def f(x: int) -> int:
            class Inner:
                scale = module.SCALE

            return x * Inner.scale

        return f

    one, other = [_module(f"SCALE = {scale}", tmp_path / f"scale{scale}.py") for scale in (3, 4)]
    assert fingerprint(made(one)) != fingerprint(made(other))


@pytest.mark.slow
def test_another_process_with_another_hash_seed_is_the_same(tmp_path: Path, fresh_python: Any) -> None:
    program = SCRIPT + "\nfrom penstock.base._fingerprint import fingerprint\nprint(fingerprint(f))\n"
    script = tmp_path / "program.py"
    script.write_text(program)
    said = set()
    for seed in ("1", "2"):
        done = fresh_python(script, env={"PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        said.add(done.stdout.strip())
    assert said == {_of(SCRIPT, tmp_path)}  # as __main__, too


def test_a_worker_process_and_a_compiled_file_are_the_same(tmp_path: Path) -> None:
    import cloudpickle

    module = _module(SCRIPT, tmp_path / "travels.py")
    arrived = cloudpickle.loads(cloudpickle.dumps(module.f))
    assert fingerprint(arrived) == fingerprint(module.f)
    __import__("py_compile").compile(str(tmp_path / "travels.py"), cfile=str(tmp_path / "compiled.pyc"))
    loader = importlib.util.spec_from_file_location("compiled", tmp_path / "compiled.pyc").loader
    code = loader.get_code("compiled")
    names: dict[str, Any] = {"__name__": "compiled"}
    exec(code, names)
    assert fingerprint(names["f"]) == fingerprint(module.f)


def test_a_function_that_calls_itself_has_one() -> None:
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert len(fingerprint(factorial)) == 32


def test_lists_that_hold_themselves_have_one() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [2]
    other.append(other)
    assert fingerprint(loop) != fingerprint(other)


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Setting:
    width: int

    @functools.cached_property
    def area(self) -> int:
        return self.width**2


VALUES = [
    None, True, 1, 1.0, 1j, -0.0, 0.0, float("nan"), "a", b"a", (), [], {}, set(), frozenset(), (1,), [1], {1}, ((1,),),
    {"a": 1}, {"a": 2}, {1: "a"}, slice(1), range(2), range(3), ..., Point(1, 2), Point(2, 1), Setting(1), Setting(2),
    np.float32(1), np.float64(1), np.array(1.0), np.zeros(0), np.zeros((0, 2)), np.zeros(2), np.zeros(2, ">f8"),
    np.array(["a"]), np.array(["b"]), np.array(["a", None], object), np.dtype("f4"), np.dtype([("a", "f4")]),
    np.ma.masked_array([1.0, 2.0], [True, False]), np.ma.masked_array([1.0, 2.0], [False, False]),
    np.add, np.multiply, len, sorted, str.upper, "".join, np.mean, np.linalg.norm, re.compile("a"), re.compile("b"),
    int, float, np.ndarray, threading, np, functools.partial(len), functools.partial(sorted), Path("a"), Path("b"),
    np.random.default_rng(1), np.random.default_rng(2), collections.deque([1]), collections.OrderedDict(a=1),
]  # fmt: skip


def test_different_values_have_different_ones_and_each_has_one_only() -> None:
    found = [fingerprint(value) for value in VALUES]
    assert len(set(found)) == len(VALUES)
    assert found == [fingerprint(value) for value in VALUES]


def test_equal_values_have_one_whether_or_not_they_are_one_object() -> None:
    pair = (1, "abc")
    assert fingerprint((pair, pair)) == fingerprint((pair, (int("1"), str(b"abc", "ascii"))))
    assert fingerprint(np.arange(10)[::2]) == fingerprint(np.arange(0, 10, 2))
    assert fingerprint(np.asfortranarray(np.eye(3))) == fingerprint(np.eye(3))


def test_what_was_computed_and_kept_by_an_object_changes_nothing() -> None:
    setting = Setting(3)
    before = fingerprint(setting)
    assert setting.area == 9
    assert fingerprint(setting) == before


def test_a_memmap_is_its_file_and_place(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0))
    one, other = np.load(tmp_path / "x.npy", mmap_mode="r"), np.load(tmp_path / "x.npy", mmap_mode="r")
    assert fingerprint(one[3:]) == fingerprint(other[3:])
    assert fingerprint(one[3:9]) != fingerprint(one[4:10])
    before = fingerprint(one)
    np.save(tmp_path / "x.npy", np.arange(13.0)[1:])
    assert fingerprint(np.load(tmp_path / "x.npy", mmap_mode="r")) != before


def test_a_quick_look_leaves_large_arrays_out_and_says_so() -> None:
    skipped: list[str] = []
    large = np.zeros(1 << 17)
    assert fingerprint({"a": large}, skipped) == fingerprint({"a": large + 1}, [])
    assert skipped == ["the item 'a'"]


def test_the_parts_of_a_function_are_its_code_and_its_variables() -> None:
    width = 3

    def scaled(x: float, *, by: float = 2) -> float:
        return x * width * by * len(VALUES)

    parts = fingerprints(scaled, "the function")
    assert set(parts) == {"the code", "the default of `by`", "the variable `width`", "the global `VALUES`"}


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (threading.Lock, "the variable `held`, in it a lock"),
        (lambda: {"a": [threading.Lock()]}, "the variable `held`, in it the item 'a', in it the item 0, in it a lock"),
        (lambda: sys.__stdout__, "the variable `held`, in it a TextIOWrapper"),
        (lambda: (x for x in ()), "the variable `held`, in it a generator"),
        (lambda: np.frompyfunc(len, 1, 1), "the variable `held`, in it an? ufunc"),
    ],
    ids=["lock", "deep", "file", "generator", "frompyfunc"],
)
def test_what_has_none_is_refused_by_its_name(make: Any, path: str, tmp_path: Path) -> None:
    held = make()

    def reads(x: Any) -> Any:
        return held, x

    with pytest.raises(NoFingerprintError, match=path):
        fingerprint(reads)
    with pytest.raises(ps.ArgumentTypeError) as caught:
        ps.range(3).map(reads).cache(tmp_path)
    assert re.search(rf"map\(reads\) at test_fingerprint.py:\d+ holds {path}", str(caught.value))
    assert "cache(path, key='v1')" in str(caught.value)


def _key(dataset: ps.Dataset) -> str:
    return fingerprint_of(table(dataset._node))


def double(x: Any) -> Any:
    return x * 2


def test_plans_differ_by_steps_arguments_and_data(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", np.zeros((4, 2)))
    plans = [
        ps.range(4), ps.range(5), ps.range(4).map(double), ps.range(4).map(double).map(double), ps.range(4).batch(2),
        ps.range(4).batch(2, drop_remainder=True), ps.range(4).batch(2).map(double), ps.range(4).map(double).batch(2),
        ps.range(4).take(3), ps.range(4).cast("f4"), ps.range(4).shuffle(1), ps.range(4).shuffle(2),
        ps.zip((ps.range(4), ps.range(4))), ps.zip((ps.range(4), ps.range(4).map(double))),
        ps.zip((ps.range(4).map(double), ps.range(4))), ps.zip({"a": ps.range(4), "b": ps.range(4)}),
        ps.from_npy(tmp_path / "x.npy"), ps.from_npy(tmp_path / "y.npy"), ps.from_arrays(np.zeros((4, 2))),
        ps.from_arrays(np.ones((4, 2))), ps.from_source([1, 2]), ps.from_source([1, 3]),
        ps.from_generator(double, 3), ps.from_generator(double, 4), ps.range(4).filter(double),
        ps.range(4).windows(2), ps.range(4).windows(2, stride=2), ps.range(4).random_map(double, seed=1),
        ps.range(4).random_map(double, seed=2),
    ]  # fmt: skip
    assert len({_key(plan) for plan in plans}) == len(plans)


def test_running_a_plan_does_not_change_it() -> None:
    for made in (ps.range(4).map(double).batch(2), ps.from_generator(lambda: iter([1, 2])).map(double)):
        before = _key(made)
        list(made)
        assert _key(made) == before


def test_a_cache_before_changes_nothing(tmp_path: Path) -> None:
    assert _key(ps.range(4).map(double).cache(tmp_path / "a")) == _key(ps.range(4).map(double).cache(tmp_path / "b"))


def test_a_dataset_that_a_function_holds_is_a_part_of_it() -> None:
    def key(lookup: ps.Dataset) -> str:
        return fingerprint(lambda i: lookup[i])

    assert key(ps.range(4)) == key(ps.range(4)) != key(ps.range(5))


def test_a_change_is_told_in_words() -> None:
    def made(width: int) -> ps.Dataset:
        return ps.range(4).map(lambda x: x * width).batch(2)

    def said(before: ps.Dataset, now: ps.Dataset) -> str:
        return change(table(before._node), table(now._node))

    assert said(made(1), made(2)) == "the variable `width` changed in step 2, map(<lambda>)"
    assert said(made(1), made(1).repeat(2)) == "repeat(2) is a new step"
    assert said(ps.range(4).batch(2), ps.range(4).batch(3)) == "step 2 was batch(2) and is batch(3)"
    one, other = (ps.from_arrays(np.full(3, value)) for value in (1, 2))
    assert said(one, other) == "the data changed in step 1, from_arrays(array of (3,) int64)"


@pytest.mark.parametrize(
    ("url", "expected"),
    [("/data/a.tar", "86bb36fa213ea7bf4bad050accea0a16"), ("web://a/b", "a8110d99337682dee16730821af3ec0b")],
)
def test_a_file_keeps_the_fingerprint_by_which_caches_on_disk_know_it(url, expected, monkeypatch):
    """What a file says to pickle for workers (`__reduce_ex__`) is no part of it."""
    versions = {"penstock": OWN_VERSION, "copyreg": "3.11"}  # which Python's version is part of
    monkeypatch.setattr(_fingerprint, "_version", lambda module: versions[module.partition(".")[0]])
    assert fingerprint(File(url, 100, "1")) == expected
