"""What packs bring, by name. It is imported when its name is asked for, and not before.

The core knows names and no pack. A pack has a function `register`, which says what it brings:

    def register(add):
        add("penstock.sources", {"from_x": "package.module:from_x"})

| group | name | value |
|---|---|---|
| `penstock.sources` | `from_x` | a function that returns a `Dataset`: `penstock.from_x` |
| `penstock.objects` | a module, such as `datasets` | what `from_source` makes of objects of its classes: `made_of` |
| `penstock.arrays` | a module, such as `h5py` | what `from_arrays` makes of an array of its classes: `array_of` |
| `penstock.executors` | the value of `executor=` | an `ExecutorKind` |
| `penstock.verbs` | the name of a method | a function of a dataset and more: `ds.name(more)` is `function(ds, more)` |
| `penstock.calls` | a name | what the core asks packs of this distribution for: `to_keras`, `show` |
| `penstock.image` | the name of a distortion | a function or class: `penstock.image.name` |
| `penstock.files` | `.x`, the ending of a file; `/x`, a pattern of what a folder holds | its constructor: `from_x` |
| `penstock.inspect` | the ending of a file | what `penstock inspect` shows of one: a function of a title and a path |
| `penstock.words` | any | a file of words of other libraries, `package:name.toml`, for messages |

Packs of this distribution are the folders that have a `_register.py`. Anybody's package is one by an entry point, in
its `pyproject.toml`:

    [project.entry-points."penstock.packs"]
    mine = "package.module:register"

A package with a single name may have an entry point in the group of that name instead:

    [project.entry-points."penstock.sources"]
    from_x = "package.module:from_x"

What this distribution brings is found without a look at all that is installed, and in a checkout that was never
installed. Nobody else's entry replaces it.
"""

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

from penstock.base._errors import ArgumentError

_log = logging.getLogger("penstock")

SOURCES: Final = "penstock.sources"
OBJECTS: Final = "penstock.objects"
ARRAYS: Final = "penstock.arrays"
EXECUTORS: Final = "penstock.executors"
VERBS: Final = "penstock.verbs"
CALLS: Final = "penstock.calls"
IMAGE: Final = "penstock.image"
FILES: Final = "penstock.files"
INSPECT: Final = "penstock.inspect"
WORDS: Final = "penstock.words"
PACKS: Final = "penstock.packs"

Add = Callable[[str, Mapping[str, str]], None]
"""What `register` is passed: takes a group, and what is registered in it, `module:name` by name."""
_Names = dict[str, dict[str, str]]


@functools.cache
def own() -> Mapping[str, Mapping[str, str]]:
    """What the packs of this distribution bring: `module:name` by group and name."""
    found: _Names = {}
    root = __name__.partition(".")[0]
    for file in sorted(file for place in sys.modules[root].__path__ for file in Path(place).glob("*/_register.py")):
        # By its file, because an import of a pack may bring libraries.
        spec = spec_from_file_location(f"{root}.{file.parent.name}._register", file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.register(_adding(found))
    return found


def _adding(found: _Names) -> Add:
    return lambda group, names: found.setdefault(group, {}).update(names)


def loaded(value: str) -> Any:
    """Imports `module:name`."""
    module, _, attribute = value.partition(":")
    return getattr(importlib.import_module(module), attribute)


def lookup(group: str, name: str) -> Any | None:
    """Imports what is registered by a name; None if nobody registered it.

    Raises:
        ArgumentError: Several packages registered it.
        ImportError: It needs a library that is missing.
    """
    if (ours := own().get(group, {}).get(name)) is not None:
        return loaded(ours)
    entries = {value for each, value in _installed(group) if each == name}
    if len(entries) > 1:
        raise ArgumentError(
            f"{name} is registered by several packages, as {' and '.join(sorted(entries))} (entry points "
            f"{group!r}). Uninstall all but one of them."
        )
    return loaded(entries.pop()) if entries else None


def needed(group: str, name: str) -> Any:
    """Imports what a pack of this distribution registers by a name."""
    return loaded(own()[group][name])


def is_registered(group: str, name: str) -> bool:
    """Whether somebody registered a name. Imports nothing of theirs."""
    return name in own().get(group, {}) or any(each == name for each, _ in _installed(group))


def names(group: str) -> list[str]:
    """The names that are registered, those of this distribution first. Looks at all that is installed."""
    return list(dict.fromkeys([*own().get(group, {}), *sorted(each for each, _ in _installed(group))]))


def values(group: str) -> dict[str, str]:
    """What is registered in a group, by name. Looks at all that is installed."""
    return {**dict(_installed(group)), **own().get(group, {})}


def made_of(value: Any, **options: Any) -> Any | None:
    """Asks the extension for objects of a class to make a source of one; None if there is none, or it makes none.

    The extension is registered in `penstock.objects` by the top module of the class, or else of a base class. It
    gets the object and the options of `from_source`, and returns a `Source`, or None.
    """
    return _asked(OBJECTS, value, **options)


def array_of(value: Any, place: str) -> Any | None:
    """The same in `penstock.arrays`, for an array and its place in the tree of `from_arrays`."""
    return _asked(ARRAYS, value, place)


def _asked(group: str, value: Any, *arguments: Any, **options: Any) -> Any | None:
    roots = dict.fromkeys(kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    for root in (each for each in roots if each not in _NEVER):
        make = lookup(group, root)
        if make is not None and (made := make(value, *arguments, **options)) is not None:
            return made
    return None


_NEVER: Final = frozenset({"builtins", "penstock", "numpy", "__main__", *sys.stdlib_module_names})
"""Top modules that nobody registers: lists and arrays are made into sources without a look at what is installed."""


def _installed(group: str) -> Iterator[tuple[str, str]]:
    """Yields the name and value of each entry of other packages."""
    yield from ((each.name, each.value) for each in _entries(group))
    for each in _entries(PACKS):
        yield from _brought(each).get(group, {}).items()


@functools.cache
def _entries(group: str) -> tuple[Any, ...]:
    """The entry points of a group. What is installed while a program runs is found by the next."""
    from importlib.metadata import entry_points  # takes as long as all of this package, and is seldom needed

    return tuple(entry_points(group=group))


@functools.cache
def _brought(entry: Any) -> _Names:
    """What a pack of another package brings; nothing if it fails to say so, which the log tells."""
    brought: _Names = {}
    try:
        entry.load()(_adding(brought))
    except Exception:  # of any type: it is another package's
        _log.warning(
            "The pack %s of an installed package fails, and nothing of it is there.", entry.value, exc_info=True
        )
        return {}
    return brought
