// Launches of the decoder on a CUDA stream.
#pragma once

#include "../jobs.h"
#include "runtime.h"

namespace kernels {

// What a launch can have of the device.
struct launch_limits {
    uint32_t n_processors; // multiprocessors
    uint32_t n_threads;    // of a workgroup, 128 at least
    uint64_t shared_bytes; // of a workgroup
};

/*
 * store    IN  enum store_kind
 * n_side   IN  adjacent groups that 32 lanes decode: 1, 2, 4 or 8; at least the rotation / 32, and 2 with any rotation
 * is_wide  IN  the set has more than 32 symbols
 * The set's table has to fit into the shared memory beside min_decode_groups groups of lanes; else it goes by
 * launch_expand().
 */
cudaError_t launch_decode(const launch_buffers & in, uint32_t store, uint32_t n_side, bool is_wide,
                          const launch_limits & limits, cudaStream_t stream);
cudaError_t launch_expand(const launch_buffers & in, cudaStream_t stream);
cudaError_t launch_place(const launch_buffers & in, uint32_t store, cudaStream_t stream);

} // namespace kernels
