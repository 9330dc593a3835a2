// Symbols and scales to values: value = level[symbol] x scale of the token, one rounding.
#pragma once

#include <cstdint>

namespace cachegen::lcg3 {

/*
 * symbols  IN  [n_tokens][32], every one below n_levels
 * levels   IN  64, zeros from n_levels on
 * scales   IN  n_tokens
 * values   OUT n_tokens rows of 32, value_stride floats apart
 */
using dequantize_function = void (*)(const uint8_t * symbols, const float * levels, uint32_t n_levels,
                                     const float * scales, uint64_t n_tokens, float * values, uint64_t value_stride);

void dequantize_scalar(const uint8_t * symbols, const float * levels, uint32_t n_levels, const float * scales,
                       uint64_t n_tokens, float * values, uint64_t value_stride);
void dequantize_avx2(const uint8_t * symbols, const float * levels, uint32_t n_levels, const float * scales,
                     uint64_t n_tokens, float * values, uint64_t value_stride);
void dequantize_avx512(const uint8_t * symbols, const float * levels, uint32_t n_levels, const float * scales,
                       uint64_t n_tokens, float * values, uint64_t value_stride);
void dequantize_neon(const uint8_t * symbols, const float * levels, uint32_t n_levels, const float * scales,
                     uint64_t n_tokens, float * values, uint64_t value_stride);

// the one for active_isa()
dequantize_function dequantize();

/*
 * The same for F16 rows, without a detour over F32: a token has one scale, so its values are few. A row table holds
 * them all, in an order that the instruction set likes.
 */
constexpr uint64_t row_table_bytes = 128;

struct fp16_look_up {
    /*
     * levels  IN  64, zeros from n_levels on
     * scales  IN  n_tokens
     * tables  OUT n_tokens x row_table_bytes
     */
    void (*make_tables)(const float * levels, uint32_t n_levels, const float * scales, uint64_t n_tokens,
                        uint8_t * tables);
    /*
     * symbols  IN  [n_tokens][32], every one below n_levels
     * tables   IN  of the tokens
     * rows     OUT token t's 32 values go to rows + row_of(t) * stride_bytes, row_of(t) being cells[t], or t if cells
     *              is NULL
     */
    void (*look_up)(const uint8_t * symbols, uint32_t n_levels, const uint8_t * tables, uint64_t n_tokens,
                    uint8_t * rows, uint64_t stride_bytes, const uint32_t * cells);
    /*
     * One token, any number of channels.
     * symbols  IN  n, every one below n_levels
     * table    IN  of the token
     * row      OUT n values
     */
    void (*look_up_row)(const uint8_t * symbols, uint64_t n, uint32_t n_levels, const uint8_t * table, uint8_t * row);
};

extern const fp16_look_up scalar_fp16_look_up;
extern const fp16_look_up avx2_fp16_look_up;
extern const fp16_look_up avx512_fp16_look_up;
extern const fp16_look_up neon_fp16_look_up;

// the one for active_isa()
const fp16_look_up & fp16_rows();

} // namespace cachegen::lcg3
