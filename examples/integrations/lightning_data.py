"""A `DataModule` for Lightning on penstock: checkpoints have the position in the data, in the middle of an epoch, too.

`trainer.fit(model, datamodule=Batches(train, val), ckpt_path="last")`, on any number of devices, of any checkpoint.
Lightning calls `train_dataloader` in each process, when its rank is known; so each makes an adapter of its own.
"""

import lightning


class Batches(lightning.LightningDataModule):
    """Delivers to each process its share of every batch.

    Args:
        train: A dataset whose elements are the batches of all processes together.
        val: Another, for validation, or None.
        options: Of `to_torch`, such as `workers=`.
    """

    def __init__(self, train, val=None, **options):
        super().__init__()
        self._train, self._val, self._options = train, val, options
        self._batches = self._saved = None

    def train_dataloader(self):
        self._batches = self._train.to_torch(shard="auto", **self._options)
        if self._saved:
            self._batches.load_state_dict(self._saved)
        return self._batches

    def val_dataloader(self):
        return [] if self._val is None else self._val.to_torch(training=False, shard="auto", **self._options)

    def state_dict(self):
        return self._batches.state_dict()

    def load_state_dict(self, state_dict):
        self._saved = state_dict

    def teardown(self, stage):
        if self._batches is not None:
            self._batches.close()
