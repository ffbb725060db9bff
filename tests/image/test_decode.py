"""Image files of every kind become the right pixels, or an error that says what is wrong with them."""

import io
import pickle
import struct
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg

from penstock import ArgumentTypeError, ArraySpec
from penstock.image import Decoding, ImageError, Resizing, decode


def photo(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Smooth shapes and a little noise."""
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(height * 1000 + width)
    planes = [128 + 100 * np.sin(x / (9 + 3 * c)) * np.cos(y / (14 - 2 * c)) for c in range(channels)]
    return np.clip(np.stack(planes, -1) + rng.normal(0, 3, (height, width, channels)), 0, 255).astype(np.uint8)


def encoded(extension: str, image: np.ndarray, *options: int) -> bytes:
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[image.shape[2]]
    return bytes(cv2.imencode(extension, image[..., order], list(options))[1])


def jpeg(image: np.ndarray, quality: int = 95) -> bytes:
    return simplejpeg.encode_jpeg(image, quality=quality, colorsubsampling="444")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, depth: int, color: int, rows: bytes, *before: bytes, after: bytes = b"") -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows))
    return b"".join([b"\x89PNG\r\n\x1a\n", head, *before, body, after, chunk(b"IEND", b"")])


PHOTO = photo(48, 64)
LOSSLESS = {
    "png": encoded(".png", PHOTO),
    "bmp": encoded(".bmp", PHOTO),
    "webp": encoded(".webp", PHOTO, cv2.IMWRITE_WEBP_QUALITY, 101),
    "tiff": encoded(".tiff", PHOTO),
}
FILES = {"jpeg": jpeg(PHOTO), "gif": encoded(".gif", PHOTO), **LOSSLESS}


def pixels(data: bytes, color_mode: str = "rgb") -> np.ndarray:
    return Decoding(color_mode=color_mode, dtype=np.dtype(np.uint8))(data)  # type: ignore[arg-type]


# What comes out


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats_give_back_the_pixels(name: str) -> None:
    assert np.array_equal(pixels(LOSSLESS[name]), PHOTO)
    assert np.array_equal(pixels(LOSSLESS[name], "rgba"), np.dstack([PHOTO, np.full((48, 64), 255)]))
    grey = PHOTO @ np.array([0.299, 0.587, 0.114])
    assert np.abs(pixels(LOSSLESS[name], "grayscale")[..., 0] - grey).max() <= 1.5


@pytest.mark.parametrize("mode", ["grayscale", "rgb", "rgba"])
@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_shape_of_its_spec_in_every_colour_mode(name: str, mode: str) -> None:
    decoding = Decoding((20, 30), color_mode=mode)  # type: ignore[arg-type]
    image = decoding(FILES[name])
    assert decoding.element_spec == ArraySpec((20, 30, {"grayscale": 1, "rgb": 3, "rgba": 4}[mode]), "float32")
    assert decoding.element_spec.admits(image.shape, image.dtype)
    reference = Resizing((20, 30))(PHOTO).astype(np.float32)
    if mode == "rgba":
        assert (image[..., 3] == 255).all()
    if mode != "grayscale":
        assert np.abs(image[..., :3] - reference).mean() < (9 if name == "gif" else 3)


def test_a_decoding_is_a_value() -> None:
    one, other = Decoding((20, 30), fit="crop"), Decoding([20, 30], fit="crop")  # type: ignore[arg-type]
    one(FILES["png"])
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.releases_gil


def test_channels_first_is_the_same_pixels_transposed() -> None:
    for size in (None, (20, 30)):
        first = Decoding(size, data_format="channels_first")
        assert np.array_equal(first(FILES["jpeg"]), Decoding(size)(FILES["jpeg"]).transpose(2, 0, 1))
    assert first.element_spec == ArraySpec((3, 20, 30), "float32")
    assert Decoding(data_format="channels_first").element_spec == ArraySpec((3, None, None), "float32")


def test_into_writes_a_row_of_a_batch_and_nothing_else() -> None:
    decoding = Decoding((20, 30), fit="pad")
    for shape, view in (((3, 20, 30, 3), np.s_[1]), ((3, 25, 40, 3), np.s_[1, 2:22, 5:35])):
        batch = np.full(shape, -1, np.float32)
        decoding.into(memoryview(FILES["png"]), batch[view])
        assert np.array_equal(batch[view], decoding(FILES["png"]))
        batch[view] = -1
        assert (batch == -1).all()


def test_decoding_into_a_row_makes_nothing_as_large_as_an_image() -> None:
    data, out = jpeg(photo(375, 500)), np.empty((180, 180, 3), np.float32)
    for decoding in (Decoding((180, 180)), Decoding((180, 180), decode="fast")):
        decoding.into(data, out)
        tracemalloc.start()
        decoding.into(data, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8192


def test_threads_do_not_share_what_they_work_in() -> None:
    files = [jpeg(photo(60 + k, 90 - k)) for k in range(8)]
    decodings = [Decoding((31, 47), interpolation=how) for how in ("bilinear", "bicubic", "area")]  # type: ignore[arg-type]
    jobs = [(decoding, data) for data in files for decoding in decodings] * 4
    alone = [decoding(data) for decoding, data in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: job[0](job[1]), jobs))
    assert all(np.array_equal(*pair) for pair in zip(alone, together, strict=True))


def test_an_image_that_is_returned_is_not_overwritten_by_the_next() -> None:
    first = pixels(FILES["jpeg"])
    copy = first.copy()
    pixels(jpeg(255 - PHOTO))
    assert np.array_equal(first, copy)


def test_the_name_of_a_file_says_nothing_about_its_format(tmp_path: Path) -> None:
    path = tmp_path / "really_a_png.jpg"
    path.write_bytes(LOSSLESS["png"])
    assert np.array_equal(decode(path), PHOTO)
    assert np.array_equal(decode(str(path)), decode(LOSSLESS["png"]))
    assert decode(path, (10, 12), color_mode="grayscale").shape == (10, 12, 1)
    assert decode(path, (10, 12)).dtype == np.float32


# Kinds of JPEG


def test_orientation_is_ignored() -> None:
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
    turned = FILES["jpeg"][:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + FILES["jpeg"][2:]
    assert cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR).shape == (64, 48, 3)
    assert np.array_equal(pixels(turned), pixels(FILES["jpeg"]))
    turned_png = png(2, 1, 8, 0, b"\0\x07\x09", chunk(b"eXIf", exif[6:]))
    assert pixels(turned_png, "rgba").shape == (1, 2, 4)
    assert pixels(turned_png).tolist() == [[[7, 7, 7], [9, 9, 9]]]


def test_inks_become_colours() -> None:
    inks = np.empty((16, 16, 4), np.uint8)
    inks[:] = (255, 128, 0, 192)  # inverted, as Adobe has it: no cyan, half magenta, all yellow, a quarter black
    data = simplejpeg.encode_jpeg(inks, quality=100, colorspace="CMYK", colorsubsampling="444")
    assert simplejpeg.decode_jpeg_header(data)[2] in ("CMYK", "YCCK")
    red, green, blue = pixels(data).mean(axis=(0, 1))
    assert abs(red - 192) < 3
    assert abs(green - 96) < 3
    assert blue < 3
    assert abs(pixels(data, "grayscale").mean() - (0.299 * 192 + 0.587 * 96)) < 3
    assert (pixels(data, "rgba")[..., 3] == 255).all()


def test_inks_without_an_end_mark_are_read_and_those_without_pixels_are_not() -> None:
    data = simplejpeg.encode_jpeg(photo(48, 64, 4), quality=95, colorspace="CMYK", colorsubsampling="444")
    for nbytes in (1, 2):
        assert np.array_equal(pixels(data[:-nbytes]), pixels(data))
    with pytest.raises(ImageError, match="truncated"):
        pixels(data[: len(data) // 2])


def test_inks_are_told_to_be_inverted_after_a_profile_however_long() -> None:
    inks = np.full((16, 16, 4), (255, 128, 0, 192), np.uint8)
    data = simplejpeg.encode_jpeg(inks, quality=100, colorspace="CMYK", colorsubsampling="444")
    profile = b"\xff\xe2" + struct.pack(">H", 65535) + bytes(65533)  # as Photoshop has it, of 500 kB
    assert np.array_equal(pixels(data[:2] + 8 * profile + data[2:]), pixels(data))


def test_grey_and_progressive_jpegs_are_read_in_every_mode() -> None:
    grey = simplejpeg.encode_jpeg(PHOTO[..., :1].copy(), colorspace="GRAY", colorsubsampling="Gray", quality=95)
    assert (np.ptp(pixels(grey), axis=2) == 0).all()
    assert np.abs(pixels(grey, "grayscale").astype(int) - PHOTO[..., :1]).mean() < 3
    progressive = encoded(".jpg", PHOTO, cv2.IMWRITE_JPEG_PROGRESSIVE, 1, cv2.IMWRITE_JPEG_QUALITY, 95)
    assert np.abs(pixels(progressive).astype(int) - PHOTO).mean() < 6


def test_flaws_that_harm_no_pixel_are_passed_over() -> None:
    data = FILES["jpeg"]
    revision = data.index(b"JFIF\0") + 5
    for flawed in (
        data[:-2],  # no end mark
        data + b"something else, as cameras append",
        data[:-2] + bytes(214) + data[-2:],
        data[:-2] + b"\xff" * 100 + data[-2:],
    ):
        assert np.array_equal(pixels(flawed), pixels(data))
    odd = data[:revision] + b"\0\0" + data[revision + 2 :]
    assert np.array_equal(pixels(odd), pixels(data))
    for cut in (odd[:-100], odd[: len(odd) // 2] + odd[-2:]):  # also with an end mark, where OpenCV makes the rest grey
        with pytest.raises(ImageError, match="truncated"):
            pixels(cut)


def assert_alike(image: np.ndarray, other: np.ndarray) -> None:
    """Asserts that two decoders of JPEG, whose bits differ, have read one file."""
    assert image.shape == other.shape
    assert np.abs(image.astype(int) - other).mean() < 1.5


def jpeg_with(junk: bytes, before: bytes, data: bytes) -> bytes:
    at = data.rindex(before)
    return data[:at] + junk + data[at:]


@pytest.mark.parametrize("mode", ["grayscale", "rgb", "rgba"])
@pytest.mark.parametrize("junk", [b"\0", b"junk!", b"ab\xff\0cd", bytes(10_000), 3_000 * b"\xff"])
def test_bytes_between_the_segments_of_a_jpegs_header_are_passed_over(junk: bytes, mode: str) -> None:
    for before in (b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda"):
        assert_alike(pixels(jpeg_with(junk, before, FILES["jpeg"]), mode), pixels(FILES["jpeg"], mode))


def test_bytes_between_the_segments_of_a_jpeg_hide_neither_its_inks_nor_its_end() -> None:
    inks = np.full((16, 16, 4), (255, 128, 0, 192), np.uint8)
    data = simplejpeg.encode_jpeg(inks, quality=100, colorspace="CMYK", colorsubsampling="444")
    assert_alike(pixels(jpeg_with(b"junk", b"\xff\xc0", data)), pixels(data))
    with pytest.raises(ImageError, match="image file is truncated"):
        pixels(jpeg_with(b"junk", b"\xff\xc0", FILES["jpeg"])[:-100])
    with pytest.raises(ImageError, match="truncated"):
        pixels(FILES["jpeg"][:30] + b"junk")


def test_bytes_between_the_scans_of_a_jpeg_change_no_pixel() -> None:
    data = encoded(".jpg", PHOTO, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    assert data.count(b"\xff\xda") > 3
    assert np.array_equal(pixels(jpeg_with(bytes(20), b"\xff\xc4", data)), pixels(data))
    with pytest.raises(ImageError, match=r"damaged or truncated JPEG.* \(Corrupt JPEG data: 14 extraneous bytes"):
        pixels(jpeg_with(bytes(20), b"\xff\xc4", data)[:-2])


def test_a_part_of_a_jpeg_that_goes_on_before_its_restart_mark_is_damage() -> None:
    data = encoded(".jpg", PHOTO, cv2.IMWRITE_JPEG_RST_INTERVAL, 2)
    with pytest.raises(ImageError, match="extraneous bytes before marker 0xd1"):
        pixels(jpeg_with(bytes(20), b"\xff\xd1", data))


def test_jpegs_whose_header_simplejpeg_does_not_read_are_decoded_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = FILES["jpeg"]
    usual = {mode: pixels(data, mode) for mode in ("grayscale", "rgb", "rgba")}
    small = {mode: Decoding((5, 6), color_mode=mode, data_format="channels_first")(data) for mode in usual}  # type: ignore[arg-type]

    def refuse(data: Any, **_: Any) -> Any:
        raise KeyError(-1)  # what it has no name for: chroma of an odd size

    monkeypatch.setattr(simplejpeg, "decode_jpeg_header", refuse)
    for mode, expected in usual.items():
        found = pixels(data, mode)
        assert_alike(found, expected)
        decoding = Decoding((5, 6), color_mode=mode, data_format="channels_first")  # type: ignore[arg-type]
        assert np.abs(decoding(data) - small[mode]).mean() < 3
    with pytest.raises(ImageError, match="truncated"):
        pixels(data[:-100])


def test_jpegs_that_are_not_read_say_so() -> None:
    data = FILES["jpeg"]
    frame = data.index(b"\xff\xc0")
    with pytest.raises(ImageError, match="a kind that is not read here"):
        pixels(data[: frame + 4] + b"\x0c" + data[frame + 5 :])
    with pytest.raises(ImageError, match="of a kind that is read here"):
        pixels(data[: frame + 5] + b"\0\0" + data[frame + 7 :])


# Fast decoding


def test_fast_decoding_is_a_smaller_jpeg_that_is_never_below_the_size() -> None:
    big = photo(375, 500)
    data = jpeg(big)
    fast = Decoding((180, 180), decode="fast")(data)
    exact = Decoding((180, 180))(data)
    assert 0 < np.abs(fast - exact).mean() < 5


def test_fast_decoding_of_what_is_not_twice_as_large_is_exact() -> None:
    data = jpeg(photo(375, 500))
    for options in ({"size": (188, 180)}, {"size": (180, 251)}, {"size": (180, 180), "fit": "pad"}):
        fast, exact = (Decoding(**options, decode=decode)(data) for decode in ("fast", "exact"))  # type: ignore[arg-type]
        assert np.array_equal(fast, exact) == (options["size"] != (180, 180))
    for data in LOSSLESS.values():
        assert np.array_equal(Decoding((5, 5), decode="fast")(data), Decoding((5, 5))(data))


def test_the_sizes_that_fast_decoding_takes() -> None:
    resizing = Resizing((100, 100), fit="crop")
    assert resizing.least_size(400, 800) == (100, 200)
    assert Resizing((100, 100), fit="pad").least_size(400, 800) == (50, 100)
    assert Resizing((100, 100)).least_size(400, 800) == (100, 100)


def test_fast_decoding_pads_where_exact_decoding_does() -> None:
    for height in range(200, 420, 13):
        for width in (301, 375, 501):
            data = jpeg(np.full((height, width, 3), 200, np.uint8))
            for size in ((64, 64), (90, 50)):
                exact, fast = (Decoding(size, fit="pad", decode=decode)(data) for decode in ("exact", "fast"))  # type: ignore[arg-type]
                assert np.array_equal(fast > 100, exact > 100)


# Kinds of PNG and GIF


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("color", [0, 3])
def test_masks_are_read_as_the_numbers_that_they_store(depth: int, color: int) -> None:
    numbers = np.random.default_rng(depth).integers(0, 2**depth, (7, 13), np.uint8)
    bits = np.unpackbits(numbers[..., None], axis=-1)[..., 8 - depth :].reshape(7, -1)
    rows = np.hstack([np.zeros((7, 1), np.uint8), np.packbits(bits, axis=-1)]).tobytes()
    palette = chunk(b"PLTE", bytes(255 - each % 256 for each in range(3 * 2**depth)))
    aside = [chunk(b"sBIT", b"\1\1\1"), palette, chunk(b"tRNS", b"\0\0"), chunk(b"bKGD", b"\0")]
    data = png(13, 7, depth, color, rows, *aside * (color == 3))
    assert pixels(data, "index")[..., 0].tolist() == numbers.tolist()
    small = Decoding((3, 5), color_mode="index", interpolation="nearest", dtype=np.dtype(np.uint8))(data)[..., 0]
    assert np.array_equal(small, Resizing((3, 5), interpolation="nearest")(numbers))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (FILES["jpeg"], "a JPEG of the mode RGB, and color_mode='index' reads the numbers of PNGs alone, of a palette"),
        (FILES["gif"], "a GIF of the mode P, and color_mode='index' reads the numbers of PNGs alone"),
        (FILES["png"], "a PNG of the mode RGB, and color_mode='index' reads the numbers of PNGs alone"),
        (png(1, 1, 8, 4, b"\0\1\2"), "a PNG of the mode LA"),
        (png(1, 1, 16, 0, b"\0\1\2"), "a PNG of the mode I;16"),
        (png(4, 1, 2, 3, b"\0\x1b").replace(b"IDAT", b"IDaT"), "broken PNG file"),
        (png(40, 40, 8, 3, bytes(41 * 40))[:-20], "truncated"),
        (png(9, 9, 8, 0, bytes(10 * 5)), "damaged or truncated PNG"),  # 5 of 9 rows
        (png(9, 9, 8, 3, bytes(10 * 5), chunk(b"PLTE", bytes(6))), "damaged or truncated PNG"),
        (png(9, 9, 1, 3, bytes(3 * 8 + 2), chunk(b"PLTE", bytes(6))), "damaged or truncated PNG"),
        (png(40, 40, 8, 3, bytes(41 * 40))[:-17] + b"?" + png(40, 40, 8, 3, bytes(41 * 40))[-16:], "broken PNG file"),
    ],
)
def test_what_is_no_mask_is_told(data: bytes, text: str) -> None:
    with pytest.raises(ImageError) as raised:
        pixels(data, "index")
    assert text in str(raised.value)


def test_a_palette_keeps_its_colours_and_its_transparency() -> None:
    palette = chunk(b"PLTE", bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7]))
    data = png(4, 1, 2, 3, b"\0\x1b", palette, chunk(b"tRNS", b"\0\x80"))
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 8, 7]]
    assert pixels(data).tolist() == [colours]
    alphas = [0, 128, 255, 255]
    assert pixels(data, "rgba").tolist() == [[[*c, a] for c, a in zip(colours, alphas, strict=True)]]


def test_few_bits_spread_over_all_levels() -> None:
    assert pixels(png(4, 1, 1, 0, b"\0\x50"), "grayscale").ravel().tolist() == [0, 255, 0, 255]
    assert pixels(png(4, 1, 2, 0, b"\0\x1b"), "grayscale").ravel().tolist() == [0, 85, 170, 255]
    assert pixels(png(2, 1, 4, 0, b"\0\x0f")).tolist() == [[[0] * 3, [255] * 3]]


def test_one_level_of_a_grey_png_may_be_transparent() -> None:
    for depth, row, key, alphas in (
        (1, b"\x50", b"\0\1", [255, 0, 255, 0]),
        (8, b"\1\2\3\2", b"\0\2", [255, 0, 255, 0]),
        (16, bytes([7, 1, 7, 2, 7, 3, 8, 2]), b"\7\2", [255, 0, 255, 255]),
    ):
        data = png(4, 1, depth, 0, b"\0" + row, chunk(b"tRNS", key))
        assert pixels(data, "rgba")[0, :, 3].tolist() == alphas


def test_of_16_bits_the_upper_8_count() -> None:
    data = png(2, 1, 16, 2, b"\0" + struct.pack(">6H", 0x12FF, 0x1280, 0x1200, 0xFEFF, 0xFE80, 0xFF7F))
    for mode in ("rgb", "rgba"):
        assert pixels(data, mode)[..., :3].tolist() == [[[0x12] * 3, [0xFE, 0xFE, 0xFF]]]


def test_alpha_is_dropped_and_not_blended() -> None:
    data = png(2, 1, 8, 6, b"\0" + bytes([10, 20, 30, 0, 40, 50, 60, 255]))
    assert pixels(data).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert pixels(png(2, 1, 8, 4, b"\0" + bytes([10, 0, 20, 9])), "rgba").tolist() == [
        [[10, 10, 10, 0], [20, 20, 20, 9]]
    ]


def test_a_transparent_tiff_of_16_bits_keeps_its_colours() -> None:
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    image = np.full((3, 4, 4), (0xC812, 0x6412, 0x3212, 0x7F12), np.uint16)
    tifffile.imwrite(file, image, photometric="rgb", extrasamples=["unassalpha"])
    assert pixels(file.getvalue())[0, 0].tolist() == [0xC8, 0x64, 0x32]
    assert pixels(file.getvalue(), "rgba")[0, 0].tolist() == [0xC8, 0x64, 0x32, 0x7F]


def test_of_an_animation_the_first_frame_is_read_whatever_follows() -> None:
    gif = FILES["gif"]
    start = gif.index(b"\x2c\0\0\0\0")  # the image, after the palette
    for following in (gif[start:-1] + b";", b"", b"\x2c", gif[start : start + 500]):
        assert np.array_equal(pixels(gif[:-1] + following), pixels(gif))
    control = struct.pack(">IIIIIHHBB", 0, 2, 1, 0, 0, 1, 10, 0, 0)
    first = chunk(b"acTL", struct.pack(">II", 2, 0)) + chunk(b"fcTL", control)
    second = chunk(b"fcTL", struct.pack(">I", 1) + control[4:]) + chunk(
        b"fdAT", struct.pack(">I", 2) + zlib.compress(bytes(3))
    )
    assert pixels(png(2, 1, 8, 0, b"\0\x07\x09", first, after=second), "grayscale").ravel().tolist() == [7, 9]


def test_an_animated_png_is_its_image_which_need_not_be_in_the_animation() -> None:
    def control(number: int) -> bytes:
        return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, 2, 1, 0, 0, 1, 10, 0, 0))

    def frame(number: int, rows: bytes) -> bytes:
        return control(number) + chunk(b"fdAT", struct.pack(">I", number + 1) + zlib.compress(rows))

    announced = chunk(b"acTL", struct.pack(">II", 2, 0))
    data = png(2, 1, 8, 0, b"\0\x07\x09", announced, after=frame(0, bytes(3)) + frame(2, bytes(3)))
    for mode in ("grayscale", "index"):
        assert pixels(data, mode).ravel().tolist() == [7, 9]
    assert pixels(data, "rgba").ravel().tolist() == [7, 7, 7, 255, 9, 9, 9, 255]
    data = png(4, 1, 2, 0, b"\0\x1b", announced, chunk(b"tRNS", b"\0\2"), control(0), after=frame(1, bytes(2)))
    assert pixels(data, "rgba")[..., 3].tolist() == [[255, 255, 0, 255]]
    data = png(2, 1, 16, 0, b"\0\x07\xff\x09\xff", announced, control(0), after=frame(1, bytes(5)))
    assert pixels(data).tolist() == [[[7, 7, 7], [9, 9, 9]]]


def test_a_transparent_gif_is_black_there() -> None:
    gif = bytearray(FILES["gif"])
    start = gif.index(b"\x2c\0\0\0\0")
    if gif[start - 8 : start - 6] != b"\x21\xf9":
        gif[start:start] = b"\x21\xf9\4\0\0\0\0\0"
        start += 8
    gif[start - 5] |= 1
    opaque = pixels(FILES["gif"])
    found = 0
    for colour in range(256):
        gif[start - 2] = colour  # this one is transparent
        alpha = pixels(bytes(gif), "rgba")[..., 3]
        found += np.count_nonzero(alpha == 0)
        assert (pixels(bytes(gif))[alpha == 0] == 0).all()
        assert np.array_equal(pixels(bytes(gif))[alpha > 0], opaque[alpha > 0])
    assert found == opaque.shape[0] * opaque.shape[1]  # each pixel is of one colour


def small_gif(canvas: tuple[int, int], *frames: tuple[int, int, int, int], background: int = 3) -> bytes:
    """A GIF of four colours, (10, 20, 30) and so on, whose frames (left, top, width, height) count through them."""
    parts = [b"GIF89a", struct.pack("<HHBBB", *canvas, 0x81, background, 0), bytes(range(10, 130, 10))]
    for left, top, width, height in frames:
        codes = [code for k in range(width * height) for code in (4, k % 4)] + [5]  # each colour after a clear code
        packed = sum(code << 3 * k for k, code in enumerate(codes)).to_bytes((3 * len(codes) + 7) // 8, "little")
        parts += [
            b"\x2c",
            struct.pack("<HHHHB", left, top, width, height, 0),
            b"\2",
            bytes([len(packed)]),
            packed,
            b"\0",
        ]
    return b"".join([*parts, b";"])


def test_a_gif_whose_first_frame_is_smaller_than_its_canvas_gives_the_canvas() -> None:
    data = small_gif((5, 4), (1, 2, 2, 1), (0, 0, 5, 4))
    expected = np.zeros((4, 5, 4), np.uint8)
    expected[2, 1:3] = (10, 20, 30, 255), (40, 50, 60, 255)
    assert np.array_equal(pixels(data, "rgba"), expected)  # transparent around it
    assert np.array_equal(pixels(data), expected[..., :3])
    assert pixels(data, "grayscale")[..., 0].tolist() == [[0] * 5, [0] * 5, [0, 18, 48, 0, 0], [0] * 5]
    assert Decoding((8, 10), interpolation="nearest")(data)[5, 3].tolist() == [10, 20, 30]


def test_a_canvas_that_is_too_small_for_the_first_frame_of_a_gif_is_enlarged() -> None:
    assert pixels(small_gif((2, 1), (1, 1, 2, 2)))[..., 0].tolist() == [[0, 0, 0], [0, 10, 40], [0, 70, 100]]
    assert pixels(small_gif((0, 0), (0, 0, 2, 1)))[..., 0].tolist() == [[10, 40]]


def test_a_gif_whose_background_is_no_colour_of_its_palette_is_read() -> None:
    assert pixels(small_gif((2, 1), (0, 0, 2, 1), background=200)).tolist() == [[[10, 20, 30], [40, 50, 60]]]


def test_of_an_animated_webp_the_first_frame_is_read_on_its_canvas() -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return kind + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)

    def frame(left: int, top: int, image: np.ndarray) -> bytes:
        numbers = (left // 2, top // 2, image.shape[1] - 1, image.shape[0] - 1, 100)
        place = b"".join(number.to_bytes(3, "little") for number in numbers)
        return chunk(b"ANMF", place + b"\0" + encoded(".webp", image, cv2.IMWRITE_WEBP_QUALITY, 101)[12:])

    size = b"".join((n - 1).to_bytes(3, "little") for n in (12, 10))
    small, large = photo(4, 6), np.full((10, 12, 3), 200, np.uint8)
    head = chunk(b"VP8X", b"\2\0\0\0" + size) + chunk(b"ANIM", b"\7\x08\x09\xff\0\0")
    body = b"WEBP" + head + frame(2, 4, small) + frame(0, 0, large)
    expected = np.zeros((10, 12, 3), np.uint8)
    expected[4:8, 2:8] = small
    assert np.array_equal(pixels(b"RIFF" + struct.pack("<I", len(body)) + body), expected)


def test_a_bmp_of_32_bits_and_one_of_a_palette_have_their_colours() -> None:
    rgba = photo(5, 7, 4)
    info = struct.pack("<IiiHHIIiiII", 40, 7, -5, 1, 32, 0, rgba.size, 0, 0, 0, 0)
    data = struct.pack("<2sIHHI", b"BM", 54 + rgba.size, 0, 0, 54) + info + rgba[..., [2, 1, 0, 3]].tobytes()
    assert np.array_equal(pixels(data), rgba[..., :3])
    info = struct.pack("<IiiHHIIiiII", 40, 4, 1, 1, 8, 0, 4, 0, 0, 2, 0)
    data = struct.pack("<2sIHHI", b"BM", 66, 0, 0, 62) + info + bytes([3, 2, 1, 0, 6, 5, 4, 0]) + b"\0\1\1\0"
    assert pixels(data).tolist() == [[[1, 2, 3], [4, 5, 6], [4, 5, 6], [1, 2, 3]]]


def test_a_bmp_of_os2_has_its_colours_in_every_mode() -> None:
    rows = b"".join(row.tobytes() + bytes(3) for row in photo(5, 7)[::-1, :, ::-1])
    data = struct.pack("<2sIHHIIHHHH", b"BM", 26 + len(rows), 0, 0, 26, 12, 7, 5, 1, 24) + rows
    assert np.array_equal(pixels(data), photo(5, 7))
    assert np.array_equal(pixels(data, "rgba"), np.dstack([photo(5, 7), np.full((5, 7), 255)]))


def test_bits_of_colours_in_a_bmp_are_those_of_its_header_or_refused() -> None:
    rgb = photo(5, 7)
    usual, turned = (0xFF0000, 0xFF00, 0xFF), (0xFF000000, 0xFF0000, 0xFF00)

    def written(info_nbytes: int, masks: tuple[int, int, int]) -> bytes:
        rows = (rgb.astype(np.uint32) * [mask & -mask for mask in masks]).sum(-1, np.uint32)  # each at its lowest bit
        info = struct.pack("<IiiHHIIiiIIIII", info_nbytes, 7, -5, 1, 32, 3, rows.nbytes, 0, 0, 0, 0, *masks)
        head = info.ljust(info_nbytes, b"\0")
        return struct.pack("<2sIHHI", b"BM", 0, 0, 0, 14 + len(head)) + head + rows.tobytes()

    for info_nbytes in (40, 52, 56, 108, 124):
        assert np.array_equal(pixels(written(info_nbytes, usual)), rgb)
        assert np.array_equal(pixels(written(info_nbytes, turned)), rgb)
        assert np.array_equal(pixels(written(info_nbytes, turned), "rgba"), np.dstack([rgb, np.full((5, 7), 255)]))
        with pytest.raises(ImageError, match="Unsupported BMP bitfields layout"):
            pixels(written(info_nbytes, (0xFF0000, 0xFF00, 0)))


def tiff(image: np.ndarray, **options: Any) -> bytes:
    tifffile, file = pytest.importorskip("tifffile"), io.BytesIO()
    tifffile.imwrite(file, image, **options)
    return file.getvalue()


def test_a_tiff_without_alpha_is_the_same_with_alpha() -> None:
    grey, colours = photo(9, 11, 1)[..., 0], photo(9, 11)
    for wide in (1, 257):  # 8 bits and 16
        for image, options in (
            (colours.astype(np.uint16) * wide, {"photometric": "rgb"}),
            (grey.astype(np.uint16) * wide, {"photometric": "minisblack"}),
            ((257 * wide - 2 if wide == 1 else 65535) - grey.astype(np.uint16) * wide, {"photometric": "miniswhite"}),
        ):
            data = tiff(image if wide > 1 else image.astype(np.uint8), **options)
            rgb = colours if image.ndim == 3 else np.dstack([grey] * 3)
            assert np.array_equal(pixels(data), rgb)
            assert np.array_equal(pixels(data, "rgba"), np.dstack([rgb, np.full((9, 11), 255)]))
    apart = tiff(colours.transpose(2, 0, 1), photometric="rgb", planarconfig="separate")
    assert np.array_equal(pixels(apart), colours)


def test_the_alpha_of_a_tiff_is_dropped_and_not_blended() -> None:
    for image, options in (
        (photo(9, 11, 2), {"photometric": "minisblack", "planarconfig": "contig"}),
        (photo(9, 11, 4), {"photometric": "rgb"}),
        (photo(9, 11, 4).astype(np.uint16) * 257, {"photometric": "rgb"}),
    ):
        data, levels = tiff(image, extrasamples=["unassalpha"], **options), image.astype(np.uint8)
        rgb = levels[..., :3] if levels.shape[2] == 4 else np.repeat(levels[..., :1], 3, 2)
        assert np.array_equal(pixels(data), rgb)
        assert np.array_equal(pixels(data, "rgba"), np.dstack([rgb, levels[..., -1]]))


def test_a_tiff_is_turned_as_it_says() -> None:
    assert np.array_equal(pixels(tiff(PHOTO, extratags=[(274, "H", 1, 3, True)])), PHOTO[::-1, ::-1])


# What is refused


@pytest.mark.parametrize(
    ("image", "options", "text"),
    [
        (photo(9, 11, 2).transpose(2, 0, 1), {"planarconfig": "separate"}, "no image of a kind that is"),
        (
            photo(9, 11).astype(np.uint16).transpose(2, 0, 1),
            {"photometric": "rgb", "planarconfig": "separate"},
            "plane",
        ),
        (photo(9, 11, 1)[..., 0].astype(np.int8), {}, "signed"),
        (photo(9, 11, 1)[..., 0].astype(np.int16), {}, "signed"),
        (photo(9, 11, 1)[..., 0].astype(np.uint32), {}, "more than 16 bits"),
        (photo(9, 11, 1)[..., 0].astype(np.float32), {}, "floating-point"),
    ],
)
def test_a_tiff_whose_numbers_are_no_levels_of_its_colours_is_refused(image: Any, options: Any, text: str) -> None:
    with pytest.raises(ImageError, match=text):
        pixels(tiff(image, **options))


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_an_error_that_says_so_wherever_it_ends(name: str) -> None:
    data = FILES[name]
    for mode in ("rgb", "rgba"):
        for length in {*np.linspace(1, len(data) - 3, 25).astype(int).tolist(), len(data) - 20}:
            with pytest.raises(ImageError, match="truncated"):
                pixels(data[:length], mode)


def test_a_progressive_file_that_ends_between_two_scans_is_truncated() -> None:
    data = encoded(".jpg", PHOTO, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    scans = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    assert len(scans) > 3
    for at in scans[1:]:
        with pytest.raises(ImageError, match="truncated"):
            pixels(data[:at])


def test_a_png_whose_header_is_damaged_is_refused() -> None:
    with pytest.raises(ImageError, match="damaged or truncated PNG"):
        pixels(LOSSLESS["png"][:16] + b"\0\0\1\1" + LOSSLESS["png"][20:])


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_an_error_or_pixels_of_some_kind_and_never_a_crash(name: str) -> None:
    rng = np.random.default_rng(len(name))
    errors = 0
    for trial in range(60):
        data = bytearray(FILES[name])
        for _ in range(1 + trial % 2 * 20):
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        try:
            image = pixels(bytes(data), ("grayscale", "rgb", "rgba")[trial % 3])
        except ImageError:
            errors += 1
        else:
            assert image.ndim == 3
            # PNG alone has checksums: what comes through is right. The others can hide a flipped bit.
            assert name != "png" or trial % 3 != 1 or np.array_equal(image, PHOTO)
    assert name in ("bmp", "tiff") or errors > 5


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", r"it has 0 bytes, and begins with b''"),
        (b"<!DOCTYPE html><title>403 Forbidden</title>", r"begins with b'<!DOCTYPE html><title>403 Forbid'"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:",
            r"54 bytes, and begins with b'version https://git-",
        ),
        (b"\0\0\0\x18ftypheic" + bytes(40), "ftypheic"),
        (b"RIFF\x40\0\0\0WAVEfmt " + bytes(40), "WAVEfmt"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "PS-Adobe"),
        (b"\x89PN", r"or a truncated one: it has 3 bytes"),
        (b"\xff\xd8", r"or a truncated one: it has 2 bytes"),
    ],
)
def test_what_is_no_image_is_told_by_its_first_bytes(data: bytes, text: str) -> None:
    with pytest.raises(ImageError, match=rf"no image of a kind that is read here.*{text}.* take it out of the images"):
        pixels(data)


def test_more_pixels_than_pillows_limit_are_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    pillow = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 48 * 64 // 2 - 1)
    cure = (
        r"3072 pixels.* raise PIL\.Image\.MAX_IMAGE_PIXELS\. Worker processes do not see what the program sets.*"
        "or use executor='threads'"
    )
    for name in ("bmp", "tiff", "gif"):
        with pytest.raises(ImageError, match=cure) as raised:
            pixels(FILES[name])
        assert "damaged" not in str(raised.value)
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 48 * 64 // 2)
    with pytest.warns(pillow.DecompressionBombWarning):
        assert np.array_equal(pixels(FILES["bmp"]), PHOTO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(pillow.DecompressionBombWarning):
            pixels(FILES["bmp"])


def test_other_formats_of_pillow_are_read() -> None:
    pillow = pytest.importorskip("PIL.Image")
    for format, options in (("PPM", {}), ("JPEG2000", {}), ("AVIF", {"quality": 100, "subsampling": "4:4:4"})):
        file = io.BytesIO()
        pillow.fromarray(PHOTO).save(file, format, **options)
        assert np.abs(pixels(file.getvalue()).astype(int) - PHOTO).mean() < 1


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"path": "a.png", "bytes": b""},
            r"this is a dict of \['path', 'bytes'\]\. Choose from it: map\(lambda e: decoding",
        ),
        ("a.png", r"this is the path 'a\.png'\. Read it: map\(penstock\.image\.decode\), or from_files\(paths\)"),
        (
            np.zeros((2, 2, 3), np.float32),
            r"an array of float32, \(2, 2, 3\)\. If it is decoded already, use it as it is",
        ),
        (None, r"A Decoding takes the bytes of a file, and this is a NoneType\."),
    ],
)
def test_what_is_no_bytes_is_refused_with_the_cure(data: Any, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=text):
        Decoding((4, 4))(data)


def test_the_error_of_a_path_begins_with_it(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(FILES["jpeg"][:500])
    with pytest.raises(ImageError, match=r"cut\.jpg: a damaged or truncated"):
        decode(path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": (0, 5)}, r"size is \(0, 5\). It is two integers of at least 1"),
        ({"size": 180}, r"size is 180, an int. It is two integers, \(height, width\)"),
        ({"color_mode": "RGB"}, "color_mode is 'RGB'. It is one of 'grayscale', 'rgb', 'rgba'"),
        ({"interpolation": "cubic"}, "interpolation is 'cubic'. It is one of 'bilinear', "),
        ({"fit": "squash"}, "fit is 'squash'. It is one of 'stretch', 'crop', 'pad'"),
        ({"decode": "quick"}, "decode is 'quick'. It is one of 'exact', 'fast'"),
        (
            {"size": (4, 4), "color_mode": "index"},
            "class numbers, between which 'bilinear' would find others: interpolation='nearest'",
        ),
        ({"data_format": "NCHW"}, "data_format is 'NCHW'"),
        ({"dtype": "float16"}, "dtype is float16. Images are decoded to float32 or uint8; `cast` makes others"),
    ],
)
def test_options_are_refused_when_they_are_given(options: dict[str, object], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        Decoding(**options)  # type: ignore[arg-type]


def test_into_needs_a_size() -> None:
    with pytest.raises(ValueError, match="without one, every image has a shape of its own"):
        Decoding().into(FILES["png"], np.empty((48, 64, 3), np.float32))
