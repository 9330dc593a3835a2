// Entries of the decoder on CUDA and HIP: workgroups and shared memory. What they do is in the bodies.
#pragma once

#include "dispatch.h"
#include "native_body.h"

namespace kernels {

namespace {

constexpr uint32_t decode_threads = 512; // at most
constexpr uint32_t native_threads = 256;
constexpr uint32_t ring_alignment = tiling<1>::ring_bytes; // the largest ring's

// rings are found by their addresses' bits, and shared memory begins at any multiple of 1,024
template <int R> KC_ENTRY_FN uint8_t * aligned_to_rings(uint8_t * memory) {
    return memory + (0u - kc_shared_at(memory).base) % tiling<R>::ring_bytes;
}

template <uint32_t STORE, int R, bool IS_WIDE> KC_KERNEL(decode_threads) decode(KC_ARGUMENT launch_buffers in) {
    alignas(16) extern KC_SHARED_MEMORY uint8_t shared[];

    uint8_t * const rings = aligned_to_rings<R>(shared);
    auto * const    table = reinterpret_cast<table_entry *>(rings + kc_n_groups() * R * tiling<R>::ring_bytes);
    auto * const    lanes = reinterpret_cast<uint8_t *>(table + in.set.n_entries);
    decode_kernel<STORE, R, IS_WIDE>(kc_this_thread(), in, table, rings, lanes);
}

KC_KERNEL(native_threads)
expand(KC_ARGUMENT launch_buffers in) {
    KC_SHARED_MEMORY uint8_t rings[native_threads / 32 * tiling<1>::ring_bytes + ring_alignment];
    expand_kernel(kc_this_thread(), in, aligned_to_rings<1>(rings));
}

template <uint32_t STORE> KC_KERNEL(native_threads) place(KC_ARGUMENT launch_buffers in) {
    KC_SHARED_MEMORY float span[native_threads / 32 * max_span];
    place_kernel<STORE>(kc_this_thread(), in, span);
}

using decode_entry_point = void (*)(launch_buffers);

decode_entry_point decode_entry_of(uint32_t store, uint32_t n_side, bool is_wide) {
    return with_store_and_side(store, n_side, [&](auto kind, auto side) -> decode_entry_point {
        return is_wide ? decode<decltype(kind)::value, decltype(side)::value, true>
                       : decode<decltype(kind)::value, decltype(side)::value, false>;
    });
}

decode_entry_point expand_entry() {
    return expand;
}

decode_entry_point place_entry_of(uint32_t store) {
    return with_store(store, [](auto kind) -> decode_entry_point { return place<decltype(kind)::value>; });
}

} // namespace

} // namespace kernels
