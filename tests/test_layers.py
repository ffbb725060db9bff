"""Imports run one way. This reads them from the source text and fails on one that points back."""

import ast
import dataclasses
import functools
import graphlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# A room is a module or package directly under `penstock`; "__init__" is `penstock` itself.
BASE = {"native", "base"}
MEMORY = BASE | {"memory"}
PLAN = MEMORY | {"plan"}
RUN = PLAN | {"lower", "run", "report", "sources"}
CORE = RUN | {"loader", "verbs", "dataset", "functions"}

# What stands beside the core. The core never imports a pack: see `base/_extensions.py`.
PACKS = {
    "files",
    "image",
    "distort",
    "tables",
    "records",
    "films",
    "sparse",
    "volumes",
    "audio",
    "pictures",
    "adapters",
    "ray",
    "commands",
    "demos",
    "testing",
    "__main__",
}
# The faces of the distribution: they name all for type checkers, and import nothing of a pack when they run.
FACES = ("__init__.py", "dataset.py", "image/__init__.py")

# Modules that are names of the package, imported when they are asked for.
NAMESPACES = {("__init__.py", "image"), ("__init__.py", "audio")}

# For each room, those that it may import. Its own modules it may always.
MAY_IMPORT = {
    "native": set(),
    "base": {"native"},
    "memory": BASE,
    "plan": MEMORY,
    "report": BASE,  # what `run` and `loader` report to; it knows neither
    "sources": PLAN | {"report"},  # the limits of control groups
    "lower": PLAN,
    "run": PLAN | {"lower", "report", "sources"},  # which file a memmap maps
    "loader": RUN,
    "verbs": RUN | {"loader"},
    "dataset": RUN | {"loader", "verbs"},
    "functions": RUN | {"dataset", "verbs", "loader"},
    "__init__": CORE,
    "files": CORE | {"__init__"},
    "image": CORE | {"files"},
    "distort": PLAN | {"image"},
    "tables": CORE | {"files"},
    "records": CORE | {"files", "tables"},
    "films": CORE | {"files", "tables"},
    "volumes": CORE | {"__init__", "files"},
    "sparse": CORE | {"__init__", "files", "volumes"},
    "audio": BASE | {"films"},  # FFmpeg's errors
    "pictures": CORE,
    "adapters": CORE,
    "ray": CORE,
    "testing": CORE | {"__init__", "adapters"},
    "demos": CORE | {"__init__"},
    "commands": CORE | {"__init__", "files", "image", "demos"},
    "__main__": {"commands"},
}

# Imports of ours that hide in functions: what they import brings optional libraries. No others hide.
DEFERRED = {
    ("adapters", "adapters"),
    ("image", "image"),
    ("tables", "tables"),
    ("records", "records"),
    ("volumes", "volumes"),
    ("sparse", "sparse"),
    ("sparse", "volumes"),
    ("ray", "ray"),
    ("image", "distort"),
    ("__init__", "image"),
    ("__init__", "audio"),
    ("commands", "demos"),
}

REQUIRED = {"numpy", "optree", "cloudpickle", "tqdm"}
# The files that may import each optional library, or the folders, which end in a slash.
OPTIONAL = {
    "tensorflow": ("adapters/tf.py", "adapters/keras.py", "adapters/_tfsource.py", "demos/"),
    "keras": ("adapters/keras.py", "adapters/_keras_frames.py", "demos/"),
    "torch": ("adapters/torch.py", "adapters/_torch_device.py", "adapters/keras.py"),
    "jax": ("adapters/jax.py", "adapters/keras.py"),
    "h5py": ("volumes/hdf5.py", "volumes/_hdf5files.py", "volumes/_inspect.py"),
    "numcodecs": ("volumes/_zarr.py",),
    "zarr": ("volumes/_zarr.py", "volumes/zarr.py", "volumes/_inspect.py"),
    "xarray": ("volumes/xarray.py", "volumes/_inspect.py"),
    "soundfile": ("audio/",),
    "soxr": ("audio/",),
    "scipy": ("audio/",),
    "nibabel": ("volumes/nifti.py",),
    "datasets": ("tables/huggingface.py", "tables/hub.py"),
    "huggingface_hub": ("files/_hub.py",),
    "pyarrow": (
        "tables/huggingface.py",
        "tables/_columns.py",
        "tables/_leasttypes.py",
        "tables/_leaves.py",
        "tables/lance.py",
        "records/mds.py",
        "files/_recordindex.py",
        "tables/_folders.py",
        "tables/_tableread.py",
        "tables/parquet.py",
        "tables/rowtext.py",
        "tables/_textarrow.py",
    ),
    "duckdb": ("tables/_textarrow.py",),
    "array_record": ("records/arrayrecord.py",),
    "lance": ("tables/lance.py",),
    "av": ("audio/", "films/_ffmpeg.py", "films/_films.py", "films/videos.py"),
    "google": ("records/_example.py",),
    "google_crc32c": ("records/tfrecord.py",),
    "fsspec": ("files/_remote.py",),
    "obstore": ("files/_store.py",),
    "boto3": ("files/_store.py",),
    "simplejpeg": ("image/_opencv.py",),
    "cv2": ("image/", "distort/"),
    "PIL": ("image/_codecs.py",),
    "matplotlib": ("pictures/", "demos/"),
    "skimage": ("demos/",),
    "ray": ("ray/",),
    "pytest": ("testing/",),
}


@dataclasses.dataclass(frozen=True)
class Import:
    file: str
    """Path of the importing file under `src/penstock`."""
    line: int
    target: str
    """Dotted name of what is imported, the name after `from ... import` included."""
    in_function: bool
    for_types: bool
    """Under `if TYPE_CHECKING:`. Such an import is an arrow too, but makes no circle at run time."""

    @property
    def room(self) -> str:
        return _room(self.file.removesuffix(".py").split("/"))

    @property
    def target_root(self) -> str:
        return self.target.partition(".")[0]

    @property
    def target_room(self) -> str:
        return _room(self.target.split(".")[1:])

    def __str__(self) -> str:
        return f"src/penstock/{self.file}:{self.line} imports {self.target}"


def _room(parts: list[str]) -> str:
    """The room of a name below `penstock`; one that is no room is in `penstock/__init__.py`."""
    return parts[0] if parts and parts[0] in MAY_IMPORT else "__init__"


def imports_of(source: str, file: str) -> list[Import]:
    """Every import of the text of one file, in functions and for type checkers included."""

    def visit(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for name in child.names:
                    yield Import(file, child.lineno, name.name, in_function, for_types)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno}: relative imports are not read here"
                for name in child.names:
                    yield Import(file, child.lineno, f"{child.module}.{name.name}", in_function, for_types)
            else:
                is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
                yield from visit(child, in_function or is_function, for_types or is_for_types)

    return list(visit(ast.parse(source, file), in_function=False, for_types=False))


def wrong(imports: list[Import]) -> list[str]:
    """What is wrong with these imports, a line each."""
    found = []
    for each in imports:
        root = each.target_root
        if root == "penstock":
            if each.for_types and each.file in FACES:
                continue
            deferred = (each.in_function or each.for_types) and (each.room, each.target_room) in DEFERRED
            if each.in_function and not deferred:
                found.append(f"{each} inside a function")
            if not deferred and each.target_room not in MAY_IMPORT[each.room] | {each.room}:
                found.append(f"{each}, an arrow that points back")
        elif root in OPTIONAL:
            if not each.file.startswith(OPTIONAL[root]):
                found.append(f"{each}, which is the business of {', '.join(OPTIONAL[root])}")
        elif root not in REQUIRED and root not in sys.stdlib_module_names:
            found.append(f"{each}, which is no dependency")
    return found


@functools.cache
def package_imports() -> list[Import]:
    package = SRC / "penstock"
    return [
        each
        for path in sorted(package.rglob("*.py"))
        for each in imports_of(path.read_text(), path.relative_to(package).as_posix())
    ]


def into_the_packs(imports: list[Import]) -> list[str]:
    """The imports of the core that take something of a pack, in functions and for type checkers too."""
    return [
        str(each)
        for each in imports
        if each.room not in PACKS
        and each.target_root == "penstock"
        and each.target_room in PACKS
        and not (each.for_types and each.file in FACES)
        and (each.file, each.target_room) not in NAMESPACES
    ]


def module_graph(imports: list[Import], *, with_types: bool = False) -> dict[str, set[str]]:
    """The modules that each module imports, in functions too; with types, also for type checkers alone."""
    name_of = {
        each.file: f"penstock.{each.file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        for each in imports
    }
    names = set(name_of.values())
    graph: dict[str, set[str]] = {name: set() for name in names}
    for each in imports:
        # `from a.b import c` runs `a.b.c` where that is a module, and otherwise `a.b`.
        target = each.target if each.target in names else each.target.rpartition(".")[0]
        if target in names - {name_of[each.file]} and (with_types or not each.for_types):
            graph[name_of[each.file]].add(target)
    return graph


def test_no_import_points_back_or_hides():
    assert wrong(package_imports()) == []


def test_the_core_imports_no_pack():
    assert into_the_packs(package_imports()) == []
    assert {each.room for each in package_imports()} >= PACKS


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("dataset.py", "import penstock.testing"),
        ("run/_crew.py", "def f():\n    from penstock.commands import bench"),
        ("plan/_node.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock import demos"),
        ("__init__.py", "def __getattr__(name):\n    from penstock.testing import SourceTests"),
    ],
)
def test_an_import_of_a_pack_is_found(file, source):
    assert into_the_packs(imports_of(source, file)) != []


def test_every_module_belongs_to_a_room():
    rooms = {path.name.removesuffix(".py") for path in (SRC / "penstock").iterdir() if path.suffix in ("", ".py")}
    assert rooms - {"__pycache__"} <= MAY_IMPORT.keys()


def test_rooms_are_a_hierarchy():
    assert list(graphlib.TopologicalSorter(MAY_IMPORT).static_order())


def test_modules_import_each_other_without_a_circle():
    assert list(graphlib.TopologicalSorter(module_graph(package_imports())).static_order())


def test_modules_import_each_other_without_a_circle_for_types_too():
    assert list(graphlib.TopologicalSorter(module_graph(package_imports(), with_types=True)).static_order())


def test_a_circle_of_modules_is_found():
    there = imports_of("from penstock.plan._map import MapNode", "plan/_node.py")
    back = imports_of("from penstock.plan._node import Node", "plan/_map.py")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(module_graph(there + back)).prepare()


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("memory/_rows.py", "from penstock.plan._node import Node", "points back"),
        ("plan/_node.py", "from penstock import Dataset", "points back"),
        ("plan/_node.py", "import penstock", "points back"),
        ("base/_tree.py", "from penstock.plan._node import Node", "points back"),
        ("memory/_ring.py", "if True:\n    import penstock.run.executors._executor", "points back"),
        (
            "run/pool/_worker.py",
            "class A:\n    def f(self):\n        from penstock import _dataset",
            "points back",
        ),
        ("lower/_program.py", "def f():\n    from penstock.plan import _node", "inside a function"),
        ("loader.py", "def f():\n    from penstock.adapters import keras", "points back"),
        ("dataset.py", "from penstock.adapters import keras", "points back"),
        ("sources/npy.py", "from penstock.lower import _program", "points back"),
        ("sources/npy.py", "import h5py", "is the business of volumes/hdf5.py"),
        ("dataset.py", "def f():\n    import torch.utils.data", "is the business of adapters/torch.py"),
        ("base/_tree.py", "import requests", "is no dependency"),
    ],
)
def test_wrong_imports_are_found(file, source, complaint):
    assert any(complaint in line for line in wrong(imports_of(source, file)))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("plan/_map.py", "import dataclasses\nimport numpy as np\nfrom penstock.plan._node import Node"),
        (
            "dataset.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock.adapters.keras import adapt",
        ),
        ("volumes/hdf5.py", "def f():\n    import h5py"),
        ("testing/sources.py", "import pytest\nimport penstock as ps"),
    ],
)
def test_right_imports_are_not(file, source):
    assert wrong(imports_of(source, file)) == []


def node_classes() -> set[str]:
    bases = {
        each.name: {ast.unparse(base) for base in each.bases}
        for path in (SRC / "penstock" / "plan").glob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.ClassDef)
    }
    found = {"Node"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def lists_of(classes: set[str], source: str) -> list[int]:
    """The lines of tuples, lists, sets and unions of several of these classes; types of values do not count."""
    if len(classes & {*re.findall(r"\w+", source)}) < 2:
        return []  # at once: to look through all files takes seconds
    tree = ast.parse(source)
    in_types = {id(part) for each in ast.walk(tree) if isinstance(each, ast.Subscript) for part in ast.walk(each.slice)}
    in_types |= {
        id(part)
        for each in ast.walk(tree)
        for kind in (getattr(each, "annotation", None), getattr(each, "returns", None))
        if kind is not None
        for part in ast.walk(kind)
    }
    found = []
    for each in ast.walk(tree):
        if id(each) in in_types:
            continue
        parts = each.elts if isinstance(each, (ast.Tuple, ast.List, ast.Set)) else []
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.BitOr):
            parts = [each.left, each.right]
        if sum(isinstance(part, ast.Name) and part.id in classes for part in parts) > 1:
            found.append(each.lineno)
    return found


def test_no_code_outside_the_plan_has_a_list_of_node_classes():
    """A step that nobody thought of is missing in such a list. A node declares its facts, and others ask it."""
    classes = node_classes()
    assert len(classes) > 20
    found = [
        f"{path.relative_to(SRC)}:{line}"
        for path in sorted((SRC / "penstock").rglob("*.py"))
        if path.parent.name != "plan"
        for line in lists_of(classes, path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "A = (Shuffle, Slice)",
        "B: Final = [Shuffle, Slice]",
        "isinstance(node, (Shuffle, Slice))",
        "isinstance(node, Shuffle | Slice)",
        "if type(node) in {Shuffle, Slice}: pass",
    ],
)
def test_a_list_of_node_classes_is_found(source):
    assert lists_of({"Shuffle", "Slice"}, source) == [1]


@pytest.mark.parametrize("source", ["def f(a: Shuffle | Slice) -> tuple[Shuffle, Slice]: pass", "a = (Shuffle, 1)"])
def test_types_of_values_are_no_such_list(source):
    assert lists_of({"Shuffle", "Slice"}, source) == []


def questions_for(classes: set[str], source: str) -> int:
    """How many times code asks whether something is of one of these classes."""
    return sum(
        isinstance(each, ast.Call) and ast.unparse(each.func) == "isinstance" and ast.unparse(each.args[1]) in classes
        for each in ast.walk(ast.parse(source))
    )


# Those that are left need what one class alone has: where windows start, the function of a `map`, the store of a cache.
MOST_QUESTIONS = 19


def test_rewrites_ask_for_facts_of_nodes_and_seldom_for_their_classes():
    classes = node_classes()
    assert questions_for(classes, "isinstance(a, Map) and isinstance(a, int) and isinstance(b.source, Filter)") == 2
    found = sum(questions_for(classes, path.read_text()) for path in (SRC / "penstock" / "lower").glob("*.py"))
    assert found <= MOST_QUESTIONS, "let the node declare a fact, and ask for that"


def test_the_type_checker_skips_every_library_whether_or_not_it_is_installed():
    """Else the check passes on one machine and fails on another, by what is installed there."""
    mypy = tomllib.loads((SRC.parent / "pyproject.toml").read_text())["tool"]["mypy"]
    skipped = {name for each in mypy["overrides"] if each.get("ignore_missing_imports") for name in each["module"]}
    imported = {each.target.split(".")[0] for each in package_imports()}
    libraries = imported - {"penstock", "numpy", "optree", *sys.stdlib_module_names}
    assert {"av", "h5py"} <= libraries
    assert {f"{name}.*" for name in libraries} <= skipped
