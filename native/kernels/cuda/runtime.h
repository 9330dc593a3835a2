// The runtime that launches and copies: CUDA's, or HIP's under CUDA's names.
#pragma once

#include <cstdint>

#if defined(CACHEGEN_HIP)
#    include "../hip/cuda_names.h"
#else
#    include <cuda_runtime.h>
#endif

namespace kernels {

// the name for messages; the threads of a workgroup that decodes, where its set's table leaves room for as many; and
// the groups of lanes that there have to be, else the table stays in the device's memory: AMD has 64 KiB for all of it
#if defined(CACHEGEN_HIP)
constexpr const char * device_runtime         = "HIP";
constexpr uint32_t     default_decode_threads = 256;
constexpr uint32_t     min_decode_groups      = 4;
#else
constexpr const char * device_runtime         = "CUDA";
constexpr uint32_t     default_decode_threads = 512;
constexpr uint32_t     min_decode_groups      = 8;
#endif

} // namespace kernels
