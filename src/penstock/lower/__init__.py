"""From the user's plan to units of work. The code here starts no threads and reads no clock.

The way of a plan into a loader:

1. `_analysis.lower` rewrites the plan. `on_error` adds guards (`_guards.py`), `unbatch` reads rows alone where sources
   can do so, and complete caches drop their inputs (`_rewrite.py`). Each rewrite returns a new plan.
2. `_analysis.analyse` walks the new plan once. Its result, `Analysis`, answers all questions about the plan: the choice
   of the executor, the budget of memory, messages and reports read it.
3. A plan with random access becomes one `ParallelProgram` (`_batches.py`). A stream is cut in two (`_stages.py`): one
   worker reads the steps below in order (`FeedProgram`, `_streams.py`), and all workers run the steps above
   (`ParallelProgram`). If nothing but `batch` is above, that one worker writes elements straight into batches. If a
   step below needs what functions make (`filter` after `map`), workers make that ahead, as a *stage*. The one reader is
   a process of its own where the generator can travel, and a thread elsewhere (`run/_choose.py`).
4. A program cuts each batch into units: rows `[start, stop)` of batch `index` of epoch `epoch`. `_program.py` has the
   unit and the protocol of programs. An executor runs units (`run/executors/`), and a scheduler without threads decides
   which (`run/_scheduler.py`).
5. Parts of sources (row groups, chunks) that several units need are decoded ahead by workers (`PartProgram`,
   `_parts.py`) into memory that all read. `run/parts/_plan.py` decides which are decoded next, and which are dropped.

If the copy engine was compiled, a plan on threads that only moves bytes has no units and no executor. The consumer
computes which rows go where, for many batches at once (`_copies.py`), and submits whole batches to the threads of the
copy engine (`run/_copy_delivery.py`, `native/`). No other Python thread runs, but those that decode parts of tables.

The result of a unit is a pure function of the program and the integers in the unit. Failures are handled by that alone:

- A worker process dies, or makes no progress for `timeout_s` and is killed. The parent knows which unit the worker
  held. It notes the cause and the elements in the report and the log, starts a new worker, and queues the unit first.
  The batch waits for it, and is the same to the bit. If the worker read a stream, the new one starts the epoch again
  and skips; the batch is the same if the stream is.
- The third worker in a row dies of the same unit, or the second in a row makes no progress on it. The loader raises a
  `WorkerError` or a `DeadlineError` that names the elements. With `on_error="replace"` or `"skip"` the unit is cut down
  to the one element that kills workers, which is then set aside like any element that fails (`run/pool/_crashes.py`).
  Units of the reader of a stream are not cut down, for the elements after that are unknown: the loader raises.
- A thread cannot be killed. Past `timeout_s` the loader raises a `DeadlineError` at once.
"""
