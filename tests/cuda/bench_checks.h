// A benchmark ends with what a call says when it fails.
#pragma once

#include "cachegen.h"
#include "cuda/runtime.h"

#include <cstdio>
#include <cstdlib>

inline void check(cudaError_t error) {
    if (error != cudaSuccess) {
        printf("%s: %s\n", kernels::device_runtime, cudaGetErrorString(error));
        exit(1);
    }
}

inline void check(int32_t status) {
    if (status != CACHEGEN_OK) {
        printf("%s: %s\n", cachegen_status_name(status), cachegen_last_message());
        exit(1);
    }
}
