// The kernels of the fake device: what the codec's Metal functions do, run lane by lane on the processor.
#pragma once

#include <cstdint>
#include <string>

namespace fake_metal {

// what is bound when a launch runs
struct launch_state {
    std::string  function;
    const void * arguments; // at buffer index 0
    uint64_t     n_argument_bytes;
    uint32_t     n_threads;
    uint32_t     n_threadgroups;
    uint32_t     threadgroup_bytes; // at threadgroup index 0
};

// ends the process if the function is not told what it needs
void run_kernel(const launch_state & launch);

// does a library of this text have the function?
bool has_function(const std::string & text, const std::string & function);

} // namespace fake_metal
