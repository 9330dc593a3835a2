#include "hadamard.h"

#include "status.h"

#include <cmath>

namespace cachegen {

// One butterfly level; the compiler makes vectors of it from a distance of four on.
static void butterflies(float * values, uint32_t n_rot, uint32_t distance) {
    for (uint32_t begin = 0; begin < n_rot; begin += 2 * distance) {
        float * const lower = values + begin;
        float * const upper = lower + distance;
        for (uint32_t i = 0; i < distance; i++) {
            const float u = lower[i];
            const float v = upper[i];
            lower[i]      = u + v;
            upper[i]      = u - v;
        }
    }
}

void hadamard_rows(float * values, uint64_t n_rows, uint64_t value_stride, uint64_t n_channels, uint32_t n_rot) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(n_rot));
    for (uint64_t r = 0; r < n_rows; r++) {
        for (uint64_t c = 0; c < n_channels; c += n_rot) {
            float * const block = values + r * value_stride + c;
            for (uint32_t i = 0; i < n_rot; i++) {
                block[i] *= scale;
            }
            for (uint32_t distance = 1; distance < n_rot; distance *= 2) {
                butterflies(block, n_rot, distance);
            }
        }
    }
}

} // namespace cachegen

int32_t cachegen_hadamard(float * values, uint64_t n_values, uint32_t n_rot) {
    return cachegen::guard([&] {
        if (n_rot == 0) {
            return;
        }
        if (values == nullptr || n_rot < 2 || n_rot > 1024 || (n_rot & (n_rot - 1)) != 0 || n_values % n_rot != 0) {
            cachegen::fail(
                CACHEGEN_ERR_ARGUMENT,
                "a rotation of %u in %llu values; a power of two from 2 to 1,024 that divides them is needed", n_rot,
                static_cast<unsigned long long>(n_values));
        }
        cachegen::hadamard_rows(values, 1, n_values, n_values, n_rot);
    });
}
