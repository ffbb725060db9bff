"""Programs over sound, categories and graphs, whose elements have many lengths, on ranks."""

import wave

import numpy as np

import penstock as ps
from penstock import ArraySpec, Ragged, audio
from tests.programs.ranks import on_ranks

RNG = np.random.default_rng(0)


def test_wav2vec_takes_sound_under_a_number_of_samples(tmp_path):
    counts = RNG.permutation(np.arange(40, 400, 9))
    sounds = [RNG.integers(-9000, 9000, count).astype("<i2") for count in counts]
    for number, sound in enumerate(sounds):
        with wave.open(str(tmp_path / f"{number:02d}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(sound.tobytes())

    def speech():
        def normalized(file):
            sound = decode(file["bytes"])
            return {"sound": (sound - sound.mean()) / (sound.std() + 1e-7), "count": len(sound)}

        decode = audio.Decoding(mono=True)
        spec = {"sound": ArraySpec((None,), "float32"), "count": ArraySpec((), "int64")}
        sounds = ps.from_files(str(tmp_path / "*.wav")).map(normalized, element_spec=spec)
        lengths = sounds.lengths("count", executor="inline")
        return sounds.shuffle(seed=1).bucket_by_length(lengths=lengths, max_tokens=1200)

    seen = []
    for batch in on_ranks(speech):
        assert batch["sound"].size <= 1200
        for sound, count in zip(batch["sound"], batch["count"].tolist(), strict=True):
            number = counts.tolist().index(count)
            wanted = sounds[number] - sounds[number].mean()
            np.testing.assert_allclose(sound[:count], wanted / wanted.std(), atol=1e-3)
            assert not sound[count:].any()
            seen.append(count)
    assert sorted(seen) == sorted(counts.tolist())


ROWS = 90
BAG_SIZES = {f"C{k}": RNG.poisson(k, ROWS) for k in range(1, 5)}
BAGS = {name: (RNG.integers(0, 100, sizes.sum()), np.cumsum([0, *sizes])) for name, sizes in BAG_SIZES.items()}
DENSE = RNG.random((ROWS, 3), "float32")
LABELS = RNG.integers(0, 2, ROWS, "int8")


def dlrm():
    """Dense features, and bags of categories: the values and offsets that an `EmbeddingBag` takes."""
    bags = {name: Ragged(*bag) for name, bag in BAGS.items()}
    rows = ps.from_arrays({"dense": DENSE, "bags": bags, "label": LABELS, "id": np.arange(ROWS)})
    return rows.shuffle(seed=2).ragged_batch(8)


def test_dlrm_takes_bags_of_categories():
    table = RNG.random(100)
    seen = []
    for batch in on_ranks(dlrm):
        assert (batch["dense"] == DENSE[batch["id"]]).all()
        assert (batch["label"] == LABELS[batch["id"]]).all()
        for name, bags in batch["bags"].items():
            pooled = np.add.reduceat(np.append(table[bags.values], 0), bags.offsets[:-1]) * (np.diff(bags.offsets) > 0)
            values, offsets = BAGS[name]
            wanted = [table[values[offsets[i] : offsets[i + 1]]].sum() for i in batch["id"]]
            np.testing.assert_allclose(pooled, wanted)
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(ROWS))


NODES = RNG.integers(1, 12, 50)
EDGES = [RNG.integers(0, count, (RNG.integers(0, 20), 2)) for count in NODES]


def graphs():
    """Graphs as PyG batches them: nodes and edges end to end, edges by the numbers of nodes in the batch."""

    def graph(i):
        return {"x": np.full((NODES[i], 3), i, "float32"), "edges": EDGES[i], "y": float(i), "id": i}

    def collate(batch):
        (x, starts), (edges, ends) = batch["x"], batch["edges"]
        firsts = np.repeat(starts[:-1], np.diff(ends))
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        return {"x": x, "edge_index": (edges + firsts[:, None]).T, "batch": owners, "y": batch["y"], "id": batch["id"]}

    spec = {"x": ArraySpec((None, 3), "float32"), "edges": ArraySpec((None, 2), "int64")}
    scalars = {"y": ArraySpec((), "float64"), "id": ArraySpec((), "int64")}
    batches = (
        ps.range(50)
        .shuffle(seed=3)
        .map(graph, element_spec=spec | scalars)
        .ragged_batch(max_tokens=64, lengths=np.maximum(NODES, list(map(len, EDGES))))
    )
    made = {"x": spec["x"], "edge_index": ArraySpec((2, None), "int64"), "batch": ArraySpec((None,), "int64")}
    some = {"y": ArraySpec((None,), "float64"), "id": ArraySpec((None,), "int64")}
    return batches.map(collate, element_spec=made | some)


def test_graphs_are_one_graph_of_many_parts():
    seen = []
    for batch in on_ranks(graphs):
        assert len(batch["x"]) <= 64
        for row, number in enumerate(batch["id"].tolist()):
            nodes = np.flatnonzero(batch["batch"] == row)
            assert (batch["x"][nodes] == number).all()
            mine = np.isin(batch["edge_index"][0], nodes)
            assert (batch["edge_index"][:, mine].T - nodes[0]).tolist() == EDGES[number].tolist()
            assert batch["y"][row] == number
            seen.append(number)
    assert sorted(seen) == list(range(50))
