// A component of a cache, as ggml-kv-codec.h describes it, in the codec's words: for every backend's procs.
#pragma once

#include "cachegen.h"
#include "ggml-kv-codec.h"
#include "typed_store.h"

// its rows in memory laid out as its tensor is, with room for n_rows of them; data: not looked at
inline cachegen_rows codec_rows(const ggml_kv_codec_rows & rows, uint64_t n_rows, void * data) {
    const ggml_type type      = rows.tensor->type;
    const uint64_t  row_bytes = ggml_row_size(type, static_cast<int64_t>(rows.n_channels));
    cachegen_rows   result{};
    result.type          = static_cast<uint32_t>(type);
    result.is_transposed = rows.is_transposed;
    result.n_tokens      = rows.n_tokens;
    result.n_rows        = n_rows;
    result.n_channels    = rows.n_channels;
    result.stride_bytes  = rows.is_transposed ? n_rows * ggml_type_size(type) : row_bytes;
    result.n_bytes       = n_rows * row_bytes;
    result.data          = data;
    return result;
}

// the tensor itself; without one: rows without data
inline cachegen_rows tensor_rows(const ggml_kv_codec_rows & rows) {
    if (rows.tensor == nullptr) {
        return {};
    }
    cachegen_rows result = codec_rows(rows, rows.n_cells, static_cast<uint8_t *>(rows.tensor->data) + rows.offset);
    result.cells         = rows.cells;
    return result;
}

inline cachegen_lcg3_destination tensor_destination(const ggml_kv_codec_rows & rows) {
    return { tensor_rows(rows), rows.n_rot, rows.first_token };
}

// can the codec store into such a tensor, and load from it?
inline bool codec_takes(ggml_type type, bool is_transposed) {
    return cachegen::has_typed_store(static_cast<uint32_t>(type), is_transposed);
}
