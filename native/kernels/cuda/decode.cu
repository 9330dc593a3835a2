// CUDA entries of the decoder: launch shapes and shared memory. What they do is in the bodies.
#include "../dispatch.h"
#include "../native_body.h"
#include "decode.h"

#include <algorithm>

namespace kernels {

namespace {

__device__ kc_thread this_thread() {
    return { threadIdx.x, threadIdx.x & 31, threadIdx.x / 32, blockDim.x / 32, blockIdx.x, gridDim.x };
}

constexpr uint32_t decode_threads = 512; // at most
constexpr uint32_t native_threads = 256;
constexpr uint32_t ring_alignment = tiling<1>::ring_bytes; // the largest ring's

// rings are found by their addresses' bits, and shared memory begins at any multiple of 1,024
template <int R> __device__ uint8_t * aligned_to_rings(uint8_t * memory) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    return memory + (0u - address) % tiling<R>::ring_bytes;
}

template <uint32_t STORE, int R, bool IS_WIDE> __global__ void __launch_bounds__(decode_threads)
    decode(const __grid_constant__ launch_buffers in) {
    extern __shared__ __align__(16) uint8_t shared[];
    uint8_t * const                         rings = aligned_to_rings<R>(shared);
    auto * const table = reinterpret_cast<table_entry *>(rings + blockDim.x / 32 * R * tiling<R>::ring_bytes);
    auto * const lanes = reinterpret_cast<uint8_t *>(table + in.set.n_entries);
    decode_kernel<STORE, R, IS_WIDE>(this_thread(), in, table, rings, lanes);
}

__global__ void __launch_bounds__(native_threads) expand(const __grid_constant__ launch_buffers in) {
    __shared__ uint8_t rings[native_threads / 32 * tiling<1>::ring_bytes + ring_alignment];
    expand_kernel(this_thread(), in, aligned_to_rings<1>(rings));
}

template <uint32_t STORE> __global__ void __launch_bounds__(native_threads)
    place(const __grid_constant__ launch_buffers in) {
    __shared__ float span[native_threads / 32 * max_span];
    place_kernel<STORE>(this_thread(), in, span);
}

using kernel = void (*)(launch_buffers);

kernel decode_kernel_of(uint32_t store, uint32_t n_side, bool is_wide) {
    return with_store_and_side(store, n_side, [&](auto kind, auto side) -> kernel {
        return is_wide ? decode<decltype(kind)::value, decltype(side)::value, true>
                       : decode<decltype(kind)::value, decltype(side)::value, false>;
    });
}

kernel place_kernel_of(uint32_t store) {
    return with_store(store, [](auto kind) -> kernel { return place<decltype(kind)::value>; });
}

uint32_t workgroups_for(uint32_t n_jobs, uint32_t n_threads) {
    const uint32_t jobs_a_workgroup = n_threads / 32;
    return (n_jobs + jobs_a_workgroup - 1) / jobs_a_workgroup;
}

uint64_t shared_bytes_of(const set_shape & set, uint32_t store, uint32_t n_side, uint32_t n_threads) {
    const uint64_t ring_bytes = n_side == 1   ? tiling<1>::ring_bytes
                                : n_side == 2 ? tiling<2>::ring_bytes
                                              : tiling<4>::ring_bytes;
    return ring_alignment + uint64_t{ set.n_entries } * sizeof(table_entry) +
           n_threads / 32 * (n_side * ring_bytes + lane_bytes(store, n_side));
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

cudaError_t launch(kernel which, const launch_buffers & in, uint32_t n_workgroups, uint32_t n_threads,
                   uint64_t shared_bytes, cudaStream_t stream) {
    launch_buffers copy        = in;
    void *         arguments[] = { &copy };
    return cudaLaunchKernel(reinterpret_cast<const void *>(which), n_workgroups, n_threads, arguments, shared_bytes,
                            stream);
}

} // namespace

cudaError_t launch_decode(const launch_buffers & in, uint32_t store, uint32_t n_side, bool is_wide,
                          const launch_limits & limits, cudaStream_t stream) {
    const kernel   which     = decode_kernel_of(store, n_side, is_wide);
    const uint32_t n_threads = threads_for(in, store, n_side, limits);
    const uint64_t bytes     = shared_bytes_of(in.set, store, n_side, n_threads);
    if (bytes > 48 << 10) {
        const cudaError_t error =
            cudaFuncSetAttribute(which, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
        if (error != cudaSuccess) {
            return error;
        }
    }
    // workgroups take jobs in turn
    const uint32_t n_workgroups = std::min(workgroups_for(in.n_groups, n_threads), 8 * limits.n_processors);
    return launch(which, in, n_workgroups, n_threads, bytes, stream);
}

cudaError_t launch_expand(const launch_buffers & in, cudaStream_t stream) {
    return launch(expand, in, workgroups_for(in.n_groups, native_threads), native_threads, 0, stream);
}

cudaError_t launch_place(const launch_buffers & in, uint32_t store, cudaStream_t stream) {
    return launch(place_kernel_of(store), in, workgroups_for(in.n_groups, native_threads), native_threads, 0, stream);
}

} // namespace kernels
