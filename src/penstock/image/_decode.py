"""Decoding of image files to arrays: `Decoding`, a value, and the function `decode`.

An image file is decoded into scratch memory of the thread, then cropped, resized and converted straight into its row of
the batch. The content of the file determines its format, never the name.
"""

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import bytes_of, check_choice, checked_size
from penstock.base._errors import ArgumentError
from penstock.base._files import open_file
from penstock.base._spec import ArraySpec
from penstock.image._codecs import ImageError, decoded, indices
from penstock.image._resize import Fit, Interpolation, Resizing

Array = npt.NDArray[Any]
Data = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
"""All bytes of one image file, in any buffer."""

ColorMode = Literal["grayscale", "rgb", "rgba", "index"]
Speed = Literal["exact", "fast"]
DataFormat = Literal["channels_last", "channels_first"]

_CHANNEL_COUNTS: Final = {"grayscale": 1, "rgb": 3, "rgba": 4, "index": 1}


@final
@dataclass(frozen=True)
class Decoding:
    """Converts the bytes of an image file to an array. A function for `map`, and an immutable, hashable value.

    The bytes of a JPEG, PNG, WebP, GIF, BMP, TIFF, or another file that Pillow reads (JPEG 2000, AVIF, Netpbm), become
    `(*size, channels)` of the dtype, with levels from 0 to 255; of an animation, its image or first frame. Pixels equal
    those of Keras's `image_dataset_from_directory` (3.15, on TensorFlow 2.21): JPEGs are decoded to the same bits, and
    resized without antialiasing. EXIF orientation (except a TIFF's), colour profiles and gamma are ignored. Alpha is
    dropped unless `color_mode="rgba"`. 16 bits become the upper 8. The first frame of a GIF
    lies on its canvas, which is black around it, and transparent in rgba.

    Some files that Keras refuses are read: formats without alpha as rgba (255), GIF, BMP, WebP and CMYK as grayscale,
    TIFF and what else Pillow reads. A truncated or damaged file is an `ImageError`, never a grey picture, if its format
    shows the damage (JPEG, GIF and BMP have no checksums).

    JPEG, PNG and WebP are decoded without the GIL; Pillow, which decodes the others, holds it for a part of its time.
    Memory: scratch memory of the thread, up to 4 MiB an array (an image of 1.4 million pixels in rgb). A larger image
    takes fresh memory while it is decoded: `height * width * channels` bytes if it is a JPEG, twice to three times that
    for other formats, and 6 bytes a pixel more for a progressive JPEG. Of sizes that a header claims, the limits are
    those of the libraries, such as `PIL.Image.MAX_IMAGE_PIXELS`, which a worker process has to set for itself.

    Example:
        >>> from pathlib import Path
        >>> ps.image.Decoding((180, 180), fit="crop")(Path("cat.jpg").read_bytes()).shape
        (180, 180, 3)
    """

    size: tuple[int, int] | None = None
    """Height and width of the array; None for those of the image."""
    _: KW_ONLY
    color_mode: ColorMode = "rgb"
    """1, 3 or 4 channels. `"index"` is one channel, for masks of classes: the numbers that a PNG stores. They are a
    palette's indices and not its colours, or grey levels of the PNG's depth, 0 and 1 for one bit. They need
    `interpolation="nearest"` with a `size`. A file with colours or 16 bits, or another format, is an `ImageError`."""
    interpolation: Interpolation = "bilinear"
    fit: Fit = "stretch"
    """The treatment of other proportions; see `Resizing`. `"crop"` and `"pad"` are Keras's
    `crop_to_aspect_ratio` and `pad_to_aspect_ratio`."""
    decode: Speed = "exact"
    """`"exact"` uses every coefficient of a JPEG. `"fast"` decodes a JPEG of at least twice the requested size, in both
    axes, at 1/2, 1/4 or 1/8 of its size from the lower frequencies, and resizes the result. Pixels then differ from
    exact ones, which alias, by 3 to 5 levels on average, 26 to 40 at the 99th percentile (photos of 500 x 375,
    bilinear, to 180 x 180 and to 64 x 64); with `area` by 2, and 14 to 19."""
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009 - immutable
    """float32, as in Keras, or uint8: rounded and clipped."""
    data_format: DataFormat = "channels_last"
    """`"channels_first"` is `(channels, *size)`."""

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", checked_size(self.size))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if self.dtype not in (np.float32, np.uint8):
            raise ArgumentError(f"dtype is {self.dtype}. Images are decoded to float32 or uint8; `cast` makes others.")
        for name, literal in (
            ("color_mode", ColorMode),
            ("interpolation", Interpolation),
            ("fit", Fit),
            ("decode", Speed),
            ("data_format", DataFormat),
        ):
            check_choice(name, getattr(self, name), literal)
        if self.color_mode == "index" and self.size is not None and self.interpolation != "nearest":
            raise ArgumentError(
                f"color_mode='index' reads class numbers, between which {self.interpolation!r} would find others: "
                "interpolation='nearest'."
            )

    @property
    def releases_gil(self) -> bool:
        """True: libjpeg-turbo, OpenCV and NumPy release the GIL. Pillow does so in part."""
        return True

    @property
    def channel_count(self) -> int:
        """1, 3 or 4."""
        return _CHANNEL_COUNTS[self.color_mode]

    @property
    def element_spec(self) -> ArraySpec:
        """Shape and dtype: `(height, width, channels)`, height and width None without a `size`."""
        height, width = self.size or (None, None)
        last = self.data_format == "channels_last"
        channels = self.channel_count
        return ArraySpec((height, width, channels) if last else (channels, height, width), self.dtype)

    def into(self, data: Data, out: Array) -> None:
        """Decodes the bytes of one file into `out`, such as a row of a slot. Needs a `size`.

        Args:
            data: All bytes of the file, in any buffer.
            out: An array of `element_spec`; fastest if C-contiguous with channels last.

        Raises:
            ImageError: The bytes hold no such image. The text does not name the file.
            ArgumentTypeError: These are no bytes, but an element, a path, or decoded numbers.
        """
        resizing = self._resizing
        if resizing is None:
            raise ArgumentError("Decoding.into() needs a `size`; without one, every image has a shape of its own.")
        size: tuple[int, int] | None = None

        def least(height: int, width: int) -> tuple[int, int]:
            nonlocal size
            size = height, width
            return resizing.least_size(height, width)

        pixels = self._pixels(data, least if self.decode == "fast" else None)
        resizing.fill(pixels, out if self.data_format == "channels_last" else out.transpose(1, 2, 0), size)

    def __call__(self, data: Data) -> Array:
        """Returns the image in a new array; without `size` in the size of the file.

        Raises:
            ImageError: As for `into`.
        """
        if self.size is not None:
            shape = self.element_spec.max_shape
            assert shape is not None
            out = np.empty(shape, self.dtype)
            self.into(data, out)
            return out
        pixels = self._pixels(data)
        if self.data_format == "channels_first":
            pixels = pixels.transpose(2, 0, 1)
        return np.array(pixels, self.dtype, order="C")  # a copy of scratch memory

    def _pixels(self, data: Any, least: Callable[[int, int], tuple[int, int]] | None = None) -> Array:
        read_first = " Read it: map(penstock.image.decode), or from_files(paths) for the bytes."
        view = bytes_of(data, "A Decoding takes the bytes of a file", read_first)
        return indices(view) if self.color_mode == "index" else decoded(view, self.channel_count, least)

    @cached_property
    def _resizing(self) -> Resizing | None:
        return None if self.size is None else Resizing(self.size, interpolation=self.interpolation, fit=self.fit)


def decode(source: Data | str | os.PathLike[str], size: tuple[int, int] | None = None, **options: Any) -> Array:
    """Reads one image file: `(height, width, channels)`, uint8 without a `size`, else float32; see `Decoding`.

    Args:
        source: The path of the file, or its bytes.
        size: Height and width of the result; None for those of the file.
        options: Fields of `Decoding`: `color_mode`, `interpolation`, `fit`, `decode`, `dtype`, `data_format`.

    Raises:
        ImageError: It holds no such image. The text begins with the path, if given.
        OSError: The file cannot be read.

    Example:
        >>> ps.image.decode("cat.jpg", color_mode="grayscale").shape
        (375, 500, 1)
    """
    options.setdefault("dtype", np.uint8 if size is None else np.float32)
    decoding = Decoding(size, **options)
    if not isinstance(source, (str, os.PathLike)):
        return decoding(source)
    with open_file(source) as file:
        data = file.read()
    try:
        return decoding(data)
    except ImageError as error:
        raise ImageError(f"{os.fspath(source)}: {error}") from None
