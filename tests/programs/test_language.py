"""Programs of language models, whose documents, pairs and passages are of many lengths, on ranks."""

import itertools

import numpy as np

import penstock as ps
from penstock import ArraySpec, Ragged
from tests.programs.ranks import on_ranks, runs

RNG = np.random.default_rng(0)
TOKENS = ArraySpec((None,), "int32")
LENGTHS = RNG.integers(1, 30, 150)
DOCUMENTS = [RNG.integers(1, 1000, length, "int32") for length in LENGTHS]


def test_olmo_packs_documents_of_a_file_with_their_offsets(tmp_path):
    np.save(tmp_path / "tokens.npy", np.concatenate(DOCUMENTS))

    def documents():
        tokens = np.load(tmp_path / "tokens.npy", mmap_mode="r")
        ds = ps.from_arrays(Ragged(tokens, np.cumsum([0, *LENGTHS]))).shuffle(seed=1)
        return ds.pack(32, lengths=LENGTHS, fit="best", split=False, offsets=True).ragged_batch(4)

    found = []
    for tokens, ends in on_ranks(documents):
        for row, offsets in zip(tokens, runs(ends), strict=True):  # the offsets of a row are its cu_seqlens
            found += runs((row, offsets))
            assert not row[offsets[-1] :].any()
    assert sorted(map(tuple, found)) == sorted(map(tuple, DOCUMENTS))


def dpo():
    """A prompt with a chosen and a rejected answer, filled up on the left, for each pair."""

    def pair(i):
        prompt, chosen, rejected = DOCUMENTS[3 * i : 3 * i + 3]
        ids = {"chosen": np.append(prompt, chosen), "rejected": np.append(prompt, rejected)}
        answers = {f"{name}_mask": np.arange(len(each)) >= len(prompt) for name, each in ids.items()}
        return {**ids, **answers, "id": i}

    pairs = ps.range(42).shuffle(seed=2).map(pair)
    return pairs.padded_batch(6, side="left", drop_remainder=True)


def test_dpo_fills_pairs_up_on_the_left():
    # Each batch has a width of its own, so ranks take whole ones.
    for batch in on_ranks(dpo):
        for row, number in enumerate(batch["id"].tolist()):
            prompt, chosen, rejected = DOCUMENTS[3 * number : 3 * number + 3]
            for name, answer in (("chosen", chosen), ("rejected", rejected)):
                tokens, mask = batch[name][row], batch[f"{name}_mask"][row]
                assert tokens[mask].tolist() == answer.tolist()
                assert np.trim_zeros(tokens, "f").tolist() == [*prompt, *answer]


def dpr():
    """A question, its passage, and no to three hard negatives, with tokens of passages end to end."""

    def question(i):
        passages = DOCUMENTS[3 * i : 3 * i + 1 + i % 4]
        return {
            "question": DOCUMENTS[-1 - i],
            "passages": np.concatenate(passages),
            "lengths": np.array([len(each) for each in passages]),
            "id": i,
        }

    def collate(batch):
        passages, lengths = batch["passages"].values, batch["lengths"]
        ends = np.cumsum([0, *lengths.values])
        return {**batch, "passages": Ragged(passages, ends), "positives": lengths.offsets[:-1]}

    batches = ps.range(30).shuffle(seed=3).map(question).ragged_batch(4)
    ends = ArraySpec((None,), "int64")
    spec = {**batches.element_spec, "passages": Ragged(TOKENS, ends), "positives": ends}
    return batches.map(collate, element_spec=spec)


def test_dpr_has_questions_with_several_passages():
    seen = []
    for batch in on_ranks(dpr):
        passages, firsts = runs(batch["passages"]), batch["positives"].tolist()
        # Every passage of the batch is a negative for the other questions, so their number differs by batch.
        assert len(passages) == len(batch["lengths"].values)
        for number, question, first, stop in zip(
            batch["id"].tolist(), runs(batch["question"]), firsts, [*firsts[1:], len(passages)], strict=True
        ):
            assert question.tolist() == DOCUMENTS[-1 - number].tolist()
            wanted = DOCUMENTS[3 * number : 3 * number + 1 + number % 4]
            assert [each.tolist() for each in passages[first:stop]] == [each.tolist() for each in wanted]
            seen.append(number)
    assert sorted(seen) == list(range(30))


SENTINEL = 2000


def noise_counts(length):
    """The numbers of tokens and of spans that T5 replaces: 15 %, in spans of three on average."""
    tokens = np.clip(np.round(length * 0.15), 1, np.maximum(length - 1, 1)).astype(int)
    return tokens, np.maximum(np.round(tokens / 3), 1).astype(int)


def parts_of(total, count, rng):
    """Random sizes of `count` parts, none of them empty."""
    return np.diff([0, *np.sort(rng.choice(np.arange(1, total), count - 1, replace=False)), total])


def corrupt(tokens, rng):
    """Replaces random spans by sentinels; the targets are the spans, each behind its sentinel."""
    count, spans = noise_counts(len(tokens))
    kept, noise = parts_of(len(tokens) - count, spans, rng), parts_of(count, spans, rng)
    pieces = np.split(tokens, np.cumsum(np.column_stack([kept, noise]).ravel())[:-1])
    marks = [[SENTINEL - number] for number in range(spans)]
    both = [itertools.chain(*zip(*pair, strict=True)) for pair in ((pieces[::2], marks), (marks, pieces[1::2]))]
    inputs, targets = (np.concatenate([*each], dtype="int32") for each in both)
    return {"inputs": inputs, "targets": targets}


LONG = [each for each in DOCUMENTS if len(each) > 4]
LONG_LENGTHS = np.array(list(map(len, LONG)))


def t5():
    """Span corruption with random numbers, packed into rows of two lengths."""
    documents = ps.range(len(LONG)).map(lambda i: LONG[i], element_spec=TOKENS)
    spans = documents.random_map(corrupt, seed=4, element_spec={"inputs": TOKENS, "targets": TOKENS})
    count, marks = noise_counts(LONG_LENGTHS)
    lengths = {"inputs": LONG_LENGTHS - count + marks, "targets": count + marks}
    packed = spans.shuffle(seed=5).pack({"inputs": 40, "targets": 12}, lengths=lengths, fit="first", split=False)
    return packed.batch(6, drop_remainder=True)


def test_t5_packs_corrupted_spans():
    # Rows have one length, so a rank takes its share of each batch.
    found = []
    for tokens, segments in on_ranks(t5, whole_batches=False):
        for row in range(6):
            for number in range(1, segments["inputs"][row].max() + 1):
                parts = (tokens[name][row][segments[name][row] == number].tolist() for name in ("inputs", "targets"))
                found.append(restored(*parts))
    assert len(found) > 0.8 * len(LONG)
    assert {tuple(each) for each in found} <= {tuple(each.tolist()) for each in LONG}


def restored(inputs, targets):
    """The document: each sentinel of the inputs is replaced by what follows it in the targets."""
    spans, mark = {}, 0
    for token in targets:
        if token > 1000:
            mark = token
            spans[mark] = []
        else:
            spans[mark].append(token)
    return [token for each in inputs for token in spans.get(each, [each])]
