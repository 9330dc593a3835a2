// Native bits of a stretch of tokens and channels, between where they lie (rows or transposed, any cells) and a small
// buffer of rows.
#pragma once

#include "cachegen.h"

#include <cstdint>

namespace cachegen {

// bytes of n_channels values of a type; n_channels is a multiple of 32 for the block types
uint64_t native_bytes(uint32_t type, uint64_t n_channels);

// tile: OUT n_tokens rows of native_bytes(source.type, n_channels), row_stride bytes apart
void fetch_native(const cachegen_rows & source, uint64_t first_token, uint64_t n_tokens, uint64_t first_channel,
                  uint64_t n_channels, uint8_t * tile, uint64_t row_stride);

// the reverse; the destination's type is the tile's
void place_native(const cachegen_rows & destination, uint64_t first_token, uint64_t n_tokens, uint64_t first_channel,
                  uint64_t n_channels, const uint8_t * tile, uint64_t row_stride);

} // namespace cachegen
