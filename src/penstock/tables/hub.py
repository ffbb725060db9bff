"""Datasets on the Hugging Face Hub.

Which files a split has is the business of the library `datasets`. They are read by the constructors of this package.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._extensions import SOURCES, lookup
from penstock.dataset import Dataset
from penstock.files._diskcache import DiskCache
from penstock.files._hub import LOGIN, at_commit
from penstock.files._remote import is_pinned

_READ: Final[Mapping[str, str]] = {
    "parquet": "from_parquet",
    "arrow": "from_arrow",
    "csv": "from_csv",
    "json": "from_jsonl",
    "text": "from_text",
    "webdataset": "from_tar",
}
"""The constructor for each format, by the name that `datasets` gives it."""

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
    declares are not applied: an image in Parquet is a dict of `"bytes"` and `"path"`. Decode it in `map`.

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
            be reached. Or the files have another format; the message has the format and their addresses.

    Example: `penstock.from_hub("stanfordnlp/imdb", split="test", columns=["text", "label"])`.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"from_hub() needs the owner and name of a repository, got {type_of(name)}.")
    if not re.fullmatch(r"[\w.\-]+/[\w.\-]+", name):
        raise ArgumentError(f"from_hub() needs owner and name, such as 'stanfordnlp/imdb', got {name!r:.80}.")
    with needs("from_hub", "datasets", "fsspec"):
        from datasets import load_dataset_builder
    try:
        builder = load_dataset_builder(name, config, revision=revision, token=(storage_options or {}).get("token"))
    except ValueError as error:
        raise ArgumentError(f"from_hub({name!r}, config={config!r}): {error}") from error
    except (OSError, RuntimeError) as error:
        raise SourceError(
            f"{name} on the Hub cannot be opened: {str(error) or type(error).__name__}.{LOGIN} If it is made by code, "
            "read the Hub's copy of it: revision='refs/convert/parquet'."
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
    _log.info("from_hub(%r, split=%r) reads %s and %d more.", name, split, files[0], len(files) - 1)
    if kind == "csv":
        options = {"delimiter": builder.config.sep, "names": builder.config.names} | options
    make: Any = lookup(SOURCES, _READ[kind])
    return at_commit(make(files, storage_options=storage_options, cache=cache, **options), files[0])
