// Runs the engine from many threads, for ThreadSanitizer (`make sanitize`). Ends with 0 if every copy was right.
#include "core.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace penstock;

namespace {

constexpr int64_t COUNT = 500, NBYTES = 700;

void require(bool condition, const char *what) {
    if (!condition) {
        std::fprintf(stderr, "wrong: %s\n", what);
        std::exit(1);
    }
}

struct Batch {
    std::vector<uint8_t> out;
    std::vector<int64_t> rows;
};

Job *make_job(int64_t number, const std::vector<Source> &sources, Batch *batch, std::mt19937 &random) {
    auto *job = new Job();
    job->number = number;
    int64_t n = 1 + random() % 100;
    batch->out.assign(sources.size() * n * NBYTES, 0);
    batch->rows.clear();
    for (size_t i = 0; i < sources.size(); i++) {
        Task task;
        task.source = &sources[i];
        task.count = n;
        task.rows.reset(new int64_t[n]);
        for (int64_t k = 0; k < n; k++) {
            batch->rows.push_back(task.rows[k] = random() % COUNT);
        }
        task.out = batch->out.data() + i * n * NBYTES;
        task.out_stride = task.out_nbytes = NBYTES;
        task.high = sources[i].file != nullptr ? COUNT * NBYTES : 0;
        job->nbytes += n * NBYTES;
        job->tasks.push_back(std::move(task));
    }
    return job;
}

void run(int round, const std::vector<Source> &sources, const std::vector<uint8_t> &content) {
    Engine engine(1 + round % 4);
    require(engine.start(), "threads start");
    std::mutex mutex;
    int64_t next = 0;
    auto work = [&](unsigned seed) {
        std::mt19937 random(seed);
        std::vector<Batch> batches(4);
        std::vector<int64_t> numbers(4);
        for (int i = 0; i < 20; i++) {
            for (size_t k = 0; k < batches.size(); k++) {
                std::lock_guard<std::mutex> lock(mutex);
                Job *job = make_job(numbers[k] = next++, sources, &batches[k], random);
                require(engine.submit(job), "submitted");
                std::shared_ptr<int64_t[]> rows(new int64_t[3]{1, 2, 3});
                // The sources live longer than the engine.
                engine.advise({{std::shared_ptr<const Source>(std::shared_ptr<void>(), &sources[1]), rows, 3}});
            }
            for (size_t k = 0; k < batches.size(); k++) {
                Job *job = nullptr;
                engine.is_done(numbers[k]);
                while (engine.wait(numbers[k], now_ns() + 1'000'000, &job) == Waited::TIMEOUT) {
                }
                require(job != nullptr && !job->has_failed, "copied");
                for (size_t row = 0; row < batches[k].rows.size(); row++) {
                    require(std::memcmp(&batches[k].out[row * NBYTES], &content[batches[k].rows[row] * NBYTES],
                                        NBYTES) == 0,
                            "bytes");
                }
                delete job;
            }
            engine.stats();
        }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 3; i++) {
        threads.emplace_back(work, 100 * round + i);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    // What is under way is cancelled, or dropped by `close`.
    std::mt19937 random(round);
    std::vector<Batch> batches(6);
    for (Batch &batch : batches) {
        require(engine.submit(make_job(next++, sources, &batch, random)), "submitted");
    }
    std::vector<Job *> finished;
    if (round % 2) {
        require(engine.cancel(next - 3, INT64_MAX, &finished), "cancelled");
        for (int i = 0; i < 4; i++) {
            std::memset(batches[i].out.data(), 1, batches[i].out.size()); // a thread that writes still is a race
        }
    }
    require(engine.close(INT64_MAX), "closed");
    while (Job *job = engine.take()) {
        finished.push_back(job);
    }
    require(finished.size() == 6, "all jobs come back");
    for (Job *job : finished) {
        delete job;
    }
}

} // namespace

int main() {
    std::vector<uint8_t> content(COUNT * NBYTES);
    std::mt19937 random(0);
    for (uint8_t &byte : content) {
        byte = static_cast<uint8_t>(random());
    }
    char path[] = "/tmp/penstock-races-XXXXXX";
    int fd = mkstemp(path);
    require(fd >= 0 && write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()), "a file");
    std::vector<Source> sources(3);
    for (Source &source : sources) {
        require(make_layout(COUNT, NBYTES, NBYTES, 0, nullptr, nullptr, &source.layout), "a layout");
    }
    sources[0].base = content.data();
    for (int i = 1; i < 3; i++) {
        sources[i].file = File::open(path, -1);
        sources[i].access = i == 1 ? Access::READ : Access::MAPPED;
    }
    sources[2].base = sources[2].file->map(COUNT * NBYTES);
    sources[2].give_back_nbytes = 1 << 16;
    for (int round = 0; round < 40; round++) {
        run(round, sources, content);
    }
    unlink(path);
    close(fd);
    return 0;
}
