"""What Keras says in its frames alone: who asks an adapter for data, and what `fit` was given.

If another version of Keras lacks these variables, the checks here are left out.
"""

from collections.abc import Collection
from typing import Any, Final

import keras
from keras.src.trainers.epoch_iterator import EpochIterator

from penstock.adapters._epochs import LoaderAdapter
from penstock.base._errors import ArgumentError
from penstock.plan._cautions import caution, random_steps
from penstock.plan._node import Node

MEASURING: Final = ("evaluate", "predict")
"""Keras's methods that do not train."""

_STATES: Final = {
    "fit": ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
    "evaluate": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    "predict": ("trainable_variables", "non_trainable_variables"),
}
"""What Keras on JAX takes out of a model while it computes, in the order of its local `state`."""


def asking(frame: Any) -> EpochIterator | None:
    """Keras's iterator over epochs whose method this frame runs, if it is one."""
    found = frame.f_locals.get("self")
    return found if isinstance(found, EpochIterator) else None


def method(frame: Any) -> Any:
    """The frame of the innermost of Keras's methods `fit`, `evaluate` and `predict` that runs; None if none does."""
    names = ("fit", *MEASURING)
    while frame is not None:
        if frame.f_code.co_name in names and frame.f_globals.get("__name__", "").startswith("keras."):
            return frame
        frame = frame.f_back
    return None


def verb(frame: Any) -> str:
    """The name of that method, or an empty text."""
    found = method(frame)
    return "" if found is None else str(found.f_code.co_name)


def runs_on(frame: Any) -> bool:
    """Whether Keras trains by steps, and not by our epochs; what measures stops where an epoch ends, as Keras does."""
    found = asking(frame)
    return found is not None and bool(found.steps_per_epoch) and verb(frame) in ("fit", "")


def is_building(frame: Any) -> bool:
    """Whether Keras draws a batch to build the model, that is for shapes and dtypes, and not to train on it."""
    if keras.backend.backend() == "jax":  # whose predict() draws one by itself before it has its steps draw any
        drawing = frame
        while drawing is not None and drawing.f_code.co_name.endswith("_iterator"):
            drawing = drawing.f_back
        if drawing is not None and verb(drawing) == drawing.f_code.co_name == "predict":
            return True
    for _ in range(4):  # itself, or by way of iterators that wrap ours
        if frame is None:
            break
        if frame.f_code.co_name == "_symbolic_build":
            return True
        frame = frame.f_back
    return False


def give_weights_back(frame: Any) -> None:
    """Gives a model of Keras on JAX its weights back, before an error ends the method that has taken them out.

    `fit` itself gives back what its last execution returned, and at its first has nothing; `evaluate` and `predict`
    give back nothing. The values are a local `state` of the method, or of the execution of several steps that it calls.

    Args:
        frame: That which asks for a batch.
    """
    found = method(frame) if keras.backend.backend() == "jax" else None
    if found is None:
        return
    names, model = _STATES[found.f_code.co_name], found.f_locals.get("self")
    while frame is not found.f_back:
        state = frame.f_locals.get("state")
        if isinstance(state, tuple) and len(state) == len(names):
            model._jax_state, model._jax_state_synced = dict(zip(names, state, strict=True)), False
            model.jax_state_sync()
            return
        frame = frame.f_back


def require_nothing_dropped(frame: Any) -> None:
    """Refuses arguments of `fit` that Keras would drop without a word because its data is an adapter.

    Args:
        frame: The caller's frame. Only that of `EpochIterator.__init__` is checked; others pass.

    Raises:
        ArgumentError: Names the argument.
    """
    if frame.f_code.co_name != "__init__" or asking(frame) is None:
        return
    cures = {
        "class_weight": "Give it to to_keras(class_weight=...)",
        "sample_weight": "Make it a third part of the element, (x, y, sample_weight), before batch()",
        "y": "Make it a second part of the element, (x, y), before batch()",
    }
    for name, cure in cures.items():
        if frame.f_locals.get(name) is not None:
            raise ArgumentError(f"Keras does not use {name}= when its data come from to_keras(). {cure}.")


def caution_batch_size(frame: Any, plan: Node, sizes: Collection[int | None]) -> None:
    """Cautions about `batch_size=`, which Keras does not use for an adapter: trainers pass it along, so it is no error.

    Args:
        frame: The caller's frame. Only that of `EpochIterator.__init__` is checked; others pass.
        plan: The plan that runs.
        sizes: The elements of its full batches; None if that is not known.
    """
    if frame.f_code.co_name != "__init__" or asking(frame) is None:
        return
    given = frame.f_locals.get("batch_size")
    if given is not None and given not in sizes:
        caution(
            plan,
            "Keras does not use batch_size=%s, for the dataset has made its batches. Write batch(%s) there.",
            given,
            given,
        )


def require_own_data(frame: Any, adapter: LoaderAdapter) -> None:
    """Refuses to measure on the adapter that a `fit` trains on, which would take each time an epoch from training.

    So it is where `fit` gets it twice, before it begins, and where a callback evaluates on it.

    Args:
        frame: The caller's frame. Only that of `EpochIterator.__init__` is checked; others pass.
        adapter: The adapter whose batches Keras requests.

    Raises:
        ArgumentError: Says what to give instead.
    """
    if adapter.loader.progress.same_epoch or frame.f_code.co_name != "__init__" or asking(frame) is None:
        return
    measures = False
    while (frame := frame.f_back) is not None:
        if not frame.f_globals.get("__name__", "").startswith("keras."):
            continue  # a function of the user's may be called `fit`, too, and go through the data as often as it likes
        name = frame.f_code.co_name
        if name in MEASURING and not measures:
            measures = True
            _caution_random(adapter.loader.progress.plan, f"{name}()")
        plan = adapter.loader.progress.plan
        if name == "fit" and frame.f_locals.get("val_x") is adapter and plan.randomness.depth:
            _caution_random(plan, "Validation")  # a shuffle alone does not change what is measured
        if name == "fit" and frame.f_locals.get("x") is adapter:
            if measures or frame.f_locals.get("validation_data") is adapter:
                raise ArgumentError(
                    "fit() trains on this adapter, and to measure on it, too, would take each time an epoch from "
                    "training. Make another one of the dataset to measure on: dataset.to_keras(training=False)."
                )
            return


def _caution_random(plan: Node, reader: str) -> None:
    """Cautions about a measurement by epochs for training, each of which is another."""
    if steps := random_steps(plan):
        caution(
            plan,
            "%s reads another epoch in each call, for this adapter was made for training: %s does something else in "
            "each. Write to_keras(training=False), which is epoch 0 in every call%s.",
            reader,
            steps,
            "; for the order of the data, leave out shuffle()" if plan.randomness.reorders else "",
        )
