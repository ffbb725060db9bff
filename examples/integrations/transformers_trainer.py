"""Hugging Face's `Trainer` on penstock: each checkpoint has the position in the data, for any number of processes.

Write `BatchTrainer(model, arguments, batches=dataset)` in place of `Trainer`, then `train(resume_from_checkpoint=True)`
if there is a checkpoint. The position lies in the checkpoint's folder, as `batches.json`.
"""

import json
from pathlib import Path

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint


class BatchTrainer(Trainer):
    """Trains on batches that the dataset makes, in place of elements that a `DataLoader` stacks.

    Args:
        model: As for `Trainer`.
        args: As for `Trainer`. A batch is a step of the optimizer, so `gradient_accumulation_steps` says in how many
            parts it arrives. The sizes of batches in it are not used.
        batches: A dataset whose elements are the batches of all processes together, as dicts that the model takes.
        options: Of `Trainer`.
    """

    def __init__(self, model, args, *, batches, **options):
        args.ignore_data_skip = True  # or it would draw and discard what was trained on
        args.remove_unused_columns = False
        super().__init__(model, args, **options)
        parts = args.gradient_accumulation_steps
        self.batches = batches.to_torch(shard="auto", micro_batches=parts, device=args.device)
        self.add_callback(_SavePosition(self.batches))

    def get_train_dataloader(self):
        return self.batches

    def train(self, resume_from_checkpoint=None, **options):
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            position = Path(resume_from_checkpoint, "batches.json").read_text()
            self.batches.load_state_dict(json.loads(position))
        return super().train(resume_from_checkpoint, **options)


class _SavePosition(TrainerCallback):
    def __init__(self, batches):
        self._batches = batches

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "batches.json")
            path.write_text(json.dumps(self._batches.state_dict()))
