"""How objects of other libraries travel, whose own ways do not suit workers. Nothing is imported for it."""

import importlib
import operator
import os
import sys
from collections.abc import Iterator
from typing import Any


def reduced_foreign(obj: Any) -> Any:
    """What pickle needs of an object of h5py or fsspec; NotImplemented for all others.

    Raises:
        TypeError: It belongs to this process.
    """
    if _is_of(obj, "fsspec.implementations.memory", "MemoryFileSystem"):
        raise TypeError("what memory:// holds is in the memory of this process alone")
    return _reduced_hdf5(obj) if _is_of(obj, "h5py", "HLObject") else NotImplemented


def seeded_layers(obj: Any) -> Iterator[str]:
    """The types of Keras's layers that draw from a seed of their own, which goes along: RandomCrop always has one."""
    if _is_of(obj, "keras", "Layer"):
        yield from _seeded(obj)


def _is_of(obj: Any, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(obj, getattr(sys.modules[module], name, ()))


def _seeded(layer: Any) -> Iterator[str]:
    if getattr(layer, "seed", None) is not None:
        yield type(layer).__name__
    for each in getattr(layer, "layers", ()):
        yield from _seeded(each)


def _reduced_hdf5(obj: Any) -> Any:
    """A file, group or dataset of h5py, by names: a worker opens the file for itself."""
    if not obj or obj.file.mode != "r" or not os.path.exists(obj.file.filename):
        raise TypeError('its HDF5 file is closed, open for writing, or not on disk; open one with mode "r"')
    if isinstance(obj, sys.modules["h5py"].File):
        return _opened, (os.path.abspath(obj.filename), "hdf5plugin" in sys.modules)
    return operator.getitem, (obj.file, obj.name)


def _opened(path: str, has_filters: bool) -> Any:
    """Opens a file, with the filters that the process had which sent it."""
    if has_filters:
        importlib.import_module("hdf5plugin")
    return importlib.import_module("h5py").File(path, "r")
