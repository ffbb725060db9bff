import contextlib
import itertools
import re
import struct
import threading
from fractions import Fraction

import av
import numpy as np
import pytest

import penstock as ps
import penstock.films.videos
from penstock.files._fetch import MEMORY_COUNT
from penstock.films._ahead import FAR, Ahead
from penstock.plan._source import Read
from penstock.testing import SourceTests, assert_resumes_exactly

HEIGHT, WIDTH, COUNT = 48, 64, 20
KINDS = [
    ("mp4", "libx264"), ("mp4", "mpeg4"), ("mp4", "libx265"), ("mp4", "libsvtav1"), ("mov", "libx264"),
    ("mkv", "libx264"), ("webm", "libvpx-vp9"), ("ts", "libx264"), ("mpg", "mpeg2video"), ("avi", "mpeg4"),
    ("flv", "libx264"), ("avi", "libx264"), ("avi", "mpeg2video"), ("mkv", "ffv1"), ("3gp", "h263"), ("asf", "wmv2"),
    ("vob", "mpeg1video"),
]  # fmt: skip

SIZES = {"h263": (96, 128)}
"""Codecs that have few."""
RATES = {"mpeg1video": 25}


def written(
    path,
    count=COUNT,
    codec="libx264",
    size=(HEIGHT, WIDTH),
    gop=6,
    first=0,
    rate=10,
    pix_fmt="yuv420p",
    change=None,
    **options,
):
    """Writes a film in which each frame is unlike each other; with B-frames, if the codec has some.

    `change` is called with the number of each packet and the packet, before it is written.
    """
    height, width = size
    picture = np.cumsum(np.random.default_rng(first).integers(0, 3, (height, width, 3)), 0).astype(np.uint8)
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=rate, width=width, height=height, pix_fmt=pix_fmt)
        stream.codec_context.gop_size = gop
        stream.options = {"threads": "1", "x265-params": "log-level=none", **options}
        images = (np.roll(picture, 3 * number, 0) + np.uint8(first + number) for number in range(count))
        frames = (av.VideoFrame.from_ndarray(image, format="rgb24") for image in images)
        packets = (packet for frame in itertools.chain(frames, [None]) for packet in stream.encode(frame))
        for number, packet in enumerate(packets):
            if change is not None:
                change(number, packet)
            file.mux(packet)
    return path


def decoded(path):
    """All frames, from the first on, by PyAV alone."""
    with av.open(str(path)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


class TestVideos(SourceTests):
    max_pickle_nbytes = 3_000

    @pytest.fixture
    def source(self, tmp_path):
        for number in range(3):
            written(tmp_path / f"{number}.mp4", 7, first=40 * number, gop=3)
        return ps.from_videos(tmp_path / "*.mp4")._node.data

    @pytest.fixture
    def expected(self, source):
        frames = [decoded(file.url) for file in source.files]
        return {
            "frame": np.concatenate(frames),
            "time": np.concatenate([np.arange(7) / 10] * 3),
            "video": np.repeat(np.arange(3), 7),
        }


@pytest.mark.parametrize(("ending", "codec"), KINDS)
def test_a_frame_is_the_same_wherever_reading_begins(ending, codec, tmp_path):
    size, rate = SIZES.get(codec, (HEIGHT, WIDTH)), RATES.get(codec, 10)
    path = written(tmp_path / f"a.{ending}", codec=codec, size=size, rate=rate)
    frames, source = decoded(path), ps.from_videos(path)._node.data
    assert len(source) == len(frames) == COUNT
    for order in (np.arange(COUNT), np.arange(COUNT)[::-1], np.random.default_rng(1).integers(0, COUNT, 60)):
        out = np.zeros((len(order), *frames.shape[1:]), np.uint8)
        opened = source.selected(["frame"]).open()
        for begin in range(0, len(order), 7):
            some = slice(begin, min(begin + 7, len(order)))
            opened.gather([Read(order[some], (out,), some, ())])
        opened.close()
        assert (out == frames[order]).all()


@pytest.mark.parametrize(
    "options", [{"x264-params": "open-gop=1:bframes=3:keyint=6:min-keyint=6:scenecut=0"}, {"bf": "0"}]
)
def test_frames_of_open_groups_are_decoded_from_the_key_frame_before_them(options, tmp_path):
    path = written(tmp_path / "a.mp4", count=30, **options)
    frames, ds = decoded(path), ps.from_videos(path)
    assert all((ds[i]["frame"] == frames[i]).all() for i in (29, 11, 12, 5, 6, 7, 0, 17, 18))


def assert_reads_as_pyav(path):
    """Asserts that each frame is that of PyAV, from the first to the last, whichever was read before. Returns them."""
    frames, ds = decoded(path), ps.from_videos(path)
    assert len(ds) == len(frames)
    opened = ds._node.data.selected(["frame"]).open()
    for place in np.random.default_rng(1).permutation(len(frames)):
        out = np.zeros((1, *frames.shape[1:]), np.uint8)
        opened.gather([Read(np.array([place]), (out,), slice(0, 1), ())])
        assert (out[0] == frames[place]).all()
    opened.close()
    return frames


def test_frames_of_a_container_that_does_not_say_the_time_of_each_are_told_apart(tmp_path):
    assert_reads_as_pyav(written(tmp_path / "a.mpg", 40, "mpeg1video", (64, 96), gop=8, rate=25))


def test_key_frames_of_a_container_that_are_none_change_no_frame(tmp_path):
    def every(number, packet):
        packet.is_keyframe = True

    def some(number, packet):
        packet.is_keyframe |= number % 4 == 2

    def one(number, packet):
        packet.is_keyframe |= number == 14

    kinds = [("h263", "3gp"), ("mpeg4", "mov"), ("flv", "flv"), ("ffv1", "mp4"), ("libx264", "mp4")]
    for (codec, ending), change in itertools.product(kinds, (every, some, one)):
        path, size = tmp_path / f"{codec}-{change.__name__}.{ending}", SIZES.get(codec, (HEIGHT, WIDTH))
        frames = assert_reads_as_pyav(written(path, 30, codec, size, change=change))
        with ps.from_videos(path).shuffle(seed=1).batch(8).loader(executor="inline") as loader:
            found = np.concatenate([batch["frame"] for batch in loader])
        assert (found == frames[[int(i) for i in ps.range(30).shuffle(seed=1)]]).all()


@pytest.mark.parametrize(
    ("codec", "ending", "form"),
    [
        ("qtrle", "mov", "rgb24"), ("svq1", "mov", "yuv410p"), ("cfhd", "mov", "yuv422p10le"),
        ("rpza", "mov", "rgb555le"), ("flashsv2", "flv", "bgr24"),
        ("cinepak", "mov", "rgb24"),
    ],
)  # fmt: skip
def test_films_whose_decoder_names_no_key_frame_are_decoded_from_the_beginning(codec, ending, form, tmp_path):
    path = written(tmp_path / f"a.{ending}", 40, codec, (144, 192), gop=4, pix_fmt=form)
    frames, opened = decoded(path), ps.from_videos(path)._node.data.selected(["frame"]).open()
    for place in (37, 21, 2, 30):
        out = np.zeros((1, *frames.shape[1:]), np.uint8)
        opened.gather([Read(np.array([place]), (out,), slice(0, 1), ())])
        assert (out[0] == frames[place]).all()
    opened.close()


@pytest.mark.parametrize(
    ("codec", "ending", "options"),
    [
        ("mpeg4", "mov", {}), ("mpeg4", "mov", {"bf": "2"}), ("h263", "3gp", {}),
        ("flv", "flv", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("marked", [(3,), (3, 9), (8, 16), (4, 8), (5, 16, 17)])
def test_a_film_whose_first_packet_is_not_marked_begins_with_it(codec, ending, options, marked, tmp_path):
    def only(number, packet):
        packet.is_keyframe = number in marked

    size = SIZES.get(codec, (HEIGHT, WIDTH))
    path = written(tmp_path / f"a.{ending}", 24, codec, size, gop=8, change=only, **options)
    with av.open(str(path)) as file:
        assert not next(file.demux(video=0)).is_keyframe
    assert len(assert_reads_as_pyav(path)) == 24


def test_a_film_whose_key_frames_are_all_claimed_is_decoded_at_once_for_later_batches(tmp_path, decodings):
    def every(number, packet):
        packet.is_keyframe = True

    path = written(tmp_path / "a.3gp", 30, "h263", SIZES["h263"], change=every)
    with ps.from_videos(path).shuffle(seed=1).batch(6).loader(executor="inline") as loader:
        assert sum(len(batch["frame"]) for batch in loader) == 30
    assert len(decodings) == 30


def test_a_film_that_refreshes_a_part_of_each_frame_is_decoded_from_its_first_one(tmp_path):
    params = {"x264-params": "intra-refresh=1:bframes=0:keyint=10:scenecut=0"}
    for ending in ("mp4", "mkv", "ts"):
        assert_reads_as_pyav(written(tmp_path / f"a.{ending}", 40, size=(144, 176), gop=10, **params))


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "libx265"])
def test_frames_whose_container_has_the_times_of_packets_are_counted(codec, ending, tmp_path):
    def numbered(number, packet):
        packet.pts = packet.dts = round(number / 10 / packet.time_base)

    path = written(tmp_path / f"a.{ending}", 30, codec, bf="2", change=numbered)
    assert_reads_as_pyav(path)
    assert [float(e["time"]) for e in ps.from_videos(path)] == pytest.approx(np.arange(30) / 10)


def test_frames_of_two_in_one_packet_of_an_avi_are_counted(tmp_path):
    """As DivX packs them: a B-frame stands behind the frame that it needs, and an empty packet follows."""
    path = tmp_path / "a.avi"
    encoder = av.CodecContext.create("mpeg4", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = WIDTH, HEIGHT, "yuv420p", Fraction(1, 10)
    encoder.options = {"bf": "1", "b_strategy": "0", "sc_threshold": "1000000000", "threads": "1", "g": "12"}
    packets = []
    for number in range(30):
        image = np.full((HEIGHT, WIDTH, 3), 8 * number, np.uint8)
        packets += encoder.encode(av.VideoFrame.from_ndarray(image, format="rgb24"))
    packets += encoder.encode()
    contents = [bytes(packet).replace(b"Lavc62.28.102", b"DivX503b1393p") for packet in packets]
    kinds = [content[content.index(b"\0\0\1\xb6") + 4] >> 6 for content in contents]  # 2 for B
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=10, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
        for number, (content, kind) in enumerate(zip(contents, kinds, strict=True)):
            follows = number + 1 < len(kinds) and kinds[number + 1] == 2
            packet = av.Packet(b"\x7f" if kind == 2 else content + contents[number + 1] if follows else content)
            packet.pts = packet.dts = number
            packet.time_base, packet.stream, packet.is_keyframe = Fraction(1, 10), stream, kind == 0
            file.mux(packet)
    assert kinds.count(2) > 10
    assert len(assert_reads_as_pyav(path)) == 30


def test_numbers_of_a_palette_get_their_colours_after_a_seek(tmp_path):
    path = tmp_path / "a.mov"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("qtrle", rate=10, width=WIDTH, height=HEIGHT, pix_fmt="gray")
        stream.codec_context.gop_size = 4
        for number in range(12):
            image = np.full((HEIGHT, WIDTH), 100 + 9 * number, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="gray")))
        file.mux(stream.encode())
    assert ps.from_videos(path)[11]["frame"].min() == 199
    assert_reads_as_pyav(path)


@pytest.mark.parametrize("ending", ["ts", "mkv"])
def test_frames_before_the_first_key_frame_of_a_part_of_a_film_are_left_out(ending, tmp_path):
    path = written(tmp_path / "a.ts", 30, "mpeg2video", (64, 96), bf="2")
    if ending == "ts":
        content = path.read_bytes()
        path.write_bytes(content[: 3 * 188] + content[len(content) // 188 // 3 * 188 :])
    else:
        with av.open(str(path)) as whole, av.open(str(tmp_path / "a.mkv"), "w") as part:
            stream = part.add_stream_from_template(whole.streams.video[0])
            packets = [packet for packet in whole.demux(video=0) if packet.size]
            second = [number for number, packet in enumerate(packets) if packet.is_keyframe][1]
            for packet in packets[second:]:
                packet.stream = stream
                part.mux(packet)
        path = tmp_path / "a.mkv"
    assert 10 < len(assert_reads_as_pyav(path)) < 30


def boxes(content, begin=0, end=None, path=b""):
    """The boxes of an MP4, by their paths: where they begin, and their sizes."""
    found, end = {}, len(content) if end is None else end
    while begin < end:
        size, name = int.from_bytes(content[begin : begin + 4], "big"), content[begin + 4 : begin + 8]
        found[path + name] = begin, size
        if name in (b"moov", b"trak", b"edts"):
            found |= boxes(content, begin + 8, begin + size, path + name + b".")
        begin += size
    return found


def with_boxes(path, change):
    """Changes the boxes in the head of an MP4 that lies behind its frames: `change` gives new content for some."""
    content = path.read_bytes()
    found = boxes(content)
    for name, new in sorted(change(content, found).items(), key=lambda each: -found[each[0]][0]):
        begin, size = found[name]
        content = content[:begin] + new + content[begin + size :]
        for depth in range(1, name.count(b".") + 1):
            at, nbytes = found[name.rsplit(b".", depth)[0]]
            content = content[:at] + struct.pack(">I", nbytes + len(new) - size) + content[at + 4 :]
            found[name.rsplit(b".", depth)[0]] = at, nbytes + len(new) - size
    path.write_bytes(content)


@pytest.mark.parametrize("spans", [[(13, 6)], [(4, 20)], [(0, 8)], [(0, 6), (18, 6)]])
def test_a_film_of_which_an_edit_list_shows_a_part_is_whole(spans, tmp_path):
    path = written(tmp_path / "a.mp4", 24, bf="2")  # 1,024 units a frame, from 2,048 on; 100 ms
    edits = [struct.pack(">Iii", 100 * count, 2048 + 1024 * first, 0x10000) for first, count in spans]
    new = struct.pack(">I4sII", 16 + 12 * len(edits), b"elst", 0, len(edits)) + b"".join(edits)
    with_boxes(path, lambda content, found: {b"moov.trak.edts.elst": new})
    assert len(assert_reads_as_pyav(path)) == sum(count for _, count in spans)
    begin, size = boxes(path.read_bytes())[b"mdat"]
    path.write_bytes(path.read_bytes()[: begin + size // 2] + bytes(16) + path.read_bytes()[begin + size :])
    with pytest.raises(ps.SourceError, match=r"a\.mp4"):
        len(ps.from_videos(path))


def test_a_cover_before_the_pictures_is_passed_over(tmp_path):
    path = written(tmp_path / "a.mp4", 4)
    with av.open(str(path)) as whole, av.open(str(tmp_path / "b.mp4"), "w") as file:
        film = file.add_stream_from_template(whole.streams.video[0])
        cover = file.add_stream("mjpeg", width=16, height=16, pix_fmt="yuvj420p")
        cover.disposition = av.stream.Disposition.attached_pic.value
        image = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        image.pts = 0
        file.mux([*cover.encode(image), *cover.encode()])
        for packet in whole.demux(video=0):
            packet.stream = film
            if packet.size:
                file.mux(packet)

    def first(content, found):
        (trak, size), (udta, nbytes) = found[b"moov.trak"], found[b"moov.udta"]
        return {b"moov.trak": content[udta : udta + nbytes] + content[trak : trak + size], b"moov.udta": b""}

    with_boxes(tmp_path / "b.mp4", first)
    with av.open(str(tmp_path / "b.mp4")) as file:
        assert file.streams.video[0].disposition & av.stream.Disposition.attached_pic
    assert (ps.from_videos(tmp_path / "b.mp4")[3]["frame"] == decoded(path)[3]).all()


def streams_of_two(path, order):
    """Writes a small film of 2 frames and a larger one of 20 into one file, in an order."""
    with av.open(str(path), "w") as file:
        streams = {}
        for kind in order:
            size = (
                {"width": WIDTH // 2, "height": HEIGHT // 2} if kind == "small" else {"width": WIDTH, "height": HEIGHT}
            )
            streams[kind] = file.add_stream("libx264", rate=10, pix_fmt="yuv420p", **size)
            streams[kind].options = {"threads": "1"}
        for kind, stream in streams.items():
            for number in range(2 if kind == "small" else COUNT):
                image = np.full((stream.height, stream.width, 3), 9 * number, np.uint8)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            file.mux(stream.encode())
    return path


@pytest.mark.parametrize("order", [("small", "large"), ("large", "small")])
def test_of_several_streams_of_pictures_the_best_is_read_or_the_one_that_is_asked_for(order, tmp_path, caplog):
    path = streams_of_two(tmp_path / "a.mkv", order)
    number, other = order.index("large"), order.index("small")
    ds = ps.from_videos([path, path])
    assert (len(ds), ds[0]["frame"].shape) == (2 * COUNT, (HEIGHT, WIDTH, 3))
    (record,) = caplog.records
    assert f"2 streams of pictures, and from_videos() reads number {number}, which FFmpeg" in record.message
    assert "2 of 2 files have several" in record.message
    small, large = (ps.from_videos(path, stream=each) for each in (other, number))
    assert [len(small), len(large), small[1]["frame"].shape] == [2, COUNT, (HEIGHT // 2, WIDTH // 2, 3)]
    assert (large[COUNT - 1]["frame"] == ds[COUNT - 1]["frame"]).all()
    assert len(caplog.records) == 1


def test_a_stream_that_is_not_there_is_an_error(tmp_path):
    path = written(tmp_path / "a.mp4", 3)
    assert len(ps.from_videos(path, stream=0)) == 3
    for number in (1, -1):
        with pytest.raises(ps.ArgumentError, match=rf"a\.mp4 has 1 streams of pictures, .* no stream={number}"):
            ps.from_videos(path, stream=number)
    with pytest.raises(ps.ArgumentTypeError, match=r"stream is 'v', a str\. It is a number from 0 on"):
        ps.from_videos(path, stream="v")


def measured(path, codec, form, count=5):
    """Writes a film of one channel of more than 8 bits. Returns its values."""
    bits = int(re.findall(r"\d+", form)[0])
    values = np.random.default_rng(0).integers(0, 2**bits, (count, HEIGHT, WIDTH + 6)).astype(np.uint16)
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=10, width=WIDTH + 6, height=HEIGHT, pix_fmt=form)
        stream.options = {"x265-params": "lossless=1:log-level=none", "qp": "0"}
        for each in values:
            frame = av.VideoFrame(WIDTH + 6, HEIGHT, form)
            rows = np.frombuffer(frame.planes[0], ">u2" if form.endswith("be") else "<u2").reshape(HEIGHT, -1)
            rows[:, : WIDTH + 6] = each
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return values


@pytest.mark.parametrize(
    ("codec", "form", "ending"),
    [
        ("libx265", "gray10le", "mp4"), ("libx265", "gray12le", "mp4"), ("ffv1", "gray9le", "mkv"),
        ("ffv1", "gray16le", "mkv"), ("png", "gray16be", "mov"),
    ],
)  # fmt: skip
def test_films_of_one_channel_above_8_bits_have_the_values_of_the_file(codec, form, ending, tmp_path, monkeypatch):
    path, kept = tmp_path / f"a.{ending}", []
    put = penstock.films.videos._FrameCache.put
    monkeypatch.setattr(
        penstock.films.videos._FrameCache, "put", lambda *of: kept.append(of[2].dtype.isnative) or put(*of)
    )
    values, ds = measured(path, codec, form), ps.from_videos(path)
    assert str(ds.element_spec["frame"]) == str(ps.ArraySpec((HEIGHT, WIDTH + 6, 1), np.uint16))
    assert all((ds[number]["frame"][..., 0] == values[number]).all() for number in (4, 0, 2, 3, 1))
    for executor in ("inline", "threads"):
        with ds.shuffle(seed=1).batch(2).loader(executor=executor) as loader:
            found = np.concatenate([batch["frame"] for batch in loader])
        assert (found[..., 0] == values[[int(i) for i in ps.range(5).shuffle(seed=1)]]).all()
    assert set(kept) == {True}  # what is kept is copied as bytes
    small = ps.from_videos(path, size=(HEIGHT // 3, (WIDTH + 6) * 2))[0]["frame"][..., 0]
    assert (small == values[0][1::3].repeat(2, 1)).all()


def test_colours_of_10_bits_become_8_and_stand_in_no_dataset_with_values(tmp_path):
    other = tmp_path / "b.mkv"
    for codec, form in (("libx265", "yuv420p10le"), ("ffv1", "yuv444p16le")):
        path = written(tmp_path / "a.mkv", codec=codec, pix_fmt=form)
        assert assert_reads_as_pyav(path).dtype == np.uint8
    measured(other, "ffv1", "gray16le")
    with pytest.raises(ps.ArgumentError, match=r"b\.mkv are gray16le, and those of .*a\.mkv colours\. Make a dataset"):
        ps.from_videos([path, other], size=(8, 8))


def test_frames_that_were_dropped_from_an_avi_do_not_make_it_cut_off(tmp_path):
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=10, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
        for number in (0, 1, 4, 5):
            image = av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 3), 9 * number, np.uint8), format="rgb24")
            image.pts = number
            file.mux(stream.encode(image))
        file.mux(stream.encode())
    assert_reads_as_pyav(path)
    assert [float(e["time"]) for e in ps.from_videos(path)] == pytest.approx([0, 0.1, 0.4, 0.5])
    content = path.read_bytes()
    for mark in (b"avih", b"strh"):  # their numbers of frames, as into a pipe
        at = content.index(mark) + (24 if mark == b"avih" else 40)
        content = content[:at] + struct.pack("<I", 1 << 30) + content[at + 4 :]
    path.write_bytes(content)
    assert len(ps.from_videos(path)) == 4


def test_clips_of_frames_stay_in_their_film_and_each_frame_of_a_batch_is_decoded_once(tmp_path, monkeypatch):
    paths = [written(tmp_path / f"{name}.mkv", 10, first=30 * number) for number, name in enumerate("ab")]
    frames = [decoded(path) for path in paths]
    ds = ps.from_videos(paths).windows(4, groups="video")
    assert len(ds) == 14
    made = []
    whole = penstock.films.videos._Decoder._values
    monkeypatch.setattr(
        penstock.films.videos._Decoder, "_values", lambda self, *args: made.append(args[1]) or whole(self, *args)
    )
    with ds.batch(7).loader(executor="inline") as loader:
        first, second = loader
    assert sorted(made) == sorted([*range(10)] * 2)
    assert (first["frame"][3] == frames[0][3:7]).all()
    assert (second["frame"][6] == frames[1][6:]).all()
    assert (second["video"] == 1).all()


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_every_executor_gives_the_same_frames_and_resumes(executor, tmp_path, workers_stay):
    for number in range(3):
        written(tmp_path / f"{number}.mp4", 8, first=30 * number)
    frames = np.concatenate([decoded(tmp_path / f"{number}.mp4") for number in range(3)])
    ds = ps.from_videos(tmp_path / "*.mp4").shuffle(seed=1).batch(5)
    numbers = [int(i) for i in ps.range(24).shuffle(seed=1)]
    with ds.loader(executor=executor) as loader:
        found = np.concatenate([batch["frame"] for batch in loader])
    assert (found == frames[numbers]).all()
    if executor != "processes":
        assert_resumes_exactly(ds, executors=[(executor, 1)])


def test_threads_share_an_open_source_and_few_decoders_wait(tmp_path):
    paths = [written(tmp_path / f"{number}.mp4", 5, first=10 * number) for number in range(12)]
    frames = np.concatenate([decoded(path) for path in paths])
    eight = 8 * ((1 << 20) + 20 * HEIGHT * WIDTH * 3 // 2 + (16 << 10))  # frames, and a buffer of the file
    source = ps.from_videos(paths)._node.data.selected(["frame"]).with_cache_limit(eight)
    opened, wrong = source.open(), []
    assert source.kept_nbytes == eight

    def read(seed):
        for order in np.random.default_rng(seed).integers(0, 60, (10, 6)):
            out = np.zeros((6, HEIGHT, WIDTH, 3), np.uint8)
            opened.gather([Read(order, (out,), slice(0, 6), ())])
            if (out != frames[order]).any():
                wrong.append(order)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(opened._idle) == 8
    opened.close()
    assert not opened._idle


def test_frames_are_scaled_and_one_size_is_asked_for(tmp_path):
    paths = [written(tmp_path / "a.mp4", 3), written(tmp_path / "b.mp4", 3, size=(32, 32))]
    assert ps.from_videos(paths, size=(24, 40))[5]["frame"].shape == (24, 40, 3)
    with pytest.raises(ps.ArgumentError, match=r"b\.mp4 are 32 by 32, and those of .*a\.mp4 48 by 64 pixels.*size="):
        ps.from_videos(paths)
    with pytest.raises(ps.ArgumentError, match=r"size is \(0, 4\)"):
        ps.from_videos(paths, size=(0, 4))


def test_times_and_numbers_of_files_are_read_without_decoding(tmp_path, monkeypatch):
    path = written(tmp_path / "a.mp4", 6)
    ds = ps.from_videos(path)
    monkeypatch.setattr(penstock.films.videos._Decoder, "frame", None)
    assert [float(e["time"]) for e in ds.select("time", "video")] == pytest.approx(np.arange(6) / 10)


def test_what_was_found_of_a_file_is_kept_and_made_anew_when_it_changes(tmp_path, monkeypatch):
    path = written(tmp_path / "a.mp4", 6)
    assert len(ps.from_videos(path)) == 6
    frames_of = penstock.films.videos.frames_of
    monkeypatch.setattr(penstock.films.videos, "frames_of", None)
    assert len(ps.from_videos(path)) == 6
    written(tmp_path / "a.mp4", 9)
    monkeypatch.setattr(penstock.films.videos, "frames_of", frames_of)
    assert len(ps.from_videos(path)) == 9


def test_sound_beside_the_pictures_is_passed_over(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as file:
        sound = file.add_stream("aac", rate=16_000)
        stream = file.add_stream("libx264", rate=10, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
        for number in range(4):
            image = np.full((HEIGHT, WIDTH, 3), 50 * number, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        samples = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        samples.sample_rate = 16_000
        file.mux([*sound.encode(samples), *sound.encode(), *stream.encode()])
    assert len(ps.from_videos(path)) == 4


# Bad files.


def test_a_file_that_is_no_film_is_an_error_with_its_name(tmp_path):
    for content in (b"", b"no film" * 100, bytes(5_000), b"\0\0\0\x18ftypmp42" + bytes(100)):
        (tmp_path / "a.mp4").write_bytes(content)
        with pytest.raises(ps.SourceError, match=r"a\.mp4 cannot be read as a film"):
            ps.from_videos(tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.m4a"), "w", format="mp4") as file:
        stream = file.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), "float32"), format="fltp", layout="mono")
        sound.sample_rate = 8000
        stream.layout = "mono"
        file.mux([*stream.encode(sound), *stream.encode()])
    with pytest.raises(ps.SourceError, match=r"a\.m4a has no pictures\. penstock\.audio reads sound"):
        ps.from_videos(tmp_path / "a.m4a")


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts"])
def test_a_film_that_is_cut_off_gives_an_error_or_the_frames_before_the_cut(ending, tmp_path):
    options = {"movflags": "faststart"} if ending == "mp4" else {}
    whole = tmp_path / f"whole.{ending}"
    with av.open(str(whole), "w", options=options) as file:
        stream = file.add_stream("libx264", rate=10, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
        stream.options = {"threads": "1", "bf": "0"}
        for number in range(COUNT):
            image = np.random.default_rng(number).integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())
    frames, content = decoded(whole), whole.read_bytes()
    for number, share in enumerate((0.1, 0.5, 0.9, 0.99)):
        path = tmp_path / f"cut{number}.{ending}"
        path.write_bytes(content[: int(share * len(content))])
        found = []
        if ending == "mp4":  # its head says how many frames there are
            with pytest.raises(ps.SourceError, match=path.name):
                len(ps.from_videos(path))
            continue
        with contextlib.suppress(ps.SourceError):
            found += (e["frame"] for e in ps.from_videos(path))
        assert len(found) < COUNT
        assert all((a == b).all() for a, b in zip(found[:-1], frames, strict=False))


def test_a_damaged_frame_is_named_and_set_aside(tmp_path):
    path = written(tmp_path / "a.mp4", 24, gop=6)
    with av.open(str(path)) as file:
        packets = [(packet.pos, packet.size, packet.is_keyframe) for packet in file.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    position, size, _ = [packet for packet in packets if packet[2]][2]
    content[position : position + size] = bytes(size)
    path.write_bytes(content)
    ds = ps.from_videos(path)
    assert len(ds) == 24
    with pytest.raises(ps.SourceError, match=r"a\.mp4 is damaged: its frame 12 cannot be decoded"):
        ds[12]
    with ds.batch(1).loader(executor="inline", on_error="skip", quarantine=tmp_path / "q") as loader:
        times = [round(float(t) * 10) for batch in loader for t in batch["time"]]
    assert set(range(10)) <= set(times)
    assert 12 not in times


def test_a_playlist_opens_no_other_file(tmp_path):
    written(tmp_path / "secret.ts", 3)
    (tmp_path / "a.m3u8").write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{tmp_path}/secret.ts\n#EXT-X-ENDLIST\n"
    )
    (tmp_path / "b.txt").write_text(f"ffconcat version 1.0\nfile '{tmp_path}/secret.ts'\n")
    for name in ("a.m3u8", "b.txt"):
        with pytest.raises(ps.SourceError, match="cannot be read as a film"):
            ps.from_videos(tmp_path / name)


def test_two_readers_of_one_film_do_not_disturb_each_other(tmp_path):
    path = written(tmp_path / "a.mp4", 12)
    frames = decoded(path)
    left, right = iter(ps.from_videos(path)), iter(ps.from_videos(path).skip(5))
    for number, (a, b) in enumerate(itertools.islice(zip(left, right, strict=False), 7)):
        assert (a["frame"] == frames[number]).all()
        assert (b["frame"] == frames[number + 5]).all()


def test_pictures_of_an_unknown_kind_are_an_error(tmp_path):
    path = written(tmp_path / "a.mp4", 3)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"xxxx"))
    with pytest.raises(ps.SourceError, match=r"a\.mp4"):
        ps.from_videos(path)


def test_a_film_behind_a_url_is_read_in_parts_whose_memory_is_counted(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    path = written(tmp_path / "a.mp4", 40, size=(240, 320), gop=4)
    fsspec.filesystem("memory").pipe("/films/a.mp4", path.read_bytes())
    ds, local = ps.from_videos("memory://films/a.mp4", cache_dir=tmp_path), ps.from_videos(path)
    assert all((ds[number]["frame"] == local[number]["frame"]).all() for number in (30, 3, 17))
    remote, here = (each._node.data for each in (ds, local))
    assert remote.most_idle == 1
    requests_nbytes = MEMORY_COUNT * path.stat().st_size
    assert remote.kept_nbytes - here.kept_nbytes == requests_nbytes + (256 << 10) - (16 << 10)
    limited = remote.with_cache_limit(400_000)
    assert limited.kept_nbytes <= 400_000 + remote._decoder_nbytes
    assert limited.ahead_nbytes == 20_000


# What the next batches want.


@pytest.fixture
def decodings(monkeypatch):
    """The frames that FFmpeg decodes, those before a wanted one included."""
    found = []
    decoder = penstock.films.videos._Decoder
    whole = decoder._decoded

    def counted(self, place):
        before = self._at
        image = whole(self, place)
        found.append(self._at - before)
        return image

    monkeypatch.setattr(decoder, "_decoded", counted)
    return found


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_frames_that_fit_are_decoded_for_several_batches_and_kept_over_epochs(executor, tmp_path, decodings):
    paths = [written(tmp_path / f"{number}.mp4", 60, first=50 * number, gop=60) for number in range(3)]
    frames = np.concatenate([decoded(path) for path in paths])
    films, numbers = ps.from_videos(paths).select("frame"), ps.range(180)
    with (
        films.shuffle(seed=1).batch(6).loader(executor=executor) as loader,
        numbers.shuffle(seed=1).batch(6).loader(executor="inline") as places,
    ):
        for epoch in range(3):
            before = sum(decodings)
            for batch, place in zip(loader, places, strict=True):
                assert (batch["frame"] == frames[place]).all()
            # A frame alone takes 30 others. A film is decoded at most twice: its term may end. Each thread may begin
            # with it.
            most = 0 if epoch else 2 if executor == "inline" else 6
            assert sum(decodings) - before <= most * 180


def test_after_a_resume_in_the_middle_frames_are_decoded_once_more_and_kept(tmp_path, decodings):
    paths = [written(tmp_path / f"{number}.mp4", 30, first=50 * number, gop=6) for number in range(3)]
    frames = np.concatenate([decoded(path) for path in paths])
    order = [int(i) for i in ps.range(90).shuffle(seed=1)]
    ds = ps.from_videos(paths).select("frame").shuffle(seed=1, reshuffle=False).batch(6)
    for cut in (0, 7):
        with ds.loader(executor="threads", workers=2) as loader:
            loader.set_state({**loader.get_state(), "position": cut})
            found = np.concatenate([batch["frame"] for batch in loader])
            assert (found == frames[order[6 * cut :]]).all()
            list(loader)
            before = sum(decodings)
            assert (np.concatenate([batch["frame"] for batch in loader]) == frames[order]).all()
            assert sum(decodings) == before


def test_frames_that_are_kept_are_bounded(tmp_path):
    paths = [written(tmp_path / f"{number}.mp4", 40, first=50 * number, gop=20) for number in range(3)]
    frames = np.concatenate([decoded(path) for path in paths])
    source = ps.from_videos(paths)._node.data.selected(["frame"])
    decoder = (1 << 20) + 20 * HEIGHT * WIDTH * 3 // 2 + (16 << 10)
    assert source.kept_nbytes == 3 * decoder + 120 * source.frame_nbytes
    few = source.with_cache_limit(decoder + 10 * source.frame_nbytes)
    assert (few.most_idle, few.most_ahead) == (1, 10)
    opened, most = few.open(), []
    order = np.random.default_rng(1).permutation(120)
    ahead = Ordered(order, 4)
    for index in range(30):
        out, some = np.zeros((4, HEIGHT, WIDTH, 3), np.uint8), order[4 * index : 4 * index + 4]
        opened.follow(ahead, (0, index), (0, index))
        opened.gather([Read(some, (out,), slice(0, 4), ())])
        assert (out == frames[some]).all()
        most.append(len(opened._kept._frames))
    assert 5 < max(most) <= 10


def test_if_room_is_short_frames_go_that_are_wanted_last():
    image, uses = np.zeros((2, 2, 3), np.uint8), {1: 5, 2: 9, 3: 7, 4: 8}
    kept = penstock.films.videos._FrameCache(3)

    def claim(*frames):
        wanted = np.array(frames, np.int64)
        return kept.claim(wanted, next_uses(wanted), next_uses)

    def next_uses(frames):
        return np.array([uses[each] for each in frames.tolist()], np.int64)

    assert claim(1, 2, 3) == [1, 2, 3]
    for frame in (1, 2, 3):
        kept.put(frame, image)
    assert claim(4) == [4]
    kept.put(4, image)
    assert sorted(kept._frames) == [1, 3, 4]
    assert claim(2) == []
    assert sorted(kept._frames) == [1, 3, 4]


@pytest.mark.parametrize("batch_count", [12, 5, None])
def test_the_next_uses_of_elements_are_those_of_the_order_across_epochs(batch_count):
    def wanted(epoch, index):
        return np.random.default_rng([epoch, index]).integers(0, 40, 4)

    class Order:
        def elements(self, epoch, first, last):
            found = [wanted(epoch, index) for index in range(first, last)]
            return np.concatenate(found), np.repeat(np.arange(first, last), 4) + np.tile(np.arange(4) / 4, len(found))

    order = Order()
    order.batch_count = batch_count
    ahead = Ahead(order, 0, 10, np.array([0, 10, 25, 40]))
    batches = [(epoch, index) for epoch in range(3) for index in range(batch_count or 100)]
    for epoch, index in batches[:30:4]:
        now = ahead.number((epoch, index))
        behind = {ahead.number(each): wanted(*each) for each in batches if each >= (epoch, index)}
        first = [next((at for at, those in behind.items() if each in those), FAR) for each in range(40)]
        found = ahead.next_uses(now, np.arange(40))
        assert all(a == b or b == FAR for a, b in zip(found.tolist(), first, strict=True))
        films = ahead.next_uses_of_parts(now, np.arange(3), np.full(3, now))
        assert films.tolist() == [found[:10].min(), found[10:25].min(), found[25:].min()]
        elements, uses, lasts = ahead.wanted(now, np.array([0, 25]), np.array([10, 40]))
        assert (np.diff(elements) > 0).all()
        assert not ((elements >= 10) & (elements < 25)).any()
        assert (found[elements] == uses).all()
        assert set(np.flatnonzero(found == now)) - set(range(10, 25)) <= set(elements)
        assert (uses <= lasts).all()
        assert (lasts < now + ahead._term).all()


class Ordered:
    """An order of elements, as `ReadOrder`."""

    def __init__(self, order, size):
        self._order, self._size, self.batch_count = order, size, -(-len(order) // size)

    def elements(self, epoch, first, last):
        found = self._order[first * self._size : last * self._size]
        return found, first + np.arange(len(found)) // self._size


def test_after_a_seek_frames_are_those_of_the_plan(tmp_path):
    path = written(tmp_path / "a.mp4", 60, gop=30)
    frames, order = decoded(path), np.random.default_rng(1).permutation(60)
    opened, ahead = ps.from_videos(path)._node.data.selected(["frame"]).open(), Ordered(order, 5)
    for index in (0, 7, 3, 4, 5, 11, 1, *range(12)):
        out, some = np.zeros((5, HEIGHT, WIDTH, 3), np.uint8), order[5 * index : 5 * index + 5]
        opened.follow(ahead, (0, index), (0, index))
        opened.gather([Read(some, (out,), slice(0, 5), ())])
        assert (out == frames[some]).all()
    opened.close()
    assert not opened._kept._frames


def test_a_damaged_frame_that_a_later_batch_wants_fails_that_batch(tmp_path):
    path = written(tmp_path / "a.mp4", 24, gop=24, bf="0")
    with av.open(str(path)) as file:
        packets = [(packet.pos, packet.size) for packet in file.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    position, size = packets[12]
    content[position : position + size] = bytes(size)
    path.write_bytes(content)
    ds = ps.from_videos(path).select("frame").batch(4)
    with ds.loader(executor="inline") as loader:
        batches = iter(loader)
        assert (next(batches)["frame"] == decoded_until(path, 4)).all()
        next(batches), next(batches)
        with pytest.raises(ps.SourceError, match=r"a\.mp4 is damaged"):
            next(batches)


def decoded_until(path, count):
    with av.open(str(path)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in itertools.islice(file.decode(video=0), count)])


def test_the_decoders_that_wait_are_those_whose_films_are_wanted_soonest(tmp_path, monkeypatch):
    paths = [written(tmp_path / f"{number}.mp4", 4, gop=2) for number in range(6)]
    source = ps.from_videos(paths)._node.data.selected(["frame"])
    opened = source.with_cache_limit(2 * source._decoder_nbytes + source.frame_nbytes).open()
    order = 4 * np.array([0, 1, 2, 3, 4, 5, 0, 1, 0, 1])
    ahead = Ordered(order, 1)
    for index in range(6):
        opened.follow(ahead, (0, index), (0, index))
        opened.gather([Read(order[index : index + 1], (np.zeros((1, HEIGHT, WIDTH, 3), np.uint8),), slice(0, 1), ())])
    assert sorted(each.number for each in opened._idle) == [0, 1]
    opened.close()


def test_threads_with_one_order_share_what_they_decode(tmp_path):
    path = written(tmp_path / "a.mp4", 60, gop=20)
    frames, order = decoded(path), np.random.default_rng(1).integers(0, 60, 400)
    opened, wrong = ps.from_videos(path)._node.data.selected(["frame"]).open(), []
    ahead, indices = Ordered(order, 8), itertools.count()

    def read():
        while (index := next(indices)) < 50:
            out, some = np.zeros((8, HEIGHT, WIDTH, 3), np.uint8), order[8 * index : 8 * index + 8]
            opened.follow(ahead, (0, index), (0, index))
            opened.gather([Read(some, (out,), slice(0, 8), ())])
            if (out != frames[some]).any():
                wrong.append(index)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not opened._kept._claimed
    opened.close()


def test_a_thread_waits_for_frames_that_another_decodes_and_takes_them_up_if_it_fails():
    kept, found = penstock.films.videos._FrameCache(4), []
    assert kept.take([3, 4]) == ({}, [3, 4], [])
    assert kept.take([3]) == ({}, [3], [])  # its own claim is no obstacle: Ctrl-C may have left it

    def read():
        found.append(kept.take([4, 5]))
        kept.free([5])
        kept.wait([4])
        found.append(kept.take([4]))
        kept.free([4])

    other = threading.Thread(target=read)
    other.start()
    while not found:
        other.join(0.001)
    kept.free([3, 4])
    other.join()
    assert found == [({}, [5], [4]), ({}, [4], [])]


def test_batches_that_want_few_frames_or_none_do_not_make_a_term_long(tmp_path):
    path = written(tmp_path / "a.mp4", 12, gop=12)
    frames, films = decoded(path), ps.from_videos(path).select("frame").map(lambda each: each["frame"])
    other = ps.from_arrays(np.zeros((2000, HEIGHT, WIDTH, 3), np.uint8))
    ds = ps.mix([other.repeat(), films.repeat()], [500, 1], seed=1).take(8000).batch(8)
    with ds.loader(executor="inline") as loader:
        found = [image for batch in itertools.islice(loader, 400) for image in batch if image.any()]
    assert found
    assert all((image == frames).reshape(12, -1).all(1).any() for image in found)
