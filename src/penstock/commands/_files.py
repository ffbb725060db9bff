"""What a file is, told by its bytes, and how to open it as a dataset."""

import json
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import penstock
from penstock import Dataset
from penstock.commands import _stores
from penstock.sources.npy import require_places

KNOWN: Final = (
    ".npy, HDF5, Zarr, TFRecord, tar shards, Parquet, Arrow, images, folders of these, the ETL Character Database, "
    "and quarantine files"
)

_IMAGES: Final = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG": "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}
_OTHERS: Final = {
    b"\x1f\x8b": "compressed with gzip",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"PK\x03\x04": "a zip archive",
    b"\x80\x02": "a Python pickle",
    b"\x80\x03": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
    b"MATLAB 5.0": "a MATLAB file",
    b"SQLite format 3\0": "an SQLite database",
    b"CDF": "a NetCDF file",
    b"SIMPLE  =": "a FITS file",
    b"ID3": "MP3 audio",
    b"fLaC": "FLAC audio",
    b"OggS": "Ogg audio or video",
    b"%PDF": "a PDF",
}
_HEAD_NBYTES: Final = 4096
_TAR_MAGIC_AT: Final = 257
_FRAMES: Final = 3
_FRAME_HEAD_NBYTES: Final = 12
_ANY_FORMAT: Final = (
    "Read it with a function of yours: ps.from_source(a list).map(fn), or ps.from_generator(fn), and give the dataset "
    "as module:name to penstock bench."
)
_CURES: Final = {
    "lines of text": "A table: ps.from_arrays of what csv or pandas reads, ps.from_image_files(paths, labels) "
    "where they are names of images. One larger than memory belongs into Parquet. ",
    "JSON": "A record for each line: ps.from_source([json.loads(line) for line in open(path)]). ",
    "binary data": "Numbers without a header: ps.from_arrays(np.memmap(path, dtype=..., mode='r')). ",
}
"""What these most often are, and what reads them."""


@final
@dataclass(frozen=True)
class Found:
    """What a path turned out to be."""

    what: str
    """In words, with an article."""
    code: str = ""
    """The lines of Python that open it, after `import penstock as ps`."""
    open: Callable[[], Dataset] | None = None
    """Does what they say; elements are not batched."""
    facts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What else there is to say: a title, and lines."""
    problem: str = ""
    """Why it cannot be opened, and what to do instead."""


def of_file(path: Path, pattern: str = "") -> Found:
    """Tells what a file is.

    Args:
        path: The file.
        pattern: A pattern of paths, where the file is the first of several alike.

    Raises:
        SourceError: It is a pipe, a socket or a device.
        OSError: It cannot be read.
    """
    require_places(str(path))
    with path.open("rb") as file:
        head = file.read(_HEAD_NBYTES)
    nbytes, name = path.stat().st_size, json.dumps(pattern or str(path), ensure_ascii=False)
    target = pattern or str(path)
    if not head:
        return Found("an empty file", problem=f"{path} has 0 bytes. Whatever wrote it failed; write it again.")
    if head.startswith(b"\x93NUMPY"):
        return _opened("a NumPy array", f"ps.from_npy({name})", lambda: penstock.from_npy(target))
    if head.startswith(b"PK") and (arrays := _arrays_of_npz(path)):
        return _npz(path, arrays)
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return _of_store("an HDF5 file", "dataset", _stores.hdf5(path))
    if head.startswith(b"PAR1"):
        return _opened("Parquet", f"ps.from_parquet({name})", lambda: penstock.from_parquet(target))
    if head.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")):
        return _opened("Arrow", f"ps.from_arrow({name})", lambda: penstock.from_arrow(target))
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar":
        return _opened("a tar file of samples", f"ps.from_tar({name})", lambda: penstock.from_tar(target))
    if _is_tfrecord(path, head, nbytes):
        return _tfrecord(name, target)
    if image := _image_of(head):
        return _image(image, path, name)
    if (records := _failures(path, head)) is not None:
        return _quarantine(name, records)
    if re.match(r"(?i)ETL\d", path.name):
        return Found(
            "perhaps a file of the ETL Character Database",
            problem=f"Give its folder: penstock inspect {path.parent}. A dataset is of a part, with all of its files.",
        )
    looks = _looks(head)
    return Found(
        f"unknown: {looks}",
        problem=f"{path} begins with {head[:16]!r}, {looks}, which penstock has no reader for. It knows {KNOWN}. "
        f"{_CURES.get(looks, '')}{_ANY_FORMAT}",
    )


def of_zarr(path: Path) -> Found:
    """Tells what is in a Zarr store, which is a folder."""
    return _of_store("a Zarr store", "array", _stores.zarr(path))


def _opened(what: str, code: str, opener: Callable[[], Dataset]) -> Found:
    return Found(what, f"ds = {code}", opener)


def _of_store(what: str, part: str, store: "_stores.Store") -> Found:
    facts = ((f"{part}s", tuple(store.lines)),)
    if store.open is None:
        return Found(what, facts=facts, problem=store.problem)
    return Found(what, store.code, store.open, facts)


def _arrays_of_npz(path: Path) -> list[str]:
    """The names of the arrays in an archive as `np.savez` writes it; none if it is another."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return []
    return [name.removesuffix(".npy") for name in names] if all(name.endswith(".npy") for name in names) else []


def _npz(path: Path, arrays: list[str]) -> Found:
    name = json.dumps(str(path), ensure_ascii=False)
    return Found(
        "a NumPy archive (.npz)",
        code=f"import numpy as np\nfor name, array in np.load({name}).items():\n"
        f'    np.save(f"{path.stem}-{{name}}.npy", array)  # then ps.from_npy()',
        facts=(("arrays", tuple(arrays)),),
        problem="Rows of an archive cannot be read in place. Save its arrays by themselves, once, as above.",
    )


def _is_tfrecord(path: Path, head: bytes, nbytes: int) -> bool:
    """Whether the lengths that are at the places of the first records fit the file."""
    if head.startswith(b"\x1f\x8b"):
        return "tfrecord" in path.name.lower()
    at = 0
    with path.open("rb") as file:
        for _ in range(_FRAMES):
            file.seek(at)
            frame = file.read(_FRAME_HEAD_NBYTES)
            if len(frame) < _FRAME_HEAD_NBYTES:
                return False
            length, checksum = struct.unpack("<QI", frame)
            at += 16 + int(length)
            if at >= nbytes:
                return at == nbytes
            if not checksum:  # as in a file of zeros; that of no length is 0
                return False
    return True


def _tfrecord(name: str, target: str) -> Found:
    def open_it() -> Dataset:
        return penstock.from_tfrecord(target, features="auto") if is_example else penstock.from_tfrecord(target)

    is_example = True
    try:
        spec = penstock.from_tfrecord(target, features="auto").element_spec
        is_example = bool(spec)
    except ImportError:
        pass  # which is told when it is opened
    except penstock.PenstockError:
        is_example = False
    what = f"TFRecord, of {'Examples' if is_example else 'records that are no Examples'}"
    features = ', features="auto"' if is_example else ""
    return _opened(what, f"ps.from_tfrecord({name}{features})", open_it)


def _image_of(head: bytes) -> str:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return next((kind for magic, kind in _IMAGES.items() if head.startswith(magic)), "")


def _image(kind: str, path: Path, name: str) -> Found:
    what = f"{'an' if kind[0] in 'AEIO' else 'a'} {kind} image"
    return _opened(what, f"ps.from_image_files({name})", lambda: penstock.from_image_files([path]))


def _failures(path: Path, head: bytes) -> list[dict[str, Any]] | None:
    """The records of a quarantine file, or None if it is none."""
    if not head.startswith(b"{"):
        return None
    records: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
                if not {"plan", "guard", "epoch", "index", "step", "exception"} <= record.keys():
                    return None
            except (ValueError, AttributeError):
                if records and not line.endswith(b"\n"):
                    break  # whoever wrote it was killed
                return None
            records.append(record)
    return records


def _quarantine(name: str, records: list[dict[str, Any]]) -> Found:
    # Each run adds lines of its own: what it said last of an element counts.
    last = {(each["plan"], each["guard"], each["epoch"], each["index"]): each for each in records}
    kinds = Counter((each["step"], each["exception"]) for each in last.values())
    places = [
        " + ".join(source[2] for source in each["sources"]) or f"element {each['index']}" for each in last.values()
    ]
    again = f", in {len(records):,} lines: later runs add theirs" if len(records) > len(last) else ""
    return Found(
        "a quarantine file, of elements that a loader set aside",
        code=f'for each in ps.replay({name}, ds):  # ds as it was\n    print(each.failure["index"], each.error)',
        facts=(
            ("failures", (f"{len(last):,}{again}",)),
            (
                "by kind",
                tuple(f"{count:,} x {step}: {exception}" for (step, exception), count in kinds.most_common(10)),
            ),
            ("of plan", tuple(sorted({each["plan"] for each in records}))),
            ("the last", tuple(places[-3:])),
        ),
    )


def _looks(head: bytes) -> str:
    """What bytes look like, in words."""
    for magic, kind in _OTHERS.items():
        if head.startswith(magic):
            return kind
    if head[4:8] == b"ftyp":
        return "MP4 or QuickTime video"
    if head[:4] == b"RIFF":
        return f"{head[8:12].decode('ascii', 'replace').strip()} in RIFF"
    try:
        text = head[: head.rfind(b"\n") + 1 or len(head)].decode()
    except UnicodeDecodeError:
        return "binary data"
    if any(ord(character) < 32 and not character.isspace() for character in text):
        return "binary data"
    if text.lstrip()[:1] in ("{", "["):
        return "JSON"
    return "lines of text"
