// From a launch of the planner to a launch of Metal: which kernel, how many threads, how much memory, and what it is
// told. Plain C++, the same for a Mac's device and for the emulation that tests run.
#pragma once

#include "../device.h"
#include "metal_arguments.h"

#include <string>
#include <vector>

namespace kernels {

// sources that are compiled on their own: decode.metal, legacy.metal, encode.metal
enum class metal_source { decode, legacy, encode };

// What a device and its pipeline allow.
struct metal_limits {
    uint32_t threadgroup_bytes = 32 << 10; // maxThreadgroupMemoryLength; Apple's devices have this much
    uint32_t n_threads         = 256; // of a threadgroup: maxTotalThreadsPerThreadgroup of the pipeline, 32 at least
    uint32_t n_threadgroups    = 512; // of a launch, whose groups of lanes take jobs in turn
};

struct launch_shape {
    metal_source source;
    std::string  kernel; // its name in the source
    /*
     * The store_kind that the kernel is for, n_store_kinds: none. A source compiled with KC_ONLY_STORE=<store> has the
     * kernels of one store and those of none: a cache has rows of one store or two.
     */
    uint32_t     store;
    uint32_t     n_threads; // of a threadgroup, one-dimensional: whole simdgroups of 32
    uint32_t     n_threadgroups;
    uint32_t     threadgroup_bytes; // at threadgroup index 0, a multiple of 16; 0: the kernel has no such argument
};

// limits.n_threads and n_threadgroups do not change which kernel it is.
launch_shape shape_of(const planned_launch & launch, const launch_buffers & in, const metal_limits & limits);
launch_shape shape_of(const legacy_launch & launch, const legacy_buffers & in, const metal_limits & limits);
launch_shape shape_of(const encode_launch & launch, const encode_buffers & in, const metal_limits & limits);

// Pointers of the buffers are addresses on the device.
metal_decode_arguments arguments_of(const launch_buffers & in);
metal_legacy_arguments arguments_of(const legacy_buffers & in);
metal_encode_arguments arguments_of(const encode_buffers & in);

// every kernel of a source
std::vector<std::string> kernel_names(metal_source source);

} // namespace kernels
