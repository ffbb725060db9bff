"""The handle that users hold: a short method for each verb, and nothing else.

A verb checks its arguments, builds one node, and returns a new handle. The meaning of a step is in its node
(`plan/`). The loader runs a plan.
"""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex, final, overload

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._arguments import NoArray, as_int, explained_methods, items_of, needs, refuse_attribute
from penstock.base._errors import (
    ArgumentError,
    ArgumentTypeError,
    ElementIndexError,
    PenstockError,
    SpecError,
    UnknownLengthError,
    type_of,
)
from penstock.base._extensions import CALLS, VERBS, lookup, needed
from penstock.base._positions import require_order
from penstock.base._retries import reading_alone
from penstock.base._spec import Spec
from penstock.base._tracebacks import shorten
from penstock.base._tree import Tree
from penstock.loader import OPTIONS, Loader, LoaderOptions
from penstock.lower._loose import loosened
from penstock.lower._rewrite import reader_of, with_rows
from penstock.lower._share import Uneven
from penstock.memory._rows import Indices, copied
from penstock.plan._batch import Batch, Unbatch
from penstock.plan._by_chunks import shuffled_by_chunks
from penstock.plan._cast import Cast
from penstock.plan._cautions import (
    begins_again,
    caution_data_loader,
    caution_windows,
    was_read,
)
from penstock.plan._combine import Concatenate
from penstock.plan._fields import Fields
from penstock.plan._filter import Expand, Filter, FlatMap
from penstock.plan._index import Repeat, Shuffle
from penstock.plan._map import Map, function_name
from penstock.plan._node import (
    POSITION_LIMIT,
    Access,
    Length,
    Node,
    allow_depth,
    finite_length,
    history,
    walk,
)
from penstock.plan._packed_map import PackedMap, Unpacked
from penstock.plan._pad import PaddedBatch
from penstock.plan._patches import patched
from penstock.plan._pick import picked
from penstock.plan._ragged import RaggedBatch
from penstock.plan._reader import Reader
from penstock.plan._text import describe, length_text, length_words, uncounted
from penstock.run._shard import Shard, shard_of, warn_of_missing_shard
from penstock.verbs import _batches, _sample, _split, _windows
from penstock.verbs._asked import caller, integer, mapped, require_finite, require_function, require_random
from penstock.verbs._caching import cached, materialized, settled
from penstock.verbs._check import EXECUTORS, CheckResult, check
from penstock.verbs._join import On, groups_of, joined, positions_of
from penstock.verbs._labels import Labels
from penstock.verbs._lengths import measured
from penstock.verbs._reduce import reduced

if TYPE_CHECKING:
    from penstock.adapters.jax import JaxAdapter
    from penstock.adapters.keras import KerasAdapter
    from penstock.adapters.torch import TorchAdapter
    from penstock.pictures._grid import Picture


_log = logging.getLogger("penstock")


@final
@explained_methods(OPTIONS)
class Dataset(NoArray):
    """Elements, and the steps that make them. Immutable; making one reads headers at most.

    An element is a tree (tuple, dict, named tuple, nested) of NumPy arrays. `ds[i]` and `for x in ds` run
    the steps here and now, in epoch 0, without workers: always right, and good for looking. `ds.loader()`
    runs the same steps ahead, in parallel, into memory that is reused.

    Make one with `from_npy`, `from_arrays`, `from_source` or `range`, or with any method of another.
    """

    __slots__ = ("__weakref__", "_idle_readers", "_pid", "_plan")
    _called = "A dataset"
    _no_array = (
        "it is read as it is needed. Keras takes fit(ds.to_keras()); ds.element_spec says the shapes, and "
        "np.stack(list(ds)) loads all of it."
    )

    def __init__(self, node: "Node") -> None:
        if not isinstance(node, Node):
            raise ArgumentTypeError(
                f"Dataset() takes no data, and got {type_of(node)}. Make one with from_arrays((x, y)), from_npy(path), "
                "from_source(obj) or range(n)."
            )
        self._plan = node
        self._idle_readers: list[Reader] = []
        self._pid = os.getpid()

    @property
    def _node(self) -> Node:
        """The last step. That of a stream changes once: when `cache()` has all of it in memory."""
        self._plan = settled(self._plan)
        return self._plan

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that holds a dataset takes the plan along, not the files that were opened to look into it.
        allow_depth(self._node)
        return Dataset, (self._node,)

    # Looking.

    @property
    def length(self) -> Length:
        """The number of elements: an int, `math.inf`, or None if it is not known."""
        return self._node.length

    def __len__(self) -> int:
        length = self._node.length
        if not isinstance(length, int):
            cure = uncounted(self._node) if length is None else "Use take(n) for a part, or .length."
            raise UnknownLengthError(f"This dataset is {length_words(length)}, so it has no len(). {cure}")
        return length

    def __bool__(self) -> bool:
        """True: a dataset is a thing, also where it is empty or endless."""
        return True

    @property
    def element_spec(self) -> Tree:
        """The tree of `ArraySpec` of an element. May run a mapped function on element 0, once."""
        allow_depth(self._node)
        try:
            return self._node.spec.tree
        except PenstockError as error:
            shorten(error)
            raise

    @property
    def access(self) -> Access:
        """`"random"` if any element can be had by its index, else `"stream"`."""
        return self._node.access

    @property
    def class_names(self) -> list[str] | None:
        """What integer labels mean, as the source says, after any step; None if it has no labels.

        Raises:
            AttributeError: No source has them, or several have others. `select` leaves out the sources of other values.
        """
        return self._of_sources("class_names")  # type: ignore[no-any-return]

    @property
    def file_paths(self) -> list[str]:
        """The files of the source, in the source's order, after any step.

        That is not the order of this dataset, and may be more than it has: a `shuffle`, `filter`, `take`, `split` or
        `batch` changes nothing here. So each part of a `split` has the files of all; the two parts that
        `image_dataset_from_directory(validation_split=)` makes are sources of their own, and have each its own. To have
        a file beside what is in it, make elements of paths and `map`.

        Raises:
            AttributeError: No source has files that it lists, or several have others.
        """
        return self._of_sources("file_paths")  # type: ignore[no-any-return]

    def _of_sources(self, name: str) -> Any:
        """What the sources know under a name. An AttributeError otherwise, so that `hasattr` answers."""
        told = _told(self._node, name)
        if len(told) > 1:
            told = _told(with_rows(self._node), name)  # without the sources of values that a select() leaves out
        if not told:
            cure = " Sources with an element for each file have it, as from_files()." if name == "file_paths" else ""
            raise AttributeError(f"This dataset has no {name}: none of its sources does.{cure}\n{self!r}")
        if len(told) > 1:
            raise AttributeError(
                f"This dataset has no {name} of its own: its sources have different ones. Ask each before they are "
                f"put together, or, where elements are dicts, for one value: ds.select(key).{name}.\n{self!r}"
            )
        return told[0]

    def show(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        count: int = 16,
        class_names: Iterable[str] | None = None,
    ) -> "Picture":
        """Draws a labelled grid of the first elements, or of the first batch, for a notebook or into a PNG.

        Arguments, result and errors: those of `penstock.show`.
        """
        picture: Picture = needed(CALLS, "show")(self, path, count=count, class_names=class_names)
        return picture

    def __getattr__(self, name: str) -> NoReturn:
        if name == "__getitems__" and sys._getframe(1).f_globals.get("__name__", "").startswith("torch.utils.data."):
            caution_data_loader(self._node)
        verb = None if name.startswith("_") else lookup(VERBS, name)
        if verb is None:
            refuse_attribute(self, name, "A dataset")
        return functools.partial(verb, self)  # type: ignore[misc]  # to type checkers there is no such attribute

    def __repr__(self) -> str:
        return describe(self._node)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Tree: ...
    @overload
    def __getitem__(self, index: "slice | npt.ArrayLike") -> "Dataset": ...
    def __getitem__(self, index: Any) -> Any:
        """Returns one element of epoch 0, or a dataset of some of them.

        An array or a list chooses as in NumPy: integers are positions, from the end if negative, and a position may
        come several times; bools are a mask with an entry for each element. A column of pandas, Polars or Arrow counts
        by position.

        Random access: kept; one element reads what it is made of and nothing else, whatever the length. An array needs
        it. Order: that of the array. Memory: 8 bytes for each position of an array.

        Raises:
            ArgumentTypeError: A `TypeError`; it is none of these.
            ElementIndexError: An `IndexError`; an index is outside `[-len, len)`, or a mask has another length.

        Example:
            >>> squares = penstock.range(10).map(lambda x: x * x)
            >>> int(squares[-1]), [int(x) for x in squares[3:5]], [int(x) for x in squares[[7, 0, 7]]]
            (81, [9, 16], [49, 0, 49])
            >>> is_even = np.arange(10) % 2 == 0
            >>> [int(x) for x in squares[is_even]]
            [0, 4, 16, 36, 64]
        """
        if isinstance(index, slice):
            return self._sliced("slice", _slice_text(index), index.start, index.stop, index.step)
        require_random(self._node, f"[{index!r:.40}]", "Take it as it comes: next(iter(ds.skip(i)))")
        number = as_int(index)
        if number is None:
            is_flag = isinstance(index, (bool, np.bool_))
            if not is_flag and (isinstance(index, list) or hasattr(index, "__array__")):
                return Dataset(picked(self._node, index))
            given = f"{index!r:.80}, {type_of(index)}."
            if isinstance(index, str):
                given += f" For a part of each element: map(lambda element: element[{index!r}])."
            elif is_flag:
                given += " A list is not compared element by element, as an array is: ds[np.asarray(labels) == 3]."
            elif isinstance(index, (tuple, range)):
                given += " For some elements: an array or a list of integers."
            raise ArgumentTypeError(f"A dataset is indexed by an integer, a slice or an array, not by {given}")
        length = self._node.length
        if isinstance(length, int):
            if not -length <= number < length:
                raise ElementIndexError(f"Index {number} is outside a dataset of {length_text(length)}.")
            number %= length
        elif number < 0:
            raise ElementIndexError(f"Index {number} counts from the end, but this dataset is {length_words(length)}.")
        if number >= POSITION_LIMIT:
            raise ElementIndexError(f"Index {index} is too far off: positions go up to 2**62 - 1.")
        return self._element(number)

    def __iter__(self) -> Iterator[Tree]:
        """Iterates over epoch 0, each element in memory of its own. A second time, the log says so."""
        begins_again(self._node)
        if self._node.access == "stream":
            reader = reader_of(self._node)
            try:
                for leaves in reader.sequence(0):  # without elements, the spec is not needed
                    yield self._node.spec.structure.unflatten([copied(leaf) for leaf in leaves])
            except PenstockError as error:
                shorten(error)
                raise
        else:
            length, index = self._node.length, 0
            assert length is not None
            while index < length:
                yield self._element(index)
                index += 1
        was_read(self._node)

    def _element(self, index: int) -> Tree:
        # A reader serves one call at a time: two threads, or a function that looks into the dataset that runs
        # it, get one each. They are kept, with the files that they opened, as long as this handle lives.
        if self._pid != os.getpid():  # threads that read for the parent are not in a child of fork()
            self._pid, self._idle_readers = os.getpid(), []
        reader = None
        with contextlib.suppress(IndexError):  # another thread may take the last one
            reader = self._idle_readers.pop()
        reader = reader or reader_of(self._node)
        try:
            with reading_alone(reader.budget):
                return reader.element(0, index)
        except PenstockError as error:
            shorten(error)
            raise
        finally:
            self._idle_readers.append(reader)

    # Functions.

    def map(
        self,
        fn: Callable[[Any], Any],
        *,
        element_spec: Tree = None,
        batched: int | None = None,
        keeps_count: bool = True,
    ) -> "Dataset":
        """Applies a function to every element, or to many at once.

        The function gets an element whose arrays are its own to change, and returns a tree of arrays, numbers
        or text of one structure, shape and dtype for all elements. Mappings and dataclasses are dicts, and so is a
        table of pandas, Polars or Arrow: of its columns. Numbers of another dtype are cast where none can change (1 to
        1.0), and are an error where one could (float64 to float32).

        Random access: kept. Order: kept. Memory: some elements of input a worker, at most 1 MiB or one
        element; the result is copied once, into its batch.

        Args:
            fn: `fn(element)`; must depend on the element alone. For randomness see `random_map`.
            element_spec: The spec of its result, a tree of `ArraySpec`. Without it, element 0 is run once when the
                spec is first needed.
            batched: How many elements `fn` gets at once, stacked along a new first axis: elements 0 to `batched - 1`,
                and so on, the last time perhaps fewer. It returns as many, stacked too; or lists of as many arrays of
                any size, as tokenizers do, where `element_spec` has an axis of None. Elements that it gets need one
                shape. One that is read alone costs the function of its whole group, so put `shuffle` before it.
            keeps_count: False says that `fn` may return any number of elements of a group, also none. The result is
                then a stream of unknown length, as that of `flat_map`, and the same holds for its memory.

        Raises:
            ArgumentTypeError: `fn` cannot be called.
            ArgumentError: `batched` is below 1, or there is `keeps_count=False` without it.
            ElementError: While reading, `fn` raised: names the element or elements and the step; its own exception is
                the `__cause__`.
            SpecError: While reading, `fn` returned something else than for element 0, or than was declared; or another
                number of elements than it got.

        Example:
            >>> penstock.range(4).map(lambda x: {"x": x, "square": x * x})[3]
            {'x': np.int64(3), 'square': np.int64(9)}
            >>> int(penstock.range(10).map(lambda many: many * many, batched=4)[7])
            49
            >>> words = penstock.from_arrays(np.array(["a b", "c", "d e f"]))
            >>> def split(lines):
            ...     return [line.split() for line in lines]
            >>> words.map(split, batched=2, element_spec=penstock.ArraySpec((None,), "U1"))[2].tolist()
            ['d', 'e', 'f']
            >>> def join(lines):
            ...     return [word for line in lines for word in line.split()]
            >>> [str(word) for word in words.map(join, batched=2, keeps_count=False)]
            ['a', 'b', 'c', 'd', 'e', 'f']
        """
        if batched is None:
            if not keeps_count:
                raise ArgumentError(
                    "map(keeps_count=False) is for map(batched=): say how many elements the function gets at once. To "
                    "make several of one: flat_map()."
                )
            return Dataset(mapped(self._node, "map", fn, element_spec))
        require_function("map", fn)
        if isinstance(batched, bool):
            raise ArgumentTypeError(f"map(batched={batched}): say how many elements it gets at once, batched=256.")
        size = integer("map", "batched", batched, least=1)
        groups = Batch(self._node, size, drop_remainder=False, is_group=True)
        declared = None if element_spec is None else Spec.of(element_spec)
        is_ragged = declared is not None and any(leaf.max_shape is None for leaf in declared.leaves)
        if not keeps_count:
            return Dataset(FlatMap(Expand(groups, fn, declared, caller(), batched=size)))
        if is_ragged:
            return Dataset(Unpacked(PackedMap(groups, fn, declared, caller(), batched=size)))
        many = None if declared is None else declared.stacked(size, exact=groups.is_exact)
        return Dataset(Unbatch(Map(groups, fn, many, caller(), batched=size)))

    def random_map(
        self, fn: "Callable[[Any, np.random.Generator], Any]", *, seed: int = 0, element_spec: Tree = None
    ) -> "Dataset":
        """Applies a function that draws random numbers: `fn(element, rng)`.

        `rng` is a `numpy.random.Generator` for this element. It depends only on the seed, the epoch, the element's
        index at this step (after `shard`, that in all shards together), and the number of random steps before. So a
        run gives the same numbers for any executor and number of workers, resumed or not. Another epoch gives other
        numbers. Two branches with the same seed draw the same numbers: an image and its mask stay together.

        Random access, order and memory: as `map`. `ds[i]` shows epoch 0.

        Args:
            fn: `fn(element, rng)`.
            seed: Any integer; another one for other numbers.
            element_spec: As for `map`.

        Raises:
            ArgumentTypeError, ElementError, SpecError: As for `map`.

        Example:
            >>> noisy = penstock.from_arrays(np.zeros((4, 2))).random_map(lambda x, rng: x + rng.normal(size=2))
            >>> bool((noisy[1] == noisy[1]).all()), bool((noisy[1] == noisy[2]).any())
            (True, False)
        """
        return Dataset(mapped(self._node, "random_map", fn, element_spec, integer("random_map", "seed", seed)))

    def filter(self, fn: Callable[[Any], Any]) -> "Dataset":
        """Keeps the elements of which a function says True.

        The function gets an element whose arrays are read-only, and runs on workers, in any order; what is kept comes
        in the order of this dataset.

        Random access: lost, and the length is unknown, because the place of element `i` depends on all elements
        before it. Filter as early as you can: a `ds.map(decode)` after it then works on less. Memory:
        some elements on their way to the function, see `loader.projected_nbytes`.

        Args:
            fn: `fn(element)`; returns True or False, of Python or NumPy. Must depend on the element alone.

        Raises:
            ArgumentTypeError: `fn` cannot be called.
            ElementError: While reading, `fn` raised; names the element and the step.
            SpecError: While reading, `fn` returned something else than True or False.

        Example:
            >>> [int(x) for x in penstock.range(10).filter(lambda x: x % 3 == 0)]
            [0, 3, 6, 9]
        """
        return Dataset(Filter(mapped(self._node, "filter", fn, verdict="bool")))

    def flat_map(self, fn: Callable[[Any], Any], *, element_spec: Tree = None) -> "Dataset":
        """Replaces every element by the elements that a function makes of it, in order.

        Workers run the function, each on another element. What one makes arrives whole, where the function returns a
        list, a tuple or an array. Of an iterator, as of a generator function, it is the first MiB. If there is more, a
        thread of this process begins that element again, skips what is there, and takes the rest as it comes. For large
        files, one an element, `from_generator(shards=)` reads several at once.

        Random access: lost, and the length is unknown. Order: kept. Memory: what the function makes of up to 64
        elements that wait, at most a MiB each of an iterator; it is not a part of `projected_nbytes`.

        Args:
            fn: `fn(element)`; a generator function, or one that returns an iterable or a dataset. Must depend on the
                element alone: unlike for `map`, the global `np.random` and `random` are not seeded for it, so what it
                draws from them is another each time. Draw in a `random_map` before it, or after.
            element_spec: What its elements are; without it, the first is looked at when the spec is first needed.

        Raises:
            ArgumentTypeError: `fn` cannot be called.
            ElementError: While reading, `fn` raised; names the element and the step.
            SpecError: While reading, it gave something else than as its first element, or than was declared.

        Example:
            >>> [int(x) for x in penstock.range(4).flat_map(lambda x: [x] * x)]
            [1, 2, 2, 3, 3, 3]
        """
        require_function("flat_map", fn)
        declared = None if element_spec is None else Spec.of(element_spec)
        return Dataset(FlatMap(Expand(self._node, fn, declared, caller())))

    def cast(self, dtype: Any) -> "Dataset":
        """Converts leaves to other dtypes, without Python per element.

        Values are converted as NumPy's `astype` does: floats to integers drop the fraction.

        Random access, order: kept. Memory: at most 1 MiB of input, or one element, a worker.

        Args:
            dtype: One dtype for all leaves, or a tree of dtypes like the element, with None for leaves to keep.

        Raises:
            ArgumentTypeError: Not a dtype.
            SpecError: When the spec is first needed: the tree of dtypes is not like the element.

        Example:
            >>> penstock.range(3).cast("float32")[2]
            np.float32(2.0)
        """
        leaves, structure = _tree.flatten_values(dtype)
        dtypes = []
        for leaf in leaves:
            try:
                dtypes.append(None if leaf is None else np.dtype(leaf))
            except TypeError:
                cure = " NumPy has it once ml_dtypes is imported, as JAX does." if leaf == "bfloat16" else ""
                raise ArgumentTypeError(f"cast() needs dtypes such as 'float32', got {leaf!r}.{cure}") from None
        alike = None if structure == _tree.flatten(0)[1] else structure
        return Dataset(Cast(self._node, tuple(dtypes), alike))

    def select(self, *names: str | Iterable[str]) -> "Dataset":
        """Keeps some values of elements that are dicts, in this order.

        What is left out is not read: columns of Parquet, Arrow, CSV and JSON Lines, features of TFRecord, datasets that
        `zip` put together, arrays. It works through steps that only move elements, such as `shuffle` and `batch`. A
        function before it gets its whole element.

        Random access, order: kept. Memory: none; after a function, some elements a worker, at most 1 MiB or one.

        Args:
            names: Keys of the dict, or one list of them.

        Raises:
            ArgumentTypeError: A name is no text.
            ArgumentError: There is no name, or one comes twice.
            SpecError: When the spec is first needed: elements are no dicts, or have no such key.

        Example:
            >>> ds = penstock.from_arrays({"x": np.eye(3), "y": np.arange(3), "z": np.ones(3)})
            >>> ds.select("y", "z")[2]
            {'y': np.int64(2), 'z': np.float64(1.0)}
        """
        several = names[0] if len(names) == 1 and not isinstance(names[0], str) else names
        require_order("select()", several, "Give the names in a list.")
        items = items_of(several)
        if items is None:
            raise ArgumentTypeError(f"select() needs names of values, such as select('x'), got {type_of(several)}.")
        return self._fields("select", [(name, name) for name in items])

    def rename(self, names: Mapping[str, str]) -> "Dataset":
        """Gives values of elements that are dicts other names. All others keep theirs, and all keep their places.

        Random access, order: kept. Memory: none.

        Args:
            names: `{"old": "new"}`.

        Raises:
            ArgumentTypeError: It is no such dict.
            ArgumentError: There is no name, or two get the same.
            SpecError: When the spec is first needed: elements are no dicts, have no such key, or would have one twice.

        Example:
            >>> penstock.from_arrays({"x": np.arange(3), "y": np.ones(3)}).rename({"x": "index"})[2]
            {'index': np.int64(2), 'y': np.float64(1.0)}
        """
        if not isinstance(names, Mapping):
            raise ArgumentTypeError(f'rename() needs a dict, {{"old": "new"}}, got {type_of(names)}.')
        return self._fields("rename", list(names.items()))

    def _fields(self, verb: str, pairs: list[tuple[Any, Any]]) -> "Dataset":
        for name in (name for pair in pairs for name in pair):
            if not isinstance(name, str):
                cure = "" if as_int(name) is None else " Elements by their numbers are ds[a:b] or ds[numbers]."
                raise ArgumentTypeError(f"{verb}() needs names of values, such as {verb}('x'), got {name!r:.80}.{cure}")
        if not pairs or len({new for _, new in pairs}) < len(pairs):
            raise ArgumentError(f"{verb}() needs names, each once, got {[new for _, new in pairs]}.")
        node = Fields(self._node, verb, tuple(pairs), keeps_others=verb == "rename")
        if self._node.known_spec is not None and not node.spec.leaves:  # `spec` refuses what is wrong here
            raise SpecError(f"{node.label}: these values are None, and an element needs an array. Add a name of one.")
        return Dataset(node)

    # Order and number.

    def shuffle(
        self, seed: int = 0, *, window: "int | Literal['chunks'] | None" = None, reshuffle: bool = True
    ) -> "Dataset":
        """Puts the elements in an order that is a pure function of the seed and the epoch.

        Nothing is stored and nothing is read ahead: a keyed bijection maps positions to indices. It is a Feistel
        network with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Every element
        comes once an epoch.

        With `window="chunks"`, chunks come in a random order. The elements that begin in one chunk come together, in a
        random order. So each chunk is read once, unless elements cross its border. Chunks are row groups of Parquet,
        record batches of Arrow, chunks of arrays in HDF5 and Zarr (for rows and `patches`), and what `part_bounds` of a
        `Source` says. They are known after steps that keep elements in order: slices, `take`, `skip`, `shard`,
        ascending indices, `split` (with a seed only beside `groups` or `stratify`), `map`, `cast`, `select`, `rename`,
        `zip`, `concatenate`, `cache`, `batch` and `windows`; of patches along several axes, after slices without gaps.
        A slice may cut its first and its last chunk. To deal whole chunks to training and validation at random, split
        an order of chunks that stays: `ds.shuffle(seed=1, window="chunks", reshuffle=False).split(0.8, 0.2)`.

        Random access: kept; needed, too, but for a `window`. Memory: at most 4 MiB for the whole process, whatever the
        length; for a stream, `window` elements; by chunks also 48 bytes a chunk.

        Args:
            seed: Any integer. It is not the size of a buffer, as in tf.data; the log says so where a number without
                the name `seed=` looks like one.
            window: Shuffle among so many neighbours only, for data on slow disks, and for streams, where it is
                needed. An element moves by less than `window` places. Or `"chunks"`, see above.
            reshuffle: Whether each epoch has an order of its own.

        Raises:
            ArgumentError: The dataset is endless and has random access, a stream was given no `window`, or `window`
                is below 1. The data have no chunks, or a step before it leaves them unknown, such as another shuffle.

        Example:
            >>> sorted(penstock.range(5).shuffle(seed=7))
            [np.int64(0), np.int64(1), np.int64(2), np.int64(3), np.int64(4)]
        """
        seed = integer("shuffle", "seed", seed)
        if window == "chunks":
            return Dataset(shuffled_by_chunks(self._node, seed, reshuffle))
        if window is not None:
            window = integer("shuffle", "window", window, least=1)
        if window is None:
            require_random(
                self._node, "shuffle()", "Give window=, and that many elements are held and shuffled among themselves"
            )
        if self._node.access == "random":
            cure = "Shuffle before repeat(): every round gets an order of its own."
            require_finite(self._node, "shuffle", cure)
            if finite_length(self._node) >= POSITION_LIMIT:
                raise ArgumentError(f"shuffle() puts fewer than 2**62 elements in order, and these are more. {cure}")
        return Dataset(Shuffle(self._node, seed, window, reshuffle))

    def sample(
        self,
        weights: "Labels | None" = None,
        *,
        balance: "Labels | None" = None,
        per_class: "int | Mapping[Any, int] | None" = None,
        class_count: int | None = None,
        seed: int = 0,
        replacement: bool = True,
        count: int | None = None,
    ) -> "Dataset":
        """Draws elements at random, by weights or by class. Each epoch draws anew.

        With replacement, each position is drawn alone, so elements come several times or not at all. Without it, each
        element with a weight comes at most once, heavy ones mostly early. `balance` weighs elements so that, with
        replacement, all classes come equally often on average.

        With `per_class`, classes come in exact numbers: elements come in groups, in which each class has so many, one
        class after the other, in the order of their labels. `batch` them by the size of a group. Each class is
        shuffled, and all of its elements come before one comes again; what is left over and too few for a group sits
        out, other elements each time. So a group has no element twice, unless a class has fewer than `per_class`. With
        `class_count`, a group has only so many of the classes, drawn at random, in any order: an episode of few-shot
        learning, or a batch for triplets. Classes come in rounds of as many whole groups as they fill, and none comes
        twice in a round. If `class_count` divides their number, all come equally often. Otherwise some sit out each
        round, others each time, so they come equally often on average.

        Random access: kept, and needed. Order: a pure function of (seed, epoch). Memory: 16 bytes an element in each
        process; 8 with `per_class`. Without replacement, the first read of an epoch sorts, about 0.3 s a million
        elements.

        Args:
            weights: A weight an element, `(n,)`, at least 0; or the key or place of a leaf. They need not sum to 1.
            balance: The class of each element, `(n,)`, in place of weights; or the key or place of a leaf. A leaf is
                read now, once, in blocks, and where a source can do so without the others.
            per_class: How many elements of each class a group has; or, by label, how many of these, `{"cat": 8}`.
            class_count: The number of classes in a group. None for all.
            seed: Any integer.
            replacement: Whether an element may come again.
            count: How many to draw in an epoch. None for as many as there are, in whole groups; without replacement, as
                many as have a weight.

        Raises:
            ArgumentError: Weights are of another number, negative, not finite or all 0; or more are to be drawn than
                have a weight, without replacement; or the dataset is endless. There is no such class, or there are
                fewer than `class_count`; or arguments do not go together.
            ArgumentTypeError: It is a stream.

        Example:
            >>> drawn = penstock.range(3).sample([0, 1, 3], count=1000, seed=1)
            >>> [sum(int(x) == i for x in drawn) > 0 for i in range(3)]
            [False, True, True]
            >>> labels = np.array([0, 0, 0, 0, 0, 0, 1, 1])
            >>> even = penstock.from_arrays(labels).sample(balance=labels, per_class=2).batch(4)
            >>> [batch.tolist() for batch in even]
            [[0, 0, 1, 1], [0, 0, 1, 1]]
        """
        return Dataset(_sample.sample(self._node, weights, balance, per_class, class_count, seed, replacement, count))

    def repeat(self, count: int | None = None) -> "Dataset":
        """Repeats the dataset; round `r` of epoch `e` is epoch `e * count + r` of what is before.

        So every round is reshuffled and freshly augmented, unless `shuffle(reshuffle=False)`.

        Without a count, the length is infinite, and that is a promise. A round of a stream may be empty by chance, if a
        `filter` before it looks at random data. Such a round is left out, and the log says so. After ten empty rounds
        in a row the epoch ends with an error: the stream gives nothing any more, and would be read for ever. With a
        count, empty rounds count as rounds.

        Random access, order: kept. Memory: none.

        Args:
            count: How often; None for without end, which makes one endless epoch.

        Raises:
            ArgumentError: `count` is negative, or the dataset is endless already.
            SpecError: There is no count, and the dataset has no elements. Where that shows only while iterating, it
                comes after ten empty rounds in a row.

        Example:
            >>> [int(x) for x in penstock.range(2).repeat(3)]
            [0, 1, 0, 1, 0, 1]
        """
        if count is not None:
            count = integer("repeat", "count", count, most=None)
        if self._node.length is not None:
            require_finite(self._node, "repeat", "It is endless already.")
        made = Repeat(self._node, count)
        made.length  # noqa: B018  # refuses an endless repeat of nothing
        return Dataset(made)

    def take(self, n: int) -> "Dataset":
        """Keeps the first `n` elements, or all if there are fewer. After a `shuffle`, each epoch has others.

        Random access, order: kept. Memory: none.

        Raises:
            ArgumentError: `n` is negative.
        """
        return self._sliced("take", str(n), 0, integer("take", "n", n, most=None), None)

    def skip(self, n: int) -> "Dataset":
        """Leaves out the first `n` elements.

        Random access, order: kept. Memory: none.

        Raises:
            ArgumentError: `n` is negative.
        """
        return self._sliced("skip", str(n), integer("skip", "n", n, most=None), None, None)

    def shard(self, index: int, count: int) -> "Dataset":
        """Keeps elements `index`, `index + count`, `index + 2 * count` and so on.

        Random numbers after it are those of numbers `index + i * count`, so no two shards draw the same: directly after
        it, `random_map` draws what it would draw for that element of the whole dataset.

        Random access: kept. Memory: none. Lengths of shards differ by at most one. To share the *batches* of
        one run among processes use `loader(shard=...)`, which resumes with another number of them.

        Raises:
            ArgumentError: Not `0 <= index < count`.
        """
        count, index = integer("shard", "count", count, least=1), integer("shard", "index", index)
        if index >= count:
            raise ArgumentError(f"shard({index}, {count}): the index must be below the count.")
        return self._sliced("shard", f"{index}, {count}", index, None, count)

    def _sliced(self, verb: str, text: str, start: int | None, stop: int | None, step: int | None) -> "Dataset":
        return Dataset(_split.cut(self._node, verb, text, start, stop, step))

    def k_folds(
        self,
        k: int,
        *,
        groups: "Labels | None" = None,
        stratify: "Labels | None" = None,
        seed: int | None = None,
    ) -> list[tuple["Dataset", "Dataset"]]:
        """Divides the elements into `k` parts, and returns for each part the others and it: `(training, validation)`.

        The parts are those of `split` with `k` equal fractions, and have no element in common; parts of `windows` share
        nothing underneath either.

        Random access: kept. Order: by position within each part. Memory: as `split`, once for all folds.

        Args:
            k: How many folds, at least 2.
            groups: See `split`.
            stratify: See `split`.
            seed: See `split`.

        Raises:
            ArgumentError: As `split`; or a fold would have no element.

        Example:
            >>> folds = penstock.range(6).k_folds(3)
            >>> [([int(x) for x in train], [int(x) for x in test]) for train, test in folds]
            [([2, 3, 4, 5], [0, 1]), ([0, 1, 4, 5], [2, 3]), ([0, 1, 2, 3], [4, 5])]
        """
        k = integer("k_folds", "k", k, 2)
        parts = () if k > len(self) else self.split(*[1 / k] * k, groups=groups, stratify=stratify, seed=seed)
        if short := sum(part.length == 0 for part in parts) if parts else k - len(self):
            are_uneven = groups is not None and parts
            what = "The groups are too few or too uneven" if are_uneven else f"There are {len(self)} elements"
            raise ArgumentError(f"k_folds({k}) would leave {short} folds without an element. {what}: use a smaller k.")
        return [(Dataset(Concatenate(tuple(each._node for each in parts if each is not part))), part) for part in parts]

    def split(
        self,
        *parts: float,
        groups: "Labels | None" = None,
        stratify: "Labels | None" = None,
        seed: int | None = None,
    ) -> tuple["Dataset", ...]:
        """Divides the elements into parts that have none in common, by position.

        Part `k` ends at `floor(n * (sum of the first k fractions) + 0.5)`; fractions that sum to 1 leave
        nothing out. Unpacked of `windows` share nothing underneath either: a later part loses its first windows
        until that holds, and the log (`penstock`, level INFO) has the number. Each part has the attributes of
        the whole source: `class_names`, and `file_paths`, which list the files of all parts.

        With `stratify`, as scikit-learn calls it, each part has each class in the same proportion, and is as large as
        without it. Of two parts, each has its share of each class, rounded up or down, be the class as small as it may;
        of more, each its share of what those before it left.

        Random access: kept. Order: by position, but dealt at random by `seed` alone. Memory: none by range or seed; 8
        bytes an element with classes, or with groups that are not neighbours.

        Args:
            parts: Fractions such as `0.6, 0.2, 0.2`, or counts such as `800, 200`.
            groups: A label an element, `(n,)`: elements with the same label stay in one part. Or the key or place of a
                leaf that is the label, such as `"label"` or `1`: then each element is read now.
            stratify: A label an element, `(n,)`: its class; or a leaf, as for `groups`.
            seed: Deal elements, or groups, at random; without it parts are ranges, or ranges of each class.

        Raises:
            ArgumentError: Unpacked are negative or too many, labels do not fit, or the order changes with each epoch
                (split first, then shuffle), elements are repeated, windows would be dealt out one by one, or both
                `groups` and `stratify` are given.

        Example:
            >>> train, test = penstock.range(10).split(0.8, 0.2)
            >>> len(train), [int(x) for x in test]
            (8, [8, 9])
            >>> is_rare = np.arange(10) < 5
            >>> train, test = penstock.range(10).split(0.8, 0.2, stratify=is_rare)
            >>> [int(x) for x in test]
            [4, 9]
        """
        return tuple(map(Dataset, _split.split(self._node, parts, groups, stratify, seed)))

    # Shape.

    def batch(
        self,
        size: int | None = None,
        *,
        drop_remainder: bool = False,
        max_tokens: int | None = None,
        lengths: "npt.ArrayLike | str | int | None" = None,
        cost: Callable[[Any, Any], Any] | None = None,
    ) -> "Dataset":
        """Stacks consecutive elements along a new first axis.

        An element of shape `(height, width, 3)` becomes `(size, height, width, 3)`; dtypes do not change. If
        the length is not a multiple of `size` the last batch is shorter and that axis is `None` in
        `element_spec`, unless `drop_remainder`.

        Random access: kept; batch `i` is one read of elements `[i * size, (i + 1) * size)`. Order: kept.
        Memory: a slot of a loader holds one batch, `size` times the element's `nbytes`.

        With `max_tokens`, elements are sequences. A batch is as many neighbours as fit: their number times the longest
        is at most `max_tokens`. They are padded with 0 to the longest, as by `padded_batch`, whose memory this has.
        There is random access if `lengths` are given; else the result is a stream. The length of an element is the size
        of its axis that varies, which is None in its spec: a spectrogram `(80, None)` has as many tokens as times. If
        several axes vary, tokens are their product, as padded. Where nothing declares the spec, the longest axis
        counts. Of several leaves the longest counts.

        Args:
            size: Elements a batch, at least 1.
            drop_remainder: Leave out a last batch that is short.
            max_tokens: The most tokens of a padded batch, in place of a size.
            lengths: The number of tokens of each element, `(n,)`: the size of the axis that varies; if several do, of
                one of them, or their product. Or the key or place of a leaf, as for `pack`, which is read now.
            cost: As for `bucket_by_length`, with `max_tokens` and `lengths`. Batches are the same; they trade places
                among 1,920 neighbours.

        Raises:
            ArgumentError: `size` is below 1; or there are both a size and `max_tokens`, or neither; or lengths are of
                another number, or given for an order that changes with each epoch.
            ElementError: A sequence is longer than `max_tokens`, or than `lengths` says.
            SpecError: When the spec is first needed: elements do not have one shape.

        Example:
            >>> [batch.tolist() for batch in penstock.range(5).batch(2)]
            [[0, 1], [2, 3], [4]]
            >>> ragged = penstock.range(5).map(np.ones)
            >>> [batch.shape for batch in ragged.batch(max_tokens=6, lengths=range(5))]
            [(3, 2), (1, 3), (1, 4)]
        """
        return Dataset(_batches.batch(self._node, size, drop_remainder, max_tokens, lengths, cost))

    def pack(
        self,
        length: Any,
        *,
        lengths: Any = None,
        fit: Literal["next", "first", "best"] = "next",
        split: bool = True,
        padding_value: Any = 0,
        drop_remainder: bool = False,
        positions: bool = False,
        offsets: bool = False,
    ) -> "Dataset":
        """Lays sequences end to end in rows of `length` tokens, for language models.

        Elements are sequences, `(None,)`, or trees of sequences of one length. A row is a pair: the tokens, `(length,)`
        and in the same tree, and `segments`, int32 `(length,)`: the number of the sequence in this row from 1 on, and 0
        where the row is filled up. `positions=True` adds a third part of that shape: the place of each token in its
        sequence, as far as that is in this row, from 0 on.

        `offsets=True` gives offsets in place of `segments`, as `ragged_batch` has them and kernels of attention take
        them (`cu_seqlens`): int64 `(n + 1,)` for the `n` sequences in the row, from 0 to the number of tokens that are
        not padding. Sequence `i` is `tokens[offsets[i] : offsets[i + 1]]`. Rows have several numbers of sequences, so
        `ragged_batch`, not `batch`, puts them together.

        Inputs and targets of different lengths go side by side: `pack({"inputs": 512, "targets": 128}, split=False,
        lengths={"inputs": ..., "targets": ...})`. Then the second and the third part are such trees, too.

        After a `shuffle` that differs from epoch to epoch, so do the rows, and `lengths` are those of the elements
        before it. This step takes the shuffle over: rows are made within blocks of at most 65,536 sequences, sequences
        trade places with others wherever both fit, and rows come in a new order. Which sequences share a block stays,
        and so does the number of rows. After `shuffle(window=)` a block is neighbours; else it is a sample of all
        sequences. Only `map` and `zip` may stand between.

        `fit="best"` puts each sequence into the row that it leaves the least room in, and `"first"` into the first row
        that has room; each within its block, from the longest on or in order, whichever fills the first block better.
        See D. S. Johnson, "Near-optimal bin packing algorithms" (1973). Without `lengths`, `"best"` is for text that is
        read once: 1,024 sequences wait, and a row takes the longest of them that still fits, until none does.

        Random access: if `lengths` are given; else the result is a stream. Order: kept by `"next"`; elsewhere that of
        the first sequence in each row, or without `lengths` as sequences fit. Memory: the sequences of the rows that
        are read, and those that wait; 16 bytes a sequence for `"next"` without a shuffle; else 4 for lengths, which
        workers share, and in each worker some 12 a sequence of the blocks that it keeps (four, or all where the order
        stays). `print(ds)` and the report say how full the rows are.

        Args:
            length: Tokens a row, at least 1; for parts of different lengths a tree like the element.
            lengths: The number of tokens of each element, `(n,)`; or the key or place of a leaf: an integer that says
                it, which is then left out of the row, or a sequence, whose length it is, see `lengths()`; or a tree of
                these, as `length` is one.
            fit: Which row a sequence goes to. `"first"` needs `lengths`.
            split: Whether a sequence that does not fit goes on in the next row; with `"first"` and `"best"` only one
                that is longer than a row. False keeps sequences whole. One that is longer than a row is then an error
                where its row is read, and `loader(on_error="skip")` leaves that row out; the log says how many there
                are.
            padding_value: What rows are filled up with.
            drop_remainder: Leave out the last row if it is not full; with `split`, for `"next"` without a shuffle.
            positions: Whether rows have the places of tokens.
            offsets: Whether rows have the offsets of sequences, in place of their numbers.

        Raises:
            ArgumentError: `length` is below 1; or lengths are of another number, no integers, negative, or given for
                an order that changes in another way than by `shuffle`.
            ElementError: While reading: without `split`, a sequence is longer than a row; or one has another length
                than `lengths` says.
            SpecError: When the spec is first needed: elements are no sequences of numbers.

        Example:
            >>> ragged = penstock.range(5).map(np.arange)
            >>> rows = ragged.pack(4, lengths=range(5))
            >>> [(tokens.tolist(), segments.tolist()) for tokens, segments in rows]
            [([0, 0, 1, 0], [1, 2, 2, 3]), ([1, 2, 0, 1], [1, 1, 2, 2]), ([2, 3, 0, 0], [1, 1, 0, 0])]
            >>> rows = ragged.shuffle().pack(4, lengths=range(5), fit="best", positions=True)
            >>> [places.tolist() for tokens, segments, places in rows]
            [[0, 1, 2, 0], [0, 1, 2, 3], [0, 0, 1, 0]]
            >>> [ends.tolist() for tokens, ends in ragged.pack(4, lengths=range(5), offsets=True)]
            [[0, 1, 3, 4], [0, 2, 4], [0, 2]]
        """
        return Dataset(
            _batches.pack(self._node, length, lengths, fit, split, padding_value, drop_remainder, positions, offsets)
        )

    def lengths(
        self,
        key: str | int | None = None,
        *,
        progress: Callable[[int, int | None], None] | None = None,
        **loader_options: Any,
    ) -> npt.NDArray[np.int64]:
        """Reads all elements of epoch 0, on workers, and returns the length of each: int64, shape `(len(ds),)`.

        That is what `lengths=` of `pack`, `batch`, `ragged_batch` and `bucket_by_length` takes. A length is the size of
        the first axis of a leaf, where that differs from element to element; of several such leaves the largest counts.
        Of a leaf that is a single integer, it is that integer.

        If elements come from files, lengths are kept in a hidden file beside the first of them, or if that folder
        cannot be written in the cache directory. They are read from there as long as the files and the steps before are
        the same, functions included, as for `cache`. Others are counted at each call.

        Memory: a loader's, and 8 bytes an element.

        Args:
            key: The key or place of a leaf, or of a tuple or dict of leaves; None for all.
            progress: As for `materialize`.
            loader_options: As for `loader`. An element that fails has no length, so `on_error` is `"raise"`.

        Raises:
            ArgumentError: The dataset is a stream, or its order changes with each epoch; or there is no such leaf, or
                it has no axis and is no integer; or an option of the loader is refused.

        Example:
            >>> sentences = penstock.range(5).map(lambda i: {"tokens": np.arange(i), "label": i % 2})
            >>> sentences.lengths("tokens")
            array([0, 1, 2, 3, 4])
        """
        require_random(self._node, "lengths()", "Count as they come, with map(len), or use pack() without lengths")
        require_finite(self._node, "lengths", "Use take(n), or put it before repeat().")
        if refused := {"on_error", "shard"} & loader_options.keys():
            raise ArgumentError(f"lengths({min(refused)}=): lengths are those of all elements. Leave it out.")
        return measured(self._node, f"lengths({'' if key is None else repr(key)})", key, progress, loader_options)

    def padded_batch(
        self,
        size: int,
        *,
        padded_shapes: Tree = None,
        padding_values: Any = None,
        side: Literal["left", "right"] = "right",
        drop_remainder: bool = False,
    ) -> "Dataset":
        """Stacks consecutive elements whose shapes differ, padded to one size.

        Functions, generators and objects before it need no `element_spec`: where none is declared, every axis may
        differ. (What is before `cache` or `materialize` needs one.) To keep batches in slots, declare the axes that do
        not, or give `padded_shapes`.

        Random access: kept. Order: kept. Memory: a batch whose shape is known (`padded_shapes` without None) lies in a
        slot, as with `batch`. One that is padded to its own largest element has no size known ahead: it is an array of
        its own, made anew for every batch, and not a part of `projected_nbytes`.

        Args:
            size: Elements a batch, at least 1.
            padded_shapes: A shape for each leaf, as a tree like the element, in which None is the largest of the
                batch: `(None, 3)`, `{"text": (128,), "label": ()}`. Without it, or with None for a leaf, axes that vary
                are padded to the largest of the batch.
            padding_values: What fills the rest: one for all leaves, or a tree like the element. None is 0, and for text
                the empty one.
            side: Where the filling stands: `"right"`, behind an element, or `"left"`, before it, as models that
                generate text take prompts.
            drop_remainder: Leave out a last batch that is short.

        Raises:
            ArgumentError: `size` is below 1, or `side` is neither.
            SpecError: When the spec is first needed: shapes or values do not fit elements, or text has axes to be
                padded.
            ElementError: While reading, an element is larger than its padded shape.

        Example:
            >>> penstock.range(4).map(np.arange).padded_batch(2)[1].tolist()
            [[0, 1, 0], [0, 1, 2]]
            >>> penstock.range(4).map(np.arange).padded_batch(2, padding_values=-1, side="left")[1].tolist()
            [[-1, 0, 1], [0, 1, 2]]
        """
        padding = _batches.padding_of("padded_batch", padded_shapes, padding_values, side)
        count = integer("padded_batch", "size", size, least=1)
        return Dataset(PaddedBatch(loosened(self._node), count, drop_remainder, padding))

    def ragged_batch(
        self,
        size: int | None = None,
        *,
        drop_remainder: bool = False,
        max_tokens: int | None = None,
        lengths: "npt.ArrayLike | str | int | None" = None,
    ) -> "Dataset":
        """Lays consecutive elements of several lengths end to end, without padding.

        A leaf `(None, 4)`, whose first axis differs from element to element, becomes a `Ragged`: the pair of `values`,
        `(total, 4)`, and `offsets`, int64 `(size + 1,)`. Element `i` has `values[offsets[i] : offsets[i + 1]]`.
        Other leaves are stacked as by `batch`. Dtypes do not change. Functions, generators and objects before it need
        no `element_spec`: where none is declared every axis may differ, and every leaf with an axis is ragged.

        With `max_tokens` a batch is as many elements as have at most so many tokens together, where the tokens of an
        element are the length of its longest ragged leaf, and those of an empty one count as 1. With `lengths` there is
        random access, and `max_tokens` is at most 2**24 after a `shuffle` that differs from epoch to epoch, which this
        step takes over, as `pack` does. Without `lengths` the result is a stream.

        Random access: kept; with `max_tokens` as said. Order: kept; where a shuffle is taken over, batches are filled
        as rows of `pack(fit="next", split=False)`. Memory: where the largest size is known (`max_tokens`, or an
        `element_spec` with `max_shape`), a batch lies in a slot, and each value is copied once, to its place there.
        Elsewhere values are an array of their own, made anew for every batch, and not a part of `projected_nbytes`.
        Ranks take whole batches: `loader(shard="auto", whole_batches=True)`.

        Args:
            size: Elements a batch, at least 1.
            drop_remainder: Leave out a last batch that is short.
            max_tokens: The most tokens of a batch, in place of a size.
            lengths: The number of tokens of each element, `(n,)`; or the key or place of a leaf, as for `pack`.

        Raises:
            ArgumentError: `size` is below 1; or there are both a size and `max_tokens`, or neither; or lengths are
                refused, as by `pack`.
            ElementError: While reading: an element has more than `max_tokens`, or another length than `lengths` says.
            SpecError: When the spec is first needed: no leaf has a first axis that varies, or one varies only along
                another. While reading, elements differ along another axis than the first.

        Example:
            >>> spec = {"boxes": penstock.ArraySpec((None, 4), "float32"), "image": penstock.ArraySpec((), "int64")}
            >>> found = lambda i: {"boxes": np.ones((i, 4), "float32"), "image": i}
            >>> batch = penstock.range(4).map(found, element_spec=spec).ragged_batch(3)[0]
            >>> batch["boxes"].values.shape, batch["boxes"].offsets.tolist(), batch["image"].tolist()
            ((3, 4), [0, 0, 1, 3], [0, 1, 2])
            >>> batches = penstock.range(6).map(np.ones).ragged_batch(max_tokens=6, lengths=range(6))
            >>> [batch.offsets.tolist() for batch in batches]
            [[0, 0, 1, 3], [0, 3], [0, 4], [0, 5]]
        """
        return Dataset(_batches.ragged_batch(self._node, size, drop_remainder, max_tokens, lengths))

    def csr_batch(self, size: int, *, drop_remainder: bool = False) -> "Dataset":
        """Puts consecutive sparse rows side by side, as a matrix in compressed rows (CSR).

        Each row, as `from_csr(dense=False)` and `from_h5ad(dense=False)` give it, is `{"indices": (k,), "values":
        (k,)}`, with another `k` each. A batch has `{"indptr": (size + 1,), "indices": (n,), "values": (n,)}`, which
        SciPy, torch and JAX take without a copy. Row `i` is `values[indptr[i] : indptr[i + 1]]`. Other leaves are
        stacked as by `batch`. Values keep their dtype; `indptr` and `indices` have that of the columns where it is
        int32 or int64, else int64.

        Random access: kept. Order: kept. Memory: the number of values is not known ahead, so the vectors are arrays of
        their own, made anew for every batch, and not a part of `projected_nbytes`. Ranks take whole batches:
        `loader(shard="auto", whole_batches=True)`.

        Args:
            size: Elements a batch, at least 1.
            drop_remainder: Leave out a last batch that is short.

        Raises:
            ArgumentError: `size` is below 1.
            SpecError: When the spec is first needed: elements have no sparse rows, or other leaves of varying size.
                While reading, a row has another number of columns than of values.

        Example:
            >>> import scipy.sparse
            >>> matrix = scipy.sparse.csr_array(np.array([[0, 2, 0], [1, 0, 3]], "float32"))
            >>> batch = penstock.from_csr(matrix, dense=False).csr_batch(2)[0]
            >>> batch["indptr"].tolist(), batch["indices"].tolist(), batch["values"].tolist()
            ([0, 1, 3], [1, 0, 2], [2.0, 1.0, 3.0])
            >>> parts = batch["values"], batch["indices"], batch["indptr"]
            >>> scipy.sparse.csr_array(parts, shape=(2, 3)).toarray().tolist()
            [[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]]
        """
        count = integer("csr_batch", "size", size, least=1)
        return Dataset(RaggedBatch(loosened(self._node), count, drop_remainder, needed(CALLS, "csr_batch")()))

    def bucket_by_length(
        self,
        length_fn: Callable[[Any], Any] | None = None,
        boundaries: Sequence[int] | None = None,
        batch_sizes: Sequence[int] | None = None,
        *,
        lengths: "npt.ArrayLike | str | int | None" = None,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        cost: Callable[[Any, Any], Any] | None = None,
        padded_shapes: Tree = None,
        padding_values: Any = None,
        side: Literal["left", "right"] = "right",
        drop_remainder: bool = False,
    ) -> "Dataset":
        """Batches elements of similar length together, so that little is padded.

        With `lengths` there is random access, and a batch is `batch_size` elements, or as many as fit: their number
        times the longest is at most `max_tokens`. Batches are made within blocks of at most 65,536 elements, and come
        in the order of their first elements. `print(ds)` and the report say how much is padding.

        After a `shuffle` that differs from epoch to epoch, `lengths` are those of the elements before it. This step
        takes the shuffle over: elements trade places with others of similar length, batches come in a new order, and so
        do blocks. Which elements share a block stays, and so does the number of batches. After `shuffle(window=)` a
        block is neighbours; else it is a sample of all elements. Only `map` and `zip` may stand between.

        Without `lengths`, element lengths below `boundaries[0]` go to the first bucket, from there up to
        `boundaries[1]` to the second, and so on. A bucket that is full is the next batch; those left at the end are
        given shortest first. As before `padded_batch`, no `element_spec` is needed.

        Random access: kept with `lengths`, with a known length; else lost. Order: as above; else that in which buckets
        fill. Memory: 4 bytes an element for lengths, which workers share; and in each worker some 12 for each element
        of the blocks that it keeps (four, or all where the order stays). Without `lengths`, at most `sum(batch_sizes)`
        elements are held, beside the batches.

        Args:
            length_fn: `fn(element)`, an integer; runs on workers.
            boundaries: Ascending lengths.
            batch_sizes: Elements a batch, for each of the `len(boundaries) + 1` buckets.
            lengths: The length of each element, `(n,)`, in place of these three; or the key or place of a leaf, as for
                `pack`, which is read now. For elements of several sequences, that of the longest. With `max_tokens`, as
                for `batch`.
            batch_size: Elements a batch, with `lengths`, which may then be any measure that is worth sorting by.
                Another size is another order, which a state does not fit.
            max_tokens: The most tokens of a padded batch, with `lengths`. An element that is longer is an error where
                it is read, which `loader(on_error="skip")` leaves out; the log says how many there are.
            cost: `cost(rows, length)`, with `lengths` and `max_tokens`: what batches cost, an array `(n,)`, by their
                numbers of elements and their longest elements, int64 arrays `(n,)`. Batches that follow each other then
                cost about the same, so that ranks that take them by `loader(whole_batches=True)` wait little for each
                other. `operator.mul` is the number of tokens; attention may be `lambda rows, length: rows * (length +
                length**2 / 4096)`. Batches and their padding are the same as without it; their order is another.
            padded_shapes: As for `padded_batch`.
            padding_values: As for `padded_batch`.
            side: As for `padded_batch`.
            drop_remainder: Leave out batches that are short at the end.

        Raises:
            ArgumentError: Boundaries do not ascend, or there is not one size more than boundaries; or `length_fn` is
                `len`, and elements are tuples or dicts, whose own length that is. With `lengths`: not one of
                `batch_size` and `max_tokens`; or lengths are refused, as by `pack`.
            ElementError: While reading, with `max_tokens`: an element has more, or another length than `lengths` says.
            SpecError: As `padded_batch`.

        Example:
            >>> [batch.shape for batch in penstock.range(5).map(np.ones).bucket_by_length(len, [3], [3, 2])]
            [(3, 2), (2, 4)]
            >>> batches = penstock.range(5).map(np.ones).bucket_by_length(lengths=range(5), max_tokens=6)
            >>> len(batches), [batch.shape for batch in batches]
            (3, [(2, 1), (2, 3), (1, 4)])
        """
        padding = _batches.padding_of("bucket_by_length", padded_shapes, padding_values, side)
        return Dataset(
            _batches.bucket_by_length(
                self._node,
                length_fn,
                boundaries,
                batch_sizes,
                lengths,
                batch_size,
                max_tokens,
                cost,
                padding,
                drop_remainder,
            )
        )

    def unbatch(self) -> "Dataset":
        """Takes elements apart along their first axis; the opposite of `batch`.

        Arrays in memory and in `.npy` files are read by their rows, and so is a source with `unstacked`. That holds
        also after steps that only choose, order, combine, name or cast elements, such as `split`, `shuffle`,
        `ds[array]`, `concatenate` and `zip`: a row is then read alone, however large its element is.

        Random access: kept. Order: kept. Memory: one element of input a worker, where rows cannot be read alone, as
        after `map`. There, rows that are shuffled make their element anew, each of them: `flat_map`, and
        `shuffle(window=)` after it, make it once.

        Raises:
            SpecError: When the length or spec is first needed: leaves have no common first axis, or, with random
                access, a short batch may be anywhere. While reading: leaves have unlike numbers of rows.

        Example:
            >>> [int(x) for x in penstock.range(5).batch(2).unbatch()]
            [0, 1, 2, 3, 4]
        """
        return Dataset(Unbatch(self._node))

    def windows(
        self,
        length: "int | Mapping[str, Iterable[int]]",
        *,
        shift: int = 1,
        stride: int = 1,
        groups: "Labels | None" = None,
        tail: bool = False,
    ) -> "Dataset":
        """Looks at runs of `length` elements: element `i` is elements `i * shift + k * stride`, stacked.

        An element of shape `(height, width)` becomes `(length, height, width)`. Nothing is copied to make
        windows; each is read where it lies.

        With offsets by name, `{"image": [-1, 0], "action": range(16)}`, elements are dicts, and there is a window
        around each of them. A value with `k` offsets gets a new first axis, `(k, ...)`: it is that of the elements so
        far away. Values without offsets stay as they are. Beyond the edge of a group, the element at the edge comes
        again, and `element["is_pad"][name]`, bool `(k,)`, is True there. The values with offsets come last, before
        `is_pad`. This is what LeRobot calls delta timestamps, by position. Each value is read only where its own
        offsets lie. A function before it makes whole elements, so put `map` after it, where it gets the window.

        Random access, order: kept. Memory: none, or 24 bytes a group; and 8 bytes an element in each process, where
        elements of one group do not stand together.

        Args:
            length: Elements in a window; or offsets by name, which need random access.
            shift: How far a window starts after the one before.
            stride: How far apart the elements of a window are; not with offsets.
            groups: A label an element, `(n,)`; or the key or place of a leaf, which is read now, in blocks, as for
                `split`. All elements with one label are a group, wherever they stand, and a window is neighbours within
                a group, in their order. Windows come by group, the group of the first element first.
            tail: Where `shift` leaves elements over at the end of a group, a last window ends with them; it has
                elements in common with the one before. Groups shorter than a window have none. With offsets, the last
                element of each group has a window.

        Raises:
            ArgumentError: A number is below 1, labels do not fit, or there are offsets for a name that elements do not
                have.
            ArgumentTypeError: Offsets are no integers, or this is a stream, and there are groups or offsets.
            SpecError: When the spec is first needed: elements do not have one shape.

        Example:
            >>> [w.tolist() for w in penstock.range(5).windows(3)]
            [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
            >>> frames = penstock.from_arrays({"image": np.arange(6), "action": np.arange(6) * 10})
            >>> clip = frames.windows({"image": [-1, 0], "action": range(3)}, groups=[0, 0, 0, 0, 1, 1])[4]
            >>> clip["image"].tolist(), clip["action"].tolist()
            ([4, 4], [40, 50, 50])
            >>> clip["is_pad"]["image"].tolist(), clip["is_pad"]["action"].tolist()
            ([True, False], [False, False, True])
        """
        return Dataset(_windows.windows(self._node, length, shift, stride, groups, tail))

    def group_by(self, key: "Labels") -> "Dataset":
        """Makes one element of all elements that have the same label, wherever they stand.

        A leaf of shape `(3,)` becomes `(None, 3)`, as long as its group. Groups come in the order of their first
        elements, and elements in their own order. If elements are dicts and `key` is a name, that value stays a single
        one: it is the same in the whole group, and `join` finds the group by it. `padded_batch` makes batches of
        groups.

        Random access: kept, and needed. Order: kept. Memory: 8 bytes a group; 8 bytes an element in each process, where
        elements of one group do not stand together; and a place for the largest group, in each slot or worker.

        Args:
            key: The key or place of a leaf that is the label, which is read now, in blocks, and where a source can do
                so without the others; or a label an element, `(n,)`.

        Raises:
            ArgumentError: Labels are of another number, or there is no such leaf; or a shuffle before it changes the
                order in each epoch.
            ArgumentTypeError: It is a stream.
            SpecError: When the spec is first needed: elements do not have one shape.

        Example:
            >>> visits = penstock.from_arrays({"user": np.array([7, 9, 7]), "page": np.array([1, 2, 3])})
            >>> [(int(one["user"]), one["page"].tolist()) for one in visits.group_by("user")]
            [(7, [1, 3]), (9, [2])]
        """
        require_random(self._node, "group_by()", "Bring neighbours together in the generator")
        require_finite(self._node, "group_by", "Use take(n) first.")
        caution_windows(self._node, "group_by()")
        return Dataset(groups_of(self._node, key))

    def join(self, other: "Dataset", on: On, *, how: Literal["left", "inner"] = "left", fill: Any = None) -> "Dataset":
        """Adds the values of the element of another dataset that has the same key.

        Elements of both are dicts. The key of an element of `other` comes once; here it may come often. Values of the
        other element are added, without its key, and read by random access when they are needed. For several elements
        with one key, join their group: `other.group_by("user")`.

        Keys of 65,536 elements or more that are in files (JSON lines, tables, records) are kept in a hidden file beside
        the first of these, as an index of lines is. Another process or run reads that, until one of the files changes.
        Keys that a function makes are read anew.

        Random access: kept, and needed in both. Order: kept. Memory: 8 bytes an element in each process, or 16 with
        `how="inner"`; while it is called, the keys of both.

        Args:
            other: The other dataset. What is random in it is drawn anew each epoch, but its order must stay.
            on: The name of the key; several names, where one value is no key; or names here and there,
                `{"user": "id"}`. Keys are integers, bools, text or bytes. They are read now, in blocks, and where a
                source can do so without the other leaves.
            how: "inner" leaves out elements whose key the other dataset lacks.
            fill: The values where the other dataset lacks the key: one for all leaves, or by name,
                `{"age": -1, "name": "nobody"}`; 0 and empty text for names that it lacks. Axes of any size are empty
                then. Without it, such a key is an error.

        Raises:
            ArgumentError: The other dataset lacks a key, or has one twice; keys are of unlike kinds, or no keys; there
                is no such name, or both have it; the length of one is unknown, or a shuffle changes its order in each
                epoch.
            ArgumentTypeError: `other` is no dataset, one of the two is a stream, or `on` is no name.

        Example:
            >>> visits = penstock.from_arrays({"user": np.array([7, 9, 7]), "page": np.array([1, 2, 3])})
            >>> users = penstock.from_arrays({"id": np.array([9, 7]), "age": np.array([30, 40])})
            >>> [int(one["age"]) for one in visits.join(users, on={"user": "id"})]
            [40, 30, 40]
        """
        if not isinstance(other, Dataset):
            raise ArgumentTypeError(
                f"join() takes another dataset, got {type_of(other)}: from_arrays({{...}}) makes one."
            )
        for each in (self, other):
            require_random(each._node, "join()", "Look keys up in a map(): lambda x: table[x['key']]")
            require_finite(each._node, "join", "Use take(n) first, or join() before repeat().")
        return Dataset(joined(self._node, other._node, on, how, fill))

    def positions_of(self, keys: "npt.ArrayLike", *, on: str | int) -> Indices:
        """Finds elements by their keys: `ds[ds.positions_of(keys, on="id")]` are these elements, in this order.

        A key comes once here, and may be asked for several times. For all elements with one key, look for their group:
        `ds.group_by("user")`. Keys are read now, and kept as those of `join` are.

        Random access: needed. Memory: while it is called, the keys of all elements.

        Args:
            keys: One key, or an array or list of any shape: integers, bools, text or bytes.
            on: The name or place of the leaf that has them.

        Returns:
            A position for each key, int64, of the shape of `keys`.

        Raises:
            ArgumentError: An element with a key is missing: names the key, and some that are like it; or two elements
                have the same; keys are of another kind than the leaf; the length is unknown, or a shuffle changes the
                order in each epoch.
            ArgumentTypeError: It is a stream.

        Example:
            >>> users = penstock.from_arrays({"id": np.array(["b7", "a9", "c1"]), "age": np.array([30, 40, 50])})
            >>> [int(user["age"]) for user in users[users.positions_of(["c1", "b7"], on="id")]]
            [50, 30]
            >>> int(users[users.positions_of("a9", on="id")]["age"])
            40
        """
        require_random(self._node, "positions_of()", "Choose as they come: filter()")
        require_finite(self._node, "positions_of", "Use take(n) first, or positions_of() before repeat().")
        return positions_of(self._node, keys, on)

    def patches(
        self,
        shape: "int | tuple[int, ...]",
        *,
        stride: "int | tuple[int, ...] | None" = None,
        axes: "int | tuple[int, ...] | None" = None,
    ) -> "Dataset":
        """Cuts an array into patches: windows over several axes at once.

        The array has the elements as its first axis: `from_npy` of a file of shape `(400, 512, 512)` has axes 0, 1 and
        2. `patches((16, 64, 64))` has elements of that shape; with `axes=(1, 2)`, `patches((64, 64), axes=(1, 2))` cuts
        each element. An axis that is not named stays whole, but for the first, of which a patch then has one place and
        no axis. Patches stand in the order of their places, the last axis fastest. What remains at an end is left out.

        It comes directly after the data, or after `zip` of arrays of one shape, because it reads the parts alone: from
        memory and `.npy` files in place, from HDF5 and Zarr by chunks. For patches at random places in each epoch take
        some of all: `patches(shape, stride=1).shuffle(seed=1).take(n)`.

        Random access: kept. Memory: of chunked data two boxes of chunks a process, each with all chunks that the
        patches have which begin in one chunk; no patch is kept.

        Args:
            shape: The size of a patch along each of the axes.
            stride: How far a patch begins after the one before, along each of the axes. None for the size, so that
                patches tile the array.
            axes: The axes of the array. None for the first ones.

        Raises:
            ArgumentError: Another step is before it, numbers do not fit the array, or its parts cannot be read alone.
            ArgumentTypeError: An argument is no integer, and no tuple of them.

        Example:
            >>> tiles = penstock.from_arrays(np.arange(24).reshape(4, 6)).patches((2, 3))
            >>> tiles[3].tolist()
            [[15, 16, 17], [21, 22, 23]]
            >>> len(tiles)
            4
        """
        return Dataset(patched(self._node, shape, stride, axes))

    # Keeping.

    def cache(
        self, path: str | os.PathLike[str] | None = None, *, limit: int | None = None, key: str | None = None
    ) -> "Dataset":
        """Keeps elements once they were made, on disk or in memory.

        Elements are kept as they are asked for, in any order, by any worker, and read from there after. On disk they
        stay for the next run; several processes may share them. A cache is bound to the steps before it:
        to the code, constants and variables of functions, to path, size, time of change and some content of files, and
        to the contents of arrays. If one of these changes, a new cache begins, and the log names the change. Files that
        a function opens by itself are not seen.

        A process may be killed at any moment, the disk may be full: what is read is right, and what could not be kept
        is made again in each epoch.

        Random access, order: kept. It holds epoch 0. A stream is kept once it was read from beginning to end. The
        dataset then has random access and a length: in memory at once, with the steps that are added from then on; on
        disk from the next run on. Memory: on disk 1 byte an
        element a process (17 where elements have no fixed size); in memory all elements, or `limit`.

        Args:
            path: A directory, made if need be. Elements of fixed size lie in `.npy` files in it. None for memory,
                which all workers share, and which goes with this dataset.
            limit: Bytes that may be taken; elements that do not fit are not kept.
            key: Says what the dataset is, in place of what is before it; for what cannot be looked into, such as a
                `tf.data.Dataset`. You change it when that changes.

        Raises:
            ArgumentError: A step before it gives other elements, or another order, in each epoch; or it is endless.
            ArgumentTypeError: A function holds a value without a fingerprint, such as an open file.
            SourceError: While reading, the directory cannot be used.

        Example:
            >>> squares = penstock.range(4).map(lambda x: x * x).cache("squares")
            >>> [int(x) for x in squares], [int(x) for x in squares]
            ([0, 1, 4, 9], [0, 1, 4, 9])
        """
        if limit is not None:
            limit = integer("cache", "limit", limit, least=1)
        return Dataset(cached(self._node, path, limit, key))

    def materialize(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | None = None,
        progress: Callable[[int, int | None], None] | None = None,
        **loader_options: Any,
    ) -> "Dataset":
        """Keeps all elements on disk now, in parallel, and returns them: like a file, with random access.

        What `cache(path)` has kept there is used, and the other way round. If it is interrupted, it goes on from
        there when it is called again; a stream begins anew.

        Args:
            path: As for `cache`.
            key: As for `cache`. Into a new folder none is needed; but what cannot be looked into is not found again.
            progress: `progress(done, total)`, called now and then; `total` is None where it is not known. Without it
                there is a line on stderr, if that is a terminal.
            loader_options: As for `loader`.

        Raises:
            SourceError: Not all elements could be kept.
            ArgumentError, ArgumentTypeError: As `cache`.

        Example:
            >>> kept = penstock.from_generator(lambda: iter(np.arange(5))).materialize("numbers")
            >>> kept.access, len(kept), int(kept[3])
            ('random', 5, 3)
        """
        return Dataset(materialized(self._node, path, key, progress, loader_options))

    def reduce(
        self,
        fn: Callable[[Any, Any], Any],
        initial: Any,
        *,
        combine: Callable[[Any, Any], Any] | None = None,
        path: str | os.PathLike[str] | None = None,
        key: str | None = None,
        progress: Callable[[int, int | None], None] | None = None,
        **loader_options: Any,
    ) -> Any:
        """Folds all elements of epoch 0 into one value, now: `fn(fn(fn(initial, e0), e1), e2)` and so on.

        Without `combine`, workers make the elements, and `fn` gets them in order, in this process. The result is that
        of `functools.reduce(fn, dataset, initial)`.

        With `combine`, workers run `fn` as well. Each folds a block of 64 neighbours, from `initial` on, and the states
        of the blocks are combined here, the first block first. So `initial` is counted once a block: it must be such
        that `combine(initial, state)` is `state`. Blocks do not depend on workers, so the result is the same in every
        run, to the bit, for any executor and any number of workers.

        `initial` itself is not changed: `fn` may change its state in place, and return it.

        Memory: a loader's, and with `combine` a state for each block under way.

        Args:
            fn: `fn(state, element)`; returns the next state. Elements are as in `for element in dataset`.
            initial: The state before the first element. With `combine`, it and all states travel as pickles.
            combine: `combine(state, later_state)`; returns the state of both.
            path: A file in which the result is kept. It is read from there as long as `fn`, `initial`, `combine` and
                the steps before are the same, see `cache`. Only numbers, text, arrays, and dicts, lists and tuples of
                them can be kept. A result that cannot be written is returned all the same, and the log says why. None
                keeps nothing.
            key: As for `cache`.
            progress: As for `materialize`.
            loader_options: As for `loader`, without `shard`; of a part in each process, use `ds.shard(index, count)`.
                An element that fails is left out by `on_error="skip"`. `"replace"` counts another one twice. A result
                that is kept is one of this `on_error`.

        Raises:
            ArgumentError: The dataset is endless, or a `shard` was given.
            ArgumentTypeError: A function cannot be called, `initial` cannot be kept, or as `cache`.
            ElementError: `fn` raised, whatever `on_error`; names the element. Its own exception is the `__cause__`.
            SourceError: The file is of something else, cannot be read, or may be another user's.

        Example:
            >>> penstock.range(5).reduce(lambda total, x: total + int(x), 0)
            10
            >>> def count(counts, label):
            ...     return counts | {int(label): counts.get(int(label), 0) + 1}
            >>> def add(counts, more):
            ...     return counts | {label: counts.get(label, 0) + n for label, n in more.items()}
            >>> penstock.from_arrays(np.array([0, 1, 1, 2, 1])).reduce(count, {}, combine=add)
            {0: 1, 1: 3, 2: 1}
        """
        first: Any = fn
        if not callable(first) and callable(initial):  # as in tf.data
            name, start = function_name(initial), f"{first!r:.40}"
            raise ArgumentTypeError(
                f"reduce({start}, {name}): the function comes first, as in functools.reduce: reduce({name}, {start})."
            )
        for function in (fn, combine) if combine is not None else (fn,):
            require_function("reduce", function)
        return reduced(
            self._node, fn, initial, caller(), combine=combine, path=path, key=key, progress=progress,
            options=loader_options,
        )  # fmt: skip

    # Running.

    def loader(
        self,
        executor: Literal["auto", "inline", "threads", "processes", "ray"] = "auto",
        workers: int | Literal["auto"] = "auto",
        prefetch: int = 4,
        memory_limit: int | None = None,
        timeout_s: float = 300.0,
        on_error: Literal["raise", "skip", "replace"] = "raise",
        shard: "Shard" = None,
        max_errors: int | float | None = None,
        quarantine: str | os.PathLike[str] = "penstock-quarantine.jsonl",
        ray_options: Mapping[str, Any] | None = None,
        *,
        uneven: Uneven = "refuse",
        micro_batches: int = 1,
        whole_batches: bool = False,
        batch_axis: Tree = None,
    ) -> Loader:
        """Makes what runs this dataset: workers that fill batches ahead, in memory that is reused.

        Only `on_error`, `shard`, `uneven`, `micro_batches`, `whole_batches` and `batch_axis` change what is delivered.

        Args:
            executor: `"processes"` for Python functions, which hold the GIL. `"threads"` for reads, and for
                functions that release the GIL. `"inline"` runs without workers, on the caller's thread. `"auto"` takes
                processes if the plan has a function that can travel to another process, else threads; a generator that
                can travel is then read in one process of its own. Once `cache`
                holds all results of those functions, `"auto"` goes on with threads. `"ray"` runs worker processes on
                each node of a Ray cluster, and needs Ray (extra `ray`); see the page "Decode on a Ray cluster".
            workers: Number of threads or processes. `"auto"` is the number of CPUs that this process may use, and at
                least eight threads if they wait for a server, as for files behind URLs. Loaders of one process share
                one pool of worker processes, as large as the largest request. On Ray it is the number for each node,
                and `"auto"` takes the CPUs that are free there.
            prefetch: Batches that are ready or being filled while you work on one. There are `prefetch + 2`
                slots.
            memory_limit: Limit in bytes for `projected_nbytes`. With worker processes, the overhead counts too: 48 MiB,
                and 45 MiB a process. What is left beside the ring, divided by the workers, and 64 MiB at least, is what
                each process may reserve for elements, and 1 GiB more for what functions import. Without a limit it is
                half of the memory that is free. An element that needs more is an error that names it.
            timeout_s: Seconds that a worker may spend on an element without progress. A process is then killed and its
                work is redone. The second time is an error that names the element. A thread cannot be killed: the
                error comes at once.
            on_error: What happens to an element that fails: its file is broken, a function raises, or worker processes
                die of it. An element is what goes into a batch, such as an image with its label. `"raise"` delivers
                the error in place of the batch. `"replace"` delivers the next good element of the same batch instead:
                shape, number and order of the others stay. (After a `filter` the element is left out.) `"skip"`
                leaves the element out: later elements fill the batch, the length is unknown, and the loader is a
                stream. An error of a generator ends it; see the page "Go on when an element is broken".
            shard: The share of the rows of every batch that is delivered: `(index, count)`. `"auto"` finds rank and
                world size: in Ray Train, `torch.distributed` or JAX, where these are initialized; else in `RANK` and
                `WORLD_SIZE`, or the variables of `srun`; else it is `(0, 1)`. A `DeviceMesh` of torch, such as
                `mesh["dp"]`, is the place of this rank in it. None is `(0, 1)`, with a warning in the log if there are
                other ranks.
            max_errors: Number of elements that may fail, or a fraction (a float) of those of an epoch. One more is an
                error. An element that fails in every epoch counts once. For streams whose order changes, each epoch
                counts alone. None for any number.
            quarantine: File to which each failed element is appended, as one line of JSON: its run, origin (file,
                index), epoch, step, exception and traceback. `replay` runs them again, each once. The file is made at
                the first failure.
            ray_options: For `"ray"`: options of Ray's actors, for the agent on each node: `num_cpus`, `resources`,
                `label_selector`, `runtime_env`. A node without these resources or labels gets no agent.
            uneven: What happens if shares of a batch cannot be equal. `"refuse"` is an error. With the others, what
                arrives is a pair: the rows, and an array with a number for each of them. `"weights"` shares rows as
                evenly as possible. The weights are float32, such that the mean over the ranks of `mean(weights * loss)`
                is the mean over the batch. `"mask"` is for evaluation, and for frameworks that need one shape: every
                share of every batch, also of a short last one, is filled up to one size, and the mask, of bool, is
                False for rows that fill up. `"pad"` is for `whole_batches`.
            micro_batches: In how many equal parts each batch arrives, one after the other, for the accumulation of
                gradients. A state counts whole batches: after some of the parts, that batch comes again.
            whole_batches: Gives ranks whole batches in turn, in place of a share of the rows of each: for batches of
                unequal or unknown size. At each step rank `index` of `count` gets batch `position + index`. With
                `micro_batches=k` a step is `k` whole batches of each rank, one after the other: of rank `index` those
                with the numbers `position + index`, `position + count + index`, and so on. A state counts the batches
                of all ranks, so another number of ranks goes on exactly. Every rank makes the same number of steps. At
                the end of an epoch, batches that are too few for a step are left out. With `uneven="pad"` what arrives
                is a pair: the batch, and its weight, a float32 of shape `()`. It is 1, and in the last step such that
                the mean over the step of `weight * loss` is the mean over its batches. Ranks without a batch there get
                the last batch once more, with the weight 0. Of a stream, each rank reads everything and leaves out the
                batches of others, and the elements of a step wait in memory; it takes no `"pad"` unless its length is
                known.
            batch_axis: The axis along which `shard` and `micro_batches` divide a batch: one for all leaves, or a tree
                of integers like the batch. None is the first; then a batch of `batch(n)` is refused if a function moved
                `n` to another axis, as far as sizes tell: where both axes have one size, they do not. With another axis
                leaves arrive as views that are not contiguous, and a batch is copied once more. `whole_batches` divides
                nothing, and needs no axis.

        Raises:
            ArgumentError: An option has no meaning, the dataset is empty, shards do not divide the batch, or
                `threads` was asked for and a function draws from global generators.
            TravelError: `processes` was asked for, and a function holds an object that cannot go to another process,
                such as a lock. Names the variable.
            MemoryLimitError: `memory_limit` is too low. Names the largest part and a size that fits.

        Example:
            >>> with penstock.range(6).batch(4).loader() as loader:
            ...     [batch.tolist() for batch in loader]
            [[0, 1, 2, 3], [4, 5]]
        """
        if shard is None:
            warn_of_missing_shard("loader")
        share = shard_of(shard)
        return Loader(
            self._node,
            LoaderOptions(
                executor,
                workers,
                prefetch,
                memory_limit,
                timeout_s,
                on_error,
                share,
                max_errors,
                quarantine,
                ray_options,
                uneven,
                micro_batches,
                whole_batches,
                batch_axis,
            ),
        )

    def check(
        self, limit: int | None = None, *, executors: Sequence[str] = EXECUTORS, timeout_s: float = 300.0
    ) -> CheckResult:
        """Runs epoch 0 once, in parallel and without training, and reports problems. Print the result.

        The result lists:

        - elements that fail, with file and step, and elements that differ from `element_spec`
        - functions and `from_source` objects whose second result differs, or which reuse the memory of a result
        - differences between executors, in the first 64 elements
        - functions that draw from global generators, keep their input, or cannot go to worker processes

        Functions are called twice on a few elements in this process, and sources are read here.

        Memory: a loader's, and 50 bytes an element.

        Args:
            limit: Number of elements to check (batches, after `batch()`). Elements that a stream read ahead count too.
            executors: Executors that are compared with the first; `()` for none.
            timeout_s: As for `loader`. An element on which a worker process makes no progress fails.

        Raises:
            ArgumentError: The dataset is empty, or endless and there is no `limit`.

        Example:
            >>> result = penstock.range(10).map(lambda x: 1 // (x - 3) if x != 3 else 1 / 0).check(executors=())
            >>> result.ok, [(each.step, each.index, each.exception) for each in result.bad]
            (False, [('map(<lambda>)', 3, 'ZeroDivisionError')])
        """
        if limit is not None:
            limit = integer("check", "limit", limit, least=1)
        return check(self._node, limit, executors, timeout_s)

    def to_keras(
        self, *, class_weight: dict[int, float] | None = None, training: bool = True, **loader_options: Any
    ) -> "KerasAdapter":
        """Makes what `fit`, `evaluate` and `predict` of Keras 3 take, on TensorFlow, JAX and torch.

        Elements of the dataset are batches: `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` may be a dict. The
        first axis of every leaf is the batch. Where `zip` puts batches of several sizes side by side, for a
        `train_step` of your own, each leaf has its own. Batches of `padded_batch` and `bucket_by_length` may each have
        a length of their own; JAX then compiles the model anew for each new length, so give it few, by `padded_shapes`.

        Args:
            class_weight: A weight for each label, an integer, a bool or one-hot, applied as sample weights. Other
                targets are refused: by their shape here, by their values in the batch that has them.
                `fit(class_weight=)` would be dropped by Keras, and is refused.
            training: Whether epochs advance. False for validation, where every pass is epoch 0.
            loader_options: As for `loader`. With `uneven=`, elements have targets. Its weights are sample weights,
                times those of elements and classes if there are any. Rows that only fill up are left out, unless the
                devices of `keras.distribution` need them. Then sample weights make the loss and `weighted_metrics`
                right.

        Raises:
            SpecError: Elements are not batches, or not one of the three forms, or of a dtype that the backend lacks.
                For training, also a dict that has the targets among the inputs: names the pair to write.
            ArgumentError: Batches are so small that `uneven="mask"` leaves this shard none, or as `loader`.
        """
        with needs(
            "to_keras", "keras", "tensorflow", more=" On torch or JAX, say so: KERAS_BACKEND=torch in the environment."
        ):
            adapt = needed(CALLS, "to_keras")
        adapter: KerasAdapter = adapt(self._loader_of("to_keras", loader_options, training), class_weight=class_weight)
        return adapter

    def to_torch(
        self, *, pin_memory: bool = False, device: Any = None, training: bool = True, **loader_options: Any
    ) -> "TorchAdapter":
        """Makes what a PyTorch loop iterates: batches of tensors that share the loader's memory.

        Works in a plain loop, in Lightning, and as `DataLoader(adapter, batch_size=None)`. One iteration is one epoch
        of `adapter.loader`. For torch's own workers there is `penstock.adapters.torch.MapDataset`.

        Structure and dtypes: the dataset's; text and bytes stay NumPy arrays. Memory: the loader's slots, and on a
        device two batches.

        Args:
            pin_memory: Page-locks the loader's slots, so that copies to a device can be asynchronous. Without a CUDA
                device it does nothing, with a warning, as in torch.
            device: Where tensors arrive, such as `"cuda"`: copied one batch ahead, on a stream of their own. None for
                the CPU, where nothing is copied. Never run on a CUDA device: tests use stand-ins for its calls.
            training: Whether epochs advance. False for validation, where every pass is epoch 0.
            loader_options: As for `loader`.

        Raises:
            SpecError: A leaf is of a dtype that torch does not have; names the leaf and the cure.
            ArgumentError: The device is not there, or as `loader`.

        Example:
            >>> with penstock.range(5).batch(2).to_torch() as adapter:
            ...     list(adapter)
            [tensor([0, 1]), tensor([2, 3]), tensor([4])]
        """
        with needs("to_torch", "torch"):
            adapt = needed(CALLS, "to_torch")
        loader = self._loader_of("to_torch", loader_options, training)
        adapter: TorchAdapter = adapt(loader, pin_memory=pin_memory, device=device)
        return adapter

    def to_jax(
        self,
        *,
        device: Any = None,
        sharding: Any = None,
        prefetch_to_device: int | None = None,
        training: bool = True,
        **loader_options: Any,
    ) -> "JaxAdapter":
        """Makes what a JAX loop iterates: batches of `jax.Array`, on their devices before they are asked for.

        One iteration is one epoch of `adapter.loader`. On a CPU arrays share the loader's memory where JAX takes it.

        With a `sharding` each batch is one global array over its devices. Where these belong to several processes,
        each process makes the same adapter and reads the rows of its own devices: the loader's `shard` follows from
        the sharding.

        Structure: the dataset's. Dtypes: while JAX's 64-bit numbers are off, leaves of 64 bits arrive with 32, and
        `adapter.element_spec` says so; an integer that does not fit is an error. Memory: the loader's slots, and on a
        device `prefetch_to_device` batches and the one in use.

        Args:
            device: A `jax.Device` for all arrays; None for JAX's default.
            sharding: A `jax.sharding.Sharding`, or a tree of them like the element; first axes are batches. With
                `uneven="mask"` batches are filled up to what it divides.
            prefetch_to_device: Batches that are on their way to the device while you work on one. None for 1, and for
                0 where the device is the CPU.
            training: Whether epochs advance. False for validation, where every pass is epoch 0.
            loader_options: As for `loader`.

        Raises:
            SpecError: A leaf is of a dtype that JAX does not have, or does not divide by its sharding; names the leaf
                and the cure.
            ArgumentError: `shard=` is not what the sharding asks of this process, or as `loader`.

        Example:
            >>> with penstock.range(5).batch(2).to_jax() as adapter:
            ...     [int(batch.sum()) for batch in adapter]
            [1, 5, 4]
        """
        with needs("to_jax", "jax"):
            adapt = needed(CALLS, "to_jax")
        adapter: JaxAdapter = adapt(
            self._node,
            _options("to_jax", loader_options, training=training and sharding is None),
            device=device,
            sharding=sharding,
            prefetch_to_device=prefetch_to_device,
            training=training,
            has_shard=loader_options.get("shard") not in (None, "auto"),
        )
        return adapter

    def to_tf(self, *, training: bool = True, **loader_options: Any) -> Any:
        """Makes a `tf.data.Dataset`, with static shapes and known cardinality, and an attribute `loader`.

        `get_state`, `set_state`, `report`, `counters` and `close` of that loader are methods of it, too.

        Each iteration of it is the next epoch of the loader, or the rest of one after `loader.set_state`. Text becomes
        `tf.string`, an axis of `None` stays one. What `map`, `prefetch` and the like make of it has no such attribute.
        One iterator lives at a time, as of a loader: an older one raises.

        Order: kept. Memory: the loader's slots. On a CPU tensors share a slot's memory, which comes back when
        TensorFlow drops them. An error arrives as TensorFlow's own, `tf.errors.OpError`, with ours in its text.

        Args:
            training: Whether epochs advance. False for validation, where every pass is epoch 0.
            loader_options: As for `loader`.

        Raises:
            SpecError: A leaf has a dtype that TensorFlow does not know.
        """
        with needs("to_tf", "tensorflow"):
            adapt = needed(CALLS, "to_tf")
        return adapt(self._loader_of("to_tf", loader_options, training))

    def to_ray(self, *, override_num_blocks: int | None = None) -> Any:
        """Makes a `ray.data.Dataset` of the elements of epoch 0, whose read tasks are ranges of positions.

        A row of it is an element. Its columns are the leaves: named by their keys, joined by dots, or `item` for a
        lone array. Order: kept, by `preserve_order`. Memory: Ray's; each task makes blocks of 32 MiB. Functions run in
        Ray's tasks. To train on what they give, `executor="ray"` saves a copy and keeps the state of the run.

        Args:
            override_num_blocks: The number of read tasks; Ray chooses one by default.

        Raises:
            UnknownLengthError: It is a stream, or endless.
            TravelError: A function holds an object that cannot travel. Names the variable.
        """
        with needs("to_ray", "ray[data]"):
            adapt = needed(CALLS, "to_ray")
        return adapt(self._node, override_num_blocks)

    def _loader_of(self, call: str, options: dict[str, Any], training: bool) -> Loader:
        return Loader(self._node, _options(call, options, training=training), same_epoch=not training)


def _told(node: Node, name: str) -> list[Any]:
    """The distinct values that the sources of a plan have under a name. None counts only if no source has a value."""
    sources = {id(each.opens): each.opens for each in walk(node, history) if each.opens is not None}
    asked = [getattr(source, name, NotImplemented) for source in sources.values()]
    known = [value for value in asked if value is not NotImplemented]
    told = [value for value in known if value is not None] or known
    return told[:1] + [value for value in told[1:] if value != told[0]]


def _options(call: str, options: dict[str, Any], *, training: bool) -> LoaderOptions:
    """The options of an adapter's loader; a missing share of the rows is noticed."""
    if training and options.get("shard") is None:
        warn_of_missing_shard(call)
    return LoaderOptions(**options | {"shard": shard_of(options.get("shard"))})


def _slice_text(index: slice) -> str:
    ends = ["" if end is None else str(end) for end in (index.start, index.stop)]
    return ":".join(ends if index.step is None else [*ends, str(index.step)])
