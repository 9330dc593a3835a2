#include "lcg3_quantize.h"

#include "half.h"
#include "isa.h"
#include "status.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cachegen::lcg3 {

static float max_magnitude(const float * values, uint64_t n) {
    // for numbers that are not negative the order of the bit patterns is that of the numbers, infinities and NaN last
    int32_t largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        largest = std::max(largest, bits & 0x7fffffff);
    }
    float result;
    memcpy(&result, &largest, sizeof(result));
    return result;
}

float make_scale(float maximum, uint8_t scale_type, uint8_t source_type, uint32_t * bits) {
    uint32_t pattern;
    memcpy(&pattern, &maximum, sizeof(pattern));
    float scale = maximum;
    if (scale_type == CACHEGEN_TYPE_BF16) {
        pattern = (pattern + 0xffff) >> 16;
        if (source_type == CACHEGEN_TYPE_F16 && pattern > 0x477f) {
            pattern = 0x477f; // 65,280; the next is above F16's largest number
        }
        *bits = pattern;
        pattern <<= 16;
        memcpy(&scale, &pattern, sizeof(scale));
    } else if (scale_type == CACHEGEN_TYPE_F16) {
        uint16_t half = fp32_to_fp16(maximum);
        if (fp16_to_fp32(half) < maximum) {
            half++; // the next larger; the largest becomes infinity
        }
        *bits = half;
        scale = fp16_to_fp32(half);
    } else {
        *bits = pattern;
    }
    if (!std::isfinite(scale)) {
        fail(CACHEGEN_ERR_UNSUPPORTED, "a value of magnitude %g has no scale of type %u; choose F32 scales", maximum,
             scale_type);
    }
    return scale;
}

static void quantize_row(const float * values, uint64_t n, float scale, uint32_t n_symbols, uint8_t * symbols,
                         uint64_t group_stride) {
    const float centre   = static_cast<float>(n_symbols / 2);
    const float factor   = quantizer_factor(centre, scale);
    const auto  quantize = [&](float x) {
        const float sum = std::min(std::max(x * factor + centre, 0.0f), 2 * centre) + round_by;
        uint32_t    bits;
        memcpy(&bits, &sum, sizeof(bits));
        return static_cast<uint8_t>(bits);
    };
    for (uint64_t i = 0; i < n; i += 32, symbols += group_stride) {
        for (uint32_t lane = 0; lane < std::min<uint64_t>(32, n - i); lane++) {
            symbols[lane] = quantize(values[i + lane]);
        }
    }
}

const row_quantizer scalar_quantizer = { max_magnitude, quantize_row };

const row_quantizer & quantizer() {
#ifdef CACHEGEN_AVX2
    if (active_isa() == isa::avx2 || active_isa() == isa::avx512) {
        return avx2_quantizer;
    }
#endif
#ifdef CACHEGEN_NEON
    if (active_isa() == isa::neon) {
        return neon_quantizer;
    }
#endif
    return scalar_quantizer;
}

} // namespace cachegen::lcg3
