#include "fake_kernels.h"

#include "../text_kernels.h"
#include "metal/launch_shape.h"
#include "metal/metal_sources.h"
#include "objc_runtime.h"
#include "port.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

namespace fake_metal {

namespace {

const std::map<std::string, text_kernels::entry> & entries() {
    static const auto all = [] {
        std::map<std::string, text_kernels::entry> found;
        for (const auto & source :
             { text_kernels::of_decode(), text_kernels::of_legacy(), text_kernels::of_encode() }) {
            for (const auto & entry : source) {
                found.emplace(entry.name, entry);
            }
        }
        return found;
    }();
    return all;
}

// the number in a name that a store has, none: the kernel is of no store
std::optional<uint32_t> store_of(const std::string & function) {
    constexpr const char * names[] = {
        "_f32", "_f16", "_bf16", "_q8_0", "_q4_0", "_f32_transposed", "_f16_transposed", "_bf16_transposed"
    };
    std::optional<uint32_t> found;
    for (uint32_t store = 0; store < kernels::n_store_kinds; store++) {
        // the longer names come last
        if (function.find(names[store]) != std::string::npos) {
            found = store;
        }
    }
    return found;
}

std::unique_ptr<uint8_t[]> exactly(uint64_t n_bytes) {
    std::unique_ptr<uint8_t[]> bytes(new uint8_t[n_bytes]);
    memset(bytes.get(), 0xA5, n_bytes); // nobody clears threadgroup memory
    return bytes;
}

} // namespace

bool has_function(const std::string & text, const std::string & function) {
    const std::string before = "#define KC_ONLY_STORE ";
    const auto        end    = text.find('\n');
    if (text.compare(0, before.size(), before) != 0 || end != before.size() + 1) {
        objc::broken("a library that is not of one store: it compiles for minutes");
    }
    const uint32_t    only = static_cast<uint32_t>(text[before.size()] - '0');
    const std::string rest = text.substr(end + 1);
    if (only >= kernels::n_store_kinds) {
        objc::broken("store %u does not compile", only);
    }
    const std::pair<kernels::metal_source, const char * const *> sources[] = {
        { kernels::metal_source::decode, kernels::metal_text_decode },
        { kernels::metal_source::legacy, kernels::metal_text_legacy },
        { kernels::metal_source::encode, kernels::metal_text_encode },
    };
    for (const auto & [source, of_source] : sources) {
        if (rest == kernels::joined(of_source)) {
            const auto names = kernels::kernel_names(source);
            return std::find(names.begin(), names.end(), function) != names.end() &&
                   store_of(function).value_or(only) == only;
        }
    }
    objc::broken("a library of another text");
}

void run_kernel(const launch_state & launch) {
    const auto found = entries().find(launch.function);
    if (found == entries().end()) {
        objc::broken("no kernel %s", launch.function.c_str());
    }
    // what an earlier launch of the encoder has set stays set
    if (found->second.has_memory && launch.threadgroup_bytes == 0) {
        objc::broken("%s has no threadgroup memory", launch.function.c_str());
    }
    if (launch.n_threads % 32 != 0) {
        objc::broken("%s: %u threads are no whole simdgroups", launch.function.c_str(), launch.n_threads);
    }
    const auto arguments = exactly(launch.n_argument_bytes);
    memcpy(arguments.get(), launch.arguments, launch.n_argument_bytes);
    for (uint32_t w = 0; w < launch.n_threadgroups; w++) {
        const auto memory = exactly(launch.threadgroup_bytes);
        lanes::run_workgroup(launch.n_threads, w, launch.n_threadgroups, { 0, 32 }, [&](const kc_thread & me) {
            found->second.run(arguments.get(), memory.get(),
                              { me.id, me.lane, me.group, me.n_groups, me.workgroup, me.n_workgroups });
        });
    }
}

} // namespace fake_metal
