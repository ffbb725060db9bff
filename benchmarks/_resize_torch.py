"""Contenders of `resize.py` on torch's DataLoader: accelerate, torchdata, Hugging Face datasets, torchtitan, Lhotse.

Random numbers come from torch's generator, as its documentation has it. The ranks of a life are simulated in one
process, so each has a state of that generator of its own, seeded with its rank.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _harness import Array
from _resize_compare import Unit
from _resize_contenders import recorded
from _resize_jobs import (
    CORPUS_COUNTS,
    ELEMENT_COUNT,
    MAX_TOKENS,
    ROW,
    SEED,
    WEIGHTS,
    Phase,
    augment,
    caption_lengths,
    corpus,
    is_good,
    picture,
)
from _resize_runs import Contender, NotOfferedError, Ranks


class Numbers:
    """A map-style dataset: a number, and one that torch draws."""

    def __len__(self) -> int:
        return ELEMENT_COUNT

    def __getitem__(self, number: int) -> tuple[int, float]:
        import torch

        return number, float(torch.rand((), dtype=torch.float64))


def as_arrays(elements: list[tuple[int, float]]) -> tuple[Array, Array]:
    """Is the `collate_fn`: two arrays."""
    return np.array([number for number, _ in elements]), np.array([draw for _, draw in elements])


class RankGenerators:
    """A state of torch's global generator for each rank, in use while that rank works."""

    def __init__(self, count: int, states: list[Any] | None = None) -> None:
        import torch

        self.states = []
        for rank in range(count):
            torch.manual_seed(SEED + rank)
            self.states.append(states[rank] if states and rank < len(states) else torch.get_rng_state())

    def within(self, rank: int, work: Callable[[], Any]) -> Any:
        import torch

        torch.set_rng_state(self.states[rank])
        result = work()
        self.states[rank] = torch.get_rng_state()
        return result


def ranks_of(
    phase: Phase,
    generators: RankGenerators,
    loaders: list[Any],
    state: Callable[[], Any],
    record: Callable[[Any], list[Unit]],
    micro: int = 1,
) -> Ranks:
    """Returns ranks that take `micro` batches of their loader in a step, each with its generator."""
    iterators: list[Iterator[Any]] = [
        generators.within(rank, lambda each=each: iter(each)) for rank, each in enumerate(loaders)
    ]

    def part(rank: int) -> list[Any]:
        return [generators.within(rank, lambda: next(iterators[rank])) for _ in range(micro)]

    return Ranks([lambda rank=rank: part(rank) for rank in range(phase.ranks)], record, state)  # type: ignore[misc]


def divided(phase: Phase) -> int:
    """Returns the elements that a rank takes at a time; of ranks that divide nothing, those of a smaller step."""
    return phase.batch // (phase.ranks * phase.micro)


def _accelerate(job: str, phase: Phase, state: Any) -> Ranks:
    """Its guide on checkpoints: `skip_first_batches`, a seedable sampler, and the generators of `save_state`.

    `split_batches=True` makes the size of a batch that of all ranks.
    """
    from accelerate.data_loader import prepare_data_loader, skip_first_batches
    from torch.utils.data import DataLoader

    generators = RankGenerators(phase.ranks, state and state["generators"])
    done = state["elements"] if state else 0
    if done % phase.batch:
        raise NotOfferedError("skip_first_batches(dataloader, num_batches) counts batches of one size")
    taken = 0
    loaders = []
    for rank in range(phase.ranks):
        plain = DataLoader(
            Numbers(), phase.batch, shuffle=True, num_workers=phase.workers, collate_fn=as_arrays, drop_last=True
        )
        loader = prepare_data_loader(
            plain,
            num_processes=phase.ranks,
            process_index=rank,
            split_batches=True,
            put_on_device=False,
            use_seedable_sampler=True,
            data_seed=SEED,
        )
        loaders.append(skip_first_batches(loader, done // phase.batch) if done else loader)
    ranks = ranks_of(phase, generators, loaders, dict, recorded(job))

    def last(take: Callable[[], list[Any]] = ranks.parts[-1]) -> list[Any]:
        nonlocal taken
        found = take()
        taken += phase.batch
        return found

    def saved() -> Any:
        return {"elements": done + taken, "generators": generators.states}

    return Ranks([*ranks.parts[:-1], last], ranks.record, saved)


def _stateful(job: str, phase: Phase, state: Any) -> Ranks:
    """Its tutorial: a StatefulDataLoader with a StatefulDistributedSampler. Other ranks load the states, too."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    generators = RankGenerators(phase.ranks)
    loaders = []
    for rank in range(phase.ranks):
        sampler = StatefulDistributedSampler(Numbers(), phase.ranks, rank, shuffle=True, seed=SEED, drop_last=True)
        loader = StatefulDataLoader(
            Numbers(), divided(phase), sampler=sampler, num_workers=phase.workers, collate_fn=as_arrays, drop_last=True
        )
        if state is not None:
            loader.load_state_dict(state[min(rank, len(state) - 1)])
        loaders.append(loader)
    return ranks_of(
        phase, generators, loaders, lambda: [each.state_dict() for each in loaders], recorded(job), phase.micro
    )


def _number_of(example: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {"number": example["number"], "draw": float(torch.rand((), dtype=torch.float64))}


def _examples(examples: list[dict[str, Any]]) -> tuple[Array, Array]:
    return as_arrays([(each["number"], each["draw"]) for each in examples])


def _require_same_ranks(state: Any, phase: Phase) -> None:
    if state is not None and (state["ranks"], state["batch"]) != (phase.ranks, phase.batch):
        raise NotOfferedError("a state for each rank, and no way to give it to others")


def _hugging_face(job: str, phase: Phase, state: Any) -> Ranks:
    """Its guide on streaming: `shuffle` with a buffer, `split_dataset_by_node`, and a StatefulDataLoader."""
    import datasets
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    datasets.disable_progress_bars()
    _require_same_ranks(state, phase)
    whole = datasets.Dataset.from_dict({"number": np.arange(ELEMENT_COUNT)}).to_iterable_dataset(num_shards=192)
    shuffled = whole.shuffle(seed=SEED, buffer_size=1000).map(_number_of)
    generators = RankGenerators(phase.ranks)
    loaders = []
    for rank in range(phase.ranks):
        mine = split_dataset_by_node(shuffled, rank, phase.ranks)
        loader = StatefulDataLoader(
            mine, divided(phase), num_workers=phase.workers, collate_fn=_examples, drop_last=True
        )
        if state is not None:
            loader.load_state_dict(state["states"][rank])
        loaders.append(loader)

    def saved() -> Any:
        return {
            "ranks": phase.ranks,
            "batch": phase.batch,
            "states": [each.state_dict() for each in loaders],
        }

    return ranks_of(phase, generators, loaders, saved, recorded(job), phase.micro)


class _PackedText:
    """Packs a stream of documents end to end, cut at the ends of rows; its state has the tokens that are left over."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.left: list[int] = []

    def __iter__(self) -> Iterator[Array]:
        for example in self.stream:
            self.left.extend(example["tokens"])
            while len(self.left) >= ROW:
                row, self.left = self.left[:ROW], self.left[ROW:]
                yield np.array(row, np.int32)

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left, "stream": self.stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = list(state["left"])
        self.stream.load_state_dict(state["stream"])


def _documents(number: int) -> Any:
    import datasets

    def made() -> Iterator[dict[str, Any]]:
        tokens, starts = corpus(number)
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            yield {"tokens": tokens[start:stop].tolist()}

    return datasets.IterableDataset.from_generator(made)


def _stacked(rows: list[Array]) -> tuple[Array]:
    return (np.stack(rows),)


def _torchtitan(job: str, phase: Phase, state: Any) -> Ranks:
    """Its recipe for text: a stream split by ranks, filtered and mixed, packed end to end, in a StatefulDataLoader.

    States are kept by rank, with the number of ranks, which may not change.
    """
    import datasets
    import torch
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Packed(_PackedText, torch.utils.data.IterableDataset):  # type: ignore[misc]
        pass

    if state is not None and state["ranks"] != phase.ranks:
        raise NotOfferedError(
            "dp_degree is inconsistent before and after checkpoint, dataloader resharding is not supported yet"
        )
    _require_same_ranks(state, phase)
    weights = np.array(WEIGHTS[0]) / sum(WEIGHTS[0])
    loaders = []
    for rank in range(phase.ranks):
        streams = [
            split_dataset_by_node(_documents(number), rank, phase.ranks).filter(
                lambda example: is_good(np.array(example["tokens"]))
            )
            for number in range(len(CORPUS_COUNTS))
        ]
        mixed = datasets.interleave_datasets(streams, probabilities=weights.tolist(), seed=SEED)
        loader = StatefulDataLoader(Packed(mixed), divided(phase), num_workers=phase.workers, collate_fn=_stacked)
        if state is not None:
            loader.load_state_dict(state["states"][rank])
        loaders.append(loader)

    def saved() -> Any:
        return {"ranks": phase.ranks, "batch": phase.batch, "states": [each.state_dict() for each in loaders]}

    return ranks_of(phase, RankGenerators(phase.ranks), loaders, saved, recorded(job), phase.micro)


class _Captioned:
    """A dataset of Lhotse: a batch of cuts becomes numbers, pictures and captions."""

    def __getitem__(self, cuts: Any) -> tuple[Array, Array, Array]:
        import torch

        numbers = [int(cut.id) for cut in cuts]
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        lengths = [round(cut.duration) for cut in cuts]
        captions = np.zeros((len(numbers), max(lengths)), np.int32)
        for caption, number, length in zip(captions, numbers, lengths, strict=True):
            caption[:length] = number
        return np.array(numbers), np.stack([augment(picture(number), rng) for number in numbers]), captions


def _lhotse(job: str, phase: Phase, state: Any) -> Ranks:
    """Its DynamicBucketingSampler, with a second of duration for a token of a caption."""
    from lhotse import CutSet, MonoCut
    from lhotse.dataset import DynamicBucketingSampler
    from torch.utils.data import DataLoader

    lengths = caption_lengths()
    cuts = CutSet.from_cuts(
        MonoCut(str(number), start=0, duration=float(length), channel=0)
        for number, length in enumerate(lengths[:80_000].tolist())
    )
    generators = RankGenerators(phase.ranks)
    samplers, loaders = [], []
    for rank in range(phase.ranks):
        sampler = DynamicBucketingSampler(
            cuts,
            max_duration=MAX_TOKENS,
            num_buckets=10,
            shuffle=True,
            seed=SEED,
            rank=rank,
            world_size=phase.ranks,
            drop_last=True,
        )
        if state is not None:
            sampler.load_state_dict(dict(state[min(rank, len(state) - 1)]))
        samplers.append(sampler)
        loaders.append(
            DataLoader(_Captioned(), sampler=sampler, batch_size=None, num_workers=phase.workers, collate_fn=_same)
        )
    return ranks_of(
        phase, generators, loaders, lambda: [each.state_dict() for each in samplers], recorded(job), phase.micro
    )


def _same(part: Any) -> Any:
    return part


TORCH_CONTENDERS = (
    Contender(
        "accelerate", "accelerate", ("torch", "accelerate"), _accelerate, ("shuffled",), "no packing, no buckets"
    ),
    Contender(
        "StatefulDataLoader",
        "torchdata",
        ("torch", "torchdata.stateful_dataloader"),
        _stateful,
        ("shuffled",),
        "no packing, no buckets",
    ),
    Contender(
        "Hugging Face streaming",
        "datasets",
        ("torch", "datasets"),
        _hugging_face,
        ("shuffled",),
        "packing and buckets are left to others",
    ),
    Contender(
        "torchtitan's recipe", "datasets", ("torch", "datasets"), _torchtitan, ("packed",), "it packs text, and no more"
    ),
    Contender("Lhotse", "lhotse", ("torch", "lhotse"), _lhotse, ("pictures",), "it batches by duration, and no more"),
)
