// Decoding tables of one distribution: M. D. Vose's alias method over 1,024 slots, after F. Giesen's use of it in rANS.
#pragma once

#include "lcg3_format.h"

#include <cstdint>

namespace cachegen::lcg3 {

// Buckets of a set with n_symbols symbols: the power of two, 16 at least, that is not smaller.
constexpr uint32_t log2_buckets(uint32_t n_symbols) {
    return n_symbols <= 16 ? 4 : n_symbols <= 32 ? 5 : 6;
}

/*
 * One bucket. Slot = lowest 10 bits of the state, bucket = slot >> (10 - log2_buckets), position = rest of the slot.
 * Low half: the bucket's own symbol, used if position < divider. High half: its alias.
 *   bits  0-9   frequency - 1
 *   bits 10-19  what to add to the position, modulo 1,024, for the rank of the slot among the symbol's slots
 *   bits 20-25  symbol
 *   bits 26-31  low half only: divider (0: the alias fills the bucket)
 */
using bucket = uint64_t;

constexpr uint32_t half_frequency(uint32_t half) {
    return (half & 1023) + 1;
}
constexpr uint32_t half_addend(uint32_t half) {
    return (half >> 10) & 1023;
}
constexpr uint32_t half_symbol(uint32_t half) {
    return (half >> 20) & 63;
}
constexpr uint32_t half_divider(uint32_t half) {
    return half >> 26;
}

// frequencies: n_symbols numbers that sum to 1,024; buckets: OUT 1 << log2_buckets(n_symbols) entries
void build_buckets(const uint16_t * frequencies, uint32_t n_symbols, bucket * buckets);

} // namespace cachegen::lcg3
