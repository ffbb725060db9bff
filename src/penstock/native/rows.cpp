// How elements are ordered and laid into rows by their sizes, for `pack` and `bucket_by_length`. The functions of the
// same names in `_numpy.py` are their definitions.
#include "python.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace penstock {
namespace {

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
class RoomTree {
  public:
    RoomTree(int64_t kinds, const uint32_t *capacity) : kinds_(kinds), capacity_(capacity), room_(2 * kinds) {
        std::copy(capacity_, capacity_ + kinds_, at(1));
    }

    // The first row that has room for an element, where all rows from `count` on are empty.
    int64_t first(const Sizes &sizes, int64_t i, int64_t count) {
        if (count == width_) {
            grow();
        }
        return (kinds_ == 1 ? find_one(sizes.data[i]) : find(sizes, i)) - width_;
    }

    // The element goes to this row.
    void take(const Sizes &sizes, int64_t i, int64_t row) {
        int64_t node = row + width_;
        sizes.take(i, at(node));
        for (bool is_new = true; is_new && node > 1;) {
            node /= 2;
            is_new = set_largest(node);
        }
    }

    const uint32_t *room(int64_t row) const { return &room_[(row + width_) * kinds_]; }

  private:
    uint32_t *at(int64_t node) { return &room_[node * kinds_]; }

    int64_t find_one(uint32_t size) const {
        int64_t node = 1;
        while (node < width_) {
            node = 2 * node + (room_[2 * node] < size);
        }
        return node;
    }

    int64_t find(const Sizes &sizes, int64_t i) {
        int64_t node = 1;
        while (true) {
            if (!sizes.fit(i, at(node))) {
                while (node & 1) { // up, to the next one to the right
                    node /= 2;
                }
                node++;
            } else if (node < width_) {
                node *= 2;
            } else {
                return node;
            }
        }
    }

    bool set_largest(int64_t node) {
        bool is_new = false;
        for (int64_t kind = 0; kind < kinds_; kind++) {
            const uint32_t most = std::max(at(2 * node)[kind], at(2 * node + 1)[kind]);
            is_new |= at(node)[kind] != most;
            at(node)[kind] = most;
        }
        return is_new;
    }

    // Twice as many leaves.
    void grow() {
        std::vector<uint32_t> room(4 * width_ * kinds_);
        std::copy(at(width_), at(2 * width_ - 1) + kinds_, &room[2 * width_ * kinds_]);
        room_.swap(room);
        width_ *= 2;
        for (int64_t node = width_ + width_ / 2; node < 2 * width_; node++) {
            std::copy(capacity_, capacity_ + kinds_, at(node));
        }
        for (int64_t node = width_ - 1; node > 0; node--) {
            set_largest(node);
        }
    }

    const int64_t kinds_;
    const uint32_t *const capacity_;
    int64_t width_ = 1;
    std::vector<uint32_t> room_;
};

int64_t fit_first(const Sizes &sizes, const uint32_t *capacity, uint32_t *rows) {
    RoomTree tree(sizes.kinds, capacity);
    int64_t count = 0;
    for (int64_t i = 0; i < sizes.count; i++) {
        const int64_t row = tree.first(sizes, i, count);
        tree.take(sizes, i, row);
        rows[i] = static_cast<uint32_t>(row);
        count = std::max(count, row + 1);
    }
    return count;
}

// Numbers from 0 to `most`. Bits of one level say which words of the level below are not zero, so the next number is
// found in a few steps.
class NumberSet {
  public:
    explicit NumberSet(int64_t most) {
        do {
            most /= 64;
            levels_.emplace_back(most + 1);
        } while (most > 0);
    }

    void add(int64_t number) {
        for (auto &level : levels_) {
            level[number / 64] |= UINT64_C(1) << number % 64;
            number /= 64;
        }
    }

    void remove(int64_t number) {
        for (auto &level : levels_) {
            uint64_t &word = level[number / 64];
            word &= ~(UINT64_C(1) << number % 64);
            if (word != 0) {
                return;
            }
            number /= 64;
        }
    }

    // The first number from `number` on; -1 for none.
    int64_t next(int64_t number) const {
        for (size_t height = 0; height < levels_.size(); height++, number = number / 64 + 1) {
            const auto word = static_cast<size_t>(number / 64);
            if (word >= levels_[height].size()) {
                return -1;
            }
            const uint64_t bits = levels_[height][word] & ~UINT64_C(0) << number % 64;
            if (bits != 0) {
                number = number / 64 * 64 + __builtin_ctzll(bits);
                while (height-- > 0) {
                    number = number * 64 + __builtin_ctzll(levels_[height][number]);
                }
                return number;
            }
        }
        return -1;
    }

  private:
    std::vector<std::vector<uint64_t>> levels_;
};

// Rows with as much room are a list, the last one to get there first. With several kinds, the room is the sum of the
// shares of each, and the row may lack room of one kind: some rows are looked at, and then the first that has room.
int64_t fit_best(const Sizes &sizes, const uint32_t *capacity, uint32_t *rows) {
    constexpr uint32_t NONE = std::numeric_limits<uint32_t>::max();
    const int64_t kinds = sizes.kinds, shares = std::max(INT64_C(1), FIT_SHARES / kinds),
                  most = kinds == 1 ? capacity[0] : kinds * shares;
    auto shared = [&](int64_t kind, int64_t size) { return size * shares / std::max(1U, capacity[kind]); };
    auto room_of = [&](const uint32_t *room) {
        int64_t sum = 0;
        for (int64_t kind = 0; kind < kinds; kind++) {
            sum += shared(kind, room[kind]);
        }
        return sum;
    };
    auto need_of = [&](int64_t i) {
        int64_t sum = 0;
        for (int64_t kind = 0; kind < kinds; kind++) {
            sum += shared(kind, sizes.of(kind, i));
        }
        return sum;
    };
    struct Links { // the neighbours of a row in its list
        uint32_t before, after;
    };
    std::vector<uint32_t> heads(most + 1, NONE);
    std::vector<Links> links;
    RoomTree tree(kinds, capacity);
    NumberSet lists(most);
    for (int64_t i = 0; i < sizes.count; i++) {
        const auto count = static_cast<uint32_t>(links.size());
        uint32_t found = NONE, left = 0;
        int tries = kinds == 1 ? 1 : FIT_TRIES;
        for (int64_t at = lists.next(kinds == 1 ? sizes.of(0, i) : need_of(i)); at >= 0 && found == NONE && tries > 0;
             at = lists.next(at + 1)) {
            for (uint32_t row = heads[at]; row != NONE && tries-- > 0; row = links[row].after) {
                if (kinds == 1 || sizes.fit(i, tree.room(row))) {
                    found = row;
                    left = static_cast<uint32_t>(at);
                    break;
                }
            }
        }
        if (found == NONE && kinds > 1) {
            const int64_t row = tree.first(sizes, i, count);
            if (row < count) {
                found = static_cast<uint32_t>(row);
                left = static_cast<uint32_t>(room_of(tree.room(row)));
            }
        }
        if (found == NONE) {
            found = count;
            left = capacity[0];
            links.push_back({NONE, NONE});
        } else {
            const Links &own = links[found];
            (own.before == NONE ? heads[left] : links[own.before].after) = own.after;
            if (own.after != NONE) {
                links[own.after].before = own.before;
            }
            if (heads[left] == NONE) {
                lists.remove(left);
            }
        }
        if (kinds > 1) {
            tree.take(sizes, i, found);
            left = static_cast<uint32_t>(room_of(tree.room(found)));
        } else {
            left -= sizes.of(0, i);
        }
        links[found] = {NONE, heads[left]};
        if (heads[left] == NONE) {
            lists.add(left);
        } else {
            links[heads[left]].before = found;
        }
        heads[left] = found;
        rows[i] = found;
    }
    return static_cast<int64_t>(links.size());
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

// Digit by digit from the lowest on, as few as have them all.
void order(const uint32_t *keys, int64_t count, int64_t *places) {
    constexpr int MOST_BITS = 11;
    const uint32_t most = count ? *std::max_element(keys, keys + count) : 0;
    const int bits = most ? 32 - __builtin_clz(most) : 1, passes = (bits + MOST_BITS - 1) / MOST_BITS,
              width = (bits + passes - 1) / passes;
    const uint32_t mask = (1U << width) - 1;
    // A key and its place: they move together.
    using Pairs = std::unique_ptr<uint64_t[]>;
    Pairs from, to;
    std::vector<int64_t> firsts(INT64_C(1) << width);
    for (int pass = 0; pass < passes; pass++) {
        const int shift = pass * width;
        auto pair_of = [&](int64_t i) { return pass ? from[i] : keys[i] | static_cast<uint64_t>(i) << 32; };
        auto digit_of = [&](uint64_t pair) { return static_cast<uint32_t>(pair) >> shift & mask; };
        std::fill(firsts.begin(), firsts.end(), 0);
        for (int64_t i = 0; i < count; i++) {
            firsts[keys[i] >> shift & mask]++;
        }
        int64_t sum = 0;
        for (auto &each : firsts) {
            sum += std::exchange(each, sum);
        }
        if (pass + 1 == passes) {
            for (int64_t i = 0; i < count; i++) {
                const uint64_t pair = pair_of(i);
                places[firsts[digit_of(pair)]++] = static_cast<int64_t>(pair >> 32);
            }
        } else {
            if (!to) {
                to.reset(new uint64_t[count]);
            }
            for (int64_t i = 0; i < count; i++) {
                const uint64_t pair = pair_of(i);
                to[firsts[digit_of(pair)]++] = pair;
            }
            std::swap(from, to);
        }
    }
}

} // namespace

// (sizes, capacity, rows, fit): see `fit_rows` in `__init__.py`.
PyObject *fit_rows(PyObject *, PyObject *args) {
    using Words = Numbers<uint32_t>;
    Words sizes, capacity, rows;
    int fit;
    if (!PyArg_ParseTuple(args, "O&O&O&i", Words::read, &sizes, Words::read, &capacity, Words::write, &rows, &fit)) {
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
PyObject *trade_rows(PyObject *, PyObject *args) {
    using Words = Numbers<uint32_t>;
    Words sizes, rows, words;
    Numbers<int64_t> room;
    int is_sum;
    long long window;
    if (!PyArg_ParseTuple(args, "O&O&O&pLO&", Words::read, &sizes, Words::write, &rows, room.write, &room, &is_sum,
                          &window, Words::read, &words)) {
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

// (keys, places): see `order_keys` in `__init__.py`.
PyObject *order_keys(PyObject *, PyObject *args) {
    Numbers<uint32_t> keys;
    Numbers<int64_t> places;
    if (!PyArg_ParseTuple(args, "O&O&", keys.read, &keys, places.write, &places)) {
        return nullptr;
    }
    if (keys.count() != places.count() || keys.count() > std::numeric_limits<uint32_t>::max()) {
        PyErr_SetString(PyExc_ValueError, "there is not one place for each key");
        return nullptr;
    }
    without_gil([&] { order(keys.data(), keys.count(), places.data()); });
    Py_RETURN_NONE;
}

} // namespace penstock
