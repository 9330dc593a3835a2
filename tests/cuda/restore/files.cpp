#include "files.h"

#include "common.h"
#include "ggml-alloc.h"

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <functional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr uint64_t piece_bytes = 1 << 20;

[[noreturn]] void fail(const std::string & what, const std::string & path) {
    throw std::runtime_error("cannot " + what + " " + path);
}

struct opened {
    int fd;
    explicit opened(const std::string & path) : fd(open(path.c_str(), O_RDONLY)) {
        if (fd < 0) {
            fail("open", path);
        }
    }
    ~opened() { close(fd); }
    uint64_t n_bytes() const {
        struct stat info{};
        fstat(fd, &info);
        return static_cast<uint64_t>(info.st_size);
    }
};

bool read_all(int fd, uint8_t * to, uint64_t offset, uint64_t n_bytes) {
    while (n_bytes > 0) {
        const ssize_t n = pread(fd, to, n_bytes, static_cast<off_t>(offset));
        if (n <= 0) {
            return false;
        }
        to += n;
        offset += static_cast<uint64_t>(n);
        n_bytes -= static_cast<uint64_t>(n);
    }
    return true;
}

// piece(thread, number of this thread's piece, offset, bytes) for all pieces of a file; false stops
bool for_pieces(uint64_t n_bytes, const std::function<bool(uint32_t, uint64_t, uint64_t, uint64_t)> & piece) {
    std::atomic<uint64_t>    next{ 0 };
    std::atomic<bool>        is_good{ true };
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < n_read_threads; t++) {
        threads.emplace_back([&, t] {
            for (uint64_t i = 0; is_good; i++) {
                const uint64_t offset = next.fetch_add(piece_bytes);
                if (offset >= n_bytes) {
                    return;
                }
                if (!piece(t, i, offset, std::min(piece_bytes, n_bytes - offset))) {
                    is_good = false;
                }
            }
        });
    }
    for (auto & thread : threads) {
        thread.join();
    }
    return is_good;
}

} // namespace

mapped_file::mapped_file(const std::string & path) : fd(open(path.c_str(), O_RDONLY)) {
    struct stat info{};
    if (fd < 0 || fstat(fd, &info) != 0) {
        fail("open", path);
    }
    n_bytes = static_cast<uint64_t>(info.st_size);
    bytes   = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        ::close(fd);
        fail("map", path);
    }
}

mapped_file::~mapped_file() {
    munmap(bytes, n_bytes);
    ::close(fd);
}

written_file::written_file(const std::string & path)
    : path_(path), fd_(open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644)) {
    if (fd_ < 0) {
        fail("write", path);
    }
}

written_file::~written_file() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
}

void written_file::close() {
    const int status = ::close(fd_);
    fd_              = -1;
    if (status != 0) {
        fail("write", path_);
    }
}

int32_t written_file::write(void * file, uint64_t offset, const void * bytes, uint64_t n_bytes) {
    const auto * from = static_cast<const uint8_t *>(bytes);
    while (n_bytes > 0) {
        const ssize_t n = pwrite(static_cast<written_file *>(file)->fd_, from, n_bytes, static_cast<off_t>(offset));
        if (n <= 0) {
            return 1;
        }
        from += n;
        offset += static_cast<uint64_t>(n);
        n_bytes -= static_cast<uint64_t>(n);
    }
    return 0;
}

temporary_file::~temporary_file() {
    unlink(path.c_str());
}

uint64_t temporary_file::n_bytes() const {
    return opened(path).n_bytes();
}

void copy_file(const std::string & from, const std::string & to) {
    const opened         source(from);
    written_file         copy(to);
    std::vector<uint8_t> piece(16 << 20);
    const uint64_t       n_bytes = source.n_bytes();
    for (uint64_t at = 0; at < n_bytes; at += piece.size()) {
        const uint64_t n = std::min<uint64_t>(piece.size(), n_bytes - at);
        if (!read_all(source.fd, piece.data(), at, n) || written_file::write(&copy, at, piece.data(), n) != 0) {
            fail("copy " + from + " to", to);
        }
    }
    copy.close();
}

bool drop_pages(const std::string & path) {
    const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    for (int i = 0; i < 3; i++) {
        {
            const opened file(path);
            if (fsync(file.fd) != 0 || posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED) != 0) {
                return false;
            }
        }
        const mapped_file          mapped(path); // touches nothing
        std::vector<unsigned char> pages((mapped.n_bytes + page_bytes - 1) / page_bytes);
        if (mincore(mapped.bytes, mapped.n_bytes, pages.data()) != 0) {
            return false;
        }
        if (std::none_of(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; })) {
            return true;
        }
    }
    return false;
}

double read_plainly(const std::string & path) {
    std::vector<std::vector<uint8_t>> memory(n_read_threads, std::vector<uint8_t>(piece_bytes));
    const stopwatch                   since;
    const opened                      file(path);
    if (!for_pieces(file.n_bytes(), [&](uint32_t thread, uint64_t, uint64_t offset, uint64_t n_bytes) {
            return read_all(file.fd, memory[thread].data(), offset, n_bytes);
        })) {
        fail("read", path);
    }
    return since.ms();
}

uploader::uploader(ggml_backend_dev_t device, uint64_t n_bytes) {
    context_           = ggml_init({ ggml_tensor_overhead(), nullptr, true });
    tensor_            = ggml_new_tensor_1d(context_, GGML_TYPE_I8, static_cast<int64_t>(n_bytes));
    memory_            = ggml_backend_alloc_ctx_tensors_from_buft(context_, ggml_backend_dev_buffer_type(device));
    auto * pinned_type = ggml_backend_dev_host_buffer_type(device);
    pinned_            = ggml_backend_buft_alloc_buffer(
        pinned_type != nullptr ? pinned_type : ggml_backend_dev_buffer_type(device), n_read_threads * 2 * piece_bytes);
    for (uint32_t t = 0; t < n_read_threads; t++) {
        backends_.push_back(ggml_backend_dev_init(device, nullptr));
    }
    if (memory_ == nullptr || pinned_ == nullptr || backends_.back() == nullptr) {
        throw std::runtime_error("no memory to upload to");
    }
}

uploader::~uploader() {
    for (auto * backend : backends_) {
        ggml_backend_free(backend);
    }
    ggml_backend_buffer_free(pinned_);
    ggml_backend_buffer_free(memory_);
    ggml_free(context_);
}

double uploader::run(const std::string & path) {
    auto *          pieces = static_cast<uint8_t *>(ggml_backend_buffer_get_base(pinned_));
    const stopwatch since;
    const opened    file(path);
    const bool      is_read =
        for_pieces(file.n_bytes(), [&](uint32_t thread, uint64_t number, uint64_t offset, uint64_t n_bytes) {
            uint8_t * piece = pieces + (thread * 2 + number % 2) * piece_bytes;
            if (!read_all(file.fd, piece, offset, n_bytes)) {
                return false;
            }
            ggml_backend_synchronize(backends_[thread]); // the other piece is read into next
            ggml_backend_tensor_set_async(backends_[thread], tensor_, piece, offset, n_bytes);
            return true;
        });
    for (auto * backend : backends_) {
        ggml_backend_synchronize(backend);
    }
    if (!is_read) {
        fail("read", path);
    }
    return since.ms();
}
