"""The formats of files of tables, told apart by their first bytes."""

from typing import Final, Literal

from penstock.base._errors import SourceError
from penstock.sources._openfile import File

Kind = Literal["parquet", "arrow"]

_MAGIC: Final = {b"PAR1": "parquet", b"ARRO": "arrow"}


def require_kind(verb: str, kind: Kind, file: File) -> None:
    """Refuses a file of another format, by its first bytes, and names the right function.

    Raises:
        SourceError: The format is another.
    """
    head = file.head(4)
    found = _MAGIC.get(head)
    if found == kind:
        return
    cure = "Is it complete?"
    if head == b"PARE":
        raise SourceError(
            f"{verb}(): {file.url} is encrypted, its footer too, and penstock has no keys. Write it without encryption."
        )
    if found:
        cure = f"It is for from_{found}()."
    elif head == b"\xff\xff\xff\xff":
        cure = "It is a stream of Arrow, which has no random access; write it with pyarrow.ipc.new_file()."
    elif head == b"FEA1":
        cure = "It is Feather of version 1; write it again with pyarrow.feather.write_feather()."
    raise SourceError(f"{verb}(): {file.url} starts with {head!r} and is no {kind.capitalize()} file. {cure}")
