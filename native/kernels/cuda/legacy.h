// Launches of the decoder of LCG1 and LCG2 tiles on a CUDA stream.
#pragma once

#include "../legacy_jobs.h"
#include "runtime.h"

namespace kernels {

// max_workgroups  IN  of the launch; they take jobs in turn
cudaError_t launch_legacy_decode(const legacy_launch & launch, const legacy_buffers & in, uint32_t max_workgroups,
                                 cudaStream_t stream);

} // namespace kernels
