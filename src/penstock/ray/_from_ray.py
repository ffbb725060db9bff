"""`from_ray`: a stream of the rows of a `ray.data.Dataset`."""

from typing import Any

from penstock.base._errors import ArgumentTypeError, type_of
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.plan._stream import Generate
from penstock.sources import generators
from penstock.verbs._asked import caller


def from_ray(dataset: Any, *, element_spec: Tree = None) -> Dataset:
    """Makes a stream of the rows of a `ray.data.Dataset`, which is executed again for each epoch.

    An element is a row: a dict of arrays, numbers and text by column. The rows come to this process; `map` after it
    runs on worker processes here, and keeps the order.

    Random access: none. Order: Ray's, which is another one in each run unless `preserve_order` is set and nothing is
    shuffled. So a run cannot be resumed exactly: the rows that were delivered are counted and skipped, whichever come.
    Memory: Ray's, and some batches of elements that wait for the workers.

    Args:
        dataset: The dataset.
        element_spec: The spec of a row, a dict of `ArraySpec`, with None for axes that differ. Without it the dataset
            runs to its first row when the spec is first needed.

    Raises:
        ArgumentTypeError: It is no dataset of Ray.
        SpecError: While reading: a row differs from the first, or from the declared spec.
    """
    if not hasattr(dataset, "iter_rows"):
        raise ArgumentTypeError(f"from_ray() needs a ray.data.Dataset, got {type_of(dataset)}.")
    source = generators.GeneratorSource(dataset.iter_rows, (), element_spec)
    source.travels = False  # a worker process is not connected to the cluster
    return Dataset(Generate(source, "from_ray", caller()))
