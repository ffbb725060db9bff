// Calls that need no engine: copies of the calling thread, announcements, padding, permutations,
// parts of files. And jobs, for engines.
#include "python.hpp"

#include <algorithm>
#include <cstring>
#include <list>
#include <numeric>

namespace penstock {
namespace {

// Numbers of rows that were taken. Copies of one job name them by the same array where they are the same.
struct TakenRows {
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
    std::list<Buffer> views;
    std::vector<Owned> sources;
};

} // namespace

void release(Job *job) {
    PyObject *type, *error, *traceback; // objects that end here may run code
    PyErr_Fetch(&type, &error, &traceback);
    delete static_cast<Held *>(job->held);
    delete job;
    PyErr_Restore(type, error, traceback);
}

// ---------------------------------------------------------------------------------------------- jobs

static bool take_numbers(PyObject *array, const char *what, TakenRows *numbers) {
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

static const PySource *take_source(PyObject *object) {
    const PySource *source = as_source(object);
    if (source == nullptr) {
        PyErr_Format(PyExc_TypeError, "expected a source of this engine, not %R", object);
    }
    return source;
}

static bool are_inside(const PySource *source, const TakenRows &rows) {
    const int64_t count = source->source->layout.count;
    return rows.end <= static_cast<uint64_t>(count) ||
           fail_outside(source->name, first_outside(rows.rows.get(), rows.count, count), count, "element");
}

// Sorts elements by their parts. Columns of a table share the result, as they share the rows.
static void divide(const PySource *source, const TakenRows &from, const TakenRows *to, Divided *divided) {
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
        own.source = part->source.get();
        own.first = source->parts->bounds[piece.part];
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
        held->sources.emplace_back(Py_NewRef(object)); // there is room, see `job_of`
        *destination = {static_cast<uint8_t *>(made->view.buf), layout.count, layout.stride, layout.nbytes};
        return true;
    }
    if (holds_objects(object)) {
        PyErr_SetString(PyExc_TypeError, "a destination cannot hold Python objects");
        return false;
    }
    Py_buffer &view = held->views.emplace_back().view;
    if (PyObject_GetBuffer(object, &view, PyBUF_STRIDED) != 0) {
        return false;
    }
    if (view.ndim < 1) {
        PyErr_SetString(PyExc_ValueError, "a destination needs an axis of rows");
        return false;
    }
    Layout layout;
    if (!make_layout(view, &layout)) {
        PyErr_SetString(PyExc_ValueError, "the rows of a destination are too large");
        return false;
    }
    if (!layout.is_contiguous()) {
        PyErr_SetString(PyExc_ValueError, "the rows of a destination must be C-contiguous");
        return false;
    }
    *destination = {static_cast<uint8_t *>(view.buf), layout.count, layout.stride, layout.nbytes};
    return true;
}

// Adds the tasks of (source, rows, destination, destination rows or None, conversion).
static bool take_copy(PyObject *copy, Job *job, Held *held, TakenRows *from, TakenRows *to, Divided *divided) {
    if (!PyTuple_Check(copy) || PyTuple_Size(copy) != 5) {
        PyErr_SetString(PyExc_TypeError, "a copy is a tuple (source, rows, destination, destination_rows, conversion)");
        return false;
    }
    PyObject *source_object = PyTuple_GetItem(copy, 0), *out_object = PyTuple_GetItem(copy, 2),
             *out_rows_object = PyTuple_GetItem(copy, 3), *code_object = PyTuple_GetItem(copy, 4);
    const PySource *py_source = take_source(source_object);
    if (py_source == nullptr) {
        return false;
    }
    const Source &source = *py_source->source;
    Task task;
    task.source = &source;
    task.owner = py_source;
    long code = code_object == Py_None ? 0 : PyLong_AsLong(code_object);
    if (code != 0 && (PyErr_Occurred() || !find_conversion(code, &task.conversion))) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "%ld is not a conversion", code);
        }
        return false;
    }
    const Conversion &conversion = task.conversion;
    if (!take_numbers(PyTuple_GetItem(copy, 1), "rows", from) || !are_inside(py_source, *from)) {
        return false;
    }
    task.rows = from->rows;
    task.count = from->count;
    held->sources.emplace_back(Py_NewRef(source_object)); // there is room, see `job_of`
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
    const Failure &failure = job.failure;
    const int64_t row = failure.row < 0 ? -1 : task.first + failure.row;
    PyObject *source_name = static_cast<const PySource *>(task.owner)->name;
    Owned module(PyImport_ImportModule("penstock.native._errors"));
    Owned type(module ? PyObject_GetAttrString(module.get(), "CopyError") : nullptr);
    Owned error(type ? PyObject_CallFunction(type.get(), "OLiLL", source_name, static_cast<long long>(row),
                                             failure.error, static_cast<long long>(failure.expected_nbytes),
                                             static_cast<long long>(failure.found_nbytes))
                     : nullptr);
    if (error) {
        PyErr_SetObject(type.get(), error.get());
    }
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
    held->sources.reserve(2 * count);
    job->tasks.reserve(count);
    TakenRows from, to;
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

// (values, out, filling, rows, numbers, places): see `lay_rows` in `__init__.py`.
PyObject *lay_rows(PyObject *, PyObject *args) {
    PyObject *sequence, *out_object, *filling_object, *rows_object = Py_None, *more[2] = {Py_None, Py_None};
    if (!PyArg_ParseTuple(args, "OOO|OOO", &sequence, &out_object, &filling_object, &rows_object, more, more + 1)) {
        return nullptr;
    }
    Owned values(PySequence_Tuple(sequence)), dtype(values ? PyObject_GetAttrString(out_object, "dtype") : nullptr);
    Buffer out_buffer, filling_buffer, more_buffers[2];
    Numbers<int64_t> rows;
    const Py_buffer &out = out_buffer.view, &filling = filling_buffer.view;
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE;
    if (!dtype || PyObject_GetBuffer(out_object, &out_buffer.view, flags) != 0 ||
        PyObject_GetBuffer(filling_object, &filling_buffer.view, PyBUF_C_CONTIGUOUS) != 0 ||
        (rows_object != Py_None && !Numbers<int64_t>::read(rows_object, &rows))) {
        return nullptr;
    }
    const Py_ssize_t count = PyTuple_Size(values.get());
    const bool has_rows = rows_object != Py_None;
    bool fits = !holds_objects(out_object) && out.ndim == 2 && filling.ndim == 0 && filling.len == out.itemsize &&
                filling.len != 0 && count == (has_rows ? rows.count() : out.shape[0]);
    int32_t *counts[2] = {};
    for (int i = 0; i < 2; i++) {
        if (more[i] == Py_None) {
            continue;
        }
        const Py_buffer &view = more_buffers[i].view;
        if (PyObject_GetBuffer(more[i], &more_buffers[i].view, flags) != 0) {
            return nullptr;
        }
        fits = fits && view.ndim == 2 && view.itemsize == sizeof(int32_t) && view.shape[0] == out.shape[0] &&
               view.shape[1] == out.shape[1] && !holds_objects(more[i]);
        counts[i] = static_cast<int32_t *>(view.buf);
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the rows or the number that fills them do not fit the values");
        return nullptr;
    }
    std::unique_ptr<Buffer[]> views(new Buffer[count]);
    std::unique_ptr<int64_t[]> own_rows(new int64_t[count]); // they stay as they were checked
    int64_t width = out.shape[1], filled = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = PyTuple_GetItem(values.get(), i);
        Py_buffer &view = views[i].view;
        Owned found(PyObject_GetAttrString(value, "dtype"));
        // NumPy has one object for each of its own dtypes, and another for one that came from another process.
        if (!found || PyObject_RichCompareBool(found.get(), dtype.get(), Py_EQ) != 1 ||
            PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS) != 0 || view.ndim != 1 ||
            view.itemsize != out.itemsize) {
            PyErr_Clear();
            Py_RETURN_FALSE;
        }
        own_rows[i] = has_rows ? rows.data()[i] : i;
        filled = i > 0 && own_rows[i] == own_rows[i - 1] ? filled : 0;
        if (own_rows[i] < 0 || own_rows[i] >= out.shape[0] || view.shape[0] > width - filled) {
            PyErr_Format(PyExc_ValueError, "value %zd has %zd numbers, and row %lld of %zd has %lld left", i,
                         view.shape[0], static_cast<long long>(own_rows[i]), out.shape[0],
                         static_cast<long long>(width - filled));
            return nullptr;
        }
        filled += view.shape[0];
    }
    auto lay = [&] {
        int64_t at = 0;
        int32_t number = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            const Py_buffer &view = views[i].view;
            const int64_t row = own_rows[i], begin = row * width, length = view.shape[0];
            auto *to = static_cast<uint8_t *>(out.buf) + begin * out.itemsize;
            std::memmove(to + at * out.itemsize, view.buf, view.len); // which may be a part of the rows
            number++;
            if (counts[0] != nullptr) {
                std::fill_n(counts[0] + begin + at, length, number);
            }
            if (counts[1] != nullptr) {
                std::iota(counts[1] + begin + at, counts[1] + begin + at + length, 0);
            }
            at += length;
            if (i + 1 < count && own_rows[i + 1] == row) {
                continue;
            }
            repeat(static_cast<const uint8_t *>(filling.buf), filling.len, to + at * out.itemsize,
                   to + width * out.itemsize);
            for (int32_t *each : counts) {
                if (each != nullptr) {
                    std::fill(each + begin + at, each + begin + width, 0);
                }
            }
            at = number = 0;
        }
    };
    if (out.len > SHORT_NBYTES) {
        without_gil(lay);
    } else {
        lay();
    }
    Py_RETURN_TRUE;
}

// ---------------------------------------------------------------------------------------------- other calls

bool take_announcements(PyObject *args, std::vector<Announcement> *announcements) {
    PyObject *sequence, *array;
    if (!PyArg_ParseTuple(args, "OO", &sequence, &array)) {
        return false;
    }
    Owned sources(PySequence_Tuple(sequence));
    TakenRows rows;
    Divided divided;
    if (!sources || !take_numbers(array, "rows", &rows)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(sources.get()); i++) {
        PyObject *object = PyTuple_GetItem(sources.get(), i);
        const PySource *source = take_source(object);
        if (source == nullptr || !are_inside(source, rows)) {
            return false;
        }
        if (source->source->file != nullptr) {
            announcements->push_back({source->source, rows.rows, rows.count});
        }
        if (source->parts == nullptr) {
            continue;
        }
        divide(source, rows, nullptr, &divided);
        for (const Divided::Piece &piece : divided.pieces) {
            const PySource *part = source->parts->sources[piece.part];
            if (part != nullptr && part->source->file != nullptr) {
                std::shared_ptr<int64_t[]> inside(divided.inside, divided.inside.get() + piece.first);
                announcements->push_back({part->source, inside, piece.count});
            }
        }
    }
    return true;
}

// Announces reads on the calling thread.
PyObject *announce_now(PyObject *, PyObject *args) {
    std::vector<Announcement> announcements;
    if (!take_announcements(args, &announcements)) {
        return nullptr;
    }
    without_gil([&] { announce(announcements); });
    Py_RETURN_NONE;
}

// (keys, places, ends, before): see `deal` in `__init__.py`.
PyObject *deal(PyObject *, PyObject *args) {
    Numbers<uint64_t> keys;
    Numbers<int64_t> places, ends, before;
    if (!PyArg_ParseTuple(args, "O&O&O&O&", keys.read, &keys, places.write, &places, ends.read, &ends, before.write,
                          &before)) {
        return nullptr;
    }
    const int64_t *first = ends.data(), *end = first + ends.count(), count = places.count(),
                  size = first < end ? end[-1] : 0;
    if (size <= 0 || size > MOST_CARDS || first[0] < 0 || !std::is_sorted(first, end) || keys.count() != 2 * count ||
        before.count() != count || end_of(places.data(), count) > static_cast<uint64_t>(size)) {
        PyErr_SetString(PyExc_ValueError, "these are no places of orders of cards");
        return nullptr;
    }
    without_gil([&] { deal_cards(keys.data(), places.data(), count, ends.data(), ends.count(), before.data()); });
    Py_RETURN_NONE;
}

PyObject *permute_now(PyObject *, PyObject *args) {
    using Words = Numbers<uint64_t>;
    Words values, tweaks, words;
    long long signed_n, signed_a, signed_b;
    if (!PyArg_ParseTuple(args, "O&LLLO&O&", Words::write, &values, &signed_n, &signed_a, &signed_b, Words::read,
                          &tweaks, Words::read, &words)) {
        return nullptr;
    }
    // A negative one is too large.
    const auto n = static_cast<uint64_t>(signed_n), a = static_cast<uint64_t>(signed_a),
               b = static_cast<uint64_t>(signed_b);
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
PyObject *read_parts(PyObject *, PyObject *args) {
    using Words = Numbers<int64_t>;
    int descriptor;
    Words offsets, starts, sizes;
    Numbers<uint8_t> memory;
    if (!PyArg_ParseTuple(args, "iO&O&O&O&", &descriptor, Words::read, &offsets, memory.write, &memory, Words::read,
                          &starts, Words::read, &sizes)) {
        return nullptr;
    }
    const int64_t count = offsets.count(), *start = starts.data(), *size = sizes.data();
    bool fits = starts.count() == count && sizes.count() == count;
    for (int64_t i = 0; fits && i < count; i++) {
        fits = start[i] >= 0 && size[i] >= 0 && start[i] <= memory.count() && size[i] <= memory.count() - start[i];
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the parts lie outside of the memory");
        return nullptr;
    }
    int64_t done = 0, got = 0;
    int error = 0;
    without_gil([&] {
        for (; done < count; done++) {
            got = read_at(descriptor, offsets.data()[done], memory.data() + start[done], size[done], &error);
            if (got < size[done]) {
                break;
            }
        }
    });
    return Py_BuildValue("(LLi)", static_cast<long long>(done), static_cast<long long>(got), error);
}

// (words, place, count): see `count_down` in `__init__.py`.
PyObject *count_down(PyObject *, PyObject *args) {
    Numbers<int64_t> words;
    long long place, count;
    if (!PyArg_ParseTuple(args, "O&LL", words.write, &words, &place, &count)) {
        return nullptr;
    }
    if (place < 0 || place >= words.count()) {
        PyErr_SetString(PyExc_IndexError, "there is no such word");
        return nullptr;
    }
    return PyLong_FromLongLong(__atomic_sub_fetch(words.data() + place, count, __ATOMIC_SEQ_CST));
}

// (leases, free, on_free, interrupts, slot, lease, reference): see `return_slot` in `__init__.py`.
PyObject *return_slot(PyObject *, PyObject *args) {
    PyObject *leases, *free, *on_free, *interrupts, *slot, *lease, *reference;
    if (!PyArg_ParseTuple(args, "OOOOOOO", &leases, &free, &on_free, &interrupts, &slot, &lease, &reference)) {
        return nullptr;
    }
    Owned held(Py_NewRef(reference)); // which the lease may hold alone
    // Before the lease ends, so that `reclaim` sees the slot in one of the two.
    Owned appended(PyObject_CallMethod(free, "append", "O", slot));
    if (!appended || PyObject_DelItem(leases, lease) != 0) {
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
