#include "rans_encode.h"

#include "executor.h"
#include "isa.h"
#include "status.h"

#include <algorithm>
#include <cstring>

namespace cachegen::lcg3 {

set_encoder::set_encoder(const uint16_t * frequencies, uint32_t n_symbols, uint32_t n_classes, uint32_t n_models,
                         const uint8_t * class_of, uint8_t initial_class, const cachegen_executor * executor)
    : n_classes(n_classes), log2_stride(log2_buckets(n_symbols)),
      symbols((size_t{ n_models } * n_classes) << log2_buckets(n_symbols)),
      slots(size_t{ n_models } * n_classes * prob_scale + 1), initial_class(initial_class) {
    memset(this->class_of, 0, sizeof(this->class_of));
    memcpy(this->class_of, class_of, n_symbols);

    const uint32_t n_buckets = 1u << log2_buckets(n_symbols);
    const uint32_t width     = prob_scale / n_buckets;
    const auto     make      = [&](size_t d) {
        bucket           buckets[max_symbols];
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
        for (uint32_t i = 0; i < n_buckets; i++) {
            const uint32_t low  = static_cast<uint32_t>(buckets[i]);
            const uint32_t high = static_cast<uint32_t>(buckets[i] >> 32);
            for (uint32_t u = 0; u < width; u++) {
                const uint32_t half                               = u < half_divider(low) ? low : high;
                const uint32_t rank                               = (u + half_addend(half)) & (prob_scale - 1);
                slot[symbol[half_symbol(half)].first_slot + rank] = static_cast<uint16_t>(i * width + u);
            }
        }
    };
    run_tasks(executor, n_models, [&](uint64_t m) {
        for (uint32_t k = 0; k < n_classes; k++) {
            make(m * n_classes + k);
        }
    });
}

static bool encode_group_scalar(const set_encoder & encoder, group_words & group, uint32_t n_tokens) {
    uint32_t lane_distribution[n_lanes];
    uint32_t states[n_lanes];
    for (uint32_t lane = 0; lane < group.n_active; lane++) {
        lane_distribution[lane] = group.models[lane] * encoder.n_classes;
        states[lane]            = state_low;
    }
    const encoder_symbol * const table       = encoder.symbols.data();
    const uint16_t * const       slots       = encoder.slots.data();
    const uint32_t               n_active    = group.n_active;
    const uint32_t               log2_stride = encoder.log2_stride;

    uint16_t * next    = group.end;
    bool       is_zero = false;
    for (uint32_t t = n_tokens; t-- > 0;) {
        const uint8_t * row = group.symbols + size_t{ t } * n_lanes;
        for (uint32_t lane = n_active; lane-- > 0;) {
            const uint32_t       context      = t > 0 ? encoder.class_of[(row - n_lanes)[lane]] : encoder.initial_class;
            const size_t         distribution = lane_distribution[lane] + context;
            const encoder_symbol symbol       = table[(distribution << log2_stride) + row[lane]];
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
    group.begin = next;
    memcpy(group.states, states, sizeof(uint32_t) * n_active);
    return !is_zero;
}

void encode_groups(const set_encoder & encoder, group_words * groups, uint32_t n_groups, uint32_t n_tokens) {
    // only a plane's last group can have fewer than 32 lanes
    const uint32_t       n_full = n_groups - (n_groups > 0 && groups[n_groups - 1].n_active < n_lanes ? 1 : 0);
    uint32_t             n_done = 0;
    bool                 is_ok  = true;
    encode_full_function encode = nullptr;
    switch (active_isa()) {
#ifdef CACHEGEN_AVX2
        case isa::avx2: encode = encode_groups_avx2; break;
#endif
#ifdef CACHEGEN_AVX512
        case isa::avx512: encode = encode_groups_avx512; break;
#endif
        default: break;
    }
    if (encode != nullptr) {
        is_ok  = encode(encoder, groups, n_full, n_tokens);
        n_done = n_full;
    }
    for (; n_done < n_groups && is_ok; n_done++) {
        is_ok = encode_group_scalar(encoder, groups[n_done], n_tokens);
    }
    if (!is_ok) {
        fail(CACHEGEN_ERR_ALPHABET, "a symbol has frequency zero in its model; the tables were made from other values");
    }
}

} // namespace cachegen::lcg3
