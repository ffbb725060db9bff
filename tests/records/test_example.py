import contextlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import penstock as ps
from penstock.records._example import encoded, read_example
from penstock.records._features import features_of


def field(number, content, wire=2):
    def varint(value):
        out = b""
        while value >= 0x80:
            out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
        return out + bytes([value])

    size = varint(len(content)) if wire == 2 else b""
    return varint(number << 3 | wire) + size + content


def example(**features):
    """An Example of features that are given as the bytes of a `Feature`."""
    entries = [field(1, field(1, name.encode()) + field(2, content)) for name, content in features.items()]
    return field(1, b"".join(entries))


def read(records, features, defaults=None):
    """The arrays of features of records."""
    wanted = features_of(features, defaults)
    outs = [
        np.empty(len(records), object)
        if each.spec.max_shape is None
        else np.empty((len(records), *each.spec.max_shape), each.spec.dtype if each.spec.dtype.itemsize else object)
        for each in wanted
    ]
    for row, record in enumerate(records):
        read_example(wanted, record, outs, row, lambda row=row: f"record {row}")
    return dict(zip(features, outs, strict=True))


INT64 = {"v": ps.ArraySpec((None,), "int64")}


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), min_size=1, max_size=12))
def test_integers_of_any_size_come_back(rows):
    out = read([encoded({"v": np.array(row, np.int64)}) for row in rows], INT64)
    assert [each.tolist() for each in out["v"]] == rows


PLAIN = st.fixed_dictionaries(
    {
        "label": st.integers(-2, 300).map(np.int64),
        "x": st.just(np.arange(4, dtype="f4")) | st.just(np.full(4, np.nan, "f4")),
        "image": st.binary(min_size=6, max_size=6),
        "name": st.text(max_size=3),
        "other": st.binary(max_size=3),
    }
)


@settings(max_examples=12)
@given(st.lists(st.tuples(PLAIN, st.permutations(["label", "x", "image", "name", "other"])), min_size=1, max_size=12))
def test_records_of_any_order_of_features_come_back(rows):
    features = {
        "image": ps.ArraySpec((2, 3), "uint8"),
        "label": ps.ArraySpec((), "int64"),
        "name": ps.ArraySpec((), "U"),
        "x": ps.ArraySpec((4,), "float32"),
    }
    records = [b"".join(encoded({name: row[name]}) for name in order) for row, order in rows]
    out = read(records, features)
    for k, (row, _) in enumerate(rows):
        assert out["image"][k].tobytes() == row["image"]
        assert out["label"][k] == row["label"]
        assert out["name"][k] == row["name"]
        assert out["x"][k].tobytes() == row["x"].tobytes()


def test_numbers_that_are_not_packed_are_read():
    floats = np.array([1.5, -2, 3], "<f4")
    unpacked_floats = b"".join(field(1, each.tobytes(), wire=5) for each in floats)
    unpacked_integers = field(1, b"\x01", wire=0) + field(1, b"\xac\x02", wire=0) + field(1, b"\x05\x06")
    record = example(x=field(2, unpacked_floats), v=field(3, unpacked_integers))
    out = read([record] * 6, {"x": ps.ArraySpec((3,), "float32"), **INT64})
    assert out["x"].tolist() == [floats.tolist()] * 6
    assert [each.tolist() for each in out["v"]] == [[1, 300, 5, 6]] * 6


def test_fields_that_nobody_knows_are_passed_over():
    record = example(v=field(3, field(1, b"\x07") + field(9, b"?")) + field(8, b"12345678", wire=1))
    record = field(7, b"later", wire=2) + record + field(15, b"1234", wire=5)
    assert read([record], INT64)["v"][0].tolist() == [7]


def test_of_a_name_that_comes_twice_the_last_counts():
    record = encoded({"v": np.array([1])}) + encoded({"v": np.array([2, 3])})
    assert read([record] * 5, INT64)["v"][4].tolist() == [2, 3]


def test_missing_features_have_their_defaults():
    features = {
        "n": ps.ArraySpec((), "int64"),
        "x": ps.ArraySpec((2, 2), "float32"),
        "s": ps.ArraySpec((), "U"),
        "v": ps.ArraySpec((None,), "uint8"),
    }
    records = [encoded({"other": b""}), example(n=b"", s=b""), encoded({"n": np.int64(5), "s": "b"})]
    out = read(records, features, {"n": -1, "x": 0.5, "s": "ä", "v": np.zeros(0, "u1")})
    assert out["n"].tolist() == [-1, -1, 5]
    assert out["x"].tolist() == [[[0.5, 0.5], [0.5, 0.5]]] * 3
    assert out["s"].tolist() == ["ä", "ä", "b"]
    assert [each.shape for each in out["v"]] == [(0,)] * 3


GOOD = {
    "i": encoded({"a": np.arange(3)}),
    "f": encoded({"a": np.zeros(3, "f4")}),
    "b": encoded({"a": b"abc"}),
    "bb": encoded({"a": [b"a", b"b"]}),
}


@pytest.mark.parametrize(
    ("record", "spec", "text"),
    [
        ("i", ((2,), "int64"), r"feature 'a' has 3 values, and \(2,\) int64 has another size"),
        ("i", ((None, 2), "int64"), r"feature 'a' has 3 values, and \(None, 2\) int64 has another size"),
        ("i", ((3,), "int32"), r"feature 'a' is a int64_list, and \(3,\) int32 is another dtype\. Read int64, then"),
        ("i", ((), "U"), r"feature 'a' is a int64_list, and \(\) text is made of a bytes_list"),
        ("f", ((4,), "float32"), r"feature 'a' has 3 values, and \(4,\) float32 has another size"),
        ("f", ((3,), "float64"), r"feature 'a' is a float_list, and .* Read float32, then cast\(\)"),
        ("b", ((2, 2), "uint8"), r"feature 'a' has 3 values, and \(2, 2\) uint8 has another size"),
        ("b", ((None,), "int16"), r"feature 'a' buffer size must be a multiple of element size"),
        ("bb", ((2,), "uint8"), r"feature 'a' holds 2 byte strings, and \(2,\) uint8 is made of the bytes of one"),
        ("bb", ((), "S"), r"feature 'a' holds 2 byte strings, and \(\) bytes is 1"),
        ("bb", ((3,), "U"), r"feature 'a' holds 2 byte strings, and \(3,\) text is 3"),
    ],
)
def test_feature_that_is_not_what_its_spec_says_is_told(record, spec, text):
    shape, dtype = spec
    fitting = example(a=b"")  # absent, so that only the third is wrong
    default = "" if dtype in "US" and shape == () else None
    records = [fitting, fitting, GOOD[record]] if default is not None else [GOOD[record]]
    with pytest.raises(ps.SpecError, match=f"record {len(records) - 1}: {text}"):
        read(records, {"a": ps.ArraySpec(shape, dtype)}, None if default is None else {"a": default})


def test_feature_that_is_missing_is_told():
    with pytest.raises(ps.SpecError, match=r"record 1: feature 'z' is missing, and has no default"):
        read([encoded({"z": np.arange(1)}), GOOD["i"]], {"z": ps.ArraySpec((1,), "int64")})


def test_text_that_is_none_is_told():
    with pytest.raises(ps.SpecError, match=r"feature 'a' is not text in UTF-8 \(invalid start byte at byte 1\)"):
        read([encoded({"a": b"a\xff"})], {"a": ps.ArraySpec((), "U")})


@given(st.binary(max_size=40), st.integers(0, 60), st.sampled_from(sorted(GOOD)))
def test_nonsense_is_an_error_or_an_example_and_never_anything_else(noise, at, name):
    record = GOOD[name]
    at = min(at, len(record))
    with contextlib.suppress(ps.SourceError, ps.SpecError):
        read([record[:at] + noise + record[at + len(noise) :]], {"a": ps.ArraySpec((None,), "uint8")}, {"a": []})


def test_damage_is_told_apart_from_a_wrong_spec():
    cut = example(v=field(3, field(1, b"\x07\x80")))
    endless = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    for record in (b"\x0a\x7f", b"\x0b", endless, GOOD["i"][:-1], cut):
        with pytest.raises(ps.SourceError, match=r"record 0 is no tf\.train\.Example: .*Without features="):
            read([record], INT64)
