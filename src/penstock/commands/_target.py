"""The dataset that a command line names: by a path, or as `module:name` or `file.py:name`."""

import argparse
import ast
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType

import penstock
from penstock import Dataset
from penstock.commands import _folders


def add_target(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that `dataset_of` takes."""
    parser.add_argument("target", metavar="PATH_OR_MODULE:NAME", help="a file or folder; or a dataset, or a function")


def count(text: str) -> int:
    """A number of things on a command line, from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 1 on")
    return int(text)


def dataset_of(target: str) -> tuple[Dataset, str]:
    """Returns the dataset that a target names, and how it was made, as Python.

    What the user's module prints goes to stderr, so that the command's own output can be read by programs.

    Raises:
        ArgumentError: There is no such path or module; the module has no such name, or raised.
        ArgumentTypeError: What has the name is no dataset, and no function that returns one.
        SourceError: What is at the path cannot be opened as a dataset.
    """
    module, colon, name = target.rpartition(":")
    if os.path.exists(target) or not colon or not all(part.isidentifier() for part in name.split(".")):
        return _of_path(Path(target))
    with redirect_stdout(sys.stderr):
        return _of_name(_module(module), module, name), f"{module}:{name}"


def _of_path(path: Path) -> tuple[Dataset, str]:
    if not path.exists():
        raise penstock.ArgumentError(
            f"There is no file or folder {path}, seen from {os.getcwd()}. For a dataset of yours give module:name or "
            "file.py:name."
        )
    if path.suffix == ".py":
        there = ", ".join(_names_in(path)) or "none"
        raise penstock.ArgumentError(
            f"{path} is a program. Name the dataset in it, or what returns it: {path}:name. Names that it defines are: "
            f"{there}."
        )
    found, _ = _folders.recognise(path)
    if found.open is None:
        raise penstock.SourceError(
            f"{path} is {found.what}, and no dataset as it is. What to do is said by: penstock inspect {path}"
        )
    try:
        return found.open(), found.code
    except ImportError as error:
        raise penstock.SourceError(str(error)) from None


def _module(name: str) -> ModuleType:
    """Imports a module as a program in this folder would, or runs a file as if it were imported."""
    path = Path(name)
    if path.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        try:
            known = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):  # a package on the way to it is missing, or is none
            known = False
        if not known:
            raise penstock.ArgumentError(
                f"There is no module {name}, seen from {os.getcwd()}. Give its dotted name, or a file: "
                f"{name.replace('.', '/')}.py:name."
            )
        with _told(f"Importing {name}"):
            return importlib.import_module(name)
    if not path.is_file():
        raise penstock.ArgumentError(f"There is no file {path}, seen from {os.getcwd()}.")
    # Modules beside it are found, as when it is run.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if path.stem not in sys.modules:  # where its functions and classes are looked for by whoever pickles them
        sys.modules[path.stem] = module
    with _told(f"Running {path}"):
        spec.loader.exec_module(module)
    return module


def _of_name(module: ModuleType, module_name: str, name: str) -> Dataset:
    value: object = module
    for part in name.split("."):
        if not hasattr(value, part):
            there = ", ".join(_candidates(module)) or "none"
            raise penstock.ArgumentError(
                f"{module_name} has no {name}. Datasets and functions of its own are: {there}."
            )
        value = getattr(value, part)
    if isinstance(value, Dataset):
        return value
    if not callable(value):
        raise penstock.ArgumentTypeError(
            f"{module_name}:{name} is of type {type(value).__name__}. Name a penstock.Dataset, or a function without "
            "arguments that returns one."
        )
    if needed := _needed(value):
        raise penstock.ArgumentTypeError(
            f"{module_name}:{name} needs {', '.join(needed)}. Name a function without arguments that returns a "
            "penstock.Dataset."
        )
    with _told(f"{name}()"):
        made = value()
    if isinstance(made, Dataset):
        return made
    loader = " Return the dataset, and not its loader." if isinstance(made, penstock.Loader) else ""
    raise penstock.ArgumentTypeError(
        f"{module_name}:{name}() returned what is of type {type(made).__name__}, and no penstock.Dataset.{loader}"
    )


def _candidates(module: ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        own_function = callable(value) and getattr(value, "__module__", None) == module.__name__
        if not name.startswith("_") and (isinstance(value, Dataset) or own_function):
            yield name


def _names_in(path: Path) -> Iterator[str]:
    """Names that a program defines, without running it: it might begin to train."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for each in statements:
        targets = each.targets if isinstance(each, ast.Assign) else [each]
        for name in (getattr(target, "id", getattr(target, "name", "_")) for target in targets):
            if not name.startswith("_") and isinstance(each, (ast.Assign, ast.FunctionDef, ast.ClassDef)):
                yield name


def _needed(function: Callable[..., object]) -> list[str]:
    """The arguments that a function has to be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin, which does not say
        return []
    optional = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Makes an error of ours of whatever the user's code raises, with the place where."""
    try:
        yield
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        # A line that cannot be compiled was not run, and so is in no traceback.
        file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
        message = f": {error}" if str(error) else ""
        raise penstock.ArgumentError(
            f"{what} raised {type(error).__name__}{message}, at {file}:{line}. Try it by itself, in Python."
        ) from error
