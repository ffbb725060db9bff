"""Words of other libraries, with what stands in for them here; for error messages. They are in `foreign_words.toml`."""

import functools
from pathlib import Path


@functools.cache
def words(*tables: str) -> dict[str, str]:
    """Returns what some tables of the file say of each word."""
    import tomllib  # only here, for an error

    content = tomllib.loads(Path(__file__).with_name("foreign_words.toml").read_text(encoding="utf-8"))
    return {word: said for table in tables for key, said in content[table].items() for word in key.split()}
