"""Better errors for wrong calls, and checks of arguments.

Covers unknown and missing arguments, several arguments in place of one tuple, data in place of an array, and relative
paths after the current folder was deleted. Names from tf.data, torch and Keras are answered with the name used here, as
in docs/coming-from.md.
"""

import contextlib
import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from numbers import Real
from typing import Any, ClassVar, Final, NoReturn, TypeVar

import numpy as np

from penstock.base._errors import ArgumentTypeError, SourceError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

_SAME: Final = {
    "batch_size": "size",
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "max_queue_size": "prefetch",
    "timeout": "timeout_s",
    "drop_last": "drop_remainder",
    "output_signature": "element_spec",
    "output_types": "element_spec",
    "reshuffle_each_iteration": "reshuffle",
    "random_state": "seed",
    "size": "length",
    "element_length_func": "length_fn",
    "bucket_boundaries": "boundaries",
    "bucket_batch_sizes": "batch_sizes",
}
"""Other libraries' words for an argument, where the function has it."""
_ELSEWHERE: Final = {
    **dict.fromkeys(
        ("num_parallel_calls", "num_proc", "concurrency"),
        "There is nothing to write: steps run on all CPUs. loader(workers=4) says how many.",
    ),
    **dict.fromkeys(("test_size", "train_size"), "Write the parts: train, test = ds.split(0.8, 0.2)."),
    **dict.fromkeys(("left_size", "right_size"), "Write the parts: left, right = ds.split(0.8, 0.2)."),
    "num_workers": "It is an option of what runs the dataset: loader(workers=4), to_torch(workers=4) and the like.",
    "batch_size": "Write batch(n) before.",
    "drop_last": "Write batch(n, drop_remainder=True).",
    "buffer_size": (
        "shuffle(seed=1) shuffles all of it, without a buffer; a stream takes shuffle(seed=1, window=1000). A loader "
        "reads ahead by itself: loader(prefetch=4)."
    ),
    "shuffle": "Write shuffle(seed=1) before batch(n).",
    "collate_fn": "Write map(fn) after batch(n), or padded_batch(n) in its place.",
    "args": "Give them after the function: from_generator(gen, 10).",
    "sampler": "Processes share batches by shard=(rank, world_size); shuffle(seed=1) is a step of the dataset.",
    "generator": "There is nothing to write: seeds are arguments of the steps, such as shuffle(seed=1).",
    "worker_init_fn": "There is nothing to write: random_map(fn) gives each element random numbers of its own.",
    "persistent_workers": "There is nothing to write: workers live as long as the loader.",
    "pin_memory": "It is an option of to_torch() alone.",
    "deterministic": "There is nothing to write: the order is always that of the dataset.",
    "pad_to_bucket_boundary": "Pad each element to the boundary in a map() before.",
    "batched": "Write map(fn) after batch(n).",
    "remove_columns": "What fn returns is the element: leave them out there.",
    "use_multiprocessing": "Write executor='processes', or nothing: it is chosen by itself.",
}
"""What to write for other libraries' words that are no argument here."""

_NAMES: Final = {
    "from_tensor_slices": "penstock.from_arrays((x, y))",
    "from_numpy": "penstock.from_arrays((x, y))",
    "TensorDataset": "penstock.from_arrays((x, y))",
    "from_list": "penstock.from_source(items)",
    "from_csv": "its columns, {'x': table['x'].to_numpy()}, go into penstock.from_arrays()",
    "from_pandas": "its columns, {'x': table['x'].to_numpy()}, go into penstock.from_arrays()",
    "text_dataset_from_directory": "penstock.from_arrays((paths, labels)), and a map() that reads each file",
    "audio_dataset_from_directory": "penstock.from_arrays((paths, labels)), and a map() that reads each file",
    "list_files": "sorted(glob.glob(pattern)), which from_arrays() and from_image_files() take",
    "make_csv_dataset": "its columns, {'x': table['x'].to_numpy()}, go into penstock.from_arrays()",
    "TextLineDataset": "penstock.from_generator(open, path), whose elements are lines",
    "TFRecordDataset": "penstock.from_tfrecord(paths)",
    "DataLoader": "ds.batch(32).loader(), or to_torch(), to_keras(), to_jax()",
    "IterableDataset": "penstock.from_generator(fn)",
    "random_split": "ds.split(0.8, 0.2, seed=1)",
    "Subset": "ds[a:b], or penstock.from_arrays(numbers).map(lambda i: ds[i])",
    "ConcatDataset": "penstock.concatenate(datasets)",
    "ChainDataset": "penstock.concatenate(datasets)",
    "StackDataset": "penstock.zip((a, b))",
    "DistributedSampler": "ds.batch(32 * world_size).loader(shard=(rank, world_size))",
    "WeightedRandomSampler": "a random_map() that draws numbers of elements, and a map() that reads them",
    "sample_from_datasets": "penstock.mix(datasets, weights)",
    "choose_from_datasets": "penstock.interleave(datasets), or penstock.mix(datasets, weights)",
}
"""What other libraries' names are called here."""

_WHAT_FOR: Final = {
    "weights": "A number above zero for each dataset: [1, 1] for two equal parts.",
}
"""What to give for an argument that others can do without."""

_PARTS: Final = {"range": "range(stop)[start::step]"}
"""What to write for a part of what takes only its end."""

_FIRST: Final = {"shuffle": f"Its first argument is the seed. {_ELSEWHERE['buffer_size']}"}
"""What to say of a first argument that is another one elsewhere."""

_SEVERAL_IN_ONE: Final = ("tree", "path_or_tree", "datasets", "paths")
"""First arguments that hold what Python's `zip` and torch's `TensorDataset` take one by one."""


class NoArray:
    """A mixin for lazy objects: they cannot become arrays, and have no shape.

    NumPy would wrap the object. Keras reads the shape of any object with an `__array__`, and rejects others without
    naming a remedy.
    """

    __slots__ = ()

    _called: ClassVar[str]
    """Its name in messages, with the article."""
    _no_array: ClassVar[str]
    """Why it is no array, and the cure."""

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuses to become an array: that would be all of the data, loaded one element at a time."""
        raise ArgumentTypeError(f"{self._called} is no array: {self._no_array}")

    @property
    def shape(self) -> NoReturn:
        """No attribute of this, and an AttributeError; Keras asks for it when it is given one as it is."""
        raise AttributeError(f"{self._called} has no shape: {self._no_array}", name="shape", obj=self)


def as_int(value: Any) -> int | None:
    """Converts an integer of any library to `int`. Returns None for a bool and for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_float(value: Any) -> float | None:
    """Converts a real number to `float`, infinite above the largest. Returns None for bools, time spans or others."""
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


@contextlib.contextmanager
def needs(verb: str, extra: str, more: str = "") -> Iterator[None]:
    """Adds the install command to a failed import inside."""
    try:
        yield
    except ModuleNotFoundError as error:  # a module that exists but fails to load says why itself
        raise ModuleNotFoundError(
            f"{verb}() needs {error.name}: pip install 'penstock[{extra}]'.{more}", name=error.name
        ) from error


def explained(fn: _Function, options: Collection[str] = ()) -> _Function:
    """Returns the function with better errors for a call that cannot work; its signature stays.

    Args:
        fn: A public function.
        options: The names that it takes as `**loader_options`.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except TypeError:
            # An error from inside the function passes, unless the call itself was wrong.
            if text := (
                _side_by_side(fn, args)
                or _unknown_keyword(fn, kwargs, options)
                or _too_many(fn, args, kwargs)
                or _missing(fn, args, kwargs)
            ):
                raise ArgumentTypeError(text) from None
            raise
        except FileNotFoundError as error:
            if text := lost_folder(error):
                raise SourceError(text) from error
            raise

    return call  # type: ignore[return-value]


def lost_folder(error: BaseException) -> str | None:
    """The message about the current folder that is gone, if an error comes from that; Python's names nothing."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return None
    try:
        os.getcwd()
    except FileNotFoundError:
        return (
            "The current folder was deleted, so a path that does not begin at the root leads nowhere. Go to one that "
            "is there (cd), also if another of the same name was made meanwhile, or give absolute paths."
        )
    return None


def explained_methods(options: Collection[str]) -> Callable[[_Class], _Class]:
    """Makes a class decorator that does so with all public methods."""

    def decorated(cls: _Class) -> _Class:
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and not name.startswith("_"):
                setattr(cls, name, explained(value, options))
        return cls

    return decorated


def _side_by_side(fn: Callable[..., Any], args: tuple[Any, ...]) -> str | None:
    """The message about several arguments where one tree or list of them is meant; None elsewhere."""
    kinds = inspect.Parameter
    places = [
        parameter.name
        for parameter in inspect.signature(fn).parameters.values()
        if parameter.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD, kinds.VAR_POSITIONAL)
    ]
    if len(args) < 2 or len(places) != 1:
        return None
    if fn.__name__ in _PARTS:
        return f"{fn.__name__}() takes one integer. For a part: {_PARTS[fn.__name__]}."
    if places[0] not in _SEVERAL_IN_ONE:
        return None
    return f"{fn.__name__}() takes one tuple of them, not {len(args)} arguments: {fn.__name__}((a, b))."


def _too_many(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The message about arguments without a name that are more than it takes, or given by name too; None elsewhere."""
    kinds = inspect.Parameter
    parameters = inspect.signature(fn).parameters.values()
    places = [each.name for each in parameters if each.kind is kinds.POSITIONAL_OR_KEYWORD]
    if any(each.kind is kinds.VAR_POSITIONAL for each in parameters) or (
        len(args) <= len(places) and not any(name in kwargs for name in places[: len(args)])
    ):
        return None
    if fn.__name__ in _FIRST:
        return f"{fn.__name__}() takes no second number. {_FIRST[fn.__name__]}"
    others = [each.name for each in parameters if each.kind is kinds.KEYWORD_ONLY]
    if len(args) <= len(places) or not others:
        return None
    alone = ", ".join(name for name in places if name != "self") or "nothing"
    return f"{fn.__name__}() takes {alone} by position, and by name: {', '.join(others)}."


def _missing(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The message about an argument that a call lacks, where Python's own does not say what to give; None elsewhere."""
    places = list(inspect.signature(fn).parameters)
    name = next((each for each in places[len(args) :] if each in _WHAT_FOR and each not in kwargs), None)
    return None if name is None else f"{fn.__name__}() needs {name}. {_WHAT_FOR[name]} It takes {', '.join(places)}."


def _unknown_keyword(fn: Callable[..., Any], kwargs: dict[str, Any], options: Collection[str]) -> str | None:
    """The message about the first keyword that a function does not have; None if it has all of them."""
    known: list[str] = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            known += options
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and parameter.name != "self":
            known.append(parameter.name)
    name = next((each for each in kwargs if each not in known), None)
    if name is None:
        return None
    takes = f"It takes {', '.join(known)}." if known else "It takes none."
    return " ".join(filter(None, (f"{fn.__name__}() has no argument {name}=.", _cure(name, known), takes)))


def no_attribute(name: str) -> AttributeError:
    """Returns the error about a name that the package does not have, with what it is called here."""
    cure = _NAMES.get(name)
    return AttributeError(f"module 'penstock' has no attribute {name!r}{f': {cure}' if cure else ''}")


def refuse_attribute(owner: object, name: str, who: str, elsewhere: Mapping[str, str]) -> NoReturn:
    """Is the `__getattr__` of a public class: raises the error about a name that it does not have.

    Args:
        owner: The object that was asked.
        name: The attribute.
        who: The object in the user's words, such as `A dataset`.
        elsewhere: Names of other libraries, with what stands in for each here.

    Raises:
        AttributeError: Always; that of a property of this name, where one failed.
    """
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)  # a property, which said why it has no value: let it say so again
    cure = elsewhere.get(name)
    text = f"{who} has no {name!r}{f': {cure}' if cure else ''}."
    raise AttributeError(text, name=name, obj=None if cure else owner)


def _cure(name: str, known: list[str]) -> str:
    import difflib  # only here, for an error

    if _SAME.get(name) in known:
        return f"Here it is {_SAME[name]}=."
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    alike = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {alike[0]}=?" if alike else ""
