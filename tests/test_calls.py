"""Arguments that a function does not have: what the error says, and what passes untouched."""

import functools
import inspect
import pickle
import pydoc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from tests.texts import assert_refused

LOADER = (
    r"executor, workers, prefetch, memory_limit, timeout_s, on_error, shard, max_errors, quarantine, ray_options, "
    r"uneven, micro_batches, whole_batches, batch_axis\."
)
UNKNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "a slip": (
        lambda: ps.range(3).loader(quarantaine="x"),
        rf"loader\(\) has no argument quarantaine=\. Did you mean quarantine=\? It takes {LOADER}",
    ),
    "another name": (
        lambda: ps.range(3).materialize("x", num_workers=3),
        rf"materialize\(\) has no argument num_workers=\. Here it is workers=\. It takes path, key, progress, {LOADER}",
    ),
    "no name at all": (lambda: ps.range(3).unbatch(x=1), r"unbatch\(\) has no argument x=\. It takes none\."),
    "no name alike": (lambda: ps.range(3).take(3, zzz=1), r"take\(\) has no argument zzz=\. It takes n\."),
    "buffer of shuffle": (
        lambda: ps.range(3).shuffle(buffer_size=3),
        (
            r"shuffle\(\) has no argument buffer_size=\. shuffle\(seed=1\) shuffles all of it, without a buffer; a "
            r"stream takes shuffle\(seed=1, window=1000\)\. A loader reads ahead by itself: loader\(prefetch=4\)\. "
            r"It takes seed, window, reshuffle\."
        ),
    ),
    "buffer of shuffle by position": (
        lambda: ps.range(3).shuffle(1000, seed=42),  # type: ignore[misc]
        (
            r"shuffle\(\) takes no second number\. Its first argument is the seed\. shuffle\(seed=1\) shuffles all of "
            r"it, without a buffer; a stream takes shuffle\(seed=1, window=1000\)\. .*"
        ),
    ),
    "remainder by position": (
        lambda: ps.range(3).batch(2, True),  # type: ignore[misc]
        r"batch\(\) takes size by position, and by name: drop_remainder, max_tokens, lengths, cost\.",
    ),
    "calls of map": (
        lambda: ps.range(3).map(abs, num_parallel_calls=3),
        (
            r"map\(\) has no argument num_parallel_calls=\. There is nothing to write: steps run on all CPUs\. "
            r"loader\(workers=4\) says how many\. It takes fn, element_spec, batched, keeps_count\."
        ),
    ),
    "remainder": (
        lambda: ps.range(3).batch(2, drop_last=True),
        (
            r"batch\(\) has no argument drop_last=\. Here it is drop_remainder=\. "
            r"It takes size, drop_remainder, max_tokens, lengths, cost\."
        ),
    ),
    "remainder, too late": (
        lambda: ps.range(3).loader(drop_last=True),
        rf"loader\(\) has no argument drop_last=\. Write batch\(n, drop_remainder=True\)\. It takes {LOADER}",
    ),
    "size of windows": (
        lambda: ps.range(3).windows(size=2),
        r"windows\(\) has no argument size=\. Here it is length=\. It takes length, shift, stride, groups, tail\.",
    ),
    "arrays one by one": (
        lambda: ps.from_arrays([1], [2]),  # type: ignore[call-arg]
        r"from_arrays\(\) takes one tuple of them, not 2 arguments: from_arrays\(\(a, b\)\)\.",
    ),
    "a range from its middle": (
        lambda: ps.range(5, 9),  # type: ignore[call-arg]
        r"range\(\) takes one integer\. For a part: range\(stop\)\[start::step\]\.",
    ),
    "datasets one by one": (
        lambda: ps.zip(ps.range(3), ps.range(3), ps.range(3)),  # type: ignore[call-arg]
        r"zip\(\) takes one tuple of them, not 3 arguments: zip\(\(a, b\)\)\.",
    ),
    "arguments of a generator": (
        lambda: ps.from_generator(range, args=[3]),
        (
            r"from_generator\(\) has no argument args=\. Give them after the function: from_generator\(gen, 10\)\. "
            r"It takes fn, element_spec, length, shards\."
        ),
    ),
    "function of buckets": (
        lambda: ps.range(3).bucket_by_length(element_length_func=len, boundaries=[1], batch_sizes=[1, 1]),
        r"bucket_by_length\(\) has no argument element_length_func=\. Here it is length_fn=\. It takes .*",
    ),
    "size of a part": (
        lambda: ps.range(3).split(test_size=0.2),
        r"split\(\) has no argument test_size=\. Write the parts: train, test = ds\.split\(0\.8, 0\.2\)\..*",
    ),
    "function of batches": (
        lambda: ps.range(3).map(abs, batched=True),
        r"map\(batched=True\): say how many elements it gets at once, batched=256\.",
    ),
    "signature of a generator": (
        lambda: ps.from_generator(range, 3, output_signature=None),
        r"from_generator\(\) has no argument output_signature=\. Here it is element_spec=\. It takes .*",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_text_of_an_unknown_argument(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(UNKNOWN[name][0], TypeError, UNKNOWN[name][1])


@pytest.mark.parametrize(
    ("of", "name", "cure"),
    [
        (
            ps,
            "text_dataset_from_directory",
            r"penstock\.from_arrays\(\(paths, labels\)\), and a map\(\) that reads each file\.",
        ),
        (ps, "ConcatDataset", r"penstock\.concatenate\(datasets\)\."),
        (ps.range(3), "group_by_window", r"bucket_by_length\(key, boundaries, batch_sizes\)\."),
        (ps.range(3), "snapshot", r"cache\(path\), or materialize\(path\)\."),
        (ps.range(3), "load_state_dict", r"a loader has it, .*, and later loader\.set_state\(state\)\."),
        (ps.range(3), "report", r"a loader has it, loader = ds\.loader\(\), .*"),
        (ps, "from_netcdf", r"penstock\.from_xarray\(xarray\.open_dataset\(path\), 'time'\), .*"),
        (ps.image, "RandomCrop", r"crop\(\)\."),
        (ps.image, "horizontal_flip", r"flip\(\)\."),
        (ps.audio, "load", r"decode\(path, .*"),
    ],
)
def test_names_of_other_libraries_are_answered(of: object, name: str, cure: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no .*{name}'.*: {cure}$"):
        getattr(of, name)


def test_names_that_a_module_lacks_are_plain_errors() -> None:
    for module in (ps.image, ps.audio):
        with pytest.raises(AttributeError, match=rf"^{module.__name__} has no 'nothing'\.$"):
            module.nothing  # noqa: B018
        assert not hasattr(module, "__wrapped__")


def test_a_loader_answers_what_belongs_to_its_dataset() -> None:
    with ps.range(3).loader(executor="inline") as loader:
        for name, cure in [
            ("load_state_dict", r"set_state\(state\)"),
            ("map", r"steps come before it, .*"),
            ("to_torch", r"the dataset has it, .*"),
        ]:
            with pytest.raises(AttributeError, match=rf"^A loader has no '{name}': {cure}\.$"):
                getattr(loader, name)
        with pytest.raises(ps.ArgumentTypeError, match=r"so it has no \[1\]\. The dataset has one batch .*: ds\[i\]"):
            loader[1]
        assert not hasattr(loader, "nothing")


@pytest.mark.framework
@pytest.mark.parametrize("verb", ["to_torch", "to_jax", "to_tf", "to_keras"])
def test_adapters_name_their_own_options_and_those_of_the_loader(verb: str) -> None:
    batches = ps.range(9).batch(3)
    with pytest.raises(ps.ArgumentTypeError) as caught:
        getattr(batches, verb)(num_workers=3)
    text = str(caught.value)
    assert text.startswith(f"{verb}() has no argument num_workers=. Here it is workers=. It takes ")
    assert "training, executor, workers" in text
    with pytest.raises(ps.ArgumentTypeError, match=r"\(\) has no argument batch_size=\. Write batch\(n\) before\."):
        getattr(batches, verb)(batch_size=3)


def test_other_type_errors_pass_as_they_are(tmp_path: Path) -> None:
    error = TypeError("from inside")

    def progress(done: int, total: int | None) -> None:
        raise error

    with pytest.raises(TypeError) as caught:
        ps.range(3).materialize(tmp_path / "kept", progress=progress, executor="inline")
    assert caught.value is error
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'size'"):
        ps.range(3).padded_batch()  # type: ignore[call-arg]


def test_missing_arguments_that_newcomers_leave_out_are_named() -> None:
    with pytest.raises(ps.ArgumentTypeError, match=r"join\(\) needs on=, the key: join\(other, on='id'\)"):
        ps.range(3).join(ps.range(3))  # type: ignore[call-arg]
    with pytest.raises(ps.ArgumentTypeError, match=r"crop\(\) needs a height and a width: crop\(64, 64\)"):
        ps.image.crop((64, 64))  # type: ignore[call-arg, arg-type]
    with pytest.raises(ps.ArgumentTypeError, match=r"rotate\(\) has no argument angle=\. It takes degrees\."):
        ps.image.rotate(angle=3)  # type: ignore[call-arg]


def test_signatures_are_those_that_were_written() -> None:
    assert str(inspect.signature(ps.Dataset.take)) == "(self, n: int) -> 'Dataset'"
    assert list(inspect.signature(ps.mix).parameters) == ["datasets", "weights", "seed", "temperature"]
    assert list(inspect.signature(ps.range(3).to_torch).parameters)[-1] == "loader_options"
    assert ps.mix.__module__ == "penstock"
    assert ps.mix.__doc__
    assert ps.mix.__doc__.startswith("Mixes")
    assert pickle.loads(pickle.dumps(ps.mix)) is ps.mix


@pytest.mark.parametrize(
    ("call", "adapter", "lacks", "cure"),
    [
        ("to_keras", "adapters.keras", "keras", "keras tensorflow. On torch or JAX, say so: KERAS_BACKEND=torch"),
        ("to_torch", "adapters.torch", "torch", "torch."),
        ("to_jax", "adapters.jax", "jax", "jax."),
        ("to_tf", "adapters.tf", "tensorflow", "tensorflow."),
        ("from_tf", "adapters._tfsource", "tensorflow", "tensorflow."),
        ("from_zarr", "volumes.zarr", "zarr", "zarr."),
        ("from_xarray", "volumes.xarray", "xarray", "xarray."),
        ("from_nifti", "volumes.nifti", "nibabel.nifti1", "nibabel."),
    ],
)
def test_a_framework_that_is_missing_is_named_with_its_cure(call, adapter, lacks, cure, monkeypatch):
    monkeypatch.delitem(sys.modules, f"penstock.{adapter}", raising=False)
    monkeypatch.setitem(sys.modules, lacks, None)  # as if it were not installed
    function = getattr(ps.range(4).batch(2), call, None)
    if call.startswith("from_"):
        function = functools.partial(getattr(ps, call), *[None] * (2 if call == "from_xarray" else 1))
    with pytest.raises(ModuleNotFoundError) as caught:
        function()
    assert str(caught.value).startswith(f"{call}() needs {lacks}: pip install {cure}")


PUBLIC = [
    (name, value)
    for name in ps.__all__
    if not (isinstance(value := getattr(ps, name), type) and issubclass(value, Exception))
    and not inspect.ismodule(value)
]
METHODS = [
    (f"{each.__name__}.{name}", value)
    for each in (ps.Dataset, ps.Loader, ps.Report)
    for name, value in vars(each).items()
    if name[0] != "_" and inspect.isfunction(value)
]


@pytest.mark.parametrize(("name", "value"), PUBLIC + METHODS, ids=lambda each: each if isinstance(each, str) else "")
def test_help_begins_with_a_signature_that_a_user_can_read(name: str, value: Any) -> None:
    text = str(inspect.signature(value))
    assert not re.search(r"<|\b_\w|numpy\._|penstock\.\w+\.", text), text
    shown = re.sub(r"[|\s]", "", pydoc.plain(pydoc.render_doc(value))).replace(",)", ")")  # over several lines or not
    assert re.sub(r"[|\s]", "", text).replace(",)", ")") in shown
