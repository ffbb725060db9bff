"""Lightning, accelerate and transformers, really run in several processes: the same parameters as one process.

Each is saved in mid-epoch, and goes on with another number of ranks. `make test-trainers` installs them; without them
these tests are skipped.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters.ranks import BATCH, DATA, ROWS, STOP, TORCH, one_process, require_success, run_ranks, together

pytestmark = [pytest.mark.framework, pytest.mark.trainers]

QUIET = """
import logging, warnings
warnings.simplefilter("ignore")
for name in ("lightning.pytorch", "accelerate", "transformers"):
    logging.getLogger(name).setLevel(logging.ERROR)
"""

LIGHTNING = (
    DATA
    + TORCH
    + QUIET
    + """
import lightning as L

folder, stop = sys.argv[1], int(sys.argv[2])
seen = []

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = new_model()
    def training_step(self, batch, index):
        seen.append(batch["id"].tolist())
        return ((self.layer(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
    def on_train_batch_end(self, *_):
        if self.trainer.global_step == stop:
            self.trainer.save_checkpoint(folder + "/saved.ckpt")
            self.trainer.should_stop = True
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Data(L.LightningDataModule):
    saved = None
    def train_dataloader(self):
        self.batches = ds.to_torch(shard="auto", executor="threads", workers=1)
        if self.saved:
            self.batches.load_state_dict(self.saved)
        return self.batches
    def state_dict(self):
        return self.batches.state_dict()
    def load_state_dict(self, state):
        self.saved = state

count = int(os.environ["WORLD_SIZE"])
options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = L.Trainer(max_epochs=2, min_epochs=0, accelerator="cpu", strategy="ddp", devices=count, **options)
model, path = Model(), folder + "/saved.ckpt"
trainer.fit(model, datamodule=Data(), ckpt_path=path if os.path.exists(path) else None)
weights = [parameter.detach().tolist() for parameter in model.layer.parameters()]
print("result", json.dumps([seen, weights, trainer.global_step]))
"""
)

ACCELERATE = (
    DATA
    + TORCH
    + QUIET
    + """
from accelerate import Accelerator

folder, stop = sys.argv[1], int(sys.argv[2])
accelerator = Accelerator(cpu=True)
model = new_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
batches = ds.to_torch(shard="auto", device=accelerator.device, executor="threads", workers=1)
accelerator.register_for_checkpointing(batches)
if os.path.exists(folder + "/saved"):
    accelerator.load_state(folder + "/saved")
seen = []
while batches.state_dict()["epoch"] < 2 and not (stop and len(seen) == stop):
    for batch in batches:
        seen.append(batch["id"].tolist())
        accelerator.backward(((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean())
        optimizer.step()
        optimizer.zero_grad()
        if len(seen) == stop:
            accelerator.save_state(folder + "/saved")
            break
weights = [parameter.detach().tolist() for parameter in accelerator.unwrap_model(model).parameters()]
print("result", json.dumps([seen, weights, stop or 10]))
accelerator.end_training()
"""
)

TRANSFORMERS = (
    DATA
    + TORCH
    + QUIET
    + """
from pathlib import Path
from transformers import Trainer, TrainerCallback, TrainingArguments
from penstock.adapters.torch import MapDataset

folder, stop = Path(sys.argv[1]), int(sys.argv[2])
seen = []

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = new_model()
    def forward(self, x, y, id):
        seen.append([id.tolist(), x[:, 0].tolist()])
        return {"loss": ((self.layer(x)[:, 0] - y) ** 2).mean()}

class BatchTrainer(Trainer):
    def __init__(self, *arguments, batches, **options):
        super().__init__(*arguments, **options)
        self.batches = batches
    def get_train_dataloader(self):
        return self.batches

class SaveBatches(TrainerCallback):
    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "batches.json")
            path.write_text(json.dumps(batches.state_dict()))
    def on_step_end(self, args, state, control, **_):
        control.should_save = control.should_training_stop = state.global_step == stop

def arguments(**options):
    return TrainingArguments(
        str(folder), num_train_epochs=2, save_strategy="no", ignore_data_skip=True, remove_unused_columns=False,
        use_cpu=True, report_to=[], disable_tqdm=True, max_grad_norm=0, logging_strategy="no", **options
    )

def sgd(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)

options = arguments(gradient_accumulation_steps=2)
model = Model()
shard = (options.process_index, options.world_size)
batches = ds.to_torch(shard="auto", micro_batches=2, device=options.device, executor="threads", workers=1)
assert batches.loader.arrangement.options.shard == shard
trainer = BatchTrainer(model, options, batches=batches, callbacks=[SaveBatches()], optimizers=sgd(model))
saved = folder / f"checkpoint-{sys.argv[3]}"
if saved.exists():
    batches.load_state_dict(json.loads((saved / "batches.json").read_text()))
    trainer.train(resume_from_checkpoint=str(saved))
else:
    trainer.train()
weights = [parameter.detach().tolist() for parameter in model.layer.parameters()]
ids = [one + two for (one, _), (two, _) in zip(seen[::2], seen[1::2], strict=True)]
print("result", json.dumps([ids, weights, trainer.state.global_step]))

if not stop:
    # Elements by index, in torch's own workers' way: the callback tells the epoch.
    elements = MapDataset(rows.random_map(widened, seed=6))
    class TellEpoch(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **_):
            elements.set_epoch(int(state.epoch))
    seen.clear()
    model = Model()
    Trainer(model, arguments(), train_dataset=elements, callbacks=[TellEpoch()], optimizers=sgd(model)).train()
    print("drawn", json.dumps(seen))
"""
)


def results(outs: list[str]) -> tuple[list[list[int]], list[Any], int]:
    """The global batches, the parameters and the steps of a run."""
    found = [json.loads(line[7:]) for out in outs for line in out.splitlines() if line.startswith("result ")]
    assert len(found) == len(outs)
    return together([json.dumps(seen) for seen, _, _ in found]), found[0][1], found[0][2]


@pytest.mark.parametrize(
    ("package", "script"), [("lightning", LIGHTNING), ("accelerate", ACCELERATE), ("transformers", TRANSFORMERS)]
)
def test_a_trainer_in_any_number_of_ranks_is_one_process(package: str, script: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: make test-trainers")
    options: Any = {"timeout_s": 250, "warnings": ()}
    first, _, steps = results(require_success(run_ranks(script, 2, tmp_path, STOP, 0, **options)))
    assert steps == STOP
    outs = require_success(run_ranks(script, 3, tmp_path, 0, STOP, **options))
    second, weights, steps = results(outs)
    want, batches = one_process()
    # Ranks that take parts in turn have another order within the batch, and the same rows.
    assert [sorted(batch) for batch in first + second] == [sorted(batch) for batch in batches]
    assert sorted(row for batch in (first + second)[5:] for row in batch) == list(range(ROWS))
    assert steps == len(batches) == 10
    for found, wanted in zip(weights, want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    if package == "transformers":
        require_other_numbers_in_each_epoch(outs)


def require_other_numbers_in_each_epoch(outs: list[str]) -> None:
    """An element of a `MapDataset` draws other numbers in the second epoch."""
    drawn: dict[int, list[float]] = {}
    for out in outs:
        (line,) = [line[6:] for line in out.splitlines() if line.startswith("drawn ")]
        for ids, values in json.loads(line):
            for number, value in zip(ids, values, strict=True):
                drawn.setdefault(number, []).append(value)
    assert sorted(drawn) == list(range(ROWS))
    assert all(len(values) == len(set(values)) == 2 for values in drawn.values())


def test_a_share_divides_the_batch_of_these_tests() -> None:
    assert all(BATCH % (2 * count) == 0 for count in (2, 3))
