// Launches of the decoder, on CUDA and HIP. The entries are in decode_entries.h.
#include "../decode_entries.h"
#include "decode.h"

#include <algorithm>

namespace kernels {

namespace {

uint32_t workgroups_for(uint32_t n_jobs, uint32_t n_threads) {
    const uint32_t jobs_a_workgroup = n_threads / 32;
    return (n_jobs + jobs_a_workgroup - 1) / jobs_a_workgroup;
}

uint64_t shared_bytes_of(const set_shape & set, uint32_t store, uint32_t n_side, uint32_t n_threads) {
    return ring_alignment + uint64_t{ set.n_entries } * sizeof(table_entry) +
           n_threads / 32 * decode_group_bytes(store, n_side);
}

/*
 * Parts of an archive are launched while others run, 4 or so with 2 launches each: enough workgroups for all
 * multiprocessors, but no more than that, as each has a table of its own.
 */
uint32_t threads_for(const launch_buffers & in, uint32_t store, uint32_t n_side, const launch_limits & limits) {
    const uint32_t most      = std::min(limits.n_threads, decode_threads);
    uint32_t       n_threads = 128;
    while (2 * n_threads <= most && n_threads / 32 * limits.n_processors < 4 * in.n_groups) {
        n_threads *= 2;
    }
    while (n_threads > 32 && shared_bytes_of(in.set, store, n_side, n_threads) > limits.shared_bytes) {
        n_threads /= 2;
    }
    return n_threads;
}

cudaError_t launch(decode_entry_point which, const launch_buffers & in, uint32_t n_workgroups, uint32_t n_threads,
                   uint64_t shared_bytes, cudaStream_t stream) {
    launch_buffers copy        = in;
    void *         arguments[] = { &copy };
    return cudaLaunchKernel(reinterpret_cast<const void *>(which), n_workgroups, n_threads, arguments, shared_bytes,
                            stream);
}

} // namespace

cudaError_t launch_decode(const launch_buffers & in, uint32_t store, uint32_t n_side, bool is_wide,
                          const launch_limits & limits, cudaStream_t stream) {
    const decode_entry_point which     = decode_entry_of(store, n_side, is_wide);
    const uint32_t           n_threads = threads_for(in, store, n_side, limits);
    const uint64_t           bytes     = shared_bytes_of(in.set, store, n_side, n_threads);
    if (bytes > 48 << 10) {
        const cudaError_t error =
            cudaFuncSetAttribute(reinterpret_cast<const void *>(which), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes));
        if (error != cudaSuccess) {
            return error;
        }
    }
    // workgroups take jobs in turn
    const uint32_t n_workgroups = std::min(workgroups_for(in.n_groups, n_threads), 8 * limits.n_processors);
    return launch(which, in, n_workgroups, n_threads, bytes, stream);
}

cudaError_t launch_expand(const launch_buffers & in, cudaStream_t stream) {
    return launch(expand_entry(), in, workgroups_for(in.n_groups, native_threads), native_threads, 0, stream);
}

cudaError_t launch_place(const launch_buffers & in, uint32_t store, cudaStream_t stream) {
    return launch(place_entry_of(store), in, workgroups_for(in.n_groups, native_threads), native_threads, 0, stream);
}

} // namespace kernels
