"""The least that two worker processes need to fill batches in order: the yardstick of the library's own workers.

Two forked processes, a pipe of tasks to each, one pipe of answers back, and one shared mapping for eight batches. Each
worker fills one half of every batch. Nothing else: no error of the function crosses, a dead worker is not noticed, no
element is redone, and a batch is only valid until the next but one is requested.
"""

import itertools
import mmap
import os
import signal
import struct
from collections.abc import Iterator

import numpy as np
from _contenders import Element
from _harness import Array, Epoch

_SLOT_COUNT = 8
_WORKER_COUNT = 2
_TASK = struct.Struct("=qqq")  # the first element, its row in the mapping, how many rows
_ANSWER = struct.Struct("=q")  # the slot in which a half is filled


def bare_ring(element: Element, batch_size: int) -> Epoch:
    """Makes the epochs of a function of an element, each with processes and a mapping of its own."""
    sample = element(0)

    def epoch() -> Iterator[tuple[Array]]:
        memory = mmap.mmap(-1, _SLOT_COUNT * batch_size * sample.nbytes)
        rows = np.frombuffer(memory, sample.dtype).reshape(_SLOT_COUNT * batch_size, *sample.shape)
        answers, answer = os.pipe()
        bounds = [batch_size * number // _WORKER_COUNT for number in range(_WORKER_COUNT + 1)]
        workers, tasks = [], []
        for _ in range(_WORKER_COUNT):
            receiver, sender = os.pipe()
            pid = os.fork()
            if not pid:
                for each in (*tasks, sender):  # or it would not see the end of the parent
                    os.close(each)
                _work(element, rows, batch_size, receiver, answer)
            workers.append(pid)
            tasks.append(sender)

        def issue(batch: int) -> None:
            slot = batch % _SLOT_COUNT
            for sender, (start, stop) in zip(tasks, itertools.pairwise(bounds), strict=True):
                os.write(sender, _TASK.pack(batch * batch_size + start, slot * batch_size + start, stop - start))

        try:
            done = [0] * _SLOT_COUNT
            for batch in range(_SLOT_COUNT - 2):
                issue(batch)
            for batch in itertools.count():
                issue(batch + _SLOT_COUNT - 2)
                slot = batch % _SLOT_COUNT
                while done[slot] < _WORKER_COUNT:
                    done[_ANSWER.unpack(os.read(answers, _ANSWER.size))[0]] += 1
                done[slot] = 0
                yield (rows[slot * batch_size : (slot + 1) * batch_size],)
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    return epoch


def _work(element: Element, rows: Array, batch_size: int, receiver: int, answer: int) -> None:
    while data := os.read(receiver, _TASK.size):
        first, row, count = _TASK.unpack(data)
        for number in range(count):
            rows[row + number] = element(first + number)
        os.write(answer, _ANSWER.pack(row // batch_size))
    os._exit(0)
