#include "lcg3_dequantize.h"

#ifdef CACHEGEN_AVX2

#    include <immintrin.h>

namespace cachegen::lcg3 {

namespace {

// levels of 8 symbols, from n_tables tables of 8 levels
template <uint32_t n_tables> inline __m256 look_up(const __m256 * tables, __m256i symbols) {
    if constexpr (n_tables == 1) {
        return _mm256_permutevar8x32_ps(tables[0], symbols);
    } else {
        // the bit that chooses between the halves goes to the sign
        constexpr int shift = n_tables == 2 ? 28 : n_tables == 4 ? 27 : 26;
        const __m256  low   = look_up<n_tables / 2>(tables, symbols);
        const __m256  high  = look_up<n_tables / 2>(tables + n_tables / 2, symbols);
        return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(symbols, shift)));
    }
}

// calls store(t, v, 8 values) for every token and quarter of the group
template <uint32_t n_tables, typename Store> inline void run_tables(const uint8_t * symbols, const float * levels,
                                                                    const float * scales, uint64_t n_tokens,
                                                                    const Store & store) {
    __m256 tables[n_tables];
    for (uint32_t i = 0; i < n_tables; i++) {
        tables[i] = _mm256_loadu_ps(levels + 8 * i);
    }
    for (uint64_t t = 0; t < n_tokens; t++) {
        const __m256 scale = _mm256_set1_ps(scales[t]);
        for (uint32_t v = 0; v < 4; v++) {
            const __m256i symbol =
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(symbols + t * 32 + 8 * v)));
            store(t, v, _mm256_mul_ps(look_up<n_tables>(tables, symbol), scale));
        }
    }
}

template <typename Store> inline void run(const uint8_t * symbols, const float * levels, uint32_t n_levels,
                                          const float * scales, uint64_t n_tokens, const Store & store) {
    if (n_levels <= 16) {
        run_tables<2>(symbols, levels, scales, n_tokens, store);
    } else if (n_levels <= 32) {
        run_tables<4>(symbols, levels, scales, n_tokens, store);
    } else {
        run_tables<8>(symbols, levels, scales, n_tokens, store);
    }
}

} // namespace

void dequantize_avx2(const uint8_t * symbols, const float * levels, uint32_t n_levels, const float * scales,
                     uint64_t n_tokens, float * values, uint64_t value_stride) {
    run(symbols, levels, n_levels, scales, n_tokens,
        [&](uint64_t t, uint32_t v, __m256 x) { _mm256_storeu_ps(values + t * value_stride + 8 * v, x); });
}

namespace {

// 32 bytes out of a table of 16 * n_tables bytes, each half of a register holding the same 16
template <uint32_t n_tables> inline __m256i look_up_bytes(const __m256i * tables, __m256i symbols) {
    if constexpr (n_tables == 1) {
        return _mm256_shuffle_epi8(tables[0], symbols);
    } else {
        // bit 4 or 5 of the symbol goes to bit 7 of its byte
        const __m256i which = _mm256_slli_epi16(symbols, n_tables == 2 ? 3 : 2);
        return _mm256_blendv_epi8(look_up_bytes<n_tables / 2>(tables, symbols),
                                  look_up_bytes<n_tables / 2>(tables + n_tables / 2, symbols), which);
    }
}

// 32 F16 values
template <uint32_t n_tables>
inline void look_up_32(const uint8_t * symbols, const __m256i * lower, const __m256i * upper, uint8_t * values) {
    // lanes 0-7 and 16-23 into the lower half, so that interleaving keeps their order
    const __m256i symbol = _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(symbols)),
                                                    _MM_SHUFFLE(3, 1, 2, 0));
    const __m256i low    = look_up_bytes<n_tables>(lower, symbol);
    const __m256i high   = look_up_bytes<n_tables>(upper, symbol);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(values), _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(values + 32), _mm256_unpackhi_epi8(low, high));
}

template <uint32_t n_tables> void look_up_rows(const uint8_t * symbols, const uint8_t * tables, uint64_t n_tokens,
                                               uint8_t * rows, uint64_t stride_bytes, const uint32_t * cells) {
    for (uint64_t t = 0; t < n_tokens; t++, symbols += 32, tables += row_table_bytes) {
        __m256i lower[n_tables];
        __m256i upper[n_tables];
        for (uint32_t i = 0; i < n_tables; i++) {
            lower[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(tables + 16 * i)));
            upper[i] =
                _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(tables + 64 + 16 * i)));
        }
        look_up_32<n_tables>(symbols, lower, upper, rows + (cells ? cells[t] : t) * stride_bytes);
    }
}

// 16 F16 numbers of 16 F32 ones as 16 lower bytes and 16 upper bytes; none is a NaN
inline void split(const float * values, uint8_t * lower, uint8_t * upper) {
    const auto half = [](const float * x) {
        return _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    };
    const __m128i a    = half(values);
    const __m128i b    = half(values + 8);
    const __m128i mask = _mm_set1_epi16(0xff);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(lower),
                     _mm_packus_epi16(_mm_and_si128(a, mask), _mm_and_si128(b, mask)));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(upper), _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
}

// a table is 64 lower bytes and 64 upper bytes
void make_tables(const float * levels, uint32_t n_levels, const float * scales, uint64_t n_tokens, uint8_t * tables) {
    for (uint64_t t = 0; t < n_tokens; t++, tables += row_table_bytes) {
        alignas(32) float values[16];
        for (uint32_t i = 0; i < n_levels; i += 16) {
            const __m256 scale = _mm256_set1_ps(scales[t]);
            _mm256_store_ps(values, _mm256_mul_ps(_mm256_loadu_ps(levels + i), scale));
            _mm256_store_ps(values + 8, _mm256_mul_ps(_mm256_loadu_ps(levels + i + 8), scale));
            split(values, tables + i, tables + 64 + i);
        }
    }
}

void look_up_any(const uint8_t * symbols, uint32_t n_levels, const uint8_t * tables, uint64_t n_tokens, uint8_t * rows,
                 uint64_t stride_bytes, const uint32_t * cells) {
    if (n_levels <= 16) {
        look_up_rows<1>(symbols, tables, n_tokens, rows, stride_bytes, cells);
    } else if (n_levels <= 32) {
        look_up_rows<2>(symbols, tables, n_tokens, rows, stride_bytes, cells);
    } else {
        look_up_rows<4>(symbols, tables, n_tokens, rows, stride_bytes, cells);
    }
}

template <uint32_t n_tables>
void look_up_32s(const uint8_t * symbols, uint64_t n, const uint8_t * table, uint8_t * row) {
    __m256i lower[n_tables];
    __m256i upper[n_tables];
    for (uint32_t i = 0; i < n_tables; i++) {
        lower[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table + 16 * i)));
        upper[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table + 64 + 16 * i)));
    }
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        look_up_32<n_tables>(symbols + i, lower, upper, row + 2 * i);
    }
    for (; i < n; i++) {
        row[2 * i]     = table[symbols[i]];
        row[2 * i + 1] = table[64 + symbols[i]];
    }
}

void look_up_row(const uint8_t * symbols, uint64_t n, uint32_t n_levels, const uint8_t * table, uint8_t * row) {
    (n_levels <= 16 ? look_up_32s<1> : n_levels <= 32 ? look_up_32s<2> : look_up_32s<4>) (symbols, n, table, row);
}

} // namespace

const fp16_look_up avx2_fp16_look_up = { make_tables, look_up_any, look_up_row };

} // namespace cachegen::lcg3

#endif
