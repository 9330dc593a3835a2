// LCG1 and LCG2: one tile, K or V of one layer for up to 256 tokens. docs/formats/lcg1.md and lcg2.md specify the
// bytes.
#pragma once

#include "arithmetic_coder.h"
#include "cachegen.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachegen::legacy {

constexpr uint32_t tile_header_bytes = 16;
constexpr uint32_t max_tile_tokens   = 256;
constexpr uint64_t max_tile_values   = 1u << 24;
constexpr uint32_t max_stream_bytes  = 256;

// A tile whose header has been checked against its size.
struct tile {
    const uint8_t * bytes;
    uint64_t        n_bytes;
    uint32_t        version; // 1 LCG1, 2 LCG2
    uint32_t        n_bins;  // 16 or 32
    uint32_t        n_tokens;
    uint32_t        n_channels;
    uint32_t        stream_bytes; // of all arithmetic-coded streams, or of the packed symbols

    uint32_t        symbol_bits() const { return n_bins == 16 ? 4 : 5; }
    uint32_t        n_levels() const { return n_bins - 1; }
    const uint8_t * maxima() const { return bytes + tile_header_bytes; }
    const uint8_t * after_maxima() const { return maxima() + 4 * size_t{ n_tokens }; } // LCG1: tables, LCG2: symbols
    // of LCG1 alone: u16 of each channel, and what they are the lengths of
    const uint8_t * lengths() const { return after_maxima() + 2 * size_t{ n_cdf_entries } * n_channels; }
    const uint8_t * streams() const { return lengths() + 2 * size_t{ n_channels }; }
};

tile parse_tile(const void * bytes, uint64_t n_bytes);

// All that the format says of a tile besides its header and its symbols: maxima, tables and lengths, unused bits.
// decode_tile() does this first.
void check_tile(const tile & source);

/*
 * Decode a tile into tokens first_token on of typed rows, with as many channels. Every value is an F16 number, then
 * stored as the destination's type. destination  IN  validated; its data is OUT, written in part if this throws
 */
void decode_tile(const tile & source, const cachegen_rows & destination, uint64_t first_token);

// Encode n_tokens tokens of typed rows. Throws ERR_NON_FINITE for a value that F16 cannot hold.
std::vector<uint8_t> encode_tile(const cachegen_rows & source, uint64_t first_token, uint32_t n_tokens, uint32_t n_bins,
                                 uint32_t version);

} // namespace cachegen::legacy
