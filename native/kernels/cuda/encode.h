// Launches of the encoder on a CUDA stream.
#pragma once

#include "../encode_plan.h"
#include "runtime.h"

namespace kernels {

struct encode_machine {
    uint32_t n_processors;
    uint64_t shared_bytes; // of a workgroup at most, which is about what a processor has
};

cudaError_t launch_encoder(const encode_launch & launch, const encode_buffers & in, const encode_machine & machine,
                           cudaStream_t stream);

} // namespace kernels
