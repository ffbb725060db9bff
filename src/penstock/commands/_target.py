"""The dataset that a command line names: by a path, or as `module:name` or `file.py:name`."""

import argparse
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import penstock
from penstock import Dataset
from penstock.base._printable import printable
from penstock.commands._paths import recognise
from penstock.files._remote import is_remote


def add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    run: Callable[[argparse.Namespace], int],
    summary: str,
    description: str,
) -> argparse.ArgumentParser:
    """Adds a command that takes a target. Its name is that of the module of `run`."""
    formatter = argparse.RawDescriptionHelpFormatter
    name = run.__module__.rpartition(".")[2]
    parser = commands.add_parser(name, help=summary, description=description, formatter_class=formatter)
    parser.add_argument(
        "target",
        metavar="PATH_OR_MODULE:NAME",
        help="a file, folder, pattern in quotes, or URL; or a dataset, or a function",
    )
    parser.set_defaults(run=run)
    return parser


def count(text: str) -> int:
    """Parses a number of things, from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 1 on")
    return int(text)


def say(text: str) -> None:
    """Prints what a command has found, without secrets and control characters."""
    print(printable(text, has_lines=True))


def workers(text: str) -> Any:
    """Parses a number of workers, or "auto"."""
    return text if text == "auto" else count(text)


def dataset_of(target: str) -> tuple[Dataset, str]:
    """Returns the dataset that a target names, and how it was made, as Python.

    The prints of the user's module go to stderr, so that programs can read the command's own output.

    Raises:
        ArgumentError: There is no such path or module, the module has no such name, or its code raised.
        ArgumentTypeError: The name is no dataset, and no function that returns one.
        SourceError: The file or folder is no dataset.
    """
    module, colon, name = target.rpartition(":")
    is_name = colon and not is_remote(target) and all(part.isidentifier() for part in name.split("."))
    if os.path.exists(target) or not is_name:
        return _of_path(target)
    with redirect_stdout(sys.stderr):
        return _of_name(_module(module), module, name), target


def _of_path(path: str) -> tuple[Dataset, str]:
    if path.endswith(".py"):
        raise penstock.ArgumentError(
            f"{path} is a program. Name the dataset in it, or the function that returns it: {path}:name."
        )
    found = recognise(path)
    if found.dataset is None:
        raise penstock.SourceError(f"{path} is {found.what}. {found.problem or 'It is no dataset.'}")
    return found.dataset, found.code


def _module(name: str) -> ModuleType:
    """Imports a module as a program in this folder would, or runs a file as if it were imported."""
    path = Path(name)
    with _user_code(f"Importing {name}"):
        if path.suffix != ".py":
            sys.path.insert(0, os.getcwd())
            return importlib.import_module(name)
        sys.path.insert(0, str(path.resolve().parent))  # finds the modules beside it, as when it is run
        spec: Any = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # pickle looks there for its functions and classes
        spec.loader.exec_module(module)
        return module


def _of_name(module: ModuleType, module_name: str, name: str) -> Dataset:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            own = [each for each, found in vars(module).items() if isinstance(found, Dataset) or callable(found)]
            raise penstock.ArgumentError(
                f"{module_name} has no {name}. It has {', '.join(own) or 'no datasets and functions'}."
            )
        value = getattr(value, part)
    if callable(value) and not isinstance(value, Dataset):
        name = f"{name}()"
        with _user_code(name):
            value = value()
    if not isinstance(value, Dataset):
        raise penstock.ArgumentTypeError(
            f"{module_name}:{name} is of type {type(value).__name__}. Name a penstock.Dataset, or a function without "
            "arguments that returns one."
        )
    return value


@contextmanager
def _user_code(what: str) -> Iterator[None]:
    """Turns any exception of the user's code into an error with its place."""
    try:
        yield
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        # A file that does not compile was not run, so no traceback names its line.
        file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
        message = f": {error}" if str(error) else ""
        raise penstock.ArgumentError(
            f"{what} raised {type(error).__name__}{message}, at {file}:{line}. Try it by itself, in Python."
        ) from error
