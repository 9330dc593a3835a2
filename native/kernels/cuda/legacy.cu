// CUDA entries of the decoder of LCG1 and LCG2 tiles: launch shapes and shared memory. What they do is in the body.
#include "../dispatch.h"
#include "../legacy_body.h"
#include "legacy.h"

namespace kernels {

namespace {

__device__ kc_thread this_thread() {
    return { threadIdx.x, threadIdx.x & 31, threadIdx.x / 32, blockDim.x / 32, blockIdx.x, gridDim.x };
}

// launch bounds: one workgroup at least, lest registers are spilled for more of them
constexpr uint32_t legacy_threads = 128;
constexpr uint32_t legacy_groups  = legacy_threads / 32;

template <uint32_t VERSION, uint32_t STORE> __global__ void __launch_bounds__(legacy_threads, 1)
    decode_legacy(const __grid_constant__ legacy_buffers in) {
    __shared__ uint32_t      bounds[VERSION == 1 ? legacy_groups * stream_table_entries : 1];
    __shared__ token_scratch scratch[legacy_groups];
    legacy_kernel<VERSION, STORE>(this_thread(), in, bounds, scratch);
}

using kernel = void (*)(legacy_buffers);

kernel legacy_kernel_of(uint32_t version, uint32_t store) {
    return with_store(store, [&](auto kind) -> kernel {
        return version == 1 ? decode_legacy<1, decltype(kind)::value> : decode_legacy<2, decltype(kind)::value>;
    });
}

} // namespace

cudaError_t launch_legacy_decode(const legacy_launch & launch, const legacy_buffers & in, uint32_t max_workgroups,
                                 cudaStream_t stream) {
    const uint32_t wanted       = (in.n_jobs + legacy_groups - 1) / legacy_groups;
    legacy_buffers copy         = in;
    void *         arguments[]  = { &copy };
    const kernel   which        = legacy_kernel_of(launch.version, launch.store);
    const uint32_t n_workgroups = wanted < max_workgroups ? wanted : max_workgroups;
    return cudaLaunchKernel(reinterpret_cast<const void *>(which), n_workgroups, legacy_threads, arguments, 0, stream);
}

} // namespace kernels
