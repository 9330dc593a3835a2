// Entries of the encoder on CUDA and HIP: workgroups and shared memory. What they do is in the bodies.
#pragma once

#include "count_body.h"
#include "dispatch.h"
#include "gather_body.h"

namespace kernels {

namespace {

// of a workgroup that encodes R groups at a time, at most
constexpr uint32_t encode_threads(int r) {
    return (r <= 2 ? max_encode_groups_a_workgroup : encode_groups_a_workgroup) * 32;
}

constexpr uint32_t other_threads = 256;
// launch bounds: one workgroup at least, lest registers are spilled for an occupancy that a block's groups do not reach
constexpr uint32_t plane_threads = 32; // a plane's layout takes one group of lanes

template <uint32_t SOURCE, int R> KC_KERNEL(other_threads, 1) find_scales(KC_ARGUMENT encode_buffers in) {
    scales_kernel<SOURCE, R>(kc_this_thread(), in);
}

template <uint32_t SOURCE, int R> KC_KERNEL(other_threads, 1) count(KC_ARGUMENT encode_buffers in) {
    alignas(16) extern KC_SHARED_MEMORY uint64_t shared[];

    count_kernel<SOURCE, R>(kc_this_thread(), in, reinterpret_cast<uint32_t *>(shared));
}

template <uint32_t SOURCE, int R> KC_KERNEL(encode_threads(R), 1) encode(KC_ARGUMENT encode_buffers in) {
    alignas(16) extern KC_SHARED_MEMORY uint64_t shared[];

    const kc_thread me       = kc_this_thread();
    auto * const    rings    = reinterpret_cast<uint16_t *>(shared);
    auto * const    table    = shared + me.n_groups * R * chunk_bytes / 8;
    auto * const    class_of = reinterpret_cast<uint8_t *>(table + in.set.n_entries);
    encode_kernel<SOURCE, R>(me, in, rings, table, class_of);
}

KC_KERNEL(plane_threads)
lay_out(KC_ARGUMENT encode_buffers in) {
    lay_out_kernel(kc_this_thread(), in);
}

KC_KERNEL(other_threads, 1)
gather(KC_ARGUMENT encode_buffers in) {
    gather_kernel(kc_this_thread(), in);
}

using encode_entry_point = void (*)(encode_buffers);

encode_entry_point scales_entry_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> encode_entry_point {
        return find_scales<decltype(kind)::value, decltype(side)::value>;
    });
}

encode_entry_point count_entry_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> encode_entry_point {
        return count<decltype(kind)::value, decltype(side)::value>;
    });
}

encode_entry_point encode_entry_of(uint32_t source, uint32_t n_side) {
    return with_store_and_side(source, n_side, [](auto kind, auto side) -> encode_entry_point {
        return encode<decltype(kind)::value, decltype(side)::value>;
    });
}

encode_entry_point lay_out_entry() {
    return lay_out;
}

encode_entry_point gather_entry() {
    return gather;
}

} // namespace

} // namespace kernels
