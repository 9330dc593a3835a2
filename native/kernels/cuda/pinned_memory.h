// Memory of the host that kernels write to, kept for the next encoder: cudaHostAlloc takes about a millisecond for a
// MiB.
#pragma once

#include "runtime.h"

#include <cstdint>

namespace kernels {

// for the current device
cudaError_t take_pinned(uint64_t n_bytes, uint8_t ** memory);
// NULL does nothing; the device has stopped writing to it
void        give_pinned(uint8_t * memory);
// free what is kept
void        release_idle_pinned();

} // namespace kernels
