"""The least native engine that one can write: what a copy engine without checks, guards, leases or errors reaches.

Two threads copy rows of arrays into slots made once. A job is a batch. Python submits addresses of indices and waits.
It needs a C compiler (`cc`), reads files by a mapping, and ends its process if the file shrinks.
"""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from _harness import Array

_SLOTS = 4
_SOURCE = """
#include <pthread.h>
#include <stdint.h>
#include <string.h>
typedef struct { const char *from; int64_t nbytes; const int64_t *rows; int64_t count; char *to; } Copy;
typedef struct { Copy copies[4]; int count, next, left; } Job;
static Job jobs[64];
static int first, last;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;

static void *run(void *unused) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (first == last) pthread_cond_wait(&work, &mutex);
        Job *job = &jobs[first % 64];
        int part = job->next++;
        if (job->next == 2) first++;
        pthread_mutex_unlock(&mutex);
        for (int i = 0; i < job->count; i++) {
            Copy *copy = &job->copies[i];
            for (int64_t row = copy->count * part / 2; row < copy->count * (part + 1) / 2; row++)
                memcpy(copy->to + row * copy->nbytes, copy->from + copy->rows[row] * copy->nbytes, copy->nbytes);
        }
        pthread_mutex_lock(&mutex);
        if (--job->left == 0) pthread_cond_broadcast(&done);
    }
    return unused;
}
void start(void) {
    pthread_t thread;
    for (int i = 0; i < 2; i++) pthread_create(&thread, 0, run, 0);
}
void submit(const Copy *copies, int count) {
    pthread_mutex_lock(&mutex);
    Job *job = &jobs[last % 64];
    memcpy(job->copies, copies, count * sizeof(Copy));
    job->count = count, job->next = 0, job->left = 2, last++;
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&mutex);
}
void wait_for(int number) {
    pthread_mutex_lock(&mutex);
    while (jobs[number % 64].left) pthread_cond_wait(&done, &mutex);
    pthread_mutex_unlock(&mutex);
}
"""


class _Copy(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("source", "nbytes", "rows", "count", "target")]


def bare_batches(
    sources: Sequence[Array], size: int, indices: Iterable[Sequence[Array]]
) -> Iterator[tuple[Array, ...]]:
    """Yields rows of the sources, in slots that are written again four batches later.

    Args:
        sources: Contiguous arrays or mappings.
        size: Largest number of rows of a batch.
        indices: For each batch, the int64 rows of each source.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the bare engine needs a C compiler")
    folder = Path(tempfile.mkdtemp())
    (folder / "engine.c").write_text(_SOURCE)
    subprocess.run(
        [compiler, "-O3", "-shared", "-fPIC", "-o", "engine.so", "engine.c", "-pthread"], cwd=folder, check=True
    )
    engine = ctypes.CDLL(str(folder / "engine.so"))
    engine.start()
    slots = [[np.zeros((size, *source.shape[1:]), source.dtype) for source in sources] for _ in range(_SLOTS)]
    nbytes = [source[0].nbytes for source in sources]
    held: list[Sequence[Array]] = []
    try:
        for number, rows in enumerate(indices):
            held.append(rows)
            copies = (_Copy * len(sources))(
                *(
                    (source.ctypes.data, each, row.ctypes.data, len(row), slot.ctypes.data)
                    for source, each, row, slot in zip(sources, nbytes, rows, slots[number % _SLOTS], strict=True)
                )
            )
            engine.submit(copies, len(sources))
            if number + 2 > _SLOTS:  # the consumer still has one slot
                ready = number + 2 - _SLOTS
                engine.wait_for(ready)
                yield tuple(slot[: len(row)] for slot, row in zip(slots[ready % _SLOTS], held[ready], strict=True))
    finally:
        if held:
            engine.wait_for(len(held) - 1)  # the slots are freed after this
