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

// Numbers of rows that were taken. Copies of one job name them by the same array where they are the same.
struct Numbers {
    PyObject *array = nullptr; // borrowed: the copies hold it as long as the job is made
    std::shared_ptr<int64_t[]> rows;
    int64_t count = 0;
    uint64_t end = 0; // see `end_of`
};

// The elements of a copy in the order of the parts that they lie in.
struct Divided {
    struct Piece {
        size_t part;
        int64_t first, count;
        bool are_neighbours; // go to rows of the destination that follow one another
    };
    PyObject *rows = nullptr, *places = nullptr, *bounds = nullptr; // borrowed: what it was made of
    std::shared_ptr<int64_t[]> inside, out_rows;                    // the number of each in its part, and its place
    std::vector<Piece> pieces;
};

// What a job keeps of Python's.
struct Held {
    std::vector<Py_buffer> views; // reserved, so that none moves
    std::vector<PyObject *> sources;
};

} // namespace

void release(Job *job) {
    PyObject *type, *error, *traceback; // objects that end here may run code
    PyErr_Fetch(&type, &error, &traceback);
    if (auto *held = static_cast<Held *>(job->held)) {
        for (Py_buffer &view : held->views) {
            PyBuffer_Release(&view);
        }
        for (PyObject *source : held->sources) {
            Py_DECREF(source);
        }
        delete held;
    }
    delete job;
    PyErr_Restore(type, error, traceback);
}

// ---------------------------------------------------------------------------------------------- jobs

static bool take_numbers(PyObject *array, const char *what, Numbers *numbers) {
    if (numbers->array == array) {
        return true;
    }
    std::unique_ptr<int64_t[]> rows;
    numbers->array = nullptr;
    numbers->count = take_rows(array, what, &rows);
    if (numbers->count < 0) {
        return false;
    }
    numbers->end = end_of(rows.get(), numbers->count);
    numbers->rows = std::move(rows);
    numbers->array = array;
    return true;
}

// Sorts elements by their parts. Columns of a table share the result, as they share the rows.
static void divide(const PySource *source, const Numbers &from, const Numbers *to, Divided *divided) {
    PyObject *places = to != nullptr ? to->array : nullptr;
    if (divided->rows == from.array && divided->places == places && divided->bounds == source->bounds) {
        return;
    }
    const Parts &parts = *source->parts;
    const int64_t count = from.count;
    divided->rows = nullptr;
    divided->pieces.clear();
    divided->inside.reset(new int64_t[count]);
    divided->out_rows.reset(new int64_t[count]);
    std::vector<size_t> part_of(count);
    std::vector<int64_t> ends(parts.sources.size() + 1);
    for (int64_t i = 0; i < count; i++) {
        part_of[i] = parts.at(from.rows[i]);
        ends[part_of[i] + 1]++;
    }
    for (size_t part = 0; part < parts.sources.size(); part++) {
        if (ends[part + 1] > 0) {
            divided->pieces.push_back({part, ends[part], ends[part + 1], true});
        }
        ends[part + 1] += ends[part];
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = ends[part_of[i]]++;
        divided->inside[at] = from.rows[i] - parts.bounds[part_of[i]];
        divided->out_rows[at] = to != nullptr ? to->rows[i] : i;
    }
    for (Divided::Piece &piece : divided->pieces) {
        const int64_t *out_rows = divided->out_rows.get() + piece.first;
        for (int64_t i = 1; i < piece.count && piece.are_neighbours; i++) {
            piece.are_neighbours = out_rows[i] == out_rows[0] + i;
        }
    }
    divided->rows = from.array;
    divided->places = places;
    divided->bounds = source->bounds;
}

static void add_task(Task task, Job *job) {
    const Source &source = *task.source;
    const Layout &layout = source.layout;
    if (source.file != nullptr && !source.sparse) {
        for (int64_t i = 0; i < task.count; i++) {
            int64_t high = source.start(task.rows[i]) + layout.high;
            task.high = high > task.high ? high : task.high;
        }
    }
    if (layout.is_contiguous() && layout.nbytes > 2 * STEP_NBYTES && !source.sparse) {
        task.step_nbytes = STEP_NBYTES;
        task.steps_per_row = (layout.nbytes + STEP_NBYTES - 1) / STEP_NBYTES;
    }
    job->tasks.push_back(std::move(task));
}

// Adds a task for each part that elements lie in.
static bool add_parts(const PySource *source, const Task &task, const Divided &divided, Job *job) {
    for (const Divided::Piece &piece : divided.pieces) {
        const PySource *part = source->parts->sources[piece.part];
        if (part == nullptr) {
            PyErr_Format(PyExc_IndexError, "part %zu of %S is not there", piece.part, source->name);
            return false;
        }
        Task own = task;
        own.source = part->source;
        own.count = piece.count;
        own.rows = std::shared_ptr<int64_t[]>(divided.inside, divided.inside.get() + piece.first);
        if (piece.are_neighbours) {
            own.out += divided.out_rows[piece.first] * task.out_stride;
            own.out_rows = nullptr;
        } else {
            own.out_rows = std::shared_ptr<int64_t[]>(divided.out_rows, divided.out_rows.get() + piece.first);
        }
        add_task(std::move(own), job);
    }
    return true;
}

// The rows that a copy writes to: an array, or the source of one, whose buffer was taken before.
struct Destination {
    uint8_t *base;
    int64_t count, stride, row_nbytes;
};

static bool take_destination(PyObject *object, Held *held, Destination *destination) {
    if (PySource *made = as_source(object)) {
        const Layout &layout = made->source->layout;
        if (made->view.obj == nullptr || made->view.readonly || !layout.is_contiguous()) {
            PyErr_SetString(PyExc_ValueError, "the source of a destination needs writable, C-contiguous rows");
            return false;
        }
        held->sources.push_back(Py_NewRef(object)); // there is room, see `job_of`
        *destination = {static_cast<uint8_t *>(made->view.buf), layout.count, layout.stride, layout.nbytes};
        return true;
    }
    Element element;
    if (!element_of(object, &element)) {
        return false;
    }
    if (element == OBJECTS) {
        PyErr_SetString(PyExc_TypeError, "a destination cannot hold Python objects");
        return false;
    }
    held->views.emplace_back();
    Py_buffer &view = held->views.back();
    if (PyObject_GetBuffer(object, &view, PyBUF_STRIDED) != 0) {
        held->views.pop_back();
        return false;
    }
    if (view.ndim < 1) {
        PyErr_SetString(PyExc_ValueError, "a destination needs an axis of rows");
        return false;
    }
    int64_t row_nbytes = view.itemsize;
    bool is_contiguous = true;
    for (int i = view.ndim - 1; i >= 1; i--) {
        is_contiguous = is_contiguous && (view.shape[i] <= 1 || view.strides[i] == row_nbytes);
        if (__builtin_mul_overflow(row_nbytes, view.shape[i], &row_nbytes)) {
            PyErr_SetString(PyExc_ValueError, "the rows of a destination are too large");
            return false;
        }
    }
    if (!is_contiguous && row_nbytes > 0) {
        PyErr_SetString(PyExc_ValueError, "the rows of a destination must be C-contiguous");
        return false;
    }
    *destination = {static_cast<uint8_t *>(view.buf), view.shape[0], view.strides[0], row_nbytes};
    return true;
}

// Adds the tasks of (source, rows, destination, destination rows or None, conversion).
static bool take_copy(PyObject *copy, Job *job, Held *held, Numbers *from, Numbers *to, Divided *divided) {
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
    if (code != 0 && (PyErr_Occurred() || !find_conversion(code, &task.conversion))) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "%ld is not a conversion", code);
        }
        return false;
    }
    const Conversion &conversion = task.conversion;
    if (!take_numbers(PyTuple_GetItem(copy, 1), "rows", from)) {
        return false;
    }
    task.rows = from->rows;
    task.count = from->count;
    if (from->end > static_cast<uint64_t>(source.layout.count)) {
        int64_t outside = first_outside(task.rows.get(), task.count, source.layout.count);
        return fail_outside(py_source->name, outside, source.layout.count, "element");
    }
    held->sources.push_back(Py_NewRef(source_object)); // there is room, see `job_of`
    Destination destination;
    if (!take_destination(out_object, held, &destination)) {
        return false;
    }
    task.out_nbytes = destination.row_nbytes;
    const int64_t out_count = destination.count;
    if (out_rows_object == Py_None) {
        if (task.count > out_count) {
            return fail_outside(py_source->name, task.count - 1, out_count, "a destination's row for");
        }
    } else {
        if (!take_numbers(out_rows_object, "destination rows", to)) {
            return false;
        }
        if (to->count != task.count) {
            PyErr_Format(PyExc_ValueError, "%lld rows have %lld destination rows", static_cast<long long>(task.count),
                         static_cast<long long>(to->count));
            return false;
        }
        task.out_rows = to->rows;
        if (to->end > static_cast<uint64_t>(out_count)) {
            int64_t outside = first_outside(task.out_rows.get(), task.count, out_count);
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
    if (source.sparse && code != 0 && conversion.source_nbytes != layout.item_nbytes) {
        PyErr_Format(PyExc_ValueError, "the conversion is of other numbers than those of %S", py_source->name);
        return false;
    }
    if (task.count == 0 || task.out_nbytes == 0) {
        return true; // nothing to copy
    }
    task.out = destination.base;
    task.out_stride = destination.stride;
    const int64_t reach = (out_count - 1) * task.out_stride;
    task.out_low = task.out + std::min<int64_t>(0, reach);
    task.out_high = task.out + std::max<int64_t>(0, reach) + task.out_nbytes;
    int64_t nbytes;
    if (__builtin_mul_overflow(task.count, task.out_nbytes, &nbytes) ||
        __builtin_add_overflow(job->nbytes, nbytes, &job->nbytes)) {
        PyErr_SetString(PyExc_ValueError, "the copies have more bytes than can be counted");
        return false;
    }
    if (py_source->parts != nullptr) {
        divide(py_source, *from, out_rows_object == Py_None ? nullptr : to, divided);
        return add_parts(py_source, task, *divided, job);
    }
    add_task(std::move(task), job);
    return true;
}

void raise_failure(const Job &job) {
    const Task &task = job.tasks[job.failed_task];
    PyObject *source_name = nullptr;
    Failure failure = job.failure;
    for (PyObject *each : static_cast<Held *>(job.held)->sources) {
        auto *py_source = reinterpret_cast<PySource *>(each);
        if (py_source->source == task.source) {
            source_name = py_source->name;
        }
        for (size_t part = 0; py_source->parts != nullptr && part < py_source->parts->sources.size(); part++) {
            const PySource *own = py_source->parts->sources[part];
            if (own != nullptr && own->source == task.source && source_name == nullptr) {
                source_name = py_source->name;
                failure.row += failure.row < 0 ? 0 : py_source->parts->bounds[part];
            }
        }
    }
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

OwnedJob job_of(PyObject *sequence, int64_t number) {
    Owned copies(PySequence_Tuple(sequence));
    if (!copies) {
        return nullptr;
    }
    OwnedJob job(new Job());
    auto *held = new Held();
    job->held = held;
    job->number = number;
    Py_ssize_t count = PyTuple_Size(copies.get());
    held->views.reserve(count);
    held->sources.reserve(2 * count);
    job->tasks.reserve(count);
    Numbers from, to;
    Divided divided;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!take_copy(PyTuple_GetItem(copies.get(), i), job.get(), held, &from, &to, &divided)) {
            return nullptr;
        }
    }
    return job;
}

// Memory of the calling thread, for `copy_steps`. It stays with the thread.
static uint8_t *own_scratch() {
    static thread_local const std::unique_ptr<uint8_t[]> scratch(new uint8_t[2 * SCRATCH_NBYTES]);
    return scratch.get();
}

void execute(Job *job) {
    uint8_t *scratch = own_scratch();
    watch_faults();
    for (size_t i = 0; i < job->tasks.size() && !job->has_failed; i++) {
        job->failed_task = i;
        const Task &task = job->tasks[i];
        job->has_failed = !copy_steps(task, 0, task.steps(), scratch, &job->failure);
    }
}

// A thread that releases the GIL may wait longer for it than such a copy takes, where another one wants it.
constexpr int64_t SHORT_NBYTES = 256 << 10;

// Executes copies on the calling thread, without the GIL if they may take long.
PyObject *copy_now(PyObject *, PyObject *copies) {
    OwnedJob job = job_of(copies, 0);
    if (!job) {
        return nullptr;
    }
    bool may_wait = job->nbytes > SHORT_NBYTES;
    for (const Task &task : job->tasks) {
        may_wait |= task.source->file != nullptr;
    }
    if (may_wait) {
        without_gil([&] { execute(job.get()); });
    } else {
        execute(job.get());
    }
    if (job->has_failed) {
        raise_failure(*job);
        return nullptr;
    }
    Py_RETURN_NONE;
}

// ---------------------------------------------------------------------------------------------- padding

namespace {

struct Views {
    std::vector<Py_buffer> held;

    ~Views() {
        for (Py_buffer &view : held) {
            if (!t_has_released) {
                PyBuffer_Release(&view);
            }
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
        std::memmove(to, item, nbytes);
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
        if (view == nullptr || view->itemsize != out->itemsize) {
            Py_RETURN_FALSE;
        }
        if (view->shape[0] > out->shape[1]) {
            PyErr_Format(PyExc_ValueError, "value %zd has %zd numbers, and its row %zd", i, view->shape[0],
                         out->shape[1]);
            return nullptr;
        }
    }
    auto pad = [&] {
        auto *to = static_cast<uint8_t *>(out->buf);
        int64_t row_nbytes = out->shape[1] * out->itemsize;
        for (Py_ssize_t i = 0; i < count; i++, to += row_nbytes) {
            const Py_buffer &view = views.held[i + 2];
            std::memmove(to, view.buf, view.len); // which may be a part of the rows
            repeat(static_cast<const uint8_t *>(filling->buf), filling->len, to + view.len, to + row_nbytes);
        }
    };
    if (out->len > SHORT_NBYTES) {
        without_gil(pad);
    } else {
        pad();
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
        without_gil([&] { announce(*source, rows.get(), count); });
    }
    Py_RETURN_NONE;
}

namespace {

// An array of 64-bit words.
struct Words {
    Py_buffer view = {};
    bool take(PyObject *array, int flags) {
        Element element;
        if (!element_of(array, &element) || PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | flags) != 0) {
            return false;
        }
        bool is_right = view.itemsize == 8 && element != OBJECTS;
        if (!is_right) {
            PyErr_SetString(PyExc_TypeError, "expected an array of 64-bit numbers");
        }
        return is_right;
    }
    ~Words() {
        if (!t_has_released) {
            PyBuffer_Release(&view);
        }
    }
    uint64_t *data() const { return static_cast<uint64_t *>(view.buf); }
    int64_t count() const { return view.len / 8; }
};

} // namespace

PyObject *permute_now(PyObject *, PyObject *args) {
    PyObject *values_object, *tweaks_object, *words_object;
    long long signed_n, signed_a, signed_b;
    if (!PyArg_ParseTuple(args, "OLLLOO", &values_object, &signed_n, &signed_a, &signed_b, &tweaks_object,
                          &words_object)) {
        return nullptr;
    }
    // A negative one is too large.
    const auto n = static_cast<uint64_t>(signed_n), a = static_cast<uint64_t>(signed_a),
               b = static_cast<uint64_t>(signed_b);
    Words values, tweaks, words;
    if (!values.take(values_object, PyBUF_WRITABLE) || !tweaks.take(tweaks_object, 0) || !words.take(words_object, 0)) {
        return nullptr;
    }
    const uint64_t most = UINT64_C(1) << 31;
    bool is_one = tweaks.count() == 1;
    bool is_inside =
        std::all_of(values.data(), values.data() + values.count(), [n](uint64_t each) { return each < n; });
    // Half of [0, a * b) lies inside of [0, n): a value outside of it comes back soon.
    if (a == 0 || b == 0 || a > most || b > most || n > a * b || a * b / 2 > n || !is_inside ||
        (!is_one && tweaks.count() != values.count())) {
        PyErr_SetString(PyExc_ValueError, "these are no values of a permutation");
        return nullptr;
    }
    Permutation key = {n, a, b, words.data(), static_cast<size_t>(words.count() / 2)};
    without_gil([&] { permute(values.data(), values.count(), key, tweaks.data(), is_one); });
    Py_RETURN_NONE;
}

// (descriptor, offsets, memory, starts, sizes): see `read_parts` in `__init__.py`.
PyObject *read_parts(PyObject *, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 5) {
        PyErr_Format(PyExc_TypeError, "read_parts() takes 5 arguments, not %zd", nargs);
        return nullptr;
    }
    const long number = PyLong_AsLong(args[0]);
    if (number == -1 && PyErr_Occurred()) {
        return nullptr;
    }
    const int descriptor = number == static_cast<int>(number) ? static_cast<int>(number) : -1; // which is not open
    std::unique_ptr<int64_t[]> offsets, starts, sizes;
    int64_t count = take_rows(args[1], "offsets", &offsets);
    int64_t start_count = count < 0 ? -1 : take_rows(args[3], "starts", &starts);
    int64_t size_count = start_count < 0 ? -1 : take_rows(args[4], "sizes", &sizes);
    Element element;
    if (size_count < 0 || !element_of(args[2], &element)) {
        return nullptr;
    }
    Views views;
    const Py_buffer *memory = views.add(args[2], PyBUF_STRIDED, 1);
    if (memory == nullptr || memory->itemsize != 1 || element == OBJECTS) {
        PyErr_SetString(PyExc_ValueError, "parts are read into a writable array of bytes with one axis");
        return nullptr;
    }
    bool fits = start_count == count && size_count == count;
    for (int64_t i = 0; fits && i < count; i++) {
        fits = starts[i] >= 0 && sizes[i] >= 0 && starts[i] <= memory->len && sizes[i] <= memory->len - starts[i];
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the parts lie outside of the memory");
        return nullptr;
    }
    int64_t done = 0, got = 0;
    int error = 0;
    without_gil([&] {
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
    });
    return Py_BuildValue("(LLi)", static_cast<long long>(done), static_cast<long long>(got), error);
}

// (words, place, count): see `count_down` in `__init__.py`.
PyObject *count_down(PyObject *, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 3) {
        PyErr_Format(PyExc_TypeError, "count_down() takes 3 arguments, not %zd", nargs);
        return nullptr;
    }
    const long long place = PyLong_AsLongLong(args[1]), count = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) {
        return nullptr;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE) != 0) {
        return nullptr;
    }
    auto *words = static_cast<int64_t *>(view.buf);
    const bool is_inside = place >= 0 && place < view.len / static_cast<Py_ssize_t>(sizeof(int64_t)) &&
                           reinterpret_cast<uintptr_t>(words) % sizeof(int64_t) == 0;
    const long long left = is_inside ? __atomic_sub_fetch(words + place, count, __ATOMIC_SEQ_CST) : 0;
    PyBuffer_Release(&view);
    if (!is_inside) {
        PyErr_SetString(PyExc_IndexError, "there is no such word");
        return nullptr;
    }
    return PyLong_FromLongLong(left);
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
