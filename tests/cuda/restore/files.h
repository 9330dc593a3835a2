// Files that are restored from: in memory or dropped from it, read as they are, and read and uploaded.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <string>
#include <vector>

// threads of a plain read
constexpr uint32_t n_read_threads = 16;

struct mapped_file {
    explicit mapped_file(const std::string & path);
    ~mapped_file();
    mapped_file(const mapped_file &)             = delete;
    mapped_file & operator=(const mapped_file &) = delete;

    int      fd      = -1;
    void *   bytes   = nullptr;
    uint64_t n_bytes = 0;
};

// A file to write pieces to. write() has the types of a llama_cachegen_write_t and of a cachegen_sink.
class written_file {
  public:
    explicit written_file(const std::string & path);
    ~written_file();
    written_file(const written_file &)             = delete;
    written_file & operator=(const written_file &) = delete;

    int fd() const { return fd_; }

    // Throws std::runtime_error if the system does.
    void close();

    static int32_t write(void * file, uint64_t offset, const void * bytes, uint64_t n_bytes);

  private:
    std::string path_;
    int         fd_;
};

// A file that goes when this does.
struct temporary_file {
    explicit temporary_file(std::string path) : path(std::move(path)) {}
    ~temporary_file();
    temporary_file(const temporary_file &)             = delete;
    temporary_file & operator=(const temporary_file &) = delete;

    uint64_t n_bytes() const;

    const std::string path;
};

void copy_file(const std::string & from, const std::string & to);

// Write back and drop a file's pages. False if any are still in memory, as in a tmpfs.
bool drop_pages(const std::string & path);

// Milliseconds to read a file by n_read_threads threads into memory of their own.
double read_plainly(const std::string & path);

// Reads files by n_read_threads threads and copies them to a device, each thread in two pinned pieces of 1 MiB.
class uploader {
  public:
    uploader(ggml_backend_dev_t device, uint64_t n_bytes);
    ~uploader();
    uploader(const uploader &)             = delete;
    uploader & operator=(const uploader &) = delete;

    // Milliseconds until all of it is there. The file has n_bytes at most.
    double run(const std::string & path);

  private:
    ggml_context *              context_ = nullptr;
    ggml_tensor *               tensor_  = nullptr;
    ggml_backend_buffer_t       memory_  = nullptr;
    ggml_backend_buffer_t       pinned_  = nullptr;
    std::vector<ggml_backend_t> backends_; // a stream for each thread
};
