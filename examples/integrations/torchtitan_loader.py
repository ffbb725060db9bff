"""torchtitan's data loader on penstock: Parquet files of text to packed rows, which go on with any number of ranks.

In a configuration of torchtitan: `dataloader=PackedTextDataLoader.Config(dataset_path="c4/*.parquet")`. What
torchtitan 0.3 has refuses a checkpoint of another data-parallel degree.

Text is tokenized by worker processes while the model trains. The first run tokenizes once more, for the lengths, which
are kept beside the files: start that in one process, or each rank does it.
"""

import json
from dataclasses import dataclass

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX

import penstock as ps


class PackedTextDataLoader(BaseDataLoader):
    """Batches of full rows, without end: `input` and `positions`, int64 `(local_batch_size, seq_len)`, and labels."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        column: str = "text"
        seed: int = 42

    def __init__(self, config, *, dp_world_size, dp_rank, tokenizer, seq_len, local_batch_size, **_):
        column = config.column  # what goes to workers is this and the tokenizer

        def encode(row):
            return tokenizer.encode(str(row[column]), add_bos=True, add_eos=True)

        texts, spec = ps.from_parquet(config.dataset_path, columns=[column]), ps.ArraySpec((None,), "int64")
        lengths = texts.map(encode, element_spec=spec).lengths()
        documents = texts.shuffle(seed=config.seed).map(encode, element_spec=spec)
        rows = documents.pack(seq_len + 1, lengths=lengths, fit="best", positions=True).repeat()
        batches = rows.batch(local_batch_size * dp_world_size)
        self._batches = batches.to_torch(shard=(dp_rank, dp_world_size))

    def __iter__(self):
        for tokens, segments, positions in self._batches:
            is_next = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)  # a token of the same document
            labels = torch.where(is_next, tokens[:, 1:], IGNORE_INDEX)
            yield {"input": tokens[:, :-1].contiguous(), "positions": positions[:, :-1].long()}, labels

    def state_dict(self):
        """The same in all ranks; one value, because a checkpoint is read by the keys that a new loader has."""
        return {"penstock": json.dumps(self._batches.state_dict())}

    def load_state_dict(self, state_dict):
        if state_dict:
            self._batches.load_state_dict(json.loads(state_dict["penstock"]))

    def close(self):
        self._batches.close()
