// Launches of the decoder on a CUDA stream.
#pragma once

#include "../jobs.h"
#include "runtime.h"

namespace kernels {

// shared memory of launch_decode(); a set that needs more than the device has goes by launch_expand()
uint64_t decode_shared_bytes(const set_shape & set, uint32_t n_side, uint32_t n_threads);

/*
 * store           IN  enum store_kind
 * n_side          IN  adjacent groups that 32 lanes decode: 1, 2, 4 or 8; at least the rotation / 32, and 2 with any
 *                     rotation
 * is_wide         IN  the set has more than 32 symbols
 * n_threads       IN  of a workgroup, 32 to 512
 * max_workgroups  IN  of the launch; they take jobs in turn
 */
cudaError_t launch_decode(const launch_buffers & in, uint32_t store, uint32_t n_side, bool is_wide, uint32_t n_threads,
                          uint32_t max_workgroups, cudaStream_t stream);
cudaError_t launch_expand(const launch_buffers & in, cudaStream_t stream);
cudaError_t launch_place(const launch_buffers & in, uint32_t store, cudaStream_t stream);

} // namespace kernels
