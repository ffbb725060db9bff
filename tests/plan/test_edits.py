"""Programs that are edited between two processes: what `cache` kept of the old program is not read by the new one.

Each place of an edit is a function `f(x)` in a module of its own, with the modules beside it. What is kept of it is one
of several plans. A first process fills all caches, then all programs are edited, then a second process reads each
dataset with its cache and without. A third one, without an edit, must find the caches of the second.
"""

# ruff: noqa: E501  # programs are texts of one line each

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow


class Place(NamedTuple):
    """A program, and an edit of it: `old` becomes `new` in whichever file has it. `LIB` stands for a module's name."""

    main: str
    old: str
    new: str
    files: dict[str, str] = {}  # noqa: RUF012  # never changed


def in_lib(main: str, lib: str = "scale = 2\n", old: str = "scale = 2", new: str = "scale = 3") -> Place:
    return Place(main, old, new, {"LIB.py": lib})


def in_package(main: str) -> Place:
    return Place(main, "scale = 2", "scale = 3", {"LIB/__init__.py": "", "LIB/sub.py": "scale = 2\n"})


def value(text: str, old: str, new: str, use: str) -> Place:
    """An edit of a global `V`, which `f` uses."""
    return Place(f"V = {text}\ndef f(x):\n    return float({use})\n", old, new)


FUNCTION = "def scale(x):\n    return x * 2\n"
CLASS = "class C:\n    {}\n\nc = C()\ndef f(x):\n    return float(c(x))\n"
DROPS = (
    "class C:\n    def __init__(self, n):\n        self.n = n\n    {}\n    def __call__(self, x):\n"
    "        return x * self.n\n\nc = C(2)\ndef f(x):\n    return float(c(x))\n"
)
SUBCLASS = (
    "class A(np.ndarray):\n    def scaled(self, x):\n        return x * 2 + self[0]\n\n"
    "a = np.zeros(3).view(A)\na.unit = 2\ndef f(x):\n    return float({})\n"
)

PLACES: dict[str, Place] = {
    # Modules.
    "global module": in_lib("import LIB\ndef f(x):\n    return float(x * LIB.scale)\n"),
    "name of a global module": in_lib("from LIB import scale\ndef f(x):\n    return float(x * scale)\n"),
    "function of a global module": in_lib(
        "import LIB\ndef f(x):\n    return float(LIB.scale(x))\n", FUNCTION, "x * 2", "x * 3"
    ),
    "module in the body": in_lib("def f(x):\n    import LIB\n    return float(x * LIB.scale)\n"),
    "name in the body": in_lib("def f(x):\n    from LIB import scale\n    return float(x * scale)\n"),
    "alias in the body": in_lib("def f(x):\n    import LIB as m\n    return float(x * m.scale)\n"),
    "function in the body": in_lib(
        "def f(x):\n    from LIB import scale\n    return float(scale(x))\n", FUNCTION, "x * 2", "x * 3"
    ),
    "package in the body": in_package("def f(x):\n    import LIB.sub\n    return float(x * LIB.sub.scale)\n"),
    "module of a package in the body": in_package("def f(x):\n    from LIB import sub\n    return float(x * sub.scale)\n"),
    "name of a package in the body": in_package("def f(x):\n    from LIB.sub import scale\n    return float(x * scale)\n"),
    "alias of a package in the body": in_package("def f(x):\n    import LIB.sub as s\n    return float(x * s.scale)\n"),
    "the package itself": Place(
        "def f(x):\n    import LIB\n    return float(x * LIB.scale)\n",
        "scale = 2",
        "scale = 3",
        {"LIB/__init__.py": "scale = 2\n"},
    ),
    "what the body's module imports": Place(
        "def f(x):\n    import LIB\n    return float(x * LIB.scale)\n",
        "scale = 2",
        "scale = 3",
        {"LIB.py": "from LIBother import scale\n", "LIBother.py": "scale = 2\n"},
    ),
    "what that imports in a function": Place(
        "def f(x):\n    import LIB\n    return float(LIB.g(x))\n",
        "scale = 2",
        "scale = 3",
        {"LIB.py": "def g(x):\n    import LIBother as o\n    return x * o.scale\n", "LIBother.py": "scale = 2\n"},
    ),
    "a relative import": Place(
        "from LIB.a import g\ndef f(x):\n    return float(g(x))\n",
        "scale = 2",
        "scale = 3",
        {
            "LIB/__init__.py": "",
            "LIB/a.py": "def g(x):\n    from .b import scale\n    return x * scale\n",
            "LIB/b.py": "scale = 2\n",
        },
    ),
    "a relative import of a module": Place(
        "from LIB.a import g\ndef f(x):\n    return float(g(x))\n",
        "scale = 2",
        "scale = 3",
        {
            "LIB/__init__.py": "",
            "LIB/a.py": "def g(x):\n    from . import b\n    return x * b.scale\n",
            "LIB/b.py": "scale = 2\n",
        },
    ),
    "a relative import from above": Place(
        "from LIB.deep.a import g\ndef f(x):\n    return float(g(x))\n",
        "scale = 2",
        "scale = 3",
        {
            "LIB/__init__.py": "",
            "LIB/deep/__init__.py": "",
            "LIB/deep/a.py": "def g(x):\n    from ..b import scale\n    return x * scale\n",
            "LIB/b.py": "scale = 2\n",
        },
    ),
    "a module by its name as text": in_lib(
        "import importlib\ndef f(x):\n    return float(x * importlib.import_module('LIB').scale)\n"
    ),
    "a module by __import__": in_lib("def f(x):\n    return float(x * __import__('LIB').scale)\n"),
    "an import in a function inside": in_lib(
        "def f(x):\n    def g():\n        from LIB import scale\n        return scale\n    return float(x * g())\n"
    ),
    "an import in a method": in_lib(CLASS.format("def __call__(self, x):\n        import LIB\n        return x * LIB.scale")),
    "a module as a value": in_lib("import LIB\nV = [LIB]\ndef f(x):\n    return float(x * V[0].scale)\n"),
    "what a module as a value imports": Place(
        "import LIB\nV = [LIB]\ndef f(x):\n    return float(x * V[0].scale)\n",
        "scale = 2",
        "scale = 3",
        {"LIB.py": "from LIBother import scale\n", "LIBother.py": "scale = 2\n"},
    ),
    "getattr of a module": in_lib("import LIB\ndef f(x):\n    return float(x * getattr(LIB, 'scale'))\n"),
    "a constant that a module computes": in_lib(
        "import LIB\ndef f(x):\n    return float(x * LIB.scale)\n", "scale = sum([1, 2])\n", "[1, 2]", "[1, 3]"
    ),
    "a class of a module in the body": in_lib(
        "def f(x):\n    from LIB import C\n    return float(C().n * x)\n", "class C:\n    n = 2\n", "n = 2", "n = 3"
    ),
    "a decorator of a module": in_lib(
        "from LIB import twice\n@twice\ndef f(x):\n    return float(x)\n",
        "import functools\ndef twice(fn):\n    @functools.wraps(fn)\n    def g(x):\n        return fn(x) * 2\n    return g\n",
        "* 2",
        "* 3",
    ),
    # Values.
    "dict order": value("{'a': 2, 'b': 5}", "'a': 2, 'b': 5", "'b': 5, 'a': 2", "x + list(V.values())[0]"),
    "nested dict order": value(
        "{'t': {'a': 2, 'b': 5}}", "'a': 2, 'b': 5", "'b': 5, 'a': 2", "x + list(V['t'].values())[0]"
    ),
    "dict order in a list": value("[{'a': 2, 'b': 5}]", "'a': 2, 'b': 5", "'b': 5, 'a': 2", "x + [*V[0].values()][0]"),
    "keys of a dict": value("{'a': 2, 'bb': 5}", "'a': 2", "'aaa': 2", "x + len([*V][0])"),
    "OrderedDict order": value(
        "__import__('collections').OrderedDict(a=2, b=5)", "a=2, b=5", "b=5, a=2", "x + [*V.values()][0]"
    ),
    "defaultdict": value(
        "__import__('collections').defaultdict(int, a=2)", "a=2", "a=3", "x + V['a']"
    ),
    "Counter": value("__import__('collections').Counter('aab')", "'aab'", "'aaab'", "x + V['a']"),
    "deque": value("__import__('collections').deque([2, 5])", "[2, 5]", "[5, 2]", "x + V[0]"),
    "list order": value("[2, 5]", "[2, 5]", "[5, 2]", "x + V[0]"),
    "tuple": value("(2, 5)", "(2, 5)", "(3, 5)", "x + V[0]"),
    "tuple or list": value("(2, 5)", "(2, 5)", "[2, 5]", "x + isinstance(V, tuple)"),
    "set": value("{2, 5}", "{2, 5}", "{2, 6}", "x + max(V)"),
    "frozenset": value("frozenset({2, 5})", "{2, 5}", "{2, 6}", "x + max(V)"),
    "text": value("'ab'", "'ab'", "'abc'", "x + len(V)"),
    "bytes": value("b'ab'", "b'ab'", "b'abc'", "x + len(V)"),
    "bytearray": value("bytearray(b'ab')", "b'ab'", "b'ac'", "x + V[1]"),
    "int or float": value("2", "V = 2", "V = 2.0", "x + isinstance(V, float)"),
    "int or bool": value("1", "V = 1", "V = True", "x + isinstance(V, bool)"),
    "the last bit of a float": value("0.1", "0.1", "0.10000000000000002", "x + np.float64(V).view('i8') % 8"),
    "the sign of zero": value("0.0", "V = 0.0", "V = -0.0", "np.copysign(x + 1, V)"),
    "complex": value("2j", "2j", "3j", "x + abs(V)"),
    "None": value("None", "V = None", "V = 3", "x + (V or 0)"),
    "Decimal": value("__import__('decimal').Decimal('2')", "'2'", "'3'", "x + float(V)"),
    "Fraction": value("__import__('fractions').Fraction(1, 2)", "(1, 2)", "(1, 4)", "x + float(V)"),
    "date": value("__import__('datetime').date(2026, 11, 1)", "11, 1", "11, 2", "x + V.day"),
    "slice": value("slice(0, 2)", "(0, 2)", "(0, 3)", "x + V.stop"),
    "range": value("range(2)", "range(2)", "range(3)", "x + len(V)"),
    "pattern": value("__import__('re').compile('a+')", "'a+'", "'a*'", "x + len(V.pattern) + (V.pattern == 'a*')"),
    "itemgetter": value("__import__('operator').itemgetter(0)", "(0)", "(1)", "x + V([2, 5])"),
    "SimpleNamespace": value("__import__('types').SimpleNamespace(n=2)", "n=2", "n=3", "x + V.n"),
    "array.array": value("__import__('array').array('i', [2, 5])", "[2, 5]", "[3, 5]", "x + V[0]"),
    # Arrays.
    "array": value("np.array([2, 5])", "[2, 5]", "[3, 5]", "x + V[0]"),
    "dtype of an array": value("np.array([2, 5])", "[2, 5])", "[2, 5], 'int8')", "x + V.itemsize"),
    "shape of an array": value("np.zeros((2, 3))", "(2, 3)", "(3, 2)", "x + len(V)"),
    "array of objects": value("np.array([2, 'a'], object)", "[2,", "[3,", "x + V[0]"),
    "structured array": value("np.array([(2, 5)], 'i4,i4')", "(2, 5)", "(3, 5)", "x + V[0][0]"),
    "names of a structured array": value("np.zeros(1, [('a', 'i4')])", "'a'", "'bb'", "x + len(V.dtype.names[0])"),
    "mask": value("np.ma.array([2, 5], mask=[0, 1])", "[0, 1]", "[0, 0]", "x + V.sum()"),
    "fill value": value("np.ma.array([2, 5], mask=[0, 1], fill_value=7)", "=7", "=8", "x + V.filled()[1]"),
    "scalar": value("np.float32(2)", "(2)", "(3)", "x + V"),
    "dtype": value("np.dtype('i4')", "'i4'", "'i8'", "x + V.itemsize"),
    "a method of an array": value("np.array([2, 5, 6, 7]).take", "[2, 5", "[3, 5", "V([0])[0] + x"),
    "attribute of an array": Place(SUBCLASS.format("x * a.unit"), "unit = 2", "unit = 3"),
    "method of a class of arrays": Place(SUBCLASS.format("a.scaled(x)"), "x * 2", "x * 3"),
    # Functions.
    "constant": Place("def f(x):\n    return float(x * 2)\n", "x * 2", "x * 3"),
    "operator": Place("def f(x):\n    return float(x * 2)\n", "x * 2", "x + 2"),
    "default": Place("def f(x, n=2):\n    return float(x * n)\n", "n=2", "n=3"),
    "default by keyword": Place("def f(x, *, n=2):\n    return float(x * n)\n", "n=2", "n=3"),
    "attribute of a function": Place("def f(x):\n    return float(x * f.n)\nf.n = 2\n", "n = 2", "n = 3"),
    "attribute of another function": Place(
        "def g(x):\n    return x\ng.n = 2\ndef f(x):\n    return float(x * g.n)\n", "n = 2", "n = 3"
    ),
    "attribute of a method": Place(
        CLASS.format("def __call__(self, x):\n        return x * C.__call__.n\n    __call__.n = 2"), "n = 2", "n = 3"
    ),
    "closure": Place(
        "def made(n):\n    def f(x):\n        return float(x * n)\n    return f\nf = made(2)\n", "made(2)", "made(3)"
    ),
    "dict order in a closure": Place(
        "def made(n):\n    def f(x):\n        return float(x + next(iter(n.values())))\n    return f\n"
        "f = made({'a': 2, 'b': 5})\n",
        "'a': 2, 'b': 5",
        "'b': 5, 'a': 2",
    ),
    "function that is called": Place(FUNCTION + "def f(x):\n    return float(scale(x))\n", "x * 2", "x * 3"),
    "function in a list": Place(FUNCTION + "V = [scale]\ndef f(x):\n    return float(V[0](x))\n", "x * 2", "x * 3"),
    "function in a dict": Place(FUNCTION + "V = {'s': scale}\ndef f(x):\n    return float(V['s'](x))\n", "x * 2", "x * 3"),
    "lambda": Place("V = lambda x: x * 2\ndef f(x):\n    return float(V(x))\n", "x * 2", "x * 3"),
    "function inside": Place(
        "def f(x):\n    def g(y):\n        return y * 2\n    return float(g(x))\n", "y * 2", "y * 3"
    ),
    "comprehension": Place("def f(x):\n    return float(sum(y * 2 for y in [x]))\n", "y * 2", "y * 3"),
    "recursion": Place(
        "def g(n):\n    return 2 if n < 1 else g(n - 1)\ndef f(x):\n    return float(g(x))\n", "return 2", "return 3"
    ),
    "handler": Place(
        "def f(x):\n    try:\n        raise KeyError\n    except LookupError:\n        return float(x + 2)\n", "x + 2", "x + 3"
    ),
    "the class that is caught": Place(
        "def f(x):\n    try:\n        try:\n            raise KeyError\n        except LookupError:\n            return 1.0\n"
        "    except KeyError:\n        return 2.0\n",
        "LookupError",
        "OSError",
    ),
    "format": Place("def f(x):\n    return float(f'{x + 0.25:.1f}')\n", ".1f", ".3f"),
    "name of a keyword": Place(
        "def g(a=2, b=5):\n    return a - b\ndef f(x):\n    return float(x + g(a=1))\n", "g(a=1)", "g(b=1)"
    ),
    "partial": Place(
        "import functools\ndef g(n, x):\n    return x * n\nV = functools.partial(g, 2)\ndef f(x):\n    return float(V(x))\n",
        "(g, 2)",
        "(g, 3)",
    ),
    "keyword of a partial": Place(
        "import functools\ndef g(x, n):\n    return x * n\nV = functools.partial(g, n=2)\ndef f(x):\n    return float(V(x))\n",
        "n=2",
        "n=3",
    ),
    "function with a cache": Place(
        "import functools\n@functools.lru_cache\ndef g(x):\n    return x * 2\ndef f(x):\n    return float(g(int(x)))\n",
        "x * 2",
        "x * 3",
    ),
    "function that was wrapped": Place(
        "import functools\ndef g(x):\n    return x * 2\n@functools.wraps(g)\ndef f(x):\n    return float(f.__wrapped__(x))\n",
        "x * 2",
        "x * 3",
    ),
    # Classes and objects.
    "method": Place(CLASS.format("def __call__(self, x):\n        return x * 2"), "x * 2", "x * 3"),
    "class attribute": Place(CLASS.format("n = 2\n    def __call__(self, x):\n        return x * self.n"), "n = 2", "n = 3"),
    "property": Place(
        CLASS.format("@property\n    def n(self):\n        return 2\n    def __call__(self, x):\n        return x * self.n"),
        "return 2",
        "return 3",
    ),
    "cached property": Place(
        "import functools\n"
        + CLASS.format(
            "@functools.cached_property\n    def n(self):\n        return 2\n"
            "    def __call__(self, x):\n        return x * self.n"
        ),
        "return 2",
        "return 3",
    ),
    "static method": Place(
        CLASS.format("@staticmethod\n    def g(x):\n        return x * 2\n    def __call__(self, x):\n        return self.g(x)"),
        "x * 2",
        "x * 3",
    ),
    "class method": Place(
        CLASS.format(
            "@classmethod\n    def g(cls, x):\n        return x * 2\n    def __call__(self, x):\n        return self.g(x)"
        ),
        "x * 2",
        "x * 3",
    ),
    "base class": Place(
        "class B:\n    n = 2\nclass C(B):\n    def __call__(self, x):\n        return x * self.n\nc = C()\n"
        "def f(x):\n    return float(c(x))\n",
        "n = 2",
        "n = 3",
    ),
    "metaclass": Place(
        "class M(type):\n    n = 2\nclass C(metaclass=M):\n    pass\ndef f(x):\n    return float(x * type(C).n)\n",
        "n = 2",
        "n = 3",
    ),
    "slots": Place(
        "class C:\n    __slots__ = ('n',)\nc = C()\nc.n = 2\ndef f(x):\n    return float(x * c.n)\n", "n = 2", "n = 3"
    ),
    "dataclass": Place(
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    n: int = 2\nc = C()\ndef f(x):\n    return float(x * c.n)\n",
        "= 2",
        "= 3",
    ),
    "dataclass made inside": Place(
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    n: int = 2\ndef f(x):\n    return float(x * C().n)\n",
        "= 2",
        "= 3",
    ),
    "named tuple": Place(
        "import collections\nC = collections.namedtuple('C', 'n')\nc = C(2)\ndef f(x):\n    return float(x * c.n)\n",
        "C(2)",
        "C(3)",
    ),
    "enumeration": Place(
        "import enum\nclass C(enum.Enum):\n    N = 2\ndef f(x):\n    return float(x * C.N.value)\n", "N = 2", "N = 3"
    ),
    "bound method": Place(
        "class C:\n    def __init__(self, n):\n        self.n = n\n    def g(self, x):\n        return x * self.n\n"
        "V = C(2).g\ndef f(x):\n    return float(V(x))\n",
        "C(2)",
        "C(3)",
    ),
    "attribute": Place(DROPS.format("pass"), "C(2)", "C(3)"),
    "state that __getstate__ drops": Place(
        DROPS.format("def __getstate__(self):\n        return {}"), "C(2)", "C(3)"
    ),
    "state that __reduce__ drops": Place(
        DROPS.format("def __reduce__(self):\n        return C, (0,)"), "C(2)", "C(3)"
    ),
    "state that __reduce_ex__ drops": Place(
        DROPS.format("def __reduce_ex__(self, protocol):\n        return C, (0,)"), "C(2)", "C(3)"
    ),
    "dropped state beside a lock": Place(
        "import threading\n"
        + DROPS.format("lock = property(lambda self: threading.Lock())\n    def __getstate__(self):\n        return {}"),
        "C(2)",
        "C(3)",
    ),
    "dropped state that refers back": Place(
        DROPS.format("def __getstate__(self):\n        return {}").replace("self.n = n\n", "self.n, self.me = n, [self]\n"),
        "C(2)",
        "C(3)",
    ),
    "file of a memmap": Place(
        "import os\nfor_all = np.memmap(os.path.join(os.path.dirname(__file__), 'numbers.bin'), 'u1', 'r')\n"
        "def f(x):\n    return float(x + len(for_all))\n",
        "abc",
        "abcdef",
        {"numbers.bin": "abc"},
    ),
}  # fmt: skip

# What is kept of `f`: each makes a dataset, given a function that keeps it, `lambda ds: ds.cache(path)`.
KEPT = {
    "elements": "def make(keep):\n    return keep(ps.range(4).map(f))\n",
    "batches of dicts": "def make(keep):\n    return keep(ps.range(4).map(lambda x: {'v': f(x)}).batch(2))\n",
    "a generator": "def numbers():\n    for x in range(4):\n        yield f(x)\n"
    "def make(keep):\n    return keep(ps.from_generator(numbers))\n",
    "a filtered stream": "def make(keep):\n    return keep(ps.range(4).map(f).filter(lambda x: True))\n",
    "ragged elements": "def make(keep):\n    return keep(ps.range(4).map(lambda x: np.full(int(x), f(x)), "
    "element_spec=ps.ArraySpec((None,), 'float64')))\n",
    "an object's elements": "class G:\n    def __init__(self, g):\n        self.g = g\n    def __call__(self, x):\n"
    "        return self.g(x)\ndef make(keep):\n    return keep(ps.range(4).map(G(f)))\n",
}

RUN = """
import importlib, json, sys
from pathlib import Path
import numpy as np
from optree import tree_leaves

root = Path(sys.argv[1])
found = {}
for folder in sorted(path for path in root.iterdir() if path.is_dir()):
    sys.path.insert(0, str(folder))
    make = importlib.import_module("main_" + folder.name).make
    numbers = lambda ds: [np.asarray(leaf).tolist() for element in ds for leaf in tree_leaves(element)]
    plain = numbers(make(lambda ds: ds))
    kept = [numbers(make(lambda ds: ds.cache(folder / "cache"))) for _ in range(2)]
    found[folder.name] = [plain, kept, len(list((folder / "cache").iterdir()))]
    del sys.path[0]
print(json.dumps(found))
"""


def test_200_edits_between_two_processes_leave_no_stale_element(
    tmp_path: Path, fresh_python: Callable[..., CompletedProcess[str]]
) -> None:
    kinds = itertools.cycle(KEPT.values())
    cases = [(name, place, next(kinds)) for _ in range(2) for name, place in PLACES.items()][:200]
    assert len(cases) == 200
    assert len(PLACES) % len(KEPT)  # or each place would be kept in one way alone

    def write(is_edited: bool) -> None:
        for number, (_, place, make) in enumerate(cases):
            main = f"import numpy as np\nimport penstock as ps\n{place.main}\n{make}"
            for path, text in {f"main_{number:03d}.py": main, **place.files}.items():
                text = text.replace(place.old, place.new) if is_edited else text
                file = tmp_path / f"{number:03d}" / path.replace("LIB", f"lib_{number:03d}_")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text.replace("LIB", f"lib_{number:03d}_"))

    def run() -> list[tuple[list[float], list[list[float]], int]]:
        result = fresh_python(RUN, str(tmp_path), env={"PYTHONDONTWRITEBYTECODE": "1"})
        assert not result.returncode, result.stderr
        return [json.loads(result.stdout)[f"{number:03d}"] for number in range(len(cases))]

    write(is_edited=False)
    before = run()
    write(is_edited=True)
    after, again = run(), run()
    names = [name for name, *_ in cases]
    assert [name for name, (plain, kept, _) in zip(names, before, strict=True) if kept != [plain] * 2] == []
    assert [name for name, was, now in zip(names, before, after, strict=True) if was[0] == now[0]] == [], "no effect"
    assert [name for name, (plain, kept, _) in zip(names, after, strict=True) if kept != [plain] * 2] == [], "stale"
    assert [name for name, was, now in zip(names, after, again, strict=True) if was != now] == [], "not found again"
    sys.stderr.write(f"{len(cases)} edits\n")
