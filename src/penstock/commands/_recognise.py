"""Recognises files by their bytes, or a folder by its files, and opens them with the library's own constructors."""

import glob
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mode
from typing import Any, Final

import penstock
from penstock._replay import _records as quarantine_records
from penstock.commands import _stores
from penstock.commands._found import Found, made, quoted
from penstock.sources._listing import below
from penstock.sources._openfile import File, find
from penstock.sources._remote import is_remote

IMAGE_SIZE: Final = (256, 256)
"""The size of resized images, as Keras's default."""
_KNOWN: Final = (
    "penstock reads .npy, HDF5, AnnData, Zarr, netCDF, NIfTI, TFRecord, tar shards, Parquet, Arrow, JSON Lines, CSV, "
    "text, ArrayRecord, MDS, Megatron, Lance, LeRobot, images, sound, films, folders of these, and the ETL "
    "Character Database. Read another format with ps.from_files(paths).map(fn), ps.from_source(a list).map(fn) or "
    "ps.from_generator(fn)."
)
_SOUND: Final = "a sound file, for penstock.audio"
_FORMATS: Final = (  # the place of the first bytes, these bytes, a name, a constructor
    (0, b"\x93NUMPY", "a NumPy array", "from_npy"),
    (0, b"PAR1", "Parquet", "from_parquet"),
    (0, b"ARROW1", "Arrow", "from_arrow"),
    (0, b"FEA1", "Arrow", "from_arrow"),
    (0, b"\xff\xff\xff\xff", "Arrow", "from_arrow"),
    (257, b"ustar", "a tar shard", "from_tar"),
    (344, b"n+1\0", "a NIfTI volume", "from_nifti"),
    (344, b"ni1\0", "a NIfTI volume", "from_nifti"),
    (4, b"n+2\0", "a NIfTI volume", "from_nifti"),
    (4, b"ni2\0", "a NIfTI volume", "from_nifti"),
    (0, b"MMIDIDX\0\0", "an index of a corpus of Megatron", "from_megatron"),
    (0, b"\xff\xd8\xff", "a JPEG image", "from_image_files"),
    (0, b"\x89PNG", "a PNG image", "from_image_files"),
    (0, b"GIF8", "a GIF image", "from_image_files"),
    (0, b"BM", "a BMP image", "from_image_files"),
    (8, b"WEBP", "a WebP image", "from_image_files"),
    (0, b"II*\0", "a TIFF image", "from_image_files"),
    (0, b"MM\0*", "a TIFF image", "from_image_files"),
    (8, b"WAVE", _SOUND, "from_files"),
    (8, b"AIFF", _SOUND, "from_files"),
    (8, b"AIFC", _SOUND, "from_files"),
    (0, b".snd", _SOUND, "from_files"),
    (0, b"fLaC", _SOUND, "from_files"),
    (0, b"OggS", _SOUND, "from_files"),
    (0, b"ID3", _SOUND, "from_files"),
    (0, b"\xff\xfb", _SOUND, "from_files"),
    (0, b"\xff\xf3", _SOUND, "from_files"),
    (4, b"ftyp", "a film, MP4 or MOV", "from_videos"),
    (0, b"\x1aE\xdf\xa3", "a film, Matroska or WebM", "from_videos"),
    (8, b"AVI ", "a film, AVI", "from_videos"),
    (0, b"FLV\1", "a film, FLV", "from_videos"),
    (0, b"\0\0\1\xba", "a film, MPEG", "from_videos"),
)
_TEXTS: Final = {
    ".jsonl": ("JSON Lines", "from_jsonl"),
    ".ndjson": ("JSON Lines", "from_jsonl"),
    ".csv": ("a table in CSV", "from_csv"),
    ".txt": ("lines of text", "from_text"),
}
"""Formats that only the ending of a name tells apart, with or without that of a compression after it."""
_REMEDIES: Final = (
    (rb"PK\x03\x04", "an archive", "Unpack it. "),
    (rb"\s*[\[{]", "JSON", "A record a line: ps.from_jsonl(path). "),
    (rb"[\s\x20-\x7e]+$", "lines of text", "A table: ps.from_csv(path). Lines: ps.from_text(path). "),
    (rb"", "binary data", "Numbers without a header: ps.from_arrays(np.memmap(path, dtype=..., mode='r')). "),
)
"""Patterns of the first bytes of other files, a name, and a remedy. The first that matches is named."""
_MPEG_TS: Final = re.compile(rb"G.{187}G.{187}G", re.DOTALL)
_MDS_INDEX: Final = "index.json"
_RIEGELI: Final = b"\x83\xafp\xd1\r\x88J?"
"""How files of ArrayRecord begin."""
_KERAS_SUFFIXES: Final = {".bmp", ".gif", ".jpeg", ".jpg", ".png"}
_IMAGE_SUFFIXES: Final = _KERAS_SUFFIXES | {".webp", ".tif", ".tiff"}
_SOUND_SUFFIXES: Final = {".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff"}
_HEAD_NBYTES: Final = 4096


def recognise(target: str) -> Found:
    """Recognises a file, a folder, or the files of a pattern or a URL.

    Raises:
        SourceError: There is no such path or object, it cannot be read, or it is a pipe.
    """
    if is_remote(target):
        return _files(pattern_of(target))
    if is_pattern(target):
        return _files(target)
    if not os.path.exists(target):
        raise penstock.SourceError(f"There is no file or folder {target}, seen from {os.getcwd()}.")
    if not os.access(target, os.R_OK):
        raise penstock.SourceError(f"{target} cannot be read: Permission denied.")
    return _folder(Path(target)) if os.path.isdir(target) else _files(target)


def is_pattern(path: str) -> bool:
    """Whether a path stands for the files that fit it, as `*.jpg` does where no file has that name."""
    return glob.has_magic(path) and not os.path.exists(path)


def pattern_of(url: str) -> str:
    """Returns a URL, or, if it is of a folder, the pattern of the files in it with the most frequent ending.

    Raises:
        SourceError: The folder has no file, or the connection fails.
    """
    if not url.endswith("/"):
        return url
    ends = [name.rpartition(".")[2] for name in below(url, None) if "/" not in name]
    if not ends:
        raise penstock.SourceError(f"There is no object directly in {url}. Name a file, or a pattern: {url}*.tar")
    return f"{url}*.{mode(ends)}"


def _files(target: str) -> Found:
    """Recognises the files of a path, pattern or URL, by the first bytes of the first of them."""
    files = find("inspect", target)
    first, head = files[0], files[0].head(_HEAD_NBYTES)
    found = _by_content(first, head, target if len(files) == 1 else first.url, target)
    if len(files) > 1:
        found = replace(found, what=f"{len(files):,} files: {found.what}")
    if not first.is_local:
        found.facts["version"] = [f"{first.version or 'none'}{' of the first' * (len(files) > 1)}"]
    return replace(found, nbytes=sum(file.nbytes for file in files))


def _by_content(first: File, head: bytes, name: str, target: str) -> Found:
    if not head:
        return Found("an empty file", problem=f"{name} has 0 bytes. Its writing failed: write it again.")
    for offset, magic, what, constructor in _FORMATS:
        if head.startswith(magic, offset):
            return made(what, constructor, target)
    if _MPEG_TS.match(head):
        return made("a film, MPEG-TS", "from_videos", target)
    if head.startswith(b"\x1f\x8b") and first.name.endswith((".nii.gz", ".nii")):
        return made("a NIfTI volume", "from_nifti", target)
    # A block of the user's may stand before it, as in files of MATLAB.
    if any(head.startswith(b"\x89HDF\r\n\x1a\n", at) for at in (0, 512, 1024, 2048)) and first.is_local:
        return _stores.of_hdf5(name)
    if re.match(rb"CDF[\1\2\5]", head) and first.is_local:
        return _stores.of_netcdf(name)
    if head.startswith(b"PK\3\4") and first.is_local and (found := _stores.of_npz(name)) is not None:
        return found
    if (found := _tfrecord(first, target)) is not None:
        return found
    if head.startswith(_RIEGELI):
        return _records("ArrayRecord", "from_arrayrecord", target)
    if first.name == _MDS_INDEX and b'"shards"' in head:
        return made("an index of MosaicML Streaming's shards (MDS)", "from_mds", target)
    if head.startswith(b'{"') and first.is_local:
        with suppress(penstock.SourceError):  # other JSON
            return _quarantine(name, quarantine_records(Path(name)))
    if first.name.endswith(".bin") and os.path.exists(name.removesuffix(".bin") + ".idx"):
        return made("a corpus of Megatron", "from_megatron", target)
    ending = os.path.splitext(re.sub(r"\.(gz|bz2|xz|zst)$", "", first.name.lower()))[1]
    if ending in _TEXTS:
        return made(_TEXTS[ending][0], _TEXTS[ending][1], target)
    if re.match(r"(?i)ETL\d", first.name):
        folder = os.path.dirname(name)
        return Found(
            "a file of the ETL Character Database", problem=f"Give its folder: penstock inspect {folder or '.'}"
        )
    kind, remedy = next((kind, remedy) for pattern, kind, remedy in _REMEDIES if re.match(pattern, head))
    return Found(f"unknown: {kind}", problem=f"{name} begins with {head[:16]!r}, {kind}. {remedy}{_KNOWN}")


def _tfrecord(file: File, target: str) -> Found | None:
    """Opens TFRecord. Returns None for another file."""
    is_named = "tfrecord" in file.name.lower()
    if not (is_named or file.is_local):
        return None
    try:
        from penstock.formats import tfrecord

        if tfrecord.first_record(file, "gzip" if is_named and file.name.endswith(".gz") else None) is None:
            return None
    except ImportError:  # google-crc32c is not installed. The constructor says so.
        if not is_named:
            return None
    except penstock.SourceError:
        return None
    return _records("TFRecord", "from_tfrecord", target)


def _records(kind: str, constructor: str, target: str) -> Found:
    """Opens files of records, which may be Examples."""
    found = made(f"{kind}, of Examples", constructor, target, features="auto")
    with suppress(penstock.PenstockError):
        if found.dataset is None or found.dataset.element_spec:
            return found
    return made(f"{kind}, of records that are no Examples", constructor, target)


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
    here = {each.name for each in every if each.parent == path}
    if {"zarr.json", ".zarray", ".zgroup"} & here:
        return _stores.of_zarr(str(path))
    if (path / "meta" / "info.json").exists():
        return made("a folder of LeRobot", "from_lerobot", str(path))
    is_kept = (each for each in every if each.name == "cache.json" and path in (each.parent, each.parent.parent))
    if kept := next((each.parent.parent for each in is_kept), None):
        code = f"ds = ds.cache({quoted(str(kept))})  # the same ds, or ds.materialize(...)"
        return Found("a cache of penstock, of elements that were kept", code)
    if any(each.parent == path / "_versions" and each.suffix == ".manifest" for each in every):
        return made("a Lance dataset", "from_lance", str(path))
    if _MDS_INDEX in here and b'"shards"' in find("inspect", str(path / _MDS_INDEX))[0].head(_HEAD_NBYTES):
        return made("a folder of MosaicML Streaming (MDS)", "from_mds", str(path))
    if any(re.match(r"(?i)ETL\d", each.name) for each in every):
        return made("the ETL Character Database", "from_etlcdb", str(path))
    images = [each for each in every if each.suffix.lower() in _IMAGE_SUFFIXES]
    if len(images) * 2 > len(every):
        return _images(path, images)
    sounds = [each for each in every if each.suffix.lower() in _SOUND_SUFFIXES]
    if len(sounds) * 2 > len(every):
        return _sounds(path, sounds)
    if any(each.suffix == ".idx" and each.with_suffix(".bin") in every for each in every if each.parent == path):
        return made("a folder of corpora of Megatron", "from_megatron", str(path / "*.bin"))
    shown = sorted(name for name in here if not name.startswith("."))
    suffix = mode(os.path.splitext(name)[1] for name in shown) if shown else ""
    alike = [name for name in shown if os.path.splitext(name)[1] == suffix]
    if suffix == ".npy" and len(alike) > 1:
        tree = {name.removesuffix(".npy"): str(path / name) for name in alike}
        return made(f"{len(alike):,} NumPy arrays with as many rows", "from_npy", tree)
    if len(alike) * 2 > len(shown):
        found = _files(str(path / (f"*{suffix}" if len(alike) > 1 else alike[0])))
        if found.code and not found.facts:  # of one kind; if it cannot be opened, the problem says why
            return found
    kinds = Counter(each.suffix.lower() or "without an ending" for each in every)
    return Found(
        "a folder",
        problem=f"{path} as a whole is no dataset of a known kind. Give one of its files or folders. {_KNOWN}",
        facts={"files": [", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(6)) or "none"]},
    )


def _sounds(path: Path, sounds: list[Path]) -> Found:
    """Opens a folder of sound files, or of such folders, which are classes."""
    suffix = mode(each.suffix for each in sounds)
    if all(each.parent.parent == path for each in sounds):
        found = made(
            "a folder of sound in a folder a class", "from_files", str(path / f"*/*{suffix}"), labels="inferred"
        )
    else:
        found = made("a folder of sound", "from_files", str(path / f"**/*{suffix}"))
    found.facts["files"] = [f"{len(sounds):,}, for penstock.audio"]
    return found


def _images(path: Path, images: list[Path]) -> Found:
    """Opens a folder of images as Keras does. Its folders are the classes, unless it holds images itself."""
    counts = Counter(each.relative_to(path).parts[0] for each in sorted(images))
    options: dict[str, Any] = {} if not any(each.parent == path for each in images) else {"labels": None}
    suffixes = {each.suffix.lower() for each in images}
    if suffixes - _KERAS_SUFFIXES:
        options["extensions"] = tuple(sorted(suffixes))
    unseen = {"batch_size": None, "shuffle": False, "verbose": False}
    what = "a folder of images" + ("" if options.get("labels", 0) is None else " in a folder a class")
    found = made(what, "image_dataset_from_directory", str(path), unseen, image_size=IMAGE_SIZE, **options)
    found.facts["images"] = [f"{len(images):,}"]
    if "labels" not in options:
        shown = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:10])
        found.facts[f"{len(counts):,} class{'es' if len(counts) > 1 else ''}"] = [shown]
    with suppress(penstock.PenstockError, ImportError):  # the elements themselves report it
        sizes = {f"{each.shape[0]} x {each.shape[1]}" for each in penstock.from_image_files([*map(str, images[:5])])}
        found.facts["sizes"] = [f"{', '.join(sorted(sizes))}, resized as image_size= says"]
    return found
