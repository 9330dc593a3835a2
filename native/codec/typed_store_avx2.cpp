// Typed rows with AVX2 and F16C.
#include "typed_store.h"

#ifdef CACHEGEN_AVX2

#    include "bytes.h"

#    include <immintrin.h>

namespace cachegen {

namespace {

inline __m256 load_floats(const float * values) {
    return _mm256_loadu_ps(values);
}

inline void store_16(uint8_t * to, __m128i value) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), value);
}

// as fp32_to_fp16(): the instruction keeps a NaN's upper bits, the contract is one quiet NaN a sign
inline __m128i fp16_of(__m256 x) {
    const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    if (_mm256_movemask_ps(is_nan) != 0) {
        const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
        x = _mm256_blendv_ps(x, _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000))), is_nan);
    }
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline __m128i bf16_of(__m256 x) {
    const __m256i bits   = _mm256_castps_si256(x);
    const __m256i upper  = _mm256_srli_epi32(bits, 16);
    const __m256i is_odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), is_odd)), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(64)), is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
}

void to_fp16(const float * values, uint64_t n, uint8_t * row) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        store_16(row + 2 * i, fp16_of(load_floats(values + i)));
    }
    for (; i < n; i++) {
        put_le<uint16_t>(row + 2 * i, fp32_to_fp16(values[i]));
    }
}

void to_bf16(const float * values, uint64_t n, uint8_t * row) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        store_16(row + 2 * i, bf16_of(load_floats(values + i)));
    }
    for (; i < n; i++) {
        put_le<uint16_t>(row + 2 * i, fp32_to_bf16(values[i]));
    }
}

// of eight magnitudes; in integers, where a NaN is larger than all numbers
inline float largest_of(__m256i x) {
    __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y         = _mm_max_epi32(y, _mm_shuffle_epi32(y, _MM_SHUFFLE(1, 0, 3, 2)));
    y         = _mm_max_epi32(y, _mm_shuffle_epi32(y, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtss_f32(_mm_castsi128_ps(y));
}

void to_q8_0(const float * values, uint64_t n, uint8_t * row) {
    const __m256 sign_bit   = _mm256_set1_ps(-0.0f);
    // the largest number below one half: added to a magnitude and cut off, it rounds halves away from zero
    const __m256 below_half = _mm256_set1_ps(0x1.fffffep-2f);
    for (uint64_t b = 0; b < n; b += 32, row += 34) {
        __m256  x[4];
        __m256i largest = _mm256_setzero_si256();
        for (int v = 0; v < 4; v++) {
            x[v]    = load_floats(values + b + 8 * v);
            largest = _mm256_max_epi32(largest, _mm256_castps_si256(_mm256_andnot_ps(sign_bit, x[v])));
        }
        const float magnitude = largest_of(largest);
        if (is_odd_block(magnitude)) {
            scalar_converters.to_q8_0(values + b, 32, row);
            continue;
        }
        const float scale   = magnitude / 127;
        const float inverse = inverse_scale(scale);
        put_le<uint16_t>(row, fp32_to_fp16(scale));

        __m256i codes[4];
        for (int v = 0; v < 4; v++) {
            const __m256 scaled = _mm256_mul_ps(x[v], _mm256_set1_ps(inverse));
            codes[v] =
                _mm256_cvttps_epi32(_mm256_add_ps(scaled, _mm256_or_ps(below_half, _mm256_and_ps(scaled, sign_bit))));
        }
        const __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(row + 2),
                            _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    }
}

void to_q4_0(const float * values, uint64_t n, uint8_t * row) {
    const __m256 sign_bit = _mm256_set1_ps(-0.0f);
    for (uint64_t b = 0; b < n; b += 32, row += 18) {
        __m256  x[4];
        __m256i largest = _mm256_setzero_si256();
        for (int v = 0; v < 4; v++) {
            x[v]    = load_floats(values + b + 8 * v);
            largest = _mm256_max_epi32(largest, _mm256_castps_si256(_mm256_andnot_ps(sign_bit, x[v])));
        }
        const float magnitude = largest_of(largest);
        // the first value of the largest magnitude decides the sign
        if (is_odd_block(magnitude)) {
            scalar_converters.to_q4_0(values + b, 32, row);
            continue;
        }
        uint32_t is_largest = 0;
        for (int v = 0; v < 4; v++) {
            const __m256 equal = _mm256_cmp_ps(_mm256_andnot_ps(sign_bit, x[v]), _mm256_set1_ps(magnitude), _CMP_EQ_OQ);
            is_largest |= static_cast<uint32_t>(_mm256_movemask_ps(equal)) << 8 * v;
        }
        const float extreme = magnitude != 0 ? values[b + static_cast<uint32_t>(__builtin_ctz(is_largest))] : 0.0f;
        const float scale   = extreme / -8;
        const float inverse = inverse_scale(scale);
        put_le<uint16_t>(row, fp32_to_fp16(scale));

        __m256i codes[4];
        for (int v = 0; v < 4; v++) {
            const __m256 shifted =
                _mm256_add_ps(_mm256_mul_ps(x[v], _mm256_set1_ps(inverse)), _mm256_set1_ps(q4_0_offset(scale)));
            codes[v] = _mm256_min_epi32(_mm256_cvttps_epi32(shifted), _mm256_set1_epi32(15));
        }
        const __m256i joined_0 = _mm256_or_si256(codes[0], _mm256_slli_epi32(codes[2], 4));
        const __m256i joined_1 = _mm256_or_si256(codes[1], _mm256_slli_epi32(codes[3], 4));
        const __m256i words =
            _mm256_permute4x64_epi64(_mm256_packus_epi32(joined_0, joined_1), _MM_SHUFFLE(3, 1, 2, 0));
        store_16(row + 2, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
}

void from_fp16(const uint8_t * row, uint64_t n, float * values) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(row + 2 * i))));
    }
    for (; i < n; i++) {
        values[i] = fp16_to_fp32(get_le<uint16_t>(row + 2 * i));
    }
}

void from_bf16(const uint8_t * row, uint64_t n, float * values) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(row + 2 * i)));
        _mm256_storeu_ps(values + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    for (; i < n; i++) {
        values[i] = bf16_to_fp32(get_le<uint16_t>(row + 2 * i));
    }
}

void from_q8_0(const uint8_t * row, uint64_t n, float * values) {
    for (uint64_t b = 0; b < n; b += 32, row += 34) {
        const __m256 scale = _mm256_set1_ps(fp16_to_fp32(get_le<uint16_t>(row)));
        for (int v = 0; v < 4; v++) {
            const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(row + 2 + 8 * v));
            _mm256_storeu_ps(values + b + 8 * v, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale));
        }
    }
}

void from_q4_0(const uint8_t * row, uint64_t n, float * values) {
    for (uint64_t b = 0; b < n; b += 32, row += 18) {
        const __m256  scale    = _mm256_set1_ps(fp16_to_fp32(get_le<uint16_t>(row)));
        const __m128i packed   = _mm_loadu_si128(reinterpret_cast<const __m128i *>(row + 2));
        const __m128i mask     = _mm_set1_epi8(15);
        const __m128i lower    = _mm_sub_epi8(_mm_and_si128(packed, mask), _mm_set1_epi8(8));
        const __m128i upper    = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(packed, 4), mask), _mm_set1_epi8(8));
        const __m128i codes[4] = { lower, _mm_srli_si128(lower, 8), upper, _mm_srli_si128(upper, 8) };
        for (int v = 0; v < 4; v++) {
            _mm256_storeu_ps(values + b + 8 * v,
                             _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes[v])), scale));
        }
    }
}

// rows become columns
inline void transpose_8x8(const float * values, uint64_t value_stride, __m256 * columns) {
    __m256 r[8];
    __m256 s[8];
    for (int i = 0; i < 8; i++) {
        r[i] = load_floats(values + static_cast<uint64_t>(i) * value_stride);
    }
    for (int i = 0; i < 8; i += 2) {
        s[i]     = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i]     = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        columns[i]     = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        columns[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
}

void transpose_fp32(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    __m256 columns[8];
    transpose_8x8(values, value_stride, columns);
    for (uint64_t c = 0; c < 8; c++) {
        _mm256_storeu_ps(reinterpret_cast<float *>(out + c * out_stride), columns[c]);
    }
}

void transpose_fp16(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    __m256 columns[8];
    transpose_8x8(values, value_stride, columns);
    for (uint64_t c = 0; c < 8; c++) {
        store_16(out + c * out_stride, fp16_of(columns[c]));
    }
}

void transpose_bf16(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride) {
    __m256 columns[8];
    transpose_8x8(values, value_stride, columns);
    for (uint64_t c = 0; c < 8; c++) {
        store_16(out + c * out_stride, bf16_of(columns[c]));
    }
}

} // namespace

const row_converters avx2_converters = { to_fp16,   to_bf16,   to_q8_0,        to_q4_0,        from_fp16,     from_bf16,
                                         from_q8_0, from_q4_0, transpose_fp32, transpose_fp16, transpose_bf16 };

} // namespace cachegen

#endif
