import bz2
import gzip
import io
import lzma
import os
import tarfile

import numpy as np
import pytest

import penstock as ps
from penstock.plan._source import open_source
from penstock.testing import SourceTests

RNG = np.random.default_rng(0)


def written(path, members, **options):
    with tarfile.open(path, "w", **options) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(count, first=0):
    """Members of samples with a picture of any size and a class each."""
    return [
        (f"train/{i:04}.{field}", content)
        for i in range(first, first + count)
        for field, content in (("jpg", RNG.bytes(int(RNG.integers(0, 5000)))), ("cls", str(i).encode()))
    ]


def as_bytes(element):
    return {name: leaf if isinstance(leaf, str) else leaf.tobytes() for name, leaf in element.items()}


def wanted(members):
    out = {}
    for name, content in members:
        key, _, field = name.partition(".")
        out.setdefault(key, {"__key__": key})[field] = content
    return list(out.values())


def test_elements_are_the_samples(tmp_path):
    first, second = samples(9), samples(5, first=9)
    written(tmp_path / "0.tar", first)
    written(tmp_path / "1.tar", second)
    ds = ps.from_tar(f"{tmp_path}/*.tar")
    assert ds.element_spec == {
        "__key__": ps.ArraySpec((), "U"),
        "jpg": ps.ArraySpec((None,), "uint8"),
        "cls": ps.ArraySpec((None,), "uint8"),
    }
    assert os.listdir(tmp_path) != []
    assert len(ds) == 14
    expected = wanted(first + second)
    assert [as_bytes(element) for element in ds] == expected
    assert [as_bytes(ds[i]) for i in (13, 0, 9, 8)] == [expected[i] for i in (13, 0, 9, 8)]
    assert sorted(os.listdir(tmp_path)) == [".0.tar.index", ".1.tar.index", "0.tar", "1.tar"]


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_any_order_and_repeated_in_one_read(tmp_path):
    members = samples(9)
    opened = open_source(ps.from_tar(written(tmp_path / "a.tar", members))._node.data)
    expected = wanted(members)
    for indices in ([8, 0, 0, 3], [], [5], list(range(9))):
        out = {name: np.full(9, "junk", object) for name in opened.element_spec}
        opened.read_into(np.array(indices, np.int64), {name: leaf[: len(indices)] for name, leaf in out.items()})
        for row, index in enumerate(indices):
            assert as_bytes({name: leaf[row] for name, leaf in out.items()}) == expected[index]
    opened.advise(np.array([3, 1]))
    assert opened.describe(3) == f"{tmp_path}/a.tar sample 3 ('train/0003')"
    opened.close()


@pytest.mark.usefixtures("leaves_nothing_behind")
@pytest.mark.slow
def test_every_loader_gives_the_samples(tmp_path):
    members = samples(20)
    ds = ps.from_tar(written(tmp_path / "a.tar", members), fields=["cls"]).map(lambda e: int(e["cls"].tobytes()))
    for options in ({"executor": "threads", "workers": 2}, {"executor": "processes", "workers": 1}):
        with ds.shuffle(1).batch(4).loader(**options) as loader:
            assert sorted(np.concatenate(list(loader))) == list(range(20))


def test_names_of_every_kind(tmp_path):
    long = "d" * 90 + "/" + "e" * 120
    members = [
        (f"{long}.seg.PNG", b"1"),
        (f"{long}.txt", b"2"),
        ("README", b"no field"),
        ("a/.hidden.txt", b"no key"),
        ("v1.2/ä b.seg.png", b"3"),
        ("v1.2/ä b.txt", b""),
    ]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        ds = ps.from_tar(written(tmp_path / f"{form}.tar", members, format=form))
        assert [as_bytes(each) for each in ds] == [
            {"__key__": long, "seg.png": b"1", "txt": b"2"},
            {"__key__": "v1.2/ä b", "seg.png": b"3", "txt": b""},
        ]


@pytest.mark.slow
def test_names_of_any_bytes(tmp_path):
    members = [("a\nb/0.txt", b"1"), ("\udce9.txt", b"2")]  # a line's end in a folder; é, as Latin-1 has it
    ds = ps.from_tar(written(tmp_path / "a.tar", members, format=tarfile.GNU_FORMAT))
    for executor in ("inline", "processes"):
        with ds.loader(executor=executor) as loader:
            assert [as_bytes(each) for each in loader] == wanted(members)


def test_content_that_lies_elsewhere_or_in_pieces_is_refused_with_the_cure(tmp_path):
    for kind in tarfile.LNKTYPE, tarfile.SYMTYPE:
        path = written(tmp_path / "a.tar", [("a.txt", b"1")])
        with tarfile.open(path, "a") as tar:
            member = tarfile.TarInfo("b.txt")
            member.type, member.linkname = kind, "a.txt"
            tar.addfile(member)
        with pytest.raises(ps.SourceError, match=r"member 'b\.txt' that is a link or sparse, .*--hard-deref"):
            len(ps.from_tar(path))


def test_what_follows_the_end_is_not_left_out(tmp_path):
    parts = [written(tmp_path / name, members) for name, members in (("a", samples(2)), ("b", samples(2, first=2)))]
    (tmp_path / "ab.tar").write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.raises(
        ps.SourceError, match=r"ab\.tar ends at byte .*, and another tar file follows, which would be left .* in a list"
    ):
        len(ps.from_tar(tmp_path / "ab.tar"))
    assert len(ps.from_tar(parts)) == 4


@pytest.mark.parametrize("trailing", [b"junk" * 3, b"x" * 2000, bytes(3000) + b"signature", b"\xff" * 10_240])
def test_bytes_after_the_end_that_are_no_tar_file_are_passed_over(tmp_path, trailing):
    members = samples(3)
    path = written(tmp_path / "a.tar", members)
    path.write_bytes(path.read_bytes() + trailing)
    assert [as_bytes(each) for each in ps.from_tar(path)] == wanted(members)


def test_a_tar_file_behind_other_bytes_is_not_left_out(tmp_path):
    path = written(tmp_path / "a.tar", samples(2))
    path.write_bytes(path.read_bytes() + b"x" * 512 + path.read_bytes())
    with pytest.raises(ps.SourceError, match=r"a\.tar ends at byte .*, and another tar file follows"):
        len(ps.from_tar(path))


def header(name, size, kind=b"0", linkname=b""):
    """The header of a member, whose size is text, or a number that may be negative."""
    number = size if isinstance(size, bytes) else b"\xff" + size.to_bytes(11, "big", signed=True)
    fields = [(name, 100), (b"644\0", 8), (b"0\0", 8), (b"0\0", 8), (number, 12), (b"0\0", 12), (b" " * 8, 8)]
    fields += [(kind, 1), (linkname, 100), (b"ustar\x0000", 8)]
    block = b"".join(content.ljust(nbytes, b"\0") for content, nbytes in fields).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def octal(number):
    return b"%011o\0" % number


def pax(*records, size=None):
    """A header of attributes for the next member."""
    lines = [b" %s=%s\n" % record for record in records]
    content = b"".join(b"%d" % next(n for n in range(500) if n == len(b"%d" % n) + len(line)) + line for line in lines)
    return header(b"x", octal(len(content)) if size is None else size, b"x") + content.ljust(512, b"\0")


DAMAGED = {
    "a negative size": (header(b"a.txt", -512), "member 'a.txt' says that it has -512 bytes"),
    "a negative size of many blocks": (header(b"a.txt", -(1 << 40)), "says that it has -1,099,511,627,776 bytes"),
    "a negative size of a long name": (header(b"@LongLink", -512, b"L"), "read length must be non-negative or -1"),
    "attributes of 1 TiB": (pax(size=b"\x80" + (1 << 40).to_bytes(11, "big")), "damaged or cut off"),
    "a long name of 1 TiB": (header(b"@LongLink", b"\x80" + (1 << 40).to_bytes(11, "big"), b"L"), "damaged or cut off"),
    "attributes that say a negative size": (
        pax((b"size", b"-1024")) + header(b"a.txt", octal(0)),
        "says that it has -1,024 bytes",
    ),
    "a size of 8 EiB": (
        header(b"a.txt", b"\x80" + (1 << 63).to_bytes(11, "big")),
        "cannot fit 'int' into an offset-sized integer",
    ),
    "a sparse map that is no number": (
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"))
        + header(b"a.txt", octal(512))
        + b"x\n".ljust(512),
        "damaged or cut off",
    ),
    "a sparse map without an end": (
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"))
        + header(b"a.txt", octal(512))
        + b"9999\n1\n" * 64,
        "damaged or cut off",
    ),
    "a sparse map of odd numbers": (
        pax((b"GNU.sparse.map", b"0,1,x"), (b"GNU.sparse.size", b"5")) + header(b"a.txt", octal(0)),
        "damaged or cut off",
    ),
    "long names without an end": (header(b"@LongLink", octal(1), b"L") + b"a".ljust(512, b"\0"), "damaged or cut off"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_header_is_an_error_that_names_the_file(tmp_path, kind):
    content, message = DAMAGED[kind]
    if kind == "long names without an end":
        content *= 2000
    path = written(tmp_path / "a.tar", [("before.txt", b"1")], format=tarfile.PAX_FORMAT)
    path.write_bytes(path.read_bytes()[:1024] + content + bytes(1024))
    with pytest.raises(ps.SourceError, match=r"a\.tar is damaged or cut off, or no tar file: .*") as caught:
        len(ps.from_tar(path))
    assert message in str(caught.value)


def test_sparse_content_is_refused_with_the_cure(tmp_path):
    path = tmp_path / "a.tar"
    sparse = pax((b"GNU.sparse.map", b"0,1"), (b"GNU.sparse.size", b"512"))
    path.write_bytes(sparse + header(b"a.txt", octal(1)) + b"x".ljust(512, b"\0") + bytes(1024))
    with pytest.raises(ps.SourceError, match=r"member 'a\.txt' that is a link or sparse, .* and without --sparse"):
        len(ps.from_tar(path))


def test_sample_that_lacks_a_field_is_named(tmp_path):
    path = written(
        tmp_path / "a.tar", [("a.jpg", b"1"), ("a.cls", b"2"), ("b.jpg", b"3"), ("c.cls", b"4"), ("c.jpg", b"")]
    )
    ds = ps.from_tar(path)
    assert as_bytes(ds[2]) == {"__key__": "c", "jpg": b"", "cls": b"4"}
    with pytest.raises(
        ps.SourceError, match=r"a\.tar sample 1 \('b'\) has no 'cls'; it has \['jpg'\]\. .*fields=\[\.\.\.\]"
    ):
        ds[1]
    assert as_bytes(ps.from_tar(path, fields=["jpg"])[1]) == {"__key__": "b", "jpg": b"3"}
    with pytest.raises(ps.SourceError, match=r"has no 'png'; it has \['jpg', 'cls'\]"):
        ps.from_tar(path, fields=["png"])[0]
    path = written(
        tmp_path / "b.tar", [("a.jpg", b"1"), ("a.cls", b"2"), ("b.jpg", b"3"), ("c.cls", b"4"), ("b.cls", b"")]
    )
    with pytest.raises(ps.SourceError, match=r"b\.tar sample 1 \('b'\) has no 'cls'; .*side by side.* tar --sort=name"):
        ps.from_tar(path)[1]


@pytest.mark.parametrize("again", ["a.txt", "a.TXT"])
def test_member_that_comes_twice_is_named(tmp_path, again):
    path = written(tmp_path / "a.tar", [("a.txt", b"1"), ("a.cls", b"2"), (again, b"3")])
    with pytest.raises(
        ps.SourceError, match=r"a\.tar has two members a\.txt in one sample\. One .* write the file again"
    ):
        len(ps.from_tar(path))


def test_one_key_at_the_seam_of_two_files_is_two_samples(tmp_path):
    paths = [written(tmp_path / f"{name}.tar", [("a.txt", name.encode())]) for name in "xy"]
    assert [as_bytes(each) for each in ps.from_tar(paths)] == [
        {"__key__": "a", "txt": b"x"},
        {"__key__": "a", "txt": b"y"},
    ]


PICTURES = [
    ("a.jpg", b"1"), ("a.txt", b"one"), ("b.png", b"2"), ("b.txt", b"two"), ("c.jpg", b"3"), ("c.png", b"4"),
    ("d.WebP", b""), ("d.txt", b""), ("e.jpg", b"6"), ("e.txt", b"six"),
]  # fmt: skip


@pytest.mark.parametrize("fields", [{"image": "jpg;png;webp", "text": "txt"}, ["jpg;png; webp", "txt"]])
def test_a_field_may_have_several_names_and_be_missing(tmp_path, fields):
    image, text = fields
    ds = ps.from_tar(written(tmp_path / "a.tar", PICTURES), fields=fields, defaults={text: "none"})
    assert list(ds.element_spec) == ["__key__", image, text]
    assert [as_bytes(each) for each in ds] == [
        {"__key__": key, image: content, text: words}
        for key, content, words in zip(
            "abcde", (b"1", b"2", b"3", b"", b"6"), (b"one", b"two", b"none", b"", b"six"), strict=True
        )
    ]
    first, second = (ds[2][text] for _ in range(2))
    first[:] = 0
    assert second.tobytes() == b"none"


def test_names_of_fields_are_the_same_in_upper_and_lower_case(tmp_path):
    path = written(tmp_path / "a.tar", [("a.JPG", b"1"), ("b.jpg", b"2")])
    for options in ({"fields": {"x": "JPG"}}, {"fields": ["Jpg"]}, {"fields": {"x": "png;JPG"}}, {"defaults": {}}):
        ds = ps.from_tar(path, **({"defaults": dict.fromkeys(options.get("fields", ()), b"none")} | options))
        assert [list(as_bytes(each).values())[1] for each in ds] == [b"1", b"2"]


def test_a_field_of_several_names_takes_the_first_that_is_there(tmp_path):
    path = written(tmp_path / "a.tar", PICTURES)
    assert as_bytes(ps.from_tar(path, fields=["png;jpg"])[2]) == {"__key__": "c", "png;jpg": b"4"}
    with pytest.raises(ps.SourceError, match=r"a\.tar sample 3 \('d'\) has no 'png;jpg'; it has \['txt', 'webp'\]"):
        ps.from_tar(path, fields=["png;jpg"])[3]


def test_defaults_alone_add_fields_to_those_of_the_first_sample(tmp_path):
    members = [("a.txt", b"1"), ("b.txt", b"2"), ("b.json", b"{}")]
    ds = ps.from_tar(written(tmp_path / "a.tar", members), defaults={"json": b"[]"})
    assert [as_bytes(each) for each in ds] == [
        {"__key__": "a", "txt": b"1", "json": b"[]"},
        {"__key__": "b", "txt": b"2", "json": b"{}"},
    ]


def test_nothing_stands_in_for_a_member_that_is_elsewhere_in_the_file(tmp_path):
    members = [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3"), ("c.jpg", b"4"), ("c.cls", b"5"), ("b.jpg", b"6")]
    ds = ps.from_tar(written(tmp_path / "a.tar", members), fields=["jpg", "cls"], defaults={"cls": b"0", "jpg": b""})
    assert as_bytes(ds[1]) == {"__key__": "b", "jpg": b"2", "cls": b"0"}  # there are two of b, and none has a class
    assert as_bytes(ds[4])["jpg"] == b"6"
    for sample, lacks in ((0, "cls"), (2, "jpg")):
        with pytest.raises(ps.SourceError, match=rf"sample {sample} \('a'\) has no '{lacks}'; .* in this file some do"):
            ds[sample]


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_samples_that_lack_a_field_are_left_out_by_on_error(tmp_path, monkeypatch, executor):
    monkeypatch.chdir(tmp_path)
    ds = ps.from_tar(written(tmp_path / "a.tar", PICTURES), fields={"image": "jpg;png;webp", "text": "txt"})
    with ds.map(lambda element: len(element["text"])).batch(2).loader(executor, on_error="skip") as loader:
        assert [batch.tolist() for batch in loader] == [[3, 3], [0, 3]]


class TestTar(SourceTests):
    @pytest.fixture
    def source(self, tmp_path):
        path = written(tmp_path / "a.tar", PICTURES)
        return ps.from_tar(path, fields={"image": "jpg;png;webp", "text": "txt"}, defaults={"text": "?"})._node.data

    @pytest.fixture
    def expected(self):
        contents = {"image": [b"1", b"2", b"3", b"", b"6"], "text": [b"one", b"two", b"?", b"", b"six"]}
        arrays = {name: [np.frombuffer(each, np.uint8) for each in found] for name, found in contents.items()}
        return {"__key__": list("abcde"), **arrays}


def test_compressed_file_is_refused_with_the_cure(tmp_path):
    path = written(tmp_path / "a.tar", samples(2))
    content = path.read_bytes()
    for kind, compressed in (("gzip", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        path.write_bytes(compressed(content))
        with pytest.raises(ps.SourceError, match=rf"a\.tar is compressed by {kind}, .* Decompress it once"):
            len(ps.from_tar(path))
    assert len(ps.from_tar(written(tmp_path / "b.tar", [("BZh.txt", b"1"), ("b.txt", b"2")]))) == 2


def test_damage_anywhere_in_an_index_changes_no_sample(tmp_path):
    members = samples(3)
    path = written(tmp_path / "a.tar", members)
    assert len(ps.from_tar(path)) == 3
    index = tmp_path / ".a.tar.index"
    whole = index.read_bytes()
    for place in range(0, len(whole), 37):
        for damaged in (whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole[:place]):
            index.write_bytes(damaged)
            assert [as_bytes(each) for each in ps.from_tar(path)] == wanted(members)


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_truncated_file_is_named(tmp_path):
    path = written(tmp_path / "a.tar", [("a.txt", bytes(2000)), ("b.txt", bytes(2000))])
    whole = path.read_bytes()
    path.write_bytes(whole[:3000])
    with pytest.raises(
        ps.SourceError, match=r"a\.tar is damaged or cut off: at byte 2,560 of 3,000 there is no whole header"
    ):
        len(ps.from_tar(path))
    path.write_bytes(whole[:4000])
    with pytest.raises(
        ps.SourceError, match=r"a\.tar is damaged or cut off, or no tar file: ReadError\('unexpected end of data'\)"
    ):
        len(ps.from_tar(path))
    assert os.listdir(tmp_path) == ["a.tar"]


def test_damaged_header_is_not_taken_for_the_end(tmp_path):
    path = written(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3")])
    whole = bytearray(path.read_bytes())
    whole[1024 + 3] ^= 1
    path.write_bytes(whole)
    with pytest.raises(
        ps.SourceError, match=r"a\.tar is damaged or cut off: at byte 1,024 of 10,240 there is no whole header"
    ):
        len(ps.from_tar(path))


def test_file_that_is_no_tar_is_named(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"Once upon a time" * 100)
    with pytest.raises(ps.SourceError, match=r"a\.tar is damaged or cut off, or no tar file"):
        len(ps.from_tar(tmp_path / "a.tar"))


def test_file_without_samples_is_named(tmp_path):
    written(tmp_path / "a.tar", [("README", b"")])
    with pytest.raises(ps.SourceError, match=r"There are no samples in .*a\.tar: no files with an ending"):
        ps.from_tar(tmp_path / "a.tar").element_spec  # noqa: B018
    assert len(ps.from_tar(tmp_path / "a.tar", fields=["txt"])) == 0


def test_file_that_was_replaced_meanwhile_is_refused(tmp_path):
    ds = ps.from_tar(written(tmp_path / "a.tar", samples(2)))
    assert len(ds) == 2
    written(tmp_path / "a.tar", samples(30))
    with pytest.raises(ps.SourceError, match=r"a\.tar has changed since the dataset was made"):
        ds[0]


def test_files_behind_an_url(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    members = samples(6)
    content = written(tmp_path / "a.tar", members).read_bytes()
    fsspec.filesystem("memory").pipe("/shards/a.tar", content)
    for _ in range(2):
        ds = ps.from_tar("memory://shards/*.tar")
        assert [as_bytes(each) for each in ds] == wanted(members)
    assert len(os.listdir(tmp_path / "cache/penstock")) == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"fields": "jpg"},
            ps.ArgumentTypeError,
            r"from_tar\(fields=\) is a list of names such as 'jpg', or a dict .* a str",
        ),
        ({"fields": ["a", "a"]}, ps.ArgumentError, r"each once, and __key__ comes of itself"),
        ({"fields": ["__key__"]}, ps.ArgumentError, r"each once, and __key__ comes of itself"),
        (
            {"fields": {"image": ["jpg", "png"]}},
            ps.ArgumentTypeError,
            r"or a dict such as .*, got a dict: \{'image': \['jpg', 'png'\]\}",
        ),
        (
            {"defaults": {"cls": 0}},
            ps.ArgumentTypeError,
            r"defaults=\{'cls': \.\.\.\}\) is what .*, bytes or text, got an int",
        ),
        ({"defaults": ["cls"]}, ps.ArgumentTypeError, r"defaults=\) is a dict such as \{'txt': b''\}, got a list"),
        ({"defaults": {"__key__": ""}}, ps.ArgumentError, r"each once, and __key__ comes of itself"),
        (
            {"fields": ["a"], "defaults": {"b": ""}},
            ps.ArgumentError,
            r"defaults=\{'b': .*\}\) is no field: fields=\['a'\]",
        ),
    ],
)
def test_wrong_fields_are_refused(tmp_path, options, error, text):
    with pytest.raises(error, match=text):
        ps.from_tar(written(tmp_path / "a.tar", samples(1)), **options)
