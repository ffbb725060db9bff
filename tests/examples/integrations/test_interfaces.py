"""Loaders for trainers that the tests do not install: each is tried on the interface that the trainer's loop uses."""

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.adapters.ranks import Launcher
from tests.examples.integrations.kills import EXAMPLES, TORCH, drawn, require_the_same_losses
from tests.films.test_lerobot import CAMERAS, LENGTHS, folder as lerobot_folder

pytestmark = pytest.mark.framework


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def write_stubs(folder: Path, **modules: str) -> None:
    """What an example imports of a trainer, in packages; `__` stands for a dot."""
    for name, text in modules.items():
        path = folder / "stubs" / Path(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_texts(folder: Path) -> None:
    """Three files of text; the last one is nanochat's for validation."""
    (folder / "data").mkdir()
    draw = np.random.default_rng(0)
    for number in range(3):
        words = [" ".join(draw.choice(["red", "green", "blue"], size)) for size in draw.geometric(0.1, 60)]
        pq.write_table(pa.table({"text": words}), folder / "data" / f"{number}.parquet", row_group_size=20)


TOKENIZER = """
class Tokenizer:  # of bytes
    def get_bos_token_id(self):
        return 256
    def encode(self, text, num_threads=8, add_bos=False, add_eos=False):
        if isinstance(text, str):
            return [256] * add_bos + list(text.encode()) + [257] * add_eos
        return [list(each.encode()) for each in text]
"""

NANOCHAT = (
    TORCH
    + TOKENIZER
    + """
from nanochat_loader import tokenizing_distributed_data_loader_with_state_bos_bestfit as loader_of

B, T, ROWS = 2, 64, 16
meta, path = {"step": 0, "dataloader_state_dict": None}, folder + "/saved.pt"
if os.path.exists(path):
    meta = torch.load(path)
    weights.copy_(meta["weights"])
batches = loader_of(Tokenizer(), B, T, split="train", device="cpu", resume_state_dict=meta["dataloader_state_dict"])
x, y, state = next(batches)
for step in range(meta["step"], STEPS):
    if step % SAVE_EVERY == 0 and rank == 0:
        torch.save({"step": step, "dataloader_state_dict": state, "weights": weights}, path + ".part")
        os.replace(path + ".part", path)
    for _ in range(ROWS // (B * count)):
        assert x.shape == y.shape == (B, T) and x.dtype == y.dtype == torch.int64 and (x[:, 0] == 256).all()
        assert ((y[:, :-1] == x[:, 1:]) | (y[:, :-1] == -1)).all()
        learn_from(x[y >= 0], 1 - 2 * (y[y >= 0] % 2))
        kill_if(step)
        x, y, state = next(batches)
    end_step(step)
batches.close()
"""
)


@pytest.mark.parametrize("seed", [0, 5])
def test_nanochats_loop_goes_on_exactly(seed: int, launcher: Launcher, tmp_path: Path) -> None:
    write_texts(tmp_path)
    common = """
import os
import torch.distributed as dist

def get_base_dir():
    return os.environ["FOLDER"]
def get_dist_info():
    return (True, dist.get_rank(), dist.get_rank(), dist.get_world_size())
"""
    dataset = """
import os

def list_parquet_files():
    folder = os.environ["FOLDER"] + "/data"
    return sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".parquet"))
"""
    write_stubs(tmp_path, nanochat__common=common, nanochat__dataset=dataset)
    env = {"FOLDER": str(tmp_path)}
    require_the_same_losses(NANOCHAT, tmp_path, drawn(seed), launcher=launcher, env=env)
    (ends,), (tokens,) = tmp_path.glob("tokens-*.npy"), tmp_path.glob("tokens-*.bin")  # once, for all runs
    pieces = np.split(np.fromfile(tokens, np.uint16), np.load(ends)[1:-1])
    assert all(piece[0] == 256 and len(piece) <= 65 for piece in pieces)
    texts = [text for path in sorted((tmp_path / "data").iterdir())[:-1] for text in pq.read_table(path)["text"]]
    assert np.concatenate([piece[1:] for piece in pieces]).astype(np.uint8).tobytes().decode() == "".join(
        map(str, texts)
    )


TORCHTITAN = (
    TORCH
    + TOKENIZER
    + """
import torch.distributed.checkpoint as dcp
from torchtitan_loader import PackedTextDataLoader

config, LENGTH, ROWS, SIZE = PackedTextDataLoader.Config(dataset_path=folder + "/data/*.parquet"), 64, 16, 2
loader = config.build(
    dp_world_size=count, dp_rank=rank, tokenizer=Tokenizer(), seq_len=LENGTH, local_batch_size=SIZE,
    snapshot_every_n_steps=1,
)
class Progress:
    step = 0
    def state_dict(self):
        return {"step": self.step}
    def load_state_dict(self, state):
        self.step = state["step"]

progress, path = Progress(), folder + "/saved"
states = {"dataloader": loader, "train_state": progress, "weights": weights}
if os.path.exists(path):
    dcp.load(states, checkpoint_id=path)
batches = iter(loader)
for step in range(progress.step, STEPS):
    if step % SAVE_EVERY == 0 and step > progress.step:
        progress.step = step
        dcp.save(states, checkpoint_id=f"{path}-{step}")
        if rank == 0:
            if os.path.exists(path):
                os.unlink(path)
            os.symlink(f"{path}-{step}", path)
        dist.barrier()
    for _ in range(ROWS // (SIZE * count)):
        inputs, labels = next(batches)
        tokens, positions, known = inputs["input"], inputs["positions"], labels != -100
        assert tokens.shape == positions.shape == labels.shape == (SIZE, LENGTH)
        assert tokens.dtype == positions.dtype == labels.dtype == torch.int64
        assert (tokens[:, 1:][known[:, :-1]] == labels[:, :-1][known[:, :-1]]).all()
        assert (positions[:, 1:][known[:, :-1]] == positions[:, :-1][known[:, :-1]] + 1).all()
        learn_from(tokens[known], 1 - 2 * (labels[known] % 2))
        kill_if(step)
    end_step(step)
loader.close()
"""
)

TITAN_LOADER = """
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from torch.distributed.checkpoint.stateful import Stateful

class BaseDataLoader(Stateful, ABC):
    @dataclass(kw_only=True, slots=True)
    class Config:
        dataset: str = ""
        dataset_path: str | None = None
        def build(self, **options):
            return self.owner(config=replace(self), **options)
    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        cls.Config.owner = cls
    @abstractmethod
    def __iter__(self):
        ...
"""


def test_torchtitans_loader_goes_on_with_another_data_parallel_degree(launcher: Launcher, tmp_path: Path) -> None:
    write_texts(tmp_path)
    loss = "IGNORE_INDEX = -100\n"
    if importlib.util.find_spec("torchtitan") is None:
        write_stubs(tmp_path, torchtitan__components__dataloader=TITAN_LOADER, torchtitan__components__loss=loss)
    require_the_same_losses(TORCHTITAN, tmp_path, drawn(7), launcher=launcher)


# LeRobot's script, as far as it touches batches; and a configuration, a dataset and ranks with what it reads of these.
LEROBOT_TRAIN = """
from pathlib import Path
from types import SimpleNamespace

def make_dataloaders(*_):
    raise AssertionError("it is replaced")

def save_checkpoint(checkpoint_dir, step, **options):
    (checkpoint_dir / "training_state").mkdir(parents=True, exist_ok=True)

def cycle(iterable):
    iterator = iter(iterable)
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            iterator = iter(iterable)

def main(cfg, dataset, parallel_dims, step, update, after_step):
    batches, _ = make_dataloaders(cfg, dataset, None, step, parallel_dims)
    iterator = cycle(batches)
    for _ in range(step, cfg.steps):
        update(step, next(iterator))
        step += 1
        if step % cfg.save_freq == 0:
            checkpoint_dir = Path(cfg.output_dir, "checkpoints", f"{step:06}")
            save_checkpoint(checkpoint_dir=checkpoint_dir, step=step, cfg=cfg)
            after_step(checkpoint_dir, step)
    batches.adapter.close()
"""

LEROBOT = (
    TORCH
    + """
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import lerobot_loop
from lerobot.scripts import lerobot_train

lengths, cameras = json.load(open(folder + "/data/about.json"))
ends = np.cumsum(lengths)
saved, step = Path(folder, "last"), 0
if saved.exists():
    found = torch.load(saved / "training_state" / "weights.pt")
    step = found["step"]
    weights.copy_(found["weights"])
cfg = SimpleNamespace(
    batch_size=4 // count, seed=3, steps=STEPS, save_freq=SAVE_EVERY, output_dir=folder, resume=step > 0,
    checkpoint_path=saved, trainable_config=SimpleNamespace(drop_n_last_frames=1),
)
episodes = {"dataset_from_index": (ends - lengths).tolist(), "dataset_to_index": ends.tolist()}
dataset = SimpleNamespace(
    root=folder + "/data", episodes=[0, 2, 3], meta=SimpleNamespace(episodes=episodes, camera_keys=cameras),
    reader=SimpleNamespace(delta_indices={cameras[0]: [-1, 0], "action": [0, 1, 2]}),
)

def update(step, batch):
    size = cfg.batch_size
    assert batch["action"].shape == (size, 3, 2) and batch["action_is_pad"].shape == (size, 3)
    assert batch[cameras[0]].shape == (size, 2, 3, 48, 64) and batch[cameras[0]].dtype == torch.uint8
    assert batch[cameras[1]].shape == (size, 3, 48, 64) and batch["frame_index"].shape == (size,)
    assert set(batch["task"]) <= {"lift", "turn"} and not (batch["episode_index"] == 1).any()
    learn_from(batch["action"], 1 - 2 * batch["action_is_pad"][..., None].expand(-1, -1, 2).long())
    learn_from(batch[cameras[0]][:, 0, :, ::16, ::16], torch.ones(size, 3, 3, 4))
    kill_if(step)
    end_step(step)

def after_step(checkpoint_dir, step):
    if rank == 0:
        torch.save({"step": step, "weights": weights}, checkpoint_dir / "training_state" / "weights.pt")
        if saved.is_symlink():
            saved.unlink()
        saved.symlink_to(checkpoint_dir)
    dist.barrier()

lerobot_train.main(cfg, dataset, SimpleNamespace(dp_rank=rank, dp_world_size=count), step, update, after_step)
"""
)


def test_lerobots_loop_goes_on_exactly(launcher: Launcher, tmp_path: Path) -> None:
    data = lerobot_folder(tmp_path / "data")
    for file in (data / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.append_column("task_index", pa.array(table["episode_index"].to_numpy() % 2)), file)
    pq.write_table(pa.table({"task_index": [0, 1], "task": ["lift", "turn"]}), data / "meta" / "tasks.parquet")
    (data / "about.json").write_text(json.dumps([LENGTHS, CAMERAS]))
    write_stubs(tmp_path, lerobot__scripts__lerobot_train=LEROBOT_TRAIN)
    require_the_same_losses(LEROBOT, tmp_path, drawn(52), launcher=launcher)


def test_each_integration_is_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        tree = ast.parse(path.read_text())
        described = {
            line
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)
            for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        }
        lines = enumerate(path.read_text().splitlines(), 1)
        assert sum(bool(line.strip()) and number not in described for number, line in lines) <= 60, path.name
