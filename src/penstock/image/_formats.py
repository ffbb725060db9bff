"""The format and the size of an image file, from its header, before any allocation.

Formats that are not decoded here are recognised, so that the error can name them. The first frame of a GIF is cut out
of the file, so that no codec reads the others.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.base._errors import SourceError
from penstock.base._retries import retry_budget
from penstock.base._units import size_text

PIXEL_LIMIT: Final = 2**28
"""The most pixels of an image, 16,384 x 16,384. A header of thirty bytes can claim any size, which a reader would
allocate."""


JPEG_START: Final = b"\xff\xd8\xff"

_MOST_DEFLATED: Final = 1032
"""The most bytes that one byte of a PNG expands to: four codes of two bits, each for 258 bytes."""


class ImageError(SourceError):
    """An image file cannot be decoded: no image, truncated, damaged, too large, or of an unsupported kind.

    The text has the fault and the remedy. It does not name the file, because only the bytes are known here. The reader
    of the file adds its name.
    """

    names_element = False


class Header(NamedTuple):
    """The facts in the first bytes of a file."""

    format: str
    """`JPEG`, `PNG`, `BMP`, `GIF`, `WebP` or `TIFF`."""
    height: int
    width: int
    is_blended: bool = False
    """Whether its codec multiplies colours by alpha, and so loses transparent colours."""
    is_opaque: bool = False
    """Whether it has no alpha for sure. Then its codec converts to colours."""


# The beginnings of other files that are found among images.
_OTHERS: Final = (
    (4, (b"ftypavif", b"ftypavis"), "an AVIF image"),
    (4, (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc"), "an HEIF image, as telephones make them"),
    (0, (b"\xff\x0a", b"\0\0\0\x0cJXL "), "a JPEG XL image"),
    (0, (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"), "a JPEG 2000 image"),
    (0, (b"II+\0", b"MM\0+"), "a BigTIFF image"),
    (0, (b"8BPS",), "a Photoshop file"),
    (0, (b"\0\0\1\0",), "an icon"),
    (0, (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf", b"PF"), "a Netpbm image"),
    (0, (b"%PDF",), "a PDF file"),
    (0, (b"PK\3\4", b"\x1f\x8b"), "a compressed archive"),
)
_TEXTS: Final = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it"),
    (b"<!doctype", "an HTML page, most often a server's answer in place of the image: download it again"),
    (b"<html", "an HTML page, most often a server's answer in place of the image: download it again"),
    (b"<svg", "an SVG drawing: render it to PNG"),
    (b"<?xml", "an XML file: if it is an SVG drawing, render it to PNG"),
    (b"{", "text that looks like JSON, most often a server's answer in place of the image: download it again"),
)


def header_of(data: memoryview) -> Header:
    """Returns the format and size of an image file, except a JPEG, whose codec reads the header.

    Args:
        data: All bytes of the file.

    Raises:
        ImageError: It is no image, its format is not supported, its header is cut short, or it exceeds `PIXEL_LIMIT`.
    """
    head = bytes(data[:40])
    for magic, parse in _PARSERS:
        if head.startswith(magic):
            try:
                header = parse(data, head)
            except (struct.error, IndexError):
                raise truncated(data, "within its header") from None
            check_size(header.height, header.width, header.format, len(data))
            return header
    raise ImageError(_what_it_is(data, head))


def check_size(height: int, width: int, format: str, nbytes: int) -> None:
    """Refuses an image without pixels, or with more than `PIXEL_LIMIT`.

    Raises:
        ImageError: With the size, the limit and the remedy.
    """
    if height < 1 or width < 1:
        raise ImageError(
            f"the header of this {format} of {nbytes:,} bytes says {height} x {width} pixels. It is damaged."
        )
    if height * width > PIXEL_LIMIT:
        raise ImageError(
            f"the header of this {format} of {nbytes:,} bytes says {height} x {width} pixels, above the limit of "
            f"{PIXEL_LIMIT:,}. Either the header is damaged, or the file is made to use up memory, or the image is "
            "that large: make a smaller copy, or cut it into tiles."
        )


def check_room(height: int, width: int, pixel_nbytes: int, format: str) -> None:
    """Refuses an image that takes more memory to decode than the `memory_limit` of a loader leaves.

    Args:
        height: Pixels.
        width: Pixels.
        pixel_nbytes: The bytes that its decoder and what follows take for each pixel.
        format: Its format.

    Raises:
        ImageError: With the size, the limit and the remedy.
    """
    nbytes, room_nbytes = height * width * pixel_nbytes, retry_budget().room_nbytes
    if nbytes > room_nbytes:
        raise ImageError(
            f"a {format} of {height} x {width} pixels, which take {size_text(nbytes)} while they are decoded, above "
            f"the {size_text(int(room_nbytes))} that memory_limit leaves to each worker. Raise memory_limit, take "
            "fewer workers=, or make a smaller copy of the image."
        )


def truncated(data: memoryview, where: str = "") -> ImageError:
    """Returns the error for a file that ends too early."""
    return ImageError(
        f"truncated: the file ends after {len(data):,} bytes, before the image does{', ' + where if where else ''}. "
        "Most often a download or a copy that was interrupted: fetch the file again."
    )


class JpegFrame(NamedTuple):
    """Facts of a JPEG that its codec does not report."""

    height: int
    width: int
    pixels_start: int
    """The offset of the first scan's data."""
    is_one_scan: bool
    """Whether all pixels are in one scan, so that a truncated file lacks pixels."""
    is_adobe: bool
    """Whether it has Adobe's segment, which means inverted inks. It may follow a profile of 500 kB."""
    is_progressive: bool
    """Whether its coefficients are kept until the last scan."""


def jpeg_frame(data: memoryview) -> JpegFrame:
    """Returns the frame header of a JPEG.

    Raises:
        ImageError: There is no frame header before the pixels, or before the end of the file.
    """
    frame, is_adobe = 0, False
    raw = bytes(data)
    try:
        for marker, at, end in _jpeg_segments(raw):
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                frame = at
            is_adobe |= marker == 0xEE and raw[at + 4 : at + 9] == b"Adobe"
            if marker == 0xDA and frame:
                height, width, channels = struct.unpack_from(">HHB", raw, frame + 5)
                is_one_scan = raw[frame + 1] in (0xC0, 0xC1) and raw[at + 4] == channels
                is_progressive = raw[frame + 1] in (0xC2, 0xC6, 0xCA, 0xCE)
                return JpegFrame(height, width, end, is_one_scan, is_adobe, is_progressive)
    except (IndexError, struct.error):
        raise truncated(data, "within its header") from None
    raise ImageError("a damaged JPEG (no size before its pixels). Fetch the file again.")


def without_junk(data: memoryview) -> bytes:
    """Returns a JPEG without the bytes that belong to no segment of its header. libjpeg passes over them too.

    Raises:
        ImageError: The file ends within its header.
    """
    raw, parts = bytes(data), [b"\xff\xd8"]
    try:
        for marker, at, end in _jpeg_segments(raw):
            parts.append(raw[at:end] if marker != 0xDA else raw[at:])
    except (IndexError, struct.error):
        raise truncated(data, "within its header") from None
    return b"".join(parts)


def _jpeg_segments(raw: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields marker, start and end of each segment of a JPEG's header, the first scan's header last.

    Raises:
        IndexError: The file ends before the first scan.
    """
    marker, end = 0, 2
    while marker != 0xDA:
        at = raw.find(b"\xff", end)
        if at < 0:
            raise IndexError
        while raw[at + 1] == 0xFF:  # bytes that fill
            at += 1
        marker, end = raw[at + 1], at + 2
        if marker == 0:  # no marker, but a byte of 255
            continue
        if marker != 0x01 and not 0xD0 <= marker <= 0xD9:  # these have no content
            end += struct.unpack_from(">H", raw, end)[0]
        yield marker, at, end


def ends_early(data: memoryview, format: str) -> bool:
    """Whether a file that its codec refused is cut short; False if that is not visible."""
    try:
        if format == "WebP":
            return int(struct.unpack_from("<I", data, 4)[0]) + 8 > len(data)
        if format == "BMP":
            start, info_nbytes, width, height, _, bits, kind = struct.unpack_from("<IIiiHHI", data, 10)
            return (
                info_nbytes > 12 and kind in (0, 3) and start + (width * bits + 31) // 32 * 4 * abs(height) > len(data)
            )
    except struct.error:
        return True
    return False


def png_chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the kind and content of each complete chunk, up to the end of the image."""
    at = 8
    while at + 12 <= len(data):
        (nbytes,) = struct.unpack_from(">I", data, at)
        kind, at = bytes(data[at + 4 : at + 8]), at + 8
        if at + nbytes + 4 > len(data):
            return
        yield kind, data[at : at + nbytes]
        if kind == b"IEND":
            return
        at += nbytes + 4


def _png(data: memoryview, head: bytes) -> Header:
    width, height, depth, color = struct.unpack_from(">IIBB", head, 16)
    if zlib.crc32(head[12:29]) != int(struct.unpack_from(">I", head, 29)[0]):
        raise ImageError("a damaged PNG (the checksum of its header). Fetch the file again.")
    check_size(height, width, "PNG", len(data))
    bits = depth * {2: 3, 4: 2, 6: 4}.get(color, 1)
    if width * height * bits > 8 * _MOST_DEFLATED * len(data):
        raise ImageError(
            f"the header of this PNG of {len(data):,} bytes says {height} x {width} pixels, for which there are too "
            "few bytes, however compressed. The file is truncated, or made to use up memory."
        )
    if all(kind != b"IEND" for kind, _ in png_chunks(data)):
        # OpenCV would allocate the size that a chunk claims: gigabytes, after one flipped bit.
        raise truncated(data)
    return Header("PNG", height, width)


def _gif(data: memoryview, head: bytes) -> Header:
    width, height = struct.unpack_from("<HH", head, 6)
    return Header("GIF", max(1, height), max(1, width))  # 0: the canvas is the first frame


def _bmp(data: memoryview, head: bytes) -> Header:
    (info_nbytes,) = struct.unpack_from("<I", head, 14)
    width, height = struct.unpack_from("<HH" if info_nbytes == 12 else "<ii", head, 18)
    if info_nbytes >= 40:
        _require_usual_colours(data, info_nbytes)
    # A negative height means rows from top to bottom. A header of 12 bytes is OS/2's, which has no alpha.
    return Header("BMP", abs(height), width, is_opaque=info_nbytes == 12)


def _require_usual_colours(data: memoryview, info_nbytes: int) -> None:
    """Refuses a BMP whose colours OpenCV looks for at another place than its header says."""
    start, bits, kind, count = struct.unpack_from("<I14xHI12xI", data, 10)
    if bits <= 8 and start < 14 + info_nbytes + 4 * count:
        raise ImageError("a damaged BMP: its header says that the pixels begin within the palette. Fetch it again.")
    if bits == 32 and kind == 3:
        masks = struct.unpack_from("<III", data, 54)
        if 0 in masks:
            raise ImageError(
                f"a BMP whose colours are in the bits {', '.join(f'{each:08x}' for each in masks)} of a pixel, which "
                "its codec reads as others. Convert it to PNG."
            )


def _webp(data: memoryview, head: bytes) -> Header:
    if head[8:12] != b"WEBP":
        raise ImageError("a RIFF file, such as WAV or AVI, and not a WebP image. Take it out of the images.")
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = (size & 0x3FFF for size in struct.unpack_from("<HH", head, 26))
    elif kind == b"VP8L":  # a picture of one colour has 26 bytes
        (bits,) = struct.unpack_from("<I", head, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        low, high = struct.unpack_from("<IH", head, 24)
        width, height = (low & 0xFFFFFF) + 1, (low >> 24 | high << 8) + 1
    return Header("WebP", height, width)


def _tiff(data: memoryview, head: bytes) -> Header:
    order = "<" if head[:1] == b"I" else ">"
    (at,) = struct.unpack_from(order + "I", head, 4)
    (tag_count,) = struct.unpack_from(order + "H", data, at)
    tags = {256: 0, 257: 0, 258: 8, 262: 0, 277: 1, 284: 1, 322: 0, 323: 0, 338: 0, 339: 1}
    for start in range(at + 2, at + 2 + 12 * tag_count, 12):
        tag, kind, count = struct.unpack_from(order + "HHI", data, start)
        if tag in tags:
            code = {1: "B", 3: "H", 4: "I"}.get(kind, "I")
            offset = start + 8
            if count * struct.calcsize(code) > 4:  # the field holds an offset
                (offset,) = struct.unpack_from(order + "I", data, offset)
            (tags[tag],) = struct.unpack_from(order + code, data, offset)
    check_size(max(tags[257], tags[323]), max(tags[256], tags[322]), "TIFF", len(data))  # a tile may be larger
    if tags[339] != 1 or tags[258] > 16:
        raise ImageError(
            f"a TIFF of {tags[258]}-bit {'numbers' if tags[339] == 1 else 'signed or floating-point numbers'}, which "
            "have no meaning as levels from 0 to 255. Read it with tifffile in a function of your own."
        )
    if tags[262] in (8, 9, 10) or (tags[277] == 2 and tags[284] == 2):
        kind = "CIE L*a*b* colours" if tags[277] == 3 else "two channels, each in a plane of its own"
        raise ImageError(f"a TIFF of {kind}, which its codec reads as others. Convert it to PNG.")
    # libtiff multiplies colours by unassociated alpha where it converts to 8 bits.
    is_blended = tags[277] == 4 and tags[338] == 2
    return Header("TIFF", tags[257], tags[256], is_blended, is_opaque=tags[277] in (1, 3))


_PARSERS: Final = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"BM", _bmp),
    (b"RIFF", _webp),
    (b"II*\0", _tiff),
    (b"MM\0*", _tiff),
)


def _what_it_is(data: memoryview, head: bytes) -> str:
    if not head:
        return "the file is empty (0 bytes). Most often a download or a copy that was interrupted: fetch it again."
    read = "JPEG, PNG, BMP, GIF, WebP and TIFF are read"
    for at, magics, name in _OTHERS:
        if head[at:].startswith(magics):
            return f"{name}, which is not read here: {read}. Convert it, or take it out of the images."
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for magic, name in _TEXTS:
        if text.startswith(magic):
            return f"not an image: {name}."
    if not any(head):
        return f"not an image: the first of its {len(data):,} bytes are zeros, as after a failed copy. Fetch it again."
    if any(magic.startswith(head) for magic in (JPEG_START, *(magic for magic, _ in _PARSERS))):
        return f"truncated: the file has {len(data)} bytes, too few for any image. Fetch it again."
    begin = f"it begins with {head[:8]!r} and has {len(data):,} bytes"
    return f"not an image, or of an unknown format: {begin}. {read}; take it out of the images."


class FirstFrame(NamedTuple):
    """The first frame of a GIF, and its place on the canvas."""

    data: bytes
    """A GIF of this frame alone, whose canvas is the frame."""
    height: int
    width: int
    top: int
    left: int
    canvas: tuple[int, int]
    """Height and width. It holds the frame: a smaller one is enlarged, as Pillow and browsers do."""


def first_frame(data: memoryview) -> FirstFrame:
    """Returns the first frame of a GIF. The rest of the file is not read.

    Args:
        data: All bytes of the file.

    Raises:
        ImageError: The file, or its end mark, comes before the end of the first frame, or it has too few bytes.
    """
    try:
        at = 13 + _table_nbytes(data[10])
        while data[at] != 0x2C:  # an image
            if data[at] != 0x21:  # an extension
                raise IndexError
            at = _after_blocks(data, at + 2)
        left, top, width, height, flags = struct.unpack_from("<HHHHB", data, at + 1)
        end = _after_blocks(data, at + 10 + _table_nbytes(flags) + 1)
    except (IndexError, struct.error):
        raise truncated(data, "within the first frame of the GIF") from None
    # A code has 3 bits or more, and stands for 4,096 pixels at most.
    if width * height > 4096 * ((end - at) * 8 // 3):
        raise ImageError(
            f"a damaged GIF of {len(data):,} bytes: its first frame says {height} x {width} pixels, for which it has "
            "too few. Fetch the file again, or convert it."
        )
    canvas_width, canvas_height = struct.unpack_from("<HH", data, 6)
    alone = bytearray(data[:end]) + b";"
    struct.pack_into("<HH", alone, 6, width, height)
    alone[11] = 0  # the background colour, unused: OpenCV refuses one beyond the palette
    struct.pack_into("<HH", alone, at + 1, 0, 0)
    canvas = max(canvas_height, top + height), max(canvas_width, left + width)
    return FirstFrame(bytes(alone), height, width, top, left, canvas)


def _table_nbytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: memoryview, at: int) -> int:
    """Returns the end of a chain of blocks. Each begins with its length, and an empty block is the last."""
    while data[at]:
        at += data[at] + 1
    return at + 1
