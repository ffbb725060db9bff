// What the files of the Python module share: sources as objects, buffers, jobs.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.hpp"

#include <cstring>
#include <exception>
#include <memory>
#include <new>

namespace penstock {

// Whether this thread has released the GIL. A thread that outlives the interpreter ends where it takes the GIL again,
// and the destructors that run then may not touch Python's objects.
inline thread_local bool t_has_released = false;

// Runs `body()` without the GIL.
template <class Body> void without_gil(Body body) {
    std::exception_ptr error;
    PyThreadState *state = PyEval_SaveThread();
    t_has_released = true;
    try {
        body();
    } catch (const std::exception &) {
        error = std::current_exception();
    }
    PyEval_RestoreThread(state);
    t_has_released = false;
    if (error) {
        std::rethrow_exception(error);
    }
}

// A function for Python that no exception of C++ leaves. Others pass: glibc ends a thread by one that must.
template <auto> struct Method;
template <class... Args, PyObject *(*function)(Args...)> struct Method<function> {
    static PyObject *call(Args... args) {
        try {
            return function(args...);
        } catch (const std::bad_alloc &) {
            return PyErr_NoMemory();
        } catch (const std::exception &error) {
            PyErr_SetString(PyExc_RuntimeError, error.what());
            return nullptr;
        }
    }
};
template <auto function> PyCFunction as_method() {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Method<function>::call));
}

struct Decref {
    void operator()(PyObject *object) const {
        if (!t_has_released) {
            Py_DECREF(object);
        }
    }
};
using Owned = std::unique_ptr<PyObject, Decref>;

// A buffer of a Python object. It never moves, because its fields may point into itself.
struct Buffer {
    Py_buffer view = {};

    Buffer() = default;
    Buffer(const Buffer &) = delete;
    ~Buffer() {
        if (!t_has_released) {
            PyBuffer_Release(&view);
        }
    }
};

// A contiguous array of numbers of one size, as an argument of a call: `O&` with `read` or `write`.
template <class T> struct Numbers : Buffer {
    static int read(PyObject *array, void *self) { return take(array, self, PyBUF_C_CONTIGUOUS); }
    static int write(PyObject *array, void *self) { return take(array, self, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE); }
    T *data() const { return static_cast<T *>(view.buf); }
    int64_t count() const { return view.len / static_cast<int64_t>(sizeof(T)); }

  private:
    static bool take(PyObject *array, void *self, int flags) {
        Py_buffer &view = static_cast<Numbers *>(self)->view;
        if (PyObject_GetBuffer(array, &view, flags | PyBUF_FORMAT) != 0) {
            return false;
        }
        bool is_right = view.itemsize == sizeof(T) && std::strchr(view.format, 'O') == nullptr;
        if (!is_right) {
            PyErr_Format(PyExc_TypeError, "expected an array of %d-bit numbers", static_cast<int>(8 * sizeof(T)));
        }
        return is_right;
    }
};

struct PySource;

// Elements that lie in several sources, one after the other.
struct Parts {
    std::vector<int64_t> bounds;     // the first element of each part, and the end of the last
    std::vector<PySource *> sources; // null where a part is not there

    size_t at(int64_t row) const; // the part that has an element
};

struct PySource {
    PyObject_HEAD std::shared_ptr<Source> source;
    Py_buffer view; // MEMORY: keeps the array
    PyObject *name;
    PyObject *indices, *values; // of a sparse matrix: the sources of its vectors, which keep their memory
    Parts *parts;               // null, or what copies read in its place
    PyObject *bounds;           // of parts: as they were given. The sources of a table's columns have the same
};

// Contiguous rows above twice this size are divided between threads.
constexpr int64_t STEP_NBYTES = 1 << 20;

// The functions below return false, null, or -1 with a Python exception.

// ------------------------------------------------------------------------------------ sources.cpp

// Whether an array of NumPy holds Python objects, which are more than bytes.
bool holds_objects(PyObject *array);
// The layout of rows along the first axis of a buffer. Returns false for rows that are too large, without an exception.
bool make_layout(const Py_buffer &view, Layout *layout);
// Copies an array of int64 with one axis. Returns its length.
int64_t take_rows(PyObject *array, const char *what, std::unique_ptr<int64_t[]> *rows);
// The least n of which all rows lie in [0, n), where a negative row is a great unsigned number.
uint64_t end_of(const int64_t *rows, int64_t length);
// The first row that lies outside of [0, count), if there is one.
int64_t first_outside(const int64_t *rows, int64_t length, int64_t count);
bool fail_outside(PyObject *name, int64_t row, int64_t count, const char *what);

// Makes the type `Source`, once.
PyObject *new_source_type();
// Null if the object is none.
PySource *as_source(PyObject *object);
PyObject *memory_source(PyObject *, PyObject *args);
PyObject *file_source(PyObject *, PyObject *args);
PyObject *sparse_source(PyObject *, PyObject *args);
PyObject *parts_source(PyObject *, PyObject *args);

// ------------------------------------------------------------------------------------ calls.cpp

// Deletes a job, and drops what it holds of Python's. Python's exception stays.
void release(Job *job);
struct Release {
    void operator()(Job *job) const {
        if (!t_has_released) {
            release(job);
        }
    }
};
using OwnedJob = std::unique_ptr<Job, Release>;
// Checks copies, and makes a job of them.
OwnedJob job_of(PyObject *sequence, int64_t number);
// Executes a job on the calling thread.
void execute(Job *job);
// The rows of sources in files, of a call with sources and checked rows.
bool take_announcements(PyObject *args, std::vector<Announcement> *announcements);
// Raises the error of a failed job.
void raise_failure(const Job &job);
PyObject *copy_now(PyObject *, PyObject *copies);
PyObject *announce_now(PyObject *, PyObject *args);
PyObject *lay_rows(PyObject *, PyObject *args);
PyObject *permute_now(PyObject *, PyObject *args);
PyObject *deal(PyObject *, PyObject *args);
PyObject *read_parts(PyObject *, PyObject *args);
PyObject *count_down(PyObject *, PyObject *args);
PyObject *return_slot(PyObject *, PyObject *args);

// ------------------------------------------------------------------------------------ rows.cpp

// As in `_numpy.py`.
constexpr int FIT_TRIES = 256;
constexpr int64_t FIT_SHARES = 1 << 16;
constexpr int64_t MOST_CAPACITY = 1 << 24;
PyObject *fit_rows(PyObject *, PyObject *args);
PyObject *trade_rows(PyObject *, PyObject *args);
PyObject *order_keys(PyObject *, PyObject *args);

// ------------------------------------------------------------------------------------ ending.cpp

PyObject *outlast_interpreter(PyObject *, PyObject *);

} // namespace penstock
