"""Packages that register what they bring by entry points, as anybody's can."""

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
import penstock.image
from penstock.base import _extensions
from penstock.run.executors._registry import EXECUTORS, executor_names
from penstock.testing import SourceTests

# A format of fixed rows of text: a whole package in one file.
FORMAT = '''
import os
from dataclasses import dataclass

import numpy as np

import penstock


@dataclass(frozen=True)
class Lines(penstock.Source):
    """Lines of four digits each."""

    path: str
    element_spec = penstock.ArraySpec((), "int64")
    suits_one_thread = True

    def __len__(self):
        return os.path.getsize(self.path) // 5

    def read_into(self, indices, out):
        with open(self.path) as file:
            lines = file.read().split()
        out[...] = [int(lines[index]) for index in indices]


def from_digits(path):
    return penstock.from_source(Lines(os.fspath(path)))


class Box:
    def __init__(self, path):
        self.path = path


def source_of(box, **options):
    return Lines(os.fspath(box.path)) if isinstance(box, Box) else None
'''

EXECUTOR = """
from penstock.run.executors._registry import EXECUTORS

KIND = EXECUTORS["threads"]
"""


def installed(folder: Path, name: str, entries: dict[str, dict[str, str]], **modules: str) -> None:
    """Writes what an installer would: modules, and the entry points of a distribution."""
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in of.items()) for group, of in entries.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, on the path of this process."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    _extensions._entries.cache_clear()
    yield folder
    _extensions._entries.cache_clear()
    for name in ("digits_format", "own_hands", "digits_pack"):
        sys.modules.pop(name, None)
    vars(ps).pop("from_digits", None)
    EXECUTORS.pop("mine", None)


@pytest.fixture
def digits(site: Path, tmp_path: Path) -> Path:
    """The package, and a file of its format."""
    entries = {
        "penstock.sources": {"from_digits": "digits_format:from_digits"},
        "penstock.objects": {"digits_format": "digits_format:source_of"},
    }
    installed(site, "digits_format", entries, digits_format=FORMAT)
    (tmp_path / "a.digits").write_text("".join(f"{number:04}\n" for number in range(0, 700, 7)))
    return tmp_path / "a.digits"


def test_a_format_of_another_package_is_a_name_of_ours(digits: Path) -> None:
    assert "digits_format" not in sys.modules
    ds = ps.from_digits(digits)  # type: ignore[attr-defined]
    assert ds[-1] == 693
    with ds.shuffle(seed=1).batch(10).loader("threads") as loader:
        assert sorted(np.concatenate(list(loader)).tolist()) == [*range(0, 700, 7)]


@pytest.mark.slow
def test_worker_processes_read_it(digits: Path) -> None:
    ds = ps.from_digits(digits)  # type: ignore[attr-defined]
    with ds.map(lambda x: x + 1).batch(10).loader("processes", workers=1) as loader:
        assert [batch[0] for batch in loader] == [*range(1, 701, 70)]


class TestFormat(SourceTests):
    """The suite that our own formats pass."""

    @pytest.fixture
    def source(self, digits: Path) -> ps.Source:
        import digits_format

        source: ps.Source = digits_format.Lines(str(digits))
        return source

    @pytest.fixture
    def expected(self) -> npt.NDArray[np.int64]:
        return np.arange(0, 700, 7)


def test_objects_of_its_classes_are_sources(digits: Path) -> None:
    import digits_format

    assert ps.from_source(digits_format.Box(digits))[1] == 7
    with pytest.raises(ps.ArgumentError, match=r"from_source\(element_spec=...\) is for objects with \[i\]"):
        ps.from_source(digits_format.Box(digits), element_spec=ps.ArraySpec((), "int64"))


def test_an_executor_of_another_package_is_a_name_for_loaders(site: Path) -> None:
    installed(site, "own_hands", {"penstock.executors": {"mine": "own_hands:KIND"}}, own_hands=EXECUTOR)
    assert executor_names() == "'auto', 'threads', 'processes', 'ray', 'mine', or 'inline' (no workers)"
    with ps.range(4).batch(2).loader("mine") as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        assert loader.report().executor == "mine"


# All that a package may bring, by the same call as a pack of ours.
PACK = """
def register(add):
    add("penstock.sources", {"from_digits": "digits_format:from_digits"})
    add("penstock.objects", {"digits_format": "digits_format:source_of"})
    add("penstock.executors", {"mine": "own_hands:KIND"})
    add("penstock.verbs", {"scaled": "digits_pack:scaled", "to_lists": "digits_pack:to_lists"})
    add("penstock.files", {".digits": "from_digits"})


def scaled(ds, by):
    return ds.map(lambda x: x * by)


def to_lists(ds, **options):
    with ds.loader(**options) as loader:
        return [batch.tolist() for batch in loader]
"""


@pytest.mark.slow
def test_a_pack_brings_a_source_a_verb_an_executor_and_an_adapter(site, tmp_path, fresh_python) -> None:  # type: ignore[no-untyped-def]
    entries = {"penstock.packs": {"digits": "digits_pack:register"}}
    installed(site, "digits_pack", entries, digits_pack=PACK, digits_format=FORMAT, own_hands=EXECUTOR)
    path = tmp_path / "a.digits"
    path.write_text("0001\n0002\n0003\n")
    program = f"""
import penstock as ps
from penstock.base import _extensions

ds = ps.from_digits({str(path)!r}).scaled(10).batch(2)
print(ds.to_lists(executor="mine"), _extensions.values(_extensions.FILES)[".digits"])
assert not hasattr(ds, "scale")
"""
    done = fresh_python(program, env={"PYTHONPATH": str(site)})
    assert (done.stderr, done.stdout) == ("", "[[10, 20], [30]] from_digits\n")
    seen = fresh_python(
        f"from penstock.commands.cli import main; main(['inspect', {str(path)!r}])", env={"PYTHONPATH": str(site)}
    )
    assert "ps.from_digits(" in seen.stdout


def test_a_pack_that_fails_is_told_and_leaves_the_rest_as_it_is(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = "def register(add):\n    raise KeyError('x')\n"
    installed(site, "digits_pack", {"penstock.packs": {"digits": "digits_pack:register"}}, digits_pack=broken)
    assert not hasattr(ps.range(3), "scaled")
    assert not hasattr(ps.range(3), "scaled_again")
    told = [each.message for each in caplog.records]
    assert told == ["The pack digits_pack:register of an installed package fails, and nothing of it is there."]


def test_two_packages_with_one_name_are_an_error_that_names_both(digits: Path, site: Path) -> None:
    installed(site, "other", {"penstock.sources": {"from_digits": "other_format:from_digits"}})
    with pytest.raises(
        ps.ArgumentError,
        match=r"from_digits is registered by several packages, as digits_format:from_digits and other_f",
    ):
        _ = ps.from_digits  # type: ignore[attr-defined]


def test_nobody_replaces_what_is_ours(site: Path) -> None:
    installed(
        site, "bad", {"penstock.sources": {"from_tar": "bad:from_tar"}, "penstock.executors": {"ray": "bad:KIND"}}
    )
    assert ps.from_tar.__module__ == "penstock"
    assert EXECUTORS["ray"].reach == "machine"


def test_a_name_that_nobody_registered_is_an_attribute_error(site: Path) -> None:
    with pytest.raises(AttributeError, match=r"penstock has no 'from_digit'"):
        _ = ps.from_digit  # type: ignore[attr-defined]


def test_every_name_of_ours_is_there() -> None:
    for group, entries in _extensions.own().items():
        for name in entries:
            assert _extensions.is_registered(group, name)
            if group in (_extensions.SOURCES, _extensions.EXECUTORS, _extensions.IMAGE):
                assert _extensions.lookup(group, name) is not None


@pytest.mark.parametrize(("face", "group"), [(ps, _extensions.SOURCES), (penstock.image, _extensions.IMAGE)])
def test_type_checkers_see_what_is_found_at_run_time(face: ModuleType, group: str) -> None:
    parts = [each for each in ast.parse(Path(str(face.__file__)).read_text()).body if isinstance(each, ast.If)]
    (block,) = [each for each in parts if ast.unparse(each.test) == "_typing.TYPE_CHECKING"]
    shown = {
        name: f"{each.module}:{name}"
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
        for name in ([alias.name] if alias.name != "*" else importlib.import_module(str(each.module)).__all__)
    }
    for folder in ("audio", "image"):
        shown.pop(folder, None)
    assert shown == _extensions.own()[group]


BEFORE = """
import json, sys
import penstock as ps
list(ps.range(4).map(abs).shuffle(seed=1).batch(2).loader("threads"))
ps.from_source([1, 2])
print(json.dumps([name for name in sys.modules]))
"""


@pytest.mark.slow
def test_a_run_of_the_core_imports_nothing_of_the_rest(fresh_python) -> None:  # type: ignore[no-untyped-def]
    done = fresh_python(BEFORE)
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout)
    own = {value.partition(":")[0] for entries in _extensions.own().values() for value in entries.values()}
    assert own.isdisjoint(names)
    assert "importlib.metadata" not in names
