// Unsigned numbers of a fixed width, the lowest bit first, in 32-bit little-endian words.
#pragma once

#include "bytes.h"
#include "meter.h"

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

/*
 * Numbers [index, index + n) of an array that is inside its bounds; width 0 to 32.
 * end  IN  of what may be read, at least the array's own end
 */
inline void unpack_run(const uint8_t * packed, uint64_t index, uint32_t n, uint32_t width, const uint8_t * end,
                       uint32_t * values) {
    const uint64_t first_bit = index * width;
    const uint64_t mask      = (uint64_t{ 1 } << width) - 1;
    // eight bytes hold any number wherever in a byte it begins
    if (end - packed >= static_cast<int64_t>((first_bit + uint64_t{ n } * width) / 8 + 8)) {
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t bit = first_bit + uint64_t{ i } * width;
            values[i]          = static_cast<uint32_t>(get_le<uint64_t>(packed + bit / 8) >> bit % 8 & mask);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        values[i] = unpack_bits(packed, index + i, width);
    }
}

// Writes numbers one after another.
class bit_writer {
  public:
    explicit bit_writer(metered_vector<uint8_t> & out) : out_(out) {}

    // value has no bit above width, which is 0 to 32
    void put(uint32_t value, uint32_t width) {
        bits_ |= uint64_t{ value } << n_bits_;
        n_bits_ += width;
        if (n_bits_ >= 32) {
            put_word();
        }
    }

    // the last word, zeros above the last number
    void finish() {
        if (n_bits_ > 0) {
            n_bits_ = 32;
            put_word();
        }
    }

  private:
    void put_word() {
        const size_t at = out_.size();
        out_.resize(at + 4);
        put_le<uint32_t>(&out_[at], static_cast<uint32_t>(bits_));
        bits_ >>= 32;
        n_bits_ -= 32;
    }

    metered_vector<uint8_t> & out_;
    uint64_t                  bits_   = 0;
    uint32_t                  n_bits_ = 0;
};

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
