#include "core.hpp"

#include <cerrno>
#include <fcntl.h>
#include <list>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace penstock {
namespace {

// Files that sources hold open. Sources in one file share it, so they share its descriptor and its mapping.
std::mutex g_mutex;
std::list<File *> g_files;
std::atomic<int64_t> g_fork_count{0};

} // namespace

void watch_forks() {
    // No other thread of the parent has the lock while the child's copy of it is made.
    pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); },
                   [] {
                       g_fork_count++;
                       g_mutex.unlock();
                   });
}

int64_t fork_count() { return g_fork_count.load(std::memory_order_relaxed); }

File *File::open(const char *path, int fd) {
    // O_NONBLOCK: opening a pipe does not wait for a writer.
    int own =
        path != nullptr ? ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    auto fail = [own](int error) {
        if (own >= 0) {
            ::close(own);
        }
        errno = error;
        return nullptr;
    };
    struct stat status;
    if (own < 0 || fstat(own, &status) != 0) {
        return fail(errno);
    }
    if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
        return fail(S_ISDIR(status.st_mode) ? EISDIR : ESPIPE);
    }
    std::lock_guard<std::mutex> lock(g_mutex);
    for (File *each : g_files) {
        if (each->device_ == status.st_dev && each->inode_ == status.st_ino) {
            each->acquire();
            ::close(own);
            return each;
        }
    }
    std::list<File *> entry;
    File *file = nullptr;
    try {
        entry.push_back(nullptr);
        file = entry.front() = new File();
    } catch (const std::bad_alloc &) {
        return fail(ENOMEM);
    }
    file->fd_ = own;
    file->has_name_ = status.st_nlink > 0;
    file->device_ = status.st_dev;
    file->inode_ = status.st_ino;
    g_files.splice(g_files.end(), entry);
    return file;
}

void File::release() {
    {
        // Under the lock, so that `open` cannot take a file that is about to go.
        std::lock_guard<std::mutex> lock(g_mutex);
        if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) {
            return;
        }
        g_files.remove(this);
    }
    if (mapping_ != nullptr) {
        munmap(mapping_, mapped_nbytes_);
    }
    ::close(fd_);
    delete this;
}

const uint8_t *File::map(int64_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (mapping_ != nullptr) {
        if (nbytes <= mapped_nbytes_) {
            return mapping_;
        }
        errno = EFBIG; // the file has grown since; the caller reads it instead
        return nullptr;
    }
    int64_t size = this->nbytes();
    if (size < 0) {
        return nullptr;
    }
    // Up to the last byte that any source may ask for, also where the file is shorter: pages behind its end fault, and
    // addresses behind the mapping would be other memory.
    int64_t length = nbytes > size ? nbytes : size;
    if (length == 0) {
        errno = EINVAL;
        return nullptr;
    }
    void *mapping = mmap(nullptr, length, PROT_READ, MAP_SHARED, fd_, 0);
    if (mapping == MAP_FAILED) {
        return nullptr;
    }
    mapping_ = static_cast<uint8_t *>(mapping);
    mapped_nbytes_ = length;
    return mapping_;
}

void File::delivered(int64_t nbytes, int64_t limit) {
    if (delivered_.fetch_add(nbytes, std::memory_order_relaxed) + nbytes < limit) {
        return;
    }
    delivered_.store(0, std::memory_order_relaxed);
    madvise(mapping_, mapped_nbytes_, MADV_DONTNEED); // readers meanwhile fault their pages in again
}

int64_t File::nbytes() const { return stat(false); }

int64_t File::named_nbytes() const { return stat(has_name_); }

int64_t File::stat(bool needs_name) const {
    struct stat status;
    if (fstat(fd_, &status) != 0) {
        return -1;
    }
    if (needs_name && status.st_nlink == 0) {
        errno = ESTALE;
        return -1;
    }
    if (S_ISREG(status.st_mode)) {
        return status.st_size;
    }
    return lseek(fd_, 0, SEEK_END); // a block device
}

} // namespace penstock
