"""`show`: the elements that it reads, their form, and the picture."""

import collections
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.pictures._panels import Lines, arrange
from penstock.pictures._show import look

GREY = np.arange(20 * 30, dtype="uint8").reshape(20, 30)
COLOUR = np.stack([GREY, GREY.T.reshape(20, 30), 255 - GREY], -1)
Pair = collections.namedtuple("Pair", "image mask")


def arranged(data, count=16, class_names=None):
    return arrange(look(data, count), class_names)


def panel(image):
    """The pixels of one element that is one leaf."""
    (cell,) = arranged([image]).cells
    (pixels,) = cell.panels
    return pixels


# Layouts and ranges.


@pytest.mark.parametrize(
    "image",
    [
        COLOUR,
        COLOUR.transpose(2, 0, 1),
        COLOUR.astype("float32"),
        COLOUR / 255,
        (COLOUR / 127.5 - 1).astype("float32"),
        COLOUR.astype("uint16") * 257,
        COLOUR.astype("int64"),
    ],
    ids=["last", "first", "0 to 255", "0 to 1", "-1 to 1", "uint16", "int64"],
)
def test_layouts_and_ranges_of_one_image_look_the_same(image):
    np.testing.assert_array_equal(panel(image), COLOUR)


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 1), (1, 20, 30)])
def test_grey_images_are_grey_whatever_their_axes(shape):
    np.testing.assert_array_equal(panel(GREY.reshape(shape)), np.repeat(GREY[..., None], 3, -1))


def test_float16_is_shown_to_its_precision():
    assert np.abs(panel((COLOUR / 255).astype("float16")).astype(int) - COLOUR).max() <= 1


def test_bools_are_black_and_white():
    assert set(np.unique(panel(GREY > 100))) == {0, 255}


def test_a_fourth_channel_is_opacity_unless_it_would_hide_everything():
    opaque = np.dstack([COLOUR, np.full((20, 30), 128, "uint8")])
    np.testing.assert_array_equal(panel(opaque), opaque)
    np.testing.assert_array_equal(panel(np.dstack([COLOUR, np.zeros_like(GREY)])), COLOUR)


def test_unusual_ranges_are_stretched_over_all_elements_with_a_note():
    grid = arranged([np.full((8, 8), 2.0), np.full((8, 8), -3.0), np.full((8, 8), 7.0)])
    assert [cell.panels[0][0, 0, 0] for cell in grid.cells] == [128, 0, 255]
    assert grid.notes == ["black is -3, white is 7"]


def test_images_of_12_bits_are_shown_on_their_own_scale():
    grid = arranged([(COLOUR.astype("uint16") * 16)])
    assert grid.notes == ["black is 0, white is 4095"]


def test_nan_and_infinity_are_magenta_and_counted():
    image = COLOUR / 255
    image[0, 0, 1], image[5, 5] = np.nan, np.inf
    grid = arranged([image, np.full_like(image, np.nan)])
    pixels = grid.cells[0].panels[0]
    assert pixels[0, 0].tolist() == pixels[5, 5].tolist() == [255, 0, 255]
    np.testing.assert_array_equal(pixels[6:], COLOUR[6:])
    assert grid.notes == ["1,804 values are NaN or infinite: magenta"]


def test_a_mask_has_a_colour_for_each_class():
    mask = np.zeros((20, 30), "uint8")
    mask[5:10], mask[12:15] = 1, 255
    grid = arranged([mask])
    pixels = grid.cells[0].panels[0]
    assert len({tuple(pixels[row, 0]) for row in (0, 5, 12)}) == 3
    assert pixels[0].max() == 0
    assert grid.notes == ["3 classes, 0 to 255: a colour each, and black for 0"]


def test_large_images_are_thinned_out():
    assert max(panel(np.zeros((5000, 3000), "uint8")).shape) < 600


# Trees, batches, strips.


@pytest.mark.parametrize(
    ("element", "titles", "caption"),
    [
        ((COLOUR, np.int64(3)), [""], "3"),
        ({"image": COLOUR, "label": 3, "id": "n01"}, [""], "label 3, id n01"),
        (Pair(COLOUR, GREY), ["image", "mask"], ""),
        ((GREY, GREY), ["[0]", "[1]"], ""),
        (({"left": GREY, "right": GREY}, 1.23456), ["left", "right"], "1.235"),
        ((GREY, np.array([0, 0, 1, 0, 0])), [""], "2"),
        ((GREY, np.array([1.5, 2, 3])), [""], "[1.5, 2, 3]"),
        ((GREY, b"caf\xc3\xa9"), [""], "café"),
        ((GREY, b"\xff\xd8\xff"), [""], "3 bytes"),
        ((GREY, True, "a\nb"), [""], "True, a b"),
    ],
)
def test_trees_are_pictures_side_by_side_and_a_caption(element, titles, caption):
    grid = arranged([element])
    assert (grid.titles, grid.cells[0].caption) == (titles, caption)


def test_vectors_are_lines_on_one_scale():
    grid = arranged(ps.from_arrays(np.arange(60.0).reshape(3, 20)))
    lines = [cell.panels[0] for cell in grid.cells]
    assert all(isinstance(each, Lines) and (each.low, each.high) == (0, 59) for each in lines)
    assert lines[1].values[:, 0].tolist() == list(range(20, 40))
    assert arranged([np.zeros((100, 3))]).cells[0].panels[0].values.shape == (100, 3)


def test_a_dataset_of_batches_shows_the_first_batch():
    ds = ps.from_arrays((np.stack([COLOUR] * 10), np.arange(10))).batch(4)
    grid = arranged(ds)
    assert [cell.caption for cell in grid.cells] == ["0", "1", "2", "3"]
    assert grid.heading == "all 4 elements of the first batch: ((20, 30, 3) uint8, () int64)"
    assert arranged(ds.map(lambda batch: batch), 2).heading.startswith("the first 2 of 4 elements of the first batch")


@pytest.mark.parametrize("size", [3, 4])
def test_a_batch_of_three_grey_images_is_not_a_colour_image(size):
    ds = ps.from_arrays(np.stack([GREY] * 12)).batch(size)
    assert len(arranged(ds).cells) == size
    assert len(arranged((np.stack([GREY] * size), np.arange(size))).cells) == size


@pytest.mark.parametrize(
    ("tree", "count"),
    [
        (np.zeros((6, 28, 28)), 6),
        (np.zeros((6, 28, 28, 1)), 6),
        ((np.zeros((6, 3, 28, 28)), np.zeros((6, 10))), 6),
        ({"x": np.zeros((6, 28, 28)), "y": np.zeros((6, 28, 28))}, 6),
        (np.zeros((28, 28, 3)), 1),
        (np.zeros((3, 28, 28)), 1),
        ((np.zeros((28, 28, 3)), np.zeros((28, 28))), 1),
        ((np.zeros((28, 28)), 5), 1),
        (np.zeros(28), 1),
    ],
)
def test_shapes_distinguish_batches_from_elements(tree, count):
    assert len(arranged(tree).cells) == count


def test_windows_are_strips_of_frames_however_many():
    frames = ps.from_arrays(np.stack([GREY] * 30))
    for length in (2, 3, 4, 5):
        (height, width, _) = arranged(frames.windows(length)).cells[0].panels[0].shape
        assert height == 20
        assert width == 30 * length + length - 1  # with white between
        assert arranged(frames.windows(length).batch(2)).cells[0].panels[0].shape[1] == width
    assert arranged(frames.windows(20)).notes == ["8 of 20 frames, spread evenly"]
    assert arranged([np.zeros((5, 20, 30, 3))]).cells[0].panels[0].shape[1] == 154
    assert arranged([np.zeros((20, 30, 2))]).cells[0].panels[0].shape[1] == 61


def test_images_of_several_sizes_keep_theirs():
    grid = arranged([GREY, GREY[:10]])
    assert [cell.panels[0].shape[:2] for cell in grid.cells] == [(20, 30), (10, 30)]
    assert grid.heading == "(None, 30) uint8"


def test_elements_of_a_list_may_differ_in_every_way():
    grid = arranged([GREY, COLOUR / 255, np.stack([COLOUR.transpose(2, 0, 1)] * 2)])
    assert grid.heading == "different shapes"
    np.testing.assert_array_equal(grid.cells[1].panels[0], COLOUR)
    np.testing.assert_array_equal(grid.cells[2].panels[0][:, :30], COLOUR)


def test_a_function_of_a_batch_need_not_return_a_batch():
    ds = ps.from_arrays(np.stack([GREY] * 8)).batch(4).map(lambda batch: (batch.mean(0), batch.mean()))
    assert len(arranged(ds).cells) == 2


# Class names.


@pytest.mark.parametrize(
    "label",
    [np.int32(1), np.array([1], "uint8"), np.float32(1), np.array([1.0], "float32"), np.array([0.0, 1, 0])],
)
def test_labels_of_every_label_mode_are_named(label):
    assert arranged([(GREY, label)], class_names=["cat", "dog", "鳥"]).cells[0].caption == "dog"


def test_shares_are_named_by_the_largest():
    assert arranged([(GREY, np.array([0.3, 0.7]))], class_names=["cat", "dog"]).cells[0].caption == "dog 0.70"


def test_names_go_to_the_label_and_not_to_other_integers():
    element = {"image": GREY, "fold": 1, "label": 0}
    assert arranged([element], class_names=["cat", "dog"]).cells[0].caption == "fold 1, label cat"


@pytest.mark.parametrize("labels", [[0, 1, 7], [0, -1, 1], [1, 2, 3]])
def test_where_a_label_has_no_name_all_are_numbers_and_a_note_says_so(labels):
    # Partly named, labels from 1 on would have the names of others.
    grid = arranged([(GREY, label) for label in labels], class_names=["cat", "dog", "eel"])
    assert [cell.caption for cell in grid.cells] == [str(label) for label in labels]
    assert "labels as numbers: 3 class names are for 0 to 2" in grid.notes


def test_names_are_not_missed_where_there_are_no_integers():
    assert arranged([GREY], class_names=["cat", "dog"]).notes == arranged([GREY]).notes


# Reads.


class Counting(ps.Source):
    element_spec = ps.ArraySpec((8, 8), "float32")

    def __init__(self):
        self.read = []

    def __len__(self):
        return 1000

    def read_into(self, indices, out):
        self.read += indices.tolist()
        out[:] = 0.5


def test_no_element_is_read_but_those_that_are_shown():
    source = Counting()
    arranged(ps.from_source(source), 5)
    assert source.read == list(range(5))
    source = Counting()
    arranged(ps.from_source(source).batch(32), 5)
    assert source.read == list(range(32))


def test_an_endless_stream_gives_its_first_elements_and_is_closed():
    given, closed = [], []

    def endless():
        try:
            while True:
                given.append(1)
                yield GREY
        finally:
            closed.append(1)

    ds = ps.from_generator(endless, element_spec=ps.ArraySpec((20, 30), "uint8"), length=float("inf"))
    grid = arranged(ds, 5)
    assert grid.heading.startswith("the first 5 of endlessly many elements: ")
    assert (len(given), len(closed)) == (5, 1)


# Refusals.


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (ps.range(0), r"nothing to show: this dataset has no elements\.\nrange"),
        ([], "the list has no elements"),
        (np.zeros((0, 8, 8, 3)), "the batch has no elements"),
        ([(GREY, 1), GREY], "needs elements of one structure, but element 1 is"),
        (object(), r"but found \(\) object\. Show a part"),
        (np.zeros(3, "i4,f4"), r"draws images, .* but found \(3,\) \[.*Show a part of it: ds\.map"),
        ([[GREY, GREY[:5]]], r"cannot make an array of the leaf, a list: "),
    ],
)
def test_data_that_cannot_be_drawn_are_refused_with_spec_and_remedy(data, complaint):
    with pytest.raises(ps.PenstockError, match=complaint):
        arranged(data)


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        (("a.jpg",), {}, r"show\('a.jpg'\): the picture is a PNG"),
        ((), {"count": 0}, r"show\(count=0\): it must be at least 1"),
        ((), {"class_names": "cat"}, "needs a list of names, got a str"),
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments, options, complaint):
    with pytest.raises(ps.PenstockError, match=complaint):
        ps.range(3).show(*arguments, **options)


def test_without_matplotlib_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"show\(\) needs matplotlib: pip install matplotlib\."):
        ps.show(GREY)


# Facts of a source beside its elements.


class Named(Counting):
    def __init__(self, class_names, file_paths):
        super().__init__()
        self.class_names, self.file_paths = class_names, file_paths


def test_names_and_files_of_the_source_are_known_after_any_step():
    ds = ps.from_source(Named(["cat", "dog"], ["b", "a"]))
    for each in (
        ds,
        ds.shuffle(1).map(lambda x: x).batch(3),
        ps.zip((ds, ds)),
        ps.concatenate([ds[:5], ds]),
        ds.take(0),
    ):
        assert (each.class_names, each.file_paths) == (["cat", "dog"], ["b", "a"])


def test_missing_or_different_names_and_files_are_refused():
    named, other = ps.from_source(Named(["cat"], ["b"])), ps.from_source(Named(["dog"], ["b"]))
    unlabelled, plain = ps.from_source(Named(None, ["b"])), ps.from_source(Counting())
    assert unlabelled.class_names is None
    assert ps.zip((unlabelled, named, plain)).class_names == ["cat"]
    assert not hasattr(plain, "class_names")
    with pytest.raises(AttributeError, match="This dataset has no file_paths: none of its sources does"):
        _ = plain.file_paths
    with pytest.raises(AttributeError, match="its sources have different ones"):
        _ = ps.zip((named, other)).class_names
    assert ps.zip((named, other)).file_paths == ["b"]


# The picture.


@pytest.mark.framework
def test_no_window_system_is_chosen_and_no_figure_is_kept(fresh_python):
    done = fresh_python(
        "import sys, numpy as np, penstock as ps\n"
        "picture = ps.show(np.zeros((5, 8, 8)))\n"
        "print(picture, picture._repr_png_()[1:4], 'matplotlib.pyplot' in sys.modules)",
        env={"MPLBACKEND": "tkagg", "DISPLAY": ""},
    )
    assert done.stderr == ""
    assert done.stdout == "<Picture of 5 elements; a notebook shows it, save('out.png') writes it> b'PNG' False\n"


@pytest.mark.framework
@pytest.mark.parametrize(
    "element",
    [
        {"image": COLOUR, "mask": GREY > 9, "line": np.sin(np.arange(50)), "label": np.int64(2)},
        "text alone",
        (np.zeros((12, 20, 30)), 1.0),
    ],
    ids=["all", "text", "strip"],
)
def test_no_text_leaves_the_page_or_runs_into_another(element, tmp_path):
    pytest.importorskip("matplotlib")
    long = "a name of many words that does not fit on one line or on two of them, $x and_y^2"
    ds = ps.from_source([element] * 20)
    picture = ds.show(tmp_path / "a.png", class_names=["é", "n" * 99, long])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert picture._repr_png_() == (tmp_path / "a.png").read_bytes()
    figure = picture.figure
    page = figure.bbox
    boxes = [text.get_window_extent() for text in figure.texts if text.get_text()]
    boxes += [axes.get_window_extent().padded(-2) for axes in figure.axes]
    for number, box in enumerate(boxes):
        assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1  # noqa: PT018
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.framework
def test_the_names_of_the_dataset_are_shown_without_asking():
    pytest.importorskip("matplotlib")
    ds = ps.zip((ps.from_source(Named(["cat", "dog"], [])), ps.from_arrays(np.arange(1000) % 2)))
    texts = [text.get_text() for text in ds.batch(4).show().figure.texts]
    assert texts.count("cat") == texts.count("dog") == 2
