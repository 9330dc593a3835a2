// From numbers of a plan to the template arguments of a kernel, for every device's launches.
#pragma once

#include "decode_body.h"

#include <type_traits>

namespace kernels {

// use(std::integral_constant) for a store_kind
template <typename Use> auto with_store(uint32_t store, const Use & use) {
    switch (store) {
        case store_f32: return use(std::integral_constant<uint32_t, store_f32>());
        case store_f16: return use(std::integral_constant<uint32_t, store_f16>());
        case store_bf16: return use(std::integral_constant<uint32_t, store_bf16>());
        case store_q8_0: return use(std::integral_constant<uint32_t, store_q8_0>());
        case store_q4_0: return use(std::integral_constant<uint32_t, store_q4_0>());
        case store_f32_transposed: return use(std::integral_constant<uint32_t, store_f32_transposed>());
        case store_f16_transposed: return use(std::integral_constant<uint32_t, store_f16_transposed>());
        default: return use(std::integral_constant<uint32_t, store_bf16_transposed>());
    }
}

// the same for the adjacent groups that 32 lanes have
template <typename Use> auto with_side(uint32_t n_side, const Use & use) {
    switch (n_side) {
        case 1: return use(std::integral_constant<int, 1>());
        case 2: return use(std::integral_constant<int, 2>());
        case 4: return use(std::integral_constant<int, 4>());
        default: return use(std::integral_constant<int, 8>());
    }
}

// both
template <typename Use> auto with_store_and_side(uint32_t store, uint32_t n_side, const Use & use) {
    return with_store(store, [&](auto kind) { return with_side(n_side, [&](auto side) { return use(kind, side); }); });
}

// bytes of the shared memory of a group of lanes that decodes, without its rings
inline uint32_t lane_bytes(uint32_t store, uint32_t n_side) {
    return with_store_and_side(store, n_side, [](auto kind, auto side) {
        constexpr uint32_t of_store = decltype(kind)::value;
        constexpr int      of_side  = decltype(side)::value;
        constexpr uint32_t bytes    = lane_shape<of_store, of_side>::bytes;
        static_assert(decode_group_bytes(of_store, of_side) == of_side * tiling<of_side>::ring_bytes + bytes,
                      "plans and launches count on this much");
        return bytes;
    });
}

} // namespace kernels
