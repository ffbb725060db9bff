"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add

_RECORDS = ("from_etlcdb", "from_tar", "from_tfrecord", "write_tfrecord")
_OWN_FILES = ("arrayrecord", "files", "mds", "megatron")
"""Formats whose function stands beside their source."""


def register(add: Add) -> None:
    """Records, shards and files as they are."""
    add(
        "penstock.sources",
        {
            **{name: f"penstock.records._constructors:{name}" for name in _RECORDS},
            **{f"from_{name}": f"penstock.records.{name}:from_{name}" for name in _OWN_FILES},
            "repack": "penstock.records._repack:repack",
        },
    )
    add(
        "penstock.files",
        {
            ".tar": "from_tar",
            ".tfrecord": "from_tfrecord",
            ".tfrecords": "from_tfrecord",
            ".array_record": "from_arrayrecord",
            ".arrayrecord": "from_arrayrecord",
            ".bin": "from_megatron",
            ".idx": "from_megatron",
            "/index.json": "from_mds",
            "/ETL*": "from_etlcdb",
            **dict.fromkeys((".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff"), "from_files"),
        },
    )
    add("penstock.words", {"records": "penstock.records:words.toml"})
