// The runtime that launches and copies: CUDA's, or HIP's under CUDA's names.
#pragma once

#if defined(CACHEGEN_HIP)
#    include "../hip/cuda_names.h"
#else
#    include <cuda_runtime.h>
#endif

namespace kernels {

// in messages
#if defined(CACHEGEN_HIP)
constexpr const char * device_runtime = "HIP";
#else
constexpr const char * device_runtime = "CUDA";
#endif

} // namespace kernels
