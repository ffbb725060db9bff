import os
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.base._retries import RetryBudget, reading_with
from penstock.plan._source import open_source
from penstock.testing import SourceTests

CONTENTS = {"cat/1.wav": b"meow", "cat/2.wav": b"", "dog/1.wav": b"woof" * 2000, "dog/3.wav": b"bark"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in CONTENTS.items():
        path = tmp_path / "words" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "words"


class TestFiles(SourceTests):
    @pytest.fixture(params=["plain", "labels", "remote"])
    def source(self, request, folder):
        if request.param == "remote":
            system = pytest.importorskip("fsspec").filesystem("memory")
            for name, content in CONTENTS.items():
                system.pipe(f"/files/{name}", content)
            return ps.from_files("memory://files/*/*.wav")._node.data
        return ps.from_files("words/*/*.wav", "inferred" if request.param == "labels" else None)._node.data

    @pytest.fixture
    def expected(self, source, folder):
        start = "memory:///files" if source.is_remote else str(folder)
        found = {
            "path": [f"{start}/{name}" for name in CONTENTS],
            "bytes": [np.frombuffer(content, np.uint8) for content in CONTENTS.values()],
        }
        return found if source.labels is None else {**found, "label": np.array([0, 0, 1, 1], np.int32)}


def labels_of(ds):
    return [label.item() if isinstance(label, np.generic) else label for label in (each["label"] for each in ds)]


@pytest.mark.usefixtures("leaves_nothing_behind")
def test_elements_are_paths_and_bytes(folder):
    ds = ps.from_files("words/*/*.wav")
    assert ds.element_spec == {"path": ps.ArraySpec((), "U"), "bytes": ps.ArraySpec((None,), "uint8")}
    assert [(each["path"], each["bytes"].tobytes()) for each in ds] == [
        (f"{folder}/{name}", content) for name, content in CONTENTS.items()
    ]
    assert len(ds) == 4
    assert ds[2]["bytes"].dtype == np.uint8
    assert ds[2]["bytes"].flags.writeable
    assert str(ds) == (
        "from_files(cat/1.wav and 3 more): 4 elements, {'path': () text, 'bytes': (None,) uint8}, random"
    )


def test_paths_of_a_list_keep_their_order_and_become_absolute(folder):
    ds = ps.from_files(["words/dog/3.wav", Path("words/./cat/1.wav")])
    assert [each["path"] for each in ds] == [f"{folder}/dog/3.wav", f"{folder}/cat/1.wav"]
    assert ds.file_paths == ["words/dog/3.wav", "words/cat/1.wav"]


def test_an_element_that_was_read_is_not_written_again(folder):
    opened = open_source(ps.from_files("words/*/*.wav")._node.data)
    out = {"path": np.empty(2, object), "bytes": np.empty(2, object)}
    opened.read_into(np.array([0, 3]), out)
    first = out["bytes"][0]
    opened.read_into(np.array([3, 0]), {name: np.empty(2, object) for name in out})
    assert first.tobytes() == b"meow"


def test_folders_are_classes(folder):
    ds = ps.from_files("words/*/*.wav", labels="inferred")
    assert ds.class_names == ["cat", "dog"]
    assert labels_of(ds) == [0, 0, 1, 1]
    assert ds.element_spec["label"] == ps.ArraySpec((), "int32")
    assert labels_of(ps.from_files("words/*/*.wav", "inferred", class_names=["dog", "cat"])) == [1, 1, 0, 0]
    with pytest.raises(ps.ArgumentError, match=r"^from_files\(\): the label 'cat' is none of the 1 class_names"):
        ps.from_files("words/*/*.wav", "inferred", class_names=["dog"])


@pytest.mark.parametrize("kind", ["ends", "relative", "absolute", "longest"])
def test_a_mapping_has_paths_or_their_ends(folder, kind):
    labels = {
        "ends": {"cat/1.wav": "a", "2.wav": "b", "dog/1.wav": "c", "3.wav": "d", "more.wav": "e"},
        "relative": {f"./words/{name}": letter for name, letter in zip(CONTENTS, "abcd", strict=True)},
        "absolute": {folder / name: letter for name, letter in zip(CONTENTS, "abcd", strict=True)},
        "longest": {"1.wav": "c", "cat/1.wav": "a", "2.wav": "b", "3.wav": "d"},
    }[kind]
    assert labels_of(ps.from_files("words/*/*.wav", labels)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("labels", "error", "text"),
    [
        (
            {"cat/1.wav": 1},
            ps.ArgumentError,
            r"no label for 3 of 4 files, such as .*/words/cat/2\.wav\. It has paths s",
        ),
        ({}, ps.ArgumentError, r"has no label for 4 of 4 files"),
        ({"at/1.wav": 1}, ps.ArgumentError, r"has no label for 4 of 4 files"),
        (
            {"1.wav": 1, "2.wav": 2, "3.wav": 3},
            ps.ArgumentError,
            r"has one label, of '1\.wav', for .*/cat/1\.wav and .*/dog/1\.wav\. Name their folders too\.",
        ),
        ({}, ps.ArgumentError, r"It is empty\. Its paths are whole paths, or their ends"),
        ({3: 1}, ps.ArgumentTypeError, r"has the key 3, and keys are paths"),
        ("folders", ps.ArgumentError, r"labels='folders'\): 'inferred', from the folders; the path of a CSV file"),
        ([1, 2], ps.ArgumentError, r"from_files\(\) got 4 files and 2 labels"),
        (lambda path: object(), ps.ArgumentTypeError, r"from_files\(labels=\.\.\.\) are Python objects"),
    ],
)
def test_labels_that_do_not_fit_are_refused(folder, labels, error, text):
    with pytest.raises(error, match=text):
        ps.from_files("words/*/*.wav", labels)


def test_class_names_without_labels_are_refused(folder):
    with pytest.raises(ps.ArgumentError, match=r"class_names=\.\.\.\) names labels, and there are none: labels='infe"):
        ps.from_files("words/*/*.wav", class_names=["cat"])


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("path,label\ncat/1.wav,3\n\ncat/2.wav,1\ndog/1.wav,4\n3.wav,1\nothers.wav,5\n", [3, 1, 4, 1]),
        (
            '\ufefffile,who\r\n1.wav,x\r\ncat/1.wav,Ann\r\n2.wav,Bob\r\n3.wav,"Li, Mo"\r\n',
            ["Ann", "Bob", "x", "Li, Mo"],
        ),
        ("file,hz,label\ncat/1.wav,0,007\n2.wav,1,008\n1.wav,1,1\n3.wav,1,2\n", ["007", "008", "1", "2"]),
        ("file,x\ncat/1.wav,.5\n2.wav,1\n1.wav,1e3\n3.wav,-2.\n", [0.5, 1, 1000, -2]),
        (
            f"file,id\ncat/1.wav,{2**60}\n2.wav,{2**60 + 1}\n1.wav,1\n3.wav,2\n",  # no float tells the first two apart
            [f"{2**60}", f"{2**60 + 1}", "1", "2"],
        ),
    ],
)
def test_a_table_has_paths_and_labels(folder, table, found):
    Path("labels.csv").write_text(table, newline="")
    assert labels_of(ps.from_files("words/*/*.wav", "labels.csv")) == found


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("", r"labels\.csv has the columns \[\]\. Paths are in the first one"),
        ("path\na\n", r"has the columns \['path'\]\."),
        ("path,hz,class\na,1,2\n", r"labels in the one with the name 'label', or in the second of two\. Rename it, or"),
        ("path,label\na,1\nb,1,2\n", r"labels\.csv line 3 has 3 fields, and 2 columns\."),
        ("path,label\na,1\na,2\n", r"labels\.csv line 3 has another label for 'a' than one before\."),
        ('path,label\na,"1\n', r"labels\.csv is no CSV file in UTF-8: unexpected end of data"),
        ("path,label\na,\udce9\n", r"labels\.csv is no CSV file in UTF-8: .*invalid continuation byte"),
    ],
)
def test_a_table_that_is_none_is_named(folder, table, text):
    Path("labels.csv").write_text(table, newline="", errors="surrogateescape")
    with pytest.raises(ps.SourceError, match=text):
        ps.from_files("words/*/*.wav", "labels.csv")


def test_a_table_without_a_label_for_a_file_is_named(folder):
    Path("labels.csv").write_text("path,label\ncat/1.wav,1\n")
    with pytest.raises(
        ps.ArgumentError, match=r"/labels\.csv has no label for 3 of 4 files, such as .*/cat/2\.wav\. It"
    ):
        ps.from_files("words/*/*.wav", "labels.csv")


def test_a_function_gets_absolute_paths(folder):
    ds = ps.from_files(["words/dog/3.wav"], labels=lambda path: [len(path), path.endswith("/words/dog/3.wav")])
    assert ds[0]["label"].tolist() == [len(f"{folder}/dog/3.wav"), 1]


def test_a_missing_file_is_named_at_its_read(folder):
    ds = ps.from_files(["words/dog/3.wav", "words/dog/4.wav"])
    assert ds[0]["bytes"].tobytes() == b"bark"
    with pytest.raises(ps.SourceError, match=r"words/dog/4\.wav \(element 1\) cannot be read: No such file"):
        ds[1]


def test_what_is_no_file_is_named_and_not_waited_for(folder):
    os.mkfifo("words/pipe")
    for name in ("pipe", "dog"):
        with pytest.raises(
            ps.SourceError, match=rf"words/{name} \(element 0\) is no file, but a folder, pipe or device"
        ):
            ps.from_files([f"words/{name}"])[0]


def test_a_file_that_takes_more_than_the_limit_is_refused_before_it_is_read(folder):
    with open("words/dog/1.wav", "wb") as file:
        file.truncate(300 << 20)
    ds = ps.from_files("words/*/*.wav")
    with (
        reading_with(RetryBudget(room_nbytes=64 << 20)),
        pytest.raises(
            ps.SourceError, match=r"dog/1\.wav \(element 2\) has 300 MiB, above the 64 MiB that memory_limit"
        ),
    ):
        ds[2]


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_bad_files_are_skipped_by_on_error(folder, caplog, executor):
    ds = ps.from_files([*(f"words/{name}" for name in CONTENTS), "words/gone.wav"])
    sizes = ds.map(lambda element: len(element["bytes"]))
    with sizes.batch(2).loader(executor, on_error="skip") as loader:
        assert [batch.tolist() for batch in loader] == [[4, 0], [8000, 4]]
    assert "words/gone.wav (element 4) cannot be read" in caplog.text


def test_an_error_of_decoding_names_the_file(folder):
    def decode(element):
        raise ValueError("no sound")

    with pytest.raises(ps.ElementError, match=r"words/dog/1\.wav"):
        ps.from_files("words/*/*.wav").map(decode, element_spec=ps.ArraySpec((), "int64"))[2]


def test_files_behind_urls(folder):
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for name, content in CONTENTS.items():
        system.pipe(f"/words/{name}", content)
    system.pipe("/labels.csv", b"path,label\ncat/1.wav,1\n2.wav,2\ndog/1.wav,3\n3.wav,4\n")
    ds = ps.from_files("memory://words/*/*.wav", "inferred")
    assert [(each["path"], each["bytes"].tobytes(), int(each["label"])) for each in ds] == [
        (f"memory:///words/{name}", content, number // 2) for number, (name, content) in enumerate(CONTENTS.items())
    ]
    assert ds[2]["bytes"].flags.writeable
    assert labels_of(ps.from_files("memory://words/*/*.wav", "memory://labels.csv")) == [1, 2, 3, 4]
    listed = ps.from_files(["memory://words/dog/3.wav", "memory://words/dog/1.wav"])
    assert [each["bytes"].tobytes() for each in listed] == [b"bark", b"woof" * 2000]
    with (
        reading_with(RetryBudget(room_nbytes=4000)),
        pytest.raises(
            ps.SourceError, match=r"dog/1\.wav \(element 1\) has 7\.8 KiB, above the 3\.9 KiB that memory_lim"
        ),
    ):
        listed[1]
    with pytest.raises(ps.SourceError, match=r"memory://words/gone\.wav cannot be read"):
        ps.from_files(["memory://words/gone.wav"])
    with pytest.raises(
        ps.ArgumentError, match=r"from_files\(\) got URLs, such as memory://words/?, and paths of this m"
    ):
        ps.from_files(["memory://words/gone.wav", "words/cat/1.wav"])


@pytest.mark.slow
def test_no_framework_and_no_image_library_is_imported(fresh_python):
    done = fresh_python("import sys, penstock; penstock.from_files; print(*sys.modules)")
    assert {"cv2", "torch", "tensorflow"}.isdisjoint(done.stdout.split())


def test_an_image_that_cannot_be_decoded_in_a_function_is_named(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no image")
    ds = ps.from_files(tmp_path / "*.jpg").map(
        lambda e: ps.image.decode(e["bytes"]), element_spec=ps.ArraySpec((8, 8, 3), "uint8")
    )
    with pytest.raises(
        ps.ElementError, match=r"failed on element 0 of epoch 0, made of .*a\.jpg: ImageError: no image"
    ):
        ds[0]


def test_names_that_cannot_be_printed_are_escaped_in_messages_and_whole_in_elements(tmp_path):
    path = tmp_path / "a\nb\x1b[31m?token=12345678.wav"
    path.write_bytes(b"x")
    ds = ps.from_files([str(path)])
    assert ds[0]["path"] == str(path)
    assert r"a\nb\x1b[31m" in repr(ds)
    with pytest.raises(ps.ArgumentError, match=r"such as [^\n\x1b]*a\\nb\\x1b"):
        ps.from_files([str(path)], labels={})
    path.unlink()
    with pytest.raises(ps.SourceError, match=r"a\\nb\\x1b[^\n\x1b]* \(element 0\) cannot be read"):
        ds[0]


def test_paths_and_labels_are_had_without_opening_files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.wav").write_bytes(b"x")
    ds = ps.from_files(f"{tmp_path}/*/*.wav", labels="inferred")
    (tmp_path / "a" / "1.wav").unlink()
    assert [element["path"][-7:] for element in ds.select("path")] == ["a/1.wav", "b/1.wav"]
    assert ds.select(["label"])[1] == {"label": 1}
    with pytest.raises(ps.SourceError, match=r"a/1\.wav \(element 0\) cannot be read"):
        ds.select("bytes")[0]
    with pytest.raises(ps.SourceError, match=r"is a directory\. Name the files in it, as by the pattern .*/\*'"):
        ps.from_files(tmp_path)
