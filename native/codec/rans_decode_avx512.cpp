// LCG3 symbols with AVX-512: two vectors of sixteen lanes.
#include "rans_decode.h"

#ifdef CACHEGEN_AVX512

#    include <cstring>

#    include <immintrin.h>

namespace cachegen::lcg3 {

namespace {

// Sixteen table entries, their lower and upper halves. Loads are quicker than gather instructions.
struct entries {
    __m512i low;
    __m512i high;
};

inline entries load_entries(const uint64_t * base, __m512i index) {
    alignas(64) uint32_t i[16];
    _mm512_store_si512(i, index);
    const auto pair = [&](uint32_t a, uint32_t b) {
        const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(base + i[a]));
        return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64 *>(base + i[b])));
    };
    const auto eight = [&](uint32_t a) { // lanes a, a+1 | a+4, a+5 | a+8, a+9 | a+12, a+13
        const __m256i first = _mm256_inserti128_si256(_mm256_castsi128_si256(pair(a, a + 1)), pair(a + 4, a + 5), 1);
        const __m256i second =
            _mm256_inserti128_si256(_mm256_castsi128_si256(pair(a + 8, a + 9)), pair(a + 12, a + 13), 1);
        return _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
    };
    const __m512 e_0 = eight(0);
    const __m512 e_1 = eight(2);
    return { _mm512_castps_si512(_mm512_shuffle_ps(e_0, e_1, 0x88)),
             _mm512_castps_si512(_mm512_shuffle_ps(e_0, e_1, 0xdd)) };
}

// One vector of sixteen lanes takes one step.
template <uint32_t log2_buckets_>
inline __m512i step(const uint64_t * base, __m512i table, __m512i & state, const uint8_t *& next_word) {
    constexpr uint32_t shift   = prob_bits - log2_buckets_;
    const __m512i      mask_10 = _mm512_set1_epi32(prob_scale - 1);

    const __m512i slot  = _mm512_and_si512(state, mask_10);
    const entries entry = load_entries(base, _mm512_add_epi32(table, _mm512_srli_epi32(slot, shift)));
    const __m512i u     = _mm512_and_si512(slot, _mm512_set1_epi32((1 << shift) - 1));

    const __mmask16 is_own = _mm512_cmpgt_epu32_mask(_mm512_srli_epi32(entry.low, 26), u);
    const __m512i   half   = _mm512_mask_blend_epi32(is_own, entry.high, entry.low);
    const __m512i   rank   = _mm512_and_si512(_mm512_add_epi32(u, _mm512_srli_epi32(half, 10)), mask_10);

    const __m512i quotient = _mm512_srli_epi32(state, prob_bits);
    const __m512i product  = _mm512_mullo_epi32(_mm512_and_si512(half, mask_10), quotient); // of frequency - 1
    const __m512i x        = _mm512_add_epi32(product, _mm512_add_epi32(quotient, rank));

    const __mmask16 needs  = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(state_low));
    const __m512i   words  = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(next_word)));
    const __m512i   spread = _mm512_maskz_expand_epi32(needs, words);
    state                  = _mm512_or_si512(_mm512_mask_slli_epi32(x, needs, x, 16), spread);
    next_word += 2 * static_cast<size_t>(_mm_popcnt_u32(needs));
    return _mm512_and_si512(_mm512_srli_epi32(half, 20), _mm512_set1_epi32(63));
}

template <uint32_t log2_buckets_, bool has_context, uint32_t n_streams>
bool decode(group_stream * streams, uint32_t n_tokens, uint8_t * symbols) {
    const set_tables & tables = *streams[0].tables;
    const uint64_t *   base   = tables.buckets;

    // where in a model the tables of a symbol's class begin
    alignas(64) uint32_t class_offset[max_symbols];
    for (uint32_t s = 0; s < max_symbols; s++) {
        class_offset[s] = static_cast<uint32_t>(tables.class_of[s]) << log2_buckets_;
    }
    __m512i offsets[4];
    for (int i = 0; i < 4; i++) {
        offsets[i] = _mm512_load_si512(class_offset + 16 * i);
    }
    const auto offset_of = [&](__m512i symbol) {
        if constexpr (log2_buckets_ == 4) {
            return _mm512_permutexvar_epi32(symbol, offsets[0]);
        } else {
            const __m512i lower = _mm512_permutex2var_epi32(offsets[0], symbol, offsets[1]);
            if constexpr (log2_buckets_ == 5) {
                return lower;
            } else {
                const __m512i upper = _mm512_permutex2var_epi32(offsets[2], symbol, offsets[3]);
                return _mm512_mask_blend_epi32(_mm512_test_epi32_mask(symbol, _mm512_set1_epi32(32)), lower, upper);
            }
        }
    };

    __m512i         state[2 * n_streams];
    __m512i         model[2 * n_streams];
    __m512i         table[2 * n_streams];
    const uint8_t * next_word[n_streams];
    for (uint32_t v = 0; v < 2 * n_streams; v++) {
        const group_stream & stream = streams[v / 2];
        const uint32_t       lane   = 16 * (v % 2);
        state[v]                    = _mm512_loadu_si512(stream.state + lane);
        model[v]                    = _mm512_loadu_si512(stream.model_offset + lane);
        const __m512i classes =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(stream.last_symbol_class + lane)));
        table[v]         = _mm512_add_epi32(model[v], _mm512_slli_epi32(classes, log2_buckets_));
        next_word[v / 2] = stream.next_word;
    }

    // a step takes 32 words at most, and its last vector reads sixteen
    constexpr int64_t n_safe_bytes = 2 * (32 + 16);
    const auto        is_safe      = [&] {
        bool result = true;
        for (uint32_t i = 0; i < n_streams; i++) {
            result &= streams[i].end_of_readable - next_word[i] >= n_safe_bytes;
        }
        return result;
    };

    uint32_t t = 0;
    for (; t < n_tokens && is_safe(); t++) {
#    pragma GCC unroll 4
        for (uint32_t v = 0; v < 2 * n_streams; v++) {
            const __m512i symbol = step<log2_buckets_>(base, table[v], state[v], next_word[v / 2]);
            if constexpr (has_context) {
                table[v] = _mm512_add_epi32(model[v], offset_of(symbol));
            }
            uint8_t * const out = symbols + (size_t{ v / 2 } * n_tokens + t) * n_lanes + 16 * (v % 2);
            _mm_storeu_si128(reinterpret_cast<__m128i *>(out), _mm512_cvtepi32_epi8(symbol));
        }
    }

    for (uint32_t v = 0; v < 2 * n_streams; v++) {
        _mm512_storeu_si512(streams[v / 2].state + 16 * (v % 2), state[v]);
    }
    for (uint32_t i = 0; i < n_streams; i++) {
        group_stream & stream = streams[i];
        uint8_t *      own    = symbols + size_t{ i } * n_tokens * n_lanes;
        stream.next_word      = next_word[i];
        for (uint32_t lane = 0; lane < n_lanes && t > 0; lane++) {
            stream.last_symbol_class[lane] = tables.class_of[own[size_t{ t - 1 } * n_lanes + lane]];
        }
        if (stream.next_word > stream.end_of_words ||
            (t < n_tokens && !decode_symbols_scalar(&stream, 1, n_tokens - t, own + size_t{ t } * n_lanes))) {
            return false;
        }
    }
    return true;
}

template <uint32_t log2_buckets_, bool has_context>
bool decode_all(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols) {
    for (; n_streams >= 2; n_streams -= 2, streams += 2, symbols += size_t{ 2 } * n_tokens * n_lanes) {
        if (!decode<log2_buckets_, has_context, 2>(streams, n_tokens, symbols)) {
            return false;
        }
    }
    return n_streams == 0 || decode<log2_buckets_, has_context, 1>(streams, n_tokens, symbols);
}

} // namespace

bool decode_symbols_avx512(group_stream * streams, uint32_t n_streams, uint32_t n_tokens, uint8_t * symbols) {
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
