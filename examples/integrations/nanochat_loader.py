"""nanochat's data loader on penstock: text to packed rows, which go on exactly with any number of ranks.

In `scripts/base_train.py`, import the two loaders of `nanochat.dataloader` from here instead; nothing else changes.

Text is tokenized once, into two files in nanochat's folder. Rows are packed by best fit over all documents, in an order
that is new in each epoch. As in nanochat every row starts with the BOS token. What is longer than a row goes on in
another, behind a BOS token of its own, so nothing is cropped. Few places stay empty: nanochat ignores the target -1.
"""

import hashlib
import os

import numpy as np
import torch
import torch.distributed as dist
from nanochat.common import get_base_dir, get_dist_info
from nanochat.dataset import list_parquet_files

import penstock as ps


def tokenized(paths, tokenizer, length):
    """Returns all tokens, uint16 `(n,)`, and where documents begin and end. The first rank writes them, once."""
    files, bos = [(os.path.basename(path), os.path.getsize(path)) for path in paths], tokenizer.get_bos_token_id()
    known = repr((files, length, bos, tokenizer.encode("Another tokenizer has other tokens here.")))
    stem = os.path.join(get_base_dir(), "tokens-" + hashlib.sha256(known.encode()).hexdigest()[:16])
    if get_dist_info()[1] == 0 and not os.path.exists(stem + ".npy"):

        def pieces(documents):
            found = tokenizer.encode([str(text) for text in documents["text"]], num_threads=1)
            return [[bos, *ids[at : at + length - 1]] for ids in found for at in range(0, len(ids), length - 1)]

        texts, spec = ps.from_parquet(paths, columns=["text"]), ps.ArraySpec((None,), "uint16")
        found, ends = texts.map(pieces, batched=128, keeps_count=False, element_spec=spec), [np.zeros(1, np.int64)]
        with open(stem + ".bin", "wb") as file, found.ragged_batch(1024).loader(shard=(0, 1)) as batches:
            for tokens, offsets in batches:
                file.write(tokens.tobytes())
                ends.append(offsets[1:] + ends[-1][-1])
        np.save(stem + ".part.npy", np.concatenate(ends))
        os.replace(stem + ".part.npy", stem + ".npy")
    if dist.is_initialized():
        dist.barrier()
    return np.memmap(stem + ".bin", np.uint16, "r"), np.load(stem + ".npy")


def tokenizing_distributed_data_loader_with_state_bos_bestfit(
    tokenizer, B, T, split, device="cuda", resume_state_dict=None, **_
):
    """Yields inputs and targets, int64 `(B, T)`, and the state before them, without end. `B` is the batch of a rank."""
    paths = list_parquet_files()[:-1] if split == "train" else list_parquet_files()[-1:]
    tokens, ends = tokenized(paths, tokenizer, T + 1)
    documents = ps.from_arrays(ps.Ragged(tokens, ends)).shuffle(seed=1)
    rows = documents.pack(T + 1, lengths=np.diff(ends), fit="best").repeat().cast(("int64", "int32"))
    _, rank, _, count = get_dist_info()
    with rows.batch(B * count).to_torch(shard=(rank, count), device=device, pin_memory=device == "cuda") as batches:
        if resume_state_dict is not None:
            batches.load_state_dict(resume_state_dict["loader"])
        state = batches.state_dict()
        for ids, segments in batches:
            names = {"epoch": 0, "pq_idx": 0, "rg_idx": state["position"]}  # which nanochat logs
            targets = torch.where(segments[:, 1:] > 0, ids[:, 1:], -1)
            yield ids[:, :-1].contiguous(), targets, names | {"loader": state}
            state = batches.state_dict()


def tokenizing_distributed_data_loader_bos_bestfit(*args, **options):
    """The same without the states."""
    for inputs, targets, _ in tokenizing_distributed_data_loader_with_state_bos_bestfit(*args, **options):
        yield inputs, targets
