"""Words of tf.data, torch, Keras, Grain and Hugging Face, with what stands in for them here; for error messages."""

from typing import Final

SAME: Final = {
    "batch_size": "size",
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "max_queue_size": "prefetch",
    "timeout": "timeout_s",
    "drop_last": "drop_remainder",
    "output_signature": "element_spec",
    "output_types": "element_spec",
    "reshuffle_each_iteration": "reshuffle",
    "random_state": "seed",
    "size": "length",
    "element_length_func": "length_fn",
    "bucket_boundaries": "boundaries",
    "bucket_batch_sizes": "batch_sizes",
    "n_fft": "size",
    "n_mels": "mel_bands",
    "win_length": "size",
    "hop_length": "hop",
}
"""The argument of the same meaning, if the function has it."""

_NO_BUFFER: Final = (
    "shuffle(seed=1) shuffles all of it, without a buffer; a stream takes shuffle(seed=1, window=1000). A loader reads "
    "ahead by itself: loader(prefetch=4)."
)
_ALL_CPUS: Final = "There is nothing to write: steps run on all CPUs. loader(workers=4) says how many."
ARGUMENTS: Final = {
    "num_parallel_calls": _ALL_CPUS,
    "num_proc": _ALL_CPUS,
    "concurrency": _ALL_CPUS,
    **dict.fromkeys(("test_size", "train_size"), "Write the parts: train, test = ds.split(0.8, 0.2)."),
    **dict.fromkeys(("left_size", "right_size"), "Write the parts: left, right = ds.split(0.8, 0.2)."),
    "num_workers": "It is an option of what runs the dataset: loader(workers=4), to_torch(workers=4) and the like.",
    "batch_size": "Write batch(n) before.",
    "drop_last": "Write batch(n, drop_remainder=True).",
    "buffer_size": _NO_BUFFER,
    "shuffle": "Write shuffle(seed=1) before batch(n).",
    "collate_fn": "Write map(fn) after batch(n), or padded_batch(n) in its place.",
    "args": "Give them after the function: from_generator(gen, 10).",
    "sampler": "Processes share batches by shard='auto'; shuffle(seed=1) is a step of the dataset.",
    "generator": "There is nothing to write: seeds are arguments of the steps, such as shuffle(seed=1).",
    "worker_init_fn": "There is nothing to write: random_map(fn) gives each element random numbers of its own.",
    "persistent_workers": "There is nothing to write: workers live as long as the loader.",
    "pin_memory": "It is an option of to_torch() alone.",
    "deterministic": "There is nothing to write: the order is always that of the dataset.",
    "pad_to_bucket_boundary": "Pad each element to the boundary in a map() before.",
    "remove_columns": "What fn returns is the element: leave them out there.",
    "delta_timestamps": "Offsets count steps, seconds times the steps in a second: windows({'action': range(16)}).",
    "use_multiprocessing": "Write executor='processes', or nothing: it is chosen by itself.",
}
"""The remedy for an argument that is none here."""

_COLUMNS: Final = "its columns, {'x': table['x'].to_numpy()}, go into penstock.from_arrays()"
_READ_FILES: Final = "penstock.from_arrays((paths, labels)), and a map() that reads each file"
SOME: Final = "ds[a:b] or ds[numbers]"
NAMES: Final = {
    "from_tensor_slices": "penstock.from_arrays((x, y))",
    "from_numpy": "penstock.from_arrays((x, y))",
    "TensorDataset": "penstock.from_arrays((x, y))",
    "from_list": "penstock.from_source(items)",
    "from_pandas": _COLUMNS,
    "make_csv_dataset": "penstock.from_csv(paths)",
    "CsvDataset": "penstock.from_csv(paths)",
    "load_dataset": "penstock.from_jsonl(paths), from_csv(), from_text() or from_parquet()",
    "text_dataset_from_directory": _READ_FILES,
    "audio_dataset_from_directory": _READ_FILES,
    "from_audio": "penstock.from_files(paths), and map(lambda e: audio.decode(e['bytes'])) of penstock.audio",
    "list_files": "sorted(glob.glob(pattern)), which from_arrays() and from_image_files() take",
    "TextLineDataset": "penstock.from_text(paths)",
    "TFRecordDataset": "penstock.from_tfrecord(paths)",
    "DataLoader": "ds.batch(32).loader(), or to_torch(), to_keras(), to_jax()",
    "IterableDataset": "penstock.from_generator(fn)",
    "random_split": "ds.split(0.8, 0.2, seed=1)",
    "train_test_split": "ds.split(0.8, 0.2, seed=1)",
    "Subset": SOME,
    "select_columns": "select('x', 'y')",
    "rename_column": "rename({'old': 'new'})",
    "rename_columns": "rename({'old': 'new'})",
    "ConcatDataset": "penstock.concatenate(datasets)",
    "ChainDataset": "penstock.concatenate(datasets)",
    "concatenate": "penstock.concatenate([ds, other])",
    "StackDataset": "penstock.zip((a, b))",
    "zip": "penstock.zip((ds, other))",
    "enumerate": "penstock.zip((penstock.range(len(ds)), ds))",
    "interleave": "flat_map(function), or penstock.interleave(datasets)",
    "DistributedSampler": "ds.batch(32 * world_size).loader(shard='auto')",
    "WeightedRandomSampler": "ds.sample(weights)",
    "sample_from_datasets": "penstock.mix(datasets, weights)",
    "choose_from_datasets": "penstock.interleave(datasets), or penstock.mix(datasets, weights)",
    "rejection_resample": "penstock.mix() of datasets of each class, with repeat() for those that are rare",
    "prefetch": "each loader reads ahead by itself, see loader(prefetch=4)",
    "as_numpy_iterator": "iterate the dataset, or ds.loader(): elements are NumPy arrays",
    "cardinality": "ds.length",
    "apply": "function(ds)",
    "window": "windows(length, shift=, stride=)",
    "rebatch": "unbatch().batch(size)",
    "ragged_batch": "padded_batch(size)",
    "with_options": "options are arguments of ds.loader()",
    "bucket_by_sequence_length": "bucket_by_length(length_fn, boundaries, batch_sizes)",
    "group_by_window": "bucket_by_length(key, boundaries, batch_sizes)",
    "remove_columns": "select('x', 'y') of what is to stay",
    "snapshot": "cache(path), or materialize(path)",
    "save": "materialize(path)",
    "ignore_errors": "ds.loader(on_error='skip')",
    "assert_cardinality": "from_generator(function, length=n)",
    "prefetch_to_device": "to_jax(), or to_torch(device=)",
}
"""What stands in for a function, class or method."""

OF_DATA_LOADER: Final = {
    "dataset": "elements are counted by len() of the dataset, before its batch()",
    "batch_size": "it is what batch() was given; len(batch) is that of one, also of the short last one",
    "sampler": "each iteration is the next epoch, in an order of its own",
    "set_epoch": "each iteration is the next epoch, in an order of its own",
}
"""What stands in for attributes of a torch `DataLoader`, and of a loader."""

OF_STATEFUL_LOADER: Final = {"state_dict": "get_state()", "load_state_dict": "set_state(state)"}
"""What stands in for attributes of torchdata's `StatefulDataLoader`."""

CURES: Final = {
    "range": "takes one integer. For a part: range(stop)[start::step].",
    "shuffle": f"takes no second number. Its first argument is the seed. {_NO_BUFFER}",
    "mix": (
        "needs weights. A number above zero for each dataset: [1, 1] for two equal parts. It takes datasets, weights, "
        "seed."
    ),
}
"""The message about a call with too many arguments, or for `mix` with too few."""

SEVERAL_IN_ONE: Final = ("tree", "path_or_tree", "datasets", "paths")
"""First arguments that hold what Python's `zip` and torch's `TensorDataset` take one by one."""
