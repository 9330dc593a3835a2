#include "native_tile.h"

#include <cstring>

namespace cachegen {

uint64_t native_bytes(uint32_t type, uint64_t n_channels) {
    switch (type) {
        case CACHEGEN_TYPE_F32: return n_channels * 4;
        case CACHEGEN_TYPE_Q8_0: return n_channels / 32 * 34;
        case CACHEGEN_TYPE_Q4_0: return n_channels / 32 * 18;
        default: return n_channels * 2;
    }
}

namespace {

template <typename Copy> void for_each_piece(const cachegen_rows & rows, uint64_t first_token, uint64_t n_tokens,
                                             uint64_t first_channel, uint64_t n_channels, uint64_t row_stride,
                                             const Copy & copy) {
    auto * const   data          = static_cast<uint8_t *>(rows.data);
    const uint64_t element_bytes = native_bytes(rows.type, 1);
    for (uint64_t t = 0; t < n_tokens; t++) {
        const uint64_t row = rows.cells ? rows.cells[first_token + t] : first_token + t;
        if (!rows.is_transposed) {
            copy(data + row * rows.stride_bytes + native_bytes(rows.type, first_channel), t * row_stride,
                 native_bytes(rows.type, n_channels));
            continue;
        }
        for (uint64_t c = 0; c < n_channels; c++) {
            copy(data + (first_channel + c) * rows.stride_bytes + row * element_bytes,
                 t * row_stride + c * element_bytes, element_bytes);
        }
    }
}

} // namespace

void fetch_native(const cachegen_rows & source, uint64_t first_token, uint64_t n_tokens, uint64_t first_channel,
                  uint64_t n_channels, uint8_t * tile, uint64_t row_stride) {
    for_each_piece(source, first_token, n_tokens, first_channel, n_channels, row_stride,
                   [&](const uint8_t * at, uint64_t offset, uint64_t n) { memcpy(tile + offset, at, n); });
}

void place_native(const cachegen_rows & destination, uint64_t first_token, uint64_t n_tokens, uint64_t first_channel,
                  uint64_t n_channels, const uint8_t * tile, uint64_t row_stride) {
    for_each_piece(destination, first_token, n_tokens, first_channel, n_channels, row_stride,
                   [&](uint8_t * at, uint64_t offset, uint64_t n) { memcpy(at, tile + offset, n); });
}

} // namespace cachegen
