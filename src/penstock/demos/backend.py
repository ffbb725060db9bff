"""The framework that a demo trains on: which one, and its import without its notes."""

import importlib
import importlib.util
import os
import sys
import tempfile

from penstock.demos.errors import DemoError

BACKENDS = ("tensorflow", "torch", "jax")


def choose_backend() -> str:
    """Sets and returns `KERAS_BACKEND`: the user's own, or else the first of `BACKENDS` that is installed.

    To be called before Keras is imported. Imports nothing itself.

    Raises:
        DemoError: Keras, or every backend, is missing.
    """
    if importlib.util.find_spec("keras") is None:
        raise DemoError('The demo trains with Keras, which is not installed: pip install "penstock[demo,tensorflow]"')
    asked = os.environ.get("KERAS_BACKEND")
    installed = [name for name in ([asked] if asked else BACKENDS) if importlib.util.find_spec(name)]
    if not installed:
        raise DemoError(
            f"KERAS_BACKEND={asked} is asked for, but {asked} is not installed: pip install {asked}"
            if asked
            else f"Keras needs one of {', '.join(BACKENDS)}, and none is installed: "
            'pip install "penstock[demo,tensorflow]", or where there is no GPU, pip install tensorflow-cpu'
        )
    os.environ["KERAS_BACKEND"] = installed[0]
    return installed[0]


def load_backend(name: str) -> None:
    """Imports the backend and Keras, and says so; that takes seconds.

    TensorFlow (2.21) writes notes about its own build straight to descriptor 2 while it is imported, whatever its log
    level. They are shown only if the import fails.
    """
    # Python finds out where temporary files go by writing one, when a library first asks. Ctrl-C in between would
    # leave it there.
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
