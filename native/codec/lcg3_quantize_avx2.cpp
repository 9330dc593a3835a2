// Values to symbols with AVX2.
#include "lcg3_quantize.h"

#ifdef CACHEGEN_AVX2

#    include <immintrin.h>

namespace cachegen::lcg3 {

namespace {

float max_magnitude(const float * values, uint64_t n) {
    // for numbers that are not negative the order of the bit patterns is that of the numbers, infinities and NaN last
    __m256i  largest = _mm256_setzero_si256();
    uint64_t i       = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(values + i));
        largest            = _mm256_max_epu32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    alignas(32) float lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i *>(lanes), largest);
    const float rest   = i < n ? scalar_quantizer.max_magnitude(values + i, n - i) : 0.0f;
    const float vector = scalar_quantizer.max_magnitude(lanes, 8);
    const float both[] = { rest, vector };
    return scalar_quantizer.max_magnitude(both, 2);
}

void quantize_row(const float * values, uint64_t n, float scale, uint32_t n_symbols, uint8_t * symbols,
                  uint64_t group_stride) {
    const float  centre  = static_cast<float>(n_symbols / 2);
    const __m256 centres = _mm256_set1_ps(centre);
    const __m256 factors = _mm256_set1_ps(quantizer_factor(centre, scale));
    uint64_t     i       = 0;
    for (; i + 32 <= n; i += 32, symbols += group_stride) {
        __m256i codes[4];
        for (uint32_t v = 0; v < 4; v++) {
            const __m256 x       = _mm256_loadu_ps(values + i + 8 * size_t{ v });
            const __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, factors), centres);
            const __m256 clamped =
                _mm256_min_ps(_mm256_max_ps(shifted, _mm256_setzero_ps()), _mm256_add_ps(centres, centres));
            codes[v] = _mm256_and_si256(_mm256_castps_si256(_mm256_add_ps(clamped, _mm256_set1_ps(round_by))),
                                        _mm256_set1_epi32(0xff));
        }
        const __m256i bytes =
            _mm256_packus_epi16(_mm256_packus_epi32(codes[0], codes[1]), _mm256_packus_epi32(codes[2], codes[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(symbols),
                            _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    }
    if (i < n) {
        scalar_quantizer.quantize_row(values + i, n - i, scale, n_symbols, symbols, group_stride);
    }
}

} // namespace

const row_quantizer avx2_quantizer = { max_magnitude, quantize_row };

} // namespace cachegen::lcg3

#endif
