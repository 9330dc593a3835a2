// Launches of the decoder of LCG1 and LCG2 tiles, on CUDA and HIP. The entries are in legacy_entries.h.
#include "../legacy_entries.h"
#include "legacy.h"

namespace kernels {

cudaError_t launch_legacy_decode(const legacy_launch & launch, const legacy_buffers & in, uint32_t max_workgroups,
                                 cudaStream_t stream) {
    const uint32_t           wanted       = (in.n_jobs + legacy_groups - 1) / legacy_groups;
    legacy_buffers           copy         = in;
    void *                   arguments[]  = { &copy };
    const legacy_entry_point which        = legacy_entry_of(launch.version, launch.store);
    const uint32_t           n_workgroups = wanted < max_workgroups ? wanted : max_workgroups;
    return cudaLaunchKernel(reinterpret_cast<const void *>(which), n_workgroups, legacy_threads, arguments, 0, stream);
}

} // namespace kernels
