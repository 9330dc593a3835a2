#include "lcg3_dequantize.h"

#include "isa.h"
#include "typed_store.h"

namespace cachegen::lcg3 {

void dequantize_scalar(const uint8_t * symbols, const float * levels, const float * scales, uint64_t n_tokens,
                       float * values, uint64_t value_stride) {
    for (uint64_t t = 0; t < n_tokens; t++) {
        for (uint32_t lane = 0; lane < 32; lane++) {
            values[t * value_stride + lane] = levels[symbols[t * 32 + lane]] * scales[t];
        }
    }
}

dequantize_function dequantize() {
#ifdef CACHEGEN_AVX2
    if (active_isa() == isa::avx2 || active_isa() == isa::avx512) {
        return dequantize_avx2;
    }
#endif
    return dequantize_scalar;
}

void make_row_tables(const float * levels, uint32_t n_levels, const float * scales, uint64_t n_tokens,
                     uint8_t * tables) {
    const auto to_fp16 = converters().to_fp16;
    float      values[64];
    uint8_t    halves[128];
    for (uint64_t t = 0; t < n_tokens; t++, tables += row_table_bytes) {
        for (uint32_t i = 0; i < n_levels; i++) {
            values[i] = levels[i] * scales[t];
        }
        to_fp16(values, n_levels, halves);
        for (uint32_t i = 0; i < n_levels; i++) {
            tables[i]      = halves[2 * i];
            tables[64 + i] = halves[2 * i + 1];
        }
    }
}

void look_up_fp16_scalar(const uint8_t * symbols, uint32_t, const uint8_t * tables, uint64_t n_tokens, uint8_t * rows,
                         uint64_t stride_bytes, const uint32_t * cells) {
    for (uint64_t t = 0; t < n_tokens; t++, symbols += 32, tables += row_table_bytes) {
        uint8_t * const row = rows + (cells ? cells[t] : t) * stride_bytes;
        for (uint32_t lane = 0; lane < 32; lane++) {
            row[2 * lane]     = tables[symbols[lane]];
            row[2 * lane + 1] = tables[64 + symbols[lane]];
        }
    }
}

look_up_fp16_function look_up_fp16() {
#ifdef CACHEGEN_AVX2
    if (active_isa() == isa::avx2 || active_isa() == isa::avx512) {
        return look_up_fp16_avx2;
    }
#endif
    return look_up_fp16_scalar;
}

} // namespace cachegen::lcg3
