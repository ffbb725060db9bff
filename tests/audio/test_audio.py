import contextlib
import io
import os
import re
import struct

import numpy as np
import pytest

import penstock as ps
from penstock.base._retries import RetryBudget
from penstock.memory._slot import own_header

av = pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

from penstock import audio  # noqa: E402
from penstock.audio._files import opened  # noqa: E402

RATE = 8000
TONE = (np.sin(np.arange(RATE) * 440 * 2 * np.pi / RATE) * 0.5).astype("f4")
STEREO = np.stack([TONE, -TONE / 2], 1)


def encoded(samples=TONE, form="WAV", rate=RATE):
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form)
    return out.getvalue()


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "AIFF"])
def test_a_path_and_its_bytes_give_the_samples(form, tmp_path):
    path = tmp_path / f"a.{form.lower()}"
    path.write_bytes(encoded(form=form))
    found = audio.decode(path)
    assert (found.shape, found.dtype) == ((RATE,), np.float32)
    assert np.abs(found - TONE).max() < (0.05 if form == "OGG" else 1e-4)
    for data in (path.read_bytes(), np.frombuffer(path.read_bytes(), np.uint8), memoryview(path.read_bytes())):
        assert np.array_equal(audio.decode(data), found)
    assert np.array_equal(audio.decode(path, offset=0.25, duration=0.5), found[2000:6000]) or form == "OGG"


@pytest.mark.parametrize("form", ["WAV", "FLAC", "AIFF"])
def test_samples_of_16_bits_are_the_floats_of_libsndfile(form):
    samples = np.arange(-(1 << 15), 1 << 15).astype("i2").reshape(-1, 2)
    data = encoded(samples, form)
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float32")
    assert np.array_equal(audio.decode(data), expected)
    assert np.array_equal(audio.decode(data, offset=1.0, duration=0.5), expected[RATE : RATE + RATE // 2])


@pytest.mark.parametrize(("rate", "mode"), [(16000, "CONSTANT"), (16000, "VARIABLE"), (44100, "VARIABLE")])
def test_an_mp3_has_the_same_samples_in_its_parts(rate, mode, tmp_path):
    noise = np.random.default_rng(0).normal(0, 0.1, 30000) * (np.arange(30000) % 9000 > 4000)
    path = tmp_path / "a.mp3"
    soundfile.write(path, noise, rate, compression_level=0.9, bitrate_mode=mode)
    assert (b"Xing" in path.read_bytes()) == (mode == "VARIABLE")  # the number of samples
    whole = audio.decode(path)
    assert len(whole) == 30000 if mode == "VARIABLE" else 30000 < len(whole) < 30000 + 4 * 576
    for first in range(2000, 29000, 1500):
        part = audio.decode(path.read_bytes(), offset=first / rate, duration=500 / rate)
        assert np.array_equal(part, whole[first : first + 500])
    path.write_bytes(b"ID3\3\0\0\0\0\1\0" + bytes(128) + path.read_bytes())
    assert len(audio.decode(path)) == len(whole)


def mp3(samples, mode):
    out = io.BytesIO()
    soundfile.write(out, samples, 16000, format="MP3", compression_level=0.9, bitrate_mode=mode)
    return out.getvalue()


def test_an_mp3_is_read_to_its_end_whatever_its_first_frame_promises():
    noise = np.random.default_rng(0).normal(0, 0.1, 60_000) * (np.arange(60_000) < 9000)
    data = mp3(noise, "VARIABLE")
    plain = data[data.index(data[:2], 2) :]  # without the first frame, which says the number of frames
    assert b"Xing" not in plain
    with soundfile.SoundFile(io.BytesIO(plain)) as file:
        assert file.frames < 50_000  # a guess from the first bit rate
    whole = audio.decode(plain)
    assert 60_000 <= len(whole) < 60_000 + 4 * 576
    for first in (0, 8000, 30_000, len(whole) - 500):
        part = audio.decode(plain, offset=first / 16000, duration=500 / 16000)
        assert np.array_equal(part, whole[first : first + 500])
    for behind in (bytes(900), b"TAG" + bytes(125), b"APETAGEX" + bytes(200)):
        assert len(audio.decode(plain + behind)) == len(whole)
    with pytest.raises(audio.AudioError, match=r"is damaged, .*Invalid data found"):
        audio.decode(plain[:3000] + bytes(3000) + plain[3000:])
    with pytest.raises(audio.AudioError, match=r"it is cut: it says 3\.\d+ seconds, and 2\.\d+ are there"):
        audio.decode(data[:-1000])


def test_mp3_files_behind_each_other_are_no_shorter_one():
    plain, counted = (mp3(np.random.default_rng(0).normal(0, 0.1, 30_000), mode) for mode in ("CONSTANT", "VARIABLE"))
    assert len(audio.decode(plain + plain)) > 60_000
    with contextlib.suppress(audio.AudioError):  # the length that the first says is doubtful then
        assert len(audio.decode(counted + counted)) > 60_000


def written(form, codec, seconds=2, rate=48_000):
    """A file that FFmpeg writes."""
    out, size = io.BytesIO(), 960
    samples = np.cumsum(np.random.default_rng(1).normal(0, 0.01, (2, seconds * rate)), 1).clip(-1, 1).astype("f4")
    with av.open(out, "w", format=form) as file:
        stream = file.add_stream(codec, rate=rate, layout="stereo")
        resampler = av.AudioResampler(format=stream.codec_context.format, layout="stereo", rate=rate)
        stream.codec_context.open()
        size = stream.codec_context.frame_size or size
        for first in range(0, seconds * rate, size):
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(samples[:, first : first + size]), format="fltp", layout="stereo"
            )
            frame.sample_rate, frame.pts = rate, first
            for each in resampler.resample(frame):
                file.mux(stream.encode(each))
        file.mux(stream.encode(None))
    return out.getvalue()


@pytest.mark.parametrize(
    ("form", "codec"),
    [("mp4", "aac"), ("adts", "aac"), ("ogg", "libopus"), ("webm", "libopus"), ("mp3", "libmp3lame"), ("mp4", "alac")],
)
def test_parts_of_what_ffmpeg_reads_have_the_bits_of_the_whole(form, codec):
    data = written(form, codec)
    whole = audio.decode(data)
    assert whole.shape[1] == 2
    assert 96_000 - 400 <= len(whole) <= 96_000 + 3 * 1152
    for first in (0, 960, 1000, 30_001, 70_000, len(whole) - 500):
        part = audio.decode(data, offset=first / 48_000, duration=500 / 48_000)
        assert np.array_equal(part, whole[first : first + 500])
    with opened(io.BytesIO(data)) as sound:
        assert abs(sound.sample_count() - len(whole)) < 1152  # frames at the end may be none
    crop = audio.RandomCrop(0.25, sample_rate=48_000)
    crops = [crop(data, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(crops[0], crops[1])
    assert not np.array_equal(crops[0], crops[2])
    with pytest.raises(audio.AudioError, match=r"it has 2\.\d+ seconds, and the part begins at 9\.000"):
        audio.decode(data, offset=9)


@pytest.mark.parametrize(("form", "codec"), [("webm", "libopus"), ("mp4", "aac")])
def test_a_container_that_says_its_length_and_is_cut_is_an_error(form, codec):
    data = written(form, codec)
    with pytest.raises(audio.AudioError, match=r"it is cut: it says 2\.\d+ seconds|is damaged"):
        audio.decode(data[: len(data) * 2 // 3])


def of_cuts(data, cuts):
    """The whole sound, and what is read of the file without its last bytes; None for an error."""
    whole = audio.decode(data)
    for cut in cuts:
        try:
            yield cut, whole, audio.decode(data[:-cut])
        except audio.AudioError:
            yield cut, whole, None


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_a_cut_mp3_that_says_its_length_is_whole_or_an_error(rate):
    out = io.BytesIO()
    soundfile.write(out, np.random.default_rng(0).normal(0, 0.1, 40_000), rate, format="MP3", bitrate_mode="VARIABLE")
    data = out.getvalue()
    tagged = data + b"TAG" + bytes(125)
    for some, cuts in ((data, range(1, 3000, 23)), (tagged, (1, 50, 128, 129, 200, 1000))):
        for cut, whole, found in of_cuts(some, cuts):
            assert len(whole) == 40_000
            assert found is None or np.array_equal(found, whole), cut
    assert all(found is None for cut, _, found in of_cuts(data, (1, 400, 800, 1200, 1800)))
    with pytest.raises(audio.AudioError, match="it is cut: it says"):
        audio.decode(data[:-600], offset=39_000 / rate, duration=3000 / rate)


@pytest.mark.parametrize("behind", [bytes(900), b"APETAGEX" + bytes(200), b"TAG" + bytes(125)])
def test_tags_behind_a_short_mp3_that_says_its_length_are_no_cut(behind):
    data = mp3(np.random.default_rng(0).normal(0, 0.1, 9000), "VARIABLE")
    assert np.array_equal(audio.decode(data + behind)[:9000], audio.decode(data))


@pytest.mark.parametrize(
    ("form", "codec"),
    [
        ("mp3", None),
        ("mp2", "mp2"),
        ("adts", "aac"),
        ("mp4", "aac"),
        ("mp4", "libmp3lame"),
        ("ogg", "libopus"),
        ("webm", "libopus"),
        ("matroska", "aac"),
    ],
)
def test_a_cut_file_has_the_first_samples_of_the_whole_or_is_an_error(form, codec):
    if codec is None:
        data = mp3(np.random.default_rng(0).normal(0, 0.1, 40_000), "CONSTANT")
    else:
        data = written(form, codec, seconds=1)
    for cut, whole, found in of_cuts(data, range(1, 3000, 61)):
        assert found is None or np.array_equal(found, whole[: len(found)]), cut
    if codec is None:
        with opened(io.BytesIO(data[:-30])) as sound:
            assert sound.sample_count() == len(sound.read(0, None))


@pytest.mark.parametrize("codec", ["aac", "alac", "libmp3lame"])
def test_a_cut_mp4_whose_index_comes_first_is_an_error(codec, tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(io.BytesIO(written("mp4", codec, seconds=1))) as one:
        stream = one.streams.audio[0]
        with av.open(path, "w", options={"movflags": "faststart"}) as other:
            copy = other.add_stream_from_template(stream)
            for packet in one.demux(stream):
                if packet.dts is not None:
                    packet.stream = copy
                    other.mux(packet)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    for cut, _, found in of_cuts(data, range(1, 1500, 41)):
        assert found is None, cut
    with pytest.raises(audio.AudioError, match="it is cut: it says"):
        audio.decode(data[:-100])


def test_a_film_has_its_sound_and_a_playlist_none(tmp_path):
    (tmp_path / "a.wav").write_bytes(WAV)
    (tmp_path / "a.m3u8").write_text(f"#EXTM3U\n#EXTINF:1,\nfile://{tmp_path}/a.wav\n#EXT-X-ENDLIST\n")
    with pytest.raises(audio.AudioError, match=r"a\.m3u8: it is no sound file"):
        audio.decode(tmp_path / "a.m3u8")


def test_kinds_that_are_decoded_from_their_beginning_have_parts():
    out = io.BytesIO()
    soundfile.write(out, TONE, RATE, format="WAV", subtype="GSM610")
    whole = audio.decode(out.getvalue())
    assert np.abs(whole[:RATE] - TONE).mean() < 0.02
    assert np.array_equal(audio.decode(out.getvalue(), offset=0.25, duration=0.5), whole[2000:6000])


def test_channels_are_kept_or_averaged():
    data = encoded(STEREO)
    assert np.abs(audio.decode(data) - STEREO).max() < 1e-4
    assert np.abs(audio.decode(data, mono=True) - TONE / 4).max() < 1e-4


def test_another_rate_is_resampled():
    found = audio.decode(encoded(), sample_rate=16000)
    want = np.sin(np.arange(16000) * 440 * 2 * np.pi / 16000) * 0.5
    assert len(found) == 16000
    assert np.abs(found - want)[500:-500].max() < 1e-3
    assert audio.decode(encoded(STEREO), sample_rate=11025, duration=0.5).shape == (round(0.5 * 11025), 2)


def test_no_zeros_follow_a_part_of_a_sound_that_goes_on():
    data = encoded(TONE + np.float32(0.25))
    for duration in (0.0125612, 0.3333, 0.01):
        found = audio.decode(data, sample_rate=48000, duration=duration)
        assert len(found) == round(duration * 48000)
        assert found[-9:].any()
        assert found[-1] != 0
    crop = audio.RandomCrop(0.0125612, sample_rate=48000)(data, np.random.default_rng(0))
    assert (crop.shape, crop[-1] != 0) == ((603,), True)


def test_zeros_follow_a_sound_that_is_shorter():
    found = audio.decode(encoded(), duration=1.5, offset=0.5)
    assert found.shape == (12000,)
    assert not found[4000:].any()
    assert np.abs(found[:4000] - TONE[4000:]).max() < 1e-4


def test_channels_stay_unless_mono_is_asked_for():
    data, rng = encoded(STEREO), np.random.default_rng(0)
    for function in (audio.decode, audio.Decoding(), lambda data: audio.RandomCrop(1, sample_rate=RATE)(data, rng)):
        assert np.abs(function(data) - STEREO).max() < 1e-4
    found = audio.RandomCrop(1, sample_rate=RATE, mono=True)(data, rng)
    assert np.abs(found - TONE / 4).max() < 1e-4


def test_a_crop_reads_no_more_than_its_part(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "long.wav", np.tile(TONE, 200), RATE)  # 3.2 MB
    read = []

    class Counting(io.FileIO):
        def readinto(self, buffer):
            read.append(super().readinto(buffer))
            return read[-1]

    monkeypatch.setattr("penstock.audio._decode.open_file", Counting)
    found = audio.RandomCrop(0.25, sample_rate=RATE)(tmp_path / "long.wav", np.random.default_rng(0))
    assert found.shape == (2000,)
    assert sum(read) < 60_000


SOUND = ps.ArraySpec((None,), "float32")


@pytest.fixture
def of_two_rates(tmp_path):
    """Twelve files, of which the sixth has another rate."""
    for number in range(12):
        (tmp_path / f"{number:02}.wav").write_bytes(encoded(TONE[:500], rate=44100 if number == 5 else 16000))
    return ps.from_files(tmp_path / "*.wav")


def said(caplog):
    return [record.getMessage() for record in caplog.records if "several rates" in record.getMessage()]


def of_each(decode):
    """Steps in which a function of sounds may run."""
    return {
        "map": lambda files: files.map(lambda e: decode(e["bytes"]), element_spec=SOUND),
        "random_map": lambda files: files.random_map(lambda e, rng: decode(e["bytes"]), element_spec=SOUND),
        "flat_map": lambda files: files.flat_map(lambda e: [decode(e["bytes"])], element_spec=SOUND),
    }


@pytest.mark.parametrize("step", of_each(None))
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_several_rates_are_told_once_a_loader(of_two_rates, executor, step, caplog):
    sounds = of_each(audio.decode)[step](of_two_rates)
    for count in (1, 2):
        with sounds.padded_batch(4).loader(executor) as loader:
            assert [len(batch) for _ in range(2) for batch in loader] == [4, 4, 4] * 2
        assert len(said(caplog)) == count
    assert "44100 samples a second (" in said(caplog)[0] or "and 44100 (" in said(caplog)[0]
    assert f"{step}(" in said(caplog)[0]
    assert "05.wav" in said(caplog)[0] or step == "flat_map"
    assert "Say one rate for all: sample_rate=" in said(caplog)[0]


@pytest.mark.slow
def test_worker_processes_tell_several_rates_once(of_two_rates, caplog, capfd):
    sounds = of_each(audio.decode)["map"](of_two_rates).shuffle(seed=1).padded_batch(2)
    with sounds.loader("processes", workers=2) as loader:
        assert sum(len(batch) for _ in range(3) for batch in loader) == 36
    assert (caplog.text + capfd.readouterr().err).count("Sounds have several rates") == 1


def test_workers_of_one_loader_share_the_first_number_and_tell_once():
    words, places = own_header(), [(3, 0, 0), (3, 0, 7), (3, 1, 8)]
    workers = [RetryBudget(words, 1, where=lambda place=place: place, describe=str) for place in places]
    assert workers[0].first_other(16_000) is None
    assert workers[0].first_other(44_100) is None  # two sounds of one element
    assert workers[1].first_other(16_000) is None
    assert workers[2].first_other(44_100) == (str(places[0]), 16_000, str(places[2]))
    assert [each.first_other(44_100) for each in workers] == [None] * 3
    assert RetryBudget().first_other(16_000) is None


def test_several_rates_of_a_dataset_that_is_iterated_are_told_once(of_two_rates, caplog):
    sounds = of_each(audio.decode)["map"](of_two_rates).padded_batch(4)
    assert [len(batch) for batch in sounds] == [4, 4, 4]
    assert len(sounds[1]) == 4
    assert re.fullmatch(
        r"Sounds have several rates: 16000 samples a second \(map\(<lambda>\) at .* on element 0 of epoch 0, made of "
        r".*00\.wav\), and 44100 \(.* on element 5 of epoch 0, made of .*05\.wav\)\. .* sample_rate=16000\.",
        *said(caplog),
    )


def test_one_rate_two_datasets_and_a_rate_of_the_result_are_not_told(of_two_rates, tmp_path, caplog):
    resampling = of_two_rates.map(lambda e: audio.decode(e["bytes"], sample_rate=8000), element_spec=SOUND)
    assert [len(batch) for batch in resampling.padded_batch(4)] == [4, 4, 4]
    sounds = of_each(audio.decode)["map"](of_two_rates)
    for some in (sounds[:5], sounds[5:6], sounds[6:]):
        with some.padded_batch(4).loader("inline") as loader:
            assert len(list(loader))
    assert [len(audio.decode(tmp_path / name)) for name in ("00.wav", "05.wav")] == [500, 500]
    both = of_two_rates.map(lambda e: [audio.decode(tmp_path / name) for name in ("00.wav", "05.wav")])
    assert np.shape(both[0]) == (2, 500)
    assert not said(caplog)


@pytest.fixture
def sounds(tmp_path):
    """Four sounds of several lengths, whose samples tell the file and the place."""
    for number in range(4):
        ramp = (np.arange(4000 + 1000 * number) / 65536).astype("f4") + number / 8
        soundfile.write(tmp_path / f"{number}.wav", ramp, RATE, subtype="FLOAT")
    return ps.from_source(sorted(str(path) for path in tmp_path.glob("*.wav")))


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_crops_depend_on_seed_epoch_and_element_alone(sounds, executor):
    crops = sounds.random_map(audio.RandomCrop(0.25, sample_rate=RATE), seed=3)
    with crops.batch(3).loader(executor, workers=1 if executor == "processes" else "auto") as loader:
        epochs = [np.concatenate([batch.copy() for batch in loader]) for _ in range(2)]
    assert np.array_equal(epochs[0], np.stack(list(crops)))
    places = [np.round((each[:, 0] - np.arange(4) / 8) * 65536).astype(int).tolist() for each in epochs]
    assert places[0] != places[1]
    assert all(0 <= at <= 2000 + 1000 * n for epoch in places for n, at in enumerate(epoch))
    other = sounds.random_map(audio.RandomCrop(0.25, sample_rate=RATE), seed=4)
    assert not np.array_equal(np.stack(list(other)), epochs[0])


FLAC = encoded(form="FLAC")
WAV = encoded()
BAD = {
    "cut wav": (WAV[:-9], r"it is cut: its header says 16,000 bytes, and 15,991 are there"),
    "cut wav of 3 GB": (WAV[:40] + struct.pack("<I", 3 << 30) + WAV[44:], r"header says 3,221,225,472 bytes, and 16,"),
    "cut aiff": (encoded(form="AIFF")[:-9], r"it is cut: its header says 16,\d\d\d bytes, and 1"),
    "24 bits in 4 bytes": (
        encoded(np.zeros(8, "f4"))[:32] + struct.pack("<HH4sI", 4, 24, b"data", 16) + bytes(16),
        r"WAV whose samples of 24 bits take 4 bytes each, which libsndfile reads as if",
    ),
    "cut au": (encoded(form="AU")[:-9], r"it is cut: its header says 16,000 bytes, and 15,991 are there"),
    "cut rf64": (encoded(form="RF64")[:-9], r"it is cut: its header says 16,\d\d\d bytes, and 16,\d\d\d are there"),
    "cut w64": (encoded(form="W64")[:-9], r"it is cut: its header says 16,104 bytes, and 16,095 are there"),
    "cut voc": (encoded(form="VOC")[:-9], r"it is cut after 7,99\d samples, or other data stand behind its sound"),
    "cut flac": (FLAC[:-400], r"is damaged.*: flac decoder lost sync|it is cut"),
    "cut ogg": (
        encoded(form="OGG")[:-7],
        r"it is no sound file|it is cut after [\d,]+ samples|it has 0\.000 seconds",
    ),
    "empty": (b"", r"it is empty \(0 bytes\)\."),
    "text": (b"hello, world" * 99, r"it is no sound file, is damaged, or is of a kind that .*: Invalid data found"),
    "no samples": (encoded(TONE[:0]), r"it has 0\.000 seconds, and the part begins at 0\.000\. It is empty"),
    "large": (
        WAV[:40] + struct.pack("<I", 0x70000000) + WAV[44:],
        r"header says 1,879,048,192 bytes, and 16,",
    ),
    "large flac": (FLAC[:21] + bytes([FLAC[21] | 15]) + b"\xff" * 4 + FLAC[26:], r"is damaged|cut"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_named(kind, tmp_path):
    data, text = BAD[kind]
    (tmp_path / "bad.wav").write_bytes(data)
    with pytest.raises(audio.AudioError, match=rf"/bad\.wav: .*(?:{text})"):
        audio.decode(tmp_path / "bad.wav")
    with pytest.raises(audio.AudioError, match=text):
        audio.decode(data)
    decoding = audio.Decoding(duration=1.0)
    bad = ps.from_source([str(tmp_path / "bad.wav")]).map(decoding)
    for each in (bad, ps.from_files(tmp_path / "bad.wav").map(lambda e: decoding(e["bytes"]))):
        with pytest.raises(ps.ElementError, match=r"bad\.wav"):
            each[0]


@pytest.mark.parametrize("rate", [16000, 44100])
def test_parts_of_vorbis_are_parts_of_the_whole_up_to_the_end(rate):
    out, noise = io.BytesIO(), np.cumsum(np.random.default_rng(0).normal(0, 0.01, 200_000))
    soundfile.write(out, noise / np.abs(noise).max(), rate, format="OGG")
    whole, data = audio.decode(out.getvalue()), out.getvalue()
    for first in (0, 5000, 150_000, *range(184_000, 199_999, 3001), 199_990):
        part = audio.decode(data, offset=first / rate, duration=500 / rate)
        assert np.abs(part[: 200_000 - first] - whole[first : first + 500]).max() < 1e-6
    short = io.BytesIO()
    soundfile.write(short, TONE[:3000], rate, format="OGG")  # of one page
    assert np.array_equal(audio.decode(short.getvalue(), offset=2900 / rate), audio.decode(short.getvalue())[2900:])


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_sound_behind_the_last_whole_page_of_an_ogg_is_missed(subtype):
    out = io.BytesIO()
    soundfile.write(out, np.random.default_rng(0).normal(0, 0.1, 60_000), RATE, format="OGG", subtype=subtype)
    data = out.getvalue()
    for damaged in (*(data[:-nbytes] for nbytes in (1, 600, 9000)), data + encoded(form="OGG")):
        with pytest.raises(
            audio.AudioError, match=r"it is cut after [1-6].,\d\d\d samples, or other data stand behind"
        ):
            audio.decode(damaged)


def test_a_flac_that_was_written_into_a_pipe_is_read():
    piped = FLAC[:21] + bytes([FLAC[21] & 240]) + bytes(4) + FLAC[26:]
    assert np.array_equal(audio.decode(piped), audio.decode(FLAC))
    assert np.array_equal(audio.decode(piped, offset=0.5, duration=0.1), audio.decode(FLAC)[4000:4800])


def test_a_wav_that_was_written_into_a_pipe_is_read():
    found = audio.decode(WAV[:40] + struct.pack("<I", 0xFFFFFFFF) + WAV[44:])
    assert np.array_equal(found, audio.decode(WAV))


def test_what_is_no_file_is_named(tmp_path):
    with pytest.raises(audio.AudioError, match=r"/gone\.wav: cannot be read: No such file"):
        audio.decode(tmp_path / "gone.wav")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ps.SourceError, match=r"pipe is a pipe, a socket or a device"):
        audio.decode(tmp_path / "pipe")
    with pytest.raises(audio.AudioError, match=r"it has 1\.000 seconds, and the part begins at 2\.000\."):
        audio.decode(WAV, offset=2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: audio.Decoding(0), r"sample_rate=0: a number of samples a second is needed, or None"),
        (lambda: audio.Decoding(16000.5), r"sample_rate=16000\.5: a number of samples"),
        (lambda: audio.Decoding(offset=-1), r"offset=-1: a number of seconds is needed, from 0 on"),
        (lambda: audio.Decoding(duration=np.inf), r"duration=inf: a number of seconds"),
        (lambda: audio.RandomCrop(1.0, sample_rate=None), r"crops have one size, so say how many samples a second"),
        (
            lambda: audio.RandomCrop(1.0, sample_rate=8000)(b""),
            r"called without a generator\. Use random_map\(lambda e",
        ),
        (lambda: audio.RandomCrop(-1.0, sample_rate=8000), r"duration=-1\.0: a number of seconds"),
        (lambda: audio.Spectrogram(n_fft=400), r"Spectrogram\(\) has no argument n_fft=\. Here it is size="),
        (lambda: audio.Spectrogram(mel_bands=0, sample_rate=8000), r"mel_bands=0, sample_rate=8000\): bands are 1 or"),
        (
            lambda: audio.Spectrogram(mel_bands=40),
            r"sample_rate=None\): bands are 1 or more, and need the samples a second",
        ),
        (lambda: audio.Spectrogram(n_mels=40), r"Spectrogram\(\) has no argument n_mels=\. Here it is mel_bands="),
        (
            lambda: audio.Spectrogram(400, mel_bands=128, sample_rate=16000),
            r"band 0 lies between two of the 201 frequencies, and would have no power ever\. Use fewer bands, or",
        ),
        (lambda: audio.Spectrogram(1), r"Spectrogram\(1, 160\): a frame has 2 samples or more, a hop 1"),
        (lambda: audio.Spectrogram()(STEREO), r"takes one channel of 400 samples or more, got the shape \(8000, 2\)"),
    ],
)
def test_numbers_out_of_range_are_refused(make, text):
    with pytest.raises((ps.ArgumentError, ps.ArgumentTypeError), match=text):
        make()


def test_a_spectrogram_is_the_transform_of_each_frame():
    samples = np.random.default_rng(0).normal(size=1000)
    frames = np.lib.stride_tricks.sliding_window_view(samples, 64)[::24]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(64) / 64)
    want = np.log(np.abs(np.fft.rfft(frames * window)) ** 2 + 1e-6)
    found = audio.Spectrogram(64, 24)(samples.tolist())
    assert (found.shape, found.dtype) == ((40, 33), np.float32)
    np.testing.assert_allclose(found, want, atol=1e-3)


def test_mel_bands_are_weighted_sums_of_the_power():
    samples = np.random.default_rng(0).normal(size=1000)
    power = np.exp(audio.Spectrogram(200, 80)(samples).astype(float)) - 1e-6
    edges = [700 * (10 ** (each * mel(4000) / 6 / 2595) - 1) for each in range(7)]
    assert mel(1000) == pytest.approx(1000, abs=0.1)
    frequencies = np.arange(101) * 40
    want = [power @ np.interp(frequencies, edges[band : band + 3], [0, 1, 0]) for band in range(5)]
    found = audio.Spectrogram(200, 80, mel_bands=5, sample_rate=8000)(samples)
    assert (found.shape, found.dtype) == ((11, 5), np.float32)
    np.testing.assert_allclose(found, np.log(np.transpose(want) + 1e-6), atol=1e-3)


def mel(frequency):
    return 2595 * np.log10(1 + frequency / 700)


def test_an_element_in_place_of_its_bytes_is_refused_with_the_cure():
    with pytest.raises(ps.ArgumentTypeError, match=r"this is a dict of \['path', 'bytes'\]\. Choose from it: map\("):
        audio.Decoding()({"path": "a.wav", "bytes": b""})
