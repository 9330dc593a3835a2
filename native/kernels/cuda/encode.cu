// CUDA entries of the encoder: launch shapes and shared memory. What they do is in the bodies.
#include "../count_body.h"
#include "../dispatch.h"
#include "../gather_body.h"
#include "encode.h"

namespace kernels {

namespace {

__device__ kc_thread this_thread() {
    return { threadIdx.x, threadIdx.x & 31, threadIdx.x / 32, blockDim.x / 32, blockIdx.x, gridDim.x };
}

constexpr uint32_t encode_threads = encode_groups_a_workgroup * 32;
constexpr uint32_t other_threads  = 256;
// launch bounds: one workgroup at least, lest registers are spilled for an occupancy that a block's groups do not reach
constexpr uint32_t plane_threads  = 32; // a plane's layout takes one group of lanes

template <uint32_t SOURCE, int R> __global__ void __launch_bounds__(other_threads, 1)
    find_scales(const __grid_constant__ encode_buffers in) {
    scales_kernel<SOURCE, R>(this_thread(), in);
}

template <uint32_t SOURCE, int R> __global__ void __launch_bounds__(other_threads, 1)
    count(const __grid_constant__ encode_buffers in) {
    count_kernel<SOURCE, R>(this_thread(), in);
}

template <uint32_t SOURCE, int R> __global__ void __launch_bounds__(encode_threads, 1)
    encode(const __grid_constant__ encode_buffers in) {
    extern __shared__ __align__(16) uint64_t shared[];
    auto * const                             rings    = reinterpret_cast<uint16_t *>(shared);
    auto * const                             table    = shared + encode_groups_a_workgroup * R * chunk_bytes / 8;
    auto * const                             class_of = reinterpret_cast<uint8_t *>(table + in.set.n_entries);
    encode_kernel<SOURCE, R>(this_thread(), in, rings, table, class_of);
}

__global__ void __launch_bounds__(plane_threads) lay_out(const __grid_constant__ encode_buffers in) {
    lay_out_kernel(this_thread(), in);
}

__global__ void __launch_bounds__(other_threads, 1) gather(const __grid_constant__ encode_buffers in) {
    gather_kernel(this_thread(), in);
}

using kernel = void (*)(encode_buffers);

kernel scales_kernel_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> kernel {
        return find_scales<decltype(kind)::value, decltype(side)::value>;
    });
}

kernel count_kernel_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> kernel {
        return count<decltype(kind)::value, decltype(side)::value>;
    });
}

kernel encode_kernel_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> kernel {
        return encode<decltype(kind)::value, decltype(side)::value>;
    });
}

cudaError_t launch_kernel(kernel which, const encode_buffers & in, uint32_t n_threads, uint64_t shared_bytes,
                          uint32_t max_workgroups, cudaStream_t stream) {
    if (shared_bytes > 48 << 10) {
        const cudaError_t error =
            cudaFuncSetAttribute(which, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
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
            return launch_kernel(scales_kernel_of(launch.source, launch.n_side), in, other_threads, 0, max_workgroups,
                                 stream);
        case encode_kind::count:
            return launch_kernel(count_kernel_of(launch.source, launch.n_side), in, other_threads, 0, max_workgroups,
                                 stream);
        case encode_kind::encode:
            return launch_kernel(encode_kernel_of(launch.source, launch.n_side), in, encode_threads,
                                 encode_shared_bytes(in.set, launch.n_side), max_workgroups, stream);
        case encode_kind::lay_out: return launch_kernel(lay_out, in, plane_threads, 0, max_workgroups, stream);
        default: return launch_kernel(gather, in, other_threads, 0, max_workgroups, stream);
    }
}

} // namespace kernels
