"""Pixels against Keras's own reading and TensorFlow's resizing, over formats, colour modes, interpolations and fits."""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.framework

import cv2  # noqa: E402 - beside simplejpeg, in the extra `image`
import simplejpeg  # noqa: E402

from penstock.image import Decoding, Resizing  # noqa: E402

INTERPOLATIONS = ["bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic"]


@pytest.fixture(scope="module")
def keras_load() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("tensorflow")
    from keras.src.utils import image_dataset_utils

    def load(path: Path, size: tuple[int, int], channels: int, interpolation: str, fit: str, layout: str) -> np.ndarray:
        import tensorflow as tf

        # In a map, as Keras does it: there TensorFlow divides, where a plain `tf.function` multiplies by a reciprocal.
        dataset = tf.data.Dataset.from_tensors(str(path)).map(
            lambda name: image_dataset_utils._load_image_tf(
                name, size, channels, interpolation, layout, fit == "crop", fit == "pad"
            )
        )
        return np.asarray(next(dataset.as_numpy_iterator()))

    return load


def photo(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Smooth shapes and some noise, as a photo has them."""
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(height * 1000 + width)
    planes = [128 + 100 * np.sin(x / (9 + 3 * c)) * np.cos(y / (14 - 2 * c)) for c in range(channels)]
    return np.clip(np.stack(planes, -1) + rng.normal(0, 4, (height, width, channels)), 0, 255).astype(np.uint8)


def encoded(extension: str, image: np.ndarray, *options: int) -> bytes:
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[image.shape[2]]
    return bytes(cv2.imencode(extension, image[..., order], list(options))[1])


FILES = {
    "jpeg": encoded(".jpg", photo(157, 211), cv2.IMWRITE_JPEG_QUALITY, 90),
    "jpeg progressive": encoded(".jpg", photo(91, 63), cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    "jpeg grey": simplejpeg.encode_jpeg(photo(80, 61, 1), colorspace="GRAY", colorsubsampling="Gray"),
    "png": encoded(".png", photo(101, 133)),
    "png rgba": encoded(".png", photo(77, 50, 4)),
    "png 16": bytes(cv2.imencode(".png", photo(40, 60)[..., ::-1].astype(np.uint16) * 251)[1]),
    "bmp": encoded(".bmp", photo(64, 99)),
    "gif": encoded(".gif", photo(50, 70)),
    "webp": encoded(".webp", photo(60, 45)),
}
# What Keras refuses to read.
REFUSED = {"grayscale": {"bmp", "gif", "webp"}, "rgba": {"jpeg", "jpeg progressive", "jpeg grey", "gif", "webp", "bmp"}}


def assert_alike(ours: np.ndarray, theirs: np.ndarray, mean: float, most: float, what: str) -> None:
    assert ours.shape == theirs.shape, what
    difference = np.abs(ours.astype(np.float64) - theirs)
    assert difference.mean() <= mean, f"{what}: {difference.mean():.3f} on average"
    assert difference.max() <= most, f"{what}: {difference.max():.3f} at most"


@pytest.mark.parametrize("mode", ["grayscale", "rgb", "rgba"])
def test_pixels_are_kerass_for_every_format_and_colour_mode(tmp_path: Path, keras_load: Any, mode: Any) -> None:
    path = tmp_path / "image.jpg"  # whatever is in it
    for name, data in FILES.items():
        if name in REFUSED.get(mode, ()):
            continue
        path.write_bytes(data)
        channels = {"grayscale": 1, "rgb": 3, "rgba": 4}[mode]
        theirs = keras_load(path, (41, 57), channels, "bilinear", "stretch", "channels_last")
        assert_alike(Decoding((41, 57), color_mode=mode)(data), theirs, 0.3, 1, f"{name} as {mode}")


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_pixels_are_kerass_for_every_interpolation_fit_and_layout(
    tmp_path: Path, keras_load: Any, interpolation: Any
) -> None:
    for size in ((60, 80), (300, 170)):
        for name, fit, layout in (
            ("jpeg", "stretch", "channels_first"),
            ("png", "crop", "channels_last"),
            ("jpeg progressive", "pad", "channels_last"),
        ):
            if fit == "crop" and interpolation in ("gaussian", "mitchellcubic"):
                continue  # Keras has no such pair
            path = tmp_path / "image.png"
            path.write_bytes(FILES[name])
            theirs = keras_load(path, size, 3, interpolation, fit, layout)
            ours = Decoding(size, interpolation=interpolation, fit=fit, data_format=layout)(FILES[name])
            assert_alike(ours, theirs, 0.3, 1, f"{name}, {interpolation}, {fit}, {size}")


def test_crops_and_padding_are_kerass_for_any_size(tmp_path: Path, keras_load: Any) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "image.png"
    for _ in range(6):
        height, width = (int(n) for n in rng.integers(1, 90, 2))
        size = tuple(int(n) for n in rng.integers(1, 60, 2))
        data = encoded(".png", photo(height, width))
        path.write_bytes(data)
        for fit in ("crop", "pad"):
            if fit == "pad" and min(height * size[1] / width, width * size[0] / height) < 1:
                continue  # Keras asks for an image of no pixels, and fails
            theirs = keras_load(path, size, 3, "bilinear", fit, "channels_last")
            assert_alike(Decoding(size, fit=fit)(data), theirs, 0.3, 1, f"{height} x {width} to {size}, {fit}")


def test_floats_are_resized_as_tensorflow_does_to_a_thousandth_of_a_level() -> None:
    tf = pytest.importorskip("tensorflow")
    for interpolation in INTERPOLATIONS:
        # In 40 to 300 a Gaussian ends at the very centre of a pixel, and the last bit of a float32 decides.
        for source, size in (((70, 90), (31, 44)), ((31, 44), (97, 60)), ((50, 50), (50, 50)), ((40, 64), (300, 300))):
            image = photo(*source).astype(np.float32)
            theirs = np.asarray(tf.image.resize(image, size, method=interpolation))
            ours = Resizing(size, interpolation=interpolation)(image)
            assert_alike(ours, theirs, 1e-3, 0.05, f"{interpolation}, {source} to {size}")


def test_odd_pngs_are_tensorflows() -> None:
    tf = pytest.importorskip("tensorflow")

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    def png(depth: int, color: int, row: bytes, *chunks: bytes) -> bytes:
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 1, depth, color, 0, 0, 0))
        return b"".join(
            [b"\x89PNG\r\n\x1a\n", head, *chunks, chunk(b"IDAT", zlib.compress(b"\0" + row)), chunk(b"IEND", b"")]
        )

    palette = chunk(b"PLTE", bytes(range(10, 22)))
    colours = bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 200, 100, 50])
    for name, data in {
        "palette, transparent": png(2, 3, b"\x1b", palette, chunk(b"tRNS", b"\0\x80")),
        "1 bit, transparent": png(1, 0, b"\x50", chunk(b"tRNS", b"\0\1")),
        "2 bits, transparent": png(2, 0, b"\x1b", chunk(b"tRNS", b"\0\1")),
        "grey and alpha": png(8, 4, bytes([10, 0, 20, 128, 30, 255, 40, 7])),
        "16 bits": png(16, 2, bytes(range(0x70, 0x88))),
        "16 bits grey, transparent": png(16, 0, bytes(range(0x70, 0x78)), chunk(b"tRNS", b"\x72\x73")),
        "gamma": png(8, 2, colours, chunk(b"gAMA", struct.pack(">I", 45455))),
        "sRGB": png(8, 2, colours, chunk(b"sRGB", b"\0")),
        "rgb, transparent": png(8, 2, colours, chunk(b"tRNS", struct.pack(">3H", 255, 0, 0))),
    }.items():
        for mode, channels in (("grayscale", 1), ("rgb", 3), ("rgba", 4)):
            theirs = tf.io.decode_image(data, channels=channels, expand_animations=False).numpy()
            ours = Decoding(color_mode=mode, dtype=np.uint8)(data)  # type: ignore[arg-type]
            assert np.array_equal(ours, theirs), f"{name} as {mode}: {ours.tolist()} and not {theirs.tolist()}"


def test_pixels_of_jpegs_are_tensorflows_to_the_bit() -> None:
    tf = pytest.importorskip("tensorflow")
    for chroma in ("420", "422", "444", "440", "411"):
        data = simplejpeg.encode_jpeg(photo(75, 99), quality=90, colorsubsampling=chroma)
        theirs = tf.io.decode_image(data, channels=3, expand_animations=False).numpy()
        assert np.array_equal(Decoding(dtype=np.uint8)(data), theirs), chroma


def test_the_inks_of_a_jpeg_are_tensorflows_whoever_wrote_them() -> None:
    tf = pytest.importorskip("tensorflow")
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.fromarray(photo(40, 50, 4), mode="CMYK").save(stream, "JPEG", quality=95)
    data = stream.getvalue()
    adobe = data.index(b"\xff\xee")
    for file in (data, data[:adobe] + data[adobe + 16 :]):
        theirs = tf.io.decode_image(file, channels=3, expand_animations=False).numpy()
        assert np.array_equal(Decoding(dtype=np.uint8)(file), theirs)


def test_a_gif_whose_first_frame_is_smaller_than_its_canvas_is_tensorflows() -> None:
    """TensorFlow has the canvas from the largest frame: without a second one it gives the first alone."""
    tf = pytest.importorskip("tensorflow")
    gif = bytearray(FILES["gif"])
    start = gif.index(b"\x2c\0\0\0\0")
    large = encoded(".gif", photo(65, 90))
    second = large[large.index(b"\x2c\0\0\0\0") :]
    gif[6:10] = struct.pack("<HH", 90, 65)
    gif[start + 1 : start + 5] = struct.pack("<HH", 20, 10)
    data = bytes(gif[:-1]) + second
    ours = Decoding(dtype=np.uint8)(data)
    assert ours.shape == (65, 90, 3)
    assert np.array_equal(ours, tf.io.decode_image(data, channels=3, expand_animations=False).numpy())
