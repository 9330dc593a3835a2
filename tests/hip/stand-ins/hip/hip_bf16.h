// What ggml-cuda's common header names of HIP 6, for HIP 5.2's headers: declarations for a check of types.
#pragma once

#include <hip/hip_fp16.h>

struct __hip_bfloat16 {
    unsigned short bits;
};

struct __hip_bfloat162 {
    __hip_bfloat16 x, y;
};

__device__ __half  __hmax(__half a, __half b);
__device__ __half2 __shfl_xor(__half2 value, int mask, int width);
__device__ __half2 __shfl_up(__half2 value, unsigned int distance, int width);
