// The CUDA runtime's functions between the backend and the runtime: the executable that links this has them instead.
#pragma once

#include <cstdint>

namespace cuda_faults {

// the calls since the last call of this
uint32_t n_calls();

// fail the call with this number from now on, once; UINT32_MAX: none
void arm(uint32_t at);

// let streams wait a random time, up to so long, before copies and launches that are put on them; 0: no more
void delay(uint32_t most_us);

} // namespace cuda_faults
