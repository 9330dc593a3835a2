// A benchmark ends with what a call says when it fails.
#pragma once

#include "cachegen.h"

#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

inline void check(cudaError_t error) {
    if (error != cudaSuccess) {
        printf("CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

inline void check(int32_t status) {
    if (status != CACHEGEN_OK) {
        printf("%s: %s\n", cachegen_status_name(status), cachegen_last_message());
        exit(1);
    }
}
