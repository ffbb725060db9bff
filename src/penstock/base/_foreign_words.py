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
    "sep": "delimiter",
    "usecols": "columns",
    "sr": "sample_rate",
    "seconds": "duration",
    "step": "shift",
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
    **dict.fromkeys(
        ("test_size", "train_size", "test", "train", "val", "validation_split"),
        "Write the parts: train, test = ds.split(0.8, 0.2).",
    ),
    **dict.fromkeys(
        ("label", "label_name", "target"),
        "Make pairs after it: map(lambda e: (e['x'], e['y'])), before or after batch(n).",
    ),
    "header": "The first line has the names of the columns; if it has not, give them: names=['x', 'y'].",
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
    "overlap": "Write shift=, from the start of one window to that of the next: the length less the overlap.",
    "max_length": "Write padded_shapes=, and cut longer elements in a map() before.",
    "labels": "Put them beside: penstock.zip((ds, penstock.from_arrays(labels))), one for each element.",
    "p": "sometimes(0.5, distortion) applies it with a probability; flip() takes one for each direction.",
    **dict.fromkeys(("fps", "frame_rate"), "For every second frame: windows(8, stride=2), or ds[::2]."),
    **dict.fromkeys(("left_on", "right_on"), "Keys of two names: join(other, on={'user': 'id'})."),
}
"""The remedy for an argument that is none here."""

_COLUMNS: Final = "its columns, {'x': table['x'].to_numpy()}, go into penstock.from_arrays()"
_READ_FILES: Final = "penstock.from_arrays((paths, labels)), and a map() that reads each file"
_SOUND: Final = "penstock.from_files(paths), and map(lambda e: audio.decode(e['bytes'])) of penstock.audio"
_IMAGES: Final = "penstock.image_dataset_from_directory(directory), or from_image_files(paths)"
SOME: Final = "ds[a:b] or ds[numbers]"
_NUMBERS: Final = "penstock.statistics(ds), or reduce()"
_RUN: Final = "a loader has it, loader = ds.loader(), and so has what to_torch(), to_keras() and to_jax() make"
_POSITION: Final = f"{_RUN}. Write state = loader.get_state(), and later loader.set_state(state)"
_NEXT_EPOCH: Final = "each iteration is the next epoch, in an order of its own"
NAMES: Final = {
    "from_tensor_slices": "penstock.from_arrays((x, y))",
    "from_numpy": "penstock.from_arrays((x, y))",
    "TensorDataset": "penstock.from_arrays((x, y))",
    "from_list": "penstock.from_source(items)",
    **dict.fromkeys(("from_pandas", "from_polars", "from_dataframe"), _COLUMNS),
    "from_dict": "penstock.from_arrays({'x': x, 'y': y})",
    **dict.fromkeys(("from_torch", "from_huggingface", "from_datasets"), "penstock.from_source(dataset)"),
    "make_csv_dataset": "penstock.from_csv(paths)",
    "CsvDataset": "penstock.from_csv(paths)",
    "load_dataset": "penstock.from_jsonl(paths), from_csv(), from_text() or from_parquet()",
    "text_dataset_from_directory": _READ_FILES,
    "audio_dataset_from_directory": _READ_FILES,
    **dict.fromkeys(("from_audio", "from_audio_files", "from_sound", "from_wav"), _SOUND),
    **dict.fromkeys(("ImageFolder", "from_image_folder", "from_images", "from_directory", "from_folder"), _IMAGES),
    **dict.fromkeys(
        ("from_netcdf", "open_dataset"), "penstock.from_xarray(xarray.open_dataset(path), 'time'), of netCDF and others"
    ),
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
    **dict.fromkeys(("columns", "column_names", "features", "dtypes"), "ds.element_spec"),
    "head": "take(5)",
    **dict.fromkeys(("iloc", "loc"), SOME),
    **dict.fromkeys(("drop", "drop_columns"), "select('x', 'y') of what is to stay"),
    **dict.fromkeys(("dropna", "fillna"), "from_parquet(paths, fill_null={'x': 0}), or map()"),
    **dict.fromkeys(("query", "where"), "filter(lambda e: e['x'] > 0), or ds[mask]"),
    **dict.fromkeys(("assign", "add_column", "with_columns"), "map(lambda e: e | {'z': e['x'] + 1})"),
    "astype": "cast(dtype)",
    "merge": "join(other, on='key')",
    "groupby": "group_by('x')",
    **dict.fromkeys(("sort", "sort_values"), "ds[np.argsort(values)]"),
    **dict.fromkeys(("unique", "value_counts"), "np.unique([e['x'] for e in ds.select('x')], return_counts=True)"),
    **dict.fromkeys(("describe", "statistics", "mean", "std", "sum", "min", "max"), _NUMBERS),
    "count": "len(ds)",
    "to_pandas": "pandas.DataFrame(list(ds))",
    "to_numpy": "np.stack(list(ds)), which loads all of it",
    "to_pytorch": "to_torch()",
    **dict.fromkeys(("dataloader", "to_dataloader"), "loader(), to_torch(), to_keras(), to_jax()"),
    "map_batches": "map(fn, batched=256), or batch(256).map(fn)",
    **dict.fromkeys(("augment", "random_apply"), "random_map(fn)"),
    **dict.fromkeys(
        ("random_flat_map", "random_patches"), "random_map() of a function that returns several stacked, and unbatch()"
    ),
    **dict.fromkeys(("balance", "oversample"), "sample(balance='label')"),
    **dict.fromkeys(("get_state", "set_state", "state_dict", "load_state_dict"), _POSITION),
    **dict.fromkeys(("report", "counters", "close", "projected_nbytes", "workers"), _RUN),
    "set_epoch": f"of a loader {_NEXT_EPOCH}",
}
"""What stands in for a function, class or method."""

OF_IMAGES: Final = {
    "centercrop": "crop(height, width, down=0.5, across=0.5)",
    **dict.fromkeys(("horizontalflip", "hflip", "fliplr"), "flip()"),
    **dict.fromkeys(("verticalflip", "vflip", "flipud"), "flip(horizontal=0, vertical=0.5)"),
    "rotation": "rotate(degrees)",
    "translation": "translate(x, y), in pixels",
    "zoom": "scale(0.1)",
    "affine": "compose(rotate(10), scale(0.1), translate(5, 5), shear(0.1))",
    **dict.fromkeys(("totensor", "rescaling", "rescale"), "to_float()"),
    **dict.fromkeys(("normalization", "normalize"), "map(lambda image: (image - mean) / std) after to_float()"),
    "onehot": "map(lambda label: np.eye(count, dtype='float32')[label])",
    "colorjitter": "compose(brightness(0.2), contrast(0.2)); for colours albumentations by random_map()",
    **dict.fromkeys(("grayscale", "hue", "saturation", "perspective"), "albumentations by random_map()"),
    **dict.fromkeys(("mixup", "cutmix"), "a function of yours, random_map(mixup) after batch()"),
    "gaussianblur": "blur(sigma)",
    "gaussiannoise": "noise(sigma)",
    **dict.fromkeys(("erasing", "cutout", "coarsedropout"), "erase()"),
    "elastictransform": "elastic(displacement, spacing)",
    "apply": "sometimes(0.5, distortion)",
    "choice": "one_of(a, b)",
    "pad": "map() with np.pad; padded_batch() pads to the largest image of a batch",
}
"""What stands in for a name of torchvision, Keras or Albumentations, in small letters and without `random` and `_`."""

OF_SOUND: Final = {
    **dict.fromkeys(("load", "read", "open"), "decode(path, sample_rate=16_000, mono=True)"),
    **dict.fromkeys(("resample", "Resample"), "Decoding(sample_rate=16_000)"),
    **dict.fromkeys(("stft", "STFT"), "Spectrogram(size, hop)"),
    **dict.fromkeys(
        ("MelSpectrogram", "melspectrogram", "mel_spectrogram"),
        "Spectrogram(512, 160, mel_bands=80, sample_rate=16_000)",
    ),
    **dict.fromkeys(("mfcc", "MFCC"), "scipy.fft.dct() of Spectrogram(512, 160, mel_bands=40, sample_rate=16_000)"),
}
"""What stands in for a name of torchaudio or librosa."""

OF_DATA_LOADER: Final = {
    "dataset": "elements are counted by len() of the dataset, before its batch()",
    "batch_size": "it is what batch() was given; len(batch) is that of one, also of the short last one",
    "sampler": _NEXT_EPOCH,
    "set_epoch": _NEXT_EPOCH,
}
"""What stands in for attributes of a torch `DataLoader`, and of a loader."""

OF_STATEFUL_LOADER: Final = {"state_dict": "get_state()", "load_state_dict": "set_state(state)"}
"""What stands in for attributes of torchdata's `StatefulDataLoader`."""

OF_LOADER: Final = {
    **OF_DATA_LOADER,
    **OF_STATEFUL_LOADER,
    **dict.fromkeys(
        ("map", "random_map", "filter", "cast", "shuffle", "batch", "padded_batch", "take", "skip", "repeat", "split"),
        "steps come before it, ds.shuffle(seed=1).batch(32).loader()",
    ),
    **dict.fromkeys(
        ("to_keras", "to_torch", "to_jax", "to_tf"), "the dataset has it, with the options of loader(), and makes one"
    ),
}
"""What stands in for attributes of a loader."""

TOO_MANY: Final = {
    "range": "takes one integer. For a part: range(stop)[start::step].",
    "shuffle": f"takes no second number. Its first argument is the seed. {_NO_BUFFER}",
}
"""The message about a call with too many arguments."""

TOO_FEW: Final = {
    "mix": (
        "needs weights. A number above zero for each dataset: [1, 1] for two equal parts. It takes datasets, weights, "
        "seed."
    ),
    "join": "needs on=, the key: join(other, on='id'), or on={'user': 'id'} where its names differ.",
    "crop": "needs a height and a width: crop(64, 64).",
    "from_xarray": "needs dim, along which the elements lie: from_xarray(data, 'time').",
}
"""The message about a call with too few arguments."""

SEVERAL_IN_ONE: Final = ("tree", "path_or_tree", "datasets", "paths")
"""First arguments that hold what Python's `zip` and torch's `TensorDataset` take one by one."""
