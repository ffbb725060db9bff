"""Volumes in NIfTI files, by nibabel; parts of those that are not compressed are read plane by plane."""

import itertools
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
from nibabel.nifti1 import Nifti1Image, Nifti1Pair
from nibabel.nifti2 import Nifti2Image, Nifti2Pair
from nibabel.orientations import aff2axcodes
from nibabel.volumeutils import apply_read_scaling

from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, SourceError, SpecError
from penstock.base._files import Stamp, open_file, require_file
from penstock.base._retries import retry_budget
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.base._units import size_text
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.sources._listing import FileList
from penstock.sources._wholefiles import found
from penstock.sources.boxes import BoxSource

_log = logging.getLogger("penstock")

_KINDS: Final = (Nifti1Image, Nifti1Pair, Nifti2Image, Nifti2Pair)
_MOST_EXPANSION: Final = 1040
"""Bytes of content for a byte of gzip, which has 1032 at most."""
_MOST_EXPANSION_OF_OTHERS: Final = 1 << 21
"""The same of bzip2, whose blocks of 32 bytes or more hold 46 MB of one value at most, and of Zstandard, with less."""
_IMAGES_KEPT: Final = 256
"""Headers that are kept in a process, some kilobytes each."""


def source(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], dtype: Any, affine: bool, header: bool
) -> "NiftiSource":
    """The volumes of files. Reads their headers.

    Raises:
        ArgumentError: There are no paths, or URLs.
        ArgumentTypeError: `dtype` is none.
        SourceError: A file is no NIfTI file, or cut off.
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
        SourceError: It is no NIfTI file, or its header claims more than the file can have.
    """
    try:
        require_file(path)
        sniff = None
        for kind in _KINDS:
            is_one, sniff = kind.path_maybe_image(path, sniff)
            if is_one:
                image = kind.from_filename(path, mmap=False)  # a mapped file that is cut ends the process
                break
        else:
            raise SourceError(f"{path} is no NIfTI file. {_cure(path)}")
        place, offset = image.file_map["image"].filename, image.dataobj.offset
        require_file(place)
        nbytes = math.prod(image.shape) * image.dataobj.dtype.itemsize
        present = os.stat(place).st_size
        most = present
        if is_packed(image):
            most *= _MOST_EXPANSION if str(place).lower().endswith(".gz") else _MOST_EXPANSION_OF_OTHERS
        if min(image.shape, default=1) < 1 or offset < 0 or offset + nbytes > most:
            raise SourceError(
                f"{place} has {present:,} bytes, and its header says {image.shape} of {image.dataobj.dtype} from byte "
                f"{offset:,} on. It is damaged, or was not written to its end; write it again."
            )
    except PenstockError:
        raise
    except OSError as error:
        raise SourceError(f"{error.filename or path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # what nibabel raises for damage has many types
        raise SourceError(f"{path} is no NIfTI file, or is damaged: {type(error).__name__}: {error}") from error
    return image


def _cure(path: str) -> str:
    """What to do with a file that nibabel does not take for NIfTI."""
    with open_file(path) as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    if is_gzip != path.lower().endswith((".gz", ".mgz")):
        fact, name = ("is", "scan.nii.gz") if is_gzip else ("is not", "scan.nii")
        return f"It {fact} compressed by gzip, and its name says otherwise: rename it as in {name}."
    return (
        "Give a .nii, a .nii.gz, or the .hdr or .img of a pair. Others that nibabel reads can be written as one: "
        "nibabel.save(nibabel.load(path), 'scan.nii')."
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
        self._images: dict[str, tuple[tuple[int, ...], Any]] = {}
        """The states of files, and their headers. Threads may make one twice."""

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
        """Reads a box of several volumes: of each plane of it, the bytes from its first value to its last."""
        source = self._source
        shape = tuple(each.stop - each.start for each in box)
        found = np.empty(shape, source.volume.dtype)
        for row, index in enumerate(range(box[0].start, box[0].stop)):
            image = self._image(index)
            data = image.dataobj
            try:
                with open_file(image.file_map["image"].filename) as file:
                    values = _box(file.fileno(), data, box[1:])
            except (OSError, ValueError) as error:
                raise self._fault(index, error) from error
            values = apply_read_scaling(values, np.float64(data.slope), np.float64(data.inter))
            found[row] = self._fitted(index, values)
        return found

    def _image(self, index: int) -> Any:
        """Opens an image, and compares it with what the dataset says; again only where its file has changed."""
        source, path = self._source, self._source.files[index]
        place = os.path.join(source.files.base, path)
        try:
            state: tuple[int, ...] = Stamp.of(place)
        except OSError:
            state = (-1, -1)  # `image_of` says what is wrong
        kept_state, image = self._images.get(path, (None, None))
        if kept_state == state:
            return image
        image = image_of(place)
        sizes = zip(image.shape, source.volume.shape, strict=False)
        if image.ndim != len(source.volume.shape) or any(n != size and size is not None for n, size in sizes):
            raise SourceError(
                f"{path} (element {index}) is {image.shape} now; it was {source.volume} when the dataset was made. "
                "Make the dataset again."
            )
        _require_fit(path, image, source.volume.dtype)
        if len(self._images) >= _IMAGES_KEPT:
            self._images.clear()
        self._images[path] = state, image
        return image

    def _values(self, index: int, image: Any) -> npt.NDArray[Any]:
        wanted = self._source.volume.dtype
        most = max(image.dataobj.dtype.itemsize, dtype_of(image).itemsize) + wanted.itemsize
        nbytes, room_nbytes = math.prod(image.shape) * most, retry_budget().room_nbytes
        if nbytes > room_nbytes:
            raise SourceError(
                f"{self._source.files[index]} (element {index}) takes {size_text(nbytes)} while it is read, above the "
                f"{size_text(int(room_nbytes))} that memory_limit leaves to each worker. Raise memory_limit, take "
                "fewer workers=, or leave it out."
            )
        try:
            values = np.asanyarray(image.dataobj)
        except Exception as error:  # what nibabel and gzip raise for damage has many types
            raise self._fault(index, error) from error
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

    def _fault(self, index: int, error: Exception) -> SourceError:
        return SourceError(
            f"{self._source.files[index]} (element {index}) cannot be read: {' '.join(str(error).split())}. It is "
            "damaged, or was not written to its end."
        )

    def close(self) -> None:
        """Forgets headers."""
        self._images.clear()


def _first_other(values: npt.NDArray[Any], found: npt.NDArray[Any]) -> Any:
    """The first whole number that is another one in `found`; None if there is none, or some values are fractions."""
    kind, holds = values.dtype, found.dtype
    if np.can_cast(kind, holds) and (kind.kind == holds.kind or kind.itemsize < holds.itemsize):
        return None  # NumPy calls int64 to float64 safe, too
    most = 2 ** (np.finfo(found.dtype).nmant + 1) if found.dtype.kind in "fc" else np.iinfo(found.dtype).max
    if values.dtype.kind != "c" and -most <= np.fmin.reduce(values, None) and np.fmax.reduce(values, None) <= most:
        return None
    first = None
    for plane, other in zip(np.moveaxis(values, -1, 0), np.moveaxis(found, -1, 0), strict=True):
        if values.dtype.kind in "fc" and (plane != np.rint(plane)).any():
            return None
        with np.errstate(invalid="ignore"):
            wrong = plane[(other.astype(values.dtype) != plane) | ((other < 0) != (plane < 0))]
        first = wrong[0] if first is None and len(wrong) else first
    return first


def _box(descriptor: int, data: Any, box: tuple[slice, ...]) -> npt.NDArray[Any]:
    """Reads a box of a volume in Fortran order, in one call for each plane of its first two axes.

    Raises:
        OSError: It cannot be read.
        ValueError: The file ends before.
    """
    shape, itemsize = data.shape, data.dtype.itemsize
    steps = [math.prod(shape[:axis]) for axis in range(len(shape))]
    found = np.empty(tuple(each.stop - each.start for each in box), data.dtype, order="F")
    for place in itertools.product(*(range(each.start, each.stop) for each in box[2:])):
        firsts = (*(each.start for each in box[:2]), *place)
        lasts = (*(each.stop - 1 for each in box[:2]), *place)
        first, last = (sum(at * step for at, step in zip(each, steps, strict=True)) for each in (firsts, lasts))
        nbytes = (last + 1 - first) * itemsize
        content = os.pread(descriptor, nbytes, data.offset + first * itemsize)
        if len(content) < nbytes:
            raise ValueError(f"the file ends {nbytes - len(content):,} bytes before the end of a plane")
        plane = found[(..., *(at - each.start for at, each in zip(place, box[2:], strict=True)))]
        strides = tuple(step * itemsize for step in steps[:2])
        plane[...] = np.ndarray(plane.shape, data.dtype, content, 0, strides)
    return found
