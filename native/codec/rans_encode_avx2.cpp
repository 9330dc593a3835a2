// LCG3 word streams with AVX2: four vectors of eight lanes, from the last token to the first.
#include "rans_encode.h"

#ifdef CACHEGEN_AVX2

#    include <cstring>

#    include <immintrin.h>

namespace cachegen::lcg3 {

namespace {

// For each set of lanes that give a word: a byte shuffle that puts their words, in order, at the end of a vector.
struct word_shuffles {
    alignas(16) uint8_t bytes[256][16];

    constexpr word_shuffles() : bytes() {
        for (uint32_t mask = 0; mask < 256; mask++) {
            uint32_t at = 16;
            for (uint32_t lane = 8; lane-- > 0;) {
                if (mask >> lane & 1) {
                    bytes[mask][--at] = static_cast<uint8_t>(2 * lane + 1);
                    bytes[mask][--at] = static_cast<uint8_t>(2 * lane);
                }
            }
            while (at > 0) {
                bytes[mask][--at] = 0x80;
            }
        }
    }
};

constexpr word_shuffles shuffles;

inline __m256i bytes_to_lanes(const uint8_t * bytes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(bytes)));
}

// classes of 32 symbols, from tables of 16 classes each
inline __m256i classes_of(const __m256i * tables, __m256i symbols, uint32_t log2_n_symbols) {
    __m256i result = _mm256_shuffle_epi8(tables[0], symbols);
    if (log2_n_symbols > 4) {
        const __m256i bit_4 = _mm256_slli_epi16(symbols, 3); // into bit 7 of its byte
        result              = _mm256_blendv_epi8(result, _mm256_shuffle_epi8(tables[1], symbols), bit_4);
        if (log2_n_symbols > 5) {
            const __m256i upper = _mm256_blendv_epi8(_mm256_shuffle_epi8(tables[2], symbols),
                                                     _mm256_shuffle_epi8(tables[3], symbols), bit_4);
            result              = _mm256_blendv_epi8(result, upper, _mm256_slli_epi16(symbols, 2));
        }
    }
    return result;
}

bool encode_one(const set_encoder & encoder, group_words & group, uint32_t n_tokens) {
    const auto * const     table       = reinterpret_cast<const uint64_t *>(encoder.symbols.data());
    const uint16_t * const slots       = encoder.slots.data();
    const __m128i          log2_stride = _mm_cvtsi32_si128(static_cast<int>(encoder.log2_stride));

    __m256i state[4];
    __m256i model[4];
    for (int v = 0; v < 4; v++) {
        state[v] = _mm256_set1_epi32(state_low);
        model[v] = _mm256_mullo_epi32(bytes_to_lanes(group.models + 8 * v),
                                      _mm256_set1_epi32(static_cast<int>(encoder.n_classes)));
    }
    __m256i classes[4];
    for (int i = 0; i < 4; i++) {
        classes[i] =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(encoder.class_of + 16 * i)));
    }
    const __m256i mask_16  = _mm256_set1_epi32(0xffff);
    __m256i       not_zero = _mm256_set1_epi32(-1);
    uint16_t *    next     = group.end;
    for (uint32_t t = n_tokens; t-- > 0;) {
        const uint8_t *     row = group.symbols + size_t{ t } * n_lanes;
        alignas(32) uint8_t context[n_lanes];
        if (t > 0) {
            const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(row - n_lanes));
            _mm256_store_si256(reinterpret_cast<__m256i *>(context), classes_of(classes, before, encoder.log2_stride));
        } else {
            memset(context, encoder.initial_class, sizeof(context));
        }
#    pragma GCC unroll 4
        for (int v = 3; v >= 0; v--) {
            const __m256i        distribution = _mm256_add_epi32(model[v], bytes_to_lanes(context + 8 * v));
            alignas(32) uint32_t i[8];
            _mm256_store_si256(
                reinterpret_cast<__m256i *>(i),
                _mm256_add_epi32(_mm256_sll_epi32(distribution, log2_stride), bytes_to_lanes(row + 8 * v)));
            const auto pair = [&](uint32_t a, uint32_t b) {
                const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(table + i[a]));
                return _mm_castps_si128(
                    _mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64 *>(table + i[b])));
            };
            const __m256 e_0 =
                _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(pair(0, 1)), pair(4, 5), 1));
            const __m256 e_1 =
                _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(pair(2, 3)), pair(6, 7), 1));
            const __m256i reciprocal = _mm256_castps_si256(_mm256_shuffle_ps(e_0, e_1, 0x88));
            const __m256i rest       = _mm256_castps_si256(_mm256_shuffle_ps(e_0, e_1, 0xdd));
            const __m256i frequency  = _mm256_and_si256(rest, mask_16);
            const __m256i first_slot = _mm256_srli_epi32(rest, 16);
            not_zero = _mm256_and_si256(not_zero, _mm256_cmpgt_epi32(frequency, _mm256_setzero_si256()));

            __m256i        x     = state[v];
            const __m256i  keeps = _mm256_cmpgt_epi32(frequency, _mm256_srli_epi32(x, 32 - prob_bits));
            const uint32_t mask  = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(keeps))) ^ 0xff;
            const __m256i  low   = _mm256_and_si256(x, mask_16);
            const __m128i  words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
            _mm_storeu_si128(
                reinterpret_cast<__m128i *>(next - 8),
                _mm_shuffle_epi8(words, _mm_load_si128(reinterpret_cast<const __m128i *>(shuffles.bytes[mask]))));
            next -= _mm_popcnt_u32(mask);
            x = _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, keeps);

            const __m256i even     = _mm256_srli_epi64(_mm256_mul_epu32(x, reciprocal), 32);
            const __m256i odd      = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(reciprocal, 32));
            __m256i       quotient = _mm256_blend_epi32(even, odd, 0xaa);
            __m256i       rank     = _mm256_sub_epi32(x, _mm256_mullo_epi32(quotient, frequency));
            const __m256i is_exact = _mm256_cmpgt_epi32(frequency, rank);
            quotient               = _mm256_add_epi32(quotient, _mm256_add_epi32(is_exact, _mm256_set1_epi32(1)));
            rank                   = _mm256_sub_epi32(rank, _mm256_andnot_si256(is_exact, frequency));

            _mm256_store_si256(reinterpret_cast<__m256i *>(i),
                               _mm256_add_epi32(_mm256_slli_epi32(distribution, prob_bits),
                                                _mm256_and_si256(_mm256_add_epi32(first_slot, rank),
                                                                 _mm256_set1_epi32(prob_scale - 1))));
            const __m128i slot = _mm_setr_epi16(static_cast<int16_t>(slots[i[0]]), static_cast<int16_t>(slots[i[1]]),
                                                static_cast<int16_t>(slots[i[2]]), static_cast<int16_t>(slots[i[3]]),
                                                static_cast<int16_t>(slots[i[4]]), static_cast<int16_t>(slots[i[5]]),
                                                static_cast<int16_t>(slots[i[6]]), static_cast<int16_t>(slots[i[7]]));
            state[v]           = _mm256_or_si256(_mm256_slli_epi32(quotient, prob_bits), _mm256_cvtepu16_epi32(slot));
        }
    }
    for (int v = 0; v < 4; v++) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(group.states + 8 * v), state[v]);
    }
    group.begin = next;
    return _mm256_movemask_epi8(not_zero) == -1;
}

} // namespace

bool encode_groups_avx2(const set_encoder & encoder, group_words * groups, uint32_t n_groups, uint32_t n_tokens) {
    for (uint32_t g = 0; g < n_groups; g++) {
        if (!encode_one(encoder, groups[g], n_tokens)) {
            return false;
        }
    }
    return true;
}

} // namespace cachegen::lcg3

#endif
