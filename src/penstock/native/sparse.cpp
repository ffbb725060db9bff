// Rows of a sparse matrix: a row is a span of column numbers and a span of values, which are scattered over zeros.
//
// Column numbers come from files, so each is checked before it is used, in the moment in which it is used.
#include "core.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock {

Sparse::~Sparse() {
    for (Vector *each : {&indices, &values}) {
        if (each->file != nullptr) {
            each->file->release();
        }
    }
}

namespace {

// Numbers that are looked at together. The parts of the scratch memory that hold them follow each other.
constexpr int64_t BLOCK = 1024;
constexpr int64_t COLUMNS_AT = 0, INDICES_AT = COLUMNS_AT + 8 * BLOCK, VALUES_AT = INDICES_AT + 16 * BLOCK,
                  CONVERTED_AT = VALUES_AT + 16 * BLOCK;
static_assert(CONVERTED_AT + 16 * BLOCK <= SCRATCH_NBYTES, "the parts fit");

constexpr uint8_t MARK = 0xFF;

template <int WIDTH> void scatter(const int64_t *columns, const uint8_t *values, int64_t count, uint8_t *row) {
    for (int64_t i = 0; i < count; i++) {
        std::memcpy(row + columns[i] * WIDTH, values + i * WIDTH, WIDTH);
    }
}

class Scattering {
  public:
    Scattering(const Task &task, int64_t begin, int64_t end, uint8_t *scratch, Failure *failure)
        : task_(task), sparse_(*task.source->sparse), begin_(begin), end_(end), scratch_(scratch), failure_(failure) {}

    static void run(void *self) { static_cast<Scattering *>(self)->rows(); }
    bool is_right() const { return is_right_; }
    int64_t row() const { return row_; }

  private:
    void rows() {
        for (int64_t step = begin_; step < end_ && is_right_; step++) {
            row_ = task_.rows[step];
            uint8_t *out = task_.out + (task_.out_rows ? task_.out_rows[step] : step) * task_.out_stride;
            std::memset(out, 0, task_.out_nbytes);
            bool is_increasing = true;
            is_right_ = is_right_ && write(out, &is_increasing);
            if (is_right_ && !is_increasing) { // a column may come twice, and neither value would be right
                std::memset(out, 0, task_.out_nbytes);
                is_right_ = mark(out);
                std::memset(out, 0, task_.out_nbytes);
                is_right_ = is_right_ && write(out, &is_increasing);
            }
        }
    }

    bool write(uint8_t *out, bool *is_increasing) {
        const Conversion &conversion = task_.conversion;
        const int64_t width = conversion.is_plain ? sparse_.values.item_nbytes : conversion.out_nbytes;
        int64_t last = -1;
        return blocks([&](const int64_t *columns, int64_t at, int64_t count) {
            for (int64_t i = 0; i < count; i++) {
                *is_increasing = *is_increasing && columns[i] > last;
                last = columns[i];
            }
            const uint8_t *values = fetch(sparse_.values, at, count, scratch_ + VALUES_AT);
            if (values != nullptr && !conversion.is_plain) {
                convert(conversion, values, scratch_ + CONVERTED_AT, count);
                values = scratch_ + CONVERTED_AT;
            }
            if (values != nullptr) {
                with_word(width, [&](auto bytes) { scatter<bytes>(columns, values, count, out); });
            }
            return values != nullptr;
        });
    }

    // Fails for a column that comes twice. The row is zeros before.
    bool mark(uint8_t *out) {
        const int64_t width = task_.out_nbytes / sparse_.column_count;
        return blocks([&](const int64_t *columns, int64_t, int64_t count) {
            for (int64_t i = 0; i < count; i++) {
                uint8_t *place = out + columns[i] * width;
                if (*place == MARK) {
                    return fail(EEXIST, sparse_.column_count, columns[i]);
                }
                *place = MARK;
            }
            return true;
        });
    }

    // Calls `use(columns, first number, count)` for the numbers of the row, in order, until one returns false. Blocks
    // end where a piece of one of the vectors does. All columns are inside of the row.
    template <class Use> bool blocks(Use use) {
        const Conversion &conversion = sparse_.to_columns;
        auto *columns = reinterpret_cast<int64_t *>(scratch_ + COLUMNS_AT);
        const int64_t end = sparse_.starts[row_ + 1];
        for (int64_t at = sparse_.starts[row_]; at < end;) {
            int64_t count = std::min({BLOCK, end - at, sparse_.indices.left(at), sparse_.values.left(at)});
            const uint8_t *indices = fetch(sparse_.indices, at, count, scratch_ + INDICES_AT);
            if (indices == nullptr) {
                return false;
            }
            if (conversion.is_plain) { // copied too: what was checked must be what is used
                std::memcpy(columns, indices, count * 8);
            } else {
                convert(conversion, indices, scratch_ + COLUMNS_AT, count);
            }
            uint64_t greatest = 0; // a negative number is a great unsigned one
            for (int64_t i = 0; i < count; i++) {
                greatest = std::max(greatest, static_cast<uint64_t>(columns[i]));
            }
            if (greatest >= static_cast<uint64_t>(sparse_.column_count)) {
                return fail(EDOM, sparse_.column_count, static_cast<int64_t>(greatest));
            }
            if (!use(columns, at, count)) {
                return false;
            }
            at += count;
        }
        return true;
    }

    // Returns numbers of one piece; null if they cannot be read.
    const uint8_t *fetch(const Vector &vector, int64_t at, int64_t count, uint8_t *scratch) {
        const int64_t place = vector.place(at), nbytes = count * vector.item_nbytes;
        if (vector.base != nullptr) {
            return vector.base + place;
        }
        int error = 0;
        const int64_t got = vector.file->read(place, scratch, nbytes, &error);
        if (got < nbytes) {
            fail(error, nbytes, got);
        }
        return got < nbytes ? nullptr : scratch;
    }

    bool fail(int error, int64_t expected, int64_t found) {
        *failure_ = {row_, error, expected, found};
        is_right_ = false;
        return false;
    }

    const Task &task_;
    const Sparse &sparse_;
    const int64_t begin_, end_;
    uint8_t *scratch_;
    Failure *failure_;
    // Read after a fault, which leaves what the compiler keeps in registers undefined.
    volatile int64_t row_ = -1;
    volatile bool is_right_ = true;
};

// Whether the files are still long enough, after a copy; see `has_all` in copy.cpp.
bool have_all(const Sparse &sparse, int64_t row, Failure *failure) {
    for (const Vector *vector : {&sparse.indices, &sparse.values}) {
        if (vector->file != nullptr) {
            int64_t size = vector->file->named_nbytes();
            if (size < vector->high) {
                *failure = {row, size < 0 ? errno : 0, vector->high, std::max<int64_t>(size, 0)};
                return false;
            }
        }
    }
    return true;
}

} // namespace

bool copy_sparse(const Task &task, int64_t begin, int64_t end, uint8_t *scratch, Failure *failure) {
    const Sparse &sparse = *task.source->sparse;
    for (const Vector *vector : {&sparse.indices, &sparse.values}) {
        if (vector->give_back_nbytes > 0 && !task.in_order(begin, end)) {
            vector->file->expect_random();
        }
    }
    Scattering scattering(task, begin, end, scratch, failure);
    const void *address = nullptr;
    if (!run_guarded(Scattering::run, &scattering, &address)) {
        const auto *fault = static_cast<const uint8_t *>(address);
        if (fault >= task.out_low && fault < task.out_high) {
            *failure = {-1, ENOMEM, 0, 0};
        } else if (have_all(sparse, scattering.row(), failure)) {
            *failure = {scattering.row(), EIO, 0, 0};
        }
        return false;
    }
    // A file that became shorter gives zeros, so look at it before a column is called wrong.
    if (!have_all(sparse, task.rows[begin], failure) || !scattering.is_right()) {
        return false;
    }
    for (const Vector *vector : {&sparse.indices, &sparse.values}) {
        if (vector->give_back_nbytes > 0) {
            int64_t count = 0;
            for (int64_t step = begin; step < end; step++) {
                count += sparse.starts[task.rows[step] + 1] - sparse.starts[task.rows[step]];
            }
            vector->file->delivered(std::max<int64_t>(count * vector->item_nbytes, 1), vector->give_back_nbytes);
        }
    }
    return true;
}

std::vector<Range> ranges_of(const Sparse &sparse, const Vector &vector, const int64_t *rows, int64_t count) {
    std::vector<Range> ranges;
    for (int64_t i = 0; i < count; i++) {
        const int64_t end = sparse.starts[rows[i] + 1];
        for (int64_t at = sparse.starts[rows[i]]; at < end;) {
            int64_t n = std::min(end - at, vector.left(at)), place = vector.place(at);
            ranges.push_back({place, place + n * vector.item_nbytes});
            at += n;
        }
    }
    return ranges;
}

} // namespace penstock
