// Values to symbols with NEON.
#include "lcg3_quantize.h"

#ifdef CACHEGEN_NEON

#    include <algorithm>
#    include <cstring>

#    include <arm_neon.h>

namespace cachegen::lcg3 {

namespace {

float max_magnitude(const float * values, uint64_t n) {
    // for numbers that are not negative the order of the bit patterns is that of the numbers, infinities and NaN last
    constexpr uint32_t magnitude_bits = 0x7fffffff;
    uint32x4_t         largest        = vdupq_n_u32(0);
    uint64_t           i              = 0;
    for (; i + 4 <= n; i += 4) {
        const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(values + i));
        largest               = vmaxq_u32(largest, vandq_u32(bits, vdupq_n_u32(magnitude_bits)));
    }
    uint32_t of_all = vmaxvq_u32(largest);
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        of_all = std::max(of_all, bits & magnitude_bits);
    }
    float result;
    memcpy(&result, &of_all, sizeof(result));
    return result;
}

void quantize_row(const float * values, uint64_t n, float scale, uint32_t n_symbols, uint8_t * symbols,
                  uint64_t group_stride) {
    const float       centre  = static_cast<float>(n_symbols / 2);
    const float32x4_t centres = vdupq_n_f32(centre);
    const float32x4_t largest = vdupq_n_f32(2 * centre);
    const float32x4_t factors = vdupq_n_f32(quantizer_factor(centre, scale));
    // the symbols of four values in the lowest bytes of the lanes
    const auto        codes   = [&](const float * from) {
        const float32x4_t shifted = vaddq_f32(vmulq_f32(vld1q_f32(from), factors), centres);
        const float32x4_t clamped = vminq_f32(vmaxq_f32(shifted, vdupq_n_f32(0)), largest);
        return vreinterpretq_u16_f32(vaddq_f32(clamped, vdupq_n_f32(round_by)));
    };
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32, symbols += group_stride) {
        for (uint32_t v = 0; v < 32; v += 16) {
            const float *    from   = values + i + v;
            const uint16x8_t first  = vuzp1q_u16(codes(from), codes(from + 4));
            const uint16x8_t second = vuzp1q_u16(codes(from + 8), codes(from + 12));
            vst1q_u8(symbols + v, vuzp1q_u8(vreinterpretq_u8_u16(first), vreinterpretq_u8_u16(second)));
        }
    }
    if (i < n) {
        scalar_quantizer.quantize_row(values + i, n - i, scale, n_symbols, symbols, group_stride);
    }
}

} // namespace

const row_quantizer neon_quantizer = { max_magnitude, quantize_row };

} // namespace cachegen::lcg3

#endif
