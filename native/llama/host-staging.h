// Archives of tensors whose backend has no codec, by way of host memory: decoded or encoded by the codec of this
// library, and copied a few blocks at a time.
#pragma once

#include "cachegen.h"
#include "executor.h"
#include "ggml-kv-codec.h"
#include "meter.h"

#include <cstdint>
#include <vector>

// Decodes into tensors of any backend. At a time it holds one block of as many planes as fit in 16 MiB, one at least.
class staged_decoder {
  public:
    // reader: borrowed. rows: one for each plane, tensor NULL: not this decoder's; their cells are borrowed.
    staged_decoder(const cachegen_lcg3 * reader, std::vector<ggml_kv_codec_rows> rows, uint32_t n_threads);

    // Status of the codec. Throws what a backend throws. [first_token, end_token): those of the part that are wanted.
    int32_t decode_part(uint32_t part, const void * bytes, uint64_t n_bytes, uint32_t first_token, uint32_t end_token);

    uint64_t peak_bytes() const { return meter_.peak(); }

  private:
    cachegen::memory_meter          meter_;
    const cachegen_lcg3 *           reader_;
    std::vector<ggml_kv_codec_rows> rows_;
    cachegen::executor_ptr          executor_;
};

// The backend's encode() over tensors of any backend. is_staged: one for each plane; the others are in host memory.
int32_t staged_encode(const cachegen_lcg3_plane * planes, const cachegen_lcg3_options * options,
                      const std::vector<ggml_kv_codec_rows> & rows, const std::vector<bool> & is_staged,
                      uint32_t n_threads, ggml_kv_codec_write_t write, void * user_data, uint64_t * n_bytes,
                      uint64_t * peak_bytes);
