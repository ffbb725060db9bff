"""Decodes the bytes of image files: JPEG with libjpeg-turbo (simplejpeg), PNG and WebP with OpenCV, others with Pillow.

The first bytes of a file decide, never its name. simplejpeg and OpenCV work without the GIL. The pixels of JPEG and PNG
equal those of TensorFlow's decoders to the bit. EXIF orientation, ICC profiles and gamma are ignored, alpha is dropped
and not blended, 16 bits become the upper 8.
"""

import io
import re
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import needs
from penstock.base._errors import SourceError
from penstock.image._opencv import cv2, simplejpeg
from penstock.image._scratch import scratch

Pixels = npt.NDArray[np.uint8]
Size = tuple[int, int]

_JPEG: Final = b"\xff\xd8\xff"
_JPEG_END: Final = b"\xff\xd9"
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_END: Final = b"\0\0\0\0IEND\xaeB`\x82"
_FRAMES: Final = (b"acTL", b"fcTL", b"fdAT")
"""Of the chunks of a PNG, those of its animation."""
_PILLOW: Final = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF")
"""What Pillow reads here. Others are read by programs (EPS), or are no pictures."""

_TIFF_BITS: Final = 258
_TIFF_MEANING: Final = 262
"""0: white is 0. Pillow sees to that, but for levels of 16 bits."""
_TIFF_PLANES: Final = 284
_TIFF_NUMBERS: Final = 339

_GREYS: Final = ("1", "L", "LA")
"""Pillow's modes without colours."""
_CONVERSIONS: Final = {
    (1, 3): "COLOR_GRAY2RGB",
    (1, 4): "COLOR_GRAY2RGBA",
    (3, 1): "COLOR_RGB2GRAY",
    (3, 4): "COLOR_RGB2RGBA",
    (4, 1): "COLOR_RGBA2GRAY",
    (4, 3): "COLOR_RGBA2RGB",
}
_TURBO_COLORS: Final = {1: "GRAY", 3: "RGB", 4: "RGBA"}

_MOST_EXTRANEOUS: Final = 4096
"""Bytes before the next mark of a JPEG that are ignored, as in all readers. Dozens of files of Cats vs. Dogs have
some. More of them mean that the decoder failed."""
_EXTRANEOUS: Final = re.compile(r"(\d+) extraneous bytes before marker 0x(?!d[0-7])")


class ImageError(SourceError):
    """An image file cannot be decoded: no image, truncated, damaged, or of an unsupported kind.

    The text has the fault and the remedy. It does not name the file, because only the bytes are known here. The reader
    of the file adds its name.
    """

    names_element = False


def decoded(data: memoryview, channels: int, least: Callable[[int, int], Size] | None = None) -> Pixels:
    """Returns the pixels of an image file: `(height, width, channels)`, C-contiguous; red, green, blue, alpha.

    They may lie in this thread's scratch memory until its next call.

    Args:
        data: All bytes of the file.
        channels: 1, 3 or 4.
        least: Returns the smallest useful size for the height and width of the image. A JPEG of at least twice that
            size in both axes is decoded at 1/2, 1/4 or 1/8 of its size, from its lower frequencies.

    Raises:
        ImageError: The bytes hold no such pixels.
    """
    head = bytes(data[:12])
    if head.startswith(_JPEG):
        return _jpeg(data, channels, least)
    if head.startswith(_PNG):
        if b"acTL" not in bytes(data[:4096]):
            return _by_opencv(data, channels, "PNG")
        image = _still(data)  # OpenCV reads the frames, and not the image
        return _of_channels(_by_opencv(image, 3 if channels == 1 else channels, "PNG"), channels)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _by_opencv(data, channels, "WebP")
    return _by_pillow(data, channels)


def indices(data: memoryview) -> Pixels:
    """Returns the numbers that a PNG stores: `(height, width, 1)`, a palette's indices, or unscaled levels of grey.

    Raises:
        ImageError: It stores colours, or more than 8 bits, or is no PNG, or is damaged.
    """
    depth, color = bytes(data[24:26]) if bytes(data[:8]) == _PNG and len(data) > 32 else (0, 0)
    if color not in (0, 3) or not 1 <= depth <= 8:
        image = _opened(data, whole=False)
        raise ImageError(
            f"a {image.format} of the mode {image.mode}, and color_mode='index' reads the numbers of PNGs alone, of a "
            "palette or of grey of up to 8 bits. color_mode='grayscale' reads its brightness. A function of yours "
            "reads other numbers: OpenCV's IMREAD_UNCHANGED for 16 bits, a table for colours."
        )
    levels = _by_opencv(_still(data, is_grey=True), 1, "PNG")  # from 0 to 255
    return levels if depth == 8 else (levels // (255 // (2**depth - 1))).astype(np.uint8)


def _still(data: memoryview, *, is_grey: bool = False) -> memoryview:
    """Returns a PNG without its animation, after a test of all checksums.

    Args:
        data: The PNG.
        is_grey: The result says that it is grey and has nothing else, so that indices of a palette are levels.
    """
    kept, start = [_PNG], len(_PNG)
    while (kind := bytes(data[start + 4 : start + 8])) != b"IEND":
        end = start + 8 + int.from_bytes(data[start : start + 4], "big")
        if end + 4 > len(data):
            raise _failed("PNG", f"it ends in the chunk at byte {start:,}")
        if zlib.crc32(data[start + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise _failed("PNG", f"broken PNG file, wrong checksum of {kind!r} at byte {start:,}")
        if kind == b"IHDR" and is_grey:
            header = bytes([*data[start + 4 : start + 17], 0, *data[start + 18 : end]])
            kept += [bytes(data[start : start + 4]), header, zlib.crc32(header).to_bytes(4, "big")]
        elif kind == b"IDAT" or not (is_grey or kind in _FRAMES):
            kept.append(bytes(data[start : end + 4]))
        start = end + 4
    return memoryview(b"".join([*kept, _PNG_END]))


def _failed(kind: str, reason: object) -> ImageError:
    return ImageError(
        f"a damaged or truncated {kind}, or one of a kind that is not read here ({reason}). Fetch the file again, or "
        "convert it to PNG."
    )


def _jpeg(data: memoryview, channels: int, least: Callable[[int, int], Size] | None) -> Pixels:
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError):  # junk in the header, chroma of an odd size
        raw = bytes(data)
        if raw[6:11] == b"JFIF\0" and raw[11] != 1:  # a revision without a meaning for pixels, as in Cats vs. Dogs
            return _jpeg(memoryview(raw[:11] + b"\1" + raw[12:]), channels, least)
        return _by_pillow(data, channels)
    if least is not None:
        divisor = _divisor(height, width, least(height, width))
        height, width = -(-height // divisor), -(-width // divisor)
    if colors in ("CMYK", "YCCK"):
        inks = scratch("decoded", (height, width, 4), np.uint8)
        _turbo(data, inks, "CMYK")
        return _without_inks(inks, channels, inverted="adobe" in _opened(data, whole=False).info)
    pixels = scratch("decoded", (height, width, channels), np.uint8)
    _turbo(data, pixels, _TURBO_COLORS[channels])
    return pixels


def _divisor(height: int, width: int, least: Size) -> int:
    """Returns 1, 2, 4 or 8. libjpeg-turbo has no vector code for 3/8: 555 us, where 1/2 takes 481."""
    ratio = min(height // least[0], width // least[1])
    return 8 if ratio >= 8 else 4 if ratio >= 4 else 2 if ratio >= 2 else 1


def _turbo(data: memoryview | bytes, out: Pixels, colors: str, *, strict: bool = True) -> None:
    """Decodes a JPEG, with the fast integer DCT and smooth upsampling, as TensorFlow does.

    An `out` of 1/2, 1/4 or 1/8 of the image's size gets the image decoded at that size.
    """
    height, width, _ = out.shape
    try:
        simplejpeg.decode_jpeg(
            data, colors, fastdct=True, buffer=out, min_height=height, min_width=width, min_factor=2, strict=strict
        )
    except ValueError as error:
        flaw, raw = str(error), bytes(data)
        if "Premature end of JPEG file" in flaw and raw[-2:] != _JPEG_END:
            if "progressive" not in _opened(data, whole=False).info:
                # Perhaps only the end mark is missing. With an end mark, libjpeg reports missing pixels. It would not
                # report missing last scans, so a progressive JPEG is not tried.
                return _turbo(raw + _JPEG_END, out, colors)
        elif strict and _is_padded(raw, flaw):
            return _turbo(raw, out, colors, strict=False)
        raise _failed("JPEG", flaw) from None


def _is_padded(raw: bytes, flaw: str) -> bool:
    """Whether the only flaw are bytes between the pixels and the next mark, in a file that has its end mark.

    Not before a restart mark: a part of the pixels that is damaged ends like that.
    """
    found = _EXTRANEOUS.search(flaw)
    has_end = raw.rfind(_JPEG_END) > raw.rfind(b"\xff\xda")
    return found is not None and int(found[1]) <= _MOST_EXTRANEOUS and has_end


def _without_inks(inks: Pixels, channels: int, *, inverted: bool) -> Pixels:
    """Converts cyan, magenta, yellow and black. Adobe writes them inverted, 255 for no ink."""
    if not inverted:
        np.subtract(255, inks, out=inks)
    rgb = (np.multiply(inks[..., :3], inks[..., 3:], dtype=np.uint16) // 255).astype(np.uint8)
    return _of_channels(rgb, channels)


def _of_channels(pixels: Pixels, channels: int) -> Pixels:
    """Converts grey, RGB or RGBA to one of the others. Alpha is dropped, or 255."""
    present = pixels.shape[2]
    if present == channels:
        return pixels
    converted = np.asarray(cv2.cvtColor(pixels, getattr(cv2, _CONVERSIONS[present, channels])))
    return converted.reshape(*pixels.shape[:2], channels)


def _by_opencv(data: memoryview, channels: int, kind: str) -> Pixels:
    """Decodes a PNG or a WebP, of an animation the first frame."""
    flags = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB, 4: cv2.IMREAD_UNCHANGED}[channels]
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise _failed(kind, error.err) from None
    if pixels is None:
        raise _failed(kind, f"OpenCV {cv2.__version__} finds no image in {len(data):,} bytes")
    if channels < 4:
        return np.asarray(pixels).reshape(*pixels.shape[:2], channels)
    alpha = _transparent(data, pixels) if pixels.ndim == 2 else None
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if pixels.ndim == 2:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR)
    rgba = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGBA))
    if alpha is not None:
        rgba[..., 3] = alpha
    return rgba


def _transparent(data: memoryview, pixels: npt.NDArray[Any]) -> Pixels | None:
    """Returns the alpha of a grey PNG with one transparent level, which OpenCV leaves out."""
    level, depth = _opened(data, whole=False).info.get("transparency"), data[24]
    if level is None:
        return None
    if depth < 8:  # OpenCV spreads levels from 0 to 255, and of one bit newer versions of Pillow do
        level = min(255, level * (255 // (2**depth - 1)))
    return np.where(pixels == level, 0, 255).astype(np.uint8)


def _by_pillow(data: memoryview, channels: int) -> Pixels:
    image = _opened(data)
    if (levels := _wide_levels(image)) is not None:
        return _of_channels(levels[..., None], channels)
    is_partial = image.format == "GIF" and (image.has_transparency_data or image.dispose_extent != (0, 0, *image.size))
    if is_partial or image.mode == "RGBA" or (channels == 4 and image.has_transparency_data):
        mode = "RGBA"
    else:
        mode = "L" if image.mode in _GREYS else "RGB"
    # For one mode, convert() is a copy.
    pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    if is_partial:  # black where it is transparent and around its first frame, as TensorFlow does
        left, top, right, bottom = image.dispose_extent
        frame = np.zeros(pixels.shape[:2], bool)
        frame[top:bottom, left:right] = True
        pixels = np.where((frame & (pixels[..., 3] != 0))[..., None], pixels, np.uint8(0))
    return _of_channels(pixels if pixels.ndim == 3 else pixels[..., None], channels)


def _wide_levels(image: Any) -> Pixels | None:
    """Returns the upper 8 bits of Pillow's image of grey with up to 16 bits; None for one of 8 bits.

    Raises:
        ImageError: Its numbers are no levels, or it is a TIFF of a kind that Pillow reads as another.
    """
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(_TIFF_BITS, (16,))[0]
    is_apart = bits > 8 and tags.get(_TIFF_PLANES) == 2
    if image.mode in ("I", "F") or tags.get(_TIFF_NUMBERS, (1,))[0] != 1 or is_apart:
        raise ImageError(
            f"a {image.format} of signed or floating-point numbers, of more than 16 bits, or of 16 bits with a plane "
            "for each colour. Read it with tifffile in a function of your own, or convert it to PNG."
        )
    if not image.mode.startswith("I;16"):
        return None
    levels: npt.NDArray[Any] = np.asarray(image) >> bits - 8
    return (255 - levels if tags.get(_TIFF_MEANING) == 0 else levels).astype(np.uint8)


def _opened(data: memoryview | bytes, *, whole: bool = True) -> Any:
    """Returns Pillow's image, with its pixels if it is wanted `whole`."""
    with needs("an image that is no JPEG, PNG or WebP", "pillow"):
        from PIL import Image, UnidentifiedImageError
    try:
        image = Image.open(io.BytesIO(data), formats=_PILLOW)
        if whole:
            image.load()
    except UnidentifiedImageError:
        raise ImageError(
            f"no image of a kind that is read here, or a truncated one: it has {len(data):,} bytes, and begins with "
            f"{bytes(data[:32])!r}. Fetch the file again, or take it out of the images."
        ) from None
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"an image of more pixels than Pillow's limit admits ({error}) If it is yours, raise "
            "PIL.Image.MAX_IMAGE_PIXELS. Worker processes do not see what the program sets: set it in the function "
            "that decodes, or in one that is mapped before, or use executor='threads'."
        ) from None
    except Image.DecompressionBombWarning:  # where the program makes errors of warnings
        raise
    except Exception as error:  # of many kinds
        raise _failed("image", error) from None
    return image
