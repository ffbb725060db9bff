// The threads, and the jobs that they share.
//
// Threads claim parts of the earliest job that has unclaimed steps, so several threads fill the next batch together.
// `main_count_` of them, one less than there are processors, take job after job. The others take part only in a job
// that a caller waits for, because until then the caller needs its processor: two threads on two processors made one
// batch in ten wait for a time slice of 3 ms. `mutex_` guards all state of jobs and of the engine. No thread calls
// Python, and no thread holds the mutex while it copies, waits for a disk, or allocates much. Every wait ends: the
// copying threads' by `close`, the others' by their deadline.
#include "core.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <new>
#include <sched.h>
#include <thread>
#include <unistd.h>

namespace penstock {
namespace {

// Bytes that a thread claims at once. 60 kB rows: 64 kB loses a tenth to switching between threads, 1 MB leaves one
// thread waiting for the other at the end of a batch.
constexpr int64_t PART_NBYTES = 256 << 10;
// Announcements that wait. More are of little use: the kernel's queues are full.
constexpr size_t MAX_ADVICES = 64;
constexpr int ADVISER_COUNT = 2;
constexpr size_t STACK_NBYTES = 512 << 10;

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ __volatile__("yield")
#else
#define PAUSE() ((void)0)
#endif
constexpr int64_t SPIN_NS = 20'000;

std::chrono::steady_clock::time_point time_point(int64_t ns) {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

// Waits for `condition`; returns false once `until_ns` has passed. INT64_MAX: no deadline.
bool wait_until(std::condition_variable &condition, std::unique_lock<std::mutex> &lock, int64_t until_ns) {
    if (until_ns == INT64_MAX) {
        condition.wait(lock);
        return true;
    }
    return condition.wait_until(lock, time_point(until_ns)) == std::cv_status::no_timeout;
}

int processor_count() {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return CPU_COUNT(&set);
    }
#endif
    return static_cast<int>(std::thread::hardware_concurrency()); // 0 where unknown
}

} // namespace

Engine::Engine(int thread_count)
    : thread_count_(thread_count), main_count_(std::clamp(processor_count() - 1, 1, thread_count)) {}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

bool Engine::start() {
    threads_.reserve(thread_count_ + ADVISER_COUNT);
    for (int i = 0; i < thread_count_; i++) {
        scratch_.emplace_back(new uint8_t[2 * SCRATCH_NBYTES]);
    }
    for (int i = 0; i < thread_count_; i++) {
        if (!start_thread(copy_thread, "penstock-copy")) {
            int error = errno;
            close(INT64_MAX);
            errno = error;
            return false;
        }
    }
    return true;
}

// Called with the mutex free, or by `advise` with it held: the new thread takes it only later. There is room in
// `threads_`.
bool Engine::start_thread(void *(*body)(void *), const char *name) {
    // Signals go to the program's threads. Faults cannot be blocked.
    sigset_t all, before;
    sigfillset(&all);
    for (int each : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
        sigdelset(&all, each);
    }
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) {
        errno = error;
        return false;
    }
    pthread_attr_setstacksize(&attributes, STACK_NBYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    error = pthread_create(&thread, &attributes, body, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (error != 0) {
        errno = error;
        return false;
    }
#ifdef __linux__
    pthread_setname_np(thread, name);
#else
    (void)name;
#endif
    threads_.push_back(thread);
    alive_++;
    return true;
}

void *Engine::copy_thread(void *engine) {
    static_cast<Engine *>(engine)->copy_loop();
    return nullptr;
}

void *Engine::advise_thread(void *engine) {
    static_cast<Engine *>(engine)->advise_loop();
    return nullptr;
}

void Engine::thread_ends() {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    stats_.cpu_ns += time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
    alive_--;
    ended_.notify_all();
}

// Takes the next part of the earliest job. Called with the mutex held.
bool Engine::claim(Part *part) {
    while (!pending_.empty() && pending_.front()->is_claimed()) {
        pending_.pop_front();
    }
    if (pending_.empty()) {
        return false;
    }
    Job *job = pending_.front();
    part->job = job;
    part->first_task = job->next_task;
    part->first_step = job->next_step;
    int64_t left = PART_NBYTES;
    while (left > 0 && !job->is_claimed()) {
        const Task &task = job->tasks[job->next_task];
        int64_t nbytes = std::max<int64_t>(1, task.steps_per_row > 1 ? task.step_nbytes : task.out_nbytes);
        int64_t steps = std::min(task.steps() - job->next_step, (left + nbytes - 1) / nbytes);
        part->last_task = job->next_task;
        part->last_step = job->next_step += steps;
        left -= steps * nbytes;
        if (job->next_step == task.steps()) {
            job->next_task++;
            job->next_step = 0;
        }
    }
    job->running++;
    if (job->is_claimed()) {
        pending_.pop_front();
    }
    return true;
}

bool Engine::run(const Part &part, uint8_t *scratch, size_t *failed_task, Failure *failure) {
    watch_faults();
    for (size_t i = part.first_task; i <= part.last_task; i++) {
        const Task &task = part.job->tasks[i];
        int64_t begin = i == part.first_task ? part.first_step : 0;
        int64_t end = i == part.last_task ? part.last_step : task.steps();
        if (begin < end && !copy_steps(task, begin, end, scratch, failure)) {
            *failed_task = i;
            return false;
        }
    }
    return true;
}

void Engine::copy_loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    uint8_t *scratch = scratch_[scratch_count_++].get();
    while (!is_closing_) {
        Part part;
        bool is_main = thread_count_ - idle_ <= main_count_;
        bool helps = !pending_.empty() && pending_.front()->number <= waited_number_;
        if ((!is_main && !helps) || !claim(&part)) {
            idle_++;
            work_.wait(lock);
            idle_--;
            continue;
        }
        lock.unlock();
        size_t failed_task = 0;
        Failure failure;
        int64_t began_ns = now_ns();
        bool is_right = run(part, scratch, &failed_task, &failure);
        int64_t busy_ns = now_ns() - began_ns;
        lock.lock();
        stats_.busy_ns += busy_ns;
        Job *job = part.job;
        job->running--;
        // The first failure in the order of rows would need all parts; the first in time says as much.
        if (!is_right && !job->has_failed) {
            job->has_failed = true;
            job->failed_task = failed_task;
            job->failure = failure;
            auto place = std::find(pending_.begin(), pending_.end(), job);
            if (place != pending_.end()) {
                pending_.erase(place);
            }
        }
        if (job->is_done()) {
            stats_.nbytes += job->has_failed || job->is_cancelled ? 0 : job->nbytes;
            stats_.jobs++;
            ended_count_.fetch_add(1, std::memory_order_release);
            if (waiting_ > 0) {
                done_.notify_all();
            }
        }
    }
    thread_ends();
}

bool Engine::submit(Job *job) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closing_ || job->number <= last_number_) {
        return false;
    }
    jobs_.push_back(job);
    if (!job->is_claimed()) {
        try {
            pending_.push_back(job);
        } catch (...) {
            jobs_.pop_back();
            throw;
        }
    }
    last_number_ = job->number;
    if (job->is_claimed()) { // nothing to copy, or copied already
        stats_.jobs++;
        stats_.nbytes += job->nbytes;
        return true;
    }
    if (thread_count_ - idle_ < main_count_) {
        work_.notify_one();
    }
    return true;
}

// Called with the mutex held.
Job *Engine::find(int64_t number) {
    for (Job *job : jobs_) {
        if (job->number == number) {
            return job;
        }
    }
    return nullptr;
}

// Waits for the end of any job for as long as falling asleep and being woken would take.
void Engine::spin() {
    const int64_t seen = ended_count_.load(std::memory_order_acquire), until_ns = now_ns() + SPIN_NS;
    while (ended_count_.load(std::memory_order_acquire) == seen && now_ns() < until_ns) {
        PAUSE();
    }
}

Waited Engine::wait(int64_t number, int64_t until_ns, Job **found) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (bool has_spun = false;;) {
        Job *job = find(number);
        if (job == nullptr || job->is_cancelled || (is_closing_ && !job->is_done())) {
            return Waited::UNKNOWN;
        }
        if (job->is_done()) {
            jobs_.erase(std::find(jobs_.begin(), jobs_.end(), job));
            *found = job;
            return Waited::DONE;
        }
        if (until_ns <= 0 || now_ns() >= until_ns) {
            return Waited::TIMEOUT;
        }
        if (!has_spun) {
            has_spun = true;
            lock.unlock();
            spin();
            lock.lock();
            continue;
        }
        waited_number_ = std::max(waited_number_, number);
        if (!pending_.empty() && pending_.front()->number <= number) {
            work_.notify_all();
        }
        waiting_++;
        wait_until(done_, lock, until_ns);
        waiting_--;
    }
}

bool Engine::is_done(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    Job *job = find(number);
    return job == nullptr || job->is_done();
}

bool Engine::cancel(int64_t number, int64_t until_ns, std::vector<Job *> *finished) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (Job *job : jobs_) {
        if (job->number <= number && !job->is_done()) {
            job->is_cancelled = true;
        }
    }
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(), [](Job *job) { return job->is_cancelled; }),
                   pending_.end());
    done_.notify_all();
    for (;;) {
        bool are_all = true;
        for (size_t i = 0; i < jobs_.size();) {
            if (jobs_[i]->number <= number && jobs_[i]->is_done()) {
                finished->push_back(jobs_[i]);
                jobs_.erase(jobs_.begin() + i);
            } else {
                are_all = are_all && jobs_[i]->number > number;
                i++;
            }
        }
        if (are_all || now_ns() >= until_ns) {
            return are_all;
        }
        waiting_++;
        wait_until(done_, lock, until_ns);
        waiting_--;
    }
}

void Engine::add_busy(int64_t ns) {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.busy_ns += ns;
    stats_.cpu_ns += ns;
}

void Engine::advise(std::vector<Announcement> advice) {
    std::vector<Announcement> dropped; // ends without the lock, for it may close files
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closing_) {
        return;
    }
    if (!has_advisers_) {
        has_advisers_ = true;
        for (int i = 0; i < ADVISER_COUNT; i++) {
            start_thread(advise_thread, "penstock-advise"); // without threads nothing is announced
        }
    }
    advices_.push_back(std::move(advice));
    if (advices_.size() > MAX_ADVICES) {
        dropped.swap(advices_.front());
        advices_.pop_front();
    }
    advice_.notify_one();
}

void Engine::advise_loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_closing_) {
        if (advices_.empty()) {
            advice_.wait(lock);
            continue;
        }
        std::vector<Announcement> advice = std::move(advices_.front());
        advices_.pop_front();
        lock.unlock();
        try {
            announce(advice);
        } catch (const std::bad_alloc &) { // then nothing is announced
        }
        advice.clear();
        lock.lock();
    }
    thread_ends();
}

bool Engine::close(int64_t until_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    is_closing_ = true;
    work_.notify_all();
    advice_.notify_all();
    done_.notify_all();
    while (alive_ > 0) {
        if (now_ns() >= until_ns) {
            return false;
        }
        wait_until(ended_, lock, until_ns);
    }
    std::vector<pthread_t> threads; // swapped, because a finalizer may find no memory
    threads.swap(threads_);
    pending_.clear();
    while (!advices_.empty()) {
        std::vector<Announcement> advice = std::move(advices_.front());
        advices_.pop_front();
        lock.unlock();
        advice.clear();
        lock.lock();
    }
    lock.unlock();
    for (pthread_t thread : threads) {
        pthread_join(thread, nullptr);
    }
    return true;
}

Job *Engine::take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (jobs_.empty()) {
        return nullptr;
    }
    Job *job = jobs_.front();
    jobs_.pop_front();
    return job;
}

bool Engine::is_closed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return is_closing_;
}

Engine::Stats Engine::stats() {
    std::lock_guard<std::mutex> lock(mutex_);
    Stats stats = stats_;
    for (pthread_t thread : threads_) { // none has been joined; those that ended have added their time
        clockid_t clock;
        struct timespec time;
        if (!is_closing_ && pthread_getcpuclockid(thread, &clock) == 0 && clock_gettime(clock, &time) == 0) {
            stats.cpu_ns += time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
        }
    }
    return stats;
}

} // namespace penstock
