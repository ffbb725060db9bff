// How elements are laid into rows by their sizes, for `pack` and `bucket_by_length`. The functions of the same names in
// `_numpy.py` are their definitions.
#include "python.hpp"

#include <algorithm>
#include <limits>

namespace penstock {
namespace {

// A contiguous array of numbers of one size.
template <class T> struct Numbers {
    Py_buffer view = {};
    bool take(PyObject *array, int flags) {
        Element element;
        if (!element_of(array, &element) || PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | flags) != 0) {
            return false;
        }
        bool is_right = view.itemsize == sizeof(T) && element != OBJECTS;
        if (!is_right) {
            PyErr_Format(PyExc_TypeError, "expected an array of %zd-bit numbers",
                         static_cast<Py_ssize_t>(8 * sizeof(T)));
        }
        return is_right;
    }
    ~Numbers() {
        if (!t_has_released) {
            PyBuffer_Release(&view);
        }
    }
    T *data() const { return static_cast<T *>(view.buf); }
    int64_t count() const { return view.len / static_cast<int64_t>(sizeof(T)); }
};

// `kinds` sizes of each of `count` elements, kind by kind.
struct Sizes {
    const uint32_t *data;
    int64_t kinds, count;
    uint32_t of(int64_t kind, int64_t i) const { return data[kind * count + i]; }
    bool fit(int64_t i, const uint32_t *room) const {
        for (int64_t kind = 0; kind < kinds; kind++) {
            if (of(kind, i) > room[kind]) {
                return false;
            }
        }
        return true;
    }
    void take(int64_t i, uint32_t *room) const {
        for (int64_t kind = 0; kind < kinds; kind++) {
            room[kind] -= of(kind, i);
        }
    }
};

int64_t fit_next(const Sizes &sizes, const uint32_t *capacity, uint32_t *rows) {
    std::vector<uint32_t> room(capacity, capacity + sizes.kinds);
    int64_t row = 0;
    for (int64_t i = 0; i < sizes.count; i++) {
        if (!sizes.fit(i, room.data())) {
            room.assign(capacity, capacity + sizes.kinds);
            row++;
        }
        sizes.take(i, room.data());
        rows[i] = static_cast<uint32_t>(row);
    }
    return sizes.count ? row + 1 : 0;
}

// A tree whose leaves are rows, and whose nodes have the largest room below of each kind: the first row that has room
// is found in as many steps as the tree is high. With several kinds, a node may promise what no leaf below keeps.
int64_t fit_first(const Sizes &sizes, const uint32_t *capacity, uint32_t *rows) {
    int64_t width = 1, last = -1;
    while (width < sizes.count) {
        width *= 2;
    }
    const int64_t kinds = sizes.kinds;
    std::vector<uint32_t> room(2 * width * kinds);
    for (int64_t node = 0; node < 2 * width; node++) {
        std::copy(capacity, capacity + kinds, &room[node * kinds]);
    }
    for (int64_t i = 0; i < sizes.count; i++) {
        int64_t node = 1;
        while (true) {
            if (!sizes.fit(i, &room[node * kinds])) {
                while (node & 1) { // up, to the next one to the right
                    node /= 2;
                }
                node++;
            } else if (node < width) {
                node *= 2;
            } else {
                break;
            }
        }
        rows[i] = static_cast<uint32_t>(node - width);
        last = std::max(last, node - width);
        sizes.take(i, &room[node * kinds]);
        for (bool is_new = true; is_new && node > 1;) {
            node /= 2;
            is_new = false;
            for (int64_t kind = 0; kind < kinds; kind++) {
                uint32_t &here = room[node * kinds + kind];
                const uint32_t most = std::max(room[2 * node * kinds + kind], room[(2 * node + 1) * kinds + kind]);
                is_new |= here != most;
                here = most;
            }
        }
    }
    return last + 1;
}

// Rows with the same room of the first kind are a list, the last one to get there first. A bit says which lists have
// rows.
int64_t fit_best(const Sizes &sizes, const uint32_t *capacity, uint32_t *rows) {
    constexpr uint32_t NONE = std::numeric_limits<uint32_t>::max();
    const int64_t kinds = sizes.kinds, most = capacity[0];
    std::vector<uint32_t> heads(most + 1, NONE), following, room;
    std::vector<uint64_t> has_rows(most / 64 + 1);
    auto mark = [&](int64_t at) {
        const uint64_t bit = UINT64_C(1) << at % 64;
        has_rows[at / 64] = heads[at] == NONE ? has_rows[at / 64] & ~bit : has_rows[at / 64] | bit;
    };
    // The first list from `at` on that has rows; -1 for none.
    auto find = [&](int64_t at) -> int64_t {
        if (at > most) {
            return -1;
        }
        auto word = static_cast<size_t>(at / 64);
        uint64_t bits = has_rows[word] & ~UINT64_C(0) << at % 64;
        while (bits == 0 && ++word < has_rows.size()) {
            bits = has_rows[word];
        }
        return bits == 0 ? -1 : static_cast<int64_t>(word) * 64 + __builtin_ctzll(bits);
    };
    for (int64_t i = 0; i < sizes.count; i++) {
        uint32_t found = NONE;
        int tries = kinds == 1 ? 1 : FIT_TRIES;
        for (int64_t at = find(sizes.of(0, i)); at >= 0 && found == NONE && tries > 0; at = find(at + 1)) {
            uint32_t *link = &heads[at];
            for (; *link != NONE && tries-- > 0; link = &following[*link]) {
                if (sizes.fit(i, &room[*link * kinds])) {
                    found = *link;
                    *link = following[found];
                    mark(at);
                    break;
                }
            }
        }
        if (found == NONE) {
            found = static_cast<uint32_t>(following.size());
            following.push_back(NONE);
            room.insert(room.end(), capacity, capacity + kinds);
        }
        sizes.take(i, &room[found * kinds]);
        const uint32_t left = room[found * kinds];
        following[found] = heads[left];
        heads[left] = found;
        mark(left);
        rows[i] = found;
    }
    return static_cast<int64_t>(following.size());
}

void trade(const Sizes &sizes, uint32_t *rows, int64_t *room, int64_t row_count, bool is_sum, int64_t window,
           const uint32_t *words) {
    auto may = [&](int64_t i, int64_t j) { // whether element j can stand in the place of i
        for (int64_t kind = 0; kind < sizes.kinds; kind++) {
            const int64_t have = room[kind * row_count + rows[i]] + (is_sum ? sizes.of(kind, i) : 0);
            if (sizes.of(kind, j) > have) {
                return false;
            }
        }
        return true;
    };
    for (int64_t i = 0; i < sizes.count; i++) {
        const int64_t j =
            i + static_cast<int64_t>(words[i] * static_cast<uint64_t>(std::min(window, sizes.count - i)) >> 32);
        if (rows[i] == rows[j] || !may(i, j) || !may(j, i)) {
            continue;
        }
        for (int64_t kind = 0; is_sum && kind < sizes.kinds; kind++) {
            const int64_t more = static_cast<int64_t>(sizes.of(kind, i)) - sizes.of(kind, j);
            room[kind * row_count + rows[i]] += more;
            room[kind * row_count + rows[j]] -= more;
        }
        std::swap(rows[i], rows[j]);
    }
}

} // namespace

// (sizes, capacity, rows, fit): see `fit_rows` in `__init__.py`.
PyObject *fit_rows(PyObject *, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 4) {
        PyErr_Format(PyExc_TypeError, "fit_rows() takes 4 arguments, not %zd", nargs);
        return nullptr;
    }
    Numbers<uint32_t> sizes, capacity, rows;
    const long fit = PyLong_AsLong(args[3]);
    if ((fit == -1 && PyErr_Occurred()) || !sizes.take(args[0], 0) || !capacity.take(args[1], 0) ||
        !rows.take(args[2], PyBUF_WRITABLE)) {
        return nullptr;
    }
    const Sizes all = {sizes.data(), capacity.count(), rows.count()};
    bool is_right = all.kinds > 0 && sizes.count() == all.kinds * all.count && fit >= 0 && fit < 3 &&
                    all.count < std::numeric_limits<uint32_t>::max() && capacity.data()[0] <= MOST_CAPACITY;
    for (int64_t i = 0; is_right && i < all.count; i++) {
        is_right = all.fit(i, capacity.data());
    }
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "these sizes do not fit into rows");
        return nullptr;
    }
    int64_t count = 0;
    without_gil([&] {
        auto *function = fit == 0 ? fit_next : fit == 1 ? fit_first : fit_best;
        count = function(all, capacity.data(), rows.data());
    });
    return PyLong_FromLongLong(count);
}

// (sizes, rows, room, is_sum, window, words): see `trade_rows` in `__init__.py`.
PyObject *trade_rows(PyObject *, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 6) {
        PyErr_Format(PyExc_TypeError, "trade_rows() takes 6 arguments, not %zd", nargs);
        return nullptr;
    }
    Numbers<uint32_t> sizes, rows, words;
    Numbers<int64_t> room;
    const int is_sum = PyObject_IsTrue(args[3]);
    const long long window = PyLong_AsLongLong(args[4]);
    if (is_sum < 0 || (window == -1 && PyErr_Occurred()) || !sizes.take(args[0], 0) ||
        !rows.take(args[1], PyBUF_WRITABLE) || !room.take(args[2], PyBUF_WRITABLE) || !words.take(args[5], 0)) {
        return nullptr;
    }
    const int64_t count = rows.count(), kinds = count ? sizes.count() / count : 1,
                  row_count = room.count() / std::max<int64_t>(1, kinds);
    bool is_right = kinds > 0 && sizes.count() == kinds * count && room.count() == kinds * row_count &&
                    words.count() == count && window > 0 && window <= std::numeric_limits<uint32_t>::max();
    is_right = is_right && std::all_of(rows.data(), rows.data() + count, [&](uint32_t row) { return row < row_count; });
    is_right = is_right && std::all_of(room.data(), room.data() + room.count(), [&](int64_t each) {
                   return each >= -MOST_CAPACITY && each <= std::numeric_limits<uint32_t>::max();
               });
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "these are no elements in rows");
        return nullptr;
    }
    without_gil([&] {
        trade({sizes.data(), kinds, count}, rows.data(), room.data(), row_count, is_sum, window, words.data());
    });
    Py_RETURN_NONE;
}

} // namespace penstock
