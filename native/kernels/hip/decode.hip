// The decoder on HIP. Its kernels alone need no ROCm: scripts/qualify-hip --compile-only.
#if defined(KC_KERNELS_ONLY)
#    include "../decode_entries.h"
#else
#    include "cuda_names.h" // before the first kernel
#    include "../cuda/decode.cu"
#endif
