// The encoder's view of a plane: a stretch of tokens as symbols, scales and raw bits.
#pragma once

#include "cachegen.h"
#include "lcg3_format.h"
#include "meter.h"

#include <cstdint>

namespace cachegen::lcg3 {

// what an exact set's symbols stand for, and back
struct symbol_dictionary {
    uint32_t values[max_symbols] = {};
    uint32_t n_symbols           = 0;
    uint8_t  symbol_of[512]      = {};
};

struct source_plane {
    plane_record              record;
    const cachegen_rows *     rows;
    uint32_t                  n_symbols;
    const symbol_dictionary * dictionary; // exact planes
};

struct token_symbols {
    metered_vector<uint8_t>  symbols; // [n_groups][n_tokens][32]
    metered_vector<uint32_t> scales;  // [n_tokens][n_scales_a_row], bit patterns
    metered_vector<uint8_t>  raw;     // exact: [n_tokens][n_channels] packed, the bits below the symbols
};

// tokens are counted in the source; has_raw: with the raw bits; throws ERR_NON_FINITE and others
void make_symbols(const source_plane & plane, uint64_t first_token, uint32_t n_tokens, bool has_raw,
                  token_symbols & out);

// bits of an exact plane's values that become symbols, and how often each value of them occurs; counts: 512 numbers
uint32_t upper_bits_of(uint8_t type);
void     count_upper_bits(const source_plane & plane, uint64_t first_token, uint32_t n_tokens, uint64_t * counts);

// number the values that occur in the order of the numbers they begin; false if there are more than 64
bool make_dictionary(const uint64_t * counts, uint8_t type, symbol_dictionary & out);

} // namespace cachegen::lcg3
