"""`from_tf`: a stream of the elements of a `tf.data.Dataset`."""

from typing import Any

from penstock.base._arguments import needs
from penstock.dataset import Dataset
from penstock.plan._stream import Generate
from penstock.verbs._asked import caller


def from_tf(dataset: Any) -> Dataset:
    """Makes a stream of the elements of a `tf.data.Dataset`, which is iterated again for each epoch.

    An element is one of TensorFlow's: a batch, if the dataset is batched. TensorFlow gives shapes, dtypes and the
    length; `tf.string` is bytes. The dataset runs in this process. `map` after it runs on all workers, and keeps the
    order.

    Random access: none; a step that needs it reports that. Order: TensorFlow's. An epoch repeats, also when it is
    resumed by skipping, only if TensorFlow's order does. So shuffle with `shuffle(seed, window=)`, and not there.
    Memory: TensorFlow's, and some batches of elements that wait for the workers.

    Args:
        dataset: Its elements are tensors, or tuples, named tuples and dicts of tensors.

    Raises:
        ArgumentTypeError: It is no `tf.data.Dataset`.
        ArgumentError: It is part of a graph, such as that of a `tf.function`.
        SpecError: An element holds another object than a tensor with a known number of axes, such as a ragged one.
        ElementError: While reading: TensorFlow raised an exception. The message has the number of the element.
    """
    with needs("from_tf", "tensorflow"):
        from penstock.adapters._tfsource import TfSource

    return Dataset(Generate(TfSource(dataset), "from_tf", caller()))
