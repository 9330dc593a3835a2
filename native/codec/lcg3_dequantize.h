// Symbols and scales to values: value = level[symbol] x scale of the token, one rounding.
#pragma once

#include <cstdint>

namespace cachegen::lcg3 {

/*
 * symbols  IN  [n_tokens][32], every one below 64
 * levels   IN  64
 * scales   IN  n_tokens
 * values   OUT n_tokens rows of 32, value_stride floats apart
 */
using dequantize_function = void (*)(const uint8_t * symbols, const float * levels, const float * scales,
                                     uint64_t n_tokens, float * values, uint64_t value_stride);

void dequantize_scalar(const uint8_t * symbols, const float * levels, const float * scales, uint64_t n_tokens,
                       float * values, uint64_t value_stride);
void dequantize_avx2(const uint8_t * symbols, const float * levels, const float * scales, uint64_t n_tokens,
                     float * values, uint64_t value_stride);

// the one for active_isa()
dequantize_function dequantize();

} // namespace cachegen::lcg3
