"""An HDF5 file as `h5ad.Store`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from penstock.plan._source import Source
from penstock.volumes import hdf5
from penstock.volumes._hdf5files import require_inside


@final
class Hdf5Store:
    """An open file. What lies in a file outside of its folder is refused."""

    def __init__(self, file: Any, path: str) -> None:
        self.path, self._file = path, file

    @classmethod
    @contextmanager
    def opened(cls, path: str) -> Iterator["Hdf5Store"]:
        """Opens a file for a look. Raises as `hdf5.opened`."""
        with hdf5.opened(path) as file:
            yield cls(file, path)

    def get(self, name: str) -> Any:
        """A group or an array; None if there is none."""
        require_inside(self._file, name, None)
        return self._file.get(name)

    def is_array(self, item: Any) -> bool:
        """Whether it is an array."""
        return hdf5.is_dataset(item)

    def source(self, name: str) -> Source:
        """The rows of an array."""
        return hdf5.selected(self._file, self.path, name)[name]


def require_own(group: Any, names: Sequence[str]) -> None:
    """Refuses parts of an open group whose values are in a file outside of the folder of its file.

    Raises:
        SourceError: They are.
    """
    for name in names:
        require_inside(group.file, f"{group.name}/{name}", None)
