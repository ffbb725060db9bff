"""Volumes in NIfTI files, by nibabel, which reads parts of those that are not compressed."""

import logging
import math
import os
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
from nibabel.nifti1 import Nifti1Image, Nifti1Pair
from nibabel.nifti2 import Nifti2Image, Nifti2Pair
from nibabel.orientations import aff2axcodes

from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, SourceError, SpecError
from penstock.base._files import Stamp, require_file
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.files._listing import FileList
from penstock.files._openfile import require_room
from penstock.files._wholefiles import found
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.sources.boxes import BoxSource

_log = logging.getLogger("penstock")

_KINDS: Final = (Nifti1Image, Nifti1Pair, Nifti2Image, Nifti2Pair)
_IMAGES_KEPT: Final = 256
"""Headers that are kept in a process, some kilobytes each."""


def source(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], dtype: Any, affine: bool, header: bool
) -> "NiftiSource":
    """The volumes of files. Reads their headers.

    Raises:
        ArgumentError: There are no paths, or URLs.
        ArgumentTypeError: `dtype` is none.
        SourceError: A file is no NIfTI file.
        SpecError: Numbers of axes differ, or values do not fit the dtype.
    """
    try:
        wanted = None if dtype is None else np.dtype(dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"from_nifti(dtype=) is a dtype or None, got {dtype!r:.80}.") from error
    files, _, _ = found("from_nifti", paths, None, None)
    if files.remote_folders:
        raise ArgumentError(
            f"from_nifti() reads files of this machine, and {files[0]} is a URL. from_files(urls) gives their bytes, "
            "for map(): nibabel.Nifti1Image.from_bytes(gzip.decompress(element['bytes'])).get_fdata()."
        )
    images = [(path, image_of(os.path.join(files.base, path))) for path in files]
    first_path, first = images[0]
    for path, image in images:
        if image.ndim != first.ndim or (header and image.header.structarr.dtype != first.header.structarr.dtype):
            what = "axes" if image.ndim != first.ndim else "fields in the header"
            raise SpecError(
                f"from_nifti(): {path} has other {what} than {first_path}: {image.shape}, {first.shape}. Make a "
                "dataset of each kind."
            )
        _require_fit(path, image, wanted)
    _log_orientations(images)
    sizes = [{image.shape[axis] for _, image in images} for axis in range(first.ndim)]
    shape = tuple(next(iter(each)) if len(each) == 1 else None for each in sizes)
    wanted = np.result_type(*{dtype_of(image) for _, image in images}) if wanted is None else wanted
    packed = next((path for path, image in images if is_packed(image)), None)
    fields = {"affine": ArraySpec((4, 4), np.dtype(np.float64))} if affine else {}
    if header:
        fields["header"] = ArraySpec((), first.header.as_byteswapped("<").structarr.dtype)
    return NiftiSource(files, ArraySpec(shape, wanted), fields, packed)


def _log_orientations(images: list[tuple[str, Any]]) -> None:
    """Says that axes of files point to other sides of the body, which shapes and values do not show."""
    first: dict[str, str] = {}
    count: Counter[str] = Counter()
    for path, image in images:
        try:
            codes = "".join(each or "?" for each in aff2axcodes(image.affine))
        except np.linalg.LinAlgError:
            codes = "???"
        count[codes] += 1
        first.setdefault(codes, path)
    if len(first) > 1:
        text = (
            "from_nifti(): the axes of volumes point to %s. Each volume comes with the axes of its file. Files with "
            "the same axes: nibabel.save(nibabel.as_closest_canonical(nibabel.load(path)), path)."
        )
        _log.warning(text, ", ".join(f"{each} in {n:,} (first in {first[each]})" for each, n in count.most_common()))


def image_of(path: str) -> Any:
    """The image in a file, of which only the header is read.

    Raises:
        SourceError: It is no NIfTI file, or is damaged.
    """
    sniff = None
    try:
        require_file(path)
        for kind in _KINDS:
            is_one, sniff = kind.path_maybe_image(path, sniff)
            if is_one:
                image = kind.from_filename(path, mmap=False)  # a mapped file that is cut ends the process
                if min(image.shape, default=1) < 1:
                    raise ValueError(f"its shape is {image.shape}")
                return image
    except PenstockError:
        raise
    except Exception as error:  # what nibabel raises for damage has many types
        raise SourceError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    raise SourceError(
        f"{path} is no NIfTI file, or its name says otherwise. Give a .nii, a .nii.gz, or the .hdr or .img of a pair. "
        "Others that nibabel reads can be written as one: nibabel.save(nibabel.load(path), 'scan.nii')."
    )


def dtype_of(image: Any) -> np.dtype[Any]:
    """The dtype of nibabel's `np.asarray(image.dataobj)`, in the byte order of this machine."""
    data = image.dataobj
    is_scaled = (data.slope, data.inter) != (1, 0)
    return np.result_type(data.dtype, np.float64) if is_scaled else data.dtype.newbyteorder("=")


def is_packed(image: Any) -> bool:
    """Whether the values are compressed."""
    return not str(image.file_map["image"].filename).lower().endswith((".nii", ".img"))


def _require_fit(path: str, image: Any, wanted: np.dtype[Any] | None) -> None:
    if wanted is not None and not np.can_cast(dtype_of(image), wanted, "same_kind"):
        raise SpecError(
            f"from_nifti(dtype={wanted}): {path} has values of {dtype_of(image)}, which it cannot hold. dtype=None "
            "takes them as they are, and cast() or map() make others of them."
        )


@final
class NiftiSource(Source):
    """A volume of each file, with its affine and its header if they are wanted."""

    def __init__(self, files: FileList, volume: ArraySpec, fields: dict[str, ArraySpec], packed: str | None) -> None:
        self.files, self.volume, self.fields, self.packed = files, volume, fields, packed
        self.element_spec: Tree = {"volume": volume, **fields} if fields else volume

    def __len__(self) -> int:
        return len(self.files)

    def __str__(self) -> str:
        more = len(self) - 1
        return os.path.basename(self.files[0]) + f" and {more:,} more" * (more > 0)

    def describe(self, index: int) -> str:
        return self.files[index]

    @property
    def file_paths(self) -> list[str]:
        """The path of each element's file."""
        return list(self.files)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The files by path, size, time of the last change and inode."""
        places = [os.path.join(self.files.base, each) for each in self.files]
        states = [Stamp.of(place)[:3] if os.path.exists(place) else (-1, -1, -1) for place in places]
        return {
            "the paths of the files": "\0".join(places),
            "the sizes and times of the files": np.array(states, np.int64),
            "the spec": self.element_spec,
        }

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> BoxSource:
        if self.packed is not None:
            raise ArgumentError(
                f"patches() after from_nifti(): {self.packed} is compressed, so parts of it cannot be read alone. "
                "Write it again, nibabel.save(nibabel.load(path), 'scan.nii'), or cut volumes in map() after cache()."
            )
        return BoxSource(self, sizes, keeps_first=keeps_first)

    def open(self) -> "OpenNifti":
        return OpenNifti(self)


@final
class OpenNifti:
    """Reads volumes; each file is open only during its read. Any number of threads may read volumes."""

    def __init__(self, source: NiftiSource) -> None:
        self._source = source
        self._checked = lru_cache(_IMAGES_KEPT)(self._look)

    def read_into(self, indices: Indices, out: Tree) -> None:
        """Reads volumes one after the other."""
        source = self._source
        for row, index in enumerate(indices.tolist()):
            image = self._image(index)
            values = self._values(index, image)
            if not source.fields:
                out[row] = values
                continue
            out["volume"][row] = values
            if "affine" in source.fields:
                out["affine"][row] = image.affine
            if "header" in source.fields:
                out["header"][row] = image.header.as_byteswapped("<").structarr

    def part(self, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Reads a box of several volumes, of which nibabel reads no more than the planes."""
        found = np.empty(tuple(each.stop - each.start for each in box), self._source.volume.dtype)
        for row, index in enumerate(range(box[0].start, box[0].stop)):
            found[row] = self._values(index, self._image(index), box[1:])
        return found

    def _image(self, index: int) -> Any:
        """Opens an image; again only where its file has changed."""
        place = os.path.join(self._source.files.base, self._source.files[index])
        return self._checked(index, Stamp.of(place) if os.path.exists(place) else None)

    def _look(self, index: int, state: Stamp | None) -> Any:
        """Opens an image, and compares it with what the dataset says. Its state is for the cache."""
        source, path = self._source, self._source.files[index]
        image = image_of(os.path.join(source.files.base, path))
        sizes = zip(image.shape, source.volume.shape, strict=False)
        if image.ndim != len(source.volume.shape) or any(n != size and size is not None for n, size in sizes):
            raise SourceError(
                f"{path} (element {index}) is {image.shape} now; it was {source.volume} when the dataset was made. "
                "Make the dataset again."
            )
        _require_fit(path, image, source.volume.dtype)
        return image

    def _values(self, index: int, image: Any, box: tuple[slice, ...] | None = None) -> npt.NDArray[Any]:
        """Reads a volume, or a box of it."""
        most = max(image.dataobj.dtype.itemsize, dtype_of(image).itemsize) + self._source.volume.dtype.itemsize
        if box is None:
            name = f"{self._source.files[index]} (element {index})"
            require_room(f"{name} takes while it is read", math.prod(image.shape) * most)
        try:
            values = np.asanyarray(image.dataobj) if box is None else image.dataobj[box]
        except Exception as error:  # what nibabel and gzip raise for damage has many types
            raise SourceError(
                f"{self._source.files[index]} (element {index}) cannot be read: {' '.join(str(error).split())}"
            ) from error
        return self._fitted(index, values)

    def _fitted(self, index: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values in the wanted dtype.

        Raises:
            SpecError: One is beyond its range. Or all are whole numbers, such as labels, and one would be another.
        """
        wanted = self._source.volume.dtype
        try:
            with np.errstate(over="raise", invalid="ignore"):
                found = values.astype(wanted, "C")
            wrong = _first_other(values, found)
        except FloatingPointError:
            wrong = values.flat[np.argmax(np.where(np.isfinite(values), np.abs(values * 1.0), 0))]
        if wrong is not None:
            raise SpecError(
                f"{self._source.files[index]} (element {index}) has the value {wrong}, which {wanted} cannot hold. "
                "from_nifti(dtype=None) takes the values as they are, and cast() rounds them."
            )
        return found

    def close(self) -> None:
        """Forgets headers."""
        self._checked.cache_clear()


def _first_other(values: npt.NDArray[Any], found: npt.NDArray[Any]) -> Any:
    """The first whole number that is another one in `found`; None if there is none, or some values are fractions."""
    kind, holds = values.dtype, found.dtype
    if np.can_cast(kind, holds) and (kind.kind == holds.kind or kind.itemsize < holds.itemsize):
        return None  # NumPy calls int64 to float64 safe, too
    first = None
    for plane, other in zip(np.moveaxis(values, -1, 0), np.moveaxis(found, -1, 0), strict=True):
        if values.dtype.kind in "fc" and (plane != np.rint(plane)).any():
            return None
        with np.errstate(invalid="ignore"):
            wrong = plane[(other.astype(values.dtype) != plane) | ((other < 0) != (plane < 0))]
        first = wrong[0] if first is None and len(wrong) else first
    return first
