// Launches of the encoder, on CUDA and HIP. The entries are in encode_entries.h.
#include "../encode_entries.h"
#include "encode.h"

namespace kernels {

namespace {

cudaError_t launch_kernel(encode_entry_point which, const encode_buffers & in, uint32_t n_threads,
                          uint64_t shared_bytes, uint32_t max_workgroups, cudaStream_t stream) {
    if (shared_bytes > 48 << 10) {
        const cudaError_t error =
            cudaFuncSetAttribute(reinterpret_cast<const void *>(which), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
        if (error != cudaSuccess) {
            return error;
        }
    }
    const uint32_t jobs_a_workgroup = n_threads / 32;
    const uint32_t wanted           = (in.n_jobs + jobs_a_workgroup - 1) / jobs_a_workgroup;
    encode_buffers copy             = in;
    void *         arguments[]      = { &copy };
    return cudaLaunchKernel(reinterpret_cast<const void *>(which), wanted < max_workgroups ? wanted : max_workgroups,
                            n_threads, arguments, shared_bytes, stream);
}

} // namespace

cudaError_t launch_encoder(const encode_launch & launch, const encode_buffers & in, uint32_t max_workgroups,
                           cudaStream_t stream) {
    switch (launch.kind) {
        case encode_kind::scales:
            return launch_kernel(scales_entry_of(launch.source, launch.n_side), in, other_threads, 0, max_workgroups,
                                 stream);
        case encode_kind::count:
            return launch_kernel(count_entry_of(launch.source, launch.n_side), in, other_threads, 0, max_workgroups,
                                 stream);
        case encode_kind::encode:
            return launch_kernel(encode_entry_of(launch.source, launch.n_side), in, encode_threads,
                                 encode_shared_bytes(in.set, launch.n_side), max_workgroups, stream);
        case encode_kind::lay_out: return launch_kernel(lay_out_entry(), in, plane_threads, 0, max_workgroups, stream);
        default: return launch_kernel(gather_entry(), in, other_threads, 0, max_workgroups, stream);
    }
}

} // namespace kernels
