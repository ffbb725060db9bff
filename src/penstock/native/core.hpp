// What the parts of the copy engine share. Nothing here knows Python.
//
// Which thread touches what: a `Job` and its `Task`s are made by the submitting thread and do not change afterwards,
// except for the fields that `Engine::mutex_` guards. A `Source` never changes. A `File` changes only in its mapping,
// which is made once under a lock, and in one counter.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <string>
#include <sys/stat.h>
#include <sys/types.h>
#include <type_traits>
#include <vector>

namespace penstock {

// ---------------------------------------------------------------------------------------------- conversions

// Numeric types, in the order of `_KINDS` in `_dtypes.py`.
enum Kind : uint8_t { B1, I1, I2, I4, I8, U1, U2, U4, U8, F2, F4, F8, KIND_COUNT };

using ConvertFunction = void (*)(const uint8_t *source, uint8_t *out, int64_t count);

// `astype` for one pair of types. `code` is 0 for a plain copy of bytes.
struct Conversion {
    ConvertFunction function = nullptr; // null if only the byte order changes
    int32_t source_nbytes = 1, out_nbytes = 1;
    int32_t source_swap = 0; // bytes of the source's numbers to reverse; 0: native order
    bool is_plain = true;

    int64_t converted(int64_t nbytes) const { return nbytes / source_nbytes * out_nbytes; }
};

// Returns false for a code that is no conversion.
bool find_conversion(long code, Conversion *found);
void convert(const Conversion &conversion, const uint8_t *source, uint8_t *out, int64_t count);

// ---------------------------------------------------------------------------------------------- sources

constexpr int MAX_DIMS = 64; // as NumPy and the buffer protocol

struct Dim {
    int64_t count, stride;
};

// Where the bytes of an element lie: `run_nbytes` that follow one another, repeated along `dims` (outermost first).
struct Layout {
    int64_t count = 0;  // elements
    int64_t stride = 0; // from one element to the next
    int64_t nbytes = 0; // of one element, packed
    int64_t item_nbytes = 1;
    int64_t run_nbytes = 0;    // equals `nbytes` for a contiguous element
    int64_t low = 0, high = 0; // the bytes of an element lie within [low, high) of its start
    int dim_count = 0;
    Dim dims[MAX_DIMS];

    bool is_contiguous() const { return dim_count == 0; }
};

// Joins axes that lie contiguously. Returns false if a size is negative, or overflows.
bool make_layout(int64_t count, int64_t stride, int64_t item_nbytes, int ndim, const int64_t *shape,
                 const int64_t *strides, Layout *layout);

// Reads bytes of a file. Returns how many: fewer than `nbytes` at the file's end, or with `*error` set.
int64_t read_at(int fd, int64_t offset, uint8_t *to, int64_t nbytes, int *error);

// A file, with one mapping that all sources in it use. The first `MOST_OPEN` files keep their descriptors. Others are
// opened by their names for each use. A page of them stays mapped, so that no other file gets their inode number.
class File {
  public:
    // Returns null and sets errno. `path` may be null: then `fd` is duplicated. Only files with places: no pipe.
    static File *open(const char *path, int fd);
    void acquire() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release();
    // The mapping's first byte, for at least `nbytes` of the file; null and errno if it cannot be mapped.
    const uint8_t *map(int64_t nbytes);
    // From now on, a page that is not in memory comes without its neighbours; the kernel reads up to megabytes around
    // it otherwise. For rows in random order of files that do not stay mapped: rows in order need the neighbours, and
    // in a file that fits in memory an epoch needs them, too (without them it took twice the time).
    void expect_random();
    // Counts bytes copied from the mapping; unmaps its pages (they stay cached) every `limit` bytes.
    void delivered(int64_t nbytes, int64_t limit);
    int64_t nbytes() const; // now; -1 and errno if the kernel does not say
    // As `nbytes`, for a file that still has a name: -1 and ESTALE if it was deleted, or replaced, since it was opened.
    int64_t named_nbytes() const;
    // As `read_at`.
    int64_t read(int64_t offset, uint8_t *to, int64_t nbytes, int *error) const;

  private:
    friend class Descriptor;
    File() = default;
    int64_t stat(bool needs_name) const;
    bool is(const struct stat &status) const { return status.st_dev == device_ && status.st_ino == inode_; }
    std::atomic<int64_t> references_{1};
    std::atomic<int64_t> delivered_{0};
    std::atomic<bool> is_random_{false};
    int fd_ = -1; // -1: it is opened for each use
    std::string path_;
    void *page_ = nullptr; // of a file without a descriptor
    bool has_name_ = true; // when it was opened; files in memory have none
    dev_t device_ = 0;
    ino_t inode_ = 0;
    std::mutex mutex_;
    uint8_t *mapping_ = nullptr;
    int64_t mapped_nbytes_ = 0;
};

// A descriptor of a file, for as long as it is used.
class Descriptor {
  public:
    explicit Descriptor(const File &file);
    Descriptor(const Descriptor &) = delete;
    ~Descriptor();
    // -1 and errno directly after it was made, if the file cannot be opened: ESTALE if another has its name.
    int fd() const { return fd_; }

  private:
    int fd_;
    const bool is_own_;
};

enum class Access : uint8_t { MEMORY, READ, MAPPED };

// Numbers in memory or in a file, in pieces of one length that may lie anywhere.
struct Vector {
    const uint8_t *base = nullptr; // number 0 in memory, or byte 0 of a mapped file; null to read the file
    File *file = nullptr;
    std::vector<int64_t> places; // the first byte of each piece
    int64_t piece_length = 1, item_nbytes = 1;
    int64_t high = 0;             // the end of the last byte in the file
    int64_t give_back_nbytes = 0; // see `Source`

    // The place of a number, and the numbers from there to the end of its piece.
    int64_t place(int64_t at) const { return places[at / piece_length] + at % piece_length * item_nbytes; }
    int64_t left(int64_t at) const { return piece_length - at % piece_length; }
};

// A matrix in rows: row `i` has `values` in the columns `indices`, both from number `starts[i]` up to `starts[i + 1]`.
struct Sparse {
    std::vector<int64_t> starts; // do not decrease, from 0 on
    Vector indices, values;
    Conversion to_columns; // of the column numbers, to int64
    int64_t column_count = 0;

    Sparse() = default;
    Sparse(const Sparse &) = delete;
    Sparse &operator=(const Sparse &) = delete;
    ~Sparse(); // releases the files
};

struct Source {
    Access access = Access::MEMORY;
    Layout layout;
    const uint8_t *base = nullptr; // MEMORY: element 0. MAPPED: byte 0 of the file
    File *file = nullptr;
    int64_t offset = 0;                   // of element 0 in the file
    int64_t give_back_nbytes = 0;         // MAPPED: 0 keeps the pages
    std::shared_ptr<const Sparse> sparse; // elements are rows of it, filled up with zeros

    Source() = default;
    Source(const Source &) = delete;
    Source &operator=(const Source &) = delete;
    ~Source(); // releases the file

    int64_t start(int64_t row) const { return offset + row * layout.stride; }
};

// ---------------------------------------------------------------------------------------------- copies

// `rows` of a source to rows of a destination, checked beforehand.
struct Task {
    const Source *source = nullptr;
    const void *owner = nullptr; // the caller's: what names elements in errors, of which the first has this number
    int64_t first = 0;
    std::shared_ptr<int64_t[]> rows, out_rows; // columns of a table share them; `out_rows` null: 0, 1, 2, ...
    int64_t count = 0;
    uint8_t *out = nullptr;
    int64_t out_stride = 0, out_nbytes = 0;
    const uint8_t *out_low = nullptr, *out_high = nullptr; // the bytes of all rows of the destination lie between
    int64_t high = 0;                                      // files: the greatest end of a row
    Conversion conversion;
    // Large contiguous rows are divided, so that threads share them: a step is a row or a part of one.
    int64_t steps_per_row = 1, step_nbytes = 0;

    int64_t steps() const { return count * steps_per_row; }
    // Whether the rows of these steps follow each other in the source.
    bool in_order(int64_t begin, int64_t end) const {
        const int64_t first = begin / steps_per_row, last = (end - 1) / steps_per_row;
        return rows[last] - rows[first] == last - first;
    }
};

struct Failure {
    int64_t row = -1; // element of the source; -1: the destination's memory
    int error = 0;    // errno, or 0 if the file ended early
    int64_t expected_nbytes = 0, found_nbytes = 0;
};

constexpr int64_t SCRATCH_NBYTES = 64 << 10;

// Calls `body(width)` with the width as a constant, if the compiler copies so many bytes at once; else returns false.
template <class Body> bool with_word(int64_t nbytes, Body body) {
    switch (nbytes) {
    case 1: body(std::integral_constant<int, 1>()); return true;
    case 2: body(std::integral_constant<int, 2>()); return true;
    case 4: body(std::integral_constant<int, 4>()); return true;
    case 8: body(std::integral_constant<int, 8>()); return true;
    case 16: body(std::integral_constant<int, 16>()); return true;
    default: return false;
    }
}

// Executes steps [begin, end). `scratch` has SCRATCH_NBYTES. Returns false and fills `failure` for the first element
// that cannot be read. Called on any thread; calls no Python and takes no lock.
bool copy_steps(const Task &task, int64_t begin, int64_t end, uint8_t *scratch, Failure *failure);
// The same for rows of a sparse matrix. `error` of a failure may be EDOM, for a column `found_nbytes` outside of
// `expected_nbytes` columns, and EEXIST for one that comes twice.
bool copy_sparse(const Task &task, int64_t begin, int64_t end, uint8_t *scratch, Failure *failure);
struct Range {
    int64_t low, high;
};
// The bytes of these rows in the file of a vector. Throws `bad_alloc`.
std::vector<Range> ranges_of(const Sparse &sparse, const Vector &vector, const int64_t *rows, int64_t count);

// Puts the handler of `run_guarded` in front of others. Each job does so before its copies.
void watch_faults();
// Runs `body(context)`. Returns false if the kernel could not supply a page meanwhile (SIGBUS), and the address. The
// body must hold no lock and own no memory, because a fault abandons it.
bool run_guarded(void (*body)(void *), void *context, const void **address);

// Rows of a source in a file that will be read.
struct Announcement {
    std::shared_ptr<const Source> source;
    std::shared_ptr<const int64_t[]> rows;
    int64_t count;
};
// Tells the kernel to read these rows, of each file if the first and the middle one are not in memory. Of many files
// some are looked at, and the others only if they are not in memory. Throws `bad_alloc`.
void announce(const std::vector<Announcement> &announcements);

// ---------------------------------------------------------------------------------------------- engine

struct Job {
    int64_t number = 0;
    std::vector<Task> tasks;
    int64_t nbytes = 0;
    void *held = nullptr; // the caller's: what has to live as long as the job

    // Guarded by the engine's mutex.
    size_t next_task = 0;
    int64_t next_step = 0;
    int running = 0;
    bool is_cancelled = false, has_failed = false;
    size_t failed_task = 0;
    Failure failure;

    bool is_claimed() const { return next_task == tasks.size(); }
    bool is_done() const { return running == 0 && (is_claimed() || is_cancelled || has_failed); }
};

enum class Waited { DONE, TIMEOUT, UNKNOWN };

// Methods that need memory throw `bad_alloc`, and leave the engine as it was. No thread needs any once it runs.
class Engine {
  public:
    explicit Engine(int thread_count);
    // Starts the threads. Returns false and sets errno if the system has none.
    bool start();
    // Takes the job. Returns false if the engine is closed or the number is not greater than the one before.
    bool submit(Job *job);
    // Waits until the job is done or until `until_ns` of the monotonic clock (0: not at all). DONE hands over the job.
    Waited wait(int64_t job_number, int64_t until_ns, Job **job);
    bool is_done(int64_t job_number);
    // Drops what was not started of jobs up to `number`; `finished` gets the jobs that nothing writes any more.
    // Returns whether these are all.
    bool cancel(int64_t number, int64_t until_ns, std::vector<Job *> *finished);
    // Counts time of copies that the submitting thread made itself.
    void add_busy(int64_t ns);
    // Queues what is announced together. Never waits: where too much is queued, the oldest is dropped.
    void advise(std::vector<Announcement> advice);
    // Stops the threads; returns whether they ended in time.
    bool close(int64_t until_ns);
    bool is_closed();
    // After `close`: hands over a job; null if there is none left.
    Job *take();

    struct Stats {
        long long nbytes, jobs, cpu_ns, busy_ns;
    };
    Stats stats();

  private:
    struct Part {
        Job *job;
        size_t first_task, last_task;
        int64_t first_step, last_step; // `last_step` of `last_task` is excluded
    };
    static void *copy_thread(void *);
    static void *advise_thread(void *);
    bool start_thread(void *(*body)(void *), const char *name);
    void copy_loop();
    void advise_loop();
    bool claim(Part *part);
    bool run(const Part &part, uint8_t *scratch, size_t *failed_task, Failure *failure);
    Job *find(int64_t number);
    void thread_ends();
    void spin();

    const int thread_count_, main_count_;
    std::mutex mutex_;
    std::condition_variable work_, done_, advice_, ended_;
    std::deque<Job *> jobs_;    // submitted and not handed back, by number
    std::deque<Job *> pending_; // those with unclaimed steps, by number
    std::deque<std::vector<Announcement>> advices_;
    std::vector<pthread_t> threads_;
    std::vector<std::unique_ptr<uint8_t[]>> scratch_; // of each copying thread
    size_t scratch_count_ = 0;                        // of those that threads took
    int alive_ = 0, idle_ = 0, waiting_ = 0;
    bool is_closing_ = false, has_advisers_ = false;
    int64_t last_number_ = INT64_MIN, waited_number_ = INT64_MIN;
    std::atomic<int64_t> ended_count_{0}; // jobs that ended; read without the mutex
    Stats stats_{};
};

// ---------------------------------------------------------------------------------------------- permutations

// A bijection on [0, n), n <= a * b: a Feistel network with a multiplier and an addend a round.
struct Permutation {
    uint64_t n, a, b; // a and b at most 2**31
    const uint64_t *words;
    size_t rounds;
};

// Replaces values in [0, n) by their images. `tweaks`: a word for each value, or one for all.
void permute(uint64_t *values, int64_t count, const Permutation &key, const uint64_t *tweaks, bool is_one);

// Orders of `ends[kind_count - 1]` cards each, at most MOST_CARDS, in which the cards of each kind follow those of the
// kind before. Replaces each place by the kind of its card, and writes how many places before it have this kind. `keys`
// has two words for the order of each place. Throws `bad_alloc`.
constexpr int64_t MOST_CARDS = 4096;
void deal_cards(const uint64_t *keys, int64_t *places, int64_t count, const int64_t *ends, int64_t kind_count,
                int64_t *before);

int64_t now_ns();

// Counts forks: a child has the memory of its parent, without the threads. Called once.
void watch_forks();
int64_t fork_count();

} // namespace penstock
