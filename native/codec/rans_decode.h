// The inner loop of LCG3: symbols of one group of 32 channels out of one word stream, in one function per instruction
// set.
#pragma once

#include "rans_table.h"

#include <cstdint>

namespace cachegen::lcg3 {

// A set's tables, ready to decode. Model n_models is a null model: it consumes nothing and gives symbol 0.
struct set_tables {
    uint32_t       n_symbols;
    uint32_t       n_classes;
    uint32_t       n_models;
    uint32_t       log2_n_buckets;
    const bucket * buckets;               // [n_models + 1][n_classes][1 << log2_n_buckets]
    uint8_t        class_of[max_symbols]; // of symbols; zeros above n_symbols
    uint8_t        initial_class;
};

// One group in the middle of its stream. Lanes without a channel use the null model.
struct group_stream {
    const set_tables * tables;
    uint32_t           model_offset[n_lanes]; // of the lane's model in tables->buckets, in buckets
    uint32_t           state[n_lanes];
    uint8_t            last_symbol_class[n_lanes];
    const uint8_t *    next_word;       // any alignment
    const uint8_t *    end_of_words;    // of this group: reading past it is an error
    const uint8_t *    end_of_readable; // of the buffer: reading past it is out of bounds
};

/*
 * Decode the next n_tokens steps of adjacent groups of one plane. Two groups side by side keep a processor busy that
 * would wait for the tables of one.
 * streams: IN/OUT n_streams, all with the same tables
 * symbols: OUT [n_streams][n_tokens][32]
 * Returns false if the words ran out; the streams are then useless.
 */
using decode_symbols_function = bool (*)(group_stream * streams, uint32_t n_streams, uint32_t n_tokens,
                                         uint8_t * symbols);

bool decode_symbols_scalar(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols);
bool decode_symbols_avx2(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols);
bool decode_symbols_avx512(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols);
bool decode_symbols_neon(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols);

// the one for active_isa()
decode_symbols_function decode_symbols();

} // namespace cachegen::lcg3
