#include "text_device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

using namespace kernels;

namespace {

std::map<std::string, text_kernels::entry> all_entries() {
    std::map<std::string, text_kernels::entry> entries;
    for (const auto & of_source : { text_kernels::of_decode(), text_kernels::of_legacy(), text_kernels::of_encode() }) {
        for (const auto & entry : of_source) {
            entries.emplace(entry.name, entry);
        }
    }
    return entries;
}

std::map<std::string, uint64_t> all_launches;

[[noreturn]] void die(const char * what, const launch_shape & shape) {
    fprintf(stderr, "text_device: %s: %s\n", shape.kernel.c_str(), what);
    abort();
}

// bytes at a multiple of 16, and not one more: a sanitizer sees what goes beyond them
std::unique_ptr<uint8_t[]> exactly(uint64_t n_bytes) {
    std::unique_ptr<uint8_t[]> bytes(new uint8_t[n_bytes]);
    memset(bytes.get(), 0xa5, n_bytes); // nobody clears threadgroup memory
    return bytes;
}

} // namespace

text_device::text_device(uint32_t order, const metal_limits & limits)
    : emulated_device(order, limits.threadgroup_bytes, 32, 1), limits_(limits) {}

const std::map<std::string, uint64_t> & text_device::launched() {
    return all_launches;
}

template <typename Arguments> void text_device::run(const launch_shape & shape, const Arguments & arguments) {
    static const auto entries = all_entries();
    const auto        found   = entries.find(shape.kernel);
    if (found == entries.end()) {
        die("no such kernel", shape);
    }
    if (found->second.has_memory != (shape.threadgroup_bytes != 0)) {
        die("threadgroup memory for a kernel without, or none for one with it", shape);
    }
    if (shape.threadgroup_bytes > limits_.threadgroup_bytes || shape.threadgroup_bytes % 16 != 0 ||
        shape.n_threads % 32 != 0 || shape.n_threads > limits_.n_threads ||
        shape.n_threadgroups > limits_.n_threadgroups) {
        die("a shape beyond the limits", shape);
    }
    all_launches[shape.kernel]++;
    const auto copy = exactly(sizeof(arguments)); // as setBytes keeps it
    memcpy(copy.get(), &arguments, sizeof(arguments));
    for (uint32_t w = 0; w < shape.n_threadgroups; w++) {
        const auto memory = exactly(shape.threadgroup_bytes);
        lanes::run_workgroup(shape.n_threads, w, shape.n_threadgroups, options_, [&](const kc_thread & me) {
            found->second.run(copy.get(), memory.get(),
                              { me.id, me.lane, me.group, me.n_groups, me.workgroup, me.n_workgroups });
        });
    }
}

void text_device::launch(const planned_launch & launch, const launch_buffers & in, uint32_t) {
    count("a launch");
    n_launches_[static_cast<int>(launch.kind)]++;
    run(shape_of(launch, in, limits_), arguments_of(in));
}

void text_device::launch_legacy(const legacy_launch & launch, const legacy_buffers & in, uint32_t) {
    count("a launch");
    n_legacy_launches_[launch.version - 1]++;
    run(shape_of(launch, in, limits_), arguments_of(in));
}

void text_device::launch_encode(const encode_launch & launch, const encode_buffers & in) {
    count("a launch");
    run(shape_of(launch, in, limits_), arguments_of(in));
}
