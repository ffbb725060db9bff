// Sources as Python objects, and the buffers that calls take.
#include "python.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace penstock {
namespace {

PyTypeObject *g_source_type = nullptr;

bool element_of_buffer(PyObject *array, Element *element) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_FULL_RO) != 0) {
        return false;
    }
    *element = view.format != nullptr && std::strchr(view.format, 'O') != nullptr ? OBJECTS : OTHER;
    PyBuffer_Release(&view);
    return true;
}

} // namespace

// ---------------------------------------------------------------------------------------------- buffers

bool element_of(PyObject *array, Element *element) {
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    if (dtype == nullptr) {
        PyErr_Clear();
        return element_of_buffer(array, element);
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
    if (has_object == nullptr) { // another library's
        PyErr_Clear();
        Py_DECREF(dtype);
        return element_of_buffer(array, element);
    }
    PyObject *text = PyObject_GetAttrString(dtype, "str");
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
    } else if (view.itemsize != 8) { // a subclass of NumPy's array that says another dtype than it has
        PyErr_Format(PyExc_ValueError, "%s must be an array of int64, and have 8 bytes each", what);
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

PySource *new_source(PyObject *name) {
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(g_source_type, Py_tp_alloc));
    auto *self = reinterpret_cast<PySource *>(allocate(g_source_type, 0));
    if (self != nullptr) {
        self->name = Py_NewRef(name);
        self->source = new (std::nothrow) Source();
        if (self->source == nullptr) {
            Py_DECREF(self);
            PyErr_NoMemory();
            return nullptr;
        }
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

} // namespace

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
    if (view.ndim < 1 || view.ndim > MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "a source needs 1 to %d axes, not %d", MAX_DIMS, view.ndim);
        Py_DECREF(self);
        return nullptr;
    }
    for (int i = 1; i < view.ndim; i++) {
        shape[i - 1] = view.shape[i];
        strides[i - 1] = view.strides[i];
    }
    if (!make_layout(view.shape[0], view.strides[0], view.itemsize, view.ndim - 1, shape, strides,
                     &self->source->layout)) {
        PyErr_SetString(PyExc_ValueError, "the elements of a source are too large");
        Py_DECREF(self);
        return nullptr;
    }
    self->source->base = static_cast<const uint8_t *>(view.buf);
    return reinterpret_cast<PyObject *>(self);
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

namespace {

// Fills a vector of a sparse matrix of (source of bytes, first byte of each piece, numbers of a piece, item size).
bool take_vector(PyObject *tuple, int64_t count, PyObject **kept, Vector *vector) {
    PyObject *source_object, *places;
    long long piece_length, item_nbytes;
    if (!PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "OOLL", &source_object, &places, &piece_length, &item_nbytes)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "a vector is a tuple (source, places, piece_length, item_nbytes)");
        }
        return false;
    }
    PySource *py_source = as_source(source_object);
    if (py_source == nullptr || py_source->source->sparse || py_source->parts != nullptr) {
        PyErr_Format(PyExc_TypeError, "expected a source of this engine, not %R", source_object);
        return false;
    }
    const Source &source = *py_source->source;
    std::unique_ptr<int64_t[]> rows;
    const int64_t piece_count = take_rows(places, "places", &rows);
    if (piece_count < 0) {
        return false;
    }
    const bool is_size =
        item_nbytes == 1 || item_nbytes == 2 || item_nbytes == 4 || item_nbytes == 8 || item_nbytes == 16;
    if (!is_size || piece_length < 1 || source.layout.nbytes != 1 || source.layout.stride != 1 ||
        count / piece_length + (count % piece_length != 0) > piece_count) {
        PyErr_SetString(PyExc_ValueError, "the pieces of a sparse matrix's numbers do not match their count");
        return false;
    }
    for (int64_t piece = 0; piece * piece_length < count; piece++) {
        int64_t length = std::min<int64_t>(piece_length, count - piece * piece_length);
        if (rows[piece] < 0 || rows[piece] > source.layout.count ||
            length > (source.layout.count - rows[piece]) / item_nbytes) {
            PyErr_Format(PyExc_IndexError, "piece %lld lies outside of %S", static_cast<long long>(piece),
                         py_source->name);
            return false;
        }
        vector->places.push_back(source.offset + rows[piece]);
        vector->high = std::max<int64_t>(vector->high, vector->places.back() + length * item_nbytes);
    }
    vector->base = source.access == Access::READ ? nullptr : source.base;
    vector->file = source.file;
    if (source.file != nullptr) {
        source.file->acquire();
    }
    vector->piece_length = piece_length;
    vector->item_nbytes = item_nbytes;
    vector->give_back_nbytes = source.give_back_nbytes;
    *kept = Py_NewRef(source_object);
    return true;
}

} // namespace

// (starts, indices, values, conversion of the column numbers, columns, name): see `Engine.sparse`.
PyObject *sparse_source(PyObject *, PyObject *args) {
    PyObject *starts_object, *indices, *values, *name;
    long long columns;
    long code;
    if (!PyArg_ParseTuple(args, "OOOlLO", &starts_object, &indices, &values, &code, &columns, &name)) {
        return nullptr;
    }
    std::unique_ptr<int64_t[]> starts;
    const int64_t length = take_rows(starts_object, "starts", &starts);
    if (length < 0) {
        return nullptr;
    }
    bool is_right = length > 0 && starts[0] >= 0 && columns >= 0;
    for (int64_t i = 1; i < length && is_right; i++) {
        is_right = starts[i] >= starts[i - 1];
    }
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "the starts of a sparse matrix's rows decrease, or there are none");
        return nullptr;
    }
    auto sparse = std::make_shared<Sparse>();
    Owned made(reinterpret_cast<PyObject *>(new_source(name)));
    if (!made) {
        return nullptr;
    }
    auto *self = reinterpret_cast<PySource *>(made.get());
    const int64_t count = starts[length - 1];
    if (!take_vector(indices, count, &self->indices, &sparse->indices) ||
        !take_vector(values, count, &self->values, &sparse->values)) {
        return nullptr;
    }
    const Conversion &conversion = sparse->to_columns;
    if ((code != 0 && !find_conversion(code, &sparse->to_columns)) ||
        conversion.converted(1 * conversion.source_nbytes) != (code != 0 ? 8 : 1) ||
        sparse->indices.item_nbytes != (code != 0 ? conversion.source_nbytes : 8)) {
        PyErr_SetString(PyExc_ValueError, "the column numbers of a sparse matrix are not converted to int64");
        return nullptr;
    }
    sparse->starts.assign(starts.get(), starts.get() + length);
    sparse->column_count = columns;
    Layout &layout = self->source->layout;
    layout.count = length - 1;
    layout.item_nbytes = sparse->values.item_nbytes;
    if (__builtin_mul_overflow(static_cast<int64_t>(columns), layout.item_nbytes, &layout.nbytes) ||
        layout.nbytes > INT64_MAX / 4) {
        PyErr_SetString(PyExc_ValueError, "the elements of a source are too large");
        return nullptr;
    }
    layout.run_nbytes = layout.nbytes;
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
    // Most tables have parts of one size, but for the last: then this is the part, or the one before it.
    const auto guess = static_cast<size_t>(static_cast<double>(row) * sources.size() / bounds.back());
    for (size_t part = guess; part + 1 > guess && part < sources.size(); part--) {
        if (bounds[part] <= row && row < bounds[part + 1]) {
            return part;
        }
        if (part == 0 || part < guess) {
            break;
        }
    }
    return std::upper_bound(bounds.begin() + 1, bounds.end() - 1, row) - bounds.begin() - 1;
}

// (bounds, sources or None, name): see `Engine.parts`.
PyObject *parts_source(PyObject *, PyObject *args) {
    PyObject *bounds_object, *sequence, *name;
    if (!PyArg_ParseTuple(args, "OOO", &bounds_object, &sequence, &name)) {
        return nullptr;
    }
    std::unique_ptr<int64_t[]> bounds;
    const int64_t length = take_rows(bounds_object, "bounds", &bounds);
    Owned sources(length < 0 ? nullptr : PySequence_Tuple(sequence)),
        made(reinterpret_cast<PyObject *>(sources ? new_source(name) : nullptr));
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
        is_right = object == Py_None
                       ? count >= 0
                       : part != nullptr && part->parts == nullptr && !part->source->sparse &&
                             part->source->access == Access::MEMORY && part->source->layout.count == count;
        if (part == nullptr || !is_right) {
            self->parts->sources.push_back(nullptr);
            continue;
        }
        const Layout &own = part->source->layout;
        is_right = is_first || (own.nbytes == layout.nbytes && own.item_nbytes == layout.item_nbytes);
        layout.nbytes = own.nbytes;
        layout.item_nbytes = own.item_nbytes;
        is_first = false;
        self->parts->sources.push_back(reinterpret_cast<PySource *>(Py_NewRef(object)));
    }
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "the parts are no sources in memory of such sizes, one for each two bounds");
        return nullptr;
    }
    layout.count = bounds[length - 1];
    return made.release();
}

namespace {

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

} // namespace

PyObject *new_source_type() {
    PyObject *type = PyType_FromSpec(&source_spec);
    g_source_type = reinterpret_cast<PyTypeObject *>(type);
    return type;
}

PySource *as_source(PyObject *object) {
    return Py_TYPE(object) == g_source_type ? reinterpret_cast<PySource *>(object) : nullptr;
}

const Source *take_source_rows(PyObject *const *args, Py_ssize_t nargs, std::unique_ptr<int64_t[]> *rows,
                               int64_t *count) {
    PySource *py_source = nargs == 2 ? as_source(args[0]) : nullptr;
    if (py_source == nullptr) {
        PyErr_SetString(PyExc_TypeError, "expected a source and rows");
        return nullptr;
    }
    const Source *source = py_source->source;
    *count = take_rows(args[1], "rows", rows);
    if (*count < 0) {
        return nullptr;
    }
    const int64_t there = source->layout.count;
    if (end_of(rows->get(), *count) > static_cast<uint64_t>(there)) {
        fail_outside(py_source->name, first_outside(rows->get(), *count, there), there, "element");
        return nullptr;
    }
    return source;
}
} // namespace penstock
