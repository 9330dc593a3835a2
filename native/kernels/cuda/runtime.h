// The runtime that launches and copies: CUDA's, or HIP's under CUDA's names.
#pragma once

#include <cstdint>

#if defined(CACHEGEN_HIP)
#    include "../hip/cuda_names.h"
#else
#    include <cuda_runtime.h>
#endif

namespace kernels {

// the name for messages, and the threads of a workgroup that decodes: 64 KiB of shared memory have to hold its rings
// and a set's table on AMD
#if defined(CACHEGEN_HIP)
constexpr const char * device_runtime         = "HIP";
constexpr uint32_t     default_decode_threads = 256;
#else
constexpr const char * device_runtime         = "CUDA";
constexpr uint32_t     default_decode_threads = 512;
#endif

} // namespace kernels
