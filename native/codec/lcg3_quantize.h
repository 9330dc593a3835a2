// Values to symbols and scales: CacheGen's per-token maximum scaling, rounded half to even.
#pragma once

#include "half.h"

#include <cstdint>

namespace cachegen::lcg3 {

/*
 * The scale of a row whose largest magnitude is `maximum`: the smallest number of the scale's type (F32, F16 or BF16)
 * that is not smaller; for an F16 source the largest that F16 can hold, lest the row's largest value become infinite.
 * bits: OUT its bit pattern. Throws ERR_UNSUPPORTED if there is none.
 */
float make_scale(float maximum, uint8_t scale_type, uint8_t source_type, uint32_t * bits);

struct row_quantizer {
    // largest magnitude of n values; not finite if one of them is not
    float (*max_magnitude)(const float * values, uint64_t n);

    /*
     * symbol = round(x * (c / scale) + c), c = (n_symbols - 1) / 2, each operation rounded to F32; symbols end at 0 and
     * 2c. A row of zeros has c.
     * values   IN  n, finite
     * symbols  OUT n, in groups of 32: group g begins at symbols + g * group_stride
     */
    void (*quantize_row)(const float * values, uint64_t n, float scale, uint32_t n_symbols, uint8_t * symbols,
                         uint64_t group_stride);
};

extern const row_quantizer scalar_quantizer;
extern const row_quantizer avx2_quantizer;
extern const row_quantizer neon_quantizer;

// the one for active_isa()
const row_quantizer & quantizer();

// the factor of quantize_row(); 0 for a row of zeros, or one so small that c / scale is infinite
inline float quantizer_factor(float centre, float scale) {
    const float factor = centre / scale;
    return (float_bits(factor) & 0x7f800000) != 0x7f800000 ? factor : 0; // by its bits: see inverse_scale()
}

// added to a number below 2^22, rounds it half to even in the last bits of the sum
constexpr float round_by = 12582912.0f; // 1.5 x 2^23

} // namespace cachegen::lcg3
