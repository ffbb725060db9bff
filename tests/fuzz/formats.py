"""The formats that are fuzzed: sound files of each, how a user reads them, and what may come out."""

import contextlib
import csv
import gzip
import importlib.util
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.files import _diskcache
from penstock.files._diskcache import BlockName, CacheFolder
from tests.records.test_mds import written as write_mds

Rows = list[Any]
Make = Callable[[Path], object]
COUNT = 7
RNG = np.random.default_rng(0)
X = RNG.integers(-9, 9, (COUNT, 3)).astype("int16")
Y = np.arange(COUNT, dtype="float32") / 4
WORDS = ["", "a", "täxt", "three words here", "x" * 50, '"quoted", with', "end"]
RECORDS = [
    {"n": i, "f": i / 2, "s": WORDS[i], "b": i % 2 == 0, "l": list(range(i + 1)), "o": {"p": i, "q": WORDS[-i]}}
    for i in range(COUNT)
]


class OtherLibraryError(Exception):
    """The user's call of another library failed, before penstock saw anything."""


@contextlib.contextmanager
def other_library() -> Iterator[None]:
    """Marks such a call."""
    try:
        yield
    except Exception as error:
        raise OtherLibraryError from error


@dataclass
class Format:
    """A format.

    Args:
        seeds: Functions that write sound files into an empty folder, by name; each case damages the files of one.
        open: Makes the dataset of such a folder.
        read: Reads in place of `open`.
        files: The files that are damaged, as patterns below the folder.
        is_text: Whether words are exchanged.
        needs: Modules.
        mend: Makes checksums right again, so that damage comes further. `model` and `is_exact` do not hold then.
        model: What the files say, by other means than penstock. It raises an exception if they are not readable.
        is_exact: Every row that comes is one of the sound files', whatever the damage.
        has_names: Whether errors name the damaged file or its folder.
    """

    seeds: dict[str, Make]
    open: Callable[[Path], ps.Dataset] | None = None
    read: Callable[[Path], Rows] | None = None
    files: tuple[str, ...] = ("*",)
    is_text: bool = False
    needs: tuple[str, ...] = ()
    mend: Callable[[bytes], bytes] | None = None
    model: Callable[[Path], Rows] | None = None
    is_exact: bool = False
    has_names: bool = True

    @property
    def missing(self) -> list[str]:
        """The modules that are not there."""
        return [each for each in self.needs if importlib.util.find_spec(each) is None]


def only(folder: Path) -> Path:
    """The one visible file of a folder."""
    (file,) = folder.glob("[!.]*")
    return file


# ---------------------------------------------------------------------------------------------- arrays


def _npy(array: Any, version: tuple[int, int] | None = None) -> Make:
    def make(folder: Path) -> None:
        with open(folder / "array.npy", "wb") as file:
            np.lib.format.write_array(file, array, version)

    return make


def _load(folder: Path) -> Rows:
    # penstock reads a header of version 3.0 as one of 2.0, of which NumPy forgives more.
    data = only(folder).read_bytes().replace(b"NUMPY\3", b"NUMPY\2", 1)
    return list(np.load(io.BytesIO(data), allow_pickle=False))


_RECORD = np.dtype([("i", ">i4"), ("f", "f8", (2,)), ("s", "S3"), ("u", "U2")], align=True)
NPY = Format(
    {
        "C": _npy(X),
        "Fortran": _npy(np.asfortranarray(X)),
        "records": _npy(np.zeros(COUNT, _RECORD)),
        "text": _npy(np.array(WORDS)),
        "2.0": _npy(Y, (2, 0)),
        "3.0": _npy(Y, (3, 0)),
        "no rows": _npy(X[:0]),
    },
    lambda folder: ps.from_npy(only(folder)),
    model=_load,
)


def _hdf5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "pairs.h5", "w", libver="latest") as file:
        file["x"] = X
        file["group/y"] = Y


def _hdf5_chunks(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "pairs.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(2, 3), compression="gzip", fletcher32=True)


def _hdf5_text(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "pairs.h5", "w") as file:
        file["n"] = np.arange(COUNT)
        file.create_dataset("s", data=np.char.encode(WORDS))


HDF5 = Format(
    {"plain": _hdf5, "chunks": _hdf5_chunks, "text": _hdf5_text},
    lambda folder: ps.from_hdf5(only(folder)),
    needs=("h5py",),
)


def _zarr(version: int, **options: Any) -> Make:
    def make(folder: Path) -> None:
        import zarr

        made = zarr.create_array(
            str(folder / "array.zarr"), shape=X.shape, dtype=X.dtype, chunks=(2, 3), zarr_format=version, **options
        )
        made[...] = X

    return make


def _sparse() -> dict[str, Any]:
    places = [np.flatnonzero(row) for row in X]
    return {
        "indptr": np.cumsum([0, *map(len, places)]).astype("i4"),
        "indices": np.concatenate(places).astype("i4"),
        "data": X[X != 0],
    }


def _sparse_npz(folder: Path) -> None:
    np.savez(folder / "x.npz", **_sparse(), shape=X.shape, format=b"csr")


def _h5ad(**options: Any) -> Make:
    def make(folder: Path) -> None:
        import h5py

        with h5py.File(folder / "x.h5ad", "w") as file:
            for name, part in _sparse().items():
                file.create_dataset(f"X/{name}", data=part, **options)
            # Text of fixed size: where a heap of text is damaged, HDF5 itself can loop without an end.
            file["X"].attrs["encoding-type"], file["X"].attrs["shape"] = np.bytes_("csr_matrix"), X.shape
            file["obs/y"] = Y
            file["obs/kind/codes"], file["obs/kind/categories"] = np.arange(COUNT, dtype="i1") % 2, [b"a", b"b"]
            file["obs/kind"].attrs["encoding-type"] = np.bytes_("categorical")

    return make


SPARSE = Format({"archive": _sparse_npz}, lambda folder: ps.from_csr(only(folder)))
H5AD = Format(
    {
        "plain": _h5ad(),
        "chunks": _h5ad(chunks=(4,), maxshape=(None,)),
        "compressed": _h5ad(chunks=(4,), compression="gzip"),
    },
    lambda folder: ps.from_h5ad(only(folder), ["y", "kind"]),
    needs=("h5py",),
)

ZARR = Format(
    {"2": _zarr(2), "3": _zarr(3), "plain": _zarr(3, compressors=None)},
    lambda folder: ps.from_zarr(folder / "array.zarr"),
    files=("array.zarr/**/*", "array.zarr/.z*"),
    needs=("zarr",),
)


def _nifti(name: str, kind: str = "Nifti1Image") -> Make:
    def make(folder: Path) -> None:
        import nibabel

        for number in range(3):
            volume = np.arange(24, dtype="int16").reshape(2, 3, 4) + number
            getattr(nibabel, kind)(volume, np.eye(4)).to_filename(folder / name.format(number))

    return make


NIFTI = Format(
    {"1": _nifti("{}.nii"), "2": _nifti("{}.nii", "Nifti2Image"), "gzip": _nifti("{}.nii.gz")},
    lambda folder: ps.from_nifti(str(folder / "*.nii*"), affine=True),
    needs=("nibabel",),
)


def _netcdf(folder: Path) -> None:
    import xarray

    xarray.Dataset({"x": (("t", "y"), X)}).to_netcdf(folder / "x.nc", engine="scipy")


def _open_netcdf(folder: Path) -> ps.Dataset:
    import xarray

    with other_library():
        data = xarray.open_dataset(folder / "x.nc", engine="scipy")
        data.isel(t=[0]).load()
    return ps.from_xarray(data, "t")


def _sound(form: str) -> Make:
    def make(folder: Path) -> None:
        import soundfile

        soundfile.write(folder / f"a.{form.lower()}", np.sin(np.arange(900) / 9) / 2, 8000, format=form)

    return make


def _open_sound(folder: Path) -> ps.Dataset:
    from penstock import audio

    return ps.from_source([str(only(folder))]).map(audio.Decoding(mono=True))


SOUND = Format(
    {form: _sound(form) for form in ("WAV", "FLAC", "OGG", "AIFF", "MP3")},
    _open_sound,
    needs=("soundfile", "soxr", "scipy", "av"),
)

NETCDF = Format({"3": _netcdf}, _open_netcdf, needs=("xarray", "scipy"), has_names=False)

# ---------------------------------------------------------------------------------------------- records


def _crc(data: bytes) -> bytes:
    import google_crc32c

    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _tfrecord_of(records: list[bytes]) -> bytes:
    sizes = [struct.pack("<Q", len(each)) for each in records]
    pairs = zip(sizes, records, strict=True)
    return b"".join(size + _crc(size) + record + _crc(record) for size, record in pairs)


def _mend_tfrecord(data: bytes) -> bytes:
    result, at = bytearray(data), 0
    while at + 12 <= len(result):
        size = int.from_bytes(result[at : at + 8], "little")
        result[at + 8 : at + 12] = _crc(bytes(result[at : at + 8]))
        end = at + 12 + size
        if end + 4 > len(result):
            break
        result[end : end + 4] = _crc(bytes(result[at + 12 : end]))
        at = end + 4
    return bytes(result)


def _read_tfrecord(folder: Path) -> Rows:
    data, at, rows = only(folder).read_bytes(), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        record = data[at + 12 : at + 12 + size]
        assert data[at + 8 : at + 12] == _crc(data[at : at + 8])
        assert data[at + 12 + size : at + 16 + size] == _crc(record)
        rows.append(np.frombuffer(record, np.uint8))
        at += size + 16
    return rows


def _varint(number: int) -> bytes:
    result = b""
    while number > 127:
        result, number = result + bytes([number & 127 | 128]), number >> 7
    return result + bytes([number])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _example(number: int) -> bytes:
    values = {
        "x": _field(3, _field(1, b"".join(map(_varint, range(number))))),
        "f": _field(2, _field(1, struct.pack("<2f", number, 0.5))),
        "s": _field(1, _field(1, WORDS[number].encode())),
    }
    entries = [_field(1, _field(1, name.encode()) + _field(2, value)) for name, value in values.items()]
    return _field(1, b"".join(entries))


_FEATURES = {
    "x": ps.ArraySpec((None,), "int64"),
    "f": ps.ArraySpec((2,), "float32"),
    "s": ps.ArraySpec((), "U"),
}
TFRECORD = Format(
    {"records": lambda folder: (folder / "a.tfrecord").write_bytes(_tfrecord_of([w.encode() for w in WORDS]))},
    lambda folder: ps.from_tfrecord(only(folder)),
    needs=("google_crc32c",),
    mend=_mend_tfrecord,
    model=_read_tfrecord,
)
EXAMPLES = Format(
    {"examples": lambda folder: (folder / "a.tfrecord").write_bytes(_tfrecord_of(list(map(_example, range(4)))))},
    lambda folder: ps.from_tfrecord(only(folder), features=_FEATURES),
    needs=("google_crc32c",),
    mend=_mend_tfrecord,
)


def _tar_bytes(form: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for number in range(3):
            for ending, content in (("txt", WORDS[number].encode()), ("cls", b"%d" % number)):
                info = tarfile.TarInfo(f"{'d/' * (60 * (number == 2))}{number:03}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue().rstrip(b"\0") + bytes(1024)


def _mend_tar(data: bytes) -> bytes:
    result = bytearray(data)
    for at in range(0, len(result) - 511, 512):
        if result[at + 257 : at + 262] == b"ustar":
            block = result[at : at + 148] + b" " * 8 + result[at + 156 : at + 512]
            result[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    return bytes(result)


TAR = Format(
    {
        name: lambda folder, form=form: (folder / "a.tar").write_bytes(_tar_bytes(form))
        for name, form in (("pax", tarfile.PAX_FORMAT), ("gnu", tarfile.GNU_FORMAT))
    },
    lambda folder: ps.from_tar(only(folder)),
    mend=_mend_tar,
)


def _mend_gzip(data: bytes) -> bytes:
    """Compresses what can still be decompressed, so that checksum and size fit."""
    machine = zlib.decompressobj(31)
    try:
        content = machine.decompress(data, 1 << 16)
    except zlib.error:
        return data
    return gzip.compress(content, 1)


def _gzip(name: str, content: Callable[[], bytes]) -> Make:
    return lambda folder: (folder / name).write_bytes(gzip.compress(content(), 1, mtime=0))


GZIP = Format(
    {"text": _gzip("a.txt.gz", lambda: "\n".join(WORDS).encode())},
    lambda folder: ps.from_text(only(folder)),
    mend=_mend_gzip,
)
GZIP_TFRECORD = Format(
    {"records": _gzip("a.tfrecord.gz", lambda: _tfrecord_of([w.encode() for w in WORDS]))},
    lambda folder: ps.from_tfrecord(only(folder)),
    needs=("google_crc32c",),
    mend=_mend_gzip,
)

# ---------------------------------------------------------------------------------------------- tables


def _table() -> Any:
    import pyarrow as pa

    columns = {name: [record[name] for record in RECORDS] for name in RECORDS[0]}
    columns["null"] = [None if i == 3 else i for i in range(COUNT)]
    columns["vector"] = pa.array([[i, i] for i in range(COUNT)], pa.list_(pa.float32(), 2))
    columns["raw"] = pa.array([word.encode() for word in WORDS])
    columns["day"] = pa.array(range(COUNT), pa.date32())
    columns["kind"] = pa.array(WORDS).dictionary_encode()
    return pa.table(columns)


def _parquet(**options: Any) -> Make:
    def make(folder: Path) -> None:
        import pyarrow.parquet as pq

        pq.write_table(_table().select(options.pop("columns", ["n", "s", "l"])), folder / "a.parquet", **options)

    return make


PARQUET = Format(
    {
        "plain": _parquet(compression="none", use_dictionary=False),
        "dictionary": _parquet(columns=["kind", "s", "b"], compression="none"),
        "snappy": _parquet(columns=["n", "f", "s"], compression="snappy", row_group_size=3),
        "zstd": _parquet(columns=["l", "vector", "raw"], compression="zstd"),
        "nested": _parquet(columns=["o", "day"], compression="gzip", data_page_version="2.0"),
    },
    lambda folder: ps.from_parquet(only(folder), fill_null=0),
    needs=("pyarrow",),
)


def _arrow(kind: str, compression: str | None = None) -> Make:
    def make(folder: Path) -> None:
        import pyarrow as pa

        table = _table().select(["n", "s", "l", "o", "b"] if kind != "dictionary" else ["kind", "vector", "null"])
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(str(folder / "a.arrow"), table.schema, options=options) as out:
            out.write_table(table, max_chunksize=4)

    return make


ARROW = Format(
    {
        "plain": _arrow("file"),
        "dictionary": _arrow("dictionary"),
        "lz4": _arrow("file", "lz4"),
        "zstd": _arrow("dictionary", "zstd"),
    },
    lambda folder: ps.from_arrow(only(folder), fill_null=0),
    needs=("pyarrow",),
)


def _huggingface(folder: Path) -> None:
    import datasets

    rows = [{key: record[key] for key in ("n", "s", "l")} for record in RECORDS]
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")


def _open_huggingface(folder: Path) -> ps.Dataset:
    import datasets

    with other_library():
        saved = datasets.load_from_disk(folder / "saved")
    return ps.from_source(saved)


HUGGINGFACE = Format(
    {"saved": _huggingface}, _open_huggingface, files=("saved/*.arrow",), needs=("datasets", "pyarrow"), has_names=False
)


def _write(name: str, text: str) -> Make:
    return lambda folder: (folder / name).write_text(text, newline="")


_LINES = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS)
JSONL = Format(
    {
        "records": _write("a.jsonl", _LINES),
        "nulls": _write("a.jsonl", '{"a": null, "b": [1, null]}\n\n{"a": 1.5, "b": []}\n{"b": [2], "a": 1e-3}\n'),
        "nested": _write("a.jsonl", '{"l": [{"p": 1}, {"p": 2}], "o": {"i": {"j": [true]}}}\n' * 3),
    },
    lambda folder: ps.from_jsonl(only(folder), fill_null=0),
    is_text=True,
    needs=("pyarrow",),
)


GZIP_JSONL = Format(
    {"records": _gzip("a.jsonl.gz", _LINES.encode)},
    lambda folder: ps.from_jsonl(only(folder), fill_null=0),
    needs=("pyarrow",),
    mend=_mend_gzip,
)


def _csv_text(delimiter: str = ",", end: str = "\n") -> str:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerow(["n", "f", "s", "day"])
    writer.writerows([each["n"], each["f"], each["s"], f"2024-01-0{each['n'] + 1}"] for each in RECORDS)
    return out.getvalue()


CSV = Format(
    {"LF": _write("a.csv", _csv_text()), "CR LF": _write("a.csv", _csv_text(end="\r\n"))},
    lambda folder: ps.from_csv(only(folder), fill_null=0),
    is_text=True,
    needs=("pyarrow",),
)


def _read_text(folder: Path) -> Rows:
    text = only(folder).read_bytes().decode("utf-8-sig")
    lines = text.split("\n")
    return [np.str_(line.removesuffix("\r")) for line in (lines if lines[-1] else lines[:-1])]


TEXT = Format(
    {"words": _write("a.txt", "\n".join(WORDS)), "CR LF": _write("a.txt", "\r\n".join(WORDS))},
    lambda folder: ps.from_text(only(folder)),
    is_text=True,
    model=_read_text,
)

FILES = Format(
    {"words": _write("a.wav", "".join(WORDS))},
    lambda folder: ps.from_files(only(folder)).map(lambda element: element["bytes"]),
    model=lambda folder: [np.frombuffer(only(folder).read_bytes(), np.uint8)],
)


def _labels(folder: Path) -> None:
    for number in range(3):
        (folder / f".{number}.wav").write_bytes(b"%d" % number)
    (folder / "labels.csv").write_text("path,label\n" + "".join(f".{i}.wav,{WORDS[i]}\n" for i in range(3)))


LABELS = Format(
    {"csv": _labels},
    lambda folder: ps.from_files([folder / f".{i}.wav" for i in range(3)], labels=folder / "labels.csv"),
    files=("labels.csv",),
    is_text=True,
)


def _megatron(folder: Path) -> None:
    lengths, tokens = np.arange(COUNT, dtype="<i4"), np.arange(COUNT * (COUNT - 1) // 2, dtype="<u2")
    starts = (np.cumsum(lengths) - lengths).astype("<i8") * 2
    head = struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, COUNT, 2)
    documents = np.array([0, COUNT], "<i8")
    (folder / "c.idx").write_bytes(head + lengths.tobytes() + starts.tobytes() + documents.tobytes())
    tokens.tofile(folder / "c.bin")


MEGATRON = Format({"uint16": _megatron}, lambda folder: ps.from_megatron(folder / "c"))


def _mds(compression: str | None = None) -> Make:
    columns = {"n": "int", "s": "str", "a": "ndarray", "b": "ndarray:int16:3"}
    samples = [{"n": i, "s": WORDS[i], "a": Y[:i], "b": X[i]} for i in range(COUNT)]
    return lambda folder: write_mds(folder, columns, samples, compression)


def _arrayrecord(options: str) -> Make:
    def make(folder: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(str(folder / "a.array_record"), options)
        for word in WORDS:
            writer.write(word.encode())
        writer.close()

    return make


ARRAYRECORD = Format(
    {options: _arrayrecord(options) for options in ("group_size:1", "group_size:3,uncompressed", "transpose:true")},
    lambda folder: ps.from_arrayrecord(only(folder)),
    needs=("array_record",),
    is_exact=True,
)


def _video(ending: str, codec: str) -> Make:
    def make(folder: Path) -> None:
        from tests.films.test_videos import written as write_video

        write_video(folder / f"a.{ending}", 6, codec, gop=3)

    return make


VIDEO = Format(
    {"mp4": _video("mp4", "libx264"), "mpeg4": _video("mp4", "mpeg4"), "webm": _video("webm", "libvpx-vp9")},
    lambda folder: ps.from_videos(only(folder)),
    needs=("av",),
)


def _lerobot(folder: Path) -> None:
    from tests.films.test_lerobot import folder as write_folder

    write_folder(folder)


def _lance(folder: Path) -> None:
    import lance
    import pyarrow as pa

    table = pa.table({"n": Y, "s": WORDS, "v": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 3)})
    lance.write_dataset(table, str(folder / "a.lance"), max_rows_per_file=4)


LEROBOT = Format(
    {"version 3": _lerobot},
    ps.from_lerobot,
    files=("meta/**/*.*", "data/**/*.parquet", "videos/**/*.mp4"),
    needs=("av", "pyarrow"),
)
LEROBOT_INFO = Format(
    {"version 3": _lerobot}, ps.from_lerobot, files=("meta/info.json",), is_text=True, needs=("av", "pyarrow")
)
LANCE = Format(
    {"rows": _lance},
    lambda folder: ps.from_lance(folder / "a.lance"),
    files=("a.lance/**/*.*",),
    needs=("lance", "pyarrow"),
)
MDS = Format(
    {"raw": _mds(), "gzip": _mds("gz")},
    ps.from_mds,
    files=("shard*",),
    mend=_mend_gzip,
)
MDS_INDEX = Format({"raw": _mds(), "gzip": _mds("gz")}, ps.from_mds, files=("index.json",), is_text=True)

# ---------------------------------------------------------------------------------------------- images


def _image(ending: str, options: tuple[int, ...] = (), channels: int = 3) -> Make:
    def make(folder: Path) -> None:
        import cv2

        image = np.add.outer(np.arange(9), np.arange(12))[..., None] * np.arange(3, 3 + channels)
        found, data = cv2.imencode(ending, image.astype("uint8"), list(options))
        assert found
        (folder / f"a{ending}").write_bytes(data.tobytes())

    return make


def _mend_png(data: bytes) -> bytes:
    result, at = bytearray(data), 8
    while at + 12 <= len(result):
        end = at + 8 + int.from_bytes(result[at : at + 4], "big")
        if end + 4 > len(result):
            break
        result[end : end + 4] = zlib.crc32(result[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(result)


def _open_image(folder: Path) -> ps.Dataset:
    return ps.from_image_files([only(folder)])


def _open_resized(folder: Path) -> ps.Dataset:
    return ps.from_image_files([only(folder)], image_size=(5, 6), color_mode="grayscale")


def _images(ending: str, *variants: tuple[int, ...], mend: Any = None) -> Format:
    seeds = {f"{number}": _image(ending, options) for number, options in enumerate(variants or ((),))}
    if ending in {".png", ".webp"}:
        seeds["alpha"] = _image(ending, channels=4)
    return Format(seeds, _open_image, needs=("cv2",), mend=mend)


# IMWRITE_JPEG_PROGRESSIVE and IMWRITE_WEBP_QUALITY.
IMAGES = {
    "png": _images(".png", mend=_mend_png),
    "jpeg": _images(".jpg", (), (2, 1), (1, 20)),
    "webp": _images(".webp", (64, 80), (64, 101)),
    "gif": _images(".gif"),
    "bmp": _images(".bmp"),
    "tiff": _images(".tiff"),
}
IMAGES["jpeg, resized"] = Format({"0": _image(".jpg")}, _open_resized, needs=("cv2",))

# ---------------------------------------------------------------------------------------------- files of penstock

_TABLE = {"x": X, "y": Y}
_RAGGED = [(np.arange(i), word) for i, word in enumerate(WORDS)]
_RAGGED_SPEC = (ps.ArraySpec((None,), "int64"), ps.ArraySpec((), "U"))


def _plan(name: str) -> ps.Dataset:
    if name == "arrays":
        return ps.from_arrays(_TABLE)
    return ps.from_source(_RAGGED, element_spec=_RAGGED_SPEC)


def _forget(folder: Path) -> None:
    """Takes the tags from the marks of a cache, so that each element is compared with its checksum."""
    for file in folder.glob("kept/*/index.npy"):
        data = bytearray(file.read_bytes())
        head = 10 + int.from_bytes(data[8:10], "little")
        marks = np.frombuffer(data, "<u8", offset=head).reshape(COUNT, -1)
        marks[:, -1] &= ~np.uint64(0xFFFFFFFE)
        file.write_bytes(data)


def _cache(name: str) -> Make:
    def make(folder: Path) -> None:
        list(_plan(name).cache(folder / "kept", key=name))
        _forget(folder)

    return make


def _materialized(name: str) -> Make:
    def make(folder: Path) -> None:
        _plan(name).materialize(folder / "kept", key=name, executor="inline")
        _forget(folder)

    return make


def _open_kept(folder: Path) -> ps.Dataset:
    name = folder.name
    if name.startswith("stream"):
        return _stream().cache(folder / "kept", key=name)
    return _plan(name).cache(folder / "kept", key=name)


def _stream() -> ps.Dataset:
    return ps.from_generator(lambda: iter(_RAGGED), element_spec=_RAGGED_SPEC)


def _cached_stream(folder: Path) -> None:
    list(_stream().cache(folder / "kept", key="stream"))
    _forget(folder)


CACHE = Format(
    {"arrays": _cache("arrays"), "ragged": _cache("ragged"), "stream": _cached_stream},
    _open_kept,
    files=("kept/*/*",),
    is_exact=True,
)
MATERIALIZED = Format(
    {"arrays": _materialized("arrays"), "ragged": _materialized("ragged")},
    lambda folder: _plan(folder.name).materialize(folder / "kept", key=folder.name, executor="inline"),
    files=("kept/*/*",),
    is_exact=True,
)


def _indexed(make: Make, dataset: Callable[[Path], ps.Dataset]) -> Make:
    def run(folder: Path) -> None:
        make(folder)
        len(dataset(folder))

    return run


def _open_indexed(folder: Path) -> ps.Dataset:
    file = only(folder)
    return ps.from_tar(file) if file.suffix == ".tar" else ps.from_text(file)


INDEX = Format(
    {
        "tar": _indexed(TAR.seeds["pax"], _open_indexed),
        "text": _indexed(TEXT.seeds["words"], _open_indexed),
    },
    _open_indexed,
    files=(".*.index",),
    is_exact=True,
)
CONTENT = Format(
    {"text": _indexed(GZIP.seeds["text"], lambda folder: ps.from_text(only(folder)))},
    lambda folder: ps.from_text(only(folder)),
    files=(".*.content", ".*.index"),
    is_exact=True,
)

_BLOCKS = {BlockName("f" * 16, "a" * 32, i * 100, i * 100 + 99): bytes([i + 1]) * 99 for i in range(3)}


def _disk_cache(folder: Path) -> None:
    cache = CacheFolder(str(folder))
    cache._boot = bytes(8)  # so that each block is compared with its checksum
    for name, data in _BLOCKS.items():
        assert cache.reserve(_diskcache.disk_nbytes(name), 1 << 30)
        assert cache.store(name, data)


def _read_disk_cache(folder: Path) -> Rows:
    cache, rows = CacheFolder(str(folder)), []
    cache.blocks({"f" * 16})
    cache.reserve(4096, 1 << 20)
    for name in _BLOCKS:
        memory = bytearray(99)
        if cache.read(name, [(0, memoryview(memory)[:50]), (50, memoryview(memory)[50:])]):
            rows.append(np.frombuffer(memory, np.uint8))
    return rows


DISK_CACHE = Format(
    {"blocks": _disk_cache}, read=_read_disk_cache, files=("penstock-blocks-*/**/*",), is_exact=True, has_names=False
)


def _fails(number: Any) -> Any:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def _quarantine(folder: Path) -> None:
    failing = ps.range(COUNT).map(_fails, element_spec=ps.ArraySpec((), "int64")).batch(2)
    with failing.loader("inline", on_error="skip", quarantine=folder / "bad.jsonl") as loader:
        list(loader)


def _replay(folder: Path) -> Rows:
    failing = ps.range(COUNT).map(_fails, element_spec=ps.ArraySpec((), "int64")).batch(2)
    return [str(each.error) for each in ps.replay(folder / "bad.jsonl", failing)]


QUARANTINE = Format({"lines": _quarantine}, read=_replay, is_text=True)


def _state(folder: Path) -> None:
    with ps.range(COUNT).shuffle(1).batch(2).loader("inline") as loader:
        next(iter(loader))
        (folder / "state.json").write_text(json.dumps(loader.get_state()))


def _resume(folder: Path) -> Rows:
    try:
        state = json.loads((folder / "state.json").read_bytes())
    except (ValueError, RecursionError):  # is the user's
        return []
    with ps.range(COUNT).shuffle(1).batch(2).loader("inline") as loader:
        loader.set_state(state)
        return [int(value) for batch in loader for value in batch]


STATE = Format({"state": _state}, read=_resume, is_text=True, has_names=False)

FORMATS: dict[str, Format] = {
    "npy": NPY,
    "hdf5": HDF5,
    "zarr": ZARR,
    "sparse": SPARSE,
    "h5ad": H5AD,
    "nifti": NIFTI,
    "netcdf": NETCDF,
    "sound": SOUND,
    "tfrecord": TFRECORD,
    "examples": EXAMPLES,
    "tar": TAR,
    "gzip": GZIP,
    "gzip, tfrecord": GZIP_TFRECORD,
    "gzip, jsonl": GZIP_JSONL,
    "parquet": PARQUET,
    "arrow": ARROW,
    "huggingface": HUGGINGFACE,
    "jsonl": JSONL,
    "csv": CSV,
    "text": TEXT,
    "files": FILES,
    "labels": LABELS,
    "megatron": MEGATRON,
    "arrayrecord": ARRAYRECORD,
    "video": VIDEO,
    "lerobot": LEROBOT,
    "lerobot, info": LEROBOT_INFO,
    "lance": LANCE,
    "mds": MDS,
    "mds, index": MDS_INDEX,
    **IMAGES,
    "cache": CACHE,
    "materialized": MATERIALIZED,
    "index": INDEX,
    "content": CONTENT,
    "disk cache": DISK_CACHE,
    "quarantine": QUARANTINE,
    "state": STATE,
}
