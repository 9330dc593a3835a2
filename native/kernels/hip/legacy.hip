// The decoder of LCG1 and LCG2 tiles on HIP. Its kernels alone need no ROCm: scripts/qualify-hip --compile-only.
#if defined(KC_KERNELS_ONLY)
#    include "../legacy_entries.h"
#else
#    include "cuda_names.h" // before the first kernel
#    include "../cuda/legacy.cu"
#endif
