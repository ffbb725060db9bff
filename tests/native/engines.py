"""Both implementations side by side, whichever of them the package uses; NumPy's with an engine that has no threads."""

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
THREADED = {name: module.Engine for name, module in MODULES.items() if name == "native"}
Engine = native.Engine


class Inline(MODULES["numpy"].Engine):
    """Executes a job where it is submitted, and raises its error where it is waited for."""

    def __init__(self, thread_count):
        super().__init__(thread_count)
        self._errors = {}

    def submit(self, number, copies):
        try:
            MODULES["numpy"].copy(copies)
        except native.CopyError as error:
            self._errors[number] = error

    def wait(self, number, timeout_s=None):
        if number in self._errors:
            raise self._errors.pop(number)
        return True

    def advise(self, sources, rows):
        MODULES["numpy"].announce(sources, rows)

    def close(self, timeout_s=None):
        return True


ENGINES = {"numpy": Inline, **THREADED}


@contextmanager
def open_engine(implementation, thread_count):
    engine = ENGINES[implementation](thread_count)
    try:
        yield engine
    finally:
        engine.close()
