#include "archive-writer.h"

#include "ggml.h"

#include <cerrno>
#if !defined(_WIN32)
#    include <unistd.h>
#endif

namespace {

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
    : write_(write), user_data_(user_data), options_(options), caller_(std::this_thread::get_id()) {
#if !defined(_WIN32)
    file_ = options.file;
#endif
}

int32_t archive_writer::write(void * self, uint64_t offset, const void * bytes, uint64_t n_bytes) {
    return static_cast<archive_writer *>(self)->write_piece(offset, bytes, n_bytes);
}

int32_t archive_writer::write_piece(uint64_t offset, const void * bytes, uint64_t n_bytes) {
    const uint64_t done_bytes = begin();
    int32_t        result     = 0;
    if (std::this_thread::get_id() == caller_ && options_.go_on && !options_.go_on(options_.user_data, done_bytes, 0)) {
        result = 1;
    } else if (file_) {
        const int error = write_to_file(*file_, offset, bytes, n_bytes);
        int       none  = 0;
        system_error_.compare_exchange_strong(none, error);
        result = error != 0;
    } else {
        result = write_(user_data_, offset, bytes, n_bytes);
    }
    end(n_bytes);
    return result;
}

// the bytes written before
uint64_t archive_writer::begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (n_writing_++ == 0) {
        t_begun_us_ = ggml_time_us();
    }
    return done_bytes_;
}

void archive_writer::end(uint64_t n_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_bytes_ += n_bytes;
    if (--n_writing_ == 0) {
        write_us_ += ggml_time_us() - t_begun_us_;
    }
}
