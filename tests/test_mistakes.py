"""Typical mistakes of a first hour: each is an error or a warning that says what to write.

A row is a program and the words that must be in what it says. Programs have `ps` and `np`, and run in a folder with
`text.txt`, `data.npz`, `empty/`, and images in `pets/a` and `pets/b`. What frameworks say is in `tests/adapters/`.
"""
# ruff: noqa: E501  # programs and messages are of one line each

import logging
from pathlib import Path

import cv2
import numpy as np
import pytest

import penstock as ps

MISTAKES = [
    (
        "ps.range(3).map(lambda x: x, element_spec=np.float32)",
        "which has no shape and dtype. Write penstock.ArraySpec(shape, dtype), such as ArraySpec((28, 28),",
    ),
    (
        "ds = ps.range(9).shuffle(seed=1)\nfor epoch in range(3):\n    for x in ds: pass",
        "for batch in loader.",
    ),
    (
        "ds = ps.range(9).random_map(lambda x, rng: x + rng.integers(9)).batch(3)\nfor epoch in range(3):\n    list(ds)",
        "for batch in loader.",
    ),
    (
        "s = ps.range(99).shuffle(seed=1)\ntrain, test = s.take(80), s.skip(80)",
        "Write split() before shuffle(seed=1), or use shuffle(reshuffle=False).",
    ),
    (
        "s = ps.range(99).shuffle(seed=1)\ntrain, test = s[:80], s[80:]",
        "Write split() before shuffle(seed=1), or use shuffle(reshuffle=False).",
    ),
    (
        "ps.range(99).shuffle(seed=1).batch(3)[-5:]",
        "Write split() before shuffle(seed=1), or use shuffle(reshuffle=False).",
    ),
    (
        "ps.range(99).shuffle(seed=1).split(0.8, 0.2)",
        "Split first and shuffle each part, or use shuffle(reshuffle=False).",
    ),
    (
        "ps.range(99).repeat(2).split(0.8, 0.2)",
        "Split first and repeat each part.",
    ),
    (
        "ps.range(99).batch(10).shuffle(seed=1).loader()",
        "those of a batch stay together in all epochs. Write shuffle() before batch().",
    ),
    (
        "ps.range(99).batch(10).map(lambda b: b * 2).shuffle(seed=1).loader()",
        "those of a batch stay together in all epochs. Write shuffle() before batch().",
    ),
    (
        "ps.range(200).split(80, 20)",
        "If these are per cent, write split(0.8, 0.2).",
    ),
    (
        "ps.range(200).split(0.8)",
        "split(0.8) makes one part, and leaves out the rest. For both, write split(0.8, 0.2).",
    ),
    (
        "ps.range(9).windows(3).shuffle(seed=1, reshuffle=False).split(0.5, 0.5)",
        "Put split() before shuffle(), or give groups=, a label a window.",
    ),
    (
        "ps.range(9).windows(3).split(0.5, 0.5, seed=1)",
        "Split by range (no seed), or give groups=, a label a window.",
    ),
    (
        "ps.range(9).split(0.5, 0.5, groups=[1] * 9, stratify=[1] * 9)",
        "whole groups have the classes that they have. Give one of the two.",
    ),
    (
        "ps.zip(ps.range(3), ps.range(3))",
        "zip() takes one tuple of them, not 2 arguments: zip((a, b)).",
    ),
    (
        "ps.zip((ps.range(3), ps.range(4)))",
        "4 elements. Cut them to one length with take(n) or a slice, or repeat() the shorter.",
    ),
    (
        "ps.from_arrays(np.ones(3), np.ones(3))",
        "from_arrays() takes one tuple of them, not 2 arguments: from_arrays((a, b)).",
    ),
    (
        "ps.from_arrays((np.ones(3), np.ones(4)))",
        "3 elements, [1]: 4 elements. Cut them to one length with take(n) or a slice.",
    ),
    (
        'ps.from_arrays({"x": np.ones(3), "y": np.ones(4)})',
        "3 elements, ['y']: 4 elements. Cut them to one length with take(n) or a slice.",
    ),
    (
        'ps.from_arrays("frames.npy")',
        "files of HDF5 and Zarr are given open: h5py.File(path)['x'], zarr.open(path)['x'].",
    ),
    (
        'ps.from_npy("text.txt")',
        "is not a .npy file that can be read: EOF: reading magic string, expected 8 bytes got 5. Give a file that",
    ),
    (
        'ps.from_npy("data.npz")',
        "of an archive by np.savez, save each array alone.",
    ),
    (
        "ps.from_source(x for x in range(3))",
        "An iterable is a stream: from_generator(fn, *args).",
    ),
    (
        "ps.from_generator(x for x in range(3))",
        "from_generator(read, path), not from_generator(read(path)).",
    ),
    (
        "ps.from_generator(lambda: 3)[0]",
        "next(iter(ds.skip(i))). Or keep its elements: materialize(path) has random access.",
    ),
    (
        "next(iter(ps.from_generator(lambda: 3)))",
        "Give a generator function (with yield), or one that returns an iterable.",
    ),
    (
        "ps.from_generator(range, 9)[3]",
        "next(iter(ds.skip(i))). Or keep its elements: materialize(path) has random access.",
    ),
    (
        "len(ps.from_generator(range, 9))",
        "If you know, say it there, as from_generator(length=) does.",
    ),
    (
        "ps.from_generator(range, 9).shuffle(seed=1)",
        "Or keep its elements: materialize(path) has random access.",
    ),
    (
        "ps.range(9).filter(lambda x: x > 3)[0]",
        "next(iter(ds.skip(i))). Or keep its elements: materialize(path) has random access.",
    ),
    (
        "ps.range(9).filter(lambda x: x > 3).shuffle(seed=1)",
        "Or keep its elements: materialize(path) has random access.",
    ),
    (
        "len(ps.range(9).filter(lambda x: x > 3))",
        "materialize(path) after it counts them; or put what needs a number before it.",
    ),
    (
        'ps.range(9)["x"]',
        "For a part of each element: map(lambda element: element['x']).",
    ),
    (
        "ps.range(9)[1, 2]",
        "not by (1, 2), a tuple. For some elements: an array or a list of integers.",
    ),
    (
        "ps.range(9).batch(2, True)",
        "batch() takes size by position, and by name: drop_remainder, max_tokens, lengths, cost.",
    ),
    (
        "ps.range(9).batch(batch_size=3, num_workers=2)",
        "batch() has no argument batch_size=. Here it is size=.",
    ),
    (
        "ps.range(9).shuffle(buffer_size=100)",
        "A loader reads ahead by itself: loader(prefetch=4).",
    ),
    (
        "ps.range(9).shuffle(1000, 42)",
        "A loader reads ahead by itself: loader(prefetch=4).",
    ),
    (
        "list(ps.range(9).map(lambda x: np.zeros(int(x))))",
        "give each the same, or say which axis differs: element_spec=ArraySpec((None,), 'float64').",
    ),
    (
        "list(ps.range(3).map(lambda x: float(x) if x else 1))",
        "or declare ArraySpec((), 'float64') in element_spec=, and write cast('int64') after this",
    ),
    (
        'list(ps.range(3).map(lambda x: {"a": x} if x else (x,)))',
        "element_spec=ArraySpec((None,), dtype) for that leaf, in a tree like the element.",
    ),
    (
        'list(ps.range(3).map(lambda x: [1.0, 2.0], element_spec=ps.ArraySpec((3,), "float64")))',
        "give each the same, or say which axis differs: element_spec=ArraySpec((None,), 'float64').",
    ),
    (
        "ps.range(3).map(lambda x: x, output_signature=3)",
        "Here it is element_spec=.",
    ),
    (
        "ps.range(3).random_map(lambda x: x)[0]",
        "random_map() calls fn(element, rng); a function of the element alone goes into map()",
    ),
    (
        'ps.range(3).cast("float33")',
        "cast() needs dtypes such as 'float32', got 'float33'.",
    ),
    (
        'ps.range(3).cast(("float32", "int32"))[0]',
        "Name every leaf, with None for one to keep, or give one dtype for all.",
    ),
    (
        "ps.range(3).repeat().shuffle(seed=1)",
        "Shuffle before repeat(): every round gets an order of its own.",
    ),
    (
        "ps.range(3).repeat().batch(2).loader().__len__()",
        "This loader is endless, so it has no len(). Use take(n) for a part.",
    ),
    (
        "len(ps.range(3).repeat())",
        "This dataset is endless, so it has no len(). Use take(n) for a part, or .length.",
    ),
    (
        'ps.range(3).repeat().cache("c1")',
        "cache() of an endless dataset would never be full. Put cache() before repeat().",
    ),
    (
        'ps.range(3).shuffle(seed=1).cache("c2")',
        "Put shuffle() after cache(), which has random access, or use shuffle(reshuffle=False).",
    ),
    (
        'ps.range(3).random_map(lambda x, rng: x).cache("c3")',
        "Put cache() before random_map(), so that what is before is kept and randomness stays.",
    ),
    (
        'import threading\nlock = threading.Lock()\nps.range(3).map(lambda x: (lock, x)[1]).cache("c4")',
        "materialize() into a new folder needs no key.",
    ),
    (
        'ps.range(3).cache("s3://bucket/cache")',
        "give its path. cache() without one keeps them in memory.",
    ),
    (
        "ps.range(3).materialize(None)",
        "materialize() needs the path of a directory, got None. cache() keeps in memory.",
    ),
    (
        "ps.range(3).windows(5).loader()",
        "windows(5) has no elements, of 3 elements before it. A window spans 5 of them.",
    ),
    (
        "ps.range(10).batch(5).loader(shard=(0, 2))",
        "Or let shares differ by an element: uneven='weights'; for evaluation uneven='mask'.",
    ),
    (
        'ps.range(3).loader(executor="thread")',
        "Use 'auto', 'threads', 'processes', 'ray', or 'inline' (no workers).",
    ),
    (
        'ps.range(3).loader(executor="inline", workers=2)',
        "executor='inline' has no workers, but workers=2 was asked for.",
    ),
    (
        "ps.range(3).loader(workers=0)",
        "workers=0 is below 1. Without workers, on the caller's thread: executor='inline'.",
    ),
    (
        "ps.range(3).loader(num_workers=4)",
        "Here it is workers=.",
    ),
    (
        "ps.range(3).loader(batch_size=4)",
        "Write batch(n) before.",
    ),
    (
        "ps.range(3).loader(shuffle=True)",
        "Write shuffle(seed=1) before batch(n).",
    ),
    (
        "ps.range(3).loader(collate_fn=list)",
        "Write map(fn) after batch(n), or padded_batch(n) in its place.",
    ),
    (
        'ps.range(3).loader(on_error="ignore")',
        "Use 'raise', 'skip' (leave out elements that fail), or 'replace' (put another one of the",
    ),
    (
        'ps.range(3).loader(memory_limit="1 GB")',
        "memory_limit='1 GB' is not an integer (bytes, such as 2 * 2**30).",
    ),
    (
        "ps.from_arrays(np.ones((100, 1000))).batch(100).loader(memory_limit=1000)",
        "Use a smaller batch.",
    ),
    (
        "loader = ps.range(3).loader()\nloader.close()\nnext(iter(loader))",
        "This loader is closed. Make another one: dataset.loader(...).",
    ),
    (
        "loader = ps.range(3).loader()\na, b = iter(loader), iter(loader)\nnext(a)",
        "one iterator lives at a time. Make a second loader to iterate twice at once.",
    ),
    (
        "ps.range(3).loader(executor='inline').set_state('{}')",
        "a dict with version, plan, epoch and position. json.loads() makes one of text.",
    ),
    (
        'loader = ps.range(3).loader(executor="inline")\nloader.set_state({"epoch": 3})',
        "3}. It is what get_state() returned: a dict with version, plan, epoch and position.",
    ),
    (
        "state = ps.range(3).loader().get_state()\nps.range(4).loader().set_state(state)",
        "Build the dataset as it was when the state was saved.",
    ),
    (
        "import pickle\npickle.dumps(ps.range(3).loader())",
        "Copy or send the dataset, and make another loader of that: dataset.loader(...).",
    ),
    (
        "np.asarray(ps.range(3))",
        "ds.element_spec says the shapes, and np.stack(list(ds)) loads all of it.",
    ),
    (
        "np.asarray(ps.range(3).loader())",
        "Keras takes fit(dataset.to_keras()), which has the options of loader(), and makes its own.",
    ),
    (
        "ps.range(3).shape",
        "ds.element_spec says the shapes, and np.stack(list(ds)) loads all of it.",
    ),
    (
        "ps.range(3).prefetch(3)",
        "A dataset has no 'prefetch': each loader reads ahead by itself, see loader(prefetch=4).",
    ),
    (
        "ps.range(3).enumerate()",
        "A dataset has no 'enumerate': penstock.zip((penstock.range(len(ds)), ds)).",
    ),
    (
        "ps.range(3).window(3)",
        "A dataset has no 'window': windows(length, shift=, stride=).",
    ),
    (
        "ps.range(3).apply(list)",
        "A dataset has no 'apply': function(ds).",
    ),
    (
        "ps.range(3).as_numpy_iterator()",
        "iterate the dataset, or ds.loader(): elements are NumPy arrays.",
    ),
    (
        "ps.range(3).interleave(list)",
        "A dataset has no 'interleave': flat_map(function), or penstock.interleave(datasets).",
    ),
    (
        "ps.range(3).concatenate(ps.range(3))",
        "A dataset has no 'concatenate': penstock.concatenate([ds, other]).",
    ),
    (
        "ps.range(3).zip(ps.range(3))",
        "A dataset has no 'zip': penstock.zip((ds, other)).",
    ),
    (
        "ps.range(3).reduce(0, max)",
        "reduce(0, max): the function comes first, as in functools.reduce: reduce(max, 0).",
    ),
    (
        "ps.Dataset([1, 2])",
        "Make one with from_arrays((x, y)), from_npy(path), from_source(obj) or range(n).",
    ),
    (
        "ps.from_tensor_slices(np.ones(3))",
        "penstock has no 'from_tensor_slices': penstock.from_arrays((x, y)).",
    ),
    (
        "ps.from_list([1])",
        "penstock has no 'from_list': penstock.from_source(items).",
    ),
    (
        "ps.DataLoader(ps.range(3))",
        "penstock has no 'DataLoader': ds.batch(32).loader(), or to_torch(), to_keras(), to_jax().",
    ),
    (
        "ps.random_split(ps.range(3), [1, 2])",
        "penstock has no 'random_split': ds.split(0.8, 0.2, seed=1).",
    ),
    (
        "ps.concatenate(ps.range(3), ps.range(3))",
        "concatenate() takes one tuple of them, not 2 arguments: concatenate((a, b)).",
    ),
    (
        "ps.concatenate([ps.range(3), ps.from_arrays(np.ones(3))]).element_spec",
        "Use map() or cast() to make them alike.",
    ),
    (
        "ps.mix([ps.range(3), ps.range(3)])",
        "[1, 1] for two equal parts.",
    ),
    (
        "ps.range(1, 5)",
        "range() takes one integer. For a part: range(stop)[start::step].",
    ),
    (
        'ps.from_image_files(["a.jpg", "b.jpg"]).batch(2)[0]',
        "Use padded_batch(), or bring it to one size with map().",
    ),
    (
        'ps.image_dataset_from_directory("empty")',
        "Its folders are the classes; for files beside them pass labels=None.",
    ),
    (
        'ps.image_dataset_from_directory("pets", validation_split=0.5, seed=1, verbose=False)',
        "give both or none.",
    ),
    (
        'ps.image_dataset_from_directory("pets", validation_split=0.5, subset="training", seed=1, verbose=False)\nps.image_dataset_from_directory("pets", validation_split=0.5, subset="validation", shuffle=False, verbose=False)',
        "or give both calls the same shuffle, seed and validation_split.",
    ),
    (
        'ps.image_dataset_from_directory("pets", validation_split=0.5, subset="training", seed=3, verbose=False)\nps.image_dataset_from_directory("pets", validation_split=0.5, subset="validation", seed=4, verbose=False)',
        "or give both calls the same shuffle, seed and validation_split.",
    ),
    (
        "ps.range(9).map(lambda x: np.zeros(int(x))).batch(3)[1]",
        "give each the same, or say which axis differs: element_spec=ArraySpec((None,), 'float64').",
    ),
    (
        "ps.from_arrays((np.ones((3, 2)), np.ones(3))).bucket_by_length(len, [3], [4, 4])",
        "Say of which part: lambda element: len(element[0]).",
    ),
    (
        'from penstock.image import rotate\nps.from_arrays(np.ones((3, 4, 4, 3), "uint8")).random_map(rotate)',
        "Call it first: random_map(rotate(...)), as in random_map(rotate(15)).",
    ),
    (
        'from penstock.image import rotate\nps.from_arrays(np.ones((3, 4, 4, 3), "uint8")).map(rotate(15))[0]',
        "for map(), fix its numbers, as in rotate(exactly(15)).",
    ),
    (
        'from penstock.image import rotate\nps.from_arrays(np.ones((3, 4, 4, 3), "uint8")).batch(2).random_map(rotate(15))[0]',
        "Distort before batch(): these functions take one image.",
    ),
    (
        'np.random.seed(0)\nr = ps.range(3000).map(lambda x: x + np.random.rand())\nwith r.batch(100).loader(executor="threads") as loader: list(loader)',
        "Use random_map(fn), whose fn(element, rng) gets numbers of its own, or",
    ),
    (
        "ds = ps.from_arrays(np.zeros((9, 2))).random_map(lambda x, rng: x + rng.normal(size=2)).shuffle(seed=1)\nfor epoch in range(2):\n    for batch in ds.batch(3): pass\n    for batch in ds: pass",
        "for batch in loader.",
    ),
    (
        'ps.range(9).map(lambda x: x / 3, element_spec=ps.ArraySpec((), "float32"))[1]',
        "or declare ArraySpec((), 'float64') in element_spec=, and write cast('float32') after",
    ),
    (
        "ps.range(9).map(lambda x: 2.5 if x else 1).batch(9)[0]",
        "or declare ArraySpec((), 'float64') in element_spec=, and write cast('int64') after this",
    ),
    (
        "ps.range(9).padded_batch(2, padded_shapes=3)",
        "padded_batch(padded_shapes=...) needs shapes such as (None, 3), got 3.",
    ),
    (
        "ps.range(9).windows(size=3)",
        "Here it is length=.",
    ),
    (
        "ps.range(9).shuffle(seed=1, reshuffle_each_iteration=False)",
        "Here it is reshuffle=.",
    ),
    (
        "ps.range(9).map(abs, num_parallel_calls=4)",
        "steps run on all CPUs. loader(workers=4) says how many.",
    ),
    (
        "ps.range(9).map(abs, batched=True, nope=1)",
        "map() has no argument nope=. It takes fn, element_spec, batched, keeps_count.",
    ),
    (
        "ps.range(9).loader(pin_memory=True)",
        "It is an option of to_torch() alone.",
    ),
    (
        "ps.range(9).loader(persistent_workers=True)",
        "There is nothing to write: workers live as long as the loader.",
    ),
    (
        "ps.range(9).loader(drop_last=True)",
        "Write batch(n, drop_remainder=True).",
    ),
    (
        "ps.range(9).loader(sampler=None)",
        "Processes share batches by shard=",
    ),
    (
        "ps.range(9).loader(worker_init_fn=print)",
        "random_map(fn) gives each element random numbers of its own.",
    ),
    (
        "ps.from_generator(range, args=[3])",
        "from_generator(gen, 10).",
    ),
    (
        'ps.from_generator(range, 3, output_types="int64")',
        "Here it is element_spec=.",
    ),
    (
        "ps.range(9).split()",
        "split() got no parts. Give fractions, split(0.8, 0.2), or counts, split(800, 200).",
    ),
    (
        "ps.range(9).split(-1)",
        "split() got the part -1. A part is a fraction from 0 to 1, or a count.",
    ),
    (
        'ps.range(9).split(0.5, 0.5, stratify=[float("nan")] * 9)',
        "Give these elements a label, or leave them out of the dataset.",
    ),
    (
        "ps.range(9).cardinality()",
        "A dataset has no 'cardinality': ds.length.",
    ),
    (
        'ps.range(9).save("x")',
        "A dataset has no 'save': materialize(path).",
    ),
    (
        'ps.range(9).snapshot("x")',
        "A dataset has no 'snapshot': cache(path), or materialize(path).",
    ),
    (
        "ps.range(9).rejection_resample()",
        "penstock.mix() of datasets of each class, with repeat() for those that are rare.",
    ),
    (
        "ps.range(9).group_by_window()",
        "A dataset has no 'group_by_window': bucket_by_length(key, boundaries, batch_sizes).",
    ),
    (
        "ps.range(9).select([1, 2])",
        "Elements by their numbers are ds[a:b] or ds[numbers].",
    ),
    (
        "ps.ConcatDataset([ps.range(3)])",
        "penstock has no 'ConcatDataset': penstock.concatenate(datasets).",
    ),
    (
        "ps.Subset(ps.range(9), [1])",
        "penstock has no 'Subset': ds[a:b] or ds[numbers].",
    ),
    (
        "ps.IterableDataset()",
        "penstock has no 'IterableDataset': penstock.from_generator(fn).",
    ),
    (
        'ps.TFRecordDataset("x")',
        "penstock has no 'TFRecordDataset': penstock.from_tfrecord(paths).",
    ),
    (
        "ps.WeightedRandomSampler([1])",
        "ds.sample(weights).",
    ),
    (
        "ps.train_test_split(ps.range(9))",
        "penstock has no 'train_test_split': ds.split(0.8, 0.2, seed=1).",
    ),
    (
        'ps.ArraySpec(3, "int64")',
        "ArraySpec(3, ...): a shape is a tuple of integers, such as (28, 28), (3,) or ().",
    ),
    (
        'ps.ArraySpec((-1,), "int64")',
        "ArraySpec((-1,), ...): sizes are from 0 on, and None for an axis that differs.",
    ),
    (
        "ps.ArraySpec((2,), object)",
        'np.dtype("U20") is text of up to 20 characters, np.dtype("U") of any number.',
    ),
    (
        'ps.image_dataset_from_directory("pets", labels="none")',
        "image_dataset_from_directory(labels='none'): 'inferred', None, or a number for each file.",
    ),
    (
        'ps.image_dataset_from_directory("pets", label_mode="one-hot")',
        "image_dataset_from_directory(label_mode=) is 'one-hot'. It is one of 'int', 'categorical', 'binary'.",
    ),
    (
        'ps.image_dataset_from_directory("pets", image_size=(1, 2, 3))',
        "It is two integers of at least 1, (height, width): (180, 180).",
    ),
    (
        'ps.image_dataset_from_directory("pets", validation_split=0.01, subset="training", seed=1, verbose=False)',
        "that part of 8 files is no whole file. Take a larger part, or leave validation_split out.",
    ),
    (
        'ps.from_image_files("text.txt")[0]',
        "Fetch the file again, or take it out of the images.",
    ),
    (
        "ps.from_arrays(np.array([{}, {}], object))",
        "Give an array of numbers or text, such as array.astype('U') or array.astype('float32'),",
    ),
    (
        "ps.range(9).loader(shard=3)",
        "Use (index, count), 'auto', or a dimension of a DeviceMesh, as in mesh['dp'].",
    ),
    (
        'ps.range(9).materialize("s3://bucket/x")',
        "give its path. cache() without one keeps them in memory.",
    ),
    (
        "ps.range(9).windows(2, delta_timestamps={})",
        "Offsets count steps, seconds times the steps in a second",
    ),
    (
        "ps.range(9).split(0.5, 0.5, groups=lambda x: x)",
        "a value for each element: [fn(e) for e in ds].",
    ),
    (
        "ps.from_arrays({'a': {'b': np.arange(9)}}).split(0.5, 0.5, groups='b')",
        "for a leaf below it its values: [e['a']['b'] for e in ds.select('a')].",
    ),
    (
        "ps.from_arrays({'a': {'b': np.arange(9)}}).split(0.5, 0.5, groups=('a', 'b'))",
        "got (2,). Give a key of the top level",
    ),
    (
        "ps.from_audio('x.wav')",
        "penstock has no 'from_audio': penstock.from_files(paths)",
    ),
    (
        "ps.from_arrays({'t': np.array(['a', 'b'])}).pack(4, lengths='t')",
        "Of text, count the tokens of each element: [len(tokens(e)) for e in ds].",
    ),
    (
        "ps.statistics(ps.from_arrays({'t': np.array(['a', 'b']), 'n': np.ones(2), 'm': np.ones(2)}))",
        "element['t'] is () <U1. Leave it out: select('n', 'm').",
    ),
    (
        "ps.from_arrays({'s': np.arange(9)}).windows(3).split(0.5, 0.5, groups='s')",
        "[label_of(e) for e in ds], or do this before the windows() or batch() that made it.",
    ),
    (
        "ps.range(9).windows(3).split(0.5, 0.5, stratify=[0] * 7)",
        "Or split the elements, and make the windows of each part.",
    ),
    (
        "ps.range(9).map(lambda x: [{'x': x}, {'x': x}])[0]",
        "(several elements are for flat_map(); parts of one stand in a tuple or a dict)",
    ),
    (
        "ps.range(9).map(lambda many: {'ids': [np.arange(n) for n in many]}, batched=9)[0]",
        "in map(batched=), element_spec= says which axis differs)",
    ),
    (
        "ps.mix([ps.from_image_files('pets/*/*'), ps.from_arrays(np.zeros((3, 4, 4, 3), 'uint8'))], [1, 1])[0]",
        "If sizes may differ: map(lambda e: e, element_spec=first.element_spec).",
    ),
    (
        'ps.image_dataset_from_directory("pets", image_size=None)',
        "Images as large as their files: from_image_files(paths, labels).",
    ),
    (
        "ps.range(9).map(lambda x: None)[0]",
        "is a NoneType, which is not an array of numbers, text or bytes (the function may lack a return)",
    ),
    (
        "ps.range(9).filter(np.arange(9) > 3)",
        "A mask or positions choose elements: ds[mask].",
    ),
    (
        "ps.range(9).split([0.8, 0.2])",
        "Write split(0.8, 0.2), or with a star: split(*parts).",
    ),
    (
        "ps.range(9).split(train=0.8, val=0.2)",
        "split() has no argument train=. Write the parts: train, test = ds.split(0.8, 0.2).",
    ),
    (
        "ps.from_csv('x.csv', sep=';')",
        "Here it is delimiter=.",
    ),
    (
        'ps.from_hdf5("text.txt")',
        "text.txt cannot be opened: Unable to synchronously open file (file signature not found).",
    ),
    (
        "ps.range(9).cache(3)",
        "cache() needs the path of a directory, got an int.",
    ),
    (
        "ps.range(3)[[0, 1, 0] == 1]",
        "not by False, a bool. A list is not compared element by element, as an array is: ds[np.asarray(labels) == 3].",
    ),
    (
        "ps.range(3)[np.True_]",
        "not by np.True_, a bool.",
    ),
    (
        "ps.range(3)[:True]",
        "A slice of a dataset needs integers, got [:True].",
    ),
    (
        'ps.range(9).batch(2, drop_remainder="False")',
        "batch(drop_remainder='False'): True or False is needed, not a str.",
    ),
    (
        "ps.range(9).shuffle(reshuffle=None)",
        "shuffle(reshuffle=None): True or False is needed, not a NoneType.",
    ),
    (
        "list(ps.range(2).flat_map(lambda x: {'x': [x], 'y': [x]}))",
        "it returned a dict, which is one element, and of which iteration gives names. Return a list of elements",
    ),
    (
        "list(ps.range(2).flat_map(lambda x: {'a', 'b'}))",
        "it returned a set, whose order is another one in each process. Return a list, such as sorted(values)",
    ),
    (
        "ps.from_generator(lambda: {'a', 'b'}).element_spec",
        "it returned a set, whose order is another one in each process.",
    ),
    (
        "ps.range(2).map(lambda x: {}, element_spec={})",
        "element_spec is {}, which has no array, so an element would hold nothing.",
    ),
    (
        "ps.ArraySpec((3,), None)",
        "ArraySpec((3,), None): a dtype is needed, such as 'float32'.",
    ),
    (
        "ps.ArraySpec((3,), 'float23')",
        "ArraySpec((3,), 'float23'): data type 'float23' not understood.",
    ),
    (
        "ps.ArraySpec('', 'int64')",
        "ArraySpec('', ...): a shape is a tuple of integers",
    ),
    (
        "ps.concatenate(3)",
        "concatenate() needs several datasets in a list or tuple, got an int.",
    ),
    (
        "ps.range(2).split(0.5, 0.5, groups=[[1], [1, 2]])",
        "split(groups=...) needs one number or text for each element, and NumPy says: setting an array element",
    ),
    (
        "list(ps.from_generator(lambda: [np.ones(1), np.ones(2)]).padded_batch(2, padding_values='3'))",
        "which cannot hold the padding value '3'.",
    ),
    (
        "a = ps.from_arrays({'x': np.arange(3)})\na.join(ps.from_arrays({'x': [1], 'w': [2.0]}), 'x', fill='0')",
        "'w' is () float64, which cannot hold '0'.",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistakes")
    (path / "text.txt").write_text("hello")
    (path / "empty").mkdir()
    np.savez(path / "data.npz", a=np.ones(3))
    for number in range(8):
        place = path / "pets" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(place), np.zeros((4, 4, 3), "uint8"))
    return path


@pytest.mark.parametrize(("program", "words"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_typical_mistake_says_what_to_write(
    program: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(folder)
    caplog.set_level(logging.WARNING)
    said = []
    try:
        exec(compile(program, "mistake.py", "exec"), {"ps": ps, "np": np, "__name__": "mistake"})
    except (ps.PenstockError, AttributeError) as error:
        said.append(str(error))
    assert words in "\n".join([*said, *caplog.messages])


def test_there_are_130_mistakes() -> None:
    assert len({program for program, _ in MISTAKES}) == len(MISTAKES) >= 130
