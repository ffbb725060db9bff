"""Opens a path, a pattern or a URL with the constructor that `FILES` has for its name, or for what a folder holds."""

import functools
import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.base._extensions import FILES, INSPECT, is_registered, lookup, values
from penstock.files._found import Found, made, quoted
from penstock.files._openfile import File, find
from penstock.files._remote import is_remote
from penstock.functions._replay import _records as quarantine_records
from penstock.image._constructors import EXTENSIONS

IMAGE_SIZE: Final = (256, 256)
"""The size of resized images, as Keras's default."""
_REMEDY: Final = (
    "Read other files with ps.from_files(paths).map(fn); an array without a header with "
    "ps.from_arrays(np.memmap(path, dtype=..., mode='r')); anything with ps.from_source(a list).map(fn)."
)
_ZARR: Final = ("zarr.json", ".zgroup", ".zarray")
"""One of these is in the folder of a store of Zarr."""
_AFTER: Final = re.compile(r"(-\d+-of-\d+)?(\.(gz|bz2|xz|zst))?$")
"""What may stand behind the ending of a name: the number of a shard, and a compression."""


def recognise(target: str) -> Found:
    """Opens a file, a folder, or the files of a pattern or a URL.

    Raises:
        SourceError: There is no such path or object, it cannot be read, or it is a pipe.
    """
    if os.path.isdir(target):
        return _folder(Path(target))
    if not (is_remote(target) or is_pattern(target) or os.path.exists(target)):
        raise penstock.SourceError(f"There is no file or folder {target}, seen from {os.getcwd()}.")
    files = find("inspect", target)
    return replace(_files(target, files), nbytes=sum(file.nbytes for file in files))


def is_pattern(path: str) -> bool:
    """Whether a path stands for the files that fit it, as `*.jpg` does where no file has that name."""
    return glob.has_magic(path) and not os.path.exists(path)


def _ending(name: str) -> str:
    return os.path.splitext(_AFTER.sub("", name))[1]


@functools.cache
def _constructors() -> dict[str, str]:
    """The constructor of files by the ending of their names, and of a folder by what it holds."""
    return values(FILES)


def _constructor(name: str) -> str | None:
    return _constructors().get(_ending(name).lower())


def _files(target: str, files: Sequence[File]) -> Found:
    """Opens files of one kind, by the name of the first."""
    first, count = files[0], len(files)
    ending, constructor = _ending(first.name), _constructor(first.name) or _constructors().get(f"/{first.name}")
    what = f"a {ending or 'nameless'} file" if count == 1 else f"{count:,} {ending} files"
    if count == 1 and is_registered(INSPECT, ending):
        return _store(what, ending, target)
    if constructor is None:
        problem = f"{first} begins with {first.head(16)!r}, and no constructor is known for this name. {_REMEDY}"
        return Found(f"{what}, which is unknown", problem=problem)
    if constructor == "from_jsonl" and first.is_local:
        with suppress(penstock.SourceError):  # other JSON
            return _quarantine(target, quarantine_records(Path(first.url)))
    if constructor in ("from_tfrecord", "from_arrayrecord"):
        found = made(f"{what}, of Examples", constructor, target, features="auto")
        with suppress(penstock.PenstockError):
            if found.dataset is None or found.dataset.element_spec:
                return found
        what = f"{what}, of records that are no Examples"
    return made(what, constructor, target)


def _store(what: str, ending: str, path: str) -> Found:
    """Opens a store by the ending of its name."""
    try:
        opened: Found = lookup(INSPECT, ending)(what, path)  # type: ignore[misc]  # it is registered
        return opened
    except (ImportError, penstock.PenstockError) as error:
        return Found(what, problem=str(error))
    except Exception as error:  # of any type, for a damaged file
        return Found(what, problem=f"{path} cannot be opened. It is damaged or not complete: {error}")


def _quarantine(path: str, records: list[dict[str, Any]]) -> Found:
    kinds = Counter(f"{each['step']}: {each['exception']}" for each in records)
    code = f'for each in ps.replay({quoted(path)}, ds):  # the same ds\n    print(each.failure["index"], each.error)'
    facts = {
        "failures": [f"{len(records):,}"],
        "by kind": [f"{count:,} x {kind}" for kind, count in kinds.most_common(10)],
        "the last": [" + ".join(source[2] for source in each["sources"]) for each in records[-3:]],
    }
    return Found("a quarantine file, of elements that a loader set aside", code, facts=facts)


def _folder(path: Path) -> Found:
    every = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return replace(_by_files(path, every), nbytes=sum(each.lstat().st_size for each in every))


def _by_files(path: Path, every: list[Path]) -> Found:
    if any((path / name).exists() for name in _ZARR):
        return _store("a Zarr store", ".zarr", str(path))
    for name, constructor in _constructors().items():
        if name.startswith("/") and any(path.glob(name[1:])):
            return made(f"a folder with {name[1:]}", constructor, str(path))
    shown = [each for each in every if not each.name.startswith(".")]
    kinds = Counter(_constructor(each.name) for each in shown)
    chosen, count = kinds.most_common(1)[0] if kinds else (None, 0)
    if chosen is None or 2 * count <= len(shown):
        problem = f"{path} as a whole is no dataset of a known kind. Give one of its files or folders. {_REMEDY}"
        return Found("a folder", problem=problem)
    mine = [each for each in shown if _constructor(each.name) == chosen]
    if chosen == "from_image_files":
        return _images(path, [each for each in every if _constructor(each.name) == chosen])
    if chosen == "from_npy" and len(mine) > 1:
        tree = {each.stem: str(each) for each in sorted(mine)}
        return made(f"{len(mine):,} .npy files with as many rows", chosen, tree)
    ((ending, _),) = Counter(_ending(each.name) for each in mine).most_common(1)
    alike = [each for each in mine if _ending(each.name) == ending]
    are_below = all(each.parent.parent == path for each in alike)
    folders = "" if all(each.parent == path for each in alike) else "*/" if are_below else "**/"
    more = "" if all(each.name.endswith(ending) for each in alike) else "*"
    target = os.path.join(glob.escape(str(path)), f"{folders}*{ending}{more}")
    files = find("inspect", target)
    if chosen == "from_files" and are_below:
        return made(f"{len(files):,} {ending} files in a folder a class", chosen, target, labels="inferred")
    return _files(target, files)


def _images(path: Path, images: list[Path]) -> Found:
    """Opens a folder of images as Keras does. Its folders are the classes, unless it holds images itself."""
    counts = Counter(each.relative_to(path).parts[0] for each in sorted(images))
    options: dict[str, Any] = {"labels": None} if any(each.parent == path for each in images) else {}
    endings = {each.suffix.lower() for each in images}
    if not endings <= set(EXTENSIONS):
        options["extensions"] = tuple(sorted(endings))
    unseen = {"batch_size": None, "shuffle": False, "verbose": False}
    what = "a folder of images" + ("" if "labels" in options else " in a folder a class")
    found = made(what, "image_dataset_from_directory", str(path), unseen, image_size=IMAGE_SIZE, **options)
    found.facts["images"] = [f"{len(images):,}"]
    if "labels" not in options:
        shown = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:10])
        found.facts[f"{len(counts):,} class{'es' if len(counts) > 1 else ''}"] = [shown]
    with suppress(penstock.PenstockError, ImportError):  # the elements themselves report it
        sizes = {f"{each.shape[0]} x {each.shape[1]}" for each in penstock.from_image_files([*map(str, images[:5])])}
        found.facts["sizes"] = [f"{', '.join(sorted(sizes))}, resized as image_size= says"]
    return found
