"""Elements by index in the `Trainer` of transformers: each epoch draws other numbers, in each of several ranks.

Batches in accelerate, Lightning and transformers: tests/examples/integrations/test_trainers.py.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.adapters.ranks import DATA, ROWS, TORCH, require_success, run_ranks

pytestmark = [pytest.mark.framework, pytest.mark.trainers]

# In the way of torch's own workers: the callback tells the epoch.
SCRIPT = (
    DATA
    + TORCH
    + """
import logging, warnings
from transformers import Trainer, TrainerCallback, TrainingArguments
from penstock.adapters.torch import MapDataset

warnings.simplefilter("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)
seen = []

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = new_model()
    def forward(self, x, y, id):
        seen.append([id.tolist(), x[:, 0].tolist()])
        return {"loss": ((self.layer(x)[:, 0] - y) ** 2).mean()}

class TellEpoch(TrainerCallback):
    def on_epoch_begin(self, args, state, control, **_):
        elements.set_epoch(int(state.epoch))

arguments = TrainingArguments(
    sys.argv[1], num_train_epochs=2, save_strategy="no", remove_unused_columns=False, use_cpu=True, report_to=[],
    disable_tqdm=True, logging_strategy="no",
)
elements = MapDataset(rows.random_map(widened, seed=6))
Trainer(Model(), arguments, train_dataset=elements, callbacks=[TellEpoch()]).train()
print(json.dumps(seen))
"""
)


def test_an_element_of_a_map_dataset_draws_other_numbers_in_each_epoch(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers: make test-trainers")
    drawn: dict[int, list[float]] = {}
    for out in require_success(run_ranks(SCRIPT, 3, tmp_path, timeout_s=250, warnings=())):
        for ids, values in json.loads(out.splitlines()[-1]):
            for number, value in zip(ids, values, strict=True):
                drawn.setdefault(number, []).append(value)
    assert sorted(drawn) == list(range(ROWS))
    assert all(len(values) == len(set(values)) == 2 for values in drawn.values())
