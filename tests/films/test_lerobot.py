import json

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from benchmarks._object_server import Behaviour, serving
from tests import hub
from tests.films.test_videos import HEIGHT, WIDTH, decoded, written

LENGTHS = [5, 3, 6, 4]
CAMERAS = ["observation.images.top", "observation.images.wrist"]
FPS = 10


def folder(path, version="v3.0", films=((0, 1), (2, 3)), **changes):
    """A folder of four episodes, as LeRobot writes them: two films a camera, and two files of steps."""
    (path / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (path / "data" / "chunk-000").mkdir(parents=True)
    about = {name: {"dtype": "video", "shape": [48, 64, 3]} for name in CAMERAS}
    about |= {"action": {"dtype": "float32", "shape": [2]}, "timestamp": {"dtype": "float32", "shape": [1]}}
    info = {
        "codebase_version": version,
        "fps": FPS,
        "features": about,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (path / "meta" / "info.json").write_text(json.dumps(info | changes))
    episodes = {"episode_index": np.arange(4), "length": np.array(LENGTHS)}
    for name in CAMERAS:
        chunks, starts = np.zeros(4, int), np.zeros(4)
        numbers = np.zeros(4, int)
        for file, members in enumerate(films):
            numbers[list(members)] = file
            starts[list(members)] = np.cumsum([0, *(LENGTHS[each] for each in members)])[:-1] / FPS
            target = path / "videos" / name / "chunk-000" / f"file-{file:03}.mp4"
            target.parent.mkdir(parents=True, exist_ok=True)
            written(target, sum(LENGTHS[each] for each in members), first=50 * file + 20 * CAMERAS.index(name), gop=2)
        episodes |= {f"videos/{name}/chunk_index": chunks, f"videos/{name}/file_index": numbers}
        episodes |= {f"videos/{name}/from_timestamp": starts}
    pq.write_table(pa.table(episodes), path / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    episode = np.repeat(np.arange(4), LENGTHS)
    frame = np.concatenate([np.arange(length) for length in LENGTHS])
    rows = {
        "action": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(36, dtype=np.float32)), 2),
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
    }
    table = pa.table(rows)
    pq.write_table(table[:8], path / "data" / "chunk-000" / "file-000.parquet")
    pq.write_table(table[8:], path / "data" / "chunk-000" / "file-001.parquet")
    return path


def frames_of(path, name):
    return np.concatenate([decoded(path / "videos" / name / "chunk-000" / f"file-00{file}.mp4") for file in range(2)])


def test_each_step_has_the_frames_of_its_cameras(tmp_path):
    ds = ps.from_lerobot(folder(tmp_path))
    assert len(ds) == sum(LENGTHS)
    frames = {name: frames_of(tmp_path, name) for name in CAMERAS}
    for executor in ("inline", "threads"):
        with ds.shuffle(seed=1).batch(6).loader(executor=executor) as loader:
            for batch in loader:
                numbers = (batch["action"][:, 0] / 2).astype(int)
                assert all((batch[name] == frames[name][numbers]).all() for name in CAMERAS)
                assert (batch["episode_index"] == np.repeat(np.arange(4), LENGTHS)[numbers]).all()


def test_films_may_hold_episodes_in_another_order(tmp_path):
    ds = ps.from_lerobot(folder(tmp_path, films=((2, 0), (3, 1))), cameras=CAMERAS[:1])
    frames = frames_of(tmp_path, CAMERAS[0])  # of episodes 2, 0, 3, 1
    order = [*range(6, 11), *range(15, 18), *range(6), *range(11, 15)]
    assert all((step[CAMERAS[0]] == frames[number]).all() for step, number in zip(ds, order, strict=True))


def test_offsets_by_name_stay_in_their_episode(tmp_path):
    ds = ps.from_lerobot(folder(tmp_path)).windows({CAMERAS[0]: [-1, 0], "action": range(3)}, groups="episode_index")
    element = ds[4]  # the last step of the first episode
    assert element[CAMERAS[0]].shape == (2, 48, 64, 3)
    assert element["action"][:, 0].tolist() == [8, 8, 8]
    assert element["is_pad"]["action"].tolist() == [False, True, True]


def test_cameras_are_chosen_and_scaled(tmp_path):
    ds = ps.from_lerobot(folder(tmp_path), cameras=[CAMERAS[1]], size=(24, 32))
    assert ds[0][CAMERAS[1]].shape == (24, 32, 3)
    assert CAMERAS[0] not in ds[0]
    assert list(ps.from_lerobot(tmp_path, cameras=[])[0]) == ["action", "timestamp", "frame_index", "episode_index"]
    with pytest.raises(ps.ArgumentError, match=r"there is no 'front'; there are \['observation.images.top', 'obs"):
        ps.from_lerobot(tmp_path, cameras="front")


@pytest.mark.parametrize("name", ["__index_level_0__", "task"])
def test_the_text_of_a_task_stands_beside_its_steps(name, tmp_path):
    tmp_path = tmp_path / "run=5"  # the name of a folder that is no column of LeRobot's
    folder(tmp_path)
    for file in (tmp_path / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        numbers = pa.array(3 - table["episode_index"].to_numpy())
        pq.write_table(table.append_column("task_index", numbers), file)
    texts = ["lift", "turn", "drop", "wait"]
    pq.write_table(pa.table({"task_index": [2, 0, 1, 3], name: texts}), tmp_path / "meta" / "tasks.parquet")
    ds = ps.from_lerobot(tmp_path, cameras=CAMERAS[:1], task=True)
    assert sum(len(part) for part in ds.split(0.7, 0.3, groups="episode_index")) == 18
    assert [ds[number]["task"] for number in (0, 5, 8, 17)] == ["wait", "lift", "drop", "turn"]
    assert "run" not in ds.element_spec
    window = ds.windows({CAMERAS[0]: [-1, 0]}, groups="episode_index")[5]
    assert (window["task"], window[CAMERAS[0]].shape) == ("lift", (2, 48, 64, 3))
    pq.write_table(pa.table({"task_index": [2, 0], name: texts[:2]}), tmp_path / "meta" / "tasks.parquet")
    with pytest.raises(ps.SourceError, match=r"its steps do not fit its meta/tasks\.parquet: .*1"):
        ps.from_lerobot(tmp_path, task=True)
    (tmp_path / "meta" / "tasks.parquet").unlink()
    with pytest.raises(
        ps.SourceError, match=r"tasks\.parquet, which task=True needs: .*cannot be read: No such.*'task_index'"
    ):
        ps.from_lerobot(tmp_path, task=True)
    pq.write_table(pa.table({"task": texts}), tmp_path / "meta" / "tasks.parquet")
    with pytest.raises(ps.SourceError, match=r"tasks\.parquet has columns \['task'\]"):
        ps.from_lerobot(tmp_path, task=True)


def test_what_is_no_folder_of_version_3_is_an_error_with_its_name(tmp_path):
    with pytest.raises(
        ps.SourceError,
        match=r"has no meta/info\.json to read, as each folder of LeRobot has: .*info\.json cannot be read: No such",
    ):
        ps.from_lerobot(tmp_path)
    folder(tmp_path / "old", "v2.1")
    with pytest.raises(ps.SourceError, match=r"info\.json says version 'v2.1'.*convert_dataset_v21_to_v30"):
        ps.from_lerobot(tmp_path / "old")
    (tmp_path / "old" / "meta" / "info.json").write_text("{")
    with pytest.raises(ps.SourceError, match=r"info\.json cannot be read"):
        ps.from_lerobot(tmp_path / "old")


def test_a_folder_names_no_files_outside_of_it(tmp_path):
    for number, form in enumerate(("../{video_key}.mp4", "/etc/{video_key}", "\ud800", 3)):
        with pytest.raises(ps.SourceError, match="names no files of this folder"):
            ps.from_lerobot(folder(tmp_path / str(number), video_path=form))
    changed = {"features": {"../x": {"dtype": "video"}}}
    with pytest.raises(ps.SourceError, match=r"'\.\./x' is no name of a camera"):
        ps.from_lerobot(folder(tmp_path / "name", **changed))


def test_a_step_without_a_frame_is_an_error(tmp_path):
    folder(tmp_path)
    film = tmp_path / "videos" / CAMERAS[0] / "chunk-000" / "file-001.mp4"
    written(film, 7)
    with pytest.raises(
        ps.SourceError, match=r"file-001\.mp4 has no frame at 0\.700 s, where step 15 of the folder is.* 3 st"
    ):
        ps.from_lerobot(tmp_path)
    film.unlink()
    with pytest.raises(ps.SourceError, match=r"file-001\.mp4") as caught:
        ps.from_lerobot(tmp_path)
    assert "as meta/info.json and meta/episodes say" in caught.value.__notes__[0]


def test_a_time_beside_the_last_frame_of_a_film_is_that_frame_and_none_of_the_next_film(tmp_path):
    path = folder(tmp_path) / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    times = table["timestamp"].to_numpy().copy()
    times[7] += 0.0505  # the last step in the first film, half a frame and a little late
    pq.write_table(table.set_column(1, "timestamp", pa.array(times)), path)
    found = ps.from_lerobot(tmp_path, cameras=CAMERAS[:1])[7][CAMERAS[0]]
    assert (found == frames_of(tmp_path, CAMERAS[0])[7]).all()


@pytest.mark.framework
def test_a_folder_that_lerobot_wrote_gives_what_lerobot_reads(tmp_path):
    lerobot = pytest.importorskip("lerobot.datasets.lerobot_dataset")
    names = ["height", "width", "channels"]
    features = {name: {"dtype": "video", "shape": (48, 64, 3), "names": names} for name in CAMERAS}
    features["action"] = {"dtype": "float32", "shape": (2,), "names": None}
    made = lerobot.LeRobotDataset.create("penstock/test", FPS, features, root=tmp_path / "robot")
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        for _ in range(length):
            images = {name: rng.integers(0, 255, (6, 8, 3)).repeat(8, 0).repeat(8, 1).astype("u1") for name in CAMERAS}
            made.add_frame({**images, "action": rng.random(2, np.float32), "task": "move"})
        made.save_episode()
    made.finalize()
    times = {name: [-1 / FPS, 0.0] for name in CAMERAS} | {"action": [k / FPS for k in range(3)]}
    theirs = lerobot.LeRobotDataset(
        "penstock/test", tmp_path / "robot", delta_timestamps=times, return_uint8=True, video_backend="pyav"
    )
    offsets = {name: range(-1, 1) for name in CAMERAS} | {"action": range(3)}
    assert ps.from_lerobot(tmp_path / "robot", task=True)[3]["task"] == theirs[3]["task"]
    ours = ps.from_lerobot(tmp_path / "robot").windows(offsets, groups="episode_index")
    assert len(ours) == len(theirs) == sum(LENGTHS)
    for number in range(len(ours)):
        one, other = ours[number], {name: np.asarray(value) for name, value in theirs[number].items() if name != "task"}
        for name in CAMERAS:
            assert np.abs(one[name].astype(int) - other[name].transpose(0, 2, 3, 1)).max() <= 2  # of other scalers
        assert (one["action"] == other["action"]).all()
        assert all((one["is_pad"][name] == other[f"{name}_is_pad"]).all() for name in offsets)
        assert all(one[name] == other[name] for name in ("timestamp", "frame_index", "episode_index", "index"))


def test_steps_of_an_episode_that_is_not_there_are_named(tmp_path):
    path = folder(tmp_path) / "data" / "chunk-000" / "file-001.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("episode_index")
    episodes = [*table["episode_index"].to_pylist()[:-2], 9, 9]
    pq.write_table(table.set_column(place, "episode_index", pa.array(episodes)), path)
    with pytest.raises(
        ps.SourceError, match=r"file-001\.parquet row group 0 row 8 is of episode 9, and 2 steps are of episodes that"
    ):
        ps.from_lerobot(tmp_path)


def test_images_in_the_table_need_no_path_and_nulls_are_filled(tmp_path):
    for file in (folder(tmp_path) / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = table.append_column("still", pa.array([{"bytes": b"abc", "path": None}] * len(table), kind))
        pq.write_table(table.append_column("force", pa.array([None, *range(1, len(table))], pa.float32())), file)
    info = json.loads((tmp_path / "meta" / "info.json").read_text())
    info["features"]["still"] = {"dtype": "image", "shape": [3, 4, 3]}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    with pytest.raises(
        ps.SourceError, match=r"file-000\.parquet row group 0 row 0 .*'force'.* fill_null=\{'force': 0\}"
    ):
        ps.from_lerobot(tmp_path, cameras=[])[0]
    step = ps.from_lerobot(tmp_path, cameras=[], fill_null={"force": -1})[0]
    assert (bytes(step["still"]["bytes"]), step["still"]["path"], step["force"]) == (b"abc", "", -1)


DEPTH = "observation.images.depth"
CODES = np.array([0, 64, 1024, 1030, 4032, 4095])


def depth_folder(path, info, pix_fmt="gray12le", codes=CODES, **about):
    """A folder of one episode with a depth camera, as LeRobot writes it."""
    for name in ("meta/episodes/chunk-000", "data/chunk-000", f"videos/{DEPTH}/chunk-000"):
        (path / name).mkdir(parents=True)
    features = {DEPTH: {"dtype": "video", "shape": [HEIGHT, WIDTH, 1], "info": info, **about}}
    form = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    said = {"codebase_version": "v3.0", "fps": FPS, "features": features, "video_path": form}
    (path / "meta" / "info.json").write_text(json.dumps(said))
    steps = {"timestamp": (np.arange(len(codes)) / FPS).astype(np.float32), "episode_index": [0] * len(codes)}
    pq.write_table(pa.table(steps), path / "data" / "chunk-000" / "file-000.parquet")
    words = {"chunk_index": [0], "file_index": [0], "from_timestamp": [0.0]}
    episode = {"episode_index": [0]} | {f"videos/{DEPTH}/{word}": value for word, value in words.items()}
    pq.write_table(pa.table(episode), path / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    with av.open(str(path / "videos" / DEPTH / "chunk-000" / "file-000.mp4"), "w") as file:
        stream = file.add_stream("libx265", rate=FPS, width=WIDTH, height=HEIGHT, pix_fmt=pix_fmt)
        stream.options = {"x265-params": "lossless=1:log-level=none"}
        for code in codes:
            values = np.full((HEIGHT, WIDTH), code, np.uint16)
            values[:, 0] = 0
            image = av.VideoFrame.from_ndarray(values, "gray12le").reformat(format=pix_fmt)
            file.mux(stream.encode(image))
        file.mux(stream.encode())
    return path


def logarithmic(codes, least, most, shift):
    low, high = np.log(least + shift), np.log(most + shift)
    return np.exp(low + codes * ((high - low) / 4095)) - shift


SAID = {"video.depth_min": 0.2, "video.depth_max": 5.0, "video.shift": 1.0}


@pytest.mark.parametrize(
    ("info", "about", "metres"),
    [
        ({"is_depth_map": True}, {}, logarithmic(CODES, 0.01, 10.0, 3.5)),
        ({"is_depth_map": True, **SAID, "video.use_log": True}, {}, logarithmic(CODES, 0.2, 5.0, 1.0)),
        ({"is_depth_map": True, **SAID, "video.use_log": False}, {}, 0.2 + CODES * (4.8 / 4095)),
        ({"video.is_depth_map": True, **SAID}, {}, logarithmic(CODES, 0.2, 5.0, 1.0)),
        (SAID, {"video_info": {"video.is_depth_map": True}}, logarithmic(CODES, 0.2, 5.0, 1.0)),
    ],
)
def test_depth_cameras_have_metres(info, about, metres, tmp_path):
    ds = ps.from_lerobot(depth_folder(tmp_path, info, **about))
    assert str(ds.element_spec[DEPTH]) == str(ps.ArraySpec((HEIGHT, WIDTH, 1), np.float32))
    order = [int(i) for i in ps.range(len(CODES)).shuffle(seed=1)]
    for executor in ("inline", "threads"):
        with ds.shuffle(seed=1).batch(4).loader(executor=executor) as loader:
            found = np.concatenate([batch[DEPTH] for batch in loader])
        assert found[:, 3, 5, 0] == pytest.approx(metres[order], rel=1e-5)
        assert (found[:, :, 0] == metres[0].astype(np.float32)).all()
    pair = ds.windows({DEPTH: [-1, 0]}, groups="episode_index")[2][DEPTH]
    assert pair[:, 3, 5, 0] == pytest.approx(metres[1:3], rel=1e-5)
    scaled = ps.from_lerobot(tmp_path, size=(HEIGHT * 2, WIDTH * 2))[4][DEPTH]
    assert set(scaled.ravel().tolist()) == set(metres[[0, 4]].astype(np.float32).tolist())  # none between


@pytest.mark.parametrize("info", [{}, {"is_depth_map": False, "video.pix_fmt": "gray12le"}, None])
def test_a_camera_of_12_bits_that_is_no_depth_camera_has_the_values_of_its_film(info, tmp_path):
    ds = ps.from_lerobot(depth_folder(tmp_path, info))
    assert [step[DEPTH][3, 5].tolist() for step in ds] == [[code] for code in CODES.tolist()]


def test_depth_that_is_not_of_12_bits_or_without_a_range_is_refused(tmp_path):
    for form, said in (("yuv420p", "colours"), ("gray10le", "gray10le")):
        path = depth_folder(tmp_path / form, {"is_depth_map": True}, form)
        with pytest.raises(
            ps.SourceError, match=rf"file-000\.mp4: .* {DEPTH} is a depth camera, and .* are {said}\. D"
        ):
            ps.from_lerobot(path)
        assert len(ps.from_lerobot(path, cameras=[])) == len(CODES)
    wrong = ({"video.depth_min": 10.0}, {"video.shift": -1.0}, {"video.depth_max": "far"})
    for number, each in enumerate(wrong):
        path = depth_folder(tmp_path / str(number), {"is_depth_map": True, **each})
        with pytest.raises(ps.SourceError, match=rf"{DEPTH} is a depth camera, and .*depth_min.* say no metres"):
            ps.from_lerobot(path)


def with_tasks(path):
    """A folder whose steps have tasks."""
    for file in (folder(path) / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.append_column("task_index", table["episode_index"]), file)
    pq.write_table(pa.table({"task_index": range(4), "task": list("abcd")}), path / "meta" / "tasks.parquet")
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*.*") if file.is_file()}


def same(ds, other, executor="inline"):
    with ds.shuffle(seed=1).batch(6).loader(executor) as loader, other.shuffle(seed=1).batch(6).loader() as ours:
        for one, two in zip(loader, ours, strict=True):
            assert all((one[name] == two[name]).all() for name in [*CAMERAS, "action", "task"])


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_folder_in_an_object_store_gives_the_same(executor, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = with_tasks(tmp_path / "robot")
    with serving(Behaviour(latency_s=0.0)) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        for name, data in files.items():
            store.put(f"robots/pusht/{name}", data)
        ds = ps.from_lerobot("s3://robots/pusht", task=True)
        same(ds, ps.from_lerobot(tmp_path / "robot", task=True), executor)
        with pytest.raises(
            ps.SourceError, match=r"s3://robots/none has no meta/info.json to read, as each folder of L"
        ):
            ps.from_lerobot("s3://robots/none")


@pytest.mark.framework
def test_a_folder_on_the_hub_is_read_at_its_commit(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = with_tasks(tmp_path / "robot")
    with hub.serving(monkeypatch, tmp_path / "hf") as server:
        commit = server.commit("robots/pusht", files)
        url = "hf://datasets/robots/pusht"
        ds = ps.from_lerobot(url, task=True)
        first = ds.batch(3)
        with first.loader() as loader:
            next(iter(loader))
            state = loader.get_state()
        server.commit("robots/pusht", {"README.md": b"gone"})
        server.private.add("robots/pusht")
        token = {"token": "hf_secret"}
        with pytest.raises(ps.SourceError, match=r"(?s)hf://datasets/robots/pusht cannot be found: .*hf auth login"):
            ps.from_lerobot(url)
        with pytest.raises(ps.SourceError, match=r"@[0-9a-f]{40} has no meta/info.json to read.*hf auth login"):
            ps.from_lerobot(url, storage_options=token)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")  # a login after the refusal
        with pytest.raises(ps.SourceError, match=r"@[0-9a-f]{40} has no meta/info.json to read.*hf auth login"):
            ps.from_lerobot(url)
        monkeypatch.delenv("HF_TOKEN")
        again = ps.from_lerobot(f"{url}@{commit}", task=True, storage_options=token)
        same(again, ps.from_lerobot(tmp_path / "robot", task=True))
        with again.batch(3).loader() as loader:
            loader.set_state(state)
            assert next(iter(loader))["action"][0, 0] == 6
        moved = server.commit("robots/pusht", files | {"README.md": b"new"})
        assert moved != commit
        newer = ps.from_lerobot(url, task=True, storage_options=token).batch(3)
        with pytest.raises(ps.StateError), newer.loader() as loader:
            loader.set_state(state)
