// The language the kernels are written in: what CUDA, HIP, Metal and a C++ compiler share, and a lane interface for the
// rest.
// A group of lanes is 32 threads that run in step, on a machine with waves of 64 half a wave.
#pragma once

#include "address_spaces.h"

// where a thread is: in its workgroup, and the workgroup in the launch
struct kc_thread {
    uint32_t id;
    uint32_t lane;
    uint32_t group;    // of 32 lanes, in the workgroup
    uint32_t n_groups; // of the workgroup
    uint32_t workgroup;
    uint32_t n_workgroups;
};

#if defined(__METAL_VERSION__)
#    include "metal/port_metal.h"
#elif defined(__HIP__)
#    include "hip/port_hip.h"
#elif defined(__CUDACC__)
#    include "cuda/port_cuda.h"
#else // a C++ compiler: lanes are emulated
#    include "cpu/lanes.h"
#endif
