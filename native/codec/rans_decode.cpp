#include "rans_decode.h"

#include "bytes.h"
#include "isa.h"

namespace cachegen::lcg3 {

// One step of 32 lanes. `is_near_end`: check every word, else the caller has made sure that 32 are readable.
template <bool is_near_end>
static inline bool step(group_stream & stream, const uint8_t *& next_word, uint8_t * symbols) {
    const set_tables & tables   = *stream.tables;
    const uint32_t     shift    = prob_bits - tables.log2_n_buckets;
    const uint32_t     position = (1u << shift) - 1;
    for (uint32_t lane = 0; lane < n_lanes; lane++) {
        uint32_t       state = stream.state[lane];
        const uint32_t slot  = state & (prob_scale - 1);
        const uint32_t table = stream.model_offset[lane] +
                               (static_cast<uint32_t>(stream.last_symbol_class[lane]) << tables.log2_n_buckets);
        const uint64_t entry = tables.buckets[table + (slot >> shift)];
        const uint32_t u     = slot & position;
        const uint32_t low   = static_cast<uint32_t>(entry);
        const uint32_t half  = static_cast<uint32_t>(entry >> (u < half_divider(low) ? 0 : 32));

        state                          = half_frequency(half) * (state >> prob_bits) + ((u + half_addend(half)) & 1023);
        const uint32_t symbol          = half_symbol(half);
        symbols[lane]                  = static_cast<uint8_t>(symbol);
        stream.last_symbol_class[lane] = tables.class_of[symbol];

        const bool needs_word = state < state_low;
        if (is_near_end) {
            if (needs_word) {
                if (stream.end_of_words - next_word < 2) {
                    return false;
                }
                state = state << 16 | get_le<uint16_t>(next_word);
                next_word += 2;
            }
        } else {
            // arithmetic, not a branch: whether a word is due is close to chance
            const uint32_t mask = 0u - static_cast<uint32_t>(needs_word);
            state               = state << (mask & 16) | (get_le<uint16_t>(next_word) & mask);
            next_word += mask & 2;
        }
        stream.state[lane] = state;
    }
    return true;
}

bool decode_symbols_scalar(group_stream & stream, uint32_t n_tokens, uint8_t * symbols) {
    const uint8_t * next_word = stream.next_word;
    for (uint32_t t = 0; t < n_tokens; t++, symbols += n_lanes) {
        // a step reads at most 32 words, one of them in vain after the last needed
        if (stream.end_of_words - next_word >= 2 * (static_cast<int64_t>(n_lanes) + 1)) {
            step<false>(stream, next_word, symbols);
        } else if (!step<true>(stream, next_word, symbols)) {
            return false;
        }
    }
    stream.next_word = next_word;
    return true;
}

decode_symbols_function decode_symbols() {
    switch (active_isa()) {
#ifdef CACHEGEN_AVX2
        case isa::avx2: return decode_symbols_avx2;
#endif
#ifdef CACHEGEN_AVX512
        case isa::avx512: return decode_symbols_avx512;
#endif
#ifdef CACHEGEN_NEON
        case isa::neon: return decode_symbols_neon;
#endif
        default: return decode_symbols_scalar;
    }
}

} // namespace cachegen::lcg3
