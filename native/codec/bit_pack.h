// Unsigned numbers of a fixed width, the lowest bit first, in 32-bit little-endian words.
#pragma once

#include "bytes.h"

#include <cstdint>

namespace cachegen {

// bytes of n numbers of `width` bits, whole words
inline uint64_t packed_bytes(uint64_t n, uint32_t width) {
    return (n * width + 31) / 32 * 4;
}

// true if a bit after the last of n numbers is set in the last word
inline bool has_spare_bits(const uint8_t * packed, uint64_t n, uint32_t width) {
    const uint64_t n_bits = n * width;
    return n_bits % 32 != 0 && get_le<uint32_t>(packed + n_bits / 32 * 4) >> n_bits % 32 != 0;
}

// number `index` of an array that is inside its bounds; width 0 to 32
inline uint32_t unpack_bits(const uint8_t * packed, uint64_t index, uint32_t width) {
    if (width == 0) {
        return 0;
    }
    const uint64_t  bit   = index * width;
    const uint8_t * word  = packed + bit / 32 * 4;
    const uint32_t  shift = bit % 32;
    uint64_t        value = get_le<uint32_t>(word);
    if (shift + width > 32) {
        value |= static_cast<uint64_t>(get_le<uint32_t>(word + 4)) << 32;
    }
    return static_cast<uint32_t>(value >> shift & ((uint64_t{ 1 } << width) - 1));
}

// the array must be zero before; value has no bit above width
inline void pack_bits(uint8_t * packed, uint64_t index, uint32_t width, uint32_t value) {
    if (width == 0) {
        return;
    }
    const uint64_t bit   = index * width;
    uint8_t *      word  = packed + bit / 32 * 4;
    const uint32_t shift = bit % 32;
    const uint64_t wide  = static_cast<uint64_t>(value) << shift;
    put_le<uint32_t>(word, get_le<uint32_t>(word) | static_cast<uint32_t>(wide));
    if (shift + width > 32) {
        put_le<uint32_t>(word + 4, get_le<uint32_t>(word + 4) | static_cast<uint32_t>(wide >> 32));
    }
}

} // namespace cachegen
