import functools
import importlib
import inspect
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    NewType,
    ParamSpec,
    Protocol,
    TypeVar,
    TypeVarTuple,
)

import cloudpickle
import numpy as np
import pytest

import penstock
from penstock.base._code import is_own
from penstock.base._errors import TravelError
from penstock.base._spec import ArraySpec
from penstock.base._travel import journey, leaves_machine
from penstock.memory._shared import SharedFile
from penstock.plan._cache import ABSENT, HELD
from penstock.plan._source import Source
from penstock.run.pool import _payload
from penstock.run.pool._foreign import reduced_foreign
from penstock.run.pool._payload import PAYLOAD_LIMIT_NBYTES, pack, unpack

MIB = 1 << 20


def send(function, *arguments):
    """Calls a function in a fresh process to which it travels; returns what is printed of the result there."""
    import subprocess
    import sys

    import penstock
    from penstock.memory._shared import SharedFile
    from penstock.run.pool._payload import pack

    child = """
import sys
from penstock.memory._shared import Place, map_private, read_bytes
from penstock.run.pool._payload import unpack
descriptor, *numbers = map(int, sys.argv[1:])
data, *arrays = map(Place, numbers[::2], numbers[1::2])
function, arguments = unpack(read_bytes(descriptor, data), [map_private(descriptor, each) for each in arrays])
print(function(*arguments))
"""
    payload = pack(penstock.range(1)._node, (function, arguments))
    shared = SharedFile()
    places = [shared.put_bytes(payload.data), *map(shared.put_array, payload.arrays)]
    numbers = [str(number) for place in places for number in place]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", child, str(shared.descriptor), *numbers],
        pass_fds=[shared.descriptor],
        capture_output=True,
        text=True,
        cwd="/",
    )
    shared.close()
    return (done.stdout or done.stderr.splitlines()[-1]).strip()


SEND = inspect.getsource(send)

LISTENER = """
import os, sys
from penstock.memory._shared import Place, map_private, read_bytes
from penstock.run.pool._payload import unpack
for line in sys.stdin:
    path, *numbers = line.split()
    descriptor = os.open(path, os.O_RDWR)
    numbers = list(map(int, numbers))
    data, *arrays = map(Place, numbers[::2], numbers[1::2])
    function, arguments = unpack(read_bytes(descriptor, data), [map_private(descriptor, each) for each in arrays])
    print(function(*arguments), flush=True)
"""


@pytest.fixture(scope="module")
def listener():
    command = [sys.executable, "-W", "error", "-c", LISTENER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        yield process


@pytest.fixture
def tell(listener):
    """As `send`, but one process for all that this file sends it, as one worker runs many plans."""

    def call(function, *arguments):
        payload = pack(penstock.range(1)._node, (function, arguments))
        shared = SharedFile()
        places = [shared.put_bytes(payload.data), *map(shared.put_array, payload.arrays)]
        print(f"/proc/{os.getpid()}/fd/{shared.descriptor}", *itertools.chain(*places), file=listener.stdin, flush=True)
        said = listener.stdout.readline().strip()
        shared.close()
        return said

    return call


def refusal_of(dataset):
    with pytest.raises(penstock.TravelError) as caught:
        pack(dataset._node, dataset._node)
    return re.sub(r"test_payload\.py:\d+", "test_payload.py:LINE", str(caught.value))


# Where functions are written.

OWN = """
import sys
print("once")
FACTOR = 3
class Point:
    def __init__(self, x): self.x = x
    def scaled(self): return Point(self.x * FACTOR)
def f(x):
    return Point(x).scaled().x
def g(x):
    return f(x) + (lambda y: y + FACTOR)(1), "tabnanny" in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "-c", "standard input"])
def test_a_program_without_a_main_guard_runs_once(tmp_path, how):
    program = SEND + OWN + "print(send(lambda *functions: [each(5) for each in functions], g, lambda x: f(x)))"
    script = tmp_path / "script.py"
    script.write_text(program)
    arguments, text = {"script": ([script], ""), "-c": (["-c", program], ""), "standard input": ([], program)}[how]
    done = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True)
    assert done.stdout == "once\n[(19, False), 15]\n", done.stderr


MODULE = """
import tabnanny  # as a framework that only the training uses
import threading
lock = threading.Lock()
FACTOR = 3
class Point:
    def __init__(self, x): self.x = x
    def scaled(self): return Point(self.x * FACTOR)
def f(x): return Point(x).scaled().x
"""


USES = """
import sys
import beside, beside as b, folder.beside, package.beside, watched
from beside import f
class Holder: module = watched
uses = {
    "a function of it": f,
    "the module": lambda x: beside.f(x),
    "getattr": lambda x: getattr(beside, "f")(x),
    "inside another": lambda x: (lambda: b.Point(x).scaled().x)(),
    "a namespace package": lambda x: folder.beside.f(x),
    "a package": lambda x: package.beside.f(x),
    "an object that holds it": lambda x: Holder().module.f(x),
}
def everything(x):
    found = {use(x) for use in uses.values()}
    return found, [name for name in sys.modules if name.startswith("tabn") or "beside" in name]
print(send(everything, 5))
"""


@pytest.mark.slow
def test_a_module_beside_the_script_travels_with_what_is_used_of_it(fresh_python, tmp_path):
    for folder in (tmp_path, tmp_path / "folder", tmp_path / "package"):
        folder.mkdir(exist_ok=True)
        (folder / "beside.py").write_text(MODULE)
    (tmp_path / "watched.py").write_text(MODULE)
    (tmp_path / "package" / "__init__.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text(SEND + USES)
    result = fresh_python(script)
    assert result.stdout == "({15}, [])\n", result.stderr


SETTINGS = """
import threading
lock = threading.Lock()
SIZE = 3
"""


TAKES = """
import cfg, second
class Guarded:
    def __init__(self): self.lock = None
    def get(self): return (self.lock, second.lock, cfg.SIZE)
print(send(lambda: Guarded().get()))
print(send(lambda: (cfg.SIZE, Guarded().get())))
"""


@pytest.mark.slow
def test_a_name_that_is_taken_of_something_else_leaves_the_one_of_a_module_behind(fresh_python, tmp_path):
    (tmp_path / "cfg.py").write_text(SETTINGS)
    (tmp_path / "second.py").write_text("lock = 'open'")
    script = tmp_path / "script.py"
    script.write_text(SEND + TAKES)
    result = fresh_python(script)
    assert result.stdout == "(None, 'open', 3)\n(3, (None, 'open', 3))\n", result.stderr


@pytest.mark.slow
def test_a_module_says_what_did_not_come_with_it(fresh_python, tmp_path):
    (tmp_path / "beside.py").write_text(MODULE + "\nf_1 = f\n")
    script = tmp_path / "script.py"
    script.write_text(f"{SEND}\nimport beside\nprint(send(lambda n: getattr(beside, f'f_{{n}}'), 1))")
    assert fresh_python(script).stdout == (
        "AttributeError: module 'beside' came to this worker process with the names that the dataset's functions take "
        "from it, and 'f_1' is not one. Write `import beside` inside the function to have all of it.\n"
    )


@pytest.mark.slow
def test_what_the_user_registered_with_cloudpickle_stays_registered(fresh_python, tmp_path):
    (tmp_path / "beside.py").write_text(MODULE)
    (tmp_path / "other.py").write_text(MODULE)
    script = tmp_path / "script.py"
    script.write_text(
        f"{SEND}\nimport beside, cloudpickle, other\ncloudpickle.register_pickle_by_value(beside)\n"
        "print(send(lambda x: beside.f(x) + other.f(x), 1), cloudpickle.list_registry_pickle_by_value())"
    )
    assert fresh_python(script).stdout == "6 {'beside'}\n"


def test_what_is_installed_or_of_python_travels_by_name(tell):
    for module in (np, json, os, sys, penstock, cloudpickle, functools, importlib, np.linalg, penstock.base._code):
        assert not is_own(module)
    assert is_own(sys.modules[__name__])
    assert len(pack(penstock.range(1)._node, json.dumps).data) < 100
    assert tell(json.dumps, [1]) == "[1]"


def test_modules_without_a_file_are_known_by_their_package():
    made_by_hand, frozen = type(sys)("made_by_hand"), sys.modules["_frozen_importlib"]
    assert is_own(made_by_hand)
    assert not is_own(frozen)
    assert not is_own(type(sys)("numpy.made_by_hand"))


# What functions are, and what they hold.

SCALE = 3


class Scaler:
    """A callable object, and one with a method to bind."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        return x * self.scale

    def method(self, x):
        return self(x) + SCALE


class Pair(NamedTuple):
    x: np.ndarray
    y: np.ndarray


@functools.lru_cache(10)
def cached(n):
    return 1 if n < 2 else n * cached(n - 1)


def test_all_that_can_be_called_travels(tell):
    step = 7
    cut = functools.partial(lambda a, b: a - b, b=2)
    doubled = functools.partial(Scaler(2).method)
    callables = [lambda x: x + step, Scaler(2), Scaler(2).method, cut, doubled, cached, np.sqrt]
    there = tell(lambda: [float(each(4)) for each in callables])
    assert there == "[11.0, 8.0, 11.0, 2.0, 11.0, 24.0, 2.0]"


Id = NewType("Id", int)
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


def typed(function: Callable[P, Any]) -> Callable[P, Id]:
    def inner(*args: P.args, **kwargs: P.kwargs) -> Id:
        return Id(function(*args, **kwargs))

    return inner


@typed
def annotated(x: Id, *more: tuple[*Ts]) -> Id:
    return x


def test_what_annotations_mention_travels(tell):
    assert tell(annotated, 3) == "3"


R = TypeVar("R")


class Step(Generic[P, R]):
    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


class Called(Protocol[P]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> int: ...


class Row(Generic[*Ts]):
    def first(self, row: tuple[*Ts]) -> Any:
        return row[0]


Plain = Callable[P, int]
Longer = Callable[Concatenate[Id, P], R]


def one_more(function: Longer[P, R], called: Called[P] | None = None, plain: Plain[P] | None = None) -> Callable[P, R]:
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(Id(1), *args, **kwargs)

    return inner


@one_more
def summed(first: Id, x: int) -> tuple[Any, ...]:
    parameters = [each.__parameters__ == (P, R) for each in (Step, Step[P, R], Longer)]
    return first + x, Row[int, str]().first((x,)), parameters, Called[[int]].__args__, Plain[[int]], P, Ts


def test_generics_of_parameter_specifications_travel(tell):
    found = "(4, 3, [True, True, True], ((<class 'int'>,),), collections.abc.Callable[[int], int], ~P, Ts)"
    assert tell(Step(summed), 3) == found


TYPE_PARAMETERS = """
type Pixels = np.ndarray
type Tree[T] = list[Tree[T]] | T


class Box[*Ts]:
    def get(self, x: tuple[*Ts]) -> Tree[int]:
        return x


def typed[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return inner


@typed
def decorated(x: Pixels) -> Tree[int]:
    return Box[int, str]().get(x), Pixels.__value__
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is of Python 3.12")
def test_type_parameters_and_aliases_travel(tell):
    module = types.ModuleType("made_by_hand")
    vars(module).update(np=np, Callable=Callable)
    exec(TYPE_PARAMETERS, vars(module))
    assert tell(module.decorated, 3) == "(3, <class 'numpy.ndarray'>)"


def test_two_steps_share_one_array_through_views_of_it(tell):
    big = np.arange(10 * MIB // 8, dtype=np.float64)
    left, right = big[: len(big) // 2], big[len(big) // 2 :]

    def first(x):
        return left[x]

    def second(x):
        left[0] = -1  # to its own copy
        return right[0], big[0], left.flags.writeable, right.base is not None

    payload = pack(penstock.range(1)._node, (first, second))
    assert [array is big for array in payload.arrays] == [True]
    assert payload.shared_nbytes == big.nbytes
    assert len(payload.data) < 3000
    assert (
        tell(lambda: (first(1), *second(1))) == "(np.float64(1.0), np.float64(655360.0), np.float64(-1.0), True, True)"
    )
    assert big[0] == 0


def test_the_same_array_arrives_as_one():
    array = np.zeros(MIB, np.uint8)
    one, other = through([array, {"again": array}])
    assert other["again"] is one


def through(value):
    payload = pack(penstock.range(1)._node, value)
    return unpack(payload.data, [np.frombuffer(bytearray(root.tobytes("A")), np.uint8) for root in payload.arrays])


ARRAYS = {
    "records": np.ones(MIB // 8, [("a", "i4"), ("b", "f4")]),
    "Fortran": np.asfortranarray(np.random.default_rng(0).random((512, 512))),
    "backwards": np.arange(MIB // 2)[::-2],
    "dates": np.arange(MIB // 4).astype("datetime64[s]"),
    "big-endian": np.arange(MIB // 4).astype(">f8"),
    "text": np.full(MIB // 8, "abcd"),
    "read-only": np.lib.stride_tricks.sliding_window_view(np.arange(MIB // 4), 3),
    "scalar repeated": np.broadcast_to(np.float32(2), (1024, 1024)),
    "small": np.arange(4),
    "objects": np.array(["a", None, 3] * 100, dtype=object),
    "empty": np.empty((0, 1 << 30)),
    "nothing": np.array(5.0),
    "recarray": np.ones(MIB // 8, [("a", "i4"), ("b", "f4")]).view(np.recarray),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive_bit_for_bit(name):
    array = ARRAYS[name]
    assert len(pack(penstock.range(1)._node, array).data) < 6000
    again = through(array)
    assert type(again) is type(array)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert again.flags.f_contiguous == array.flags.f_contiguous
    assert again.flags.writeable
    np.testing.assert_array_equal(again, array)


def test_masked_arrays_share_their_data_and_mask():
    array = np.ma.masked_greater(np.arange(float(2 * MIB)), 5, copy=False)
    array.fill_value = -7
    payload = pack(penstock.range(1)._node, array)
    assert payload.shared_nbytes == array.data.nbytes + array.mask.nbytes
    again = through(array)
    assert type(again) is np.ma.MaskedArray
    assert again.fill_value == -7
    np.testing.assert_array_equal(again.filled(), array.filled())


# Files.


@pytest.fixture
def memmap(tmp_path):
    np.save(tmp_path / "frames.npy", np.arange(6 * MIB, dtype=np.uint8).reshape(-1, 1024))
    return np.load(tmp_path / "frames.npy", mmap_mode="r")


def test_a_memmap_is_mapped_again_from_its_path(memmap, tmp_path, monkeypatch, tell):
    monkeypatch.chdir(tmp_path)
    relative = np.memmap("frames.npy", np.uint8, "r", offset=memmap.offset, shape=memmap.shape)
    row, backwards = memmap[3], np.asarray(relative).T[5::-2, ::-1]

    def f():
        memmap[0, 0] = 9  # to its own copy
        return memmap[0, :2], type(memmap).__name__, memmap.filename[-10:], row[:2], backwards[:2, -2]

    payload = pack(penstock.range(1)._node, f)
    assert payload.arrays == ()
    assert len(payload.data) < 4000
    rows = "memmap([9, 1], dtype=uint8), 'memmap', 'frames.npy', memmap([0, 1], dtype=uint8)"
    assert tell(f) == f"({rows}, array([5, 3], dtype=uint8))"
    assert memmap[0, 0] == 0


def test_a_memmap_without_a_file_travels_as_an_array(memmap, tmp_path):
    (tmp_path / "frames.npy").unlink()
    private = np.memmap(tmp_path / "private", np.uint8, "w+", shape=(2 * MIB,))
    private.flush()
    private = np.memmap(tmp_path / "private", np.uint8, "c")
    private[0] = 7  # which the file does not say
    payload = pack(penstock.range(1)._node, (memmap, private))
    assert [len(array.reshape(-1)) for array in payload.arrays] == [memmap.size, private.size]
    again, changed = through((memmap, private))
    np.testing.assert_array_equal(again, memmap)
    assert changed[0] == 7


def test_a_file_that_was_replaced_meanwhile_is_refused_by_the_worker(memmap, tmp_path):
    data = pack(penstock.range(1)._node, memmap).data
    path = tmp_path / "frames.npy"
    (tmp_path / "new").write_bytes(path.read_bytes())
    for change in (lambda: (tmp_path / "new").rename(path), path.unlink):
        change()
        with pytest.raises(penstock.SourceError, match=r"frames\.npy was deleted, replaced or shortened since"):
            unpack(data, [])


def test_hdf5_travels_by_names(tmp_path, monkeypatch, tell):
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    with h5py.File("x.h5", "w") as file:
        file["group/x"] = np.arange(10)
        writing = penstock.range(1).map(lambda i: file["group/x"][i])
        assert 'closed, open for writing, or not on disk; open one with mode "r")' in refusal_of(writing)
    with h5py.File("x.h5", "r") as file:
        dataset, group = file["group/x"], file["group"]
        assert (
            tell(lambda: (dataset[3], group["x"][4], file["group/x"][5])) == "(np.int64(3), np.int64(4), np.int64(5))"
        )
        monkeypatch.setitem(sys.modules, "hdf5plugin", types.ModuleType("hdf5plugin"))
        opened, arguments = reduced_foreign(file)
        assert arguments == (str(tmp_path / "x.h5"), True)  # filters come along
        with opened(*arguments) as again:
            assert again["group/x"][3] == 3
    assert "travel to a worker process (TypeError: its HDF5 file is closed" in refusal_of(
        penstock.range(1).map(lambda i: dataset[i])
    )


# Plans.


def test_every_source_travels_as_a_handle(tmp_path, memmap, tell):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(2 * MIB)
    stored = zarr.create_array(tmp_path / "x.zarr", shape=(2 * MIB,), dtype="i8")
    stored[:] = np.arange(2 * MIB)
    with h5py.File(tmp_path / "x.h5") as file:
        datasets = [
            penstock.from_npy(tmp_path / "frames.npy"),
            penstock.from_arrays(memmap[::2]),
            penstock.from_arrays(np.arange(2 * MIB)),
            penstock.from_arrays(file["x"]),
            penstock.from_arrays(stored),
            penstock.range(5),
            penstock.from_source([1, 2, 3]),
        ]
        nodes = [dataset._node for dataset in datasets]
        wanted = [np.asarray(dataset[2]).ravel()[-2:].tolist() for dataset in datasets]  # which opens them here
        assert [len(pack(node, node).data) < 5000 for node in nodes] == [True] * len(nodes)
        there = tell(lambda: [np.asarray(penstock.Dataset(node)[2]).ravel()[-2:].tolist() for node in nodes])
        assert there == str(wanted)
    assert tell(lambda: int(stored[7])) == "7"  # also when a function holds it


def test_specs_travel_so_that_a_worker_finds_none_again(tell):
    calls = []

    def f(x):
        calls.append(x)
        return Pair(x, {"b": x, "a": np.zeros(2)})

    dataset = penstock.range(10).map(f).shuffle(seed=1).batch(2)
    spec = dataset.element_spec
    assert len(calls) == 1
    printed = tell(
        lambda node: (node.spec.tree, node.inputs[0].inputs[0].function.__closure__[0].cell_contents), dataset._node
    )
    assert printed == str((spec, calls))


# What cannot travel.

LOCK = threading.Lock()
HOLDER = {"numbers": [1, 2], "db": LOCK}
LARGE = {"all": bytes(40 * MIB)}


class Locked(Scaler):
    def __init__(self):
        self.lock = threading.Lock()


class Shelf(Scaler):
    lock = threading.Lock()

    def __init__(self):
        super().__init__(2)


class Simulator:
    def __init__(self):
        self.lock = LOCK

    def __iter__(self):
        return iter(range(5))


class Lazy:
    def __init__(self):
        self.generator = (n for n in range(5))

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return index


def default(x, lock=LOCK):
    return x


def f(x):
    return LOCK, x


def refused(file):
    variable = threading.Lock()
    generator = (n for n in range(3))
    numbers = penstock.range(3)
    cannot = "TypeError: cannot pickle '_thread.lock' object"
    cure = 'Make it inside the function, give it as NumPy arrays, which workers share, or use executor="threads".'

    def here(label, what, why=cannot):
        return f"{label} at test_payload.py:LINE holds {what}, which cannot travel to a worker process ({why}). {cure}"

    yield numbers.map(f), here("map(f)", "the global `LOCK`, a lock")
    yield numbers.map(lambda x: variable), here("map(<lambda>)", "the variable `variable`, a lock")
    yield numbers.map(lambda x: f(x) + 1), here("map(<lambda>)", "the global `f`, in it the global `LOCK`, a lock")
    yield numbers.map(default), here("map(default)", "the default of `lock`, a lock")
    yield numbers.map(lambda x: HOLDER), here("map(<lambda>)", "the global `HOLDER`, in it the item 'db', a lock")
    yield numbers.map(Locked()), here("map(Locked)", "the attribute `lock`, a lock")
    yield numbers.map(Locked().method), here("map(Scaler.method)", "the attribute `lock`, a lock")
    yield numbers.map(Shelf()), here("map(Shelf)", "`Shelf.lock`, a lock")
    yield (
        numbers.map(functools.partial(lambda x, lock: x, lock=LOCK)),
        here("map(<lambda>)", "the argument `lock`, a lock"),
    )
    yield numbers.map(functools.partial(max, LOCK)), here("map(max)", "the argument `0`, a lock")
    yield numbers.map(functools.lru_cache(f)), here("map(f)", "the global `LOCK`, a lock")
    yield (
        numbers.random_map(lambda x, rng: next(generator), seed=3),
        here(
            "random_map(<lambda>, seed=3)",
            "the variable `generator`, a generator",
            "TypeError: cannot pickle 'generator' object",
        ),
    )
    yield (
        numbers.map(lambda x: file.read()),
        here("map(<lambda>)", "the variable `file`, a TextIOWrapper", "TypeError: an open file belongs to its process"),
    )
    instead = 'Give files or arrays (from_npy, from_arrays), or use executor="threads".'
    why = "which cannot travel to a worker process (TypeError: cannot pickle 'generator' object)"
    unpicklable = f"which cannot travel to a worker process ({cannot})"
    inside = 'Make it inside the generator, or use executor="threads".'
    text = f"from_source(Lazy) holds the attribute `generator`, a generator, {why}. {instead}"
    yield penstock.from_source(Lazy()).batch(2), text
    text = (
        f"from_generator(Simulator) at test_payload.py:LINE holds the attribute `lock`, a lock, {unpicklable}. {inside}"
    )
    yield penstock.from_generator(Simulator()), text
    limit = (
        ", which cannot travel to a worker process (it is more than 32 MiB pickled; besides arrays, no more travels)"
    )
    large = [str(n) * 100 for n in range(100_000)]
    place = "map(<lambda>) at test_payload.py:LINE holds"
    yield numbers.map(lambda x: large[x]), f"{place} the variable `large`, a list{limit}. {cure}"
    text = f"{place} the global `LARGE`, in it the item 'all', a bytes{limit}. {cure}"
    yield numbers.map(lambda x: LARGE), text
    yield penstock.from_source(large), f"from_source(list) holds a list{limit}. {instead}"


def test_each_refusal_names_the_step_the_variable_and_the_cure():
    with open(__file__) as file:
        for dataset, message in refused(file):
            assert refusal_of(dataset.map(lambda x: x)) == message


def test_what_is_not_of_the_plan_is_refused_too():
    with pytest.raises(
        penstock.TravelError, match=r"^This dataset cannot travel to a worker process \(TypeError: "
    ) as caught:
        pack(penstock.range(1)._node, LOCK)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_payload_of_the_largest_size_travels():
    assert through(bytes(PAYLOAD_LIMIT_NBYTES - 1000)) == bytes(PAYLOAD_LIMIT_NBYTES - 1000)


# Sources say themselves how they travel.


class Placed(Source):
    """A source of somebody else, which is known on other machines by another name."""

    element_spec = ArraySpec((), "int64")

    def __init__(self, place):
        self.place = place

    def __len__(self):
        return 4

    def read_into(self, indices, out):
        out[...] = indices

    def __reduce__(self):
        return Placed, ("there" if leaves_machine() else self.place,)


@pytest.mark.parametrize(("leaves", "place"), [(False, "here"), (True, "there")])
def test_a_source_asks_whether_it_leaves_the_machine(leaves, place):
    node = penstock.from_source(Placed("here"))._node
    assert unpack(pack(node, node, leaves_machine=leaves).data, []).data.place == place
    assert pickle.loads(pickle.dumps(node.data)).place == "here"


def test_the_journey_ends_with_the_packing_also_if_that_fails():
    node = penstock.range(4).map(functools.partial(len, threading.Lock()))._node
    with pytest.raises(TravelError):
        pack(node, node, leaves_machine=True)
    assert journey() is None


def test_the_pickler_knows_no_source():
    text = Path(_payload.__file__).read_text()
    # `StridedFile` names the file of an `np.memmap`, which is an array of NumPy.
    assert re.findall("penstock.sources.*", text) == ["penstock.sources.npy import StridedFile"]


# Caches.


def _elsewhere(dataset):
    return unpack(pack(dataset._node, dataset._node, leaves_machine=True).data, [])


def test_a_cache_that_may_be_written_to_keeps_nothing_on_other_machines(tmp_path):
    for dataset in (penstock.range(4).cache(), penstock.range(4).cache(tmp_path / "cache")):
        next(iter(dataset))
        assert (_elsewhere(dataset).store.open().look(np.arange(4)) == ABSENT).all()


def test_a_complete_cache_on_disk_is_read_by_other_machines(tmp_path):
    dataset = penstock.range(4).cache(tmp_path)
    list(dataset.loader(executor="inline"))
    assert (_elsewhere(dataset).store.open().look(np.arange(4)) == HELD).all()


def test_a_complete_stream_in_the_memory_of_this_machine_is_refused_elsewhere():
    dataset = penstock.from_generator(lambda: range(4)).cache(limit=1000)
    list(dataset.loader(executor="inline"))
    with pytest.raises(TravelError, match=r"in the memory of this machine alone"):
        _elsewhere(dataset)
