"""Both implementations side by side, whichever of them the package uses."""

import importlib
import os
import sys
from contextlib import contextmanager
from types import ModuleType

from penstock import native


def _load_numpy() -> ModuleType:
    """The package a second time, with NumPy's engine."""
    name = "penstock.native"
    before, environment = sys.modules.pop(name), os.environ.get("PENSTOCK_NATIVE")
    os.environ["PENSTOCK_NATIVE"] = "0"
    try:
        return importlib.import_module(name)
    finally:
        sys.modules[name] = sys.modules["penstock"].native = before
        if environment is None:
            del os.environ["PENSTOCK_NATIVE"]
        else:
            os.environ["PENSTOCK_NATIVE"] = environment


MODULES = {"numpy": _load_numpy()}
if native.implementation() == "native":
    MODULES["native"] = native
ENGINES = {name: module.Engine for name, module in MODULES.items()}
Engine = native.Engine


@contextmanager
def open_engine(implementation, thread_count):
    engine = ENGINES[implementation](thread_count)
    try:
        yield engine
    finally:
        engine.close()
