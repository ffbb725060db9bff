"""A training loop with accelerate that may be killed at any step, and goes on with any number of processes.

`accelerate launch` or `torchrun` start a script that calls `train`, the first time and each time after. The adapter
is not given to `prepare`, which would read it in the first process only. It finds the share of its process itself.
"""

from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration


def train(dataset, model, optimizer, loss_of, folder, *, epochs, save_every, after_step=None, **options):
    """Trains to the end, from the newest checkpoint in `folder` if there is one.

    Args:
        dataset: Its elements are the batches of all processes together.
        model: A module.
        optimizer: One of its parameters.
        loss_of: `loss_of(model, batch)`, the mean over the rows of the batch.
        folder: Of the checkpoints.
        epochs: How many there are in all.
        save_every: Steps.
        after_step: `after_step(loss)`.
        options: Of `Accelerator`.
    """
    places = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(project_config=places, **options)
    model, optimizer = accelerator.prepare(model, optimizer)
    with dataset.to_torch(shard="auto", device=accelerator.device) as batches:
        accelerator.register_for_checkpointing(batches)
        if saved := sorted(Path(folder, "checkpoints").glob("checkpoint_*"), key=lambda path: int(path.name[11:])):
            accelerator.load_state(str(saved[-1]))
            places.iteration = int(saved[-1].name[11:]) + 1
        step = 0
        while batches.state_dict()["epoch"] < epochs:
            for batch in batches:
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step % save_every == 0:
                    accelerator.save_state()
                if after_step:
                    after_step(loss)
    accelerator.end_training()
