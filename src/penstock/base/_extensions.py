"""What stands outside of the core, by name. It is imported when its name is asked for, and not before.

The core knows names and no modules of the rest. A package registers an extension by an entry point, in its
`pyproject.toml`:

    [project.entry-points."penstock.sources"]
    from_x = "package.module:from_x"

| group | name | value |
|---|---|---|
| `penstock.sources` | `from_x` | a function that returns a `Dataset`: `penstock.from_x` |
| `penstock.objects` | a module, such as `datasets` | what `from_source` makes of objects of its classes: `made_of` |
| `penstock.executors` | the value of `executor=` | an `ExecutorKind` |
| `penstock.adapters` | `to_x` | a function of a plan and options, for the method of that name |
| `penstock.image` | the name of a distortion | a function or class: `penstock.image.name` |

What this distribution brings itself stands in `OWN`, in the same form, so that it is found without a look at all that
is installed, and in a checkout that was never installed. Nobody else's entry replaces it.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.base._errors import ArgumentError

SOURCES: Final = "penstock.sources"
OBJECTS: Final = "penstock.objects"
EXECUTORS: Final = "penstock.executors"
ADAPTERS: Final = "penstock.adapters"
IMAGE: Final = "penstock.image"

_RECORDS: Final = (
    "from_arrow", "from_csv", "from_jsonl", "from_parquet", "from_tar", "from_text", "from_tfrecord", "write_tfrecord",
)  # fmt: skip
_FORMATS: Final = ("arrayrecord", "files", "lance", "lerobot", "mds", "megatron", "videos")
"""Formats whose function stands beside their source."""
_DISTORTIONS: Final = (
    "Distortion", "blur", "brightness", "compose", "contrast", "crop", "elastic", "erase", "exactly", "flip", "noise",
    "one_of", "resized_crop", "rotate", "scale", "sharpen", "shear", "sine_warp", "smooth", "sometimes", "to_float",
    "translate",
)  # fmt: skip
OWN: Final[Mapping[str, Mapping[str, str]]] = {
    SOURCES: {name: f"penstock.formats._records:{name}" for name in _RECORDS}
    | {f"from_{name}": f"penstock.formats.{name}:from_{name}" for name in _FORMATS}
    | {name: f"penstock.formats.csr:{name}" for name in ("from_csr", "from_h5ad")}
    | {name: f"penstock.formats._volumes:{name}" for name in ("from_nifti", "from_xarray", "from_zarr")}
    | {"from_etlcdb": "penstock.formats._records:from_etlcdb", "repack": "penstock.formats._repack:repack"},
    OBJECTS: {"datasets": "penstock.formats._records:source_of"},
    EXECUTORS: {"ray": "penstock.ray._kind:KIND"},
    IMAGE: {name: f"penstock.distort:{name}" for name in _DISTORTIONS},
    ADAPTERS: {"to_ray": "penstock.ray._data:to_ray"},
}
"""`module:name` by group and name."""
_FILES: Final = {
    "from_npy": (".npy",),
    "from_parquet": (".parquet",),
    "from_arrow": (".arrow", ".feather"),
    "from_tar": (".tar",),
    "from_tfrecord": (".tfrecord", ".tfrecords"),
    "from_arrayrecord": (".array_record", ".arrayrecord"),
    "from_jsonl": (".jsonl", ".ndjson"),
    "from_csv": (".csv",),
    "from_text": (".txt",),
    "from_nifti": (".nii",),
    "from_megatron": (".bin", ".idx"),
    "from_mds": ("/index.json",),
    "from_lance": ("/_versions/*.manifest",),
    "from_lerobot": ("/meta/info.json",),
    "from_etlcdb": ("/ETL*",),
    "from_image_files": (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    "from_files": (".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff"),
    "from_videos": (".mp4", ".mov", ".mkv", ".webm", ".avi", ".flv", ".mpg", ".ts"),
}
FILES: Final = {name: constructor for constructor, names in _FILES.items() for name in names}
"""The constructor of files by the ending of their names, and of a folder by what it holds: `/` and a pattern."""


def found(group: str, name: str) -> Any | None:
    """Imports what is registered by a name; None if nobody registered it.

    Raises:
        ArgumentError: Several packages registered it.
        ImportError: It needs a library that is missing.
    """
    if (own := OWN.get(group, {}).get(name)) is not None:
        module, _, attribute = own.partition(":")
        return getattr(importlib.import_module(module), attribute)
    entries = {each.value: each for each in _installed(group) if each.name == name}
    if len(entries) > 1:
        raise ArgumentError(
            f"{name} is registered by several packages, as {' and '.join(sorted(entries))} (entry points "
            f"{group!r}). Uninstall all but one of them."
        )
    return next(iter(entries.values())).load() if entries else None


def is_registered(group: str, name: str) -> bool:
    """Whether somebody registered a name. Imports nothing of theirs."""
    return name in OWN.get(group, {}) or any(each.name == name for each in _installed(group))


def names(group: str) -> list[str]:
    """The names that are registered, those of this distribution first. Looks at all that is installed."""
    return list(dict.fromkeys([*OWN.get(group, {}), *sorted(each.name for each in _installed(group))]))


def made_of(value: Any, **options: Any) -> Any | None:
    """Asks the extension for objects of a class to make a source of one; None if there is none, or it makes none.

    The extension is registered in `penstock.objects` by the top module of the class, or else of a base class. It
    gets the object and the options of `from_source`, and returns a `Source`, or None.
    """
    roots = dict.fromkeys(kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    for root in (each for each in roots if each not in _NEVER):
        make = found(OBJECTS, root)
        if make is not None and (source := make(value, **options)) is not None:
            return source
    return None


_NEVER: Final = frozenset({"builtins", "penstock", "numpy", "__main__", *sys.stdlib_module_names})
"""Top modules that nobody registers: lists and arrays are made into sources without a look at what is installed."""


def _installed(group: str) -> Iterator[Any]:
    from importlib.metadata import entry_points  # takes as long as all of this package, and is seldom needed

    yield from entry_points(group=group)
