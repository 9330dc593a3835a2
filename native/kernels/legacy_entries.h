// Entries of the decoder of LCG1 and LCG2 tiles on CUDA and HIP: workgroups and shared memory. What they do is in the
// body.
#pragma once

#include "dispatch.h"
#include "legacy_body.h"

namespace kernels {

namespace {

// launch bounds: one workgroup at least, lest registers are spilled for more of them
constexpr uint32_t legacy_threads = 128;
constexpr uint32_t legacy_groups  = legacy_threads / 32;

template <uint32_t VERSION, uint32_t STORE> KC_KERNEL(legacy_threads, 1) decode_legacy(KC_ARGUMENT legacy_buffers in) {
    KC_SHARED_MEMORY uint32_t      bounds[VERSION == 1 ? legacy_groups * stream_table_entries : 1];
    KC_SHARED_MEMORY token_scratch scratch[legacy_groups];
    legacy_kernel<VERSION, STORE>(kc_this_thread(), in, bounds, scratch);
}

using legacy_entry_point = void (*)(legacy_buffers);

legacy_entry_point legacy_entry_of(uint32_t version, uint32_t store) {
    return with_store(store, [&](auto kind) -> legacy_entry_point {
        return version == 1 ? decode_legacy<1, decltype(kind)::value> : decode_legacy<2, decltype(kind)::value>;
    });
}

} // namespace

} // namespace kernels
