#include "lcg3_dequantize.h"

#include "isa.h"

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

} // namespace cachegen::lcg3
