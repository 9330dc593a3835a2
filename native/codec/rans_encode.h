// The encoder's side of rans_decode.h: tables that invert the decoder's, and one group's word stream.
#pragma once

#include "rans_table.h"

#include <cstdint>
#include <vector>

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
    uint32_t                    n_classes;
    uint32_t                    log2_stride;           // of a distribution in symbols
    std::vector<encoder_symbol> symbols;               // [n_models][n_classes][1 << log2_stride]
    std::vector<uint16_t>       slots;                 // [n_models][n_classes][1024]: by symbol and rank
    uint8_t                     class_of[max_symbols]; // not falling, from 0
    uint8_t                     initial_class;

    // frequencies: [n_models][n_classes][n_symbols], every distribution sums to 1,024
    set_encoder(const uint16_t * frequencies, uint32_t n_symbols, uint32_t n_classes, uint32_t n_models,
                const uint8_t * class_of, uint8_t initial_class);
};

/*
 * Encode one group.
 * models      IN  of each lane
 * symbols     IN  [n_tokens][32], every one below the set's n_symbols; lanes from n_active on are ignored
 * end         IN  the end of a buffer with room for n_tokens * 32 + 8 words
 * states      OUT n_active
 * Returns the first word; the stream is [returned, end). Throws ERR_ALPHABET for a symbol of frequency zero.
 */
uint16_t * encode_group(const set_encoder & encoder, const uint8_t * models, uint32_t n_active, const uint8_t * symbols,
                        uint32_t n_tokens, uint16_t * end, uint32_t * states);

// the same for 32 active lanes; returns NULL for a symbol of frequency zero
uint16_t * encode_group_avx2(const set_encoder & encoder, const uint8_t * models, const uint8_t * symbols,
                             uint32_t n_tokens, uint16_t * end, uint32_t * states);

} // namespace cachegen::lcg3
