// Launches of the decoder, on CUDA and HIP. The entries are in decode_entries.h.
#include "../decode_entries.h"
#include "decode.h"

namespace kernels {

namespace {

uint32_t workgroups_for(uint32_t n_jobs, uint32_t n_threads) {
    const uint32_t jobs_a_workgroup = n_threads / 32;
    return (n_jobs + jobs_a_workgroup - 1) / jobs_a_workgroup;
}

} // namespace

uint64_t decode_shared_bytes(const set_shape & set, uint32_t n_side, uint32_t n_threads) {
    const uint64_t ring_bytes = n_side == 1   ? tiling<1>::ring_bytes
                                : n_side == 2 ? tiling<2>::ring_bytes
                                              : tiling<4>::ring_bytes;
    return ring_alignment + uint64_t{ set.n_entries } * sizeof(table_entry) +
           n_threads / 32 * (n_side * ring_bytes + sizeof(token_scratch));
}

namespace {

cudaError_t launch(decode_entry_point which, const launch_buffers & in, uint32_t n_workgroups, uint32_t n_threads,
                   uint64_t shared_bytes, cudaStream_t stream) {
    launch_buffers copy        = in;
    void *         arguments[] = { &copy };
    return cudaLaunchKernel(reinterpret_cast<const void *>(which), n_workgroups, n_threads, arguments, shared_bytes,
                            stream);
}

} // namespace

cudaError_t launch_decode(const launch_buffers & in, uint32_t store, uint32_t n_side, bool is_wide, uint32_t n_threads,
                          uint32_t max_workgroups, cudaStream_t stream) {
    const decode_entry_point which = decode_entry_of(store, n_side, is_wide);
    const uint64_t           bytes = decode_shared_bytes(in.set, n_side, n_threads);
    if (bytes > 48 << 10) {
        const cudaError_t error =
            cudaFuncSetAttribute(reinterpret_cast<const void *>(which), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes));
        if (error != cudaSuccess) {
            return error;
        }
    }
    const uint32_t wanted = workgroups_for(in.n_groups, n_threads);
    return launch(which, in, wanted < max_workgroups ? wanted : max_workgroups, n_threads, bytes, stream);
}

cudaError_t launch_expand(const launch_buffers & in, cudaStream_t stream) {
    return launch(expand_entry(), in, workgroups_for(in.n_groups, native_threads), native_threads, 0, stream);
}

cudaError_t launch_place(const launch_buffers & in, uint32_t store, cudaStream_t stream) {
    return launch(place_entry_of(store), in, workgroups_for(in.n_groups, native_threads), native_threads, 0, stream);
}

} // namespace kernels
