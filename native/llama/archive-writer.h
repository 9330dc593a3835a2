// Where an export puts an archive: a function of the caller, or a file.
#pragma once

#include "llama-cachegen.h"

class archive_writer {
  public:
    // options.file is used in place of write(), if the system has pwrite(); everything is the caller's and stays
    archive_writer(llama_cachegen_write_t write, void * user_data, const llama_cachegen_options & options);
    ~archive_writer();
    archive_writer(const archive_writer &)             = delete;
    archive_writer & operator=(const archive_writer &) = delete;

    // a ggml_kv_codec_write_t; self: an archive_writer
    static int32_t write(void * self, uint64_t offset, const void * bytes, uint64_t n_bytes);

    // errno of the write that failed, or 0
    int system_error() const { return system_error_; }

    double write_ms() const { return double(write_us_) / 1000.0; }

  private:
    int32_t write_piece(uint64_t offset, const void * bytes, uint64_t n_bytes);
    void    reserve(uint64_t end);

    const llama_cachegen_write_t write_;
    void * const                 user_data_;
    const llama_cachegen_options options_;
    const llama_cachegen_file *  file_         = nullptr;
    int                          system_error_ = 0;
    bool                         may_reserve_  = false;
    uint64_t                     reserved_end_ = 0; // in the archive
    uint64_t                     done_bytes_   = 0;
    int64_t                      write_us_     = 0;
};
