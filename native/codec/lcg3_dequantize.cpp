#include "lcg3_dequantize.h"

#include "bytes.h"
#include "half.h"
#include "isa.h"

namespace cachegen::lcg3 {

void dequantize_scalar(const uint8_t * symbols, const float * levels, uint32_t, const float * scales, uint64_t n_tokens,
                       float * values, uint64_t value_stride) {
    for (uint64_t t = 0; t < n_tokens; t++) {
        for (uint32_t lane = 0; lane < 32; lane++) {
            values[t * value_stride + lane] = levels[symbols[t * 32 + lane]] * scales[t];
        }
    }
}

dequantize_function dequantize() {
    switch (active_isa()) {
#ifdef CACHEGEN_AVX2
        case isa::avx2: return dequantize_avx2;
#endif
#ifdef CACHEGEN_AVX512
        case isa::avx512: return dequantize_avx512;
#endif
#ifdef CACHEGEN_NEON
        case isa::neon: return dequantize_neon;
#endif
        default: return dequantize_scalar;
    }
}

static void make_tables(const float * levels, uint32_t n_levels, const float * scales, uint64_t n_tokens,
                        uint8_t * tables) {
    for (uint64_t t = 0; t < n_tokens; t++, tables += row_table_bytes) {
        for (uint32_t i = 0; i < n_levels; i++) {
            put_le<uint16_t>(tables + 2 * size_t{ i }, fp32_to_fp16(levels[i] * scales[t]));
        }
    }
}

static void look_up(const uint8_t * symbols, uint32_t, const uint8_t * tables, uint64_t n_tokens, uint8_t * rows,
                    uint64_t stride_bytes, const uint32_t * cells) {
    for (uint64_t t = 0; t < n_tokens; t++, symbols += 32, tables += row_table_bytes) {
        uint8_t * const row = rows + (cells ? cells[t] : t) * stride_bytes;
        for (uint32_t lane = 0; lane < 32; lane++) {
            memcpy(row + 2 * size_t{ lane }, tables + 2 * size_t{ symbols[lane] }, 2);
        }
    }
}

static void look_up_row(const uint8_t * symbols, uint64_t n, uint32_t, const uint8_t * table, uint8_t * row) {
    for (uint64_t i = 0; i < n; i++) {
        memcpy(row + 2 * i, table + 2 * size_t{ symbols[i] }, 2);
    }
}

const fp16_look_up scalar_fp16_look_up = { make_tables, look_up, look_up_row };

const fp16_look_up & fp16_rows() {
    switch (active_isa()) {
#ifdef CACHEGEN_AVX2
        case isa::avx2: return avx2_fp16_look_up;
#endif
#ifdef CACHEGEN_AVX512
        case isa::avx512: return avx512_fp16_look_up;
#endif
#ifdef CACHEGEN_NEON
        case isa::neon: return neon_fp16_look_up;
#endif
        default: return scalar_fp16_look_up;
    }
}

} // namespace cachegen::lcg3
