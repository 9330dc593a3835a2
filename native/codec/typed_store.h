// Values in and out of typed rows, anywhere in a cache: F32, F16, BF16, Q8_0, Q4_0, rows and transposed.
#pragma once

#include "cachegen.h"
#include "half.h"

#include <cstdint>

namespace cachegen {

inline bool is_block_type(uint32_t type) {
    return type == CACHEGEN_TYPE_Q8_0 || type == CACHEGEN_TYPE_Q4_0;
}

// blocks of channels cannot be transposed
inline bool has_typed_store(uint32_t type, bool is_transposed) {
    return type == CACHEGEN_TYPE_F32 || type == CACHEGEN_TYPE_F16 || type == CACHEGEN_TYPE_BF16 ||
           (is_block_type(type) && !is_transposed);
}

// throws ERR_ARGUMENT or ERR_UNSUPPORTED unless every row that `rows` describes lies inside its bytes
void validate_rows(const cachegen_rows & rows, const char * what);

/*
 * Store a tile. Blocks are packed as ggml_quantize_chunk packs them.
 * destination               IN  validated; its data is OUT
 * first_token, n_tokens     IN  tokens of the destination
 * first_channel, n_channels IN  multiples of 32 for block types
 * values                    IN  n_tokens rows of n_channels, value_stride floats apart
 */
void store_tile(const cachegen_rows & destination, uint64_t first_token, uint64_t n_tokens, uint64_t first_channel,
                uint64_t n_channels, const float * values, uint64_t value_stride);

// the reverse; values is OUT
void load_tile(const cachegen_rows & source, uint64_t first_token, uint64_t n_tokens, uint64_t first_channel,
               uint64_t n_channels, float * values, uint64_t value_stride);

// One row's values in each type. n is a multiple of 32 for the block types.
struct row_converters {
    void (*to_fp16)(const float * values, uint64_t n, uint8_t * row);
    void (*to_bf16)(const float * values, uint64_t n, uint8_t * row);
    void (*to_q8_0)(const float * values, uint64_t n, uint8_t * row);
    void (*to_q4_0)(const float * values, uint64_t n, uint8_t * row);
    void (*from_fp16)(const uint8_t * row, uint64_t n, float * values);
    void (*from_bf16)(const uint8_t * row, uint64_t n, float * values);
    void (*from_q8_0)(const uint8_t * row, uint64_t n, float * values);
    void (*from_q4_0)(const uint8_t * row, uint64_t n, float * values);
    // a square of 8 tokens x 8 channels, transposed: channel c goes to out + c * out_stride, 8 elements each
    void (*transpose_fp32)(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride);
    void (*transpose_fp16)(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride);
    void (*transpose_bf16)(const float * values, uint64_t value_stride, uint8_t * out, uint64_t out_stride);
};

/*
 * 1 / scale of a block, 0 for a scale of zero. Below about 2^-128 ggml's 1 / scale is infinite and its conversion of
 * the products to integers undefined; where it gives anything, all codes are 0. So do ours.
 */
inline float inverse_scale(float scale) {
    const float inverse = 1.0f / scale;
    // by its bits: some compilers fold the comparison of a quotient with the largest number, and lose infinity
    return (float_bits(inverse) & 0x7f800000) != 0x7f800000 ? inverse : 0.0f;
}

// what Q4_0 adds to a product before it cuts off: the middle code and a half, or 0 where all codes are 0
inline float q4_0_offset(float scale) {
    return float_bits(scale) << 1 == 0 || float_bits(inverse_scale(scale)) << 1 != 0 ? 8.5f : 0.0f;
}

// a block whose largest magnitude is not finite, which ggml's reference packs by the order of its values: see
// pack_odd_block_q8_0()
inline bool is_odd_block(float magnitude) {
    return float_bits(magnitude) >= 0x7f800000;
}

extern const row_converters scalar_converters;
extern const row_converters avx2_converters;
extern const row_converters neon_converters;

// the ones for active_isa()
const row_converters & converters();

} // namespace cachegen
