"""A pytest plugin that loads another build of the engine, such as one with sanitizers, from `PENSTOCK_ENGINE`."""

import importlib.util
import os
import sys

_NAME = "penstock.native._engine"
_spec = importlib.util.spec_from_file_location(_NAME, os.environ["PENSTOCK_ENGINE"])
assert _spec is not None
assert _spec.loader is not None
sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[_NAME])
