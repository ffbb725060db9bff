// `penstock.native._engine`: the engine and its sources as Python objects. `__init__.py` documents the interface.
//
// The mutexes of the engine are taken only where no Python code can run, so a finalizer may call any method.
#include "python.hpp"

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

struct PyEngine {
    PyObject_HEAD Engine *engine;
    int64_t fork_count;
};

bool is_forked(PyEngine *self) { return self->fork_count != fork_count(); }

// A method of an engine, which a child made by fork may not call.
template <PyObject *(*method)(PyEngine *, PyObject *)> PyObject *unforked(PyObject *object, PyObject *args) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    if (is_forked(self)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this engine belongs to the process that was forked; make another one here");
        return nullptr;
    }
    return method(self, args);
}

PyObject *engine_submit(PyEngine *self, PyObject *args) {
    long long number;
    PyObject *copies;
    if (!PyArg_ParseTuple(args, "LO", &number, &copies)) {
        return nullptr;
    }
    OwnedJob job = job_of(copies, number);
    if (!job) {
        return nullptr;
    }
    bool is_inline = job->nbytes <= INLINE_NBYTES;
    for (const Task &task : job->tasks) {
        is_inline = is_inline && task.source->access == Access::MEMORY;
    }
    if (is_inline && !self->engine->is_closed()) {
        int64_t began_ns = now_ns();
        execute(job.get());
        self->engine->add_busy(now_ns() - began_ns);
        job->next_task = job->tasks.size();
    }
    if (!self->engine->submit(job.get())) {
        PyErr_SetString(PyExc_ValueError, self->engine->is_closed()
                                              ? "the engine is closed"
                                              : "job numbers must increase from one submission to the next");
        return nullptr;
    }
    job.release(); // it is the engine's
    Py_RETURN_NONE;
}

// ---------------------------------------------------------------------------------------------- waiting

// Writes the deadline of a timeout in seconds, of which None is none; a converter for `O&`.
int take_deadline(PyObject *timeout_s, void *out) {
    auto *deadline = static_cast<int64_t *>(out);
    *deadline = INT64_MAX;
    if (timeout_s == Py_None) {
        return true;
    }
    double seconds = PyFloat_AsDouble(timeout_s);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return false;
    }
    if (std::isnan(seconds)) {
        PyErr_SetString(PyExc_ValueError, "a timeout must be a number of seconds");
        return false;
    }
    if (seconds <= 1e9) {
        *deadline = now_ns() + (seconds > 0 ? static_cast<int64_t>(seconds * 1e9) : 0);
    }
    return true;
}

// Calls `step(until_ns)` without the GIL until it is done or the deadline has passed, and looks for signals between.
// Returns 1, 0 for a deadline that passed, or -1 with an exception.
template <class Step> int in_slices(int64_t deadline, Step step) {
    for (;;) {
        int64_t until = now_ns() + SIGNALS_NS;
        bool is_done = false;
        without_gil([&] { is_done = step(until < deadline ? until : deadline); });
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

PyObject *engine_wait(PyEngine *self, PyObject *args) {
    long long number;
    int64_t deadline = INT64_MAX;
    if (!PyArg_ParseTuple(args, "L|O&", &number, take_deadline, &deadline)) {
        return nullptr;
    }
    Job *found = nullptr;
    Waited waited = self->engine->wait(number, 0, &found);
    if (waited == Waited::TIMEOUT) {
        int result = in_slices(deadline, [&](int64_t until) {
            waited = self->engine->wait(number, until, &found);
            return waited != Waited::TIMEOUT;
        });
        if (result <= 0) {
            return result < 0 ? nullptr : Py_NewRef(Py_False);
        }
    }
    if (waited == Waited::UNKNOWN) {
        PyErr_Format(PyExc_LookupError, "job %lld is not under way: not submitted, waited for before, or cancelled",
                     number);
        return nullptr;
    }
    OwnedJob job(found);
    if (job->has_failed) {
        raise_failure(*job);
        return nullptr;
    }
    Py_RETURN_TRUE;
}

PyObject *engine_is_done(PyEngine *self, PyObject *args) {
    long long number;
    return PyArg_ParseTuple(args, "L", &number) ? PyBool_FromLong(self->engine->is_done(number)) : nullptr;
}

PyObject *engine_cancel(PyEngine *self, PyObject *args) {
    long long number;
    int64_t deadline = INT64_MAX;
    if (!PyArg_ParseTuple(args, "L|O&", &number, take_deadline, &deadline)) {
        return nullptr;
    }
    struct Finished {
        std::vector<Job *> jobs;
        ~Finished() { std::for_each(jobs.begin(), jobs.end(), Release()); }
    } finished;
    int result =
        in_slices(deadline, [&](int64_t until) { return self->engine->cancel(number, until, &finished.jobs); });
    return result < 0 ? nullptr : PyBool_FromLong(result);
}

PyObject *engine_advise(PyEngine *self, PyObject *args) {
    std::vector<Announcement> advice;
    if (!take_announcements(args, &advice)) {
        return nullptr;
    }
    if (!advice.empty()) {
        self->engine->advise(std::move(advice));
    }
    Py_RETURN_NONE;
}

// ---------------------------------------------------------------------------------------------- the engine's life

bool close_engine(PyEngine *self, int64_t deadline) {
    if (self->engine == nullptr || is_forked(self)) {
        return true;
    }
    bool has_ended = false;
    without_gil([&] { has_ended = self->engine->close(deadline); });
    while (Job *job = has_ended ? self->engine->take() : nullptr) {
        release(job);
    }
    return has_ended;
}

PyObject *engine_close(PyObject *object, PyObject *args) {
    int64_t deadline = INT64_MAX;
    return PyArg_ParseTuple(args, "|O&", take_deadline, &deadline)
               ? PyBool_FromLong(close_engine(reinterpret_cast<PyEngine *>(object), deadline))
               : nullptr;
}

PyObject *engine_stats(PyEngine *self, PyObject *) {
    Engine::Stats stats = self->engine->stats();
    return Py_BuildValue("{sLsLsLsL}", "busy_ns", stats.busy_ns, "nbytes", stats.nbytes, "jobs", stats.jobs, "cpu_ns",
                         stats.cpu_ns);
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
    Owned made(reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0));
    if (!made) {
        return nullptr;
    }
    auto *self = reinterpret_cast<PyEngine *>(made.get());
    self->fork_count = fork_count();
    auto engine = std::make_unique<Engine>(thread_count);
    if (!engine->start()) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->engine = engine.release();
    return made.release();
}

void engine_dealloc(PyObject *object) {
    auto *self = reinterpret_cast<PyEngine *>(object);
    // After a fork the mutex may be locked for ever. A thread that hangs in a read uses the engine when it returns.
    if (close_engine(self, now_ns() + FINALIZER_NS) && !is_forked(self)) {
        delete self->engine;
    }
    PyTypeObject *type = Py_TYPE(object);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

// ---------------------------------------------------------------------------------------------- the module

PyMethodDef engine_methods[] = {
    {"submit", as_method<unforked<engine_submit>>(), METH_VARARGS, nullptr},
    {"wait", as_method<unforked<engine_wait>>(), METH_VARARGS, nullptr},
    {"is_done", as_method<unforked<engine_is_done>>(), METH_VARARGS, nullptr},
    {"cancel", as_method<unforked<engine_cancel>>(), METH_VARARGS, nullptr},
    {"advise", as_method<unforked<engine_advise>>(), METH_VARARGS, nullptr},
    {"close", as_method<engine_close>(), METH_VARARGS, nullptr},
    {"stats", as_method<unforked<engine_stats>>(), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot engine_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(Method<engine_new>::call)},
    {Py_tp_dealloc, reinterpret_cast<void *>(engine_dealloc)},
    {Py_tp_methods, engine_methods},
    {0, nullptr},
};
PyType_Spec engine_spec = {"penstock.native._engine.Engine", sizeof(PyEngine), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, engine_slots};

PyMethodDef module_methods[] = {
    {"copy_now", as_method<copy_now>(), METH_O, nullptr},
    {"announce_now", as_method<announce_now>(), METH_VARARGS, nullptr},
    {"permute_now", as_method<permute_now>(), METH_VARARGS, nullptr},
    {"deal", as_method<deal>(), METH_VARARGS, nullptr},
    {"memory_source", as_method<memory_source>(), METH_VARARGS, nullptr},
    {"file_source", as_method<file_source>(), METH_VARARGS, nullptr},
    {"sparse_source", as_method<sparse_source>(), METH_VARARGS, nullptr},
    {"parts_source", as_method<parts_source>(), METH_VARARGS, nullptr},
    {"lay_rows", as_method<lay_rows>(), METH_VARARGS, nullptr},
    {"read_parts", as_method<read_parts>(), METH_VARARGS, nullptr},
    {"count_down", as_method<count_down>(), METH_VARARGS, nullptr},
    {"fit_rows", as_method<fit_rows>(), METH_VARARGS, nullptr},
    {"trade_rows", as_method<trade_rows>(), METH_VARARGS, nullptr},
    {"order_keys", as_method<order_keys>(), METH_VARARGS, nullptr},
    {"return_slot", as_method<return_slot>(), METH_VARARGS, nullptr},
    {"outlast_interpreter", outlast_interpreter, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

int module_exec(PyObject *module) {
    static bool is_first = true;
    if (!is_first) {
        PyErr_SetString(PyExc_ImportError, "the copy engine cannot be loaded by a second interpreter");
        return -1;
    }
    PyObject *engine_type = PyType_FromSpec(&engine_spec);
    PyObject *source_type = new_source_type();
    if (engine_type == nullptr || source_type == nullptr || PyModule_AddObjectRef(module, "Engine", engine_type) != 0 ||
        PyModule_AddObjectRef(module, "Source", source_type) != 0) {
        return -1;
    }
    Py_DECREF(engine_type);
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
