"""What a path is: a file, told by its bytes, or a folder, told by the names in it."""

import json
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import penstock
from penstock import Dataset
from penstock.commands._files import KNOWN, Found, of_file, of_zarr
from penstock.report._progress import Progress

IMAGE_SIZE: Final = (256, 256)
"""To which images are resized where nobody says: what Keras does."""

_KERAS_SUFFIXES: Final = {".bmp", ".gif", ".jpeg", ".jpg", ".png"}
_IMAGE_SUFFIXES: Final = _KERAS_SUFFIXES | {".webp", ".tif", ".tiff"}
_ZARR_NAMES: Final = {"zarr.json", ".zarray", ".zgroup"}
_SHOWN_CLASSES: Final = 10
_MOST_ARRAYS: Final = 16
_EXAMPLES: Final = 5


@final
@dataclass
class Listing:
    """What a folder holds, with all folders below it: hidden ones too, for readers of images read these as well."""

    names: list[str] = field(default_factory=list)
    """Files in the folder itself, sorted."""
    file_count: int = 0
    nbytes: int = 0
    suffixes: Counter[str] = field(default_factory=Counter)
    """How many files end in what, in lower case."""
    images: Counter[str] = field(default_factory=Counter)
    """Image files of each folder in it, those deeper down included; of itself under an empty name."""
    examples: list[str] = field(default_factory=list)
    """Some of the images."""


def recognise(path: Path) -> tuple[Found, int]:
    """Tells what a file or folder is, and its bytes on disk. Shows progress on a terminal.

    Raises:
        SourceError: There is no such path, or it cannot be read.
    """
    try:
        if not path.is_dir():
            return of_file(path), path.stat().st_size
        listing = listed(path)
        return _of_folder(path, listing), listing.nbytes
    except FileNotFoundError:
        raise penstock.SourceError(f"There is no file or folder {path}, seen from {os.getcwd()}.") from None
    except PermissionError as error:
        raise penstock.SourceError(f"{error.filename or path} cannot be read: {error.strerror}.") from None


def listed(folder: Path) -> Listing:
    """Lists a folder.

    Raises:
        OSError: It, or one below it, cannot be read.
    """
    listing = Listing()
    with Progress("Listing", unit="files") as progress:
        waiting = [(str(folder), "")]
        while waiting:
            place, top = waiting.pop()
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        if os.path.isdir(entry.path):  # False for links in a circle, where `entry.is_dir()` raises
                            continue
                    elif entry.is_dir():
                        waiting.append((entry.path, top or entry.name))
                        continue
                    suffix = os.path.splitext(entry.name)[1].lower()
                    listing.nbytes += entry.stat(follow_symlinks=False).st_size
                    listing.file_count += 1
                    listing.suffixes[suffix] += 1
                    if place == str(folder):
                        listing.names.append(entry.name)
                    if suffix in _IMAGE_SUFFIXES:
                        listing.images[top] += 1
                        listing.examples += [entry.path] * (len(listing.examples) < _EXAMPLES)
                    progress.advance()
    listing.names.sort()
    return listing


def _of_folder(path: Path, listing: Listing) -> Found:
    if _ZARR_NAMES & set(listing.names):
        return of_zarr(path)
    names = [name for name in listing.names if not name.startswith(".")]
    if {"state.json", "dataset_info.json"} <= set(names):
        return _hugging_face(path)
    if caches := [path] if "cache.json" in names else sorted(each.parent for each in path.glob("*/cache.json")):
        return _caches(path, caches)
    if any(re.match(r"(?i)ETL\d", name) for name in [*names, *listing.images]):
        return _etl(path)
    if listing.images.total() * 2 > listing.file_count:
        return _images(path, listing)
    suffixes = {os.path.splitext(name)[1] for name in names}
    if suffixes == {".npy"}:
        return _arrays(path, names)
    for suffix in sorted(suffixes, key=lambda each: -sum(name.endswith(each) for name in names)):
        alike = [name for name in names if os.path.splitext(name)[1] == suffix]
        found = of_file(path / alike[0], str(path / f"*{suffix}"))
        if found.open is not None and len(alike) * 2 > len(names) and not found.facts:
            return Found(f"{len(alike):,} files: {found.what}", found.code, found.open)
    return _unknown(path, listing)


def _hugging_face(path: Path) -> Found:
    return Found(
        "a dataset of Hugging Face, saved to disk",
        code=f"import datasets\nds = ps.from_source(datasets.load_from_disk({_text(path)}))",
        problem="It is not opened here, for that imports datasets. The lines above do.",
    )


def _caches(path: Path, caches: list[Path]) -> Found:
    """What `cache(path)` or `materialize(path)` keeps: a folder for each plan, without which it is not opened."""
    lines = []
    for each in caches[:_SHOWN_CLASSES]:
        try:
            written = json.loads((each / "cache.json").read_text())
            length = "a stream" if written["length"] is None else f"{written['length']:,} elements"
            lines.append(f"{each.name}: {length}, of {' > '.join(step[0] for step in written['steps'])}")
        except (OSError, ValueError, KeyError, TypeError):
            lines.append(f"{each.name}: damaged")
    if len(caches) > _SHOWN_CLASSES:
        lines.append(f"and {len(caches) - _SHOWN_CLASSES:,} more")
    folder = path.parent if caches == [path] else path
    code = f"ds = ds.cache({_text(folder)})  # ds as it was when it was kept; or ds.materialize(...)"
    return Found("a cache of penstock, of elements that were kept", code=code, facts=(("kept", tuple(lines)),))


def _etl(path: Path) -> Found:
    return Found(
        "the ETL Character Database", f"ds = ps.from_etlcdb({_text(path)})", lambda: penstock.from_etlcdb(path)
    )


def _images(path: Path, listing: Listing) -> Found:
    """Folders of images are classes, as Keras sees it; images of the folder itself have none."""
    counts = {name: count for name, count in sorted(listing.images.items()) if count}
    has_classes = "" not in counts
    others = tuple(sorted((_IMAGE_SUFFIXES - _KERAS_SUFFIXES) & listing.suffixes.keys()))
    options: dict[str, Any] = {} if has_classes else {"labels": None}
    if others:
        options["extensions"] = (*sorted(_KERAS_SUFFIXES & listing.suffixes.keys()), *others)
    facts = [("images", (f"{sum(counts.values()):,}",))]
    if has_classes:
        shown = [f"{name} {count:,}" for name, count in list(counts.items())[:_SHOWN_CLASSES]]
        if len(counts) > _SHOWN_CLASSES:
            shown.append(f"and {len(counts) - _SHOWN_CLASSES:,} more")
        facts.append((f"{len(counts):,} class{'es' if len(counts) > 1 else ''}", (", ".join(shown),)))
    what = "a folder of images in a folder a class" if has_classes else "a folder of images"
    if sizes := _sizes(listing.examples):
        facts.append(("sizes", (f"{', '.join(sizes)}; {IMAGE_SIZE[0]} x {IMAGE_SIZE[1]} below, see image_size=",)))

    def open_it() -> Dataset:
        made: Dataset = penstock.image_dataset_from_directory(
            path, batch_size=None, shuffle=False, verbose=False, image_size=IMAGE_SIZE, **options
        )
        return made

    given = "".join(f", {name}={value!r}" for name, value in options.items()).replace("'", '"')
    code = f"ds = ps.image_dataset_from_directory({_text(path)}, image_size={IMAGE_SIZE}{given})"
    return Found(what, code, open_it, tuple(facts))


def _sizes(paths: list[str]) -> list[str]:
    """Heights and widths of some images, as they are in their files; none if they cannot be read."""
    with suppress(penstock.PenstockError, ImportError):
        return sorted({f"{image.shape[0]} x {image.shape[1]}" for image in penstock.from_image_files(paths)})
    return []


def _arrays(path: Path, names: list[str]) -> Found:
    """Arrays with as many rows stand side by side."""
    heads = {name: penstock.from_npy(path / name) for name in names[:_MOST_ARRAYS]}
    facts = (("arrays", tuple(map(repr, heads.values()))),)
    if len(names) > _MOST_ARRAYS or len({ds.length for ds in heads.values()}) > 1:
        return Found(
            f"{len(names):,} NumPy arrays",
            facts=facts,
            problem="They have different numbers of rows, or are many. Inspect one of them, or join them: "
            f"ps.concatenate([ps.from_npy(path) for path in sorted(glob.glob({_text(path / '*.npy')}))])",
        )
    tree = {name.removesuffix(".npy"): str(path / name) for name in names}
    text = json.dumps(tree, ensure_ascii=False) if len(tree) > 1 else _text(path / names[0])
    opened = tree if len(tree) > 1 else path / names[0]
    what = f"{len(names):,} NumPy arrays with as many rows" if len(tree) > 1 else "a folder with a NumPy array"
    return Found(what, f"ds = ps.from_npy({text})", lambda: penstock.from_npy(opened), facts)


def _unknown(path: Path, listing: Listing) -> Found:
    kinds = ", ".join(f"{count:,} {suffix or 'without an ending'}" for suffix, count in listing.suffixes.most_common(6))
    return Found(
        "a folder",
        facts=(("files", (f"{listing.file_count:,}: {kinds}" if listing.file_count else "none",)),),
        problem=f"What is in {path} is no dataset that penstock knows as a whole: it knows {KNOWN}. Give one of its "
        "files or folders.",
    )


def _text(path: Path) -> str:
    """A path as Python writes it."""
    return json.dumps(str(path), ensure_ascii=False)
