"""Decodes the bytes of image files: JPEG with libjpeg-turbo (simplejpeg), the other formats with OpenCV.

Both work without the GIL. The pixels equal those of TensorFlow's decoders to the bit, for all files that these read.
EXIF orientation, ICC profiles and gamma are ignored, alpha is dropped and not blended, 16 bits become the upper 8.
"""

import re
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base._retries import retry_budget
from penstock.image._formats import (
    JPEG_START,
    Header,
    ImageError,
    check_room,
    check_size,
    ends_early,
    first_frame,
    header_of,
    jpeg_frame,
    png_chunks,
    truncated,
    without_junk,
)
from penstock.image._opencv import cv2, simplejpeg
from penstock.image._scratch import scratch

Pixels = npt.NDArray[np.uint8]
Size = tuple[int, int]

_TURBO_COLORS: Final = {1: "GRAY", 3: "RGB", 4: "RGBA"}

_MOST_EXTRANEOUS: Final = 4096
"""Bytes between pixels and the next mark that are ignored, as in all readers. Dozens of files of Cats vs. Dogs have
some. More of them mean that the decoder failed, unless all are the same."""
_EXTRANEOUS: Final = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")

_COEFFICIENTS_NBYTES: Final = 6
"""The bytes of a pixel that the decoder of a progressive JPEG keeps besides, without subsampling."""

_USUAL_MASKS: Final = struct.pack("<III", 0xFF0000, 0xFF00, 0xFF)
"""Of red, green and blue in the pixels of a BMP."""

_LEAST_WEBP_NBYTES: Final = 32
"""OpenCV refuses smaller files. Those of one colour have 28 bytes, and bytes after the image are ignored."""


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
    if bytes(data[:3]) == JPEG_START:
        return _jpeg(data, channels, least)
    return np.ascontiguousarray(_opencv(data, header_of(data), channels))


def indices(data: memoryview) -> Pixels:
    """Returns the numbers that a PNG stores: `(height, width, 1)`, a palette's indices, or unscaled levels of grey.

    Raises:
        ImageError: It stores colours, or more than 8 bits, or is no PNG, or is damaged.
    """
    header = Header("JPEG", 0, 0) if bytes(data[:3]) == JPEG_START else header_of(data)
    cure = "color_mode='grayscale' reads its brightness"
    if header.format != "PNG":
        raise ImageError(f"a {header.format}: color_mode='index' reads the numbers of PNGs alone; {cure}.")
    depth, color = data[24], data[25]
    if color not in (0, 3) or depth > 8:
        what = f"{depth} bits" if color in (0, 3) else "no palette, but colours or alpha"
        raise ImageError(
            f"a PNG of {what}, and color_mode='index' reads palettes and grey of up to 8 bits; {cure}. A function of "
            "yours reads other numbers: OpenCV's IMREAD_UNCHANGED for 16 bits, a table for colours."
        )
    # OpenCV always replaces indices by colours. With the header of a grey image it reads the same rows as numbers.
    head = b"IHDR" + bytes(data[16:25]) + b"\0" + bytes(data[26:29])
    parts, at = [bytes(data[:12]), head, struct.pack(">I", zlib.crc32(head))], 8
    for kind, content in png_chunks(data):
        end = at + len(content) + 12
        if kind in (b"IDAT", b"IEND"):
            parts.append(bytes(data[at:end]))
        at = end
    check_room(header.height, header.width, 2, "PNG")
    pixels = _imdecode(b"".join(parts), header, cv2.IMREAD_UNCHANGED)
    return np.asarray(pixels // (255 // (2**depth - 1)) if depth < 8 else pixels)[..., None]


def _jpeg(data: memoryview, channels: int, least: Callable[[int, int], Size] | None) -> Pixels:
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError):  # a flaw, or a colour space outside its interface
        return _odd_jpeg(data, channels, least)
    check_size(height, width, "JPEG", len(data))
    all_nbytes = channels + _COEFFICIENTS_NBYTES
    if height * width * all_nbytes > retry_budget().room_nbytes and jpeg_frame(data).is_progressive:
        check_room(height, width, all_nbytes, "JPEG")
    if least is not None:
        divisor = _divisor(height, width, least(height, width))
        height, width = -(-height // divisor), -(-width // divisor)
    check_room(height, width, 4 + 3 * channels if colors in ("CMYK", "YCCK") else channels, "JPEG")
    if colors in ("CMYK", "YCCK"):
        inks = scratch("decoded", (height, width, 4), np.uint8)
        _turbo(data, inks, "CMYK")
        return _without_inks(inks, channels, inverted=jpeg_frame(data).is_adobe)
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
        reason = str(error)
        view = memoryview(data)
        if "Premature end of JPEG file" in reason and bytes(view[-2:]) != b"\xff\xd9" and jpeg_frame(view).is_one_scan:
            # Perhaps only the end mark is missing. With an end mark, libjpeg reports missing pixels. It would not
            # report missing last scans, so a progressive JPEG is not tried.
            try:
                return _turbo(bytes(data) + b"\xff\xd9", out, colors)
            except ImageError:
                raise truncated(view) from None
        if strict and _is_padded(view, reason):
            return _turbo(data, out, colors, strict=False)
        if "remature end" in reason:
            raise truncated(view) from None
        if reason.startswith("Unsupported"):
            raise ImageError(
                f"a JPEG of a kind that is not read here ({reason}). Convert it to baseline JPEG."
            ) from None
        raise ImageError(f"a damaged or truncated JPEG ({reason}). Fetch the file again.") from None


def _is_padded(data: memoryview, reason: str) -> bool:
    """Whether the only flaw are bytes between the pixels and the next mark, in a file that has its end mark.

    Not before a restart mark: a part of the pixels that is damaged ends like that.
    """
    found = _EXTRANEOUS.search(reason)
    if found is None or 0xD0 <= int(found[2], 16) <= 0xD7:
        return False
    raw, nbytes = bytes(data), int(found[1])
    end = raw.rfind(b"\xff\xd9")
    is_filled = len(set(raw[max(0, end - nbytes) : end])) == 1
    return end > raw.rfind(b"\xff\xda") and (nbytes <= _MOST_EXTRANEOUS or is_filled)


def _without_inks(inks: Pixels, channels: int, *, inverted: bool) -> Pixels:
    """Converts cyan, magenta, yellow and black. Adobe writes them inverted, 255 for no ink."""
    if not inverted:
        np.subtract(255, inks, out=inks)
    rgb = (np.multiply(inks[..., :3], inks[..., 3:], dtype=np.uint16) // 255).astype(np.uint8)
    return _from_rgb(rgb, channels)


def _from_rgb(rgb: Pixels, channels: int) -> Pixels:
    if channels == 1:
        return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY))[..., None]
    return rgb if channels == 3 else np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2RGBA))


def _odd_jpeg(data: memoryview, channels: int, least: Callable[[int, int], Size] | None) -> Pixels:
    """Decodes a JPEG whose header simplejpeg refuses: junk in it, an odd revision of JFIF, odd chroma."""
    clean = without_junk(data)
    if clean[6:11] == b"JFIF\0" and clean[11] != 1:  # without a meaning for pixels
        clean = clean[:11] + b"\1" + clean[12:]
    if clean != data:
        return _jpeg(memoryview(clean), channels, least)
    frame = jpeg_frame(data)
    check_size(frame.height, frame.width, "JPEG", len(data))
    if b"\xff\xd9" not in bytes(data[frame.pixels_start :]):
        raise truncated(data)
    return _opencv(data, Header("JPEG", frame.height, frame.width), channels)  # odd chroma


def _opencv(data: memoryview, header: Header, channels: int) -> Pixels:
    if header.format == "GIF":
        return _gif(data, channels)
    # Measured: OpenCV's array and the one in our order, of 16 bits if alpha is asked for.
    has_16_bits = header.is_blended or (header.format == "PNG" and data[24] == 16)
    pixel_nbytes = 2 * max(2, channels) * (2 if has_16_bits and channels == 4 else 1)
    check_room(header.height, header.width, pixel_nbytes, header.format)
    if header.format == "PNG":
        data = _still(data)
    if header.format == "BMP":
        data = _with_masks(data)
    if header.format == "WebP" and len(data) < _LEAST_WEBP_NBYTES:
        data = memoryview(bytes(data).ljust(_LEAST_WEBP_NBYTES, b"\0"))
    if header.is_blended:
        pixels = _imdecode(data, header, cv2.IMREAD_UNCHANGED)
        if pixels.dtype == np.uint16:  # not blended
            rgba = _with_alpha(data, header, pixels)
            return rgba if channels == 4 else _from_rgb(np.ascontiguousarray(rgba[..., :3]), channels)
        _require_opaque(pixels, header)
    if channels == 4 and not header.is_opaque:
        return _with_alpha(data, header, _imdecode(data, header, cv2.IMREAD_UNCHANGED))
    flags = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR
    pixels = _imdecode(data, header, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    if channels == 4:
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGBA))
    return pixels[..., None] if channels == 1 else np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels))


def _still(data: memoryview) -> memoryview:
    """Returns a PNG without its animation. Its image may differ from the first frame."""
    at = 8
    for kind, content in png_chunks(data):
        if kind == b"IDAT":
            break
        end = at + len(content) + 12
        if kind == b"acTL":  # without it, readers ignore the animation
            return memoryview(bytes(data[:at]) + bytes(data[end:]))
        at = end
    return data


def _with_masks(data: memoryview) -> memoryview:
    """Returns a BMP of 32 bits whose header has the masks of its colours. OpenCV ignores masks behind the header."""
    start, info_nbytes, _, _, _, bits, kind = struct.unpack_from("<IIiiHHI", bytes(data[:54]).ljust(54, b"\0"), 10)
    masks = bytes(data[54:66])
    if info_nbytes not in (40, 52) or bits != 32 or kind != 3 or masks in (_USUAL_MASKS, b""):
        return data
    head = struct.pack("<II", 70, 56) + bytes(data[18:54]) + masks.ljust(16, b"\0")
    return memoryview(bytes(data[:10]) + head + bytes(data[start:]))


def _require_opaque(pixels: npt.NDArray[Any], header: Header) -> None:
    if pixels.ndim == 3 and pixels.shape[2] == 4 and pixels[..., 3].min() < 255:
        raise ImageError(
            f"a {header.format} with transparent pixels, whose colours its codec darkens. Convert it to PNG, which "
            "keeps them."
        )


def _imdecode(data: memoryview | bytes, header: Header, flags: int) -> npt.NDArray[Any]:
    """Returns OpenCV's pixels, blue first; 16 bits if the file has them and the flags say unchanged."""
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ImageError(f"a damaged {header.format} ({error.err}). Fetch the file again.") from None
    if pixels is not None:
        return np.asarray(pixels)
    if ends_early(memoryview(data), header.format):
        raise truncated(memoryview(data))
    raise ImageError(
        f"a damaged or truncated {header.format} of {len(data):,} bytes, or one of a kind that OpenCV "
        f"{cv2.__version__} does not read. Fetch the file again, or convert it."
    )


def _gif(data: memoryview, channels: int) -> Pixels:
    """Decodes the first frame on its canvas, black where it is transparent and around it, as TensorFlow does."""
    frame = first_frame(data)
    check_size(frame.height, frame.width, "GIF", len(data))
    check_size(*frame.canvas, "GIF", len(data))
    check_room(*frame.canvas, 2 * max(3, channels) + 1, "GIF")
    pixels = _imdecode(frame.data, header_of(memoryview(frame.data)), cv2.IMREAD_UNCHANGED)
    alpha = pixels[..., 3] if pixels.shape[2] == 4 else None
    rgb = np.ascontiguousarray(pixels[..., 2::-1])
    if alpha is not None:
        rgb *= alpha[..., None] > 0
    found = _from_rgb(rgb, channels)
    if channels == 4 and alpha is not None:
        found[..., 3] = alpha
    if frame.canvas == found.shape[:2]:
        return found
    canvas = np.zeros((*frame.canvas, channels), np.uint8)
    canvas[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width] = found
    return canvas


def _with_alpha(data: memoryview, header: Header, pixels: npt.NDArray[Any]) -> Pixels:
    """Converts OpenCV's pixels, which may be grey, without alpha, and of 16 bits."""
    alpha = None
    if pixels.ndim == 2 and header.format == "TIFF":
        raise ImageError("a TIFF of grey and alpha, whose codec leaves alpha out. Convert it to PNG, which keeps it.")
    if pixels.ndim == 2 and header.format == "PNG":
        alpha = _key_alpha(data, pixels)
    if pixels.ndim == 3 and header.format == "BMP" and pixels.shape[2] == 3:
        alpha = _bmp_alpha(data, header)
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA, dst=pixels))
    rgba = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGBA if pixels.ndim == 2 else cv2.COLOR_BGR2RGBA))
    if alpha is not None:
        rgba[..., 3] = alpha
    return rgba


def _key_alpha(data: memoryview, pixels: npt.NDArray[Any]) -> Pixels | None:
    """Returns the alpha of a grey PNG with one transparent level, which OpenCV omits."""
    for kind, content in png_chunks(data):
        if kind == b"tRNS":
            level, depth = int.from_bytes(content[:2], "big"), data[24]
            level *= 255 // (2**depth - 1) if depth < 8 else 1
            return np.where(pixels == level, 0, 255).astype(np.uint8)
        if kind == b"IDAT":
            break
    return None


def _bmp_alpha(data: memoryview, header: Header) -> Pixels | None:
    """Returns the fourth byte of pixels of an uncompressed 32-bit BMP, which TensorFlow reads as alpha."""
    start, info_nbytes, _, height, _, bits, kind = struct.unpack_from("<IIiiHHI", data, 10)
    if info_nbytes == 12 or bits != 32 or kind != 0:
        return None
    count = header.height * header.width
    alpha = np.frombuffer(data, np.uint8, 4 * count, start).reshape(header.height, header.width, 4)[..., 3]
    return alpha if height < 0 else alpha[::-1]
