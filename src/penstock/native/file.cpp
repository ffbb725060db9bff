#include "core.hpp"

#include <cerrno>
#include <fcntl.h>
#include <map>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace penstock {
namespace {

// Files that keep their descriptors: a program may have 1,024, unless it asks for more.
constexpr int MOST_OPEN = 128;
constexpr int READS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY; // opening a pipe does not wait for a writer

// Files of sources. Sources in one file share it, so they share its descriptor and its mapping.
std::mutex g_mutex;
std::map<std::pair<dev_t, ino_t>, File *> g_files;
int g_open_count = 0;
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
    int own = path != nullptr ? ::open(path, READS) : fcntl(fd, F_DUPFD_CLOEXEC, 0);
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
    const auto key = std::make_pair(status.st_dev, status.st_ino);
    const auto found = g_files.find(key);
    if (found != g_files.end()) {
        found->second->acquire();
        ::close(own);
        return found->second;
    }
    std::unique_ptr<File> file;
    try {
        file.reset(new File());
        file->path_ = path != nullptr ? path : "";
        g_files[key] = file.get();
    } catch (const std::bad_alloc &) {
        return fail(ENOMEM);
    }
    file->has_name_ = status.st_nlink > 0;
    file->device_ = status.st_dev;
    file->inode_ = status.st_ino;
    if (g_open_count >= MOST_OPEN && path != nullptr && file->has_name_ && S_ISREG(status.st_mode)) {
        file->page_ = mmap(nullptr, 1, PROT_READ, MAP_SHARED, own, 0);
    }
    if (file->page_ == nullptr || file->page_ == MAP_FAILED) {
        file->page_ = nullptr;
        file->fd_ = own;
        g_open_count++;
    } else {
        ::close(own);
    }
    return file.release();
}

void File::release() {
    {
        // Under the lock, so that `open` cannot take a file that is about to go.
        std::lock_guard<std::mutex> lock(g_mutex);
        if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) {
            return;
        }
        g_files.erase({device_, inode_});
        g_open_count -= fd_ >= 0;
    }
    if (mapping_ != nullptr) {
        munmap(mapping_, mapped_nbytes_);
    }
    if (page_ != nullptr) {
        munmap(page_, 1);
    }
    if (fd_ >= 0) {
        ::close(fd_);
    }
    delete this;
}

Descriptor::Descriptor(const File &file)
    : fd_(file.fd_ >= 0 ? file.fd_ : ::open(file.path_.c_str(), READS)), is_own_(file.fd_ < 0) {
    struct stat status;
    if (is_own_ && fd_ >= 0 && (fstat(fd_, &status) != 0 || !file.is(status))) {
        ::close(fd_);
        fd_ = -1;
        errno = ESTALE;
    }
}

Descriptor::~Descriptor() {
    if (is_own_ && fd_ >= 0) {
        ::close(fd_);
    }
}

Source::~Source() {
    if (file != nullptr) {
        file->release();
    }
}

int64_t File::read(int64_t offset, uint8_t *to, int64_t nbytes, int *error) const {
    const Descriptor descriptor(*this);
    if (descriptor.fd() < 0) {
        *error = errno;
        return 0;
    }
    return read_at(descriptor.fd(), offset, to, nbytes, error);
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
    const Descriptor descriptor(*this);
    void *mapping = descriptor.fd() < 0 ? MAP_FAILED : mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor.fd(), 0);
    if (mapping == MAP_FAILED) {
        return nullptr;
    }
    mapping_ = static_cast<uint8_t *>(mapping);
    mapped_nbytes_ = length;
    return mapping_;
}

void File::expect_random() {
    if (!is_random_.load(std::memory_order_relaxed) && !is_random_.exchange(true)) {
        madvise(mapping_, mapped_nbytes_, MADV_RANDOM);
    }
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
    const bool is_open = fd_ >= 0;
    if (is_open ? fstat(fd_, &status) != 0 : ::stat(path_.c_str(), &status) != 0) {
        return -1;
    }
    if (is_open ? needs_name && status.st_nlink == 0 : !is(status)) {
        errno = ESTALE;
        return -1;
    }
    if (S_ISREG(status.st_mode)) {
        return status.st_size;
    }
    return lseek(fd_, 0, SEEK_END); // a block device
}

} // namespace penstock
