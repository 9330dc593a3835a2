// A Metal device for tests, behind the Objective-C messages that metal-cpp sends. Kernels run on the processor. It is
// strict where a real device is not, and slow where that shows what is missing:
//   - commands run when they are waited for, not before (or all at once when they are committed, to see the opposite);
//   - the host and the device see a buffer at different addresses, as on a Mac; the device sees only what a launch was
//     told of, and only while it runs; the host does not see private buffers;
//   - fresh memory holds junk; a buffer that a launch needs and that is gone ends the process;
//   - every rule of Metal that its validation layer knows of and that concerns us ends the process too.
#pragma once

#include <cstdint>
#include <string>

namespace MTL {
class Buffer;
class CommandBuffer;
class CommandQueue;
class Device;
} // namespace MTL

namespace fake_metal {

struct settings {
    bool     runs_at_once        = false; // commands run when they are committed
    bool     is_unified          = true;
    bool     has_metal3          = true;
    bool     has_math_mode       = true; // macOS 15
    uint32_t n_threads           = 1024; // maxTotalThreadsPerThreadgroup of every pipeline
    uint32_t simdgroup           = 32;
    uint32_t threadgroup_bytes   = 32 << 10;
    // the call that can fail with this number does, from 1 on; 0: none
    uint64_t fail_at             = 0;
    // how a command buffer fails: MTL::CommandBufferError
    int64_t  command_error       = 1;
    // nothing but command buffers fails
    bool     fails_commands_only = false;
};

// what the device is from now on, with counters at 0; nothing may be in use
void set(const settings & with);

struct counters {
    uint64_t n_failing    = 0; // calls that can fail
    uint64_t n_libraries  = 0;
    uint64_t n_pipelines  = 0;
    uint64_t n_commands   = 0; // command buffers that ran
    uint64_t n_dispatches = 0;
    uint64_t n_copies     = 0;
    uint64_t n_borrowed   = 0; // buffers around memory of the caller's
    uint64_t n_named      = 0; // resources that the last launch was told of
};
const counters & counted();

// the words of a failure that was made, as the localized description has them
extern const char * const failure_words;

// With one reference each, as Metal's functions return them.
MTL::Device *       make_device();
MTL::CommandQueue * make_queue(MTL::Device * device);

// A command of other code's, a graph's: fill n_bytes of a buffer, when its turn comes. Committed; owned by the queue.
void fill_later(MTL::CommandQueue * queue, MTL::Buffer * buffer, uint64_t offset, uint64_t n_bytes, uint8_t value);

// what is in a buffer, private or not, all commands done
std::string bytes_of(MTL::Buffer * buffer, uint64_t offset, uint64_t n_bytes);

// run what has been committed
void run_all(MTL::CommandQueue * queue);

} // namespace fake_metal
