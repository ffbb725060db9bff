"""penstock: feeds model training from data that does not fit in memory.

    frames = penstock.from_npy("frames.npy")
    pairs = penstock.zip((frames[:-1], frames[1:]))
    for x, y in pairs.shuffle(seed=1).batch(32).loader():
        ...

A map of the package. Imports run downwards. The core is what one must know:

    functions/      from_arrays, zip, mix, ...; statistics, headroom, replay
    dataset.py      the handle: a method for each verb
    verbs/          the longer parts of verbs
    loader.py       a dataset being run
    run/            _arrange.py, the one door from a plan to what runs it; delivery, executors, the pool of processes
    lower/          from a plan to a program of units
    sources/        arrays in memory and in files, generators, the element cache
    report/         counters and reports
    plan/           nodes, one kind a file; _node.py is the idea
    memory/         slots, the ring, leases, shared memory
    base/           trees, specs, errors, random numbers, arguments
    native/         the copy engine in C++, and the same in NumPy

Packs stand beside it. The core finds them by names, and never imports one (base/_extensions.py). Each has a
`_register.py`, which says what it brings, and its constructors, verbs and sources:

    files/          files by name, here and behind URLs; .npy files; what is kept of files
    image/  distort/    images and their folders; distortions: `penstock.image`
    tables/         Parquet, Arrow, CSV, JSON Lines, text, Hugging Face, Lance
    records/        TFRecord, tar, ArrayRecord, MDS, Megatron, ETL, files as they are
    films/          films, and episodes of robots
    sparse/  volumes/   sparse rows; arrays in chunks and volumes
    audio/          decoding of sound, crops and spectrograms: `penstock.audio`
    pictures/       pictures of elements and reports
    adapters/       one framework a file
    ray/            workers on other machines
    commands/  demos/  testing/   the command, and the contract suites

CONTRIBUTING.md says where each new thing goes, and what to read first.
"""

import importlib as _importlib
import logging as _logging
import sys as _sys
import threading as _threading
import typing as _typing
from inspect import isfunction as _isfunction, ismodule as _ismodule

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
from penstock.base._extensions import SOURCES as _SOURCES, lookup as _lookup, own as _own
from penstock.base._printable import PrintableRecords as _PrintableRecords
from penstock.base._spec import ArraySpec as ArraySpec
from penstock.plan._ragged import Ragged as Ragged
from penstock.plan._source import Source as Source
from penstock.run.pool._interpreter import is_starting as _is_starting

_lock = globals().get("_lock") or _threading.RLock()
_is_light = "_is_light" not in globals() and _is_starting()
"""Whether this process is a worker, for which the names below are imported when a function asks for one."""
if _typing.TYPE_CHECKING or not _is_light:
    from penstock.dataset import Dataset as Dataset
    from penstock.functions._constructors import (
        concatenate as concatenate,
        from_arrays as from_arrays,
        from_generator as from_generator,
        from_source as from_source,
        interleave as interleave,
        mix as mix,
        range as range,
        zip as zip,
    )
    from penstock.functions._headroom import Headroom as Headroom, headroom as headroom
    from penstock.functions._random_patch import RandomPatch as RandomPatch
    from penstock.functions._replay import Replayed as Replayed, replay as replay
    from penstock.functions._statistics import Statistics as Statistics, statistics as statistics
    from penstock.loader import Loader as Loader
    from penstock.report._report import Report as Report
    from penstock.verbs._check import CheckResult as CheckResult

if _typing.TYPE_CHECKING:  # at run time `__getattr__` imports these when they are asked for
    from penstock import audio as audio, image as image
    from penstock.adapters._from_tf import from_tf as from_tf
    from penstock.files._diskcache import DiskCache as DiskCache
    from penstock.files._npy import from_npy as from_npy
    from penstock.files._timeseries import timeseries_dataset_from_array as timeseries_dataset_from_array
    from penstock.films.lerobot import from_lerobot as from_lerobot
    from penstock.films.videos import from_videos as from_videos
    from penstock.image._constructors import (
        from_image_files as from_image_files,
        image_dataset_from_directory as image_dataset_from_directory,
    )
    from penstock.pictures._show import show as show
    from penstock.ray._from_ray import from_ray as from_ray
    from penstock.records._constructors import (
        from_etlcdb as from_etlcdb,
        from_tar as from_tar,
        from_tfrecord as from_tfrecord,
        write_tfrecord as write_tfrecord,
    )
    from penstock.records._repack import repack as repack
    from penstock.records.arrayrecord import from_arrayrecord as from_arrayrecord
    from penstock.records.files import from_files as from_files
    from penstock.records.mds import from_mds as from_mds
    from penstock.records.megatron import from_megatron as from_megatron
    from penstock.sparse.csr import from_csr as from_csr, from_h5ad as from_h5ad
    from penstock.tables._constructors import (
        from_arrow as from_arrow,
        from_csv as from_csv,
        from_jsonl as from_jsonl,
        from_parquet as from_parquet,
        from_text as from_text,
    )
    from penstock.tables.hub import from_hub as from_hub
    from penstock.tables.lance import from_lance as from_lance
    from penstock.volumes._constructors import (
        from_hdf5 as from_hdf5,
        from_nifti as from_nifti,
        from_xarray as from_xarray,
        from_zarr as from_zarr,
    )

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
del _name


def __dir__() -> list[str]:
    return sorted({*globals(), *_own()[_SOURCES]})


def __getattr__(name: str) -> _typing.Any:
    """Imports what packs bring when it is first asked for, also those of other packages."""
    if name == "__all__":
        return sorted({*_here, *_own()[_SOURCES]})
    if name == "image":
        import penstock.image  # and OpenCV with it

        return penstock.image
    if name == "audio":
        return _importlib.import_module("penstock.audio")
    if name[0] != "_" and (name.startswith("from_") or name in _own()[_SOURCES]):
        value = _lookup(_SOURCES, name)
        if value is not None:
            return _adopt(name, value)
    if _is_light:
        with _lock:
            if _is_light:
                _importlib.reload(_sys.modules[__name__])
        return getattr(_sys.modules[__name__], name)
    return _refuse_attribute(_sys.modules[__name__], name, "penstock")
