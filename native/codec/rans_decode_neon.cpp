// LCG3 symbols with NEON: eight vectors of four lanes.
#include "rans_decode.h"

#ifdef CACHEGEN_NEON

#    include <cstring>

#    include <arm_neon.h>

namespace cachegen::lcg3 {

namespace {

constexpr uint32_t n_vectors = n_lanes / 4;

// For each set of lanes that take a word: a byte shuffle that gives each of them the next word, and the others zero.
struct word_shuffles {
    alignas(16) uint8_t bytes[16][16];

    constexpr word_shuffles() : bytes() {
        for (uint32_t mask = 0; mask < 16; mask++) {
            uint8_t next = 0;
            for (uint32_t lane = 0; lane < 4; lane++) {
                const bool takes          = mask >> lane & 1;
                bytes[mask][4 * lane]     = takes ? next++ : 0xff;
                bytes[mask][4 * lane + 1] = takes ? next++ : 0xff;
                bytes[mask][4 * lane + 2] = 0xff;
                bytes[mask][4 * lane + 3] = 0xff;
            }
        }
    }
};

constexpr word_shuffles shuffles;

// What a lane that takes a word adds to a sum: its bit in the lowest four, and its word's bytes above them.
constexpr uint32_t lane_sums[4] = { 1 | 2 << 4, 2 | 2 << 4, 4 | 2 << 4, 8 | 2 << 4 };

// Four table entries.
struct entries {
    uint32x4_t low;
    uint32x4_t high;
};

inline entries load_entries(const uint64_t * base, uint32x4_t index) {
    const auto pair = [&](uint64_t two) {
        return vreinterpretq_u32_u64(
            vcombine_u64(vld1_u64(base + static_cast<uint32_t>(two)), vld1_u64(base + (two >> 32))));
    };
    const uint64x2_t indices = vreinterpretq_u64_u32(index);
    const uint32x4_t e_0     = pair(vgetq_lane_u64(indices, 0));
    const uint32x4_t e_1     = pair(vgetq_lane_u64(indices, 1));
    return { vuzp1q_u32(e_0, e_1), vuzp2q_u32(e_0, e_1) };
}

// One vector of four lanes takes one step. Returns the symbols.
template <uint32_t log2_buckets_>
inline uint32x4_t step(const uint64_t * base, uint32x4_t table, uint32x4_t & state, const uint8_t *& next_word) {
    constexpr uint32_t shift   = prob_bits - log2_buckets_;
    const uint32x4_t   mask_10 = vdupq_n_u32(prob_scale - 1);

    const uint32x4_t slot  = vandq_u32(state, mask_10);
    const entries    entry = load_entries(base, vaddq_u32(table, vshrq_n_u32(slot, shift)));
    const uint32x4_t u     = vandq_u32(slot, vdupq_n_u32((1 << shift) - 1));

    const uint32x4_t is_own = vcltq_u32(u, vshrq_n_u32(entry.low, 26));
    const uint32x4_t half   = vbslq_u32(is_own, entry.low, entry.high);
    const uint32x4_t rank   = vandq_u32(vaddq_u32(u, vshrq_n_u32(half, 10)), mask_10);

    const uint32x4_t quotient = vshrq_n_u32(state, prob_bits);
    const uint32x4_t x = vmlaq_u32(vaddq_u32(quotient, rank), vandq_u32(half, mask_10), quotient); // frequency - 1

    const uint32x4_t needs = vcltq_u32(x, vdupq_n_u32(state_low));
    const uint32_t   sum   = vaddvq_u32(vandq_u32(needs, vld1q_u32(lane_sums)));
    const uint8x16_t words =
        vqtbl1q_u8(vcombine_u8(vld1_u8(next_word), vdup_n_u8(0)), vld1q_u8(shuffles.bytes[sum & 15]));
    const uint32x4_t with_word = vsliq_n_u32(vreinterpretq_u32_u8(words), x, 16);
    state                      = vbslq_u32(needs, with_word, x);
    next_word += sum >> 4;
    return vandq_u32(vshrq_n_u32(half, 20), vdupq_n_u32(63));
}

// Classes of 16 symbols.
template <uint32_t log2_buckets_> inline uint8x16_t classes_of(uint8x16_t symbols, const uint8x16x4_t & class_of) {
    if constexpr (log2_buckets_ == 4) {
        return vqtbl1q_u8(class_of.val[0], symbols);
    } else if constexpr (log2_buckets_ == 5) {
        return vqtbl2q_u8({ class_of.val[0], class_of.val[1] }, symbols);
    } else {
        return vqtbl4q_u8(class_of, symbols);
    }
}

// tables[0 .. 3] of 16 lanes: those of their models and classes
template <uint32_t log2_buckets_>
inline void choose_tables(const uint32x4_t * models, uint8x16_t classes, uint32x4_t * tables) {
    const uint16x8_t offset_0 = vshll_n_u8(vget_low_u8(classes), log2_buckets_);
    const uint16x8_t offset_1 = vshll_high_n_u8(classes, log2_buckets_);
    tables[0]                 = vaddw_u16(models[0], vget_low_u16(offset_0));
    tables[1]                 = vaddw_high_u16(models[1], offset_0);
    tables[2]                 = vaddw_u16(models[2], vget_low_u16(offset_1));
    tables[3]                 = vaddw_high_u16(models[3], offset_1);
}

template <uint32_t log2_buckets_, bool has_context>
bool decode(group_stream & stream, uint32_t n_tokens, uint8_t * symbols) {
    const set_tables & set  = *stream.tables;
    const uint64_t *   base = set.buckets;

    uint8x16x4_t class_of;
    uint32x4_t   states[n_vectors];
    uint32x4_t   models[n_vectors];
    uint32x4_t   tables[n_vectors];
    for (uint32_t i = 0; i < 4; i++) {
        class_of.val[i] = vld1q_u8(set.class_of + 16 * i);
    }
    for (uint32_t v = 0; v < n_vectors; v++) {
        states[v] = vld1q_u32(stream.state + 4 * v);
        models[v] = vld1q_u32(stream.model_offset + 4 * v);
    }
    choose_tables<log2_buckets_>(models, vld1q_u8(stream.last_symbol_class), tables);
    choose_tables<log2_buckets_>(models + 4, vld1q_u8(stream.last_symbol_class + 16), tables + 4);

    // a step takes 32 words at most, and no vector reads more than the four it may take
    constexpr int64_t n_safe_bytes = 2 * n_lanes;

    const uint8_t * next_word = stream.next_word;
    uint32_t        t         = 0;
    for (; t < n_tokens && stream.end_of_readable - next_word >= n_safe_bytes; t++) {
        for (uint32_t v = 0; v < n_vectors; v += 4) {
            uint16x8_t pairs[2];
            for (uint32_t i = 0; i < 2; i++) {
                const uint32x4_t first = step<log2_buckets_>(base, tables[v + 2 * i], states[v + 2 * i], next_word);
                const uint32x4_t second =
                    step<log2_buckets_>(base, tables[v + 2 * i + 1], states[v + 2 * i + 1], next_word);
                pairs[i] = vuzp1q_u16(vreinterpretq_u16_u32(first), vreinterpretq_u16_u32(second));
            }
            const uint8x16_t bytes = vuzp1q_u8(vreinterpretq_u8_u16(pairs[0]), vreinterpretq_u8_u16(pairs[1]));
            vst1q_u8(symbols + size_t{ t } * n_lanes + 4 * v, bytes);
            if constexpr (has_context) {
                choose_tables<log2_buckets_>(models + v, classes_of<log2_buckets_>(bytes, class_of), tables + v);
            }
        }
    }

    for (uint32_t v = 0; v < n_vectors; v++) {
        vst1q_u32(stream.state + 4 * v, states[v]);
    }
    stream.next_word = next_word;
    for (uint32_t lane = 0; lane < n_lanes && t > 0; lane++) {
        stream.last_symbol_class[lane] = set.class_of[symbols[size_t{ t - 1 } * n_lanes + lane]];
    }
    return stream.next_word <= stream.end_of_words &&
           (t == n_tokens || decode_symbols_scalar(&stream, 1, n_tokens - t, symbols + size_t{ t } * n_lanes));
}

// one group after another: eight vectors are enough to keep a processor busy, and all that its registers hold
template <uint32_t log2_buckets_, bool has_context>
bool decode_all(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols) {
    for (uint32_t i = 0; i < n_streams; i++) {
        if (!decode<log2_buckets_, has_context>(streams[i], n_tokens, symbols + size_t{ i } * n_tokens * n_lanes)) {
            return false;
        }
    }
    return true;
}

} // namespace

bool decode_symbols_neon(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols) {
    const bool has_context = streams[0].tables->n_classes > 1;
    switch (streams[0].tables->log2_n_buckets) {
        case 4:
            return (has_context ? decode_all<4, true> : decode_all<4, false>) (streams, n_streams, n_tokens, symbols);
        case 5:
            return (has_context ? decode_all<5, true> : decode_all<5, false>) (streams, n_streams, n_tokens, symbols);
        default:
            return (has_context ? decode_all<6, true> : decode_all<6, false>) (streams, n_streams, n_tokens, symbols);
    }
}

} // namespace cachegen::lcg3

#endif
