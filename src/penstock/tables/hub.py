"""Datasets on the Hugging Face Hub.

Which files a split has is the business of the library `datasets`. They are read by the constructors of this package.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from penstock.base._arguments import explained, needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._extensions import SOURCES, needed
from penstock.dataset import Dataset
from penstock.files._diskcache import DiskCache
from penstock.files._hub import LOGIN, at_commit
from penstock.files._remote import is_pinned
from penstock.files._store import StorageOptions

_READ: Final[Mapping[str, str]] = {
    "parquet": "from_parquet",
    "arrow": "from_arrow",
    "csv": "from_csv",
    "json": "from_jsonl",
    "text": "from_text",
    "webdataset": "from_tar",
}
"""The constructor for each format, by the name that `datasets` gives it."""
_PASSED: Final = {
    "parquet": {"columns": "columns"},
    "csv": {"delimiter": "sep", "names": "names"},
}
"""The arguments of constructors that a repository's README sets, each by its word for it."""
_NO_CONTENT: Final = {"features", "batch_size", "chunksize", "delimiter", "column_names"}
"""What it may set without another effect on elements. The last two are other words for two that are passed on."""

_PATTERN: Final = re.compile(r"[*?\[\]{}]")
_log = logging.getLogger("penstock")


def from_hub(
    name: str,
    *,
    split: str = "train",
    config: str | None = None,
    revision: str | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
    **options: Any,
) -> Dataset:
    """Makes a dataset of a split of a dataset on the Hugging Face Hub. Its files are read where they are.

    The library `datasets` finds the files of the split, as `load_dataset` does: by the README of the repository, or by
    the names of files. It downloads no data. By the format of the files, the elements are those of `from_parquet`,
    `from_arrow`, `from_csv`, `from_jsonl`, `from_text` or `from_tar` (WebDataset). Features that the repository
    declares are not applied: an image in Parquet is a dict of `"bytes"` and `"path"`. Decode it in `map`. Of other
    options in its README, `columns` of Parquet, and `sep` and `names` of CSV are; the rest are refused.

    The call looks up the commit that the revision has now, and reads that commit alone, in all processes. The commit is
    part of the fingerprint. When the branch has moved, the same call makes another dataset, and refuses a state of the
    former one. The log names the commit (level INFO). For runs that are resumed, give it: `revision="c0ffee..."`.

    The Hub limits the requests of a user. For many epochs or a global shuffle, keep what is read with `cache=`, or
    download the repository once with `huggingface_hub.snapshot_download`.

    Random access, order and memory: those of the constructor. Files are in the order of `datasets`.

    Args:
        name: Owner and name: `"owner/name"`.
        split: The split.
        config: The configuration, also called subset. None for the default one.
        revision: A branch, tag or commit; None for `main`. `"refs/convert/parquet"` is the copy in Parquet that the Hub
            makes of many datasets.
        storage_options: `{"token": ...}` for a private repository. Without it, the token of `hf auth login` or
            `HF_TOKEN`.
        cache: Keeps what is read on a local disk; see `DiskCache`.
        options: Arguments of the constructor, such as `columns` and `fill_null` of `from_parquet`.

    Raises:
        ModuleNotFoundError: `datasets` is missing (extra `huggingface`).
        ArgumentError: There is no such split or configuration; the message has those that exist.
        SourceError: There is no such repository or revision, it is private and the token is missing, or the Hub cannot
            be reached. Or the files have another format, names that read as patterns, or options that are refused; the
            message has the format or the option, and the addresses.

    Example: `penstock.from_hub("stanfordnlp/imdb", split="test", columns=["text", "label"])`.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"from_hub() needs the owner and name of a repository, got {type_of(name)}.")
    if not re.fullmatch(r"[\w.\-]+/[\w.\-]+", name):
        raise ArgumentError(f"from_hub() needs owner and name, such as 'stanfordnlp/imdb', got {name!r:.80}.")
    with needs("from_hub", "datasets", "fsspec"):
        from datasets import BuilderConfig, load_dataset_builder
    access = StorageOptions.of("from_hub", storage_options)
    token = access.values.get("token") if access else None
    try:
        builder = load_dataset_builder(name, config, revision=revision, token=token)
    except ValueError as error:
        raise ArgumentError(f"from_hub({name!r}, config={config!r}): {error}") from error
    except (OSError, RuntimeError) as error:
        what = str(error).rstrip(".") or type(error).__name__
        raise SourceError(
            f"{name} on the Hub cannot be opened: {what}.{LOGIN} If it is made by code, read the Hub's copy of it: "
            "revision='refs/convert/parquet'."
        ) from error
    splits = {str(each): list(files) for each, files in (builder.config.data_files or {}).items()}
    if split not in splits:
        raise ArgumentError(f"{name} has no split {split!r:.80}. It has {', '.join(map(repr, splits)) or 'none'}.")
    files, kind = splits[split], builder.name
    if not all(map(is_pinned, files)):
        raise SourceError(f"{name} is also a folder or a copy on this machine, {files[0]}. Read that by its own path.")
    if kind not in _READ:
        raise SourceError(
            f"{name} has files of the format {kind}, which from_hub() does not read. They are {files[0]} and "
            f"{len(files) - 1} more. The Hub may have a copy in Parquet: revision='refs/convert/parquet'."
        )
    if patterns := [each for each in files if _PATTERN.search(each)]:
        raise SourceError(f"The name of {patterns[0]} reads as a pattern. Download it, and read it by another name.")
    passed = _PASSED.get(kind, {})
    without = {*_NO_CONTENT, *passed.values(), *(each.name for each in fields(BuilderConfig))}
    said, usual = vars(builder.config), vars(type(builder.config)())
    if changed := [word for word in said if word not in without and said[word] != usual.get(word)]:
        raise SourceError(
            f"The README of {name} says {changed[0]}={said[changed[0]]!r:.80} about its files, which from_hub() does "
            f"not follow. Read them by {_READ[kind]}(): {files[0]} and {len(files) - 1} more."
        )
    _log.info("from_hub(%r, split=%r) reads %s and %d more.", name, split, files[0], len(files) - 1)
    options = {argument: said[word] for argument, word in passed.items()} | options
    make: Any = explained(needed(SOURCES, _READ[kind]))
    return at_commit(make(files, storage_options=storage_options, cache=cache, **options), files[0])
