#include "archive-writer.h"

#include "ggml.h"

#include <cerrno>
#if !defined(_WIN32)
#    include <unistd.h>
#endif
#if defined(__linux__)
#    include <fcntl.h>
#    include <linux/magic.h>
#    include <sys/stat.h>
#    include <sys/vfs.h>
#endif

namespace {

constexpr uint64_t reserved_step = 64 << 20;

// 0 or an errno
int write_to_file([[maybe_unused]] const llama_cachegen_file & file, [[maybe_unused]] uint64_t offset,
                  [[maybe_unused]] const void * bytes, [[maybe_unused]] uint64_t n_bytes) {
#if defined(_WIN32)
    return ENOSYS;
#else
    const auto * from = static_cast<const uint8_t *>(bytes);
    while (n_bytes > 0) {
        const ssize_t n = pwrite(file.fd, from, n_bytes, off_t(file.offset + offset));
        if (n < 0 && errno != EINTR) {
            return errno;
        }
        if (n == 0) {
            return EIO; // nothing was written, and no reason given
        }
        if (n > 0) {
            from += n;
            offset += uint64_t(n);
            n_bytes -= uint64_t(n);
        }
    }
    return 0;
#endif
}

} // namespace

archive_writer::archive_writer(llama_cachegen_write_t write, void * user_data, const llama_cachegen_options & options)
    : write_(write), user_data_(user_data), options_(options) {
#if !defined(_WIN32)
    file_ = options.file;
#endif
#if defined(__linux__)
    struct statfs system;
    may_reserve_ = file_ && fstatfs(file_->fd, &system) == 0 && system.f_type != TMPFS_MAGIC;
#endif
}

archive_writer::~archive_writer() {
#if defined(__linux__)
    // blocks behind the file's end go back
    struct stat info;
    if (reserved_end_ > 0 && fstat(file_->fd, &info) == 0 && ftruncate(file_->fd, info.st_size) != 0) {
        // they stay the file's
    }
#endif
}

// A file system that knows what comes makes room at once instead of with every write. A tmpfs would take its pages one
// by one here too.
void archive_writer::reserve([[maybe_unused]] uint64_t end) {
#if defined(__linux__)
    while (may_reserve_ && reserved_end_ < end) {
        // without success the write itself says what is wrong
        may_reserve_ =
            fallocate(file_->fd, FALLOC_FL_KEEP_SIZE, off_t(file_->offset + reserved_end_), off_t(reserved_step)) == 0;
        reserved_end_ += may_reserve_ ? reserved_step : 0;
    }
#endif
}

int32_t archive_writer::write(void * self, uint64_t offset, const void * bytes, uint64_t n_bytes) {
    return static_cast<archive_writer *>(self)->write_piece(offset, bytes, n_bytes);
}

int32_t archive_writer::write_piece(uint64_t offset, const void * bytes, uint64_t n_bytes) {
    if (options_.go_on && !options_.go_on(options_.user_data, done_bytes_, 0)) {
        return 1;
    }
    const int64_t t_start_us = ggml_time_us();
    int32_t       result     = 0;
    if (file_) {
        reserve(offset + n_bytes);
        system_error_ = write_to_file(*file_, offset, bytes, n_bytes);
        result        = system_error_ != 0;
    } else {
        result = write_(user_data_, offset, bytes, n_bytes);
    }
    write_us_ += ggml_time_us() - t_start_us;
    done_bytes_ += n_bytes;
    return result;
}
