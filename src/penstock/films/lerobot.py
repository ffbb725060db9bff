"""Folders of LeRobot: steps of episodes in Parquet, and films of cameras.

A folder of version 3 has `meta/info.json`, `meta/episodes/**/*.parquet`, `data/**/*.parquet` with a row for each step,
and for each camera `videos/CAMERA/**/*.mp4` with a frame for each step. A film holds the frames of many episodes; the
table of episodes says in which film one is, and at which time it begins.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import as_float
from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.dataset import Dataset
from penstock.files._diskcache import DiskCache
from penstock.files._hub import LOGIN, at_commit, pinned
from penstock.files._openfile import find
from penstock.films.videos import Metres, VideoSource, from_videos
from penstock.memory._rows import Indices
from penstock.plan._combine import Merged
from penstock.plan._fields import Fields
from penstock.plan._pick import picked
from penstock.plan._source_node import SourceNode
from penstock.tables._constructors import from_parquet
from penstock.verbs._labels import labels_of

Path = str | os.PathLike[str]
_METRES: Final = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5}
"""What LeRobot takes where `meta/info.json` says nothing."""


def from_lerobot(
    path: Path,
    *,
    cameras: Iterable[str] | None = None,
    size: tuple[int, int] | None = None,
    task: bool = False,
    fill_null: Mapping[str, Any] | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the steps of a LeRobot folder, version 3, with the frames of its cameras, without LeRobot.

    An element is a dict of the columns of the step, such as `"observation.state"`, `"action"`, `"timestamp"` and
    `"episode_index"`, and of the frame of each camera by its name, RGB, uint8 of shape `(height, width, 3)`. A policy
    takes some of them at other steps, none of another episode:
    `ds.windows({"observation.images.top": [-1, 0], "action": range(16)}, groups="episode_index")`.

    A depth camera, which `meta/info.json` marks with `is_depth_map`, has metres: float32 of shape `(height, width, 1)`,
    between the least and the most that it says. LeRobot gives millimetres by default, which are 1,000 times as many. A
    film of one channel of more than 8 bits without this mark has the values of the film; see `from_videos`.

    Images that the table itself holds stay the bytes of their files, `{"bytes", "path"}`: decode them in `map`. Those
    of depth cameras are TIFF, uint16 of millimetres or float32 of metres; Pillow reads them.
    A path that is null is `""`.

    The call reads the tables of episodes and of times, and each film once, without decoding it; what is found of a film
    is kept in a hidden file beside it. Frames are read as by `from_videos`.

    The folder may be behind a URL: `s3://bucket/pusht`, or `hf://datasets/owner/name` on the Hugging Face Hub. A plain
    `owner/name` is a local path. What is found of remote films is kept in `$XDG_CACHE_HOME/penstock`, so the first call
    downloads each film once, and later ones do not. On the Hub, the call looks up the commit that `main`, or the
    `@revision` of `hf://datasets/owner/name@revision`, has now, and reads that commit alone. It is part of the
    fingerprint: when the branch has moved, a saved state is refused. Resume with `hf://datasets/owner/name@COMMIT`.

    Random access: yes. Order: that of the table of steps. Memory: 8 bytes a step for each camera; see `from_videos` and
    `from_parquet`.

    Args:
        path: The folder: a local path or a URL.
        cameras: The cameras to read, by name; None for all.
        size: Height and width to scale frames to. Depth gets the nearest value.
        task: Whether elements have `"task"`, the text of what the robot is told, from `meta/tasks.parquet`. For models
            that read no text, the column `"task_index"` is enough.
        fill_null: For columns of steps with nulls, what stands in for them; see `from_parquet`.
        storage_options: See `from_tar`. For `hf://`, `{"token": ...}`; without it, the token of `hf auth login` or
            `HF_TOKEN`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ModuleNotFoundError: PyAV or pyarrow is missing (extras `video`, `parquet`), or for `hf://` huggingface_hub
            (extra `huggingface`).
        ArgumentError: There is no such camera.
        SourceError: The folder is none of LeRobot's, of another version, or damaged; a step has no frame; or the film
            of a depth camera is not of 12 bits (`gray12le`).

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> os.makedirs("pusht/meta"), os.makedirs("pusht/data")  # a small folder, without cameras
        (None, None)
        >>> with open("pusht/meta/info.json", "w") as file:
        ...     json.dump({"codebase_version": "v3.0", "features": {}}, file)
        >>> steps = {"action": [0.0, 1.0, 2.0], "episode_index": [0, 0, 0]}
        >>> pyarrow.parquet.write_table(pyarrow.table(steps), "pusht/data/file-000.parquet")
        >>> ds = penstock.from_lerobot("pusht").windows({"action": range(2)}, groups="episode_index")
        >>> ds[0]["action"], ds[2]["action"]
        (array([0., 1.]), array([2., 2.]))
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"from_lerobot() needs the path of a folder, got {type_of(path)}.")
    access: dict[str, Any] = {"storage_options": storage_options, "cache": cache}
    folder = pinned("from_lerobot", os.fspath(path), storage_options)
    info = _info(folder, access)
    films = _cameras(folder, info)
    names = list(films) if cameras is None else [cameras] if isinstance(cameras, str) else list(cameras)
    if missing := [name for name in names if name not in films]:
        raise ArgumentError(f"from_lerobot(cameras=...): there is no {missing[0]!r:.80}; there are {list(films)}.")
    pattern = os.path.join(folder, "data", "**", "*.parquet")
    table = at_commit(_table(pattern, info["features"], dict(fill_null or {}), access), folder)
    steps = _with_tasks(folder, table, access) if task else table
    if not names:
        return steps
    episode, time = (
        np.asarray(labels_of(steps._node, "from_lerobot()", name)) for name in ("episode_index", "timestamp")
    )
    episodes = _Episodes(folder, names, access)
    source: Any = table._node.opens
    rows = episodes.rows(episode, source.describe)
    beside = [
        _frames(
            folder, name, films[name], *episodes.places(name, rows), time, size, _metres(folder, info, name), access
        )._node
        for name in names
    ]
    return Dataset(Merged((steps._node, *beside), "from_lerobot", ""))


def _info(folder: str, access: dict[str, Any]) -> dict[str, Any]:
    path = os.path.join(folder, "meta", "info.json")
    try:
        (file,) = find("from_lerobot", path, **access)
        found = json.loads(file.head(file.nbytes))
    except SourceError as error:
        login = LOGIN if folder.startswith("hf://") else ""
        raise SourceError(
            f"{folder} has no meta/info.json to read, as each folder of LeRobot has: {error}{login}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read: {error}.") from None
    version = found.get("codebase_version") if isinstance(found, dict) else None
    if not str(version).startswith("v3"):
        raise SourceError(
            f"{path} says version {version!r:.20}, and from_lerobot() reads v3.0. LeRobot converts older ones: python "
            "-m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=..."
        )
    return found  # type: ignore[no-any-return]


def _cameras(folder: str, info: dict[str, Any]) -> dict[str, str]:
    """The path of films of each camera, with places for the numbers of chunk and file."""
    features, form = info.get("features"), info.get("video_path")
    if not isinstance(features, dict):
        raise SourceError(f"{folder}/meta/info.json has no features. Write it anew, or download it again.")
    names = [name for name, about in features.items() if isinstance(about, dict) and about.get("dtype") == "video"]
    if not names:
        return {}
    if not isinstance(form, str) or not form.isprintable() or ".." in form or os.path.isabs(form):
        raise SourceError(f"{folder}/meta/info.json: video_path is {form!r:.80}, which names no files of this folder.")
    if strange := [name for name in names if not re.fullmatch(r"[\w.\-]+", name) or ".." in name]:
        raise SourceError(f"{folder}/meta/info.json: {strange[0]!r:.80} is no name of a camera.")
    return {name: form.replace("{video_key}", name) for name in names}


def _metres(folder: str, info: dict[str, Any], camera: str) -> Metres | None:
    """How the film of a depth camera stores metres; None for a camera of colours."""
    about = info["features"][camera]
    said, old = (each if isinstance(each := about.get(name), dict) else {} for name in ("info", "video_info"))
    if not (said.get("is_depth_map") or said.get("video.is_depth_map") or old.get("video.is_depth_map")):
        return None
    values = {name: said.get(f"video.{name}") for name in (*_METRES, "use_log")}
    numbers = [default if values[name] is None else as_float(values[name]) for name, default in _METRES.items()]
    least, most, shift = (math.nan if each is None else each for each in numbers)
    is_log = values["use_log"] is None or bool(values["use_log"])
    if not (math.isfinite(most + shift) and least < most and (least + shift > 0 or not is_log)):
        raise SourceError(f"{folder}/meta/info.json: {camera} is a depth camera, and {values} say no metres.")
    return Metres(least, most, shift, is_log)


def _table(pattern: str, features: Mapping[str, Any], fill_null: dict[str, Any], access: dict[str, Any]) -> Dataset:
    """The steps. Writers of images leave out their paths."""
    images = [name for name, about in features.items() if isinstance(about, dict) and about.get("dtype") == "image"]
    if images:
        spec = from_parquet(pattern, **access).element_spec
        named = [name for name in images if isinstance(spec.get(name), dict) and "path" in spec[name]]
        fill_null = {f"{name}.path": "" for name in named} | fill_null
    return from_parquet(pattern, fill_null=fill_null or None, **access)


class _Episodes:
    """The table of episodes: where in the films of some cameras each of them is."""

    def __init__(self, folder: str, cameras: Iterable[str], access: dict[str, Any]) -> None:
        self._folder = folder
        words = ["episode_index", *(word for camera in cameras for word in _words(camera))]
        table = from_parquet(os.path.join(folder, "meta", "episodes", "**", "*.parquet"), columns=words, **access)
        self._columns = {word: np.asarray(labels_of(table._node, "from_lerobot()", word)) for word in words}

    def rows(self, episodes: npt.NDArray[Any], describe: Callable[[int], str]) -> Indices:
        """The row of the episode of each step.

        Args:
            episodes: The episode of each step.
            describe: Names a step.

        Raises:
            SourceError: An episode has none.
        """
        numbers = self._columns["episode_index"]
        missing = ~np.isin(episodes, numbers)
        if missing.any():
            step = int(missing.argmax())
            raise SourceError(
                f"{self._folder}: {describe(step)} is of episode {episodes[step]}, and {missing.sum():,} steps are of "
                "episodes that meta/episodes does not have. Download the folder again."
            )
        order = np.argsort(numbers, kind="stable")
        return order[np.searchsorted(numbers[order], episodes)]

    def places(self, camera: str, rows: Indices) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The chunk and file of films of a camera, shape `(n, 2)`, and the seconds at which episodes begin there."""
        chunk, file, start = (self._columns[word][rows] for word in _words(camera))
        return np.stack([chunk, file], axis=1), start


def _with_tasks(folder: str, steps: Dataset, access: dict[str, Any]) -> Dataset:
    """Adds the text of the task of each step."""
    path = os.path.join(folder, "meta", "tasks.parquet")
    try:
        table = from_parquet(path, **access)
    except SourceError as error:
        raise SourceError(f"{path}, which task=True needs: {error} Or use the column 'task_index'.") from error
    others = [name for name in table.element_spec if name != "task_index"]
    if len(others) != 1 or len(others) == len(table.element_spec):
        raise SourceError(f"{path} has columns {list(table.element_spec)}, and no number and text of each task.")
    try:  # pandas names the text, if the writer does not
        return steps.join(table.rename({others[0]: "task"}), on="task_index")
    except ArgumentError as error:
        raise SourceError(
            f"{folder}: its steps do not fit its meta/tasks.parquet: {error} Download it again."
        ) from error


def _words(camera: str) -> list[str]:
    return [f"videos/{camera}/{word}" for word in ("chunk_index", "file_index", "from_timestamp")]


def _frames(
    folder: str,
    camera: str,
    form: str,
    places: npt.NDArray[Any],
    starts: npt.NDArray[Any],
    time: npt.NDArray[Any],
    size: tuple[int, int] | None,
    metres: Metres | None,
    access: dict[str, Any],
) -> Dataset:
    """The frames of a camera, one for each step."""
    films, film = np.unique(places, axis=0, return_inverse=True)
    paths = [os.path.join(folder, _named(form, int(chunk), int(file))) for chunk, file in films]
    try:
        frames = from_videos(paths, size=size, **access)
    except SourceError as error:
        error.add_note(f"It is a film of {camera} in the folder {folder}, as meta/info.json and meta/episodes say.")
        raise
    source: Any = frames._node.opens
    assert isinstance(source, VideoSource)
    if metres is not None:
        if source.form not in ("gray12le", "gray12be"):
            raise SourceError(
                f"{paths[0]}: meta/info.json says that {camera} is a depth camera, and its frames are "
                f"{source.form or 'colours'}. Depth is read from films of gray12le. Leave it out, "
                "from_lerobot(cameras=[...]), or read its films by from_videos()."
            )
        source = replace(source, metres=metres)
        frames = Dataset(SourceNode(source, "from_videos"))
    wanted, found = starts + time, np.empty(len(time), np.int64)
    for number, path in enumerate(paths):
        mine = np.flatnonzero(film.ravel() == number)
        times = source.times(number)
        step_s = float(np.median(np.diff(times))) if len(times) > 1 else 1.0
        nearest = np.minimum(np.searchsorted(times + step_s / 2, wanted[mine]), len(times) - 1)
        if len(late := mine[np.abs(times[nearest] - wanted[mine]) > 0.51 * step_s]):
            raise SourceError(
                f"{path} has no frame at {wanted[late[0]]:.3f} s, where step {late[0]} of the folder is, and "
                f"{len(late)} steps lack theirs. Download it again."
            )
        found[mine] = nearest + source.bounds[number]
    chosen = picked(frames.select("frame")._node, found)
    return Dataset(Fields(chosen, "rename", (("frame", camera),), keeps_others=True))


def _named(form: str, chunk: int, file: int) -> str:
    """The path of a film; the form is that of Python, of which two names and widths are read."""
    numbers = {"chunk_index": chunk, "file_index": file}

    def text(match: re.Match[str]) -> str:
        return f"{numbers[match[1]]:0{match[2] or 1}d}"

    return re.sub(r"\{(chunk_index|file_index)(?::0(\d)d)?\}", text, form)
