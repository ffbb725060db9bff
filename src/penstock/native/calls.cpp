// Calls that need no engine: copies of the calling thread, announcements, padding, permutations,
// parts of files. And jobs, for engines.
#include "python.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <new>
#include <unistd.h>

namespace penstock {
namespace {

// What a job keeps of Python's.
struct Held {
    std::vector<Py_buffer> views; // reserved, so that none moves
    std::vector<PyObject *> sources;
};

} // namespace

void release(Job *job) {
    auto *held = static_cast<Held *>(job->held);
    for (Py_buffer &view : held->views) {
        PyBuffer_Release(&view);
    }
    for (PyObject *source : held->sources) {
        Py_DECREF(source);
    }
    delete held;
    delete job;
}

// ---------------------------------------------------------------------------------------------- jobs

// Fills the task of (source, rows, destination, destination rows or None, conversion).
static bool take_copy(PyObject *copy, Job *job, Held *held) {
    if (!PyTuple_Check(copy) || PyTuple_Size(copy) != 5) {
        PyErr_SetString(PyExc_TypeError, "a copy is a tuple (source, rows, destination, destination_rows, conversion)");
        return false;
    }
    PyObject *source_object = PyTuple_GetItem(copy, 0), *out_object = PyTuple_GetItem(copy, 2),
             *out_rows_object = PyTuple_GetItem(copy, 3), *code_object = PyTuple_GetItem(copy, 4);
    PySource *py_source = as_source(source_object);
    if (py_source == nullptr) {
        PyErr_Format(PyExc_TypeError, "expected a source of this engine, not %R", source_object);
        return false;
    }
    const Source &source = *py_source->source;
    Task task;
    task.source = &source;
    long code = code_object == Py_None ? 0 : PyLong_AsLong(code_object);
    if (code != 0 && (PyErr_Occurred() || !find_conversion(static_cast<int>(code), &task.conversion))) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "%ld is not a conversion", code);
        }
        return false;
    }
    const Conversion &conversion = task.conversion;
    task.count = take_rows(PyTuple_GetItem(copy, 1), "rows", &task.rows);
    if (task.count < 0) {
        return false;
    }
    bool found;
    int64_t outside = first_outside(task.rows.get(), task.count, source.layout.count, &found);
    if (found) {
        return fail_outside(py_source->name, outside, source.layout.count, "element");
    }
    Element element;
    if (!element_of(out_object, &element)) {
        return false;
    }
    if (element == OBJECTS) {
        PyErr_SetString(PyExc_TypeError, "a destination cannot hold Python objects");
        return false;
    }
    held->views.emplace_back();
    Py_buffer &view = held->views.back();
    if (PyObject_GetBuffer(out_object, &view, PyBUF_STRIDED) != 0) {
        held->views.pop_back();
        return false;
    }
    held->sources.push_back(Py_NewRef(source_object));
    task.out_nbytes = view.itemsize;
    bool is_contiguous = view.ndim >= 1;
    for (int i = view.ndim - 1; i >= 1; i--) {
        is_contiguous = is_contiguous && (view.shape[i] <= 1 || view.strides[i] == task.out_nbytes);
        task.out_nbytes *= view.shape[i];
    }
    if (!is_contiguous && task.out_nbytes > 0) {
        PyErr_SetString(PyExc_ValueError, "the rows of a destination must be C-contiguous");
        return false;
    }
    int64_t out_count = view.shape[0];
    if (out_rows_object == Py_None) {
        if (task.count > out_count) {
            return fail_outside(py_source->name, task.count - 1, out_count, "a destination's row for");
        }
    } else {
        int64_t count = take_rows(out_rows_object, "destination rows", &task.out_rows);
        if (count < 0) {
            return false;
        }
        if (count != task.count) {
            PyErr_Format(PyExc_ValueError, "%lld rows have %lld destination rows", static_cast<long long>(task.count),
                         static_cast<long long>(count));
            return false;
        }
        outside = first_outside(task.out_rows.get(), count, out_count, &found);
        if (found) {
            return fail_outside(py_source->name, outside, out_count, "destination row");
        }
    }
    const Layout &layout = source.layout;
    if (layout.nbytes % conversion.source_nbytes != 0 || layout.run_nbytes % conversion.source_nbytes != 0 ||
        conversion.converted(layout.nbytes) != task.out_nbytes) {
        PyErr_Format(PyExc_ValueError, "elements of %S have %lld bytes, which do not fit rows of %lld bytes",
                     py_source->name, static_cast<long long>(layout.nbytes), static_cast<long long>(task.out_nbytes));
        return false;
    }
    if (task.count == 0 || task.out_nbytes == 0) {
        return true; // nothing to copy
    }
    task.out = static_cast<uint8_t *>(view.buf);
    task.out_stride = view.strides[0];
    if (source.file != nullptr) {
        for (int64_t i = 0; i < task.count; i++) {
            int64_t high = source.start(task.rows[i]) + layout.high;
            task.high = high > task.high ? high : task.high;
        }
    }
    if (layout.is_contiguous() && layout.nbytes > 2 * STEP_NBYTES) {
        task.step_nbytes = STEP_NBYTES;
        task.steps_per_row = (layout.nbytes + STEP_NBYTES - 1) / STEP_NBYTES;
    }
    job->nbytes += task.count * task.out_nbytes;
    job->tasks.push_back(std::move(task));
    return true;
}
void raise_failure(const Job &job) {
    const Task &task = job.tasks[job.failed_task];
    PyObject *source_name = nullptr;
    for (PyObject *each : static_cast<Held *>(job.held)->sources) {
        auto *py_source = reinterpret_cast<PySource *>(each);
        if (py_source->source == task.source) {
            source_name = py_source->name;
        }
    }
    const Failure &failure = job.failure;
    PyObject *module = PyImport_ImportModule("penstock.native._errors");
    PyObject *type = module != nullptr ? PyObject_GetAttrString(module, "CopyError") : nullptr;
    PyObject *error = type != nullptr
                          ? PyObject_CallFunction(type, "OLiLL", source_name, static_cast<long long>(failure.row),
                                                  failure.error, static_cast<long long>(failure.expected_nbytes),
                                                  static_cast<long long>(failure.found_nbytes))
                          : nullptr;
    if (error != nullptr) {
        PyErr_SetObject(type, error);
    }
    Py_XDECREF(error);
    Py_XDECREF(type);
    Py_XDECREF(module);
}

Job *job_of(PyObject *sequence, int64_t number) {
    PyObject *copies = PySequence_Tuple(sequence);
    if (copies == nullptr) {
        return nullptr;
    }
    Job *job = new Job();
    auto *held = new Held();
    job->held = held;
    job->number = number;
    Py_ssize_t count = PyTuple_Size(copies);
    held->views.reserve(count);
    held->sources.reserve(count);
    job->tasks.reserve(count);
    bool is_right = true;
    for (Py_ssize_t i = 0; is_right && i < count; i++) {
        is_right = take_copy(PyTuple_GetItem(copies, i), job, held);
    }
    Py_DECREF(copies);
    if (!is_right) {
        release(job);
        return nullptr;
    }
    return job;
}

// A thread that releases the GIL may wait longer for it than such a copy takes, where another one wants it.
constexpr int64_t SHORT_NBYTES = 256 << 10;

// Executes copies on the calling thread, without the GIL if they may take long.
PyObject *copy_now(PyObject *, PyObject *copies) {
    Job *job = job_of(copies, 0);
    if (job == nullptr) {
        return nullptr;
    }
    int64_t nbytes = 0;
    bool may_wait = false;
    for (const Task &task : job->tasks) {
        nbytes += task.count * task.out_nbytes;
        may_wait |= task.source->file != nullptr;
    }
    PyThreadState *released = may_wait || nbytes > SHORT_NBYTES ? PyEval_SaveThread() : nullptr;
    std::unique_ptr<uint8_t[]> scratch(new uint8_t[2 * SCRATCH_NBYTES]);
    for (size_t i = 0; i < job->tasks.size() && !job->has_failed; i++) {
        job->failed_task = i;
        const Task &task = job->tasks[i];
        job->has_failed = !copy_steps(task, 0, task.steps(), scratch.get(), &job->failure);
    }
    if (released != nullptr) {
        PyEval_RestoreThread(released);
    }
    bool has_failed = job->has_failed;
    if (has_failed) {
        raise_failure(*job);
    }
    release(job);
    return has_failed ? nullptr : Py_NewRef(Py_None);
}

// ---------------------------------------------------------------------------------------------- padding

namespace {

struct Views {
    std::vector<Py_buffer> held;

    ~Views() {
        for (Py_buffer &view : held) {
            PyBuffer_Release(&view);
        }
    }
    // Adds a buffer, contiguous and with so many axes. Returns null without an exception if it is another one.
    const Py_buffer *add(PyObject *object, int flags, int dim_count) {
        held.emplace_back();
        if (PyObject_GetBuffer(object, &held.back(), flags) != 0) {
            PyErr_Clear();
            held.pop_back();
            return nullptr;
        }
        const Py_buffer &view = held.back();
        return view.ndim == dim_count && PyBuffer_IsContiguous(&view, 'C') ? &view : nullptr;
    }
};

void repeat(const uint8_t *item, int64_t nbytes, uint8_t *to, const uint8_t *end) {
    if (std::all_of(item, item + nbytes, [&](uint8_t each) { return each == item[0]; })) {
        std::memset(to, item[0], end - to);
        return;
    }
    for (; to < end; to += nbytes) {
        std::memcpy(to, item, nbytes);
    }
}

} // namespace

// (values, out, filling): see `pad_rows` in `__init__.py`.
PyObject *pad_rows(PyObject *, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 3) {
        PyErr_Format(PyExc_TypeError, "pad_rows() takes 3 arguments, not %zd", nargs);
        return nullptr;
    }
    Element element;
    if (!element_of(args[1], &element)) {
        return nullptr;
    }
    Owned values(PySequence_Tuple(args[0])), dtype(PyObject_GetAttrString(args[1], "dtype"));
    if (!values || !dtype) {
        return nullptr;
    }
    Py_ssize_t count = PyTuple_Size(values.get());
    Views views;
    views.held.reserve(count + 2); // so that none moves
    const Py_buffer *out = views.add(args[1], PyBUF_STRIDED, 2);
    const Py_buffer *filling = out != nullptr ? views.add(args[2], PyBUF_STRIDED_RO, 0) : nullptr;
    if (element == OBJECTS || filling == nullptr || out->shape[0] != count || filling->len != out->itemsize ||
        filling->len == 0) {
        PyErr_SetString(PyExc_ValueError, "the rows or the number that fills them do not fit the values");
        return nullptr;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = PyTuple_GetItem(values.get(), i);
        Owned found(PyObject_GetAttrString(value, "dtype"));
        if (found.get() != dtype.get()) { // NumPy has one object for each of its own dtypes
            PyErr_Clear();
            Py_RETURN_FALSE;
        }
        const Py_buffer *view = views.add(value, PyBUF_STRIDED_RO, 1);
        if (view == nullptr) {
            Py_RETURN_FALSE;
        }
        if (view->shape[0] > out->shape[1]) {
            PyErr_Format(PyExc_ValueError, "value %zd has %zd numbers, and its row %zd", i, view->shape[0],
                         out->shape[1]);
            return nullptr;
        }
    }
    PyThreadState *released = out->len > SHORT_NBYTES ? PyEval_SaveThread() : nullptr;
    auto *to = static_cast<uint8_t *>(out->buf);
    int64_t row_nbytes = out->shape[1] * out->itemsize;
    for (Py_ssize_t i = 0; i < count; i++, to += row_nbytes) {
        const Py_buffer &view = views.held[i + 2];
        std::memcpy(to, view.buf, view.len);
        repeat(static_cast<const uint8_t *>(filling->buf), filling->len, to + view.len, to + row_nbytes);
    }
    if (released != nullptr) {
        PyEval_RestoreThread(released);
    }
    Py_RETURN_TRUE;
}

// ---------------------------------------------------------------------------------------------- other calls

// Announces reads on the calling thread.
PyObject *announce_now(PyObject *, PyObject *const *args, Py_ssize_t nargs) {
    std::unique_ptr<int64_t[]> rows;
    int64_t count = 0;
    const Source *source = take_source_rows(args, nargs, &rows, &count);
    if (source == nullptr) {
        return nullptr;
    }
    if (source->file != nullptr && count > 0) {
        Py_BEGIN_ALLOW_THREADS;
        announce(*source, rows.get(), count);
        Py_END_ALLOW_THREADS;
    }
    Py_RETURN_NONE;
}

namespace {

// An array of 64-bit words.
struct Words {
    Py_buffer view = {};
    bool take(PyObject *array, int flags) {
        if (PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | flags) != 0) {
            return false;
        }
        if (view.itemsize != 8) {
            PyErr_SetString(PyExc_TypeError, "expected an array of 64-bit numbers");
        }
        return view.itemsize == 8;
    }
    ~Words() { PyBuffer_Release(&view); }
    uint64_t *data() const { return static_cast<uint64_t *>(view.buf); }
    int64_t count() const { return view.len / 8; }
};

} // namespace

PyObject *permute_now(PyObject *, PyObject *args) {
    PyObject *values_object, *tweaks_object, *words_object;
    unsigned long long n, a, b;
    if (!PyArg_ParseTuple(args, "OKKKOO", &values_object, &n, &a, &b, &tweaks_object, &words_object)) {
        return nullptr;
    }
    Words values, tweaks, words;
    if (!values.take(values_object, PyBUF_WRITABLE) || !tweaks.take(tweaks_object, 0) || !words.take(words_object, 0)) {
        return nullptr;
    }
    const uint64_t most = UINT64_C(1) << 31;
    bool is_one = tweaks.count() == 1;
    bool is_inside =
        std::all_of(values.data(), values.data() + values.count(), [n](uint64_t each) { return each < n; });
    if (a == 0 || b == 0 || a > most || b > most || n > a * b || !is_inside ||
        (!is_one && tweaks.count() != values.count())) {
        PyErr_SetString(PyExc_ValueError, "these are no values of a permutation");
        return nullptr;
    }
    Permutation key = {n, a, b, words.data(), static_cast<size_t>(words.count() / 2)};
    Py_BEGIN_ALLOW_THREADS;
    permute(values.data(), values.count(), key, tweaks.data(), is_one);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

// (descriptor, offsets, memory, starts, sizes): see `read_parts` in `__init__.py`.
PyObject *read_parts(PyObject *, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 5) {
        PyErr_Format(PyExc_TypeError, "read_parts() takes 5 arguments, not %zd", nargs);
        return nullptr;
    }
    int descriptor = static_cast<int>(PyLong_AsLong(args[0]));
    std::unique_ptr<int64_t[]> offsets, starts, sizes;
    int64_t count = PyErr_Occurred() ? -1 : take_rows(args[1], "offsets", &offsets);
    int64_t start_count = count < 0 ? -1 : take_rows(args[3], "starts", &starts);
    int64_t size_count = start_count < 0 ? -1 : take_rows(args[4], "sizes", &sizes);
    if (size_count < 0) {
        return nullptr;
    }
    Views views;
    const Py_buffer *memory = views.add(args[2], PyBUF_STRIDED, 1);
    bool fits = memory != nullptr && start_count == count && size_count == count;
    for (int64_t i = 0; fits && i < count; i++) {
        fits = starts[i] >= 0 && sizes[i] >= 0 && starts[i] <= memory->len && sizes[i] <= memory->len - starts[i];
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the parts lie outside of the memory");
        return nullptr;
    }
    int64_t done = 0, got = 0;
    int error = 0;
    PyThreadState *released = PyEval_SaveThread();
    for (; done < count; done++) {
        auto *to = static_cast<uint8_t *>(memory->buf) + starts[done];
        for (got = 0; got < sizes[done];) {
            ssize_t step = pread(descriptor, to + got, sizes[done] - got, offsets[done] + got);
            if (step <= 0 && !(step < 0 && errno == EINTR)) {
                error = step < 0 ? errno : 0;
                break;
            }
            got += step > 0 ? step : 0;
        }
        if (got < sizes[done]) {
            break;
        }
    }
    PyEval_RestoreThread(released);
    return Py_BuildValue("(LLi)", static_cast<long long>(done), static_cast<long long>(got), error);
}

// (leases, free, on_free, interrupts, slot, lease, reference): see `return_slot` in `__init__.py`.
PyObject *return_slot(PyObject *, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 7) {
        PyErr_Format(PyExc_TypeError, "return_slot() takes 7 arguments, not %zd", nargs);
        return nullptr;
    }
    PyObject *leases = args[0], *free = args[1], *on_free = args[2], *interrupts = args[3], *slot = args[4];
    Owned reference(Py_NewRef(args[6])); // which the lease may hold alone
    // Before the lease ends, so that `reclaim` sees the slot in one of the two.
    Owned appended(PyObject_CallMethod(free, "append", "O", slot));
    if (!appended || PyObject_DelItem(leases, args[5]) != 0) {
        return nullptr;
    }
    if (on_free == Py_None) {
        Py_RETURN_NONE;
    }
    Owned called(PyObject_CallNoArgs(on_free));
    if (!called) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        PyErr_NormalizeException(&type, &error, &traceback);
        Owned of_type(type), interrupt(error), of_traceback(traceback);
        Owned kept(PyObject_CallMethod(interrupts, "append", "O", interrupt.get()));
        called.reset(kept ? PyObject_CallNoArgs(on_free) : nullptr);
    }
    return called.release();
}

} // namespace penstock
