"""accelerate, Lightning and transformers, really run in several processes: the losses of one process, to the bit.

`make test-trainers` installs them; without them these tests are skipped.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from tests.examples.integrations.kills import START, STEPS, drawn, require_the_same_losses

pytestmark = [pytest.mark.framework, pytest.mark.trainers]

BATCH, RATE, EPOCHS = 32, 0.125, 3

# Four batches an epoch. Random numbers are drawn in each, and are small integers, too.
DATA = f"""
import numpy as np
import penstock as ps

def widened(row, rng):
    return {{"x": row["x"] + rng.integers(-2, 3, 3), "y": row["y"]}}

draw = np.random.default_rng(0)
x, y = draw.integers(-4, 5, (128, 3)).astype(float), draw.choice([-1.0, 1.0], 128)
ds = ps.from_arrays({{"x": x, "y": y}}).shuffle(seed=5).random_map(widened, seed=6).batch({BATCH})
"""

# The gradient is one of the batch alone, and the loss one of all batches before.
MODEL = (
    START
    + DATA
    + """
import logging, warnings
import torch

warnings.simplefilter("ignore")
for name in ("lightning.pytorch", "accelerate", "transformers"):
    logging.getLogger(name).setLevel(logging.ERROR)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    def forward(self, x, y):
        return ((x @ self.weights) * y).mean()
"""
)

ACCELERATE = (
    MODEL
    + f"""
import accelerate_loop

model = Model()
step = 0
if os.path.exists(folder + "/checkpoints"):
    step = SAVE_EVERY * (1 + max(int(name[11:]) for name in os.listdir(folder + "/checkpoints")))

def loss_of(model, batch):
    kill_if(step)
    return model(batch["x"], batch["y"])

def after_step(loss):
    global step
    write(step, loss)
    step += 1

accelerate_loop.train(
    ds, model, torch.optim.SGD(model.parameters(), lr={RATE}), loss_of, folder, epochs={EPOCHS},
    save_every=SAVE_EVERY, after_step=after_step, cpu=True,
)
"""
)

LIGHTNING = (
    MODEL
    + f"""
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_data import Batches

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def training_step(self, batch, index):
        kill_if(self.global_step)
        loss = self.model(batch["x"], batch["y"])
        write(self.global_step, loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr={RATE})

# Lightning itself restores an adapter from a checkpoint in the middle of an epoch, and not from one of its end.
class SaveEpochs(lightning.Callback):
    def on_train_epoch_end(self, trainer, module):
        trainer.save_checkpoint(last)

saves, last = ModelCheckpoint(folder, every_n_train_steps=SAVE_EVERY, save_last=True), folder + "/last.ckpt"
options = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(
    max_epochs={EPOCHS}, accelerator="cpu", strategy="ddp", devices=count,
    callbacks=[saves, SaveEpochs()], **options
)
trainer.fit(Module(), datamodule=Batches(ds), ckpt_path=last if os.path.exists(last) else None)
"""
)

TRANSFORMERS = (
    MODEL
    + f"""
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from transformers_trainer import BatchTrainer

PARTS = 2
losses = []

class Reporting(Model):
    def forward(self, x, y):
        kill_if(trainer.state.global_step)
        loss = super().forward(x, y)
        losses.append(loss.item())
        if len(losses) == PARTS:
            write(trainer.state.global_step, sum(losses) / PARTS)
            losses.clear()
        return {{"loss": loss}}

arguments = TrainingArguments(
    folder, num_train_epochs={EPOCHS}, save_steps=SAVE_EVERY, gradient_accumulation_steps=PARTS, max_grad_norm=0,
    use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no",
)
model = Reporting()
optimizer = torch.optim.SGD(model.parameters(), lr={RATE})
constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
trainer = BatchTrainer(model, arguments, batches=ds, optimizers=(optimizer, constant))
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
"""
)


def expected() -> dict[int, float]:
    """The losses of a loop with NumPy."""
    names: dict[str, ps.Dataset] = {}
    exec(DATA, names)
    weights, found = np.zeros(3), []
    with names["ds"].loader("inline") as batches:
        for _ in range(EPOCHS):
            for batch in batches:
                found.append(float(((batch["x"] @ weights) * batch["y"]).mean()))
                weights -= RATE * (batch["x"] * batch["y"][:, None]).mean(axis=0)
    assert len(found) == STEPS
    return dict(enumerate(found))


@pytest.mark.parametrize("seed", [9, 17])  # the checkpoint is one of the end of an epoch; of the middle of one
@pytest.mark.parametrize(
    ("package", "script"), [("accelerate", ACCELERATE), ("lightning", LIGHTNING), ("transformers", TRANSFORMERS)]
)
def test_a_killed_trainer_goes_on_with_the_losses_of_one_process(
    package: str, script: str, seed: int, tmp_path: Path
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: make test-trainers")
    require_the_same_losses(script, tmp_path, drawn(seed), expected(), warnings=())
