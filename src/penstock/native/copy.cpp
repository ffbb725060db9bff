// Executes the steps of a task: from memory, from a mapping, or with `pread`.
#include "core.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace penstock {

int64_t read_at(int fd, int64_t offset, uint8_t *to, int64_t nbytes, int *error) {
    int64_t total = 0;
    while (total < nbytes) {
        ssize_t count = pread(fd, to + total, nbytes - total, offset + total);
        if (count > 0) {
            total += count;
        } else if (count == 0) {
            break;
        } else if (errno != EINTR) {
            *error = errno;
            break;
        }
    }
    return total;
}

namespace {

// Bytes of merged neighbours in one copy. More saves nothing, and a failure would be found late.
constexpr int64_t MERGED_NBYTES = 1 << 20;
// A run of a file is read together with the gap behind it if the gap is at most this many times its size, or if both
// are at most that many bytes: a system call takes as long as copying some kilobytes.
constexpr int64_t GAP_RATIO = 8, GAP_NBYTES = 2 << 10;
// Rows from memory are fetched into the cache this many rows ahead, up to so many bytes of each.
constexpr int64_t FETCH_ROWS = 6, FETCH_NBYTES = 512;
// Bytes between two rows that are announced as one range: a seek costs more than reading them.
constexpr int64_t ANNOUNCE_GAP_NBYTES = 16 << 10;
// The kernel cuts one announcement to the device's readahead, by default this much, and forgets the rest.
constexpr int64_t ANNOUNCE_NBYTES = 128 << 10;
// Files of one call that are looked at first.
constexpr size_t PROBED_COUNT = 16;
// Announcements of one call. The pages of more would be gone before they are read.
constexpr int64_t MAX_ANNOUNCED_NBYTES = 1 << 30;

// Bytes that go to one place: a row, a part of one, or several rows that are neighbours in both places.
struct Span {
    int64_t row, start, nbytes, steps;
    uint8_t *out;
};

Span span_at(const Task &task, int64_t step, int64_t end) {
    const Source &source = *task.source;
    const Layout &layout = source.layout;
    if (task.steps_per_row > 1) {
        int64_t index = step / task.steps_per_row, skipped = step % task.steps_per_row * task.step_nbytes;
        int64_t row = task.rows[index], place = task.out_rows ? task.out_rows[index] : index;
        return {row, source.start(row) + skipped, std::min(task.step_nbytes, layout.nbytes - skipped), 1,
                task.out + place * task.out_stride + task.conversion.converted(skipped)};
    }
    int64_t row = task.rows[step], place = task.out_rows ? task.out_rows[step] : step;
    Span span = {row, source.start(row), layout.nbytes, 1, task.out + place * task.out_stride};
    if (layout.is_contiguous() && layout.stride == layout.nbytes && task.out_stride == task.out_nbytes) {
        int64_t most = std::min(end - step, std::max<int64_t>(1, MERGED_NBYTES / std::max<int64_t>(1, layout.nbytes)));
        int64_t n = 1;
        while (n < most && task.rows[step + n] == row + n && (!task.out_rows || task.out_rows[step + n] == place + n)) {
            n++;
        }
        span.steps = n;
        span.nbytes *= n;
    }
    return span;
}

void move(const Conversion &conversion, const uint8_t *from, uint8_t *to, int64_t nbytes) {
    if (conversion.is_plain) {
        std::memmove(to, from, nbytes); // a caller may copy an array into itself
    } else {
        convert(conversion, from, to, nbytes / conversion.source_nbytes);
    }
}

template <int WIDTH> void pack_runs(const uint8_t *from, int64_t stride, int64_t count, uint8_t *to) {
    for (int64_t i = 0; i < count; i++) {
        std::memcpy(to + i * WIDTH, from + i * stride, WIDTH);
    }
}

// Copies `count` runs of `nbytes`, `stride` apart, to consecutive bytes.
void pack(const uint8_t *from, int64_t stride, int64_t count, int64_t nbytes, uint8_t *to) {
    if (with_word(nbytes, [&](auto width) { pack_runs<width>(from, stride, count, to); })) {
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        std::memmove(to + i * nbytes, from + i * stride, nbytes);
    }
}

// Calls `line(offset)` for each innermost line of an element, in order, until one returns false.
template <class Line> bool for_each_line(const Layout &layout, Line line) {
    int64_t index[MAX_DIMS] = {}, offset = 0;
    int outer = layout.dim_count - 1;
    for (;;) {
        if (!line(offset)) {
            return false;
        }
        int axis = outer - 1;
        for (; axis >= 0; axis--) {
            offset += layout.dims[axis].stride;
            if (++index[axis] < layout.dims[axis].count) {
                break;
            }
            offset -= layout.dims[axis].stride * layout.dims[axis].count;
            index[axis] = 0;
        }
        if (axis < 0) {
            return true;
        }
    }
}

// Copies `count` runs of a strided element from memory; returns the end of what it wrote.
uint8_t *pack_converted(const Task &task, const uint8_t *from, int64_t stride, int64_t count, uint8_t *to,
                        uint8_t *scratch) {
    const Conversion &conversion = task.conversion;
    int64_t run = task.source->layout.run_nbytes;
    if (conversion.is_plain) {
        pack(from, stride, count, run, to);
        return to + count * run;
    }
    if (run >= 1024) {
        for (int64_t i = 0; i < count; i++) {
            convert(conversion, from + i * stride, to + i * conversion.converted(run), run / conversion.source_nbytes);
        }
        return to + count * conversion.converted(run);
    }
    int64_t block = SCRATCH_NBYTES / run;
    for (int64_t i = 0; i < count; i += block) {
        int64_t n = std::min(block, count - i);
        pack(from + i * stride, stride, n, run, scratch);
        convert(conversion, scratch, to, n * run / conversion.source_nbytes);
        to += conversion.converted(n * run);
    }
    return to;
}

void gather(const Task &task, const uint8_t *from, uint8_t *to, uint8_t *scratch) {
    const Layout &layout = task.source->layout;
    const Dim &inner = layout.dims[layout.dim_count - 1];
    for_each_line(layout, [&](int64_t offset) {
        to = pack_converted(task, from + offset, inner.stride, inner.count, to, scratch);
        return true;
    });
}

// ------------------------------------------------------------------------------------ from memory and mappings

// Rows of so few bytes that to name each one, for a fault, takes longer than to copy it. Columns of a table are such.
// Converted rows must be neighbours.
bool is_narrow(const Task &task) {
    const Layout &layout = task.source->layout;
    const bool are_neighbours = task.out_rows == nullptr && task.out_stride == task.out_nbytes;
    return layout.is_contiguous() && (task.conversion.is_plain || are_neighbours) &&
           with_word(layout.nbytes, [](auto) {});
}

// Copies rows of WIDTH bytes to `to` and on, or to the rows `places` from there.
template <int WIDTH>
void pack_rows(const uint8_t *from, int64_t stride, const int64_t *rows, int64_t count, uint8_t *to, int64_t out_stride,
               const int64_t *places) {
    if (places != nullptr) {
        for (int64_t i = 0; i < count; i++) {
            std::memcpy(to + places[i] * out_stride, from + rows[i] * stride, WIDTH);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            std::memcpy(to + i * out_stride, from + rows[i] * stride, WIDTH);
        }
    }
}

void pack_rows(const Layout &layout, const uint8_t *from, const int64_t *rows, int64_t count, uint8_t *to,
               int64_t out_stride, const int64_t *places) {
    with_word(layout.nbytes,
              [&](auto width) { pack_rows<width>(from, layout.stride, rows, count, to, out_stride, places); });
}

void copy_narrow(const Task &task, int64_t begin, int64_t end, uint8_t *scratch) {
    const Source &source = *task.source;
    const uint8_t *from = source.base + source.offset;
    const int64_t *rows = task.rows.get();
    const Conversion &conversion = task.conversion;
    if (conversion.is_plain) {
        const int64_t *places = task.out_rows ? task.out_rows.get() + begin : nullptr;
        uint8_t *to = task.out + (places != nullptr ? 0 : begin * task.out_stride);
        pack_rows(source.layout, from, rows + begin, end - begin, to, task.out_stride, places);
        return;
    }
    const int64_t nbytes = source.layout.nbytes, block = SCRATCH_NBYTES / nbytes;
    for (int64_t step = begin; step < end; step += block) {
        int64_t count = std::min(block, end - step);
        pack_rows(source.layout, from, rows + step, count, scratch, nbytes, nullptr);
        convert(conversion, scratch, task.out + step * task.out_stride, count * nbytes / conversion.source_nbytes);
    }
}

struct Copying {
    const Task &task;
    int64_t begin, end;
    uint8_t *scratch;
    bool is_narrow;
    // Read after a fault, which leaves what the compiler keeps in registers undefined.
    volatile int64_t row, start, nbytes, span_steps;
};

void copy_spans(void *context) {
    Copying &copying = *static_cast<Copying *>(context);
    const Task &task = copying.task;
    if (copying.is_narrow) {
        return copy_narrow(task, copying.begin, copying.end, copying.scratch);
    }
    const Source &source = *task.source;
    const int64_t ahead_nbytes = std::min(FETCH_NBYTES, source.layout.nbytes);
    const bool fetches = task.steps_per_row == 1 && source.layout.is_contiguous() && ahead_nbytes > 0;
    for (int64_t step = copying.begin; step < copying.end;) {
        Span span = span_at(task, step, copying.end);
        copying.row = span.row;
        copying.start = span.start;
        copying.nbytes = span.nbytes;
        copying.span_steps = span.steps;
        const uint8_t *from = source.base + span.start;
        if (fetches && step + FETCH_ROWS < copying.end) {
            const uint8_t *ahead = source.base + source.start(task.rows[step + FETCH_ROWS]);
            for (int64_t i = 0; i < ahead_nbytes; i += 64) {
                __builtin_prefetch(ahead + i);
            }
        }
        if (source.layout.is_contiguous()) {
            move(task.conversion, from, span.out, span.nbytes);
        } else {
            gather(task, from, span.out, copying.scratch);
        }
        step += span.steps;
    }
}

// The failure of an element of a file that has `size` bytes now.
void fail_in_file(const Source &source, int64_t row, int64_t size, Failure *failure) {
    const Layout &layout = source.layout;
    int64_t low = source.start(row) + layout.low;
    int64_t nbytes = layout.high - layout.low;
    failure->row = row;
    failure->expected_nbytes = nbytes;
    failure->found_nbytes = std::clamp<int64_t>(size - low, 0, nbytes);
    failure->error = failure->found_nbytes < nbytes ? 0 : EIO;
}

// Fails for the first of these elements that lies behind the end of the file; returns false if none does.
bool fail_first(const Task &task, int64_t begin, int64_t end, int64_t size, Failure *failure) {
    const Source &source = *task.source;
    for (int64_t step = begin; step < end; step++) {
        int64_t row = task.rows[step / task.steps_per_row];
        if (source.start(row) + source.layout.high > size) {
            fail_in_file(source, row, size, failure);
            return true;
        }
    }
    return false;
}

// Whether the file is still long enough, after a copy. While a file becomes shorter, the kernel gives zeros for what
// lies behind the new end in the last page (or in a larger piece of the cache), to mappings and to `pread`.
bool has_all(const Task &task, int64_t begin, int64_t end, Failure *failure) {
    int64_t size = task.source->file->named_nbytes();
    if (size < 0) {
        *failure = {task.rows[begin / task.steps_per_row], errno, task.source->layout.nbytes, 0};
        return false;
    }
    return size >= task.high || !fail_first(task, begin, end, size, failure);
}

bool copy_memory(const Task &task, int64_t begin, int64_t end, uint8_t *scratch, Failure *failure) {
    const Source &source = *task.source;
    if (source.give_back_nbytes > 0 && !task.in_order(begin, end)) {
        source.file->expect_random();
    }
    Copying copying = {task, begin, end, scratch, is_narrow(task), -1, 0, 0, 1};
    const void *address = nullptr;
    bool is_right = run_guarded(copy_spans, &copying, &address);
    if (!is_right && copying.is_narrow) { // again, to learn at which row
        copying.is_narrow = false;
        is_right = run_guarded(copy_spans, &copying, &address);
    }
    if (!is_right) {
        const uint8_t *fault = static_cast<const uint8_t *>(address), *from = source.base + copying.start;
        int64_t row = copying.row;
        if (fault >= task.out_low && fault < task.out_high) {
            *failure = {-1, ENOMEM, 0, 0};
            return false;
        }
        if (source.access == Access::MAPPED && fail_first(task, begin, end, source.file->nbytes(), failure)) {
            return false;
        }
        if (copying.span_steps > 1 && fault >= from && fault < from + copying.nbytes) {
            row += (fault - from) / source.layout.nbytes;
        }
        *failure = {row, source.access == Access::MAPPED ? EIO : EFAULT, source.layout.nbytes, 0};
        return false;
    }
    if (source.access != Access::MAPPED) {
        return true;
    }
    if (!has_all(task, begin, end, failure)) {
        return false;
    }
    if (source.give_back_nbytes > 0) {
        source.file->delivered((end - begin) * std::max<int64_t>(task.out_nbytes / task.steps_per_row, 1),
                               source.give_back_nbytes);
    }
    return true;
}

// ------------------------------------------------------------------------------------ with pread

class Reading {
  public:
    Reading(const Task &task, uint8_t *scratch, Failure *failure)
        : task_(task), source_(*task.source), scratch_(scratch), failure_(failure) {}

    bool span(const Span &span) {
        span_ = &span;
        if (source_.layout.is_contiguous()) {
            return read(span.start, span.nbytes, span.out);
        }
        return strided(span.start, span.out);
    }

  private:
    bool fail(int64_t offset, int error) {
        const Layout &layout = source_.layout;
        int64_t row = span_->row;
        if (span_->steps > 1) {
            row += (offset - span_->start) / layout.nbytes;
        }
        int64_t size = source_.file->nbytes();
        fail_in_file(source_, row, size, failure_);
        failure_->error = error;
        return false;
    }

    // Reads and converts contiguous bytes.
    bool read(int64_t offset, int64_t nbytes, uint8_t *to) {
        const Conversion &conversion = task_.conversion;
        int error = 0;
        if (conversion.is_plain) {
            int64_t count = source_.file->read(offset, to, nbytes, &error);
            return count == nbytes || fail(offset + count, error);
        }
        for (int64_t done = 0; done < nbytes;) { // 64 KiB are a multiple of every number's size
            int64_t n = std::min(SCRATCH_NBYTES, nbytes - done);
            int64_t count = source_.file->read(offset + done, scratch_, n, &error);
            if (count != n) {
                return fail(offset + done + count, error);
            }
            convert(conversion, scratch_, to + conversion.converted(done), n / conversion.source_nbytes);
            done += n;
        }
        return true;
    }

    bool strided(int64_t start, uint8_t *to) {
        const Layout &layout = source_.layout;
        const Dim &inner = layout.dims[layout.dim_count - 1];
        int64_t run = layout.run_nbytes, distance = std::abs(inner.stride);
        int64_t together = 1; // runs that are read with their gaps
        if (run <= SCRATCH_NBYTES && (distance <= GAP_RATIO * run || distance <= GAP_NBYTES)) {
            together = distance > 0 ? 1 + (SCRATCH_NBYTES - run) / distance : inner.count;
        }
        return for_each_line(layout, [&](int64_t line) {
            for (int64_t i = 0; i < inner.count; i += together) {
                int64_t n = std::min(together, inner.count - i), offset = start + line + i * inner.stride;
                if (n == 1) {
                    if (!read(offset, run, to)) {
                        return false;
                    }
                    to += task_.conversion.converted(run);
                    continue;
                }
                int64_t low = offset + std::min<int64_t>(0, (n - 1) * inner.stride), nbytes = (n - 1) * distance + run;
                int error = 0;
                int64_t count = source_.file->read(low, scratch_, nbytes, &error);
                if (count != nbytes) {
                    return fail(low + count, error);
                }
                to = pack_converted(task_, scratch_ + (offset - low), inner.stride, n, to, scratch_ + SCRATCH_NBYTES);
            }
            return true;
        });
    }

    const Task &task_;
    const Source &source_;
    uint8_t *scratch_;
    Failure *failure_;
    const Span *span_ = nullptr;
};

bool copy_reading(const Task &task, int64_t begin, int64_t end, uint8_t *scratch, Failure *failure) {
    Reading reading(task, scratch, failure);
    for (int64_t step = begin; step < end;) {
        Span span = span_at(task, step, end);
        if (!reading.span(span)) {
            return false;
        }
        step += span.steps;
    }
    return has_all(task, begin, end, failure);
}

bool is_cached(int fd, int64_t offset) {
#ifdef RWF_NOWAIT
    char byte;
    struct iovec vector = {&byte, 1};
    return preadv2(fd, &vector, 1, offset, RWF_NOWAIT) >= 0;
#else
    (void)fd, (void)offset;
    return false;
#endif
}

} // namespace

bool make_layout(int64_t count, int64_t stride, int64_t item_nbytes, int ndim, const int64_t *shape,
                 const int64_t *strides, Layout *layout) {
    layout->count = count;
    layout->stride = stride;
    layout->item_nbytes = item_nbytes;
    bool is_empty = item_nbytes == 0;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            return false;
        }
        is_empty |= shape[i] == 0;
    }
    if (is_empty) { // the other sizes and the strides mean nothing, and may be anything
        return true;
    }
    __int128 nbytes = item_nbytes, low = 0, high = item_nbytes;
    int dim_count = 0;
    Dim dims[MAX_DIMS]; // innermost first
    int64_t run = item_nbytes;
    for (int i = ndim - 1; i >= 0; i--) {
        nbytes *= shape[i];
        if (nbytes > INT64_MAX / 4) {
            return false;
        }
        if (shape[i] == 1) {
            continue;
        }
        __int128 reach = static_cast<__int128>(shape[i] - 1) * strides[i];
        (reach < 0 ? low : high) += reach;
        if (dim_count == 0 && strides[i] == run) {
            run *= shape[i];
        } else if (dim_count > 0 &&
                   static_cast<__int128>(dims[dim_count - 1].count) * dims[dim_count - 1].stride == strides[i]) {
            dims[dim_count - 1].count *= shape[i];
        } else {
            dims[dim_count++] = {shape[i], strides[i]};
        }
    }
    if (low < -(INT64_MAX / 4) || high > INT64_MAX / 4) {
        return false;
    }
    layout->nbytes = static_cast<int64_t>(nbytes);
    layout->run_nbytes = run;
    layout->low = static_cast<int64_t>(low);
    layout->high = static_cast<int64_t>(high);
    layout->dim_count = dim_count;
    for (int i = 0; i < dim_count; i++) {
        layout->dims[i] = dims[dim_count - 1 - i];
    }
    return true;
}

bool copy_steps(const Task &task, int64_t begin, int64_t end, uint8_t *scratch, Failure *failure) {
    if (task.source->sparse) {
        return copy_sparse(task, begin, end, scratch, failure);
    }
    if (task.source->access == Access::READ) {
        return copy_reading(task, begin, end, scratch, failure);
    }
    return copy_memory(task, begin, end, scratch, failure);
}

namespace {

// Announces parts of a file, and returns true, if the middle of the first and of the middle one are not in memory.
bool announce_ranges(const File &file, std::vector<Range> ranges) {
#ifdef POSIX_FADV_WILLNEED
    const Descriptor descriptor(file);
    const int fd = descriptor.fd();
    auto is_there = [&](const Range &range) { return is_cached(fd, range.low + (range.high - range.low) / 2); };
    if (fd < 0 || ranges.empty() || (is_there(ranges[0]) && is_there(ranges[ranges.size() / 2]))) {
        return false; // announcing cached rows costs about what reading them does
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.low < b.low; });
    const int64_t size = file.nbytes();
    int64_t left = MAX_ANNOUNCED_NBYTES;
    for (size_t i = 0; i < ranges.size() && left > 0;) {
        int64_t low = ranges[i].low, high = std::min(size, ranges[i].high);
        for (i++; i < ranges.size() && ranges[i].low <= high + ANNOUNCE_GAP_NBYTES; i++) {
            high = std::max(high, std::min(size, ranges[i].high));
        }
        for (; low < high && left > 0; low += ANNOUNCE_NBYTES, left -= ANNOUNCE_NBYTES) {
            posix_fadvise(fd, low, std::min(ANNOUNCE_NBYTES, high - low), POSIX_FADV_WILLNEED);
        }
    }
#else
    (void)file, (void)ranges;
#endif
    return true;
}

bool announce_rows(const Source &source, const int64_t *rows, int64_t count) {
    bool is_needed = false;
    if (source.sparse) {
        for (const Vector *vector : {&source.sparse->indices, &source.sparse->values}) {
            if (vector->file != nullptr) {
                is_needed |= announce_ranges(*vector->file, ranges_of(*source.sparse, *vector, rows, count));
            }
        }
        return is_needed;
    }
    std::vector<Range> ranges(count);
    for (int64_t i = 0; i < count; i++) {
        ranges[i] = {source.start(rows[i]) + source.layout.low, source.start(rows[i]) + source.layout.high};
    }
    return announce_ranges(*source.file, std::move(ranges));
}

} // namespace

void announce(const std::vector<Announcement> &announcements) {
    const size_t step = announcements.size() / PROBED_COUNT + 1;
    bool is_needed = false;
    for (size_t turn = 0; turn < step && (turn == 0 || is_needed); turn++) {
        for (size_t i = turn; i < announcements.size(); i += step) {
            const Announcement &each = announcements[i];
            is_needed |= announce_rows(*each.source, each.rows.get(), each.count);
        }
    }
}

} // namespace penstock
