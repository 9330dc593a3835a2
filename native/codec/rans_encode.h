// The encoder's side of rans_decode.h: tables that invert the decoder's, and one group's word stream.
#pragma once

#include "cachegen.h"
#include "meter.h"
#include "rans_table.h"

#include <cstdint>

namespace cachegen::lcg3 {

struct encoder_symbol {
    uint32_t
        reciprocal; // 2^32 / frequency rounded down, 2^32 - 1 for frequency 1: a quotient by it is at most 1 too small
    uint16_t frequency;
    uint16_t first_slot; // where its slots begin in slots[]
};

static_assert(sizeof(encoder_symbol) == 8, "the vector encoders load a symbol as one 64-bit number");

// Tables of all models of a set.
struct set_encoder {
    uint32_t                       n_classes;
    uint32_t                       log2_stride; // of a distribution in symbols
    metered_vector<encoder_symbol> symbols;     // [n_models][n_classes][1 << log2_stride]
    metered_vector<uint16_t>       slots;       // [n_models][n_classes][1024]: by symbol and rank; one more at the end
    uint8_t                        class_of[max_symbols]; // not falling, from 0
    uint8_t                        initial_class;

    // frequencies: [n_models][n_classes][n_symbols], every distribution sums to 1,024
    set_encoder(const uint16_t * frequencies, uint32_t n_symbols, uint32_t n_classes, uint32_t n_models,
                const uint8_t * class_of, uint8_t initial_class, const cachegen_executor * executor);
};

// One group of 32 channels to be encoded.
struct group_words {
    const uint8_t * models;          // IN of each active lane
    const uint8_t * symbols;         // IN [n_tokens][32], every one below the set's n_symbols; only active lanes matter
    uint32_t        n_active;        // IN 1 to 32
    uint16_t *      end;             // IN end of a buffer with room for n_tokens * 32 + 8 words
    uint16_t *      begin;           // OUT the stream is [begin, end)
    uint32_t        states[n_lanes]; // OUT of the active lanes
};

/*
 * Encode groups of one plane. Two side by side keep a processor busy that would wait for the tables of one.
 * Throws ERR_ALPHABET for a symbol of frequency zero.
 */
void encode_groups(const set_encoder & encoder, group_words * groups, uint32_t n_groups, uint32_t n_tokens);

// the same for groups whose 32 lanes are all active; false for a symbol of frequency zero
using encode_full_function = bool (*)(const set_encoder & encoder, group_words * groups, uint32_t n_groups,
                                      uint32_t n_tokens);

bool encode_groups_avx2(const set_encoder & encoder, group_words * groups, uint32_t n_groups, uint32_t n_tokens);
bool encode_groups_avx512(const set_encoder & encoder, group_words * groups, uint32_t n_groups, uint32_t n_tokens);

} // namespace cachegen::lcg3
