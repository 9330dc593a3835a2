// half.h with NEON.
#pragma once

#ifdef CACHEGEN_NEON

#    include <arm_neon.h>

namespace cachegen {

// as fp32_to_fp16(): the instruction keeps a NaN's upper bits, the contract is one quiet NaN a sign
inline uint16x8_t fp16_of(float32x4_t a, float32x4_t b) {
    const uint16x8_t half      = vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a), b));
    const uint16x8_t is_nan    = vcgtq_u16(vandq_u16(half, vdupq_n_u16(0x7fff)), vdupq_n_u16(0x7c00));
    const uint16x8_t quiet_nan = vorrq_u16(vandq_u16(half, vdupq_n_u16(0x8000)), vdupq_n_u16(0x7e00));
    return vbslq_u16(is_nan, quiet_nan, half);
}

// as fp32_to_bf16()
inline uint16x8_t bf16_of(float32x4_t a, float32x4_t b) {
    // the result is in the upper half of each lane
    const auto upper_of = [](float32x4_t x) {
        const uint32x4_t bits      = vreinterpretq_u32_f32(x);
        const uint32x4_t is_odd    = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        const uint32x4_t rounded   = vaddq_u32(bits, vaddq_u32(vdupq_n_u32(0x7fff), is_odd));
        const uint32x4_t quiet_nan = vorrq_u32(bits, vdupq_n_u32(64 << 16));
        return vreinterpretq_u16_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet_nan));
    };
    return vuzp2q_u16(upper_of(a), upper_of(b));
}

} // namespace cachegen

#endif
