"""Small files in each layout of the ETL Character Database, written bit by bit as its pages say, and read back."""

import itertools
import os
import struct

import numpy as np
import pytest

import penstock as ps
from penstock.records import _etlfiles
from penstock.testing import SourceTests

# (height, width), bits of a pixel
SIZES = {
    **dict.fromkeys(("ETL1", "ETL6", "ETL7"), ((63, 64), 4)),
    "ETL2": ((60, 60), 6),
    **dict.fromkeys(("ETL3", "ETL4", "ETL5"), ((76, 72), 4)),
    **dict.fromkeys(("ETL8B", "ETL9B"), ((63, 64), 1)),
    **dict.fromkeys(("ETL8G", "ETL9G"), ((127, 128), 4)),
}
# What is written of a character: the code, and for types M and C the name beside it.
CODES = {
    "ETL1": {"ア": (0xB1, " A"), "ヰ": (0xA8, "WI"), "7": (0x37, "7 "), "A": (0x41, "A "), "¥": (0x5C, "$Y")},
    "ETL2": {"上": (4, 4), "A": (11, 20), "の": (63, 0), "ポ": (0, 63), "々": (30, 31)},
    "ETL3": {"0": (0x30, "N  0"), "Z": (0x5A, "A  Z"), "+": (0x2B, "S  +")},
    "ETL4": {"あ": (0xB1, "H  A"), "ゐ": (0xA8, "H WI"), "ゑ": (0xAA, "H WE"), "を": (0xA6, "H WO")},
    "ETL5": {"ア": (0xB1, "K  A"), "ヱ": (0xAA, "K WE"), "ン": (0xDD, "K  N")},
    "ETL6": {"カ": (0xB6, "KA"), "「": (0xA2, "(K"), "゛": (0xDE, ",,"), "/X": (0x00, "/X")},
    "ETL7": {"か": (0xB6, "KA"), "ん": (0xDD, " N"), "゜": (0xDF, ",0")},
    **{part: {"あ": 0x2422, "亜": 0x3021, "話": 0x4F43, "A": 0x2341} for part in ("ETL8B", "ETL8G", "ETL9B", "ETL9G")},
}
T56 = "0123456789[#@:>? ABCDEFGHI&.](<\\^JKLMNOPQR-$*);'+/STUVWXYZ_,%=\"!"
CO59 = "上:4,4\n\uff21:11,20 の:63,0\tポ:0,63\n々:30,31\n"


def bits(*fields):
    """Numbers one after the other, each `(value, bits)`, as bytes."""
    return packed("".join(format(value, f"0{width}b") for value, width in fields))


def packed(text):
    """A text of zeros and ones as bytes."""
    return int(text, 2).to_bytes(len(text) // 8, "big")


def record(part, code, levels):
    """One record, with junk where nothing is said of what is there."""
    depth = SIZES[part][1]
    image = packed("".join(map([format(level, f"0{depth}b") for level in range(2**depth)].__getitem__, levels.ravel())))
    if part in ("ETL1", "ETL6", "ETL7"):
        jis, name = code
        head = (9, name.encode(), 300, jis, 0xC1, 0, 1, 2, 33, 70_000, 1, 2, 7304, 7401, 5, 6, 0, 255)
        return struct.pack(">H2sH6BI4H4B", *head) + b"\xff" * 4 + image + b"\xff" * 4
    if part == "ETL2":
        words = [(123, 36), (17, 6), (0, 30), (1, 36), (2, 36), (0, 24), (code[0], 6), (code[1], 6), (2**180 - 1, 180)]
        return bits(*words) + image
    if part in ("ETL3", "ETL4", "ETL5"):
        jis, name = code
        words = [(5, 36), (6, 36), (jis, 8), (2**28 - 1, 28), (0xC1, 8), (0, 28)]
        words += [(T56.index(letter), 6) for letter in name]
        words += [(16, 6), (16, 6), *((number, 36) for number in range(15)), (2**1008 - 1, 1008)]
        return bits(*words) + image
    if part in ("ETL8B", "ETL9B"):
        return struct.pack(">HH4s", 12, code, b"AI.M") + image + b"\xff" * (64 * (part == "ETL9B"))
    head = struct.pack(">HH8sI4B4H2B", 12, code, b"AI.MEDER", 70_000, 0, 1, 2, 33, 1, 2, 7304, 7401, 5, 6)
    filled, rest = (30, 11) if part == "ETL8G" else (34, 7)
    return head + b"\xff" * filled + image + b"\xff" * rest


NBYTES = {part: len(record(part, next(iter(CODES[part].values())), np.zeros(SIZES[part][0], int))) for part in SIZES}


def test_records_that_are_written_are_as_long_as_the_pages_say():
    expected = {"ETL2": 2745, "ETL8B": 512, "ETL8G": 8199, "ETL9B": 576, "ETL9G": 8199}
    expected |= dict.fromkeys(("ETL1", "ETL6", "ETL7"), 2052) | dict.fromkeys(("ETL3", "ETL4", "ETL5"), 2952)
    assert expected == NBYTES


def write(folder, part, counts=(4, 7), seed=0):
    """Writes files with `counts` characters; returns images of 0 to 255 and characters, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    shape, depth = SIZES[part]
    characters = list(itertools.islice(itertools.cycle(CODES[part]), sum(counts)))
    levels = rng.integers(0, 2**depth, (len(characters), *shape))
    records = [record(part, CODES[part][name], image) for name, image in zip(characters, levels, strict=True)]
    for number, (last, count) in enumerate(zip(itertools.accumulate(counts), counts, strict=True), 1):
        dummy = b"\x01" * NBYTES[part] if part in ("ETL8B", "ETL9B") else b""
        (folder / f"{part}C_{number}").write_bytes(dummy + b"".join(records[last - count : last]))
    (folder / f"{part}INFO").write_text(f"{part}C_1 (F,2952,2952,C-type)\n")
    if part == "ETL2":
        (folder / "euc_co59.dat").write_bytes(CO59.encode("euc_jp"))
    return np.rint(levels * (255 / (2**depth - 1))).astype("uint8")[..., None], characters


@pytest.mark.parametrize("part", SIZES)
def test_every_layout_is_read_back(part, tmp_path):
    images, characters = write(tmp_path, part)
    etl = ps.from_etlcdb(tmp_path)
    assert len(etl) == 11
    assert [leaf.shape for leaf in etl.element_spec] == [(*SIZES[part][0], 1), ()]
    assert etl.class_names == sorted(CODES[part])
    got, labels = etl.batch(11)[0]
    assert (got.dtype, labels.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(got, images)
    assert [etl.class_names[label] for label in labels] == characters
    order = np.random.default_rng(1).permutation(11)
    for k in order:
        np.testing.assert_array_equal(etl[int(k)][0], images[k])


class TestSource(SourceTests):
    @pytest.fixture(params=["ETL2", "ETL8B kanji"])
    def written(self, request, tmp_path):
        part, _, group = request.param.partition(" ")
        images, characters = write(tmp_path, part, (5, 2, 4))
        chosen = np.array([not group or name in "亜話" for name in characters])
        names = sorted({name for name, is_in in zip(characters, chosen, strict=True) if is_in})
        labels = np.array([names.index(name) if is_in else -1 for name, is_in in zip(characters, chosen, strict=True)])
        source = ps.from_etlcdb(tmp_path, groups=group or None)._node.data
        return source, (images[chosen], labels[chosen].astype("int32"))

    @pytest.fixture
    def source(self, written):
        return written[0]

    @pytest.fixture
    def expected(self, written):
        return written[1]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_every_executor_gives_the_same(executor, tmp_path):
    write(tmp_path, "ETL8B", (20, 30))
    etl = ps.from_etlcdb(tmp_path, groups=("kanji", "latin")).shuffle(seed=1).batch(4)
    with etl.loader(executor=executor, workers="auto" if executor == "inline" else 2) as loader:
        for (images, labels), (wanted, names) in zip(loader, etl, strict=True):
            np.testing.assert_array_equal(images, wanted)
            np.testing.assert_array_equal(labels, names)


def test_pixels_are_spread_over_all_levels(tmp_path):
    for part, top in (("ETL8B", 1), ("ETL1", 15), ("ETL2", 63)):
        shape = SIZES[part][0]
        levels = np.arange(np.prod(shape)).reshape(shape) % (top + 1)
        dummy = b"\0" * 512 if part == "ETL8B" else b""
        (tmp_path / part).mkdir()
        (tmp_path / part / f"{part}C").write_bytes(dummy + record(part, next(iter(CODES[part].values())), levels))
        (tmp_path / "euc_co59.dat").write_bytes(CO59.encode("euc_jp"))
        image = ps.from_etlcdb(tmp_path / part)[0][0]
        assert image.ravel()[: top + 1].tolist() == [round(level * 255 / top) for level in range(top + 1)]


def test_database_as_it_is_unpacked_is_looked_through(tmp_path):
    images, _ = write(tmp_path / "ETL8B", "ETL8B")
    write(tmp_path / "etl9b" / "ETL9B", "ETL9B")
    (tmp_path / "ETL8B.zip").write_bytes(b"junk")
    (tmp_path / "ETL8B" / "ETL8B_1.png").write_bytes(b"junk")
    (tmp_path / "ETL10" / "ETL10_1").parent.mkdir()
    (tmp_path / "ETL10" / "ETL10_1").write_bytes(b"junk")
    for name in ("ETL8BC_1", "ETL8BC_2"):
        (tmp_path / "ETL8B" / name).rename(tmp_path / "ETL8B" / name.lower())
    for folder in (tmp_path, tmp_path / "ETL8B"):
        etl = ps.from_etlcdb(folder, part="etl8b")
        np.testing.assert_array_equal(etl.batch(20)[0][0], images)
    assert len(ps.from_etlcdb(tmp_path / "etl9b")) == 11


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("ETL1", "ETL1C_01 ETL1C_13"),
        ("ETL2", "ETL2_1 ETL2_5"),
        ("ETL4", "ETL4C"),
        ("ETL7", "ETL7LC_1 ETL7LC_2 ETL7SC_1 ETL7SC_2"),
        ("ETL8B", "ETL8B2C1 ETL8B2C2 ETL8B2C3"),
        ("ETL8G", "ETL8G_01 ETL8G_33"),
        ("ETL9B", "ETL9B_1 ETL9B_5"),
        ("ETL9G", "ETL9G_01 ETL9G_50"),
    ],
)
def test_files_have_the_names_that_they_are_given_there(part, names, tmp_path):
    write(tmp_path, part, (1,))
    data = (tmp_path / f"{part}C_1").read_bytes()
    (tmp_path / f"{part}C_1").unlink()
    for name in names.split():
        (tmp_path / name).write_bytes(data)
    etl = ps.from_etlcdb(tmp_path)
    assert len(etl) == len(names.split())
    assert [etl._node.data.describe(k).split()[0].rpartition("/")[2] for k in range(len(etl))] == names.split()


def test_groups_choose_characters_and_number_them_anew(tmp_path):
    write(tmp_path, "ETL1", (10,))
    for groups, names in {
        ("katakana",): ["ア", "ヰ"],
        "digits": ["7"],
        ("latin", "symbols"): ["A", "¥"],
        ("latin", "digits", "katakana", "symbols"): ["7", "A", "¥", "ア", "ヰ"],
    }.items():
        etl = ps.from_etlcdb(tmp_path, groups=groups)
        assert etl.class_names == names
        assert len(etl) == 2 * len(names)
        assert sorted({int(label) for _, label in etl}) == list(range(len(names)))


def test_characters_that_look_the_same_are_one_class(tmp_path):
    blank = np.zeros((76, 72), int)
    records = [record("ETL4", (jis, name), blank) for jis, name in ((0xB2, "H  I"), (0xB2, "H YI"), (0xB3, "H WU"))]
    (tmp_path / "ETL4C").write_bytes(b"".join(records))
    etl = ps.from_etlcdb(tmp_path)
    assert etl.class_names == ["い", "う"]
    assert [int(label) for _, label in etl] == [0, 0, 1]


def test_only_names_and_sizes_are_looked_at_before_an_element_is_needed(tmp_path, monkeypatch):
    with open(tmp_path / "ETL9B_1", "wb") as file:
        file.truncate(576 * 100_000_001)  # 58 GB, of which none is on the disk
    monkeypatch.setattr(_etlfiles, "read_codes", lambda file, layout: pytest.fail("labels were read"))
    etl = ps.from_etlcdb(tmp_path)
    assert len(etl.split(0.8, 0.2, seed=1)[0].shuffle().batch(32)) == 2_500_000
    assert etl.element_spec[0].shape == (63, 64, 1)
    ps.from_etlcdb(tmp_path, groups="kanji")


def test_labels_are_read_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    write(tmp_path, "ETL8B")
    assert ps.from_etlcdb(tmp_path).class_names == ["A", "あ", "亜", "話"]
    with monkeypatch.context() as patch:
        patch.setattr(_etlfiles, "read_codes", lambda file, layout: pytest.fail("labels were read again"))
        assert ps.from_etlcdb(tmp_path).class_names == ["A", "あ", "亜", "話"]
    data = bytearray((tmp_path / "ETL8BC_1").read_bytes())
    data[512 + 2 : 512 + 4] = b"\x30\x22"
    (tmp_path / "ETL8BC_1").write_bytes(data)
    os.utime(tmp_path / "ETL8BC_1", ns=(0, 0))
    assert ps.from_etlcdb(tmp_path).class_names == ["A", "あ", "亜", "唖", "話"]


def test_elements_are_named_by_file_and_record(tmp_path):
    write(tmp_path, "ETL8B")
    assert ps.from_etlcdb(tmp_path)._node.data.describe(4) == f"{tmp_path}/ETL8BC_2 record 1"
    assert ps.from_etlcdb(tmp_path, groups="kanji")._node.data.describe(1) == f"{tmp_path}/ETL8BC_1 record 3"


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        ({"part": "ETL10"}, ps.ArgumentError, "part='ETL10'.* holds ETL5, ETL8B. Name one of these"),
        ({"part": 8}, ps.ArgumentError, "part=8.: a dataset is of one part"),
        ({"part": "ETL9G"}, ps.ArgumentError, "part='ETL9G'.* holds ETL5, ETL8B. .* or unpack another"),
        ({}, ps.ArgumentError, "part=None.: a dataset is of one part, .* holds ETL5, ETL8B"),
        ({"part": "ETL8B", "groups": "kana"}, ps.ArgumentError, "groups='kana'.*kanji, hiragana, katakana, digits"),
        ({"part": "ETL8B", "groups": ()}, ps.ArgumentError, "one or more of kanji"),
        ({"part": "ETL8B", "groups": 3}, ps.ArgumentError, "groups=3.: groups are one or more of kanji"),
    ],
)
def test_argument_that_cannot_be_meant_is_refused_at_the_call(arguments, error, complaint, tmp_path):
    write(tmp_path, "ETL8B")
    write(tmp_path, "ETL5")
    with pytest.raises(error, match=complaint):
        ps.from_etlcdb(tmp_path, **arguments)


def test_folder_without_the_database_says_what_is_looked_for(tmp_path):
    (tmp_path / "ETL8INFO").write_text("x")
    with pytest.raises(ps.SourceError, match=r"holds no file of the ETL Character Database.*such as ETL8INFO"):
        ps.from_etlcdb(tmp_path)
    with pytest.raises(ps.SourceError, match="nowhere holds no file of the ETL"):
        ps.from_etlcdb(tmp_path / "nowhere")
    with pytest.raises(ps.ArgumentTypeError, match="needs a directory, got a list"):
        ps.from_etlcdb([tmp_path])


def test_file_that_is_not_whole_records_is_named(tmp_path):
    write(tmp_path, "ETL8B")
    path = tmp_path / "ETL8BC_2"
    os.truncate(path, 3000)
    with pytest.raises(ps.SourceError, match=r"ETL8BC_2 has 3,000 bytes: 5 records of 512 bytes and 440 bytes more"):
        ps.from_etlcdb(tmp_path)
    os.truncate(path, 512)
    with pytest.raises(ps.SourceError, match=r"ETL8BC_2 has 512 bytes: no character.*unpack it again"):
        ps.from_etlcdb(tmp_path)


def test_file_that_is_cut_off_later_is_named(tmp_path):
    write(tmp_path, "ETL8B")
    etl = ps.from_etlcdb(tmp_path)
    assert etl[0][1] == 1
    os.truncate(tmp_path / "ETL8BC_2", 1024)
    with pytest.raises(ps.PenstockError, match="ETL8BC_2 has changed since the dataset was made"):
        etl[10]


@pytest.mark.parametrize(
    ("part", "code", "complaint"),
    [
        ("ETL9G", 0x2F21, "ETL9GC record 1 has the code 0x2f21 at byte 2 of its 8199, .* JIS X 0208"),
        ("ETL9G", 0x0001, "has the code 0x1 "),
        ("ETL2", (1, 2), "record 1 has the code 0x42. .* CO-59"),
        ("ETL3", (0x01, "0000"), "record 1 .* no character in C katakana"),
        ("ETL1", (0x01, "\0\0"), "record 1 .* no character in M katakana"),
    ],
)
def test_unknown_code_is_named_with_its_record(part, code, complaint, tmp_path):
    blank = np.zeros(SIZES[part][0], int)
    good = next(iter(CODES[part].values()))
    (tmp_path / f"{part}C").write_bytes(record(part, good, blank) + record(part, code, blank))
    (tmp_path / "euc_co59.dat").write_bytes(CO59.encode("euc_jp"))
    etl = ps.from_etlcdb(tmp_path)
    with pytest.raises(ps.SourceError, match=complaint):
        etl.batch(2)[0]


def test_groups_that_are_not_there_are_said(tmp_path):
    write(tmp_path, "ETL8B")
    with pytest.raises(
        ps.SourceError, match=r"ETL8B has no character of the groups katakana.*have hiragana, kanji, latin;"
    ):
        len(ps.from_etlcdb(tmp_path, groups="katakana"))


def test_two_copies_of_a_file_are_refused(tmp_path):
    write(tmp_path / "a", "ETL8B")
    write(tmp_path / "b", "ETL8B")
    with pytest.raises(ps.SourceError, match=r"a/ETL8BC_1 and .*b/ETL8BC_1 have the same name"):
        ps.from_etlcdb(tmp_path)


def test_etl2_wants_the_table_of_its_codes(tmp_path):
    write(tmp_path / "ETL2", "ETL2")
    (tmp_path / "ETL2" / "euc_co59.dat").rename(tmp_path / "EUC_CO59.dat")
    assert "上" in ps.from_etlcdb(tmp_path / "ETL2").class_names  # beside the part's folder
    for content in (b"\xff\xff", "上:4,x".encode("euc_jp"), "上下:4,4".encode("euc_jp")):
        (tmp_path / "EUC_CO59.dat").write_bytes(content)
        with pytest.raises(ps.SourceError, match=r"EUC_CO59.dat is no table of CO-59.*unpack\.zip"):
            ps.from_etlcdb(tmp_path)[0]
    (tmp_path / "EUC_CO59.dat").unlink()
    with pytest.raises(ps.SourceError, match=r"CO-59, and its table, euc_co59\.dat, is not in .*unpack\.zip"):
        ps.from_etlcdb(tmp_path)
