"""Datasets of data, and of other datasets."""

import builtins
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.base import _tree
from penstock.base._arguments import as_float, as_int, items_of
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._extensions import array_of, made_of
from penstock.base._positions import as_values, by_position, require_order, with_columns
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.plan._cautions import caution_absent
from penstock.plan._combine import Concatenate, Interleave, Zip
from penstock.plan._mix import Mix
from penstock.plan._node import POSITION_LIMIT, Node
from penstock.plan._ragged import Ragged
from penstock.plan._source import Source, SourceAdapter
from penstock.plan._source_node import SourceNode
from penstock.plan._stream import Generate, Promised
from penstock.plan._text import length_text
from penstock.run._options import MOST_WORKERS
from penstock.sources import arrays, files, generators
from penstock.sources.runs import RunSource, as_offsets
from penstock.verbs._asked import caller, integer

MOST_WEIGHT: Final = 1e300
"""Weights of `mix` are below it, so that the sum of many is finite."""


def from_arrays(tree: Tree) -> Dataset:
    """Makes a dataset of the rows of arrays, side by side in the given tree.

    A leaf may be a NumPy array, a memmap or a view of one (read from its file, as in `from_npy`), an `h5py.Dataset` or
    a `zarr.Array` (reopened in each process), or a list of numbers. Nothing is copied.

    A leaf may also be a column or a table of pandas, Polars or Arrow. A table is a dict of its columns, as its elements
    are; for rows that are arrays give `table.to_numpy()`. Rows are taken by position, whatever their labels, and the
    index of pandas is left out. Text is copied into an array of text, and categories become their values.

    Elements of several lengths lie end to end: of `Ragged(values, offsets)`, element `i` is rows `[offsets[i],
    offsets[i + 1])` of `values`, `(None, ...)`. `values` are what a leaf may be, so also a memmap that is larger than
    memory. `ragged_batch`, `padded_batch` and `pack` take them; lengths for the latter are `np.diff(offsets)`.

    After the first read an HDF5 file stays open for reading while the dataset or a loader of it lives, and h5py refuses
    to write to it from the same process.

    Random access: yes. Memory: none besides your arrays.

    Args:
        tree: A tree of arrays with first axes of the same length.

    Raises:
        ArgumentTypeError: A leaf is no array, has no first axis, has masked items, lacks values, holds Python objects,
            or is a group of named arrays, such as a group of HDF5 or an archive from `np.load`.
        SpecError: Values of an HDF5 or Zarr array have no fixed size, and are no text.
        ArgumentError: Leaves have different lengths; all are listed. Or offsets descend, or end behind the last row.

    Example:
        >>> ds = penstock.from_arrays({"x": np.eye(3), "y": np.arange(3)})
        >>> ds[1]
        {'x': array([0., 1., 0.]), 'y': np.int64(1)}
        >>> [part.tolist() for part in penstock.from_arrays(penstock.Ragged([7, 8, 9], [0, 2, 2, 3]))]
        [[7, 8], [], [9]]
    """
    leaves, structure = _tree.flatten_until(with_columns(tree), lambda part: isinstance(part, (list, Ragged)))
    nodes: list[Node] = [
        SourceNode(_array_source(leaf, place), "from_arrays") for leaf, place in placed_leaves(leaves, structure)
    ]
    return side_by_side("from_arrays", nodes, structure)


def _array_source(leaf: Any, place: str) -> Source:
    if isinstance(leaf, Ragged):
        inner = _array_source(leaf.values, f"{place}.values")
        return RunSource(inner, as_offsets(leaf.offsets, len(inner), f"from_arrays() at {place or 'the top'}"))
    if (made := array_of(leaf, place)) is not None:
        return made  # type: ignore[no-any-return]
    array = arrays.as_array(as_values(leaf, f"from_arrays() at {place or 'the top'}"), place)
    return files.from_memmap(array) or arrays.ArraySource(array)


def from_generator(
    fn: Any, *args: Any, element_spec: Tree = None, length: int | float | None = None, shards: int = 1
) -> Dataset:
    """Makes a stream of the elements of a generator, which starts again for each epoch.

    The generator runs in one place, beside your program. `map` after it runs on all workers, and keeps the order. So
    yield objects that are quick to get (indices, lines, paths, records), and leave the heavy part to `map`.

    Arguments are passed as they are: a memmap is not read, and an array is not copied. Elements are copied once, into
    the batch. They are trees of arrays, numbers and text, and may share one buffer.

    The generator is not passed the epoch, so it yields the same elements in each. `iter(ds)` of a dataset is epoch 0.
    `shuffle(window=)` after it has another order in each epoch. The global `np.random` and `random` are not seeded for
    it.

    Random access: none; a step that needs it reports that. Order: the generator's; with `shards`, one element of each
    in turn, for any number of workers. Memory: some batches of elements wait for the workers, counted in
    `loader.projected_nbytes`. Resuming starts the epoch again and skips the delivered elements: the generator runs for
    them, `map` does not.

    Args:
        fn: A generator function, or a function that returns an iterable (a file of lines, a database cursor); or an
            iterable that can be iterated again. With 2 `shards` or more, `fn(shard_index, shard_count, *args)`.
        args: Its arguments.
        element_spec: The spec of the elements, a tree of `ArraySpec`, with None for axes that differ. Without it the
            generator runs to its first element when the spec is first needed. An empty shard takes the spec of another.
        length: The number of elements of an epoch; `math.inf` for an endless one. Without it the length is unknown.
        shards: The number of generators that run at once, each in a worker process of its own, whose start takes
            about a second. If there are more of them than CPUs, `executor="auto"` takes threads. Generators that wait
            (for a disk, a server) are best run so: `loader(executor="threads")`.

    Raises:
        ArgumentTypeError: `fn` is an iterator, which cannot start again, or cannot be iterated.
        ArgumentError: `length` is negative, or `shards` is below 1 or above 4,096.
        ElementError: While reading: it raised an exception. The message has the number of the element.
        SpecError: While reading: an element differs from the first, or from the declared spec, or the number of
            elements differs from `length`.

    Example:
        >>> def count(start, stop):
        ...     yield from np.arange(start, stop)
        >>> [batch.tolist() for batch in penstock.from_generator(count, 3, 8).batch(2)]
        [[3, 4], [5, 6], [7]]
    """
    generators.require_again(fn)
    if length is not None and length != math.inf:
        length = integer("from_generator", "length", length, 0, most=None)
    where = caller()
    shards = integer("from_generator", "shards", shards, 1)
    if shards > MOST_WORKERS:
        raise ArgumentError(f"from_generator(shards={shards}): at most {MOST_WORKERS:,}, for each has a process.")
    if shards > 1 and not callable(fn):
        raise ArgumentTypeError(f"from_generator(shards={shards}) needs a function, got {type_of(fn)}.")
    arguments = [args] if shards == 1 else [(number, shards, *args) for number in builtins.range(shards)]
    nodes: list[Node] = [
        Generate(generators.GeneratorSource(fn, each, element_spec, arguments), "from_generator", where)
        for each in arguments
    ]
    node = nodes[0] if shards == 1 else Interleave(tuple(nodes), is_sharded=True)
    return Dataset(node if length is None else Promised(node, length, where))


def from_source(source: Any, *, element_spec: Tree = None, files_in: str | os.PathLike[str] | None = None) -> Dataset:
    """Makes a dataset of any object with a length and elements by index.

    Args:
        source: A `penstock.Source`; an object with its members (`element_spec`, `__len__`, `read_into` or `decode`, and
            any other); a `datasets.Dataset` of Hugging Face, which is read from its Arrow files; or any object with
            `__len__` and `__getitem__`, such as a list or a map-style torch dataset, which several threads read at
            once. A list of dicts in an element becomes a dict of arrays, as from JSON Lines. A column or a table of
            pandas, Polars or Arrow is read by position; a row of a table is a dict.
        element_spec: For an object with `__getitem__`: the spec of its elements, a tree of `ArraySpec`, with None for
            axes that differ. Without it element 0 is read once, when the spec is first needed.
        files_in: For a dataset of Hugging Face whose images or sounds are files beside it: the folder that has them.
            None for the folders of its Arrow files.

    Raises:
        ArgumentTypeError: It has no length, or no elements by index, or the index is a key, as of a dict.
        ArgumentError: `element_spec` is given for a source, which has its own.

    Example:
        >>> penstock.from_source([10, 20, 30])[1]
        np.int64(20)
        >>> sentences = [np.array([7, 8, 9]), np.array([7])]
        >>> ragged = penstock.from_source(sentences, element_spec=penstock.ArraySpec((None,), "int64"))
        >>> ragged.padded_batch(2)[0]
        array([[7, 8, 9],
               [7, 0, 0]])
    """
    if isinstance(source, Source) and files_in is None:
        return _own_spec(source, element_spec)
    if not isinstance(source, Source) and (made := made_of(source, files_in=files_in)) is not None:
        return _own_spec(made, element_spec)
    if files_in is not None:
        raise ArgumentError("from_source(files_in=) is for datasets of Hugging Face whose rows name files.")
    try:
        len(source)
    except TypeError as error:
        fact = f"from_source() needs an object with a length, got {type_of(source)}"
        if hasattr(source, "__len__"):
            fact += f", whose len() fails: {error}"
        elif hasattr(source, "__iter__"):
            fact += ". An iterable is a stream: from_generator(fn, *args)"
        if hasattr(source, "tocsr"):
            fact += ". Rows of a sparse matrix: from_csr(matrix.tocsr())"
        raise ArgumentTypeError(f"{fact}.") from error
    if hasattr(source, "element_spec") and (hasattr(source, "read_into") or hasattr(source, "decode")):
        return _own_spec(SourceAdapter(source), element_spec)
    if not hasattr(source, "__getitem__"):
        raise ArgumentTypeError(f"from_source() needs an object with read_into() or [i], got {type_of(source)}.")
    items = by_position(source)
    # A mapping, or a table of a library with the interface of pandas or Arrow.
    is_table = hasattr(items, "columns") and (hasattr(items, "iloc") or hasattr(items, "__arrow_c_stream__"))
    if is_table or callable(getattr(items, "keys", None)):
        raise ArgumentTypeError(
            f"from_source() asks for source[0], source[1], ..., and {type_of(source)} takes the index for a name. "
            "Its values one after the other are list(source.values()). Its values side by side, columns, go to "
            "from_arrays({'x': source['x'], 'y': source['y']}). If its [i] is a position after all: "
            "penstock.range(len(source)).map(lambda i: source[int(i)])."
        )
    declared = None if element_spec is None else Spec.of(element_spec)
    return Dataset(SourceNode(arrays.SequenceSource(items, declared), "from_source"))


def _own_spec(source: Source, element_spec: Tree) -> Dataset:
    if element_spec is not None:
        raise ArgumentError(
            f"from_source(element_spec=...) is for objects with [i]; {source} has its own spec: "
            f"{source.element_spec}. Leave it out; cast() and map() make others."
        )
    return Dataset(SourceNode(source, "from_source"))


def range(n: int) -> Dataset:
    """Makes a dataset of the integers `0 ... n - 1`, int64 scalars.

    Random access: yes. Memory: none.

    Raises:
        ArgumentError: `n` is negative, or not below 2**62.

    Example:
        >>> penstock.range(3)[-1]
        np.int64(2)
    """
    count = as_int(n)
    if count is None:
        raise ArgumentTypeError(f"range({n!r:.80}): an integer is needed, not {type_of(n)}.")
    if not 0 <= count < POSITION_LIMIT:
        raise ArgumentError(f"range({count}): from 0 up to 2**62 - 1 elements are possible.")
    return Dataset(SourceNode(arrays.RangeSource(count), "range"))


def zip(tree: Tree) -> Dataset:
    """Puts datasets side by side: element `i` is the tree of their elements `i`.

    Random access, order: kept. Memory: none. An endless dataset takes the length of the others. With a dataset of
    unknown length the result has unknown length, and ends with the shortest.

    Batches of several sizes may stand side by side, as `(unlabelled.batch(56), labelled.batch(8))`. A rank then gets
    its share of each, with `on_error` an element that fails is replaced or left out in its own batch, and one worker
    fills a batch.

    Args:
        tree: A tree of datasets: `(x, y)`, `{"image": images, "label": labels}`.

    Raises:
        ArgumentTypeError: A leaf is not a dataset.
        ArgumentError: Known lengths differ; all are listed.

    Example:
        >>> frames = penstock.range(4)
        >>> penstock.zip((frames[:-1], frames[1:]))[0]
        (np.int64(0), np.int64(1))
    """
    leaves, structure = _tree.flatten(tree)
    if not leaves:
        raise ArgumentError("zip() got no datasets.")
    return side_by_side("zip", _nodes("zip", leaves), structure)


def concatenate(datasets: Iterable[Dataset]) -> Dataset:
    """Puts datasets end to end. Parts that are concatenations themselves become one step.

    Random access, order: kept. Memory: none.

    Args:
        datasets: Datasets with elements of the same spec; only the last may be endless.

    Raises:
        ArgumentTypeError: An item is no dataset.
        ArgumentError: There is no dataset, or one before the last is endless.
        SpecError: When the spec is first needed: they differ.

    Example:
        >>> [int(x) for x in penstock.concatenate([penstock.range(2), penstock.range(3)])]
        [0, 1, 0, 1, 2]
    """
    nodes = _nodes("concatenate", datasets)
    for number, node in enumerate(nodes[:-1]):
        if node.length == math.inf:
            raise ArgumentError(
                f"concatenate(): dataset {number} is endless, so the next one is never reached. Cut it with take(n)."
            )
    # One step, also for repeated `ds = concatenate([ds, more])`.
    parts = ((node.inputs if node.verb == "concatenate" else (node,)) for node in nodes)
    return Dataset(Concatenate(tuple(itertools.chain.from_iterable(parts))))


def interleave(datasets: Iterable[Dataset], *, cycle_length: int | None = None, block_length: int = 1) -> Dataset:
    """Takes one element of each dataset in turn, until all are exhausted. Skips datasets that ended.

    `interleave([ds, ds.random_map(distort)]).batch(256)` makes batches half as they are, half distorted. With
    `cycle_length` and `block_length`, many files are read a few at a time.

    Random access: kept; lost with a `cycle_length` or a `block_length`, because the place of an element then depends on
    all lengths. Order: kept within each dataset. Memory: none.

    Args:
        datasets: Datasets with elements of the same spec.
        cycle_length: The number of datasets at a time. The next replaces one that ended. None for all.
        block_length: The number of elements of each turn.

    Raises:
        ArgumentTypeError: An item is no dataset.
        ArgumentError: There is no dataset, or a number is below 1.
        SpecError: When the spec is first needed: they differ.

    Example:
        >>> [int(x) for x in penstock.interleave([penstock.range(2), penstock.range(4)])]
        [0, 0, 1, 1, 2, 3]
    """
    if cycle_length is not None:
        cycle_length = integer("interleave", "cycle_length", cycle_length, 1)
    block_length = integer("interleave", "block_length", block_length, 1)
    return Dataset(Interleave(tuple(_nodes("interleave", datasets)), cycle_length, block_length))


def mix(
    datasets: Iterable[Dataset],
    weights: "Iterable[float] | Mapping[int, Iterable[float]]",
    seed: int = 0,
    *,
    temperature: float = 1.0,
) -> Dataset:
    """Mixes datasets in given proportions, until the turn of an exhausted one.

    In each block of 1,024 elements the share of each dataset is exact (rounded by largest remainder). The seed
    determines their order, which is the same in every epoch. Use `repeat()` to make a dataset last longer. A dataset
    whose weight is too small for one element of a block never has its turn, and the log says so.

    Weights may change: `{0: [9, 1], 100_000: [1, 1]}` has other weights from element 100,000 of an epoch on. In batches
    of 32 that is step 3,125. Before it nothing differs: the change cuts off the end of a block, and begins another. So
    a run may get weights for what is still to come: as such a dict, or by `loader.set_state(state, changed="mix")`.

    Random access, order within each dataset: kept; element `i` is found by arithmetic. Memory: none.

    Args:
        datasets: Datasets with elements of the same spec.
        weights: A number above zero for each dataset; the sum is free. Or such lists by the element from which they
            hold, the first by 0; there a dataset may have weight 0, but not in all.
        seed: Any integer.
        temperature: Weights are raised to `1 / temperature`: above 1, small datasets come more often than their weights
            say, up to equal parts (Arivazhagan and others, "Massively Multilingual Neural Machine Translation in the
            Wild", 2019). The sizes of corpora are such weights.

    Raises:
        ArgumentTypeError: An item is no dataset, or weights are no list of numbers.
        ArgumentError: The numbers of weights and datasets differ, a weight or the temperature is not above zero;
            or weights by element do not begin with 0.
        SpecError: A dataset without elements has a turn; where that shows only while iterating, then. Or, when the spec
            is first needed: they differ.

    Example:
        >>> mixed = penstock.mix([penstock.range(900), penstock.range(900)], [3, 1])
        >>> sorted(int(x) for x in mixed.take(1024)) == sorted([*np.arange(768), *np.arange(256)])
        True
        >>> parts = [penstock.range(1).map(lambda _, k=k: k).repeat() for k in (0, 1)]
        >>> later = penstock.mix(parts, {0: [1, 0], 500: [1, 1]})
        >>> [sum(int(x) for x in later[a:b]) for a, b in ((0, 500), (500, 1524))]
        [0, 512]
    """
    nodes, seed = tuple(_nodes("mix", datasets)), integer("mix", "seed", seed)
    power = as_float(temperature)
    if power is None or not 0 < power < math.inf:
        raise ArgumentError(f"mix(temperature={temperature!r:.80}): it is a number above zero; 1 keeps the weights.")
    text = "" if power == 1 else f", temperature={power:g}"
    # A dict of numbers is refused, for it has no order.
    if not isinstance(weights, Mapping) or not all(isinstance(each, Iterable) for each in weights.values()):
        shares = _shares(weights, nodes)
        return _mixed(Mix(nodes, ((0, _tempered(shares, power)),), seed, f"{list(shares)}{text}"))
    stages: dict[int, tuple[float, ...]] = {}
    for start, each in weights.items():
        stages[integer("mix", "weights", start)] = _shares(each, nodes, least=0)
    if 0 not in stages:
        raise ArgumentError(
            f"mix(weights={{...}}): lists of weights are by the element from which they hold, and element 0 has none; "
            f"there are {sorted(stages)!r:.80}."
        )
    if unused := [
        number for number, column in enumerate(builtins.zip(*stages.values(), strict=True)) if not any(column)
    ]:
        raise ArgumentError(f"mix(weights={{...}}): dataset {unused[0]} has weight 0 in all of them. Leave it out.")
    ordered = sorted(stages.items())
    shown = f"{', '.join(f'{start}: {list(each)}' for start, each in ordered[:9])}{', ...' * (len(ordered) > 9)}"
    tempered = tuple((start, _tempered(each, power)) for start, each in ordered)
    return _mixed(Mix(nodes, tempered, seed, f"{{{shown}}}{text}"))


def _mixed(mix: Mix) -> Dataset:
    mix.length  # noqa: B018  # refuses a dataset without elements
    caution_absent(mix)
    return Dataset(mix)


def _tempered(shares: tuple[float, ...], temperature: float) -> tuple[float, ...]:
    return shares if temperature == 1 else tuple((each / max(shares)) ** (1 / temperature) for each in shares)


def _shares(weights: Any, nodes: tuple[Node, ...], least: float | None = None) -> tuple[float, ...]:
    """The weights of a mix, checked: above zero, or from `least` on and not all zero."""
    require_order("mix(weights=)", weights, "Give a list: one number for each dataset, in their order.")
    items = items_of(weights)
    if items is None:
        raise ArgumentTypeError(
            f"mix(weights={weights!r:.80}): a list of numbers is needed, one for each of the {len(nodes)} datasets; "
            f"for equal parts, {[1] * len(nodes)!r:.80}."
        )
    shares = tuple(map(_plain, items))
    if len(shares) != len(nodes):
        raise ArgumentError(f"mix() got {len(nodes)} datasets and {len(shares)} weights.")
    for share in shares:
        is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not is_number or not (0 < share < MOST_WEIGHT or share == least):
            fault = "too large" if isinstance(share, (int, float)) and share > 0 else "not a number above zero"
            raise ArgumentError(f"mix(weights={list(shares)!r:.200}): {share!r:.80} is {fault}.")
    if not any(shares):
        raise ArgumentError(f"mix(weights={list(shares)!r:.200}): one of them is above zero.")
    return shares


def _plain(number: Any) -> Any:
    """Converts a NumPy number to a Python number."""
    return number.item() if isinstance(number, (np.generic, np.ndarray)) and number.shape == () else number


def _nodes(verb: str, datasets: Iterable[Any]) -> list[Node]:
    require_order(f"{verb}()", datasets, "Give the datasets in a list.")
    given = None if isinstance(datasets, Dataset) else items_of(datasets)
    if given is None:
        what = "one dataset" if isinstance(datasets, Dataset) else type_of(datasets)
        raise ArgumentTypeError(f"{verb}() needs several datasets in a list or tuple, got {what}.")
    if not given:
        raise ArgumentError(f"{verb}() got no datasets.")
    for each in given:
        if not isinstance(each, Dataset):
            cure = "Make one of it first: from_arrays(...)."
            if verb == "zip" and isinstance(each, list):
                cure = "A list is a leaf here, as everywhere in an element; write a tuple: zip((x, y))."
            raise ArgumentTypeError(f"{verb}() needs datasets, got {type_of(each)}. {cure}")
    return [each._node for each in given]


def side_by_side(verb: str, nodes: Sequence[Node], structure: _tree.Structure) -> Dataset:
    """Makes a dataset of trees, of one node for each leaf.

    Raises:
        ArgumentError: There are none, or lengths differ; all are listed.
    """
    if not nodes:
        raise ArgumentError(f"{verb}() got an empty tree, so there are no elements.")
    lengths = [node.length for node in nodes]
    if len({length for length in lengths if length not in (None, math.inf)}) > 1:
        pairs = placed_leaves([length_text(length) for length in lengths], structure)
        listed = ", ".join(f"{place or 'the whole'}: {length}" for length, place in pairs)
        repeated = ", or repeat() the shorter" if verb == "zip" else ""
        raise ArgumentError(
            f"{verb}() puts elements side by side, so lengths must be equal, but they are {listed}. Cut them to one "
            f"length with take(n) or a slice{repeated}."
        )
    if structure.is_leaf():
        return Dataset(nodes[0])
    return Dataset(Zip(tuple(nodes), structure))


def placed_leaves(leaves: list[Any], structure: _tree.Structure) -> list[tuple[Any, str]]:
    """Returns each leaf with its place in the tree, for messages."""
    places = _tree.paths(structure)
    return [(leaf, places[number]) for number, leaf in enumerate(leaves)]
