// Launches of the encoder on a CUDA stream.
#pragma once

#include "../encode_plan.h"
#include "runtime.h"

namespace kernels {

// max_workgroups  IN  of the launch; they take jobs in turn
cudaError_t launch_encoder(const encode_launch & launch, const encode_buffers & in, uint32_t max_workgroups,
                           cudaStream_t stream);

} // namespace kernels
