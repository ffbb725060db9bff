"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add

_TABLES = ("from_arrow", "from_csv", "from_jsonl", "from_parquet", "from_text")


def register(add: Add) -> None:
    """Tables and text, Hugging Face and Lance."""
    add(
        "penstock.sources",
        {
            **{name: f"penstock.tables._constructors:{name}" for name in _TABLES},
            "from_hub": "penstock.tables.hub:from_hub",
            "from_lance": "penstock.tables.lance:from_lance",
        },
    )
    add("penstock.objects", {"datasets": "penstock.tables._constructors:source_of"})
    add(
        "penstock.files",
        {
            ".parquet": "from_parquet",
            ".arrow": "from_arrow",
            ".feather": "from_arrow",
            ".jsonl": "from_jsonl",
            ".ndjson": "from_jsonl",
            ".csv": "from_csv",
            ".txt": "from_text",
            "/_versions/*.manifest": "from_lance",
        },
    )
    add("penstock.words", {"tables": "penstock.tables:words.toml"})
