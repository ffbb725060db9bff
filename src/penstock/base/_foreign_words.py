"""Words of other libraries, with what stands in for them here; for error messages.

They are in `words.toml`, and in a file of that form of each pack that has some (`base/_extensions.py`).
"""

import functools
from importlib.util import find_spec
from pathlib import Path

from penstock.base._extensions import WORDS, values


@functools.cache
def words(*tables: str) -> dict[str, str]:
    """Returns what some tables of the files say of each word."""
    import tomllib  # only here, for an error

    found: dict[str, str] = {}
    for file in (Path(__file__).with_name("words.toml"), *map(_path, values(WORDS).values())):
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        found |= {
            word: said for table in tables for key, said in content.get(table, {}).items() for word in key.split()
        }
    return found


def _path(value: str) -> Path:
    """The file of `package:name`, whose package need not be imported for it."""
    package, _, name = value.partition(":")
    spec = find_spec(package)
    places = None if spec is None else spec.submodule_search_locations
    return Path(*(places or [])[:1], name)
