#include "rans_encode.h"

#include "isa.h"
#include "status.h"

#include <algorithm>
#include <cstring>

namespace cachegen::lcg3 {

set_encoder::set_encoder(const uint16_t * frequencies, uint32_t n_symbols, uint32_t n_classes, uint32_t n_models,
                         const uint8_t * class_of, uint8_t initial_class)
    : n_classes(n_classes), log2_stride(log2_buckets(n_symbols)),
      symbols((size_t{ n_models } * n_classes) << log2_buckets(n_symbols)),
      slots(size_t{ n_models } * n_classes * prob_scale), initial_class(initial_class) {
    memset(this->class_of, 0, sizeof(this->class_of));
    memcpy(this->class_of, class_of, n_symbols);

    const uint32_t n_buckets = 1u << log2_buckets(n_symbols);
    const uint32_t width     = prob_scale / n_buckets;
    bucket         buckets[max_symbols];
    for (size_t d = 0; d < size_t{ n_models } * n_classes; d++) {
        const uint16_t * frequency = frequencies + d * n_symbols;
        encoder_symbol * symbol    = &symbols[d << log2_stride];
        uint16_t *       slot      = &slots[d * prob_scale];
        uint32_t         first     = 0;
        for (uint32_t s = 0; s < n_symbols; s++) {
            const uint64_t f = std::max<uint64_t>(1, frequency[s]);
            symbol[s]        = { static_cast<uint32_t>(std::min<uint64_t>(UINT32_MAX, (uint64_t{ 1 } << 32) / f)),
                                 frequency[s], static_cast<uint16_t>(first) };
            first += frequency[s];
        }
        build_buckets(frequency, n_symbols, buckets);
        for (uint32_t i = 0; i < prob_scale; i++) {
            const uint32_t u    = i % width;
            const uint32_t low  = static_cast<uint32_t>(buckets[i / width]);
            const uint32_t half = u < half_divider(low) ? low : static_cast<uint32_t>(buckets[i / width] >> 32);
            const uint32_t rank = (u + half_addend(half)) & (prob_scale - 1);
            slot[symbol[half_symbol(half)].first_slot + rank] = static_cast<uint16_t>(i);
        }
    }
}

static uint16_t * encode_group_scalar(const set_encoder & encoder, const uint8_t * models, uint32_t n_active,
                                      const uint8_t * symbols, uint32_t n_tokens, uint16_t * end, uint32_t * states) {
    uint32_t lane_distribution[n_lanes];
    for (uint32_t lane = 0; lane < n_active; lane++) {
        lane_distribution[lane] = models[lane] * encoder.n_classes;
        states[lane]            = state_low;
    }
    const encoder_symbol * const table = encoder.symbols.data();
    const uint16_t * const       slots = encoder.slots.data();

    uint16_t * next    = end;
    bool       is_zero = false;
    for (uint32_t t = n_tokens; t-- > 0;) {
        const uint8_t * row = symbols + size_t{ t } * n_lanes;
        for (uint32_t lane = n_active; lane-- > 0;) {
            const uint32_t       context      = t > 0 ? encoder.class_of[(row - n_lanes)[lane]] : encoder.initial_class;
            const size_t         distribution = lane_distribution[lane] + context;
            const encoder_symbol symbol       = table[(distribution << encoder.log2_stride) + row[lane]];
            const uint32_t       frequency    = symbol.frequency;
            uint32_t             state        = states[lane];
            is_zero |= frequency == 0;

            // arithmetic, not a branch: whether a word is due is close to chance
            const uint32_t gives_word = state >> (32 - prob_bits) >= frequency;
            next[-1]                  = static_cast<uint16_t>(state);
            next -= gives_word;
            state >>= 16 * gives_word;

            uint32_t       quotient = static_cast<uint32_t>(uint64_t{ state } * symbol.reciprocal >> 32);
            uint32_t       rank     = state - quotient * frequency;
            const uint32_t is_short = rank >= frequency;
            quotient += is_short;
            rank -= frequency & (0u - is_short);
            states[lane] = quotient << prob_bits |
                           slots[distribution * prob_scale + ((symbol.first_slot + rank) & (prob_scale - 1))];
        }
    }
    return is_zero ? nullptr : next;
}

uint16_t * encode_group(const set_encoder & encoder, const uint8_t * models, uint32_t n_active, const uint8_t * symbols,
                        uint32_t n_tokens, uint16_t * end, uint32_t * states) {
    uint16_t * begin = nullptr;
#ifdef CACHEGEN_AVX2
    const bool has_avx2 = active_isa() == isa::avx2 || active_isa() == isa::avx512;
    if (n_active == n_lanes && has_avx2) {
        begin = encode_group_avx2(encoder, models, symbols, n_tokens, end, states);
    } else
#endif
    {
        begin = encode_group_scalar(encoder, models, n_active, symbols, n_tokens, end, states);
    }
    if (begin == nullptr) {
        fail(CACHEGEN_ERR_ALPHABET, "a symbol has frequency zero in its model; the tables were made from other values");
    }
    return begin;
}

} // namespace cachegen::lcg3
