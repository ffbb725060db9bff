// Sources as Python objects, and the buffers that calls take.
#include "python.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace penstock {
namespace {

PyTypeObject *g_source_type = nullptr;

} // namespace

// ---------------------------------------------------------------------------------------------- buffers

bool holds_objects(PyObject *array) {
    static PyObject *const names[] = {PyUnicode_InternFromString("dtype"), PyUnicode_InternFromString("hasobject")};
    Owned dtype(PyObject_GetAttr(array, names[0]));
    Owned found(dtype ? PyObject_GetAttr(dtype.get(), names[1]) : nullptr);
    PyErr_Clear(); // arrays of other libraries have none
    return found.get() == Py_True;
}

bool make_layout(const Py_buffer &view, Layout *layout) {
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    std::copy(view.shape + 1, view.shape + view.ndim, shape);
    std::copy(view.strides + 1, view.strides + view.ndim, strides);
    return make_layout(view.shape[0], view.strides[0], view.itemsize, view.ndim - 1, shape, strides, layout);
}

int64_t take_rows(PyObject *array, const char *what, std::unique_ptr<int64_t[]> *rows) {
    Buffer buffer;
    const Py_buffer &view = buffer.view;
    if (PyObject_GetBuffer(array, &buffer.view, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
        return -1;
    }
    if (view.itemsize != 8 || (std::strcmp(view.format, "l") != 0 && std::strcmp(view.format, "q") != 0)) {
        PyErr_Format(PyExc_TypeError, "%s must be an array of int64, not %R", what, array);
        return -1;
    }
    if (view.ndim != 1) {
        PyErr_Format(PyExc_ValueError, "%s must have one axis, not %d", what, view.ndim);
        return -1;
    }
    const int64_t count = view.shape[0];
    rows->reset(new int64_t[count]);
    const auto *from = static_cast<const char *>(view.buf);
    const int64_t step = view.strides[0], together = step == 8 ? count : 1;
    for (int64_t i = 0; i < count; i += together) {
        std::memcpy(rows->get() + i, from + i * step, together * 8);
    }
    return count;
}

uint64_t end_of(const int64_t *rows, int64_t length) {
    uint64_t greatest = 0;
    for (int64_t i = 0; i < length; i++) {
        greatest = std::max(greatest, static_cast<uint64_t>(rows[i]));
    }
    return length > 0 ? greatest + (greatest < UINT64_MAX) : 0;
}

int64_t first_outside(const int64_t *rows, int64_t length, int64_t count) {
    return *std::find_if(rows, rows + length, [&](int64_t row) { return row < 0 || row >= count; });
}

bool fail_outside(PyObject *name, int64_t row, int64_t count, const char *what) {
    PyErr_Format(PyExc_IndexError, "%s %lld is out of range: %S has %lld", what, static_cast<long long>(row), name,
                 static_cast<long long>(count));
    return false;
}

// ---------------------------------------------------------------------------------------------- sources

namespace {

Owned new_source(PyObject *name) {
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(g_source_type, Py_tp_alloc));
    Owned made(allocate(g_source_type, 0));
    if (auto *self = reinterpret_cast<PySource *>(made.get())) {
        self->name = Py_NewRef(name);
        new (&self->source) std::shared_ptr<Source>(new Source());
    }
    return made;
}

void source_dealloc(PyObject *object) {
    auto *self = reinterpret_cast<PySource *>(object);
    if (self->view.obj != nullptr) {
        PyBuffer_Release(&self->view);
    }
    self->source.~shared_ptr();
    Py_XDECREF(self->name);
    Py_XDECREF(self->indices);
    Py_XDECREF(self->values);
    Py_XDECREF(self->bounds);
    for (PySource *part : self->parts != nullptr ? self->parts->sources : std::vector<PySource *>()) {
        Py_XDECREF(reinterpret_cast<PyObject *>(part));
    }
    delete self->parts;
    PyTypeObject *type = Py_TYPE(object);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

} // namespace

PyObject *memory_source(PyObject *, PyObject *args) {
    PyObject *array, *name;
    if (!PyArg_ParseTuple(args, "OO", &array, &name)) {
        return nullptr;
    }
    if (holds_objects(array)) {
        PyErr_SetString(PyExc_TypeError, "an array of Python objects cannot be copied as bytes");
        return nullptr;
    }
    Owned made = new_source(name);
    auto *self = reinterpret_cast<PySource *>(made.get());
    if (self == nullptr || PyObject_GetBuffer(array, &self->view, PyBUF_STRIDED_RO) != 0) {
        return nullptr;
    }
    const Py_buffer &view = self->view;
    if (view.ndim < 1 || view.ndim > MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "a source needs 1 to %d axes, not %d", MAX_DIMS, view.ndim);
        return nullptr;
    }
    if (!make_layout(view, &self->source->layout)) {
        PyErr_SetString(PyExc_ValueError, "the elements of a source are too large");
        return nullptr;
    }
    self->source->base = static_cast<const uint8_t *>(view.buf);
    return made.release();
}

namespace {

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
    Owned held(bytes);
    const char *text = bytes != nullptr ? PyBytes_AsString(bytes) : nullptr;
    Source &source = *self->source;
    int error = 0;
    without_gil([&] { // may wait for a server
        source.file = File::open(text, fd);
        error = errno;
    });
    if (source.file == nullptr) {
        errno = error;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
        return false;
    }
    File *file = source.file;
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

} // namespace

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
    Owned made = new_source(name);
    if (!made) {
        return nullptr;
    }
    auto *self = reinterpret_cast<PySource *>(made.get());
    Source &source = *self->source;
    if (ndim != strides_length || count < 0 || item_nbytes <= 0 ||
        !make_layout(count, stride, item_nbytes, ndim, shape, strides, &source.layout)) {
        PyErr_SetString(PyExc_ValueError, "the sizes of a file's rows are negative, too large, or do not match");
        return nullptr;
    }
    source.offset = offset;
    // The first and the last byte that any element has.
    __int128 last = static_cast<__int128>(stride) * (count > 0 ? count - 1 : 0) + offset;
    __int128 low = (last < offset ? last : offset) + source.layout.low;
    __int128 high = (last > offset ? last : offset) + source.layout.high;
    if (count > 0 && (low < 0 || high > INT64_MAX / 2)) {
        PyErr_SetString(PyExc_ValueError, "elements would lie before the file's first byte, or too far behind it");
        return nullptr;
    }
    const bool is_open =
        open_file(self, path, fd, count > 0 ? static_cast<int64_t>(high) : 0, is_mapped, give_back_nbytes);
    return is_open ? made.release() : nullptr;
}

namespace {

// Takes a vector of a sparse matrix: (source of bytes, first byte of each piece, numbers of a piece, bytes of a number,
// bytes of the source up to the end of the last piece).
bool take_vector(PyObject *tuple, PyObject **kept, Vector *vector) {
    PyObject *source_object, *places;
    long long piece_length, item_nbytes, high;
    if (!PyArg_ParseTuple(tuple, "OOLLL", &source_object, &places, &piece_length, &item_nbytes, &high)) {
        return false;
    }
    PySource *py_source = as_source(source_object);
    if (py_source == nullptr || py_source->source->layout.stride != 1) {
        PyErr_Format(PyExc_TypeError, "expected a source of this engine, of bytes, not %R", source_object);
        return false;
    }
    const Source &source = *py_source->source;
    std::unique_ptr<int64_t[]> rows;
    const int64_t piece_count = take_rows(places, "places", &rows);
    for (int64_t piece = 0; piece < piece_count; piece++) {
        vector->places.push_back(source.offset + rows[piece]);
    }
    vector->high = source.offset + high;
    vector->base = source.access == Access::READ ? nullptr : source.base;
    vector->file = source.file;
    if (source.file != nullptr) {
        source.file->acquire();
    }
    vector->piece_length = piece_length;
    vector->item_nbytes = item_nbytes;
    vector->give_back_nbytes = source.give_back_nbytes;
    *kept = Py_NewRef(source_object);
    return piece_count >= 0;
}

} // namespace

// (starts, indices, values, conversion of the column numbers, columns, name), which `Engine.sparse` has checked.
PyObject *sparse_source(PyObject *, PyObject *args) {
    PyObject *starts_object, *indices, *values, *name;
    long long columns;
    long code;
    if (!PyArg_ParseTuple(args, "OO!O!lLO", &starts_object, &PyTuple_Type, &indices, &PyTuple_Type, &values, &code,
                          &columns, &name)) {
        return nullptr;
    }
    std::unique_ptr<int64_t[]> starts;
    const int64_t length = take_rows(starts_object, "starts", &starts);
    Owned made = length < 0 ? nullptr : new_source(name);
    if (!made) {
        return nullptr;
    }
    auto sparse = std::make_shared<Sparse>();
    auto *self = reinterpret_cast<PySource *>(made.get());
    if (!take_vector(indices, &self->indices, &sparse->indices) ||
        !take_vector(values, &self->values, &sparse->values)) {
        return nullptr;
    }
    if (code != 0) {
        find_conversion(code, &sparse->to_columns);
    }
    sparse->starts.assign(starts.get(), starts.get() + length);
    sparse->column_count = columns;
    Layout &layout = self->source->layout;
    layout.count = length - 1;
    layout.item_nbytes = sparse->values.item_nbytes;
    layout.nbytes = layout.run_nbytes = columns * layout.item_nbytes;
    File *file = sparse->indices.file != nullptr ? sparse->indices.file : sparse->values.file;
    if (file != nullptr) {
        file->acquire();
        self->source->file = file;
        self->source->access = sparse->indices.base != nullptr ? Access::MAPPED : Access::READ;
    }
    self->source->sparse = std::move(sparse);
    return made.release();
}

size_t Parts::at(int64_t row) const {
    // Without branches, of which rows in a random order mispredict half.
    const int64_t *first = bounds.data();
    for (size_t count = sources.size(), half; count > 1; count -= half) {
        half = count / 2;
        first += first[half] <= row ? half : 0;
    }
    return first - bounds.data();
}

// (bounds, sources or None, name): see `Engine.parts`.
PyObject *parts_source(PyObject *, PyObject *args) {
    PyObject *bounds_object, *sequence, *name;
    if (!PyArg_ParseTuple(args, "OOO", &bounds_object, &sequence, &name)) {
        return nullptr;
    }
    std::unique_ptr<int64_t[]> bounds;
    const int64_t length = take_rows(bounds_object, "bounds", &bounds);
    Owned sources(length < 0 ? nullptr : PySequence_Tuple(sequence)), made = sources ? new_source(name) : nullptr;
    if (!made) {
        return nullptr;
    }
    auto *self = reinterpret_cast<PySource *>(made.get());
    self->parts = new Parts();
    self->bounds = Py_NewRef(bounds_object);
    self->parts->bounds.assign(bounds.get(), bounds.get() + length);
    bool is_right = length >= 2 && length == PyTuple_Size(sources.get()) + 1 && bounds[0] == 0;
    Layout &layout = self->source->layout;
    bool is_first = true;
    for (int64_t i = 0; i + 1 < length && is_right; i++) {
        PyObject *object = PyTuple_GetItem(sources.get(), i);
        PySource *part = object == Py_None ? nullptr : as_source(object);
        const int64_t count = bounds[i + 1] - bounds[i];
        is_right = object == Py_None ? count >= 0
                                     : part != nullptr && part->parts == nullptr && !part->source->sparse &&
                                           part->source->layout.count == count;
        if (part == nullptr || !is_right) {
            self->parts->sources.push_back(nullptr);
            continue;
        }
        is_right = is_first || part->source->layout.nbytes == layout.nbytes;
        layout.nbytes = part->source->layout.nbytes;
        is_first = false;
        self->parts->sources.push_back(reinterpret_cast<PySource *>(Py_NewRef(object)));
    }
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "the parts are no sources of such sizes, one for each two bounds");
        return nullptr;
    }
    layout.count = bounds[length - 1];
    return made.release();
}

namespace {

PyObject *source_count(PyObject *self, void *) {
    return PyLong_FromLongLong(reinterpret_cast<PySource *>(self)->source->layout.count);
}
PyObject *source_name(PyObject *self, void *) { return Py_NewRef(reinterpret_cast<PySource *>(self)->name); }
PyGetSetDef source_getset[] = {
    {"count", source_count, nullptr, nullptr, nullptr},
    {"name", source_name, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot source_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void *>(source_dealloc)},
    {Py_tp_getset, source_getset},
    {0, nullptr},
};
PyType_Spec source_spec = {"penstock.native._engine.Source", sizeof(PySource), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, source_slots};

} // namespace

PyObject *new_source_type() {
    PyObject *type = PyType_FromSpec(&source_spec);
    g_source_type = reinterpret_cast<PyTypeObject *>(type);
    return type;
}

PySource *as_source(PyObject *object) {
    return Py_TYPE(object) == g_source_type ? reinterpret_cast<PySource *>(object) : nullptr;
}

} // namespace penstock
