// Symbols and scales to values with AVX-512.
#include "lcg3_dequantize.h"

#ifdef CACHEGEN_AVX512

#    include <immintrin.h>

namespace cachegen::lcg3 {

namespace {

// levels of 16 symbols out of 16, 32 or 64
template <uint32_t n_tables> inline __m512 level_of(const __m512 * tables, __m512i symbols) {
    if constexpr (n_tables == 1) {
        return _mm512_permutexvar_ps(symbols, tables[0]);
    } else if constexpr (n_tables == 2) {
        return _mm512_permutex2var_ps(tables[0], symbols, tables[1]);
    } else {
        const __mmask16 is_upper = _mm512_test_epi32_mask(symbols, _mm512_set1_epi32(32));
        return _mm512_mask_blend_ps(is_upper, level_of<2>(tables, symbols), level_of<2>(tables + 2, symbols));
    }
}

template <uint32_t n_tables> void run(const uint8_t * symbols, const float * levels, const float * scales,
                                      uint64_t n_tokens, float * values, uint64_t value_stride) {
    __m512 tables[n_tables];
    for (uint32_t i = 0; i < n_tables; i++) {
        tables[i] = _mm512_loadu_ps(levels + 16 * i);
    }
    for (uint64_t t = 0; t < n_tokens; t++, symbols += 32, values += value_stride) {
        const __m512 scale = _mm512_set1_ps(scales[t]);
        for (uint32_t v = 0; v < 2; v++) {
            const __m512i symbol =
                _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(symbols + 16 * size_t{ v })));
            _mm512_storeu_ps(values + 16 * size_t{ v }, _mm512_mul_ps(level_of<n_tables>(tables, symbol), scale));
        }
    }
}

// a table is 64 F16 numbers
void make_tables(const float * levels, uint32_t n_levels, const float * scales, uint64_t n_tokens, uint8_t * tables) {
    for (uint64_t t = 0; t < n_tokens; t++, tables += row_table_bytes) {
        const __m512 scale = _mm512_set1_ps(scales[t]);
        for (uint32_t i = 0; i < n_levels; i += 16) {
            const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(levels + i), scale);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(tables + 2 * size_t{ i }),
                                _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        }
    }
}

template <bool is_wide> void look_up_rows(const uint8_t * symbols, const uint8_t * tables, uint64_t n_tokens,
                                          uint8_t * rows, uint64_t stride_bytes, const uint32_t * cells) {
    for (uint64_t t = 0; t < n_tokens; t++, symbols += 32, tables += row_table_bytes) {
        const __m512i symbol = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(symbols)));
        const __m512i lower  = _mm512_loadu_si512(tables);
        __m512i       values;
        if constexpr (is_wide) {
            values = _mm512_permutex2var_epi16(lower, symbol, _mm512_loadu_si512(tables + 64));
        } else {
            values = _mm512_permutexvar_epi16(symbol, lower);
        }
        _mm512_storeu_si512(rows + (cells ? cells[t] : t) * stride_bytes, values);
    }
}

void look_up_any(const uint8_t * symbols, uint32_t n_levels, const uint8_t * tables, uint64_t n_tokens, uint8_t * rows,
                 uint64_t stride_bytes, const uint32_t * cells) {
    (n_levels <= 32 ? look_up_rows<false> : look_up_rows<true>) (symbols, tables, n_tokens, rows, stride_bytes, cells);
}

void look_up_row(const uint8_t * symbols, uint64_t n, uint32_t n_levels, const uint8_t * table, uint8_t * row) {
    const __m512i lower   = _mm512_loadu_si512(table);
    const __m512i upper   = _mm512_loadu_si512(table + 64);
    const bool    is_wide = n_levels > 32;
    for (uint64_t i = 0; i < n; i += 32) {
        const uint64_t  n_now  = n - i < 32 ? n - i : 32;
        const __mmask32 mask   = n_now == 32 ? 0xffffffffu : (1u << n_now) - 1;
        const __m512i   symbol = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, symbols + i));
        const __m512i   values =
            is_wide ? _mm512_permutex2var_epi16(lower, symbol, upper) : _mm512_permutexvar_epi16(symbol, lower);
        _mm512_mask_storeu_epi16(row + 2 * i, mask, values);
    }
}

} // namespace

void dequantize_avx512(const uint8_t * symbols, const float * levels, uint32_t n_levels, const float * scales,
                       uint64_t n_tokens, float * values, uint64_t value_stride) {
    (n_levels <= 16   ? run<1>
     : n_levels <= 32 ? run<2>
                      : run<4>) (symbols, levels, scales, n_tokens, values, value_stride);
}

const fp16_look_up avx512_fp16_look_up = { make_tables, look_up_any, look_up_row };

} // namespace cachegen::lcg3

#endif
