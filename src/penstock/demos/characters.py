"""Characters to train on: hiragana and the first kanji, rendered from a Japanese font that ships in a package.

Each character is rendered in several sizes, two weights, and at places that differ by some pixels. The renderings that
validation sees come in sizes that training never sees. There is one face, so this is a test of shapes, not of hands.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock._show._writing import japanese_font
from penstock.demos.cache import cache_folder, making
from penstock.demos.errors import DemoError

SIDE = 64
RECIPE = 1
"""Part of the file's name. Another recipe is another set of images, which must not be taken for this one."""

HIRAGANA = "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
# What is learnt in the first two years of a Japanese school. Katakana are left out: some are kanji to the pixel.
KANJI = (
    "一右雨円王音下火花貝学気九休玉金空月犬見五口校左三山子四糸字耳七車手十出女小上森人水正生青夕石赤千川先早草足村大男竹中"
    "虫町天田土二日入年白八百文木本名目立力林六引羽雲園遠何科夏家歌画回会海絵外角楽活間丸岩顔汽記帰弓牛魚京強教近兄形計元言"
    "原戸古午後語工公広交光考行高黄合谷国黒今才細作算止市矢姉思紙寺自時室社弱首秋週春書少場色食心新親図数西声星晴切雪船線前"
    "組走多太体台地池知茶昼長鳥朝直通弟店点電刀冬当東答頭同道読内南肉馬売買麦半番父風分聞米歩母方北毎妹万明鳴毛門夜野友用曜"
    "来里理話"
)

TRAINING_SIZES = (36, 40, 44, 48, 52)
"""Heights of a character in pixels, about."""
VALIDATION_SIZES = (38, 46)
WEIGHTS = (0, 1)
"""Pixels that strokes are thickened by, all around."""
TRAINING_RENDERINGS = tuple((size, weight) for size in TRAINING_SIZES for weight in WEIGHTS for _ in range(2))
VALIDATION_RENDERINGS = tuple((size, weight) for size in VALIDATION_SIZES for weight in WEIGHTS)
OFFSET = 4
"""A rendering is off the centre by at most so many pixels, to each side."""


@dataclass(frozen=True)
class Characters:
    """A file of renderings, and what they show."""

    path: Path
    names: str
    """The characters; a label is a place in it."""

    @property
    def dataset(self) -> ps.Dataset:
        """Elements (image, label): (64, 64) uint8 from the file, light on black, and int32; training's come first."""
        count = len(TRAINING_RENDERINGS) + len(VALIDATION_RENDERINGS)
        labels = np.tile(np.arange(len(self.names), dtype="int32"), count)
        return ps.zip((ps.from_npy(self.path), ps.from_arrays(labels)))

    def split(self) -> tuple[ps.Dataset, ps.Dataset]:
        """Training and validation, without a common size."""
        training, validation = len(TRAINING_RENDERINGS), len(VALIDATION_RENDERINGS)
        share = training / (training + validation)
        train, rest = self.dataset.split(share, 1 - share)
        return train, rest


def characters_path(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where the characters are kept: in `data_dir`, or else in the user's cache."""
    return cache_folder(data_dir) / f"characters-{RECIPE}.npy"


def make_characters(path: Path, names: str = HIRAGANA + KANJI) -> None:
    """Renders every character in every way to a `.npy` file, (renderings * characters, 64, 64) uint8.

    The same images with the same version of Pillow. The file is there when it is whole, and not before.

    Memory: one rendering of all characters, 1.2 MB.

    Raises:
        DemoError: The font is missing, or the disk is too small.
    """
    from PIL import ImageFont

    font = str(font_path())
    renderings = TRAINING_RENDERINGS + VALIDATION_RENDERINGS
    shape = (len(renderings) * len(names), SIDE, SIDE)
    rng = np.random.default_rng(RECIPE)
    with making(path, int(np.prod(shape)), "set of characters") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for size, weight in renderings:
            sized = ImageFont.truetype(font, size)
            offsets = rng.integers(-OFFSET, OFFSET, (len(names), 2), endpoint=True).tolist()
            images = [_render(name, sized, weight, at) for name, at in zip(names, offsets, strict=True)]
            file.write(np.stack(images).data)


def _render(name: str, font: Any, weight: int, offset: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """One character, (64, 64) uint8, light on black."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (SIDE, SIDE))
    at = SIDE // 2 + offset[0], SIDE // 2 + offset[1]
    ImageDraw.Draw(image).text(at, name, fill=255, font=font, anchor="mm", stroke_width=weight)
    array: npt.NDArray[np.uint8] = np.asarray(image)
    return array


def font_path() -> Path:
    """The font's file, IPAexGothic: also for whoever has to write a character.

    Raises:
        DemoError: The package that holds it is not installed.
    """
    path = japanese_font()
    if path is None:
        raise DemoError(
            "The demo's characters are rendered from the font IPAexGothic in the package matplotlib-fontja, which is "
            'not installed. Install it: pip install "penstock[demo]"'
        )
    return path
