"""JSON Lines and CSV as tables: text is converted once, and is the rows of an Arrow file then (design/0034)."""

import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final

import pyarrow as pa

from penstock.base._errors import ArgumentError, SourceError
from penstock.base._travel import leaves_machine
from penstock.base._tree import Tree
from penstock.base._units import size_text
from penstock.files._openfile import File, FilesSource, bounds_of, placed
from penstock.files._recordindex import Compressed, compressed, keep_content, kept_content
from penstock.plan._parted import PartSizes
from penstock.sources.parted import PartedArray
from penstock.tables._folders import depth_of, folders_of
from penstock.tables._leaves import Dtypes, Nulls, log_once, names_in, tree_of
from penstock.tables._textarrow import NOTE, Format, Text
from penstock.tables.lines import encoding_of
from penstock.tables.parquet import TableSource

HEAD_NBYTES: Final = 1 << 20
"""Files of this size in all are converted when the dataset is made, so that errors come early."""
_VERSION: Final = 1

_log = logging.getLogger("penstock")


@final
@dataclass(frozen=True)
class RowSource(FilesSource):
    """The rows of files of text, one file after the other."""

    text: Text
    cache_dir: str | None
    selection: tuple[str, ...] | None = None
    """The keys of the elements; None for all."""

    reads_ahead = False
    is_remote = False

    @property
    def files(self) -> tuple[File, ...]:  # type: ignore[override]
        return self.text.files

    @cached_property
    def kept(self) -> File:
        """The Arrow file, kept from before or made now.

        Raises:
            SourceError: The text cannot be converted, or the file cannot be written.
        """
        text = self.text
        facts = text.format, text.columns, text.dtypes, text.nulls, text.compression
        kind = f"text {_VERSION} {facts}"
        if (found := kept_content(text.files, kind, self.cache_dir, "columns")) is not None:
            return found
        try:
            made = keep_content(text.files, kind, self.cache_dir, text.arrow_file, "columns")
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(
                f"{text.format.verb}(): {text.where} is converted to an Arrow file, which cannot be written ({error}). "
                "Give a cache_dir with room for it. Without one, read lines: from_text(paths).map(json.loads)."
            ) from error
        _log.info("The columns of %s are kept in %s, %s.", text.where, made.url, size_text(made.nbytes))
        return made

    @cached_property
    def note(self) -> dict[str, Any]:
        """What the Arrow file says of the text; see `NOTE`."""
        with pa.memory_map(self.kept.url) as file:
            reader = pa.ipc.open_file(file)
            _, metadata = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
            note: dict[str, Any] = json.loads(metadata[NOTE])
        if note["remark"]:
            log_once(note["remark"], self.files)
        return note

    @cached_property
    def table(self) -> TableSource:
        """The rows of the Arrow file."""
        verb, paths = self.text.format.verb, self.note["paths"]
        wanted: dict[str, list[str]] = {key: [] for key in self.selection or ()}
        for name, path in paths.items():
            if path[0] in wanted:
                wanted[path[0]].append(name)
        columns = None if self.selection is None else tuple(itertools.chain.from_iterable(wanted.values()))
        depth = self.kept.url.count("/")  # no folder is a column
        made = TableSource("arrow", (self.kept,), columns, Nulls.of(verb, None, ()), Dtypes.of(verb, None), depth)
        made.__dict__["origin"] = self
        return made

    @cached_property
    def element_spec(self) -> Tree:
        paths = self.note["paths"]
        return tree_of([replace(leaf, path=tuple(paths[leaf.name])) for leaf in self.table.leaves])

    @cached_property
    def bounds(self) -> Any:
        return bounds_of(self.note["rows"])

    def describe(self, index: int) -> str:
        number, row = placed(self.bounds, index)
        return f"{self.files[number]} row {row}"

    @property
    def local_files(self) -> Sequence[str]:
        return self.table.local_files

    @property
    def remark(self) -> str:
        """What `print(ds)` says of the Arrow file."""
        return f"columns kept in {size_text(self.kept.nbytes)}"

    def selected(self, names: Sequence[str]) -> "RowSource":
        return replace(self, selection=tuple(names))

    @property
    def kept_nbytes(self) -> int:
        return self.table.kept_nbytes

    @property
    def parts(self) -> PartSizes | None:
        return self.table.parts

    def arrays(self) -> Sequence[PartedArray] | None:
        return self.table.arrays() and [
            PartedArray(self, number, leaf.spec) for number, leaf in enumerate(self.table.leaves)
        ]

    def open(self) -> Any:
        return self.table.open()

    def __getstate__(self) -> dict[str, Any]:
        # Another machine finds the Arrow file where it looks for it, or makes it.
        local = ("kept", "table") if leaves_machine() else ()
        return {name: value for name, value in super().__getstate__().items() if name not in local}


def source(
    form: Format,
    files: tuple[File, ...],
    asked: Sequence[str],
    columns: Any,
    dtypes: Any,
    fill_null: Any,
    null_masks: Any,
    compression: Compressed,
    cache_dir: str | None,
) -> RowSource:
    """Makes a source from the arguments of `penstock.from_jsonl`, `asked` being its paths."""
    verb = form.verb
    for name, value in (("delimiter", form.delimiter), ("quote", form.quote)):
        if not isinstance(value, str) or len(value.encode()) > 1:
            raise ArgumentError(f"{verb}({name}={value!r}): it is one character of ASCII.")
    text = Text(
        files,
        replace(form, encoding=encoding_of(verb, form.encoding)),
        None if columns is None else names_in(verb, "columns", columns),
        Dtypes.of(verb, dtypes),
        Nulls.of(verb, fill_null, null_masks),
        compressed(verb, compression),
    )
    if folder := next((each for folders in folders_of(files, depth_of(asked)) for each in folders), None):
        log_once(
            f"{verb}(): files lie in folders such as {folder}=..., and elements have no column {folder!r}, as those of "
            "from_parquet() have. Make a dataset of each folder, add the value in map(), and concatenate() them.",
            files,
        )
    made = RowSource(text, cache_dir)
    if sum(file.nbytes for file in files) <= HEAD_NBYTES:
        assert made.element_spec
    return made
