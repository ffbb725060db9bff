"""penstock: feeds model training from data that does not fit in memory.

    frames = penstock.from_npy("frames.npy")
    pairs = penstock.zip((frames[:-1], frames[1:]))
    for x, y in pairs.shuffle(seed=1).batch(32).loader():
        ...

A map of the package. Imports run downwards. The core:

    adapters/       one framework a file, imported on first use
    _dataset.py     the handle: a method for each verb; their longer parts are in _check.py, _show.py, _caching.py,
                    _labels.py, _lengths.py
    _constructors.py  _timeseries.py                 from_..., zip, ...
    _images.py  _image_labels.py                     the same for images, and the labels of their files
    _loader.py      a dataset being run
    _replay.py      elements that failed in a run
    _random_patch.py  parts of arrays at random places
    _headroom.py    what a training loop could gain from a faster input
    _statistics.py  mean, deviation and bounds of all elements, by `reduce` (_reduce.py)
    run/            arrange.py, the one door from a plan to what runs it; delivery, executors, the pool of processes
    lower/          from a plan to a program of units
    sources/        where elements come from, one format a file
    image/          decoding
    report/         counters, reports, and pictures of plans and elements
    plan/           nodes, one kind a file; _node.py is the idea
    memory/         slots, the ring, leases, shared memory
    base/           trees, specs, errors, random numbers, arguments
    native/         the copy engine in C++, and the same in NumPy

The rest, which the core finds by names and never imports (base/_extensions.py):

    cli  commands/  demos/  testing/   the command, and the contract suites
    formats/        files of any kind, tar, TFRecord, tables, text, Hugging Face, ETL
    audio/          decoding of sound, crops and spectrograms: `penstock.audio`
    distort/        distortions of images on OpenCV: `penstock.image`
    ray/            workers on other machines

A new source is a `Source` (plan/_source.py: `element_spec`, `__len__`, and `read_into` or `open`) in a file in
formats/, a function in formats/_records.py, and an entry in base/_extensions.py. A new verb is a node in plan/, or an
existing one, and a method in _dataset.py. A new executor is an `Executor` (run/executors/_executor.py) in a file beside
it, and an entry in _registry.py there. A new adapter is an `EpochAdapter` (adapters/_epochs.py), or a function that
makes what its framework iterates, in a file in adapters/, and a method in _dataset.py. The tests of a new class
subclass `SourceTests`, `ExecutorTests` or `AdapterTests` of `penstock.testing`; a node gets a strategy in
tests/strategies.py. CONTRIBUTING.md says more, and what to read first.
"""

import importlib as _importlib
import logging as _logging
import sys as _sys
import typing as _typing
from inspect import isfunction as _isfunction, ismodule as _ismodule

from penstock._check import CheckResult as CheckResult
from penstock._constructors import (
    concatenate as concatenate,
    from_arrays as from_arrays,
    from_generator as from_generator,
    from_hdf5 as from_hdf5,
    from_npy as from_npy,
    from_ray as from_ray,
    from_source as from_source,
    from_tf as from_tf,
    interleave as interleave,
    mix as mix,
    range as range,
    zip as zip,
)
from penstock._dataset import Dataset as Dataset
from penstock._headroom import Headroom as Headroom, headroom as headroom
from penstock._images import (
    from_image_files as from_image_files,
    image_dataset_from_directory as image_dataset_from_directory,
)
from penstock._loader import Loader as Loader
from penstock._random_patch import RandomPatch as RandomPatch
from penstock._replay import Replayed as Replayed, replay as replay
from penstock._show import show as show
from penstock._statistics import Statistics as Statistics, statistics as statistics
from penstock._timeseries import timeseries_dataset_from_array as timeseries_dataset_from_array
from penstock.base._arguments import explained as _explained, refuse_attribute as _refuse_attribute
from penstock.base._errors import (
    ArgumentError as ArgumentError,
    ArgumentTypeError as ArgumentTypeError,
    DeadlineError as DeadlineError,
    ElementError as ElementError,
    ElementIndexError as ElementIndexError,
    LoaderError as LoaderError,
    MemoryLimitError as MemoryLimitError,
    PenstockError as PenstockError,
    RemoteError as RemoteError,
    SourceError as SourceError,
    SpecError as SpecError,
    StateError as StateError,
    TravelError as TravelError,
    UnknownLengthError as UnknownLengthError,
    WorkerError as WorkerError,
)
from penstock.base._extensions import OWN as _OWN, SOURCES as _SOURCES, found as _found
from penstock.base._printable import PrintableRecords as _PrintableRecords
from penstock.base._spec import ArraySpec as ArraySpec
from penstock.plan._ragged import Ragged as Ragged
from penstock.plan._source import Source as Source
from penstock.report._report import Report as Report
from penstock.sources._diskcache import DiskCache as DiskCache

if _typing.TYPE_CHECKING:  # at run time `__getattr__` imports these when they are asked for
    from penstock import audio as audio, image as image
    from penstock.formats._records import (
        from_arrow as from_arrow,
        from_csv as from_csv,
        from_etlcdb as from_etlcdb,
        from_jsonl as from_jsonl,
        from_parquet as from_parquet,
        from_tar as from_tar,
        from_text as from_text,
        from_tfrecord as from_tfrecord,
        write_tfrecord as write_tfrecord,
    )
    from penstock.formats._repack import repack as repack
    from penstock.formats._volumes import from_nifti as from_nifti, from_xarray as from_xarray, from_zarr as from_zarr
    from penstock.formats.arrayrecord import from_arrayrecord as from_arrayrecord
    from penstock.formats.csr import from_csr as from_csr, from_h5ad as from_h5ad
    from penstock.formats.files import from_files as from_files
    from penstock.formats.lance import from_lance as from_lance
    from penstock.formats.lerobot import from_lerobot as from_lerobot
    from penstock.formats.mds import from_mds as from_mds
    from penstock.formats.megatron import from_megatron as from_megatron
    from penstock.formats.videos import from_videos as from_videos

__version__ = "0.2.0"

_logging.getLogger("penstock").addFilter(_PrintableRecords())


def _adopt(name: str, value: _typing.Any) -> _typing.Any:
    """Makes a name of ours public: reprs, docs and pickles say `penstock.Dataset`, not where it happens to be."""
    if getattr(value, "__module__", "").startswith("penstock."):
        value.__module__ = "penstock"
        if _isfunction(value):
            value = _explained(value)
    globals()[name] = value
    return value


_here = [each for each, value in globals().items() if each[0] != "_" and not _ismodule(value)]
for _name in _here:
    _adopt(_name, globals()[_name])
if not _typing.TYPE_CHECKING:  # type checkers take the names that are imported `as` themselves
    __all__ = [name for names in (_here, _OWN[_SOURCES]) for name in names]
    __all__.sort()
del _name, _here


def __dir__() -> list[str]:
    return sorted({*globals(), *_OWN[_SOURCES]})


def __getattr__(name: str) -> _typing.Any:
    """Imports what stands outside of the core when it is first asked for: formats, also those of other packages."""
    if name == "image":
        import penstock.image  # and OpenCV with it

        return penstock.image
    if name == "audio":
        return _importlib.import_module("penstock.audio")
    if name in _OWN[_SOURCES] or name.startswith("from_"):
        value = _found(_SOURCES, name)
        if value is not None:
            return _adopt(name, value)
    return _refuse_attribute(_sys.modules[__name__], name, "penstock")
