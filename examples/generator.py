"""A generator feeds a model: it says what to do, `map` does the heavy part on all cores, and batches come in order.

The recordings here are made up; the shape of the program is not: something that can only be read from its beginning (a
log, a cursor of a database, a simulation), work for each element, some that are left out, batches of a shuffled window.
"""

import numpy as np

import penstock as ps


def recordings(count):
    """Yields recordings one after the other, as a reader of a log would: each longer or shorter."""
    rng = np.random.default_rng(7)
    for number in range(count):
        yield {"name": f"take {number}", "sound": rng.normal(size=rng.integers(50, 400)).astype("float32")}


def spectrum(take):
    """The heavy part: it runs on all workers."""
    padded = np.zeros(512, "float32")
    padded[: len(take["sound"])] = take["sound"]
    return {"spectrum": np.abs(np.fft.rfft(padded)).astype("float32"), "length": np.int64(len(take["sound"]))}


def is_long(element):
    """Short takes are left out."""
    return element["length"] >= 100


def main():
    """Reads two epochs, the second one resumed in its middle."""
    takes = ps.from_generator(
        recordings,
        1000,
        element_spec={"name": ps.ArraySpec((), "U"), "sound": ps.ArraySpec((None,), "float32")},
    )
    ds = takes.map(spectrum).filter(is_long).shuffle(seed=1, window=200).batch(32)
    print(ds)
    with ds.loader() as loader:
        first = [batch["spectrum"].sum() for batch in loader]
        second = iter(loader)
        part = [next(second)["spectrum"].sum() for _ in range(10)]
        state = loader.get_state()
        whole = part + [batch["spectrum"].sum() for batch in second]
    with ds.loader(executor="inline") as loader:  # another executor, and from the middle of the second epoch
        loader.set_state(state)
        rest = [batch["spectrum"].sum() for batch in loader]
    assert part + rest == whole, "resumed batches differ"
    assert first != whole, "the second epoch has an order of its own"
    print(f"{len(first)} batches of long takes came in each of 2 epochs; resumed in the middle, the same.")


if __name__ == "__main__":
    main()
