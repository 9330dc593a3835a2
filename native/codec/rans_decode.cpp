#include "rans_decode.h"

#include "bytes.h"
#include "isa.h"

namespace cachegen::lcg3 {

// A stream's lanes while they are decoded, apart from the stream so that the compiler knows nobody else writes them.
struct lanes {
    uint32_t state[n_lanes];
    uint32_t table[n_lanes]; // of the lane's model and class
};

// One step of 32 lanes. `is_near_end`: check every word, else the caller has made sure that 33 are readable.
template <uint32_t log2_buckets_, bool is_near_end>
static inline bool step(const group_stream & stream, const uint32_t * class_offset, lanes & now,
                        const uint8_t *& next_word_, uint8_t * symbols) {
    constexpr uint32_t     shift     = prob_bits - log2_buckets_;
    const uint64_t * const buckets   = stream.tables->buckets;
    const uint8_t *        next_word = next_word_;
    for (uint32_t lane = 0; lane < n_lanes; lane++) {
        uint32_t       state = now.state[lane];
        const uint32_t slot  = state & (prob_scale - 1);
        const uint64_t entry = buckets[now.table[lane] + (slot >> shift)];
        const uint32_t u     = slot & ((1u << shift) - 1);
        const uint32_t low   = static_cast<uint32_t>(entry);
        const uint32_t half  = static_cast<uint32_t>(entry >> (u < half_divider(low) ? 0 : 32));

        state                 = half_frequency(half) * (state >> prob_bits) + ((u + half_addend(half)) & 1023);
        const uint32_t symbol = half_symbol(half);
        symbols[lane]         = static_cast<uint8_t>(symbol);
        now.table[lane]       = stream.model_offset[lane] + class_offset[symbol];

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
        now.state[lane] = state;
    }
    next_word_ = next_word;
    return true;
}

template <uint32_t log2_buckets_> static bool decode_one(group_stream & stream, uint32_t n_tokens, uint8_t * symbols) {
    const set_tables & tables = *stream.tables;
    uint32_t           class_offset[max_symbols];
    for (uint32_t s = 0; s < max_symbols; s++) {
        class_offset[s] = static_cast<uint32_t>(tables.class_of[s]) << log2_buckets_;
    }
    lanes now;
    for (uint32_t lane = 0; lane < n_lanes; lane++) {
        now.state[lane] = stream.state[lane];
        now.table[lane] =
            stream.model_offset[lane] + (static_cast<uint32_t>(stream.last_symbol_class[lane]) << log2_buckets_);
    }
    const uint8_t * next_word = stream.next_word;
    for (uint32_t t = 0; t < n_tokens; t++, symbols += n_lanes) {
        // a step reads at most 32 words, one of them in vain after the last needed
        if (stream.end_of_words - next_word >= 2 * (static_cast<int64_t>(n_lanes) + 1)) {
            step<log2_buckets_, false>(stream, class_offset, now, next_word, symbols);
        } else if (!step<log2_buckets_, true>(stream, class_offset, now, next_word, symbols)) {
            return false;
        }
    }
    for (uint32_t lane = 0; lane < n_lanes; lane++) {
        stream.state[lane] = now.state[lane];
        if (n_tokens > 0) {
            stream.last_symbol_class[lane] = tables.class_of[(symbols - n_lanes)[lane]];
        }
    }
    stream.next_word = next_word;
    return true;
}

bool decode_symbols_scalar(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols) {
    const uint32_t log2_n_buckets = streams[0].tables->log2_n_buckets;
    const auto     decode = log2_n_buckets == 4 ? decode_one<4> : log2_n_buckets == 5 ? decode_one<5> : decode_one<6>;
    for (uint32_t i = 0; i < n_streams; i++) {
        if (!decode(streams[i], n_tokens, symbols + size_t{ i } * n_tokens * n_lanes)) {
            return false;
        }
    }
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
