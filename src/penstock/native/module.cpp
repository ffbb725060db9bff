// `penstock.native._engine`: the engine and its sources as Python objects. `__init__.py` documents the interface.
//
// The mutexes of the engine are taken only where no Python code can run, so a finalizer may call any method.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <new>

using namespace penstock;

namespace {

// Waits look for signals this often (Ctrl-C is promised within 50 ms).
constexpr int64_t SIGNALS_NS = 20'000'000;
// A finalizer waits this long for a read that hangs. Then it leaves the threads and the memory that they use.
constexpr int64_t FINALIZER_NS = 5'000'000'000;
// Jobs of at most this many bytes, all of them in memory, are copied by the submitting thread: waking another one takes
// as long.
constexpr int64_t INLINE_NBYTES = 48 << 10;
// Contiguous rows above twice this size are divided between threads.
constexpr int64_t STEP_NBYTES = 1 << 20;

PyTypeObject *g_source_type = nullptr;

struct Decref {
    void operator()(PyObject *object) const { Py_DECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Decref>;

struct PySource {
    PyObject_HEAD Source *source;
    Py_buffer view; // MEMORY: keeps the array
    PyObject *name;
};

struct PyEngine {
    PyObject_HEAD Engine *engine;
    int64_t fork_count;
    int64_t waits, wait_ns;
    uint8_t *scratch; // for jobs that the submitting thread executes
};

// ---------------------------------------------------------------------------------------------- buffers

enum Element { OTHER, INT64, OBJECTS };

// What the elements of an array are: NumPy has formats only for some types, and makes them slowly.
bool element_of(PyObject *array, Element *element) {
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    if (dtype == nullptr) { // another buffer
        PyErr_Clear();
        *element = OTHER;
        Py_buffer view;
        if (PyObject_GetBuffer(array, &view, PyBUF_FULL_RO) != 0) {
            return false;
        }
        if (view.format != nullptr && std::strchr(view.format, 'O') != nullptr) {
            *element = OBJECTS;
        }
        PyBuffer_Release(&view);
        return true;
    }
#ifndef Py_GIL_DISABLED
    // The types seen last. They are kept, so no other object gets their address.
    static PyObject *known[8];
    static Element elements[8];
    static int next = 0;
    for (int i = 0; i < 8; i++) {
        if (known[i] == dtype) {
            Py_DECREF(dtype);
            *element = elements[i];
            return true;
        }
    }
#endif
    PyObject *has_object = PyObject_GetAttrString(dtype, "hasobject");
    PyObject *text = has_object != nullptr ? PyObject_GetAttrString(dtype, "str") : nullptr;
    bool is_right = text != nullptr;
    if (is_right) {
        const uint16_t one = 1;
        const char *native = *reinterpret_cast<const uint8_t *>(&one) == 1 ? "<i8" : ">i8";
        *element = has_object == Py_True                                 ? OBJECTS
                   : PyUnicode_CompareWithASCIIString(text, native) == 0 ? INT64
                                                                         : OTHER;
    }
    Py_XDECREF(text);
    Py_XDECREF(has_object);
#ifndef Py_GIL_DISABLED
    if (is_right) {
        Py_XDECREF(known[next]);
        known[next] = dtype;
        elements[next] = *element;
        next = (next + 1) % 8;
        return true;
    }
#endif
    Py_DECREF(dtype);
    return is_right;
}

// Copies a one-dimensional array of int64. Returns -1 with an exception.
int64_t take_rows(PyObject *array, const char *what, std::unique_ptr<int64_t[]> *rows) {
    Element element;
    if (!element_of(array, &element)) {
        return -1;
    }
    if (element != INT64) {
        PyErr_Format(PyExc_TypeError, "%s must be an array of int64, not %R", what, array);
        return -1;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_STRIDED_RO) != 0) {
        return -1;
    }
    int64_t count = -1;
    if (view.ndim != 1) {
        PyErr_Format(PyExc_ValueError, "%s must have one axis, not %d", what, view.ndim);
    } else {
        count = view.shape[0];
        rows->reset(new (std::nothrow) int64_t[count > 0 ? count : 1]);
        if (!*rows) {
            PyErr_NoMemory();
            count = -1;
        } else if (view.strides[0] == 8 || count <= 1) {
            std::memcpy(rows->get(), view.buf, count * 8);
        } else {
            for (int64_t i = 0; i < count; i++) {
                std::memcpy(rows->get() + i, static_cast<const char *>(view.buf) + i * view.strides[0], 8);
            }
        }
    }
    PyBuffer_Release(&view);
    return count;
}

// The row that lies outside of [0, count), or -1.
int64_t first_outside(const int64_t *rows, int64_t length, int64_t count, bool *found) {
    uint64_t greatest = 0; // a negative row is a great unsigned number
    for (int64_t i = 0; i < length; i++) {
        greatest = static_cast<uint64_t>(rows[i]) > greatest ? static_cast<uint64_t>(rows[i]) : greatest;
    }
    *found = length > 0 && greatest >= static_cast<uint64_t>(count);
    for (int64_t i = 0; *found && i < length; i++) {
        if (rows[i] < 0 || rows[i] >= count) {
            return rows[i];
        }
    }
    return -1;
}

// ---------------------------------------------------------------------------------------------- sources

PySource *new_source(PyObject *name) {
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(g_source_type, Py_tp_alloc));
    auto *self = reinterpret_cast<PySource *>(allocate(g_source_type, 0));
    if (self != nullptr) {
        self->source = new Source();
        self->name = Py_NewRef(name);
    }
    return self;
}

void source_dealloc(PyObject *object) {
    auto *self = reinterpret_cast<PySource *>(object);
    if (self->view.obj != nullptr) {
        PyBuffer_Release(&self->view);
    }
    if (self->source != nullptr && self->source->file != nullptr) {
        self->source->file->release();
    }
    delete self->source;
    Py_XDECREF(self->name);
    PyTypeObject *type = Py_TYPE(object);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyObject *source_repr(PyObject *object) {
    auto *self = reinterpret_cast<PySource *>(object);
    const Source &source = *self->source;
    const char *access = source.access == Access::MEMORY ? "memory" : source.access == Access::READ ? "read" : "mapped";
    return PyUnicode_FromFormat("<Source %S: %s, %lld elements of %lld bytes>", self->name, access,
                                static_cast<long long>(source.layout.count),
                                static_cast<long long>(source.layout.nbytes));
}

PyObject *source_length(PyObject *self, void *) {
    return PyLong_FromLongLong(reinterpret_cast<PySource *>(self)->source->layout.count);
}
PyObject *source_nbytes(PyObject *self, void *) {
    return PyLong_FromLongLong(reinterpret_cast<PySource *>(self)->source->layout.nbytes);
}
PyObject *source_name(PyObject *self, void *) { return Py_NewRef(reinterpret_cast<PySource *>(self)->name); }
PyObject *source_access(PyObject *self, void *) {
    Access access = reinterpret_cast<PySource *>(self)->source->access;
    return PyUnicode_FromString(access == Access::MEMORY ? "memory" : access == Access::READ ? "read" : "mapped");
}

PyObject *memory_source(PyObject *, PyObject *args) {
    PyObject *array, *name;
    if (!PyArg_ParseTuple(args, "OO", &array, &name)) {
        return nullptr;
    }
    Element element;
    if (!element_of(array, &element)) {
        return nullptr;
    }
    if (element == OBJECTS) {
        PyErr_SetString(PyExc_TypeError, "an array of Python objects cannot be copied as bytes");
        return nullptr;
    }
    PySource *self = new_source(name);
    if (self == nullptr || PyObject_GetBuffer(array, &self->view, PyBUF_STRIDED_RO) != 0) {
        Py_XDECREF(reinterpret_cast<PyObject *>(self));
        return nullptr;
    }
    const Py_buffer &view = self->view;
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    bool is_right = view.ndim >= 1 && view.ndim <= MAX_DIMS;
    for (int i = 1; is_right && i < view.ndim; i++) {
        shape[i - 1] = view.shape[i];
        strides[i - 1] = view.strides[i];
    }
    if (!is_right || !make_layout(view.shape[0], view.strides[0], view.itemsize, view.ndim - 1, shape, strides,
                                  &self->source->layout)) {
        PyErr_Format(PyExc_ValueError, "a source needs 1 to %d axes, not %d", MAX_DIMS, view.ndim);
        Py_DECREF(self);
        return nullptr;
    }
    self->source->base = static_cast<const uint8_t *>(view.buf);
    return reinterpret_cast<PyObject *>(self);
}

bool take_integers(PyObject *tuple, int64_t *out, int *length) {
    Py_ssize_t size = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (size < 0 || size > MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "expected a tuple of at most %d integers", MAX_DIMS);
        return false;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (out[i] == -1 && PyErr_Occurred()) {
            return false;
        }
    }
    *length = static_cast<int>(size);
    return true;
}

// Opens the file of a source, and maps it if that is wanted and possible.
bool open_file(PySource *self, PyObject *path, int fd, int64_t high, int is_mapped, int64_t give_back_nbytes) {
    PyObject *bytes = nullptr;
    if (path != Py_None && !PyUnicode_FSConverter(path, &bytes)) {
        return false;
    }
    File *file;
    Py_BEGIN_ALLOW_THREADS; // may wait for a server
    file = File::open(bytes != nullptr ? PyBytes_AsString(bytes) : nullptr, fd);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(bytes);
    if (file == nullptr) {
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
        return false;
    }
    Source &source = *self->source;
    source.file = file;
    source.access = Access::READ;
    if (is_mapped && high > 0) {
        source.base = file->map(high);
        if (source.base != nullptr) { // otherwise it is read
            source.access = Access::MAPPED;
            source.give_back_nbytes = give_back_nbytes;
        }
    }
    return true;
}

PyObject *file_source(PyObject *, PyObject *args) {
    PyObject *path, *shape_tuple, *strides_tuple, *name;
    int fd, is_mapped, ndim = 0, strides_length = 0;
    long long offset, count, stride, item_nbytes, give_back_nbytes;
    if (!PyArg_ParseTuple(args, "OiLLLLOOpLO", &path, &fd, &offset, &count, &stride, &item_nbytes, &shape_tuple,
                          &strides_tuple, &is_mapped, &give_back_nbytes, &name)) {
        return nullptr;
    }
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    if (!take_integers(shape_tuple, shape, &ndim) || !take_integers(strides_tuple, strides, &strides_length)) {
        return nullptr;
    }
    PySource *self = new_source(name);
    if (self == nullptr) {
        return nullptr;
    }
    Source &source = *self->source;
    if (ndim != strides_length || count < 0 || item_nbytes <= 0 ||
        !make_layout(count, stride, item_nbytes, ndim, shape, strides, &source.layout)) {
        PyErr_SetString(PyExc_ValueError, "the sizes of a file's rows are negative, too large, or do not match");
        Py_DECREF(self);
        return nullptr;
    }
    source.offset = offset;
    // The first and the last byte that any element has.
    __int128 last = static_cast<__int128>(stride) * (count > 0 ? count - 1 : 0) + offset;
    __int128 low = (last < offset ? last : offset) + source.layout.low;
    __int128 high = (last > offset ? last : offset) + source.layout.high;
    if (count > 0 && (low < 0 || high > INT64_MAX / 2)) {
        PyErr_SetString(PyExc_ValueError, "elements would lie before the file's first byte, or too far behind it");
        Py_DECREF(self);
        return nullptr;
    }
    if (!open_file(self, path, fd, count > 0 ? static_cast<int64_t>(high) : 0, is_mapped, give_back_nbytes)) {
        Py_DECREF(self);
        return nullptr;
    }
    return reinterpret_cast<PyObject *>(self);
}

// ---------------------------------------------------------------------------------------------- submitting

// What a job keeps of Python's.
struct Held {
    std::vector<Py_buffer> views; // reserved, so that none moves
    std::vector<PyObject *> sources;
};

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

bool fail_outside(PyObject *name, int64_t row, int64_t count, const char *what) {
    PyErr_Format(PyExc_IndexError, "%s %lld is out of range: %S has %lld", what, static_cast<long long>(row), name,
                 static_cast<long long>(count));
    return false;
}

// Fills the task of (source, rows, destination, destination rows or None, conversion).
bool take_copy(PyObject *copy, Job *job, Held *held) {
    if (!PyTuple_Check(copy) || PyTuple_Size(copy) != 5) {
        PyErr_SetString(PyExc_TypeError, "a copy is a tuple (source, rows, destination, destination_rows, conversion)");
        return false;
    }
    PyObject *source_object = PyTuple_GetItem(copy, 0), *out_object = PyTuple_GetItem(copy, 2),
             *out_rows_object = PyTuple_GetItem(copy, 3), *code_object = PyTuple_GetItem(copy, 4);
    if (Py_TYPE(source_object) != g_source_type) {
        PyErr_Format(PyExc_TypeError, "expected a source of this engine, not %R", source_object);
        return false;
    }
    auto *py_source = reinterpret_cast<PySource *>(source_object);
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

PyObject *raise_forked() {
    PyErr_SetString(PyExc_RuntimeError, "this engine belongs to the process that was forked; make another one here");
    return nullptr;
}

bool is_forked(PyEngine *self) { return self->fork_count != fork_count(); }

// Raises the error of a failed job.
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

// Checks copies, and makes a job of them. Returns null with an exception.
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

PyObject *engine_submit(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "submit() takes a job number and copies, not %zd arguments", nargs);
        return nullptr;
    }
    if (is_forked(self)) {
        return raise_forked();
    }
    long long number = PyLong_AsLongLong(args[0]);
    if (number == -1 && PyErr_Occurred()) {
        return nullptr;
    }
    Job *job = job_of(args[1], number);
    if (job == nullptr) {
        return nullptr;
    }
    bool is_inline = job->nbytes <= INLINE_NBYTES;
    for (const Task &task : job->tasks) {
        is_inline = is_inline && task.source->access == Access::MEMORY;
    }
    if (is_inline && !self->engine->is_closed()) {
        int64_t began_ns = now_ns();
        for (size_t i = 0; i < job->tasks.size() && !job->has_failed; i++) {
            job->failed_task = i;
            const Task &task = job->tasks[i];
            job->has_failed = !copy_steps(task, 0, task.steps(), self->scratch, &job->failure);
        }
        self->engine->add_busy(now_ns() - began_ns);
        job->next_task = job->tasks.size();
    }
    if (!self->engine->submit(job)) {
        release(job);
        PyErr_SetString(PyExc_ValueError, self->engine->is_closed()
                                              ? "the engine is closed"
                                              : "job numbers must increase from one submission to the next");
        return nullptr;
    }
    Py_RETURN_NONE;
}

// ---------------------------------------------------------------------------------------------- waiting

// The deadline of a timeout in seconds; None is none. Returns -1 with an exception.
int64_t deadline_of(PyObject *timeout_s) {
    if (timeout_s == nullptr || timeout_s == Py_None) {
        return INT64_MAX;
    }
    double seconds = PyFloat_AsDouble(timeout_s);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (std::isnan(seconds)) {
        PyErr_SetString(PyExc_ValueError, "a timeout must be a number of seconds");
        return -1;
    }
    return seconds > 1e9 ? INT64_MAX : now_ns() + (seconds > 0 ? static_cast<int64_t>(seconds * 1e9) : 0);
}

// Calls `step(until_ns)` without the GIL until it is done or the deadline has passed, and looks for signals between.
// Returns 1, 0 for a deadline that passed, or -1 with an exception.
template <class Step> int in_slices(int64_t deadline, Step step) {
    for (;;) {
        int64_t until = now_ns() + SIGNALS_NS;
        bool is_done;
        Py_BEGIN_ALLOW_THREADS;
        is_done = step(until < deadline ? until : deadline);
        Py_END_ALLOW_THREADS;
        if (is_done) {
            return 1;
        }
        if (PyErr_CheckSignals() != 0) {
            return -1;
        }
        if (now_ns() >= deadline) {
            return 0;
        }
    }
}

bool take_number(PyObject *const *args, Py_ssize_t nargs, const char *method, int64_t *number, int64_t *deadline) {
    if (nargs < 1 || nargs > 2) {
        PyErr_Format(PyExc_TypeError, "%s() takes a job number and a timeout in seconds", method);
        return false;
    }
    *number = PyLong_AsLongLong(args[0]);
    if (*number == -1 && PyErr_Occurred()) {
        return false;
    }
    *deadline = deadline_of(nargs > 1 ? args[1] : nullptr);
    return *deadline != -1;
}

PyObject *engine_wait(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    int64_t number, deadline;
    if (!take_number(args, nargs, "wait", &number, &deadline)) {
        return nullptr;
    }
    if (is_forked(self)) {
        return raise_forked();
    }
    Job *job = nullptr;
    Waited waited = self->engine->wait(number, 0, &job);
    if (waited == Waited::TIMEOUT) {
        int64_t since = now_ns();
        int result = in_slices(deadline, [&](int64_t until) {
            waited = self->engine->wait(number, until, &job);
            return waited != Waited::TIMEOUT;
        });
        self->waits++;
        self->wait_ns += now_ns() - since;
        if (result <= 0) {
            return result < 0 ? nullptr : Py_NewRef(Py_False);
        }
    }
    if (waited == Waited::UNKNOWN) {
        PyErr_Format(PyExc_LookupError, "job %lld is not under way: not submitted, waited for before, or cancelled",
                     static_cast<long long>(number));
        return nullptr;
    }
    if (job->has_failed) {
        raise_failure(*job);
    }
    bool has_failed = job->has_failed;
    release(job);
    return has_failed ? nullptr : Py_NewRef(Py_True);
}

PyObject *engine_is_done(PyObject *object, PyObject *argument) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    long long number = PyLong_AsLongLong(argument);
    if (number == -1 && PyErr_Occurred()) {
        return nullptr;
    }
    return is_forked(self) ? raise_forked() : PyBool_FromLong(self->engine->is_done(number));
}

PyObject *engine_cancel(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    int64_t number, deadline;
    if (!take_number(args, nargs, "cancel", &number, &deadline)) {
        return nullptr;
    }
    if (is_forked(self)) {
        return raise_forked();
    }
    std::vector<Job *> finished;
    int result = in_slices(deadline, [&](int64_t until) { return self->engine->cancel(number, until, &finished); });
    for (Job *job : finished) {
        release(job);
    }
    return result < 0 ? nullptr : PyBool_FromLong(result);
}

// The source and the checked rows of a call. Returns null with an exception.
const Source *take_source_rows(PyObject *const *args, Py_ssize_t nargs, std::unique_ptr<int64_t[]> *rows,
                               int64_t *count) {
    if (nargs != 2 || Py_TYPE(args[0]) != g_source_type) {
        PyErr_SetString(PyExc_TypeError, "expected a source and rows");
        return nullptr;
    }
    auto *py_source = reinterpret_cast<PySource *>(args[0]);
    const Source *source = py_source->source;
    *count = take_rows(args[1], "rows", rows);
    if (*count < 0) {
        return nullptr;
    }
    bool found;
    int64_t outside = first_outside(rows->get(), *count, source->layout.count, &found);
    if (found) {
        fail_outside(py_source->name, outside, source->layout.count, "element");
        return nullptr;
    }
    return source;
}

PyObject *engine_advise(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    if (is_forked(self)) {
        return raise_forked();
    }
    std::unique_ptr<int64_t[]> rows;
    int64_t count = 0;
    const Source *source = take_source_rows(args, nargs, &rows, &count);
    if (source == nullptr) {
        return nullptr;
    }
    if (source->file != nullptr && count > 0) {
        self->engine->advise(source->file, *source, std::vector<int64_t>(rows.get(), rows.get() + count));
    }
    Py_RETURN_NONE;
}

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

// ---------------------------------------------------------------------------------------------- the engine's life

bool close_engine(PyEngine *self, int64_t deadline) {
    if (self->engine == nullptr || is_forked(self)) {
        return true;
    }
    bool has_ended;
    Py_BEGIN_ALLOW_THREADS;
    has_ended = self->engine->close(deadline);
    Py_END_ALLOW_THREADS;
    if (has_ended) {
        std::vector<Job *> finished;
        self->engine->take_all(&finished);
        for (Job *job : finished) {
            release(job);
        }
    }
    return has_ended;
}

PyObject *engine_close(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    int64_t deadline = deadline_of(nargs > 0 ? args[0] : nullptr);
    return deadline == -1 ? nullptr : PyBool_FromLong(close_engine(reinterpret_cast<PyEngine *>(object), deadline));
}

PyObject *engine_stats(PyObject *object, PyObject *) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    if (is_forked(self)) {
        return raise_forked();
    }
    Engine::Stats stats = self->engine->stats();
    return Py_BuildValue("{sLsLsLsLsLsLsL}", "busy_ns", static_cast<long long>(stats.busy_ns), "nbytes",
                         static_cast<long long>(stats.nbytes), "jobs", static_cast<long long>(stats.jobs), "cpu_ns",
                         static_cast<long long>(stats.cpu_ns), "waits", static_cast<long long>(self->waits), "wait_ns",
                         static_cast<long long>(self->wait_ns), "announced", static_cast<long long>(stats.announced));
}

PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *) {
    int thread_count;
    if (!PyArg_ParseTuple(args, "i", &thread_count)) {
        return nullptr;
    }
    if (thread_count < 1 || thread_count > 256) {
        PyErr_Format(PyExc_ValueError, "an engine has 1 to 256 threads, not %d", thread_count);
        return nullptr;
    }
    auto *self = reinterpret_cast<PyEngine *>(reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    self->fork_count = fork_count();
    self->scratch = new uint8_t[2 * SCRATCH_NBYTES];
    self->engine = new Engine(thread_count);
    if (!self->engine->start()) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return nullptr;
    }
    return reinterpret_cast<PyObject *>(self);
}

void engine_dealloc(PyObject *object) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    // After a fork the mutex may be locked for ever. A thread that hangs in a read uses the engine when it returns.
    if (close_engine(self, now_ns() + FINALIZER_NS) && !is_forked(self)) {
        delete self->engine;
        delete[] self->scratch;
    }
    PyTypeObject *type = Py_TYPE(object);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyObject *engine_thread_count(PyObject *self, void *) {
    return PyLong_FromLong(reinterpret_cast<PyEngine *>(self)->engine->thread_count());
}

// ---------------------------------------------------------------------------------------------- the module

template <class Function> PyCFunction as_method(Function function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef engine_methods[] = {
    {"submit", as_method(engine_submit), METH_FASTCALL, nullptr},
    {"wait", as_method(engine_wait), METH_FASTCALL, nullptr},
    {"is_done", engine_is_done, METH_O, nullptr},
    {"cancel", as_method(engine_cancel), METH_FASTCALL, nullptr},
    {"advise", as_method(engine_advise), METH_FASTCALL, nullptr},
    {"close", as_method(engine_close), METH_FASTCALL, nullptr},
    {"stats", engine_stats, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef engine_getset[] = {
    {"thread_count", engine_thread_count, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot engine_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(engine_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(engine_dealloc)},
    {Py_tp_methods, engine_methods},
    {Py_tp_getset, engine_getset},
    {0, nullptr},
};
PyType_Spec engine_spec = {"penstock.native._engine.Engine", sizeof(PyEngine), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, engine_slots};

PyGetSetDef source_getset[] = {
    {"count", source_length, nullptr, nullptr, nullptr}, {"row_nbytes", source_nbytes, nullptr, nullptr, nullptr},
    {"name", source_name, nullptr, nullptr, nullptr},    {"access", source_access, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot source_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void *>(source_dealloc)},
    {Py_tp_repr, reinterpret_cast<void *>(source_repr)},
    {Py_tp_getset, source_getset},
    {0, nullptr},
};
PyType_Spec source_spec = {"penstock.native._engine.Source", sizeof(PySource), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, source_slots};

PyMethodDef module_methods[] = {
    {"copy_now", copy_now, METH_O, nullptr},
    {"announce_now", as_method(announce_now), METH_FASTCALL, nullptr},
    {"permute_now", permute_now, METH_VARARGS, nullptr},
    {"memory_source", memory_source, METH_VARARGS, nullptr},
    {"file_source", file_source, METH_VARARGS, nullptr},
    {"pad_rows", as_method(pad_rows), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

int module_exec(PyObject *module) {
    static bool is_first = true;
    if (!is_first) {
        PyErr_SetString(PyExc_ImportError, "the copy engine cannot be loaded by a second interpreter");
        return -1;
    }
    PyObject *engine_type = PyType_FromSpec(&engine_spec);
    PyObject *source_type = PyType_FromSpec(&source_spec);
    if (engine_type == nullptr || source_type == nullptr || PyModule_AddObjectRef(module, "Engine", engine_type) != 0 ||
        PyModule_AddObjectRef(module, "Source", source_type) != 0) {
        return -1;
    }
    Py_DECREF(engine_type);
    g_source_type = reinterpret_cast<PyTypeObject *>(source_type);
    watch_forks();
    is_first = false;
    return 0;
}

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(module_exec)},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};
PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "_engine", nullptr, 0, module_methods, module_slots, nullptr, nullptr, nullptr,
};

} // namespace

PyMODINIT_FUNC PyInit__engine() { return PyModuleDef_Init(&module_def); }
