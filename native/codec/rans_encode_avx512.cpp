// LCG3 word streams with AVX-512: two vectors of sixteen lanes, from the last token to the first.
#include "rans_encode.h"

#ifdef CACHEGEN_AVX512

#    include <cstring>

#    include <immintrin.h>

namespace cachegen::lcg3 {

namespace {

inline __m512i bytes_to_lanes(const uint8_t * bytes) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes)));
}

// Sixteen symbols of the encoder's tables: their reciprocals, and the rest. Loads are quicker than gather instructions.
struct entries {
    __m512i reciprocal;
    __m512i rest;
};

inline entries load_entries(const uint64_t * base, __m512i index) {
    alignas(64) uint32_t i[16];
    _mm512_store_si512(i, index);
    const auto pair = [&](uint32_t a) {
        const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(base + i[a]));
        return _mm_castps_si128(
            _mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64 *>(base + i[a + 1])));
    };
    const auto eight = [&](uint32_t a) { // lanes a, a + 1, a + 4, a + 5, a + 8, a + 9, a + 12, a + 13
        const __m256i first  = _mm256_inserti128_si256(_mm256_castsi128_si256(pair(a)), pair(a + 4), 1);
        const __m256i second = _mm256_inserti128_si256(_mm256_castsi128_si256(pair(a + 8)), pair(a + 12), 1);
        return _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
    };
    const __m512 e_0 = eight(0);
    const __m512 e_1 = eight(2);
    return { _mm512_castps_si512(_mm512_shuffle_ps(e_0, e_1, 0x88)),
             _mm512_castps_si512(_mm512_shuffle_ps(e_0, e_1, 0xdd)) };
}

template <uint32_t n_groups> bool encode(const set_encoder & encoder, group_words * groups, uint32_t n_tokens) {
    const auto * const     table       = reinterpret_cast<const uint64_t *>(encoder.symbols.data());
    const uint16_t * const slots       = encoder.slots.data();
    const __m128i          log2_stride = _mm_cvtsi32_si128(static_cast<int>(encoder.log2_stride));
    const __m512i          classes     = _mm512_loadu_si512(encoder.class_of);

    __m512i    state[2 * n_groups];
    __m512i    model[2 * n_groups];
    uint16_t * next[n_groups];
    for (uint32_t v = 0; v < 2 * n_groups; v++) {
        state[v]    = _mm512_set1_epi32(state_low);
        model[v]    = _mm512_mullo_epi32(bytes_to_lanes(groups[v / 2].models + 16 * (v % 2)),
                                         _mm512_set1_epi32(static_cast<int>(encoder.n_classes)));
        next[v / 2] = groups[v / 2].end;
    }
    const __m512i mask_16  = _mm512_set1_epi32(0xffff);
    __mmask16     not_zero = 0xffff;
    for (uint32_t t = n_tokens; t-- > 0;) {
#    pragma GCC unroll 2
        for (int half = 1; half >= 0; half--) {
#    pragma GCC unroll 2
            for (uint32_t g = 0; g < n_groups; g++) {
                const uint32_t  v   = 2 * g + static_cast<uint32_t>(half);
                const uint8_t * row = groups[g].symbols + size_t{ t } * n_lanes + 16 * half;
                __m512i         distribution;
                if (t > 0) {
                    const __m512i before = bytes_to_lanes(row - n_lanes);
                    // bytes 1 to 3 of a lane look up the class of symbol 0, which is 0
                    distribution         = _mm512_add_epi32(model[v], _mm512_permutexvar_epi8(before, classes));
                } else {
                    distribution = _mm512_add_epi32(model[v], _mm512_set1_epi32(encoder.initial_class));
                }
                const entries entry = load_entries(
                    table, _mm512_add_epi32(_mm512_sll_epi32(distribution, log2_stride), bytes_to_lanes(row)));
                const __m512i frequency  = _mm512_and_si512(entry.rest, mask_16);
                const __m512i first_slot = _mm512_srli_epi32(entry.rest, 16);
                not_zero &= _mm512_test_epi32_mask(frequency, frequency);

                __m512i         x     = state[v];
                const __mmask16 gives = _mm512_cmple_epu32_mask(frequency, _mm512_srli_epi32(x, 32 - prob_bits));
                const uint32_t  n     = static_cast<uint32_t>(_mm_popcnt_u32(gives));
                const __m256i   words = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(gives, x));
                next[g] -= n;
                _mm256_mask_storeu_epi16(next[g], static_cast<__mmask16>((1u << n) - 1), words);
                x = _mm512_mask_srli_epi32(x, gives, x, 16);

                const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, entry.reciprocal), 32);
                const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(entry.reciprocal, 32));
                __m512i       quotient   = _mm512_mask_blend_epi32(0xaaaa, even, odd);
                __m512i       rank       = _mm512_sub_epi32(x, _mm512_mullo_epi32(quotient, frequency));
                const __mmask16 is_short = _mm512_cmpge_epu32_mask(rank, frequency);
                quotient                 = _mm512_mask_add_epi32(quotient, is_short, quotient, _mm512_set1_epi32(1));
                rank                     = _mm512_mask_sub_epi32(rank, is_short, rank, frequency);

                const __m512i index = _mm512_add_epi32(
                    _mm512_slli_epi32(distribution, prob_bits),
                    _mm512_and_si512(_mm512_add_epi32(first_slot, rank), _mm512_set1_epi32(prob_scale - 1)));
                // a gather reads four bytes, of which two are the slot
                const __m512i slot = _mm512_and_si512(_mm512_i32gather_epi32(index, slots, 2), mask_16);
                state[v]           = _mm512_or_si512(_mm512_slli_epi32(quotient, prob_bits), slot);
            }
        }
    }
    for (uint32_t v = 0; v < 2 * n_groups; v++) {
        _mm512_storeu_si512(groups[v / 2].states + 16 * (v % 2), state[v]);
        groups[v / 2].begin = next[v / 2];
    }
    return not_zero == 0xffff;
}

} // namespace

bool encode_groups_avx512(const set_encoder & encoder, group_words * groups, uint32_t n_groups, uint32_t n_tokens) {
    for (; n_groups >= 2; n_groups -= 2, groups += 2) {
        if (!encode<2>(encoder, groups, n_tokens)) {
            return false;
        }
    }
    return n_groups == 0 || encode<1>(encoder, groups, n_tokens);
}

} // namespace cachegen::lcg3

#endif
