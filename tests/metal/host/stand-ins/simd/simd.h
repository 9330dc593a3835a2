#pragma once

namespace simd {
struct float4 {
    float v[4];
};
struct float4x4 {
    float4 c[4];
};
} // namespace simd
