// Launches of the encoder, on CUDA and HIP. The entries are in encode_entries.h.
#include "../encode_entries.h"
#include "encode.h"

#include <algorithm>

namespace kernels {

namespace {

constexpr uint64_t reserved_shared_bytes = 1024;     // of every workgroup, by CUDA
constexpr uint64_t usual_shared_bytes    = 48 << 10; // that a workgroup has without asking for more

cudaError_t launch_kernel(encode_entry_point which, const encode_buffers & in, uint32_t n_threads,
                          uint64_t shared_bytes, uint32_t max_workgroups, cudaStream_t stream) {
    if (shared_bytes > usual_shared_bytes) {
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

// Groups of lanes of a workgroup: as few as let all workgroups run at the same time, which share no table.
uint32_t encode_groups(const encode_launch & launch, const encode_buffers & in, const encode_machine & machine) {
    const uint32_t most = encode_threads(static_cast<int>(launch.n_side)) / 32;
    for (uint32_t n_groups = encode_groups_a_workgroup; n_groups <= most; n_groups += 4) {
        const uint64_t bytes       = encode_shared_bytes(in.set, launch.n_side, n_groups) + reserved_shared_bytes;
        const uint64_t a_processor = machine.shared_bytes / bytes;
        if ((in.n_jobs + n_groups - 1) / n_groups <= a_processor * machine.n_processors) {
            return n_groups;
        }
    }
    return encode_groups_a_workgroup;
}

// As many groups of lanes a workgroup as fit without asking for more shared memory, and as many workgroups as run at
// the same time: each of them adds its counters of pairs to the device's memory.
cudaError_t launch_count(const encode_launch & launch, const encode_buffers & in, const encode_machine & machine,
                         cudaStream_t stream) {
    const count_bytes bytes    = count_shared_bytes(in, launch.n_side);
    uint32_t          n_groups = other_threads / 32;
    while (n_groups > 1 && n_groups * bytes.group > usual_shared_bytes) {
        n_groups--;
    }
    const uint64_t shared_bytes = bytes.workgroup + n_groups * bytes.group;
    const uint64_t a_processor  = machine.shared_bytes / (shared_bytes + reserved_shared_bytes);
    const auto     n_workgroups = static_cast<uint32_t>(std::min<uint64_t>(8, std::max<uint64_t>(1, a_processor)));
    return launch_kernel(count_entry_of(launch.source, launch.n_side), in, 32 * n_groups, shared_bytes,
                         n_workgroups * machine.n_processors, stream);
}

} // namespace

cudaError_t launch_encoder(const encode_launch & launch, const encode_buffers & in, const encode_machine & machine,
                           cudaStream_t stream) {
    const uint32_t max_workgroups = 8 * machine.n_processors;
    const uint32_t n_groups       = encode_groups(launch, in, machine);
    switch (launch.kind) {
        case encode_kind::scales:
            return launch_kernel(scales_entry_of(launch.source, launch.n_side), in, other_threads, 0, max_workgroups,
                                 stream);
        case encode_kind::count: return launch_count(launch, in, machine, stream);
        case encode_kind::encode:
            return launch_kernel(encode_entry_of(launch.source, launch.n_side), in, 32 * n_groups,
                                 encode_shared_bytes(in.set, launch.n_side, n_groups), max_workgroups, stream);
        case encode_kind::lay_out: return launch_kernel(lay_out_entry(), in, plane_threads, 0, max_workgroups, stream);
        default: return launch_kernel(gather_entry(), in, other_threads, 0, max_workgroups, stream);
    }
}

} // namespace kernels
