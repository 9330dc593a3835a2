// F16 and BF16 numbers in plain integers, bit-equal to ggml's conversions for every input.
#pragma once

#include <cstdint>
#include <cstring>

namespace cachegen {

inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// to nearest, ties to even; every NaN becomes the quiet one of its sign
inline uint16_t fp32_to_fp16(float value) {
    const uint32_t bits      = float_bits(value);
    const uint32_t sign      = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t       half;
    if (magnitude > 0x7f800000) {
        half = 0x7e00;
    } else if (magnitude >= 0x47800000) { // 65,536
        half = 0x7c00;
    } else if (magnitude < 0x38800000) { // below 2^-14: the sum with 0.5 has the spacing of F16's subnormal numbers
        half = float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000;
    } else {
        half = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    }
    return static_cast<uint16_t>(sign | half);
}

inline float fp16_to_fp32(uint16_t half) {
    const uint32_t sign      = (half & 0x8000u) << 16;
    const uint32_t exponent  = half >> 10 & 31;
    const uint32_t mantissa  = half & 1023;
    uint32_t       magnitude = (half & 0x7fffu) << 13;
    if (exponent == 31) {
        magnitude = 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0);
    } else if (exponent == 0) {
        magnitude = float_bits(static_cast<float>(mantissa) * 0x1.0p-24f);
    } else {
        magnitude += 0x38000000;
    }
    return float_from_bits(sign | magnitude);
}

// to nearest, ties to even; a NaN is made quiet and keeps its upper bits
inline uint16_t fp32_to_bf16(float value) {
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return static_cast<uint16_t>(bits >> 16 | 64);
    }
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float bf16_to_fp32(uint16_t value) {
    return float_from_bits(static_cast<uint32_t>(value) << 16);
}

} // namespace cachegen
