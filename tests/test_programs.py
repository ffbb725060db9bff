"""The input pipelines of well-known training programs, written anew from what is publicly said of them.

Each is as long as its user would write it, with small data in the place of theirs, and is held to what its model needs.
"""

import io
import tarfile
from collections import Counter

import cv2
import numpy as np
import pytest

import penstock as ps
from penstock import image

INT64 = ps.ArraySpec((), "int64")
TOKENS = ps.ArraySpec((None,), "int64")


def batches(dataset):
    """All batches of epoch 0."""
    with dataset.loader(executor="threads", workers=2) as loader:
        return list(loader)


def images(count, height=12, width=16):
    return np.arange(count * height * width * 3, dtype=np.uint32).reshape(count, height, width, 3).astype(np.uint8)


def sentences(count, seed=0):
    """Lists of words' numbers, of 1 to 20 words."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 21, count)
    return lengths, [np.full(length, number) for number, length in enumerate(lengths)]


# Language.


def test_a_small_gpt_trains_on_random_spans_of_one_long_file(tmp_path):
    np.arange(10_000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    tokens = np.memmap(tmp_path / "train.bin", np.uint16, mode="r")
    ds = ps.from_arrays(tokens).windows(65).shuffle(seed=1).batch(12, drop_remainder=True)
    ds = ds.map(lambda ids: (ids[:, :-1].astype(np.int64), ids[:, 1:].astype(np.int64)))
    x, y = batches(ds.take(1))[0]
    assert x.shape == y.shape == (12, 64)
    assert (x + 1 == y).all()


def test_a_language_model_packs_sentences_with_their_places_and_numbers():
    lengths, words = sentences(200)
    ds = (
        ps.from_source(words, element_spec=TOKENS).shuffle(seed=2).pack(32, lengths=lengths, fit="best", positions=True)
    )
    rows = batches(ds.batch(8))
    filled = sum(np.count_nonzero(numbers) for _, numbers, _ in rows)
    assert filled == lengths.sum()
    assert filled / sum(numbers.size for _, numbers, _ in rows) > 0.95


def test_a_translator_reads_pairs_of_two_lengths_in_batches_of_so_many_tokens():
    source_lengths, source = sentences(200)
    target_lengths, target = sentences(200, seed=1)
    ds = ps.zip(
        {"source": ps.from_source(source, element_spec=TOKENS), "target": ps.from_source(target, element_spec=TOKENS)}
    )
    longest = np.maximum(source_lengths, target_lengths)
    found = batches(ds.shuffle(seed=3).bucket_by_length(lengths=longest, max_tokens=160))
    assert all(
        batch["source"].shape[0] * max(batch["source"].shape[1], batch["target"].shape[1]) <= 160 for batch in found
    )
    assert sorted(int(n) for batch in found for n in batch["source"][:, 0]) == list(range(200))


def test_a_classifier_of_texts_reads_folders_and_its_tokenizer_gets_many_at_once(tmp_path):
    for label in ("neg", "pos"):
        (tmp_path / label).mkdir()
        for number in range(6):
            (tmp_path / label / f"{number}.txt").write_text("very " * number + label)

    def tokenized(texts):
        return [np.array([len(word) for word in text.split()]) for text in texts]

    ds = ps.from_files(tmp_path / "*" / "*.txt", labels="inferred")
    texts = ds.map(lambda e: e["bytes"].tobytes().decode(), element_spec=ps.ArraySpec((), "U"))
    ids = texts.map(tokenized, batched=4, element_spec=TOKENS)
    found = batches(ps.zip((ids, ds.select("label"))).shuffle(seed=1).padded_batch(4))
    assert sorted(int(label) for _, labels in found for label in labels["label"]) == [0] * 6 + [1] * 6


def test_word_vectors_are_trained_with_words_of_the_neighbourhood_and_others_by_chance():
    def with_others(pair, rng):
        return {"word": pair[0], "near": pair[1], "other": rng.integers(0, 50, 4)}

    def pairs(window):
        return [np.array([window[2], near]) for near in window[[0, 1, 3, 4]]]

    ds = ps.from_arrays(np.arange(50)).windows(5).flat_map(pairs).random_map(with_others, seed=4)
    found = batches(ds.shuffle(seed=1, window=64).batch(16))
    assert {int(d) for batch in found for d in batch["near"] - batch["word"]} == {-2, -1, 1, 2}
    assert sum(map(len, (batch["word"] for batch in found))) == 46 * 4


# Pictures.


def test_contrastive_training_sees_two_views_of_each_picture():
    augment = image.compose(image.resized_crop(8, 8), image.flip())
    pictures = ps.from_arrays(images(20)).shuffle(seed=5)
    ds = ps.zip((pictures.random_map(augment, seed=1), pictures.random_map(augment, seed=2))).batch(5)
    found = batches(ds)
    assert all(left.shape == right.shape == (5, 8, 8, 3) for left, right in found)
    assert any((left != right).any() for left, right in found)


def cut_mix(batch, rng):
    """Puts a rectangle of another picture of the batch into each, and mixes the labels by the areas."""
    pictures, labels = batch[0].copy(), batch[1]
    others, (height, width), side = rng.permutation(len(pictures)), pictures.shape[1:3], rng.random() ** 0.5
    high, wide = round(height * side), round(width * side)
    top, left = rng.integers(height - high + 1), rng.integers(width - wide + 1)
    pictures[:, top : top + high, left : left + wide] = batch[0][others, top : top + high, left : left + wide]
    share = high * wide / (height * width)
    return pictures, (1 - share) * labels + share * labels[others]


def test_cut_mix_mixes_pictures_of_a_batch_and_their_labels():
    ds = (
        ps.from_arrays((images(12, 8, 8), np.arange(12) % 3))
        .map(lambda e: (e[0], np.eye(3)[e[1]]))
        .shuffle(seed=1)
        .batch(6)
    )
    for pictures, labels in batches(ds.random_map(cut_mix, seed=2)):
        assert pictures.shape == (6, 8, 8, 3)
        assert labels.shape == (6, 3)
        assert np.allclose(labels.sum(axis=1), 1)


def test_segmentation_turns_a_picture_and_its_mask_together():
    pictures = images(8)
    ds = ps.zip({"image": ps.from_arrays(pictures), "mask": ps.from_arrays(pictures[..., :1])})
    flip = image.compose(image.flip(), on="image", masks="mask")
    found = batches(ds.random_map(flip, seed=6).batch(8))[0]
    assert (found["image"][..., :1] == found["mask"]).all()
    assert (found["image"] != pictures).any()


def test_a_reader_of_captchas_pads_its_texts():
    labels = ["a1", "bcd", "e", "fghij"]
    ids = ps.from_source(
        [np.frombuffer(text.encode(), np.uint8) for text in labels], element_spec=ps.ArraySpec((None,), "u1")
    )
    ds = ps.zip((ps.from_arrays(images(4)), ids)).padded_batch(4, padded_shapes=((None, None, None), (6,)))
    ((pictures, texts),) = batches(ds)
    assert pictures.shape == (4, 12, 16, 3)
    assert [bytes(row).rstrip(b"\0").decode() for row in texts] == labels


def test_pictures_and_captions_come_from_tar_files_whatever_their_kind(tmp_path):
    with tarfile.open(tmp_path / "part-000.tar", "w") as tar:
        for number, (kind, picture) in enumerate(zip(("jpg", "png", "jpg"), images(3), strict=True)):
            for name, data in {
                kind: cv2.imencode(f".{kind}", picture)[1].tobytes(),
                "txt": f"caption {number}".encode(),
            }.items():
                info = tarfile.TarInfo(f"{number:03}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    ds = ps.from_tar(tmp_path / "part-{000..000}.tar", fields={"image": "jpg;png", "text": "txt"})
    found = batches(
        ds.map(lambda e: {"image": image.decode(e["image"], size=(8, 8)), "text": e["text"].tobytes().decode()}).batch(
            3
        )
    )
    assert found[0]["image"].shape == (3, 8, 8, 3)
    assert list(found[0]["text"]) == ["caption 0", "caption 1", "caption 2"]


def test_volumes_are_trained_in_patches_of_which_each_place_comes_once():
    volume = np.arange(4 * 8 * 8 * 8).reshape(4, 8, 8, 8)
    ds = ps.from_arrays(volume).patches((4, 4, 4)).shuffle(seed=7).batch(8)
    assert np.sort(np.concatenate(batches(ds)).ravel()).tolist() == volume.ravel().tolist()


# Few labels, and unequal ones.


def test_half_labelled_training_reads_batches_of_two_sizes_side_by_side():
    unlabelled = ps.range(100).shuffle(seed=1).batch(40, drop_remainder=True)
    labelled = ps.range(6).shuffle(seed=2).repeat().batch(2)
    found = batches(ps.zip((unlabelled, labelled.take(2))))
    assert [(len(many), len(few)) for many, few in found] == [(40, 2), (40, 2)]


def test_few_shot_episodes_have_so_many_elements_of_so_many_classes():
    labels = np.repeat(np.arange(10), 8)
    of_class = ps.from_arrays({"x": np.arange(80), "label": labels}).group_by("label")

    def shots(element, rng):
        chosen = rng.permutation(len(element["x"]))[:6]
        return {"support": element["x"][chosen[:1]], "query": element["x"][chosen[1:]]}

    ds = of_class.shuffle(seed=8).random_map(
        shots, seed=9, element_spec={"support": ps.ArraySpec((1,), "i8"), "query": ps.ArraySpec((5,), "i8")}
    )
    for episode in batches(ds.batch(5)):
        classes = labels[episode["support"][:, 0]]
        assert len(set(classes)) == 5
        assert (labels[episode["query"]] == classes[:, None]).all()
        assert not (episode["support"] == episode["query"]).any()


def test_triplets_are_three_lists_of_numbers():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 10)
    anchors = np.arange(50)
    positives = labels * 10 + (anchors + rng.integers(1, 10, 50)) % 10
    negatives = (anchors + rng.integers(10, 40, 50)) % 50
    pictures = ps.from_arrays(anchors)
    for a, p, n in batches(ps.zip((pictures, pictures[positives], pictures[negatives])).shuffle(seed=1).batch(10)):
        assert (labels[a] == labels[p]).all()
        assert (labels[a] != labels[n]).all()
        assert (a != p).all()


def test_rare_classes_come_as_often_as_others():
    labels = np.array([0] * 990 + [1] * 10)
    ds = ps.from_arrays((np.arange(1_000), labels)).sample(balance=labels, seed=3).batch(100)
    share = np.mean([label for _, batch in batches(ds) for label in batch])
    assert 0.4 < share < 0.6
    exact = ps.from_arrays(labels).sample(balance=labels, per_class=8, seed=4)
    assert all(Counter(batch.tolist()) == {0: 8, 1: 8} for batch in batches(exact.batch(16).take(5)))


def test_each_row_of_a_table_is_held_out_in_one_fold_and_scaled_by_the_others():
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(5, 3, (90, 4)), "label": np.arange(90) % 3}
    held = []
    for train, test in ps.from_arrays(rows).k_folds(3, stratify=rows["label"], seed=1):
        found = ps.statistics(train.select("x"))
        scaled = train.map(lambda e, s=found: (e["x"] - s["x"].mean) / s["x"].deviation)
        assert abs(np.concatenate(batches(scaled.batch(30))).mean()) < 1e-6
        held += [int(e["label"]) for e in test]
        assert Counter(int(e["label"]) for e in test) == {0: 10, 1: 10, 2: 10}
    assert len(held) == 90


def test_active_learning_moves_elements_by_their_numbers():
    pool, known = np.arange(100), np.array([3, 50])
    pictures = ps.from_arrays(np.arange(100) * 10)
    for _ in range(3):
        rest = np.setdiff1d(pool, known)
        scores = np.concatenate(batches(pictures[rest].map(lambda x: -x).batch(16)))
        known = np.append(known, rest[np.argsort(scores)[:2]])
    assert [int(x) for x in pictures[known]] == [30, 500, 990, 980, 970, 960, 950, 940]


# Sequences in time.


def test_weather_is_foretold_from_each_sixth_row_of_five_days():
    rows = np.arange(2_000.0).reshape(1_000, 2)
    ds = ps.from_arrays({"past": rows, "next": rows[:, 0]}).windows({"past": range(0, 120, 6), "next": [191]})
    found = batches(ds[: 1_000 - 191].shuffle(seed=1).batch(32, drop_remainder=True))
    assert found[0]["past"].shape == (32, 20, 2)
    assert (found[0]["next"][:, 0] - found[0]["past"][:, 0, 0] == 2 * 191).all()


def test_a_recommender_reads_the_last_films_of_each_user():
    users, films = np.array([1, 2, 1, 1, 2, 1, 2, 2]), np.arange(8)
    ds = ps.from_arrays({"user": users, "film": films}).windows(3, groups=users)
    titles = ps.from_arrays({"film": films, "year": 1990 + films})
    found = [each["film"].tolist() for each in ds]
    assert sorted(found) == [[0, 2, 3], [1, 4, 6], [2, 3, 5], [4, 6, 7]]
    joined = ps.from_arrays({"user": users, "film": films}).join(titles, on="film")
    assert [int(e["year"]) for e in joined] == [*range(1990, 1998)]


def test_a_robot_sees_two_pictures_and_learns_the_actions_to_come():
    episodes = np.repeat([0, 1], 10)
    ds = ps.from_arrays({"image": images(20), "action": np.arange(20)})
    ds = ds.windows({"image": [-1, 0], "action": range(4)}, groups=episodes)
    element = ds[9]  # the last of the first episode
    assert element["image"].shape == (2, 12, 16, 3)
    assert element["action"].tolist() == [9, 9, 9, 9]
    assert element["is_pad"]["action"].tolist() == [False, True, True, True]


def test_a_curriculum_changes_its_mixture_at_given_steps():
    easy, hard = ps.range(1_000), ps.range(1_000).map(lambda x: x + 10_000)
    ds = ps.mix([easy.repeat(), hard.repeat()], {0: [1, 0], 100: [1, 1], 200: [0, 1]}, seed=1).take(300).batch(100)
    assert [bool(s) for s in (batches(ds)[0] < 10_000)] == [True] * 100
    assert [0.3 < np.mean(b >= 10_000) < 0.7 for b in batches(ds)[1:2]] == [True]
    assert (batches(ds)[2] >= 10_000).all()


@pytest.mark.parametrize("position", [0, 7])
def test_buckets_go_on_from_the_middle(position):
    lengths, words = sentences(100)
    ds = ps.from_source(words, element_spec=TOKENS).shuffle(seed=1).bucket_by_length(lengths=lengths, batch_size=4)
    whole = batches(ds)
    with ds.loader() as loader:
        loader.set_state(loader.get_state() | {"position": position})
        rest = list(loader)
    assert all((a == b).all() for a, b in zip(rest, whole[position:], strict=True))
