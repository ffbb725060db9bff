"""LeRobot's training on penstock: `python lerobot_loop.py`, with the arguments of `lerobot-train`.

Two functions of LeRobot's script are replaced: the one that makes its data loaders, and the one that saves a
checkpoint, which then has the position in the data, too. So a run goes on exactly with another batch size and number of
ranks, where LeRobot warns that it does not. Evaluation keeps LeRobot's loader.
"""

import json

import numpy as np
from lerobot.scripts import lerobot_train

import penstock as ps

_NAME = "training_state/penstock.json"
_make_dataloaders, _save_checkpoint = lerobot_train.make_dataloaders, lerobot_train.save_checkpoint


class Batches:
    """Batches as LeRobot's, without end: frames have channels first, and `"action_is_pad"` stands beside `"action"`."""

    def __init__(self, cfg, dataset, parallel_dims):
        first, last = (np.asarray(dataset.meta.episodes[f"dataset_{name}_index"]) for name in ("from", "to"))
        used = slice(None) if dataset.episodes is None else list(dataset.episodes)
        last = last - getattr(cfg.trainable_config, "drop_n_last_frames", 0)
        places = np.concatenate([np.arange(*each) for each in zip(first[used], last[used], strict=True)])
        steps = ps.from_lerobot(dataset.root, task=True)
        if offsets := dataset.reader.delta_indices:
            steps = steps.windows(offsets, groups="episode_index")
        rows = steps[places].shuffle(seed=cfg.seed or 0).repeat()
        self.rank, count = parallel_dims.dp_rank, parallel_dims.dp_world_size
        self.adapter = rows.batch(cfg.batch_size * count).to_torch(shard=(self.rank, count))
        self._cameras = dataset.meta.camera_keys
        if cfg.resume:
            self.adapter.load_state_dict(json.loads((cfg.checkpoint_path / _NAME).read_text()))

    def __iter__(self):
        for batch in self.adapter:
            found = {f"{name}_is_pad": mask for name, mask in batch.pop("is_pad", {}).items()}
            found |= {name: batch[name].movedim(-1, -3) for name in self._cameras}
            yield batch | found | {"task": batch["task"].tolist()}


def make_dataloaders(cfg, dataset, eval_dataset, step, parallel_dims):
    """In place of LeRobot's function of this name. `accelerator.prepare` leaves our batches as they are."""
    evaluation = _make_dataloaders(cfg, dataset, eval_dataset, step, parallel_dims)[1] if eval_dataset else None
    make_dataloaders.batches = Batches(cfg, dataset, parallel_dims)
    return make_dataloaders.batches, evaluation


def save_checkpoint(checkpoint_dir, **options):
    """In place of LeRobot's. The position is the same in all ranks."""
    _save_checkpoint(checkpoint_dir=checkpoint_dir, **options)
    batches = make_dataloaders.batches
    if batches.rank == 0:
        (checkpoint_dir / _NAME).write_text(json.dumps(batches.adapter.state_dict()))


lerobot_train.make_dataloaders, lerobot_train.save_checkpoint = make_dataloaders, save_checkpoint
if __name__ == "__main__":
    lerobot_train.main()
