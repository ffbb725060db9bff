"""The framework of the demo: its choice, and its import without its notes."""

import importlib
import importlib.util
import os
import sys
import tempfile

from penstock.demos.errors import DemoError

BACKENDS = ("tensorflow", "torch", "jax")
INSTALL = 'pip install "penstock[demo,tensorflow]"'


def choose_backend() -> str:
    """Sets and returns `KERAS_BACKEND`: the user's choice, or else the first of `BACKENDS` that is installed.

    Call it before Keras is imported. It imports nothing itself.

    Raises:
        DemoError: Keras, or every backend, is missing.
    """
    if importlib.util.find_spec("keras") is None:
        raise DemoError(f"The demo trains with Keras, which is not installed: {INSTALL}")
    asked = os.environ.get("KERAS_BACKEND")
    installed = [name for name in ([asked] if asked else BACKENDS) if importlib.util.find_spec(name)]
    if not installed and asked:
        raise DemoError(f"KERAS_BACKEND={asked} is asked for, but {asked} is not installed: pip install {asked}")
    if not installed:
        raise DemoError(
            f"Keras needs one of {', '.join(BACKENDS)}, and none is installed: {INSTALL}. Without a GPU, "
            "tensorflow-cpu is smaller: pip install tensorflow-cpu"
        )
    os.environ["KERAS_BACKEND"] = installed[0]
    return installed[0]


def load_backend(name: str) -> None:
    """Imports the backend and Keras, which takes seconds.

    TensorFlow (2.21) writes notes about its own build straight to descriptor 2 while it is imported, at any log level.
    They are printed only if the import fails.
    """
    # The first call finds the folder of temporary files by writing one. Ctrl-C in the middle of a library's first call
    # would leave it there.
    tempfile.gettempdir()
    print(f"Loading Keras on {name} ...", flush=True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            importlib.import_module(name)
            importlib.import_module("keras")
        except Exception:
            notes.seek(0)
            os.write(stderr, notes.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
