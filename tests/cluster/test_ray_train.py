"""Ray Train, really run: `ds` travels in the config, each worker takes its share, and more workers go on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters.ranks import BATCH, DATA, EPOCHS, ROWS, STOP, TORCH, one_process, together

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.framework,
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore:::ray"),
]


def test_a_run_of_two_workers_goes_on_with_three(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="needs ray[train]")
    import torch
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def train_loop(config: dict[str, Any]) -> None:
        import tempfile
        from pathlib import Path

        import ray.train.torch
        import torch

        names: dict[str, Any] = {}
        exec(config["script"], names)
        model, seen = names["new_model"](), []
        rank = ray.train.get_context().get_world_rank()
        with config["ds"].to_torch(shard="auto", uneven="weights", executor="threads", workers=1) as batches:
            if config["checkpoint"]:
                with config["checkpoint"].as_directory() as folder:
                    saved = torch.load(Path(folder, "saved.pt"))
                model.load_state_dict(saved["model"])
                batches.load_state_dict(saved["data"])
            names["train"](ray.train.torch.prepare_model(model), batches, seen, config["stop"])
            with tempfile.TemporaryDirectory() as folder:
                if rank == 0:
                    torch.save({"model": model.state_dict(), "data": batches.state_dict()}, Path(folder, "saved.pt"))
                saved = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
                ray.train.report({}, checkpoint=saved)
        Path(config["folder"], f"{rank}.json").write_text(json.dumps(seen))

    names: dict[str, Any] = {"__name__": "__main__"}
    exec(DATA, names)
    checkpoint, parts = None, []
    for count, size, stop in ((2, BATCH, STOP), (3, 20, 0)):
        folder = tmp_path / str(count)
        folder.mkdir()
        dataset = names["batches_of"](size)
        done = TorchTrainer(
            train_loop,
            train_loop_config={
                "ds": dataset,
                "checkpoint": checkpoint,
                "script": TORCH,
                "stop": stop,
                "folder": str(folder),
            },
            scaling_config=ScalingConfig(num_workers=count, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=str(tmp_path), name=f"run{count}"),
        ).fit()
        checkpoint = done.checkpoint
        parts += together([(folder / f"{rank}.json").read_text() for rank in range(count)])
    want, batches = one_process((BATCH, STOP), (20, 0))
    assert parts == batches
    assert sorted(row for batch in parts[5:] for row in batch) == list(range(ROWS))
    with checkpoint.as_directory() as last:
        saved = torch.load(Path(last, "saved.pt"))
    assert saved["data"]["epoch"] == EPOCHS
    for found, wanted in zip(saved["model"].values(), want, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=3e-7)  # weights are float32
