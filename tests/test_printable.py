"""What is printed has no secrets and steers no terminal, whatever prints it."""

import gzip
import io
import json
import logging
import os
import pickle
import tarfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from penstock.base import _printable
from penstock.base._printable import printable
from penstock.commands import cli

SECRET = "S3CRETxyz"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:S3CRETxyz@h/x?X-Amz-Sig=S3CRETxyz&a=b: gone.", "https://***@h/x?X-Amz-Sig=***&a=***: gone."),
        ("https://S3CRETxyz@h/x", "https://***@h/x"),
        ("s3://KEY:S3/CRET+S3CRETxyz@bucket/x?.tar", "s3://***@bucket/x?.tar"),
        ("zip://a.csv::https://u:S3CRETxyz@h/x.zip?sig=S3CRETxyz", "zip://a.csv::https://***@h/x.zip?sig=***"),
        ("simplecache::s3://AK:S3CRETxyz@b/k", "simplecache::s3://***@b/k"),
        ("https://h/x?S3CRETxyz", "https://h/x?***"),
        ("https://h/x#access_token=S3CRETxyz", "https://h/x#***"),
        ("url='https://h/a?sig=S3CRETxyz')", "url='https://h/a?sig=***')"),
        ("(https://h/a?sig=S3CRETxyz)", "(https://h/a?sig=***)"),
        ("GET /a?X-Amz-Security-Token=S3CRETxyz&b=1 failed", "GET /a?X-Amz-Security-Token=***&b=1 failed"),
        ("<AWSAccessKeyId>S3CRETxyz</AWSAccessKeyId>", "<AWSAccessKeyId>***</AWSAccessKeyId>"),
        ("a\x1b[2J\x9b1mb\r\u202e.\n", "a\\x1b[2J\\x9b1mb\\r\\u202e.\\n"),
        ("http://h:8080/p@2x.png", "http://h:8080/p@2x.png"),
        ("s3://b/train-?.tar", "s3://b/train-?.tar"),
        ("日本.csv: 5 of a=b", "日本.csv: 5 of a=b"),
    ],
)  # fmt: skip
def test_a_text_is_printed_without_secrets(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
    assert printable("line\tone\nline two", has_lines=True) == "line\tone\nline two"


def test_errors_and_the_log_are_printable(caplog: pytest.LogCaptureFixture) -> None:
    error = ps.SourceError(f"https://h/x?sig={SECRET} is \x1b[31mgone.\nMend it.")
    error.add_note(f"See https://u:{SECRET}@h/.")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert str(each) == "https://h/x?sig=*** is \\x1b[31mgone.\nMend it."
        assert each.__notes__ == ["See https://***@h/."]
    assert isinstance(ps.ElementIndexError(f"https://u:{SECRET}@h"), IndexError)
    logging.getLogger("penstock").warning("%s is %s", f"https://u:{SECRET}@h/x", "a\x1bb")
    assert caplog.messages == ["https://***@h/x is a\\x1bb"]


def test_secret_options_are_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_printable, "_secrets", set())
    options = {"secret_access_key": SECRET, "region": "eu-west-1", "client_kwargs": {"auth": "S3CRETabc"}}
    with pytest.raises((ps.PenstockError, ImportError)):
        ps.from_tfrecord("nowhere://x/y", storage_options=options)
    assert str(ps.SourceError(f"bad key {SECRET} or S3CRETabc in eu-west-1")) == "bad key *** or *** in eu-west-1"


def test_of_a_secret_that_begins_with_another_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [SECRET + "0123456789"[:count] for count in range(10)]
    for given in (several, several[::-1]):
        monkeypatch.setattr(_printable, "_secrets", set())
        _printable.keep_secret({f"key{number}": secret for number, secret in enumerate(given)})
        assert [printable(f"bad {secret}") for secret in several] == ["bad ***"] * 10


class BasicAuth(NamedTuple):
    """As in aiohttp."""

    login: str
    password: str
    encoding: str = "latin1"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"token": "google_default"}, "/google_default/a of browser"),
        ({"token": "Browser"}, "/google_default/a of browser"),
        ({"config_kwargs": {"signature_version": "google"}}, "/google_default/a of browser"),
        ({"token": "google_"}, "/***default/a of browser"),
        ({"token": b"browser/4"}, "/google_default/a of browser"),
    ],
)
def test_a_known_word_is_no_secret(options: Any, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_printable, "_secrets", set())
    _printable.keep_secret(options)
    assert printable("/google_default/a of browser") == shown


@pytest.mark.parametrize(
    "options",
    [
        {"token": SECRET.encode()},
        {"auth": ("someone", SECRET)},
        {"auth": {"tokens": [["abcdefg"], [SECRET.encode()]]}},
        {"accounts": [{"name": "region", "key": SECRET}]},
        {"client_kwargs": {"auth": BasicAuth("region", SECRET)}},
        {"cookies": {SECRET, "abcdefg"}},
        {"secret": bytearray(SECRET, "ascii")},
    ],
    ids=["bytes", "a pair", "lists of a dict", "a dict of a list", "a named tuple", "a set", "a bytearray"],
)
def test_secret_options_of_any_form_are_in_no_text(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_printable, "_secrets", set())
    _printable.keep_secret(options)
    assert printable(f"{SECRET} in region of latin1, {SECRET.encode()!r}") == "*** in region of latin1, b'***'"


# Everything that takes URLs.


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(6):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    return out.getvalue()


def _npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(6))
    return out.getvalue()


def _png() -> bytes:
    cv2 = pytest.importorskip("cv2")
    return bytes(cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1])


def _arrow(kind: str) -> bytes:
    pa = pytest.importorskip("pyarrow")
    table, out = pa.table({"x": list(range(6))}), io.BytesIO()
    if kind == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, out)
    else:
        with pa.ipc.new_file(out, table.schema) as file:
            file.write_table(table)
    return out.getvalue()


def _tfrecord() -> bytes:
    pytest.importorskip("google_crc32c")
    ps.write_tfrecord("records", [b"abc"] * 6)
    return Path("records").read_bytes()


CSV = b"x,y\n" + b"1,2\n" * 6
CONTENTS: dict[str, tuple[Callable[[], bytes], str, dict[str, Any]]] = {
    "a.npy": (_npy, "from_npy", {}),
    "a.tfrecord": (_tfrecord, "from_tfrecord", {}),
    "a.tfrecord.gz": (lambda: gzip.compress(_tfrecord()), "from_tfrecord", {}),
    "a.tar": (_tar, "from_tar", {}),
    "a.parquet": (lambda: _arrow("parquet"), "from_parquet", {}),
    "a.arrow": (lambda: _arrow("arrow"), "from_arrow", {}),
    "a.jsonl": (lambda: b'{"x": 1}\n' * 6, "from_jsonl", {}),
    "a.csv": (lambda: CSV, "from_csv", {}),
    "a.csv.gz": (lambda: gzip.compress(CSV), "from_csv", {}),
    "a.txt": (lambda: b"abc\n" * 6, "from_text", {}),
    "a.wav": (lambda: b"abc", "from_files", {}),
    "a.png": (_png, "from_image_files", {"image_size": (4, 4)}),
}
FORMS = {
    "fsspec": f"http://user:{SECRET}@{{}}/{{}}?X-Amz-Signature={SECRET}&sig={SECRET}",
    "obstore": f"http://user:{SECRET}@{{}}/{{}}",
    "chained": f"simplecache::http://user:{SECRET}@{{}}/{{}}?token={SECRET}",
}


def boom(element: Any) -> Any:
    raise ValueError("it is odd")


class Said:
    """All that calls say: what they return, what they print, or the error with what led to it."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        out, found = io.StringIO(), None
        try:
            with redirect_stdout(out), redirect_stderr(out):
                found = call(*arguments, **options)
            self.texts += [repr(found), str(found)]
        except Exception as error:
            self.texts += traceback.format_exception(error)
            led: BaseException | None = error
            while led is not None:
                self.texts += [repr(led), str(led), repr(led.args), *getattr(led, "__notes__", [])]
                led = led.__cause__ or led.__context__
        self.texts.append(out.getvalue())
        return found


def texts_of(ds: ps.Dataset) -> list[Any]:
    return [ds, len(ds), ds.element_spec, ds[0], repr(ds._node.opens), ds._node.label]


def run(ds: ps.Dataset, **options: Any) -> list[str]:
    with ds.batch(2).loader("inline", **options) as loader:
        elements = [str(element) for element in loader]
        return [*elements, str(loader.report()), repr(loader), json.dumps(loader.get_state())]


def files_below(path: Path) -> Iterator[bytes]:
    for each in path.rglob("*"):
        yield os.fsencode(each)
        if each.is_file():
            yield each.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, "fsspec") for name in CONTENTS),
        *((name, "obstore") for name in ("a.npy", "a.csv.gz", "a.parquet", "a.png")),
        *((name, "chained") for name in ("a.csv", "a.png")),
    ],
)
def test_no_secret_of_a_url_is_printed_or_kept(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    from penstock.files import _remote
    from tests.servers import serving

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    content, constructor, options = CONTENTS[name]
    whole = content()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(_remote, "PAUSES_S", (0.001,) * 4)
    caplog.set_level(logging.DEBUG, "penstock")
    with serving() as server:
        url = FORMS[form].format(server.address, name)
        for path in (name, url.rpartition("/")[2]):
            server.files[path] = whole
        said = Said()
        where = {"cache": ps.DiskCache(tmp_path / "blocks", 1 << 30)} if form == "obstore" else {}

        def make() -> ps.Dataset:
            made: ps.Dataset = getattr(ps, constructor)(url, **where, **options)
            return made

        ds = said(make)
        assert ds is not None, said.texts
        failing = ds.map(boom, element_spec=ps.ArraySpec((), "int64"))
        said(texts_of, ds)
        said(run, ds)
        said(run, failing)
        said(run, failing, on_error="skip", quarantine="bad.jsonl")
        said(lambda: list(ps.replay("bad.jsonl", failing.batch(2))))
        said(ds.check, executors=())
        said(lambda: ds.cache(tmp_path / "cache")[0])
        said(cli.main, ["inspect", url])
        said(cli.main, ["inspect", "--json", url])
        assert Path("bad.jsonl").exists(), said.texts
        for verdict in (403, 503, "reset", "cut"):
            server.begin_with(lambda number, headers, verdict=verdict: verdict)
            said(make)
            server.begin_with(lambda number, headers, verdict=verdict: verdict if headers.get("Range") else None)
            said(lambda: make()[0])
        server.begin_with(lambda number, headers: None)
        server.answer_headers = {"ETag": '"2"'}
        said(lambda: ds[1])
        for path in server.files:
            server.files[path] = whole[:-2]
        said(lambda: list(make()))
        said(ps.repack, ps.range(3), url)
    texts = said.texts + caplog.messages
    assert "***" in "".join(texts)
    for text in texts:
        assert SECRET not in text
    for content_or_name in files_below(tmp_path):
        assert SECRET.encode() not in content_or_name


# Names.

EVIL = "a\x1b]0;owned\x07\x9b2J\nforged line"


@pytest.mark.parametrize("name", [name for name in CONTENTS if not name.endswith(".gz")])
def test_names_of_files_steer_no_terminal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG, "penstock")
    content, constructor, options = CONTENTS[name]
    path = f"{EVIL}.{name.rpartition('.')[2]}"
    Path(path).write_bytes(content())
    said = Said()
    ds = said(getattr(ps, constructor), path, **options)
    assert ds is not None, said.texts
    failing = ds.map(boom, element_spec=ps.ArraySpec((), "int64"))
    said(lambda: repr(ds))
    said(run, failing)
    said(run, failing, on_error="skip", quarantine="bad.jsonl")
    said(lambda: str(run(ds.cache(EVIL))[-3]))
    said(cli.main, ["inspect", path])
    Path(path).write_bytes(b"damage")
    said(lambda: ds[5])
    said(getattr(ps, constructor), path, **options)
    Path(path).unlink()
    said(getattr(ps, constructor), path, **options)
    for text in [*(text for text in said.texts if not text.startswith(("  File", "'"))), *caplog.messages]:
        if "OSError" not in text and "FileNotFoundError" not in text:  # errors of Python show names by repr
            assert "\x1b" not in text
            assert "\x9b" not in text
    assert "\\x1b" in "".join(said.texts)
    assert "\x1b" not in Path("bad.jsonl").read_text()
    assert "\nforged" not in repr(ds)


def test_names_in_files_steer_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = Said()
    Path("a.csv").write_text("x\x1b[2J,y\n1,2\n")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("0\x1b[2J.txt", "1.png\x1b[2J"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    Path("a.tar").write_bytes(out.getvalue())
    for make in (lambda: ps.from_csv("a.csv"), lambda: ps.from_tar("a.tar")):
        said(lambda make=make: texts_of(make()))
        said(lambda make=make: run(make().map(boom, element_spec=ps.ArraySpec((), "int64"))))
    said(lambda: ps.from_csv("a.csv").select("no"))
    said(lambda: ps.from_csv("a.csv").select("x\x1b[2J"))
    for path in ("a.csv", "a.tar"):
        said(cli.main, ["inspect", path])
    said(lambda: str(ps.from_csv("a.csv").element_spec))
    assert len(said.texts) > 10
    for text in said.texts:
        assert "\x1b" not in text
