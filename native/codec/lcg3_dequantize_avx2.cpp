#include "lcg3_dequantize.h"

#ifdef CACHEGEN_AVX2

#    include <immintrin.h>

namespace cachegen::lcg3 {

namespace {

// a table of 8 x n_tables levels, looked up by 8 symbols
template <uint32_t n_tables> inline __m256 look_up(const __m256 * tables, __m256i symbols) {
    __m256 level = _mm256_permutevar8x32_ps(tables[0], symbols);
    if constexpr (n_tables >= 2) {
        const __m256 upper = _mm256_permutevar8x32_ps(tables[1], symbols);
        level              = _mm256_blendv_ps(level, upper, _mm256_castsi256_ps(_mm256_slli_epi32(symbols, 28)));
    }
    if constexpr (n_tables >= 4) {
        __m256 upper = _mm256_permutevar8x32_ps(tables[2], symbols);
        upper        = _mm256_blendv_ps(upper, _mm256_permutevar8x32_ps(tables[3], symbols),
                                        _mm256_castsi256_ps(_mm256_slli_epi32(symbols, 28)));
        level        = _mm256_blendv_ps(level, upper, _mm256_castsi256_ps(_mm256_slli_epi32(symbols, 27)));
    }
    return level;
}

template <uint32_t n_tables> void run(const uint8_t * symbols, const float * levels, const float * scales,
                                      uint64_t n_tokens, float * values, uint64_t value_stride) {
    __m256 tables[n_tables];
    for (uint32_t i = 0; i < n_tables; i++) {
        tables[i] = _mm256_loadu_ps(levels + 8 * i);
    }
    for (uint64_t t = 0; t < n_tokens; t++) {
        const __m256 scale = _mm256_set1_ps(scales[t]);
        for (uint32_t v = 0; v < 4; v++) {
            const __m256i symbol =
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(symbols + t * 32 + 8 * v)));
            _mm256_storeu_ps(values + t * value_stride + 8 * v,
                             _mm256_mul_ps(look_up<n_tables>(tables, symbol), scale));
        }
    }
}

} // namespace

void dequantize_avx2(const uint8_t * symbols, const float * levels, const float * scales, uint64_t n_tokens,
                     float * values, uint64_t value_stride) {
    // levels above the last used one are zero, so the highest that is not tells how many tables there are
    uint32_t n_levels = 64;
    while (n_levels > 16 && levels[n_levels - 1] == 0) {
        n_levels--;
    }
    if (n_levels <= 16) {
        run<2>(symbols, levels, scales, n_tokens, values, value_stride);
    } else if (n_levels <= 32) {
        run<4>(symbols, levels, scales, n_tokens, values, value_stride);
    } else {
        dequantize_scalar(symbols, levels, scales, n_tokens, values, value_stride);
    }
}

} // namespace cachegen::lcg3

#endif
