// Values to symbols and scales: CacheGen's per-token maximum scaling, rounded half to even.
#pragma once

#include <cstdint>

namespace cachegen::lcg3 {

// largest magnitude of n values; not finite if one of them is not
float max_magnitude(const float * values, uint64_t n);

/*
 * The scale of a row whose largest magnitude is `maximum`: the smallest number of the scale's type (F32, F16 or BF16)
 * that is not smaller; for an F16 source the largest that F16 can hold, lest the row's largest value become infinite.
 * bits: OUT its bit pattern. Throws ERR_UNSUPPORTED if there is none.
 */
float make_scale(float maximum, uint8_t scale_type, uint8_t source_type, uint32_t * bits);

/*
 * symbol = round(x * (c / scale) + c), c = (n_symbols - 1) / 2, each operation rounded to F32; symbols end at 0 and 2c.
 * A row of zeros has c.
 * values   IN  n, finite
 * symbols  OUT n, in groups of 32: group g begins at symbols + g * group_stride
 */
void quantize_row(const float * values, uint64_t n, float scale, uint32_t n_symbols, uint8_t * symbols,
                  uint64_t group_stride);

} // namespace cachegen::lcg3
